"""Datasets under a strategy: global batches whose rows are divided among the replicas, in the same number of steps
on all ranks."""

import contextlib
import itertools
import logging
import random
import struct
import sys
import zlib
from array import array

from pydist import _C
from pydist.distribute.options import InputContext, InputReplicationMode
from pydist.distribute.shares import Share, bounds, rows_of, share_of
from pydist.distribute.survival import event
from pydist.distribute.values import PerReplica
from pydist.utils._pytree import tree_flatten

__all__ = ["DistributedDataset", "DistributedDatasetsFromFunction", "DistributedIterator"]

_SEED_BITS = 63
_KEY = struct.Struct("=3Q")  # a generator's seed, count and stream
_MISSING, _FAILED = -1, -2  # in the place of a number of rows: the dataset has ended, has raised


def as_rows(element, where):
    """(tensors, spec, rows) of an element. Raises ValueError unless all its parts are batches of the same rows."""
    leaves, spec = tree_flatten(element)
    tensors = []
    for leaf in leaves:
        if not isinstance(leaf, _C.Tensor):
            if not hasattr(leaf, "__array__"):
                raise TypeError(f"{where}: a part of an element is {type(leaf).__name__} (expected tensors or arrays)")
            leaf = _C.as_tensor(leaf)
        tensors.append(leaf)
    rows = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
    if len(rows) != 1 or None in rows:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise ValueError(f"{where}: got an element with parts of shape {shapes} (expected batches of equal length)")
    return tensors, spec, rows.pop()


def _described(tensors, spec):
    """The element_spec as a text, without the number of rows."""
    return f"{spec} of {[(tuple(t.shape[1:]), str(t.dtype)) for t in tensors]}"


def _checksum(tensors, rows):
    """Of an element's first and last row: ranks whose pipelines shuffle differently differ here."""
    found = 0
    for tensor in tensors if rows else ():
        for row in (tensor[:1], tensor[rows - 1 :]):
            found = zlib.crc32(row.detach().cpu().contiguous().view(_C.uint8).numpy().tobytes(), found)
    return found


@contextlib.contextmanager
def same_numbers(group):
    """Inside, the generators of pydist, NumPy and Python begin with rank 0's seed, on all ranks; afterwards they are
    as before."""
    seed = _C.tensor([random.getrandbits(_SEED_BITS)], dtype=_C.int64)
    group.broadcast(seed, 0, False)
    seed, own, python = seed.item(), _C.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    theirs = numpy.random.get_state() if numpy else None
    _C.manual_seed(seed)
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % (1 << 32))
    try:
        yield
    finally:
        _C.set_rng_state(own)
        random.setstate(python)
        if numpy:
            numpy.random.set_state(theirs)


class RankZeroDraws:
    """Inside `with draws:`, pydist's generator draws on all ranks what it draws on rank 0. Each rank's own generator goes
    on as if it had drawn as many numbers."""

    def __init__(self, strategy):
        self._strategy, self._key = strategy, None

    def _of_rank_0(self):
        group = self._strategy._group
        if group is None:
            return self._own
        keys = bytearray(_KEY.size * group.size)
        group.all_gather(keys, bytearray(_KEY.pack(*self._own)))
        return _KEY.unpack_from(keys)

    def __enter__(self):
        self._own = _C._rng_key()
        if self._key is None:
            self._key = event(self._strategy, self._of_rank_0)
        self._begun = self._key[1]
        _C.set_rng_state(self._key)

    def __exit__(self, *error):
        self._key = _C._rng_key()
        seed, count, stream = self._own
        _C.set_rng_state((seed, count + self._key[1] - self._begun, stream))


def shard_policy(dataset):
    """The name of a dataset's AutoShardPolicy: "AUTO" if it has none."""
    options = getattr(dataset, "options", None)
    options = options() if callable(options) else options
    policy = getattr(getattr(options, "experimental_distribute", None), "auto_shard_policy", None)
    return getattr(policy, "name", policy) or "AUTO"


_log = logging.getLogger("pydist.distribute")


