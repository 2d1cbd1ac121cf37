"""Distributions made of other distributions."""

from pydist.distributions.distribution import Distribution


def _last(t, n):
    """The sum over the last n dimensions."""
    return t.sum(tuple(range(-n, 0))) if n else t


class Independent(Distribution):
    """base_distribution with the last dimensions of its batch as one event."""

    def __init__(self, base_distribution, reinterpreted_batch_ndims, validate_args=None):
        n, batch = reinterpreted_batch_ndims, tuple(base_distribution.batch_shape)
        if n > len(batch):
            raise ValueError(
                f"Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual {n} vs {len(batch)}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, n
        cut = len(batch) - n
        super().__init__(batch[:cut], batch[cut:] + tuple(base_distribution.event_shape), validate_args=validate_args)

    @property
    def has_rsample(self):
        return self.base_dist.has_rsample

    @property
    def mean(self):
        """The mean."""
        return self.base_dist.mean

    @property
    def mode(self):
        """The most probable value."""
        return self.base_dist.mode

    @property
    def variance(self):
        """The variance."""
        return self.base_dist.variance

    def sample(self, sample_shape=()):
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape=()):
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value):
        return _last(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self):
        return _last(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def __repr__(self):
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamily(Distribution):
    """A mixture: the Categorical mixture_distribution draws one of the distributions along the last batch dimension of
    component_distribution."""

    def __init__(self, mixture_distribution, component_distribution, validate_args=None):
        self.mixture_distribution, self.component_distribution = mixture_distribution, component_distribution
        batch = tuple(component_distribution.batch_shape)
        if not batch or mixture_distribution.param_shape[-1] != batch[-1]:
            raise ValueError("`mixture_distribution component` does not equal `component_distribution.batch_shape[-1]`")
        super().__init__(batch[:-1], component_distribution.event_shape, validate_args=validate_args)

    def _weights(self):
        probs = self.mixture_distribution.probs
        return probs.reshape(*probs.shape, *[1] * len(self._event_shape))

    @property
    def _dim(self):
        return -1 - len(self._event_shape)

    @property
    def mean(self):
        """The mean."""
        return (self._weights() * self.component_distribution.mean).sum(self._dim)

    @property
    def variance(self):
        """The variance."""
        within = (self._weights() * self.component_distribution.variance).sum(self._dim)
        away = self.component_distribution.mean - self.mean.unsqueeze(self._dim)
        return within + (self._weights() * away**2).sum(self._dim)

    def sample(self, sample_shape=()):
        chosen, values = (
            self.mixture_distribution.sample(sample_shape),
            self.component_distribution.sample(sample_shape),
        )
        index = chosen.reshape(*chosen.shape, *[1] * (1 + len(self._event_shape)))
        shape = list(values.shape)
        shape[self._dim] = 1
        return values.gather(values.dim() + self._dim, index.expand(shape)).squeeze(self._dim)

    def cdf(self, x):
        each = self.component_distribution.cdf(x.unsqueeze(self._dim))
        return (each * self.mixture_distribution.probs).sum(-1)

    def log_prob(self, x):
        each = self.component_distribution.log_prob(x.unsqueeze(self._dim))
        return (each + self.mixture_distribution.logits).logsumexp(-1)
