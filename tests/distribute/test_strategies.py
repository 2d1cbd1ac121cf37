"""Strategies: replicas in threads, ranks and TF_CONFIG workers compute what one replica computes, and fail together."""

import random
import re

import numpy as np
import pytest

import pydist
from pydist import distribute, nn, optim
from pydist.data import Dataset
from pydist.distribute import MirroredStrategy, PerReplica, runner
from pydist.distributed.diagnostics import flight_record
from pydist.testing import run_ranks as ranks
from pydist.utils.data import DataLoader, TensorDataset

ROWS, BATCH = 1000, 64


def cpus(count):
    return [f"CPU:{i}" for i in range(count)]


def data(dtype):
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((ROWS, 12))
    y = np.argmax(x[:, :4] + 0.3 * numbers.standard_normal((ROWS, 4)), 1)
    return pydist.tensor(x, dtype=dtype), pydist.tensor(y)


def mlp(dtype):
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)


def convnet(dtype):
    # without a bias, whose gradient before a norm is nothing but rounding, which Adam would make as large as a step
    layers = nn.Conv2d(1, 4, 3, bias=False), nn.SyncBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4)
    return nn.Sequential(nn.Unflatten(1, (1, 3, 4)), *layers).to(dtype)


def batches(x, y):
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]


def state_of(model):
    return [value.detach().clone() for value in model.state_dict().values()]


def alone(make, dtype, steps):
    """The reference: a plain loop, without pydist.distribute."""
    pydist.manual_seed(1)
    model = make(dtype)
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    x, y = data(dtype)
    losses = []
    for step in range(steps):
        rows, labels = batches(x, y)[step % 16]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return state_of(model), losses


def train(strategy, make, dtype, steps):
    """The same under a strategy."""
    pydist.manual_seed(1)
    with strategy.scope():
        model = make(dtype)
        optimizer = optim.Adam(model.parameters(), lr=1e-2)
    x, y = data(dtype)

    def step(rows, labels):
        optimizer.zero_grad()
        each = nn.functional.cross_entropy(model(rows), labels, reduction="none")
        loss = distribute.compute_average_loss(each)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses, dataset = [], strategy.experimental_distribute_dataset(batches(x, y))
    while True:
        for rows, labels in dataset:
            losses.append(strategy.reduce("sum", strategy.run(step, (rows, labels)), axis=None))
            if len(losses) == steps:
                return state_of(model), losses


def bits(state):
    return [value.numpy().tobytes() for value in state]


@pytest.mark.parametrize("make, dtype, near", [(mlp, pydist.float32, 1e-5), (mlp, pydist.float64, 1e-12),
                                               (convnet, pydist.float64, 1e-12)])  # fmt: skip
def test_replicas_compute_what_one_computes(make, dtype, near):
    steps = 50 if make is mlp else 18
    expected, losses = alone(make, dtype, steps)
    found = {f"{count} threads": train(MirroredStrategy(cpus(count)), make, dtype, steps) for count in (1, 2, 4)}
    found["3 threads"] = train(MirroredStrategy(cpus(3)), make, dtype, steps)
    for count in (2, 4):
        by_rank = ranks(count, lambda rank: train(MirroredStrategy(), make, dtype, steps))
        assert all(bits(state) == bits(by_rank[0][0]) for state, _ in by_rank)  # equal bits on all ranks
        found[f"{count} ranks"] = by_rank[0]
        assert bits(found[f"{count} ranks"][0]) == bits(found[f"{count} threads"][0])  # and in threads
    assert bits(train(MirroredStrategy(cpus(2)), make, dtype, steps)[0]) == bits(found["2 threads"][0])  # on repeat
    for state, seen in found.values():
        assert len(seen) == steps
        for mine, theirs in zip([*state, *seen], [*expected, *losses]):
            pydist.testing.assert_close(mine, theirs, rtol=near, atol=near, check_dtype=False)


def test_workers_of_tf_config_compute_what_one_computes():
    # the functions here go by value with their module
    done = runner.run(lambda: train(distribute.MultiWorkerMirroredStrategy(), mlp, pydist.float64, 20),
                      runner.create_cluster_spec(workers=2)).return_value  # fmt: skip
    expected, _ = alone(mlp, pydist.float64, 20)
    assert bits(done[0][0]) == bits(done[1][0])
    for mine, theirs in zip(done[0][0], expected):
        pydist.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shards", [None, 4])
