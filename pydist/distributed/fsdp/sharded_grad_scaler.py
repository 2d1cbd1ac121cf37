"""PyTorch's name for ShardedGradScaler, which stands in `pydist.nn.parallel.fsdp.sharded_grad_scaler`."""

from pydist._aliases import from_home

__all__ = "ShardedGradScaler".split()
__getattr__ = from_home(__name__, "pydist.nn.parallel.fsdp.sharded_grad_scaler", __all__)
