"""Tensors: making, indexing, views, numbers in and out, text, copies, promotion, errors, who owns whom. NumPy is the
reference for indexing; torch, where installed, for text and promotion."""

import copy
import gc
import itertools
import math
import os
import pickle
import random
import subprocess
import sys
import time
import warnings
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pydist
from pydist import _C

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
NUMPY_DTYPES = [d for d in DTYPES if d != "bfloat16"]


def dt(name):
    return getattr(pydist, name)


def word(dtype):
    return str(dtype).split(".")[-1]


# Making.


def test_tensor_from_data():
    for data, dtype in [(1, "int64"), (1.5, "float32"), (True, "bool"), ([1, 2.5], "float32"), ([True, 2], "int64"), ([], "float32"), ([[], []], "float32"),
                        (((1, 2), [3, 4]), "int64"), (range(3), "int64")]:  # fmt: skip
        t = pydist.tensor(data)
        want = np.array(data)
        assert word(t.dtype) == dtype and tuple(t.shape) == want.shape and np.array_equal(t.numpy(), want)
    t = pydist.tensor([pydist.tensor(1.0), pydist.tensor(2.0)])
    assert t.tolist() == [1, 2]
    source = np.arange(6).reshape(2, 3)
    t = pydist.tensor(source)
    source[0, 0] = 9
    assert t[0, 0].item() == 0 and word(t.dtype) == "int64"
    t = pydist.tensor([1, 2], dtype=pydist.float16, requires_grad=True)
    assert t.requires_grad and t.is_leaf and word(t.dtype) == "float16"
    x = pydist.ones(2, requires_grad=True)
    assert not pydist.tensor(x * 2).requires_grad


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_tensor_from_numpy_scalars(dtype):
    value = np.ones((), dtype)[()]
    assert word(pydist.tensor(value).dtype) == dtype and word(pydist.tensor(np.array(value)).dtype) == dtype
    assert word(pydist.tensor([value, value]).dtype) == dtype
    assert (pydist.ones(2, dtype=pydist.float64) * value).dtype == pydist.float64


def test_filled_and_counted():
    assert pydist.zeros(2, 3).tolist() == [[0.0] * 3] * 2 and pydist.ones((2,), dtype=pydist.int8).tolist() == [1, 1]
    assert (
        pydist.full((2,), 7).dtype == pydist.int64
        and pydist.full([2], 0.5).tolist() == [0.5, 0.5]
        and pydist.full((), True).item() is True
    )
    assert (
        pydist.empty(0, 3).shape == (0, 3)
        and pydist.zeros(()).shape == ()
        and pydist.zeros(size=(2, 1)).shape == (2, 1)
    )
    x = pydist.zeros(2, 3, dtype=pydist.float64).T
    assert (
        pydist.ones_like(x).stride() == (1, 3)
        and pydist.zeros_like(x, dtype=pydist.int32).dtype == pydist.int32
        and pydist.empty_like(x).shape == (3, 2)
    )
    for args in [(5,), (1, 4), (0, 1, 0.25), (5, 0, -2), (0.5,), (3, 3), (1, 2, 0.3)]:
        assert (
            np.allclose(pydist.arange(*args).numpy(), np.arange(*args))
            and pydist.arange(*args).shape == np.arange(*args).shape
        )
    assert pydist.arange(3).dtype == pydist.int64 and pydist.arange(3.0).dtype == pydist.float32
    for broken in (
        lambda: pydist.arange(0, 5, 0),
        lambda: pydist.arange(0, 5, -1),
        lambda: pydist.arange(math.nan),
        lambda: pydist.arange(0, math.inf),
    ):
        with pytest.raises((ValueError, RuntimeError), match="arange"):
            broken()


def test_drawn():
    pydist.manual_seed(3)
    x, y = pydist.rand(1000), pydist.randn(5000, dtype=pydist.float64)
    assert 0 <= x.min().item() and x.max().item() < 1 and abs(y.mean().item()) < 0.06
    assert sorted(pydist.randperm(50).tolist()) == list(range(50)) and pydist.randperm(0).shape == (0,)
    z = pydist.randint(-3, 4, (2000,))
    assert (
        set(z.tolist()) == set(range(-3, 4)) and z.dtype == pydist.int64 and pydist.randint(5, (2, 2)).shape == (2, 2)
    )
    g = pydist.Generator().manual_seed(3)
    h = pydist.Generator().manual_seed(3)
    assert (
        pydist.rand(9, generator=g).tolist()
        == pydist.rand(9, generator=h).tolist()
        != pydist.rand(9, generator=h).tolist()
    )
    pydist.manual_seed(3)
    assert pydist.rand(1000).tolist() == x.tolist()
    for broken in (
        lambda: pydist.randint(3, 3, (2,)),
        lambda: pydist.rand(2, dtype=pydist.int64),
        lambda: pydist.randperm(-1),
        lambda: pydist.rand(2, generator=5),
    ):
        with pytest.raises((ValueError, RuntimeError, TypeError), match="rand"):
            broken()


@pytest.mark.parametrize("make", [pydist.zeros, pydist.empty, pydist.rand])
def test_sizes_that_cannot_be(make):
    for size in [(2**62, 2**62), (2**31, 2**31, 2**31), (2**60,), (2**63 - 1,)]:
        with pytest.raises((MemoryError, RuntimeError, ValueError, OverflowError)):
            make(*size)
    for size in [(-1,), (2, -3)]:
        with pytest.raises((RuntimeError, ValueError), match="-1|-3"):
            make(*size)
    for size in [("a",), (2.5,), (None,)]:
        with pytest.raises(TypeError):
            make(*size)
    with pytest.raises((OverflowError, ValueError, TypeError, RuntimeError)):
        make(2**64)
    with pytest.raises((RuntimeError, ValueError)):
        make(*[1] * 100)
    with pytest.raises(TypeError, match="nonsense"):
        make(2, nonsense=1)


def test_data_that_cannot_be():
    for broken in ([[1], [2, 3]], [[1], 2], [1, [2]], [[1, 2], []]):
        with pytest.raises(ValueError, match="tensor"):
            pydist.tensor(broken)
    for broken in ("ab", [None], object(), [object()], {1: 2}):
        with pytest.raises((TypeError, ValueError)):
            pydist.tensor(broken)
    with pytest.raises((OverflowError, RuntimeError, ValueError)):
        pydist.tensor(2**70)
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="deep"):
        pydist.tensor(loop)
    with pytest.raises(RuntimeError, match="float"):
        pydist.tensor([1], requires_grad=True)


class Shrinking(list):
    def __len__(self):
        return 3


def test_data_that_lies():
    with pytest.raises((IndexError, ValueError, RuntimeError, TypeError)):
        pydist.tensor(Shrinking([1.0]))


# Indexing, against NumPy.

KEYS = [
    0, -1, slice(None), slice(1, None), slice(None, -1), slice(0, 9, 2), slice(3, 1), slice(-2, None), None, ..., (0, 1), (0, -1, 2), (slice(1), 0), (..., 0), (0, ...),
    (None, 0), (0, None), (slice(None), None, 1), (..., None), (None, ..., None), [0, 2], [[0, 1], [1, 0]], [], ([0, 1], [1, 2]), ([0, 1], slice(1)), (slice(1), [0, 1]),
    (slice(None), [0, 1], slice(1, 2)), ([0, 1], slice(None), [0, 1]), ([0, 1], ..., [2, 3]), (..., [0, 3]), (0, [1, 2]), ([1], 0), (None, [0, 1]), ([0, 1], None),
    ([[0], [1]], [0, 2]), np.array([1, 0]), np.array([[1]]), np.array([-1, -2]), np.int64(1), np.array(1), np.array([True, False, True]), (np.array([True, False, True]), 0),
    (slice(None), np.array([True, False, True, True])), (np.array([True, False, True]), [0, 1]), np.ones((3, 4), bool), np.arange(12).reshape(3, 4) % 2 == 0, True, False,
    np.zeros((3, 4, 5), bool), np.ones((3, 4, 5), bool), (0, np.array([True, False, True, False])), (), (np.array([True, True, False]), slice(1, 3)),
    (slice(None), np.zeros((4, 5), bool)), ([0, 1, 2], [0, 1, 2], [0, 1, 2]), np.array([], int), (slice(None, None, 2), slice(None, None, 3), -1),
]  # fmt: skip


