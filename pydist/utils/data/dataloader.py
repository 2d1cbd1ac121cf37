"""DataLoader: batches of a dataset, in the order of a sampler."""

from itertools import islice, repeat

from pydist import _C
from pydist.distributed.process_group import get_rank
from pydist.utils.data.collate import default_collate, default_convert
from pydist.utils.data.dataset import IterableDataset, row_getter
from pydist.utils.data.prefetch import prefetch
from pydist.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

_END = object()


class DataLoader:
    """Iterates over `collate_fn([dataset[i] for i in batch])` for the batches of `batch_sampler`, or of `batch_size`
    items of `sampler`, or of all items in turn or (shuffle) at random. `batch_size=None`: single items.

    With `num_workers` threads `prefetch_factor` (2) batches per thread are made ahead; the order stays, an error in a
    thread is raised here with its own traceback, and no thread outlives the loop. Random numbers drawn for a batch
    depend on the seed, the epoch, the batch's number and the rank, not on the number of threads. A whole batch of a
    TensorDataset is one index operation per tensor. `pin_memory`, `multiprocessing_context` and `persistent_workers`
    are accepted and mean nothing here. An IterableDataset is read by one thread at most.

    >>> import pydist
    >>> data = pydist.utils.data.TensorDataset(pydist.arange(5))
    >>> [batch.tolist() for batch, in pydist.utils.data.DataLoader(data, batch_size=2, num_workers=1)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        in_order=True,
    ):
        if num_workers < 0:
            raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable threads.")
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if prefetch_factor is not None and num_workers == 0:
            raise ValueError("prefetch_factor option could only be specified with num_workers > 0")
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError("prefetch_factor option should be positive")
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers else prefetch_factor
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.pin_memory = pin_memory
        self.persistent_workers = persistent_workers
        self._is_iterable = isinstance(dataset, IterableDataset)
        self._set_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if collate_fn is None:
            collate_fn = default_convert if self.batch_size is None and self.batch_sampler is None else default_collate
        self.collate_fn = collate_fn

    def _set_order(self, batch_size, shuffle, sampler, batch_sampler, drop_last):
        if self._is_iterable:
            if shuffle:
                raise ValueError(f"DataLoader with IterableDataset: expected no shuffle option, but got {shuffle}")
            if sampler is not None or batch_sampler is not None:
                raise ValueError("DataLoader with IterableDataset: expected no sampler and no batch_sampler")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
                )
            batch_size, drop_last = None, False
        elif batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        elif batch_size is not None and batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if not self._is_iterable:
            if sampler is None and shuffle:
                sampler = RandomSampler(self.dataset, generator=self.generator)
            elif sampler is None:
                sampler = SequentialSampler(self.dataset)
            if batch_size is not None:
                batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler

    def __len__(self):
        if not self._is_iterable:
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
        size = len(self.dataset)
        if self.batch_size is None:
            return size
        return (size + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size

    def __iter__(self):
        for sampler in (self.sampler, getattr(self.batch_sampler, "sampler", None)):
            if hasattr(sampler, "start_epoch"):
                sampler.start_epoch()
                break
        return self._iterate_stream() if self._is_iterable else self._iterate()

    def _iterate(self):
        tasks = self.sampler if self.batch_sampler is None else self.batch_sampler
        return self._results(tasks, self._fetch_function(), self.num_workers)

    def _fetch_function(self):
        dataset, collate = self.dataset, self.collate_fn
        if self.batch_sampler is None:
            return lambda index: collate(dataset[index])
        if collate is default_collate and (rows := row_getter(dataset)):
            return rows
        if many := getattr(dataset, "__getitems__", None):
            return lambda indices: collate(many(indices))
        return lambda indices: collate([dataset[i] for i in indices])

    def _iterate_stream(self):
        items = None  # made by the thread that reads it, which then knows its get_worker_info()

        def fetch(_):
            nonlocal items
            if items is None:
                items = iter(self.dataset)
            if self.batch_size is None:
                item = next(items, _END)
                return item if item is _END else self.collate_fn(item)
            batch = list(islice(items, self.batch_size))
            if not batch or (self.drop_last and len(batch) < self.batch_size):
                return _END
            return self.collate_fn(batch)

        for result in self._results(repeat(None), fetch, min(self.num_workers, 1)):
            if result is _END:
                return
            yield result

    def _results(self, tasks, fetch, workers):
        seed, rank = _C.randint(0, 1 << 62, (), generator=self.generator).item(), get_rank()

        def seeded(job):
            number, task = job
            _C.set_rng_state((seed + number, 0, rank))
            return fetch(task)

        def aside(job):  # in the consumer's thread, whose random numbers go on as if there were no loader
            before = _C.get_rng_state()
            try:
                return seeded(job)
            finally:
                _C.set_rng_state(before)

        if workers == 0:
            return map(aside, enumerate(tasks))
        ahead = workers * self.prefetch_factor
        return prefetch(
            enumerate(tasks), seeded, self._start_thread, workers, ahead, self.timeout or None, seed, self.dataset
        )

    def _start_thread(self, worker):
        _C._rng_own(True)
        _C._thread_num_threads(1)  # the workers share the cores with the training
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)
