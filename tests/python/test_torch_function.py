"""__torch_function__: an argument of a foreign type gets the call that would be a TypeError."""

import pytest

import pydist
from pydist import _C


class Variable:
    """What Keras has: a tensor inside another object."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        assert all(issubclass(kind, Variable) for kind in types)

        def plain(x):
            return [plain(y) for y in x] if isinstance(x, (list, tuple)) else x.value if isinstance(x, cls) else x

        return func(*plain(args), **{name: plain(x) for name, x in (kwargs or {}).items()})


class Refuses:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Fails(Variable):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise KeyError("its own")


def test_as_torch(torch):
    def results(lib):
        x = lib.tensor([1.0, 2.0])
        v = Variable(lib.tensor([3.0, 4.0]))
        yield lib.add(x, v)
        yield lib.add(v, x, alpha=2)
        yield lib.mul(input=v, other=v)
        yield lib.stack([x, v])
        yield lib.cat((v, v))
        yield lib.matmul(x, v)
        yield x.add(v)
        yield lib.where(x > 1, x, v)
        yield lib.nn.functional.relu(v)
        yield lib.nn.functional.linear(x, Variable(lib.ones(1, 2)))
        yield lib.sum(v)
        yield lib.exp(v)

    for ours, theirs in zip(results(pydist), results(torch), strict=True):
        assert ours.shape == tuple(theirs.shape) and ours.reshape(-1).tolist() == pytest.approx(
            theirs.reshape(-1).tolist()
        )


def test_errors():
    x = pydist.ones(2)
    with pytest.raises(TypeError, match="add: other is Refuses"):
        pydist.add(x, Refuses())
    with pytest.raises(KeyError, match="its own"):
        pydist.add(x, Fails(x))
    with pytest.raises(TypeError, match="add: other is str"):
        pydist.add(x, "text")
    with pytest.raises(RuntimeError, match="broadcast"):
        pydist.add(pydist.ones(3), Variable(x))
    y = x.clone()
    assert y.add_(Variable(x)) is y and y.tolist() == [2.0, 2.0]


def test_windows_along_a_dimension(torch):
    for lib in (pydist, torch):
        y = lib.unfold_copy(lib.arange(10.0).reshape(2, 5), dimension=-1, size=3, step=2)
        assert y.is_contiguous() and y.tolist() == [[[0, 1, 2], [2, 3, 4]], [[5, 6, 7], [7, 8, 9]]]


def test_operators_of_other_types_can_be_given():
    """_set_foreign_operands: for arrays and lists beside tensors; NotImplemented and None leave Python's TypeError."""
    np, x = pytest.importorskip("numpy"), pydist.ones(2)
    seen = []

    def compute(op, a, b):
        seen.append((op, type(a).__name__, type(b).__name__))
        return NotImplemented if a is None or b is None else op

    _C._set_foreign_operands(compute)
    try:
        array = np.ones(2)
        assert [x * array, array - x, x @ array, array @ x, x == [1, 1], array < x, x**array] == [
            "mul", "sub", "matmul", "matmul", "eq", "gt", "pow"]  # fmt: skip
        assert seen[0] == ("mul", "Tensor", "ndarray") and seen[1] == ("sub", "ndarray", "Tensor")
        with pytest.raises(TypeError, match="unsupported operand"):
            x + None
        calls = len(seen)
        assert (x + 1).tolist() == [2, 2] and len(seen) == calls
        _C._set_foreign_operands(lambda op, a, b: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            x + array
    finally:
        _C._set_foreign_operands(None)
    with pytest.raises(TypeError, match="unsupported operand"):
        np.ones(2) - x
