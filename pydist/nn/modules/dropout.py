"""Dropout."""

from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class Dropout(Module):
    """y = x * keep / (1 - p), keep drawn Bernoulli(1 - p) per element; in eval mode y = x (Hinton et al., 2012).

    Raises ValueError where p is outside [0, 1].
    """

    def __init__(self, p=0.5, inplace=False):
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, input):
        return F.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"
