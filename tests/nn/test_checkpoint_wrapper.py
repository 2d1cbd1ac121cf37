"""Wrappers that checkpoint activations: the bits of the plain model, its state dict, and the same as torch's."""

import copy
import functools
import pickle

import pytest

import pydist
from pydist import nn
from pydist.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    OffloadWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from pydist.utils.checkpoint import create_selective_checkpoint_contexts

IMPLS = pytest.mark.parametrize("impl", [None, *CheckpointImpl])


class Block(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.Linear(2 * width, width)
        self.runs = 0

    def forward(self, x, *, scale=1.0, shift=None):
        self.runs += 1
        y = self.b(nn.functional.dropout(self.norm(self.a(x)).relu(), 0.2)) * scale
        return x + (y if shift is None else y + shift)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(6, 2)

    def forward(self, x, shift):
        for block in self.blocks:
            x = block(x, scale=0.5, shift=shift)
        return self.head(x)


def is_block(module):
    return isinstance(module, Block)


def made(impl=None):
    pydist.manual_seed(0)
    net = Net()
    if impl is not None:
        wrap = functools.partial(checkpoint_wrapper, checkpoint_impl=impl)
        apply_activation_checkpointing(net, checkpoint_wrapper_fn=wrap, check_fn=is_block)
    return net


def gradients(net):
    pydist.manual_seed(1)
    x, shift = pydist.randn(5, 6, requires_grad=True), pydist.randn(6, requires_grad=True)
    net(x, shift).square().sum().backward()
    return [t.grad.tolist() for t in (x, shift, *net.parameters())] + [pydist.rand(2).tolist()]


@IMPLS
def test_the_gradients_are_those_of_the_plain_model(impl):
    net = made(impl)
    assert gradients(net) == gradients(made())
    assert [block.runs for block in net.blocks] == [1 if impl is None else 2] * 2  # attributes are the block's


@IMPLS
def test_state_dicts_have_plain_names(impl):
    plain, net = made(), made(impl)
    state = net.state_dict()
    assert list(state) == list(plain.state_dict()) and state._metadata.keys() == plain.state_dict()._metadata.keys()
    for name, value in plain.state_dict().items():
        value.add_(1) if value.is_floating_point() else value.fill_(7)
        assert state[name].tolist() != value.tolist()
    net.load_state_dict(plain.state_dict())
    assert all(net.state_dict()[name].tolist() == value.tolist() for name, value in plain.state_dict().items())
    made().load_state_dict(net.state_dict())
    torchs = {name.replace("blocks.0.", "blocks.0._checkpoint_wrapped_module."): v for name, v in state.items()}
    if impl is not None:
        net.load_state_dict(torchs)  # what torch's named_parameters() of an outer module has
    keep = plain.state_dict()
    del keep["blocks.1.a.weight"]
    keep["blocks.0.more"] = pydist.zeros(1)
    found = net.load_state_dict(keep, strict=False)
    assert found.missing_keys == ["blocks.1.a.weight"] and found.unexpected_keys == ["blocks.0.more"]
    with pytest.raises(RuntimeError, match='Missing key.s. in state_dict: "blocks.1.a.weight"'):
        net.load_state_dict(keep)


def test_a_wrapper_is_like_its_module():
    inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    outer = checkpoint_wrapper(inner)
    assert isinstance(outer, CheckpointWrapper) and outer[1] is inner[1] and outer.training
    assert [name for name, _ in outer.named_parameters()] == [name for name, _ in inner.named_parameters()]
    assert [name for name, _ in outer.named_buffers()] == [name for name, _ in inner.named_buffers()]
    assert not outer.eval()[1].training
    with pytest.raises(AttributeError, match="'Sequential' object has no attribute 'missing'"):
        _ = outer.missing
    for twin in (copy.deepcopy(outer), pickle.loads(pickle.dumps(outer))):
        assert list(twin.state_dict()) == list(outer.state_dict())
        assert twin(pydist.ones(2, 3)).tolist() == outer(pydist.ones(2, 3)).tolist()
        assert twin[0].weight is not inner[0].weight
    for wrap in (checkpoint_wrapper, offload_wrapper):
        with pytest.raises(TypeError, match=r"got function \(expected a Module\)"):
            wrap(test_a_wrapper_is_like_its_module)
    with pytest.raises(TypeError, match=r"checkpoint_impl is True \(expected a CheckpointImpl\)"):
        checkpoint_wrapper(inner, True)


def test_more_arguments_and_other_functions():
    calls = []

    def mine(function, *args, number, **kwargs):
        calls.append(number)
        return function(*args, **kwargs)

    block = checkpoint_wrapper(Block(), checkpoint_fn=mine, number=3)
    block(pydist.ones(2, 6), scale=2.0)
    assert calls == [3] and block.runs == 1
    seen = []

    def policy(context, op, *args):
        seen.append(str(op))
        return True

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    checkpoint_wrapper(Block(), context_fn=contexts, determinism_check="none")(pydist.ones(2, 6)).sum().backward()
    assert seen.count("aten.addmm.default") == 2
    with pytest.raises(TypeError, match="bogus"):
        checkpoint_wrapper(Block(), bogus=1)(pydist.ones(2, 6))


def test_offload():
    pydist.manual_seed(0)
    plain, net = made(), made()
    apply_activation_checkpointing(net, offload_wrapper, is_block)
    assert all(isinstance(block, OffloadWrapper) for block in net.blocks)
    assert gradients(net) == gradients(plain) and list(net.state_dict()) == list(plain.state_dict())


def test_which_modules_are_wrapped():
    net = made()
    shared = Block()
    net.first, net.again = shared, nn.Sequential(shared)
    apply_activation_checkpointing(net, check_fn=is_block)
    assert net.first is net.again[0] and isinstance(net.first, CheckpointWrapper)
    before = repr(net)
    apply_activation_checkpointing(net, check_fn=is_block)  # nothing is wrapped twice
    assert repr(net) == before
    apply_activation_checkpointing(net, check_fn=lambda m: isinstance(m, nn.Linear) and m.out_features == 12)
    assert isinstance(net.first.a, CheckpointWrapper)  # below a wrapper
    assert not isinstance(net.first.b, CheckpointWrapper)
    apply_activation_checkpointing(wrapped := checkpoint_wrapper(nn.Sequential(nn.ReLU())))
    assert isinstance(wrapped[0], CheckpointWrapper)
    with pytest.raises(TypeError, match=r"auto_wrap_policy is int \(expected a function\)"):
        apply_activation_checkpointing(net, auto_wrap_policy=3)


def both_nets(torch):
    nets = []
    for lib in (pydist, torch):
        n = lib.nn
        seq = n.Sequential(n.Linear(4, 6), n.Sequential(n.ReLU(), n.Linear(6, 3), n.Sequential(n.Linear(3, 3))))
        nets.append(n.Sequential(seq, n.Linear(3, 2)))
    return nets


@pytest.mark.parametrize("least", [1, 13, 25, 100])
@pytest.mark.parametrize("how", ["check_fn", "policy"])
def test_beside_torch(torch, how, least):
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as theirs

    ours, other = both_nets(torch)

    def policy(module, recurse, nonwrapped_numel):
        return len(list(module.children())) > 0 if recurse and least == 13 else nonwrapped_numel >= least

    def check(module):
        return sum(p.numel() for p in module.parameters()) >= least

    more = {"check_fn": check} if how == "check_fn" else {"auto_wrap_policy": policy}
    apply_activation_checkpointing(ours, **more)
    theirs.apply_activation_checkpointing(other, **more)
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in other.named_modules()]
    assert list(ours.state_dict()) == list(other.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in other.named_parameters()]
    ours.load_state_dict({name: pydist.tensor(v.tolist()) for name, v in other.state_dict().items()})
    other(torch.ones(2, 4)).sum().backward()
    ours(pydist.ones(2, 4)).sum().backward()
    for p, q in zip(ours.parameters(), other.parameters(), strict=True):
        assert p.grad.flatten().tolist() == pytest.approx(q.grad.flatten().tolist(), rel=1e-5, abs=1e-6)
