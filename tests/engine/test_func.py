"""pydist.func next to torch.func."""

import numpy as np
import pytest

import pydist

torch = pytest.importorskip("torch", reason="needs torch")
LIBS = (pydist, torch)


def made(lib, shape, seed):
    return lib.tensor(np.random.default_rng(seed).normal(size=shape))


def flat(tree):
    if isinstance(tree, dict):
        tree = [tree[key] for key in sorted(tree)]
    if isinstance(tree, (list, tuple)):
        return [a for t in tree for a in flat(t)]
    return [tree.detach().numpy()] if hasattr(tree, "detach") else [np.asarray(tree)]


def f(x, y):
    return (x * x * y).sum()


CALLS = {
    "grad": lambda lib, fn, x, y: fn.grad(f)(x, y),
    "grad argnums": lambda lib, fn, x, y: fn.grad(f, argnums=(0, 1))(x, y),
    "grad aux": lambda lib, fn, x, y: fn.grad(lambda x: (f(x, y), x.sum()), has_aux=True)(x),
    "grad and value": lambda lib, fn, x, y: fn.grad_and_value(f, argnums=1)(x, y),
    "grad of dict": lambda lib, fn, x, y: fn.grad(lambda d: f(d["a"], d["b"][0]))({"a": x, "b": (y,)}),
    "grad of grad": lambda lib, fn, x, y: fn.grad(lambda x: (fn.grad(f)(x, y) ** 2).sum())(x),
    "three times": lambda lib, fn, x, y: fn.grad(fn.grad(fn.grad(lambda x: x**4)))(x[0]),
    "unused": lambda lib, fn, x, y: fn.grad(lambda x, y: y.sum(), argnums=(0, 1))(x, y),
    "vjp": lambda lib, fn, x, y: (lambda value, back: (value, back(y)))(*fn.vjp(lambda x: x.exp(), x)),
    "jvp": lambda lib, fn, x, y: fn.jvp(lambda x: x.sin(), (x,), (y,)),
    "jacrev": lambda lib, fn, x, y: fn.jacrev(lambda x, y: x.outer(y), argnums=(0, 1))(x, y),
    "jacfwd": lambda lib, fn, x, y: fn.jacfwd(lambda x: x.cumsum(0) * y)(x),
    "hessian": lambda lib, fn, x, y: fn.hessian(lambda x: (x**3 * y).sum() * x.prod())(x),
    "vmap": lambda lib, fn, x, y: fn.vmap(lambda a, b: (a * b, a.sin()), in_dims=(0, None), out_dims=0)(x.outer(y), y),
    "per-sample": lambda lib, fn, x, y: fn.vmap(fn.grad(f), in_dims=(None, 0))(x, x.outer(y)),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_torch(name):
    ours, theirs = (flat(CALLS[name](lib, lib.func, made(lib, 3, 0), made(lib, 3, 1))) for lib in LIBS)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_gradients_flow_out():
    found = []
    for lib in LIBS:
        x, y = made(lib, 3, 0).requires_grad_(), made(lib, 3, 1)
        g = lib.func.grad(f)(x, y)
        (g * g).sum().backward()
        found.append(x.grad.numpy())
        assert not lib.func.grad(f)(x.detach(), y).requires_grad
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_functional_call():
    model = pydist.nn.Sequential(pydist.nn.Linear(2, 3), pydist.nn.BatchNorm1d(3), pydist.nn.Linear(3, 1, bias=False))
    model[2].weight = model[2].weight
    x, before = pydist.randn(4, 2), {k: v.clone() for k, v in model.state_dict().items()}
    params = {name: (p * 2).detach() for name, p in model.named_parameters()}
    got = pydist.func.functional_call(model, params, (x,))
    twin = pydist.nn.Sequential(pydist.nn.Linear(2, 3), pydist.nn.BatchNorm1d(3), pydist.nn.Linear(3, 1, bias=False))
    twin.load_state_dict(params, strict=False)
    assert pydist.allclose(got, twin(x), atol=1e-6)
    assert all((model.state_dict()[k] == v).all() for k, v in before.items() if "running" not in k and "num" not in k)
    grads = pydist.func.grad(lambda p: pydist.func.functional_call(model, p, x).square().sum())(params)
    assert grads.keys() == params.keys() and grads["0.weight"].shape == (3, 2)
    stacked, buffers = pydist.func.stack_module_state([model, twin])
    assert stacked["0.weight"].shape == (2, 3, 2) and buffers["1.running_mean"].shape == (2, 3)
    tied = pydist.nn.Module()
    tied.a = tied.b = pydist.nn.Parameter(pydist.ones(1))
    tied.forward = lambda: tied.a + tied.b
    assert pydist.func.functional_call(tied, {"a": pydist.full((1,), 3.0)}).item() == 6 and tied.a.item() == 1


WRONG = [
    (lambda: pydist.func.grad(lambda x: x)(pydist.ones(2)), RuntimeError, "no dimensions"),
    (lambda: pydist.func.grad(lambda x: x.sum())(pydist.tensor([1, 2])), RuntimeError, "int64"),
    (
        lambda: pydist.func.functional_call(pydist.nn.Linear(1, 1), {"w": pydist.ones(1)}, pydist.ones(1)),
        RuntimeError,
        "'w'",
    ),
    (lambda: pydist.func.vmap(lambda x, y: x)(pydist.ones(2), pydist.ones(3)), ValueError, "sizes"),
    (lambda: pydist.func.vmap(lambda x: x, in_dims=(0, 0))(pydist.ones(2)), ValueError, "in_dims"),
]


@pytest.mark.parametrize("case", WRONG, ids=range(len(WRONG)))
def test_errors(case):
    call, kind, text = case
    with pytest.raises(kind, match=text):
        call()


def test_arguments_by_name():
    """Of the functions and methods that do not parse their arguments by a signature."""
    calls = [
        lambda lib: lib.arange(start=1, end=7, step=2), lambda lib: lib.arange(end=3), lambda lib: lib.arange(1, end=4), lambda lib: lib.full(size=(2,), fill_value=1.5), lambda lib: lib.full((2,), fill_value=3),
        lambda lib: lib.randint(low=3, high=4, size=(2,)), lambda lib: lib.randint(high=1, size=(2,)), lambda lib: lib.randint(2, high=3, size=(1,)), lambda lib: lib.randperm(n=1), lambda lib: lib.tensor(data=[1.0]), lambda lib: lib.as_tensor(data=[2]),
        lambda lib: lib.ones_like(input=lib.zeros(2)), lambda lib: lib.zeros(2).new_full(size=(1,), fill_value=2), lambda lib: lib.zeros(2).new_tensor(data=[1]), lambda lib: lib.tensor(lib.zeros(2, 3).size(dim=1) + lib.zeros(2, 3).stride(dim=0)),
        lambda lib: lib.zeros(2).copy_(other=lib.ones(2), non_blocking=True), lambda lib: lib.zeros(4).view_as(other=lib.zeros(2, 2)), lambda lib: lib.ones(1).expand_as(other=lib.zeros(3)), lambda lib: lib.zeros(2).type_as(other=lib.zeros(1).double()),
        lambda lib: lib.zeros(2).index_put_(indices=(lib.tensor([0]),), values=lib.tensor(3.0)), lambda lib: lib.zeros(2).requires_grad_(requires_grad=False), lambda lib: lib.where(lib.tensor([[False, True], [True, False]])), lambda lib: lib.scalar_tensor(3), lambda lib: lib.asarray([1.0, 2.0]),
        lambda lib: lib.range(1, 2, 0.5), lambda lib: lib.hann_window(5), lambda lib: lib.hamming_window(4, periodic=False), lambda lib: lib.blackman_window(1), lambda lib: lib.empty_strided((2, 3), (1, 2)).fill_(1),
    ]  # fmt: skip
    for k, call in enumerate(calls):
        ours, theirs = flat(call(pydist)), flat(call(torch))
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, k
            np.testing.assert_allclose(a, b, atol=1e-6, err_msg=str(k))
    assert (
        pydist.empty_strided((2, 3), (1, 2)).stride() == (1, 2)
        and pydist.manual_seed(seed=3) is None
        and pydist.Generator().manual_seed(seed=2).initial_seed() == 2
    )
    for wrong in (
        lambda: pydist.zeros(2).size(0, dim=1),
        lambda: pydist.arange(),
        lambda: pydist.zeros(2).copy_(source=1),
        lambda: pydist.full((2,), size=(3,)),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_files_have_pytorchs_names():
    from importlib import import_module

    for name, has in {
        "nn.modules.pixelshuffle": "PixelShuffle", "nn.modules.fold": "Fold", "nn.modules.utils": "_pair",
        "optim.adamw": "AdamW", "optim.nadam": "NAdam", "nn.utils.clip_grad": "clip_grad_norm_",
        "autograd.variable": "Variable", "autograd.grad_mode": "no_grad", "distributions.utils": "broadcast_all",
        "distributions.transformed_distribution": "TransformedDistribution",
    }.items():  # fmt: skip
        assert hasattr(import_module(f"pydist.{name}"), has), name
    assert (
        pydist.nn.modules.utils._pair(3) == (3, 3)
        and pydist.nn.modules.utils._triple((1, 2, 3)) == (1, 2, 3)
        and pydist.nn.modules.utils._reverse_repeat_tuple((1, 2), 2) == (2, 2, 1, 1)
    )
