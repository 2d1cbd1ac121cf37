"""spawn: fresh Python processes that call a function with their index. PyTorch's scripts start their ranks in this way.

The processes are made by fork and exec, so they share nothing with their parent. They die with it. Functions of a
notebook, of standard input and of `python -c` are sent by value.
"""

import os
import secrets
import signal
import sys
import traceback
from contextlib import contextmanager
from multiprocessing import connection, get_context, reduction
from threading import current_thread, main_thread
from time import monotonic

from pydist import _C
from pydist._by_value import Carried, main_is_lost
from pydist._launch.traces import is_peer_failed

_GRACE = 1.0  # s to wait for the rank that caused others to fail
_GRACE_TERM = 0.5  # s between SIGTERM and SIGKILL
_GRACE_INTERRUPT = 2.0  # s for children to end after Ctrl-C, as under the launcher


class ProcessException(Exception):
    """A process of a ProcessContext failed: error_index (which one), error_pid."""

    def __init__(self, msg, error_index, error_pid):
        super().__init__(msg)
        self.msg, self.error_index, self.error_pid, self.pid = msg, error_index, error_pid, error_pid

    def __reduce__(self):
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """The process's function raised an error. The text ends with its traceback."""


class ProcessExitedException(ProcessException):
    """The process exited with a nonzero code or by a signal: exit_code (negative: the signal), signal_name."""

    def __init__(self, msg, error_index, error_pid, exit_code, signal_name=None):
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name

    def __reduce__(self):
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)


class _Report:
    """An anonymous file in which a child leaves its traceback."""

    def __init__(self):
        self.fd = os.memfd_create("pydist-error", os.MFD_CLOEXEC)

    def __getstate__(self):
        return reduction.DupFd(self.fd)

    def __setstate__(self, passed):
        self.fd = passed if isinstance(passed, int) else passed.detach()

    def write(self, text):
        with open(self.fd, "w", encoding="utf-8", errors="replace", closefd=False) as file:
            file.write(text)

    def read(self):
        os.lseek(self.fd, 0, os.SEEK_SET)
        with open(self.fd, encoding="utf-8", closefd=False) as file:
            return file.read()

    def __del__(self):
        os.close(self.fd)


def _become_child(parent, meeting):
    """Makes the child die with its parent, and meet its siblings at a place of their own."""
    if parent is not None:
        _C.die_with(parent)
    for name in ("PYDIST_CONTROL", "PYDIST_SECRET_FD"):  # a launcher's variables are for its own worker
        os.environ.pop(name, None)
    os.environ["PYDIST_MEETING"] = meeting


def _run(carried, index, args, report, parent, meeting):
    """Runs the child. Its traceback goes to the other ranks and to the parent, which prints it."""
    _become_child(parent, meeting)
    try:
        carried.fn(index, *args)
    except KeyboardInterrupt:  # the parent has got the signal, too
        sys.exit(130)
    except Exception:
        text = traceback.format_exc()
        report.write(text)
        if not is_peer_failed(text):
            _C.comm_raised(text)
        sys.exit(1)


