"""Transforms of images [height, width, channels], or of batches of them."""

from pydist.compat.mxnet._base import absent
from pydist.compat.mxnet.gluon.block import HybridBlock
from pydist.compat.mxnet.gluon.nn import Sequential
from pydist.compat.mxnet.ndarray import ndarray as nd


class Compose(Sequential):
    """One after the other."""

    def __init__(self, transforms):
        super().__init__()
        self.add(*transforms)


class Cast(HybridBlock):
    """Another dtype."""

    def __init__(self, dtype="float32"):
        super().__init__()
        self._dtype = dtype

    def hybrid_forward(self, F, x):
        return x.astype(self._dtype)


class ToTensor(HybridBlock):
    """uint8 [height, width, channels] becomes float32 [channels, height, width] from 0 to 1."""

    def hybrid_forward(self, F, x):
        if x.ndim not in (3, 4):
            raise ValueError(f"ToTensor: got {x.ndim} dims (expected 3, or 4 for a batch)")
        return x.astype("float32").transpose((2, 0, 1) if x.ndim == 3 else (0, 3, 1, 2)) / 255


class Normalize(HybridBlock):
    """(x - mean) / std of float images [channels, height, width]; numbers, or one for each channel."""

    def __init__(self, mean=0.0, std=1.0):
        super().__init__()
        self._mean, self._std = mean, std

    def hybrid_forward(self, F, x):
        if x.ndim not in (3, 4) or x.dtype == "uint8":
            raise ValueError(
                f"Normalize: got {x.dtype.__name__} of {x.ndim} dims (expected floats of 3 dims, or 4 for a batch)"
            )
        mean, std = (nd.array(v, ctx=x.context, dtype=x.dtype).reshape(-1, 1, 1) for v in (self._mean, self._std))
        return (x - mean) / std


def __getattr__(name):
    if name[:1].isupper():
        raise absent(f"mx.gluon.data.vision.transforms.{name}", "ToTensor, Normalize, Cast or Compose")
    raise AttributeError(f"pydist has no mxnet.gluon.data.vision.transforms.{name}")
