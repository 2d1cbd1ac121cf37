"""Modules: registration, state, hooks, text, initial values; the layers against torch where it is installed."""

import copy
import math

import pytest

import pydist
from pydist import nn
from pydist.nn import functional as F


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.scale = nn.Parameter(pydist.ones(3))
        self.register_buffer("seen", pydist.zeros(1))
        self.register_buffer("scratch", pydist.zeros(1), persistent=False)
        self.register_parameter("nothing", None)

    def forward(self, x, factor=1.0):
        return self.linear(x) * self.scale * factor


# Registration.


def test_names_in_order():
    block = nn.Sequential(Block(), mlp())
    assert [name for name, _ in block.named_parameters()] == [
        "0.scale", "0.linear.weight", "0.linear.bias", "1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias",
    ]  # fmt: skip
    assert [name for name, _ in block.named_buffers()] == ["0.seen", "0.scratch"]
    assert [name for name, _ in block.named_children()] == ["0", "1"]
    assert [name for name, _ in block.named_modules()] == ["", "0", "0.linear", "1", "1.0", "1.1", "1.2"]
    assert [name for name, _ in Block().named_parameters(prefix="p", recurse=False)] == ["p.scale"]
    assert len(list(block.parameters())) == 7 and len(list(block.modules())) == 7


