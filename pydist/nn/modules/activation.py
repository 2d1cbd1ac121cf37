"""Activations: functions of each element, or along one dimension."""

from pydist import _C
from pydist.nn import functional as F
from pydist.nn.modules.attention import MultiheadAttention as MultiheadAttention  # PyTorch has it here
from pydist.nn.modules.module import Module
from pydist.nn.parameter import Parameter


class _Elementwise(Module):
    """Subclasses name their function and the options that it takes by position and that repr() shows."""

    _options = ()

    def forward(self, input):
        return self._function(input, *(getattr(self, name) for name in self._options))

    def extra_repr(self):
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._options)


class _InPlace(_Elementwise):
    """An activation with the option `inplace`, which writes the result into the input."""

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


def _kind(name, base, function, doc, **more):
    """A class with the same parameters as its base."""
    return type(name, (base,), {"__doc__": doc, "__module__": __name__, "_function": staticmethod(function), **more})


# PyTorch's Hardsigmoid and Hardswish do not show that they are in place.
ReLU6 = _kind("ReLU6", _InPlace, F.relu6, "y = min(max(x, 0), 6), elementwise.")
SELU = _kind(
    "SELU", _InPlace, F.selu,
    "y = scale * (max(x, 0) + min(0, alpha * (exp(x) - 1))), where scale and alpha keep mean 0 and "
    "variance 1 (Klambauer et al., 2017).",
)  # fmt: skip
SiLU = _kind("SiLU", _InPlace, F.silu, "y = x * sigmoid(x), elementwise.")
Mish = _kind("Mish", _InPlace, F.mish, "y = x * tanh(softplus(x)), elementwise (Misra, 2019).")
Hardsigmoid = _kind(
    "Hardsigmoid", _InPlace, F.hardsigmoid,
    "y = min(max(x + 3, 0), 6) / 6, elementwise.",
    extra_repr=Module.extra_repr,
)  # fmt: skip
Hardswish = _kind(
    "Hardswish", _InPlace, F.hardswish,
    "y = x * min(max(x + 3, 0), 6) / 6, elementwise.",
    extra_repr=Module.extra_repr,
)  # fmt: skip
Sigmoid = _kind("Sigmoid", _Elementwise, _C.sigmoid, "y = 1 / (1 + exp(-x)), elementwise.")
Tanh = _kind("Tanh", _Elementwise, _C.tanh, "y = tanh(x), elementwise.")
LogSigmoid = _kind("LogSigmoid", _Elementwise, F.logsigmoid, "y = -log(1 + exp(-x)), elementwise.")
Softsign = _kind("Softsign", _Elementwise, F.softsign, "y = x / (1 + |x|), elementwise.")
Tanhshrink = _kind("Tanhshrink", _Elementwise, F.tanhshrink, "y = x - tanh(x), elementwise.")


class LeakyReLU(_InPlace):
    """y = x if x is positive, otherwise negative_slope * x."""

    _function, _options = staticmethod(F.leaky_relu), ("negative_slope",)

    def __init__(self, negative_slope=0.01, inplace=False):
        super().__init__(inplace)
        self.negative_slope = negative_slope


class ELU(_InPlace):
    """y = x if x is positive, otherwise alpha * (exp(x) - 1) (Clevert et al., 2016)."""

    _function, _options = staticmethod(F.elu), ("alpha",)

    def __init__(self, alpha=1.0, inplace=False):
        super().__init__(inplace)
        self.alpha = alpha


class CELU(_InPlace):
    """y = x if x is positive, otherwise alpha * (exp(x / alpha) - 1) (Barron, 2017)."""

    _function, _options = staticmethod(F.celu), ("alpha",)

    def __init__(self, alpha=1.0, inplace=False):
        super().__init__(inplace)
        self.alpha = alpha


class Hardtanh(_InPlace):
    """y = x, limited to min_val below and max_val above. Raises ValueError unless min_val < max_val."""

    _function, _options = staticmethod(F.hardtanh), ("min_val", "max_val")

    def __init__(self, min_val=-1.0, max_val=1.0, inplace=False, min_value=None, max_value=None):
        super().__init__(inplace)
        min_val = min_val if min_value is None else min_value  # the deprecated names of min_val and max_val
        max_val = max_val if max_value is None else max_value
        if max_val <= min_val:
            raise ValueError(f"max_val must be larger than min_val, got {max_val} and {min_val}")
        self.min_val = min_val
        self.max_val = max_val


class GELU(_Elementwise):
    """y = x * Phi(x), where Phi is the normal distribution function (Hendrycks and Gimpel, 2016). approximate="tanh":
    its approximation by tanh."""

    _options = ("approximate",)

    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input):
        return F.gelu(input, approximate=self.approximate)


class Softplus(_Elementwise):
    """y = log(1 + exp(beta * x)) / beta; y = x if beta * x is greater than `threshold`."""

    _function, _options = staticmethod(F.softplus), ("beta", "threshold")

    def __init__(self, beta=1.0, threshold=20.0):
        super().__init__()
        self.beta = beta
        self.threshold = threshold


class PReLU(Module):
    """y = x if x is positive, otherwise weight * x. weight is learned; it is one number or one per channel (dim 1), and
    starts at `init` (He et al., 2015)."""

    def __init__(self, num_parameters=1, init=0.25, device=None, dtype=None):
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(_C.full((num_parameters,), float(init), device=device, dtype=dtype))

    def reset_parameters(self):
        """Sets weight to `init`."""
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


class Softmax2d(Module):
    """softmax over the channels of x[N, C, H, W] or x[C, H, W]."""

    def forward(self, input):
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.dim()}D instead")
        return F.softmax(input, -3)


class Threshold(_InPlace):
    """y = x if x is greater than `threshold`, otherwise `value`."""

    _function, _options = staticmethod(F.threshold), ("threshold", "value")

    def __init__(self, threshold, value, inplace=False):
        super().__init__(inplace)
        self.threshold = threshold
        self.value = value


class RReLU(_InPlace):
    """y = x if x is positive, otherwise a * x, with a drawn between lower and upper (in eval mode: their mean) (Xu et
    al., 2015)."""

    _options = ("lower", "upper")

    def __init__(self, lower=1.0 / 8, upper=1.0 / 3, inplace=False):
        super().__init__(inplace)
        self.lower = lower
        self.upper = upper

    def forward(self, input):
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)


class GLU(_Elementwise):
    """y = a * sigmoid(b), where a and b are the halves of x along `dim` (Dauphin et al., 2017)."""

    _function, _options = staticmethod(F.glu), ("dim",)

    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim


class _Shrink(_Elementwise):
    _options = ("lambd",)

    def __init__(self, lambd=0.5):
        super().__init__()
        self.lambd = lambd

    def extra_repr(self):
        return f"{self.lambd}"


Hardshrink = _kind("Hardshrink", _Shrink, F.hardshrink, "y = x if |x| > lambd, otherwise 0.")
Softshrink = _kind("Softshrink", _Shrink, F.softshrink, "y = x moved towards 0 by lambd; 0 if |x| <= lambd.")
