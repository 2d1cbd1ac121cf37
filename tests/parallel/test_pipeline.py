"""Steps of pipelines: bits of all schedules, shapes that change, losses, specs, failures, deaths, waiting."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pydist
from lib.processes import environment, launch, within
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import pipelining
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import fully_shard
from pydist.distributed.optim import ZeroRedundancyOptimizer
from pydist.distributed.pipelining import PipelineStage, simulate
from pydist.distributed.pipelining.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks
from pydist.distributed.pipelining.schedules import _PipelineScheduleRuntime, get_schedule_class
from pydist.nn import functional as F
from pydist.testing import run_ranks

LONG = "FULL_LONG" in os.environ
NAMES = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
IN_V = ("ZBVZeroBubble", "DualPipeV")


def sha(tensors):
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(t.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Block(nn.Module):
    def __init__(self, n, drop):
        super().__init__()
        self.norm, self.up, self.down, self.drop = (
            nn.LayerNorm(n),
            nn.Linear(n, 2 * n),
            nn.Linear(2 * n, n),
            nn.Dropout(drop),
        )

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Conv(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 3, 3, padding=1), nn.GroupNorm(1, 3)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x[:, None]))).mean(1) + x


def made(count, kind="blocks", n=12, dtype=pydist.float32, drop=0.0):
    """As many layers as the model has, the same on every rank."""
    pydist.manual_seed(0)
    make = {"blocks": lambda: Block(n, drop), "convolutions": lambda: Conv(n)}[kind]
    return [make().to(dtype) for _ in range(count)]


def batch(rows, n=12, dtype=pydist.float32):
    generator = pydist.Generator().manual_seed(3)
    return (pydist.randn(rows, n, generator=generator, dtype=dtype) for _ in range(2))


def placed(name, rank, p, layers, group=None, **options):
    """This rank's stages of the layers, and {stage: its layers}."""
    v = 1 if name in ("GPipe", "1F1B") else 2
    own = [rank] if v == 1 else [rank, 2 * p - 1 - rank] if name in IN_V else [rank, rank + p]
    per = len(layers) // (p * v)
    parts = {s: layers[s * per : (s + 1) * per] for s in own}
    modules = {s: nn.Sequential(*part) if per > 1 else part[0] for s, part in parts.items()}
    return [PipelineStage(modules[s], s, p * v, "cpu", group=group, **options) for s in own], parts


def scheduled(name, stages, m, loss_fn=F.mse_loss, **options):
    return get_schedule_class(name)(stages[0] if name in ("GPipe", "1F1B") else stages, m, loss_fn, **options)


def step(schedule, x, y, **options):
    first = any(stage.is_first for stage in schedule._stages)
    return schedule.step(*([x] if first else []), target=y, **options)


def in_pipeline(rank, name, p, m, rows, kind, dtype, drop, steps, per=1):
    """[(stage, its parameters' gradients)], losses, output, parameters after some steps."""
    layers = made(2 * p * per, kind, dtype=dtype, drop=drop)
    stages, parts = placed(name, rank, p, layers)
    schedule, (x, y) = scheduled(name, stages, m), batch(rows, dtype=dtype)
    own = [q for s in sorted(parts) for layer in parts[s] for q in layer.parameters()]
    optimizer, losses = optim.AdamW(own, lr=1e-2), []
    pydist.manual_seed(5)
    for n in range(steps):
        optimizer.zero_grad()
        out = step(schedule, x, y, losses=losses)
        if n + 1 < steps:
            optimizer.step()
    found = {s: [[q.grad, q] for layer in parts[s] for q in layer.parameters()] for s in parts}
    return found, losses, out


