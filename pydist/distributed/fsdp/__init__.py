"""PyTorch's names for sharded training, which stands in `pydist.nn.parallel.fsdp`: it is about modules."""

from pydist._aliases import from_home

__all__ = (
    "BackwardPrefetch CPUOffload CPUOffloadPolicy DataParallelMeshDims FSDPModule FullOptimStateDictConfig "
    "FullStateDictConfig FullyShardedDataParallel LocalOptimStateDictConfig LocalStateDictConfig MixedPrecision "
    "MixedPrecisionPolicy OffloadPolicy OptimStateDictConfig ShardedOptimStateDictConfig ShardedStateDictConfig "
    "ShardingStrategy StateDictConfig StateDictSettings StateDictType UnshardHandle fully_shard "
    "register_fsdp_forward_method share_comm_ctx"
).split()
__getattr__ = from_home(__name__, "pydist.nn.parallel.fsdp", __all__)
