"""A job on several hosts that this launcher starts: ``--hosts a:2,b:2``.

    this launcher --- ssh a --- launcher of host 0 --- ranks 0, 1
                 \\-- ssh b --- launcher of host 1 --- ranks 2, 3

Here a worker of Job is an ssh process. Its standard input carries one line with the job's secret, which is never in
arguments or environments, and later one byte for each signal. Its end is the job's end: if this launcher, an ssh or the
network between them dies, all ranks end. Its output carries the lines of the ranks, folded by the host's launcher:
`[0-3] text`. Here each line goes into the lanes of its ranks and is folded with those of the other hosts.
"""

import os
import shlex
import signal
import sys

from pydist import _C
from pydist._launch.job import Job
from pydist._launch.options import OPTIONS, RANKS_MAX, host_list
from pydist._launch.stream import Stream
from pydist._launch.worker import Worker, signal_name

FORWARDED = (
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONHASHSEED",
    "PYDIST_",
    "OMP_",
    "ONEDNN_",
    "NCCL_",
    "GLOO_",
    "CUDA_VISIBLE_DEVICES",
)
KEPT = ("PYDIST_CONTROL", "PYDIST_SECRET_FD", "PYDIST_SECRET_FILE")  # variables that stay with this launcher
HERE = (
    "hosts", "hostfile", "ssh", "node-rank", "nnodes", "master-addr", "master-port", "rdzv-endpoint", "rdzv-id", "prefix",
    "color", "progress-every",
)  # fmt: skip
SSH_FAILED = 255


def secret_line():
    return os.urandom(32).hex().encode() + b"\n"


def remote_line(plan, options, host, names, columns=0):
    """The command for a host's shell: this folder, the forwarded part of this environment, and the launcher of that
    host."""
    env = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(FORWARDED) and name not in KEPT]
    env += (
        [f"COLUMNS={columns}"] if columns > 0 and "COLUMNS" not in os.environ else []
    )  # the terminal's width, for progress bars
    own = {
        "hosts": ",".join(f"{name}:{ranks}" for name, ranks in zip(names, plan.slots)), "node-rank": host,
        "master-addr": plan.address, "master-port": plan.port, "rdzv-id": plan.run_id,
    }  # fmt: skip
    given = {name: options[name] for name, _, default, _ in OPTIONS if name not in HERE and options[name] != default}
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in {**given, **own}.items()]
    command = ["env", *env, sys.executable, "-m", "pydist.run", "--by-ssh", *words, "--", *plan.command]
    return f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}"


def ssh_argv(template, name, line):
    words = shlex.split(template)
    if not any("{host}" in word for word in words):
        words.append("{host}")
    words = [word.replace("{host}", name) for word in words]
    paths = (os.path.join(folder, words[0]) for folder in os.get_exec_path())
    program = words[0] if "/" in words[0] else next((path for path in paths if os.access(path, os.X_OK)), words[0])
    return [program, *words[1:], line]


class Spread:
    """The lane of a host. Its lines begin with the ranks that wrote them, `[0-3,5] `, or are lines of its launcher.
    Lines that begin with NUL are states (see Fold's `relays`)."""

    is_paused = False

    def __init__(self, fold, lanes):
        self.fold, self.lanes = fold, lanes  # lanes by rank
        self.of = {}  # beginning of a line -> lanes

    def lines(self, data):
        begin, run, to = b"", [], None  # consecutive lines of the same ranks
        for line in data[:-1].split(b"\n"):
            if line.startswith(b"\0["):
                self.picture(line[1:])
                continue
            if not (to and line.startswith(begin)):
                self.give(to, run)
                begin = line[: line.find(b"] ") + 2] if line.startswith(b"[") else b""
                to, run = self.lanes_of(begin), []
            run.append(line[len(begin) :] if to else line)
        self.give(to, run)

    def picture(self, line):
        begin = line[: line.find(b"] ") + 2]
        for lane in self.lanes_of(begin) or ():
            lane.show([row for row in line[len(begin) :].split(b"\0") if row])

    def give(self, to, run):
        text = b"\n".join(run) + b"\n"
        if run and to:
            for lane in to:
                lane.lines(text)
        elif run:
            self.fold.flush()
            self.fold.sink.lines(text)

    def lanes_of(self, begin):
        if begin not in self.of and len(self.of) < 10000:
            words = [word.partition(b"-") for word in begin[1:-2].split(b",")] if begin else []
            if not all(low.isdigit() and (high.isdigit() or not dash) for low, dash, high in words):
                return None
            ranks = [rank for low, _, high in words for rank in range(int(low), min(int(high or low), RANKS_MAX) + 1)]
            found = [self.lanes[rank] for rank in ranks if rank in self.lanes]
            self.of[begin] = found if len(found) == len(ranks) else None
        return self.of.get(begin)

    def show(self, rows):
        pass

    def close(self):
        for lane in self.lanes.values():
            lane.close()


