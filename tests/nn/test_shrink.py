"""compress.shrink: a smaller model gives what the masked one gives; what cannot be followed stays and is named."""

import copy
import io
import json

import pytest

import pydist
from lib.ranks import LONG
from pydist import compress, fx, nn, optim
from pydist.models import BERT, BERTConfig, GPT, GPTConfig
from pydist.nn import functional
from pydist.nn.utils import prune
from pydist.vision import models


def live(model):
    """With norms that have seen something, so that their zeros matter."""
    for part in model.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
            part.bias.data.normal_(0, 0.1)
            part.weight.data.uniform_(0.5, 1.5)
    return model.eval()


def size(model):
    return sum(p.numel() for p in model.parameters())


def shrunk(model, x, amount=0.5, **options):
    """(the plan, the share of parameters that is left), after the results have been compared."""
    before, example = size(model), x
    plan = compress.shrink(model, example, amount, apply=False, **options)
    masked = copy.deepcopy(model)
    plan.mask(masked)
    assert size(model) == before
    plan.apply(model)
    x = x if isinstance(x, tuple) else (x,)
    a, b = model(*x), masked(*x)
    for got, want in zip(a, b, strict=True) if isinstance(a, tuple) else ((a, b),):
        assert got.shape == want.shape and (got - want).abs().max() <= 1e-5 * max(1, want.abs().max().item())
    model.train()
    found = model(*x)
    (found[0] if isinstance(found, tuple) else found).square().mean().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters() if p.grad is not None)
    return plan, size(model) / before


MODELS = [("resnet18", 0.27), ("mobilenet_v2", 0.36), ("squeezenet1_0", 0.37)]
MORE = [("vgg11", 0.27), ("densenet121", 0.3), ("mobilenet_v3_small", 0.37), ("resnet50", 0.28)]


@pytest.mark.parametrize("name, most", MODELS + MORE if LONG else MODELS)
def test_models(name, most):
    model = live(getattr(models, name)())
    plan, share = shrunk(model, pydist.randn(2, 3, 64, 64))
    assert share < most
    assert [why for group, why in plan.left if group.tensors] == ["it is a result"]  # nothing else stays


def test_transformers():
    gpt = GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8)).eval()
    plan, share = shrunk(gpt, pydist.randint(0, 11, (2, 5)), 0.3)
    assert share < 0.85 and gpt.transformer["h"][0].mlp.c_fc.out_features == 22 and len(plan.removed) == 2
    bert = BERT(
        BERTConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40)
    ).eval()
    plan, _ = shrunk(bert, pydist.randint(0, 30, (2, 5)), 0.5)
    assert len(plan.removed) == 2 and bert.layers[1].output.in_features == 20
    assert any("add_norm" in why for _, why in plan.left)