def in_order(p, m, rows, kind, dtype, steps, per=1):
    """The same by one process that accumulates m microbatches in order."""
    model, (x, y) = nn.Sequential(*made(2 * p * per, kind, dtype=dtype)), batch(rows, dtype=dtype)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    for n in range(steps):
        optimizer.zero_grad()
        losses, outs = [], []
        for a, b in zip(pydist.tensor_split(x, m), pydist.tensor_split(y, m), strict=True):
            outs.append(model(a))
            losses.append(F.mse_loss(outs[-1], b))
            (losses[-1] / m).backward()
        if n + 1 < steps:
            optimizer.step()
    return sha([q.grad for q in model.parameters()]), sha(model.parameters()), sha(losses), sha([pydist.cat(outs)])


def gathered(results):
    """What in_order returns, from what ranks have returned."""
    parts = {s: pairs for found, _, _ in results for s, pairs in found.items()}
    pairs = [pair for s in sorted(parts) for pair in parts[s]]
    (losses,) = [losses for _, losses, _ in results if losses]
    (out,) = [out for _, _, out in results if out is not None]
    assert not any(loss.requires_grad for loss in losses) and not out.requires_grad
    return sha([grad for grad, _ in pairs]), sha([q for _, q in pairs]), sha(losses), sha([out])


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
import test_pipeline
from pydist import distributed as dist, float32
dist.init_process_group()
for name in ("1F1B", "ZBVZeroBubble"):
    found = [None] * 2
    dist.all_gather_object(found, test_pipeline.in_pipeline(dist.get_rank(), name, 2, 3, 7, "blocks", float32, 0.0, 2))
    if dist.get_rank() == 0:
        print(dist.group.WORLD.transport, *test_pipeline.gathered(found))