def _is_pipeline(dataset):
    data = sys.modules.get("pydist.data")
    return data is not None and isinstance(dataset, data.Dataset)


def own_part(dataset, strategy, policy):
    """(the group's rank and size, "MINE" or "FILES", the data set) of what this rank makes of a data set of pydist.data, or
    None where every rank has to make all of it. MINE: its rows of each batch; FILES: batches for one replica of its files."""
    group = strategy._group
    if not _is_pipeline(dataset):
        return None
    from pydist.data import Dataset, parts
    from pydist.data.step import mixed

    kind, node = "MINE", None
    if policy != "FILE":
        node = parts.own_rows(dataset._node, group.rank, group.size)
    if node is None and policy != "DATA" and (policy == "FILE" or not dataset._node.indexed):
        kind, node = "FILES", parts.own_files(dataset._node, group.rank, group.size, strategy.num_replicas_in_sync)
    if node is None:
        if policy == "FILE":
            raise ValueError(
                "experimental_distribute_dataset: auto_shard_policy is FILE (expected a data set that lists at least "
                f"{group.size} files, and batches that {strategy.num_replicas_in_sync} replicas can divide)"
            )
        return None
    mine = Dataset(node, dataset._options)
    mine._base = dataset._base  # the seed of random operations in functions
    if kind == "FILES":  # whose elements have the same numbers on all ranks
        mine._base = lambda: mixed(dataset._base(), group.rank)
    return (group.rank, group.size), kind, mine


class DistributedDataset:
    """What `experimental_distribute_dataset` returns: an iterable. Each element is an element of the dataset with
    PerReplica parts where the process has several replicas, else with this rank's rows.

    Where a pydist.data.Dataset reads by number and ends in `batch`, and in functions of rows, a rank makes its own rows
    only. Where it is a stream of at least as many files as there are ranks, a rank reads its own files only.
    """

    def __init__(self, strategy, dataset, options=None):
        if not hasattr(dataset, "__iter__"):
            raise TypeError(
                f"experimental_distribute_dataset: dataset is {type(dataset).__name__} (expected an iterable)"
            )
        self._check_options(options)
        self._strategy, self._dataset = strategy, dataset
        self._policy, self._mine = shard_policy(dataset), None
        if strategy._logical is not None and self._policy == "FILE":
            raise ValueError(
                "experimental_distribute_dataset: auto_shard_policy is FILE with logical shards (expected AUTO, DATA or OFF)"
            )
        if self._policy != "OFF" and strategy._group is not None and strategy._logical is None:
            self._mine = own_part(dataset, strategy, self._policy)
            if self._mine is None and _is_pipeline(dataset):
                _log.info("experimental_distribute_dataset: each rank makes whole batches and keeps its rows of them")

    @staticmethod
    def _check_options(options):
        mode = getattr(options, "experimental_replication_mode", None)
        if mode is InputReplicationMode.PER_REPLICA:
            raise NotImplementedError("InputOptions: PER_REPLICA (expected InputReplicationMode.PER_WORKER)")

    _op = "experimental_distribute_dataset"

    def __iter__(self):
        strategy = self._strategy
        if self._mine is not None and strategy._group is not None:
            if self._mine[0] != (strategy._group.rank, strategy._group.size):  # ranks have died since
                self._mine = own_part(self._dataset, strategy, self._policy)
            _, kind, mine = self._mine
            if kind == "FILES":
                return _FilesIterator(strategy, _several(mine, len(strategy._devices), self._op), self._op, None, "OWN")
            return DistributedIterator(strategy, _MyRows(mine, len(strategy._devices)), self._op, None, "MINE")
        return DistributedIterator(strategy, self._dataset, self._op, self._divide, self._policy)

    def _divide(self, tensors, rows):
        """The tensors of each local replica."""
        if self._policy == "OFF":
            return [tensors] * len(self._strategy._next[0])
        return [[t[first:last] for t in tensors] for first, last in rows_of(rows, self._strategy)]

    def __len__(self):
        return len(self._dataset)

    @property
    def element_spec(self):
        """That of the dataset, if it has one."""
        return getattr(self._dataset, "element_spec", None)


