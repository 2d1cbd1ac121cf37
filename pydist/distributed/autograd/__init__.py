"""Distributed autograd: backward through calls of `pydist.distributed.rpc`.

In a block `with context() as context_id` a call that carries tensors which require a gradient is recorded at both ends.
`backward(context_id, [loss])` then goes over all workers that the loss depends on. The gradients of each worker's
leaves lie in its part of the context, where `get_gradients` finds them; `.grad` is left alone.

>>> import pydist
>>> from pydist.distributed import autograd, rpc
>>> rpc.init_rpc("worker0", rank=0, world_size=1)
>>> x = pydist.tensor([1.0, 2.0], requires_grad=True)
>>> with autograd.context() as context_id:
...     y = rpc.rpc_sync("worker0", pydist.mul, args=(x, x))
...     autograd.backward(context_id, [y.sum()])
...     autograd.get_gradients(context_id)[x]
tensor([2., 4.])
>>> rpc.shutdown()
"""

from pydist import _C
from pydist.distributed.autograd import _contexts, _passes
from pydist.distributed.autograd._contexts import DistAutogradContext
from pydist.profiler import record_function

__all__ = ["backward", "context", "get_gradients", "is_available"]


def is_available():
    """Whether distributed autograd is there: True."""
    return True


class context:
    """A block of forward and backward passes over several workers. `with context() as context_id` gives the id by which
    every worker knows it.

    Calls of this thread in the block carry the context along, and so do the calls that these make. When the block ends,
    the context ends on all workers: its graphs and gradients are freed. Contexts of several threads are independent.
    Raises RuntimeError if this thread is in a context already, or if init_rpc has not been called.
    """

    def __enter__(self):
        self.autograd_context = _new_context()
        return self.autograd_context.id

    def __exit__(self, kind, value, trace):
        ended, self.autograd_context = self.autograd_context, None
        _leave(ended)
        ended.worker.release(ended.id)


def backward(context_id, roots, retain_graph=False, mode="smart"):
    r"""Computes the gradients of sum(roots) for all leaves that the roots depend on, on all workers.

    roots: tensors of one element, results of this worker. Each worker adds the gradients of its leaves to its part of
    the context; a second pass in one context adds to those of the first. Without retain_graph the pass frees the graph.
    Gradients that arrive from several workers are added in a fixed order, so a repetition gives the same bits.

    mode: "smart" computes what the roots depend on. "fast" is PyTorch's rule that each message which a worker of the pass
    has sent in the context leads to the roots; where one does not, PyTorch waits for its gradient for ever, and this
    raises RuntimeError that names it. It is a check, and no faster: "smart" has no round of questions where the messages
    tell to which others they lead.

    Cost: one request along each chain of calls to find who takes part; then a message for each call, there with the
    values, here with their gradients; and one answer of each worker to this one. Tensors that were sent and are not used
    cost nothing.

    Raises RuntimeError for an unknown context, for roots that are none, and where another pass runs in the context. An
    error of a worker is raised here with its own class (RuntimeError for a plain Exception), and PeerFailed where a
    worker has died; then the context's gradients are everywhere what they were.
    """
    if not isinstance(context_id, int) or isinstance(roots, (_C.Tensor, str)) or not hasattr(roots, "__iter__"):
        raise TypeError(
            f"backward(): incompatible function arguments: got {type(context_id).__name__} and {type(roots).__name__} "
            "(expected the id of a context and a list of tensors)"
        )
    if mode not in ("smart", "fast"):
        raise ValueError(f"backward: mode {mode!r} (expected 'smart' or 'fast')")
    context, roots = _contexts.worker().get(context_id), list(roots)
    if not roots:
        raise RuntimeError("backward: No tensors provided for gradient computation (expected at least one root)")
    for i, root in enumerate(roots):
        _check_root(i, root)
    with record_function("torch::distributed::autograd::backward"):
        _passes.run(context, roots, (bool(retain_graph), mode == "fast"))


def _check_root(i, root):
    if not isinstance(root, _C.Tensor):
        raise TypeError(
            f"backward(): incompatible function arguments: root {i} is {type(root).__name__} (expected a tensor)"
        )
    what = f"{root.dtype} of shape {tuple(root.shape)}"
    if not root.requires_grad:
        raise RuntimeError(f"backward: requires_grad not set on root {i}, {what} (expected requires_grad=True)")
    if root.numel() != 1:
        raise RuntimeError(
            f"backward: root {i} is not a scalar, all roots need to be scalar: got {what} (expected one element)"
        )
    if root.grad_fn is None:
        raise RuntimeError(
            f"backward: root {i} does not have a valid gradient function: it is a leaf, {what} (expected the result of "
            "an operation)"
        )


def get_gradients(context_id):
    """{leaf: gradient} of this worker's leaves that passes in the context have reached so far. Raises RuntimeError for
    an unknown context."""
    from pydist import sparse

    found = {}
    for leaf, grad in _contexts.worker().get(context_id).grads.items():
        whole = sparse.leaf_of(leaf)
        found.update({leaf: grad} if whole is None else {whole: whole.with_gradient(grad)})
    return found


def autograd_backward(loss, retain_graph=False):
    """The backward of a loss, wherever its graph is: `loss.backward()`, or inside `with context()` the distributed
    backward of that context.

    >>> import pydist
    >>> x = pydist.tensor(3.0, requires_grad=True)
    >>> autograd_backward(x * x)
    >>> x.grad
    tensor(6.)
    """
    context = _contexts.of_thread()
    if context is None:
        loss.backward(retain_graph=retain_graph)
    else:
        backward(context.id, [loss], retain_graph)


# What PyTorch's own tests, and tools, ask for.


def _new_context():
    """Makes a context that is this thread's until _release_context."""
    if _contexts.of_thread() is not None:
        raise RuntimeError("Already have an autograd context id for this thread (expected one context at a time)")
    new = _contexts._here.context = _contexts.worker().new_context()
    return new


def _leave(context):
    """The context is no longer this thread's."""
    if getattr(_contexts._here, "context", None) is context:
        _contexts._here.context = None


def _release_context(context_id):
    """Ends a context on all workers."""
    worker = _contexts.worker()
    _leave(worker.get(context_id))
    worker.release(context_id)


def _retrieve_context(context_id):
    """The DistAutogradContext with this id."""
    return _contexts.worker().get(context_id)


def _is_valid_context(context_id):
    """Raises RuntimeError if there is no such context here."""
    _contexts.worker().get(context_id)


def _current_context():
    """The DistAutogradContext of this thread."""
    context = _contexts.of_thread()
    if context is None:
        raise RuntimeError(
            "Current thread doesn't have a valid autograd context. Please wrap your code using: `with "
            "torch.distributed.autograd.context() as context_id` to generate a valid context (expected a call in such a "
            "block)"
        )
    return context


def _get_max_id():
    """The largest id that this worker can give."""
    return (_contexts.worker().id << _contexts._BITS) + (1 << _contexts._BITS) - 1


def _init(worker_id):
    """init_rpc has done it. Raises RuntimeError if this worker has another id."""
    if (mine := _contexts.worker().id) != worker_id:
        raise RuntimeError(f"_init: this is worker {mine}, not {worker_id} (expected the id that init_rpc gave)")


def _get_debug_info():
    """How many contexts this worker knows, and in how many of them a pass runs."""
    contexts = list(_contexts.worker().contexts.values())
    return {
        "num_current_backward_passes": sum(context.current is not None for context in contexts),
        "num_autograd_contexts": len(contexts),
    }
