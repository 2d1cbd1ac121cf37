"""Activation checkpointing: less memory for one more forward. What a function's gradient needs is not kept. Backward
computes it again, with the same random numbers and under the same autocast."""

import warnings
import weakref
from contextlib import ExitStack, contextmanager, nullcontext

from pydist import _C
from pydist._grad_mode import enable_grad, no_grad
from pydist.autograd import backward as _backward
from pydist.autograd.function import Function
from pydist.autograd.graph import saved_tensors_hooks
from pydist.utils._selective import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts

__all__ = [
    "CheckpointError",
    "CheckpointFunction",
    "CheckpointPolicy",
    "SelectiveCheckpointContext",
    "checkpoint",
    "checkpoint_sequential",
    "create_selective_checkpoint_contexts",
    "noop_context_fn",
    "set_checkpoint_early_stop",
]


class CheckpointError(RuntimeError):
    """The function did not save the same tensors when it ran again."""


def noop_context_fn():
    """Two contexts that do nothing: checkpoint's default."""
    return nullcontext(), nullcontext()


class _Replay:
    """The present state of random numbers and autocast, for use again later."""

    def __init__(self, preserve_rng_state):
        from pydist.amp.autocast_mode import autocast, get_autocast_dtype, is_autocast_enabled

        self.rng = _C.get_rng_state() if preserve_rng_state else None
        kinds = ("cpu", "cuda") if _C.pretended_cuda() else ("cpu",)
        self.autocast = [
            autocast(kind, dtype=get_autocast_dtype(kind), enabled=is_autocast_enabled(kind)) for kind in kinds
        ]

    @contextmanager
    def __call__(self):
        now = _C.get_rng_state()
        with ExitStack() as stack, enable_grad():
            for context in self.autocast:
                stack.enter_context(context)
            if self.rng is not None:
                _C.set_rng_state(self.rng)
            try:
                yield
            finally:
                if self.rng is not None:
                    _C.set_rng_state(now)


# ---- use_reentrant=False: hooks for what autograd saves --------------------------------------------------------------


class _Enough(BaseException):
    """Raised when all tensors that the gradients need are there: the rest of the function need not run."""


_early_stop = None  # the value of set_checkpoint_early_stop


class set_checkpoint_early_stop:
    """Sets, for checkpoints whose forward runs inside the context, whether backward stops their function as soon as all
    saved tensors are there (True) or runs it to its end (False). It overrides their own early_stop."""

    def __init__(self, enable):
        self.enable = bool(enable)

    def __enter__(self):
        global _early_stop
        self._before, _early_stop = _early_stop, self.enable

    def __exit__(self, *error):
        global _early_stop
        _early_stop = self._before


class _Kept:
    """An argument that is kept until the function runs again. A tensor is kept as the hooks around the checkpoint keep
    it."""

    def __init__(self, value):
        hooks = _C._saved_hooks()
        self.tensor = isinstance(value, _C.Tensor)
        self.requires_grad = self.tensor and value.requires_grad
        self.unpack, self.version = None, value._version if self.tensor else None
        if self.tensor and hooks:
            with no_grad():
                value, self.unpack = hooks[0](value), hooks[1]
        self.value = value

    def get(self):
        if not self.tensor:
            return self.value
        value = self.unpack(self.value) if self.unpack else self.value
        if self.unpack is None and value._version != self.version:
            raise RuntimeError(
                f"checkpoint: an argument of shape {list(value.shape)} was changed by an in-place op after "
                "forward: it is "
                f"at version {value._version} (expected {self.version})"
            )
        return value.detach().requires_grad_(self.requires_grad)


class _Holder:
    """What autograd keeps instead of a tensor: the tensor's number and its frame."""

    __slots__ = ("__weakref__", "frame", "index")

    def __init__(self, frame, index):
        self.frame, self.index = frame, index


def _about(t):
    return tuple(t.shape), t.dtype, t.device


