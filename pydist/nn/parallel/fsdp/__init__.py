"""Sharded training: fully_shard (FSDP2) and FullyShardedDataParallel (FSDP1). PyTorch's name for this package is
`distributed.fsdp`."""

from pydist.nn.parallel.fsdp.fully_shard import (
    FSDPModule,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from pydist.nn.parallel.fsdp.fully_sharded_data_parallel import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from pydist.nn.parallel.fsdp.policies import (
    CPUOffloadPolicy,
    DataParallelMeshDims,
    MixedPrecisionPolicy,
    OffloadPolicy,
)

__all__ = (
    "BackwardPrefetch CPUOffload CPUOffloadPolicy DataParallelMeshDims FSDPModule FullOptimStateDictConfig "
    "FullStateDictConfig FullyShardedDataParallel LocalOptimStateDictConfig LocalStateDictConfig MixedPrecision "
    "MixedPrecisionPolicy OffloadPolicy OptimStateDictConfig ShardedOptimStateDictConfig ShardedStateDictConfig "
    "ShardingStrategy StateDictConfig StateDictSettings StateDictType UnshardHandle fully_shard "
    "register_fsdp_forward_method share_comm_ctx"
).split()
