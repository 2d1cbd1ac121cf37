"""A job on several hosts, started from here: ``--hosts a:2,b:2``.

    this launcher --- ssh a --- launcher of host 0 --- ranks 0, 1
                 \\-- ssh b --- launcher of host 1 --- ranks 2, 3

Here a worker of Job is an ssh. Down its standard input goes one line with the job's secret, which never is in arguments
or environments, later one byte for each signal; its end is the job's end, so the death of this launcher, of an ssh or of
a network between them ends everybody. Up come the lines of the ranks, as the host's launcher has written them.
"""

import os
import shlex
import signal
import sys
from time import monotonic

from pydist import _C
from pydist._launch.job import Job
from pydist._launch.options import OPTIONS, host_list
from pydist._launch.sink import Sink
from pydist._launch.stream import Stream
from pydist._launch.worker import Worker, signal_name

FORWARDED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYDIST_", "OMP_", "ONEDNN_", "NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES")
KEPT = ("PYDIST_CONTROL", "PYDIST_SECRET_FD", "PYDIST_SECRET_FILE")  # this launcher's own
HERE = ("hosts", "hostfile", "ssh", "node-rank", "nnodes", "master-addr", "master-port", "rdzv-endpoint", "rdzv-id")
SSH_FAILED = 255


def secret_line():
    return os.urandom(32).hex().encode() + b"\n"


def remote_line(plan, options, host, names):
    """What a host's shell runs: this folder, what of this environment matters, the launcher of that host."""
    env = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(FORWARDED) and name not in KEPT]
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


class HostsReport:
    """What is said of an ssh: a host's launcher has said the rest itself."""

    server = None

    def __init__(self, plan, say):
        self.plan, self.say = plan, say
        self.workers, self.failed, self.last, self.judged = [], [], None, False

    def judge(self, last=False):
        if not self.failed or self.judged:
            return
        self.judged, worst = True, self.failed[0]
        if worst.code == SSH_FAILED:
            self.say(f"pydist.run: host {worst.name}: no connection, or it was lost, or the launcher there was killed")
        elif worst.code > 128:
            self.say(f"pydist.run: host {worst.name}: its connection {worst.cause}")

    def write(self, by_signal):
        if by_signal:
            self.say(f"pydist.run: ended by {signal_name(by_signal)}" + " (Ctrl-C)" * (by_signal == signal.SIGINT))
            return 128 + by_signal
        for worker in self.workers:
            if worker.code is None or worker.told_to_end == signal.SIGKILL:
                self.say(f"pydist.run: host {worker.name} did not end in time: its connection was cut")
        if self.plan.on_failure == "keep":
            return self.last.code if self.last else 0
        codes = [worker.code for worker in self.failed]
        return next((code for code in codes if code not in (1, SSH_FAILED)), max(codes, default=0))  # 1: also PeerFailed's


class HostsJob(Job):
    """`options`: the command line, of which each host's launcher gets its part."""

    report_of = HostsReport
    grace = 2.0  # a host's launcher ends its ranks, and says why, within this
    grace_term = 3.0
    grace_signal = 3.0

    def __init__(self, plan, options):
        super().__init__(plan)
        self.options, self.names = options, host_list(options, plan.local)[0]
        self.lifelines = []

    def start(self):
        secret = secret_line()
        for host, name in enumerate(self.names):
            argv = ssh_argv(self.options["ssh"], name, remote_line(self.plan, self.options, host, self.names))
            ends = [*os.pipe(), *os.pipe(), *os.pipe()]  # read, write: of its input, output, errors
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
            one = self.plan.world == 1
            worker = Worker(
                host, pid, *(Stream(host, fd, sink, b"", False, whole=not one)
                             for fd, sink in ((ends[2], self.out), (ends[4], self.err)))
            )  # fmt: skip
            worker.name = name
            self.workers.append(worker)
        return True

    def send(self, sig):
        """SIGTERM: the lifelines end. SIGKILL: the connections too. Others go down the lifelines."""
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
        """Down a lifeline: a pipe, which has room for these few bytes."""
        try:
            os.write(fd, data)
        except OSError:  # it has ended
            pass

    def end_all(self):
        self.send(signal.SIGKILL)
        super().end_all()
