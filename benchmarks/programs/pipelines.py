"""A pass over an input pipeline: seconds per row, the median of passes.

    pipelines.py FRAMEWORK CASE FOLDER

benchmarks/data.py has made the files in the folder. FRAMEWORK: pydist, tensorflow, or torch (its DataLoader without
workers) or torch-2 (with two).
"""

import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SECONDS = 1.5  # of passes


def mnist(folder):
    import numpy as np

    with np.load(f"{folder}/mnist.npz") as arrays:
        return arrays["images"], arrays["labels"]


class Pydist:
    """The cases over pydist.data; and, since the names are tf.data's, a part of them over TensorFlow."""

    def __init__(self, folder, workers):
        import pydist
        from pydist import data

        self.folder, self.lib, self.data, self.io = folder, pydist, data, data
        self.string = data.string

    def slices(self):
        images, labels = mnist(self.folder)
        return self.data.Dataset.from_tensor_slices((images, labels)).shuffle(60_000).batch(64).prefetch(2)

    def mapped(self):
        images, labels = mnist(self.folder)
        ds = self.data.Dataset.from_tensor_slices((images, labels)).shuffle(60_000).batch(64)
        return ds.map(lambda x, y: (self.cast(x) / 255, y)).prefetch(2)

    def cast(self, x):
        return x.float()

    def _features(self):
        io, string, int64 = self.io, self.string, self.lib.int64
        return {"image": io.FixedLenFeature([], string), "label": io.FixedLenFeature([], int64)}

    def example(self):
        """Parsed a batch at a time."""
        features = self._features()
        ds = self.data.TFRecordDataset(f"{self.folder}/mnist.tfrecord").batch(128)
        return ds.map(lambda rows: self.io.parse_example(rows, features)).prefetch(2)

    def example_each(self):
        """Parsed row by row, in two threads where that helps."""
        features = self._features()
        ds = self.data.TFRecordDataset(f"{self.folder}/mnist.tfrecord")
        ds = ds.map(lambda row: self.io.parse_single_example(row, features), num_parallel_calls=2)
        return ds.batch(128).prefetch(2)

    def lines(self):
        return self.data.TextLineDataset(f"{self.folder}/lines.txt").batch(128).prefetch(2)

    def jpeg(self):
        """Decoded, cropped and flipped in two threads."""
        ds = self.data.TFRecordDataset(f"{self.folder}/jpeg.tfrecord")
        return ds.map(self._augmented, num_parallel_calls=2).batch(64).prefetch(2)

    def _augmented(self, record):
        top, left, flip = self.lib.randint(0, 17, (3,)).tolist()
        image = self.data.decode_jpeg(record, channels=3)[top : top + 80, left : left + 80]
        return image.flip(1) if flip % 2 else image

    def first(self):
        """Makes the data set, too: what counts is the time until the first batch."""
        return lambda: self.data.Dataset.range(10_000_000).shuffle(10_000_000).batch(64).take(1)


class Tensorflow(Pydist):
    def __init__(self, folder, workers):
        import tensorflow as tf

        self.folder, self.lib, self.data, self.io = folder, tf, tf.data, tf.io
        self.string = tf.string

    def cast(self, x):
        return self.lib.cast(x, self.lib.float32)

    def _augmented(self, record):
        image = self.lib.image.random_crop(self.io.decode_jpeg(record, channels=3), (80, 80, 3))
        return self.lib.image.random_flip_left_right(image)


class Torch:
    def __init__(self, folder, workers):
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        self.folder, self.lib, self.workers = folder, torch, workers
        self.loader, self.tensors = DataLoader, TensorDataset

    def slices(self):
        images, labels = (self.lib.from_numpy(array) for array in mnist(self.folder))
        options = {"num_workers": self.workers, "persistent_workers": self.workers > 0}
        return self.loader(self.tensors(images, labels), batch_size=64, shuffle=True, **options)

    def mapped(self):
        loader = self.slices()

        class Passes:
            def __iter__(self):
                return ((x.float() / 255, y) for x, y in loader)

        return Passes()


def rows_of(element):
    while isinstance(element, (tuple, list, dict)):
        element = next(iter(element.values() if isinstance(element, dict) else element))
    return int(element.shape[0])


def passed(made):
    """(seconds, rows) of a pass."""
    begin, rows = time.perf_counter(), 0
    for element in made() if callable(made) else made:
        rows += rows_of(element)
    return time.perf_counter() - begin, rows


def main():
    framework, case, folder = sys.argv[1:]
    kind = {"pydist": Pydist, "tensorflow": Tensorflow}.get(framework, Torch)
    made = getattr(kind(folder, 2 if framework.endswith("-2") else 0), case)()
    if callable(made):
        spent, rows = passed(made)
        seconds = [spent / rows]
    else:
        passed(made)  # what is done once belongs to no pass
        seconds, begin = [], time.perf_counter()
        while not seconds or time.perf_counter() - begin < SECONDS:
            spent, rows = passed(made)
            seconds.append(spent / rows)
    print(statistics.median(seconds))


if __name__ == "__main__":
    main()
