"""Gradients of pipelines: tied weights, clipping, data parallel stages, losses that count."""

import os

import pytest

import pydist
from lib.stages import Block, batch, made, placed, scheduled, sha, step
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import pipelining
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import fully_shard
from pydist.distributed.optim import ZeroRedundancyOptimizer
from pydist.nn import functional as F
from pydist.testing import run_ranks

LONG = "FULL_LONG" in os.environ

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
