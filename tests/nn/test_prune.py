"""nn.utils.prune: masks by hand, and the same masks as torch's."""

import copy
import io
import pickle

import pytest

import pydist
from lib.package import COMPARED, installed
from pydist import nn, optim
from pydist.nn.utils import prune

MODULES = {"linear": lambda: nn.Linear(5, 7), "conv3d": lambda: nn.Conv3d(2, 2, 2)}


def layer(values, name="weight"):
    """A linear layer with these weights."""
    values = pydist.tensor(values)
    made = nn.Linear(values.shape[1], values.shape[0])
    setattr(made, name, nn.Parameter(values))
    return made


ROWS = [[1.0, 2.0, 3.0, 4.0], [-4.0, -3.0, -2.0, -1.0]]


# What a pruned module is.


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("kind", MODULES)
def test_a_pruned_parameter(kind, name):
    module = MODULES[kind]()
    before, values = getattr(module, name), getattr(module, name).detach().clone()
    order = [n for n, _ in module.named_parameters() if n != name]
    assert prune.random_unstructured(module, name, 0.1) is module and prune.is_pruned(module)
    mask, original = getattr(module, name + "_mask"), getattr(module, name + "_orig")
    assert original is before and pydist.equal(original, values)  # an optimizer that has it keeps it
    assert mask.shape == values.shape and int((mask == 0).sum()) == round(0.1 * values.numel())
    assert pydist.equal(getattr(module, name), mask * values)
    assert [n for n, _ in module.named_parameters()] == [*order, name + "_orig"]
    assert [n for n, _ in module.named_buffers()] == [name + "_mask"]
    assert list(module.state_dict()) == [*order, name + "_orig", name + "_mask"]
    assert prune.remove(module, name) is module and not prune.is_pruned(module)
    assert getattr(module, name) is before and pydist.equal(before, mask * values)
    assert not module._forward_pre_hooks and not list(module.buffers())
    with pytest.raises(ValueError, match=f"Parameter '{name}' of module .* has to be pruned before"):
        prune.remove(module, name)


def test_masks_of_ones_change_nothing():
    x, module = pydist.randn(3, 5), nn.Linear(5, 2)
    module(x).square().sum().backward()
    want, grads = module(x), [p.grad.clone() for p in (module.weight, module.bias)]
    module.zero_grad()
    for pruned in (
        prune.identity,
        lambda m, n: prune.l1_unstructured(m, n, 0.0),
        lambda m, n: prune.ln_structured(m, n, 0, 2, 0),
    ):
        other = copy.deepcopy(module)
        pruned(other, "weight")
        assert pydist.equal(other(x), want) and pydist.equal(other(x), want)
        other(x).square().sum().backward()
        assert pydist.equal(other.weight_orig.grad, grads[0]) and pydist.equal(other.bias.grad, grads[1])


def test_masked_elements_get_no_gradient_and_train_no_further():
    module = layer(ROWS)
    mask = pydist.tensor([[1, 0, 1, 0], [1, 1, 0, 1]])
    prune.custom_from_mask(module, "weight", mask)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(pydist.ones(1, 4)).sum().backward()
        assert pydist.equal(module.weight_orig.grad, mask.float())
        optimizer.step()
    want = pydist.tensor(ROWS) - 0.3 * mask
    assert pydist.allclose(module.weight_orig, want)
    module(pydist.ones(1, 4))
    assert pydist.allclose(module.weight, want * mask)


@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9), lambda ps: optim.AdamW(ps, lr=0.1)])
def test_masks_hold_in_fused_optimizers(make):
    """Momentum and decay move the original of a masked element; the weight that computes stays 0."""
    module = nn.Linear(30, 20)
    optimizer = make(module.parameters())
    for step in range(6):
        if step == 2:
            prune.l1_unstructured(module, "weight", 0.5)
            mask = module.weight_mask.clone()
        optimizer.zero_grad()
        module(pydist.randn(4, 30)).square().sum().backward()
        optimizer.step()
    module(pydist.ones(1, 30))
    assert ((module.weight != 0) == (mask != 0)).all() and int((mask == 0).sum()) == 300


