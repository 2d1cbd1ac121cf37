"""replicate(), checkpoint() and contract(): features that change a module in place, beside DistributedDataParallel."""

import copy

import pytest

import pydist
from lib.sharded_models import Gpt, RULES, batch, gpt, loss_of
from pydist import distributed as dist
from pydist import nn
from pydist.distributed import _composable
from pydist.distributed._composable import _get_registry, checkpoint, contract, replicate
from pydist.distributed._composable.fsdp import fully_shard
from pydist.distributed._composable.replicate import DDP
from pydist.distributed._composable.replicate import replicate as the_same
from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from pydist.distributed.device_mesh import init_device_mesh
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import run_ranks


def trained(model, sync):
    optimizer = RULES["AdamW"](model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            sync(part == 1)
            loss_of(model, batch(step, part)).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("how", ["plain", "hook", "mesh", "checkpointed"])
def test_bits_of_ddp(how):
    def work(rank):
        model = gpt(seed=rank)  # rank 0's values count
        wrapped = DistributedDataParallel(model)
        expected = trained(wrapped, lambda on: setattr(wrapped, "require_backward_grad_sync", on))
        model = gpt(seed=rank)
        if how == "checkpointed":
            for block in model.blocks:
                checkpoint(block)
        names = list(model.state_dict())
        assert replicate(model, device_mesh=init_device_mesh("cpu", (2,)) if how == "mesh" else None) is model
        if how == "hook":
            model.register_comm_hook(None, allreduce_hook)
        assert all(map(pydist.equal, trained(model, model.set_requires_gradient_sync), expected))
        assert isinstance(model, DDP) and isinstance(model, Gpt) and type(model).__name__ == "DDPGpt"
        assert list(model.state_dict()) == names and list(_get_registry(model)) == ["replicate"]

    run_ranks(2, work)


def test_replicas_around_and_beside_shards():
    """Parameters of fully_shard below, and of ignored modules, are left out."""

    def work(rank):
        pydist.manual_seed(rank)
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
        fully_shard(net[0])
        own = net[1].weight.detach().clone()
        replicate(net, ignored_modules=[net[1]])
        net(pydist.ones(2, 4) * (rank + 1)).sum().backward()
        assert pydist.equal(net[1].weight, own)
        grads = [p.grad for p in net[2].parameters()] + [net[1].weight.grad]
        return [grad.tolist() for grad in grads]

    first, second = run_ranks(2, work)
    assert first[:2] == second[:2] and first[2] != second[2]


def test_bad_input():
    assert the_same is replicate is _composable.replicate
    with pytest.raises(AttributeError, match="no attribute 'replicated'"):
        _composable.replicated

    def work(rank):
        net = replicate(nn.Linear(2, 1))
        with pytest.raises(AssertionError, match="replicate has been applied to this DDPLinear already"):
            replicate(net)
        with pytest.raises(AssertionError, match="DDPLinear cannot be copied"):
            copy.deepcopy(net)
        with pytest.raises(RuntimeError, match="managed by fully_shard already"):
            replicate(fully_shard(nn.Linear(2, 1)))
        with pytest.raises(RuntimeError, match="device_id is of another type"):
            replicate(nn.Linear(2, 1), device_id="cpu")
        with pytest.raises(TypeError, match="bucket"):
            replicate(nn.Linear(2, 1), bucket=3)(pydist.ones(1, 2))
        with pytest.raises(NotImplementedError, match="use_reentrant is True"):
            checkpoint(nn.Linear(2, 1), use_reentrant=True)
        with pytest.raises(ValueError, match=r"got \['depth'\]"):
            checkpoint(nn.Linear(2, 1), depth=3)
        dist.barrier()

    run_ranks(2, work)


def test_checkpoint_runs_forward_again():
    class Counted(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    net = checkpoint(Counted(2, 1), preserve_rng_state=False)
    other = copy.deepcopy(net)
    net(pydist.ones(1, 2)).sum().backward()
    assert (net.calls, other.calls) == (2, 0) and net.bias.grad.item() == 1
    checkpoint.state(other).enable_hook = False
    other(pydist.ones(1, 2)).sum().backward()
    assert (net.calls, other.calls) == (2, 1)


def test_contract():
    class Kept:
        pass

    @contract(state_cls=Kept)
    def feature(modules, what):
        if what == "names":
            modules[0].another = nn.Linear(1, 1)
        if what == "number":
            return [*modules, nn.Linear(1, 1)]
        if what == "order":
            children = modules[0]._modules
            children["0"] = children.pop("0")
        return None

    net, head = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 1)
    assert feature([net, net[0], head], "nothing") == [net, net[0], head]
    assert type(feature.state(net)) is Kept and feature.state(net) is feature.state(head)
    assert feature.state(net[0]) is None and _get_registry(net[0]) is None and list(_get_registry(head)) == ["feature"]
    with pytest.raises(AssertionError, match="feature has been applied to this Sequential already"):
        feature([net], "nothing")
    for what, kind, text in [
        ("names", RuntimeError, r"changed named_parameters: \['another.bias'"),
        ("order", RuntimeError, "changed named_parameters: their order"),
        ("number", AssertionError, "1 modules became 2"),
    ]:
        with pytest.raises(kind, match=text):
            feature([nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))], what)