def ours(key):
    """The key with arrays as tensors."""
    if isinstance(key, tuple):
        return tuple(map(ours, key))
    return pydist.tensor(key) if isinstance(key, np.ndarray) and key.ndim else key


@pytest.mark.parametrize("layout", ["C", "permuted"])
@pytest.mark.parametrize("i", range(len(KEYS)))
def test_get_and_set(i, layout):
    key = KEYS[i]
    a = np.arange(60.0).reshape(3, 4, 5)
    x = pydist.tensor(a)
    if layout == "permuted":
        x = pydist.tensor(a.transpose(2, 0, 1).copy()).permute(1, 2, 0)
    want = a[key]
    for k in (key, ours(key)):
        got = x[k]
        assert got.shape == want.shape and np.array_equal(got.numpy(), want)
    values = np.arange(want.size, dtype=float).reshape(want.shape) - 100
    for value in (7, -1.5, values, np.float64(3), values[:1] if want.ndim and want.shape[0] else 4.0):
        b, y = a.copy(), x.clone()
        b[key] = value
        version = y._version
        y[ours(key)] = pydist.tensor(value) if isinstance(value, np.ndarray) else value
        assert np.array_equal(y.numpy(), b) and y._version == version + 1
    assert np.array_equal(x.numpy(), a)


entries = st.one_of(
    st.integers(-2, 1), st.slices(4).filter(lambda s: (s.step or 1) > 0), st.none(), st.just(...),
    st.lists(st.integers(-2, 1), min_size=2, max_size=2), st.just(np.array([[0], [1]])),
)  # fmt: skip


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.lists(entries, max_size=4).map(tuple))
def test_any_key(key):
    a = np.arange(24.0).reshape(2, 3, 4)
    x = pydist.tensor(a)
    # Where they differ, PyTorch's way: integers and an empty Ellipsis do not count among the arrays, as they do for NumPy.
    if any(isinstance(k, (list, np.ndarray)) for k in key):
        key = tuple(slice(k, k + 1 or None) if isinstance(k, int) else k for k in key)
        dots = [i for i, k in enumerate(key) if k is ...]
        if len(dots) == 1 and sum(k is not None for k in key) == 1 + a.ndim:
            key = key[: dots[0]] + key[dots[0] + 1 :]
    try:
        want = a[key]
    except IndexError:
        with pytest.raises(IndexError):
            x[key]
        return
    assert x[key].shape == want.shape and np.array_equal(x[key].numpy(), want)
    a[key] = 5
    x[key] = 5
    assert np.array_equal(x.numpy(), a)


def test_a_mask_of_several_dimensions_beside_other_indices():
    """As NumPy reads them, for values that are read and for places that are written."""
    x = np.arange(32.0).reshape(2, 2, 2, 2, 2)
    entries = [
        np.array([[True, False], [True, True]]),
        np.array([True, True]),
        np.array([1, 0, 1]),
        slice(None),
        None,
    ]
    for key in itertools.product(entries, repeat=3):
        own = tuple(pydist.tensor(k) if isinstance(k, np.ndarray) else k for k in key)
        try:
            want = x[key]
        except IndexError:
            with pytest.raises(IndexError):
                pydist.tensor(x)[own]
            continue
        np.testing.assert_array_equal(pydist.tensor(x)[own].numpy(), want)
        a, b = x.copy(), pydist.tensor(x)
        a[key] = b[own] = -1
        np.testing.assert_array_equal(b.numpy(), a)


def test_errors_name_dimension_index_and_size():
    x = pydist.zeros(3, 4, 5)
    for key, want in [
        (3, (3, 0, 3)), ((0, -5), (-5, 1, 4)), ((..., 5), (5, 2, 5)), ((0, None, 0, 9), (9, 2, 5)), (([0, 3],), (3, 0, 3)), ((slice(None), [0, 4]), (4, 1, 4)),
        ((..., [-6]), (-6, 2, 5)), (([0, 0], [1, 7]), (7, 1, 4)), ((slice(1), slice(2), pydist.tensor(8)), (8, 2, 5)),
    ]:  # fmt: skip
        for use in (lambda: x[key], lambda: x.__setitem__(key, 1.0)):
            with pytest.raises(IndexError, match="index {} is out of range for dimension {} of size {}".format(*want)):
                use()


@st.composite
def keys(draw):
    """(shape, key): entries of all kinds; tensors as ("index" or "mask", data)."""
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    key = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        places = st.integers(-size, size - 1)
        key.append(draw(st.one_of(
            places, st.slices(size).filter(lambda s: (s.step or 1) > 0), st.none(), st.booleans(), st.lists(places, min_size=2, max_size=2),
            st.tuples(st.just("index"), st.one_of(places, st.lists(places, min_size=2, max_size=2), st.lists(places, min_size=3, max_size=3).map(lambda v: [[i] for i in v]))),
            st.tuples(st.just("mask"), st.one_of(st.booleans(), st.lists(st.booleans(), min_size=size, max_size=size))),
        )))  # fmt: skip
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), ...)
    return shape, key


@settings(max_examples=400, deadline=None, database=None, derandomize=True)
@given(keys())
def test_any_key_with_gradients(drawn):
    """Reading, writing and both gradients, against torch; integer tensors out of range of what is read are refused by both."""
    torch = pytest.importorskip("torch")
    shape, raw = drawn
    results = []
    for lib in (pydist, torch):
        key = tuple(
            lib.tensor(k[1], dtype=lib.bool if k[0] == "mask" else lib.int64) if isinstance(k, tuple) else k
            for k in raw
        )
        x = lib.arange(math.prod(shape), dtype=lib.float64).reshape(shape).requires_grad_()
        try:
            y = x[key]
            (y * y).sum().backward()
            values = (lib.arange(y.numel(), dtype=lib.float64) - 9).reshape(y.shape).requires_grad_()
            z = x * 2
            z[key] = values
            (z * z).sum().backward()
            counts = lib.zeros(shape, dtype=lib.int32)
            counts[key] = 2.7
            results.append(
                [tuple(y.shape), y.tolist(), z.tolist(), x.grad.tolist(), values.grad.tolist(), counts.tolist()]
            )
        except IndexError:
            results.append(IndexError)
    repeated = any(isinstance(k, list) or (isinstance(k, tuple) and k[0] == "index") for k in raw)
    if repeated and results[0] is not IndexError and results[1] is not IndexError:
        results = [r[:2] for r in results]  # which of several writes to one place stays is not defined
    assert results[0] == results[1]


def test_set_converts_and_refuses():
    x = pydist.zeros(3, dtype=pydist.int64)
    x[0], x[1:] = 2.7, pydist.tensor([True, False])
    assert x.tolist() == [2, 1, 0]
    x[[0, 0, 0]] = 5
    y = pydist.zeros(2, 3)
    y[:, 1] = pydist.arange(2)
    y[0] = [7, 8, 9]
    assert y.tolist() == [[7, 8, 9], [0, 1, 0]]
    for broken in (lambda: y.__setitem__(0, pydist.ones(2)), lambda: y.__setitem__([0, 1], pydist.ones(4)), lambda: y.__setitem__(5, 1), lambda: y.__setitem__(([0, 9],), 1),
                   lambda: y.__setitem__(0, "a"), lambda: y.__setitem__("a", 0), lambda: y.__delitem__(0), lambda: y.__setitem__(pydist.ones(5) > 0, 1)):  # fmt: skip
        with pytest.raises((RuntimeError, IndexError, TypeError, ValueError)):
            broken()
    assert y.tolist() == [[7, 8, 9], [0, 1, 0]], "a refused write must write nothing"