class ProcessContext:
    """The processes of one `spawn`: `processes`, `pids()`, `join()`."""

    def __init__(self, processes, reports):
        self.processes, self._reports = processes, reports
        self._ended = []  # indices of ended processes, in order
        self.sentinels = {process.sentinel: index for index, process in enumerate(processes)}

    def pids(self):
        """The process ids, by index."""
        return [process.pid for process in self.processes]

    def join(self, timeout=None, grace_period=None):
        """Returns True when all processes have ended without error, False if some still run after `timeout` seconds. If
        one fails, the others are ended (SIGTERM, then SIGKILL after `grace_period` seconds, default 0.5), and the error
        of the process that failed first is raised: ProcessRaisedException with its traceback, or
        ProcessExitedException."""
        if not self._wait(timeout, self._failed):
            return not self.sentinels
        self._wait(_GRACE, lambda: self._cause() is not None)
        cause = self._cause()
        error = self._error(self._failed()[0] if cause is None else cause)
        self._end_others(_GRACE_TERM if grace_period is None else grace_period)
        raise error

    def _wait(self, timeout, enough):
        """Waits until enough() is true, no process is left, or the time is over. Returns whether enough() is true."""
        deadline = None if timeout is None else monotonic() + timeout
        while not enough() and self.sentinels:
            left = None if deadline is None else deadline - monotonic()
            ready = connection.wait(self.sentinels, left if left is None else max(0.0, left))
            for sentinel in ready:
                index = self.sentinels.pop(sentinel)
                self.processes[index].join()
                self._ended.append(index)
            if not ready:
                break
        return bool(enough())

    def _failed(self):
        return [index for index in self._ended if self.processes[index].exitcode]

    def _cause(self):
        """The first process that failed by itself and not because of another one; None if that is not known yet."""
        return next((index for index in self._failed() if not is_peer_failed(self._reports[index].read())), None)

    def _error(self, index):
        process, text = self.processes[index], self._reports[index].read()
        if text:
            message = f"\n\n-- Process {index} terminated with the following error:\n{text}"
            return ProcessRaisedException(message, index, process.pid)
        code = process.exitcode
        if code >= 0:
            message = f"process {index} terminated with exit code {code}"
            return ProcessExitedException(message, index, process.pid, code)
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"<Unknown signal {-code}>"
        return ProcessExitedException(f"process {index} terminated with signal {name}", index, process.pid, code, name)

    def _end_others(self, grace):
        for end, seconds in (("terminate", grace), ("kill", None)):
            for index in self.sentinels.values():
                getattr(self.processes[index], end)()
            self._wait(seconds, lambda: not self.sentinels)


SpawnContext = ProcessContext  # PyTorch's older name


@contextmanager
def _without_lost_main():
    """multiprocessing takes a `__file__` of "<stdin>" for a file that the child can run; this hides it."""
    main = sys.modules["__main__"]
    path = main.__dict__.pop("__file__", None) if main_is_lost() else None
    try:
        yield
    finally:
        if path is not None:
            main.__file__ = path


def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    """spawn with a choice of start_method: "spawn", "forkserver" or "fork"."""
    if not callable(fn):
        raise TypeError(f"spawn: fn is {type(fn).__name__} (expected a function)")
    if not isinstance(nprocs, int) or nprocs < 1:
        raise ValueError(f"spawn: nprocs is {nprocs!r} (expected at least 1)")
    started = _start(_run, Carried(fn), tuple(args), nprocs, daemon, start_method)
    if not join:
        return started
    try:
        while not started.join():
            pass
    except KeyboardInterrupt:  # children in the same terminal have got the signal, too
        started._wait(_GRACE_INTERRUPT, lambda: not started.sentinels)
        started._end_others(_GRACE_TERM)
        raise


def _start(body, carried, args, nprocs, daemon=False, start_method="spawn", report=_Report):
    """The ProcessContext that runs body(carried, index, args, report, parent, meeting) in `nprocs` processes."""
    context = get_context(start_method)
    # The kernel signals children when the thread that made them dies; only the main thread outlives all others.
    parent = os.getpid() if start_method != "forkserver" and current_thread() is main_thread() else None
    meeting = f"job://{secrets.token_hex(8)}"  # where init_process_group in the children meets
    processes, reports = [], []
    try:
        for index in range(nprocs):
            reports.append(report())
            work = (carried, index, args, reports[-1], parent, meeting)
            process = context.Process(target=body, args=work, daemon=daemon)
            with _without_lost_main():
                process.start()
            processes.append(process)
    except BaseException:
        ProcessContext(processes, reports)._end_others(_GRACE_TERM)
        raise
    return ProcessContext(processes, reports)


def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    """Calls fn(index, *args) in `nprocs` fresh processes, with index 0 to nprocs - 1.

    join=True waits. If a process raises, the others are ended and ProcessRaisedException is raised here with its
    traceback; if it exits with a nonzero code or by a signal, ProcessExitedException. join=False returns the
    ProcessContext at once. `fn` may come from a script (under `if __name__ == "__main__"`), a module, a notebook or
    standard input, or be nested. The processes may call init_process_group(rank=index, world_size=nprocs): they meet
    without MASTER_ADDR and MASTER_PORT, which are used if they are set. `args` may hold tensors, queues and other
    objects of multiprocessing. No process outlives this one, unless a thread other than the main one calls spawn.
    """
    return start_processes(fn, args, nprocs, join, daemon, start_method)
