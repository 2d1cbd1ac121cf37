"""DLPack both ways, against NumPy and torch: shared memory, layouts, dtypes, flags, capsules that are used twice or never."""

import gc
import sys

import numpy as np
import pytest

import pydist
from pydist import _C
from pydist.utils import dlpack

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def numbers(dtype):
    return (
        pydist.tensor([True, False] * 12) if dtype == "bool" else pydist.arange(24).to(getattr(pydist, dtype))
    ).reshape(2, 3, 4)


LAYOUTS = [
    lambda x: x, lambda x: x.permute(2, 0, 1), lambda x: x[1, 1:, ::2], lambda x: x[0, 0, 0], lambda x: x[:, :0],
    lambda x: x[:1].expand(2, 3, 4),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_with_torch(dtype, layout, torch):
    x = layout(numbers(dtype))
    for t in (torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(dlpack.to_dlpack(x))):
        assert str(t.dtype).split(".")[1] == dtype and t.tolist() == x.tolist()
        if x.numel() > 1:
            assert t.data_ptr() == x.data_ptr() and t.stride() == x.stride()
        for back in (
            pydist.from_dlpack(t),
            dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
            pydist.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
        ):
            assert back.dtype == x.dtype and back.tolist() == x.tolist() and back.shape == x.shape
            if x.numel() > 1:
                assert back.data_ptr() == x.data_ptr() and back.stride() == x.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
def test_with_numpy(dtype, layout):
    x = layout(numbers(dtype))
    a = np.from_dlpack(x)
    assert a.dtype == dtype and a.tolist() == x.tolist()
    back = pydist.from_dlpack(a)
    assert back.dtype == x.dtype and back.tolist() == x.tolist()
    if x.numel() > 1:
        assert a.ctypes.data == x.data_ptr() == back.data_ptr()


def test_writes_are_seen(torch):
    x = pydist.zeros(3)
    t = torch.from_dlpack(x)
    t[1] = 5
    x[2] = 7
    assert x.tolist() == t.tolist() == [0, 5, 7]


def test_memory_outlives_either_side(torch):
    before = _C.live()
    x = pydist.arange(1000.0)
    t = torch.from_dlpack(x)
    del x
    gc.collect()
    assert t.sum().item() == 499500 and _C.live() != before
    del t
    assert _C.live() == before
    a = np.arange(1000.0)
    count = sys.getrefcount(a)
    y = pydist.from_dlpack(a)[10:]
    assert sys.getrefcount(a) == count + 1
    del y
    assert sys.getrefcount(a) == count


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
def test_capsules(version):
    before = _C.live()
    x = pydist.ones(3)
    unused = x.__dlpack__(max_version=version)
    name = "dltensor_versioned" if version and version[0] else "dltensor"
    assert repr(unused).split('"')[1] == name
    del unused
    capsule = x.__dlpack__(max_version=version)
    y = pydist.from_dlpack(capsule)
    with pytest.raises(ValueError, match="used_dltensor.*once"):
        pydist.from_dlpack(capsule)
    del capsule
    assert y.data_ptr() == x.data_ptr()
    del x, y
    assert _C.live() == before


def test_read_only():
    a = np.arange(4.0)
    a.flags.writeable = False
    t = pydist.from_dlpack(a)
    assert t.tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="read-only"):
        t.add_(1)
    assert not np.from_dlpack(t).flags.writeable and np.from_dlpack(pydist.ones(2)).flags.writeable
    for refused in (lambda: t.__dlpack__(), lambda: dlpack.to_dlpack(t)):
        with pytest.raises(BufferError, match="read-only"):
            refused()
    t.__dlpack__(copy=True)


def test_copies():
    x = pydist.ones(3)
    y = pydist.from_dlpack(x, copy=True)
    z = pydist.from_dlpack(x.__dlpack__(copy=True, max_version=(1, 0)))
    assert x.data_ptr() not in (y.data_ptr(), z.data_ptr()) and y.tolist() == z.tolist() == [1, 1, 1]
    assert pydist.from_dlpack(x, copy=False).data_ptr() == x.data_ptr()
    assert pydist.from_dlpack(x, device="cpu").tolist() == [1, 1, 1] and x.__dlpack_device__() == (1, 0)
    assert pydist.from_dlpack(x.__dlpack__(dl_device=(1, 0))).tolist() == [1, 1, 1]


class Odd:
    """An object whose __dlpack__ does as told."""

    def __init__(self, call):
        self.call = call

    def __dlpack__(self, **kwargs):
        return self.call(**kwargs)


def old_style():
    return pydist.ones(2).__dlpack__()


def test_what_cannot_be():
    x = pydist.ones(3)
    assert pydist.from_dlpack(Odd(old_style)).tolist() == [1, 1], "a library that knows no max_version"
    for broken, error in [
        (lambda: pydist.from_dlpack(5), "__dlpack__"), (lambda: pydist.from_dlpack(Odd(lambda **k: 5)), "capsule"), (lambda: pydist.from_dlpack(Odd(lambda **k: 1 / 0)), "zero"),
        (lambda: pydist.from_dlpack(np.arange(3)[::-1]), "negative"), (lambda: pydist.from_dlpack(np.ones(2, np.uint16)), "16 bits"),
        (lambda: x.requires_grad_().__dlpack__(), "requires grad"), (lambda: x.detach().__dlpack__(dl_device=(2, 0)), r"\(2, 0\)"), (lambda: x.detach().__dlpack__(stream=1), "stream"),
        (lambda: dlpack.to_dlpack(5), "Tensor"), (lambda: pydist.from_dlpack(x.detach(), device="cuda"), "CUDA"), (lambda: x.detach().__dlpack__(max_version=5), "max_version is int"),
        (lambda: pydist.from_dlpack(np.ones([1] * 20)), "20 dimensions"), (lambda: pydist.from_dlpack(np.frombuffer(b"123456789", np.float32, 2, 1)), "aligned"),
    ]:  # fmt: skip
        with pytest.raises((TypeError, ValueError, BufferError, RuntimeError, ZeroDivisionError), match=error):
            broken()