def test_bytes_per_pack(shards):
    """Sums travel in packs of whole tensors, with the same bits."""

    def work(rank, most):
        options = distribute.experimental.CommunicationOptions(bytes_per_pack=most)
        strategy = distribute.MultiWorkerMirroredStrategy(communication_options=options, shards=shards)
        numbers = pydist.Generator().manual_seed(rank)
        parts = strategy.num_replicas_in_sync // 2

        def value(k):
            values = [pydist.randn(100, generator=numbers) for _ in range(parts)]
            return PerReplica([v.long() if k == 2 else v for v in values])

        values = [(value(k), None) for k in range(6)]
        before = flight_record().count("all_reduce")
        totals = strategy.extended.batch_reduce_to("SUM", values)
        return bits(totals), flight_record().count("all_reduce") - before

    found = {most: ranks(2, work, most) for most in (0, 800, 1000, 2000, 100)}
    assert [by_rank[0][1] for by_rank in found.values()] == [2, 4, 4, 2, 6]
    assert len({tuple(totals) for by_rank in found.values() for totals, _ in by_rank}) == 1
    for wrong in (-1, None, "1"):
        with pytest.raises(ValueError, match="bytes_per_pack is .*expected 0 or more"):
            distribute.experimental.CommunicationOptions(bytes_per_pack=wrong)


def test_each_row_once_and_equal_steps():
    x = pydist.arange(1003)

    def count(rank=None, replicas=1):
        strategy = MirroredStrategy() if rank is not None else MirroredStrategy(cpus(replicas))
        seen = []
        for rows in strategy.experimental_distribute_dataset([{"x": x[i : i + 64]} for i in range(0, 1003, 64)]):
            seen.append(strategy.gather(strategy.run(lambda part: part["x"], (rows,)), axis=0))
        assert len(seen) == 16
        return pydist.cat(seen).tolist(), strategy.num_replicas_in_sync

    for world in (1, 2, 3, 4):
        assert count(replicas=world) == (list(range(1003)), world)
        assert ranks(world, count) == [(list(range(1003)), world)] * world


def test_a_batch_smaller_than_the_replicas():
    def work(rank):
        strategy = MirroredStrategy()
        sizes = []
        for x in strategy.experimental_distribute_dataset([pydist.ones(2, 3), np.ones((1, 3), np.float32)]):
            mean = strategy.reduce("MEAN", strategy.run(lambda x: x * 3, (x,)), axis=0)
            sizes.append((tuple(x.shape), mean.tolist()))
        return sizes

    found = ranks(4, work)
    assert [sum(sizes[step][0][0] for sizes in found) for step in (0, 1)] == [2, 1]
    assert all(mean == [3.0] * 3 for sizes in found for _, mean in sizes)


def test_reduce_and_gather_against_numpy():
    strategy = MirroredStrategy(cpus(3))
    parts = [np.random.default_rng(i).standard_normal((i + 1, 2)) for i in range(3)]
    value = PerReplica([pydist.tensor(part) for part in parts])
    whole = np.concatenate(parts)
    assert np.allclose(strategy.reduce("MEAN", value, axis=0), whole.mean(0), rtol=1e-15)
    assert np.allclose(strategy.reduce("SUM", value, axis=0), whole.sum(0), rtol=1e-15)
    assert np.array_equal(strategy.gather(value, axis=0), whole)
    assert strategy.reduce("mean", {"a": PerReplica([1, 2, 6])}, axis=None)["a"].item() == 3
    assert strategy.reduce("SUM", 2.5, axis=None).item() == 7.5
    assert strategy.experimental_local_results(value)[2] is value.values[2]
    assert strategy.experimental_local_results(7) == (7, 7, 7)
    made = strategy.experimental_distribute_values_from_function(lambda c: c.replica_id_in_sync_group)
    assert made.values == (0, 1, 2)
    assert strategy.extended.batch_reduce_to("SUM", [(made, None), (PerReplica([1.5] * 3), None)])[1].item() == 4.5
    for wrong, error in ((("MAX", 1), ValueError), (("SUM", "text"), TypeError)):
        with pytest.raises(error):
            strategy.reduce(*wrong, axis=None)
    with pytest.raises(ValueError, match="got 2 values by replica .expected 3"):
        strategy.run(lambda x: x, (PerReplica([1, 2]),))


