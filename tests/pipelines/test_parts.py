"""What a rank makes of a data set: parts that together are the whole, and nothing beside them."""

import itertools
import json
import logging
import random

import numpy as np
import pytest

import pydist
from lib.elements import items
from lib.ranks import LONG
from pydist import distribute
from pydist.data import AutoShardPolicy, Dataset, Options, TFRecordDataset, TFRecordWriter, TextLineDataset, parts
from pydist.distribute import MirroredStrategy
from pydist.testing import run_ranks as ranks


def own(dataset, rank, world):
    node = parts.own_rows(dataset._node, rank, world)
    made = None if node is None else Dataset(node)
    if made is not None:
        made._base = dataset._base
    return made


PLANS = {
    "batch": lambda ds: ds.batch(8),
    "scaled": lambda ds: ds.batch(8).map(lambda x: x * 2 + 1).prefetch(2),
    "twice": lambda ds: ds.batch(8).map(lambda x: (x, x > 3)).map(lambda x, big: {"x": x, "big": big}),
    "batches shuffled": lambda ds: ds.batch(8).shuffle(4, seed=2).repeat(2),
    "parts": lambda ds: ds.batch(8).take(3).concatenate(ds.batch(8).skip(3)),
    "kept": lambda ds: ds.map(lambda x: x).batch(8, drop_remainder=True).cache().shard(2, 1),
}


@pytest.mark.filterwarnings("ignore:shuffle after batch")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_parts_are_the_whole(plan, world):
    made = []

    def dataset():
        rows = Dataset.range(103).shuffle(103, seed=1).map(lambda x: (made.append(x.item()), x)[1])
        return PLANS[plan](rows)

    whole = [np.array(leaves_of(element)) for element in items(dataset())]
    found = [items(own(dataset(), rank, world)) for rank in range(world)]
    for number, expected in enumerate(whole):
        rows = [np.array(leaves_of(part[number]), dtype=expected.dtype) for part in found]
        assert np.array_equal(np.concatenate(rows, -1), expected)
    assert {len(part) for part in found} == {len(whole)}
    made.clear()
    items(own(dataset(), 0, world))
    assert (
        len(made) <= sum(expected.shape[-1] for expected in whole) / world + len(whole) + 8 * 3
    )  # and a batch to look at


def leaves_of(element):
    return (
        list(element.values())
        if isinstance(element, dict)
        else list(element)
        if isinstance(element, tuple)
        else element
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.batch(8).map(lambda x: x - x.max()),  # looks at other rows
        lambda ds: ds.batch(8).map(lambda x: x + pydist.rand(x.shape[0])),
        lambda ds: ds.batch(8).map(lambda x: x.sum()),
        lambda ds: ds.batch(8).map(lambda x: x[1:]),
        lambda ds: ds.batch(8).map(lambda x: 1 // 0),
        lambda ds: ds.batch(8).enumerate(),
        lambda ds: ds.padded_batch(8),
        lambda ds: ds.filter(lambda x: True).batch(8),
        lambda ds: ds,
    ],
)
def test_plans_without_parts(make):
    assert own(make(Dataset.range(30)), 0, 2) is None


# Going on with another number of ranks


def numbered_plan():
    """Reads by number: a shuffle of rows, random numbers by row, batches, functions of batches, a shuffle of batches."""
    rows = np.random.default_rng(0).normal(size=(101, 3)).astype(np.float32)
    dataset = Dataset.from_tensor_slices((rows, np.arange(101))).shuffle(101).repeat(2)
    dataset = dataset.map(lambda x, y: (x + pydist.rand(3), y), num_parallel_calls=2).batch(8)
    return dataset.map(lambda x, y: (x * 2, y)).shuffle(5, seed=1).prefetch(2)


def streamed_plan():
    """Each rank makes whole batches and keeps its rows."""
    dataset = Dataset.range(150).filter(lambda n: n % 3 != 1).shuffle(20)
    return dataset.map(lambda n: (n, n + pydist.rand(()))).batch(8)


