"""Losses of logits whose classes are sharded."""

from contextlib import contextmanager

from pydist.distributed.tensor._plan import modes

__all__ = ["loss_parallel"]


@contextmanager
def loss_parallel():
    """In this context the targets and class weights of `cross_entropy` and `nll_loss` may be plain tensors, which are the
    same on all ranks of the logits' mesh. Logits whose classes are sharded are never gathered, here and elsewhere: the
    ranks exchange 3 numbers for each row. All options of the losses are there, and backward may come later.

    >>> import pydist
    >>> from pydist.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    >>> from pydist.distributed.tensor.parallel import loss_parallel
    >>> logits = distribute_tensor(pydist.zeros(2, 4), init_device_mesh("cpu", (1,)), [Shard(1)])
    >>> with loss_parallel():
    ...     pydist.nn.functional.cross_entropy(logits, pydist.tensor([0, 3])).item()
    1.3862943649291992
    """
    was, modes.losses = modes.losses, True
    try:
        yield
    finally:
        modes.losses = was
