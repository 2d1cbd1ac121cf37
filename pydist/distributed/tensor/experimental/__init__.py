"""Context parallel, attention over a sequence whose rows are spread over ranks; functions of parts of DTensors, placements of
ops that a program gives, plain tensors as replicas (torch.distributed.tensor.experimental).

>>> import pydist
>>> from pydist.distributed.tensor import init_device_mesh
>>> from pydist.distributed.tensor.experimental import context_parallel, context_parallel_unshard
>>> def work(rank):
...     mesh, x = init_device_mesh("cpu", (2,)), pydist.arange(8.0).view(1, 1, 8, 1)
...     with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
...         part = x.flatten().tolist()
...         y = pydist.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
...         (whole,) = context_parallel_unshard(mesh, [y], [2])
...     return part, list(whole.shape), list(x.shape)
>>> pydist.testing.run_ranks(2, work)[0]
([0.0, 1.0, 6.0, 7.0], [1, 1, 8, 1], [1, 1, 8, 1])
"""

from contextlib import contextmanager

from pydist.distributed.tensor._plan import modes
from pydist.distributed.tensor.experimental._attention import (
    context_parallel,
    context_parallel_unshard,
    ring_attention,
    set_rotate_method,
    ulysses_attention,
)
from pydist.distributed.tensor.experimental._func_map import local_map
from pydist.distributed.tensor.experimental._register_sharding import register_sharding

__all__ = (
    "context_parallel context_parallel_unshard implicit_replication local_map register_sharding ring_attention "
    "set_rotate_method ulysses_attention"
).split()


@contextmanager
def implicit_replication():
    """Inside the block, plain tensors among the operands of ops on DTensors count as Replicate(): the same on all ranks,
    which nobody checks.

    >>> import pydist
    >>> from pydist.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    >>> from pydist.distributed.tensor.experimental import implicit_replication
    >>> x = distribute_tensor(pydist.ones(2), init_device_mesh("cpu", (1,)), [Shard(0)])
    >>> with implicit_replication():
    ...     (x + pydist.ones(2)).full_tensor()
    tensor([2., 2.])
    """
    was, modes.implicit = modes.implicit, True
    try:
        yield
    finally:
        modes.implicit = was
