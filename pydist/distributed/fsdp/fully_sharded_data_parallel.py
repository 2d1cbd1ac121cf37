"""PyTorch's names for FullyShardedDataParallel, which stand in `pydist.nn.parallel.fsdp.fully_sharded_data_parallel`."""

from importlib import import_module

__all__ = (
    "BackwardPrefetch CPUOffload FullOptimStateDictConfig FullStateDictConfig FullyShardedDataParallel "
    "LocalOptimStateDictConfig LocalStateDictConfig MixedPrecision OptimStateDictConfig ShardedOptimStateDictConfig "
    "ShardedStateDictConfig ShardingStrategy StateDictConfig StateDictSettings StateDictType"
).split()


def __getattr__(name):
    if name in __all__:
        return getattr(import_module("pydist.nn.parallel.fsdp.fully_sharded_data_parallel"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r} (expected one of {', '.join(__all__)})")
