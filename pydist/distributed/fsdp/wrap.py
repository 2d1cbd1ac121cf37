"""PyTorch's names for policies of FullyShardedDataParallel, which stand in `pydist.nn.parallel.fsdp.wrap`."""

from pydist._aliases import from_home

__all__ = (
    "CustomPolicy ModuleWrapPolicy always_wrap_policy enable_wrap lambda_auto_wrap_policy "
    "size_based_auto_wrap_policy transformer_auto_wrap_policy wrap"
).split()
__getattr__ = from_home(__name__, "pydist.nn.parallel.fsdp.wrap", __all__)
