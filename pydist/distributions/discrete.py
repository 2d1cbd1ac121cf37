"""Distributions of counts."""

import math

from pydist import _C
from pydist._functions._register import array_of
from pydist._functions.random import host_generator, poisson
from pydist.distributions.distribution import Distribution, broadcast_all, clamp_probs
from pydist.nn.functional import binary_cross_entropy_with_logits


class _Odds(Distribution):
    """A distribution with probs, or with logits and probs = sigmoid(logits)."""

    arg_constraints = {"probs": "probability", "logits": "real"}

    def _by(self, probs, logits, *more):
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both (expected one of them).")
        if logits is None:
            self.probs, *more = broadcast_all(probs, *more)
        else:
            self.logits, *more = broadcast_all(logits, *more)
        return more

    def __getattr__(self, name):
        if name == "logits" and "probs" in self.__dict__:
            p = clamp_probs(self.probs)
            self.logits = p.log() - (-p).log1p()
        elif name == "probs" and "logits" in self.__dict__:
            self.probs = self.logits.sigmoid()
        else:
            raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")
        return self.__dict__[name]

    @property
    def param_shape(self):
        return self.__dict__.get("probs", self.__dict__.get("logits")).shape


class Bernoulli(_Odds):
    """1 with probability probs, otherwise 0."""

    _value = "boolean"

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._by(probs, logits)
        super().__init__(self.param_shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return self.probs

    @property
    def variance(self):
        """The variance."""
        return self.probs * (1 - self.probs)

    @property
    def mode(self):
        """The most probable value."""
        return (self.probs >= 0.5).to(self.probs.dtype).masked_fill(self.probs == 0.5, math.nan)

    def sample(self, sample_shape=()):
        probs = self.probs.detach()
        return (_C.rand(self._shape(sample_shape), dtype=probs.dtype, device=probs.device) < probs).to(probs.dtype)

    def log_prob(self, value):
        value = self._check(value).to(self.logits.dtype)
        logits, value = broadcast_all(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self):
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand=True):
        """0 and 1, along a new first dimension before the batch."""
        values = _C.arange(2, dtype=self.probs.dtype, device=self.probs.device).reshape(
            [-1] + [1] * len(self._batch_shape)
        )
        return values.expand((-1, *self._batch_shape)) if expand else values


class Geometric(_Odds):
    """The number of failures before the first success: probability (1 - probs)^k probs."""

    _value = "count"

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._by(probs, logits)
        super().__init__(self.param_shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return 1 / self.probs - 1

    @property
    def mode(self):
        """The most probable value."""
        return self.probs * 0

    @property
    def variance(self):
        """The variance."""
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape=()):
        probs = self.probs.detach()
        u = 1 - _C.rand(self._shape(sample_shape), dtype=probs.dtype, device=probs.device)
        return (u.log() / (-probs).log1p()).floor()

    def log_prob(self, value):
        self._check(value)
        return value * (-self.probs).log1p().masked_fill((self.probs == 1) & (value == 0), 0.0) + self.probs.log()

    def entropy(self):
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs


class Binomial(_Odds):
    """The number of successes in total_count trials."""

    _value = "count"

    def __init__(self, total_count=1, probs=None, logits=None, validate_args=None):
        (self.total_count,) = self._by(probs, logits, total_count)
        super().__init__(self.param_shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return self.total_count * self.probs

    @property
    def variance(self):
        """The variance."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape=()):
        shape, probs = self._shape(sample_shape), self.probs.detach()
        drawn = host_generator().binomial(array_of(self.total_count.long()), array_of(probs.double()), shape)
        return _C.tensor(drawn, dtype=probs.dtype, device=probs.device)

    def log_prob(self, value):
        self._check(value)
        n = self.total_count
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * self.logits - n * self.logits.logaddexp(0.0)

    def entropy(self):
        most = int(self.total_count.amax().item()) if self.total_count.numel() else 0
        if (self.total_count != most).any().item():
            raise NotImplementedError("Inhomogeneous total count not supported by `entropy`.")
        counts = _C.arange(most + 1, dtype=self.logits.dtype, device=self.logits.device).reshape(
            [-1] + [1] * len(self._batch_shape)
        )
        each = self.log_prob(counts.expand((most + 1, *self._batch_shape)))
        return -(each.exp() * each).sum(0)


class Poisson(Distribution):
    """Probability rate^k exp(-rate) / k!."""

    arg_constraints = {"rate": "nonnegative"}
    _value = "count"

    def __init__(self, rate, validate_args=None):
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self):
        """The mean."""
        return self.rate

    @property
    def mode(self):
        """The most probable value."""
        return self.rate.floor()

    @property
    def variance(self):
        """The variance."""
        return self.rate

    def sample(self, sample_shape=()):
        return poisson(self.rate.detach().expand(self._shape(sample_shape)))

    def log_prob(self, value):
        return self._check(value).xlogy(self.rate) - self.rate - (value + 1).lgamma()
