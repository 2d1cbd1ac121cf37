"""Dropout."""

from pydist import _C
from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class _Dropout(Module):
    def __init__(self, p=0.5, inplace=False):
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """y = x * keep / (1 - p), keep drawn Bernoulli(1 - p) per element; in eval mode y = x (Hinton et al., 2012).

    Raises ValueError where p is outside [0, 1].
    """

    def forward(self, input):
        return F.dropout(input, self.p, self.training, self.inplace)


class _ChannelDropout(_Dropout):
    """y = x * keep / (1 - p), keep drawn Bernoulli(1 - p) per channel of each sample; in eval mode y = x (Tompson et
    al., 2015)."""

    def forward(self, input):
        if input.dim() not in (self._dims, self._dims + 1):
            wanted = f"{self._dims + 1}, or {self._dims} without a batch"
            raise ValueError(f"{type(self).__name__}: input has {input.dim()} dims (expected {wanted})")
        if not self.training or self.p == 0:
            return input
        lead = input.dim() - self._dims + 1
        keep = _C.ones(*input.shape[:lead], *[1] * (self._dims - 1), dtype=input.dtype, device=input.device)
        keep = F.dropout(keep, self.p)
        return input.mul_(keep) if self.inplace else input * keep


class Dropout1d(_ChannelDropout):
    __doc__ = f"Over x[N, C, L] or x[C, L]. {_ChannelDropout.__doc__}"
    _dims = 2


class Dropout2d(_ChannelDropout):
    __doc__ = f"Over x[N, C, H, W] or x[C, H, W]. {_ChannelDropout.__doc__}"
    _dims = 3