class _Frame:
    """One call of a checkpointed function, and the tensors that it gave when it ran again for one backward."""

    def __init__(self, function, args, kwargs, context, replay, early_stop, check, debug):
        self.function, self.context, self.replay = function, context, replay
        self.args = [_Kept(a) for a in args]
        self.kwargs = {name: _Kept(a) for name, a in kwargs.items()}
        self.early_stop, self.check, self.debug = early_stop, check, debug
        self.holders, self.about = (
            [],
            [],
        )  # in the order of saving; weak references: holders that are gone need no tensor
        self.found, self.backward = {}, None  # index -> tensor, for one backward

    def pack(self, t):
        holder = _Holder(self, len(self.holders))
        self.holders.append(weakref.ref(holder))
        self.about.append(_about(t))
        return holder

    @staticmethod
    def unpack(holder):
        return holder.frame.take(holder.index)

    def take(self, index):
        number, _ = _C._backward_now()
        if index not in self.found or not number or number != self.backward:
            self.found, self.backward = self.run_again(), number
        return self.found.pop(index)

    def run_again(self):
        found, again = {}, []

        def pack(t):
            index = len(again)
            again.append(_about(t))
            t = t.detach()
            if index < len(self.holders) and self.holders[index]() is not None:
                found[index] = t
            if self.early_stop and len(again) == len(self.holders):
                raise _Enough
            return t

        try:
            with self.replay(), self.context, saved_tensors_hooks(pack, lambda t: t):
                self.function(*(a.get() for a in self.args), **{name: a.get() for name, a in self.kwargs.items()})
        except _Enough:
            pass
        self.compare(again)
        return found

    def compare(self, again):
        if len(again) != len(self.about):
            raise CheckpointError(
                f"checkpoint: the function saved {len(again)} tensors when it ran again (expected {len(self.about)}, as in "
                f"forward){self.lists(again)}"
            )
        for index, (new, old) in enumerate(zip(again, self.about)):
            if self.check and new != old:
                raise CheckpointError(
                    f"checkpoint: saved tensor {index} is {new[1]} of shape {list(new[0])} when the function runs again "
                    f"(expected {old[1]} of shape {list(old[0])}, as in forward){self.lists(again)}"
                )

    def lists(self, again):
        if not self.debug:
            return " (debug=True lists them)"
        rows = [f"{name}: {', '.join(f'{dtype} {list(shape)}' for shape, dtype, _ in found)}" for name, found in
                (("forward", self.about), ("again", again))]  # fmt: skip
        return "\n" + "\n".join(rows)


def _hooked(function, args, kwargs, preserve, context_fn, check, debug, early_stop):
    if not _C.is_grad_enabled():
        return function(*args, **kwargs)
    forward, again = context_fn()
    early_stop = early_stop if _early_stop is None else _early_stop
    frame = _Frame(function, args, kwargs, again, _Replay(preserve), early_stop, check, debug)
    with forward, saved_tensors_hooks(frame.pack, frame.unpack):
        return function(*args, **kwargs)


# ---- use_reentrant=True: a Function whose gradient runs its own backward --------------------------------------------


class CheckpointFunction(Function):
    """`checkpoint(..., use_reentrant=True)`, as apply(function, preserve_rng_state, *args)."""

    @staticmethod
    def forward(ctx, function, preserve_rng_state, *args):
        ctx.function, ctx.replay = function, _Replay(preserve_rng_state)
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, _C.Tensor)]
        ctx.args = [None if isinstance(a, _C.Tensor) else a for a in args]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        return function(*args)

    @staticmethod
    def backward(ctx, *grads):
        if _C._backward_now()[1]:
            raise RuntimeError(
                "checkpoint: with use_reentrant=True, autograd.grad() and backward(inputs=...) do not "
                "work (expected backward(), or use_reentrant=False)"
            )
        args = list(ctx.args)
        for i, t in zip(ctx.places, ctx.saved_tensors):
            args[i] = t.detach().requires_grad_(t.requires_grad)
        with ctx.replay():
            outputs = ctx.function(*args)
        outputs = (outputs,) if isinstance(outputs, _C.Tensor) else outputs
        pairs = [(y, g) for y, g in zip(outputs, grads) if isinstance(y, _C.Tensor) and y.requires_grad]
        if not pairs:
            raise RuntimeError("checkpoint: none of the outputs requires grad when the function runs again")
        _backward([y for y, _ in pairs], [g for _, g in pairs])
        return None, None, *(a.grad if isinstance(a, _C.Tensor) else None for a in args)


