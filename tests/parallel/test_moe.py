"""Expert parallel: functional collectives, and the mixture of experts of pydist.examples.moe next to one that computes every
expert for every token."""

import itertools
import os
import signal
import time

import pytest

import pydist
from lib.processes import within
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import _functional_collectives as collectives
from pydist.distributed import symmetric_memory
from pydist.distributed.device_mesh import init_device_mesh
from pydist.examples.moe import MoE, average_gradients
from pydist.nn import functional as F
from pydist.testing import RankFailed, run_ranks

F64 = pydist.float64


def close(a, b, within=1e-12):
    a, b = a.detach(), b.detach()
    assert a.shape == b.shape
    error = (a - b).abs().max().item() if a.numel() else 0.0
    assert error <= within * max(1.0, b.abs().max().item() if b.numel() else 0.0), error


# ---- collectives


@pytest.mark.parametrize("world", [1, 2, 3])
def test_functional_collectives(world):
    """Values and gradients of every one, by what each rank could compute alone; groups of all kinds."""
    whole = pydist.arange(float(world * 6 * world), dtype=F64).view(world, 2 * world, 3) ** 2

    def work(rank):
        mesh = init_device_mesh("cpu", (world,))
        grid = init_device_mesh("cpu", (1, world))
        for group in (None, mesh, (grid, 1), mesh.get_group()):
            x = whole[rank].clone().requires_grad_()
            by = whole.flip(0)[rank]  # of this rank's results

            def gradient(y, weights, x=x):
                return pydist.autograd.grad((y * weights).sum(), x)[0]

            y = collectives.all_reduce(x, "sum", group)
            close(y, whole.sum(0))
            close(gradient(y, by), whole.sum(0))
            y = collectives.all_reduce(x, "avg", group)
            close(y, whole.mean(0))
            close(gradient(y, by), whole.mean(0))
            close(collectives.all_reduce(x, "max", group), whole.amax(0))
            for dim in (0, 1, -1):
                y = collectives.all_gather_tensor_autograd(x, dim, group)
                close(y, pydist.cat(list(whole), dim))
                n = x.size(dim)
                close(gradient(y, pydist.ones_like(y) * (rank + 1)), pydist.full_like(x, world * (world + 1) / 2))
                close(gradient(y, y.detach()), world * x)
                assert y.size(dim) == n * world
            for dim, z in ((0, x), (1, x.T), (-1, x.T)):
                y = collectives.reduce_scatter_tensor_autograd(z, "sum", dim, group)
                part = whole.sum(0)[2 * rank : 2 * rank + 2]
                close(y, part if dim == 0 else part.T)
                close(gradient(y, y.detach()), whole.sum(0))
            y = collectives.all_to_all_single_autograd(x, None, None, group)
            close(y, whole[:, 2 * rank : 2 * rank + 2].reshape(-1, 3))
            close(gradient(y, y.detach()), x)
            y = collectives.broadcast(x, world - 1, group)
            close(y, whole[-1])
            close(gradient(y, by), whole.sum(0) if rank == world - 1 else x.detach() * 0)
            turned = [(r + 1) % world for r in range(world)]
            y = collectives.permute_tensor(x, turned, group)
            close(y, whole[rank - 1])
            close(gradient(y, by), whole.flip(0)[(rank + 1) % world])
            assert collectives.wait_tensor(y) is y and not isinstance(y, collectives.AsyncCollectiveTensor)
            first, second = collectives.all_reduce_coalesced([x, x + 1], "sum", group)
            close(second - first, pydist.full_like(x, float(world)))

    run_ranks(world, work)


def test_uneven_all_to_all():
    """Rank r sends s + 2 r rows to rank s, so some send nothing; values, gradients, second gradients."""
    world = 3

    def work(rank):
        sends, receives = [s * (rank % 2) for s in range(world)], [rank * (r % 2) for r in range(world)]
        x = (pydist.arange(2.0 * sum(sends), dtype=F64).view(-1, 2) + 100 * rank).requires_grad_()
        y = collectives.all_to_all_single_autograd(x, receives, sends, None)
        wanted = [pydist.arange(6.0, dtype=F64).view(3, 2)[r_first : r_first + n] + 100 * r
                  for r, n, r_first in ((r, receives[r], sum(s * (r % 2) for s in range(rank))) for r in range(world))]  # fmt: skip
        close(y, pydist.cat(wanted))
        (g,) = pydist.autograd.grad((y**3).sum(), x, create_graph=True)
        close(g, 3 * x**2)
        (g,) = pydist.autograd.grad(g.sum(), x)
        close(g, 6 * x)

    run_ranks(world, work)