def test_an_lstm_is_pruned_and_restored():
    module, x = nn.LSTM(6, 8), pydist.randn(4, 2, 6)
    before = module(x)[0].detach()
    prune.l1_unstructured(module, "weight_ih_l0", 0.5)
    assert sum(isinstance(w, nn.Parameter) for w in module._flat_weights) == 3
    pruned = module(x)[0].detach()
    assert not pydist.equal(pruned, before)
    module(x)[0].sum().backward()
    assert (module.weight_ih_l0_orig.grad[module.weight_ih_l0_mask == 0] == 0).all()
    prune.remove(module, "weight_ih_l0")
    assert sum(isinstance(w, nn.Parameter) for w in module._flat_weights) == 4
    assert "weight_ih_l0" in dict(module.named_parameters()) and "weight_ih_l0_orig" not in dict(
        module.named_parameters()
    )
    assert pydist.equal(module(x)[0], pruned)


# Methods.


def test_the_smallest_and_then_the_next_smallest():
    module = layer(ROWS)
    prune.l1_unstructured(module, "weight", 2)
    assert module.weight.tolist() == [[0, 2, 3, 4], [-4, -3, -2, 0]]
    prune.l1_unstructured(module, "weight", 2)
    assert module.weight.tolist() == [[0, 0, 3, 4], [-4, -3, 0, 0]]
    hook = next(iter(module._forward_pre_hooks.values()))
    assert isinstance(hook, prune.PruningContainer) and len(hook) == 2 and len(module._forward_pre_hooks) == 1
    assert [type(method) for method in hook] == [prune.L1Unstructured] * 2 and hook[
        1
    ]._tensor_name == hook._tensor_name == "weight"
    prune.ln_structured(
        module, "weight", amount=0.5, n=float("inf"), dim=1
    )  # two of three columns: one is empty already
    assert (module.weight != 0).sum(0).tolist() in ([1, 1, 0, 0], [1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 1, 0])


def test_by_importance_scores():
    module, scores = layer(ROWS), pydist.tensor([[4.0, 2.0, 1.0, 3.0], [-3.0, -1.0, -2.0, -4.0]])
    prune.l1_unstructured(module, "weight", 2, importance_scores=scores)
    assert module.weight.tolist() == [[1, 2, 0, 4], [-4, 0, -2, -1]]
    prune.l1_unstructured(module, "weight", 2, importance_scores=scores)
    assert module.weight.tolist() == [[1, 0, 0, 4], [-4, 0, 0, -1]]
    with pytest.raises(AssertionError, match="importance_scores should have the same shape as parameter weight"):
        prune.l1_unstructured(module, "weight", 1, importance_scores=scores[0])
    method, t, before = (
        prune.L1Unstructured(2),
        pydist.arange(1.0, 9.0).view(2, 4),
        pydist.tensor([[1, 1, 1, 0], [1, 1, 0, 1]]),
    )
    assert method.prune(t, before).tolist() == [[0, 0, 3, 0], [5, 6, 0, 8]]
    assert method.prune(t, before, importance_scores=t.flip(0)).tolist() == [[1, 2, 3, 0], [0, 0, 0, 8]]
    assert pydist.equal(method.prune(t, before), method.prune(t, before, importance_scores=t))
    assert method.prune(t).tolist() == [[0, 0, 3, 4], [5, 6, 7, 8]]


def test_channels():
    t = pydist.tensor([[[[1, 2], [1, 2.5]], [[0.5, 1], [0.1, 0.1]], [[-3, -5], [0.1, -1]]]])
    module = nn.Conv2d(3, 1, 2)
    module.weight.data = t
    prune.ln_structured(module, "weight", amount=1, n=2, dim=1)
    assert module.weight_mask.sum((0, 2, 3)).tolist() == [4, 0, 4]
    prune.ln_structured(module, "weight", amount=1, n=1, dim=-1)
    assert module.weight_mask.sum((0, 1, 2)).tolist() == [0, 4]
    mask = prune.RandomStructured(0.6, dim=2).compute_mask(pydist.randn(5, 4, 2), pydist.ones(5, 4, 2))
    assert sorted((mask == 0).sum((0, 1)).tolist()) == [0, 20]