class Odd(nn.Module):
    """Sums, concatenations, a flattening, a norm over features, and things that nobody follows."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3), nn.Conv2d(3, 6, 3)
        self.grouped, self.deep = nn.Conv2d(6, 6, 1, groups=3), nn.Conv2d(8, 8, 1, groups=8)
        self.norm, self.out = nn.BatchNorm1d(14 * 4), nn.Linear(14 * 4, 5)
        self.turned = nn.Linear(4, 4)

    def forward(self, x, scale=None):
        s = functional.relu(self.a(x)) + self.deep(self.b(x)) * 0.5
        c = self.grouped(self.c(x))
        y = pydist.cat([s, c], dim=1).view(x.size(0), -1)
        t = self.turned(s.flatten(2)).mean()
        y = self.out(self.norm(y))
        return y if scale is None else y * t * scale


def test_sums_concatenations_and_what_is_not_followed():
    model = live(Odd())
    plan, _ = shrunk(model, pydist.randn(2, 3, 4, 4))
    text = repr(plan)
    assert "8 channels of a.weight, b.weight, deep.weight, norm.weight: all stay, as flatten (flatten) reads it" in text
    assert "6 channels of c.weight: all stay, as grouped (grouped) reads it" in text
    assert model.out.in_features == 14 * 4


def test_flattened_features_go_with_their_channels():
    model = live(nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.BatchNorm1d(24), nn.Linear(24, 7),
                               nn.Tanh(), nn.Linear(7, 3)))  # fmt: skip
    plan, _ = shrunk(model, pydist.randn(3, 2, 6, 6), 1 / 3)
    assert (model[0].out_channels, model[4].num_features, model[5].in_features, model[5].out_features) == (4, 16, 16, 5)
    assert "Conv2d(2, 4" in repr(model[0]) and len(plan.removed) == 2


def test_shared_tied_and_pruned_layers_stay():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.d(self.c(self.c(functional.relu(self.b(functional.relu(self.a(x)))))))

    model = Tied().eval()
    plan, share = shrunk(model, pydist.randn(2, 6))
    assert share == 1 and not plan.removed
    assert "a.weight is another module's, too" in repr(plan)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    prune.l1_unstructured(net[2], "weight", 0.5)
    plan, _ = shrunk(net, pydist.randn(2, 4))
    assert net[0].out_features == 8 and not plan.removed


@pytest.mark.parametrize("importance", ["l1", "l2", "bn"])
def test_what_matters_least_goes(importance):
    net = live(nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 1)))
    net[0].weight.data = pydist.tensor([3.0, -1.0, 2.0, 0.5]).view(4, 1, 1, 1)
    net[1].weight.data = pydist.tensor([0.1, 5.0, 0.2, 3.0])
    plan, _ = shrunk(net, pydist.randn(1, 1, 3, 3), importance=importance)
    assert [kept for _, kept in plan.removed] == [[1, 3] if importance == "bn" else [0, 2]]


def test_optimizers_go_on():
    """Momenta lose the same places: the next step is that of a model that was small before."""
    pydist.manual_seed(2)
    net, x = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)), pydist.randn(20, 6)
    for make in (lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9), lambda ps: optim.AdamW(ps, lr=0.01)):
        model = copy.deepcopy(net)
        optimizer = make(model.parameters())

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step()
        plan = compress.shrink(model, x, 0.4)
        plan.shrink_optimizer(optimizer)
        moments = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, pydist.Tensor) and v.dim()]
        shapes = {tuple(p.shape) for p in model.parameters()}
        assert model[0].out_features == 6 and moments and {tuple(m.shape) for m in moments} <= shapes
        before = model(x).square().mean().item()
        for _ in range(20):
            step()
        assert model(x).square().mean().item() < before


def test_plans_are_saved_and_repeated():
    net = live(models.resnet18())
    other, x = copy.deepcopy(net), pydist.randn(1, 3, 32, 32)
    plan = compress.shrink(net, x, 0.25)
    again = compress.load_plan(json.loads(json.dumps(plan.state_dict())))
    again.apply(other)
    assert pydist.equal(net(x), other(x)) and again.state_dict() == plan.state_dict()
    buffer = io.BytesIO()
    pydist.save(net.state_dict(), buffer)
    buffer.seek(0)
    fresh = again.apply(models.resnet18()).eval()
    fresh.load_state_dict(pydist.load(buffer))
    assert pydist.equal(fresh(x), net(x))


def test_a_choice_of_groups_and_one_channel_at_least():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = compress.shrink(
        net, pydist.randn(2, 3), 0.99, only=lambda group: any(path == "2" for _, path, *_ in group.tensors)
    )
    assert (net[0].out_features, net[2].out_features) == (1, 1) and len(plan.removed) == 2
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    assert compress.shrink(net, pydist.randn(2, 3), 0.5, only=lambda group: False).removed == []


@pytest.mark.parametrize("options, match", [({"amount": 1.0}, "amount is 1.0"), ({"amount": -0.1}, "amount is -0.1"),
                                            ({"amount": float("nan")}, "amount is nan"), ({"amount": 0.5, "importance": "l3"}, "importance is 'l3'")])  # fmt: skip
def test_wrong_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        compress.shrink(nn.Linear(2, 2), pydist.ones(1, 2), **options)


def test_models_that_cannot_be_traced():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(fx.TraceError, match="control flow"):
        compress.shrink(Branch(), pydist.ones(1, 2), 0.5)
