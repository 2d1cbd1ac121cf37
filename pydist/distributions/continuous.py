"""Distributions of real numbers whose samples are formulas of uniform or normal numbers."""

import math

from pydist import _C
from pydist._functions._register import holds
from pydist.distributions.distribution import Distribution, LOG_2PI, broadcast_all


class _Formula(Distribution):
    """A distribution with parameters of one shape, whose sample is a formula of random numbers."""

    has_rsample = True

    def _uniform(self, sample_shape, like):
        """Uniform numbers in (0, 1): the logarithms of u and of 1 - u are finite."""
        eps = 2.0**-53 if like.dtype is _C.float64 else 2.0**-24
        return _C.rand(self._shape(sample_shape), dtype=like.dtype, device=like.device).clamp(eps, 1 - eps)


class _LocScale(_Formula):
    arg_constraints = {"loc": "real", "scale": "positive"}

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return self.loc

    @property
    def mode(self):
        """The most probable value."""
        return self.loc


class Normal(_LocScale):
    """Density exp(-((x - loc) / scale)^2 / 2) / (scale sqrt(2 pi))."""

    @property
    def stddev(self):
        """The standard deviation."""
        return self.scale

    @property
    def variance(self):
        """The variance."""
        return self.scale * self.scale

    def rsample(self, sample_shape=()):
        return self.loc + self.scale * _C.randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)

    def log_prob(self, value):
        z = (self._check(value) - self.loc) / self.scale
        return -0.5 * z * z - self.scale.log() - 0.5 * LOG_2PI

    def cdf(self, value):
        return 0.5 * (1 + ((self._check(value) - self.loc) / (self.scale * math.sqrt(2))).erf())

    def icdf(self, value):
        return self.loc + self.scale * math.sqrt(2) * (2 * value - 1).erfinv()

    def entropy(self):
        return 0.5 + 0.5 * LOG_2PI + self.scale.log()


class LogNormal(Normal):
    """The distribution of exp of a normal number."""

    _value = "positive"

    @property
    def mean(self):
        """The mean."""
        return (self.loc + self.scale * self.scale / 2).exp()

    @property
    def mode(self):
        """The most probable value."""
        return (self.loc - self.scale * self.scale).exp()

    @property
    def variance(self):
        """The variance."""
        square = self.scale * self.scale
        return square.expm1() * (2 * self.loc + square).exp()

    @property
    def stddev(self):
        """The standard deviation."""
        return self.variance.sqrt()

    def rsample(self, sample_shape=()):
        return super().rsample(sample_shape).exp()

    def log_prob(self, value):
        value = self._check(value).log()
        z = (value - self.loc) / self.scale
        return -0.5 * z * z - self.scale.log() - 0.5 * LOG_2PI - value

    def cdf(self, value):
        return 0.5 * (1 + ((value.log() - self.loc) / (self.scale * math.sqrt(2))).erf())

    def icdf(self, value):
        return super().icdf(value).exp()

    def entropy(self):
        return super().entropy() + self.loc


class Laplace(_LocScale):
    """Density exp(-|x - loc| / scale) / (2 scale)."""

    @property
    def variance(self):
        """The variance."""
        return 2 * self.scale * self.scale

    def rsample(self, sample_shape=()):
        return self.icdf(self._uniform(sample_shape, self.loc))

    def log_prob(self, value):
        return -(2 * self.scale).log() - (self._check(value) - self.loc).abs() / self.scale

    def cdf(self, value):
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value):
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self):
        return 1 + (2 * self.scale).log()


class Cauchy(_LocScale):
    """Density 1 / (pi scale (1 + ((x - loc) / scale)^2))."""

    @property
    def mean(self):
        """NaN: the distribution has no mean."""
        return _C.full(tuple(self.loc.shape), math.nan, dtype=self.loc.dtype, device=self.loc.device)

    @property
    def variance(self):
        """Infinite or NaN: the distribution has no variance."""
        return _C.full(tuple(self.loc.shape), math.inf, dtype=self.loc.dtype, device=self.loc.device)

    def rsample(self, sample_shape=()):
        return self.icdf(self._uniform(sample_shape, self.loc))

    def log_prob(self, value):
        z = (self._check(value) - self.loc) / self.scale
        return -math.log(math.pi) - self.scale.log() - (z * z).log1p()

    def cdf(self, value):
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value):
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self):
        return math.log(4 * math.pi) + self.scale.log()


