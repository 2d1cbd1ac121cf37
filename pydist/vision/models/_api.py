"""Networks by name, and where their published weights are."""

import fnmatch
import sys
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

import pydist
from pydist import hub

_SITE = "https://download.pytorch.org/models/"
_CLASSES = 1000  # the number of ImageNet's classes: all weights below are for ImageNet
_BUILDERS = {}  # name -> the function that builds the network


@dataclass(frozen=True)
class Weights:
    """One file of weights: its URL, the transform of images that it was trained with, and facts about it."""

    url: str
    transforms: object = field(compare=False)
    meta: dict = field(compare=False)


class WeightsEnum(Enum):
    """The published weights of a network. DEFAULT is the best one."""

    @classmethod
    def verify(cls, obj):
        """`obj`, or the member of this name. Raises KeyError for another name, TypeError for other objects."""
        if isinstance(obj, str):
            return cls[obj.removeprefix(f"{cls.__name__}.")]
        if obj is not None and not isinstance(obj, cls):
            raise TypeError(
                f"Invalid Weight class provided; expected {cls.__name__} but received {type(obj).__name__}."
            )
        return obj

    @property
    def path(self):
        """The path at which the file is expected: in torch.hub's folder of checkpoints."""
        return Path(hub.get_dir(), "checkpoints", self.url.rpartition("/")[2])

    def get_state_dict(self, *args, **kwargs):
        """The weights in the file. Raises FileNotFoundError, which says where to put it: nothing is downloaded."""
        if not self.path.is_file():
            raise FileNotFoundError(
                f"{self!r}: there is no file {self.path} (download it from {self.url}, or use weights=None)"
            )
        return pydist.load(self.path, map_location="cpu", weights_only=True)

    def __repr__(self):
        return f"{type(self).__name__}.{self.name}"

    @property
    def url(self):
        """The URL of the file."""
        return self.value.url

    @property
    def transforms(self):
        """The transform of images that the weights were trained with."""
        return self.value.transforms

    @property
    def meta(self):
        """Facts about the weights, a dictionary."""
        return self.value.meta


def _preset(resize_size, **options):
    from pydist.vision.transforms._presets import ImageClassification

    return ImageClassification(**{"crop_size": 224, "resize_size": resize_size, **options})


def weights_of(name, num_params, v1, v2=None, v1_resize=256):
    """The enumeration `name` of one or two files. The second file is for images resized to 232."""
    members = {}
    for version, file, size in (("IMAGENET1K_V1", v1, v1_resize), ("IMAGENET1K_V2", v2, 232)):
        if file is not None:
            members[version] = Weights(_SITE + file, partial(_preset, size), {"num_params": num_params})
    members["DEFAULT"] = list(members.values())[-1]
    weights = WeightsEnum(name, members, module=sys._getframe(1).f_globals["__name__"])
    weights.__doc__ = f"The published weights of {name.removesuffix('_Weights')}. DEFAULT is the best one."
    return weights


def builder(name, weights_class, make, *args, rename=None, **fixed):
    """The function `name`, which returns make(*args, **fixed, **kwargs), with weights if asked for.

    rename: a function from the names in a file to the network's names, if they differ.
    """

    def build(weights=None, progress=True, *, pretrained=False, **kwargs):
        if weights is True or (weights is None and pretrained):
            weights = weights_class.IMAGENET1K_V1
        weights = weights_class.verify(weights or None)
        if weights is None:
            return make(*args, **{**fixed, **kwargs})
        if kwargs.get("num_classes", _CLASSES) != _CLASSES:
            raise ValueError(f"{name}: num_classes={kwargs['num_classes']} with {weights!r} (expected {_CLASSES})")
        state = weights.get_state_dict()
        model = make(*args, **{**fixed, **kwargs})
        model.load_state_dict(state if rename is None else {rename(key): value for key, value in state.items()})
        return model

    build.__name__ = build.__qualname__ = name
    build.__module__ = sys._getframe(1).f_globals["__name__"]
    build.__doc__ = (
        f"{name}(weights=None, progress=True, **kwargs): the network, with kwargs as its class's arguments. "
        f"weights: None, a member of {weights_class.__name__} or its name; FileNotFoundError says where its file is "
        "looked for. pretrained=True means IMAGENET1K_V1."
    )
    build.weights_class = weights_class
    _BUILDERS[name] = build
    return build


def get_model_builder(name):
    """The function that builds the network `name`; case does not matter. Raises ValueError for an unknown name."""
    try:
        return _BUILDERS[name.lower()]
    except KeyError:
        raise ValueError(f"Unknown model {name} (expected one of list_models())") from None


def get_model(name, **config):
    """The network `name`, built with these arguments.

    >>> sum(p.numel() for p in get_model("squeezenet1_1", num_classes=10).parameters())
    727626
    """
    return get_model_builder(name)(**config)


def get_model_weights(name):
    """The enumeration of weights for a network's name or function."""
    return (name if callable(name) else get_model_builder(name)).weights_class


def get_weight(name):
    """The weights of a name such as "ResNet18_Weights.IMAGENET1K_V1". Raises ValueError for an unknown name."""
    class_name, _, member = name.partition(".")
    for build in _BUILDERS.values():
        if build.weights_class.__name__ == class_name and member in build.weights_class.__members__:
            return build.weights_class[member]
    raise ValueError(
        f"Unknown weights {name} (expected a class of weights and its member, such as ResNet18_Weights.DEFAULT)"
    )


def list_models(module=None, include=None, exclude=None):
    """The sorted names of all networks; of a module, or that match (do not match) patterns such as "resnet*"."""

    def matches(name, patterns):
        return any(fnmatch.fnmatch(name, p) for p in ([patterns] if isinstance(patterns, str) else patterns))

    names = [
        n
        for n, build in _BUILDERS.items()
        if module in (None, sys.modules[__package__]) or build.__module__ == module.__name__
    ]
    names = [n for n in names if (not include or matches(n, include)) and not (exclude and matches(n, exclude))]
    return sorted(names)
