"""Activations: one function of each element, or along one dimension."""

from pydist import _C
from pydist.nn import functional as F
from pydist.nn.modules.module import Module
from pydist.nn.parameter import Parameter


class _Elementwise(Module):
    """Subclasses name their function and the options that it takes by position and repr() shows."""

    _options = ()

    def forward(self, input):
        return self._function(input, *(getattr(self, name) for name in self._options))

    def extra_repr(self):
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._options)


class _InPlace(_Elementwise):
    """With the option `inplace`, which writes the result into the input."""

    def __init__(self, inplace=False):
        super().__init__()
        self.inplace = inplace

    def forward(self, input):
        return self._function(input, *(getattr(self, name) for name in self._options), inplace=self.inplace)

    def extra_repr(self):
        return ", ".join(filter(None, (super().extra_repr(), "inplace=True" if self.inplace else "")))


class ReLU(_InPlace):
    """y = max(x, 0), elementwise.

    >>> import pydist
    >>> pydist.nn.ReLU()(pydist.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def forward(self, input):
        return _C.relu_(input) if self.inplace else _C.relu(input)


class ReLU6(_InPlace):
    """y = min(max(x, 0), 6), elementwise."""

    _function = staticmethod(F.relu6)


class SELU(_InPlace):
    """y = scale * (max(x, 0) + min(0, alpha * (exp(x) - 1))), with scale and alpha that keep mean 0 and variance 1
    (Klambauer et al., 2017)."""

    _function = staticmethod(F.selu)


class SiLU(_InPlace):
    """y = x * sigmoid(x), elementwise."""

    _function = staticmethod(F.silu)


class Mish(_InPlace):
    """y = x * tanh(softplus(x)), elementwise (Misra, 2019)."""

    _function = staticmethod(F.mish)


class Hardsigmoid(_InPlace):
    """y = min(max(x + 3, 0), 6) / 6, elementwise."""

    _function = staticmethod(F.hardsigmoid)
    extra_repr = Module.extra_repr  # as in PyTorch


class Hardswish(_InPlace):
    """y = x * min(max(x + 3, 0), 6) / 6, elementwise."""

    _function = staticmethod(F.hardswish)
    extra_repr = Module.extra_repr  # as in PyTorch


class LeakyReLU(_InPlace):
    """y = x where x is positive, else negative_slope * x."""

    _function, _options = staticmethod(F.leaky_relu), ("negative_slope",)

    def __init__(self, negative_slope=0.01, inplace=False):
        super().__init__(inplace)
        self.negative_slope = negative_slope


class ELU(_InPlace):
    """y = x where x is positive, else alpha * (exp(x) - 1) (Clevert et al., 2016)."""

    _function, _options = staticmethod(F.elu), ("alpha",)

    def __init__(self, alpha=1.0, inplace=False):
        super().__init__(inplace)
        self.alpha = alpha


class CELU(_InPlace):
    """y = x where x is positive, else alpha * (exp(x / alpha) - 1) (Barron, 2017)."""

    _function, _options = staticmethod(F.celu), ("alpha",)

    def __init__(self, alpha=1.0, inplace=False):
        super().__init__(inplace)
        self.alpha = alpha


class Hardtanh(_InPlace):
    """y = x, at least min_val and at most max_val. Raises ValueError where min_val is not below max_val."""

    _function, _options = staticmethod(F.hardtanh), ("min_val", "max_val")

    def __init__(self, min_val=-1.0, max_val=1.0, inplace=False):
        super().__init__(inplace)
        if max_val <= min_val:
            raise ValueError("max_val must be larger than min_val")
        self.min_val = min_val
        self.max_val = max_val


class Sigmoid(_Elementwise):
    """y = 1 / (1 + exp(-x)), elementwise."""

    _function = staticmethod(_C.sigmoid)


class Tanh(_Elementwise):
    """y = tanh(x), elementwise."""

    _function = staticmethod(_C.tanh)


class LogSigmoid(_Elementwise):
    """y = -log(1 + exp(-x)), elementwise."""

    _function = staticmethod(F.logsigmoid)


class Softsign(_Elementwise):
    """y = x / (1 + |x|), elementwise."""

    _function = staticmethod(F.softsign)


class Tanhshrink(_Elementwise):
    """y = x - tanh(x), elementwise."""

    _function = staticmethod(F.tanhshrink)


class GELU(_Elementwise):
    """y = x * Phi(x), Phi being the normal distribution function (Hendrycks and Gimpel, 2016); approximate="tanh": its
    approximation by tanh."""

    _options = ("approximate",)

    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input):
        return F.gelu(input, approximate=self.approximate)


class Softplus(_Elementwise):
    """y = log(1 + exp(beta * x)) / beta; x itself where beta * x is above `threshold`."""

    _function, _options = staticmethod(F.softplus), ("beta", "threshold")

    def __init__(self, beta=1.0, threshold=20.0):
        super().__init__()
        self.beta = beta
        self.threshold = threshold


class PReLU(Module):
    """y = x where x is positive, else weight * x; weight is learned, one number or one per channel (dim 1), and starts
    at `init` (He et al., 2015)."""

    def __init__(self, num_parameters=1, init=0.25, device=None, dtype=None):
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(_C.full((num_parameters,), float(init), device=device, dtype=dtype))

    def reset_parameters(self):
        self.weight.data.fill_(self.init)

    def forward(self, input):
        return F.prelu(input, self.weight)

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"


class _AlongDim(Module):
    def __init__(self, dim=None):
        super().__init__()
        self.dim = dim

    def forward(self, input):
        return self._function(input, self.dim)

    def extra_repr(self):
        return f"dim={self.dim}"


class Softmax(_AlongDim):
    """y = exp(x) / sum(exp(x)) along `dim`."""

    _function = staticmethod(F.softmax)


class Softmin(_AlongDim):
    """y = exp(-x) / sum(exp(-x)) along `dim`."""

    _function = staticmethod(F.softmin)


class LogSoftmax(_AlongDim):
    """y = x - log(sum(exp(x))) along `dim`."""

    _function = staticmethod(F.log_softmax)
