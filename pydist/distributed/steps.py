"""Training steps whose bits do not depend on the number of ranks.

A step is the work of V logical shards (`init_process_group(logical_shards=V)`). Each has its own rows of the data, its
own random numbers and its own gradient; the step's gradient is their mean, added in one fixed order. The ranks share the
shards: with 8 shards 1 rank runs 8, 3 ranks run 3, 3 and 2, 8 ranks one each, and all of these make the same bits.
docs/guide/shards.md explains it; docs/internals/shards.md says what exactly a shard is.
"""

from time import perf_counter_ns

import pydist
from pydist import _C, _replicas
from pydist.distributed import ledger, member
from pydist.distributed._group import process_group
from pydist.distributed._group.logical import current
from pydist.distributed._ops.agreement import check_agreement
from pydist.distributed.sources import source_of

__all__ = ["Shard", "Shards", "Step", "shards"]


def _logical(op):
    logical = current()
    if logical is None:
        raise RuntimeError(
            f"{op}: there are no logical shards (expected init_process_group(logical_shards=...), PYDIST_SHARDS or "
            "pydist.run --logical-shards)"
        )
    return logical


def _check_step(args, kwargs):
    logical = current()
    if logical is None:
        return
    if logical.open is not None:
        raise RuntimeError(
            f"step: an optimizer is stepped inside of logical shard {logical.open} (expected a step after the loop over the "
            "shards)"
        )
    if args or kwargs.get("closure") is not None:
        raise NotImplementedError("step: a closure with logical shards (expected a step without one)")


class Shard:
    """A logical shard of a step: iterating gives its micro-batches. `number`: from 0 to V - 1."""

    def __init__(self, step, number, batches, length):
        self.step, self.number = step, number
        self._batches, self._length, self._left = batches, length, length

    def __len__(self):
        return self._length

    def __iter__(self):
        while self._left:
            batch = next(self._batches)
            if ledger.on:
                ledger.batch(batch)
            if self._left == 1 and self.step._overlaps:
                for model in self.step._models:
                    model.last_backward()
            self._left -= 1
            yield batch


class Step:
    """A training step. `number`: how many were made before it. Iterating gives the logical shards of this rank, which
    may be none; afterwards .grad of each parameter is the mean over all shards of all ranks."""

    has_gradient = False  # all shards of all ranks were run
    _shard = None  # the one under way, also while an exception leaves it
    _total = None  # of the loop's `count`

    def __init__(self, loop, dealt, feed, lengths):
        self._logical, self._overlaps, self._count = loop._logical, loop.overlap, loop.count
        self._feed, self._lengths, (self._blocks, self._mine) = feed, lengths, dealt
        self.number = self._logical.step
        self._models = [m for m in member.members() if getattr(m, "runs_shards", False)]
        self._seed = _C._rng_key()[0]
        self._noted, self._means = {}, {}

    def __iter__(self):
        logical, models = self._logical, self._models
        if self.has_gradient or logical.open is not None:
            raise RuntimeError("shards: the shards of a step are run twice (expected one loop over them)")
        if ledger.on:
            ledger.begin(self)
        if self._count is not None:
            self._load_and_count()
        try:
            for at, number in enumerate(self._mine):
                logical.open = self._shard = number
                _C._enter_shard(self._seed, self.number, number)
                for model in models:
                    model.open_shard(at)
                shard = Shard(self, number, self._feed, self._lengths[number])
                begin = perf_counter_ns()
                yield shard
                logical.open = None
                if shard._left:
                    raise RuntimeError(
                        f"shards: shard {number} was left before its last micro-batch, with {shard._left} of {len(shard)} "
                        "to come (expected a loop to its end)"
                    )
                for model in models:
                    model.close_shard(number)
                self._shard = None
                if ledger.on:
                    ledger.shard(self, number)
                logical.times.append(perf_counter_ns() - begin)
        finally:
            logical.open = None
            _C._leave_shards()
        owner = self._blocks.owner(0)
        for model in models:
            model.end_step(owner)
        _C.set_rng_state((self._seed, (2 * self.number + 2) << 32, 0))
        self.has_gradient = True
        if ledger.on:
            ledger.gradients(self)

    def _load_and_count(self):
        loaded = [next(self._feed) for number in self._mine for _ in range(self._lengths[number])]
        total = pydist.tensor([sum(map(self._count, loaded))], dtype=pydist.int64, device="cpu")
        process_group.current().all_reduce(total)
        self._total, self._feed = total.item(), iter(loaded)

    def global_mean(self, loss_sum):
        """A loss whose gradients, averaged over the shards, are those of (the sum of all losses of the step) / (the sum
        of their counts). loss_sum: the sum of the losses of this micro-batch. For loops with `count`."""
        if self._total is None:
            raise RuntimeError("global_mean: the step has no counts (expected shards(loader, count=...))")
        return loss_sum * (self._logical.shards / self._total if self._total else 0.0)

    def note(self, value, weight=1.0, name="loss"):
        """Keeps a number of this micro-batch, such as its loss, for `mean`."""
        if self._logical.open is None:
            raise RuntimeError("note: no shard is open (expected a call inside the loop over a shard)")
        value = float(value.detach()) if isinstance(value, _C.Tensor) else float(value)
        sums = self._noted.setdefault(name, {}).setdefault(self._logical.open, [0.0, 0.0])
        sums[0] += value * weight
        sums[1] += weight

    def mean(self, name="loss"):
        """The weighted mean of all numbers that the shards of all ranks have noted in this step, with the same bits for
        any number of ranks; NaN if there are none. Every rank calls it after the shards. In a Transaction the first call
        must come before the optimizer's step."""
        if name not in self._means:
            self._means[name] = self._mean(self._noted.get(name, {}))
        return self._means[name]

    def _mean(self, noted):
        if not self.has_gradient:
            raise RuntimeError("mean: the step's shards were not all run (expected a call after the loop over them)")
        rows = pydist.zeros(self._blocks.parts, 2, dtype=pydist.float64, device="cpu")
        for lo, size, rank, part in self._blocks.table:
            if rank == process_group.current().rank:
                for i in (0, 1):
                    rows[part, i] = _tree([noted.get(v, (0.0, 0.0))[i] for v in range(lo, lo + size)])
        process_group.current().all_reduce(rows, blocks=self._blocks)
        total, weight = rows[0].tolist()
        return total / weight if weight else float("nan")


