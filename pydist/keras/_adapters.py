"""S3: what Keras makes batches of: pydist's data sets and loaders, too. Under a strategy with several replicas a batch is a
global one, whose rows are divided.

Where a batch's rows have numbers (arrays, and loaders with a sampler), each rank makes its own rows only, in rank 0's order.
Of other sources every rank makes the whole batches and keeps its rows; ranks compare what they have before each step
(distribute.input).
"""

import copy
import functools
from collections import deque
from contextlib import nullcontext

from pydist import _C
from pydist.data import Dataset
from pydist.distribute.context import get_strategy
from pydist.distribute.input import DistributedDataset, DistributedDatasetsFromFunction, RankZeroDraws
from pydist.distribute.shares import rows_of, share_of
from pydist.distributed._ops.agreement import check_agreement
from pydist.utils._pytree import tree_flatten, tree_map
from pydist.utils.data import DataLoader, DistributedSampler


class Part:
    """One global batch in this process: `values`, the data of each local replica, and its Share. A replica without rows has
    a row that does not count, so that layers need not know of empty batches."""

    __slots__ = ("share", "values")

    def __init__(self, values, share):
        self.values, self.share = values, share


def _rows(data):
    return next((len(leaf) for leaf in tree_flatten(data)[0] if leaf is not None), 0)


def divided(data, strategy):
    """The Part of a global batch."""
    rows = _rows(data)

    def cut(first, last):
        first, last = (first, last) if first < last else (0, 1)
        return tree_map(lambda leaf: None if leaf is None else leaf[first:last], data)

    return Part([cut(*mine) for mine in rows_of(rows, strategy)], share_of(rows, strategy))


class _MySampler:
    """The rows of this process's replicas in each batch of a sampler: a list for each replica. `shares` gets who has how
    many. ahead: a worker takes batches before their step."""

    def __init__(self, sampler, strategy, ahead):
        self.sampler, self.strategy, self.ahead, self.shares = sampler, strategy, ahead, deque()

    def __iter__(self):
        draws = nullcontext() if self.strategy._group is None else RankZeroDraws(self.strategy)
        batches = iter(self.sampler)
        if self.ahead:
            self.strategy.deal_anew(now=True)
        while True:
            if not self.ahead:
                self.strategy.deal_anew()
            with draws:
                batch = next(batches, None)
            if batch is None:
                return
            self.shares.append(share_of(len(batch), self.strategy))
            for first, last in rows_of(len(batch), self.strategy):
                yield batch[first:last] or batch[:1]


class _MyRows:
    """The Parts of a DataLoader whose sampler gives the numbers of rows."""

    def __init__(self, loader, strategy):
        self._loader, self._strategy = loader, strategy

    def __iter__(self):
        loader = copy.copy(self._loader)
        loader.batch_sampler = sampler = _MySampler(loader.batch_sampler, self._strategy, loader.num_workers > 0)
        return self._parts(iter(loader), sampler.shares)  # draws as many numbers as one replica's, and as early

    def _parts(self, batches, shares):
        for batch in batches:
            share = shares.popleft()
            yield Part([batch, *(next(batches) for _ in share.rows[1:])], share)


class _Parts:
    """The Parts of a distributed data set."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __iter__(self):
        iterator = iter(self._dataset)
        while True:
            try:
                parts, spec, share, whole = iterator.next_parts()
            except StopIteration:
                return
            filled = [self._row(part, whole) if not n else part for part, n in zip(parts, share.rows)]
            yield Part([spec.unflatten(part) for part in filled], share)

    @staticmethod
    def _row(part, whole):
        if whole is not None and len(whole[0]):
            return [tensor[:1] for tensor in whole]
        return [tensor.new_zeros((1, *tensor.shape[1:])) for tensor in part]


class _PreSharded:
    """Batches of this rank alone, as of a loader with a DistributedSampler, as a data set for one rank."""

    def __init__(self, loader):
        self._loader = loader

    def __call__(self, context):
        return self._loader


class _WithoutNone:
    """Batches without the places of what is not there: (x, y, None) is (x, y)."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        for batch in self._batches:
            while isinstance(batch, tuple) and batch and batch[-1] is None:
                batch = batch[:-1]
            yield batch


def _check_arrays(adapter, group):
    """Raises an error on all ranks where their arrays differ."""
    import zlib

    lines = [f"with {adapter._num_samples} rows in batches of {adapter.batch_size}"]
    for leaf in tree_flatten(adapter._inputs)[0]:
        if leaf is not None:
            ends = [_bytes(leaf[place : place + 1]) for place in (0, len(leaf) - 1)] if _is_plain(leaf) else []
            check = zlib.crc32(b"".join(ends))
            lines.append(f"with rows of {tuple(leaf.shape[1:])}, {leaf.dtype}, ends {check:08x}")
    check_agreement("fit, evaluate or predict: array", lines, group)


def _is_plain(leaf):
    return hasattr(leaf, "numpy") or type(leaf).__module__ == "numpy"


def _bytes(row):
    row = row.detach().cpu().contiguous().view(_C.uint8) if isinstance(row, _C.Tensor) else row
    return row.numpy().tobytes() if isinstance(row, _C.Tensor) else row.tobytes()


def _is_own(source):
    """Whether each rank has batches of its own."""
    sampled = isinstance(source, DataLoader) and isinstance(source.sampler, DistributedSampler)
    return sampled or isinstance(source, DistributedDatasetsFromFunction)