def test_iteration_and_truth():
    x = pydist.arange(6).reshape(3, 2)
    assert [row.tolist() for row in x] == [[0, 1], [2, 3], [4, 5]] and len(x) == 3 and list(pydist.zeros(0)) == []
    assert (
        bool(pydist.tensor(2))
        and not bool(pydist.zeros(1))
        and int(pydist.tensor([3.7])) == 3
        and float(pydist.tensor(2)) == 2.0
    )
    assert [10, 20, 30][pydist.tensor(1)] == 20
    assert 5 in x and 9 not in x
    for broken in (
        lambda: bool(x), lambda: int(x), lambda: float(x), lambda: len(pydist.tensor(1)),
        lambda: iter(pydist.tensor(1)), lambda: x.item(), lambda: range(3)[pydist.tensor(1.0)],
    ):  # fmt: skip
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            broken()
    assert hash(x) == hash(x) and len({x, x, x.clone()}) == 2


# Views.


def test_views_share_memory_and_version():
    x = pydist.zeros(4, 6)
    views = [x[1], x[:, 2:4], x.T, x.view(24), x.reshape(2, 12), x.permute(1, 0), x.transpose(0, 1), x.unsqueeze(0), x.squeeze(), x.flatten(), x.expand(2, 4, 6),
             x.as_strided((2, 2), (1, 6)), x.select(0, 1), x[None], x[...], x.detach()]  # fmt: skip
    for v in views:
        before = x._version
        x.add_(1)
        assert v._version == x._version == before + 1
        assert v.reshape(-1)[0].item() == x[1, 2].item()
        assert v._base is x or v.requires_grad is False
    views[0].fill_(7)
    assert x[1].tolist() == [7] * 6 and x._version == views[3]._version
    data = x.data
    data.add_(1)
    assert x[1, 0].item() == 8 and x._version == views[0]._version != data._version
    assert x[0]._base is x and x[0][1:]._base is x and x.clone()._base is None and x.T.contiguous()._base is None
    assert pydist.zeros(4).view(2, 2)._base.shape == (4,)  # a view keeps its base


def test_geometry():
    x = pydist.zeros(2, 3, 4, dtype=pydist.int16)
    assert (
        x.shape == (2, 3, 4)
        and x.size() == x.shape
        and x.size(-1) == 4
        and x.dim() == x.ndim == 3
        and x.numel() == x.nelement() == 24
    )
    assert x.stride() == (12, 4, 1) and x.stride(1) == 4 and x.element_size() == 2 and x.storage_offset() == 0
    y = x[1, 1:, ::2]
    assert (
        y.stride() == (4, 2)
        and y.storage_offset() == 16
        and y.data_ptr() == x.data_ptr() + 32
        and not y.is_contiguous()
        and y.contiguous().stride() == (2, 1)
    )
    assert x.contiguous() is x and x.is_contiguous() and pydist.zeros(0, 3).is_contiguous() and x.cpu() is x
    assert (
        isinstance(x.shape, tuple)
        and x.shape.numel() == 24
        and repr(x.shape) == "pydist.Size([2, 3, 4])"
        and x.shape[1:] == (3, 4)
    )
    parts = [x.shape[1:], x.shape[::-1], x.shape + (1,), (1,) + x.shape, x.shape * 2, 0 * x.shape]
    assert parts == [(3, 4), (4, 3, 2), (2, 3, 4, 1), (1, 2, 3, 4), (2, 3, 4) * 2, ()]
    assert {type(part) for part in parts} == {pydist.Size} and type(x.shape[-1]) is int
    with pytest.raises(TypeError, match="can only concatenate tuple"):
        x.shape + [1]
    for broken in (lambda: x.size(3), lambda: x.stride(-4), lambda: pydist.tensor(1).size(0)):
        with pytest.raises(IndexError):
            broken()


def test_strided_views_stay_inside():
    x = pydist.arange(12.0)[2:8]
    assert x.as_strided((2,), (3,)).tolist() == [2, 5]
    assert x.as_strided((2,), (3,), 0).tolist() == [0, 3]  # offsets count from the storage's start
    for broken in (
        ((13,), (1,), 0), ((2,), (11,), 2), ((2,), (1,), -1), ((2, 2), (1,)), ((2**62, 4), (1, 1)), ((2,), (2**62,)),
        ((1,), (1,), 12),
    ):  # fmt: skip
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            x.as_strided(*broken)


# NumPy, buffers.


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_both_ways_without_a_copy(dtype):
    a = np.arange(12).reshape(3, 4).astype(dtype)
    for array in (a, a.T, a[:, ::2], a[1:, 1], a[0, 0:0], a.reshape(2, 3, 2)):
        t = pydist.from_numpy(array)
        back = t.numpy()
        assert (
            word(t.dtype) == dtype
            and back.dtype == array.dtype
            and back.shape == array.shape
            and np.array_equal(back, array)
        )
        if array.size:
            assert t.data_ptr() == array.ctypes.data == back.ctypes.data
    t = pydist.from_numpy(a)
    a[0, 0] = 1
    assert t[0, 0].item() == 1
    t[0, 1] = 0
    assert a[0, 1] == 0
    view = pydist.tensor(a).T.numpy()
    view[1, 2] = 1
    assert (
        view.base is not None and memoryview(t).format == memoryview(a).format and bytes(memoryview(t)) == a.tobytes()
    )


def test_memory_outlives_either_side():
    a = np.arange(1000.0)
    t = pydist.from_numpy(a)
    del a
    gc.collect()
    assert t.sum().item() == 499500
    b = pydist.arange(1000.0).numpy()
    gc.collect()
    assert b.sum() == 499500
    count = sys.getrefcount(b)
    t = pydist.from_numpy(b)
    u = t[10:]
    assert sys.getrefcount(b) > count
    del t, u
    assert sys.getrefcount(b) == count
    grown = bytearray(8)
    t = pydist.from_numpy(grown)
    with pytest.raises(BufferError):
        grown.append(1)
    del t
    grown.append(1)


def test_read_only_arrays():
    a = np.arange(4.0)
    a.flags.writeable = False
    t = pydist.from_numpy(a)
    for write in (lambda: t.add_(1), lambda: t[:2].zero_(), lambda: t.__setitem__(0, 1), lambda: pydist.exp(pydist.ones(4, dtype=t.dtype), out=t), lambda: t.copy_(pydist.ones(4)),
                  lambda: t.detach().mul_(2), lambda: t.data.mul_(2), lambda: t.__setitem__([0], 1.0), lambda: t.index_put_([pydist.tensor([0])], pydist.tensor(1.0).double())):  # fmt: skip
        with pytest.raises((RuntimeError, ValueError, BufferError), match="read-only"):
            write()
    assert a.tolist() == [0, 1, 2, 3] and (t + 1).tolist() == [1, 2, 3, 4]
    assert not t.numpy().flags.writeable and pydist.tensor(a).add_(1)[0].item() == 1
    t = pydist.from_numpy(np.frombuffer(b"\x01\x02", "uint8"))
    with pytest.raises((RuntimeError, ValueError, BufferError), match="read-only"):
        t.add_(1)


def test_arrays_that_cannot_be_shared():
    odd = np.frombuffer(bytearray(17), "uint8")[1:].view("float64")
    for array in (np.arange(4)[::-1], np.array(["a"]), np.array([None]), np.zeros(2, np.clongdouble), np.zeros(2, ">f8"), np.zeros(2, "M8[s]"), np.zeros(2, [("a", int)]), odd, np.zeros(2, np.uint32),
                  np.zeros(2, np.longdouble), np.zeros(2, "V8")):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            pydist.from_numpy(array)
    for other in ([1, 2], 5, None, "abc"):
        with pytest.raises(TypeError):
            pydist.from_numpy(other)
    with pytest.raises(RuntimeError, match="detach"):
        pydist.ones(2, requires_grad=True).numpy()
    assert np.asarray(pydist.arange(3)).tolist() == [0, 1, 2] and np.add(pydist.ones(2).numpy(), 1).tolist() == [2, 2]
    assert (
        pydist.as_tensor(np.arange(3)).tolist() == [0, 1, 2]
        and pydist.from_numpy(np.broadcast_to(np.arange(3), (2, 3))).tolist() == [[0, 1, 2]] * 2
    )


