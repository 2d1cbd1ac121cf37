"""Context parallel: attention over a sequence whose rows are spread over ranks (torch.distributed.tensor.experimental).

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

from pydist.distributed.tensor.experimental._attention import (
    context_parallel,
    context_parallel_unshard,
    ring_attention,
    set_rotate_method,
    ulysses_attention,
)

__all__ = "context_parallel context_parallel_unshard ring_attention set_rotate_method ulysses_attention".split()