def test_tokens_in_symmetric_memory():
    """Read where they lie, at any place, if all ranks give parts of one segment; else as ever. Values are the same."""
    world, rows = 3, 1000

    def work(rank):
        sends = [(100, 300, 200), (0, 500, 400), (600, 0, 50)][rank]
        receives = [(100, 0, 600), (300, 500, 0), (200, 400, 50)][rank]
        first, second = (symmetric_memory.empty(rows, 16) for _ in range(2))
        plain = pydist.arange(rows * 16.0).view(rows, 16) + 1e6 * rank
        first.copy_(plain), second.copy_(plain)
        from_row = 7 * rank
        cuts = [sum(sends[:r]) + from_row for r in range(world + 1)]
        whole = [(pydist.arange(rows * 16.0).view(rows, 16) + 1e6 * r) for r in range(world)]
        starts = [(0, 100, 400), (7, 7, 507), (14, 614, 614)]
        wanted = pydist.cat([whole[r][starts[r][rank] :][: receives[r]] for r in range(world)])
        group, found = dist.distributed_c10d._get_default_group(), []
        for given in (first, plain, (first, second)[rank % 2], (first, plain)[rank % 2]):
            before = group.counted["memory"][0]
            part = given[from_row : cuts[-1]]
            got = collectives.all_to_all_single(part, receives, sends, None)
            assert pydist.equal(got, wanted)
            found.append(group.counted["memory"][0] - before > 1000)
        lists = [pydist.empty(n, 16) for n in receives]
        dist.all_to_all(lists, list(first[from_row : cuts[-1]].split(sends)))
        assert pydist.equal(pydist.cat(lists), wanted)
        return found  # whether it has copied tokens for others

    assert [found[0] for found in run_ranks(world, work)] == [False] * world
    assert all(found[3] for found in run_ranks(world, work))


def test_wrong_arguments_of_collectives():
    x = pydist.ones(4, 2)
    for error, message, call in (
        (ValueError, "input_split_sizes is \\[3\\]", lambda: collectives.all_to_all_single(x, [4], [3], None)),
        (ValueError, "input_split_sizes is \\[-4\\]", lambda: collectives.all_to_all_single(x, [4], [-4], None)),
        (ValueError, "output_split_sizes is \\[\\]", lambda: collectives.all_to_all_single(x, [], [4], None)),
        (ValueError, "output_split_sizes is \\[1, 3\\]", lambda: collectives.all_to_all_single(x, [1, 3], [4], None)),
        (ValueError, "one side only", lambda: collectives.all_to_all_single(x, None, [4], None)),
        (ValueError, "no dimensions", lambda: collectives.all_to_all_single(x[0, 0], None, None, None)),
        (ValueError, "src_dst is \\[1\\]", lambda: collectives.permute_tensor(x, [1], None)),
        (IndexError, "dim is 2", lambda: collectives.all_gather_single(x, 2, None)),
        (TypeError, "group is \\[0\\]", lambda: collectives.all_reduce(x, "sum", [0])),
        (ValueError, "2 dimensions", lambda: collectives.all_reduce(x, "sum", init_device_mesh("cpu", (1, 1)))),
    ):
        with pytest.raises(error, match=message):
            call()
    y = collectives.all_reduce(x.requires_grad_(), "max", None)
    with pytest.raises(NotImplementedError, match="all_reduce: max has no gradient"):
        y.sum().backward()


def test_split_tables_that_do_not_agree():
    """All ranks learn which pair differs."""

    def work(rank):
        with pytest.raises(
            dist.CommMismatch, match="rank 0 has 1 elements for rank 1, but that rank expects 2"
        ) as caught:
            collectives.all_to_all_single(pydist.ones(3), [2, 1], [2, 1], None)
        return str(caught.value)

    first, second = run_ranks(2, work)
    assert first == second


def test_rows_that_ranks_cannot_divide():
    """Raised before any message, so the group goes on."""

    def work(rank):
        with pytest.raises(ValueError, match="expected sizes, or a multiple of 2"):
            collectives.all_to_all_single(pydist.ones(3), None, None, None)
        with pytest.raises(ValueError, match="reduce_scatter_single: dimension 0 has size 3"):
            collectives.reduce_scatter_single(pydist.ones(3), "sum", 0, None)
        return collectives.all_to_all_single(pydist.ones(2) * rank, None, None, None).tolist()

    assert run_ranks(2, work) == [[0.0, 1.0]] * 2


# ---- the layer


WIDTH, HIDDEN, EXPERTS = 5, 7, 6


