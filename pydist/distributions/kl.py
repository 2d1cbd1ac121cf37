"""The Kullback-Leibler divergence: the mean of log p(x) - log q(x) under p."""

import math

from pydist import _C, linalg
from pydist.distributions.categorical import Categorical, OneHotCategorical
from pydist.distributions.combined import Independent, _last
from pydist.distributions.continuous import Cauchy, Exponential, HalfNormal, Laplace, LogNormal, Normal, Uniform
from pydist.distributions.discrete import Bernoulli, Binomial, Geometric, Poisson
from pydist.distributions.gamma import Beta, Dirichlet, Gamma
from pydist.distributions.multivariate import MultivariateNormal

_REGISTERED = {}


def register_kl(type_p, type_q):
    """A decorator: the function of (p, q) computes kl_divergence for these classes and their subclasses."""

    def registered(function):
        _REGISTERED[type_p, type_q] = function
        return function

    return registered


def kl_divergence(p, q):
    """KL(p || q) by the formula for the two classes. Raises NotImplementedError if there is none.

    >>> import pydist
    >>> from pydist.distributions import Bernoulli, kl_divergence
    >>> kl_divergence(Bernoulli(pydist.tensor(0.5)), Bernoulli(pydist.tensor(0.5))).item()
    0.0
    """
    for kind_p in type(p).__mro__:
        for kind_q in type(q).__mro__:
            if (kind_p, kind_q) in _REGISTERED:
                return _REGISTERED[kind_p, kind_q](p, q)
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}"
    )


@register_kl(Normal, Normal)
def _normal(p, q):
    ratio, away = (p.scale / q.scale) ** 2, ((p.loc - q.loc) / q.scale) ** 2
    return 0.5 * (ratio + away - 1 - ratio.log())


register_kl(LogNormal, LogNormal)(_normal)


@register_kl(Normal, LogNormal)
@register_kl(LogNormal, Normal)
def _none(p, q):
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}"
    )


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p, q):
    return _normal(p._whole, q._whole)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p, q):
    def part(a, b, weight):
        return _C.where(weight == 0, 0.0, weight * (a - b))

    def logs(d):
        soft = d.logits.logaddexp(0.0)
        return d.logits - soft, -soft

    (one_p, zero_p), (one_q, zero_q) = logs(p), logs(q)
    return part(one_p, one_q, p.probs) + part(zero_p, zero_q, 1 - p.probs)


@register_kl(Categorical, Categorical)
def _categorical(p, q):
    terms = p.probs * (p.logits - q.logits)
    return terms.masked_fill(q.probs == 0, math.inf).masked_fill(p.probs == 0, 0.0).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p, q):
    return _categorical(p._classes, q._classes)


@register_kl(Binomial, Binomial)
def _binomial(p, q):
    if (p.total_count != q.total_count).any().item():
        raise NotImplementedError("KL between Binomials where q.total_count != p.total_count is not implemented")
    return p.total_count * (p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p())


@register_kl(Poisson, Poisson)
def _poisson(p, q):
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Geometric, Geometric)
def _geometric(p, q):
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Exponential, Exponential)
def _exponential(p, q):
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(Laplace, Laplace)
def _laplace(p, q):
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + away / q.scale + ratio * (-away / p.scale).exp() - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p, q):
    return (((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2) / (4 * p.scale * q.scale)).log()


@register_kl(Uniform, Uniform)
def _uniform(p, q):
    return ((q.high - q.low) / (p.high - p.low)).log().masked_fill((q.low > p.low) | (q.high < p.high), math.inf)


@register_kl(Gamma, Gamma)
def _gamma(p, q):
    a, b = p.concentration, q.concentration
    return (
        b * (p.rate / q.rate).log() + b.lgamma() - a.lgamma() + (a - b) * a.digamma() + (q.rate - p.rate) * (a / p.rate)
    )


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p, q):
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    parts = ((a - b) * (a.digamma() - total.digamma().unsqueeze(-1))).sum(-1)
    return total.lgamma() - b.sum(-1).lgamma() - a.lgamma().sum(-1) + b.lgamma().sum(-1) + parts


@register_kl(Beta, Beta)
def _beta(p, q):
    return _dirichlet(p._pair(), q._pair())


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate(p, q):
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be computed "
            "(expected equal shapes)"
        )
    batch = (p.loc - q.loc).shape[:-1]
    k = p.event_shape[0]
    p_tril, q_tril = (t.expand((*batch, k, k)) for t in (p._tril, q._tril))
    ratio = linalg.solve_triangular(q_tril, p_tril, upper=False)
    away = linalg.solve_triangular(q_tril, (q.loc - p.loc).unsqueeze(-1), upper=False)
    return (
        q._half_log_det() - p._half_log_det() + 0.5 * ((ratio * ratio).sum((-2, -1)) + (away * away).sum((-2, -1)) - k)
    )


@register_kl(Independent, Independent)
def _independent(p, q):
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("KL between Independents of different reinterpreted_batch_ndims is not implemented")
    return _last(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
