"""PyTorch's names for policies of FullyShardedDataParallel, which stand in `pydist.nn.parallel.fsdp.wrap`."""

from importlib import import_module

__all__ = (
    "CustomPolicy ModuleWrapPolicy always_wrap_policy enable_wrap lambda_auto_wrap_policy "
    "size_based_auto_wrap_policy transformer_auto_wrap_policy wrap"
).split()


def __getattr__(name):
    if name in __all__:
        return getattr(import_module("pydist.nn.parallel.fsdp.wrap"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r} (expected one of {', '.join(__all__)})")