def test_shared_parameters_are_listed_once():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = a.weight
    pair = nn.ModuleList([a, b])
    assert [name for name, _ in pair.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert len(list(pair.named_parameters(remove_duplicate=False))) == 4
    assert list(pair.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    twice = nn.Sequential(a, a)
    assert len(list(twice.children())) == 1 and len(list(twice.modules())) == 2


def test_assignment_moves_between_registers():
    block = Block()
    block.scale = None
    assert block.scale is None and "scale" in block._parameters
    block.scale = nn.Parameter(pydist.zeros(3))
    with pytest.raises(TypeError, match="cannot assign 'Tensor' as parameter 'scale' \\(Parameter or None expected\\)"):
        block.scale = pydist.zeros(3)
    with pytest.raises(TypeError, match="cannot assign 'int' as child module 'linear'"):
        block.linear = 3
    with pytest.raises(TypeError, match="as buffer 'seen'"):
        block.seen = 3
    block.seen = pydist.ones(1)
    assert block._buffers["seen"].item() == 1
    block.plain = pydist.ones(1)
    assert "plain" in block.__dict__
    block.plain = nn.ReLU()
    assert "plain" not in block.__dict__ and "plain" in block._modules
    del block.plain, block.seen, block.scale
    for name in ("plain", "seen", "scale"):
        with pytest.raises(AttributeError, match=f"'Block' object has no attribute '{name}'"):
            getattr(block, name)
    assert "linear" in dir(block) and "scratch" in dir(block)


def test_bad_registrations():
    class Forgetful(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter(pydist.zeros(1))

    with pytest.raises(AttributeError, match="cannot assign parameters before Module.__init__"):
        Forgetful()
    block = Block()
    with pytest.raises(KeyError, match="already exists"):
        block.register_buffer("forward", None)
    with pytest.raises(KeyError, match="contain"):
        block.register_parameter("a.b", None)
    with pytest.raises(KeyError, match="be empty"):
        block.add_module("", None)
    with pytest.raises(TypeError, match="not a Module"):
        block.add_module("x", 1)
    with pytest.raises(TypeError, match="Parameter or None required"):
        block.register_parameter("x", pydist.zeros(1))
    with pytest.raises(TypeError, match="data is list"):
        nn.Parameter([1.0])
    with pytest.raises(NotImplementedError, match="missing the required"):
        nn.Module()(1)


def test_parameter():
    data = pydist.zeros(2)
    p = nn.Parameter(data)
    assert isinstance(p, pydist.Tensor) and type(p) is nn.Parameter
    assert p.requires_grad and p.is_leaf and not data.requires_grad
    p.data.fill_(3)
    assert data.tolist() == [3, 3]
    assert not nn.Parameter(data, requires_grad=False).requires_grad
    assert nn.Parameter().numel() == 0
    assert repr(p).startswith("Parameter containing:\ntensor([3., 3.]")
    assert type(p * 2) is pydist.Tensor


def test_get_by_path():
    block = nn.Sequential(Block())
    assert block.get_submodule("0.linear") is block[0].linear and block.get_submodule("") is block
    assert block.get_parameter("0.linear.weight") is block[0].linear.weight
    assert block.get_buffer("0.seen") is block[0].seen
    for wrong in (lambda: block.get_submodule("0.scale"), lambda: block.get_parameter("0.seen"),
                  lambda: block.get_buffer("0.scale"), lambda: block.get_submodule("0.x")):  # fmt: skip
        with pytest.raises(AttributeError):
            wrong()


# Calls and hooks.


def test_hooks_change_arguments_and_results():
    block, calls = Block(), []
    x = pydist.ones(1, 2)
    plain = block(x, factor=2.0)
    with block.register_forward_pre_hook(lambda m, args: calls.append("pre") or (args[0] * 0,)):
        assert same(block(x), block.linear.bias.detach().unsqueeze(0))
    with block.register_forward_pre_hook(lambda m, args, kw: (args, {"factor": 2.0}), with_kwargs=True):
        assert same(block(x), plain)
    with block.register_forward_hook(lambda m, args, out: calls.append(len(args))):
        second = lambda m, args, kw, out: kw["factor"]
        with block.register_forward_hook(second, with_kwargs=True, prepend=True) as first:
            assert block(x, factor=7.0) == 7.0
            assert next(iter(block._forward_hooks)) == first.id
    assert calls == ["pre", 1]
    assert not block._forward_hooks and not block._forward_pre_hooks
    assert same(block(x, factor=2.0), plain)


def test_train_and_eval_reach_all():
    net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert net.eval() is net and not any(m.training for m in net.modules())
    assert net(pydist.ones(100)).tolist() == [1.0] * 100
    net.train()
    assert all(m.training for m in net.modules()) and 0.0 in net(pydist.ones(100)).tolist()
    with pytest.raises(ValueError, match="boolean"):
        net.train("yes")


def test_apply_and_requires_grad():
    net, order = mlp(), []
    net.apply(lambda m: order.append(type(m).__name__))
    assert order == ["Linear", "ReLU", "Linear", "Sequential"]
    assert net.requires_grad_(False) is net and not any(p.requires_grad for p in net.parameters())


def test_memory_format_of_a_module():
    """Weights of four dimensions are laid out anew, gradients and a step with them stay the same."""
    pydist.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3)), pydist.randn(2, 3, 8, 8)
    net(x).square().sum().backward()
    want = [p.grad.clone() for p in net.parameters()]
    before = list(net.parameters())
    assert net.to(memory_format=pydist.channels_last) is net
    assert all(a is b for a, b in zip(before, net.parameters()))
    for p in net.parameters():
        assert p.is_contiguous(memory_format=pydist.channels_last if p.dim() == 4 else pydist.contiguous_format)
        assert p.grad.stride() == p.stride()
    net.zero_grad()
    net(x).square().sum().backward()
    values = [p.detach().clone() for p in before]
    pydist.optim.SGD(before, lr=0.5).step()
    for p, grad, value in zip(before, want, values):
        assert pydist.allclose(p.grad, grad, rtol=1e-4, atol=1e-3)
        assert (p == value - 0.5 * p.grad).all()
    stride = net[0].weight.stride()
    assert net.double()[0].weight.stride() == stride
    with pytest.raises(ValueError, match="expected 4 dimensions"):
        nn.Conv3d(2, 4, 3).to(memory_format=pydist.channels_last)


def test_conversion_keeps_parameters():
    block = Block()
    before = list(block.parameters())
    block.register_buffer("count", pydist.tensor(1))
    block(pydist.ones(1, 2)).sum().backward()
    assert block.double() is block
    assert all(a is b for a, b in zip(before, block.parameters()))
    assert {p.dtype for p in block.parameters()} == {pydist.float64} == {p.grad.dtype for p in before}
    assert block.seen.dtype == pydist.float64 and block.count.dtype == pydist.int64
    assert block.to(pydist.ones(1)).linear.weight.dtype == pydist.float32
    assert block.to("cpu", dtype=pydist.float64).float().to("cpu").linear.weight.dtype == pydist.float32
    with pytest.raises(TypeError, match="only accepts floating point"):
        block.to(pydist.int64)
    with pytest.raises(TypeError, match="unexpected keyword"):
        block.to(what=1)


def test_zero_grad():
    net = mlp()
    net(pydist.ones(1, 4)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert all(p.grad.abs().sum().item() == 0 for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_modules_copy():
    net = nn.Sequential(Block())
    other = copy.deepcopy(net)
    assert list(other.state_dict()) == list(net.state_dict())
    assert other[0].scale is not net[0].scale and type(other[0].scale) is nn.Parameter
    other[0].scale.data.fill_(9)
    assert net[0].scale.tolist() == [1, 1, 1]


@pytest.mark.parametrize("with_kwargs", [False, True])
def test_always_called_hooks(with_kwargs):
    seen = []
    net = nn.Linear(2, 2)
    hook = (lambda m, args, kw, out: seen.append(out)) if with_kwargs else (lambda m, args, out: seen.append(out))
    net.register_forward_hook(hook, always_call=True, with_kwargs=with_kwargs)
    net(pydist.ones(1, 2))
    with pytest.raises(pydist.ShapeError):
        net(pydist.ones(1, 3))
    assert len(seen) == 2 and seen[1] is None
    net.register_forward_hook(lambda m, args, out: 1 / 0, always_call=True)
    with pytest.raises(ZeroDivisionError):
        net(pydist.ones(1, 2))
    with pytest.warns(UserWarning, match="silenced as another error was raised in forward: division by zero"):
        with pytest.raises(pydist.ShapeError):
            net(pydist.ones(1, 3))


def test_pre_hook_must_return_pairs():
    net = nn.ReLU()
    net.register_forward_pre_hook(lambda m, args, kw: args, with_kwargs=True)
    with pytest.raises(RuntimeError, match="forward pre-hook must return None or a tuple"):
        net(pydist.ones(1))


def test_more_of_the_tree():
    net = nn.Sequential(Block(), mlp())
    net.set_submodule("0.linear", nn.Identity())
    assert type(net[0].linear) is nn.Identity
    with pytest.raises(AttributeError, match="has no attribute 'x'"):
        net.set_submodule("0.x", nn.Identity(), strict=True)
    net.set_submodule("0.x", nn.Identity())
    assert type(net[0].x) is nn.Identity
    del net[0].x
    with pytest.raises(ValueError, match="without a target"):
        net.set_submodule("", nn.Identity())
    assert len(list(nn.Sequential(net, net).modules(remove_duplicate=False))) == 2 * len(list(net.modules())) + 1
    block = Block()
    block.register_buffer("count", pydist.tensor(1))
    assert block.type(pydist.float64).count.dtype == pydist.float64 == block.scale.dtype
    before = block.scale.data_ptr()
    assert block.to_empty(device="cpu") is block and block.scale.data_ptr() != before


# State.


def test_state_hooks():
    net, calls = nn.Sequential(Block(), nn.ReLU()), []
    before = net[0].register_state_dict_pre_hook(lambda m, prefix, keep: calls.append((prefix, keep)))
    after = net.register_state_dict_post_hook(lambda m, state, prefix, meta: state.__delitem__("0.scale"))
    state = net.state_dict()
    assert calls == [("0.", False)] and "0.scale" not in state and "0.seen" in state
    before.remove()
    after.remove()

    def rename(m, state, prefix, meta, strict, missing, unexpected, errors):
        state[prefix + "scale"] = state.pop(prefix + "factor")

    state = net.state_dict()
    state["0.factor"] = state.pop("0.scale")
    with net[0].register_load_state_dict_pre_hook(rename):
        assert not net.load_state_dict(state).missing_keys
    assert "0.factor" in state  # the caller's dictionary stays as it is

    def forgive(m, keys):
        keys.missing_keys.clear()
        keys.unexpected_keys.clear()

    with net.register_load_state_dict_post_hook(forgive):
        net.load_state_dict(state)
    with net.register_load_state_dict_post_hook(lambda m, keys: 1), pytest.raises(AssertionError, match="inplace"):
        net.load_state_dict(state, strict=False)
    with net.register_state_dict_post_hook(lambda m, state, prefix, meta: state):
        with pytest.raises(RuntimeError, match="must return None"):
            net.state_dict()


def test_extra_state():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def get_extra_state(self):
            return {"calls": self.calls}

        def set_extra_state(self, state):
            self.calls = state["calls"]

    a, b = nn.Sequential(Counting()), nn.Sequential(Counting())
    a[0].calls = 5
    assert list(a.state_dict()) == ["0._extra_state"]
    b.load_state_dict(a.state_dict())
    assert b[0].calls == 5
    with pytest.raises(RuntimeError, match='Missing key.*"0._extra_state"'):
        b.load_state_dict({})
    with pytest.raises(RuntimeError, match='Unexpected key.*"0._extra_state"'):
        nn.Sequential(nn.ReLU()).load_state_dict(a.state_dict())


def test_batch_norm_takes_old_states():
    state = nn.BatchNorm1d(3).state_dict()
    del state["num_batches_tracked"]
    norm = nn.BatchNorm1d(3)
    with pytest.raises(RuntimeError, match="num_batches_tracked"):
        norm.load_state_dict(state)
    del state._metadata
    norm.load_state_dict(state)


def test_state_round_trip():
    a, b = Block(), Block()
    state = a.state_dict()
    assert list(state) == ["scale", "seen", "linear.weight", "linear.bias"]
    assert state["scale"].data_ptr() == a.scale.data_ptr() and not state["scale"].requires_grad
    assert a.state_dict(keep_vars=True)["scale"] is a.scale
    assert str(b.load_state_dict(state)) == "<All keys matched successfully>"
    assert same(a.linear.weight, b.linear.weight) and a.linear.weight is not b.linear.weight
    b.load_state_dict(state, assign=True)
    assert b.linear.weight.data_ptr() == a.linear.weight.data_ptr()


def test_state_errors_are_listed():
    net = mlp()
    state = net.state_dict()
    state["3.weight"] = state.pop("0.weight")
    state["extra"] = pydist.zeros(1)
    state["2.bias"] = pydist.zeros(7)
    with pytest.raises(RuntimeError) as error:
        net.load_state_dict(state)
    assert str(error.value) == (
        "Error(s) in loading state_dict for Sequential:\n"
        '\tMissing key(s) in state_dict: "0.weight". \n'
        '\tUnexpected key(s) in state_dict: "3.weight", "extra". \n'
        "\tsize mismatch for 2.bias: copying a param with shape pydist.Size([7]) from checkpoint, "
        "the shape in current model is pydist.Size([3])."
    )
    del state["2.bias"]
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert missing == ["0.weight", "2.bias"] and unexpected == ["3.weight", "extra"]
    with pytest.raises(RuntimeError, match="expected a Tensor from checkpoint but received"):
        net.load_state_dict({**net.state_dict(), "2.bias": 3})
    with pytest.raises(TypeError, match="dict-like"):
        net.load_state_dict(3)


# Containers and text.


def test_sequential():
    net = mlp()
    assert len(net) == 3 and net[-1] is net[2] and type(net[:2]) is nn.Sequential and len(net[:2]) == 2
    net[1] = nn.Identity()
    assert type(net[1]) is nn.Identity
    net.append(nn.ReLU()).insert(0, nn.Flatten())
    assert [type(m).__name__ for m in net] == ["Flatten", "Linear", "Identity", "Linear", "ReLU"]
    del net[0], net[-1]
    assert list(net._modules) == ["0", "1", "2"]
    del net[1:]
    assert len(net) == 1
    with pytest.raises(IndexError):
        net[1]
    named = nn.Sequential({"a": nn.Linear(2, 2), "b": nn.ReLU()})
    assert list(named.state_dict()) == ["a.weight", "a.bias"]


def test_sequential_arithmetic():
    net = mlp()
    assert [type(m).__name__ for m in net + nn.Sequential(nn.ReLU())] == ["Linear", "ReLU", "Linear", "ReLU"]
    assert len(net * 2) == len(2 * net) == 6 and (net * 2)[3] is net[0]
    net *= 2
    assert list(net._modules) == list("012345") and type(net.pop(1)) is nn.ReLU and len(net) == 5
    net += [nn.ReLU()]
    assert len(net) == 6
    for wrong in (lambda: net + [1], lambda: net * 1.5, lambda: net.insert(0, 3)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="Non-positive"):
        net * 0
    with pytest.raises(IndexError, match="Index out of range: 9"):
        net.insert(9, nn.ReLU())


@pytest.mark.parametrize("kind", ["ModuleDict", "ParameterDict"])
def test_named_containers(kind):
    def value():
        return nn.Linear(2, 2) if kind == "ModuleDict" else nn.Parameter(pydist.ones(2))

    first, second, third = value(), value(), value()
    box = getattr(nn, kind)({"b": first})
    box["a"] = second
    box.update([("c", third)])
    assert list(box) == list(box.keys()) == ["b", "a", "c"] and len(box) == 3 and "a" in box and "x" not in box
    assert box["a"] is second and box.get("x") is None and box.get("c") is third and list(box.values())[0] is first
    assert dict(box.items())["c"] is third
    found = list(box.children() if kind == "ModuleDict" else box.parameters())
    assert len(found) == 3 and found[0] is first
    assert box.pop("a") is second and list(box) == ["b", "c"]
    del box["b"]
    with pytest.raises(KeyError):
        box["b"]
    box.update(box)
    box.clear()
    assert not len(box) and not list(box.parameters())
    with pytest.raises(TypeError, match=f"{kind}.update should be called with an iterable"):
        box.update(3)
    with pytest.raises(ValueError, match="has length 3; 2 is required"):
        box.update([("a", first, 3)])
    with pytest.raises(TypeError, match="#0 should be Iterable"):
        box.update([3])
    with pytest.raises(TypeError):
        box[3] = value()


def test_parameter_list_and_dict():
    params = nn.ParameterList([pydist.ones(2), "text"])
    params += [nn.Parameter(pydist.zeros(1), requires_grad=False)]
    assert type(params[0]) is nn.Parameter and params[1] == "text" and len(params) == 3
    assert list(params.state_dict()) == ["0", "2"] and len(params[1:]) == 2 and params[-1] is params[2]
    params[0] = pydist.zeros(3)
    assert params[0].shape == (3,) and [type(p).__name__ for p in params] == ["Parameter", "str", "Parameter"]
    with pytest.raises(IndexError, match="index 3 is out of range"):
        params[3]
    with pytest.raises(TypeError, match="iterable"):
        params.extend(pydist.ones(2))
    with pytest.raises(RuntimeError, match="should not be called"):
        params(1)
    box = nn.ParameterDict({"a": pydist.ones(1)})
    both = box | {"b": pydist.zeros(2)}
    assert list(both) == ["a", "b"] and both["a"] is box["a"] and list(box) == ["a"]
    box |= {"c": 5}
    assert box["c"] == 5 and box.setdefault("c", 6) == 5 and box.setdefault("d").__class__ is type(None)
    assert box.popitem() == ("d", None) and list(reversed(box)) == ["c", "a"]
    assert list(box.fromkeys(["x"], pydist.ones(1))) == ["x"] and list(copy.deepcopy(box)) == ["a", "c"]
    with pytest.raises(RuntimeError, match="should not be called"):
        box(1)


def test_module_list():
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers += [nn.ReLU()]
    assert len(layers + [nn.ReLU()]) == 3 and len(layers) == 2
    assert len(list(layers.parameters())) == 2 and type(layers[1:]) is nn.ModuleList


def test_repr():
    assert repr(nn.Sequential(Block(), nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Dropout(0.1)]))) == (
        "Sequential(\n"
        "  (0): Block(\n"
        "    (linear): Linear(in_features=2, out_features=3, bias=True)\n"
        "  )\n"
        "  (1): ModuleList(\n"
        "    (0-1): 2 x ReLU()\n"
        "    (2): Dropout(p=0.1, inplace=False)\n"
        "  )\n"
        ")"
    )


LAYERS = [
    "Linear(3, 4, bias=False)",
    "ReLU(inplace=True)",
    "Softmax(dim=1)",
    "LogSoftmax(dim=-1)",
    "Dropout(0.2)",
    "Flatten()",
    "Identity(3)",
    "BatchNorm1d(4)",
    "BatchNorm2d(4, momentum=None, affine=False)",
    "Conv2d(2, 4, 3)",
    "Conv2d(2, 4, (3, 5), stride=2, padding=(1, 2), dilation=2, groups=2, bias=False)",
    "Conv2d(2, 4, 3, padding='same')",
    "MaxPool1d(3)",
    "MaxPool2d((3, 2), stride=2, padding=1, dilation=2, ceil_mode=True)",
    "AvgPool1d(3, stride=2)",
    "AvgPool2d((3, 2), padding=1)",
    "AdaptiveAvgPool1d(3)",
    "AdaptiveAvgPool2d((3, None))",
    "AdaptiveMaxPool1d(3)",
    "AdaptiveMaxPool2d((3, 2))",
    "ReLU6(inplace=True)",
    "SELU()",
    "SiLU(True)",
    "Mish()",
    "Hardsigmoid()",
    "Hardswish(inplace=True)",
    "LeakyReLU(0.2, True)",
    "ELU(0.5)",
    "CELU(inplace=True)",
    "Hardtanh(-2, 2.0)",
    "Sigmoid()",
    "Tanh()",
    "LogSigmoid()",
    "Softsign()",
    "Tanhshrink()",
    "GELU('tanh')",
    "Softplus(2.0)",
    "PReLU(3)",
    "Softmin(1)",
    "LayerNorm((3, 4))",
    "LayerNorm(4, 1e-3, bias=False)",
    "LayerNorm(4, elementwise_affine=False)",
    "RMSNorm(4)",
    "GroupNorm(2, 4, affine=False)",
    "GroupNorm(2, 4)",
    "Embedding(5, 3, padding_idx=-1)",
    "Unflatten(1, (2, -1))",
    "Dropout1d(0.3)",
    "Dropout2d(inplace=True)",
    "Conv1d(2, 4, 3, 2, padding=1)",
    "Conv1d(2, 4, 4, padding='same', bias=False)",
    "MSELoss()",
    "L1Loss()",
    "SmoothL1Loss()",
    "HuberLoss()",
    "KLDivLoss(reduction='batchmean')",
    "BCELoss()",
    "BCEWithLogitsLoss()",
    "CrossEntropyLoss()",
    "NLLLoss()",
    "Sequential()",
    "ModuleList()",
    "ModuleDict({'a': N.ReLU(), 'b': N.Linear(1, 2)})",
    "ParameterList([L.ones(2, 3), L.zeros(()), 4])",
    "ParameterDict({'a': L.ones(2, 3), 'b': 'text'})",
    "ParameterDict([('a', L.ones(2)), ('b', L.zeros(1).double())])",
    "Sequential(N.ParameterList([L.ones(1)]), N.ModuleDict())",
]


@pytest.mark.parametrize("text", LAYERS)
def test_repr_and_state_parity(torch, text):
    ours, theirs = (eval(f"N.{text}", {"N": lib.nn, "L": lib}) for lib in (pydist, torch))
    assert repr(ours) == repr(theirs).replace("torch.", "pydist.")
    assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()
    }