def test_ranks_gather_unequal_parts():
    def work(rank):
        strategy = MirroredStrategy()
        found = strategy.gather(pydist.full((2, rank), float(rank)), axis=1)
        with pytest.raises(ValueError, match="rank 0 has rows of"):
            strategy.gather(pydist.ones(1, 1 + rank), axis=0)
        return found.tolist(), strategy.reduce("MEAN", pydist.tensor([float(rank)]), axis=None).item()

    assert ranks(3, work) == [([[1.0, 2.0, 2.0]] * 2, 1.0)] * 3


def test_all_reduce_has_a_gradient():
    def step():
        context = distribute.get_replica_context()
        x = pydist.tensor([2.0 + context.replica_id_in_sync_group], requires_grad=True)
        total, mean = context.all_reduce("SUM", {"x": x * x})["x"], context.all_reduce("MEAN", x)
        (total * (1 + context.replica_id_in_sync_group)).sum().backward()
        return total.item(), mean.item(), x.grad.item(), context.all_gather(x.detach(), 0).tolist()

    # d/dx_r of the sum over replicas q of (q + 1) * total is (1 + 2) * 2 x_r
    expected = [(13.0, 2.5, 12.0, [2.0, 3.0]), (13.0, 2.5, 18.0, [2.0, 3.0])]
    found = MirroredStrategy(cpus(2)).run(step)  # the structure is a tuple: PerReplica of each part
    assert [tuple(part.values[i] if not isinstance(part, list) else [p.values[i] for p in part] for part in found)
            for i in (0, 1)] == expected  # fmt: skip
    assert ranks(2, lambda rank: MirroredStrategy().run(step)) == expected


def test_merge_call_and_update():
    strategy = MirroredStrategy(cpus(2))
    p = pydist.zeros(2)
    calls = []

    def merged(strategy, value, scale):
        calls.append(value.values)
        assert distribute.in_cross_replica_context() and distribute.get_replica_context() is None
        total = strategy.extended.reduce_to("SUM", value, p)
        strategy.extended.update(p, lambda v, t: v.add_(t * scale.values[0]), (total,))
        return total, PerReplica(["a", "b"])

    def step():
        context = distribute.get_replica_context()
        assert distribute.get_strategy() is strategy and not distribute.in_cross_replica_context()
        return context.merge_call(merged, (context.replica_id_in_sync_group + 1,), {"scale": 2})

    total, names = strategy.run(step)
    assert calls == [(1, 2)] and p.tolist() == [6.0, 6.0]
    assert names.values == ("a", "b") and [t.item() for t in total.values] == [3, 3]


def line_of(text):
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if text in line)


def test_a_replica_that_skips_a_merge():
    strategy, unwound = MirroredStrategy(cpus(3)), []

    def step():
        context = distribute.get_replica_context()
        if context.replica_id_in_sync_group != 1:
            try:
                context.all_reduce("SUM", 1.0)  # the merge
            except RuntimeError as error:
                unwound.append(str(error))
                raise

    where = f"{re.escape(__file__)}:{line_of('# the merge')}"
    with pytest.raises(
        RuntimeError, match=f"replica 0 waits in all_reduce at {where}, replica 1 has returned without it"
    ):
        strategy.run(step)
    assert len(unwound) == 2  # on all that waited
    assert strategy.run(lambda: 1).values == (1, 1, 1)  # and the strategy goes on


def test_replicas_at_different_merges_and_errors():
    strategy = MirroredStrategy(cpus(2))

    def step():
        context = distribute.get_replica_context()
        if context.replica_id_in_sync_group:
            return context.merge_call(lambda strategy: None)
        return context.all_reduce("SUM", 1.0)

    with pytest.raises(RuntimeError, match="replica 0 waits in all_reduce.*replica 1 waits in merge_call"):
        strategy.run(step)

    def fails():
        context = distribute.get_replica_context()
        context.all_reduce("SUM", 1.0)
        if context.replica_id_in_sync_group == 1:
            raise KeyError("replica 1")
        context.all_reduce("SUM", 1.0)

    with pytest.raises(KeyError, match="replica 1"):
        strategy.run(fails)
    with pytest.raises(ValueError, match="all_reduce: replica 0 has"):
        strategy.run(lambda: distribute.get_replica_context().all_reduce(
            "SUM", pydist.ones(1 + distribute.get_replica_context().replica_id_in_sync_group)))  # fmt: skip


def test_a_rank_that_skips_a_merge():
    def work(rank):
        strategy = MirroredStrategy()

        def step():
            if rank != 1:
                distribute.get_replica_context().all_reduce("SUM", 1.0)

        strategy.run(step)
        if rank == 1:
            raise SystemExit

    with pytest.raises(pydist.testing.RankFailed, match="SystemExit|PeerFailed"):
        ranks(2, work, timeout=20)


