"""cuDNN: convolutions on a GPU, opened at run time. `benchmark`: plans are timed when a shape is new, and the fastest is
kept (False: the first that its heuristics propose). `allow_tf32`: float32 by tensor cores, with factors of 10 bits (True).
Plans whose results differ from run to run are never taken, so `deterministic` changes nothing."""

import sys
from types import ModuleType

from pydist import _C

enabled = True
deterministic = False


def is_available():
    """Whether there are GPUs and cuDNN can be opened."""
    return _C.cuda_count() > 0 and _C.cudnn_version()[0] is not None


def version():
    """cuDNN's version as a number, 91900 for 9.19.0; None where it is not there."""
    text = _C.cudnn_version()[0] if _C.cuda_count() else None
    if text is None:
        return None
    major, minor, patch = map(int, text.split("."))
    return major * 10000 + minor * 100 + patch


class _Settings(ModuleType):
    @property
    def allow_tf32(self):
        return _C.gpu_settings()[1]

    @allow_tf32.setter
    def allow_tf32(self, allowed):
        matmul, _, tune = _C.gpu_settings()
        _C.gpu_settings(matmul, bool(allowed), tune)

    @property
    def benchmark(self):
        return _C.gpu_settings()[2]

    @benchmark.setter
    def benchmark(self, tune):
        _C.gpu_settings(*_C.gpu_settings()[:2], bool(tune))


sys.modules[__name__].__class__ = _Settings
