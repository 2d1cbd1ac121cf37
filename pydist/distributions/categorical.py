"""Distributions over classes."""

from pydist import _C
from pydist._functions.rearrange import broadcast_shapes
from pydist.distributions.distribution import Distribution, clamp_probs


class Categorical(Distribution):
    """Class k has the probability probs[..., k] (scaled to sum to 1), or softmax(logits)[..., k]."""

    arg_constraints = {"probs": "simplex", "logits": "real"}
    _value = "count"

    def __init__(self, probs=None, logits=None, validate_args=None):
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both (expected one of them).")
        given = logits if probs is None else probs
        if given.dim() < 1:
            raise ValueError(f"`{'logits' if probs is None else 'probs'}` parameter must be at least one-dimensional.")
        self._by_probs = probs is not None
        if self._by_probs:
            self.probs = probs / probs.sum(-1, keepdim=True)
        else:
            self.logits = logits - logits.logsumexp(-1, keepdim=True)
        self._num_events = given.shape[-1]
        super().__init__(given.shape[:-1], validate_args=validate_args)

    def __getattr__(self, name):
        if name == "logits" and "probs" in self.__dict__:
            self.logits = clamp_probs(self.probs).log()
        elif name == "probs" and "logits" in self.__dict__:
            self.probs = self.logits.softmax(-1)
        else:
            raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")
        return self.__dict__[name]

    @property
    def param_shape(self):
        """The shape of probs and logits."""
        return (self.probs if self._by_probs else self.logits).shape

    @property
    def mean(self):
        """NaN: classes have no mean."""
        return self.probs.new_full(tuple(self._batch_shape), float("nan"))

    variance = mean

    @property
    def mode(self):
        """The most probable class."""
        return self.probs.argmax(-1)

    def _check(self, value):
        super()._check(value)
        if self._validate_args and value.numel() and not value.is_meta and value.max().item() >= self._num_events:
            raise ValueError(
                f"Expected value argument to be within the support (below {self._num_events}), but found invalid values:\n{value}"
            )
        return value

    def sample(self, sample_shape=()):
        count = _C.Size(sample_shape).numel()
        rows = self.probs.detach().reshape(-1, self._num_events)
        drawn = rows.multinomial(count, True).T if count else rows.new_empty(0, rows.shape[0]).long()
        return drawn.reshape((*sample_shape, *self._batch_shape))

    def log_prob(self, value):
        value = self._check(value).long().unsqueeze(-1)
        shape = broadcast_shapes(value.shape[:-1], self._batch_shape)
        logits = self.logits.expand((*shape, self._num_events))
        return logits.gather(-1, value.expand((*shape, 1))).squeeze(-1)

    def entropy(self):
        logits = self.logits.clamp(min=-3.4e38 if self.logits.dtype is not _C.float64 else -1.7e308)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand=True):
        """All classes, along a new first dimension before the batch."""
        values = _C.arange(self._num_events, device=self.probs.device).reshape([-1] + [1] * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values


class _OverClasses(Distribution):
    """A distribution of events with one number for each class."""

    arg_constraints = {}

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._classes = Categorical(probs, logits, validate_args)
        shape = self._classes.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def probs(self):
        return self._classes.probs

    @property
    def logits(self):
        return self._classes.logits


class OneHotCategorical(_OverClasses):
    """Categorical with one-hot samples: 1 at their class and 0 elsewhere."""

    _value = "boolean"

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
        """The most probable class, one-hot."""
        return self._hot(self.probs.argmax(-1))

    def _hot(self, index):
        return (index.unsqueeze(-1) == _C.arange(self._event_shape[-1], device=self.probs.device)).to(self.probs.dtype)

    def sample(self, sample_shape=()):
        return self._hot(self._classes.sample(sample_shape))

    def log_prob(self, value):
        return self._classes.log_prob(self._check(value).argmax(-1))

    def entropy(self):
        return self._classes.entropy()


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """OneHotCategorical with an rsample whose gradient is that of the probabilities (Bengio et al., 2013)."""

    has_rsample = True

    def rsample(self, sample_shape=()):
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Multinomial(_OverClasses):
    """How often each class is drawn in total_count draws."""

    _value = "count"

    def __init__(self, total_count=1, probs=None, logits=None, validate_args=None):
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported (expected one number)")
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    @property
    def mean(self):
        """The mean number of each class."""
        return self.probs * self.total_count

    @property
    def variance(self):
        """The variance of the number of each class."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape=()):
        drawn = self._classes.sample((self.total_count, *sample_shape))
        return (
            (drawn.unsqueeze(-1) == _C.arange(self._event_shape[-1], device=self.probs.device))
            .sum(0)
            .to(self.probs.dtype)
        )

    def log_prob(self, value):
        self._check(value)
        logits = self.logits.masked_fill((value == 0) & (self.logits == -float("inf")), 0.0)
        return (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1) + (logits * value).sum(-1)
