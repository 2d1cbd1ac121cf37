"""distributed.shards: training whose bits do not depend on the number of ranks."""

import subprocess
import sys

import numpy as np
import pytest

import pydist
from lib.sharded import F, parts, train
from pydist import distributed as dist
from pydist import nn
from pydist.distributed._group.numerics import fingerprint
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import RankFailed, run_ranks
from pydist.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    UnevenSampler,
    get_worker_info,
)


def alone(kind, **how):
    return run_ranks(1, lambda rank: train(kind, **how))[0]


@pytest.mark.parametrize("kind", ["mlp", "cnn", "gpt"])
def test_the_same_bits_for_any_number_of_ranks(kind):
    want = alone(kind)
    assert len(want[1]) == 4 and len(set(want[1])) == 4
    for world in (2, 3, 8):
        assert run_ranks(world, lambda rank: train(kind)) == [want] * world, world


@pytest.mark.parametrize("accumulate", [2, 3])
def test_accumulation(accumulate):
    want = alone("gpt", accumulate=accumulate, epochs=2)
    for world in (2, 3):
        assert run_ranks(world, lambda rank: train("gpt", accumulate=accumulate, epochs=2)) == [want] * world


def mlp_of_threads(rank, threads):
    pydist.set_num_threads(threads)
    return train("mlp")


@pytest.mark.slow
def test_processes_and_threads():
    """Ranks as processes, with other numbers of threads."""
    want = run_ranks(1, mlp_of_threads, 1, processes=True)
    for world, threads in ((1, 2), (2, 2), (4, 1)):
        assert run_ranks(world, mlp_of_threads, threads, processes=True) == want * world


def test_the_number_of_shards_matters():
    assert alone("mlp", shards=4)[0] != alone("mlp", shards=8)[0]


# ---- the oracle


def test_it_is_what_so_many_plain_ranks_compute():
    """W = V, without random numbers: plain DistributedDataParallel makes the same bits."""
    rows = 64

    def setup():
        net, data, loss_of, *_ = parts("mlp", rows)
        net[3].p = 0.0
        return DistributedDataParallel(net), data, loss_of

    def plain(rank):
        model, data, loss_of = setup()
        optimizer = pydist.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    def sharded(rank):
        dist.init_process_group(logical_shards=4)
        model, data, loss_of = setup()
        optimizer = pydist.optim.SGD(model.parameters(), lr=0.1)
        for step in dist.shards(DataLoader(data, batch_size=4, sampler=DistributedSampler(data))):
            optimizer.zero_grad()
            for shard in step:
                for x, y in shard:
                    loss_of(model(x), y).backward()
            optimizer.step()
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    want = run_ranks(4, plain)
    assert run_ranks(4, sharded) == want
    assert run_ranks(3, sharded) == want[:3]


def test_a_plain_loop_on_ranks_with_one_shard():
    """The loop of before still runs where each rank has one shard, and means the same without random numbers."""

    def work(rank, plain):
        dist.init_process_group(logical_shards=2)
        net, data, loss_of, *_ = parts("cnn", 32)
        net[4].p = 0.0
        model = DistributedDataParallel(net)
        optimizer = pydist.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
        if plain:
            for n, (x, y) in enumerate(loader):
                if n % 2 == 0:
                    optimizer.zero_grad()
                    with model.no_sync():
                        loss_of(model(x), y).backward()
                else:
                    loss_of(model(x), y).backward()
                    optimizer.step()
        else:
            for step in dist.shards(loader, accumulate=2):
                optimizer.zero_grad()
                for shard in step:
                    for x, y in shard:
                        loss_of(model(x), y).backward()
                optimizer.step()
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    assert run_ranks(2, work, True) == run_ranks(2, work, False)


# ---- data