dist.destroy_process_group()
"""
    )
    code, out, err, _ = launch("--fold", "off", "--nproc-per-node", "2", script, timeout=within(60))
    assert code == 0, err
    lines = [line.removeprefix("[0] ").split() for line in out.splitlines()]
    assert lines == [["tcp", *in_order(2, 3, 7, "blocks", pydist.float32, 2)]] * 2


# ---- tied weights


class Tokens(nn.Module):
    """A stage of a language model: with an embedding, or a head, or both."""

    def __init__(self, first, last):
        super().__init__()
        self.embed = nn.Embedding(17, 12) if first else None
        self.block = Block(12, 0.0)
        self.head = nn.Linear(12, 17, bias=False) if last else None

    def forward(self, x):
        x = self.block(x if self.embed is None else self.embed(x))
        return x if self.head is None else self.head(x).flatten(0, 1)


def tokens(count):
    pydist.manual_seed(0)
    stages = [Tokens(i == 0, i == count - 1).double() for i in range(count)]
    with pydist.no_grad():
        stages[-1].head.weight.copy_(stages[0].embed.weight)
    return stages


@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble"])
def test_tied_weights(name):
    """An embedding on the first stage and the head on the last: of two ranks, or (in V form) of one. Within 1e-12 of one
    process, equal bits at both ends; also where gradients of two steps add up."""
    p, count = (3, 3) if name == "1F1B" else (2, 4)
    x = pydist.randint(0, 17, (6, 5), generator=pydist.Generator().manual_seed(2))
    y = x.roll(1, 1)

    def loss(out, target):
        return F.cross_entropy(out, target.flatten())

    def work(rank):
        stages, parts = placed(name, rank, p, tokens(count))
        schedule = scheduled(name, stages, 3, loss)
        schedule.tie_weights(0, "embed.weight", count - 1, "head.weight")
        own = [q for s in sorted(parts) for layer in parts[s] for q in layer.parameters()]
        optimizer = optim.AdamW(own, lr=1e-2)
        for n in range(4):
            step(schedule, x, y)
            if n % 2:
                optimizer.step()
                optimizer.zero_grad()
        return {s: list(layer.parameters()) for s in parts for layer in parts[s]}

    found = {s: params for part in run_ranks(p, work) for s, params in part.items()}
    assert sha([found[0][0]]) == sha([found[count - 1][-1]])
    model = nn.Sequential(*tokens(count))
    model[-1].head.weight = model[0].embed.weight
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        (2 * loss(model(x), y)).backward()
        optimizer.step()
    for s in range(count):
        for got, want in zip(found[s], model[s].parameters(), strict=True):
            assert (got - want).abs().max() <= 1e-12

    def differ(rank):
        layers = tokens(count)
        with pydist.no_grad():
            layers[0].embed.weight[0, 0] += 1
        stages, _ = placed(name, rank, p, layers)
        schedule = scheduled(name, stages, 3, loss)
        with pytest.raises(ValueError, match="have different values"):
            schedule.tie_weights(0, "embed.weight", count - 1, "head.weight")
        with pytest.raises(ValueError, match="stage 9"):
            schedule.tie_weights(9, "embed.weight", count - 1, "head.weight")

    run_ranks(p, differ)


# ---- clipping and loss scaling over stages


def clip(schedule, parameters, max_norm, order=2.0, **options):
    norm = nn.utils.get_total_norm(schedule.gradients(), order, group=dist.group.WORLD, **options)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm.item()


def check_clipping(rank, p, name, dtype):
    """The norms of four steps, of several orders, and the parameters."""
    stages, parts = placed(name, rank, p, made(2 * p, dtype=dtype))
    schedule, (x, y) = scheduled(name, stages, 4), batch(8, dtype=dtype)
    own = [q for s in sorted(parts) for layer in parts[s] for q in layer.parameters()]
    optimizer, norms = optim.AdamW(own, lr=1e-2), []
    for order in (2.0, float("inf"), 1.0, 2.0):
        optimizer.zero_grad()
        step(schedule, x, y)
        norms.append(clip(schedule, own, 0.05, order))
        optimizer.step()
    return norms, {s: [q for layer in parts[s] for q in layer.parameters()] for s in parts}


@pytest.mark.parametrize("name, p", [("1F1B", 2), ("1F1B", 3), ("ZBVZeroBubble", 2)])
def test_gradients_of_all_stages_are_clipped_by_one_norm(name, p):
    """The 2-norm has the bits of one process; other norms and the parameters are within 1e-12."""
    found = run_ranks(p, check_clipping, p, name, pydist.float64)
    model, (x, y) = nn.Sequential(*made(2 * p, dtype=pydist.float64)), batch(8, dtype=pydist.float64)
    optimizer, norms = optim.AdamW(model.parameters(), lr=1e-2), []
    for order in (2.0, float("inf"), 1.0, 2.0):
        optimizer.zero_grad()
        for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
            (F.mse_loss(model(a), b) / 4).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05, order).item())
        optimizer.step()
    assert all(norms == pytest.approx(rank_norms, rel=1e-12) and norms[0] == rank_norms[0] for rank_norms, _ in found)
    per = 2 if name == "1F1B" else 1
    for _, stages in found:
        for s, parameters in stages.items():
            want = [q for layer in list(model)[s * per : (s + 1) * per] for q in layer.parameters()]
            assert all((a - b).abs().max() <= 1e-12 for a, b in zip(parameters, want, strict=True))


def test_clipping_counts_tied_weights_once_and_stages_without_gradients():
    x = pydist.randint(0, 17, (6, 5), generator=pydist.Generator().manual_seed(2))
    y = x.roll(1, 1)

    def loss(out, target):
        return F.cross_entropy(out, target.flatten())

    def work(rank):
        stages, parts = placed("1F1B", rank, 3, tokens(3))
        parts[rank][0].requires_grad_(rank != 1)
        schedule = scheduled("1F1B", stages, 3, loss)
        schedule.tie_weights(0, "embed.weight", 2, "head.weight")
        step(schedule, x, y)
        norm = clip(schedule, parts[rank][0].parameters(), 0.1)
        return norm, {name: q.grad for name, q in parts[rank][0].named_parameters()}

    found = run_ranks(3, work)
    model = nn.Sequential(*tokens(3))
    model[1].requires_grad_(False)
    model[-1].head.weight = model[0].embed.weight
    loss(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
    assert [one for one, _ in found] == pytest.approx([norm] * 3, rel=1e-7)  # float32 on the rank without a gradient
    for s, (_, grads) in enumerate(found):
        for name, q in model[s].named_parameters():
            assert (grads[name] is None) == (s == 1)
            assert s == 1 or (grads[name] - q.grad).abs().max() <= 1e-12


def test_clipping_refuses_what_is_not_finite_on_all_ranks():
    def work(rank):
        stages, parts = placed("1F1B", rank, 2, made(4))
        schedule, (x, y) = scheduled("1F1B", stages, 2), batch(8)
        step(schedule, x, y)
        if rank == 1:
            next(parts[1][0].parameters()).grad.view(-1)[0] = float("nan")
        with pytest.raises(RuntimeError, match="non-finite"):
            clip(schedule, [], 1.0, error_if_nonfinite=True)

    run_ranks(2, work)


def test_an_overflow_in_one_stage_skips_the_step_of_all():
    """The scale falls on all ranks; steps without overflow have the gradients of one process."""

    def work(rank):
        stages, parts = placed("1F1B", rank, 2, made(4, dtype=pydist.float64))
        scaler = pydist.amp.GradScaler("cpu", init_scale=64.0, process_group=dist.group.WORLD)
        schedule = scheduled("1F1B", stages, 4, lambda out, y: scaler.scale(F.mse_loss(out, y)))
        own, (x, y) = [q for layer in parts[rank] for q in layer.parameters()], batch(8, dtype=pydist.float64)
        optimizer, scales = optim.SGD(own, lr=0.1), []
        for n in range(3):
            optimizer.zero_grad()
            step(schedule, x, y)
            if n == 1 and rank == 0:
                own[0].grad.view(-1)[0] = float("inf")
            scaler.unscale_(optimizer)
            if n != 1:
                clip(schedule, own, 0.5)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, own

    found = run_ranks(2, work)
    assert [scales for scales, _ in found] == [[64.0, 32.0, 32.0]] * 2
    model, (x, y) = nn.Sequential(*made(4, dtype=pydist.float64)), batch(8, dtype=pydist.float64)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    own = [q for _, parameters in found for q in parameters]
    assert all((a - b).abs().max() <= 1e-12 for a, b in zip(own, model.parameters(), strict=True))


# ---- data parallel on stages


def hybrid(rank, name, wrap, m):
    """2 x 2 (dp, pp): this rank's stages, and their gradients, whole."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    group, dp = mesh.get_group("pp"), mesh["dp"]
    layers = made(4, dtype=pydist.float64)
    if wrap == "fully_shard":
        layers = [fully_shard(layer, mesh=dp) for layer in layers]
    stages, parts = placed(name, group.rank, 2, layers, group=group)
    if wrap == "ddp":
        for stage in stages:
            stage.submod = nn.parallel.DistributedDataParallel(stage.submod, process_group=dp.get_group())
    own = [q for s in sorted(parts) for layer in parts[s] for q in layer.parameters()]
    optimizer, schedule = optim.AdamW(own, lr=1e-2), scheduled(name, stages, m)
    x, y = (t[dp.get_local_rank() :: 2] for t in batch(8 * m, dtype=pydist.float64))
    for n in range(4):
        optimizer.zero_grad()
        step(schedule, x, y)
        if n < 3:
            optimizer.step()
    whole = [q.grad.full_tensor() if wrap == "fully_shard" else q.grad for q in own]
    return sorted(parts), whole


