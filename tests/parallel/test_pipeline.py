"""Steps of pipelines: bits of all schedules, shapes that change, specs, failures, deaths, waiting, memory."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pydist
from lib.processes import environment, launch, within
from lib.stages import NAMES, batch, gathered, in_order, in_pipeline, made, placed, scheduled, sha, step
from pydist import distributed as dist
from pydist import nn
from pydist.distributed import pipelining
from pydist.distributed.pipelining import PipelineStage, simulate
from pydist.distributed.pipelining.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks
from pydist.distributed.pipelining.schedules import _PipelineScheduleRuntime
from pydist.nn import functional as F
from pydist.testing import run_ranks

LONG = "FULL_LONG" in os.environ

# ---- bits


@pytest.mark.parametrize(
    "kind, dtype", [("blocks", pydist.float32), ("convolutions", pydist.float64)], ids=["blocks", "conv"]
)
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_all_schedules_have_the_bits_of_one_process(p, kind, dtype):
    """Gradients, parameters after steps of AdamW, losses and outputs; more and fewer microbatches than stages; batches that
    do not divide."""
    for m in (1, 2, 4, 7, 8) if LONG else (1, 3, 8) if p % 2 else (2, 7):
        want = in_order(p, m, 2 * m + 1, kind, dtype, 3)
        for name in NAMES:
            found = run_ranks(p, in_pipeline, name, p, m, 2 * m + 1, kind, dtype, 0.0, 3)
            assert gathered(found) == want, (name, m)


@pytest.mark.parametrize("name", NAMES if LONG else ["1F1B", "ZBVZeroBubble"])
def test_processes_have_the_same_bits(name):
    want = in_order(2, 3, 7, "blocks", pydist.float32, 2)
    found = run_ranks(2, in_pipeline, name, 2, 3, 7, "blocks", pydist.float32, 0.0, 2, processes=True)
    assert gathered(found) == want


def test_random_numbers_do_not_depend_on_the_schedule():
    """Dropout is that of the stage and the microbatch; two steps draw different ones."""
    found = {name: gathered(run_ranks(2, in_pipeline, name, 2, 4, 8, "blocks", pydist.float32, 0.3, 2))
             for name in NAMES[2:]}  # fmt: skip
    assert len(set(found.values())) == 1
    again = gathered(run_ranks(2, in_pipeline, "LoopedBFS", 2, 4, 8, "blocks", pydist.float32, 0.3, 1))
    assert again[3] != found["LoopedBFS"][3]


def test_large_messages():
    """More bytes than fit in the lanes' rings, from both sides, so that a thread moves them."""

    def work(rank):
        pydist.manual_seed(0)
        layers = [nn.Linear(64, 64) for _ in range(4)]
        stages, parts = placed("ZBVZeroBubble", rank, 2, layers)
        schedule = scheduled("ZBVZeroBubble", stages, 4)
        x = pydist.randn(4 * 1024, 64, generator=pydist.Generator().manual_seed(1))
        step(schedule, x, x)
        return {s: layer.weight.grad for s in parts for layer in parts[s]}

    found = run_ranks(2, work)
    pydist.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    x = pydist.randn(4 * 1024, 64, generator=pydist.Generator().manual_seed(1))
    for part in x.chunk(4):
        (F.mse_loss(model(part), part) / 4).backward()
    grads = {**found[0], **found[1]}
    assert sha(grads[s] for s in range(4)) == sha(layer.weight.grad for layer in model)


# ---- what stages send


