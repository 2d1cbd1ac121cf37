"""States of models and optimizers by their names: the same dictionaries as PyTorch's, options, and what goes wrong."""

import copy
import re

import pytest

import pydist
from lib.package import COMPARED
from pydist.distributed.checkpoint.state_dict import (
    StateDictOptions,
    _init_optim_state,
    _patch_model_state_dict,
    _patch_optimizer_state_dict,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from pydist.testing import run_ranks

# Programs, written for pydist and for torch.


def layers(lib):
    return lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.Tanh(), lib.nn.Linear(4, 2)).to(lib.float64)


def normed(lib):
    nn = lib.nn  # a bias before BatchNorm would have a gradient of rounding errors only
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Sequential(nn.BatchNorm1d(4), nn.Tanh()), nn.Linear(4, 2)).to(
        lib.float64
    )


def tied(lib):
    """The last layer has the first one's weight, under a second name."""
    model = lib.nn.Sequential(lib.nn.Linear(3, 3), lib.nn.Tanh(), lib.nn.Linear(3, 3)).to(lib.float64)
    model[2].weight = model[0].weight
    return model


def frozen(lib):
    model = layers(lib)
    model[0].weight.requires_grad_(False)
    return model


def twice(lib):
    """One layer at two places."""
    layer = lib.nn.Linear(3, 3)
    return lib.nn.Sequential(layer, lib.nn.Tanh(), layer).to(lib.float64)


def wrapped(lib):
    return lib.nn.parallel.DistributedDataParallel(normed(lib))


def wrapped_inside(lib):
    inner = lib.nn.Sequential(lib.nn.Linear(4, 4), lib.nn.Tanh()).to(lib.float64)
    outer = [lib.nn.Linear(3, 4).to(lib.float64), lib.nn.parallel.DistributedDataParallel(inner), lib.nn.Linear(4, 2)]
    return lib.nn.Sequential(*outer).to(lib.float64)


MODELS = [layers, normed, tied, frozen, twice, wrapped, wrapped_inside]


def groups_of(model):
    params = list(model.parameters())
    return [{"params": params[::2], "weight_decay": 0.1}, {"params": params[1::2], "lr": 0.02}]


OPTIMIZERS = {
    "sgd": lambda optim, model: [optim.SGD(model.parameters(), lr=0.1)],
    "momentum": lambda optim, model: [optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)],
    "adam": lambda optim, model: [optim.Adam(model.parameters(), lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)],
    "adamw_groups": lambda optim, model: [optim.AdamW(groups_of(model), lr=0.01, amsgrad=True)],
    "two": lambda optim, model: [
        optim.Adam(list(model.parameters())[:1], lr=0.01),
        optim.SGD(list(model.parameters())[1:], lr=0.1, momentum=0.9),
    ],
}


def inputs(lib, step):
    return (lib.arange(15.0).reshape(5, 3).to(lib.float64) - 7 + step) / 5


