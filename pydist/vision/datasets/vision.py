"""The common part of all datasets of images."""

import os

from pydist.utils.data import Dataset


class StandardTransform:
    """(input, target) -> (transform(input), target_transform(target)). A transform that is None changes nothing."""

    def __init__(self, transform=None, target_transform=None):
        self.transform = transform
        self.target_transform = target_transform

    def __call__(self, input, target):
        if self.transform is not None:
            input = self.transform(input)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return input, target

    def __repr__(self):
        lines = [type(self).__name__]
        for name, transform in (("Transform", self.transform), ("Target transform", self.target_transform)):
            if transform is not None:
                first, *rest = repr(transform).splitlines()
                lines += [f"{name}: {first}", *(" " * (len(name) + 2) + line for line in rest)]
        return "\n".join(lines)


class VisionDataset(Dataset):
    """Pairs of image and target in the folder `root`. `transforms` takes and returns both; `transform` and
    `target_transform` take one each. Raises ValueError if `transforms` is given together with one of these.

    Subclasses define `__getitem__` and `__len__`, and `extra_repr` for more lines of their text.
    """

    _repr_indent = 4

    def __init__(self, root=None, transforms=None, transform=None, target_transform=None):
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ValueError("Only transforms or transform/target_transform can be passed as argument")
        self.root = os.path.expanduser(root) if isinstance(root, str) else root
        self.transform = transform
        self.target_transform = target_transform
        if transform is not None or target_transform is not None:
            transforms = StandardTransform(transform, target_transform)
        self.transforms = transforms

    def __len__(self):
        raise NotImplementedError(f"{type(self).__name__}.__len__")

    def _transformed(self, image, target):
        """The pair after `transform` and `target_transform`, which may be set after construction."""
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def __repr__(self):
        lines = [f"Number of datapoints: {len(self)}"]
        if self.root is not None:
            lines.append(f"Root location: {self.root}")
        lines += self.extra_repr().splitlines()
        if self.transforms is not None:
            lines.append(repr(self.transforms))
        return "\n".join([f"Dataset {type(self).__name__}", *(" " * self._repr_indent + line for line in lines)])

    def extra_repr(self):
        """More lines for the dataset's text."""
        return ""
