"""Pillow, imported when the first image is made or met."""

import sys
from importlib import import_module


def pillow(name="Image"):
    """The module PIL.`name`. Raises ImportError that says how to get it."""
    try:
        return import_module(f"PIL.{name}")
    except ImportError as error:
        raise ImportError(f"pydist.vision: images need Pillow: pip install pillow ({error})") from error


def is_pil(image):
    """Whether `image` is a Pillow image, found without importing Pillow."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(image, module.Image)
