"""A dataset of noise, to try a program without data."""

import pydist
from pydist.vision.datasets.vision import VisionDataset


class FakeData(VisionDataset):
    """`size` random images [C, H, W] of `image_size`, as Pillow images, each with a class below `num_classes`.

    An item is the same each time: it is drawn with the seed index + random_offset. The class is an int64 tensor of 0
    dims, as in torchvision. Raises IndexError for an index out of range.
    """

    def __init__(
        self,
        size=1000,
        image_size=(3, 224, 224),
        num_classes=10,
        transform=None,
        target_transform=None,
        random_offset=0,
    ):
        super().__init__(transform=transform, target_transform=target_transform)
        self.size = size
        self.num_classes = num_classes
        self.image_size = image_size
        self.random_offset = random_offset

    def __getitem__(self, index):
        from pydist.vision.transforms.functional import to_pil_image

        if index >= len(self):
            raise IndexError(f"{type(self).__name__} index out of range: got {index} (expected 0 to {len(self) - 1})")
        generator = pydist.Generator().manual_seed(index + self.random_offset)
        image = pydist.randn(*self.image_size, generator=generator)
        target = pydist.randint(0, self.num_classes, size=(1,), generator=generator)[0]
        return self._transformed(to_pil_image(image), target)

    def __len__(self):
        return self.size
