"""gradcheck, gradgradcheck and autograd.functional: right gradients pass, wrong ones are shown; torch is the reference."""

import pytest

import pydist
from pydist import autograd
from pydist.autograd import functional, gradcheck, gradgradcheck
from pydist.autograd.gradcheck import GradcheckError


@pytest.fixture(params=["pydist", "torch"])
def lib(request):
    """The library under test, or the reference."""
    return pytest.importorskip(request.param)


def leaf(lib, values, **options):
    return lib.tensor(values, dtype=lib.float64, requires_grad=True, **options)


def exp_with(lib, backward):
    """exp() with a gradient of the test's: backward(g, x)."""

    class Exp(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    return Exp.apply


def wrong(lib, factor):
    return exp_with(lib, lambda g, x: g * x.exp() * factor)


def cut(lib):
    return exp_with(lib, lambda g, x: g * x.detach().exp())


def test_right_gradients(lib):
    check, again = lib.autograd.gradcheck, lib.autograd.gradgradcheck
    x, y = leaf(lib, [[0.3, -1.2, 2.0], [0.7, 0.1, -0.4]]), leaf(lib, [1.5, 0.2, -0.8])
    for f, args in [
        (lambda x: x.exp() * x, x), (lambda x, y: x * y, (x, y)), (lambda x, n, y: (x @ y * n, x.sum(0)), (x, 3, y)), (lambda x: (x.tanh(),), (x,)),
        (lambda x: x[1:, ::2].sigmoid(), x), (lambda x: x.T.softmax(0), x),
    ]:  # fmt: skip
        assert check(f, args) is True and again(f, args) is True
    assert check(lambda x, y: x * 2, (x, y)) and check(lambda x: x.sum(), leaf(lib, 2.0))
    assert again(lambda x: x * x, x, gen_non_contig_grad_outputs=True) and again(
        lambda x: x**3, x, lib.ones(2, 3, dtype=lib.float64)
    )
    assert x.grad is None and x._version == 0


def test_wrong_gradients(lib):
    x = leaf(lib, [0.5, 1.0])
    assert lib.autograd.gradcheck(wrong(lib, 1.0), x)
    with pytest.raises(
        RuntimeError,
        match="Jacobian mismatch for output 0 with respect to input 0,\nnumerical:tensor(.|\n)*\nanalytical:tensor",
    ) as caught:
        lib.autograd.gradcheck(wrong(lib, 1.1), x)
    assert "1.6487" in str(caught.value) and "1.8136" in str(caught.value)
    assert lib.autograd.gradcheck(wrong(lib, 1.1), x, raise_exception=False) is False
    assert lib.autograd.gradcheck(wrong(lib, 1.1), x, rtol=0.2)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):  # right first order, wrong second
        lib.autograd.gradgradcheck(cut(lib), x)
    del caught


def test_a_gradient_that_is_cut_off(lib):
    x = leaf(lib, [0.5, 1.0])
    with pytest.raises(RuntimeError, match="mismatch|requires? grad|not require"):
        lib.autograd.gradcheck(lambda x: x.detach() * 2 + 0 * x, x)