def train(lib, model, optimizers, steps=2, start=0):
    for step in range(start, start + steps):
        model(inputs(lib, step)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def program(build, name="adamw_groups", lib=pydist, seed=0):
    lib.manual_seed(seed)
    model = build(lib)
    return model, OPTIMIZERS[name](lib.optim, model)


@pytest.fixture
def theirs(torch):
    """torch.distributed.checkpoint.state_dict, in a group of one process. The group stays: if torch ends it while one of
    its threads waits for Python's lock, both wait for ever."""
    from torch.distributed.checkpoint import state_dict

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return state_dict


def same_start(torch, build, name):
    """(model, optimizers) in torch, and the same in pydist."""
    their_model, their_optimizers = program(build, name, torch)
    model, optimizers = program(build, name)
    state = {key: pydist.tensor(value.tolist()).to(pydist.float64) for key, value in their_model.state_dict().items()}
    model.load_state_dict(state)
    return (model, optimizers), (their_model, their_optimizers)


def compare(torch, a, b, path=""):
    """pydist's `a` is torch's `b`. Step counts are plain numbers in pydist, and tensors of float32 in torch."""
    if isinstance(b, dict):
        assert isinstance(a, dict) and a.keys() == b.keys(), path
        for key in b:
            compare(torch, a[key], b[key], f"{path}.{key}")
    elif isinstance(b, list):
        assert isinstance(a, list) and len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            compare(torch, x, y, f"{path}[{i}]")
    elif path.endswith(".step"):
        assert a == int(b), path
    elif isinstance(b, torch.Tensor):
        assert isinstance(a, pydist.Tensor) and str(a.dtype).split(".")[1] == str(b.dtype).split(".")[1], path
        assert list(a.shape) == list(b.shape) and a.requires_grad == b.requires_grad, path
        pydist.testing.assert_close(a, pydist.tensor(b.tolist(), dtype=a.dtype), rtol=1e-9, atol=1e-12)
    else:
        assert a == b and type(a) is type(b), path


def compared(torch, ours, theirs):
    compare(torch, ours, theirs)
    COMPARED["state_dicts of checkpoints"] += 1


# The dictionaries beside torch's.


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("build", MODELS)
def test_states_beside_torch(torch, theirs, build, name):
    """Of new optimizers, of trained ones, and flat."""
    (model, optimizers), (their_model, their_optimizers) = same_start(torch, build, name)
    flat = dict(flatten_optimizer_state_dict=True)
    for steps in (0, 2):
        train(pydist, model, optimizers, steps)
        train(torch, their_model, their_optimizers, steps)
        ours, other = get_state_dict(model, optimizers), theirs.get_state_dict(their_model, their_optimizers)
        compared(torch, ours[0], other[0])
        compared(torch, ours[1], other[1])
        assert type(ours[0]) is type(other[0]) and type(ours[1]) is type(other[1])
        ours = get_optimizer_state_dict(model, optimizers, options=StateDictOptions(**flat))
        options = theirs.StateDictOptions(**flat)
        compared(torch, ours, theirs.get_optimizer_state_dict(their_model, their_optimizers, options=options))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "options",
    [
        dict(full_state_dict=True),
        dict(cpu_offload=True),
        dict(full_state_dict=True, cpu_offload=True),
        dict(ignore_frozen_params=True),
        dict(full_state_dict=True, broadcast_from_rank0=True),
    ],
    ids=lambda options: " ".join(options),
)
@pytest.mark.parametrize("build", [normed, frozen, wrapped])
def test_options_beside_torch(torch, theirs, build, options):
    (model, optimizers), (their_model, their_optimizers) = same_start(torch, build, "adam")
    ours = get_state_dict(model, optimizers, options=StateDictOptions(**options))
    other = theirs.get_state_dict(their_model, their_optimizers, options=theirs.StateDictOptions(**options))
    for a, b in zip(ours, other):
        compared(torch, a, b)
        assert type(a) is type(b)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_submodules_beside_torch(torch, theirs, keep):
    (model, optimizers), (their_model, their_optimizers) = same_start(torch, wrapped, "adam")
    ours = get_state_dict(
        model, optimizers, submodules={model.module[1]}, options=StateDictOptions(keep_submodule_prefixes=keep)
    )
    options = theirs.StateDictOptions(keep_submodule_prefixes=keep)
    other = theirs.get_state_dict(their_model, their_optimizers, submodules={their_model.module[1]}, options=options)
    assert ("1.0.running_mean" if keep else "0.running_mean") in ours[0]
    for a, b in zip(ours, other):
        compared(torch, a, b)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("name", ["momentum", "adamw_groups", "two"])
@pytest.mark.parametrize("build", [normed, tied, wrapped, wrapped_inside])
def test_torch_loads_ours_and_we_load_theirs(torch, theirs, build, name, flatten):
    def from_torch(value):
        if isinstance(value, dict):
            return {key: from_torch(item) for key, item in value.items()}
        if isinstance(value, list):
            return [from_torch(item) for item in value]
        if isinstance(value, torch.Tensor):
            return pydist.tensor(value.tolist(), dtype=getattr(pydist, str(value.dtype).split(".")[1]))
        return value

    their_model, their_optimizers = program(build, name, torch)
    train(torch, their_model, their_optimizers)
    options = theirs.StateDictOptions(flatten_optimizer_state_dict=flatten)
    saved = [from_torch(each) for each in theirs.get_state_dict(their_model, their_optimizers, options=options)]
    model, optimizers = program(build, name)
    set_state_dict(model, optimizers, model_state_dict=saved[0], optim_state_dict=saved[1])
    train(pydist, model, optimizers, start=2)
    train(torch, their_model, their_optimizers, start=2)
    for a, b in zip(get_state_dict(model, optimizers), theirs.get_state_dict(their_model, their_optimizers)):
        compared(torch, a, b)


