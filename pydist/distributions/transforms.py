"""Invertible functions, and the distributions of their results for samples.

>>> import pydist
>>> from pydist.distributions import Normal, TransformedDistribution
>>> from pydist.distributions.transforms import ExpTransform
>>> d = TransformedDistribution(Normal(pydist.tensor(0.0), pydist.tensor(1.0)), [ExpTransform()])
>>> round(d.log_prob(pydist.tensor(1.0)).item(), 4)
-0.9189
"""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import broadcast_shape
from pydist._grad_mode import no_grad
from pydist.distributions.combined import Independent, _last
from pydist.distributions.distribution import Distribution

__all__ = (
    "AbsTransform AffineTransform ComposeTransform ExpTransform IndependentTransform PowerTransform ReshapeTransform "
    "SigmoidTransform SoftmaxTransform SoftplusTransform StickBreakingTransform TanhTransform Transform "
    "TransformedDistribution identity_transform"
).split()


class Transform:
    """y = f(x). With cache_size=1 the inverse of the last result is exactly the x that it was computed from.

    A subclass has `_call`, `_inverse` and `log_abs_det_jacobian`. Events are the last `domain_dim` dimensions of x and
    the last `codomain_dim` of y.
    """

    bijective = False
    sign = 1  # the sign of the derivative
    domain_dim = codomain_dim = 0

    def __init__(self, cache_size=0):
        if cache_size not in (0, 1):
            raise ValueError(f"cache_size must be 0 or 1, got {cache_size}")
        self._cache_size, self._last = cache_size, (None, None)

    def with_cache(self, cache_size=1):
        """The same function with this cache size."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__, _cache_size=cache_size, _last=(None, None))
        return new

    def __call__(self, x):
        if not self._cache_size:
            return self._call(x)
        if x is not self._last[0]:
            self._last = x, self._call(x)
        return self._last[1]

    def _inv_call(self, y):
        if not self._cache_size:
            return self._inverse(y)
        if y is not self._last[1]:
            self._last = self._inverse(y), y
        return self._last[0]

    @property
    def inv(self):
        """The inverse function."""
        return _Inverse(self)

    def _call(self, x):
        raise NotImplementedError(f"{type(self).__name__} has no _call")

    def _inverse(self, y):
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x, y):
        """log |dy / dx| of each event."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def forward_shape(self, shape):
        """The shape of y for an x of this shape."""
        return tuple(shape)

    def inverse_shape(self, shape):
        """The shape of x for a y of this shape."""
        return tuple(shape)

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__

    def __repr__(self):
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, of):
        super().__init__()
        self._inv, self.bijective, self.sign = of, of.bijective, of.sign
        self.domain_dim, self.codomain_dim = of.codomain_dim, of.domain_dim

    inv = property(lambda self: self._inv)

    def __call__(self, x):
        return self._inv._inv_call(x)

    def _inv_call(self, y):
        return self._inv(y)

    def log_abs_det_jacobian(self, x, y):
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape):
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape):
        return self._inv.forward_shape(shape)

    def __eq__(self, other):
        return isinstance(other, _Inverse) and self._inv == other._inv

    __hash__ = object.__hash__


class _Same(Transform):
    """A transform without parameters: all of one class are equal."""

    bijective = True

    def __eq__(self, other):
        return type(self) is type(other)

    __hash__ = object.__hash__


class ExpTransform(_Same):
    """exp(x)."""

    def _call(self, x):
        return x.exp()

    def _inverse(self, y):
        return y.log()

    def log_abs_det_jacobian(self, x, y):
        return x


class SigmoidTransform(_Same):
    """1 / (1 + exp(-x))."""

    def _call(self, x):
        tiny = 2.0**-1022 if x.dtype is _C.float64 else 2.0**-126
        eps = 2.0**-52 if x.dtype is _C.float64 else 2.0**-23
        return x.sigmoid().clamp(tiny, 1 - eps)

    def _inverse(self, y):
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x, y):
        return -(-x).logaddexp(_C.zeros_like(x)) - x.logaddexp(_C.zeros_like(x))


class SoftplusTransform(_Same):
    """log(1 + exp(x))."""

    def _call(self, x):
        return x.logaddexp(_C.zeros_like(x))

    def _inverse(self, y):
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x, y):
        return -(-x).logaddexp(_C.zeros_like(x))


class TanhTransform(_Same):
    """tanh(x)."""

    def _call(self, x):
        return x.tanh()

    def _inverse(self, y):
        return y.atanh()

    def log_abs_det_jacobian(self, x, y):
        return 2.0 * (math.log(2.0) - x - (-2.0 * x).logaddexp(_C.zeros_like(x)))


