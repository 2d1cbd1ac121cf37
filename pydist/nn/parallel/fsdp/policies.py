"""How fully_shard computes, communicates and keeps memory."""

from dataclasses import dataclass

from pydist import _C


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of a unit. `param_dtype`: forward and backward compute with copies of the parameters in this dtype, which
    every step makes anew; optimizers step the float32 parameters. `reduce_dtype`: gradients are summed over the ranks and
    rounded in it (default: param_dtype; sums themselves are float32). `output_dtype`: forward's floating outputs are cast
    to it. `cast_forward_inputs`: forward's floating inputs are cast to param_dtype."""

    param_dtype: _C.dtype | None = None
    reduce_dtype: _C.dtype | None = None
    output_dtype: _C.dtype | None = None
    cast_forward_inputs: bool = True


@dataclass
class OffloadPolicy:
    """Nothing is offloaded."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Shards, gradients and optimizer states are in the host's memory. On ranks that compute on CPUs they are there
    anyway; on a GPU it raises NotImplementedError."""

    pin_memory: bool = True


@dataclass(frozen=True)
class DataParallelMeshDims:
    """Which dimensions of a mesh with names are for sharding, and which for replicas."""

    shard: str | tuple | None = None
    replicate: str | tuple | None = None