def test_datasets_that_differ_between_ranks():
    def work(rank, case):
        strategy = MirroredStrategy()
        x = pydist.arange(8.0)
        mine = {
            "length": [x] * (1 + rank),
            "rows": [x[: 4 + rank]],
            "order": [x if rank else x.flip(0)],
            "spec": [x if rank else x.double()],
            "raises": iter(()) if rank else (1 / 0 for _ in range(3)),
            "empty": [],
        }[case]
        with pytest.raises(Exception) as caught:
            for _ in strategy.experimental_distribute_dataset(mine):
                pass
            raise StopAsyncIteration
        return f"{caught.type.__name__}: {caught.value}"

    said = {
        "length": r"ValueError: .*rank 0 has no more rows, rank 1 has 8 rows in step 1",
        "rows": r"ValueError: .*rank 0 has 4 rows, rank 1 has 5 rows in step 0",
        "order": r"ValueError: .*rank 1 has other rows than rank 0 in step 0 .expected the same order",
        "spec": r"ValueError: .*rank \d has elements .* rank \d .*in step 0",
        "raises": r"RuntimeError: .*dataset of rank 0 has raised an error in step 0|ZeroDivisionError",
        "empty": "StopAsyncIteration",
    }
    for case, text in said.items():
        found = ranks(2, work, case)
        assert all(re.match(text, line) for line in found), (case, found)


def test_unseeded_shuffles_agree():
    data = TensorDataset(pydist.arange(100))

    def shuffled():
        order = list(range(100))
        random.shuffle(order)
        yield from (np.array(order[i : i + 10]) for i in range(0, 100, 10))

    class Shuffled:
        def __iter__(self):
            return shuffled()

    def work(rank, kind):
        pydist.manual_seed(rank)
        strategy = MirroredStrategy()
        source = Shuffled() if kind else DataLoader(data, batch_size=10, shuffle=True)
        dataset = strategy.experimental_distribute_dataset(source)
        passes = []
        for _ in range(2):
            got = [strategy.gather(x if kind else x[0], axis=0) for x in dataset]
            passes.append(pydist.cat(got).tolist())
        return passes

    for kind in (0, 1):
        first, second = ranks(2, work, kind)
        assert first == second and first[0] != first[1]
        assert all(sorted(order) == list(range(100)) for order in first)


def test_datasets_from_a_function():
    def rows_of(context):
        first = context.input_pipeline_id
        return [pydist.full((context.get_per_replica_batch_size(4),), float(i)) for i in range(first, 5, 2)]

    def work(rank):
        strategy = MirroredStrategy()
        dataset = strategy.distribute_datasets_from_function(rows_of)
        return [strategy.gather(x, axis=0).tolist() for x in dataset]

    # rank 0 has batches 0, 2, 4, rank 1 has 1 and 3: a third step without rows
    assert ranks(2, work) == [[[0.0, 0.0, 1.0, 1.0], [2.0, 2.0, 3.0, 3.0], [4.0, 4.0]]] * 2
    strategy = MirroredStrategy(cpus(2))
    dataset = strategy.distribute_datasets_from_function(lambda context: [pydist.ones(2) * i for i in range(3)])
    assert [[tuple(part.shape) for part in x.values] for x in dataset] == [[(2,), (2,)], [(2,), (0,)]]

    def empty(rank):
        strategy = MirroredStrategy()
        dataset = strategy.distribute_datasets_from_function(lambda context: [] if rank else [{"x": pydist.ones(2, 3)}])
        return [tuple(element["x"].shape) for element in dataset]

    assert ranks(2, empty) == [[(2, 3)], [(0, 3)]]


def test_elements_that_are_no_batches():
    strategy = MirroredStrategy(cpus(2))
    for element, error in (
        (pydist.tensor(1.0), "expected batches"),
        ((pydist.ones(2), pydist.ones(3)), "equal length"),
    ):
        with pytest.raises(ValueError, match=error):
            next(iter(strategy.experimental_distribute_dataset([element])))
    with pytest.raises(TypeError, match="a part of an element is str"):
        next(iter(strategy.experimental_distribute_dataset([["text"]])))
    with pytest.raises(TypeError, match="dataset is int"):
        strategy.experimental_distribute_dataset(3)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.out = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.drop(self.norm(x)))


