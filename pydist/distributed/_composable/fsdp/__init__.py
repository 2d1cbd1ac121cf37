"""PyTorch's former place of fully_shard, which stands in `pydist.nn.parallel.fsdp`."""

from pydist._aliases import from_home

__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "fully_shard",
    "register_fsdp_forward_method",
]
__getattr__ = from_home(__name__, "pydist.nn.parallel.fsdp", __all__)
