"""Names of PyTorch's early years."""

import pytest

import pydist
from pydist.autograd import Variable

KINDS = {
    "FloatTensor": pydist.float32, "DoubleTensor": pydist.float64, "HalfTensor": pydist.float16,
    "BFloat16Tensor": pydist.bfloat16, "LongTensor": pydist.int64, "IntTensor": pydist.int32,
    "ShortTensor": pydist.int16, "CharTensor": pydist.int8, "ByteTensor": pydist.uint8, "BoolTensor": pydist.bool,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(KINDS))
def test_typed_constructors(name):
    kind, dtype = getattr(pydist, name), KINDS[name]
    assert kind(2, 3).shape == (2, 3) and kind(2, 3).dtype is kind().dtype is dtype and kind().shape == (0,)
    assert kind([1, 0, 1]).tolist() == [1, 0, 1] and kind(pydist.Size((2, 1))).shape == (2, 1)
    assert kind(pydist.ones(2)).dtype is dtype
    x = pydist.ones(2).to(dtype)
    assert isinstance(x, kind) and sum(isinstance(x, getattr(pydist, other)) for other in KINDS) == 1
    assert not isinstance(1.0, kind)
    assert x.type() == f"torch.{name}" and pydist.zeros(1).type(f"torch.{name}").dtype is dtype
    assert pydist.zeros(1).type(kind).dtype is pydist.zeros(1).type(dtype).dtype is dtype
    assert x.new(3).dtype is x.new([0, 1]).dtype is dtype and x.new([0, 1]).tolist() == [0, 1]
    with pytest.raises(TypeError, match="2 arguments"):
        kind([1], [2])


def test_types_by_wrong_names():
    for name in ("torch.NoTensor", "float"):
        with pytest.raises(ValueError, match="expected a name such as"):
            pydist.ones(1).type(name)


def test_variables_are_tensors():
    x = pydist.ones(3)
    v = Variable(x, requires_grad=True)
    assert isinstance(v, Variable) and isinstance(x, Variable) and not isinstance(1, Variable)
    assert v.requires_grad and not x.requires_grad and v.data_ptr() == x.data_ptr()
    (v * v).sum().backward()
    assert v.grad.tolist() == [2, 2, 2]
    assert Variable(v).requires_grad
    with pytest.raises(TypeError, match="data must be a Tensor: list"):
        Variable([1])


def test_random_():
    pydist.manual_seed(0)
    x = pydist.zeros(1000).random_(3)
    assert set(x.tolist()) == {0, 1, 2}
    assert set(pydist.zeros(1000).random_(-2, 1).tolist()) == {-2, -1, 0}
    for dtype, most in ((pydist.uint8, 255), (pydist.int8, 127), (pydist.bool, 1), (pydist.float16, 2**11)):
        y = pydist.zeros(2000).to(dtype).random_().double()
        assert 0 <= y.min().item() and most * 0.9 < y.max().item() <= most
    assert pydist.zeros(10, dtype=pydist.int64).random_().max() > 2**40
    with pytest.raises((RuntimeError, ValueError)):
        pydist.zeros(2).random_(3, 3)


def test_no_cuda():
    with pytest.raises(RuntimeError, match="no CUDA device"):
        pydist.ones(2).cuda()
    assert pydist.ones(2).get_device() == -1 and not pydist.ones(2).is_cuda
