"""`python -m pydist.doctor --attach PID|port`: what the ranks of a job that hangs are doing, and which rank waits for
which.

The job is that of a process (its launcher, or any rank), or the one with this MASTER_PORT. SIGUSR1 asks its ranks on
this host; only processes that handle it get it. They answer to a socket whose name has our pid
(csrc/comm/control/status_report.h). A stopped or dead rank does not answer; then the kernel says why.
"""

import glob
import os
import re
import select
import signal
import socket
import struct
from collections import namedtuple
from time import monotonic

from pydist._doctor import calls

PATIENCE = 3.0  # s to wait for an answer: a control thread looks once a second
ANSWER_BYTES = 2 << 20  # most bytes of an answer; a rank's has at most half of that

Rank = namedtuple("Rank", "pid number world on place record")  # on: the rank that this one waits for, or None


def _read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def socket_owner(inodes):
    """The pid of the process that has one of these sockets open; None if no process whose descriptors we may see has
    one."""
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(path)[len("socket:[") : -1] in inodes:
                return int(path.split("/")[2])
        except OSError:
            continue
    return None


def _environment(pid):
    return dict(entry.partition("=")[::2] for entry in _read(pid, "environ").split("\0") if "=" in entry)


def _field(pid, name):
    found = re.search(rf"^{name}:\s*(\S+)", _read(pid, "status"), re.M)
    return found[1] if found else ""


def _answers(pid):
    """Whether the process is a rank of this package: it handles SIGUSR1, which would end other programs, and has the
    engine loaded."""
    handled = int(_field(pid, "SigCgt") or "0", 16) >> (signal.SIGUSR1 - 1) & 1
    return bool(handled) and "/pydist/_C." in _read(pid, "maps")


def _family(pid):
    """The process and all its descendants."""
    children = {}
    for path in glob.glob("/proc/[0-9]*"):
        child = int(path[6:])
        children.setdefault(_field(child, "PPid"), []).append(child)
    found = [pid]
    for one in found:
        found += children.get(str(one), [])
    return found


def _job(pid, environment):
    """A value that is equal for all ranks of a job; None if the process is not part of a job."""
    if environment.get("PYDIST_CONTROL"):
        return environment["PYDIST_CONTROL"], environment.get("MASTER_PORT")
    if "RANK" in environment and "MASTER_PORT" in environment:
        return environment.get("MASTER_ADDR"), environment["MASTER_PORT"]
    return None


def ranks_of(target):
    """The pids of the job's ranks on this host. Raises ValueError if there is no such process or job."""
    everyone = [int(path[6:]) for path in glob.glob("/proc/[0-9]*")]
    if target in everyone:
        job = _job(target, _environment(target))
        found = {pid for pid in everyone if job and _job(pid, _environment(pid)) == job} | set(_family(target))
    else:
        found = {pid for pid in everyone if _environment(pid).get("MASTER_PORT") == str(target)}
        name = f"@pydist-{os.geteuid()}-{target}"  # without a launcher the ranks meet at this port, on rank 0
        rows = [line.split() for line in _read("net", "unix").splitlines()]
        owner = socket_owner({row[6] for row in rows if row[-1] == name})
        if owner:
            found |= {owner, *(pid for pid in everyone if _field(pid, "PPid") == _field(owner, "PPid"))}
    found = sorted(pid for pid in found if pid != os.getpid() and _answers(pid))
    if not found:
        raise ValueError(f"--attach {target}: no rank on this host (expected the pid of a launcher or a rank, or a job's "
                         "MASTER_PORT)")  # fmt: skip
    return found


def _peer(connection):
    """(pid, user id) of the process at the other end."""
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[:2]