class Naive(nn.Module):
    """All experts for all tokens of all ranks, and who drops whom counted one by one."""

    def __init__(self, layer, top_k, factor):
        super().__init__()
        self.layer, self.top_k, self.factor = layer, top_k, factor

    def forward(self, x):
        layer, scores = self.layer, F.softmax(x @ self.layer.router.weight.T, -1)
        chosen = scores.argsort(-1, descending=True)[:, : self.top_k]
        most = len(x) if self.factor is None else -int(-self.factor * self.top_k * len(x) // EXPERTS)
        taken, rows, self.dropped = [0] * EXPERTS, [], []
        for token, experts in enumerate(chosen.tolist()):
            total, row = sum(scores[token, e] for e in experts), pydist.zeros(WIDTH, dtype=F64)
            for e in experts:
                taken[e] += 1
                if taken[e] > most:
                    self.dropped.append((token, e))
                    continue
                up, down = layer.experts.up[e], layer.experts.down[e]
                row = row + scores[token, e] / total * (F.gelu(x[token] @ up) @ down)
            rows.append(row)
        share = pydist.tensor(taken, dtype=F64) / (len(x) * self.top_k)
        out = pydist.stack(rows)
        return (out if layer.shared is None else out + layer.shared(x)), EXPERTS * (share * scores.mean(0)).sum()


def layer_of(**options):
    pydist.manual_seed(3)
    return MoE(WIDTH, HIDDEN, EXPERTS, shared=3, seed=1, dtype=F64, **options)


def copied(layer, whole, mesh):
    """Gives a rank's layer the values of the whole one. Returns the rows of its experts."""
    first = sum(len(part) for part in layer.owned[: mesh.get_local_rank("ep")])
    mine = slice(first, first + len(layer.experts.up))
    for (name, p), (_, q) in zip(layer.named_parameters(), whole.named_parameters(), strict=True):
        p.data.copy_(q.data[mine] if "experts." in name else q.data)
    return mine


def tokens_of(edges, steps=3):
    """Inputs and wanted results of all ranks."""
    g = pydist.Generator().manual_seed(5)
    return [[pydist.randn(edges[-1], WIDTH, dtype=F64, generator=g) for _ in range(2)] for _ in range(steps)]


LAYOUTS = [  # dp, ep, where the ranks' tokens begin
    (1, 1, [0, 12]), (1, 2, [0, 6, 12]), (1, 4, [0, 3, 6, 9, 12]), (2, 2, [0, 3, 6, 9, 12]), (4, 1, [0, 3, 6, 9, 12]),
    (1, 4, [0, 7, 7, 8, 13]), (2, 2, [0, 1, 9, 9, 11]),
]  # fmt: skip


@pytest.mark.parametrize(("dp", "ep", "edges"), LAYOUTS)
@pytest.mark.parametrize("factor", [None, 1.0, 0.5])
def test_as_one_process(dp, ep, edges, factor):
    """Losses, gradients and parameters of three steps, for any layout; with a capacity the same tokens are dropped."""
    world = dp * ep

    def train(step):
        """[(loss, gradients and parameters after the step)]"""
        return [step(x, y) for x, y in tokens_of(edges)]

    whole = layer_of(capacity_factor=factor)
    naive, optimizer = Naive(whole, 2, factor), optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    begin = {name: p.detach().clone() for name, p in whole.named_parameters()}

    def alone(x, y):
        out, balance = naive(x)
        optimizer.zero_grad()
        loss = ((out - y) ** 2).sum() / len(x) + 0.1 * balance
        loss.backward()
        grads = {name: p.grad.clone() if p.grad is not None else p * 0 for name, p in whole.named_parameters()}
        for p in whole.parameters():
            p.grad = pydist.zeros_like(p) if p.grad is None else p.grad
        optimizer.step()
        dropped = len(naive.dropped) / (2 * len(x))
        return loss.detach(), out.detach(), dropped, grads, {n: p.detach().clone() for n, p in whole.named_parameters()}

    wanted = train(alone)
    assert (factor is not None) == any(dropped for _, _, dropped, _, _ in wanted)

    def work(rank):
        mesh = init_device_mesh("cpu", (dp, ep), mesh_dim_names=("dp", "ep"))
        layer = layer_of(capacity_factor=factor, mesh=mesh)
        fresh = layer_of(capacity_factor=factor)
        for name, p in fresh.named_parameters():
            p.data.copy_(begin[name])
        mine = copied(layer, fresh, mesh)
        optimizer, own = optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), slice(edges[rank], edges[rank + 1])
        for (x, y), (loss, out, dropped, grads, values) in zip(tokens_of(edges), wanted, strict=True):
            result, balance = layer(x[own])
            close(result, out[own])
            part = ((result - y[own]) ** 2).sum() * (world / len(x)) + 0.1 * balance
            optimizer.zero_grad()
            part.backward()
            average_gradients(layer, mesh)
            total = part.detach().clone()
            dist.all_reduce(total, dist.ReduceOp.AVG)
            close(total, loss)
            assert layer.dropped == pytest.approx(dropped)
            for name, p in layer.named_parameters():
                close(p.grad, grads[name][mine] if "experts." in name else grads[name])
            optimizer.step()
            for name, p in layer.named_parameters():
                close(p, values[name][mine] if "experts." in name else values[name])

    run_ranks(world, work)