class Pair(nn.Module):
    """Two results of other shapes and dtypes than its inputs, one of which needs no gradient, and None."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 5)

    def forward(self, x):
        y = self.linear(x)
        return y, y.detach().argmax(-1), None, x


class Join(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 8)

    def forward(self, y, index, nothing, x, scale=1.0):
        assert nothing is None and index.dtype == pydist.int64 and not index.requires_grad
        return self.linear(y) * scale + x * index[..., None].double()


@pytest.mark.parametrize("name", ["GPipe", "InterleavedZeroBubble"])
def test_several_results_and_lengths_that_change(name):
    """A tuple with an int tensor and None; lengths 17 to 64 per microbatch and step, without a pass that infers shapes."""

    def work(rank):
        pydist.manual_seed(0)
        modules = [Pair().double(), Join().double(), Pair().double(), Join().double()]
        stages, _ = placed(name, rank, 2, modules if name != "GPipe" else modules[:2])
        found = []
        for lengths in ((17, 64, 33), (40, 18, 64)):
            xs = [
                pydist.randn(2, n, 8, dtype=pydist.float64, generator=pydist.Generator().manual_seed(n))
                for n in lengths
            ]
            schedule = scheduled(name, stages, 3, lambda out, target: (out * target).mean())
            schedule._split_inputs = lambda args, kwargs, xs=xs: (
                [(x,) for x in xs],
                [{"scale": 2.0} if s else {} for s in [0] * 3],
            )
            schedule._split_target = lambda target, xs=xs: xs
            schedule.step(return_outputs=False)
            found.append([q.grad.clone() for stage in stages for q in stage.submod.parameters()])
        return found

    found = run_ranks(2, work)
    pydist.manual_seed(0)
    modules = [Pair().double(), Join().double(), Pair().double(), Join().double()][: 2 if name == "GPipe" else 4]
    for n, lengths in enumerate(((17, 64, 33), (40, 18, 64))):
        for length in lengths:
            x = pydist.randn(2, length, 8, dtype=pydist.float64, generator=pydist.Generator().manual_seed(length))
            out = modules[1](*modules[0](x))
            if len(modules) == 4:
                out = modules[3](*modules[2](out))
            ((out * x).mean() / 3).backward()
        where = [(rank, stage) for rank in range(2) for stage in range(rank, len(modules), 2)]
        want = [[q.grad for rank, s in where if rank == r for q in modules[s].parameters()] for r in range(2)]
        for r in range(2):
            assert sha(found[r][n]) == sha(want[r]), (n, r)


def test_many_results():
    """A header that is longer than one message."""

    class Many(nn.Module):
        def forward(self, *xs):
            return (
                tuple(x * (i + 1) for i, x in enumerate(xs)) if len(xs) > 1 else tuple(xs[0][:, i] for i in range(40))
            )

    def work(rank):
        stage = PipelineStage(Many() if rank < 2 else lambda *xs: pydist.stack(xs), rank, 3, "cpu")
        schedule = pipelining.ScheduleGPipe(stage, 2, lambda out, target: out.sum())
        x = pydist.randn(4, 40, generator=pydist.Generator().manual_seed(0), requires_grad=True)
        schedule.step(*([x] if rank == 0 else []), target=pydist.zeros(4), return_outputs=False)
        return x.grad

    grad = run_ranks(3, work)[0]
    assert grad.equal(pydist.arange(1, 41).float().expand(4, 40) / 2)


@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble"])
def test_results_that_need_no_gradient_or_are_no_results_of_ops(name):
    """A frozen first stage, a stage without parameters, an input that is returned unchanged, a view of a parameter."""

    class Row(nn.Module):
        def __init__(self):
            super().__init__()
            self.row = nn.Parameter(pydist.ones(12))

        def forward(self, x, *_):
            return x, self.row[None]

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(12, 12)

        def forward(self, x, row=0):
            return self.linear(x) * row

    def stages_of(p):
        pydist.manual_seed(0)
        modules = [nn.Linear(12, 12), Row(), nn.Identity(), Last()]
        modules[2].forward = lambda *xs: xs
        modules[0].requires_grad_(False)
        if p == 2 and name == "1F1B":
            return [nn.Sequential(modules[0], modules[1]), modules[3]]
        return modules

    def work(rank):
        modules = stages_of(2)
        stages, _ = placed(name, rank, 2, modules)
        stages = [PipelineStage(modules[s.stage_index], s.stage_index, s.num_stages, "cpu") for s in stages]
        x, y = batch(6)
        step(scheduled(name, stages, 3), x, y)
        return {s.stage_index: [q.grad for q in s.submod.parameters() if q.grad is not None] for s in stages}

    found = {s: grads for part in run_ranks(2, work) for s, grads in part.items()}
    modules, (x, y) = stages_of(2), batch(6)
    for a, b in zip(x.chunk(3), y.chunk(3), strict=True):
        for module in modules[:-1]:
            a = module(*a) if isinstance(a, tuple) else module(a)
        (F.mse_loss(modules[-1](*a), b) / 3).backward()
    assert [sha(found[s]) for s in sorted(found)] == [
        sha(q.grad for q in module.parameters() if q.grad is not None) for module in modules
    ]


# ---- arguments


def test_arguments_of_step():
    """kwargs and specs, loss_kwargs, scale_grads, gradients that add up, eval, results in another dimension."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, by=None, mode="whole"):
            return self.linear(x) * by if mode == "whole" else self.linear(x)

    def work(rank):
        pydist.manual_seed(0)
        stage = PipelineStage(Scaled(), rank, 2, "cpu")
        seen = []

        def loss(out, target, weight=1.0):
            seen.append(tuple(out.shape))
            return F.mse_loss(out, target) * weight

        schedule = pipelining.Schedule1F1B(
            stage, 2, loss, (TensorChunkSpec(1),), {"by": TensorChunkSpec(-2)}, TensorChunkSpec(1), scale_grads=False
        )
        x, y = pydist.arange(48.0).view(3, 4, 4) / 48, pydist.zeros(3, 4, 4).transpose(0, 1)
        by = pydist.arange(16.0).view(1, 4, 4) / 16
        schedule._loss_fn = lambda out, target, weight=1.0: loss(out, target.transpose(0, 1), weight)
        out = schedule.step(*([x] if rank == 0 else []), target=y, by=by, loss_kwargs={"weight": 3.0})
        grads = [q.grad.clone() for q in stage.submod.parameters()]
        schedule.step(*([x] if rank == 0 else []), target=y, by=by, loss_kwargs={"weight": 3.0}, return_outputs=False)
        twice = [q.grad.clone() for q in stage.submod.parameters()]
        losses = []
        with pydist.no_grad():
            evaluated = schedule.eval(*([x] if rank == 0 else []), target=y, by=by, losses=losses)
        assert sha(q.grad for q in stage.submod.parameters()) == sha(twice) and stage.live == 0
        alone = schedule.eval(*([x] if rank == 0 else []), by=by)
        if rank:
            assert out.shape == (3, 4, 4) and sha([out]) == sha([evaluated]) == sha([alone]) and len(losses) == 2
            assert seen[0] == (3, 2, 4)
        else:
            assert out is evaluated is alone is None and losses == []
        return grads, twice

    found = run_ranks(2, work)
    pydist.manual_seed(0)
    model = [Scaled(), Scaled()]
    x, by = pydist.arange(48.0).view(3, 4, 4) / 48, pydist.arange(16.0).view(1, 4, 4) / 16
    pydist.manual_seed(0)
    model = [Scaled()]
    pydist.manual_seed(0)
    model.append(Scaled())
    for a, b in zip(x.chunk(2, 1), by.chunk(2, 1), strict=True):
        (F.mse_loss(model[1](model[0](a, b), b), pydist.zeros(3, 2, 4)) * 3).backward()
    for rank in range(2):
        grads, twice = found[rank]
        for got, more, q in zip(grads, twice, model[rank].parameters(), strict=True):
            assert (got - q.grad).abs().max() < 1e-6 and (more - 2 * q.grad).abs().max() < 1e-5