def pass_of(rank, plan, saved, steps):
    """The next `steps` batches, of all ranks together, and where the pass is then."""
    pydist.manual_seed(rank + 10 * (saved is not None))
    strategy = MirroredStrategy()
    iterator = iter(strategy.experimental_distribute_dataset(plan()))
    if saved is not None:
        iterator.load_state_dict(saved)
    batches = [
        [strategy.gather(part, axis=0).numpy().tobytes() for part in batch]
        for batch in itertools.islice(iterator, steps)
    ]
    return batches, iterator.state_dict()


@pytest.mark.filterwarnings("ignore:shuffle after batch")
@pytest.mark.parametrize("plan", [numbered_plan, pytest.param(streamed_plan, marks=pytest.mark.slow)])
def test_a_pass_goes_on_with_another_number_of_ranks(plan):
    """Shows 14: with the same rows, bit for bit, in new processes."""
    whole = pass_of(0, plan, None, None)[0]
    draw = random.Random(0)
    for world, after in itertools.product(range(1, 5), repeat=2) if LONG else [(2, 3), (3, 1)]:
        for place in draw.sample(range(len(whole) + 1), 4 if LONG else 1):
            begun = ranks(world, pass_of, plan, None, place)
            state = begun[-1][1]
            if plan is numbered_plan:
                assert {json.dumps(own_state) for _, own_state in begun} == {json.dumps(state)}
                state = json.dumps(state)
                assert len(state) < 1024
                state = json.loads(state)
            for rest, _ in ranks(after, pass_of, plan, state, None, processes=True):
                assert begun[0][0] + rest == whole


def test_a_pass_over_the_data_set_itself_goes_on_from_the_ranks_place():
    def plan():
        return Dataset.range(30).shuffle(30).batch(4).map(lambda x: (x,))

    batches, state = ranks(3, pass_of, plan, None, 3)[0]
    alone = iter(plan())
    alone.load_state_dict(state)
    seen = np.concatenate([np.frombuffer(rows, np.int64) for (rows,) in batches] + [x.numpy() for (x,) in alone])
    assert sorted(seen) == list(range(30))


def test_places_that_ranks_do_not_share():
    def work(rank, load):
        iterator = iter(MirroredStrategy().experimental_distribute_dataset(Dataset.range(20).batch(4)))
        if rank == load:
            iterator.load_state_dict({**iterator.state_dict(), "next": 2})
        return next(iterator)

    with pytest.raises(pydist.testing.RankFailed, match="rank 1 has other rows than rank 0 in step 0"):
        ranks(2, work, 1)
    strategy = MirroredStrategy()
    for dataset in (
        strategy.experimental_distribute_dataset([pydist.ones(2)]),
        strategy.distribute_datasets_from_function(lambda context: Dataset.range(4).batch(2)),
    ):
        with pytest.raises(
            TypeError, match="state_dict: .*expected a pydist.data.Dataset whose batches the ranks share"
        ):
            iter(dataset).state_dict()


# Files


def text_files(folder, lines):
    names = []
    for i, own_lines in enumerate(lines):
        (folder / f"{i}.txt").write_text("".join(f"{line}\n" for line in own_lines))
        names.append(str(folder / f"{i}.txt"))
    return names


def number(line):
    return pydist.tensor(int(line.numpy()))


def read(names):
    return Dataset.from_tensor_slices(names).interleave(TextLineDataset, cycle_length=2).map(number).batch(4)