# Numbers out.


@pytest.mark.parametrize("dtype", DTYPES)
def test_item_and_tolist(dtype):
    x = pydist.tensor([[0, 1], [1, 0]], dtype=dt(dtype))
    kind = bool if dtype == "bool" else float if "float" in dtype else int
    assert x.tolist() == [[0, 1], [1, 0]] and type(x[0, 0].item()) is kind and x.T[1].tolist() == [1, 0]
    assert (
        pydist.tensor(1, dtype=dt(dtype)).tolist() == 1
        and pydist.zeros(0, 2, dtype=dt(dtype)).tolist() == []
        and pydist.zeros(2, 0).tolist() == [[], []]
    )


def test_extreme_numbers():
    assert pydist.tensor([-(2**63), 2**63 - 1]).tolist() == [-(2**63), 2**63 - 1]
    x = pydist.tensor([math.inf, -math.inf, math.nan, 1e300])
    assert x.tolist()[:2] == [math.inf, -math.inf] and math.isnan(x[2].item()) and x[3].item() == math.inf
    assert (
        pydist.tensor(2**53 + 1, dtype=pydist.float64).item() == 2**53
        and pydist.tensor(65520.0, dtype=pydist.float16).item() == math.inf
    )
    assert (
        pydist.tensor(1 + 2**-8, dtype=pydist.bfloat16).item() == 1.0
        and pydist.tensor(1 + 3 * 2**-8, dtype=pydist.bfloat16).item() == 1 + 2**-6
    )


def test_casts(torch):
    values = [0, 1, -1, 2.5, -2.5, 100, 127.9, 0.1, 65504, 1e-7, -0.0]
    for a, b in itertools.product(DTYPES, DTYPES):
        kept = [
            v for v in values if 0 <= v <= 127 or "u" not in a + b and abs(v) <= 127 or ("float" in a and "float" in b)
        ]
        x, t = (
            pydist.tensor(kept, dtype=pydist.float64).to(dt(a)),
            torch.tensor(kept, dtype=torch.float64).to(getattr(torch, a)),
        )
        assert x.double().tolist() == t.double().tolist(), a
        assert x.to(dt(b)).double().tolist() == t.to(getattr(torch, b)).double().tolist(), (a, b)
    rng = np.random.default_rng(0)
    bits = np.concatenate(
        [
            rng.integers(0, 2**32, 20000, dtype=np.uint64).astype("uint32"),
            np.arange(0, 2**32, 99991, dtype=np.uint64).astype("uint32"),
        ]
    ).view("float32")
    for low in ("float16", "bfloat16"):
        got, want = (
            pydist.from_numpy(bits).to(dt(low)).float().numpy(),
            torch.from_numpy(bits).to(getattr(torch, low)).float().numpy(),
        )
        assert np.array_equal(got, want, equal_nan=True)
        every = np.arange(65536, dtype="uint16")
        if low == "float16":
            assert np.array_equal(
                pydist.from_numpy(every.view("float16")).float().numpy(),
                every.view("float16").astype("float32"),
                equal_nan=True,
            )


def test_to():
    x = pydist.ones(2)
    assert x.to(pydist.float32) is x and x.to("cpu") is x and x.to(x) is x and x.float() is x
    assert (
        x.to(pydist.float64).dtype == pydist.float64
        and x.to("cpu", pydist.int8).dtype == pydist.int8
        and x.to(dtype=pydist.bool, device="cpu").dtype == pydist.bool
    )
    assert x.to(pydist.float32, copy=True) is not x and x.to(pydist.zeros(1, dtype=pydist.int16)).dtype == pydist.int16
    assert x.type_as(pydist.zeros(1).double()).dtype == pydist.float64
    for method, dtype in [
        ("half", "float16"), ("bfloat16", "bfloat16"), ("double", "float64"), ("int", "int32"), ("long", "int64"),
        ("bool", "bool"),
    ]:  # fmt: skip
        assert word(getattr(x, method)().dtype) == dtype
    for broken in (lambda: x.to("cuda"), lambda: x.to("nowhere"), lambda: x.to(3), lambda: x.to(nonsense=1)):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            broken()


# Text.

