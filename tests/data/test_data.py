"""Samplers' orders, and the loader: order, errors, early ends, threads."""

import gc
import math
import threading
import time
import traceback
from collections import OrderedDict, namedtuple

import pytest

import pydist
from pydist.distributed import threads
from pydist.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    _order,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)


class Squares(Dataset):
    """Items i * i; `bad` raises, `slow` sleeps."""

    def __init__(self, size, bad=None, slow=None):
        self.size, self.bad, self.slow = size, bad, slow

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if i == self.bad:
            raise LookupError(f"item {i} is bad")
        if i == self.slow:
            time.sleep(0.5)
        return i * i


@pytest.fixture(autouse=True)
def no_thread_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


# Datasets and samplers.


def test_tensor_dataset_and_subset():
    data = TensorDataset(pydist.arange(6), pydist.arange(12.0).reshape(6, 2))
    assert len(data) == 6 and data[-1][0].item() == 5 and data[2][1].tolist() == [4, 5]
    part = Subset(data, [4, 1])
    assert len(part) == 2 and part[0][0].item() == 4 and len(part.__getitems__([0, 1])) == 2
    with pytest.raises(ValueError, match="size mismatch between tensors: first sizes \\[2, 3\\]"):
        TensorDataset(pydist.zeros(2), pydist.zeros(3))


class Stream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))

    def __len__(self):
        return self.size


def test_joined_datasets():
    both = Squares(3) + Squares(4)
    assert type(both) is ConcatDataset and [both[i] for i in range(7)] == [0, 1, 4, 0, 1, 4, 9]
    assert both[-1] == 9 and both[-7] == 0 and both.cumulative_sizes == [3, 7] and len(both + both) == 14
    assert [batch.tolist() for batch in DataLoader(both, 4)] == [[0, 1, 4, 0], [1, 4, 9]]
    for wrong in (7, -8):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range"):
            both[wrong]
    with pytest.raises(ValueError, match="empty iterable"):
        ConcatDataset([])
    with pytest.raises(TypeError, match="IterableDataset"):
        ConcatDataset([Stream(2)])
    chain = Stream(2) + Stream(3)
    assert type(chain) is ChainDataset and list(chain) == [0, 1, 0, 1, 2] and len(chain) == 5
    with pytest.raises(TypeError, match="only supports IterableDataset"):
        list(ChainDataset([Squares(3)]))
    assert StackDataset(Squares(3), range(3))[2] == (4, 2)
    assert StackDataset(a=Squares(3), b=range(3))[2] == {"a": 4, "b": 2} and len(StackDataset(range(5))) == 5
    with pytest.raises(ValueError, match=r"size mismatch between datasets: \[3, 2\]"):
        StackDataset(Squares(3), range(2))
    with pytest.raises(ValueError, match="either datasets or named"):
        StackDataset()


def test_weighted_sampler():
    pydist.manual_seed(1)
    drawn = list(WeightedRandomSampler([0.0, 1.0, 3.0, 0.0], 8000))
    assert set(drawn) == {1, 2} and abs(drawn.count(2) / 8000 - 0.75) < 0.03
    sampler = WeightedRandomSampler(pydist.tensor([0.0, 1.0, 3.0, 6.0]), 2, replacement=False)
    pairs = [tuple(sampler) for _ in range(3000)]
    assert len(sampler) == 2 and all(len(set(pair)) == 2 and 0 not in pair for pair in pairs)
    first = [pair[0] for pair in pairs]
    assert abs(first.count(3) / 3000 - 0.6) < 0.05 and abs(first.count(1) / 3000 - 0.1) < 0.03
    seeded = [list(WeightedRandomSampler([1.0] * 9, 20, generator=pydist.Generator().manual_seed(3))) for _ in range(2)]
    assert seeded[0] == seeded[1]
    for arguments, message in (
        (([1.0], 0), "num_samples should be a positive"),
        (([1.0], 1, 1), "replacement should be a boolean"),
        (([[1.0]], 1), "1d sequence"),
        (([-1.0], 1), "a weight is negative"),
        (([float("nan")], 1), "a weight is negative"),
        (([0.0], 1), "got 0 positive weights"),
        (([1.0, 0.0], 2, False), "got 1 positive weights"),
    ):
        with pytest.raises(ValueError, match=message):
            WeightedRandomSampler(*arguments)


def test_random_split():
    pydist.manual_seed(0)
    parts = random_split(Squares(10), [3, 7])
    assert [len(part) for part in parts] == [3, 7]
    assert sorted(i for part in parts for i in part.indices) == list(range(10))
    assert [len(part) for part in random_split(Squares(10), [0.35, 0.35, 0.3])] == [4, 3, 3]
    with pytest.raises(ValueError, match="does not equal"):
        random_split(Squares(10), [3, 3])


