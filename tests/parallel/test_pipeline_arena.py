"""Messages between ranks that share memory: they lie in an arena, with the bits of those that are sent."""

import pytest

import pydist
from lib.stages import NAMES, batch, gathered, in_order, in_pipeline, made, placed, scheduled, sha, step
from pydist import nn
from pydist.distributed import pipelining
from pydist.distributed.pipelining import PipelineStage, _arena
from pydist.nn import functional as F
from pydist.testing import run_ranks


@pytest.fixture
def every_tensor(monkeypatch):
    """The smallest tensors lie in the arena, too."""
    monkeypatch.setattr(_arena, "LEAST", 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("processes", [False, True])
def test_bits(name, processes, every_tensor):
    want = in_order(2, 3, 7, "blocks", pydist.float32, 4)
    found = run_ranks(2, in_pipeline, name, 2, 3, 7, "blocks", pydist.float32, 0.0, 4, processes=processes)
    assert gathered(found) == want


def used(schedule):
    """Bytes that this rank has put since the last step ended; -1: there is no arena."""
    arena = schedule._room.arena
    return -1 if arena is None else arena.nbytes


def test_the_arena_grows_with_what_is_sent():
    """The first step finds out how much that is; later and smaller ones use the same memory; eval does, too."""

    def work(rank):
        layer = nn.Linear(64, 64)
        schedule = scheduled("GPipe", [PipelineStage(layer, rank, 2, "cpu")], 4)
        sizes, segments = [], []
        for rows in (4, 64, 64, 32, 256, 256):  # 4: too small to be worth it
            x = pydist.ones(4 * rows, 64)
            step(schedule, x, x)
            sizes.append(used(schedule))
            segments.append(schedule._room.arena)
        schedule.eval(*([x] if rank == 0 else []))
        return (
            sizes,
            [a is b for a, b in zip(segments, segments[1:], strict=False)],
            schedule._room.arena is segments[-1],
        )

    one = 4 * (64 * 64 * 4 + 64)
    for sizes, same, after in run_ranks(2, work):
        assert sizes == [-1, one, one, one, 4 * (256 * 64 * 4 + 64), 4 * (256 * 64 * 4 + 64)]
        assert same == [False, True, True, False, True] and after


def test_a_tensor_that_the_program_keeps_stays_as_it_is(every_tensor):
    """The input of a stage, and a last stage's result that is its input."""

    class Keeper(nn.Module):
        kept = None

        def forward(self, x):
            self.kept = x
            return x * 1

    def work(rank):
        keeper = Keeper()
        stage = PipelineStage(keeper if rank == 0 else nn.Identity() if rank == 2 else keeper, rank, 3, "cpu")
        schedule, kept, outs = pipelining.ScheduleGPipe(stage, 1), [], []
        for n in range(5):
            out = schedule.eval(*([pydist.full((4, 3), float(n))] if rank == 0 else []))
            kept.append(keeper.kept)
            outs.append(out)
        return (
            rank,
            [k.unique().tolist() for k in kept if k is not None],
            [o.unique().tolist() for o in outs if o is not None],
        )

    wanted = [[float(n)] for n in range(5)]
    for rank, kept, outs in run_ranks(3, work):
        assert kept == (wanted if rank < 2 else []) and outs == (wanted if rank == 2 else [])


def test_too_much_is_sent(monkeypatch, every_tensor):
    """What does not fit into the largest arena goes as before."""
    monkeypatch.setattr(_arena, "MOST", 400)
    want = in_order(2, 8, 17, "blocks", pydist.float32, 4)
    assert gathered(run_ranks(2, in_pipeline, "1F1B", 2, 8, 17, "blocks", pydist.float32, 0.0, 4)) == want


def test_no_memory_for_it(monkeypatch, every_tensor):
    def refuse(group, nbytes):
        raise MemoryError("no memory")

    monkeypatch.setattr(_arena, "Arena", refuse)
    want = in_order(2, 3, 7, "blocks", pydist.float32, 4)
    assert gathered(run_ranks(2, in_pipeline, "ZBVZeroBubble", 2, 3, 7, "blocks", pydist.float32, 0.0, 4)) == want


def test_a_step_that_fails_begins_a_new_one(every_tensor):
    class Bad(nn.Linear):
        fails = False

        def forward(self, x):
            if self.fails:
                self.seen = x
                raise ZeroDivisionError("bad")
            return super().forward(x)

    def work(rank):
        layers, (x, y) = made(2), batch(6)
        bad = Bad(12, 12)
        schedule = scheduled("1F1B", [PipelineStage(bad if rank else layers[0], rank, 2, "cpu")], 3)
        for _ in range(3):
            step(schedule, x, y)
        bad.fails = rank == 1
        with pytest.raises((ZeroDivisionError, pipelining.StageFailed)):
            step(schedule, x, y)
        assert schedule._room.arena is None
        seen = bad.seen.clone() if rank else None
        bad.fails = False
        for _ in range(3):
            step(schedule, x * 2, y)
        assert rank == 0 or bad.seen.equal(seen)
        return schedule._room.arena is not None

    assert all(run_ranks(2, work))


def test_lengths_and_dtypes_that_change(every_tensor):
    """Places are aligned, whatever lies before them."""

    class Types(nn.Module):
        def forward(self, x):
            return x, x.argmax(-1).to(pydist.uint8), x.double(), x[:, :1].bool(), None

    class Back(nn.Module):
        def forward(self, x, index, wide, flag, nothing):
            assert (
                nothing is None
                and wide.dtype == pydist.float64
                and wide.equal(x.double())
                and flag.equal(x[:, :1].bool())
            )
            assert index.equal(x.argmax(-1).to(pydist.uint8)) and x.is_contiguous()
            return x.sum()[None]

    def work(rank):
        stage = PipelineStage(Types() if rank == 0 else Back(), rank, 2, "cpu")
        schedule, sums = pipelining.ScheduleGPipe(stage, 3), []
        for n in (1, 3, 7, 2, 5):
            x = pydist.arange(float(3 * n * 5)).view(3 * n, 5).t().contiguous().t()
            out = schedule.eval(*([x] if rank == 0 else []))
            sums.append(rank == 0 or out.sum().item() == x.sum().item())
        return all(sums)

    assert all(run_ranks(2, work))


def test_segments_show_the_parts_of_other_ranks():
    def work(rank):
        group = pydist.distributed.group.WORLD
        segment = group.segment(64)
        own = pydist._C.frombuffer(segment, dtype=pydist.uint8, count=64)
        own.fill_(rank + 1)
        group.barrier()
        other = segment.peer(1 - rank)
        del segment
        seen = pydist._C.frombuffer(other, dtype=pydist.uint8, count=64)
        values = seen.unique().tolist()
        assert pydist._C.storage_refs(seen) == 1 and pydist._C.storage_refs(own) == 1
        view = seen[:3]
        assert pydist._C.storage_refs(seen) == 2 and view.tolist() == values * 3
        for bad, kind in ((2, (ValueError, IndexError)), (-1, (ValueError, IndexError)), ("x", TypeError)):
            with pytest.raises(kind):
                other.peer(bad)
        group.barrier()
        return values

    assert run_ranks(2, work) == [[2], [1]] and run_ranks(2, work, processes=True) == [[2], [1]]


def test_bits_of_losses_and_results(every_tensor):
    """Also where a stage sends on what it has received."""

    class Through(nn.Module):
        def forward(self, x):
            return x

    def work(rank):
        modules = [nn.Linear(12, 12), Through(), nn.Linear(12, 12), Through()]
        pydist.manual_seed(0)
        for module in modules[::2]:
            module.reset_parameters()
        stages, _ = placed("Interleaved1F1B", rank, 2, modules)
        schedule, (x, y) = scheduled("Interleaved1F1B", stages, 2), batch(4)
        for _ in range(3):
            losses = []
            for stage in stages:
                for p in stage.parameters():
                    p.grad = None
            out = step(schedule, x, y, losses=losses)
        return sha([*losses, *([] if out is None else [out])]), [p.grad for stage in stages for p in stage.parameters()]

    (_, a), (found, b) = run_ranks(2, work)
    pydist.manual_seed(0)
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    x, y = batch(4)
    losses, outs = [], []
    for i, j in zip(x.chunk(2), y.chunk(2), strict=True):
        outs.append(second(first(i)))
        losses.append(F.mse_loss(outs[-1], j))
        (losses[-1] / 2).backward()
    assert found == sha([*losses, pydist.cat(outs)])
    grads = [p.grad for layer in (first, second) for p in layer.parameters()]
    assert sha([*a, *b]) == sha(grads)
