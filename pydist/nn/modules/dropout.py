"""Dropout."""

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
    """y = x * keep / (1 - p), where keep is drawn from Bernoulli(1 - p) for each element. In eval mode y = x (Hinton et
    al., 2012).

    Raises ValueError if p is outside [0, 1].
    """

    def forward(self, input):
        return F.dropout(input, self.p, self.training, self.inplace)


def _kind(name, function, doc):
    def forward(self, input):
        """The dropout of input, in training; otherwise input."""
        return function(input, self.p, self.training, self.inplace)

    return type(name, (_Dropout,), {"__doc__": doc, "__module__": __name__, "forward": forward})


_CHANNELS = """Over {}. y = x * keep / (1 - p), where keep is drawn from Bernoulli(1 - p) for each channel of each sample; in eval
mode y = x (Tompson et al., 2015)."""
Dropout1d = _kind("Dropout1d", F.dropout1d, _CHANNELS.format("x[N, C, L] or x[C, L]"))
Dropout2d = _kind("Dropout2d", F.dropout2d, _CHANNELS.format("x[N, C, H, W] or x[C, H, W]"))
Dropout3d = _kind("Dropout3d", F.dropout3d, _CHANNELS.format("x[N, C, D, H, W] or x[C, D, H, W]"))
AlphaDropout = _kind(
    "AlphaDropout", F.alpha_dropout, "Dropout that keeps mean 0 and variance 1 (Klambauer et al., 2017)."
)
FeatureAlphaDropout = _kind("FeatureAlphaDropout", F.feature_alpha_dropout, "AlphaDropout of whole channels.")
