"""Settings of the libraries that compute, with PyTorch's names."""

from pydist.backends import cuda, cudnn, mkl, mkldnn, mps, openmp

__all__ = ["cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp"]
