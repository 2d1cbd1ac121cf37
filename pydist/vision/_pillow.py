"""Pillow, imported when the first image is made or used."""

import sys
from importlib import import_module


def pillow(name="Image"):
    """The module PIL.`name`. Raises ImportError, which says how to install Pillow."""
    try:
        return import_module(f"PIL.{name}")
    except ImportError as error:
        raise ImportError(
            f"pydist.vision: images need Pillow, which cannot be imported ({error}): pip install pillow"
        ) from error


def is_pil(image):
    """Whether `image` is a Pillow image. Does not import Pillow."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(image, module.Image)
