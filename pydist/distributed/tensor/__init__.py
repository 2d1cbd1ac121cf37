"""Tensors that are spread over a mesh of ranks (torch.distributed.tensor).

>>> import pydist
>>> from pydist.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
>>> mesh = init_device_mesh("cpu", (pydist.distributed.get_world_size(),))
>>> weight = distribute_tensor(pydist.ones(4, 2), mesh, [Shard(0)])
>>> isinstance(weight, DTensor), weight.placements
(True, (Shard(dim=0),))
"""

from pydist.distributed.device_mesh import DeviceMesh, init_device_mesh
from pydist.distributed.tensor._dtensor import (
    DTensor,
    distribute_module,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from pydist.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

__all__ = (
    "DTensor DeviceMesh Partial Placement Replicate Shard distribute_module distribute_tensor empty full init_device_mesh "
    "ones rand randn zeros"
).split()