@pytest.mark.parametrize("wrap", ["ddp", "fully_shard"])
@pytest.mark.parametrize("name", ["1F1B", "Interleaved1F1B", "ZBVZeroBubble"])
def test_data_parallel_stages(name, wrap):
    """Gradients after 4 steps within 1e-12 of one process; the same on both replicas."""
    m = 4
    found = run_ranks(4, hybrid, name, wrap, m)
    model = nn.Sequential(*made(4, dtype=pydist.float64))
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    x, y = batch(8 * m, dtype=pydist.float64)
    for n in range(4):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if n < 3:
            optimizer.step()
    want = {id(q): q.grad for q in model.parameters()}
    for rank, (stages, grads) in enumerate(found):
        per = 2 if name == "1F1B" else 1
        own = [q for s in stages for layer in list(model)[s * per : (s + 1) * per] for q in layer.parameters()]
        assert sha(grads) == sha(found[(rank + 2) % 4][1])
        assert len(grads) == len(own)
        for grad, q in zip(grads, own, strict=True):
            assert (grad - want[id(q)]).abs().max() <= 1e-12


@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble"])
def test_gradients_are_reduced_once(name):
    """As many collectives over dp with 8 microbatches as with 2."""

    def work(rank, m):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
        group, dp = mesh.get_group("pp"), mesh["dp"]
        stages, _ = placed(name, group.rank, 2, made(4), group=group)
        for stage in stages:
            stage.submod = nn.parallel.DistributedDataParallel(stage.submod, process_group=dp.get_group())
        schedule, (x, y) = scheduled(name, stages, m), batch(8)
        step(schedule, x, y)
        before = costs(dp.get_group())
        step(schedule, x, y)
        return [b - a for a, b in zip(before, costs(dp.get_group()), strict=True)]

    def costs(group):
        """Steps of collectives, bytes written and read."""
        return [group.counted["steps"], *group.counted["memory"], *group.counted["messages"]]

    few, many = run_ranks(4, work, 2), run_ranks(4, work, 8)
    assert few == many and all(max(counts) > 0 for counts in few)


