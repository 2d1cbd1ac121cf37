"""16-bit floats beside numbers, 0-d tensors and other floats: the bits are PyTorch's, or those of a product in float32."""

import operator

import pytest

import pydist

torch = pytest.importorskip("torch", reason="needs torch")

HALVES = ["float16", "bfloat16"]
NUMBERS = {"number": 0.73456, "float32": ("float32", 0.73456), "float64": ("float64", 0.73456), "int64": ("int64", 3)}


def draw(lib, dtype, seed):
    """300 numbers from 0.1 to 3.1, the same for both libraries."""
    x = torch.rand(300, generator=torch.Generator().manual_seed(seed)) * 3 + 0.1
    return (x if lib is torch else pydist.tensor(x.tolist())).to(getattr(lib, dtype))


def number(lib, kind):
    given = NUMBERS[kind]
    return lib.tensor(given[1], dtype=getattr(lib, given[0])) if isinstance(given, tuple) else given


def bits(t):
    return str(t.dtype).split(".")[1], t.tolist()


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("dtype", HALVES)
def test_a_number_is_not_rounded_before_a_product(dtype, kind):
    def run(lib):
        x, c = draw(lib, dtype, 0), number(lib, kind)
        made = [x * c, x / c, x // c, x[::3] * c, x.clone().mul_(c), x.clone().div_(c), x[0] * c]
        return [bits(r) for r in made + [0.73456 * x]]

    assert run(pydist) == run(torch)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("dtype", HALVES)
def test_other_functions_round_the_number_first(dtype, kind):
    def run(lib):
        x, c = draw(lib, dtype, 0), number(lib, kind)
        made = [lib.pow(x, c), lib.remainder(x, c), lib.fmod(x, c), x == c, x < c, x >= c]
        return [bits(r) for r in made + [x == x[3].float().item() * 1.0001]]

    assert run(pydist) == run(torch)


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_and_inverses_take_the_exact_number(dtype):
    """As on PyTorch's GPUs; its CPU rounds the number first, or x's inverse, and a 0-d tensor on the left."""
    x, exact = draw(pydist, dtype, 0), draw(pydist, dtype, 0).float()
    for f in (operator.add, operator.sub, operator.mul, operator.truediv):
        for c in (0.73456, pydist.tensor(0.73456)):
            assert bits(f(x, c)) == bits(f(exact, c).to(x.dtype))
            assert bits(f(c, x)) == bits(f(c, exact).to(x.dtype))
    assert (pydist.full((2,), 1000, dtype=x.dtype) * 1e-8).tolist() == pytest.approx([1e-5] * 2, rel=5e-3)


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_of_three_operands(dtype):
    def run(lib):
        x, y = draw(lib, dtype, 0), draw(lib, dtype, 1)
        made = [lib.lerp(x, y, 0.73456), lib.addcmul(x, y, y, value=0.73456), lib.addcdiv(x, y, x, value=0.73456)]
        return [bits(r) for r in [*made, x.clamp(0.73456, 1.23456)]]

    assert run(pydist) == run(torch)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_take_the_exact_number(dtype):
    def run(lib, f):
        x = draw(lib, dtype, 0).requires_grad_()
        f(lib, x).backward(draw(lib, dtype, 1))
        return bits(x.grad)

    for f in (
        lambda lib, x: x * 0.73456,
        lambda lib, x: x / 0.73456,
        lambda lib, x: lib.add(x.detach(), x, alpha=0.73456),
        lambda lib, x: x * lib.tensor(0.73456),
    ):
        assert run(pydist, f) == run(torch, f)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum"])
@pytest.mark.parametrize("dtype, other", [("float16", "float32"), ("bfloat16", "float32"), ("float16", "bfloat16")])
def test_two_floats_of_different_sizes(dtype, other, name):
    """The values and gradients of PyTorch, whichever comes first; strided and broadcast, too."""

    def run(lib, turned, create_graph):
        x, y = draw(lib, dtype, 0).requires_grad_(), draw(lib, other, 1).requires_grad_()
        made = []
        flat, square = (x.view(20, 15), y[:15]), (x.view(20, 15).t(), y.view(15, 20))
        for a, b in ((x, y), (x[::3], y[:100]), (x[:1], y), flat, square):
            z = getattr(lib, name)(b, a) if turned else getattr(lib, name)(a, b)
            made += [z, *lib.autograd.grad((z.float() * 0.7).sum(), (x, y), create_graph=create_graph)]
        return [t.detach() for t in made]

    for turned in (False, True):
        for create_graph in (False, True):
            for want, got in zip(run(torch, turned, create_graph), run(pydist, turned, create_graph), strict=True):
                assert str(got.dtype).split(".")[1] == str(want.dtype).split(".")[1]
                near = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}[want.dtype]
                assert torch.allclose(torch.tensor(got.float().tolist()), want.float(), rtol=near, atol=near)


def test_sums_of_different_floats_are_not_cast_first():
    x, y = draw(pydist, "bfloat16", 0).requires_grad_(), draw(pydist, "float32", 1).requires_grad_()
    for z in (x + y, y * x):
        assert {f.variable for f, _ in z.grad_fn.next_functions} == {x, y}
        z.sum().backward()
    assert bits(x.detach() + y) == bits(x.detach().float() + y.detach())
    assert x.grad.dtype == pydist.bfloat16 and y.grad.dtype == pydist.float32


def test_a_float_of_16_bits_is_added_in_place():
    x, y = draw(pydist, "float32", 0), draw(pydist, "bfloat16", 1)
    assert bits(x.clone().add_(y)) == bits(x + y.float())
    assert bits(y.clone().mul_(x)) == bits((y.float() * x).to(y.dtype))