# ---- the functions --------------------------------------------------------------------------------------------------


def _chosen(op, use_reentrant):
    if use_reentrant is None:
        warnings.warn(
            f"{op}: use_reentrant is not given, so it is True (expected True or False; False is better)", stacklevel=3
        )
    return use_reentrant is None or bool(use_reentrant)


def checkpoint(
    function,
    *args,
    use_reentrant=None,
    context_fn=noop_context_fn,
    determinism_check="default",
    debug=False,
    early_stop=True,
    preserve_rng_state=True,
    **kwargs,
):
    """Calls function(*args, **kwargs) without keeping what its gradient needs: backward runs the function again.

    The function has to do the same both times. When it runs again, it gets forward's random numbers
    (preserve_rng_state) and forward's autocast. use_reentrant=False is the better form: it supports autograd.grad,
    keyword arguments, nesting and tensors inside structures, and stops early. `determinism_check="default"` compares
    shapes and dtypes of the saved tensors and raises CheckpointError if they differ (`debug=True` lists them); "none"
    does not compare. context_fn() returns two contexts, for forward and for the second run; those of
    create_selective_checkpoint_contexts keep the results of some ops. use_reentrant=True runs a
    backward inside the backward and needs an argument that requires grad. Raises ValueError for options that the chosen
    form does not have.

    >>> import pydist
    >>> from pydist.utils.checkpoint import checkpoint
    >>> x = pydist.tensor([1.0, 2.0], requires_grad=True)
    >>> checkpoint(lambda t: (t * t).exp().sum(), x, use_reentrant=False).backward()
    >>> x.grad
    tensor([  5.4366, 218.3926])
    """
    if not callable(function):
        raise TypeError(f"checkpoint: function is {type(function).__name__} (expected a function or a module)")
    if determinism_check not in ("default", "none"):
        raise ValueError(f"checkpoint: determinism_check is {determinism_check!r} (expected 'default' or 'none')")
    if not _chosen("checkpoint", use_reentrant):
        check = determinism_check == "default"
        return _hooked(function, args, kwargs, preserve_rng_state, context_fn, check, debug, early_stop)
    if kwargs:
        raise ValueError(
            f"checkpoint: unexpected keyword arguments: {', '.join(kwargs)} (expected use_reentrant=False for them)"
        )
    if context_fn is not noop_context_fn or debug:
        raise ValueError("checkpoint: got context_fn or debug with use_reentrant=True (expected use_reentrant=False)")
    if _C.is_grad_enabled() and not any(isinstance(a, _C.Tensor) and a.requires_grad for a in args):
        warnings.warn(
            "checkpoint: no argument requires grad, so there will be no gradients (expected use_reentrant=False)",
            stacklevel=2,
        )
    return CheckpointFunction.apply(function, preserve_rng_state, *args)


def checkpoint_sequential(functions, segments, input, use_reentrant=None, preserve_rng_state=True):
    """Applies the functions, or the children of a Sequential, one after the other, in `segments` parts. All parts
    except the last are checkpointed. Raises ValueError unless segments is from 1 to the number of functions."""
    functions = list(functions.children() if hasattr(functions, "children") else functions)
    if not 1 <= segments <= len(functions):
        raise ValueError(
            f"checkpoint_sequential: got {segments} segments for {len(functions)} functions (expected 1 to "
            f"{len(functions)})"
        )
    use_reentrant = _chosen("checkpoint_sequential", use_reentrant)

    def part(begin, end):
        def run(x):
            for function in functions[begin:end]:
                x = function(x)
            return x

        return run

    size = len(functions) // segments
    last = size * (segments - 1)
    for begin in range(0, last, size):
        input = checkpoint(
            part(begin, begin + size), input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state
        )
    return part(last, len(functions))(input)