@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble"])
def test_states_of_a_stage_are_shared_out(name):
    """ZeroRedundancyOptimizer over dp has the bits of the optimizer without it, and a part of its states."""

    def work(rank, shared):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
        group, dp = mesh.get_group("pp"), mesh.get_group("dp")
        stages, parts = placed(name, group.rank, 2, made(8), group=group)
        for stage in stages:
            stage.submod = nn.parallel.DistributedDataParallel(stage.submod, process_group=dp)
        params = [q for s in sorted(parts) for layer in parts[s] for q in layer.parameters()]
        if shared:
            optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, process_group=dp, lr=1e-2)
        else:
            optimizer = optim.AdamW(params, lr=1e-2)
        schedule, (x, y) = scheduled(name, stages, 4), batch(8)
        for _ in range(3):
            optimizer.zero_grad()
            step(schedule, x + dp.rank, y)
            optimizer.step()
        held = sum(t.numel() for state in optimizer.state.values() for t in state.values() if t.ndim)
        return sha(params), held

    plain, shared = run_ranks(4, work, False), run_ranks(4, work, True)
    assert [bits for bits, _ in plain] == [bits for bits, _ in shared]
    assert all(part <= 0.6 * whole for (_, whole), (_, part) in zip(plain, shared, strict=True))


# ---- losses that count


def summed(out, target):
    """The sum and the number of the targets that are not ignored."""
    return F.cross_entropy(out, target, reduction="sum", ignore_index=-1), (target >= 0).sum()