def test_a_container_by_hand():
    container = prune.PruningContainer()
    container._tensor_name = "t"
    t, before = pydist.arange(1.0, 9.0).view(2, 4), pydist.tensor([[1, 1, 1, 0], [1, 1, 0, 1]])
    for method, want in (
        (prune.L1Unstructured(2), [[0, 0, 1, 0], [1, 1, 0, 1]]),
        (prune.LnStructured(1, n=2, dim=0), [[0, 0, 0, 0], [1, 1, 0, 1]]),
        (prune.LnStructured(1, n=2, dim=1), [[0, 1, 1, 0], [0, 1, 0, 1]]),
        (prune.CustomFromMask(pydist.tensor([[0, 1, 1, 0], [0, 0, 1, 1]])), [[0, 1, 1, 0], [0, 0, 0, 1]]),
    ):
        method._tensor_name = "t"
        container.add_pruning_method(method)
        assert container.compute_mask(t, before).tolist() == want
    other = prune.L1Unstructured(2)
    other._tensor_name = "another"
    with pytest.raises(ValueError, match="acting on the parameter named 't'.*Found 'another'"):
        container.add_pruning_method(other)
    for wrong in (10, "text"):
        with pytest.raises(TypeError, match="is not a BasePruningMethod subclass"):
            container.add_pruning_method(wrong)
    container._pruning_methods[-1].PRUNING_TYPE = "none"
    with pytest.raises(ValueError, match="Unrecognized PRUNING_TYPE none"):
        container.compute_mask(t, before)


def test_over_several_parameters():
    m, n = layer(ROWS), layer([[0.0, 0.1, -2.0]])
    prune.global_unstructured(((m, "weight"), (n, "weight")), prune.L1Unstructured, amount=4)
    assert m.weight.tolist() == [[0, 2, 3, 4], [-4, -3, -2, 0]] and n.weight.tolist() == [[0, 0, -2]]
    prune.global_unstructured(iter([(m, "weight"), (n, "weight")]), prune.L1Unstructured, amount=2)
    assert int((m.weight_mask == 0).sum() + (n.weight_mask == 0).sum()) == 6
    m, n = layer(ROWS), layer([[0.0, 0.25, -2.0]])
    scores = {
        (m, "weight"): pydist.tensor([[4.0, 2.0, 1.0, 3.0], [-3.0, -1.0, -2.0, -4.0]]),
        (n, "weight"): pydist.tensor([[0.0, 10.0, -0.2]]),
    }
    prune.global_unstructured([(m, "weight"), (n, "weight")], prune.L1Unstructured, scores, amount=4)
    assert m.weight.tolist() == [[1, 2, 0, 4], [-4, 0, -2, -1]] and n.weight.tolist() == [[0, 0.25, 0]]
    with pytest.raises(TypeError, match="not an Iterable"):
        prune.global_unstructured(5, prune.L1Unstructured, amount=4)
    with pytest.raises(TypeError, match="must be of type dict"):
        prune.global_unstructured([(m, "weight")], prune.L1Unstructured, [1], amount=4)
    with pytest.raises(TypeError, match='Only "unstructured"'):
        prune.global_unstructured([(m, "weight")], prune.RandomStructured, amount=1)


def test_equal_magnitudes_are_counted():
    t = 2 * pydist.randint(-1, 2, (10, 7))
    assert int((prune.L1Unstructured(0.2).compute_mask(t, pydist.ones_like(t)) == 0).sum()) == 14


# Bad input.


@pytest.mark.parametrize("amount, error", [("a", TypeError), (None, TypeError), (True, TypeError), (1.1, ValueError),
                                           (-0.1, ValueError), (-10, ValueError), (float("nan"), ValueError)])  # fmt: skip
def test_wrong_amounts(amount, error):
    for function in (prune.random_unstructured, prune.l1_unstructured):
        module = nn.Linear(3, 3)
        with pytest.raises(error, match="amount"):
            function(module, "weight", amount)
        assert not prune.is_pruned(module) and "weight" in dict(module.named_parameters())


