"""PyTorch's names for FullyShardedDataParallel, which stand in `pydist.nn.parallel.fsdp.fully_sharded_data_parallel`."""

from pydist._aliases import from_home

__all__ = (
    "BackwardPrefetch CPUOffload FullOptimStateDictConfig FullStateDictConfig FullyShardedDataParallel "
    "LocalOptimStateDictConfig LocalStateDictConfig MixedPrecision OptimStateDictConfig ShardedOptimStateDictConfig "
    "ShardedStateDictConfig ShardingStrategy StateDictConfig StateDictSettings StateDictType"
).split()
__getattr__ = from_home(__name__, "pydist.nn.parallel.fsdp.fully_sharded_data_parallel", __all__)
