"""PyTorch's name for ShardedGradScaler, which stands in `pydist.nn.parallel.fsdp.sharded_grad_scaler`."""

from importlib import import_module

__all__ = "ShardedGradScaler".split()


def __getattr__(name):
    if name in __all__:
        return getattr(import_module("pydist.nn.parallel.fsdp.sharded_grad_scaler"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r} (expected one of {', '.join(__all__)})")