@pytest.mark.parametrize("call, error, match", [
    (lambda m: prune.l1_unstructured(m, "weight", 16), ValueError, "should be smaller than the number of parameters"),
    (lambda m: prune.ln_structured(m, "weight", 4, 2, 0), ValueError, "should be smaller"),
    (lambda m: prune.ln_structured(m, "weight", 1, 2, 2), IndexError, "Invalid index 2 for tensor"),
    (lambda m: prune.ln_structured(m, "weight", 1, 2, -3), IndexError, "Invalid index -3 for tensor"),
    (lambda m: prune.ln_structured(m, "bias", 1, 2, 0), ValueError, "Structured pruning can only be applied to"),
    (lambda m: prune.custom_from_mask(m, "weight", pydist.ones(2)), AssertionError, "must match"),
    (lambda m: prune.l1_unstructured(m, "none", 1), AttributeError, "Linear has no parameter 'none'"),
    (lambda m: prune.l1_unstructured(m, "in_features", 1), AttributeError, "no parameter 'in_features'"),
])  # fmt: skip
def test_errors_leave_the_module_as_it_was(call, error, match):
    module = nn.Linear(5, 3)
    for _ in range(2):
        before = list(module.state_dict()), list(module._forward_pre_hooks.values())
        with pytest.raises(error, match=match):
            call(module)
        assert (list(module.state_dict()), list(module._forward_pre_hooks.values())) == before
        module(pydist.ones(1, 5))
        prune.l1_unstructured(module, "weight", 1)
        prune.l1_unstructured(module, "bias", 1) if "bias" not in match and "Structured" not in match else None


def test_a_method_that_fails_and_names_that_are_taken(monkeypatch):
    module = nn.Linear(5, 3)

    def fails(self, t, default_mask):
        raise RuntimeError("no mask")

    with monkeypatch.context() as patch:
        patch.setattr(prune.L1Unstructured, "compute_mask", fails)
        with pytest.raises(RuntimeError, match="no mask"):
            prune.l1_unstructured(module, "weight", 1)
    assert list(module.state_dict()) == ["weight", "bias"] and not prune.is_pruned(module)
    module.weight_mask = 3
    with pytest.raises(KeyError, match="attribute 'weight_mask' already exists"):
        prune.l1_unstructured(module, "weight", 1)
    assert list(module.state_dict()) == ["weight", "bias"] and not prune.is_pruned(module)


# Files and copies.


def test_copies_and_files():
    """Also after a forward pass, when `weight` is part of a graph."""
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1))
    prune.l1_unstructured(model[0], "weight", 0.9)
    prune.ln_structured(model[0], "weight", 0.2, n=1, dim=0)
    x = pydist.randn(3, 10)
    want = model(x)
    buffer = io.BytesIO()
    pydist.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), pydist.load(buffer, weights_only=False)):
        assert pydist.equal(other(x), want) and prune.is_pruned(other)
        assert list(other.state_dict()) == list(model.state_dict())
        other(x).sum().backward()
        assert other[0].weight_orig.grad is not None and model[0].weight_orig.grad is None
        prune.remove(other[0], "weight")
        assert pydist.equal(other(x), want)
    plain = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1))
    prune.identity(plain[0], "weight")
    plain.load_state_dict(model.state_dict())
    assert pydist.equal(plain(x), want)


# Beside torch.


@pytest.mark.skipif(not installed("torch"), reason="no torch")
@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 2, 2)])
def test_the_masks_of_torch(shape, name):
    torch = pytest.importorskip("torch")
    from torch.nn.utils import prune as theirs

    pydist.manual_seed(2)
    for amount in (0, 1, 2, 0.3, 0.75, 1.0):
        mine = nn.Linear(shape[1], shape[0]) if len(shape) == 2 else nn.Conv2d(shape[1], shape[0], 2)
        other = torch.nn.Linear(shape[1], shape[0]) if len(shape) == 2 else torch.nn.Conv2d(shape[1], shape[0], 2)
        other.load_state_dict({key: torch.from_numpy(value.numpy().copy()) for key, value in mine.state_dict().items()})
        for of, module in ((prune, mine), (theirs, other)):
            of.l1_unstructured(module, name, amount)
            if name == "weight":
                for dim, n in ((0, 2), (1, 1), (-1, float("inf"))):
                    of.ln_structured(module, name, min(amount, 1), n, dim)
        assert (getattr(mine, name + "_mask").numpy() == getattr(other, name + "_mask").numpy()).all()
        assert [n for n, _ in mine.named_parameters()] == [n for n, _ in other.named_parameters()]
        assert (getattr(mine, name).detach().numpy() == getattr(other, name).detach().numpy()).all()
        COMPARED["masks"] += 1