def test_buffers_and_dropout_are_those_of_ranks():
    x = pydist.arange(64.0).reshape(16, 4).sin()

    def work(rank=None):
        pydist.manual_seed(3)
        strategy = MirroredStrategy() if rank is not None else MirroredStrategy(cpus(2))
        with strategy.scope():
            model = Noisy()
            optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = distribute.compute_average_loss(model(x).square().sum(1), global_batch_size=16)
            loss.backward()
            optimizer.step()

        for rows in strategy.experimental_distribute_dataset([x, x.flip(0), x]):
            strategy.run(step, (rows,))
        return bits(state_of(model)), model.norm.running_mean.tolist()

    threads = work()
    assert ranks(2, work) == [threads] * 2
    halves = [x[:8].mean(0), x[8:].mean(0)]  # momentum 0.1, mean of both replicas' statistics
    expected = pydist.zeros(4)
    for _ in range(3):
        expected = 0.9 * expected + 0.1 * (halves[0] + halves[1]) / 2
    pydist.testing.assert_close(pydist.tensor(threads[1]), expected)


@pytest.mark.parametrize("parted", [False, True])
def test_ranks_begin_with_the_values_of_rank_0(parted):
    """parted: each rank still has other things of before, since it has collected other garbage, or keeps an old model."""

    def work(rank):
        pydist.manual_seed(rank)
        strategy = MirroredStrategy()
        with strategy.scope():
            kept = [nn.BatchNorm1d(3 + i) for i in range(3)]
        if parted and rank:
            del kept[rank % 2]
        with strategy.scope():
            model = nn.Linear(3, 2)
            optim.SGD(model.parameters(), lr=1.0)
        strategy.run(lambda: None)
        assert strategy.extended.variable_created_in_scope(model.weight)
        return bits(state_of(model))

    assert len({str(state) for state in ranks(3, work)}) == 1


def test_ranks_that_make_different_things():
    def work(rank):
        strategy = MirroredStrategy()
        with strategy.scope():
            made = [nn.Linear(3, 2 + rank) for _ in range(1 + rank)]
        with pytest.raises(RuntimeError, match=r"variable 0 differs between ranks: .* \(2, 3\).* \(3, 3\)"):
            strategy.run(lambda: len(made))

    ranks(2, work)


def test_unused_parameters_have_no_gradient():
    def work(rank=None):
        strategy = MirroredStrategy() if rank is not None else MirroredStrategy(cpus(2))
        with strategy.scope():
            a, b, c = (nn.Parameter(pydist.ones(1)) for _ in range(3))
            optimizer = optim.SGD([a, b, c], lr=1.0, weight_decay=0.5)

        def step():
            optimizer.zero_grad()
            (a * 2 if distribute.get_replica_context().replica_id_in_sync_group else b * 3).sum().backward()
            optimizer.step()

        strategy.run(step)
        return [p.item() for p in (a, b, c)]

    assert work() == [-1.5, -2.5, 1.0] and ranks(2, work) == [[-1.5, -2.5, 1.0]] * 2