def test_splitting_and_merging():
    args, kwargs = split_args_kwargs_into_chunks(
        (pydist.arange(7), [pydist.arange(12).view(2, 6), "a"], pydist.tensor(1.0)), {"mask": pydist.arange(6).view(1, 6)}, 3,
        (None, [TensorChunkSpec(1), None], None), {"mask": TensorChunkSpec.from_tuple((1,))[0]},
    )  # fmt: skip
    assert [a[0].tolist() for a in args] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [a[1][0].shape for a in args] == [(2, 2)] * 3 and all(a[1][1] == "a" and a[2].item() == 1 for a in args)
    assert [k["mask"].tolist() for k in kwargs] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    whole = merge_chunks([a[:2] for a in args], (None, [TensorChunkSpec(1), None]))
    assert whole[0].equal(pydist.arange(7)) and whole[1][0].equal(pydist.arange(12).view(2, 6)) and whole[1][1] == "a"
    assert merge_chunks([pydist.tensor(1.0), pydist.tensor(2.0)]).tolist() == [1, 2]
    from pydist.distributed.pipelining.microbatch import _Replicate, sum_reducer

    assert merge_chunks([(2.0, 5), (3.0, 6)], (sum_reducer, _Replicate)) == (5.0, 5)
    assert split_args_kwargs_into_chunks((), None, 2) == ([(), ()], [{}, {}])