def ask(pids, patience=PATIENCE):
    """{pid: the text of its answer} for the ranks that answer."""
    answers, parts = {}, {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(f"\0pydist-doctor-{os.getpid()}")
        door.listen(len(pids))
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        end = monotonic() + patience
        while len(answers) < len(pids) and monotonic() < end:
            ready, _, _ = select.select([door, *parts], [], [], max(0.0, end - monotonic()))
            for connection in ready:
                if connection is door:
                    connection = door.accept()[0]
                    pid, uid = _peer(connection)
                    if uid == os.geteuid() and pid in pids and pid not in answers:
                        parts[connection] = b""
                    else:
                        connection.close()
                    continue
                try:
                    data = connection.recv(1 << 16)
                except OSError:
                    data = b""
                parts[connection] += data
                if not data or len(parts[connection]) > ANSWER_BYTES:
                    text = parts.pop(connection)[:ANSWER_BYTES]
                    answers[_peer(connection)[0]] = text.decode("utf-8", "replace")
                    connection.close()
    for connection in parts:
        connection.close()
    return answers


def understand(pid, text):
    """The Rank that an answer, or a missing answer, describes."""
    found = re.match(r"rank (\d+) of (\d+)\non (-?\d+)\n(.*)\n((?s:.*))", text)
    if found:
        on = int(found[3])
        return Rank(pid, int(found[1]), int(found[2]), on if on >= 0 else None, found[4], found[5])
    state = {"T": "its process is stopped (SIGSTOP, or a debugger)", "t": "a debugger holds it",
             "Z": "its process has ended", "": "its process has ended"}.get(_field(pid, "State"))  # fmt: skip
    environment = _environment(pid)
    number, world = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return Rank(
        pid, int(number) if number.isdigit() else -1, int(world) if world.isdigit() else 0, None,
        state or "it does not answer: its control thread hangs, or the program handles SIGUSR1 itself", "",
    )  # fmt: skip


def _circle(ranks):
    """Ranks each of which waits for the next one, and the last one for the first; [] if there are none."""
    on = {rank.number: rank.on for rank in ranks}
    for start in on:
        path, now = [], start
        while now is not None and now not in path:
            path.append(now)
            now = on.get(now)
        if now is not None:
            return path[path.index(now) :]
    return []


def verdict(ranks):
    """(severity, text) of the report's first line."""
    from pydist._launch.traces import listed

    called = calls.story(ranks)
    waiting = [rank for rank in ranks if rank.on is not None]
    known = {rank.number: rank for rank in ranks}
    if not waiting:
        silent = [rank for rank in ranks if not rank.record]
        if silent:
            return "problem", f"rank {silent[0].number} (pid {silent[0].pid}): {silent[0].place}"
        if called:
            return "problem", called
        return "ok", "no rank waits for another one"
    if circle := _circle(ranks):
        steps = "; ".join(f"rank {number}: {known[number].place}" for number in circle)
        return "problem", f"{listed(sorted(circle))} wait for each other: {steps}"
    names, verb = listed([rank.number for rank in waiting]), "waits" if len(waiting) == 1 else "wait"
    wanted = {rank.on for rank in waiting}
    late = [rank for rank in ranks if rank.on is None and rank.number in wanted]
    if not late:
        far = listed(sorted(wanted - set(known)))
        return "problem", f"{names} {verb} for {far}, not on this host: attach there"
    text = "; ".join(f"rank {rank.number} (pid {rank.pid}): {rank.place}" for rank in late)
    others = [rank for rank in ranks if rank.on is None and rank not in late]
    text += "".join(f"; nor does rank {rank.number} wait: {rank.place}" for rank in others)
    text += f"; {called}" if called else ""
    return "problem", f"{names} {verb} for {listed([rank.number for rank in late])}: {text}"


def lines(target):
    """The lines of the report, the verdict first."""
    pids = ranks_of(target)
    answers = ask([pid for pid in pids if _field(pid, "State") not in ("T", "t", "Z", "")])
    ranks = sorted((understand(pid, answers.get(pid, "")) for pid in pids), key=lambda rank: rank.number)
    severity, text = verdict(ranks)
    yield f"{severity}: hang: {text}"
    for rank in ranks:
        yield f"rank {rank.number} of {rank.world} (pid {rank.pid}): {rank.place}"
    missing = set(range(max(rank.world for rank in ranks))) - {rank.number for rank in ranks}
    if missing:
        from pydist._launch.traces import listed

        yield f"{listed(sorted(missing))}: not on this host"
    for rank in ranks:
        if rank.record:
            yield f"flight record of {rank.record.rstrip()}"
