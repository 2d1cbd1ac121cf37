"""`python -m pydist.doctor`: finds what is wrong with communication here. It prints findings, the worst one first.

It checks this host (its name, a port, shared memory, huge pages, limits, cores, GPUs). Then it starts `--nproc-per-node` ranks,
which compare versions, scripts, clocks and speed, and measure latency and bandwidth. Every line says what was found and
what to do. The exit code is 1 if there is a problem. `--json` prints [{"severity", "check", "text"}].

Under the launcher (`python -m pydist.run --hosts a:1,b:1 -m pydist.doctor`) it checks the job's own ranks on all hosts,
and each pair of them: latency and bandwidth, or that they cannot reach each other.

`--attach PID|PORT` asks the ranks on this host of a job that hangs which rank waits for which one, and where each is.

PYDIST_FAULT=clock:RANK:SECONDS, version:RANK:TEXT or slow:RANK:FACTOR pretends a fault, for tests of this program.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import resource
import socket
import subprocess
import sys
import time
from collections import Counter, namedtuple

from pydist._doctor import pairs as pairwise
from pydist._doctor.attach import socket_owner

Finding = namedtuple("Finding", "severity check text")
PROBLEM, WARNING, OK = "problem", "warning", "ok"
_ORDER = (PROBLEM, WARNING, OK)

MARK = "pydist.doctor:"  # precedes the line of JSON that rank 0 prints
CLOCK = 0.5  # s by which clocks may differ
SLOW = 1.5  # a rank may take so many times the median
DESCRIPTORS = 1024
SHM = 64 << 20


# This host


def name_finding(host=None, hosts=1):
    """Whether the host's own name resolves to addresses that others can reach. `hosts`: how many hosts the job has."""
    severity = WARNING if hosts > 1 else OK
    host = host or socket.gethostname()
    try:
        addresses = sorted({info[4][0] for info in socket.getaddrinfo(host, None)})
    except OSError as error:
        return Finding(
            severity,
            "name",
            f"this host's name {host} does not resolve to an address ({error}): start jobs with --master-addr",
        )
    loopback = [a for a in addresses if a.startswith("127.") or a == "::1"]
    if len(loopback) == len(addresses):
        return Finding(
            severity,
            "name",
            f"this host's name {host} resolves to {', '.join(addresses)}, which other hosts cannot reach: jobs of "
            f"several hosts need --master-addr with one of {', '.join(own_addresses()) or 'its own addresses'}",
        )
    return Finding(OK, "name", f"{host} is {', '.join(addresses)}")


def own_addresses():
    """This host's addresses, without loopback."""
    from pydist import _C

    try:
        return [address for _, address in _C.interfaces()]
    except ValueError:  # network_finding reports it
        return []


def network_finding():
    """The network interfaces that ranks may use."""
    from pydist import _C

    try:
        found = ", ".join(f"{name} {address}" for name, address in _C.interfaces())
    except ValueError as error:
        return Finding(PROBLEM, "network", str(error).removeprefix("control: "))
    return Finding(OK, "network", found or "loopback is the only interface: no other host can be reached")


