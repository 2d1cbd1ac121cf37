"""cuDNN: convolutions on a GPU. The library is opened at run time. `benchmark`: for a new shape, all plans are timed
and the fastest is kept (False: the first plan that cuDNN's heuristics propose). `enabled`: whether cuDNN is used (True)
or pydist's own kernels. `allow_tf32`: float32 by tensor cores, with factors of 10 bits (True). Plans whose results
differ from run to run are never used, so `deterministic` changes nothing."""

import sys
from contextlib import contextmanager
from types import ModuleType

from pydist import _C

deterministic = False


def is_available():
    """Whether there are GPUs and cuDNN can be opened."""
    return _C.cuda_count() > 0 and _C.cudnn_version()[0] is not None


def version():
    """cuDNN's version as a number, such as 91900 for 9.19.0; None if it is not installed."""
    text = _C.cudnn_version()[0] if _C.cuda_count() else None
    if text is None:
        return None
    major, minor, patch = map(int, text.split("."))
    return major * 10000 + minor * 100 + patch


def set_flags(_enabled=None, _benchmark=None, _benchmark_limit=None, _deterministic=None, _allow_tf32=None):
    """Sets the flags that are not None. Returns the former values of all of them."""
    module = sys.modules[__name__]
    before = module.enabled, module.benchmark, None, module.deterministic, module.allow_tf32
    for name, value in (
        ("enabled", _enabled),
        ("benchmark", _benchmark),
        ("deterministic", _deterministic),
        ("allow_tf32", _allow_tf32),
    ):
        if value is not None:
            setattr(module, name, value)
    return before


@contextmanager
def flags(
    enabled=False, benchmark=False, benchmark_limit=10, deterministic=False, allow_tf32=True, fp32_precision="none"
):
    """`with flags(enabled=False):` sets flags inside the block. As in PyTorch, flags that are not given get the
    defaults of this function."""
    before = set_flags(enabled, benchmark, benchmark_limit, deterministic, allow_tf32)
    try:
        yield
    finally:
        set_flags(*before)


def _setting(place, other):
    def get(self):
        return _C.gpu_settings()[place] != other

    def put(self, value):
        settings = list(_C.gpu_settings())
        settings[place] = bool(value) != other
        _C.gpu_settings(*settings)

    return property(get, put)


class _Settings(ModuleType):
    allow_tf32, benchmark, enabled = _setting(1, False), _setting(2, False), _setting(3, True)


sys.modules[__name__].__class__ = _Settings