def test_each_rank_reads_its_files(tmp_path, caplog):
    names = text_files(tmp_path, [range(10 * i, 10 * i + 10) for i in range(4)])
    plans = [
        lambda: Dataset.list_files(f"{tmp_path}/*.txt", seed=3).interleave(TextLineDataset).map(number).batch(4),
        lambda: read(names),
        lambda: (
            Dataset.from_tensor_slices(names)
            .flat_map(TextLineDataset)
            .shuffle(5, seed=1)
            .map(number)
            .batch(4)
            .prefetch(1)
        ),
    ]
    for plan in plans:
        batches = [items(Dataset(parts.own_files(plan()._node, rank, 2, 2))) for rank in range(2)]
        found = [sum(own_batches, []) for own_batches in batches]
        assert sorted(found[0] + found[1]) == list(range(40)) and {len(batch) for batch in batches[0]} == {2}
        assert not {x // 10 for x in found[0]} & {x // 10 for x in found[1]}
    records = []
    for i in range(4):
        with TFRecordWriter(tmp_path / f"{i}.gz", "GZIP") as writer:
            writer.write(f"{i}")
        records.append(tmp_path / f"{i}.gz")
    packed = TFRecordDataset(records, "GZIP").map(number).batch(2)
    assert [items(Dataset(parts.own_files(packed._node, rank, 2, 2))) for rank in range(2)] == [[[0], [2]], [[1], [3]]]
    for node in (read(names)._node, read(names[:1])._node, Dataset.range(9).filter(lambda x: True).batch(4)._node):
        assert parts.own_files(node, 0, 5, 5) is None  # more ranks than files, or none, or no batches for all
    assert not caplog.records
    (tmp_path / "0.txt").write_text("1\n" * 100)
    with caplog.at_level(logging.WARNING, "pydist.data"):
        parts.own_files(read(names)._node, 0, 2, 2)
    assert "expected files of equal size" in caplog.text


def test_ranks_share_files(tmp_path):
    """An unseeded list is in one order on all ranks; ranks whose files end first join in without rows."""
    text_files(tmp_path, [range(3), range(100, 111), range(200, 203), range(300, 304)])

    def work(rank):
        strategy = MirroredStrategy()
        pydist.manual_seed(rank)
        listed = Dataset.list_files(f"{tmp_path}/*.txt").interleave(TextLineDataset, cycle_length=2)
        draws = listed.map(lambda line: (number(line), pydist.rand(()))).batch(4)
        passes = []
        for _ in range(2):
            passes.append([(x.tolist(), y.tolist()) for x, y in strategy.experimental_distribute_dataset(draws)])
        return passes

    for passes in zip(*ranks(2, work)):
        assert len(passes[0]) == len(passes[1])  # the same number of steps
        rows = [[x for batch, _ in found for x in batch] for found in passes]
        assert sorted(rows[0] + rows[1]) == [*range(3), *range(100, 111), *range(200, 203), *range(300, 304)]
        assert not {x // 100 for x in rows[0]} & {x // 100 for x in rows[1]}
        drawn = [y for found in passes for _, batch in found for y in batch]
        assert len(set(drawn)) == len(drawn)  # ranks have draws of their own


def test_policies(tmp_path, caplog):
    names = text_files(tmp_path, [range(4), range(4, 8)])

    def work(rank, policy, few):
        options = Options()
        options.experimental_distribute.auto_shard_policy = policy
        dataset = read(names[:1] if few else names).with_options(options)
        return [x.tolist() for x in MirroredStrategy().experimental_distribute_dataset(dataset)]

    assert ranks(2, work, AutoShardPolicy.FILE, False) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert ranks(2, work, AutoShardPolicy.DATA, False) == [[[0, 4], [2, 6]], [[1, 5], [3, 7]]]
    assert ranks(2, work, AutoShardPolicy.OFF, False)[1] == [[0, 4, 1, 5], [2, 6, 3, 7]]
    with caplog.at_level(logging.INFO, "pydist.distribute"):
        assert ranks(2, work, AutoShardPolicy.AUTO, True) == [[[0, 1]], [[2, 3]]]
    assert "each rank makes whole batches and keeps its rows of them" in caplog.text
    with pytest.raises(
        pydist.testing.RankFailed, match="auto_shard_policy is FILE .expected a data set that lists at least 2"
    ):
        ranks(2, work, AutoShardPolicy.FILE, True)


def test_a_program_without_ranks_sees_all():
    dataset = Dataset.range(5).batch(2)
    assert [x.tolist() for x in distribute.get_strategy().experimental_distribute_dataset(dataset)] == items(dataset)