def tokens_of(rows, replica=0):
    """Targets of which many are ignored, more in some microbatches than in others."""
    x, _ = batch(rows, dtype=pydist.float64)
    target = pydist.randint(0, 12, (rows,), generator=pydist.Generator().manual_seed(replica))
    target[: rows // 2 + replica] = -1
    return x + replica, target


@pytest.mark.parametrize("wrap", [None, "ddp", "fully_shard", "replicas"])
@pytest.mark.parametrize("name, m", [("1F1B", 3), ("ZBVZeroBubble", 4)])
def test_losses_with_counts(name, m, wrap):
    """Gradients are those of all sums over all counts, of all replicas, whatever was there before; losses are pairs."""
    data = {None: 1, "ddp": 2, "fully_shard": 2, "replicas": 4}[wrap]

    def work(rank):
        mesh = init_device_mesh("cpu", (max(1, data // 2), min(2, data), 2), mesh_dim_names=("copies", "dp", "pp"))
        group, layers = mesh.get_group("pp"), made(4, dtype=pydist.float64)
        stages, parts = placed(name, group.rank, 2, layers, group=group)
        for stage in stages:
            if wrap == "ddp":
                stage.submod = nn.parallel.DistributedDataParallel(stage.submod, process_group=mesh.get_group("dp"))
            elif wrap:
                fully_shard(stage.submod, mesh=mesh["dp"] if wrap == "fully_shard" else mesh["copies", "dp"])
        schedule = scheduled(name, stages, m, summed, scale_grads="count")
        replica, losses = rank // 2, []
        for _ in range(2):
            step(schedule, *tokens_of(10, replica), losses=losses)
        grads = {s: [whole(q.grad) for layer in parts[s] for q in layer.parameters()] for s in parts}
        return grads, [(loss.item(), int(count)) for loss, count in losses]

    def whole(grad):
        return grad.full_tensor() if hasattr(grad, "full_tensor") else grad

    layers = made(4, dtype=pydist.float64)
    found = [summed(nn.Sequential(*layers)(x), t) for x, t in (tokens_of(10, replica) for replica in range(data))]
    (2 * sum(loss for loss, _ in found) / sum(count for _, count in found)).backward()
    expected, per = [q.grad for layer in layers for q in layer.parameters()], len(list(layers[0].parameters()))
    for rank, (grads, losses) in enumerate(run_ranks(2 * data, work)):
        for s, got in grads.items():
            first = s * (2 if name == "1F1B" else 1) * per
            for a, b in zip(got, expected[first:], strict=False):
                assert (a - b).abs().max() <= 1e-13
        if losses:
            loss, count = found[rank // 2]
            assert abs(sum(loss for loss, _ in losses) - loss.item()) <= 1e-12 and len(losses) == m
            assert sum(count for _, count in losses) == count


def test_counts_of_nothing_and_tied_weights():
    """Without any target gradients stay 0; a step that fails leaves the gradients of before; two ends of a tie are equal."""

    def work(rank):
        stages, _ = placed("1F1B", rank, 2, made(2, dtype=pydist.float64))
        schedule, p = scheduled("1F1B", stages, 2, summed, scale_grads="count"), next(stages[0].submod.parameters())
        x, target = tokens_of(8)
        schedule.tie_weights(0, "norm.bias", 1, "norm.bias")
        step(schedule, x, pydist.full_like(target, -1))
        nothing = p.grad.abs().max().item()
        step(schedule, x, target)
        before = p.grad.clone()
        with pytest.raises((IndexError, ValueError, pipelining.StageFailed)):
            step(schedule, x, target + 100)
        return nothing, p.grad.equal(before), stages[0].submod.norm.bias.grad

    (a, kept, grad), (b, also, other) = run_ranks(2, work)
    assert a == b == 0 and kept and also and grad.equal(other) and grad.abs().max() > 0


@pytest.mark.parametrize(
    "loss, said",
    [
        (lambda out, t: F.cross_entropy(out, t), "returned Tensor"),
        (lambda out, t: (F.cross_entropy(out, t), -1), "count -1.0"),
        (lambda out, t: (F.cross_entropy(out, t), float("nan")), "count nan"),
        (lambda out, t: (out, 3), "a tensor of shape"),
        (lambda out, t: (F.cross_entropy(out, t), "x"), "could not convert"),
    ],
)
def test_pairs_that_are_none(loss, said):
    def work(rank):
        stages, _ = placed("GPipe", rank, 2, made(2, dtype=pydist.float64))
        x, target = tokens_of(4)
        with pytest.raises((ValueError, pipelining.StageFailed), match=said):
            step(scheduled("GPipe", stages, 2, loss, scale_grads="count"), x, target.clamp(min=0))
        with pytest.raises(ValueError, match="scale_grads is 'sum'"):
            scheduled("GPipe", stages, 2, loss, scale_grads="sum")

    run_ranks(2, work)
