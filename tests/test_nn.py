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
    with pytest.raises(TypeError, match="data must be a Tensor"):
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
        second = lambda m, args, kw, out: kw["factor"]  # noqa: E731
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


# State.


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
    "CrossEntropyLoss()",
    "NLLLoss()",
    "Sequential()",
    "ModuleList()",
]


@pytest.mark.parametrize("text", LAYERS)
def test_repr_and_state_parity(torch, text):
    ours, theirs = eval(f"nn.{text}"), eval(f"torch.nn.{text}")
    assert repr(ours) == repr(theirs)
    assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()
    }


# Layers against torch.


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
        ("Conv2d(2, 4, 3)", (2, 2, 6, 7)),
        ("Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=(1, 2), groups=2)", (2, 4, 9, 8)),
        ("Conv2d(2, 4, 3, padding='same', bias=False)", (2, 2, 6, 7)),
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
    with pytest.raises(ValueError, match="divisible by groups"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ValueError, match="strided"):
        nn.Conv2d(3, 4, 3, stride=2, padding="same")
    with pytest.raises(ValueError, match="not a valid value for reduction"):
        nn.NLLLoss(reduction="avg")
    with pytest.raises(IndexError):
        F.cross_entropy(pydist.zeros(2, 3), pydist.tensor([0, 3]))


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