@pytest.mark.parametrize("build", [normed, wrapped])
def test_keys_that_differ_beside_torch(torch, theirs, build):
    (model, _), (their_model, _) = same_start(torch, build, "adam")
    ours, other = get_model_state_dict(model), theirs.get_model_state_dict(their_model)
    del ours["0.weight"], other["0.weight"]
    ours["unknown"] = ours["2.bias"]
    other["unknown"] = other["2.bias"]
    keys = set_model_state_dict(model, ours, options=StateDictOptions(strict=False))
    their_keys = theirs.set_model_state_dict(their_model, other, options=theirs.StateDictOptions(strict=False))
    assert keys.unexpected_keys == their_keys.unexpected_keys == ["unknown"]
    assert keys.missing_keys == their_keys.missing_keys != []


# A state goes on where it was saved.


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return pydist.equal(a, b) if isinstance(a, pydist.Tensor) else a == b


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("build", MODELS)
def test_a_loaded_training_goes_on_with_equal_bits(build, name, flatten):
    model, optimizers = program(build, name)
    train(pydist, model, optimizers, 3)
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    saved = copy.deepcopy(get_state_dict(model, optimizers, options=options))
    new, new_optimizers = program(build, name, seed=1)
    keys = set_state_dict(
        new, new_optimizers, model_state_dict=saved[0], optim_state_dict=saved[1], options=StateDictOptions(strict=True)
    )
    assert keys == ([], []) and repr(keys) == "<All keys matched successfully>"
    for each in (new, model):
        train(pydist, each, new_optimizers if each is new else optimizers, 3, start=3)
    assert equal(get_state_dict(new, new_optimizers), get_state_dict(model, optimizers))


def test_wrapped_and_plain_models_load_each_other():
    wrapped_model, wrapped_optimizers = program(wrapped)
    train(pydist, wrapped_model, wrapped_optimizers)
    saved = get_state_dict(wrapped_model, wrapped_optimizers)
    plain, plain_optimizers = program(normed, seed=1)
    assert list(saved[0]) == list(plain.state_dict())
    assert list(saved[0]._metadata) == list(plain.state_dict()._metadata)
    before = dict(saved[0])
    set_state_dict(plain, plain_optimizers, model_state_dict=saved[0], optim_state_dict=saved[1])
    again = get_state_dict(plain, plain_optimizers)
    assert equal(again, saved)
    set_state_dict(wrapped_model, wrapped_optimizers, model_state_dict=again[0], optim_state_dict=again[1])
    set_state_dict(wrapped_model, wrapped_optimizers, model_state_dict=saved[0], optim_state_dict=saved[1])
    assert saved[0] == before  # PyTorch renames the caller's keys


def test_layers_see_the_version_that_was_saved():
    seen = []

    class Versioned(pydist.nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
            seen.append(local_metadata.get("version"))
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    wrap = pydist.nn.parallel.DistributedDataParallel
    for make in (lambda: Versioned(1, 1), lambda: pydist.nn.Sequential(wrap(Versioned(1, 1)))):
        for saved in (get_model_state_dict(make()), get_model_state_dict(wrap(make()))):
            set_model_state_dict(make(), saved)
            set_model_state_dict(wrap(make()), saved)
    assert seen == [3] * 8


def test_wrappers_in_wrappers():
    inner = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 2))
    model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Sequential(inner, pydist.nn.Linear(2, 1)))
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    saved = copy.deepcopy(get_model_state_dict(model))
    assert list(model.state_dict())[0] == "module.0.module.weight" and list(saved) == names
    with pydist.no_grad():
        for p in model.parameters():
            p.zero_()
    set_model_state_dict(model, saved)
    assert equal(dict(get_model_state_dict(model)), dict(saved))
    optimizer = pydist.optim.Adam(model.parameters())
    assert get_optimizer_state_dict(model, optimizer)["param_groups"][0]["params"] == names