TEXTS = [
    "m.tensor(1)", "m.tensor(1.5)", "m.tensor(True)", "m.tensor([])", "m.zeros(0, 3)", "m.tensor([1, -20, 300])", "m.tensor([1.0, 2.0])", "m.tensor([1.5, -2.25, 1e-3])",
    "m.tensor([1e-5, 1.0])", "m.tensor([1e10, 1.0])", "m.tensor([float('nan'), float('inf'), -float('inf'), 1.0])", "m.tensor([float('inf')])", "m.tensor([0.1, 12345.678])",
    "m.arange(24).reshape(2, 3, 4)", "m.arange(30.0).reshape(2, 15) / 7", "m.arange(2000)", "m.arange(4000.0).reshape(40, 100)", "m.zeros(11, 11, 11)", "m.ones(2, 2, dtype=m.float64)",
    "m.tensor([1, 2], dtype=m.int8)", "m.tensor([[True, False]])", "m.ones(2, requires_grad=True)", "m.ones(2, 2, dtype=m.float16)", "m.tensor([0.1, 0.2], dtype=m.bfloat16)", "m.arange(60)",
    "m.arange(60.0)", "m.tensor([-0.0, 0.0])", "m.tensor([1e-8])", "m.tensor([100000000.0, 2.0])", "m.zeros(2, 0, 3)", "m.tensor([[1.5], [1000.25]])", "m.arange(1, 1e6, 99991.0)",
    "m.ones(1, 1, 1, 1)", "m.tensor(float('nan'))", "m.ones(3, 3).T[1:]",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_torchs(text, torch):
    assert repr(eval(text, {"m": pydist})) == repr(eval(text, {"m": torch})).replace("torch", "pydist")


def test_text_of_a_result():
    x = pydist.ones(2, requires_grad=True)
    assert (
        repr(x * 2) == "tensor([2., 2.], grad_fn=<MulBackward0>)"
        and str(x) == repr(x)
        and f"{pydist.tensor(1.5):.2f}" == "1.50"
        and f"{pydist.tensor(3)}" == "3"
    )


# Copies.


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tolist() == b.tolist() and a.requires_grad == b.requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_and_pickles(dtype):
    x = pydist.tensor([[0, 1, 1], [1, 0, 1]], dtype=dt(dtype))
    for t in (x, x.T, x[:, 1:], x[0, 0], x[:0]):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert same(pickle.loads(pickle.dumps(t, protocol)), t)
        c = copy.deepcopy(t)
        assert same(c, t) and (not t.numel() or c.data_ptr() != t.data_ptr())


def test_shallow_copies_share_memory():
    x = pydist.arange(3.0)
    y = copy.copy(x)
    assert y is not x and y.data_ptr() == x.data_ptr() and same(x, y)


class Sub(pydist.Tensor):
    pass


def test_copies_keep_what_belongs_to_a_tensor():
    x = pydist.ones(3, requires_grad=True)
    x.note = ["kept"]
    (x * 2).sum().backward()
    twice = copy.deepcopy([x, x])
    assert (
        twice[0] is twice[1]
        and twice[0].note == ["kept"]
        and twice[0].note is not x.note
        and twice[0].grad.tolist() == [2, 2, 2]
        and twice[0].is_leaf
    )
    s = pydist.Tensor._make_subclass(Sub, pydist.ones(2), True)
    for c in (copy.deepcopy(s), pickle.loads(pickle.dumps(s))):
        assert type(c) is Sub and same(c, s)
    assert pickle.loads(pickle.dumps(x)).requires_grad and pickle.loads(pickle.dumps(pydist.float16)) is pydist.float16
    assert (
        pickle.loads(pickle.dumps(x.shape)) == x.shape
        and copy.deepcopy(pydist.int8) is pydist.int8
        and pickle.loads(pickle.dumps(pydist.exp)) is pydist.exp
    )
    with pytest.raises(RuntimeError, match="graph"):
        copy.deepcopy(x * 2)


# Promotion.


def test_promotion_is_torchs(torch):
    def tensors(lib, name):
        dtype = getattr(lib, name)
        return [lib.ones(2, dtype=dtype), lib.ones((), dtype=dtype)]

    wrong = []
    for a, b in itertools.product(DTYPES, DTYPES):
        for (x, t), (y, u) in itertools.product(
            zip(tensors(pydist, a), tensors(torch, a)), zip(tensors(pydist, b), tensors(torch, b))
        ):
            for op in ("add", "mul", "div", "maximum", "pow", "eq"):
                try:
                    want = word(getattr(torch, op)(t, u).dtype)
                except RuntimeError:
                    continue
                if word(getattr(pydist, op)(x, y).dtype) != want:
                    wrong.append((op, a, x.ndim, b, y.ndim, want))
            if word(pydist.where(pydist.tensor(True), x, y).dtype) != word(torch.where(torch.tensor(True), t, u).dtype):
                wrong.append(("where", a, x.ndim, b, y.ndim))
            if x.ndim == y.ndim == 1 and word(pydist.cat([x, y]).dtype) != word(torch.cat([t, u]).dtype):
                wrong.append(("cat", a, b))
        for scalar, (x, t) in itertools.product((True, 2, 2.5), zip(tensors(pydist, a), tensors(torch, a))):
            for op in ("__add__", "__rsub__", "__mul__", "__truediv__", "__rtruediv__", "__pow__", "__gt__"):
                try:
                    want = word(getattr(t, op)(scalar).dtype)
                except RuntimeError:
                    continue
                if word(getattr(x, op)(scalar).dtype) != want:
                    wrong.append((op, a, x.ndim, scalar, want))
    assert not wrong


# Who owns whom.


def test_attributes_live_as_long_as_the_tensor():
    x = pydist.ones(2, requires_grad=True)
    x.note, ident = "mine", id(x)
    y = x * 2
    del x  # only the graph keeps it
    gc.collect()
    again = y.grad_fn.next_functions[0][0].variable
    assert again.note == "mine" and id(again) == ident and again.requires_grad
    del again
    gc.collect()
    assert y.grad_fn.next_functions[0][0].variable.note == "mine"


def test_subclass_identity_in_the_graph():
    s = pydist.Tensor._make_subclass(Sub, pydist.ones(2), True)
    s.extra = s  # a cycle through the wrapper
    y, ident = s * 2, id(s)
    del s
    gc.collect()
    kept = y.grad_fn.next_functions[0][0].variable
    assert type(kept) is Sub and id(kept) == ident and kept.extra is kept
    y.sum().backward()
    assert kept.grad.tolist() == [2, 2]
    del y, kept  # nothing_leaks checks that the cycle is collected
    with pytest.raises(TypeError, match="slots"):
        type("Slotted", (pydist.Tensor,), {"__slots__": ("a",)})


def test_gradients_keep_their_wrapper():
    x = pydist.ones(2, requires_grad=True)
    x.sum().backward()
    x.grad.note = "of the gradient"
    gc.collect()
    assert x.grad.note == "of the gradient" and x.grad is x.grad
    x.grad = None
    assert x.grad is None


def test_bases_keep_their_wrapper():
    x = pydist.zeros(4)
    x.note = 1
    v = x[1:]
    del x
    assert v._base.note == 1 and v._base is v._base


def test_weak_references():
    x = pydist.ones(2, requires_grad=True)
    died = []
    r = weakref.ref(x, lambda _: died.append(1))
    y = x * 2
    assert r() is x
    del x
    assert r() is not None and not died, "the graph still holds the tensor"
    assert r().tolist() == [1, 1]
    del y
    gc.collect()
    assert r() is None and died == [1]
    table = weakref.WeakKeyDictionary()
    x = pydist.ones(1)
    table[x] = 5
    assert table[x] == 5
    del x
    assert not list(table)


def test_finalizers_of_subclasses():
    ended = []

    class Ending(pydist.Tensor):
        def __del__(self):
            ended.append(self.name)

    t = pydist.Tensor._make_subclass(Ending, pydist.ones(1), True)
    t.name = "a"
    y = t * 1
    del t
    assert not ended, "the graph keeps the object: its end is not now"
    del y
    gc.collect()
    assert ended == ["a"]


@pytest.mark.parametrize("find", ["weakref", "gc"])
def test_a_wrapper_found_again_outlives_the_tensors_owner(find):
    """A weak reference and gc.get_objects() know of wrappers that C keeps; then C lets go of the tensor."""
    x, g = pydist.ones(3, requires_grad=True), pydist.full((3,), 7.0)
    g.note, ident, r = "mine", id(g), weakref.ref(g)
    x.grad = g
    del g
    g = r() if find == "weakref" else next(o for o in gc.get_objects() if id(o) == ident)
    x.grad = None
    assert g.tolist() == [7, 7, 7] and g.note == "mine" and id(g) == ident and r() is g
    x.grad = g  # and back again
    del g
    assert x.grad is r() and x.grad.note == "mine"
    x.grad = None
    gc.collect()
    assert r() is None


def test_a_gradient_found_again_outlives_the_next_backward():
    x = pydist.ones(1 << 20, requires_grad=True)
    for _ in range(5):
        (x * 2).sum().backward()
        r = weakref.ref(x.grad)
        found = r()
        (x * 3).sum().backward(create_graph=True)  # a new tensor takes .grad's place
        assert found is not x.grad and found[0].item() == 2 and x.grad[0].item() == 5
        x.grad = None
        assert found[-1].item() == 2


def test_a_finalizer_that_keeps_its_object():
    class Staying(pydist.Tensor):
        def __del__(self):
            ended.append(self.tolist())
            x.grad = self

    x, ended = pydist.ones(2, requires_grad=True), []
    s = pydist.Tensor._make_subclass(Staying, pydist.ones(2))
    ident = id(s)
    del s
    assert ended == [[1, 1]] and id(x.grad) == ident and type(x.grad) is Staying
    x.grad = None
    assert len(ended) == 1


def test_the_metaclass_serves_classes_that_are_no_tensors():
    meta = type(pydist.Tensor)

    class Plain(metaclass=meta):
        pass

    class Slots:
        __slots__ = ("a",)

    for _ in range(3):
        x = Plain()
        x.a = [1]
        del x
    with pytest.raises(TypeError, match="slots"):
        meta.__new__(meta, "Slotted", (pydist.Tensor,), {"__slots__": iter(["a"])})
    with pytest.raises(TypeError):
        type("Mixed", (Slots, pydist.Tensor), {})
    made = meta.__new__(meta, "Made", (pydist.Tensor,), {})  # without its __init__
    x = made(3)
    x.note, y = 1, x.requires_grad_() * 1
    del x
    kept = y.grad_fn.next_functions[0][0].variable
    assert type(kept) is made and kept.note == 1


def test_cycles_are_collected():
    before = _C.live()
    for _ in range(10):
        x = pydist.ones(1000)
        x.self = [x]
        del x
    gc.collect()
    assert _C.live() == before


def test_flipping_ownership_many_times():
    """Random owners come and go: identity and attributes stay."""
    rng = random.Random(0)
    x = pydist.ones(1, requires_grad=True)
    x.key = "x"
    y = x * 1
    holders = [x]
    del x
    for _ in range(2000):
        if holders and rng.random() < 0.5:
            holders.pop()
        else:
            holders.append(y.grad_fn.next_functions[0][0].variable)
            assert holders[-1].key == "x" and all(h is holders[0] for h in holders)
    assert y.grad_fn.next_functions[0][0].variable.key == "x"


# Small, empty, large.


def test_empty_and_scalar_tensors():
    e = pydist.zeros(0, 4)
    assert (
        e.sum().item() == 0
        and e.sum(0).tolist() == [0] * 4
        and e.mean(1).shape == (0,)
        and math.isnan(e.mean().item())
        and e.prod().item() == 1
    )
    assert (e @ pydist.ones(4, 2)).shape == (0, 2) and (pydist.zeros(3, 0) @ pydist.zeros(0, 2)).tolist() == [
        [0, 0]
    ] * 3
    assert (
        pydist.cat([e, pydist.ones(1, 4)]).shape == (1, 4)
        and (e + 1).shape == (0, 4)
        and e.T.contiguous().shape == (4, 0)
        and e.any().item() is False
        and e.all().item() is True
    )
    layer = pydist.nn.Linear(4, 3)
    out = layer(pydist.zeros(0, 4, requires_grad=True))
    out.sum().backward()
    assert out.shape == (0, 3) and layer.weight.grad.tolist() == [[0] * 4] * 3 and layer.bias.grad.tolist() == [0] * 3
    s = pydist.tensor(3.0, requires_grad=True)
    (s * s + s.exp().log() + s[None].sum() + s.reshape(1, 1).max()).backward()
    assert s.grad.item() == pytest.approx(9) and s.shape == () and s.stride() == () and s.T.shape == ()


@pytest.mark.skipif("FULL_LONG" not in os.environ, reason="takes long: .ci/full runs it")
def test_two_billion_elements():
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 8 << 30:
        pytest.skip("needs 8 GiB of free memory")
    n = 2**31 + 3
    x = pydist.empty(n, dtype=pydist.int8).fill_(1)
    x[-1], x[2**31] = 7, 3
    assert x.all().item() and x[-3:].tolist() == [3, 1, 7] and x.argmax().item() == n - 1 and x.max().item() == 7
    assert (
        x.shape == (n,) and x[2**31 - 2 :: 2].tolist() == [1, 3, 7] and x[pydist.tensor([n - 1, -3])].tolist() == [7, 3]
    )
    x[:-1].add_(1)
    assert x[:2].tolist() == [2, 2] and x[-3:].tolist() == [4, 2, 7]


# Errors of the type itself.


def test_wrong_calls():
    x = pydist.ones(2)
    for broken in (lambda: x.to_nowhere, lambda: x.add(), lambda: x.add("a"), lambda: x.add(1, nonsense=2), lambda: x.backward("a"), lambda: x.register_hook(3), lambda: x.view("a"),
                   lambda: pydist.Tensor(1, a=2), lambda: pydist.add(x=x), lambda: x.add(None), lambda: x.requires_grad_("a", 2), lambda: pydist.Tensor._make_subclass(int, x)):  # fmt: skip
        with pytest.raises((TypeError, AttributeError, RuntimeError)):
            broken()
    for broken, kind in [(lambda: setattr(x, "shape", (1,)), AttributeError), (lambda: setattr(x, "dtype", None), AttributeError), (lambda: setattr(x, "grad", 1), TypeError),
                         (lambda: setattr(x, "grad", pydist.ones(3)), RuntimeError), (lambda: setattr(x, "data", 3), TypeError), (lambda: delattr(x, "data"), AttributeError),
                         (lambda: setattr(pydist.tensor([1]), "requires_grad", True), RuntimeError)]:  # fmt: skip
        with pytest.raises(kind):
            broken()
    assert (
        issubclass(pydist.ShapeError, (RuntimeError))
        and issubclass(pydist.ShapeError, ValueError)
        and issubclass(pydist.DTypeError, TypeError)
    )
    assert (
        issubclass(pydist.OutOfMemoryError, MemoryError)
        and issubclass(pydist.OutOfMemoryError, RuntimeError)
        and issubclass(pydist.DimError, IndexError)
    )


def test_data_can_be_replaced():
    x = pydist.ones(2, requires_grad=True)
    x.data = pydist.zeros(3)
    assert x.shape == (3,) and x.requires_grad and x.tolist() == [0, 0, 0]
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError):
        x.data = pydist.zeros(3).double()