# Layers against torch.


POINTWISE = (
    "ReLU6 SELU SiLU Mish Hardswish LeakyReLU ELU CELU Hardtanh Sigmoid Tanh LogSigmoid Softsign Tanhshrink "
    "GELU Softplus"
).split()


def from_torch(tensor):
    return pydist.from_numpy(tensor.detach().numpy().copy())


def assert_close(ours, theirs, tolerance=1e-9):
    theirs = theirs.detach()
    assert tuple(ours.shape) == tuple(theirs.shape)
    difference = (ours.detach() - from_torch(theirs)).abs()
    assert difference.numel() == 0 or difference.max().item() <= tolerance * max(1.0, theirs.abs().max().item())


def compare(ours, theirs, x, extra=()):
    """Forward and backward of two modules with the same parameters."""
    ours.load_state_dict({name: from_torch(value) for name, value in theirs.state_dict().items()})
    x_theirs = x.clone().requires_grad_()
    x_ours = from_torch(x).requires_grad_()
    y_theirs = theirs(x_theirs, *extra)
    y_ours = ours(x_ours, *map(from_torch, extra))
    assert_close(y_ours, y_theirs)
    weight = x.new_ones(y_theirs.shape).cumsum(-1) if y_theirs.dim() else x.new_ones(())
    y_theirs.backward(weight)
    y_ours.backward(from_torch(weight))
    assert_close(x_ours.grad, x_theirs.grad)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        assert_close(p.grad, q.grad)
    for a, b in zip(ours.buffers(), theirs.buffers()):
        assert_close(a, b)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "text, shape",
    [
        ("Linear(3, 4)", (5, 3)),
        ("Linear(3, 4)", (2, 5, 3)),
        ("Linear(3, 4, bias=False)", (3,)),
        ("ReLU()", (4, 3)),
        ("Softmax(dim=0)", (4, 3)),
        ("LogSoftmax(dim=-1)", (2, 4, 3)),
        ("Flatten(1, 2)", (2, 3, 4, 5)),
        ("BatchNorm1d(4)", (6, 4)),
        ("BatchNorm1d(4, momentum=None)", (6, 4, 5)),
        ("BatchNorm2d(3)", (4, 3, 5, 2)),
        ("BatchNorm2d(3, track_running_stats=False, affine=False)", (4, 3, 5, 2)),
        ("MaxPool1d(3)", (2, 3, 8)),
        ("MaxPool1d(3, 2, padding=1, dilation=2, ceil_mode=True)", (3, 8)),
        ("MaxPool2d((3, 2), 2, padding=1, ceil_mode=True)", (2, 3, 7, 6)),
        ("AvgPool1d(3, 2, 1, count_include_pad=False)", (2, 3, 8)),
        ("AvgPool2d(2)", (2, 3, 7, 6)),
        ("AvgPool2d((3, 2), (1, 2), 1, ceil_mode=True, divisor_override=5)", (3, 7, 6)),
        ("AdaptiveAvgPool1d(3)", (2, 3, 8)),
        ("AdaptiveAvgPool2d((3, None))", (2, 3, 7, 6)),
        ("AdaptiveMaxPool1d(3)", (2, 3, 8)),
        ("AdaptiveMaxPool2d((3, 2))", (2, 3, 7, 6)),
        ("Conv2d(2, 4, 3)", (2, 2, 6, 7)),
        ("Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=(1, 2), groups=2)", (2, 4, 9, 8)),
        ("Conv2d(2, 4, 3, padding='same', bias=False)", (2, 2, 6, 7)),
        ("Conv2d(2, 4, (4, 3), padding='same', dilation=(1, 2))", (2, 2, 6, 7)),
        ("Conv2d(2, 4, 2, padding='valid')", (2, 6, 7)),
        ("Conv1d(2, 4, 3)", (2, 2, 7)),
        ("Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2)", (4, 9)),
        ("Conv1d(2, 4, 4, padding='same', bias=False)", (2, 2, 7)),
        *((f"{kind}()", (4, 3)) for kind in POINTWISE),  # torch's Hardsigmoid has its 1/6 in float32
        ("LeakyReLU(0.2)", (4, 3)),
        ("ELU(0.5)", (4, 3)),
        ("CELU(0.5)", (4, 3)),
        ("Hardtanh(-0.5, 0.25)", (4, 3)),
        ("GELU('tanh')", (4, 3)),
        ("Softplus(2.0, 1.0)", (4, 3)),
        ("PReLU()", (4, 3)),
        ("PReLU(3)", (4, 3, 2)),
        ("Softmin(1)", (4, 3)),
        ("LayerNorm((3, 4))", (2, 3, 4)),
        ("LayerNorm(4, 1e-3, bias=False)", (2, 3, 4)),
        ("LayerNorm(4, elementwise_affine=False)", (4,)),
        ("RMSNorm(4)", (2, 3, 4)),
        ("RMSNorm((3, 4), 1e-3, elementwise_affine=False)", (2, 3, 4)),
        ("GroupNorm(2, 4)", (2, 4, 3, 2)),
        ("GroupNorm(4, 4, affine=False)", (2, 4, 5)),
        ("Unflatten(-1, (2, -1, 2))", (3, 8)),
        ("Unflatten(1, (0, 3))", (3, 0)),
    ],
)
def test_layer_parity(torch, text, shape, train):
    torch.manual_seed(0)
    theirs = eval(f"torch.nn.{text}").double().train(train)
    ours = eval(f"nn.{text}").double().train(train)
    compare(ours, theirs, torch.randn(shape, dtype=torch.float64))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "options", ["", "ignore_index=2", "weight=W", "weight=W, ignore_index=0", "label_smoothing=0.1"]
)
@pytest.mark.parametrize("kind", ["CrossEntropyLoss", "NLLLoss"])
def test_loss_parity(torch, kind, options, reduction):
    if kind == "NLLLoss" and "smoothing" in options:
        pytest.skip("NLLLoss has no smoothing")
    torch.manual_seed(0)
    weight = torch.rand(5, dtype=torch.float64)
    text = f"{kind}({options + ', ' if options else ''}reduction='{reduction}')"
    theirs = eval(f"torch.nn.{text}", {"torch": torch, "W": weight})
    ours = eval(f"nn.{text}", {"nn": nn, "W": from_torch(weight)})
    x = torch.randn(7, 5, dtype=torch.float64)
    compare(ours, theirs, x.log_softmax(1) if kind == "NLLLoss" else x, (torch.tensor([0, 1, 2, 3, 4, 2, 0]),))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "text",
    [
        "MSELoss(",
        "L1Loss(",
        "SmoothL1Loss(beta=0.5, ",
        "HuberLoss(delta=0.5, ",
        "KLDivLoss(",
        "KLDivLoss(log_target=True, ",
        "BCELoss(",
        "BCELoss(weight=W, ",
        "BCEWithLogitsLoss(",
        "BCEWithLogitsLoss(weight=W, pos_weight=W + 1, ",
    ],
)
def test_pairwise_loss_parity(torch, text, reduction):
    torch.manual_seed(0)
    weight, t = torch.rand(3, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
    x = torch.randn(4, 3, dtype=torch.float64)
    x = x.sigmoid() if text.startswith("BCELoss") else x
    theirs = eval(f"torch.nn.{text}reduction=reduction)", {"torch": torch, "W": weight, "reduction": reduction})
    ours = eval(f"nn.{text}reduction=reduction)", {"nn": nn, "W": from_torch(weight), "reduction": reduction})
    compare(ours, theirs, x, (t,))


def test_kl_div_over_the_batch(torch):
    x, t = torch.randn(4, 3, dtype=torch.float64).log_softmax(1), torch.rand(4, 3, dtype=torch.float64)
    compare(nn.KLDivLoss(reduction="batchmean"), torch.nn.KLDivLoss(reduction="batchmean"), x, (t,))


@pytest.mark.parametrize("padding", [None, 0, -1])
def test_embedding_parity(torch, padding):
    torch.manual_seed(0)
    theirs = torch.nn.Embedding(5, 3, padding_idx=padding).double()
    ours = nn.Embedding(5, 3, padding_idx=padding).double()
    assert padding is None or ours.weight[padding].tolist() == [0, 0, 0]
    ours.load_state_dict({name: from_torch(value) for name, value in theirs.state_dict().items()})
    index = torch.tensor([[0, 4, 2], [4, 4, 0]])
    weight = torch.randn(2, 3, 3, dtype=torch.float64)
    (theirs(index) * weight).sum().backward()
    (ours(from_torch(index)) * from_torch(weight)).sum().backward()
    assert_close(ours(from_torch(index)), theirs(index))
    assert_close(ours.weight.grad, theirs.weight.grad)


def test_embedding_corners():
    rows = pydist.arange(6.0).reshape(3, 2)
    table = nn.Embedding.from_pretrained(rows)
    assert not table.weight.requires_grad and table(pydist.tensor([2])).tolist() == [[4, 5]]
    assert nn.Embedding.from_pretrained(rows, freeze=False).weight.requires_grad
    for wrong in (lambda: table(pydist.tensor([3])), lambda: table(pydist.tensor([-1]))):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(ValueError, match="padding_idx is 3"):
        nn.Embedding(3, 2, padding_idx=3)
    with pytest.raises(ValueError, match="2-dimensional"):
        nn.Embedding.from_pretrained(pydist.ones(3))
    with pytest.raises(ValueError, match=r"weight has shape \(3, 2\)"):
        nn.Embedding(3, 3, _weight=rows)


@pytest.mark.parametrize(
    "kind, shape", [("Dropout1d", (2000, 4, 3)), ("Dropout2d", (2000, 4, 3, 2)), ("Dropout1d", (4000, 5))]
)
@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_of_channels(kind, shape, inplace):
    pydist.manual_seed(0)
    layer = getattr(nn, kind)(0.25, inplace)
    x = pydist.ones(*shape)
    y = layer(x)
    assert (y is x) is inplace or (y == x).all().item() is inplace
    channels = y.reshape(-1, y.shape[-1] if kind == "Dropout1d" else 6)
    first = channels[:, :1]
    assert bool((channels == first).all()) and abs(y.mean().item() - 1) < 0.05
    assert set(first.flatten().tolist()) == {0.0, pydist.tensor(1 / 0.75).item()}
    assert layer.eval()(x) is x
    with pytest.raises(ValueError, match=f"{kind.lower()}: input has 1 dims"):
        layer(pydist.ones(3))


def test_dropout_scales_what_it_keeps():
    pydist.manual_seed(0)
    x = pydist.ones(20000)
    y = F.dropout(x, 0.25)
    assert set(y.tolist()) == {0.0, pydist.tensor(1 / 0.75).item()}
    assert abs(y.mean().item() - 1) < 0.02
    assert F.dropout(x, 0.3, training=False) is x
    assert F.dropout(x, 1.0).abs().sum().item() == 0
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(x, 1.5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        nn.Dropout(-0.1)


def test_bad_layers():
    with pytest.raises(pydist.ShapeError):
        nn.Linear(3, 4)(pydist.ones(2, 5))
    with pytest.raises(ValueError, match="expected 4D input"):
        nn.BatchNorm2d(3)(pydist.ones(2, 3))
    for wrong in (lambda: nn.GroupNorm(3, 4), lambda: nn.GroupNorm(0, 4)):
        with pytest.raises(ValueError, match="must be divisible by num_groups"):
            wrong()
    with pytest.raises(ValueError, match="max_val must be larger"):
        nn.Hardtanh(1, 1)
    with pytest.raises(ValueError, match="padding has 3 values"):
        nn.Conv2d(3, 4, 3, padding=(1, 1, 1))
    with pytest.raises(pydist.ShapeError, match="conv1d: shapes"):
        nn.Conv1d(3, 4, 3)(pydist.ones(2, 3, 4, 4))
    with pytest.raises(pydist.ShapeError):
        nn.LayerNorm(3)(pydist.ones(2, 4))
    with pytest.raises(RuntimeError, match="expected sizes with the product 8"):
        nn.Unflatten(1, (3, -1))(pydist.ones(2, 8))
    with pytest.raises(IndexError, match="dim 2 is out of range"):
        nn.Unflatten(2, (1, 1))(pydist.ones(2, 8))
    with pytest.raises(TypeError, match="unflattened_size is 8"):
        nn.Unflatten(1, 8)
    with pytest.raises(ValueError, match="divisible by groups"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ValueError, match="strided"):
        nn.Conv2d(3, 4, 3, stride=2, padding="same")
    with pytest.raises(ValueError, match="not a valid value for reduction"):
        nn.NLLLoss(reduction="avg")
    with pytest.raises(IndexError):
        F.cross_entropy(pydist.zeros(2, 3), pydist.tensor([0, 3]))


@pytest.mark.parametrize("text", ["MaxPool1d(2", "MaxPool2d(2", "AdaptiveMaxPool1d(2", "AdaptiveMaxPool2d(2"])
def test_positions_of_maxima(torch, text):
    torch.manual_seed(0)
    x = torch.randn((2, 3, 8) if "1d" in text else (2, 3, 6, 7))
    values, index = eval(f"nn.{text}, return_indices=True)")(from_torch(x))
    values_theirs, index_theirs = eval(f"torch.nn.{text}, return_indices=True)")(x)
    assert_close(values, values_theirs, 0)
    assert index.dtype == pydist.int64 and index.tolist() == index_theirs.tolist()


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_classes_may_be_bytes(loss):
    x, classes = pydist.randn(4, 3), pydist.tensor([0, 2, 1, 1])
    assert pydist.equal(loss(x, classes.to(pydist.uint8)), loss(x, classes))


def test_softmax_without_dim_warns():
    with pytest.warns(UserWarning, match="dim is not given"):
        assert F.softmax(pydist.zeros(2, 4)).tolist() == [[0.25] * 4] * 2


# Initial values.


def test_initial_values_are_reproducible_and_bounded():
    pydist.manual_seed(3)
    a = nn.Linear(100, 50)
    pydist.manual_seed(3)
    b = nn.Linear(100, 50)
    assert same(a.weight, b.weight) and same(a.bias, b.bias)
    bound = 1 / math.sqrt(100)
    for p in a.parameters():
        assert p.abs().max().item() <= bound and p.abs().max().item() > 0.8 * bound
    assert not same(a.weight, nn.Linear(100, 50).weight)


@pytest.mark.parametrize(
    "call, kind, scale",
    [
        ("uniform_(t, -2, 2)", "uniform", 2),
        ("normal_(t, 0, 3)", "normal", 3),
        ("xavier_uniform_(t)", "uniform", math.sqrt(6 / 300)),
        ("xavier_normal_(t, gain=2)", "normal", 2 * math.sqrt(2 / 300)),
        ("kaiming_uniform_(t, nonlinearity='relu')", "uniform", math.sqrt(6 / 200)),
        ("kaiming_normal_(t, a=1, mode='fan_out')", "normal", math.sqrt(1 / 100)),
    ],
)
def test_distributions(call, kind, scale):
    pydist.manual_seed(0)
    t = pydist.empty(100, 200, requires_grad=True)
    assert eval(f"nn.init.{call}") is t and t.is_leaf
    values = t.detach()
    deviation = scale / math.sqrt(3) if kind == "uniform" else scale
    assert abs(values.mean().item()) < 0.03 * scale
    assert abs((values * values).mean().item() / deviation**2 - 1) < 0.05
    assert kind == "normal" or values.abs().max().item() <= scale


@pytest.mark.parametrize(
    "text, fan_in",
    [
        ("Linear(50, 80)", 50),
        ("Conv1d(6, 80, 5)", 30),
        ("Conv2d(8, 64, 3, groups=2)", 36),
        ("Conv2d(4, 64, (1, 5))", 20),
    ],
)
def test_layers_start_as_pytorchs(text, fan_in):
    """Weights and biases are uniform in +-1/sqrt(fan_in)."""
    pydist.manual_seed(0)
    layer, bound = eval(f"nn.{text}"), 1 / math.sqrt(fan_in)
    for p in layer.parameters():
        values = p.detach()
        assert 0.85 * bound < values.abs().max().item() <= bound * (1 + 1e-6)
        assert abs((values * values).mean().item() / (bound**2 / 3) - 1) < 0.25
    assert abs((layer.weight.detach() ** 2).mean().item() / (bound**2 / 3) - 1) < 0.06


def test_tables_and_norms_start_as_pytorchs():
    pydist.manual_seed(0)
    weight = nn.Embedding(100, 200).weight.detach()
    assert abs(weight.mean().item()) < 0.02 and abs((weight * weight).mean().item() - 1) < 0.03
    for norm in (nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.BatchNorm1d(3), nn.BatchNorm2d(3)):
        assert norm.weight.tolist() == [1, 1, 1] and norm.bias.tolist() == [0, 0, 0]
    assert nn.RMSNorm(2).weight.tolist() == [1, 1] and nn.PReLU().weight.tolist() == [0.25]


def test_truncated_normal():
    pydist.manual_seed(0)
    t = pydist.empty(200, 300, requires_grad=True)
    assert nn.init.trunc_normal_(t, 0.5, 1.0, -0.5, 1.5) is t
    values = t.detach()
    assert -0.5 <= values.min().item() < -0.45 and 1.45 < values.max().item() <= 1.5
    assert abs(values.mean().item() - 0.5) < 0.01
    variance = 1 - 2 * math.exp(-0.5) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(0.5))  # of N(0, 1) in [-1, 1]
    assert abs(((values - 0.5) ** 2).mean().item() / variance - 1) < 0.03
    with pytest.raises(ValueError, match="hardly any values"):
        nn.init.trunc_normal_(t, 0.0, 1.0, 10.0, 11.0)


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (8, 2, 3), (2, 3, 1)])
def test_orthogonal(shape):
    pydist.manual_seed(0)
    t = nn.init.orthogonal_(pydist.empty(*shape, dtype=pydist.float64), gain=2.0).reshape(shape[0], -1)
    product = t @ t.t() if t.shape[0] <= t.shape[1] else t.t() @ t
    assert (product - 4 * nn.init.eye_(pydist.empty_like(product))).abs().max().item() < 1e-12
    with pytest.raises(ValueError, match="2 or more"):
        nn.init.orthogonal_(pydist.empty(3))