def test_a_module_named_module_keeps_its_name():
    class Outer(pydist.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = pydist.nn.Linear(2, 1)

    assert list(get_model_state_dict(Outer())) == ["module.weight", "module.bias"]
    model = pydist.nn.parallel.DistributedDataParallel(Outer())
    assert list(get_model_state_dict(model)) == ["module.weight", "module.bias"]
    set_model_state_dict(model, get_model_state_dict(Outer()))


@pytest.mark.parametrize("flatten", [False, True])
def test_parameters_and_groups_in_another_order(flatten):
    model, (optimizer,) = program(layers)
    train(pydist, model, [optimizer])
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    saved = get_optimizer_state_dict(model, optimizer, options=options)
    first, second = groups_of(model)
    first["params"], second["params"] = first["params"][::-1], second["params"][::-1]
    other = pydist.optim.AdamW([second, first], amsgrad=True)
    set_optimizer_state_dict(model, other, saved)
    assert [group["lr"] for group in other.param_groups] == [0.02, 0.01]
    assert [group["weight_decay"] for group in other.param_groups] == [0.01, 0.1]
    for param, state in optimizer.state.items():
        assert equal(other.state[param], dict(state)) and other.state[param]["exp_avg"] is not state["exp_avg"]


@pytest.mark.parametrize("flatten", [False, True])
def test_groups_are_split_and_joined(flatten):
    """A group takes the options of its parameters: those of two groups have to be equal."""
    model = layers(pydist)
    params = list(model.parameters())
    whole = pydist.optim.Adam(params, lr=0.3)
    parts = pydist.optim.Adam([{"params": params[:1]}, {"params": params[1:]}], lr=0.1)
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    set_optimizer_state_dict(model, parts, get_optimizer_state_dict(model, whole, options=options))
    assert [group["lr"] for group in parts.param_groups] == [0.3, 0.3]
    set_optimizer_state_dict(model, whole, get_optimizer_state_dict(model, parts, options=options))
    parts.param_groups[1]["lr"] = 0.7
    saved = get_optimizer_state_dict(model, parts, options=options)
    with pytest.raises(RuntimeError, match=r"same saved param_group value: got lr=0.7 for '0.bias' \(expected 0.3"):
        set_optimizer_state_dict(model, whole, saved)


def test_optimizers_with_names_keep_them():
    model = layers(pydist)
    saved = get_optimizer_state_dict(model, pydist.optim.Adam(model.named_parameters(), lr=0.5))
    assert saved["param_groups"][0]["param_names"] == saved["param_groups"][0]["params"]
    for lists in (list(model.named_parameters())[::-1], list(model.parameters())):
        other = pydist.optim.Adam(lists)
        names = other.param_groups[0].get("param_names")
        set_optimizer_state_dict(model, other, saved)
        assert other.param_groups[0]["lr"] == 0.5 and other.param_groups[0].get("param_names") == names


def test_groups_without_parameters():
    model = layers(pydist)
    groups = [{"params": [], "lr": 0.5}, {"params": list(model.parameters())}]
    saved = get_optimizer_state_dict(model, pydist.optim.SGD(groups, lr=0.1, momentum=0.9))
    other = pydist.optim.SGD([{**groups[0], "lr": 0.2}, dict(groups[1])], lr=0.3, momentum=0.9)
    set_optimizer_state_dict(model, other, saved)
    assert [group["lr"] for group in other.param_groups] == [0.5, 0.1]
    del saved["param_groups"][0]
    with pytest.raises(ValueError, match="no further param group without parameters"):
        set_optimizer_state_dict(model, other, saved)
    flat = get_optimizer_state_dict(model, other, options=StateDictOptions(flatten_optimizer_state_dict=True))
    set_optimizer_state_dict(model, other, flat)
    assert [group["lr"] for group in other.param_groups] == [0.5, 0.1]


def test_state_in_dictionaries_is_flattened_and_comes_back():
    class Deep(pydist.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                self.state[p] = {"factors": {"left": {"0": p.grad + 1}, "right": p.grad + 2}, "step": 1}

    model = layers(pydist)
    flat = get_optimizer_state_dict(
        model, Deep(model.parameters()), options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    assert "state.0.weight.factors.left.0" in flat and flat["param_groups.2.bias.lr"] == 0.1
    other = Deep(model.parameters())
    set_optimizer_state_dict(model, other, flat)
    state = other.state[model[0].weight]
    assert state["step"] == 1 and float(state["factors"]["left"]["0"].sum()) == model[0].weight.numel()


# New optimizers.


def test_a_new_optimizer_gets_its_state_and_changes_nothing():
    model, optimizers = program(layers, "two")
    before = copy.deepcopy(model.state_dict())
    saved = get_optimizer_state_dict(model, optimizers)
    assert equal(dict(model.state_dict()), dict(before))
    assert all(p.grad is None for p in model.parameters())
    assert [group["lr"] for group in saved["param_groups"]] == [0.01, 0.1]
    mine = optimizers[0].state[model[0].weight]
    assert saved["state"]["0.weight"]["exp_avg"] is mine["exp_avg"]  # so that a checkpoint can be loaded in place
    assert saved["state"]["0.weight"]["step"] == 1 and list(saved["state"]["2.bias"]) == ["momentum_buffer"]


def test_an_optimizer_with_gradients_is_left_alone(torch, theirs):
    (model, optimizers), (their_model, their_optimizers) = same_start(torch, layers, "adam")
    model(inputs(pydist, 0)).sum().backward()
    their_model(inputs(torch, 0)).sum().backward()
    ours = get_optimizer_state_dict(model, optimizers)
    compared(torch, ours, theirs.get_optimizer_state_dict(their_model, their_optimizers))
    assert ours["state"] == {} and model[0].weight.grad is not None
    set_optimizer_state_dict(model, optimizers, ours)
    theirs.set_optimizer_state_dict(their_model, their_optimizers, {"state": {}, **ours})


def test_a_step_that_fails_leaves_the_optimizer_as_it_was():
    class Bad(pydist.optim.SGD):
        def step(self, closure=None):
            raise OSError("no step")

    model = layers(pydist)
    bad = Bad(model.parameters(), lr=0.5)
    with pytest.raises(OSError, match="no step"):
        get_optimizer_state_dict(model, bad)
    assert bad.param_groups[0]["lr"] == 0.5 and all(p.grad is None for p in model.parameters())


def test_an_optimizer_whose_step_needs_a_closure():
    """PyTorch raises for a new LBFGS."""
    model = layers(pydist)
    optimizer = pydist.optim.LBFGS(model.parameters(), lr=0.5)

    def loss():
        optimizer.zero_grad()
        value = model(inputs(pydist, 0)).square().mean()
        value.backward()
        return value

    before = copy.deepcopy(model.state_dict())
    get_optimizer_state_dict(model, optimizer)
    assert equal(dict(model.state_dict()), dict(before)) and optimizer.param_groups[0]["lr"] == 0.5
    optimizer.step(loss)
    optimizer.zero_grad()
    for flatten in (False, True):
        saved = get_optimizer_state_dict(
            model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flatten, cpu_offload=True)
        )
        other = pydist.optim.LBFGS(model.parameters())
        set_optimizer_state_dict(model, other, saved)
        assert equal(other.state_dict(), optimizer.state_dict())


def test_a_rate_that_is_a_tensor_stays_the_same_tensor():
    model, rate = layers(pydist), pydist.tensor(0.25)
    optimizer = pydist.optim.Adam(model.parameters(), lr=rate)
    saved = get_optimizer_state_dict(model, optimizer)
    assert saved["param_groups"][0]["lr"] is optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25
    other = pydist.optim.Adam(groups_of(model), lr=0.1)
    set_optimizer_state_dict(model, other, saved)
    assert [float(group["lr"]) for group in other.param_groups] == [0.25, 0.25]
    set_optimizer_state_dict(model, optimizer, get_optimizer_state_dict(model, other))


# Options.


@pytest.mark.parametrize("build", [frozen, tied])
def test_frozen_parameters_are_left_out(build):
    model = build(pydist)
    model[0].weight.requires_grad_(False)
    ignore = StateDictOptions(ignore_frozen_params=True)
    saved = get_model_state_dict(model, options=ignore)
    assert list(saved) == ["0.bias", *(["2.weight"] if build is frozen else []), "2.bias"]
    keys = set_model_state_dict(model, saved, options=StateDictOptions(strict=False))
    assert "0.weight" in keys.missing_keys
    with pytest.raises(RuntimeError, match='Missing key.*"0.weight"'):
        set_model_state_dict(model, saved, options=ignore)
    model.requires_grad_(False)
    assert get_model_state_dict(model, options=ignore) == {}
    assert set_model_state_dict(model, {}, options=ignore) == ([], [])


def test_submodules_warn_and_are_checked():
    model = normed(pydist)
    with pytest.warns(FutureWarning, match="submodules is deprecated"):
        assert list(get_model_state_dict(model, submodules=[model[2]])) == ["2.weight", "2.bias"]
    short = StateDictOptions(keep_submodule_prefixes=False)
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match="'weight' in several submodules"):
        get_model_state_dict(model, submodules=[model[0], model[2]], options=short)
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match=r"got a Linear in submodules \(expected"):
        get_model_state_dict(model, submodules=[pydist.nn.Linear(1, 1)])
    with pytest.warns(FutureWarning):
        state = get_model_state_dict(model, submodules=[model[2]], options=short)
    new = wrapped(pydist)
    with pytest.warns(FutureWarning, match="submodules as keys"):
        set_model_state_dict(new, {new.module[2]: state}, options=StateDictOptions(strict=False))
    assert pydist.equal(new.module[2].weight, model[2].weight)
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match=r"got the key Linear \(expected"):
        set_model_state_dict(new, {pydist.nn.Linear(1, 1): state})