def test_tables_of_ones_own(tmp_path):
    """A CSV with or without messages; what is written is read again, by every rank."""

    def work(rank):
        layers = made(2)
        stage, (x, y) = PipelineStage(layers[rank], rank, 2, "cpu"), batch(4)
        schedule = _PipelineScheduleRuntime([stage], 2, F.mse_loss)
        path = tmp_path / f"{rank}.csv"
        path.write_text("0F0,0F1,,0B1,0I0,0W0\r\n,1F0,1F1,1B1,1I0,1W0\r\n")
        schedule._load_csv(path)
        step(schedule, x, y)
        schedule._dump_csv(path)
        schedule._load_csv(path, "compute_comms")
        assert (
            "RECV_F0" in path.read_text()
            and schedule.pipeline_order_with_comms[0][-1].computation_type.value == "REDUCE_GRAD"
        )
        step(schedule, x, y)
        schedule._dump_csv(path, "compute_only")
        return [q.grad for q in stage.submod.parameters()]

    found = run_ranks(2, work)
    model, (x, y) = nn.Sequential(*made(2)), batch(4)
    for _ in range(2):
        for part in (1, 0):
            (F.mse_loss(model(x.chunk(2)[part]), y.chunk(2)[part]) / 2).backward()
    assert sha(found[0] + found[1]) == sha(q.grad for q in model.parameters())


@pytest.mark.parametrize("own", [[[0, 1], [2, 3]], [[0, 1, 2], [3]]])
def test_a_table_puts_stages_where_it_likes(own, tmp_path):
    """Next to each other, and more on one rank than on the other; the bits are those of one process."""
    rows = [
        [f"{s}F{mb}" for mb in range(2) for s in row] + [f"{s}B{mb}" for mb in range(2) for s in reversed(row)]
        for row in own
    ]
    (tmp_path / "t.csv").write_text("\n".join(",".join(row) for row in rows))

    def work(rank):
        layers, (x, y) = made(4), batch(6)
        schedule = _PipelineScheduleRuntime([PipelineStage(layers[s], s, 4, "cpu") for s in own[rank]], 2, F.mse_loss)
        schedule._load_csv(tmp_path / "t.csv")
        step(schedule, x, y)
        return {s: [[q.grad, q] for q in layers[s].parameters()] for s in own[rank]}

    found = {s: pairs for part in run_ranks(2, work) for s, pairs in part.items()}
    assert (
        sha([grad for s in sorted(found) for grad, _ in found[s]]) == in_order(2, 2, 6, "blocks", pydist.float32, 1)[0]
    )


def test_microbatches_may_be_given_one_by_one():
    """Of different sizes, without splitting; LoopedBFS has PyTorch's order of arguments; frozen stages have no gradients."""

    def work(rank):
        x, y = batch(6)
        given = {"arg_mbs": [(x[:4],), (x[4:],)] if rank == 0 else None, "target_mbs": [y[:4], y[4:]]}
        stages, _ = placed("LoopedBFS", rank, 2, made(4))
        schedule = pipelining.ScheduleLoopedBFS(stages, 2, F.mse_loss, None, False, True, True)
        losses = []
        schedule.step(**given, losses=losses)
        assert schedule.scale_grads is False and len(losses) == (2 if rank else 0)
        schedule.eval(**given)
        frozen, _ = placed("GPipe", rank, 2, made(2))
        frozen[0].submod.requires_grad_(False)
        scheduled("GPipe", frozen, 2).step(**given, losses=losses)
        assert all(p.grad is None for p in frozen[0].parameters()) and (rank == 0 or losses[0].item() > 0)
        loose, _ = placed("GPipe", rank, 2, made(2))
        with pytest.raises((RuntimeError, pipelining.StageFailed), match="the loss has no history"):
            scheduled("GPipe", loose, 2, lambda out, target: out.detach().sum()).step(**given)
        return [[q.grad for q in stage.parameters()] for stage in stages]

    (a, c), (b, d) = run_ranks(2, work)
    model, (x, y) = nn.Sequential(*made(4)), batch(6)
    for part in (slice(0, 4), slice(4, 6)):
        F.mse_loss(model(x[part]), y[part]).backward()
    assert sha([*a, *b, *c, *d]) == sha([q.grad for q in model.parameters()])


