"""The names of torchvision.transforms.v2 for single images, with the first version's meanings. Boxes and masks are not
supported."""

import pydist
from pydist import nn
from pydist.vision._pillow import is_pil
from pydist.vision.transforms import functional, transforms
from pydist.vision.transforms.functional import InterpolationMode
from pydist.vision.transforms.transforms import *

__all__ = [*transforms.__all__, "Identity", "InterpolationMode", "ToDtype", "ToImage", "ToPureTensor", "functional"]


class ToImage(nn.Module):
    """A Pillow image or an array [H, W, C] as a tensor [C, H, W] with the same values. A tensor stays as it is."""

    def forward(self, inpt):
        if isinstance(inpt, pydist.Tensor):
            return inpt
        return functional.pil_to_tensor(inpt) if is_pil(inpt) else functional.array_to_tensor(inpt)


class ToDtype(nn.Module):
    """A tensor in another dtype. scale: its range is scaled as well, as in convert_image_dtype. Other objects stay as
    they are."""

    def __init__(self, dtype, scale=False):
        super().__init__()
        self.dtype = dtype
        self.scale = scale

    def forward(self, inpt):
        if not isinstance(inpt, pydist.Tensor):
            return inpt
        return functional.convert_image_dtype(inpt, self.dtype) if self.scale else inpt.to(self.dtype)


class ToPureTensor(nn.Module):
    """Returns the input: tensors here are always plain ones."""

    def forward(self, inpt):
        return inpt


class Identity(nn.Module):
    """Returns the input."""

    def forward(self, inpt):
        return inpt
