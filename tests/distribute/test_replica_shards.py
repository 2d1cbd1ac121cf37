"""Logical shards of strategies: the same bits on any number of devices and ranks."""

import numpy as np
import pytest

import pydist
from pydist import distribute, nn, optim
from pydist.data import Dataset
from pydist.distribute import MirroredStrategy, replica, runner
from pydist.testing import RankFailed
from pydist.testing import run_ranks as ranks

SHARDS, ROWS, BATCH, SEED = 4, 103, 20, 1  # the last batch has 3 rows, fewer than shards


def cpus(count):
    return [f"CPU:{i}" for i in range(count)]


def data():
    x = np.random.default_rng(0).standard_normal((ROWS, 12)).astype("float32")
    return pydist.tensor(x), pydist.tensor(x[:, :4].argmax(1))


def batches():
    x, y = data()
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]


def made():
    pydist.set_rng_state((SEED, 0, 0))
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
    return model, optim.Adam(model.parameters(), lr=1e-2)


def bits_of(model, optimizer):
    values = [*model.state_dict().values()]
    values += [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, pydist.Tensor)
    ]
    return [value.detach().numpy().tobytes() for value in values]


def train(strategy, epochs=2):
    """(the bits of all state, the losses)"""
    with strategy.scope():
        model, optimizer = made()

    def step(rows, labels):
        optimizer.zero_grad()
        if len(rows) > 1:  # batch norm needs two
            each = nn.functional.cross_entropy(model(rows), labels, reduction="none")
        else:
            each = nn.functional.cross_entropy(model.eval()(rows), labels, reduction="none")
            model.train()
        loss = distribute.compute_average_loss(each)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    for _ in range(epochs):
        for part in strategy.experimental_distribute_dataset(batches()):
            losses.append(strategy.reduce("sum", strategy.run(step, part), axis=None).item())
    return bits_of(model, optimizer), losses


def tree(values):
    """The sum of arrays in the order of docs/internals/shards.md."""
    half = len(values) // 2
    return values[0] if not half else tree(values[:half]) + tree(values[half:])


def oracle(epochs=2):
    """The same training by the definition: shard after shard, leaves and buffers added by NumPy."""
    model, optimizer = made()
    params, buffers = list(model.parameters()), [b for b in model.buffers() if b.is_floating_point()]
    losses = []
    for t, (rows, labels) in enumerate(batches() * epochs):
        before = [b.clone() for b in buffers]
        leaves, after, shares = [], [], []
        for shard in range(SHARDS):
            mine = slice(len(rows) * shard // SHARDS, len(rows) * (shard + 1) // SHARDS)
            pydist.set_rng_state((SEED, (2 * t + 1) << 32, shard))
            for b, value in zip(buffers, before):
                b.copy_(value)
            counter = model[1].num_batches_tracked.clone()
            optimizer.zero_grad()
            model.train(len(rows[mine]) > 1)
            loss = nn.functional.cross_entropy(model(rows[mine]), labels[mine], reduction="none").sum() / len(rows)
            loss.backward()
            leaves.append([p.grad.numpy().copy() for p in params])
            after.append([b.numpy().copy() for b in buffers])
            shares.append(loss.detach().numpy())
            if shard:
                model[1].num_batches_tracked.copy_(counter)
        for i, p in enumerate(params):
            p.grad = pydist.tensor(tree([leaf[i] for leaf in leaves]))
        for i, b in enumerate(buffers):
            b.copy_(pydist.tensor(tree([values[i] for values in after]) / np.float32(SHARDS)))
        optimizer.step()
        losses.append(tree(shares).item())
    return bits_of(model, optimizer), losses


def test_the_bits_are_those_of_the_definition():
    expected = oracle()
    for count in (1, 2, 4):
        assert train(MirroredStrategy(cpus(count), shards=SHARDS)) == expected
    for count in (2, 3, 4):  # two shards each; 2, 1 and 1; one each
        found = ranks(count, lambda rank: train(MirroredStrategy(shards=SHARDS)))
        assert all(one == expected for one in found), count


@pytest.mark.slow
def test_workers_of_tf_config():
    # the functions here go by value with their module
    done = runner.run(lambda: train(distribute.MultiWorkerMirroredStrategy(shards=SHARDS)),
                      runner.create_cluster_spec(workers=2)).return_value  # fmt: skip
    assert done == [train(MirroredStrategy(shards=SHARDS))] * 2


def test_values_of_shards():
    """Three ranks have the shards 0, 1 and 6, then 2, 3 and 7, then 4 and 5."""

    def work(rank=None):
        strategy = MirroredStrategy(shards=8)
        assert strategy.num_replicas_in_sync == 8
        x = pydist.arange(21)
        seen = []
        for part in strategy.experimental_distribute_dataset([x[:16], x[16:]]):
            seen.append(strategy.gather(strategy.run(lambda rows: rows, (part,)), axis=0).tolist())
        given = strategy.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)

        def replica(value):
            context = distribute.get_replica_context()
            assert value == context.replica_id_in_sync_group
            total = context.all_reduce("SUM", pydist.tensor(float(value)))
            whole = context.all_reduce("SUM", pydist.tensor(value))
            return (
                total,
                whole,
                context.all_gather(pydist.tensor([value]), axis=0),
                pydist.rand(1),
                pydist.bernoulli(pydist.full((4,), 0.5)),
            )

        total, whole, all_of_them, drawn, masks = strategy.run(replica, (given,))
        seen += [strategy.reduce("MEAN", total, axis=None), strategy.reduce("SUM", whole, axis=None)]
        seen += [
            strategy.experimental_local_results(all_of_them)[0],
            strategy.gather(drawn, 0),
            strategy.gather(masks, 0),
        ]
        halves = strategy.run(lambda: pydist.randn(50).bfloat16())  # their sum is rounded once
        seen.append(strategy.reduce("SUM", halves, axis=None).float())
        return [value.tolist() if isinstance(value, pydist.Tensor) else value for value in [*seen, pydist.rand(2)]]

    pydist.manual_seed(3)
    expected = work()
    assert expected[:5] == [list(range(16)), list(range(16, 21)), 28.0, 8 * 28, list(range(8))]
    assert len(set(expected[5])) == 8  # each shard draws its own numbers

    def by_rank(rank):
        pydist.manual_seed(3)
        return work()

    for count in (2, 3, 8):
        assert ranks(count, by_rank) == [expected] * count


