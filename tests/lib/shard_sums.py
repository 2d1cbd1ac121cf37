"""A model whose gradients over logical shards have every shape that a reducer meets, and the bits that it has to give."""

import numpy as np

import pydist
from lib.trees import tree
from pydist import _C, nn
from pydist import distributed as dist


class Net(nn.Module):
    """With a convolution in channels_last, a parameter that is used twice, one that some shards do not reach, and a
    frozen one."""

    def __init__(self, dtype=pydist.float32):
        super().__init__()
        pydist.manual_seed(3)
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.shared = nn.Linear(16, 16)
        self.odd = nn.Linear(16, 3)
        self.even = nn.Linear(16, 3)
        self.never = nn.Linear(2, 2)
        self.frozen = nn.Linear(16, 16)
        self.to(dtype)
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=pydist.channels_last)
        for p in self.frozen.parameters():
            p.requires_grad_(False)

    def forward(self, x, shard):
        x = self.conv(x).relu().mean(1).flatten(1)
        x = self.frozen(self.shared(self.shared(x).tanh()))
        return (self.odd if shard % 3 else self.even)(x)


def batch(shard, part=0):
    rng = np.random.default_rng([shard, part])
    return pydist.from_numpy(rng.standard_normal((5, 2, 4, 4)).astype("float32"))


def named(net):
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def loss_of(net, shard, part=0):
    return net(batch(shard, part).to(net.odd.weight), shard).square().float().sum()


def wide(t):
    """The numbers in the dtype of sums, as NumPy's."""
    return (t.detach() if t.dtype == pydist.float64 else t.detach().float()).cpu().numpy()


def expected(shards, parts=1, dtype=pydist.float32, device="cpu"):
    """The bits that every table has to give: leaves are the device's own, their sums are NumPy's."""
    net, leaves = Net(dtype).to(device), []
    for shard in range(shards):
        net.zero_grad()
        for part in range(parts):
            loss_of(net, shard, part).backward()
        leaves.append({name: None if p.grad is None else wide(p.grad).copy() for name, p in named(net).items()})
    means = {}
    for name, p in named(net).items():
        found = [np.zeros_like(wide(p)) if leaf[name] is None else leaf[name] for leaf in leaves]
        if any(leaf[name] is not None for leaf in leaves):
            mean = tree(found, np.add) * found[0].dtype.type(1 / shards)
            means[name] = pydist.from_numpy(mean).to(dtype)
    return means


def reducer_of(net, blocks, cap=600):
    names, params = zip(*named(net).items())
    return _C.Reducer(list(params), list(names), dist.group.WORLD, cap, cap, blocks)


def one_step(net, reducer, mine, parts=1, announced=True):
    for k, shard in enumerate(mine):
        reducer.open_shard(k)
        for part in range(parts):
            if announced and part == parts - 1:
                reducer.last_backward()
            loss_of(net, shard, part).backward()
        reducer.close_shard()
    if not mine:
        reducer.close_shard()


def same(net, want):
    for name, p in named(net).items():
        if name not in want:
            assert p.grad is None, name
            continue
        assert p.grad.dtype == p.dtype and p.grad.stride() == p.stride(), name
        assert wide(p.grad).tobytes() == wide(want[name]).tobytes(), name
