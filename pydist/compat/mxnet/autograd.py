"""Recording of operations, and gradients."""

import pydist
from pydist.compat.mxnet._base import MXNetError, absent, state
from pydist.compat.mxnet.ndarray._array import NDArray, backward_of, run


class _Scope:
    """Sets the thread's `recording` and `training` and restores them at the end. None: as it is."""

    def __init__(self, recording, training):
        self._want, self._before = (recording, training), []

    def __enter__(self):
        self._before.append((state.recording, state.training))
        recording, training = self._want
        state.recording = state.recording if recording is None else recording
        state.training = state.training if training is None else training

    def __exit__(self, *error):
        state.recording, state.training = self._before.pop()


def record(train_mode=True):
    """`with record():` operations on arrays are recorded, and layers train."""
    return _Scope(True, train_mode)


def pause(train_mode=False):
    """`with pause():` operations are not recorded."""
    return _Scope(False, train_mode)


def train_mode():
    """`with train_mode():` Dropout and BatchNorm train."""
    return _Scope(None, True)


def predict_mode():
    """`with predict_mode():` Dropout and BatchNorm predict."""
    return _Scope(None, False)


def is_recording():
    """Whether operations are recorded."""
    return state.recording


def is_training():
    """Whether layers train."""
    return state.training


def mark_variables(variables, gradients, grad_reqs="write"):
    """Arrays whose gradients backward() writes into these arrays; grad_reqs as for attach_grad()."""
    if isinstance(variables, NDArray):
        variables, gradients = [variables], [gradients]
    reqs = [grad_reqs] * len(variables) if isinstance(grad_reqs, str) else grad_reqs
    for variable, gradient, req in zip(variables, gradients, reqs):
        variable._mark(gradient, req)


def backward(heads, head_grads=None, retain_graph=False, train_mode=True):
    """Writes the gradients of the sum of `heads`, each times its head gradient (None: ones)."""
    if isinstance(heads, NDArray):
        heads, head_grads = [heads], None if head_grads is None else [head_grads]
    backward_of(heads, head_grads, retain_graph)


def grad(heads, variables, head_grads=None, retain_graph=None, create_graph=False, train_mode=True):
    """The gradients of `variables` as new arrays. create_graph: they can be differentiated again."""
    one = isinstance(variables, NDArray)
    heads, chosen, seeds = [[x] if isinstance(x, NDArray) else x for x in (heads, variables, head_grads)]
    seeds = [pydist.ones_like(h._t) if g is None else g._t for h, g in zip(heads, seeds or [None] * len(heads))]
    keep = create_graph if retain_graph is None else retain_graph
    try:
        found = pydist.autograd.grad([h._t for h in heads], [v._t for v in chosen], seeds, keep, create_graph)
    except RuntimeError as error:
        raise MXNetError(f"grad: {error}") from error
    made = [NDArray(t, v._ctx) for t, v in zip(found, chosen)]
    return made[0] if one else made


def get_symbol(x):
    """There are no symbols."""
    raise absent("mx.autograd.get_symbol", "eager code")


class _Custom(pydist.autograd.Function):
    @staticmethod
    def forward(ctx, function, inputs, *tensors):
        ctx.function, ctx.ctx = function, inputs[0]._ctx
        with pause():
            found = function.forward(*[NDArray(t.detach(), each._ctx) for t, each in zip(tensors, inputs)])
        function._many = not isinstance(found, NDArray)
        return tuple(each._t for each in (found if function._many else [found]))

    @staticmethod
    def backward(ctx, *grads):
        with pause():
            found = ctx.function.backward(*[NDArray(g, ctx.ctx) for g in grads])
        return (None, None, *(each._t for each in ([found] if isinstance(found, NDArray) else found)))


class Function:
    """A base class of operations: subclasses have forward(self, *arrays) and backward(self, *gradients)."""

    saved_tensors = ()

    def save_for_backward(self, *args):
        """Keeps arrays for backward(), as `saved_tensors`."""
        self.saved_tensors = args

    def __call__(self, *inputs):
        found = run(lambda *tensors: list(_Custom.apply(self, inputs, *tensors)), *inputs)
        return found if self._many else found[0]
