"""oneDNN (formerly MKL-DNN): matrix products and convolutions."""

from pydist import _C


def is_available():
    """Whether oneDNN is found; without it portable kernels compute."""
    return _C.onednn_version() is not None
