"""What DTensors send, and how they lie, to look at (torch.distributed.tensor.debug).

>>> import pydist
>>> from pydist.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
>>> from pydist.distributed.tensor.debug import CommDebugMode
>>> def work(rank):
...     x = distribute_tensor(pydist.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
...     with CommDebugMode() as mode:
...         x.redistribute(placements=[Replicate()])
...     return mode.get_comm_counts()[pydist.ops.c10d_functional.all_gather_into_tensor]
>>> pydist.testing.run_ranks(2, work)
[1, 1]
"""

from pydist.distributed.tensor.debug._comm_mode import CommDebugMode
from pydist.distributed.tensor.debug._visualize_sharding import visualize_sharding

__all__ = ["CommDebugMode", "visualize_sharding"]