class AbsTransform(_Same):
    """|x|. Its inverse returns the positive number."""

    bijective = False

    def _call(self, x):
        return x.abs()

    def _inverse(self, y):
        return y


def _with(shape, *parameters):
    """The shape to which shape and the parameters broadcast."""
    return tuple(broadcast_shape("transform", [shape, *(p.shape for p in parameters if isinstance(p, Tensor))]))


class PowerTransform(Transform):
    """x ** exponent for positive x."""

    bijective = True

    def __init__(self, exponent, cache_size=0):
        super().__init__(cache_size)
        self.exponent = exponent if isinstance(exponent, Tensor) else _C.tensor(float(exponent))

    def forward_shape(self, shape):
        return _with(shape, self.exponent)

    inverse_shape = forward_shape

    @property
    def sign(self):
        return self.exponent.sign()

    def _call(self, x):
        return x**self.exponent

    def _inverse(self, y):
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x, y):
        return (self.exponent * y / x).abs().log()

    def __eq__(self, other):
        return isinstance(other, PowerTransform) and (self.exponent == other.exponent).all().item()

    __hash__ = object.__hash__


class AffineTransform(Transform):
    """loc + scale x. event_dim: how many of the last dimensions are one event."""

    bijective = True

    def __init__(self, loc, scale, event_dim=0, cache_size=0):
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim
        self.domain_dim = self.codomain_dim = event_dim

    def forward_shape(self, shape):
        return _with(shape, self.loc, self.scale)

    inverse_shape = forward_shape

    @property
    def sign(self):
        return self.scale.sign() if isinstance(self.scale, Tensor) else (self.scale > 0) - (self.scale < 0)

    def _call(self, x):
        return self.loc + self.scale * x

    def _inverse(self, y):
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x, y):
        scale = (
            self.scale
            if isinstance(self.scale, Tensor)
            else _C.tensor(float(self.scale), dtype=x.dtype, device=x.device)
        )
        return _last(scale.abs().log().expand(x.shape), self.event_dim)

    def __eq__(self, other):
        if not isinstance(other, AffineTransform):
            return False
        pairs = ((self.loc, other.loc), (self.scale, other.scale))
        return all((a == b).all().item() if isinstance(a == b, Tensor) else a == b for a, b in pairs)

    __hash__ = object.__hash__


class SoftmaxTransform(_Same):
    """softmax over the last dimension. It is not a bijection."""

    bijective = False
    domain_dim = codomain_dim = 1

    def _call(self, x):
        return x.softmax(-1)

    def _inverse(self, y):
        return y.log()


class StickBreakingTransform(_Same):
    """Maps n numbers to the n + 1 pieces of a stick of length 1."""

    domain_dim = codomain_dim = 1

    def _rest(self, x):
        return x - _C.arange(x.shape[-1], 0, -1, device=x.device).to(x.dtype).log()

    def _call(self, x):
        z = SigmoidTransform()(self._rest(x))
        left = (1 - z).cumprod(-1)
        one = _C.ones_like(z[..., :1])
        return _C.cat([z, one], -1) * _C.cat([one, left], -1)

    def _inverse(self, y):
        parts = y[..., :-1]
        left = (1 - parts.cumsum(-1)).clamp(min=2.0**-126)
        return parts.log() - left.log() + _C.arange(parts.shape[-1], 0, -1, device=y.device).to(y.dtype).log()

    def log_abs_det_jacobian(self, x, y):
        x = self._rest(x)
        return (-x + -(-x).logaddexp(_C.zeros_like(x)) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape):
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape):
        return (*shape[:-1], shape[-1] - 1)


class ReshapeTransform(Transform):
    """Reshapes the last dimensions from in_shape to out_shape."""

    bijective = True

    def __init__(self, in_shape, out_shape, cache_size=0):
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ValueError("in_shape, out_shape have different numbers of elements (expected equal numbers)")
        self.domain_dim, self.codomain_dim = len(self.in_shape), len(self.out_shape)

    def _call(self, x):
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y):
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x, y):
        return _C.zeros(tuple(x.shape[: x.dim() - self.domain_dim]), dtype=x.dtype, device=x.device)

    def _reshaped(self, shape, from_shape, to_shape):
        cut = len(shape) - len(from_shape)
        if tuple(shape[cut:]) != from_shape:
            raise ValueError(f"Shape mismatch: expected {from_shape} but got {tuple(shape[cut:])}")
        return (*shape[:cut], *to_shape)

    def forward_shape(self, shape):
        return self._reshaped(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape):
        return self._reshaped(shape, self.out_shape, self.in_shape)