class Gumbel(_LocScale):
    """The distribution of the maximum of many numbers: cdf exp(-exp(-(x - loc) / scale))."""

    @property
    def mean(self):
        """The mean."""
        return self.loc + self.scale * 0.57721566490153286060

    @property
    def variance(self):
        """The variance."""
        return (math.pi**2 / 6) * self.scale * self.scale

    def rsample(self, sample_shape=()):
        return self.icdf(self._uniform(sample_shape, self.loc))

    def log_prob(self, value):
        y = (self.loc - self._check(value)) / self.scale
        return y - y.exp() - self.scale.log()

    def cdf(self, value):
        return (-(-(value - self.loc) / self.scale).exp()).exp()

    def icdf(self, value):
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self):
        return self.scale.log() + (1 + 0.57721566490153286060)


class _Half(_Formula):
    """|x| for a distribution centred at 0."""

    arg_constraints = {"scale": "positive"}
    _value = "nonnegative"

    def __init__(self, scale, validate_args=None):
        (self.scale,) = broadcast_all(scale)
        self._whole = self._base(0, self.scale, validate_args=False)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def mode(self):
        """The most probable value."""
        return self.scale * 0

    def rsample(self, sample_shape=()):
        return self._whole.rsample(sample_shape).abs()

    def log_prob(self, value):
        return self._whole.log_prob(self._check(value)) + math.log(2)

    def cdf(self, value):
        return 2 * self._whole.cdf(value) - 1

    def icdf(self, prob):
        return self._whole.icdf((prob + 1) / 2)

    def entropy(self):
        return self._whole.entropy() - math.log(2)


