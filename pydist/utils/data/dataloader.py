"""DataLoader: batches of a dataset, in the order of a sampler."""

import os
from functools import partial
from itertools import chain, islice, repeat
from operator import itemgetter

from pydist import _C, cuda
from pydist.distributed._group.process_group import get_rank
from pydist.utils.data import _order
from pydist.utils.data.collate import default_collate, default_convert
from pydist.utils.data.dataset import IterableDataset, row_getter
from pydist.utils.data.fetch import END, of_indices, of_stream, random_libraries
from pydist.utils.data.pin import pinned
from pydist.utils.data.prefetch import prefetch
from pydist.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

_CONTEXTS = ("fork", "forkserver", "spawn")


class DataLoader:
    """Iterates over `collate_fn([dataset[i] for i in batch])`. Batches come from `batch_sampler`, or have `batch_size`
    items of `sampler`, or of all items in order or (shuffle) at random. `batch_size=None`: single items.

    With `num_workers` threads, `prefetch_factor` (2) batches per thread are made ahead. The order stays the same. An
    error in a thread is raised here with its own traceback, and no thread outlives the loop. Random numbers drawn for a
    batch depend on the seed, the epoch, the batch's number and the rank, not on the number of threads. A whole batch of
    a TensorDataset is one index operation per tensor. At most one thread reads an IterableDataset. `pin_memory`:
    tensors are in page-locked memory, from which `to("cuda", non_blocking=True)` need not wait; without a GPU it does
    nothing.

    `multiprocessing_context` "spawn" or "fork" (in compat mode the default is fork): the workers are processes. Their
    tensors arrive as shared memory, and they end with this process. Each worker reads its own IterableDataset.
    `persistent_workers` keeps them between epochs. `state_dict()` and `load_state_dict()` continue inside an epoch.

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
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if isinstance(multiprocessing_context, str) and multiprocessing_context not in _CONTEXTS:
            raise ValueError(f"multiprocessing_context is {multiprocessing_context!r} (expected one of {_CONTEXTS})")
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
        if multiprocessing_context is None and num_workers and os.environ.get("PYDIST_COMPAT") == "1":
            multiprocessing_context = "fork"
        self.multiprocessing_context = multiprocessing_context
        self._pool = self._resumed = self._begun = None
        self._batches = 0
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
        resumed, self._resumed = self._resumed, None
        self._batches = resumed["batches"] if resumed and not self._is_iterable else 0
        epoch_of = next(
            (
                s
                for s in (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))
                if hasattr(s, "start_epoch")
            ),
            None,
        )
        if resumed is None:
            if epoch_of is not None:
                epoch_of.start_epoch()
            self._begun = {
                "random": _C._rng_key(),
                "generator": None if self.generator is None else self.generator._key(),
                "epoch": getattr(epoch_of, "epoch", None),
            }
            self._seed = _order.seed(self.generator)
            return self._counted(self._tasks(), 0)
        return self._go_on(resumed, epoch_of)

    def _go_on(self, state, epoch_of):
        """The rest of the epoch of a state dictionary: its order is drawn again, and batches that were given out are
        skipped."""
        before = _C._rng_key()
        self._begun, skipped = dict(state["begun"]), state["batches"]
        _C.set_rng_state(self._begun["random"])
        if self.generator is not None:
            self.generator.set_state(self._begun["generator"])
        if epoch_of is not None:
            epoch_of.set_epoch(self._begun["epoch"])
            epoch_of.start_epoch()
        self._seed = _order.seed(self.generator)
        if self._is_iterable:
            _C.set_rng_state(before)
            return islice(self._counted(self._tasks(), 0), skipped, None)
        tasks = self._tasks()
        for _ in islice(tasks, skipped):
            pass
        first = list(islice(tasks, 1))  # if no batch was skipped, the order is drawn now
        _C.set_rng_state(before)
        return self._counted(chain(first, tasks), skipped)

    def _counted(self, tasks, skipped):
        for result in self._results(tasks, skipped):
            if isinstance(result, str) and result == END:
                break
            self._batches += 1
            yield result
        self._batches = 0
        self._begun = None

    def state_dict(self):
        """The state of the current epoch: {"begun": what its order is drawn from, "batches": how many batches were
        given out}; {"begun": None} between epochs. After another loader has loaded it, its next loop goes on with the
        next batch. Random numbers that the training draws are not part of it."""
        return {"begun": self._begun and dict(self._begun), "batches": self._batches}

    def load_state_dict(self, state_dict):
        """Takes the state of state_dict(). Raises KeyError for any other dictionary."""
        begun, batches = state_dict["begun"], state_dict["batches"]
        self._resumed = None if begun is None else {"begun": begun, "batches": batches}

    def _maker(self):
        """What makes a new fetch function, in this process or another one."""
        if self._is_iterable:
            return partial(of_stream, self.dataset, self.collate_fn, self.batch_size, self.drop_last)
        return partial(of_indices, self.dataset, self.collate_fn, self.batch_sampler is not None)

    def _is_pure(self):
        """Whether a batch is rows of tensors, so that no program of the user runs to make it."""
        return self.batch_sampler is not None and self.collate_fn is default_collate and bool(row_getter(self.dataset))

    def _tasks(self):
        if self._is_iterable:
            return repeat(None)
        return iter(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def _results(self, tasks, skipped):
        """The batches of the tasks. The first one has the number `skipped`."""
        seed, rank = self._seed, get_rank()
        return self._from_jobs(((seed + number, 0, rank), task) for number, task in enumerate(tasks, skipped))

    def _from_jobs(self, jobs, libraries=False):
        """The results of jobs, which are pairs (state of the random generator, task), in order. `libraries`: the
        generators of `random` and NumPy get a seed from that state, too, except in threads, which share them."""
        seed, pure = self._seed, self._is_pure()
        libraries = libraries and not pure
        pins = self.pin_memory and cuda.is_available()
        if self.num_workers and self.multiprocessing_context is not None:
            made = self._from_processes(jobs, seed, libraries)
            return map(pinned, made) if pins else made
        make = self._maker()()
        fetch = (lambda task: pinned(make(task))) if pins else make

        def seeded(job):
            state, task = job
            _C.set_rng_state(state)
            return fetch(task)

        def aside(job):  # runs in the consumer's thread, whose random numbers go on as if there were no loader
            before = _C._rng_key()
            try:
                if not libraries:
                    return seeded(job)
                with random_libraries(job[0]):
                    return seeded(job)
            finally:
                _C.set_rng_state(before)

        workers = min(self.num_workers, 1) if self._is_iterable else self.num_workers
        if workers == 0:
            return map(fetch, map(itemgetter(1), jobs)) if pure else map(aside, jobs)
        ahead = workers * self.prefetch_factor
        return prefetch(jobs, seeded, self._start_thread, workers, ahead, self.timeout or None, seed, self.dataset)

    def _from_processes(self, jobs, seed, libraries):
        from pydist.utils.data.processes import Pool, results

        pool, self._pool = self._pool, None
        if pool is None or not pool.processes:  # no pool yet, or it was closed after an error
            pool = Pool(
                self.multiprocessing_context, self.num_workers, self.dataset, self._maker(), self.worker_init_fn
            )
        if self.persistent_workers:
            self._pool = pool
        timeout = self.timeout or None
        return results(pool, jobs, seed, libraries, self.prefetch_factor, timeout, END, self.persistent_workers)

    def _start_thread(self, worker):
        _C._rng_own(True)
        _C._thread_num_threads(1)  # the workers share the cores with the training
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)
