"""Where the micro-batches of logical shards come from: a data set's rows by number, or a stream for each shard.

A source has begin(epoch, seed) for a pass, and step(number, mine), which gives the micro-batches of the shards `mine` in a
step of that pass as (an iterator over them in this order, how many each shard has), or None where the pass has ended for all
ranks. Steps are asked for in order, but a step that was not made, or whose shards have changed hands, is asked again.
lines() says what has to be the same on all ranks.
"""

from itertools import chain

import pydist
from pydist import _C
from pydist.distributed._group import process_group
from pydist.distributed._group.logical import key_of
from pydist.utils.data import prefetch
from pydist.utils.data.distributed import DistributedSampler, at
from pydist.utils.data.fetch import END, of_stream, random_libraries


def source_of(loader, accumulate, logical):
    """The source for a DataLoader. Raises ValueError for one whose rows belong to ranks."""
    if loader._is_iterable:
        return Streams(loader, accumulate, logical)
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, DistributedSampler) and sampler.is_by_shard:
        return Rows(loader, sampler, accumulate, logical)
    whose = " of its own ranks" if isinstance(sampler, DistributedSampler) else ""
    raise ValueError(
        f"shards: the loader's sampler is {type(sampler).__name__}{whose} (expected DistributedSampler(data), made after "
        "init_process_group(logical_shards=...), and a batch_size, so that rows belong to shards)"
    )


class Rows:
    """The rows of a data set by number. The loader's workers make batches ahead."""

    def __init__(self, loader, sampler, accumulate, logical):
        self.loader, self.sampler, self.accumulate, self.logical = loader, sampler, accumulate, logical
        self.size, self.drop = loader.batch_sampler.batch_size, loader.batch_sampler.drop_last

    @property
    def epoch(self):
        """The number of the pass."""
        return self.sampler.epoch

    def _batches(self, shard, total):
        """How many micro-batches a shard has in a pass over `total` rows."""
        items = len(range(shard, total, self.logical.shards))
        return items // self.size if self.drop else -(-items // self.size)

    def __len__(self):
        batches = self._batches(0, self.sampler.total_size)  # of the largest shard
        return (batches + self.accumulate - 1) // self.accumulate

    def lines(self):
        sampler = self.sampler
        return [
            f"a data set of {len(sampler.dataset)} rows",
            f"batches of {self.size} rows, drop_last={self.drop}",
            f"{sampler.total_size} rows a pass, shuffle={sampler.shuffle}, seed {sampler.seed}, epoch {self.epoch}",
        ]

    def begin(self, epoch, seed):
        """Begins a pass: the next one, or this one."""
        if epoch is not None:
            self.sampler.set_epoch(epoch)
        self.sampler.start_epoch()
        self.seed = key_of("data", seed, self.sampler.seed, self.sampler.epoch)
        self.order, self.made_for = self.sampler.order(), None
        self.total = self.sampler.total_size
        self.batches = [self._batches(shard, self.total) for shard in range(self.logical.shards)]
        self.steps, self.whole = len(self), min(self.batches) // self.accumulate  # whole: of all shards

    def _length(self, shard, step):
        """How many micro-batches a shard has in a step."""
        if step < self.whole:
            return self.accumulate
        left = self.batches[shard] - step * self.accumulate
        return self.accumulate if left >= self.accumulate else left if left > 0 else 0

    def _jobs(self, first, mine):
        """(the state of its random generator, indices) of the micro-batches of these shards from step `first` on."""
        mine = [(shard, range(shard, self.total, self.logical.shards)) for shard in mine]
        seed, size, order = self.seed, self.size, self.order
        for step in range(first, self.steps):
            begin = step * self.accumulate
            for shard, rows in mine:
                for n in range(begin, begin + self._length(shard, step)):
                    yield (seed, n << 32, shard), at(order, rows[n * size : (n + 1) * size])

    def step(self, number, mine):
        """The micro-batches of these shards in a step."""
        if number >= self.steps:
            return None
        if self.made_for != (number, mine):
            self.loader._seed = self.seed
            self.feed = iter(self.loader._from_jobs(self._jobs(number, mine), libraries=True))
            self.lengths = dict.fromkeys(mine, self.accumulate)
        self.made_for = number + 1, mine
        lengths = self.lengths if number < self.whole else {shard: self._length(shard, number) for shard in mine}
        return self.feed, lengths


class Streams:
    """A stream for each shard: the data set is iterated once for each, and sees get_worker_info() with the shard's number
    and the number of shards. All ranks end the pass when no shard has rows left."""

    def __init__(self, loader, accumulate, logical):
        if loader.num_workers or loader.batch_size is None:
            raise ValueError(
                f"shards: an IterableDataset with num_workers={loader.num_workers} and batch_size={loader.batch_size} (expected "
                "num_workers=0 and a batch_size: each logical shard reads a stream of its own)"
            )
        self.loader, self.accumulate, self.logical = loader, accumulate, logical
        self.epoch = getattr(loader, "_pass_over_shards", -1)

    def __len__(self):
        raise TypeError(
            "shards: a loop over an IterableDataset has no length (expected a data set with rows by number)"
        )

    def lines(self):
        return [
            f"a stream in batches of {self.loader.batch_size} rows, drop_last={self.loader.drop_last}, pass {self.epoch}"
        ]

    def begin(self, epoch, seed):
        """Begins a pass: the next one, or this one."""
        self.epoch = self.loader._pass_over_shards = self.epoch + 1 if epoch is None else epoch
        self.seed = key_of("data", seed, "stream", self.epoch)
        self.streams, self.made_for = {}, None

    def _open(self, shard, done):
        """A function that makes the next batch of a shard, after so many batches."""
        loader, count = self.loader, done
        fetch = of_stream(loader.dataset, loader.collate_fn, loader.batch_size, loader.drop_last)
        info = prefetch.WorkerInfo(shard, self.logical.shards, self.seed + shard, loader.dataset)

        def take():
            nonlocal count
            before, state = _C._rng_key(), (self.seed, count << 32, shard)
            outside, prefetch._here.info = prefetch.get_worker_info(), info
            try:
                with random_libraries(state):
                    _C.set_rng_state(state)
                    return fetch(None)
            finally:
                count += 1
                prefetch._here.info = outside
                _C.set_rng_state(before)

        start, count = count, 0
        for _ in range(start):
            take()
        return take

    def step(self, number, mine):
        """The micro-batches of these shards in a step. Every rank calls it."""
        if self.made_for != (number, mine):  # a new pass, another attempt, or other shards: from their beginnings
            self.streams = {shard: self._open(shard, number * self.accumulate) for shard in mine}
        self.made_for = number + 1, mine
        found = {}
        for shard in mine:
            batches = (self.streams[shard]() for _ in range(self.accumulate))
            found[shard] = [batch for batch in batches if not (isinstance(batch, str) and batch == END)]
        any_left = pydist.tensor([max(map(len, found.values()), default=0)], dtype=pydist.int64, device="cpu")
        process_group.current().all_reduce(any_left, "max")
        if not any_left.item():
            return None
        return iter(chain.from_iterable(found.values())), {shard: len(batches) for shard, batches in found.items()}
