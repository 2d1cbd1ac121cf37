"""Settings and state of what computes, under PyTorch's names."""

from pydist.backends import cuda, cudnn, mkldnn, mps, openmp

__all__ = ["cuda", "cudnn", "mkldnn", "mps", "openmp"]
