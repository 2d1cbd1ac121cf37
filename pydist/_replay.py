"""Steps that are recorded once and then run in C, without Python (docs/internals/replay.md).

`Recorded(step)` is called like `step`. The first call runs as it is. The second one is recorded as a program, and so is the
third one: both programs must be equal, and the program must give the bits of the third call. From then on calls with
arguments like these run the program. A step that cannot be replayed runs as Python for ever, and one line at the level INFO says why.

A replay repeats what the step did with tensors, and nothing else: attributes that the step sets, lists that it extends and
what it prints are not done again. What has to happen in Python in each call goes through `each_time`.
"""

import functools
import gc
import threading
import types

from pydist import _C

MOST = 8  # programs of a step
TRIES = 4  # calls for which a step may differ from the call before, until it is given up

_SIMPLE = (bool, int, float, str, bytes, tuple, type(None), types.FunctionType, _C.dtype, _C.device)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

refuse = _C._program_refuse


def each_time(function, *args, **kwargs):
    """Calls the function now, and again in each replay of the step that is being recorded, if one is.

    It may read numbers, print and change attributes. Its tensors go in by arguments and out by its result: the step must not
    use other tensors that it makes. Constants among the arguments and results must be the same in each call.

    >>> import pydist
    >>> from pydist import _replay
    >>> losses = []
    >>> step = _replay.Recorded(lambda x: _replay.each_time(losses.append, (2 * x).sum()))
    >>> for n in range(5):
    ...     step(pydist.full((1,), float(n)))
    >>> [loss.item() for loss in losses]
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    return _C._each_time(function, *args, **kwargs)


def in_python(function):
    """A decorator: replays of a step that calls the function call it again, with `each_time`."""

    @functools.wraps(function)
    def called(*args, **kwargs):
        return _C._each_time(function, *args, **kwargs)

    return called


class Recorded:
    """Calls `step`, from the fourth call on as a recorded program where that is possible.

    Arguments and results may be tensors, and tuples, lists and dicts of tensors and of constants. The step is recorded anew
    for other shapes, dtypes, devices, flags, constants and modes, up to MOST times. `watch`: modules and other objects on
    whose plain attributes (numbers, flags, strings) the step depends, of a module all its parts; lists; and pairs (object,
    name of an attribute that must stay the same object). Modules that the step or its closure names are watched in any
    case. `name`: for the log.

    `state`: "new", "recording", "replayed", or why the step runs as Python.

    >>> import pydist
    >>> from pydist import _replay
    >>> w = pydist.ones(2)
    >>> step = _replay.Recorded(lambda x: w.mul_(x).sum())
    >>> [step(pydist.full((2,), 2.0)).item() for _ in range(5)]
    [4.0, 8.0, 16.0, 32.0, 64.0]
    >>> step.state
    'replayed'
    """

    def __init__(self, step, *, watch=(), name=None):
        self._step, self._watch = step, tuple(watch)
        self._name = name or getattr(step, "__qualname__", type(step).__name__)
        self._mode = next(value for name, value, _ in _C.flags() if name == "PYDIST_REPLAY")
        self._ready, self._half = (), []  # programs; those in the list were recorded once
        self._called, self._busy = False, threading.Lock()
        self._differed = 0
        self._stays = "PYDIST_REPLAY is 0" if self._mode == "0" else None
        self.__wrapped__ = step

    @property
    def state(self):
        """How the step runs now."""
        if self._stays:
            return self._stays
        return "replayed" if self._ready else "recording" if self._half else "new"

    def __call__(self, *args, **kwargs):
        for program in self._ready:
            result = program.run(args, kwargs)
            if result is not NotImplemented:
                return result
        return self._learn(args, kwargs)

    def _learn(self, args, kwargs):
        learns = self._called and not self._stays and not _C._program_recording()
        self._called = True
        if not learns or not self._busy.acquire(blocking=False):
            return self._step(*args, **kwargs)
        try:
            return self._record(args, kwargs)
        finally:
            self._busy.release()

    def _record(self, args, kwargs):
        changed = self._drop_changed()
        if self._differed > TRIES:
            self.stay(f"{changed!r} of an object that it depends on changes between calls")
            return self._step(*args, **kwargs)
        half = next((p for p in self._half if p.fits(args, kwargs)), None)
        if half is None and len(self._ready) + len(self._half) == MOST:
            _say(f"{self._name}: {MOST} programs were recorded; what fits none of them runs as Python")
            self._stays = "too many programs"  # the programs that are ready run on
            return self._step(*args, **kwargs)
        result, program, why = _C._program_record(self._step, args, kwargs, half)
        if why is not None and (program is None or self._mode == "check" or self._differed >= TRIES):
            self.stay(why, half)
        elif program is not None:  # else another thread records
            try:
                self._take(program, half, (args, kwargs))
            except MemoryError as error:
                self.stay(str(error) or "there was no memory for a program")
        return result

    def _drop_changed(self):
        """Forgets programs whose guards have changed since the call that was recorded. The key of what has changed."""
        changed, kept = None, []
        for program in self._half:
            row = next((row for row in program.guards[1] if not _holds(row)), None)
            if row is None:
                kept.append(program)
            else:
                changed = row[1]
        self._differed += len(kept) < len(self._half)
        self._half = kept
        return changed

    def _take(self, program, half, given):
        if program is not half:  # a new one, or one that the call before differed from
            self._differed += half is not None
            program.guards = _holders(program, (self._step, self._watch, given)), _watched(self._step, self._watch)
            self._half = [p for p in self._half if p is not half] + [program]
        elif self._mode != "check":
            self._half.remove(half)
            self._arm(half)

    def _arm(self, program):
        """Makes the program ready, if what its guards are about has not changed in the step itself."""
        holders, watched = program.guards
        changed = next((row for row in watched if not _holds(row)), None)
        if changed is not None:
            return self.stay(f"it changes {changed[1]!r} of an object that it depends on")
        program.guard([row for row in holders if _holds(row)] + watched)  # the step did not care about others
        self._ready += (program,)

    def stay(self, why, half=None):
        """From now on the step runs as Python. Says why, once."""
        if self._mode == "check" and half is not None:
            raise RuntimeError(f"replay: {self._name}: {why} (expected the same in each step)")
        self._stays = why
        self._ready, self._half = (), []
        _say(f"{self._name}: runs as Python from now on: {why}")


def _say(text):
    _C._log(2, f"replay: {text}")


# ---- guards: rows (dict, list or cell; key; value). The value must be there, or, for the key ..., be the length.


def _holds(row):
    holder, key, value = row
    if isinstance(holder, types.CellType):
        return holder.cell_contents is value
    if key is ...:
        return len(holder) == value
    if isinstance(holder, list):
        return key < len(holder) and holder[key] is value
    return holder.get(key) is value


def _holders(program, roots):
    """Where Python keeps the tensors that the program uses: the program is stale once another one is there."""
    fixed, rows = {id(t) for t in program.fixed}, []
    for holder in _C._holders(fixed, roots):
        if isinstance(holder, types.CellType):
            rows.append((holder, None, holder.cell_contents))
            continue
        if not isinstance(holder, (dict, list)):
            holder = getattr(holder, "__dict__", None)
        items = enumerate(holder) if isinstance(holder, list) else holder.items() if type(holder) is dict else ()
        rows += [(holder, key, value) for key, value in items if id(value) in fixed]
    return rows


def _plain(of):
    return [(of, key, value) for key, value in of.items() if type(value) in _SIMPLE]


def _watched(step, watch):
    """What else the step depends on: its closure, the globals that it names, and plain attributes of what it watches."""
    import dis
    import inspect

    rows, seen, found = [], set(), [*watch]
    while not isinstance(step, types.FunctionType):
        if isinstance(step, functools.partial):
            found += [*step.args, *step.keywords.values()]
            step = step.func
        elif isinstance(step, types.MethodType):
            found.append(step.__self__)
            step = step.__func__
        elif isinstance(called := inspect.getattr_static(type(step), "__call__", None), types.FunctionType):
            step = types.MethodType(called, step)
        else:
            break
    if isinstance(step, types.FunctionType):
        cells = [c for c in step.__closure__ or () if c != types.CellType()]
        rows += [(c, None, c.cell_contents) for c in cells]
        known = step.__globals__
        names = {i.argval for i in dis.get_instructions(step) if i.opname == "LOAD_GLOBAL"}
        rows += [(known, name, known[name]) for name in sorted(names & known.keys())]
        found += [value for _, _, value in rows]
    for thing in watch:
        if isinstance(thing, list):
            rows += [(thing, ..., len(thing)), *((thing, i, item) for i, item in enumerate(thing))]
        elif isinstance(thing, tuple):
            rows.append((vars(thing[0]), thing[1], vars(thing[0])[thing[1]]))
    while found:
        thing = found.pop()
        if id(thing) in seen or not _is_watched(thing, watch):
            continue
        seen.add(id(thing))
        own = thing.__dict__
        rows += _plain(own)
        if isinstance(thing, _module()):
            rows += [(own[hooks], ..., len(own[hooks])) for hooks in _HOOKS if hooks in own]
            rows += [(own["_modules"], name, part) for name, part in own["_modules"].items()]
            found += own["_modules"].values()
    return rows


def _module():
    from pydist.nn import Module

    return Module


def _is_watched(thing, watch):
    return hasattr(thing, "__dict__") and (isinstance(thing, _module()) or any(thing is other for other in watch))


def _where(tensor):
    """Says where Python keeps a tensor."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, types.FrameType):
            continue
        owners = [holder] if hasattr(holder, "__dict__") else gc.get_referrers(holder)
        names = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        name = next((key for key, value in list(names.items()) if value is tensor), None)
        owner = next((o for o in owners if getattr(o, "__dict__", None) is names), None)
        if name is not None:
            return f"as {name!r}" + (f" of {type(owner).__name__}" if owner is not None else "")
    return "by Python"
