"""The common part of all distributions."""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import holds
from pydist._functions.shape import broadcast_tensors
from pydist._grad_mode import no_grad


def broadcast_all(*values):
    """Numbers and tensors as tensors with one shape and floating dtype."""
    given = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    dtype = given[0] if given else _C.get_default_dtype()
    device = next((v.device for v in values if isinstance(v, Tensor)), None)
    made = [
        (
            v
            if isinstance(v, Tensor) and v.is_floating_point()
            else _C.tensor(v.tolist() if isinstance(v, Tensor) else v, dtype=dtype, device=device)
        )
        for v in values
    ]
    return broadcast_tensors(*made)


def clamp_probs(probs):
    """Probabilities kept away from 0 and 1 by the dtype's epsilon."""
    eps = 2.0**-52 if probs.dtype is _C.float64 else 2.0**-23
    return probs.clamp(eps, 1 - eps)


_CHECKS = {
    "positive": lambda v: v > 0,
    "nonnegative": lambda v: v >= 0,
    "probability": lambda v: (v >= 0) & (v <= 1),
    "real": lambda v: v == v,
    "boolean": lambda v: (v == 0) | (v == 1),
    "count": lambda v: (v >= 0) & (v == v.floor() if v.is_floating_point() else v == v),
    "simplex": lambda v: (v >= 0).all(-1) & ((v.sum(-1) - 1).abs() < 1e-6),
}


def _check_of(kind):
    """The check for a key of _CHECKS, or for a constraint of pydist.distributions.constraints."""
    return getattr(kind, "check", None) or _CHECKS[kind]


class Distribution:
    """Base class. Parameters have shape batch_shape, samples have shape sample_shape + batch_shape + event_shape.

    Parameters and values are checked unless validate_args=False: a wrong one raises ValueError, which names it.
    """

    has_rsample = False
    arg_constraints = {}  # parameter: a key of _CHECKS, or a constraint
    _value = "real"  # the constraint on values
    _validate_args = True

    def __init__(self, batch_shape=(), event_shape=(), validate_args=None):
        self._batch_shape, self._event_shape = _C.Size(batch_shape), _C.Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, kind in self.arg_constraints.items():
                value = self.__dict__.get(name)
                if value is not None and not holds(_check_of(kind)(value.detach())):
                    raise ValueError(
                        f"Expected parameter {name} (Tensor of shape {tuple(value.shape)}) of distribution {type(self).__name__} to "
                        f"satisfy the constraint {kind}, but found invalid values:\n{value}"
                    )

    @staticmethod
    def set_default_validate_args(value):
        """Sets whether distributions check parameters and values."""
        if value not in (True, False):
            raise ValueError(f"set_default_validate_args: value is {value!r} (expected a bool)")
        Distribution._validate_args = value

    @property
    def batch_shape(self):
        """The shape of the parameters: one distribution for each element."""
        return self._batch_shape

    @property
    def event_shape(self):
        """The shape of one event of each distribution."""
        return self._event_shape

    def _shape(self, sample_shape=()):
        return (*sample_shape, *self._batch_shape, *self._event_shape)

    def _check(self, value):
        if not isinstance(value, Tensor):
            raise ValueError(f"The value argument to log_prob must be a Tensor, got {type(value).__name__}")
        if not self._validate_args:
            return value
        n = len(self._event_shape)
        if tuple(value.shape[len(value.shape) - n :]) != tuple(self._event_shape):
            raise ValueError(
                f"The right-most size of value must match event_shape: {tuple(value.shape)} vs {tuple(self._event_shape)}."
            )
        broadcast_tensors(value, _C.empty(self._shape(), device=value.device))
        if not holds(_check_of(self._value)(value.detach())):
            raise ValueError(
                f"Expected value argument (Tensor of shape {tuple(value.shape)}) to be within the support ({self._value}) of the "
                f"distribution {type(self).__name__}, but found invalid values:\n{value}"
            )
        return value

    def sample(self, sample_shape=()):
        """A sample, or sample_shape of them, without a history."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape=()):
        """A sample that is a differentiable function of the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample")

    def sample_n(self, n):
        """n samples."""
        return self.sample((n,))

    def log_prob(self, value):
        """The logarithm of the density, or of the probability, at value."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def entropy(self):
        """The entropy: the mean of -log_prob."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def cdf(self, value):
        """The probability of a number that is at most value."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value):
        """The number whose cdf is value."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def perplexity(self):
        """exp of the entropy."""
        return self.entropy().exp()

    @property
    def stddev(self):
        """The square root of the variance."""
        return self.variance.sqrt()

    def expand(self, batch_shape, _instance=None):
        """The distribution with its parameters expanded to batch_shape."""
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._batch_shape = _C.Size(batch_shape)
        for name, value in self.__dict__.items():
            if isinstance(value, Tensor):
                events = value.dim() - len(self._batch_shape)
                lead = value.shape[len(self._batch_shape) :] if events > 0 else ()
                setattr(new, name, value.expand((*batch_shape, *lead)))
            elif isinstance(value, Distribution):
                rest = value.batch_shape[len(self._batch_shape) :]
                setattr(new, name, value.expand((*batch_shape, *rest)))
        return new

    def __repr__(self):
        shown = [name for name in self.arg_constraints if isinstance(self.__dict__.get(name), Tensor)]
        values = (getattr(self, name) for name in shown)
        return f"{type(self).__name__}({', '.join(f'{n}: {v if v.numel() == 1 else v.size()}' for n, v in zip(shown, values))})"


LOG_2PI = math.log(2 * math.pi)
