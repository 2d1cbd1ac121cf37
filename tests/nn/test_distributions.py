"""pydist.distributions next to torch's: log_prob, entropy, cdf, moments and their gradients; samples by their moments; divergences."""

import numpy as np
import pytest

import pydist
from lib.layer_samples import DISTRIBUTIONS, POS, PROB, REAL, TABLE
from pydist import distributions as D

torch = pytest.importorskip("torch", reason="needs torch")


def make(lib, name):
    args, kwargs, _ = DISTRIBUTIONS[name]

    def tensor(v):
        return lib.tensor(v, dtype=lib.float64).requires_grad_() if isinstance(v, (list, float)) else v

    args, kwargs = [tensor(a) for a in args], {k: tensor(v) for k, v in kwargs.items()}
    return getattr(lib.distributions, name.split(":")[0])(*args, **kwargs), [
        t for t in (*args, *kwargs.values()) if isinstance(t, lib.Tensor)
    ]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_as_torch(name):
    found = []
    for lib in (pydist, torch):
        d, inputs = make(lib, name)
        value = DISTRIBUTIONS[name][2]
        value = lib.tensor(value) if name.startswith("Categorical") else lib.tensor(value, dtype=lib.float64)
        results = {"log_prob": d.log_prob(value)}
        for what in ("entropy", "cdf", "mean", "variance", "stddev", "mode"):
            try:
                x = getattr(d, what)
                results[what] = (x(value) if what == "cdf" else x()) if callable(x) else x
            except (NotImplementedError, AttributeError):
                continue
        for t in inputs:
            t.grad = None
        sum(
            (r * r).nan_to_num(0, 0, 0).sum()
            for k, r in results.items()
            if k == "log_prob" or k == "entropy" and (not found or "entropy" in found[0][0])
        ).backward()
        found.append((results, [t.grad for t in inputs], d.batch_shape, d.event_shape))
    ours, theirs = found
    assert tuple(ours[2]) == tuple(theirs[2]) and tuple(ours[3]) == tuple(theirs[3])
    for what, value in ours[0].items():
        if what in theirs[0]:
            np.testing.assert_allclose(
                value.detach().numpy(), theirs[0][what].detach().numpy(), rtol=1e-7, atol=1e-9, err_msg=what
            )
    for a, b in zip(ours[1], theirs[1]):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in DISTRIBUTIONS
        if n not in ("Cauchy", "HalfCauchy", "LogNormal", "StudentT", "Pareto", "InverseGamma", "RelaxedBernoulli")
        and "Categorical" not in n
    ],
)
def test_samples(name):
    pydist.manual_seed(1)
    d, _ = make(pydist, name)
    x = d.sample((4000,))
    assert tuple(x.shape) == (4000, *d.batch_shape, *d.event_shape) and not x.requires_grad
    spread = d.stddev.detach()
    assert ((x.mean(0) - d.mean.detach()).abs() < 6 * spread / 4000**0.5).all().item(), name
    assert ((x.std(0) - spread).abs() < 0.35 * spread).all().item(), name


def test_classes_are_drawn_in_proportion():
    pydist.manual_seed(2)
    for d in (
        make(pydist, "Categorical")[0],
        D.Categorical(pydist.tensor(TABLE[0])),
        D.Categorical(logits=pydist.tensor(TABLE[0]).log()),
    ):
        x = d.sample((8000,))
        assert x.dtype is pydist.int64 and tuple(x.shape) == (8000, *d.batch_shape)
        for k in range(3):
            assert ((x == k).float().mean(0) - d.probs.detach()[..., k].float()).abs().max().item() < 0.03
    hot = make(pydist, "OneHotCategorical")[0].sample((5,))
    assert tuple(hot.shape) == (5, 2, 3) and (hot.sum(-1) == 1).all().item()


@pytest.mark.parametrize(
    "name",
    ["Normal", "Gamma", "Beta", "Dirichlet", "Laplace", "Uniform", "Exponential", "MultivariateNormal", "StudentT"],
)
def test_gradients_of_samples(name):
    """The gradient of the mean of many samples is that of the mean."""
    pydist.manual_seed(3)
    d, inputs = make(pydist, name)
    assert d.has_rsample
    weights = pydist.tensor(np.arange(1.0, 1 + d.mean.numel())).reshape(d.mean.shape)
    if name == "StudentT":
        d, inputs = D.StudentT(pydist.tensor(9.0, dtype=pydist.float64, requires_grad=True), *inputs[1:]), inputs[1:]
    (d.rsample((20000,)).mean(0) * weights).sum().backward()
    got = [t.grad.clone() for t in inputs]
    for t in inputs:
        t.grad = None
    (d.mean * weights).sum().backward()
    for g, t in zip(got, inputs):
        want = np.zeros(tuple(t.shape)) if t.grad is None else t.grad.numpy()
        assert np.abs(g.numpy() - want).max() < 0.12 * max(1, np.abs(want).max())