def _longest(batches, group):
    """The number of batches of the rank that has the most; None if one of them does not know."""
    counts = _C.tensor([-1 if batches is None else batches, batches is None], dtype=_C.int64)
    group.all_reduce(counts, "max", False)
    most, unknown = counts.tolist()
    return None if unknown else most


def _loader_of(source, strategy):
    """What gives the Parts of a source of global batches."""
    if isinstance(source, DataLoader) and source.batch_sampler is not None:
        if strategy._logical is not None and isinstance(source.sampler, DistributedSampler):
            raise ValueError(
                "fit, evaluate or predict: a loader with a DistributedSampler under a strategy with logical shards "
                "(expected one of global batches, whose rows the strategy divides)"
            )
        if strategy._group is not None and _is_own(source):
            return _Parts(strategy.distribute_datasets_from_function(_PreSharded(source)))
        return _MyRows(source, strategy)
    return _Parts(strategy.experimental_distribute_dataset(source))


def _with_class_weight(batches, class_weight, weigh):
    for batch in batches:
        if not isinstance(batch, tuple) or len(batch) != 2:
            raise ValueError("fit: class_weight needs elements (x, y) (expected no sample weights)")
        yield (*batch, weigh(batch[1], class_weight))


class _Weighted:
    def __init__(self, batches, class_weight, weigh):
        self._batches, self._class_weight, self._weigh = batches, class_weight, weigh
        if hasattr(batches, "options"):
            self.options = batches.options

    def __iter__(self):
        return _with_class_weight(self._batches, self._class_weight, self._weigh)


def _classes(base, weigh):
    class Pipeline(base):
        """A pydist.data.Dataset, a distributed data set or a pydist DataLoader."""

        def __init__(self, source, class_weight):
            self._source, self._batches = source, source
            if class_weight is not None:
                self._batches = _Weighted(source, class_weight, weigh)

        def get_torch_dataloader(self):
            return self._batches

        def get_numpy_iterator(self):
            for batch in self._batches:
                yield tree_map(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, _C.Tensor) else leaf, batch)

        @property
        def num_batches(self):
            try:
                return len(self._source)
            except TypeError:
                return None

        batch_size = has_partial_batch = partial_batch_size = None

    class OnReplicas(base):
        """The batches of another adapter, divided."""

        def __init__(self, adapter, strategy):
            self._adapter, self._strategy, self._own = adapter, strategy, ()
            if strategy._group is not None and _is_own(getattr(adapter, "_source", None)):
                self._own = (_longest(adapter.num_batches, strategy._group),)

        def get_torch_dataloader(self):
            if isinstance(self._adapter, Pipeline) and isinstance(self._adapter._source, DistributedDataset):
                return _Parts(self._adapter._source)
            source = self._adapter.get_torch_dataloader()
            if (
                not isinstance(source, (DataLoader, Dataset))
                or isinstance(source, DataLoader)
                and not source.batch_sampler
            ):
                source = _WithoutNone(source)
            return _loader_of(source, self._strategy)

        def on_epoch_begin(self):
            self._adapter.on_epoch_begin()

        def on_epoch_end(self):
            self._adapter.on_epoch_end()

        def __getattr__(self, name):
            return getattr(self._adapter, name)

        num_batches = property(lambda self: self._own[0] if self._own else self._adapter.num_batches)
        batch_size = property(lambda self: self._adapter.batch_size)
        has_partial_batch = property(lambda self: self._adapter.has_partial_batch)
        partial_batch_size = property(lambda self: self._adapter.partial_batch_size)

    return Pipeline, OnReplicas


def _adapt(module):
    plain, arrays = module.get_data_adapter, module.ArrayDataAdapter
    weigh = module.py_dataset_adapter.data_adapter_utils.class_weight_to_sample_weights
    pipeline, on_replicas = _classes(module.data_adapter.DataAdapter, weigh)

    @functools.wraps(plain)
    def get_data_adapter(x, y=None, sample_weight=None, batch_size=None, steps_per_epoch=None, shuffle=False,
                         class_weight=None):  # fmt: skip
        if isinstance(x, (Dataset, DistributedDataset, DataLoader)):
            kind = "torch DataLoader" if isinstance(x, DataLoader) else "tf.data.Dataset"
            if y is not None:
                module.raise_unsupported_arg("y", "the targets", kind)
            if sample_weight is not None:
                module.raise_unsupported_arg("sample_weights", "the sample weights", kind)
            adapter = pipeline(x, class_weight)
        else:
            adapter = plain(x, y, sample_weight, batch_size, steps_per_epoch, shuffle, class_weight)
        strategy = get_strategy()
        if (
            isinstance(x, DistributedDataset)
            and x._strategy is not strategy
            and max(x._strategy.num_replicas_in_sync, strategy.num_replicas_in_sync) > 1
        ):
            raise ValueError(
                f"fit, evaluate or predict: the data set was distributed by {x._strategy} (expected {strategy}, in whose "
                "scope the model was made)"
            )
        if strategy.num_replicas_in_sync == 1 or isinstance(adapter, on_replicas):
            return adapter
        if isinstance(adapter, arrays) and strategy._group is not None:
            _check_arrays(adapter, strategy._group)
        return on_replicas(adapter, strategy)

    module.get_data_adapter = get_data_adapter


SEAMS = {"keras.src.trainers.data_adapters": _adapt}
