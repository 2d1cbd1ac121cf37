"""Probability distributions with PyTorch's names: sample, rsample (a sample with gradients), log_prob, entropy, and
kl_divergence between two distributions.

>>> import pydist
>>> from pydist.distributions import Normal, kl_divergence
>>> d = Normal(pydist.tensor(0.0), pydist.tensor(1.0))
>>> round(d.log_prob(pydist.tensor(0.0)).item(), 4)
-0.9189
>>> kl_divergence(d, Normal(pydist.tensor(1.0), pydist.tensor(1.0))).item()
0.5
"""

import sys

from pydist._names import also_named
from pydist.distributions import (
    categorical,
    combined,
    constraints,
    continuous,
    discrete,
    gamma,
    multivariate,
    transforms,
)
from pydist.distributions.categorical import (
    Categorical,
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
)
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
from pydist.distributions.transforms import *

_FILES = {  # PyTorch's module of a class -> ours
    categorical: "multinomial one_hot_categorical",
    continuous: "cauchy exponential gumbel half_cauchy half_normal laplace log_normal normal pareto relaxed_bernoulli uniform weibull",
    discrete: "bernoulli binomial geometric poisson",
    gamma: "beta chi2 dirichlet inverse_gamma studentT",
    multivariate: "multivariate_normal",
    combined: "independent mixture_same_family",
    transforms: "transformed_distribution",
}
for _file, _names in _FILES.items():
    for _name in _names.split():
        globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _file

also_named(__name__, utils="distribution")

__all__ = [name for name in dir() if name[0].isupper()] + ["identity_transform", "kl_divergence", "register_kl"]