def test_wrong_places():
    strategy = MirroredStrategy(cpus(2))
    outside = optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    with pytest.raises(ValueError, match="SGD was made outside strategy.scope"):
        strategy.run(lambda: outside.step())
    with pytest.raises(RuntimeError, match=f"SGD was made in a replica, at {re.escape(__file__)}"):
        strategy.run(lambda: optim.SGD([pydist.ones(1, requires_grad=True)], lr=1.0))
    with pytest.raises(RuntimeError, match="called in a replica"):
        strategy.run(lambda: strategy.run(int))
    with pytest.raises(RuntimeError, match="called in a replica"):
        strategy.run(lambda: strategy.reduce("SUM", 1, axis=None))
    with strategy.scope(), pytest.raises(RuntimeError, match="another strategy"), MirroredStrategy().scope():
        pass
    for devices, text in ((["GPU:9"], "is not there"), (["TPU:0"], "no TPU backend"), (["disk"], "expected names"),
                          (["CPU:0", "CPU:0"], "each once"), ([], "expected a list")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            MirroredStrategy(devices)
    with pytest.raises(NotImplementedError, match="no TPU backend"):
        distribute.TPUStrategy()


def test_contexts():
    assert not distribute.has_strategy() and distribute.get_replica_context().num_replicas_in_sync == 1
    one = distribute.OneDeviceStrategy("/cpu:0")
    with one.scope():
        assert distribute.get_strategy() is one and distribute.get_replica_context() is None
        assert one.run(lambda a, b: (a + b, distribute.get_replica_context().devices), (1,), {"b": 2}) == (
            3,
            ("cpu:0",),
        )
    distribute.experimental_set_strategy(one)
    assert distribute.has_strategy()
    distribute.experimental_set_strategy(None)
    assert not distribute.has_strategy()
    central = distribute.experimental.CentralStorageStrategy(cpus(2))
    assert central.num_replicas_in_sync == 2 and central.extended.worker_devices == ("cpu:0", "cpu:1")


def test_replicas_have_the_callers_modes():
    strategy = MirroredStrategy(cpus(2))

    def modes():
        product = pydist.ones(2, 2) @ pydist.ones(2, 2)
        return pydist.is_grad_enabled(), str(product.dtype)

    with pydist.no_grad(), pydist.autocast("cpu"):
        grad, dtype = strategy.run(modes)
    assert grad.values == (False, False) and set(dtype.values) == {"pydist.bfloat16"}
    assert strategy.run(modes)[0].values == (True, True)


def test_cross_replica_optimizer():
    def work(rank, reduction, inside):
        strategy = MirroredStrategy()
        with strategy.scope():
            p = nn.Parameter(pydist.zeros(2))
            optimizer = distribute.CrossReplicaOptimizer(optim.SGD([p], lr=1.0), reduction)
        assert optimizer.param_groups[0]["lr"] == 1.0

        def step():
            (p * (rank + 1)).sum().backward()
            optimizer.step()

        strategy.run(step) if inside else step()
        return p.tolist()

    for inside in (False, True):
        assert ranks(2, work, distribute.ReduceOp.MEAN, inside) == [[-1.5, -1.5]] * 2
        assert ranks(2, work, "SUM", inside) == [[-3.0, -3.0]] * 2
    p = nn.Parameter(pydist.zeros(1))
    optimizer = distribute.CrossReplicaOptimizer(optim.SGD([p], lr=1.0))
    p.sum().backward()
    optimizer.step()  # alone
    assert p.item() == -1.0


class KerasLike:
    """An optimizer with the methods of Keras'."""

    def apply(self, grads, trainable_variables=None):
        self.grads = [None if grad is None else grad.tolist() for grad in grads]

    def apply_gradients(self, grads_and_vars):
        self.apply([grad for grad, _ in grads_and_vars])


def test_cross_replica_optimizer_of_keras():
    def work(rank):
        inner = KerasLike()
        optimizer = distribute.CrossReplicaOptimizer(inner)
        optimizer.apply_gradients([(pydist.tensor([1.0 + rank]), "a"), (None, "b")])
        return inner.grads

    assert ranks(2, work) == [[[1.5], None]] * 2
    with pytest.raises(TypeError, match="expected an optimizer"):
        distribute.CrossReplicaOptimizer(3)


@pytest.mark.parametrize("steps", [lambda ds: ds, lambda ds: ds.repeat(2).prefetch(2), lambda ds: ds.skip(1).take(7)])
def test_a_pipeline_makes_a_rank_its_own_rows_only(steps):
    """In the order of one replica, whatever their number; and with the seed of rank 0."""

    def work(rank, world=1):
        touched = []

        def look(x):
            touched.append(int(x))
            return x

        strategy = MirroredStrategy() if world > 1 else distribute.get_strategy()
        pydist.manual_seed(7 + rank)
        pipeline = steps(Dataset.range(103).shuffle(103).map(look).batch(8))
        seen = []
        for _ in range(2):
            for part in strategy.experimental_distribute_dataset(pipeline):
                seen.append(part.tolist())
        return seen, touched

    alone, _ = work(0)
    for world in (2, 3):
        found = ranks(world, work, world)
        together = [sum((seen[i] for seen, _ in found), []) for i in range(len(found[0][0]))]
        assert together == alone
        assert all(set(touched) <= {*sum(seen, []), touched[0]} for seen, touched in found)


def test_pipelines_that_differ_between_ranks():
    def work(rank, make):
        strategy = MirroredStrategy()
        for _ in strategy.experimental_distribute_dataset(make(rank)):
            pass

    for make, text in (
        (lambda rank: Dataset.range(20).batch(8 + 8 * rank), "rank 0 has 4 rows, rank 1 has 8 rows in step 0"),
        (lambda rank: Dataset.range(20).batch(8 + 2 * rank), "rank 1 has other rows than rank 0 in step 0"),
        (lambda rank: Dataset.range(20).shuffle(20, seed=rank).batch(8), "rank 1 has other rows than rank 0"),
    ):
        with pytest.raises(pydist.testing.RankFailed, match=text):
            ranks(2, work, make)
