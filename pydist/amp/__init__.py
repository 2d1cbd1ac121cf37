"""Mixed precision: `autocast` chooses the dtype of each op, `GradScaler` keeps small gradients of float16 from becoming
0."""

from pydist.amp.autocast_mode import autocast, custom_bwd, custom_fwd, is_autocast_available
from pydist.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