def test_a_gradient_that_changes():
    count = []

    class Drift(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            count.append(1)
            return g * (2 + 1e-8 * len(count))

    x = leaf(pydist, [1.0, 2.0])
    with pytest.raises(GradcheckError, match="not reentrant"):
        gradcheck(Drift.apply, x)
    assert gradcheck(Drift.apply, x, nondet_tol=1e-4)


def test_what_cannot_be_checked():
    x = leaf(pydist, [1.0, 2.0])
    with pytest.raises(ValueError, match="requires grad"):
        gradcheck(lambda x: x, x.detach())
    with pytest.raises(RuntimeError, match="share memory"):
        gradcheck(lambda x: x, x[:1].expand(3))
    with pytest.warns(UserWarning, match="float64"):
        gradcheck(lambda x: x * 2, pydist.ones(2, requires_grad=True), atol=1e-1)
    with pytest.raises(TypeError, match="nonsense"):
        gradcheck(lambda x: x, x, nonsense=1)
    with pytest.raises(NotImplementedError, match="check_forward_ad"):
        gradcheck(lambda x: x, x, check_forward_ad=True)
    assert gradcheck(lambda x: (x > 1, x * 2, "text"), x) and gradgradcheck(lambda x: (x > 1, x * x), x)
    assert gradcheck(lambda x: x * 2, x, check_undefined_grad=False, fast_mode=True, check_forward_ad=False)
    assert gradcheck(lambda x: x * 2, (leaf(pydist, []), x)[1:]) and gradgradcheck(
        lambda x, y: x.sum() * y, (leaf(pydist, []), x)
    )


# functional


def plain(value):
    return tuple(map(plain, value)) if isinstance(value, tuple) else (value.shape, value.tolist())


def same(a, b):
    if (
        isinstance(a, tuple)
        and isinstance(b, tuple)
        and len(a) == len(b)
        and not isinstance(a[0], type(pydist.zeros(1).shape))
    ):
        return all(map(same, a, b))
    return (
        tuple(a[0]) == tuple(b[0]) and a[1] == pytest.approx(b[1])
        if not isinstance(a[1], list)
        else tuple(a[0]) == tuple(b[0]) and flat(a[1]) == pytest.approx(flat(b[1]))
    )


def flat(nested):
    return [v for part in nested for v in flat(part)] if isinstance(nested, list) else [nested]


CASES = {
    "jacobian": lambda m, f, x, y, v: (f.jacobian(lambda x: x.exp(), x), f.jacobian(lambda x, y: (x * y, y.sum()), (x, y)), f.jacobian(lambda x: x.sum() * 0 + 1, x), f.jacobian(lambda x: x.detach(), x)),
    "hessian": lambda m, f, x, y, v: (f.hessian(lambda x: (x**3).sum(), x), f.hessian(lambda x, y: (x * x * y).sum(), (x, y))),
    "vjp": lambda m, f, x, y, v: (f.vjp(lambda x: x.exp(), x, v), f.vjp(lambda x, y: (x @ y).tanh(), (x, y), v[:, 0]), f.vjp(lambda x: x.prod(), x)),
    "jvp": lambda m, f, x, y, v: (f.jvp(lambda x: x.exp(), x, v), f.jvp(lambda x, y: (x @ y, x * y), (x, y), (v, v[0]))),
    "vhp": lambda m, f, x, y, v: (f.vhp(lambda x: (x**3).sum(), x, v), f.vhp(lambda x, y: (x * x * y).sum(), (x, y), (v, v[0]))),
    "hvp": lambda m, f, x, y, v: (f.hvp(lambda x: (x**3).sum(), x, v), f.hvp(lambda x, y: (x * x * y).sum(), (x, y), (v, v[0]))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_functional(name, torch):
    results = []
    for m in (pydist, torch):
        x, y, v = (
            m.tensor(d, dtype=m.float64) for d in ([[0.3, -1.2], [0.7, 0.1]], [1.5, 0.2], [[1.0, 2.0], [-1.0, 0.5]])
        )
        results.append(plain(CASES[name](m, m.autograd.functional, x, y, v)))
    assert same(*results)


def test_functional_with_a_graph(lib):
    f = lib.autograd.functional
    x = leaf(lib, [1.0, 2.0])
    f.jacobian(lambda x: x**3, x, create_graph=True).sum().backward()
    assert x.grad.tolist() == [6, 12]
    x.grad = None
    f.hessian(lambda x: (x**4).sum(), x, create_graph=True).sum().backward()
    assert x.grad.tolist() == [24, 48]
    assert not f.jacobian(lambda x: x**3, x).requires_grad
    for broken in (lambda: f.jacobian(lambda x: x.detach(), x, strict=True), lambda: f.jacobian(lambda x: 5, x), lambda: f.hessian(lambda x: x, x), lambda: f.vjp(lambda x: x, x),
                   lambda: f.vjp(lambda x: x, x, lib.ones(3, dtype=lib.float64)), lambda: f.jacobian(lambda x: x, 5)):  # fmt: skip
        with pytest.raises((RuntimeError, TypeError)):
            broken()
    with pytest.raises(NotImplementedError):
        functional.jacobian(lambda x: x, leaf(pydist, [1.0]), strategy="forward-mode")


# grad and backward


def test_grad_and_backward(lib):
    x, y, z = leaf(lib, [1.0, 2.0]), leaf(lib, [3.0, 4.0]), leaf(lib, 1.0)
    w = lib.ones(2, dtype=lib.float64)
    gx, gz = lib.autograd.grad((x * y).sum(), (x, z), allow_unused=True)
    assert gx.tolist() == [3, 4] and gz is None
    gx, gz = lib.autograd.grad((x * y).sum(), (x, z), materialize_grads=True)
    assert gz.item() == 0
    assert lib.autograd.grad([x * y, x * 2], [x, x, y], [w, w * 10])[0].tolist() == [23, 24]
    u = x * y
    lib.autograd.backward([u, u * 2], [w, w], inputs=[x])
    assert x.grad.tolist() == [9, 12] and y.grad is None
    lib.autograd.backward((x * y).sum(), inputs=y)
    assert y.grad.tolist() == [1, 2]
    for broken, error in [
        (lambda: lib.autograd.grad(u.sum(), z), "unused|not used|not have been used"), (lambda: lib.autograd.grad(u * x, x), "element|scalar"), (lambda: lib.autograd.grad(x.sum(), w), "require"),
        (lambda: lib.autograd.grad(w.sum(), x), "require"), (lambda: lib.autograd.backward(x * 2, w[:1].expand(3)), "shape"), (lambda: lib.autograd.backward((x * 2).sum(), inputs=[]), "empty"),
        (lambda: lib.autograd.grad(x.sum(), x, materialize_grads=True, allow_unused=False), "allow_unused"), (lambda: lib.autograd.backward([x.sum(), y.sum()], [w[0]]), "2|length"),
        (lambda: u.sum().backward(), "freed|second time"),
    ]:  # fmt: skip
        with pytest.raises((RuntimeError, ValueError), match=error):
            broken()


def test_grad_refuses():
    x = leaf(pydist, [1.0, 2.0])
    with pytest.raises(NotImplementedError, match="is_grads_batched"):
        autograd.grad(x * 2, x, pydist.ones(3, 2), is_grads_batched=True)
    with pytest.raises(ValueError, match="only_inputs"):
        autograd.grad(x.sum(), x, only_inputs=False)
    for none in (
        lambda: autograd.grad(x.sum(), [x, None]),
        lambda: autograd.grad([x.sum(), None], x),
        lambda: autograd.backward(x.sum(), inputs=[None]),
        lambda: autograd.grad(x.sum(), 5),
    ):
        with pytest.raises((TypeError, RuntimeError)):
            none()