class Drawn(Dataset):
    """Items that depend on the random generators."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        import random

        return i, pydist.rand(1).item(), random.random(), np.random.random()


def items(rank, shards=4, **how):
    dist.init_process_group(logical_shards=shards)
    pydist.manual_seed(5)
    data = Drawn()
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data), **how)
    found = {}
    for epoch in range(2):
        for step in dist.shards(loader, accumulate=2):
            for shard in step:
                found[epoch, step.number, shard.number] = [[x.tolist() for x in batch] for batch in shard]
    return found


@pytest.mark.parametrize("how", [{}, {"num_workers": 2, "multiprocessing_context": "fork"}], ids=["here", "processes"])
def test_rows_and_their_random_numbers_belong_to_shards(how):
    want = run_ranks(1, items)[0]
    assert len(want) == 2 * 3 * 4 and len({str(batches) for batches in want.values()}) == len(want)
    seen = [i for (epoch, *_), batches in want.items() if not epoch for batch in batches for i in batch[0]]
    assert sorted(seen) == list(range(40))
    for world in (2, 3):
        found = run_ranks(world, items if not how else lambda rank: items(rank, **how))
        assert {k: v for part in found for k, v in part.items()} == want
        assert sum(map(len, found)) == len(want)


class Stream(IterableDataset):
    """Shard v of V has the numbers v, v + V, ... below 23, each with a random one."""

    def __iter__(self):
        info = get_worker_info()
        for i in range(info.id, 23, info.num_workers):
            yield i, pydist.rand(1).item()


def streamed(rank, resume=None):
    dist.init_process_group(logical_shards=4)
    pydist.manual_seed(5)
    loader, found = DataLoader(Stream(), batch_size=2), {}
    for epoch in range(2):
        loop = dist.shards(loader, accumulate=2)
        if resume is not None:
            loop.load_state_dict(resume)
        for step in loop:
            for shard in step:
                found[step.number, shard.number] = [[x.tolist() for x in batch] for batch in shard]
            if resume is None and step.number == 2:
                found["state"] = loop.state_dict()
        if resume is not None:
            break
    return found


def test_a_stream_for_each_shard():
    want = run_ranks(1, streamed)[0]
    state = want.pop("state")
    assert [key for key in want if not key[1]] == [(step, 0) for step in range(4)]  # two steps in each of two passes
    assert [batch[0] for batch in want[0, 1]] == [[1, 5], [9, 13]] and [b[0] for b in want[1, 3]] == [[19]]
    assert want[0, 0] != want[2, 0] and state["done"] == 1 and state["epoch"] == 1
    for world in (2, 3):
        found = run_ranks(world, streamed)
        for part in found:
            assert part.pop("state") == state
        assert {k: v for part in found for k, v in part.items()} == want
    rest = run_ranks(3, streamed, state)
    assert {k: v for part in rest for k, v in part.items()} == {k: v for k, v in want.items() if k[0] == 3}


def test_streams_with_workers():
    def work(rank):
        dist.init_process_group(logical_shards=2)
        dist.shards(DataLoader(Stream(), batch_size=2, num_workers=1))

    with pytest.raises(RankFailed, match="an IterableDataset with num_workers=1 and batch_size=2"):
        run_ranks(1, work)


def test_evaluation_over_the_rows_of_shards():
    """A loop over the sampler gives the rows of all shards of a rank, each once."""

    def work(rank):
        dist.init_process_group(logical_shards=4)
        sampler = DistributedSampler(range(11), shuffle=False, pad=False)
        return list(sampler), len(sampler)

    found = run_ranks(3, work)
    assert sorted(row for rows, _ in found for row in rows) == list(range(11))
    assert [len(rows) for rows, _ in found] == [n for _, n in found] == [6, 3, 2]


def test_threads_of_a_loader():
    """They share the generators of random and NumPy, but not ours."""
    want = run_ranks(1, items)[0]
    got = run_ranks(1, lambda rank: items(rank, num_workers=2))[0]
    assert {k: [b[:2] for b in v] for k, v in got.items()} == {k: [b[:2] for b in v] for k, v in want.items()}


def test_other_random_numbers_go_on():
    import random

    def work(rank):
        dist.init_process_group(logical_shards=2)
        data = Drawn()
        random.seed(1)
        for _ in dist.shards(DataLoader(data, batch_size=4, sampler=DistributedSampler(data))):
            for shard in _:
                list(shard)
        return random.random()

    random.seed(1)
    want = random.random()
    assert run_ranks(1, work) == [want]


def test_an_epoch_that_does_not_divide():
    """pad=False: the last shards have fewer rows, and a shard without any counts as zeros."""

    def work(rank):
        dist.init_process_group(logical_shards=4)
        pydist.manual_seed(0)
        data = TensorDataset(pydist.arange(9.0)[:, None])
        model = DistributedDataParallel(nn.Linear(1, 1))
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False, pad=False))
        means, rows = [], []
        for step in dist.shards(loader, count=lambda batch: len(batch[0])):
            model.zero_grad()
            for shard in step:
                for (x,) in shard:
                    rows += x.flatten().tolist()
                    step.global_mean(model(x).sum()).backward()
            means.append(model.module.weight.grad.item())
        return means, rows

    found = run_ranks(3, work)
    assert [means for means, _ in found] == [[3.5, 8.0]] * 3  # of rows 0 to 7, and of row 8
    assert sorted(row for _, rows in found for row in rows) == list(range(9))
    assert run_ranks(1, work)[0][0] == [3.5, 8.0]


def test_a_loop_goes_on_with_another_number_of_ranks():
    """From a state after three steps, in the second epoch."""
    state = {}

    def work(rank, stop):
        dist.init_process_group(logical_shards=4)
        net, data, loss_of, optimizer, *_ = parts("mlp")
        model = DistributedDataParallel(net)
        loop = dist.shards(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
        if state and not stop:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            loop.load_state_dict(state["loop"])
        done = 0
        for _ in range(1 if state and not stop else 2):
            for step in loop:
                optimizer.zero_grad()
                for shard in step:
                    for x, y in shard:
                        loss_of(model(x), y).backward()
                optimizer.step()
                done += 1
                if done == stop:
                    break
            if done == stop:
                break
        if stop and rank == 0:
            state.update(model=model.state_dict(), optimizer=optimizer.state_dict(), loop=loop.state_dict())
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    want = run_ranks(2, work, 0)[0]
    run_ranks(2, work, 10)
    assert state["loop"]["done"] == 3 and state["loop"]["epoch"] == 1
    assert run_ranks(3, work, 0)[0] == want


# ---- what is refused


def refused(error, text, fn, world=1, shards=2):
    """fn(model, loader, optimizer) raises on all ranks."""

    def work(rank):
        dist.init_process_group(logical_shards=shards)
        net, data, loss_of, optimizer, *_ = parts("mlp")
        model = DistributedDataParallel(net)
        fn(model, DataLoader(data, batch_size=4, sampler=DistributedSampler(data)), optimizer)

    with pytest.raises(RankFailed, match=text) as caught:
        run_ranks(world, work)
    assert isinstance(caught.value.__cause__, error)


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def test_a_forward_outside_of_a_shard():
    refused(
        RuntimeError,
        "outside of a logical shard on a rank with 2 of 2",
        lambda m, loader, o: m(pydist.zeros(1, 1, 8, 8)),
    )


def outside_with_grad(model, loader, optimizer):
    F.cross_entropy(model.module(pydist.zeros(2, 1, 8, 8)), pydist.zeros(2, dtype=pydist.int64)).backward()


def test_a_backward_outside_of_a_shard():
    refused(RuntimeError, "got a gradient outside of a logical shard", outside_with_grad)


def test_evaluation_outside_is_fine():
    def work(rank):
        dist.init_process_group(logical_shards=4)
        model = DistributedDataParallel(nn.Linear(2, 1))
        with pydist.no_grad():
            return model(pydist.ones(1, 2)).shape

    assert run_ranks(1, work) == [(1, 1)]


def left_early(model, loader, optimizer):
    for step in dist.shards(loader, accumulate=2):
        for shard in step:
            for batch in shard:
                loss(model, batch).backward()
                break


def no_loop(model, loader, optimizer):
    for step in dist.shards(loader):
        for shard in step:
            for batch in shard:
                loss(model, batch).backward()
            break


def stepped_inside(model, loader, optimizer):
    for step in dist.shards(loader):
        for shard in step:
            for batch in shard:
                loss(model, batch).backward()
            optimizer.step()


def twice(model, loader, optimizer):
    for step in dist.shards(loader):
        for shard in step:
            for batch in shard:
                loss(model, batch).backward()
                loss(model, batch).backward()


def with_no_sync(model, loader, optimizer):
    for step in dist.shards(loader):
        for shard in step:
            with model.no_sync():
                pass


def mean_too_soon(model, loader, optimizer):
    for step in dist.shards(loader):
        step.mean()


def closure(model, loader, optimizer):
    for step in dist.shards(loader):
        for shard in step:
            for batch in shard:
                loss(model, batch).backward()
        optimizer.step(lambda: 0)


def collective(model, loader, optimizer):
    for step in dist.shards(loader):
        for shard in step:
            for batch in shard:
                dist.all_reduce(loss(model, batch).detach())


def hook(model, loader, optimizer):
    model.register_comm_hook(None, lambda state, bucket: None)


def builtin_hook(model, loader, optimizer):
    model.register_builtin_comm_hook("topk")


@pytest.mark.parametrize(
    "fn, error, text",
    [
        (left_early, RuntimeError, "shard 0 was left before its last micro-batch, with 1 of 2 to come"),
        (no_loop, RuntimeError, "step 0 ended before all its shards were run"),
        (stepped_inside, RuntimeError, "stepped inside of logical shard 0"),
        (twice, RuntimeError, "after the backward that ended it"),
        (with_no_sync, RuntimeError, "no_sync: inside a logical shard"),
        (mean_too_soon, RuntimeError, "mean: the step's shards were not all run"),
        (closure, NotImplementedError, "a closure with logical shards"),
        (collective, RuntimeError, "a collective or message inside logical shard 0"),
        (hook, NotImplementedError, "a communication hook with logical shards"),
        (builtin_hook, NotImplementedError, "a communication hook with logical shards"),
    ],
)
def test_loops_that_are_wrong(fn, error, text):
    refused(error, text, fn, shards=4)


def test_several_backwards_without_overlap():
    def work(rank):
        dist.init_process_group(logical_shards=4)
        net, data, loss_of, *_ = parts("mlp", 16)
        net[3].p = 0.0
        model = DistributedDataParallel(net)
        grads = []
        for overlap in (True, False):
            for step in dist.shards(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)), overlap=overlap):
                model.zero_grad()
                for shard in step:
                    for x, y in shard:
                        for _ in range(1 if overlap else 2):
                            loss_of(model(x), y).backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        return [(2 * a).equal(b) for a, b in zip(*grads, strict=True)]

    assert run_ranks(2, work) == [[True] * 4] * 2


@pytest.mark.parametrize("name, dtype", [("fp16", pydist.float16), ("bf16", pydist.bfloat16)])
def test_hooks_that_round_each_shard(name, dtype):
    def work(rank, by_name):
        dist.init_process_group(logical_shards=4)
        net, data, loss_of, *_ = parts("mlp", 16)
        model = DistributedDataParallel(net)
        if by_name:
            model.register_builtin_comm_hook(name)
        else:
            hooks = pydist.distributed.algorithms.ddp_comm_hooks.default_hooks
            model.register_comm_hook(None, getattr(hooks, f"{name}_compress_hook"))
        for step in dist.shards(DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))):
            for shard in step:
                for x, y in shard:
                    loss_of(model(x), y).backward()
        return [p.grad.numpy().tobytes() for p in model.parameters()]

    def leaves(rank):
        dist.init_process_group(logical_shards=4)
        net, data, loss_of, *_ = parts("mlp", 16)
        found, seed = [], pydist.initial_seed()
        for v in range(4):
            net.zero_grad()
            pydist._C._rng_shard(0)
            pydist.set_rng_state(pydist._C.Generator().manual_seed(seed).get_state())
            pydist._C.set_rng_state((seed, 1 << 32, v))
            rows = range(v, 16, 4)
            loss_of(net(data[rows][0]), data[rows][1]).backward()
            found.append([p.grad.to(dtype).float() for p in net.parameters()])
        return [
            (((a + b) + (c + d)) * 0.25).to(dtype).float().numpy().tobytes() for a, b, c, d in zip(*found, strict=True)
        ]

    want = run_ranks(1, leaves)[0]
    for world in (1, 3, 4):
        assert run_ranks(world, work, world != 3) == [want] * world, world


@pytest.mark.parametrize("shards", [0, 3, 2048, "8", True, 2.0])
def test_wrong_numbers_of_shards(shards):
    with pytest.raises(RankFailed, match=r"logical_shards is .* .expected a power of two, 1 to 1024"):
        run_ranks(1, lambda rank: dist.init_process_group(logical_shards=shards))


def test_order_fast():
    with pytest.raises(ValueError, match="order is 'fast' beside logical shards"):
        dist.init_process_group(logical_shards=2, order="fast")


def test_ranks_with_other_numbers():
    def work(rank):
        dist.init_process_group(logical_shards=2 << rank)
        DistributedDataParallel(nn.Linear(1, 1))

    with pytest.raises(RankFailed, match="rank 0 has logical_shards=2, rank 1 has logical_shards=4"):
        run_ranks(2, work)


def test_ranks_with_other_arithmetic(monkeypatch):
    from pydist.distributed._group import numerics

    def told():
        mine = dist.get_rank()
        return [(name, "0" if name == "PYDIST_WINOGRAD" and mine else value) for name, value in fingerprint()]

    monkeypatch.setattr(numerics, "fingerprint", told)

    def work(rank):
        dist.init_process_group(logical_shards=2)
        DistributedDataParallel(nn.Linear(1, 1))

    with pytest.raises(RankFailed, match="rank 0 has PYDIST_WINOGRAD: 1, rank 1 has PYDIST_WINOGRAD: 0"):
        run_ranks(2, work)


def test_ranks_with_other_rows():
    """All of them raise, and go on together."""

    def work(rank, over):
        dist.init_process_group(logical_shards=4)
        net = nn.Linear(3, 1)
        model, x = DistributedDataParallel(net), pydist.ones(16 + 4 * (rank == 1), 3)
        data = TensorDataset(x, x[:, :1])
        loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data))
        with pytest.raises(
            RuntimeError, match="setting 2 .* rank 0 has a data set of 16 rows, rank 1 has a data set of 20 rows"
        ):
            for _ in dist.Transaction(model).over(loader) if over else dist.shards(loader):
                pass
        dist.all_reduce(total := pydist.ones(1))
        return total.item()

    for over in (False, True):
        assert run_ranks(2, work, over) == [2.0, 2.0]


def test_loaders_that_do_not_know_shards():
    def work(rank, make, text):
        dist.init_process_group(logical_shards=2)
        with pytest.raises((ValueError, TypeError), match=text):
            make(TensorDataset(pydist.arange(8)))

    for make, text in (
        (lambda d: dist.shards(DataLoader(d, batch_size=2)), "sampler is SequentialSampler"),
        (lambda d: dist.shards(DataLoader(d, batch_size=2, shuffle=True)), "sampler is RandomSampler"),
        (lambda d: dist.shards(DataLoader(d, 2, sampler=DistributedSampler(d, 2, 0))), "DistributedSampler of its own ranks"),
        (lambda d: dist.shards(DataLoader(d, 2, sampler=DistributedSampler(d)), accumulate=0), "accumulate is 0"),
        (lambda d: dist.shards(DataLoader(d, 2, sampler=DistributedSampler(d)), count=3), "count is int"),
    ):  # fmt: skip
        run_ranks(1, work, make, text)


def test_sync_batch_norm():
    def work(rank):
        dist.init_process_group(logical_shards=2)
        DistributedDataParallel(nn.SyncBatchNorm(2))

    with pytest.raises(RankFailed, match="SyncBatchNorm beside logical shards"):
        run_ranks(1, work)


def test_without_logical_shards():
    data = TensorDataset(pydist.arange(4))
    with pytest.raises(RuntimeError, match="there are no logical shards"):
        dist.Transaction(nn.Linear(1, 1)).over(DataLoader(data, 2, sampler=DistributedSampler(data))).__next__()
    with pytest.raises(ValueError, match="logical_shards is 4"):
        DistributedDataParallel(nn.Linear(1, 1), logical_shards=4)


def test_the_launcher(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom pydist import distributed as dist\ndist.init_process_group()\n"
        "print(dist.get_logical_shards(), dist.work_shares(), os.environ['PYTHONHASHSEED'])\n"
    )

    def launched(*options):
        command = [sys.executable, "-m", "pydist.run", *options, str(script)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert "8 [4, 4] 0" in launched("--nproc-per-node", "2", "--logical-shards", "8").stdout
    assert "--logical-shards: 6 (expected a power of two)" in launched("--logical-shards", "6").stderr


# ---- memory


def test_uneven_sampler():
    def rows(shares, rank, **how):
        return list(UnevenSampler(range(21), 8, shares, rank, **how))

    parts = [rows([3, 1], rank, shuffle=False) for rank in (0, 1)]
    assert parts == [[[0, 1, 2, 3, 4, 5], [8, 9, 10, 11, 12, 13], [16, 17, 18]], [[6, 7], [14, 15], [19, 20]]]
    assert [len(UnevenSampler(range(21), 8, [3, 1], rank)) for rank in (0, 1)] == [3, 3]
    assert rows([3, 1], 1, shuffle=False, drop_last=True) == [[6, 7], [14, 15]]
    seen = [rows([5, 2, 1], rank) for rank in range(3)]
    assert sorted(i for part in seen for batch in part for i in batch) == list(range(21))
    sampler = UnevenSampler(range(21), 8, [1], 0)
    first, loader = list(sampler), DataLoader(range(21), batch_sampler=sampler)
    assert [batch.tolist() for batch in loader] == first and [batch.tolist() for batch in loader] != first
    for args, text in (((4, [1, 0], 0), "shares"), ((4, [1], 1), "rank 1"), ((0, [1], 0), "batch_size")):
        with pytest.raises(ValueError, match=text):
            UnevenSampler(range(21), *args)


def test_memory_of_gradients():
    """1, 1, 2, 3 times the gradients for 1, 2, 4, 8 shards on a rank."""

    def work(rank, shards):
        dist.init_process_group(logical_shards=shards)
        net = nn.Linear(512, 512, bias=False)
        before = pydist._C.memory_allocated()
        model = DistributedDataParallel(net)
        made = pydist._C.memory_allocated() - before
        return made, model.reducer.shards

    size = 512 * 512 * 4
    found = {shards: run_ranks(1, work, shards)[0] for shards in (1, 2, 4, 8)}
    assert [found[v][1] for v in found] == [1, 2, 4, 8]
    private = [found[v][0] / size for v in found]  # the bucket itself is a shared segment, and not counted
    assert [round(x) for x in private] == [0, 0, 1, 2]
