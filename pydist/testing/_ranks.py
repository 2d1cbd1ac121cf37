"""run_ranks: runs a function on several ranks, as threads or as processes, with a time limit, and leaves nothing
behind."""

import faulthandler
import io
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import util

from pydist import _C, distributed
from pydist._by_value import _Pickler
from pydist._launch.options import RANKS_MAX
from pydist.distributed import threads
from pydist.distributed._group.process_group import lend_process_group
from pydist.multiprocessing.spawn import _Report, _become_child, _start

_GRACE = 0.5  # s for ranks whose group was ended to say where they are


class RankFailed(RuntimeError):
    """A rank failed: `rank`, `world`, `reason` (one line) and `details` (its traceback, if there is one). `__cause__`
    is the rank's exception, if it can be sent to this process."""

    def __init__(self, rank, world, reason, details=""):
        super().__init__(f"rank {rank} of {world} {reason}" + (f"\n\n{details.strip()}" if details else ""))
        self.rank, self.world, self.reason, self.details = rank, world, reason, details

    def __reduce__(self):
        return type(self), (self.rank, self.world, self.reason, self.details)


class RankTimeout(RankFailed, TimeoutError):
    """Ranks have not returned in time. `rank` is the first of them; `details` says where all of them are."""


RankFailed.__module__ = RankTimeout.__module__ = "pydist.testing"


def run_ranks(world, fn, *args, processes=False, timeout=60.0, return_exceptions=False):
    """Calls fn(rank, *args) on each of `world` ranks, which form a process group. Returns their results by rank.

    Ranks are threads of this process, which start in milliseconds, or (`processes=True`) fresh processes, which start
    as fast as they import pydist and the module of `fn`. Processes may exit, die by a signal and change global state.
    In both forms `fn` may be a nested function or a lambda; for processes arguments, closures and results are sent by
    value. get_rank(), collectives, DistributedDataParallel and the random generator belong to the rank in both forms.
    Output of processes goes where this process's output goes, or where pytest captures it.

    Raises RankFailed if a rank raised, exited or died, for the rank that did so first by itself and not because of
    another one. Other ranks get PeerFailed in collectives that wait for it. Raises RankTimeout, with the stack of each
    rank, if ranks have not returned after `timeout` seconds. Then processes are ended, and threads are made to leave
    collectives; a thread that does something else for ever stays. With `return_exceptions=True` only RankTimeout is
    raised, and a RankFailed takes the place of the rank's result.

    >>> import pydist
    >>> def work(rank, start):
    ...     x = pydist.full((2,), start + rank)
    ...     pydist.distributed.all_reduce(x)
    ...     return x.tolist()
    >>> pydist.testing.run_ranks(2, work, 10.0)
    [[21.0, 21.0], [21.0, 21.0]]
    >>> pydist.testing.run_ranks(2, lambda rank: 1 // rank)
    Traceback (most recent call last):
    pydist.testing.RankFailed: rank 0 of 2 raised ZeroDivisionError: integer division or modulo by zero
    """
    if not isinstance(world, int) or isinstance(world, bool) or not 1 <= world <= RANKS_MAX:
        raise ValueError(f"run_ranks: world is {world!r} (expected 1 to {RANKS_MAX})")
    if not callable(fn):
        raise TypeError(f"run_ranks: fn is {type(fn).__name__} (expected a function of the rank)")
    if not timeout > 0:
        raise ValueError(f"run_ranks: timeout is {timeout!r} (expected seconds, more than 0)")
    __tracebackhide__ = True  # for pytest: show the caller's line
    kind = _in_processes if processes else _in_threads
    results, errors = kind(world, fn, args, float(timeout), return_exceptions)
    if return_exceptions:
        return [errors.get(rank, result) for rank, result in enumerate(results)]
    for error in errors.values():  # failures that only follow another one come last
        raise error
    return results


def _raised(rank, world, error, details=""):
    """A RankFailed for an exception of a rank."""
    said = "".join(traceback.format_exception_only(type(error), error)).strip()
    failed = RankFailed(rank, world, f"raised {said}", details)
    failed.__cause__ = error
    return failed


def _stuck(stacks, world, timeout):
    """A RankTimeout for {rank: its stack}."""
    names = " and ".join(filter(None, (", ".join(map(str, list(stacks)[:-1])), str(list(stacks)[-1]))))
    others = f" (nor have all of {names})" if len(stacks) > 1 else ""
    details = "\n\n".join(f"rank {rank} is here:\n{stack.strip() or '(unknown)'}" for rank, stack in stacks.items())
    return RankTimeout(next(iter(stacks)), world, f"has not returned after {timeout:g} s{others}", details)


# Threads.


def _stack_of(thread):
    frame = sys._current_frames().get(thread.ident)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def _in_threads(world, fn, args, timeout, patient):
    ranks = threads.Ranks(world, fn, args)
    late = None
    try:
        late = ranks.join(timeout)
        stacks = {rank: _stack_of(ranks.threads[rank]) for rank in late}
    finally:
        if late is None or late:  # Ctrl-C, or the time is over: ranks that wait in a collective leave it
            for rank in range(world):
                ranks.end(rank, "the test has ended")
            ranks.join(_GRACE)
    if late:
        raise _stuck(stacks, world, timeout)
    errors = sorted(ranks.errors.items(), key=lambda item: isinstance(item[1], _C.PeerFailed))
    return ranks.results, {rank: _raised(rank, world, error) for rank, error in errors}