class HostsReport:
    """The report on ssh processes. The hosts' launchers have reported the rest themselves."""

    server = None

    def __init__(self, plan, say):
        self.plan, self.say = plan, say
        self.workers, self.failed, self.last, self.judged = [], [], None, False

    def judge(self, last=False):
        if not self.failed or self.judged:
            return
        self.judged, worst = True, self.failed[0]
        if worst.code == SSH_FAILED:
            self.say(f"pydist.run: host {worst.name}: no connection, a lost connection, or its launcher was killed")
        elif worst.code > 128:
            self.say(f"pydist.run: host {worst.name}: its connection {worst.cause}")

    def write(self, by_signal):
        if by_signal:
            self.say(f"pydist.run: ended by {signal_name(by_signal)}" + " (Ctrl-C)" * (by_signal == signal.SIGINT))
            return 128 + by_signal
        for worker in self.workers:
            if worker.code is None or worker.told_to_end == signal.SIGKILL:
                self.say(f"pydist.run: host {worker.name} did not end in time, so its connection was cut")
        if self.plan.on_failure == "keep":
            return self.last.code if self.last else 0
        codes = [worker.code for worker in self.failed]
        # 1: also the code after a PeerFailed
        return next((code for code in codes if code not in (1, SSH_FAILED)), max(codes, default=0))


class HostsJob(Job):
    """`options`: the command line. Each host's launcher gets its part of it."""

    report_of = HostsReport
    grace = 2.0  # s for a host's launcher to end its ranks and to report why
    grace_term = 3.0
    grace_signal = 3.0

    def __init__(self, plan, options):
        self.options, self.names = options, host_list(options, plan.local)[0]
        self.lifelines = []
        super().__init__(plan)

    def host_names(self):
        return self.names

    def way_of_host(self, host, number):
        """The (sink, lane) of an ssh's stdout (1) or stderr (2)."""
        sink, fold, plan = (self.out, self.err)[number - 1], self.folds[number - 1], self.plan
        first = sum(plan.slots[:host])
        ranks = [rank for rank in range(first, first + plan.slots[host]) if plan.shown is None or rank in plan.shown]
        return sink, None if plan.world == 1 else Spread(fold, {rank: fold.lane(rank) for rank in ranks})

    def start(self):
        secret, columns = secret_line(), self.err.columns()
        columns -= self.folds[1].prefix.columns(self.plan.world) if columns else 0
        for host, name in enumerate(self.names):
            argv = ssh_argv(self.options["ssh"], name, remote_line(self.plan, self.options, host, self.names, columns))
            ends = [*os.pipe(), *os.pipe(), *os.pipe()]  # (read end, write end) of its input, output, errors
            try:
                env = [key + b"=" + value for key, value in os.environb.items()]
                pid = _C.spawn(argv, env, ends[0], ends[3], ends[5], ())
            except (OSError, MemoryError) as error:
                for fd in ends:
                    os.close(fd)
                self.say(f"pydist.run: cannot start {argv[0]}: {error}")
                self.write_out()
                return False
            os.write(self.guard_fd, pid.to_bytes(4, sys.byteorder))
            for fd in (ends[0], ends[3], ends[5]):
                os.close(fd)
            for fd in (ends[2], ends[4]):
                os.set_blocking(fd, False)
            self.lifelines.append(ends[1])
            self.tell(ends[1], secret)
            out = Stream(host, ends[2], *self.way_of_host(host, 1), False)
            worker = Worker(host, pid, out, Stream(host, ends[4], *self.way_of_host(host, 2), False))
            worker.name = name
            self.workers.append(worker)
        return True

    def send(self, sig):
        """SIGTERM closes the lifelines; SIGKILL also ends the connections; other signals are sent as bytes on the
        lifelines."""
        if sig == signal.SIGKILL:
            _C.session_kill(self.sessions, sig)
        for fd in self.lifelines:
            if sig == signal.SIGTERM or sig == signal.SIGKILL:
                os.close(fd)
            else:
                self.tell(fd, bytes([sig]))
        if sig in (signal.SIGTERM, signal.SIGKILL):
            self.lifelines = []

    @staticmethod
    def tell(fd, data):
        """Writes to a lifeline, a pipe that has room for these few bytes."""
        try:
            os.write(fd, data)
        except OSError:  # the ssh has ended
            pass

    def end_all(self):
        self.send(signal.SIGKILL)
        super().end_all()