class DistributedDatasetsFromFunction(DistributedDataset):
    """What `distribute_datasets_from_function` returns: each rank has its own dataset, of batches for one replica."""

    _op = "distribute_datasets_from_function"

    def __init__(self, strategy, dataset_fn, options=None):
        if not callable(dataset_fn):
            raise TypeError(
                f"{self._op}: dataset_fn is {type(dataset_fn).__name__} (expected a function of InputContext)"
            )
        self._check_options(options)
        group = strategy._group
        world, rank = (1, 0) if group is None else (group.size, group.rank)
        self._strategy, self._policy = strategy, "OWN"
        if strategy._logical is not None:
            self._dataset = self._of_shards(dataset_fn)
            return
        self._dataset = dataset_fn(InputContext(world, rank, strategy.num_replicas_in_sync))
        self._check_dataset(self._dataset)

    def _of_shards(self, dataset_fn):
        """A data set for each logical shard of this process."""
        if self._strategy._logical.measured:
            raise NotImplementedError(
                f"{self._op}: data sets of shards that may move to another rank (expected shares='even', or "
                "experimental_distribute_dataset)"
            )
        count = self._strategy.num_replicas_in_sync
        found = [dataset_fn(InputContext(count, shard, count)) for shard in self._strategy._next[0]]
        for dataset in found:
            self._check_dataset(dataset)
        return found

    def _check_dataset(self, dataset):
        if not hasattr(dataset, "__iter__"):
            raise TypeError(f"{self._op}: dataset_fn gave {type(dataset).__name__} (expected an iterable)")

    def __iter__(self):
        if self._strategy._logical is not None:
            source = _Beside(self._dataset, self._op)
        else:
            source = _several(self._dataset, len(self._strategy._devices), self._op)
        return DistributedIterator(self._strategy, source, self._op, None, self._policy)

    def __len__(self):
        return max(map(len, self._dataset)) if self._strategy._logical is not None else len(self._dataset)


class _several:
    """An iterable of a batch for each local replica: [(tensors, spec, rows)] by replica, the last ones without rows."""

    def __init__(self, dataset, count, op):
        self._dataset, self._count, self._op = dataset, count, op

    def __iter__(self):
        batches = []
        for element in self._dataset:
            batches.append(as_rows(element, self._op))
            if len(batches) == self._count:
                yield batches
                batches = []
        if batches:
            tensors, spec, _ = batches[0]
            yield batches + [([t[:0] for t in tensors], spec, 0)] * (self._count - len(batches))


class _Beside:
    """An iterable of a batch of each data set: [(tensors, spec, rows)], without rows for one that has ended."""

    def __init__(self, datasets, op):
        self._datasets, self._op = datasets, op

    def __iter__(self):
        for elements in itertools.zip_longest(*self._datasets):
            batches = [None if element is None else as_rows(element, self._op) for element in elements]
            tensors, spec, _ = next(batch for batch in batches if batch is not None)
            yield [([t[:0] for t in tensors], spec, 0) if batch is None else batch for batch in batches]


class _MyRows:
    """This rank's rows of each batch as a batch for each local replica. `place`: the pass. `check`: of its seeds, its pass,
    where it began and its steps."""

    def __init__(self, dataset, count):
        self._dataset, self._count = dataset, count

    def __iter__(self):
        self.place = iter(self._dataset)
        self.begin()
        return map(self._divided, self.place)

    def begin(self):
        """Notes where the pass begins."""
        state, steps = self.place.state_dict(), self._dataset._node.steps()
        told = (
            [state[name] for name in ("epoch", "base", "seeds", "next")],
            [(step.name, step.count()) for step in steps],
        )
        self.check = zlib.crc32(repr(told).encode())

    def _divided(self, element):
        tensors, spec, rows = as_rows(element, DistributedDataset._op)
        return [([t[a:b] for t in tensors], spec, b - a) for a, b in bounds(rows, self._count)]


