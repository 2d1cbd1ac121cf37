"""Parametrizations, weight and spectral normalisation: against torch, and what they refuse."""

import copy

import pytest

import pydist
from pydist import nn, optim
from pydist.nn.utils import parametrizations, parametrize


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).t()

    def right_inverse(self, x):
        return x.triu()


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x

    def right_inverse(self, x):
        return x / 2


def from_torch(value):
    return pydist.from_numpy(value.detach().numpy().copy())


CASES = {
    "weight_norm": lambda utils: (utils.weight_norm, {}),
    "weight_norm, no dim": lambda utils: (utils.weight_norm, {"dim": None}),
    "weight_norm, dim 1": lambda utils: (utils.weight_norm, {"dim": 1}),
    "spectral_norm": lambda utils: (utils.spectral_norm, {}),
    "spectral_norm, 3 steps": lambda utils: (utils.spectral_norm, {"n_power_iterations": 3, "eps": 1e-6}),
    "new weight_norm": lambda utils: (utils.parametrizations.weight_norm, {}),
    "new weight_norm, no dim": lambda utils: (utils.parametrizations.weight_norm, {"dim": None}),
    "new spectral_norm": lambda utils: (utils.parametrizations.spectral_norm, {}),
    "new spectral_norm, dim 1": lambda utils: (utils.parametrizations.spectral_norm, {"dim": 1}),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("layer", ["linear", "conv"])
@pytest.mark.parametrize("case", CASES)
def test_norms_as_in_torch(torch, case, layer):
    """The same parameters and buffers by name, and the same losses over some steps, in training and evaluation."""
    torch.manual_seed(0)

    def make(lib):
        net = lib.nn.Linear(5, 4) if layer == "linear" else lib.nn.Conv2d(3, 4, 2)
        apply, options = CASES[case](lib.nn.utils)
        return apply(net.double(), **options)

    theirs, ours = make(torch), make(pydist)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    ours.load_state_dict({name: from_torch(value) for name, value in theirs.state_dict().items()})
    opts = [lib.optim.SGD(net.parameters(), lr=0.1) for lib, net in ((torch, theirs), (pydist, ours))]
    x = torch.randn(*((6, 5) if layer == "linear" else (2, 3, 4, 4)), dtype=torch.float64)
    for step in range(6):
        if step == 4:
            theirs.eval()
            ours.eval()
        losses = []
        for net, opt, given in ((theirs, opts[0], x), (ours, opts[1], from_torch(x))):
            opt.zero_grad()
            loss = (net(given) ** 2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    for name, value in theirs.state_dict().items():
        assert ours.state_dict()[name].flatten().tolist() == pytest.approx(value.flatten().tolist(), rel=1e-9), name


def test_removing_gives_the_parameter_back():
    x = pydist.rand(2, 3)
    for apply, remove in (
        (nn.utils.weight_norm, nn.utils.remove_weight_norm),
        (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
        (parametrizations.weight_norm, lambda net: parametrize.remove_parametrizations(net, "weight")),
        (parametrizations.spectral_norm, lambda net: parametrize.remove_parametrizations(net, "weight")),
    ):
        net = apply(nn.Linear(3, 2)).eval()
        before = net(x)
        assert remove(net) is net and type(net) is nn.Linear
        assert (net(x) - before).abs().max() < 1e-6 and sorted(net.state_dict()) == ["bias", "weight"]
        assert isinstance(net.weight, nn.Parameter) and "weight" not in vars(net)
        with pytest.raises(ValueError):
            remove(net)


def test_parametrizations():
    net = nn.Linear(3, 3)
    weight = net.weight
    parametrize.register_parametrization(net, "weight", Symmetric())
    assert type(net).__name__ == "ParametrizedLinear" and parametrize.type_before_parametrizations(net) is nn.Linear
    assert parametrize.is_parametrized(net) and parametrize.is_parametrized(net, "weight")
    assert not parametrize.is_parametrized(net, "bias") and net.parametrizations["weight"].original is weight
    assert net.weight.tolist() == net.weight.t().tolist()
    kept = net.weight.detach().clone()
    parametrize.register_parametrization(net, "weight", Doubled())
    assert (net.weight - 2 * kept / 2).abs().max() < 1e-6
    net.weight = pydist.eye(3) * 4
    assert net.weight.tolist() == (pydist.eye(3) * 4).tolist() and net.parametrizations["weight"].original[0, 0] == 2
    other = copy.deepcopy(net)
    optimizer = optim.SGD(other.parameters(), lr=0.5)
    other(pydist.ones(1, 3)).sum().backward()
    optimizer.step()
    assert other.weight[0, 0] != 4 and net.weight[0, 0] == 4
    net.load_state_dict(other.state_dict())
    assert net.weight.tolist() == other.weight.tolist()
    with parametrize.cached():
        assert net.weight is net.weight
    assert net.weight is not net.weight
    parametrize.remove_parametrizations(net, "weight", leave_parametrized=False)
    assert net.weight is weight and type(net) is nn.Linear


def test_parametrizations_of_buffers_and_wrong_ones():
    net = nn.BatchNorm1d(2)
    parametrize.register_parametrization(net, "running_mean", Doubled())
    net.eval()
    assert net.running_mean.tolist() == [0, 0] and "parametrizations.running_mean.original" in net.state_dict()
    parametrize.remove_parametrizations(net, "running_mean")
    assert "running_mean" in dict(net.named_buffers())

    class Wide(nn.Module):
        def forward(self, x):
            return x.double()

    class Odd(nn.Module):
        def forward(self, x):
            return 3

    class Inverse(Symmetric):
        def right_inverse(self, x):
            return 3

    plain = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="may not change dtype or shape"):
        parametrize.register_parametrization(plain, "weight", Wide())
    with pytest.raises(ValueError, match="must return a tensor. Got int"):
        parametrize.register_parametrization(plain, "weight", Odd())
    with pytest.raises(ValueError, match="right_inverse must return"):
        parametrize.register_parametrization(plain, "weight", Inverse())
    with pytest.raises(ValueError, match="does not have a parameter or a buffer named 'nothing'"):
        parametrize.register_parametrization(plain, "nothing", Symmetric())
    with pytest.raises(ValueError, match="has no parameter 'nothing'"):
        nn.utils.weight_norm(plain, "nothing")
    with pytest.raises(ValueError, match="n_power_iterations to be positive"):
        nn.utils.spectral_norm(plain, n_power_iterations=0)
    assert type(plain) is nn.Linear and list(plain.state_dict()) == ["weight", "bias"]
    parametrize.register_parametrization(plain, "weight", Wide(), unsafe=True)
    assert plain.weight.dtype is pydist.float64
    nn.utils.weight_norm(net2 := nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="two weight_norm hooks"):
        nn.utils.weight_norm(net2)