def test_a_model_on_the_meta_device_is_made_from_the_tensors():
    saved = get_model_state_dict(layers(pydist))
    model = pydist.nn.Sequential(
        pydist.nn.Linear(3, 4, device="meta"), pydist.nn.Tanh(), pydist.nn.Linear(4, 2, device="meta")
    )
    set_model_state_dict(model, saved, options=StateDictOptions(full_state_dict=True))
    assert isinstance(model[0].weight, pydist.nn.Parameter) and equal(dict(model.state_dict()), dict(saved))


def test_extra_state_has_its_name():
    class Counter(pydist.nn.Module):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Sequential(pydist.nn.Linear(1, 1), Counter()))
    model.module[1].count = 5
    saved = get_model_state_dict(model)
    assert saved["1._extra_state"] == {"count": 5}
    model.module[1].count = 0
    set_model_state_dict(model, saved)
    assert model.module[1].count == 5


def test_methods_are_replaced():
    model, optimizers = program(wrapped, "two")
    _patch_model_state_dict(model)
    _patch_optimizer_state_dict(
        model, optimizers=optimizers, options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    saved = model.state_dict()
    assert "0.weight" in saved
    model.load_state_dict(saved)
    flat = optimizers[0].state_dict()
    assert "state.0.weight.exp_avg" in flat and "state.2.bias.momentum_buffer" in flat
    optimizers[1].load_state_dict(flat)
    assert equal(optimizers[0].state_dict(), flat)


# Several ranks.


def test_only_rank_0_gets_an_offloaded_full_state():
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)

    def work(rank):
        model, optimizers = program(wrapped)
        saved = get_state_dict(model, optimizers, options=options)
        assert get_model_state_dict(model, options=options).keys() == saved[0].keys()
        keys = set_state_dict(model, optimizers, model_state_dict=saved[0], optim_state_dict=saved[1], options=options)
        assert keys == ([], [])
        return [sorted(each) for each in saved]

    first, second = run_ranks(2, work)
    assert first[0] == sorted(normed(pydist).state_dict()) and first[1] == ["param_groups", "state"]
    assert second == [[], []]


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("build", [normed, wrapped])
def test_rank_0_sends_its_state(build, flatten):
    """The others pass nothing, and have other values before."""
    options = StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True, cpu_offload=True, flatten_optimizer_state_dict=flatten
    )

    def work(rank):
        model, optimizers = program(build, "two", seed=rank)
        if build is wrapped or rank == 0:
            train(pydist, model, optimizers)
        saved = copy.deepcopy(get_state_dict(model, optimizers, options=options))
        assert (saved == ({}, {})) == (rank != 0)
        with pydist.no_grad():
            for p in model.parameters():
                p.fill_(rank)
        set_state_dict(model, optimizers, model_state_dict=saved[0], optim_state_dict=saved[1], options=options)
        got = get_state_dict(model, optimizers)
        assert rank or equal(dict(got[0]), saved[0])
        set_model_state_dict(model, saved[0], options=options)
        set_optimizer_state_dict(model, optimizers, saved[1], options=options)
        assert equal(got, get_state_dict(model, optimizers))
        return {key: value.tolist() for key, value in got[0].items()}, repr(got[1])

    results = run_ranks(3, work)
    assert results[0] == results[1] == results[2]


