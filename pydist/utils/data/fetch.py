"""How batches are made from a dataset: the functions that a loader's threads and processes run."""

import random
import sys
from contextlib import contextmanager
from itertools import islice

from pydist.utils.data.collate import default_collate
from pydist.utils.data.dataset import row_getter

END = "end of the stream"


def seed_libraries(state):
    """Seeds the generators of `random` and of NumPy, if that is loaded, from a state of ours."""
    seed, call, stream = state
    word = (seed * 0x9E3779B97F4A7C15 + call * 0xD1B54A32D192ED03 + stream * 0x8CB92BA72F3D8DD7) >> 7
    random.seed(word)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(word % (1 << 32))


@contextmanager
def random_libraries(state):
    """Inside, the generators of `random` and NumPy are seeded from `state`; afterwards they go on."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), numpy and numpy.random.get_state()
    seed_libraries(state)
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy:
            numpy.random.set_state(before[1])


def of_indices(dataset, collate, is_batched):
    """A function from what the sampler gives, an index or a list of indices, to a batch."""
    if not is_batched:
        return lambda index: collate(dataset[index])
    if collate is default_collate and (rows := row_getter(dataset)):
        return rows
    if many := getattr(dataset, "__getitems__", None):
        return lambda indices: collate(many(indices))
    return lambda indices: collate([dataset[i] for i in indices])


def of_stream(dataset, collate, batch_size, drop_last):
    """A function that returns the next batch of an IterableDataset, or END. The thread that calls it first starts the
    iteration, so the dataset sees that thread's get_worker_info()."""
    items = None

    def fetch(_):
        nonlocal items
        if items is None:
            items = iter(dataset)
        if batch_size is None:
            item = next(items, END)
            return item if item is END else collate(item)
        batch = list(islice(items, batch_size))
        if not batch or (drop_last and len(batch) < batch_size):
            return END
        return collate(batch)

    return fetch