def port_owner(port):
    """(pid, command) of the process that listens on this TCP port; (None, None) if it cannot be seen; None if nobody
    listens."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        inodes |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    if not inodes:
        return None
    pid = socket_owner(inodes)
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return pid, file.read().replace("\0", " ").strip()
    except OSError:
        return None, None


def port_finding(port):
    """Whether a TCP port is free, and if not, which process has it."""
    owner = port_owner(port)
    if owner is None:
        return Finding(OK, "port", f"port {port} is free")
    who = f"pid {owner[0]} ({owner[1][:80]})" if owner[0] else "a process of another user"
    return Finding(PROBLEM, "port", f"{who} listens on port {port}: end it, or choose another --master-port")


def memory_findings(shm="/dev/shm"):
    """Whether shared memory can be made, and how much is free in `shm`."""
    try:
        status = os.statvfs(shm)
        free = status.f_bavail * status.f_frsize
        if free < SHM:
            text = (
                f"{shm} has {free >> 20} MiB left: data loaders of other libraries need more (docker run --shm-size=1g)"
            )
            yield Finding(WARNING, "shared memory", f"{text}; pydist itself does not use {shm}")
        else:
            yield Finding(OK, "shared memory", f"{shm} has {free >> 20} MiB left")
    except OSError:
        yield Finding(WARNING, "shared memory", f"there is no {shm}: data loaders of other libraries need it")
    try:
        fd = os.memfd_create("pydist.doctor")
        os.posix_fallocate(fd, 0, 1 << 20)
        os.close(fd)
    except OSError as error:
        text = f"the system gives no shared memory ({error.strerror}): ranks cannot communicate"
        yield Finding(PROBLEM, "shared memory", text)


def _in_huge_pages():
    """How many bytes of the memory that this process shares lie in huge pages."""
    found, ours = 0, False
    with open("/proc/self/smaps") as file:
        for line in file:
            if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
                ours = "/memfd:pydist" in line
            elif ours and line.startswith("ShmemPmdMapped:"):
                found += int(line.split()[1]) << 10
    return found


def whole_findings():
    """How much memory ranks may share, for parameters of sharded models, and whether it lies in huge pages."""
    from pydist import _C, empty

    left, limit = _C._limits()[0], resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY:
        text = f"files may have {limit >> 20} MiB (ulimit -f), and so may the memory that ranks share for a unit of parameters"
        yield Finding(WARNING, "memory files", f"{text}: larger ones raise MemoryError")
    else:
        yield Finding(OK, "memory files", f"{left >> 20} MiB are left for memory that ranks share")
    try:
        probe = empty(4 << 20, device="cpu").share_memory_()  # 16 MiB; from 8 MiB on huge pages are asked for
        huge = _in_huge_pages() > 0
        del probe
    except MemoryError as error:
        yield Finding(WARNING, "huge pages", f"not known: {error}")
        return
    if huge:
        yield Finding(OK, "huge pages", "large memory that ranks share lies in huge pages")
    else:
        text = f"Linux {platform.release()} gives none for memory that ranks share (expected 6.1 or newer)"
        yield Finding(OK, "huge pages", f"{text}: products of large weights take some per cent longer")


def limit_finding():
    """Whether the limit of open files is high enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        text = f"at most {soft} open files: jobs of many ranks need more (ulimit -n {min(hard, 65536)})"
        return Finding(PROBLEM if soft < 256 else WARNING, "limits", text)
    return Finding(OK, "limits", f"{soft} open files")


def quota():
    """How many cores the container's CPU quota allows; None: no limit."""
    from pydist import _C

    cores = _C._limits()[1]
    return max(1, int(cores)) if cores else None


def cores_finding(ranks, cores=None):
    """Whether the cores are enough for `ranks` with their threads."""
    from pydist import _C

    cores = cores or min(len(os.sched_getaffinity(0)), quota() or 1 << 20)
    said = os.environ.get("OMP_NUM_THREADS")
    threads = int(said) if said and said.isdigit() else max(1, min(cores, _C.get_num_threads()) // max(ranks, 1))
    if threads * ranks > cores:
        because = f"OMP_NUM_THREADS={said}" if said else "at least one each"
        return Finding(
            WARNING,
            "cores",
            f"{ranks} ranks with {threads} threads each ({because}) on {cores} cores: they wait for each other; "
            f"start {max(1, cores // threads)} ranks, or set OMP_NUM_THREADS={max(1, cores // ranks)}",
        )
    return Finding(OK, "cores", f"{ranks} ranks with {threads} threads on {cores} cores")


# Ranks


def _fault(kind, rank):
    """The value of PYDIST_FAULT=kind:rank:value if it is meant for this rank."""
    name, _, rest = os.environ.get("PYDIST_FAULT", "").partition(":")
    whom, _, value = rest.partition(":")
    return value if name == kind and whom == str(rank) else None


def _hash(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:12]


def _speed():
    """Seconds of a matrix product on one thread, the best of several runs."""
    import pydist

    threads = pydist.get_num_threads()
    pydist.set_num_threads(1)
    a, best = pydist.ones(384, 384), float("inf")
    for _ in range(9):
        begin = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begin)
    pydist.set_num_threads(threads)
    return best


def _link():
    """Seconds of an all_reduce of 4 bytes, and bytes per second of one of 4 MiB."""
    import pydist
    from pydist import distributed as dist

    def timed(x, calls):
        for _ in range(3):
            dist.all_reduce(x)
        begin = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(x)
        return (time.perf_counter() - begin) / calls

    return timed(pydist.zeros(1), 200), (4 << 20) / timed(pydist.zeros(1 << 20), 10)