def test_an_expert_without_tokens():
    """Its gradient is 0, on whichever rank it is."""

    def work(rank):
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "ep"))
        layer = layer_of(mesh=mesh, top_k=1)
        with pydist.no_grad():
            layer.router.weight.zero_()
            layer.router.weight[1] = 1.0  # all tokens go to expert 1, on rank 0
        out, balance = layer(pydist.ones(4, WIDTH, dtype=F64))
        (out.sum() + balance).backward()
        return [bool(g.any()) for g in layer.experts.up.grad]

    assert run_ranks(2, work) == [[False, True, False], [False] * 3]


def test_other_dtypes():
    """bfloat16 tokens; the router's probabilities are float32."""

    def work(rank):
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "ep"))
        layer = MoE(WIDTH, HIDDEN, EXPERTS, mesh=mesh).bfloat16()
        x = pydist.randn(4, WIDTH).bfloat16().requires_grad_()
        out, balance = layer(x)
        assert out.dtype == pydist.bfloat16 and balance.dtype == pydist.float32
        out.float().sum().backward()
        assert x.grad.isfinite().all()

    run_ranks(2, work)


def test_wrong_arguments_of_the_layer():
    for message, options in (
        ("top_k is 0", {"top_k": 0}),
        ("top_k is 7", {"top_k": 7}),
        ("capacity_factor is 0", {"capacity_factor": 0}),
        ("mesh is", {"mesh": init_device_mesh("cpu", (1, 1))}),
    ):
        with pytest.raises(ValueError, match=message):
            layer_of(**options)


def test_a_killed_rank():
    """The others get PeerFailed within a second, wherever in a step the rank dies."""

    def work(rank):
        mesh = init_device_mesh("cpu", (1, 3), mesh_dim_names=("dp", "ep"))
        layer = layer_of(mesh=mesh)
        x = pydist.ones(4, WIDTH, dtype=F64)
        begin = None
        try:
            for step in range(1000):
                begin = time.monotonic()
                out, _ = layer(x)
                if rank == 1 and step == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                out.sum().backward()
        except dist.PeerFailed as error:
            return time.monotonic() - begin, "rank 1" in str(error)

    a, dead, b = run_ranks(3, work, processes=True, return_exceptions=True)
    assert isinstance(dead, RankFailed) and a[1] and b[1] and max(a[0], b[0]) < within(1), (a, dead, b)


# ---- the ops


def test_copies_that_share_a_place():
    """They are added in the order of the copies, as index_add does."""
    x = pydist.randn(50, 40, dtype=F64)
    place = pydist.randint(0, 8, (50, 3))
    weight = pydist.rand(50, 3, dtype=F64)
    wanted = pydist.zeros(8, 40, dtype=F64)
    for n, j in itertools.product(range(50), range(3)):
        wanted[place[n, j]] += x[n] * weight[n, j]
    close(pydist.dispatch_rows(x, place, 8, weight), wanted)


def test_wrong_arguments_of_the_ops():
    x, place = pydist.ones(3, 2), pydist.zeros(3, 1, dtype=pydist.int64)
    for error, message, call in (
        (IndexError, "dispatch_rows: index 5 is out of range", lambda: pydist.dispatch_rows(x, place + 5, 5)),
        (IndexError, "dispatch_rows: index -2 is", lambda: pydist.dispatch_rows(x, place - 2, 5)),
        (IndexError, "combine_rows: index 3 is", lambda: pydist.combine_rows(x, place + 3)),
        (RuntimeError, "place is float32", lambda: pydist.dispatch_rows(x, x, 5)),
        (RuntimeError, "rows is -1", lambda: pydist.dispatch_rows(x, place, -1)),
        (RuntimeError, "as many rows", lambda: pydist.dispatch_rows(x, place[1:], 3)),
        (RuntimeError, "weight is float32 of shape", lambda: pydist.combine_rows(x, place, pydist.ones(3, 2))),
        (RuntimeError, "weight is float64", lambda: pydist.combine_rows(x, place, pydist.ones(3, 1, dtype=F64))),
        (RuntimeError, "combine_rows: input", lambda: pydist.combine_rows(x[0], place)),
        (RuntimeError, "dispatch_rows: ", lambda: pydist.dispatch_rows(x, place, 2**62)),
    ):
        with pytest.raises(error, match=message):
            call()
    assert pydist.dispatch_rows(x[:0], place[:0], 2).tolist() == [[0.0, 0.0]] * 2
    assert pydist.combine_rows(x, place - 1).tolist() == [[0.0, 0.0]] * 3
    assert pydist.combine_rows(x, place[:, :0]).tolist() == [[0.0, 0.0]] * 3
