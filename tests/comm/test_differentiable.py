"""Collectives that autograd records, and SyncBatchNorm, against one process that holds all ranks' data."""

import pytest

import pydist
from pydist import distributed as dist
from pydist import nn
from pydist.distributed.nn import functional as DF
from pydist.distributed.nn.functional import ReduceOp

F64 = pydist.float64


def close(a, b, within=1e-12):
    return bool(((a.detach() - b.detach()).abs() <= within).all())


def data(rank, n=4):
    """Numbers that differ between ranks, and weights for their use in a loss."""
    return (pydist.arange(n).to(F64) * 0.3 + rank).sin(), (pydist.arange(n).to(F64) + 2 * rank).cos()


# Each case: rank's loss from its x, given the collective or (in one process) all ranks' x.


def loss_all_reduce(x, w, rank, world, every=None):
    y = sum(every) if every else DF.all_reduce(x)
    return (y * y * w).sum()


def loss_average(x, w, rank, world, every=None):
    y = sum(every) / world if every else DF.all_reduce(x, ReduceOp.AVG)
    return (y * y * w).sum()


def loss_broadcast(x, w, rank, world, every=None):
    y = every[1] if every else DF.broadcast(x, 1)
    return (y * y * w).sum()


def loss_reduce(x, w, rank, world, every=None):
    if every:
        y = sum(every) if rank == 1 else every[rank] * 0
    else:
        y = DF.reduce(x, 1)
        y = y if rank == 1 else y * 0
    return (y * y * w).sum()


def loss_all_gather(x, w, rank, world, every=None):
    parts = every or DF.all_gather(x)
    return sum((part * part * (rank + k + 1) * w).sum() for k, part in enumerate(parts))


def loss_reduce_scatter(x, w, rank, world, every=None):
    def inputs(v):
        return [v * (k + 1) for k in range(world)]

    y = sum(inputs(v)[rank] for v in every) if every else DF.reduce_scatter(None, inputs(x))
    return (y * y * w).sum()


def loss_all_gather_uneven(x, w, rank, world, every=None):
    if every:
        parts = [v[: r + 1] for r, v in enumerate(every)]
    else:
        parts = DF.all_gather(x[: rank + 1], shapes=[(r + 1,) for r in range(world)])
    return sum((part * part * part * (rank + k + 1)).sum() for k, part in enumerate(parts))


def loss_reduce_scatter_uneven(x, w, rank, world, every=None):
    def inputs(v):
        return [v[: k + 1] * (k + 1) for k in range(world)]

    y = sum(inputs(v)[rank] for v in every) if every else DF.reduce_scatter(None, inputs(x))
    return (y * y * w[: rank + 1]).sum()


def loss_gather(x, w, rank, world, every=None):
    parts = every if every and rank == 1 else DF.gather(x, 1) if not every else [v * 0 for v in every]
    return sum((part * part * (k + 1) * w).sum() for k, part in enumerate(parts))


def loss_scatter(x, w, rank, world, every=None):
    def inputs(v):
        return [v * (k + 1) for k in range(world)]

    y = inputs(every[1])[rank] if every else DF.scatter(inputs(x), 1)
    return (y * y * w).sum()


def loss_all_to_all(x, w, rank, world, every=None):
    def inputs(v, r):
        return [v[: r + k + 1] * (k + 1) for k in range(world)]

    if every:
        y = [inputs(every[k], k)[rank] for k in range(world)]
    else:
        outputs = [pydist.empty(min(rank + k + 1, len(x)), dtype=F64) for k in range(world)]
        y = DF.all_to_all(outputs, inputs(x, rank))
    return sum((part * part * (k + 1) * w[: len(part)]).sum() for k, part in enumerate(y))


def loss_all_to_all_single(x, w, rank, world, every=None):
    sizes = [1, 2, 1][:world]  # for rank k, from everybody
    begin, mine = sum(sizes[:rank]), sizes[rank]
    if every:
        y = pydist.cat([v[begin : begin + mine] for v in every])
    else:
        y = DF.all_to_all_single(pydist.empty(mine * world, dtype=F64), x[: sum(sizes)], [mine] * world, sizes)
    return (y * y * w[0] * (rank + 1)).sum()


def loss_all_to_all_even(x, w, rank, world, every=None):
    def inputs(v):
        return pydist.cat([v * (k + 1) for k in range(world)])

    if every:
        y = pydist.cat([v * (rank + 1) for v in every])
    else:
        y = DF.all_to_all_single(pydist.empty(4 * world, dtype=F64), inputs(x))
    return (y * y * y * (rank + 1)).sum()