def test_a_builder_of_weight_gradients():
    """dw_builder: asked after the inputs' gradients are there, and its function called by W, or at once by B."""
    for name, count in (("ZBVZeroBubble", 3), ("1F1B", 3)):

        def work(rank, name=name):
            log, layers = [], made(4)
            stages, _ = placed(name, rank, 2, layers, dw_builder=lambda: log.append("I") or (lambda: log.append("W")))
            x, y = batch(6)
            step(scheduled(name, stages, 3), x, y)
            return log

        for log in run_ranks(2, work):
            stages = 2 if name == "ZBVZeroBubble" else 1
            assert log.count("I") == log.count("W") == count * stages and log[0] == "I"


# ---- failures


class Bad(nn.Module):
    def __init__(self, where):
        super().__init__()
        self.linear, self.where, self.calls = nn.Linear(12, 12), where, 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        if self.where == "forward" and self.calls == 2:
            raise ValueError("bad forward")
        if self.where == "backward" and self.calls == 2:
            y.register_hook(self.fail)
        return y

    def fail(self, grad):
        raise ValueError("bad backward")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("name", ["GPipe", "1F1B", "ZBVZeroBubble"])
def test_an_exception_ends_the_step_on_all_ranks(name, where):
    """With the stage, the microbatch and the line; the next step is whole again."""
    p = 3
    bad = 1 if name != "ZBVZeroBubble" else 4  # both are on rank 1

    def work(rank):
        modules = [nn.Linear(12, 12) for _ in range(p if name != "ZBVZeroBubble" else 2 * p)]
        modules[bad] = Bad(where)
        stages, _ = placed(name, rank, p, modules)
        schedule, (x, y) = scheduled(name, stages, 4), batch(8)
        with pytest.raises(ValueError if rank == 1 else pipelining.StageFailed) as caught:
            step(schedule, x, y)
        assert all(stage.live == 0 for stage in stages)
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        modules[bad].where = None
        losses = []
        step(schedule, x, y, losses=losses)
        return text, (getattr(caught.value, "stage", None), getattr(caught.value, "microbatch", None)), len(losses)

    found = run_ranks(p, work)
    for rank, (text, at, _) in enumerate(found):
        assert f"stage {bad}, microbatch 1, {where}" in text and "on rank 1" in text and f"bad {where}" in text, text
        if rank != 1:
            assert at == (bad, 1) and "test_pipeline.py:" in text
    assert sum(losses for _, _, losses in found) == 4


def test_a_failure_before_the_first_action():
    """A batch that is too small is known on one rank only."""

    def work(rank):
        stage = PipelineStage(nn.Linear(12, 12), rank, 2, "cpu")
        schedule, (x, y) = pipelining.Schedule1F1B(stage, 4, F.mse_loss), batch(8)
        with pytest.raises((ValueError, pipelining.StageFailed), match="size 3, for 4 microbatches"):
            step(schedule, x[:3], y)
        return step(schedule, x, y) is not None

    assert run_ranks(2, work) == [False, True]


@pytest.mark.slow
def test_ranks_that_die(tmp_path):
    """At any action, of several schedules: all others raise PeerFailed within a second, and say at which stage and
    microbatch they were; nothing is left of them. FULL_DEATHS: so many deaths."""
    deaths = int(os.environ.get("FULL_DEATHS", 4))
    path = os.pathsep.join((str(Path(__file__).resolve().parents[1]), environment()["PYTHONPATH"]))
    ended = subprocess.run(
        [sys.executable, "-m", "lib.pipeline_deaths", "0", str(deaths), str(tmp_path)],
        capture_output=True, text=True, env=environment(PYTHONPATH=path, OMP_NUM_THREADS="1"), timeout=within(60 + 5 * deaths),
    )  # fmt: skip
    assert ended.returncode == 0 and f"{deaths} deaths" in ended.stdout, ended.stdout + ended.stderr


# ---- time and memory