PAIRS = (
    "Normal LogNormal Laplace Cauchy HalfNormal Exponential Gamma Beta Dirichlet Bernoulli Geometric Binomial Poisson "
    "Categorical OneHotCategorical Uniform"
).split()


@pytest.mark.parametrize("name", PAIRS)
def test_divergences_as_torch(name):
    found = []
    for lib in (pydist, torch):
        p, inputs = make(lib, name)
        args = [
            [[v * 0.9 + 0.03 for v in row] if isinstance(row, list) else row * 0.9 + 0.03 for row in a]
            if isinstance(a, list)
            else a
            for a in DISTRIBUTIONS[name][0]
        ]
        q = getattr(lib.distributions, name)(
            *[lib.tensor(a, dtype=lib.float64) if isinstance(a, list) else a for a in args]
        )
        value = lib.distributions.kl_divergence(p, q)
        value.nan_to_num(0, 0, 0).sum().backward()
        found.append([value, *(t.grad for t in inputs)])
    for ours, theirs in zip(*found):
        if ours is not None and theirs is not None:
            np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-8, atol=1e-10)


def test_files_as_torch_names_them():
    from pydist.distributions.bernoulli import Bernoulli
    from pydist.distributions.multivariate_normal import MultivariateNormal

    assert Bernoulli is D.Bernoulli and MultivariateNormal is D.MultivariateNormal and set(D.__all__) <= set(dir(D))


def test_combined():
    found = []
    for lib in (pydist, torch):
        dd = lib.distributions
        base = dd.Normal(lib.tensor([REAL, POS]), lib.tensor(POS))
        one, other = dd.Independent(base, 1), dd.Independent(dd.Normal(lib.zeros(2, 3), lib.ones(3)), 1)
        mixture = dd.MixtureSameFamily(dd.Categorical(lib.tensor(PROB)), dd.Normal(lib.tensor(REAL), lib.tensor(POS)))
        full = [
            dd.MultivariateNormal(lib.tensor(m), lib.tensor([[2.0, 0.3], [0.3, 1.0]])) for m in ([0.0, 1.0], [1.0, 1.0])
        ]
        wide = dd.Normal(lib.tensor(0.0), lib.tensor(2.0)).expand((2, 3))
        assert (
            tuple(one.batch_shape) == (2,)
            and tuple(one.event_shape) == (3,)
            and tuple(one.rsample((4,)).shape) == (4, 2, 3)
            and tuple(mixture.sample((4,)).shape) == (4,)
            and tuple(wide.sample().shape) == (2, 3)
        )
        found.append([one.log_prob(lib.ones(2, 3)), one.entropy(), dd.kl_divergence(one, other), mixture.log_prob(lib.tensor([0.1, 2.0])), mixture.mean, mixture.variance, dd.kl_divergence(*full), full[0].covariance_matrix,
                      wide.log_prob(lib.ones(2, 3)), dd.OneHotCategoricalStraightThrough(lib.tensor(PROB)).rsample().sum(), dd.Categorical(lib.tensor(PROB)).enumerate_support()])  # fmt: skip
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


