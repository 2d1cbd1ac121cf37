"""How batches are made from a dataset: the functions that a loader's threads and processes run."""

from itertools import islice

from pydist.utils.data.collate import default_collate
from pydist.utils.data.dataset import row_getter

END = "end of the stream"


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