LOSSES = [loss for name, loss in sorted(globals().items()) if name.startswith("loss_")]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_collectives(loss, world):
    every = [data(rank)[0].requires_grad_() for rank in range(world)]
    whole = sum(loss(every[r], data(r)[1], r, world, every) for r in range(world))
    first = pydist.autograd.grad(whole, every, create_graph=True, allow_unused=True)
    first = [v * 0 if g is None else g for g, v in zip(first, every, strict=True)]
    second = pydist.autograd.grad(sum((g * g).sum() for g in first), every, allow_unused=True)

    def work(rank):
        x, w = data(rank)
        x.requires_grad_()
        mine = loss(x, w, rank, world)
        (g,) = pydist.autograd.grad(mine, x, create_graph=True)
        assert close(g, first[rank])
        (h,) = pydist.autograd.grad((g * g).sum(), x)
        assert close(h, pydist.zeros(4, dtype=F64) if second[rank] is None else second[rank])
        return mine.item()

    values = dist.threads.run(work, world)
    assert abs(sum(values) - whole.item()) < 1e-12


def test_other_reductions_have_no_gradient():
    with pytest.raises(NotImplementedError, match="max has no gradient"):
        DF.all_reduce(pydist.ones(2), ReduceOp.MAX)


# SyncBatchNorm


def network(norm):
    pydist.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), norm, nn.Conv2d(3, 2, 1)).to(F64)
    with pydist.no_grad():
        net[1].weight.copy_(pydist.tensor([0.5, 1.5, -1.0]))
        net[1].bias.copy_(pydist.tensor([0.1, 0.2, 0.3]))
    return net


@pytest.mark.parametrize("sizes", [(3, 3), (5, 2, 1), (4, 0, 2)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_sync_batch_norm_is_batch_norm_of_the_joined_batch(sizes, momentum):
    pydist.manual_seed(1)
    x = pydist.randn(sum(sizes), 2, 5, 5, dtype=F64) + 3
    weights = pydist.randn(sum(sizes), 2, 3, 3, dtype=F64)
    alone, inputs = network(nn.BatchNorm2d(3, momentum=momentum)), x.clone().requires_grad_()
    for _ in range(2):
        out = alone(inputs)
    (out * weights).sum().backward()

    def work(rank):
        begin = sum(sizes[:rank])
        here = slice(begin, begin + sizes[rank])
        net = nn.SyncBatchNorm.convert_sync_batchnorm(network(nn.BatchNorm2d(3, momentum=momentum)))
        mine = x[here].clone().requires_grad_()
        for _ in range(2):
            y = net(mine)
        (y * weights[here]).sum().backward()
        assert close(y, out[here], 1e-10) and close(mine.grad, inputs.grad[here], 1e-10)
        for ours, theirs in zip(net.buffers(), alone.buffers(), strict=True):
            assert close(ours.to(F64), theirs.to(F64))
        for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
            grad = ours.grad.clone()
            dist.all_reduce(grad)
            assert close(grad, theirs.grad, 1e-10)
        net.eval(), alone.eval()
        assert close(net(x), alone(x))

    dist.threads.run(work, len(sizes))


def test_sync_batch_norm_in_float32_and_without_affine():
    x = pydist.randn(6, 4, 3) * 2 + 5
    alone = nn.BatchNorm1d(4, affine=False)(x)

    def work(rank):
        norm = nn.SyncBatchNorm(4, affine=False)
        assert close(norm(x[3 * rank : 3 * rank + 3]), alone[3 * rank : 3 * rank + 3], 1e-5)

    dist.threads.run(work, 2)


def test_sync_batch_norm_alone_and_wrong():
    x = pydist.randn(4, 3, 2, 2)
    norm, plain = nn.SyncBatchNorm(3), nn.BatchNorm2d(3)
    assert close(norm(x), plain(x)) and close(norm.running_var, plain.running_var)
    with pytest.raises(ValueError, match="at least 2D"):
        norm(pydist.ones(3))

    def work(rank):
        with pytest.raises(ValueError, match="expected 3 channels"):
            nn.SyncBatchNorm(3)(pydist.ones(2, 4))

    dist.threads.run(work, 2)


def test_convert_keeps_the_rest():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.ReLU()))
    net.eval()
    weight = net[1][0].weight
    new = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert new is net and isinstance(net[1][0], nn.SyncBatchNorm) and net[1][0].weight is weight
    assert not net[1][0].training and isinstance(net[1][1], nn.ReLU)
    again = net[1][0]
    assert nn.SyncBatchNorm.convert_sync_batchnorm(net)[1][0] is again


def test_data_parallel_is_the_module():
    net = nn.Linear(3, 2)
    parallel = nn.DataParallel(net, device_ids=[0, 1])
    x = pydist.randn(5, 3)
    assert parallel.module is net and close(parallel(x), net(x))
    assert list(parallel.state_dict()) == ["module.weight", "module.bias"]
    assert close(nn.parallel.data_parallel(net, x), net(x))
