"""First values of parameters."""

import json
import math

import numpy as np

from pydist.compat.mxnet.ndarray import random

_known = {}


class InitDesc(str):
    """A parameter's name."""


def register(klass):
    """A class decorator: create() finds it under its name in small letters."""
    _known[klass.__name__.lower()] = klass
    return klass


def create(init, **kwargs):
    """An initializer of a name, of what dumps() gave, or of one itself. Raises ValueError for an unknown name."""
    if not isinstance(init, str):
        return init
    name, kwargs = json.loads(init) if init.startswith("[") else (init, kwargs)
    if name.lower() not in _known:
        raise ValueError(f"initializer: got {init!r} (expected one of {', '.join(sorted(_known))})")
    return _known[name.lower()](**kwargs)


class Initializer:
    """A base class: subclasses have `_init_weight(name, array)`. A call fills an array by the end of its name."""

    own = {}

    def __init__(self, *args, **kwargs):
        if set(kwargs) - set(self.own or kwargs) or len(args) > len(self.own):
            raise TypeError(f"{type(self).__name__}: got {args}, {kwargs} (expected {list(self.own)})")
        given = {**self.own, **dict(zip(self.own, args)), **kwargs}
        vars(self).update(given)
        self._kwargs = {k: v if isinstance(v, (int, float, str)) else np.asarray(v).tolist() for k, v in given.items()}

    def dumps(self):
        """Name and arguments as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __eq__(self, other):
        return type(self) is type(other) and self._kwargs == other._kwargs

    def __call__(self, desc, arr):
        if desc.endswith(("bias", "beta", "mean")):
            arr[:] = 0.0
        elif desc.endswith(("gamma", "var")):
            arr[:] = 1.0
        else:
            self._init_weight(desc, arr)


def _put(arr, value):
    arr[:] = value


def _orthogonal(self, arr):
    shape = arr.shape[0], math.prod(arr.shape[1:])
    draw = random.uniform(-1, 1, shape) if self.rand_type == "uniform" else random.normal(0, 1, shape)
    left, _, right = np.linalg.svd(draw.asnumpy(), full_matrices=False)
    arr[:] = self.scale * (left if left.shape == shape else right).reshape(arr.shape)


def _xavier(self, arr):
    kinds = (self.rnd_type in ("uniform", "gaussian"), self.factor_type in ("in", "out", "avg"), arr.ndim > 1)
    if not all(kinds):
        raise ValueError(f"Xavier: got {self.rnd_type!r}, {self.factor_type!r} and shape {arr.shape} (expected "
                         "uniform or gaussian, in, out or avg, and at least 2 dims)")  # fmt: skip
    inner, outer = (n * math.prod(arr.shape[2:]) for n in (arr.shape[1], arr.shape[0]))
    scale = math.sqrt(self.magnitude / {"in": inner, "out": outer, "avg": (inner + outer) / 2}[self.factor_type])
    random.uniform(-scale, scale, out=arr) if self.rnd_type == "uniform" else random.normal(0, scale, out=arr)


_XAVIER = {"rnd_type": "uniform", "factor_type": "avg", "magnitude": 3}
_KINDS = {  # name: (what, arguments with their defaults, what fills an array)
    "Zero": ("Zeros.", {}, lambda self, arr: _put(arr, 0.0)),
    "One": ("Ones.", {}, lambda self, arr: _put(arr, 1.0)),
    "Constant": ("One number, or an array.", {"value": 0.0}, lambda self, arr: _put(arr, self.value)),
    "Uniform": ("Uniform between -scale and scale.", {"scale": 0.07},
                lambda self, arr: random.uniform(-self.scale, self.scale, out=arr)),
    "Normal": ("Normal with the standard deviation sigma.", {"sigma": 0.01},
               lambda self, arr: random.normal(0, self.sigma, out=arr)),
    "Orthogonal": ("An orthogonal matrix times `scale`.", {"scale": 1.414, "rand_type": "uniform"}, _orthogonal),
    "Xavier": ('Uniform or normal, with a spread of sqrt(magnitude / fan); factor_type: "in", "out" or "avg".',
               _XAVIER, _xavier),
}  # fmt: skip
for _name, (_what, _own, _fill) in _KINDS.items():
    _parts = {"own": _own, "_init_weight": lambda self, name, arr, fill=_fill: fill(self, arr)}
    globals()[_name] = register(type(_name, (Initializer,), {**_parts, "__doc__": _what, "__module__": __name__}))


@register
class MSRAPrelu(globals()["Xavier"]):
    """Xavier's normal form for leaky rectifiers of this slope."""

    own = {"factor_type": "avg", "slope": 0.25}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rnd_type, self.magnitude = "gaussian", 2.0 / (1 + self.slope**2)


_known.update(zeros=_known["zero"], ones=_known["one"])
