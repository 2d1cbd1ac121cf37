"""PyTorch's names for sharded training, which stands in `pydist.nn.parallel.fsdp`: it is about modules."""

from importlib import import_module

__all__ = (
    "BackwardPrefetch CPUOffload CPUOffloadPolicy DataParallelMeshDims FSDPModule FullOptimStateDictConfig "
    "FullStateDictConfig FullyShardedDataParallel LocalOptimStateDictConfig LocalStateDictConfig MixedPrecision "
    "MixedPrecisionPolicy OffloadPolicy OptimStateDictConfig ShardedOptimStateDictConfig ShardedStateDictConfig "
    "ShardingStrategy StateDictConfig StateDictSettings StateDictType UnshardHandle fully_shard "
    "register_fsdp_forward_method share_comm_ctx"
).split()


def __getattr__(name):
    if name in __all__:
        return getattr(import_module("pydist.nn.parallel.fsdp"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r} (expected one of {', '.join(__all__)})")
