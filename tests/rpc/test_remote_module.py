"""RemoteModule: a module at another worker, beside the same module here."""

import pickle

import pytest

import pydist
from pydist import nn, optim
from pydist.distributed import autograd, rpc
from pydist.distributed.nn.api.remote_module import RemoteModule
from pydist.distributed.optim import DistributedOptimizer
from pydist.testing import run_ranks


class Net(nn.Module):
    def __init__(self, width, scale=1.0):
        super().__init__()
        pydist.manual_seed(3)
        self.first, self.last, self.scale = nn.Linear(4, width), nn.Linear(width, 2), scale

    def forward(self, x, *, bias=0.0):
        return self.last(self.first(x).relu()) * self.scale + bias


def use(module, x):
    return module(x)


def trained(net, parameters, optimizer_of, x, y):
    """The losses of a few steps."""
    losses = []
    optimizer = optimizer_of(parameters)
    for _ in range(5):
        with autograd.context() as context_id:
            loss = nn.functional.mse_loss(net(x), y)
            autograd.backward(context_id, [loss])
            optimizer.step(context_id)
        losses.append(loss.item())
    return losses


def local(x, y):
    net, losses = Net(8), []
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def body(rank):
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
    if rank == 0:
        pydist.manual_seed(0)
        x, y = pydist.randn(16, 4), pydist.randn(16, 2)
        for place in ("worker1/cpu", "worker1", "rank:1/cpu", "worker0/cpu"):
            net = RemoteModule(place, Net, args=(8,), kwargs={"scale": 2.0})
            assert pydist.equal(net(x), Net(8, 2.0)(x))
            assert pydist.equal(net.forward_async(x, bias=1.0).wait(), Net(8, 2.0)(x, bias=1.0))
            assert [tuple(p.to_here().shape) for p in net.remote_parameters()] == [(8, 4), (8,), (2, 8), (2,)]
            assert net.remote_parameters(recurse=False) == []
            for worker in ("worker1", "worker2"):  # it travels, and what it stands for does not
                assert pydist.equal(rpc.rpc_sync(worker, use, args=(net, x)), Net(8, 2.0)(x))
            again = RemoteModule.init_from_module_rref(place, net.get_module_rref())
            assert pydist.equal(again(x), net(x))
            assert net.train(False) is net and not net.get_module_rref().to_here().training
        net = RemoteModule("worker1", Net, args=(8,))
        losses = trained(net, net.remote_parameters(), lambda p: DistributedOptimizer(optim.SGD, p, lr=0.1), x, y)
        assert losses == local(x, y)
        with pytest.raises(RuntimeError, match="only be pickled when using RPC"):
            pickle.dumps(net)
        for name in ("to", "state_dict", "children", "half", "register_forward_hook"):
            with pytest.raises(ValueError, match=f"Method ``{name}`` not supported"):
                getattr(net, name)()
        with pytest.raises(ValueError, match="remote_parameters"):
            net.parameters()
        for place in ("a/b/c", "/cpu", "worker1/", "x:1/cpu", "rank:x/cpu"):
            with pytest.raises(ValueError, match="Could not parse remote_device"):
                RemoteModule(place, Net, args=(8,))
        with pytest.raises(RuntimeError, match="could not find destination"):
            RemoteModule("worker7", Net, args=(8,))
        with pytest.raises(ValueError, match="not at worker2"):
            RemoteModule.init_from_module_rref("worker2", net.get_module_rref())
        with pytest.raises(ValueError, match="returns an instance of <class nn.Module>"):
            RemoteModule("worker1", list)(x)
    rpc.shutdown()


def test_remote_modules():
    run_ranks(3, body, processes=True)
    with pytest.raises(AssertionError, match="only works in RPC"):
        RemoteModule("worker1", Net)
