"""Special functions, elementwise: torch.special.

>>> import pydist
>>> pydist.special.digamma(pydist.tensor(1.0))
tensor(-0.5772)
"""

from pydist import _C
from pydist._functions import _register
from pydist._functions.elements import logit, sinc, xlogy
from pydist._functions.elementwise import exp2
from pydist._functions.reduce import logsumexp
from pydist._functions.special import (
    digamma,
    entr,
    erfc,
    erfcx,
    erfinv,
    i0,
    lgamma,
    log_ndtr,
    mvlgamma,
    ndtr,
    ndtri,
    polygamma,
    xlog1py,
    zeta,
)  # fmt: skip

expm1, erf, log1p, round, expit, softmax, log_softmax = (
    _C.expm1, _C.erf, _C.log1p, _C.round, _C.sigmoid, _C.softmax, _C.log_softmax
)  # fmt: skip
gammaln, psi, multigammaln = lgamma, digamma, mvlgamma

__all__ = (
    "digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammaln i0 log1p log_ndtr log_softmax logit logsumexp multigammaln "
    "ndtr ndtri polygamma psi round sinc softmax xlog1py xlogy zeta"
).split()

for _name in __all__:
    if type(globals()[_name]) is type(_register.with_out) and not hasattr(globals()[_name], "also_named"):
        globals()[_name] = _register.with_out(globals()[_name])