class Sleep(pydist.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        time.sleep(UNIT)
        return x + weight

    @staticmethod
    def backward(ctx, grad):
        time.sleep(UNIT)
        return grad, grad.sum()


UNIT = 0.02


class Sleeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(pydist.zeros(()))

    def forward(self, x):
        return Sleep.apply(x, self.weight)


def waited(rank, name, p, m):
    """timeline() of a step whose F, I and W sleep, on rank 0, and the microbatches that were live."""
    stages, _ = placed(name, rank, p, [Sleeper() for _ in range(p * (1 if name in ("GPipe", "1F1B") else 2))],
                       dw_builder=lambda: lambda: time.sleep(UNIT))  # fmt: skip
    schedule = scheduled(name, stages, m, lambda out, target: out.sum())
    x = pydist.ones(m, 1, requires_grad=True)
    dist.barrier()
    step(schedule, x, x.detach())
    found = schedule.timeline()
    return (found, simulate(schedule)) if rank == 0 else None


@pytest.mark.parametrize("name", NAMES)
def test_waiting_is_that_of_the_simulator(name):
    """Idle share of each rank within 0.02 of simulate (0.05 where the machine is busy, in the short form), which agrees with
    the formulae; the actions in its order; as many live microbatches."""
    for p, m in [(4, 8)] if not LONG else [(4, 8), (4, 16), (4, 32), (8, 16)]:
        for attempt in range(6):
            found, want = run_ranks(p, waited, name, p, m)[0]
            off = max(abs(a - b) for a, b in zip(found.idle_share, want.idle_share, strict=True))
            if off <= (0.02 if LONG else 0.05):
                break
            print(f"{name} {p} {m}, attempt {attempt}: off by {off:.3f}")
        assert off <= (0.02 if LONG else 0.05), (found, want)
        assert found.live == want.live and found.kept == want.kept
        assert [[a for a, _, _ in row] for row in found.spans] == [[a for a, _, _ in row] for row in want.spans]
        assert len(found.gantt(400).splitlines()) == p


def test_memory_is_that_of_the_live_microbatches():
    """The most tensor bytes of a rank after any action: the table's count times those of one microbatch, within 5 %, and two
    messages that are on their way."""
    n, rows, p = 64, 256, 4

    def work(rank, name, m):
        from pydist.distributed.pipelining import _step

        layers = [nn.Sequential(*(nn.Sequential(nn.Linear(n, n), nn.Tanh()) for _ in range(8))) for _ in range(2 * p)]
        stages, _ = placed(name, rank, p, layers)
        schedule, x = scheduled(name, stages, m, lambda out, target: out.mean()), pydist.zeros(m * rows, n)
        step(schedule, x, x, return_outputs=False)  # afterwards gradients are there
        seen = [pydist._C.memory_allocated()]

        def watched(do):
            def wrapped(*args):
                do(*args)
                seen.append(pydist._C.memory_allocated())

            return wrapped

        for kind, do in list(_step._DO.items()):
            _step._DO[kind] = watched(do)
        step(schedule, x, x, return_outputs=False)
        return max(seen) - seen[0], schedule.timeline().live_on_rank[rank]

    m = 8
    for name in ("GPipe", "1F1B", "Interleaved1F1B") if LONG else ("1F1B",):
        one = [most / live for most, live in run_ranks(p, work, name, 1, processes=True)]
        for rank, (most, live) in enumerate(run_ranks(p, work, name, m, processes=True)):
            assert live == simulate(get_table(name, p, m)).live_on_rank[rank]
            assert 0.85 * live * one[rank] <= most <= 1.05 * live * one[rank] + 2 * rows * n * 4, (
                name,
                rank,
                most,
                live,
            )


def get_table(name, p, m):
    make = pipelining.tables
    tables = {"GPipe": lambda: make.gpipe(p, m), "1F1B": lambda: make.one_f_one_b(p, m)}
    return tables.get(name, lambda: make.interleaved_1f1b(p, 2, m))()


def test_hosts_of_their_own(tmp_path):
    """Messages by tcp have the same bits."""
    script = tmp_path / "job.py"
    script.write_text(
        f"""import os, sys
os.environ["PYDIST_HOST"] = "host" + os.environ["RANK"]
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from lib import stages
from pydist import distributed as dist, float32
dist.init_process_group()
for name in ("1F1B", "ZBVZeroBubble"):
    found = [None] * 2
    dist.all_gather_object(found, stages.in_pipeline(dist.get_rank(), name, 2, 3, 7, "blocks", float32, 0.0, 2))
    if dist.get_rank() == 0:
        print(dist.group.WORLD.transport, *stages.gathered(found))
dist.destroy_process_group()
"""
    )
    code, out, err, _ = launch("--fold", "off", "--nproc-per-node", "2", script, timeout=within(60))
    assert code == 0, err
    lines = [line.removeprefix("[0] ").split() for line in out.splitlines()]
    assert lines == [["tcp", *in_order(2, 3, 7, "blocks", pydist.float32, 2)]] * 2