def test_samplers():
    data = range(10)
    assert list(SequentialSampler(data)) == list(data)
    pydist.manual_seed(0)
    first, second = list(RandomSampler(data)), list(RandomSampler(data))
    assert sorted(first) == sorted(second) == list(data) and first != second
    pydist.manual_seed(0)
    assert list(RandomSampler(data)) == first
    long = RandomSampler(data, num_samples=25)
    order = list(long)
    assert len(long) == len(order) == 25 and sorted(order[:10]) == sorted(order[10:20]) == list(data)
    drawn = list(RandomSampler(data, replacement=True, num_samples=100))
    assert len(drawn) == 100 and set(drawn) <= set(data)
    assert sorted(SubsetRandomSampler([3, 5, 7])) == [3, 5, 7]
    assert list(BatchSampler(range(5), 2, True)) == [[0, 1], [2, 3]]
    for size, drop, count in ((5, False, 1), (4, True, 1), (6, True, 0), (2, False, 3)):
        batches = BatchSampler(range(5), size, drop)
        assert len(batches) == len(list(batches)) == count


def test_endless_orders_are_drawn_in_pieces(monkeypatch):
    """More draws than memory holds begin at once, and an epoch that goes on later is the same one."""
    endless = 10**10
    for sampler in (
        RandomSampler(range(7), replacement=True, num_samples=endless),
        WeightedRandomSampler([1.0] * 7, endless),
        DistributedSampler(range(endless), 2, 1, shuffle=False),
    ):
        assert len(sampler) >= endless // 2 and next(iter(BatchSampler(sampler, 3, False)))
    monkeypatch.setattr(_order, "_PIECE", 8)
    for sampler in (
        RandomSampler(range(5), replacement=True, num_samples=30),
        RandomSampler(range(5), num_samples=30),
        WeightedRandomSampler([1.0, 2.0, 3.0, 4.0, 5.0], 30),
    ):
        loader, order = DataLoader(range(5), 2, sampler=sampler), []
        for batch in loader:
            pydist.rand(3)  # what the training draws changes no order
            order.append(batch.tolist())
            if len(order) == 6:
                state = loader.state_dict()
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == order[6:] and len(order) == 15


def test_bad_samplers():
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="batch_size should be a positive integer"):
            BatchSampler(range(3), wrong, False)
    with pytest.raises(ValueError, match="drop_last"):
        BatchSampler(range(3), 1, 1)
    with pytest.raises(ValueError, match="num_samples"):
        RandomSampler(range(3), num_samples=0)
    with pytest.raises(TypeError, match="replacement"):
        RandomSampler(range(3), replacement=1)


# DistributedSampler.


