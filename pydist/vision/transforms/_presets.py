"""Transforms that published weights expect."""

import pydist
from pydist import nn
from pydist.vision._pillow import is_pil
from pydist.vision.transforms import functional as F
from pydist.vision.transforms.functional import InterpolationMode


class ImageClassification(nn.Module):
    """Resizes the shorter edge to resize_size, takes the centre of crop_size, converts to float32 and normalizes with
    ImageNet's mean and standard deviation."""

    def __init__(
        self,
        *,
        crop_size,
        resize_size=256,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        interpolation=InterpolationMode.BILINEAR,
        antialias=True,
    ):
        super().__init__()
        self.crop_size = [crop_size]
        self.resize_size = [resize_size]
        self.mean = list(mean)
        self.std = list(std)
        self.interpolation = interpolation
        self.antialias = antialias

    def forward(self, img):
        img = F.resize(img, self.resize_size, self.interpolation, antialias=self.antialias)
        img = F.center_crop(img, self.crop_size)
        img = F.pil_to_tensor(img) if is_pil(img) else img
        return F.normalize(F.convert_image_dtype(img, pydist.float32), self.mean, self.std)

    def __repr__(self):
        names = ("crop_size", "resize_size", "mean", "std", "interpolation")
        return "\n".join([f"{type(self).__name__}(", *(f"    {name}={getattr(self, name)}" for name in names), ")"])
