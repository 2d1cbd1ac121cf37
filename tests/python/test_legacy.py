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
    with pytest.raises(TypeError, match="data is list"):
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


def test_numbers_before_the_tensors_that_they_scale(torch):
    """add(x, alpha, other), addcmul(x, value, t1, t2), addmm(beta, x, alpha, m1, m2): PyTorch's older order."""
    import warnings

    def results(lib):
        x, g, v = lib.ones(2, 2), lib.full((2, 2), 2.0), lib.arange(1.0, 3.0)
        return [
            x.clone().add_(-0.1, g), lib.add(x, 3, g), x.sub(2, g), x.clone().sub_(0.5, g), x.addcmul(0.5, g, g + 1),
            lib.addcdiv(x, 0.5, g, g), x.clone().addcmul_(0.5, g, g), x.clone().addcdiv_(-1, g, g), x.addmm(0.5, g, g),
            lib.addmm(0.5, x, 2, g, g), lib.addmm(0.5, x, g, g), x.clone().addmm_(0.5, 3, g, g), v.addmv(2, g, v),
            x.addr(2, v, v), lib.addbmm(0.5, x, 2, g[None], g[None]), lib.baddbmm(3, x[None], g[None], g[None]),
            x.add(g, alpha=lib.tensor(2.0)), x.add(2, lib.tensor(3.0)),
        ]  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [r.tolist() for r in results(torch)]
    for got, want in zip(results(pydist), expected, strict=True):
        pydist.testing.assert_close(got, pydist.tensor(want))
    for wrong in (
        lambda x: x.add("a", x), lambda x: x.addmm(1, 2, 3, x, x), lambda x: x.addmm(1, x), lambda x: x.add(1, 2, x),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            wrong(pydist.ones(2, 2))


def test_pairs_have_names(torch):
    def results(lib):
        x = lib.as_tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 5.0]])
        pairs = [x.mode(1), x.median(1), x.kthvalue(2), x.cummax(1), x.cummin(0), x.nanmedian(0), x.mode(1, True)]
        return [(pair.values.tolist(), pair.indices.tolist(), len(pair)) for pair in pairs]

    assert results(pydist) == results(torch) and pydist.ones(3).median().item() == 1


def test_ranges_and_tuples_as_indices(torch):
    def results(lib):
        x = lib.arange(12).reshape(3, 4)
        y = x.clone()
        y[range(2)] = 7
        found = x[range(2)], x[:, range(1, 3)], x[range(2), range(2)], x[(0, 2), :], x[[0, 1], (1, 2)], y
        return [t.tolist() for t in found]

    assert results(pydist) == results(torch)
    with pytest.raises(IndexError):
        pydist.ones(3)[range(5)]


def test_dropout2d_of_two_dimensions():
    with pytest.warns(UserWarning, match="dropout2d: input has 2 dims"):
        y = pydist.nn.functional.dropout2d(pydist.ones(40, 40), 0.5)
    assert set(y.flatten().tolist()) == {0.0, 2.0}
    with pytest.raises(ValueError, match="dropout1d"):
        pydist.nn.functional.dropout1d(pydist.ones(2, 2, 2, 2))


def test_layouts():
    import pickle

    x = pydist.ones(2, 2)
    assert x.layout is pydist.strided and x.to_sparse().layout is pydist.sparse_coo
    assert isinstance(x.layout, pydist.layout) and repr(x.layout) == "pydist.strided"
    assert pickle.loads(pickle.dumps(x.layout)) is pydist.strided
    assert x.aminmax().min.item() == 1 and pydist.aminmax(x, dim=0).max.tolist() == [1, 1]


def test_logspace(torch):
    for args in ((0, 2, 5), (-1, 1, 4, 2.0), (1, 1, 1), (0, 1, 0)):
        pydist.testing.assert_close(pydist.logspace(*args), pydist.from_numpy(torch.logspace(*args).numpy()))
    assert pydist.logspace(0, 3, 4, base=2, dtype=pydist.int64).tolist() == [1, 2, 4, 8]


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_with_rounding(torch, mode):
    def results(lib):
        found = []
        for dtype in (lib.float32, lib.int64):
            x, y = (lib.as_tensor(v).to(dtype) for v in ([7.0, -7.0, 6.0, -5.0], [2.0, 2.0, -4.0, -5.0]))
            quotients = [lib.div(x, y, rounding_mode=mode), x.div(2, rounding_mode=mode)]
            quotients += [x.divide(-2, rounding_mode=mode), lib.divide(x, 1.5, rounding_mode=mode)]
            quotients.append(x.float().div_(y, rounding_mode=mode))
            found += [(str(q.dtype).split(".")[1], q.tolist()) for q in quotients]
        return found

    assert results(pydist) == results(torch)


def test_division_with_wrong_rounding():
    with pytest.raises(RuntimeError, match="rounding_mode is 'up'"):
        pydist.ones(1).div(2, rounding_mode="up")
