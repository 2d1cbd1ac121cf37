"""Transforms of images, for composition. `functional` has the same with explicit parameters."""

from pydist.vision.transforms import functional
from pydist.vision.transforms.functional import InterpolationMode
from pydist.vision.transforms.transforms import *
from pydist.vision.transforms.transforms import __all__ as _transforms

__all__ = [*_transforms, "InterpolationMode", "functional"]


def __getattr__(name):
    if name == "v2":
        from importlib import import_module

        return import_module("pydist.vision.transforms.v2")
    raise AttributeError(f"module 'pydist.vision.transforms' has no attribute '{name}'")