# Processes.


class _Box(_Report):
    """What a rank leaves: its outcome, and after it the text of faulthandler if the process dies."""

    def put(self, outcome):
        data = pickle.dumps(outcome)
        with open(self.fd, "wb", closefd=False) as file:
            file.write(len(data).to_bytes(8, "little") + data)

    def content(self):
        """(outcome or None, text)."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        with open(self.fd, "rb", closefd=False) as file:
            data = file.read()
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 + size or data[8:10] != b"\x80\x04":
            return None, data.decode(errors="replace")
        return pickle.loads(data[8 : 8 + size]), data[8 + size :].decode(errors="replace")


def _load(name, path):
    """Imports the module of a test from its file: pytest does not always leave a way to import it by name."""
    if name not in sys.modules:
        spec = util.spec_from_file_location(name, path)
        sys.modules[name] = module = util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _sendable(value):
    """The object's pickle, or None."""
    with suppress(Exception):
        data = pickle.dumps(value)
        pickle.loads(data)
        return data
    return None


def _join_group(rank, world):
    """How a rank's process begins: it joins the others."""
    _C.set_num_threads(max(1, _C.get_num_threads() // world))
    lend_process_group(rank, world)


def _child(data, rank, args, box, parent, meeting):
    """Runs a rank as a process. Its outcome goes into the box."""
    world, module, begin = args
    _become_child(parent, meeting)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable(os.dup(box.fd))  # until the process ends
    try:
        if module is not None:
            _load(*module)
        fn, args = pickle.loads(data)
        begin(rank, world)
        result = fn(rank, *args)
        try:
            outcome = "returned", pickle.dumps(result)
        except Exception as error:
            raise TypeError(f"what it returned, {type(result).__name__}, cannot be sent: {error}") from None
        distributed.destroy_process_group()
    except SystemExit:
        raise
    except BaseException as error:
        text = traceback.format_exc()
        said = "".join(traceback.format_exception_only(type(error), error)).strip()
        box.put(("raised", said, text, _sendable(error), isinstance(error, _C.PeerFailed)))
        if not isinstance(error, _C.PeerFailed):
            _C.comm_raised(text)
        sys.exit(1)
    box.put(outcome)


def _packed(fn, args):
    """fn and args by value, and the module to load before they are unpacked."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump((fn, args))
    name = getattr(fn, "__module__", None)
    path = getattr(sys.modules.get(name), "__file__", None)
    return buffer.getvalue(), (name, path) if path and name != "__main__" and "." not in name else None


def _failure(rank, world, process, box):
    """(the RankFailed of a process that has ended, or None; whether it only follows the failure of another one)."""
    outcome, text = box.content()
    if outcome is not None and outcome[0] == "raised":
        _, said, trace, error, follows = outcome
        failed = RankFailed(rank, world, f"raised {said}", trace)
        failed.__cause__ = None if error is None else pickle.loads(error)
        return failed, follows
    code, when = process.exitcode, " after it had returned" if outcome is not None else ""
    if code == 0 and outcome is not None:
        return None, False
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return RankFailed(rank, world, f"died by {name}{when}", text), False
    return RankFailed(rank, world, f"exited with code {code}{when or ' and did not return'}", text), False


def _in_processes(world, fn, args, timeout, patient, begin=_join_group):
    data, module = _packed(fn, args)
    deadline = time.monotonic() + timeout
    running = _start(_child, data, (world, module, begin), world, report=_Box)
    processes, boxes, failed = running.processes, running._reports, {}

    def look():
        """Whether a rank has failed by itself."""
        for rank in running._ended:
            if rank not in failed:
                failed[rank] = _failure(rank, world, processes[rank], boxes[rank])
        return any(error and not follows for error, follows in failed.values())

    try:
        enough = (lambda: False) if patient else look
        if running._wait(deadline - time.monotonic(), enough):
            running._wait(min(_GRACE, max(0.0, deadline - time.monotonic())), lambda: False)
        elif running.sentinels:
            late = sorted(running.sentinels.values())
            for rank in late:
                os.kill(processes[rank].pid, signal.SIGABRT)  # faulthandler writes where the process is
            running._wait(_GRACE, lambda: False)
            running._end_others(0.0)
            raise _stuck({rank: boxes[rank].content()[1] for rank in late}, world, timeout)
        ended = set(running.sentinels.values())
    finally:
        running._end_others(_GRACE)
    look()
    errors = {
        rank: error
        for rank, (error, follows) in sorted(failed.items(), key=lambda item: item[1][1])
        if error and rank not in ended
    }
    results = [
        None if rank in errors or rank in ended else pickle.loads(boxes[rank].content()[0][1]) for rank in range(world)
    ]
    for process in processes:
        process.close()
    return results, errors
