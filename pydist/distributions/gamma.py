"""The gamma distribution and distributions made from it. NumPy draws samples; their gradients are implicit (Figurnov et
al., 2018): dx/da = -(dF/da) / density, where F is the distribution function."""

import math

from pydist import _C
from pydist._functions._register import array_of
from pydist._functions.random import host_generator
from pydist.autograd import Function
from pydist.autograd.function import once_differentiable
from pydist.distributions.distribution import Distribution, broadcast_all


def _lower_gamma(a, x):
    """The distribution function of Gamma(a, 1) at x, for NumPy arrays: a series below a + 1, Lentz's continued fraction
    above."""
    import numpy as np

    lgamma = np.vectorize(math.lgamma, otypes=[float])(a)
    front = np.exp(a * np.log(x) - x - lgamma)
    term = total = 1 / a
    for k in range(1, 400):
        term = term * x / (a + k)
        total = total + term
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / np.where(b == 0, tiny, b)
    h = d
    for k in range(1, 200):
        an = -k * (k - a)
        b = b + 2
        d = an * d + b
        d = 1 / np.where(np.abs(d) < tiny, tiny, d)
        c = b + an / c
        c = np.where(np.abs(c) < tiny, tiny, c)
        h = h * d * c
    return np.where(x < a + 1, front * total, 1 - front * h)


def _slope(a, x):
    """dx/da for samples x of Gamma(a, 1)."""
    import numpy as np

    h = 1e-5 * np.maximum(a, 1e-3)
    change = (_lower_gamma(a + h, x) - _lower_gamma(a - h, x)) / (2 * h)
    density = np.exp((a - 1) * np.log(x) - x - np.vectorize(math.lgamma, otypes=[float])(a))
    slope = -change / np.maximum(density, 1e-300)
    return np.where(np.isfinite(slope), slope, 0.0)