def examine(script=None):
    """What a rank knows about itself. Every rank of the default group calls it."""
    import pydist
    from pydist import _C
    from pydist import distributed as dist

    rank = dist.get_rank()
    dist.barrier()
    clock = time.time() + float(_fault("clock", rank) or 0)
    speed = _speed() * float(_fault("slow", rank) or 1)
    latency, bandwidth = _link()
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname() + os.environ.get("GROUP_RANK", ""))
    chosen = pairwise.chosen(hosts)
    pairs = pairwise.measure(rank, chosen) if rank in chosen else {}
    return {
        "rank": rank,
        "place": hosts[rank],
        "pairs": [[other, *value] for (_, other), value in pairs.items()],
        "host": socket.gethostname(),
        "clock": clock,
        "speed": speed,
        "latency": latency,
        "bandwidth": bandwidth,
        "transport": dist.group.WORLD.transport,
        "way": dist.group.WORLD.way,
        "local": dist.group.WORLD.ranks_per_host,
        "same": {
            "pydist": _fault("version", rank) or f"{pydist.__version__} ({_hash(_C.__file__)})",
            "Python": platform.python_version(),
            "oneDNN": _C.onednn_version() or "none",
            "instruction set": _C.isa(),
            "kernel": platform.release(),
            **({"script": f"{script} ({_hash(script)})"} if script else {}),
        },
    }


def compare(ranks):
    """Findings from what the ranks report about themselves."""
    for what in ranks[0]["same"]:
        values = Counter(rank["same"].get(what) for rank in ranks)
        if len(values) > 1:
            usual = values.most_common(1)[0][0]
            odd = next(rank for rank in ranks if rank["same"].get(what) != usual)
            bits = what in ("pydist", "script", "oneDNN", "instruction set")
            yield Finding(
                PROBLEM if what in ("pydist", "script") else WARNING,
                "versions",
                f"rank {odd['rank']} on {odd['host']} has {what} {odd['same'].get(what)}, the others {usual}"
                + (": results may differ in their last bits" if bits else ""),
            )
    clocks = [rank["clock"] for rank in ranks]
    if max(clocks) - min(clocks) > CLOCK:
        middle = sorted(clocks)[len(clocks) // 2]
        odd = max(ranks, key=lambda rank: abs(rank["clock"] - middle))
        ahead = odd["clock"] - (middle if odd["clock"] != middle else min(clocks))
        yield Finding(
            WARNING,
            "clocks",
            f"the clock of rank {odd['rank']} on {odd['host']} is {ahead:+.1f} s off: times in the ranks' logs cannot be "
            "compared (start NTP)",
        )
    speeds = sorted(rank["speed"] for rank in ranks)
    usual = speeds[(len(speeds) - 1) // 2]
    odd = max(ranks, key=lambda rank: rank["speed"])
    if odd["speed"] > SLOW * usual:
        yield Finding(
            WARNING,
            "slow rank",
            f"rank {odd['rank']} on {odd['host']} computes {odd['speed'] / usual:.1f} times slower than the other ranks, "
            "which wait for it: look for other programs on its cores, or for heat",
        )
    for rank in ranks:
        if rank.get("way"):
            yield Finding(OK, "network", f"rank {rank['rank']} on {rank['host']} reaches the launcher at {rank['way']}")
    worst = max(ranks, key=lambda rank: rank["latency"])
    least = min(rank["bandwidth"] for rank in ranks)
    yield Finding(
        OK,
        "link",
        f"{len(ranks)} ranks over {worst['transport']}: all_reduce of 4 bytes {worst['latency'] * 1e6:.1f} us, "
        f"of 4 MiB {least / 1e9:.2f} GB/s",
    )
    if len(ranks) > 1:
        from pydist.distributed._ops.cost import cost_text

        text = cost_text("all_reduce", len(ranks), 4 << 20, worst["transport"], worst.get("local", 1))
        yield Finding(OK, "cost", text)


def pair_findings(ranks):
    """Findings from measurements between each pair of ranks."""
    pairs = {(rank["rank"], other): (seconds, rate) for rank in ranks for other, seconds, rate in rank.get("pairs", ())}
    measured = sorted({rank for pair in pairs for rank in pair})
    if len(measured) < 2:
        return
    names = {rank["rank"]: rank["host"] for rank in ranks}
    for low, high, times, what in pairwise.slow_pairs(pairs, {rank["rank"]: rank["place"] for rank in ranks}):
        yield Finding(
            WARNING,
            "pairs",
            f"{what} between rank {low} on {names[low]} and rank {high} on {names[high]} is {times:.1f} times worse than "
            "between the others: look at their cables, switches and routes",
        )
    yield Finding(OK, "pairs", pairwise.table(measured, pairs))


def ranks_findings(count, script=None, timeout=120):
    """Starts `count` ranks on this host and compares them."""
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(count), "-m", "pydist.doctor", "--as-rank"]
    command += ["--script", script] if script else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return [Finding(PROBLEM, "ranks", f"{count} ranks did not end within {timeout} s")]
    for line in done.stdout.splitlines():
        if MARK in line:
            ranks = json.loads(line.partition(MARK)[2])
            return [*compare(ranks), *pair_findings(ranks)]
    said = (done.stderr or done.stdout).strip().splitlines()
    return [
        Finding(PROBLEM, "ranks", f"{count} ranks cannot work together: {said[0] if said else 'they gave no reason'}")
    ]


def _be_a_rank(script):
    from pydist import distributed as dist

    dist.init_process_group()
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, examine(script))
    if dist.get_rank() == 0:
        print(MARK + json.dumps(every))
    dist.destroy_process_group()