def test_all_kinds_of_values_are_sent():
    """Complex, empty and transposed tensors, and numbers."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)

    class Values(pydist.nn.Module):
        def __init__(self, rank):
            super().__init__()
            generator = pydist.Generator().manual_seed(rank)
            self.register_buffer("complex", pydist.randn(3, dtype=pydist.complex64, generator=generator))
            self.register_buffer("empty", pydist.zeros(0, 3))
            self.register_buffer("transposed", pydist.randn(2, 3, generator=generator).t())
            self.register_buffer("number", pydist.tensor(7 + rank))
            self.register_buffer("flags", pydist.tensor([rank == 0, True]))

    def work(rank):
        model = Values(rank)
        set_model_state_dict(model, model.state_dict() if rank == 0 else {}, options=options)
        return {key: value.tolist() for key, value in model.state_dict().items()}

    wanted = {key: value.tolist() for key, value in Values(0).state_dict().items()}
    assert run_ranks(2, work) == [wanted] * 2


def test_all_ranks_raise_if_rank_0_passes_no_dictionary():
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)

    def work(rank):
        with pytest.raises(TypeError, match=r"model_state_dict is int on rank 0 \(expected a dictionary\)"):
            set_model_state_dict(layers(pydist), 5, options=options)
        with pytest.raises(RuntimeError, match=r"model state_dict is required.*on rank \d \(expected"):
            set_model_state_dict(layers(pydist), {} if rank == 0 else {"0.weight": 1}, options=options)
        with pytest.raises(RuntimeError, match="Missing key.*2.bias"):
            set_model_state_dict(layers(pydist), {"0.weight": pydist.zeros(4, 3)}, options=options)

    run_ranks(2, work)


# What goes wrong.


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


def test_names_that_are_missing_or_unknown():
    model, (optimizer,) = program(wrapped, "adam")
    of_model, of_optimizer = get_state_dict(model, optimizer)
    loose = StateDictOptions(strict=False)
    with pytest.raises(RuntimeError, match='Missing key.*"module.2.bias"'):
        set_model_state_dict(model, without(of_model, "2.bias"))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        set_model_state_dict(model, {**of_model, "module.2.bias": of_model["2.bias"]})

    missing = {**of_optimizer, "state": without(of_optimizer["state"], "2.bias")}
    before = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    with pytest.raises(RuntimeError, match=r"Missing optimizer state for parameter '2.bias': got .* \(expected"):
        set_optimizer_state_dict(model, optimizer, missing)
    assert equal(get_optimizer_state_dict(model, optimizer), before)
    set_optimizer_state_dict(model, optimizer, missing, options=loose)
    assert "2.bias" not in get_optimizer_state_dict(model, optimizer)["state"]

    group = dict(of_optimizer["param_groups"][0], lr=0.7)
    group["params"] = [name for name in group["params"] if name != "2.bias"]
    missing = {**of_optimizer, "param_groups": [group]}
    with pytest.raises(RuntimeError, match=r"Missing param group for parameter '2.bias'"):
        set_optimizer_state_dict(model, optimizer, missing)
    set_optimizer_state_dict(model, optimizer, missing, options=loose)
    assert optimizer.param_groups[0]["lr"] == 0.7
    more = {**of_optimizer, "state": {**of_optimizer["state"], "other.weight": {}}}
    set_optimizer_state_dict(model, optimizer, more)  # of another part of the model


def test_a_parameter_that_keeps_no_state_needs_none():
    """Plain SGD for one group, momentum for the other. PyTorch raises for the first one."""
    model = layers(pydist)
    params = list(model.parameters())
    make = lambda: pydist.optim.SGD([{"params": params[:2]}, {"params": params[2:], "momentum": 0.9}], lr=0.1)
    saved = get_optimizer_state_dict(model, make())
    assert list(saved["state"]) == ["2.weight", "2.bias"]
    set_optimizer_state_dict(model, make(), saved)


def test_flat_keys_that_are_wrong():
    model, (optimizer,) = program(layers, "adam")
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    loose = StateDictOptions(strict=False)
    for key, said in [("lr", "got the key 'lr'"), ("state.9.weight.step", "got state for '9.weight.step'")]:
        with pytest.raises(RuntimeError, match=re.escape(said) + r".*\(expected"):
            set_optimizer_state_dict(model, optimizer, {**flat, key: 1})
        set_optimizer_state_dict(model, optimizer, {**flat, key: 1}, options=loose)
    rest = {key: value for key, value in flat.items() if not key.startswith("state.0.bias")}
    with pytest.raises(RuntimeError, match="Missing optimizer state for parameter '0.bias'"):
        set_optimizer_state_dict(model, optimizer, rest)


def test_numbers_of_one_optimizer_are_taken_as_they_are():
    model, (optimizer,) = program(layers, "adam")
    train(pydist, model, [optimizer])
    own = optimizer.state_dict()
    _, (other,) = program(layers, "adam")
    other = pydist.optim.Adam(model.parameters())
    set_optimizer_state_dict(model, other, own)
    assert equal(other.state_dict()["state"], own["state"]) and other.param_groups[0]["lr"] == 0.01
    parts = OPTIMIZERS["two"](pydist.optim, model)
    with pytest.raises(ValueError, match=r"numbers of parameters for 2 optimizers \(expected their names\)"):
        set_optimizer_state_dict(model, parts, own)


def test_empty_states():
    model, (optimizer,) = program(layers, "adam")
    for call in (
        lambda: set_model_state_dict(model, {}),
        lambda: set_optimizer_state_dict(model, optimizer, {}),
        lambda: set_state_dict(model, [], model_state_dict={}, optim_state_dict={}),
        lambda: get_model_state_dict(pydist.nn.Tanh()),
        lambda: get_optimizer_state_dict(model, []),
    ):
        with pytest.raises(RuntimeError, match=r"\(expected at least one"):
            call()
    assert set_model_state_dict(model, {}, options=StateDictOptions(strict=False)) == ([], [])
    saved = get_optimizer_state_dict(model, optimizer)
    assert set_state_dict(model, optimizer, model_state_dict={}, optim_state_dict=saved) == ([], [])
    assert get_state_dict(model, [])[1] == {}
    set_state_dict(model, [], model_state_dict=get_model_state_dict(model), optim_state_dict={})


def test_parameters_of_other_models_and_of_two_optimizers():
    model = layers(pydist)
    other = pydist.optim.SGD([*model.parameters(), pydist.ones(2, requires_grad=True)], lr=0.1)
    for call in (get_optimizer_state_dict, lambda *a: set_optimizer_state_dict(*a, {"state": {}, "param_groups": []})):
        with pytest.raises(ValueError, match=r"got parameter 4 of group 0 of SGD, of shape \[2\], .*\(expected"):
            call(model, other)
    both = [pydist.optim.SGD([model[0].weight], lr=0.1), pydist.optim.SGD(model.parameters(), lr=0.1)]
    with pytest.raises(ValueError, match=r"got \['0.weight'\] in two optimizers \(expected"):
        get_optimizer_state_dict(model, both)


def test_wrong_types():
    model, (optimizer,) = program(layers, "adam")
    for call, said in [
        (lambda: get_model_state_dict(5), "get_model_state_dict: model is int (expected a Module)"),
        (lambda: get_optimizer_state_dict(model, 5), "optimizers is int (expected optimizers)"),
        (lambda: get_optimizer_state_dict(model, [model]), "optimizer 0 is Sequential (expected an Optimizer)"),
        (lambda: get_state_dict(model, optimizer, options={}), "options is dict (expected StateDictOptions)"),
        (lambda: set_model_state_dict(model, [1]), "model_state_dict is list (expected a dictionary)"),
        (lambda: set_optimizer_state_dict(model, optimizer, 1), "optim_state_dict is int (expected a dictionary)"),
    ]:
        with pytest.raises(TypeError, match=re.escape(said)):
            call()
    for state, said in [
        ({"state": {}}, "'param_groups' is NoneType (expected a list)"),
        ({"state": [], "param_groups": []}, "'state' is list (expected a dictionary)"),
        ({"state": {}, "param_groups": [{"lr": 1}]}, "group 0 has no list 'params': got {'lr': 1} (expected"),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)):
            set_optimizer_state_dict(model, optimizer, state)
    with pytest.raises(ValueError, match="full_state_dict must be True when broadcast_from_rank0 is True"):
        get_model_state_dict(model, options=StateDictOptions(broadcast_from_rank0=True))


def test_a_new_optimizer_gets_its_state():
    """Public programs call this before they fill a new optimizer's state by hand."""
    model = pydist.nn.Linear(3, 2)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = pydist.optim.AdamW(model.parameters(), lr=0.1)
    _init_optim_state(optimizer)
    assert all(not pydist.any(optimizer.state[p]["exp_avg"]) for p in model.parameters())
    assert all(pydist.equal(p, b) and p.grad is None for p, b in zip(model.parameters(), before))
    assert optimizer.param_groups[0]["lr"] == 0.1