class HalfNormal(_Half):
    """|x| for a normal number with mean 0."""

    _base = Normal

    @property
    def mean(self):
        """The mean."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self):
        """The variance."""
        return self.scale * self.scale * (1 - 2 / math.pi)


class HalfCauchy(_Half):
    """|x| for a Cauchy number centred at 0."""

    _base = Cauchy

    @property
    def mean(self):
        """Infinite: the integral of the mean diverges."""
        return self.scale * math.inf

    @property
    def variance(self):
        """Infinite: the integral of the variance diverges."""
        return self._whole.variance


class Uniform(_Formula):
    """Density 1 / (high - low) in [low, high)."""

    def __init__(self, low, high, validate_args=None):
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)
        if self._validate_args and not holds(self.low < self.high):
            raise ValueError("Uniform is not defined when low>= high (expected low < high)")

    @property
    def mean(self):
        """The mean."""
        return (self.high + self.low) / 2

    @property
    def variance(self):
        """The variance."""
        return (self.high - self.low) ** 2 / 12

    @property
    def mode(self):
        """The most probable value."""
        return math.nan * self.high

    def _check(self, value):
        super()._check(value)
        if self._validate_args and not holds((value >= self.low) & (value <= self.high)):
            raise ValueError(
                f"Expected value argument (Tensor of shape {tuple(value.shape)}) to be within the support of the distribution Uniform, but found invalid values:\n{value}"
            )
        return value

    def rsample(self, sample_shape=()):
        return self.low + _C.rand(self._shape(sample_shape), dtype=self.low.dtype, device=self.low.device) * (
            self.high - self.low
        )

    def log_prob(self, value):
        inside = ((self._check(value) >= self.low) & (value < self.high)).to(self.low.dtype)
        return inside.log() - (self.high - self.low).log()

    def cdf(self, value):
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value):
        return value * (self.high - self.low) + self.low

    def entropy(self):
        return (self.high - self.low).log()

    def __repr__(self):
        return f"Uniform(low: {self.low if self.low.numel() == 1 else self.low.size()}, high: {self.high if self.high.numel() == 1 else self.high.size()})"


class Exponential(_Formula):
    """Density rate exp(-rate x) for x >= 0."""

    arg_constraints = {"rate": "positive"}
    _value = "nonnegative"

    def __init__(self, rate, validate_args=None):
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return 1 / self.rate

    @property
    def mode(self):
        """The most probable value."""
        return self.rate * 0

    @property
    def stddev(self):
        """The standard deviation."""
        return 1 / self.rate

    @property
    def variance(self):
        """The variance."""
        return self.rate**-2

    def rsample(self, sample_shape=()):
        return -self._uniform(sample_shape, self.rate).log() / self.rate

    def log_prob(self, value):
        return self.rate.log() - self.rate * self._check(value)

    def cdf(self, value):
        return 1 - (-self.rate * value).exp()

    def icdf(self, value):
        return -(-value).log1p() / self.rate

    def entropy(self):
        return 1 - self.rate.log()


class Weibull(_Formula):
    """scale * e ** (1 / concentration), where e is an exponential number."""

    arg_constraints = {"scale": "positive", "concentration": "positive"}
    _value = "positive"

    def __init__(self, scale, concentration, validate_args=None):
        self.scale, self.concentration = broadcast_all(scale, concentration)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return self.scale * (1 + 1 / self.concentration).lgamma().exp()

    @property
    def variance(self):
        """The variance."""
        first, second = (1 + 1 / self.concentration).lgamma(), (1 + 2 / self.concentration).lgamma()
        return self.scale**2 * (second.exp() - (2 * first).exp())

    def rsample(self, sample_shape=()):
        return self.scale * (-self._uniform(sample_shape, self.scale).log()) ** (1 / self.concentration)

    def log_prob(self, value):
        z = self._check(value) / self.scale
        return (self.concentration / self.scale).log() + (self.concentration - 1) * z.log() - z**self.concentration

    def entropy(self):
        return 0.57721566490153286060 * (1 - 1 / self.concentration) + (self.scale / self.concentration).log() + 1


class Pareto(_Formula):
    """Density alpha scale^alpha / x^(alpha + 1) for x >= scale."""

    arg_constraints = {"alpha": "positive", "scale": "positive"}
    _value = "positive"

    def __init__(self, scale, alpha, validate_args=None):
        self.scale, self.alpha = broadcast_all(scale, alpha)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        a = self.alpha.clamp(1)
        return a * self.scale / (a - 1)

    @property
    def variance(self):
        """The variance."""
        a = self.alpha.clamp(2)
        return self.scale**2 * a / ((a - 1) ** 2 * (a - 2))

    def rsample(self, sample_shape=()):
        return self.scale * self._uniform(sample_shape, self.scale) ** (-1 / self.alpha)

    def log_prob(self, value):
        return self.alpha.log() + self.alpha * self.scale.log() - (self.alpha + 1) * self._check(value).log()

    def entropy(self):
        return (self.scale / self.alpha).log() + (1 + 1 / self.alpha)


class RelaxedBernoulli(_Formula):
    """sigmoid((logits + logistic noise) / temperature) (Maddison et al., Jang et al., 2017)."""

    arg_constraints = {"probs": "probability", "logits": "real"}
    _value = "probability"

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both (expected one of them).")
        if probs is not None:
            self.probs, self.temperature = broadcast_all(probs, temperature)
            self.logits = self.probs.logit(1e-7)
        else:
            self.logits, self.temperature = broadcast_all(logits, temperature)
            self.probs = self.logits.sigmoid()
        super().__init__(self.logits.shape, validate_args=validate_args)

    def rsample(self, sample_shape=()):
        u = self._uniform(sample_shape, self.logits)
        return ((u.log() - (-u).log1p() + self.logits) / self.temperature).sigmoid()

    def log_prob(self, value):
        value = self._check(value).clamp(1e-7, 1 - 1e-7)
        odds = value.log() - (-value).log1p()
        diff = self.logits - odds * self.temperature
        return self.temperature.log() + diff - 2 * diff.exp().log1p() - value.log() - (-value).log1p()
