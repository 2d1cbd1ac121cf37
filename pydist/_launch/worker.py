"""One rank's process, from its start to the cause of its end."""

import os
import signal
import sys

from pydist._launch.traces import exceptions, is_peer_failed


def free_port():
    import _socket  # importing socket would take 4 ms

    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    probe.bind(("", 0))
    port = probe.getsockname()[1]
    probe.close()
    return port


def worker_argv(plan):
    if plan.no_python:
        name, *rest = plan.command
        if "/" not in name:
            paths = (os.path.join(folder, name) for folder in os.get_exec_path())
            name = next((path for path in paths if os.access(path, os.X_OK)), name)
        return [name, *rest]
    return [sys.executable, *(["-m"] if plan.module else []), *plan.command]


def worker_env(plan, control, secret_fd, columns):
    """A function from the local rank to that worker's environment, as "NAME=value". control: the control server's
    address."""
    base = dict(os.environb)
    base.setdefault(b"PYTHONUNBUFFERED", b"1")
    if columns:  # a progress bar cannot ask a pipe for the terminal's width
        base.setdefault(b"COLUMNS", b"%d" % columns)
    common = {
        "WORLD_SIZE": plan.world, "LOCAL_WORLD_SIZE": plan.local, "ROLE_WORLD_SIZE": plan.world,
        "GROUP_WORLD_SIZE": plan.hosts, "GROUP_RANK": plan.host, "ROLE_NAME": plan.role,
        "MASTER_ADDR": plan.address, "MASTER_PORT": plan.port or free_port(),
        "TORCHELASTIC_RESTART_COUNT": plan.restart, "TORCHELASTIC_MAX_RESTARTS": plan.max_restarts,
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "PYDIST_CONTROL": control, "PYDIST_SECRET_FD": secret_fd, "PYDIST_ON_FAILURE": plan.on_failure,
    }  # fmt: skip

    def of_local(local):
        own = {"RANK": plan.first + local, "LOCAL_RANK": local, "ROLE_RANK": plan.first + local}
        named = {os.fsencode(name): os.fsencode(str(value)) for name, value in {**common, **own}.items()}
        return [name + b"=" + value for name, value in {**base, **named}.items()]

    return of_local


class Worker:
    def __init__(self, rank, pid, out, err):
        self.rank, self.pid, self.out, self.err = rank, pid, out, err
        self.code = None  # the exit code as a shell gives it; None while the process runs
        self.cause = ""  # "exited with code 3"
        self.because_of_peer = False
        self.silent = False  # the launcher killed it because it no longer responded
        self.stopped = None  # since when its process is stopped, as the last check saw it
        self.told_to_end = None  # the signal that the launcher sent

    @property
    def trace(self):
        return self.err.trace.decode("utf-8", "replace")

    def look(self):
        """True if the worker has ended since the last look. Leaves the zombie."""
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) if self.code is None else None
        if info is None:
            return False
        self.out.drain()
        self.err.drain()
        self.code = info.si_status + (0 if info.si_code == os.CLD_EXITED else 128)
        self.cause = self.describe(info)
        if self.code == 0:
            self.err.release()
        self.out.flush()
        self.err.flush()
        return True

    def is_stopped(self):
        """Whether SIGSTOP or Ctrl-Z has stopped it; a debugger's stop is another state."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] == b"T"
        except OSError:
            return False

    def describe(self, info):
        found = exceptions(self.trace)
        self.because_of_peer = is_peer_failed(self.trace)
        if info.si_code != os.CLD_EXITED:
            hint = (signal.strsignal(info.si_status) or "").lower()
            if info.si_status == signal.SIGKILL and not self.told_to_end:
                hint += "; out of memory?"
            if self.silent:
                return "no longer responded (stopped, or swapped out), so the launcher killed it"
            return f"died: {signal_name(info.si_status)} ({hint})"
        if info.si_status == 1 and found:
            return f"raised {found[-1]}"
        return f"exited with code {info.si_status}"


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
