"""Whether autograd records operations: context managers that also decorate functions."""

from functools import wraps

from pydist import _C

_set = _C.set_grad_enabled
_CO_GENERATOR = 0x20  # what inspect.isgeneratorfunction checks; importing inspect would triple our import time


class _GradMode:
    """Sets the mode on entry and restores the former one on exit. `_mode` is the mode to set."""

    __slots__ = ("_mode", "_before")

    def __enter__(self):
        self._before = _set(self._mode)

    def __exit__(self, *error):
        _set(self._before)

    def _copy(self):
        new = _GradMode.__new__(_GradMode)
        new._mode = self._mode
        return new

    def __call__(self, function):
        """Returns `function` running in this mode. The body of a generator function runs in it between its yields."""
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _CO_GENERATOR:
            return self._wrap_generator(function)

        @wraps(function)
        def run(*args, **kwargs):
            with self._copy():
                return function(*args, **kwargs)

        return run

    def _wrap_generator(self, function):
        @wraps(function)
        def run(*args, **kwargs):
            body = function(*args, **kwargs)
            resume, value = body.send, None
            try:
                while True:
                    try:
                        with self._copy():
                            out = resume(value)
                    except StopIteration as end:
                        return end.value
                    try:
                        resume, value = body.send, (yield out)
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        resume, value = body.throw, error
            finally:
                with self._copy():
                    body.close()

        return run


class no_grad(_GradMode):
    """Autograd does not record operations inside the block.

    >>> import pydist
    >>> w = pydist.ones(2, requires_grad=True)
    >>> with pydist.no_grad():
    ...     print((w * 2).requires_grad)
    False
    """

    __slots__ = ()
    _mode = False

    def __new__(cls, orig_func=None):
        new = object.__new__(cls)
        return new if orig_func is None else new(orig_func)


class enable_grad(_GradMode):
    """Autograd records operations inside the block, also within no_grad."""

    __slots__ = ()
    _mode = True

    def __new__(cls, orig_func=None):
        new = object.__new__(cls)
        return new if orig_func is None else new(orig_func)


class set_grad_enabled(_GradMode):
    """Sets the mode at once. As a context manager it also restores the former mode.

    >>> import pydist
    >>> with pydist.set_grad_enabled(False):
    ...     print(pydist.is_grad_enabled())
    False
    """

    __slots__ = ()

    def __init__(self, mode):
        self._mode = bool(mode)
        self._before = _set(self._mode)

    def __enter__(self):
        _set(self._mode)

    def __call__(self, function):
        _set(self._before)  # as a decorator it must not change the mode where the function is defined
        return super().__call__(function)


class inference_mode(_GradMode):
    """Like no_grad; and tensors made inside are inference tensors, whose in-place writes are not counted.

    Outside the block an inference tensor may be read. Saving it for a gradient, writing it in place or making it
    require grad raises RuntimeError; `clone()` gives a normal tensor. `inference_mode(False)` is normal mode inside an
    outer inference mode.

    >>> import pydist
    >>> w = pydist.ones(2, requires_grad=True)
    >>> with pydist.inference_mode():
    ...     y = w * 2
    >>> y.is_inference(), y.requires_grad
    (True, False)
    """

    __slots__ = ("_inference",)

    def __new__(cls, mode=True):
        new = object.__new__(cls)
        if callable(mode):
            new._mode = False
            return new(mode)
        new._mode = not mode
        return new

    def __enter__(self):
        self._inference = _C._set_inference_mode(not self._mode)
        super().__enter__()

    def __exit__(self, *error):
        _C._set_inference_mode(self._inference)
        super().__exit__(*error)

    def _copy(self):
        return inference_mode(not self._mode)