class _Sample(Function):
    """Samples of Gamma(concentration, 1)."""

    @staticmethod
    def forward(ctx, concentration):
        a = concentration.detach().double()
        x = (
            _C.tensor(host_generator().standard_gamma(array_of(a)), device=a.device)
            .reshape(a.shape)
            .clamp(1e-300)
            .to(concentration.dtype)
        )
        x = x.clamp(2.0**-126) if concentration.dtype is not _C.float64 else x
        ctx.save_for_backward(concentration, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        a, x = (array_of(t.double()) for t in ctx.saved_tensors)
        return grad * _C.tensor(_slope(a, x), device=grad.device).reshape(grad.shape).to(grad.dtype)


def standard_gamma(concentration):
    """Samples of Gamma(concentration, 1), with gradients."""
    return _Sample.apply(concentration)


class Gamma(Distribution):
    """Density rate^a x^(a - 1) exp(-rate x) / Gamma(a), where a is the concentration."""

    arg_constraints = {"concentration": "positive", "rate": "positive"}
    has_rsample = True
    _value = "nonnegative"

    def __init__(self, concentration, rate, validate_args=None):
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return self.concentration / self.rate

    @property
    def mode(self):
        """The most probable value."""
        return ((self.concentration - 1) / self.rate).clamp(0)

    @property
    def variance(self):
        """The variance."""
        return self.concentration / self.rate**2

    def rsample(self, sample_shape=()):
        return standard_gamma(self.concentration.expand(self._shape(sample_shape))) / self.rate

    def log_prob(self, value):
        a = self.concentration
        return (a * self.rate.log() + (a - 1).xlogy(self._check(value)) - self.rate * value) - a.lgamma()

    def entropy(self):
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()


class Chi2(Gamma):
    """The sum of df squares of normal numbers."""

    arg_constraints = {"df": "positive"}

    def __init__(self, df, validate_args=None):
        (self.df,) = broadcast_all(df)
        super().__init__(0.5 * self.df, 0.5, validate_args)


class InverseGamma(Gamma):
    """1 / x for a gamma number x."""

    _value = "positive"

    @property
    def mean(self):
        """The mean."""
        return _C.where(self.concentration > 1, self.rate / (self.concentration - 1), math.inf)

    @property
    def mode(self):
        """The most probable value."""
        return self.rate / (self.concentration + 1)

    @property
    def variance(self):
        """The variance."""
        a = self.concentration
        return _C.where(a > 2, self.rate**2 / ((a - 1) ** 2 * (a - 2)), math.inf)

    def rsample(self, sample_shape=()):
        return 1 / super().rsample(sample_shape)

    def log_prob(self, value):
        a = self.concentration
        return a * self.rate.log() - (a + 1) * self._check(value).log() - self.rate / value - a.lgamma()

    def entropy(self):
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class StudentT(Distribution):
    """loc + scale * n / sqrt(c / df), where n is a normal and c a chi-square number."""

    arg_constraints = {"df": "positive", "loc": "real", "scale": "positive"}
    has_rsample = True

    def __init__(self, df, loc=0.0, scale=1.0, validate_args=None):
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return self.loc.masked_fill(self.df <= 1, math.nan)

    @property
    def mode(self):
        """The most probable value."""
        return self.loc

    @property
    def variance(self):
        """The variance."""
        finite = self.scale**2 * self.df / (self.df - 2)
        return finite.masked_fill(self.df <= 2, math.inf).masked_fill(self.df <= 1, math.nan)

    def rsample(self, sample_shape=()):
        shape = self._shape(sample_shape)
        squares = 2 * standard_gamma((0.5 * self.df).expand(shape))
        return (
            self.loc
            + self.scale * _C.randn(shape, dtype=self.loc.dtype, device=self.loc.device) * (self.df / squares).sqrt()
        )

    def log_prob(self, value):
        y, half = (self._check(value) - self.loc) / self.scale, 0.5 * self.df
        z = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi) + half.lgamma() - (half + 0.5).lgamma()
        return -(half + 0.5) * (y * y / self.df).log1p() - z

    def entropy(self):
        half = 0.5 * self.df
        beta = half.lgamma() + math.lgamma(0.5) - (half + 0.5).lgamma()
        return self.scale.log() + (half + 0.5) * ((half + 0.5).digamma() - half.digamma()) + 0.5 * self.df.log() + beta


class Dirichlet(Distribution):
    """Points of a simplex, with a density proportional to the product of x[k]^(a[k] - 1), where a is the
    concentration."""

    arg_constraints = {"concentration": "positive"}
    has_rsample = True
    _value = "simplex"

    def __init__(self, concentration, validate_args=None):
        if concentration.dim() < 1:
            raise ValueError(
                "`concentration` parameter must be at least one-dimensional (expected one number for each class)."
            )
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self):
        """The variance."""
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def rsample(self, sample_shape=()):
        parts = standard_gamma(self.concentration.expand(self._shape(sample_shape)))
        return parts / parts.sum(-1, keepdim=True)

    def log_prob(self, value):
        a = self.concentration
        return (a - 1).xlogy(self._check(value)).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self):
        a, k = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        return a.lgamma().sum(-1) - total.lgamma() - (k - total) * total.digamma() - ((a - 1) * a.digamma()).sum(-1)


class Beta(Distribution):
    """A density proportional to x^(a - 1) (1 - x)^(b - 1), where a is concentration1 and b is concentration0."""

    arg_constraints = {"concentration1": "positive", "concentration0": "positive"}
    has_rsample = True
    _value = "probability"

    def __init__(self, concentration1, concentration0, validate_args=None):
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    def _pair(self):
        return Dirichlet(_C.stack([self.concentration1, self.concentration0], -1), validate_args=False)

    @property
    def mean(self):
        """The mean."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self):
        """The variance."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))

    def rsample(self, sample_shape=()):
        return self._pair().rsample(sample_shape).select(-1, 0)

    def log_prob(self, value):
        return self._pair().log_prob(_C.stack([self._check(value), 1 - value], -1))

    def entropy(self):
        return self._pair().entropy()
