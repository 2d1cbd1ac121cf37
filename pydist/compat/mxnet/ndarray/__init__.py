"""Arrays and their operations: `mx.nd`."""

from pydist.compat.mxnet._base import lacking as _lacking
from pydist.compat.mxnet.ndarray import _ops, ndarray, random, sparse
from pydist.compat.mxnet.ndarray.ndarray import *

for _module in (ndarray, globals()):
    _there = _module if isinstance(_module, dict) else vars(_module)
    _there.update({_name: _fn for _name, _fn in _ops.table.items() if _name not in _there})
op, uniform, normal, shuffle = ndarray, random.uniform, random.normal, random.shuffle
for _name in ("uniform", "normal", "gamma", "exponential", "poisson", "randint", "multinomial"):
    globals()[f"random_{_name}"] = globals()[f"sample_{_name}"] = getattr(random, _name)

_ABSENT = (
    "contrib linalg image Custom SoftmaxOutput RNN Deconvolution imdecode CachedOp foreach while_loop cond".split()
)
__getattr__ = _lacking("mx.nd", _ABSENT, "the operations of mx.nd")