@pytest.mark.parametrize("size", [1, 2, 5, 12, 13, 31])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_distributed_sampler_rule(size, world, drop_last, shuffle):
    """All ranks' lists interleaved are one order, cut or padded from its head."""
    samplers = [DistributedSampler(range(size), world, r, shuffle, 5, drop_last) for r in range(world)]
    lists = [list(sampler) for sampler in samplers]
    each = math.ceil((size - world) / world) if drop_last and size % world else math.ceil(size / world)
    assert [len(x) for x in lists] == [len(s) for s in samplers] == [each] * world
    order = [index for step in zip(*lists) for index in step]
    head = order[: min(size, len(order))]
    assert len(set(head)) == len(head)
    assert order == (head * (len(order) // max(len(head), 1) + 1))[: len(order)]
    if not shuffle:
        assert head == list(range(len(head)))


@pytest.mark.parametrize("size", [1, 7, 12, 31])
@pytest.mark.parametrize("world", [1, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_distributed_sampler_parity(torch, monkeypatch, size, world, drop_last):
    """torch's lists for the same permutation."""
    ours = DistributedSampler(range(size), 1, 0, seed=3)
    ours.set_epoch(4)
    monkeypatch.setattr(torch, "randperm", lambda n, generator: torch.tensor(list(ours)))
    for rank in range(world):
        a = DistributedSampler(range(size), world, rank, seed=3, drop_last=drop_last)
        b = torch.utils.data.DistributedSampler(range(size), world, rank, seed=3, drop_last=drop_last)
        a.set_epoch(4)
        assert list(a) == list(b) and len(a) == len(b)
        assert (a.num_samples, a.total_size) == (b.num_samples, b.total_size)


@pytest.mark.parametrize("size, world", [(10, 3), (2, 4), (0, 2), (9, 3)])
def test_evaluation_is_not_padded(size, world):
    samplers = [DistributedSampler(range(size), world, r, shuffle=False, pad=False) for r in range(world)]
    lists = [list(sampler) for sampler in samplers]
    assert sorted(index for x in lists for index in x) == list(range(size))
    assert [len(x) for x in lists] == [len(s) for s in samplers]


def test_order_depends_on_seed_and_epoch_only():
    def order(seed=0, epoch=0, world=1):
        sampler = DistributedSampler(range(50), world, 0, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    pydist.manual_seed(1)
    first = order()
    state = pydist.get_rng_state()
    pydist.manual_seed(2)
    assert order() == first and order(world=2) == first[::2]
    assert order(epoch=1) == order(seed=1) != first
    pydist.set_rng_state(state)


def test_loader_starts_new_epochs():
    sampler = DistributedSampler(range(20), 2, 0)
    loader = DataLoader(Squares(20), batch_size=5, sampler=sampler)

    def epoch():
        return [x.item() for batch in loader for x in batch]

    orders = [epoch() for _ in range(3)]
    assert sampler.epoch == 2 and len({tuple(x) for x in orders}) == 3
    sampler.set_epoch(1)
    assert epoch() == orders[1]
    sampler.set_epoch(1)
    assert epoch() == orders[1]
    assert epoch() == orders[2]
    batches = DataLoader(Squares(20), batch_sampler=BatchSampler(DistributedSampler(range(20), 2, 0), 10, False))
    assert [x.tolist() for x in batches] != [x.tolist() for x in batches]


def test_bad_ranks():
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"Invalid rank {rank}, rank should be in the interval \\[0, 1\\]"):
            DistributedSampler(range(4), 2, rank)
    assert list(DistributedSampler(range(3), shuffle=False)) == [0, 1, 2]


# Collation.


def test_collate():
    Pair = namedtuple("Pair", "x y")
    batch = default_collate([Pair(1, "a"), Pair(2, "b")])
    assert type(batch) is Pair and batch.x.tolist() == [1, 2] and batch.y == ("a", "b")
    assert batch.x.dtype == pydist.int64
    kept = default_collate([OrderedDict(b=1, a=2.0), OrderedDict(b=3, a=4.0)])
    assert type(kept) is OrderedDict and list(kept) == ["b", "a"] and kept["b"].tolist() == [1, 3]
    assert default_collate([1.5, 2.5]).dtype == pydist.float64
    assert default_collate([True, False]).dtype == pydist.bool
    nested = default_collate([{"a": (pydist.zeros(2), [1])}, {"a": (pydist.ones(2), [2])}])
    assert nested["a"][0].tolist() == [[0, 0], [1, 1]] and nested["a"][1][0].tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([[1], [1, 2]])
    with pytest.raises(TypeError, match="found <class 'object'>"):
        default_collate([object()])


def test_collate_numpy():
    np = pytest.importorskip("numpy")
    assert default_collate([np.ones(2, np.float32)] * 3).dtype == pydist.float32
    assert default_collate([np.int32(3), np.int32(4)]).tolist() == [3, 4]
    assert default_convert({"a": [np.zeros(2)], "b": "x"})["a"][0].dtype == pydist.float64


# The loader.


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_loader_keeps_the_order(workers, drop_last):
    loader = DataLoader(Squares(10, slow=1), batch_size=3, num_workers=workers, drop_last=drop_last)
    batches = [batch.tolist() for batch in loader]
    expected = [[0, 1, 4], [9, 16, 25], [36, 49, 64], [81]]
    assert batches == expected[: 3 if drop_last else 4] and len(loader) == len(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_takes_rows_at_once(workers):
    data = TensorDataset(pydist.arange(7), pydist.arange(14.0).reshape(7, 2))
    whole = [[part.tolist() for part in batch] for batch in DataLoader(data, 3, num_workers=workers)]
    slow = DataLoader(data, 3, num_workers=workers, collate_fn=lambda items: default_collate(items))
    assert whole == [[part.tolist() for part in batch] for batch in slow]
    part = Subset(Subset(data, [6, 5, 4, 3]), [0, 2])
    assert [batch[0].tolist() for batch in DataLoader(part, 2, num_workers=workers)] == [[6, 4]]

    class Doubled(TensorDataset):
        def __getitem__(self, i):
            return tuple(2 * x for x in super().__getitem__(i))

    assert next(iter(DataLoader(Doubled(pydist.arange(3)), 3)))[0].tolist() == [0, 2, 4]


def test_loader_shuffles():
    pydist.manual_seed(0)
    loader = DataLoader(Squares(20), batch_size=None, shuffle=True, num_workers=2)
    first, second = list(loader), list(loader)
    assert sorted(first) == sorted(second) == [i * i for i in range(20)] and first != second


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_raises_with_the_workers_traceback(workers):
    loader = DataLoader(Squares(10, bad=5), batch_size=2, num_workers=workers)
    seen = []
    with pytest.raises(LookupError, match="item 5 is bad") as error:
        for batch in loader:
            seen.append(batch.tolist())
    assert seen == [[0, 1], [4, 9]]
    assert any(frame.name == "__getitem__" for frame in traceback.extract_tb(error.value.__traceback__))


def test_random_numbers_do_not_depend_on_the_threads():
    class Noisy(Squares):
        def __getitem__(self, i):
            time.sleep(0.001 * (i % 3))
            return pydist.rand(2)

    def epochs(workers):
        pydist.manual_seed(4)
        loader = DataLoader(Noisy(12), batch_size=2, num_workers=workers, shuffle=True)
        return [[batch.tolist() for batch in loader] for _ in range(2)], pydist.rand(1).item()

    first = epochs(0)
    assert epochs(1) == epochs(3) == first
    batches = [str(batch) for epoch in first[0] for batch in epoch]
    assert len(set(batches)) == len(batches) == 12


def test_ranks_draw_different_numbers():
    class Noise(Squares):
        def __getitem__(self, i):
            return pydist.rand(1)

    def work(rank):
        pydist.manual_seed(4)
        return [batch.tolist() for batch in DataLoader(Noise(4), num_workers=rank)]

    a, b = threads.run(work, 2)
    assert not {str(x) for x in a} & {str(x) for x in b}


def test_failing_start_is_raised():
    def start(worker):
        raise OSError("no such disk")

    with pytest.raises(OSError, match="no such disk"):
        list(DataLoader(Squares(4), num_workers=2, worker_init_fn=start))


@pytest.mark.parametrize("end", ["break", "close", "forget", "raise"])
def test_early_end_leaves_no_thread(end):
    before = threading.active_count()
    loader = DataLoader(Squares(1000), num_workers=3, prefetch_factor=4)
    if end == "break":
        for _ in loader:
            assert threading.active_count() == before + 3
            break
    elif end == "close":
        batches = iter(loader)
        next(batches)
        batches.close()
    elif end == "forget":
        batches = iter(loader)
        next(batches)
        del batches
    else:
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                1 / 0
        gc.collect()
    assert threading.active_count() == before


def test_prefetch_is_bounded():
    asked = []

    class Recording(Squares):
        def __getitem__(self, i):
            asked.append(i)
            return i

    batches = iter(DataLoader(Recording(100), batch_size=None, num_workers=2, prefetch_factor=3))
    next(batches)
    time.sleep(0.1)
    assert len(asked) == 7  # six ahead and the one taken
    batches.close()


def test_timeout():
    before = threading.active_count()
    loader = DataLoader(Squares(4, slow=1), batch_size=1, num_workers=1, timeout=0.1)
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.1 seconds"):
        list(loader)
    while threading.active_count() > before:
        time.sleep(0.05)


def test_worker_info():
    class Where(Squares):
        def __getitem__(self, i):
            info = get_worker_info()
            return info.id, info.num_workers, info.dataset is self, info.seed - info.id

    started = []
    loader = DataLoader(Where(8), batch_size=None, num_workers=2, worker_init_fn=started.append)
    found = list(loader)
    assert {tuple(info[1:3]) for info in found} == {(2, True)} and sorted(started) == [0, 1]
    assert len({info[3] for info in found}) == 1
    assert get_worker_info() is None


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_iterable_dataset(workers):
    loader = DataLoader(Stream(7), 3, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]] and len(loader) == 3
    assert len(list(DataLoader(Stream(7), 3, num_workers=workers, drop_last=True))) == 2
    assert list(DataLoader(Stream(7), None, num_workers=workers)) == list(range(7))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_workers": -1}, "non-negative"),
        ({"timeout": -1}, "timeout"),
        ({"prefetch_factor": 2}, "prefetch_factor"),
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor"),
        ({"batch_size": 0}, "positive integer"),
        ({"sampler": range(3), "shuffle": True}, "mutually exclusive"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "mutually exclusive"),
        ({"batch_size": None, "drop_last": True}, "mutually exclusive"),
    ],
)
def test_bad_loaders(options, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(Squares(3), **options)