WRONG = [
    (lambda: D.Normal(0.0, -1.0), ValueError, "scale"), (lambda: D.Bernoulli(1.5), ValueError, "probs"), (lambda: D.Bernoulli(), ValueError, "Either"), (lambda: D.Categorical(pydist.tensor([-1.0, 2.0])), ValueError, "probs"),
    (lambda: D.Uniform(1.0, 0.0), ValueError, "low"), (lambda: D.Categorical(pydist.tensor([0.5, 0.5])).log_prob(pydist.tensor(2)), ValueError, "support"), (lambda: D.Normal(0.0, 1.0).log_prob(1.0), ValueError, "Tensor"),
    (lambda: D.Exponential(1.0).log_prob(pydist.tensor(-1.0)), ValueError, "support"), (lambda: D.Normal(float("nan"), 1.0), ValueError, "loc"), (lambda: D.Bernoulli(0.5).rsample(), NotImplementedError, "rsample"),
    (lambda: D.kl_divergence(D.Normal(0.0, 1.0), D.Uniform(0.0, 1.0)), NotImplementedError, "KL"), (lambda: D.MultivariateNormal(pydist.zeros(2)), ValueError, "Exactly one"), (lambda: D.Normal(pydist.zeros(2), pydist.ones(3)), RuntimeError, "broadcast"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=range(len(WRONG)))
def test_errors(case):
    call, kind, text = case
    with pytest.raises(kind, match=text):
        call()
    assert repr(D.Normal(0.0, 1.0)) == "Normal(loc: 0.0, scale: 1.0)"


TRANSFORMS = {
    "ExpTransform": (), "SigmoidTransform": (), "SoftplusTransform": (), "TanhTransform": (), "AffineTransform": (0.5, -2.0), "PowerTransform": (2.0,),
    "SoftmaxTransform": (), "StickBreakingTransform": (), "AbsTransform": (), "ReshapeTransform": ((4,), (2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_as_torch(name):
    found = []
    for lib in (pydist, torch):
        of = lib.distributions.transforms
        x = lib.tensor([[0.3, 1.2, 0.7, 0.1], [1.0, 2.0, 0.5, 0.4]], dtype=lib.float64).requires_grad_()
        f = getattr(of, name)(*TRANSFORMS[name], cache_size=1)
        y = f(x)
        assert f.inv(y) is x and (f == getattr(of, name)(*TRANSFORMS[name]) or name == "ReshapeTransform")
        dims = (f.domain_dim, f.codomain_dim) if lib is pydist else (f.domain.event_dim, f.codomain.event_dim)
        results = [y, f._inverse(y), lib.tensor([*dims, f.bijective])]
        if f.bijective:
            both = of.ComposeTransform([f, of.AffineTransform(1.0, 3.0)])
            results += [
                f.log_abs_det_jacobian(x, y),
                f.inv.log_abs_det_jacobian(y, x),
                both(x),
                both.log_abs_det_jacobian(x, both(x)),
                both.inv(both(x)),
            ]
        results.append(lib.autograd.grad(sum((r * r).sum() for r in results if r.requires_grad), x)[0])
        assert tuple(f.forward_shape(x.shape)) == tuple(y.shape) and tuple(f.inverse_shape(y.shape)) == tuple(x.shape)
        found.append(results)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_transformed_distributions_as_torch():
    found = []
    for lib in (pydist, torch):
        d, t = lib.distributions, lib.distributions.transforms
        loc, scale = (
            lib.tensor([0.1, -0.3], dtype=lib.float64).requires_grad_(),
            lib.tensor([0.5, 2.0], dtype=lib.float64).requires_grad_(),
        )
        squashed = d.TransformedDistribution(
            d.Normal(loc, scale), [t.TanhTransform(), t.AffineTransform(loc=1.0, scale=2.0)]
        )
        shifted = d.TransformedDistribution(
            d.Uniform(lib.zeros(2).double(), lib.ones(2).double()),
            t.AffineTransform(0.0, lib.tensor([[-1.0], [2.0]]).double()),
        )
        whole = d.TransformedDistribution(d.Normal(loc, scale), [t.StickBreakingTransform()])
        value = lib.tensor([0.2, 2.5], dtype=lib.float64)
        results = [
            squashed.log_prob(value),
            squashed.cdf(value),
            squashed.icdf(value / 4),
            shifted.log_prob(lib.tensor([[-0.5], [1.0]]).double()),
            shifted.cdf(lib.tensor([[-0.5], [1.0]]).double()),
            whole.log_prob(lib.tensor([0.2, 0.3, 0.5]).double()),
        ]
        results.append(lib.autograd.grad(results[0].sum() + results[-1].sum(), [loc, scale])[0])
        results.append(
            lib.tensor([*squashed.batch_shape, 9, *shifted.batch_shape, 9, *whole.batch_shape, 9, *whole.event_shape])
        )
        results.append(d.Independent(squashed, 1).log_prob(value))
        sample = squashed.rsample((5,))
        assert (
            sample.requires_grad
            and not squashed.sample().requires_grad
            and tuple(sample.shape) == (5, 2)
            and tuple(whole.sample((4,)).shape) == (4, 3)
        )
        assert ((sample > -1) & (sample < 3)).all() and squashed.has_rsample
        found.append(results)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-8, atol=1e-12)
    with pytest.raises(ValueError, match="Transform"):
        D.TransformedDistribution(D.Normal(0.0, 1.0), [abs])


def test_constraints_as_torch():
    values = [[0.2, 0.8], [1.0, 3.0], [-1.0, 0.5], [0.0, 1.0]]
    names = "real positive nonnegative unit_interval boolean nonnegative_integer simplex real_vector positive_integer".split()
    for name in names:
        ours, theirs = (getattr(lib.distributions.constraints, name) for lib in (pydist, torch))
        assert ours.check(pydist.tensor(values)).tolist() == theirs.check(torch.tensor(values)).tolist(), name
        assert ours.event_dim == theirs.event_dim
    for make in (
        lambda c: c.interval(0.0, 1.0), lambda c: c.greater_than(0.5), lambda c: c.less_than(1.0),
        lambda c: c.independent(c.positive, 1), lambda c: c.half_open_interval(0.0, 1.0),
        lambda c: c.integer_interval(0, 1),
    ):  # fmt: skip
        assert (
            make(D.constraints).check(pydist.tensor(values)).tolist()
            == make(torch.distributions.constraints).check(torch.tensor(values)).tolist()
        )

    class Half(D.Distribution):
        arg_constraints = {"p": D.constraints.less_than(0.5)}

        def __init__(self, p):
            self.p = p
            super().__init__(p.shape)

    assert Half(pydist.tensor([0.2])).p.item() > 0
    with pytest.raises(ValueError, match="less_than"):
        Half(pydist.tensor([0.7]))
