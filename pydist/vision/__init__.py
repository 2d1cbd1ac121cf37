"""Datasets of images, their transforms and the usual networks, with torchvision's names and layout.

    from pydist.vision import datasets, transforms
    train = datasets.MNIST("data", train=True, transform=transforms.ToTensor())

Images are Pillow images (`pip install pillow`; imported when the first one is made) or tensors [..., C, H, W]. The
transforms take both and draw from pydist's generator, so `pydist.manual_seed` seeds them.
"""

__version__ = "0.28.0"  # the release of torchvision that these names and meanings follow

_SUBMODULES = frozenset(("datasets", "io", "models", "ops", "transforms", "utils"))


def __getattr__(name):
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"pydist.vision.{name}")
    raise AttributeError(f"module 'pydist.vision' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *_SUBMODULES})


def get_image_backend():
    """The package that loads images: "PIL"."""
    return "PIL"


def set_image_backend(backend):
    """Accepts "PIL", the only backend. Raises ValueError for any other."""
    if backend != "PIL":
        raise ValueError(f"Invalid backend '{backend}'. Options are 'PIL'")


def disable_beta_transforms_warning():
    """Does nothing: pydist has no such warning. Kept for scripts that call it."""