class DistributedIterator:
    """One pass over a distributed dataset. Before each step the ranks compare 32 bytes: how many rows each has, the
    element's structure, and a checksum of its first and last row."""

    def __init__(self, strategy, source, op, divide, policy):
        self._strategy, self._op, self._divide, self._policy = strategy, op, divide, policy
        self._source, self._iterator, self._step, self._last = source, None, 0, None

    def __iter__(self):
        return self

    def get_next(self):
        """The next element. Raises StopIteration at the end."""
        return next(self)

    def state_dict(self):
        """Where the pass is, the same on all ranks: what an iterator of the data set itself would say
        (`pydist.data.Iterator`). So any number of ranks, or an iterator of the data set, goes on from it. Raises TypeError
        unless the data set is a `pydist.data.Dataset` that all ranks share."""
        return self._place("state_dict").state_dict()

    def load_state_dict(self, saved):
        """Goes where a pass over the same data set was. All ranks call it with the same state."""
        self._place("load_state_dict").load_state_dict(saved)
        if self._policy == "MINE":
            self._source.begin()

    def _place(self, what):
        """The iterator of the data set, which begins here if it has not."""
        if not _is_pipeline(self._source) and self._policy != "MINE":
            raise TypeError(
                f"{what}: ranks have files or data sets of their own, or the data set is not of pydist.data (expected a "
                "pydist.data.Dataset whose batches the ranks share)"
            )
        if self._iterator is None:
            with self._numbers():
                self._iterator = iter(self._source)
        return self._source.place if self._policy == "MINE" else self._iterator

    def _fetch(self):
        """(batches by local replica or [(tensors, spec, rows)] of the global batch, or None at the end)."""
        if self._iterator is None:
            with self._numbers():
                self._iterator = iter(self._source)
                return self._next_of_source()
        return self._next_of_source()

    def _numbers(self):
        """What random numbers the first element is made with: rank 0's, unless ranks have data sets of their own."""
        if self._strategy._group is None or self._policy == "OWN":
            return contextlib.nullcontext()
        if self._policy == "MINE" or _is_pipeline(self._source):
            return RankZeroDraws(self._strategy)
        return same_numbers(self._strategy._group)

    def _next_of_source(self):
        try:
            element = next(self._iterator)
        except StopIteration:
            return None
        return element if self._policy in ("OWN", "MINE") else [as_rows(element, self._op)]

    def __next__(self):
        parts, spec, _, _ = self.next_parts()
        return spec.unflatten([values[0] if len(values) == 1 else PerReplica(values) for values in zip(*parts)])

    def next_parts(self):
        """(the tensors of each local replica, the element's structure, who has which rows, the tensors of the whole batch
        if it is known)."""
        error = batches = None
        self._rows = [0]
        self._strategy.deal_anew()
        try:
            batches = self._fetch()
        except Exception as raised:
            error = raised
        if self._strategy._group is not None:
            batches = self._agree(batches, error)
        if error is not None:
            raise error
        if batches is None:
            raise StopIteration
        self._step += 1
        tensors, spec, rows = batches[0]
        if self._policy not in ("OWN", "MINE"):
            return self._divide(tensors, rows), spec, self._share(rows), tensors
        return [tensors for tensors, _, _ in batches], spec, self._own_share([n for _, _, n in batches]), None

    def _share(self, rows):
        strategy = self._strategy
        if self._policy != "OFF":
            return share_of(rows, strategy)
        count, deal = strategy.num_replicas_in_sync, None if strategy._logical is None else strategy._next
        return Share([rows] * len(strategy._next[0]), rows * count, count, 0, deal=deal)

    def _shards_share(self, rows):
        """The Share of logical shards with data sets of their own."""
        strategy = self._strategy
        counts = _C.zeros(strategy.num_replicas_in_sync, dtype=_C.int64)
        for shard, n in zip(strategy._next[0], rows):
            counts[shard] = n
        if strategy._group is not None:
            strategy._group.all_reduce(counts, "sum", False)
        counts = counts.tolist()
        first = next((shard for shard, n in enumerate(counts) if n), 0)
        return Share(rows, sum(counts), len(counts), first, deal=strategy._next)

    def _own_share(self, rows):
        if self._strategy._logical is not None:
            return self._shards_share(rows)
        by_rank, local = self._rows if self._strategy._group is not None else [sum(rows)], len(rows)
        first = next((local * rank for rank, n in enumerate(by_rank) if n > 0), 0)
        by_rank = [max(n, 0) for n in by_rank]
        return Share(rows, sum(by_rank), self._strategy.num_replicas_in_sync, first, by_rank)

    def _agree(self, batches, error):
        """The batches with which this rank takes part in the step; None at the end on all ranks. Raises an error on all
        ranks if one of them has raised or their datasets differ."""
        own = self._policy == "OWN"
        rows = sum(rows for _, _, rows in batches) if batches else _FAILED if error is not None else _MISSING
        described = _described(*batches[0][:2]) if batches else ""
        word = zlib.crc32(described.encode())
        if self._policy == "MINE":
            checksum = getattr(self._source, "check", 0)
        else:
            checksum = 0 if own or not batches or self._policy == "OFF" else _checksum(batches[0][0], rows)
        table = event(self._strategy, lambda: self._compared(array("q", [rows, word, checksum, own])))
        self._rows = all_rows = list(table[0::4])
        if _FAILED in all_rows:
            if error is None:
                rank = all_rows.index(_FAILED)
                raise RuntimeError(f"{self._op}: the dataset of rank {rank} has raised an error in step {self._step}")
            return None
        if all(count == _MISSING for count in all_rows):
            return None
        there = [rank for rank, count in enumerate(all_rows) if count != _MISSING]
        self._check_specs(described, {table[4 * rank + 1] for rank in there})
        if not own:
            self._check_same(all_rows, list(table[2::4]))
            return batches
        return self._filled(batches, len(there) < len(all_rows), there[0])

    def _compared(self, words):
        """The words of all ranks."""
        group = self._strategy._group
        if group is None:
            return words
        table = array("q", bytes(8 * len(words) * group.size))
        group.all_gather(table, words)
        return table

    def _check_specs(self, described, words):
        if len(words) < 2:
            return
        for rank, other in enumerate(self._texts(described)):
            if other and described and other != described:
                raise ValueError(
                    f"{self._op}: rank {self._strategy._group.rank} has elements {described}, rank {rank} "
                    f"{other} in step "
                    f"{self._step} (expected the same)"
                )
        raise ValueError(f"{self._op}: the ranks' elements differ in step {self._step} (expected the same structure)")

    def _texts(self, text):
        from pydist.distributed._ops.objects import all_gather_object

        found = [None] * self._strategy._group.size
        all_gather_object(found, text, self._strategy._group)
        return found

    def _check_same(self, all_rows, checksums):
        expected = [all_rows[0]] * len(all_rows)
        if self._policy == "MINE" and min(all_rows) >= 0:  # each rank's part of a batch
            expected = [b - a for a, b in bounds(sum(all_rows), len(all_rows))]
        if all_rows != expected:
            said = ", ".join(f"rank {r} has {n if n >= 0 else 'no more'} rows" for r, n in enumerate(all_rows))
            raise ValueError(
                f"{self._op}: {said} in step {self._step} (expected the same dataset on all ranks; "
                "distribute_datasets_from_function takes one of each rank's own)"
            )
        for rank, checksum in enumerate(checksums):
            if checksum != checksums[0]:
                raise ValueError(
                    f"{self._op}: rank {rank} has other rows than rank 0 in step {self._step} (expected the same order on "
                    "all ranks: seed the shuffle; distribute_datasets_from_function takes one of each rank's own)"
                )

    def _filled(self, batches, some_ended, source):
        """The batches of this rank; one without rows, of the structure of the others', if its dataset has ended."""
        if some_ended:
            mine = None if batches is None else [([t[:0] for t in batches[0][0]], batches[0][1], 0)]
            found = self._texts(mine)[source]
            if batches is None:
                batches = found * len(self._strategy._next[0])
        return batches


class _FilesIterator(DistributedIterator):
    """A pass over this rank's files, whose list is in the same order on all ranks."""

    def _numbers(self):
        return RankZeroDraws(self._strategy)