def test_each_shard_has_its_own_data_set():
    def work(rank=None):
        strategy, made = MirroredStrategy(shards=4), []

        def dataset_fn(context):
            made.append((context.num_input_pipelines, context.input_pipeline_id))
            return Dataset.range(9).shard(4, context.input_pipeline_id).batch(context.get_per_replica_batch_size(4))

        dataset = strategy.distribute_datasets_from_function(dataset_fn)
        seen = [strategy.gather(strategy.run(lambda rows: rows, (part,)), 0).tolist() for part in dataset]
        return seen, sorted(made)

    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert work() == (expected, [(4, 0), (4, 1), (4, 2), (4, 3)])
    assert ranks(2, work) == [(expected, [(4, 0), (4, 1)]), (expected, [(4, 2), (4, 3)])]


def test_shares_follow_the_speed_and_change_no_bit(monkeypatch):
    """A rank that takes twice the time gets 3 or 2 of 8 shards: no other shares end a step sooner."""

    clocks = [0, 0]  # ns by rank: nothing but steps takes time
    monkeypatch.setattr(replica, "perf_counter_ns", lambda: clocks[pydist.distributed.get_rank()])

    def work(rank, shares="measured"):
        pydist.manual_seed(SEED)
        strategy = MirroredStrategy(shards=8, shares=shares)
        with strategy.scope():
            model = nn.Linear(12, 4)
            optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(rows, labels):
            clocks[rank] += 1000 * (1 + rank)
            optimizer.zero_grad()
            each = nn.functional.cross_entropy(model(rows), labels, reduction="none")
            distribute.compute_average_loss(each, global_batch_size=BATCH).backward()
            optimizer.step()

        sizes = []
        for part in strategy.experimental_distribute_dataset(batches() * 8):
            strategy.run(step, part)
            sizes.append(len(strategy.experimental_local_results(part[0])))
        return sizes[0], sizes[-1], bits_of(model, optimizer)

    (first, last, found), (_, slow, same) = ranks(2, work)
    assert first == 4 and last + slow == 8 and max(last, 2 * slow) == 6
    assert found == same == ranks(2, work, "even")[0][2]


def test_what_is_refused():
    for shards in (3, 0, 2048, "4", True):
        with pytest.raises(ValueError, match=rf"MirroredStrategy: shards is {shards!r} .expected a power of two"):
            MirroredStrategy(shards=shards)
    with pytest.raises(ValueError, match="shards is 2 .expected at least 4, a shard for each replica"):
        MirroredStrategy(cpus(4), shards=2)
    with pytest.raises(ValueError, match="shares is 'fast' .expected 'even' or 'measured'"):
        distribute.MultiWorkerMirroredStrategy(shards=4, shares="fast")
    with pytest.raises(ValueError, match="shares is 'measured' without shards"):
        MirroredStrategy(shares="measured")
    strategy = MirroredStrategy(shards=4, shares="measured")
    with pytest.raises(NotImplementedError, match="data sets of shards that may move to another rank"):
        strategy.distribute_datasets_from_function(lambda context: [])
    with pytest.raises(ValueError, match="got 2 values by replica .expected 4"):
        strategy.run(int, (distribute.PerReplica((1, 2)),))

    def fewer(rank):
        MirroredStrategy(shards=2)

    with pytest.raises(RankFailed, match="shards is 2 .expected at least 3"):
        ranks(3, fewer)

    def told(rank):
        pydist.distributed.init_process_group(logical_shards=8)
        assert MirroredStrategy().num_replicas_in_sync == 8
        MirroredStrategy(shards=4)

    with pytest.raises(RankFailed, match="shards is 4 .expected the number that init_process_group was told, 8"):
        ranks(2, told)


def test_a_failed_run_changes_no_number():
    strategy = MirroredStrategy(shards=4)
    pydist.manual_seed(SEED)

    def fails():
        pydist.rand(1)
        raise KeyError

    with pytest.raises(KeyError):
        strategy.run(fails)
    after = pydist.rand(1).item()
    pydist.manual_seed(SEED)
    assert pydist.rand(1).item() == after