def _under_the_launcher(script, patience):
    """The findings of all hosts, on rank 0; None on other ranks. If the ranks cannot meet, each rank returns its own
    findings."""
    from pydist import distributed as dist

    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    own = [name_finding(hosts=int(os.environ.get("GROUP_WORLD_SIZE", 1))), network_finding(), *memory_findings()]
    own += [limit_finding(), cores_finding(local), *gpu_findings()]
    host = socket.gethostname()
    try:
        dist.init_process_group(timeout=patience)
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, {**examine(script), "own": own})
    except dist.DistError as error:
        return [Finding(PROBLEM, "pairs", f"rank {os.environ['RANK']} on {host}: {error}")]
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank:
        return None
    found = [*compare(every), *pair_findings(every)]
    for place in {one["place"]: one for one in every}.values():
        found += [Finding(*one[:2], f"{place['host']}: {one[2]}") for one in place["own"]]
    return found


def gpu_findings():
    """Findings about GPUs, their driver and NCCL."""
    from pydist import distributed
    from pydist._doctor import gpus

    distributed.is_nccl_available()  # sets where NCCL's library may be
    return [Finding(*one) for one in gpus.findings()]


def _worst_first(found):
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def findings(ranks, port=None, script=None, hosts=1):
    """All findings, the worst one first."""
    found = [name_finding(hosts=hosts), network_finding(), *memory_findings(), limit_finding(), cores_finding(ranks)]
    found += whole_findings()
    found += gpu_findings()
    if port is not None:
        found.append(port_finding(port))
    found += ranks_findings(ranks, script)
    return _worst_first(found)


def _report_attached(parser, target):
    from pydist._doctor import attach

    try:
        lines = list(attach.lines(target))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print("\n".join(lines))
    sys.exit(int(lines[0].startswith(PROBLEM)))


def main():
    """Runs the command line. Exits with 1 if there is a problem."""
    parser = argparse.ArgumentParser(prog="python -m pydist.doctor", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--nproc-per-node", "--nproc_per_node", type=int, default=2, metavar="N", help="ranks to start (2)"
    )
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="hosts that the job will have (1)")
    parser.add_argument(
        "--master-port", "--master_port", type=int, metavar="PORT", help="the port that the job will use"
    )
    parser.add_argument("--script", metavar="FILE", help="the training script, which has to be the same for all ranks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--attach", type=int, metavar="PID|PORT", help="a launcher, a rank, or a job's MASTER_PORT")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for ranks of several hosts to meet (30)")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        _be_a_rank(args.script)
        return
    if args.attach is not None:
        _report_attached(parser, args.attach)
    if args.script and not os.path.isfile(args.script):
        parser.error(f"--script {args.script}: no such file")
    if "PYDIST_CONTROL" in os.environ:
        found = _under_the_launcher(args.script, args.timeout)
        if found is None:
            return
        found = _worst_first(found)
    else:
        port = args.master_port if args.master_port is not None else os.environ.get("MASTER_PORT")
        found = findings(args.nproc_per_node, int(port) if port else None, args.script, args.nnodes)
    if args.json:
        print(json.dumps([finding._asdict() for finding in found]))
    else:
        for finding in found:
            print(f"{finding.severity}: {finding.check}: {finding.text}")
    sys.exit(int(found[0].severity == PROBLEM))


if __name__ == "__main__":
    main()