def test_eye_and_dirac(torch):
    assert nn.init.eye_(pydist.empty(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    for shape, groups in (((4, 2, 3), 1), ((4, 2, 3, 2), 2), ((2, 4, 1, 3, 2), 1)):
        theirs = torch.nn.init.dirac_(torch.empty(*shape), groups)
        assert nn.init.dirac_(pydist.empty(*shape), groups).tolist() == theirs.tolist()
    with pytest.raises(ValueError, match="2 dimensions"):
        nn.init.eye_(pydist.empty(3))
    with pytest.raises(ValueError, match="3, 4, or 5"):
        nn.init.dirac_(pydist.empty(3, 3))
    with pytest.raises(ValueError, match="divisible by groups"):
        nn.init.dirac_(pydist.empty(3, 3, 3), 2)
    drawn = nn.init.sparse_(pydist.empty(7, 5), 0.3, std=2.0)
    assert (drawn == 0).sum(0).tolist() == [3] * 5 and 0.5 < drawn[drawn != 0].std() < 4
    with pytest.raises(ValueError, match="2 dimensions"):
        nn.init.sparse_(pydist.empty(3), 0.3)


def test_constants_and_fans():
    t = pydist.empty(2, 3, 4)
    assert nn.init.constant_(t, 2.5).sum().item() == 60
    assert nn.init.ones_(t).sum().item() == 24 and nn.init.zeros_(t).sum().item() == 0
    assert nn.init._calculate_fan_in_and_fan_out(t) == (12, 8)
    assert nn.init.calculate_gain("leaky_relu", 1.0) == 1.0
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        nn.init.xavier_uniform_(pydist.empty(3))
    with pytest.raises(ValueError, match="Unsupported nonlinearity"):
        nn.init.calculate_gain("swish")
    with pytest.raises(ValueError, match="Mode fan not supported"):
        nn.init.kaiming_uniform_(t, mode="fan")


# Backward hooks.


@pytest.mark.parametrize("change", [False, True])
def test_backward_hook_parity(torch, change):
    """Calls, their order, their gradients and what the hooks change are torch's."""

    def record(lib, from_list):
        class Two(lib.nn.Module):
            def forward(self, x, y, power):
                return x * y, y**power

        net, log = Two(), []

        def values(grads):
            return [None if g is None else [round(v, 6) for v in g.tolist()] for g in grads]

        def pre(module, grad_output):
            log.append(("pre", values(grad_output)))
            return tuple(None if g is None else g * 2 for g in grad_output) if change else None

        def hook(module, grad_input, grad_output):
            log.append(("hook", values(grad_input), values(grad_output)))
            return tuple(None if g is None else g + 1 for g in grad_input) if change else None

        net.register_full_backward_pre_hook(pre)
        handle = net.register_full_backward_hook(hook)
        x, y = from_list([1.0, 2.0]).requires_grad_(), from_list([3.0, 4.0]).requires_grad_()
        a, b = net(x, y, 2)
        (a.sum() + 3 * b.sum()).backward()
        log.append((x.grad.tolist(), y.grad.tolist()))
        x.grad = None
        a, b = net(x, from_list([3.0, 4.0]), 2)  # one input without a gradient
        a.sum().backward()
        log.append(x.grad.tolist())
        handle.remove()
        net(x, y, 2)[0].sum().backward()
        log.append(x.grad.tolist())
        return log

    assert record(pydist, pydist.tensor) == record(torch, torch.tensor)


def test_backward_hooks_of_the_first_layer():
    """Inputs that need no gradient: the hook comes with the outputs' gradients."""
    layer, seen = nn.Linear(2, 3), []
    layer.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go[0].tolist())))
    layer(pydist.ones(1, 2)).sum().backward()
    assert seen == [((None,), [[1, 1, 1]])] and layer.weight.grad.tolist() == [[1, 1]] * 3
    with pydist.no_grad():
        layer(pydist.ones(1, 2))
    assert len(seen) == 1


def test_bad_backward_hooks():
    x = pydist.ones(2, requires_grad=True)
    net = nn.ReLU()
    with net.register_full_backward_hook(lambda m, gi, go: (gi[0], gi[0])):
        with pytest.raises(RuntimeError, match="invalid number of grad, got 2, but expected 1"):
            net(x).sum().backward()
    with net.register_full_backward_pre_hook(lambda m, go: 1 / 0), pytest.raises(ZeroDivisionError):
        net(x).sum().backward()

    class Named(nn.Module):
        def forward(self, x):
            return {"y": x}

    net = Named()
    net.register_full_backward_hook(lambda m, gi, go: None)
    with pytest.warns(UserWarning, match="module output should be a Tensor or a tuple of Tensors"):
        net(x)
