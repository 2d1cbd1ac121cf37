"""oneDNN (once MKL-DNN): matrix products and convolutions."""

from pydist import _C


def is_available():
    """True where oneDNN is found; else the portable kernels serve."""
    return _C.onednn_version() is not None
