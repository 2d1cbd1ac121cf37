"""Tensors that are spread over a mesh of ranks. pydist has none yet: these names exist so that programs which ask
`isinstance(x, DTensor)` run, and every call raises NotImplementedError.

>>> import pydist
>>> from pydist.distributed.tensor import DTensor
>>> isinstance(pydist.ones(1), DTensor)
False
"""

from pydist.distributed.device_mesh import DeviceMesh, init_device_mesh

__all__ = (
    "DTensor DeviceMesh Partial Placement Replicate Shard distribute_module distribute_tensor init_device_mesh"
).split()


def _none(name):
    raise NotImplementedError(
        f"distributed.tensor.{name}: pydist does not spread tensors yet (expected DistributedDataParallel, or "
        "collectives over the groups of a DeviceMesh)"
    )


class DTensor:
    """A tensor that is spread over ranks. pydist never makes one."""

    def __init__(self, *args, **kwargs):
        _none("DTensor")

    @staticmethod
    def from_local(local_tensor, device_mesh=None, placements=None, *, run_check=False, shape=None, stride=None):
        """Raises NotImplementedError."""
        _none("DTensor.from_local")


class Placement:
    """How a tensor lies along one dimension of a mesh."""

    def is_shard(self, dim=None):
        """Whether each rank has a part, along `dim` if that is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self):
        """Whether each rank has all of it."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op=None):
        """Whether each rank has a summand."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self):
        return hash((type(self), *vars(self).values()))

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Shard(Placement):
    """Each rank has a part along `dim`."""

    def __init__(self, dim):
        self.dim = dim


class Replicate(Placement):
    """Each rank has all of it."""


class Partial(Placement):
    """Each rank has a summand of it."""

    def __init__(self, reduce_op="sum"):
        self.reduce_op = reduce_op


def distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0):
    """Raises NotImplementedError."""
    _none("distribute_tensor")


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """Raises NotImplementedError."""
    _none("distribute_module")
