"""Normalisation of each sample by itself."""

from pydist import _C
from pydist.nn import functional as F
from pydist.nn import init
from pydist.nn.modules.module import Module
from pydist.nn.parameter import Parameter


class _Affine(Module):
    """Adds a weight that starts at 1 and a bias that starts at 0, each of `shape` or None."""

    def _make(self, shape, weight, bias, device, dtype):
        for name, wanted in (("weight", weight), ("bias", bias)):
            self.register_parameter(name, Parameter(_C.empty(shape, device=device, dtype=dtype)) if wanted else None)
        self.reset_parameters()

    def reset_parameters(self):
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class LayerNorm(_Affine):
    """y = (x - mean) / sqrt(var + eps) * weight + bias. Mean and (biased) variance are over the last dims, which have
    `normalized_shape` (Ba et al., 2016).

    weight and bias have that shape and start at 1 and 0. Raises ShapeError if x does not end with the shape.
    """

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._make(self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, input):
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """y = x / sqrt(mean(x^2) + eps) * weight. The mean is over the last dims, which have `normalized_shape` (Zhang and
    Sennrich, 2019). eps None: the dtype's machine epsilon. weight starts at 1."""

    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        weight = _C.ones(self.normalized_shape, device=device, dtype=dtype) if elementwise_affine else None
        self.register_parameter("weight", None if weight is None else Parameter(weight))

    def reset_parameters(self):
        """Sets weight to 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


_HOOKS = ("forward", "_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


def add_norm(norm, x, y, low_precision=False):
    """(s, norm(s)) with s = x + y. One pass over memory if norm is a LayerNorm or RMSNorm that nobody has changed."""
    own = vars(norm)
    if type(norm) not in (LayerNorm, RMSNorm) or any(own.get(name) for name in _HOOKS) or x.shape != y.shape:
        s = x + y
        return s, norm(s)
    if type(norm) is RMSNorm:
        return F.add_rms_norm(x, y, norm.normalized_shape, norm.weight, norm.eps, low_precision)
    return F.add_layer_norm(x, y, norm.normalized_shape, norm.weight, norm.bias, norm.eps, low_precision)


class GroupNorm(_Affine):
    """y = (x - mean) / sqrt(var + eps) * weight + bias for x[N, C, ...]. Mean and (biased) variance are those of each
    of `num_groups` groups of channels of a sample (Wu and He, 2018).

    weight and bias have one element per channel and start at 1 and 0. Raises ValueError unless the number of groups
    divides the number of channels.
    """

    def __init__(self, num_groups, num_channels, eps=1e-5, affine=True, device=None, dtype=None, *, bias=True):
        super().__init__()
        if num_groups <= 0 or num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._make(num_channels, affine, affine and bias, device, dtype)

    def forward(self, input):
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """y = x / (k + alpha * mean) ** beta for x[N, C, ...], where mean is the mean of the squares over `size`
    neighbouring channels (Krizhevsky et al., 2012)."""

    def __init__(self, size, alpha=1e-4, beta=0.75, k=1.0):
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input):
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self):
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