def _tree(numbers):
    """The sum in the order of the tree; their number is a power of two."""
    half = len(numbers) // 2
    return numbers[0] if not half else _tree(numbers[:half]) + _tree(numbers[half:])


class Shards:
    """Steps over a loader: see `shards`."""

    def __init__(self, loader, accumulate=1, count=None, overlap=True):
        self._logical = _logical("shards")
        if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
            raise ValueError(f"shards: accumulate is {accumulate!r} (expected a number of micro-batches, at least 1)")
        if count is not None and not callable(count):
            raise TypeError(f"shards: count is {type(count).__name__} (expected a function of a batch, or None)")
        self.source = source_of(loader, accumulate, self._logical)
        self.count, self.overlap, self._resumed = count, overlap, None
        self._done, self._now = 0, None  # steps of this epoch that were made; the one under way
        self._began_with = _C._rng_key()[0]
        _replicas.stepping = _check_step

    def __len__(self):
        """Steps of an epoch."""
        return len(self.source)

    def _begin(self):
        """Begins an epoch, or goes on in one."""
        state, self._resumed = self._resumed, None
        self._done = 0 if state is None else state["done"]
        self._began_with = _C._rng_key()[0] if state is None else state["seed"]
        if state is not None:
            self._logical.step = state["step"]
        self.source.begin(None if state is None else state["epoch"], self._began_with)

    def _agree(self):
        """Raises RuntimeError on all ranks if their loops differ. Every rank calls it after _begin."""
        lines = [
            f"{self._logical.shards} logical shards",
            f"{self._done} of an epoch's steps made",
            *self.source.lines(),
        ]
        lines += [f"step {self._logical.step}", f"accumulate={self.source.accumulate}"]
        lines.append("no count" if self.count is None else "a count")
        check_agreement("shards: setting", lines, process_group.current())

    def _next(self, kind=Step):
        """The next step, or None at the end. After one that was not made, it is the same step once more."""
        dealt = self._logical.dealt()
        found = self.source.step(self._done, dealt[1])
        if found is None:
            self._done = 0
            return None
        self._now = kind(self, dealt, *found)
        return self._now

    def _made(self):
        step, self._now = self._now, None
        self._done += 1
        self._logical.step += 1
        if ledger.on:
            ledger.made(step)

    def __iter__(self):
        self._begin()
        self._agree()
        while (step := self._next()) is not None:
            yield step
            if not step.has_gradient:
                raise RuntimeError(
                    f"shards: step {step.number} ended before all its shards were run (expected `for shard in step:` to its "
                    "end)"
                )
            self._made()

    def state_dict(self):
        """Where the loop is, for any number of ranks: another loop goes on behind this step. Call it after the
        optimizer's step, or between loops. The models' and optimizers' states are not part of it."""
        made = self._now is not None and self._now.has_gradient
        return {
            "epoch": self.source.epoch,
            "done": self._done + made,
            "step": self._logical.step + made,
            "seed": self._began_with,
        }

    def load_state_dict(self, state):
        """Takes the state of state_dict(). The next loop goes on there."""
        self._resumed = {key: int(state[key]) for key in ("epoch", "done", "step", "seed")}


def shards(loader, accumulate=1, count=None, overlap=True):
    """Steps of one epoch over `loader`, each of them the work of all logical shards.

        dist.init_process_group(logical_shards=8)
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))   # rows of one shard
        model = DistributedDataParallel(net)
        for step in dist.shards(loader):
            optimizer.zero_grad()
            for shard in step:                # this rank's
                for x, y in shard:            # its micro-batches
                    loss_fn(model(x), y).backward()
            optimizer.step()

    loader: a DataLoader with a batch_size and a DistributedSampler without num_replicas and rank; or with an
    IterableDataset, which is read once for each shard, as get_worker_info() says. accumulate: so many
    micro-batches a shard and step; their gradients add up. count: a function of a batch that says how many samples or
    tokens it has, for Step.global_mean; the batches of a step are then loaded before its first forward. overlap=False:
    gradients are added and reduced at the end of a shard, not during its last backward, so a shard may call backward
    several times a micro-batch.

    Every rank makes the same steps, and one of them may have none of a step's shards. Rows that a shard is given do not
    depend on the number of ranks. Nor do random numbers: those of a forward depend on seed, step and shard, those of the
    loader's transforms on seed, epoch, batch and shard, also the numbers of `random` and NumPy, but for loaders with
    threads, which share their generators.

    Raises RuntimeError without logical shards, for ranks whose data sets or settings differ, for a collective inside a
    shard, and at the end of a step that left a shard or a micro-batch out; ValueError for a loader whose rows do not belong to shards.
    """
    return Shards(loader, accumulate, count, overlap)
