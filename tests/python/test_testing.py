"""assert_close against torch's verdicts; old names of the default dtype."""

import itertools

import pytest

import pydist
from pydist.testing import assert_close


def verdict(lib, a, b, **options):
    try:
        lib.testing.assert_close(a, b, **options)
        return True
    except AssertionError:
        return False


def test_verdicts_are_those_of_torch(torch):
    inf, nan = float("inf"), float("nan")
    lists = [
        [1.0, 2.0], [1.0, 2.00001], [1.0, 2.1], [inf, 1.0], [-inf, 1.0], [nan, 1.0], [1e-9, 0.0], [0.0, 0.0], [1, 2],
        [1],
    ]  # fmt: skip
    options = ({}, {"rtol": 0.1, "atol": 0.0}, {"equal_nan": True}, {"check_dtype": False})
    dtypes = ("float32", "float64", "float16", "bfloat16")
    count = 0
    for (x, y), extra in itertools.product(itertools.product(lists, lists), options):
        for d in dtypes if not extra else dtypes[:1]:
            ours = verdict(pydist, *(pydist.tensor(v, dtype=getattr(pydist, d)) for v in (x, y)), **extra)
            theirs = verdict(torch, *(torch.tensor(v, dtype=getattr(torch, d)) for v in (x, y)), **extra)
            assert ours == theirs, (x, y, extra, d)
            count += 1
    for x, y in (([1, 2], [1, 3]), ([1], [1]), ([1, 2], [1.0, 2.0])):
        for extra in options:
            ours = verdict(pydist, pydist.tensor(x), pydist.tensor(y), **extra)
            assert ours == verdict(torch, torch.tensor(x), torch.tensor(y), **extra), (x, y, extra)
    assert count == 100 * (4 + 3)


def test_containers_and_texts():
    x = pydist.ones(2)
    assert_close({"a": [x, (1, 2.0)]}, {"a": [x.clone(), (1, 2.0)]})
    with pytest.raises(AssertionError, match=r"item \['a'\]\) \(item \[1\]\): 1 of 2 differ, most by 1 "):
        assert_close({"a": [x, x]}, {"a": [x, pydist.tensor([1.0, 2.0])]})
    for a, b, text in (
        ([x], [x, x], "length of the sequences"),
        ({"a": x}, {"b": x}, "keys of the mappings"),
        (x, pydist.ones(3), "'shape' do not match"),
        (x, x.double(), "'dtype' do not match"),
    ):
        with pytest.raises(AssertionError, match=text):
            assert_close(a, b)
    with pytest.raises(AssertionError, match="^mine$"):
        assert_close(x, x + 1, msg="mine")
    with pytest.raises(AssertionError, match="^so: Tensor-likes"):
        assert_close(x, x + 1, msg=lambda text: f"so: {text}")
    with pytest.raises(ValueError, match="both be specified"):
        assert_close(x, x, rtol=1.0)


def test_default_tensor_type():
    try:
        for given in ("torch.DoubleTensor", pydist.DoubleTensor):
            pydist.set_default_tensor_type(given)
            assert pydist.zeros(1).dtype is pydist.float64
            pydist.set_default_tensor_type("torch.FloatTensor")
    finally:
        pydist.set_default_dtype(pydist.float32)
    with pytest.raises(TypeError, match="a floating tensor type"):
        pydist.set_default_tensor_type("torch.LongTensor")
    with pytest.raises(RuntimeError, match="no CUDA device"):
        pydist.set_default_tensor_type("torch.cuda.FloatTensor")