# Memory that waits for the next tensor.


def run_with(cache, code):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]  # 3.12 warns of forks beside threads
    env = {**os.environ, "PYDIST_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_freed_memory_is_used_again():
    _C.trim()
    x = pydist.ones(1000)
    place = x.data_ptr()
    assert place % 64 == 0 and _C.cached()["memory"] == 0
    del x
    assert 4000 <= _C.cached()["memory"] <= 5000
    x = pydist.zeros(990, dtype=pydist.int32)  # about as large
    assert x.data_ptr() == place and _C.cached()["memory"] == 0 and x.tolist() == [0] * 990
    del x
    _C.trim()
    assert _C.cached()["memory"] == 0
    # around the bounds of the classes
    for n in [0, 1, 15, 16, 63, 64, 65, 80, 81, 1000, 4095, 4096, 4097, 5120, 5121, 100_003]:
        x = pydist.full((n,), 7, dtype=pydist.uint8)
        y = pydist.full((n,), 9, dtype=pydist.uint8)
        del x
        x = pydist.full((n,), 5, dtype=pydist.uint8)
        assert (x == 5).all() and (y == 9).all() and x.data_ptr() % 64 == 0


def test_the_cache_is_bounded():
    code = "import pydist; from pydist import _C\nfor k in range(1, 40): x = [pydist.empty(k * 9000) for _ in range(5)]; x.clear(); assert _C.cached()['memory'] <= 1 << 20\nprint(_C.cached()['memory'])"
    assert 0 < int(run_with(1, code)[0]) <= 1 << 20 and run_with(0, code) == ["0"]


def test_the_cache_after_a_fork():
    """A child that is forked while other threads allocate finds the cache unlocked."""
    code = (
        "import pydist, threading, os\n"
        "stop = False\n"
        "def work():\n    while not stop: pydist.ones(100) + 1\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]; [t.start() for t in threads]\n"
        "for _ in range(50):\n"
        "    pid = os.fork()\n"
        "    if not pid: os._exit(0 if (pydist.ones(1000) + 1).sum().item() == 2000 else 1)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "stop = True; [t.join() for t in threads]\nprint('done')"
    )
    assert run_with(1024, code) == ["done"]


# The same on torch, where it is installed.


@pytest.fixture(params=["pydist", "torch"])
def lib(request):
    """The library under test, or the reference: a test that passes with both says the same of both."""
    return pytest.importorskip(request.param)


def test_new_from_a_tensor(lib):
    x = lib.ones(2, dtype=lib.float16)
    assert (
        x.new_zeros(2, 3).dtype == lib.float16
        and x.new_zeros((2, 3)).tolist() == [[0.0] * 3] * 2
        and x.new_ones(1, dtype=lib.int64).tolist() == [1]
    )
    assert (
        x.new_full((2,), 7).tolist() == [7.0, 7.0]
        and x.new_full((2,), 7).dtype == lib.float16
        and x.new_empty(0, 3).shape == (0, 3)
    )
    t = x.new_tensor([1, 2])
    assert t.tolist() == [1.0, 2.0] and t.dtype == lib.float16 and x.new_tensor([1.5], requires_grad=True).requires_grad
    for f in (
        lib.full_like(x, 3),
        lib.rand_like(x),
        lib.randn_like(x, dtype=lib.float64),
        lib.randint_like(x, 5),
        lib.randint_like(x, 3, 5),
    ):
        assert f.shape == x.shape and f.dtype in (lib.float16, lib.float64)
    assert lib.full_like(x, 3).tolist() == [3, 3] and set(lib.randint_like(lib.zeros(50), 3, 5).tolist()) <= {3.0, 4.0}


def test_counted(lib):
    for args in [(0, 1, 5), (3, -7, 11), (0, 10, 1), (0, 1, 0), (2.5, 2.5, 3), (-1e3, 1e3, 1001)]:
        got = lib.linspace(*args)
        assert got.dtype == lib.float32 and np.allclose(
            got.numpy(), np.linspace(*args, dtype=np.float32), rtol=1e-6, atol=1e-6
        )
        if args[2] > 1:
            assert got[0].item() == args[0] and got[-1].item() == args[1]
    assert lib.linspace(0, 1, 3, dtype=lib.float64).tolist() == [0, 0.5, 1]
    assert (
        lib.eye(2).tolist() == [[1, 0], [0, 1]]
        and lib.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
        and lib.eye(3, 1, dtype=lib.int64).tolist() == [[1], [0], [0]]
    )
    assert lib.eye(0).shape == (0, 0) and lib.eye(2, requires_grad=True).requires_grad
    for broken in (lambda: lib.linspace(0, 1, -1), lambda: lib.eye(-1)):
        with pytest.raises(RuntimeError):
            broken()


def test_questions(lib):
    x = lib.zeros(2, 3, 4, 5)
    assert (
        x.nbytes == 480
        and x.itemsize == 4
        and x.ndimension() == 4
        and lib.numel(x) == 120
        and not x.is_complex()
        and x.is_signed()
        and not lib.zeros(1, dtype=lib.uint8).is_signed()
    )
    assert (
        x.is_cpu
        and not x.is_cuda
        and not x.is_sparse
        and not x.is_quantized
        and x.get_device() == -1
        and x[0]._is_view()
        and not x._is_view()
    )
    assert (
        x.mT.shape == (2, 3, 5, 4)
        and x.view_as(lib.zeros(6, 20)).shape == (6, 20)
        and x.mT.reshape_as(x).shape == x.shape
        and x.is_same_size(x * 1)
        and not x.is_same_size(x[0])
    )
    assert lib.tensor(2.0).is_nonzero() and not lib.tensor([0]).is_nonzero() and not lib.is_inference(x)
    assert [getattr(lib.tensor([1.9]), f)().dtype for f in ("short", "char", "byte", "int", "long", "half", "double", "bfloat16", "bool")] == [
        lib.int16, lib.int8, lib.uint8, lib.int32, lib.int64, lib.float16, lib.float64, lib.bfloat16, lib.bool]  # fmt: skip
    w = lib.ones(1, requires_grad=True)
    y = w * 2
    assert not y.retains_grad
    y.retain_grad()
    assert y.retains_grad and not w.retains_grad
    for broken in (lambda: lib.zeros(3).mT, lambda: x.view_as(lib.zeros(7)), lambda: x.is_nonzero()):
        with pytest.raises((RuntimeError, ValueError)):
            broken()


def test_memory_formats(lib):
    x = lib.arange(120.0).reshape(2, 3, 4, 5)
    y = x.contiguous(memory_format=lib.channels_last)
    assert (
        y.stride() == (60, 1, 15, 3)
        and y.tolist() == x.tolist()
        and y.is_contiguous(memory_format=lib.channels_last)
        and not y.is_contiguous()
    )
    assert (
        x.to(memory_format=lib.channels_last).stride() == y.stride()
        and y.to(memory_format=lib.channels_last) is y
        and y.contiguous(memory_format=lib.channels_last) is y
    )
    assert (
        y.contiguous().stride() == x.stride()
        and x.contiguous() is x
        and x.to(memory_format=lib.preserve_format) is x
        and x.to(lib.float64, memory_format=lib.channels_last).dtype == lib.float64
    )
    w = lib.ones(1, 2, 3, 4, requires_grad=True)
    (w.contiguous(memory_format=lib.channels_last) * 2).sum().backward()
    assert w.grad.sum().item() == 48 and repr(lib.channels_last).endswith("channels_last")
    for broken in (
        lambda: lib.zeros(3).contiguous(memory_format=lib.channels_last),
        lambda: x.contiguous(memory_format=5),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            broken()


def test_arrays_for_numpy(lib):
    x = lib.tensor([1.0, 2.0])
    assert (
        np.asarray(x).tolist() == [1, 2]
        and x.__array__(np.float64).dtype == np.float64
        and np.asarray(x, dtype=int).dtype == int
    )
    assert np.shares_memory(x.__array__(), x.numpy())


def test_numbers_of_numpy_beside_tensors(lib):
    """np.float64(2) * x is a tensor with its history, as 2.0 * x is."""
    x = lib.tensor([1.0, 2.0], requires_grad=True)
    for scalar in (np.float64(2), np.float32(2), np.int64(2)):
        for ours, plain in (
            (scalar * x, 2 * x),
            (scalar - x, 2 - x),
            (scalar / x, 2 / x),
            (x**scalar, x**2),
            (scalar**x, 2**x),
        ):
            assert type(ours) is lib.Tensor and ours.dtype == lib.float32 and ours.tolist() == plain.tolist()
            assert ours.requires_grad
        assert type(scalar < x) is lib.Tensor and (scalar < x).tolist() == [False, False]
    assert type(np.float64(2) * lib.ones(())) is lib.Tensor
    sums = x.detach() + np.ones(2)
    assert type(sums) is lib.Tensor and sums.dtype == lib.float64 and sums.tolist() == [2, 3]
    assert type(np.sqrt(x.detach())) is lib.Tensor
    with pytest.raises(TypeError):
        np.ones(2) * x.detach()


def test_default_dtype(lib):
    assert lib.get_default_dtype() == lib.float32
    lib.set_default_dtype(lib.float64)
    try:
        assert (
            lib.tensor([1.0]).dtype
            == lib.zeros(1).dtype
            == (lib.arange(2) / 2).dtype
            == lib.linspace(0, 1, 2).dtype
            == lib.float64
        )
    finally:
        lib.set_default_dtype(lib.float32)
    for broken in (lib.int64, 5, None):
        with pytest.raises(TypeError):
            lib.set_default_dtype(broken)


@pytest.mark.parametrize("name", DTYPES)
def test_limits_of_dtypes(name, torch):
    ours, theirs = dt(name), getattr(torch, name)
    for other in DTYPES:
        assert word(pydist.promote_types(ours, dt(other))) == word(torch.promote_types(theirs, getattr(torch, other)))
        assert pydist.can_cast(ours, dt(other)) == torch.can_cast(theirs, getattr(torch, other))
    if name == "bool":
        with pytest.raises(TypeError):
            pydist.iinfo(ours)
    elif ours.is_floating_point:
        a, b = pydist.finfo(ours), torch.finfo(theirs)
        assert (a.bits, a.eps, a.max, a.min, a.tiny, a.smallest_normal, a.resolution, a.dtype) == (
            b.bits, b.eps, b.max, b.min, b.tiny, b.smallest_normal, b.resolution, b.dtype,
        )  # fmt: skip
        assert str(a) == str(b)
    else:
        a, b = pydist.iinfo(ours), torch.iinfo(theirs)
        assert (a.bits, a.max, a.min, a.dtype) == (b.bits, b.max, b.min, b.dtype)


@pytest.mark.parametrize("d", DTYPES)
def test_promotion_of_all_pairs(d, torch):
    """Every dtype with every other, with 0-d tensors and with numbers, on both sides: wherever torch has a result, ours is of its dtype."""

    def operands(lib):
        for name in DTYPES:
            yield from (lib.ones(2, dtype=getattr(lib, name)), lib.ones((), dtype=getattr(lib, name)))
        yield from (2, 2.0, True)

    uses = {
        "sub": lambda lib, a, b: a - b, "where": lambda lib, a, b: lib.where(lib.ones(2) > 0, a, b), "result": lambda lib, a, b: lib.result_type(a, b),
        "add_": lambda lib, a, b: a.clone().add_(b), "div_": lambda lib, a, b: a.clone().div_(b),
    }  # fmt: skip
    for shape in ((2,), ()):
        for other, others in zip(operands(pydist), operands(torch)):
            a, b = pydist.ones(shape, dtype=dt(d)), torch.ones(shape, dtype=getattr(torch, d))
            for use, f in uses.items():
                for swap in (
                    (False, True) if isinstance(other, pydist.Tensor) or use not in ("add_", "div_") else (False,)
                ):
                    try:
                        want = f(torch, *((others, b) if swap else (b, others)))
                    except (RuntimeError, TypeError, NotImplementedError):
                        continue
                    got = f(pydist, *((other, a) if swap else (a, other)))
                    assert word(getattr(got, "dtype", got)) == word(getattr(want, "dtype", want)), (use, d, other, swap)


TEXTS = [
    "[1.0, 2.0]", "3", "3.5", "[]", "[True, False]", "[1e-5, 1.0]", "[1e10, 1.0]", "[1e8, 2e8]", "[0.1, 1000.0]", "[0.1, 10000.0]", "[nan, 1.5]", "[-inf, 1.5e-9]", "nan", "[inf, -inf]",
    "[-0.0, 0.0]", "1e-20", "[123456789]", "[-1, 100]", "[[1.0, nan], [inf, 1e5]]", "[999999.0]", "[[0.1234567, 12.5]]", "[3.4e38]", "[1.0, 2.0, nan, inf]", "[-1e4, 1.5]", "[-5, 3, 2**60]", "[2.0**40]",
]  # fmt: skip
LARGE = [
    "arange(1001)", "arange(2000.0).reshape(40, 50)", "arange(8000).reshape(20, 20, 20)", "arange(2000.0).reshape(2, 1000)", "ones(100) / 3", "zeros(2, 0, 3)", "arange(24).reshape(2, 3, 4)", "ones(2, 3).T",
    "ones(30, 2, requires_grad=True)", "zeros(0, dtype={}.float64)", "ones(10, 20, dtype={}.float64, requires_grad=True)", "tensor(2.0, requires_grad=True)", "arange(1200.0).reshape(3, 20, 20) / 7",
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {}, {"precision": 2, "edgeitems": 1, "threshold": 5}, {"profile": "short"},
        {"profile": "full", "linewidth": 40}, {"sci_mode": True}, {"sci_mode": False},
    ],
    ids=str,
)  # fmt: skip
def test_text_with_options_is_torchs(options, torch):
    names = {"nan": math.nan, "inf": math.inf}
    for lib in (pydist, torch):
        lib.set_printoptions(**options)
    try:
        for text in TEXTS:
            assert repr(pydist.tensor(eval(text, names))) == repr(torch.tensor(eval(text, names))), text
        for text in LARGE:
            assert repr(eval("pydist." + text.format("pydist"))) == repr(eval("torch." + text.format("torch"))).replace(
                "torch.", "pydist."
            ), text
    finally:
        for lib in (pydist, torch):
            lib.set_printoptions(profile="default")
    with pytest.raises(ValueError, match="profile"):
        pydist.set_printoptions(profile="long")


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("how", [through_pickle, copy.deepcopy])
def test_copies_keep_sharing(how, lib):
    if how is through_pickle and lib is not pydist:
        pytest.skip("torch's plain pickles do not keep sharing, torch.save does")
    x = lib.arange(12.0).reshape(3, 4)
    w = lib.ones(2, requires_grad=True)
    w.grad = lib.tensor([1.0, 2.0])
    y, row, turned, same, z, d = how([x, x[1], x.T[1:, ::2], x, w, w.detach()])
    assert (
        y is same
        and y.tolist() == x.tolist()
        and turned.stride() == x.T[1:, ::2].stride()
        and row.storage_offset() == 4
        and y.data_ptr() != x.data_ptr()
    )
    row.fill_(7)
    assert y[1].tolist() == [7.0] * 4 and turned[0].tolist() == [1, 9] and x[1].tolist() == [4, 5, 6, 7]
    assert z.requires_grad and z.is_leaf and d.data_ptr() == z.data_ptr() and not d.requires_grad
    if how is copy.deepcopy:
        assert z.grad.tolist() == [1, 2] and z.grad is not w.grad
    for dtype in DTYPES:
        t = lib.ones(3, dtype=getattr(lib, dtype))[1:]
        u = how(t)
        assert u.dtype == t.dtype and u.tolist() == t.tolist() and u.storage_offset() == 1
    e = how(lib.zeros(0, 3)), how(lib.tensor(5)), how(lib.zeros(1).expand(4))
    assert e[0].shape == (0, 3) and e[1].item() == 5 and e[2].shape == (4,)


def test_copies_leave_nothing_behind():
    from pydist import _tensor

    x = pydist.ones(1000)
    data = pickle.dumps([x, x[1:]])
    copy.deepcopy([x, x[1:]])
    gc.collect()
    assert len(_tensor._storages) == 0 and len(data) < 4600
    version = x._version
    x.add_(1)
    assert pickle.loads(data)[1].tolist() == [1.0] * 999 and x._version == version + 1
    for broken in (
        (pydist.float32, (5,), (1,), 0), (pydist.float32, (2,), (1,), 3), (pydist.float32, (2,), (-1,), 1),
        (pydist.float32, (2, 2), (1,), 0), (pydist.float64, (2,), (2**62,), 0), (None, (1,), (1,), 0),
        (pydist.int8, (1,), (1,), -1),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            _C.storage_view(pydist.ones(4), *broken)


def test_uint8_indices_are_masks(torch):
    """As in PyTorch, where they are deprecated."""
    for lib in (pydist, torch):
        x = lib.arange(12).reshape(3, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mask = lib.tensor([1, 0, 2], dtype=lib.uint8)
            assert x[mask].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]] and x[:, :3][:, mask].tolist() == [
                [0, 2],
                [4, 6],
                [8, 10],
            ]
            assert x[lib.tensor([[1, 0, 0, 1]] * 3, dtype=lib.uint8)].tolist() == [0, 3, 4, 7, 8, 11]
            assert x[lib.tensor(1, dtype=lib.uint8)].shape == (1, 3, 4) and x[lib.tensor(0, dtype=lib.uint8)].shape == (
                0,
                3,
                4,
            )
            x[mask] = lib.tensor([9, 9, 9, 9])
            assert x.tolist() == [[9] * 4, [4, 5, 6, 7], [9] * 4]
            with pytest.raises(IndexError):
                x[lib.zeros(0, dtype=lib.uint8)]


def test_values_may_have_ones_in_front(torch):
    for lib in (pydist, torch):
        x = lib.zeros(3, 4)
        x[0, 1], x[0, 2] = lib.ones(1), lib.full((1, 1), 2.0)
        x[1], x[:, 3] = lib.full((1, 4), 3.0), lib.full((1, 1, 3), 4.0)
        x[lib.tensor([2, 2])] = lib.full((1, 2, 4), 5.0)
        w = lib.ones(1, 1, requires_grad=True)
        y = lib.zeros(2) * w.detach()[0]
        y[0] = 3 * w
        y.sum().backward()
        assert x.tolist() == [[0, 1, 2, 4], [3, 3, 3, 4], [5] * 4] and w.grad.tolist() == [[3.0]]
        with pytest.raises(RuntimeError):
            x[0, 1] = lib.ones(2)


def test_tensors_among_data_are_read_whole():
    """As fast as stack(); what is beside them has to have their shape."""
    a, b = pydist.arange(6).reshape(2, 3), pydist.ones(2, 3, dtype=pydist.float64).t().contiguous().t()
    t = pydist.tensor([a, b, [[1, 2, 3], [4, 5, True]]])
    assert t.dtype == pydist.float64 and t.tolist() == [a.tolist(), [[1.0] * 3] * 2, [[1, 2, 3], [4, 5, 1]]]
    assert pydist.tensor([[1.5, 2.5, 3.5], a[0]], dtype=pydist.int32).tolist() == [[1, 2, 3], [0, 1, 2]]
    assert pydist.tensor([pydist.ones(2, 0), pydist.ones(2, 0)]).shape == (2, 2, 0)
    assert not pydist.tensor([pydist.ones(2, requires_grad=True)]).requires_grad
    large = pydist.ones(1 << 20)
    begin = time.process_time()
    assert pydist.tensor([large] * 4).shape == (4, 1 << 20)
    assert time.process_time() - begin < 1  # element by element it is some seconds
    for wrong in ([a, b[0]], [a, 1], [1, a], [a, [[1, 2], [3, 4]]], [[[a] * 2] * 2, [b] * 2]):
        with pytest.raises(ValueError, match="shape|depth"):
            pydist.tensor(wrong)
    deep = pydist.ones([1] * 12)
    with pytest.raises(ValueError, match="at most"):
        pydist.tensor([[[[[deep]]]]])
