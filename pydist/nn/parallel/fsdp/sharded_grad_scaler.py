"""ShardedGradScaler: PyTorch's name for a GradScaler that agrees over the ranks of a group."""

from pydist.amp import GradScaler
from pydist.distributed._group.process_group import current


class ShardedGradScaler(GradScaler):
    """A GradScaler for sharded gradients: an infinity on any rank skips the step on all. A plain GradScaler does the same
    for DTensors, whose ranks it asks by itself."""

    def __init__(
        self,
        device="cpu",
        init_scale=2.0**16,
        backoff_factor=0.5,
        growth_factor=2.0,
        growth_interval=2000,
        enabled=True,
        process_group=None,
    ):
        super().__init__(
            device,
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
            process_group=current(process_group),
        )
