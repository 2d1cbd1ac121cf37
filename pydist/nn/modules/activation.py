"""Activations."""

from pydist import _C
from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class ReLU(Module):
    """y = max(x, 0), elementwise.

    >>> import pydist
    >>> pydist.nn.ReLU()(pydist.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def __init__(self, inplace=False):
        super().__init__()
        self.inplace = inplace

    def forward(self, input):
        return _C.relu_(input) if self.inplace else _C.relu(input)

    def extra_repr(self):
        return "inplace=True" if self.inplace else ""


class _AlongDim(Module):
    def __init__(self, dim=None):
        super().__init__()
        self.dim = dim

    def extra_repr(self):
        return f"dim={self.dim}"


class Softmax(_AlongDim):
    """y = exp(x) / sum(exp(x)) along `dim`."""

    def forward(self, input):
        return F.softmax(input, self.dim)


class LogSoftmax(_AlongDim):
    """y = x - log(sum(exp(x))) along `dim`."""

    def forward(self, input):
        return F.log_softmax(input, self.dim)
