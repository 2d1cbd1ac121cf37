"""DataLoader: batches of a dataset."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pydist.compat.mxnet._base import Context
from pydist.compat.mxnet.gluon.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from pydist.compat.mxnet.ndarray import ndarray as nd


def default_batchify_fn(data):
    """One array of a list of samples, or a list of arrays of a list of tuples."""
    if isinstance(data[0], nd.NDArray):
        return nd.stack(*data)
    if isinstance(data[0], (tuple, list)):
        return [default_batchify_fn(column) for column in zip(*data)]
    return nd.from_numpy(np.asarray(data))


class DataLoader:
    """Batches in the order of a sampler. num_workers threads make batches in advance. pin_memory: batches are on
    cpu_pinned(pin_device_id)."""

    def __init__(self, dataset, batch_size=None, shuffle=False, sampler=None, last_batch=None, batch_sampler=None,
                 batchify_fn=None, num_workers=0, pin_memory=False, pin_device_id=0, prefetch=None, thread_pool=False,
                 timeout=120, try_nopython=None, auto_reload=False):  # fmt: skip
        apart = batch_size is not None or shuffle or sampler is not None or last_batch is not None
        if (
            (batch_sampler is not None) == apart
            or (batch_sampler is None and batch_size is None)
            or (sampler and shuffle)
        ):
            raise ValueError("DataLoader: got no batch_size, a batch_sampler beside others, or a sampler beside "
                             "shuffle (expected batch_size with sampler or shuffle, or batch_sampler)")  # fmt: skip
        if batch_sampler is None:
            sampler = sampler or (RandomSampler if shuffle else SequentialSampler)(len(dataset))
            batch_sampler = BatchSampler(sampler, batch_size, last_batch or "keep")
        self._dataset, self._batch_sampler, self._timeout = dataset, batch_sampler, timeout
        self._batchify, self._workers = batchify_fn or default_batchify_fn, max(0, num_workers)
        self._home = Context("cpu_pinned", pin_device_id) if pin_memory else None
        self._ahead = max(1, 2 * self._workers if prefetch is None else prefetch)

    def _batch(self, places):
        return self._pin(self._batchify([self._dataset[i] for i in places]))

    def _pin(self, batch):
        if self._home is None or not isinstance(batch, (nd.NDArray, list)):
            return batch
        return [self._pin(each) for each in batch] if isinstance(batch, list) else batch.as_in_context(self._home)

    def __iter__(self):
        if not self._workers:
            yield from map(self._batch, self._batch_sampler)
            return
        with ThreadPoolExecutor(self._workers) as pool:
            waiting = []
            for places in self._batch_sampler:
                waiting.append(pool.submit(self._batch, places))
                if len(waiting) > self._ahead:
                    yield waiting.pop(0).result(self._timeout)
            for each in waiting:
                yield each.result(self._timeout)

    def __len__(self):
        return len(self._batch_sampler)