class IndependentTransform(Transform):
    """base_transform with so many more of the last dimensions in one event."""

    def __init__(self, base_transform, reinterpreted_batch_ndims, cache_size=0):
        super().__init__(cache_size)
        self.base_transform, self.reinterpreted_batch_ndims = base_transform, reinterpreted_batch_ndims
        self.bijective, self.sign = base_transform.bijective, base_transform.sign
        self.domain_dim = base_transform.domain_dim + reinterpreted_batch_ndims
        self.codomain_dim = base_transform.codomain_dim + reinterpreted_batch_ndims

    def _call(self, x):
        return self.base_transform(x)

    def _inverse(self, y):
        return self.base_transform._inv_call(y)

    def log_abs_det_jacobian(self, x, y):
        return _last(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape):
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape):
        return self.base_transform.inverse_shape(shape)


class ComposeTransform(Transform):
    """The parts, applied one after the other."""

    def __init__(self, parts, cache_size=0):
        super().__init__(cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)
        self.bijective = all(part.bijective for part in parts)
        self.domain_dim = _event_dim(self.parts)
        self.codomain_dim = self.domain_dim + sum(p.codomain_dim - p.domain_dim for p in self.parts)

    @property
    def sign(self):
        sign = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    def _call(self, x):
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y):
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x, y):
        total, dim = _C.zeros((), dtype=x.dtype, device=x.device), self.domain_dim
        for part in self.parts:
            after = part(x)
            total = total + _last(part.log_abs_det_jacobian(x, after), dim - part.domain_dim)
            x, dim = after, dim + part.codomain_dim - part.domain_dim
        return total

    def forward_shape(self, shape):
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape):
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)


def _event_dim(parts):
    """The number of dimensions of x in one event, so that each part has as many as it needs."""
    need = 0
    for part in reversed(parts):
        need = max(need + part.domain_dim - part.codomain_dim, part.domain_dim)
    return need


identity_transform = ComposeTransform([])


class TransformedDistribution(Distribution):
    """The distribution of y = transforms(x) for samples x of base_distribution."""

    def __init__(self, base_distribution, transforms, validate_args=None):
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(t, Transform) for t in self.transforms):
            raise ValueError("transforms must be a Transform or a list of Transforms")
        whole = ComposeTransform(self.transforms)
        events = len(base_distribution.event_shape)
        missing = whole.domain_dim - events
        shape = tuple(base_distribution.batch_shape) + tuple(base_distribution.event_shape)
        if len(shape) < whole.domain_dim:
            raise ValueError(
                f"base_distribution needs to have shape with size at least {whole.domain_dim}, but got {shape}"
            )
        out = whole.forward_shape(shape)
        wide = whole.inverse_shape(out)
        self.base_dist = base_distribution if wide == shape else base_distribution.expand(wide[: len(wide) - events])
        if missing > 0:
            self.base_dist = Independent(self.base_dist, missing)
        cut = len(out) - (whole.codomain_dim + max(-missing, 0))
        super().__init__(out[:cut], out[cut:], validate_args=validate_args)

    @property
    def has_rsample(self):
        return self.base_dist.has_rsample

    def sample(self, sample_shape=()):
        with no_grad():
            return self._transformed(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape=()):
        return self._transformed(self.base_dist.rsample(sample_shape))

    def _transformed(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value):
        total, y, dim = 0.0, value, len(self.event_shape)
        for transform in reversed(self.transforms):
            x = transform._inv_call(y)
            dim += transform.domain_dim - transform.codomain_dim
            total = total - _last(transform.log_abs_det_jacobian(x, y), dim - transform.domain_dim)
            y = x
        return total + _last(self.base_dist.log_prob(y), dim - len(self.base_dist.event_shape))

    def cdf(self, value):
        """P(y <= value), if the transforms are monotone."""
        sign = 1
        for transform in reversed(self.transforms):
            sign, value = sign * transform.sign, transform._inv_call(value)
        p = self.base_dist.cdf(value)
        return p if isinstance(sign, int) and sign == 1 else sign * (p - 0.5) + 0.5

    def icdf(self, value):
        """The number whose cdf is value."""
        sign = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        value = value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5
        return self._transformed(self.base_dist.icdf(value))

    def __repr__(self):
        return f"TransformedDistribution({self.base_dist}, {self.transforms})"
