"""Probability distributions with PyTorch's names: sample, rsample (through which gradients flow), log_prob, entropy, and
kl_divergence between two of them.

>>> import pydist
>>> from pydist.distributions import Normal, kl_divergence
>>> d = Normal(pydist.tensor(0.0), pydist.tensor(1.0))
>>> round(d.log_prob(pydist.tensor(0.0)).item(), 4)
-0.9189
>>> kl_divergence(d, Normal(pydist.tensor(1.0), pydist.tensor(1.0))).item()
0.5
"""

from pydist.distributions import categorical, continuous, discrete, gamma, multivariate
from pydist.distributions.categorical import Categorical, Multinomial, OneHotCategorical, OneHotCategoricalStraightThrough
from pydist.distributions.combined import Independent, MixtureSameFamily
from pydist.distributions.continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    RelaxedBernoulli,
    Uniform,
    Weibull,
)
from pydist.distributions.discrete import Bernoulli, Binomial, Geometric, Poisson
from pydist.distributions.distribution import Distribution
from pydist.distributions.gamma import Beta, Chi2, Dirichlet, Gamma, InverseGamma, StudentT
from pydist.distributions.kl import kl_divergence, register_kl
from pydist.distributions.multivariate import MultivariateNormal

__all__ = [name for name in dir() if name[0].isupper()] + ["kl_divergence", "register_kl"]
