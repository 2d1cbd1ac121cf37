"""NumPy's arrays and tensors: every dtype and layout next to PyTorch's answer, refusals, who keeps whose memory."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import pydist

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass")
HERE = "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
UNSIGNED = "uint16 uint32 uint64".split()
NEVER = ["longdouble", "clongdouble", "O", "U3", "S3", "M8[s]", "m8[s]", "V8", ">i4", ">f8", "a:f4,b:i8"]


def of(dtype, shape=(4, 6)):
    if ":" in dtype:
        return np.zeros(shape, [tuple(field.split(":")) for field in dtype.split(",")])
    return np.zeros(shape, dtype) if dtype == "V8" else (np.arange(np.prod(shape)).reshape(shape) % 3).astype(dtype)


def unaligned(a):
    memory = np.zeros(a.nbytes + 1, np.uint8)
    moved = memory[1:].view(a.dtype).reshape(a.shape)
    moved[...] = a
    return moved


def field(a):
    records = np.zeros(a.shape, [("flag", "u1"), ("x", a.dtype)])
    records["x"] = a
    return records["x"]


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


LAYOUTS = {
    "rows": lambda a: a,
    "transposed": lambda a: a.T,
    "every second": lambda a: a[:, ::2],
    "0-d": lambda a: a[1:2, 1:2].reshape(()),
    "no elements": lambda a: a[:0],
    "broadcast": lambda a: np.broadcast_to(a[0], (3, 6)),
    "broadcast, warns": lambda a: np.broadcast_arrays(a[0], a)[0],
    "read-only": read_only,
    "matrix": np.matrix,
    "masked": lambda a: np.ma.masked_array(a, np.ones(a.shape, bool)),
    "recarray": lambda a: a.view(np.recarray),
    "reversed": lambda a: a[:, ::-1],
    "no elements, reversed": lambda a: a[:0, ::-1],
    "field of a record": field,
}
TORCH_ONLY = {"reversed", "no elements, reversed", "field of a record"}  # refused by both
MAKE = {
    "from_numpy": lambda lib, a: lib.from_numpy(a),
    "as_tensor": lambda lib, a: lib.as_tensor(a),
    "as_tensor(dtype)": lambda lib, a: lib.as_tensor(a, dtype=lib.float32),
    "tensor": lambda lib, a: lib.tensor(a),
    "tensor(dtype)": lambda lib, a: lib.tensor(a, dtype=lib.int64),
    "asarray": lambda lib, a: lib.asarray(a),
    "asarray(copy=True)": lambda lib, a: lib.asarray(a, copy=True),
    "asarray(copy=False)": lambda lib, a: lib.asarray(a, copy=False),
}


def answer(lib, make, array):
    """dtype, shape, numbers, and whether the memory is shared; or what kind of error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            t = MAKE[make](lib, array)
        except (TypeError, ValueError) as error:
            return "ValueError" if isinstance(error, ValueError) else "TypeError"
        shares = t.numel() > 0 and t.data_ptr() == array.ctypes.data
        return str(t.dtype).rpartition(".")[2], tuple(t.shape), t.tolist(), shares


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("dtype", HERE)
def test_as_in_pytorch(torch, dtype, make):
    for name, layout in LAYOUTS.items():
        array = layout(of(dtype))
        if name == "0-d" and make.startswith("asarray"):
            continue  # torch.asarray copies a 0-d array, from_numpy and as_tensor share it: here all three share
        assert answer(pydist, make, array) == answer(torch, make, array), name


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("dtype", NEVER)
def test_refused_as_in_pytorch(torch, dtype, make):
    """Foreign byte order is a TypeError of the dtype here, a ValueError there."""
    for name, layout in LAYOUTS.items():
        array = layout(of(dtype))
        assert answer(pydist, make, array) == "TypeError", name
        assert answer(torch, make, array) == ("ValueError" if dtype[0] == ">" else "TypeError"), name


@pytest.mark.parametrize("dtype", HERE)
def test_layouts_by_their_numbers(dtype):
    """The same without PyTorch."""
    for name, layout in LAYOUTS.items():
        array = layout(of(dtype))
        if name not in TORCH_ONLY or (name == "field of a record" and array.strides[1] % array.itemsize == 0):
            t = pydist.from_numpy(array)
            assert t.tolist() == np.asarray(array).tolist() and t.shape == array.shape, name
            assert not t.numel() or t.data_ptr() == array.ctypes.data, name
            assert pydist.tensor(array).tolist() == t.tolist()
        else:
            with pytest.raises(
                ValueError, match=r"is (negative|not a multiple of the element's size) \(expected array.c"
            ):
                pydist.from_numpy(array)
    one = of(dtype)[:1, :1][::-1]  # a negative stride over one element leads nowhere; PyTorch refuses it
    assert pydist.from_numpy(one).tolist() == one.tolist()


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(
    "array, error, text",
    [
        (np.arange(4)[::-1], ValueError, "stride -8 of dimension 0, in bytes, is negative"),
        (field(np.ones((2, 3), "f4")), ValueError, "stride 15 of dimension 0, in bytes, is not a multiple"),
        (np.zeros(2, ">f8"), TypeError, "native byte order"),
        (np.zeros(2, [("a", "f4")]), TypeError, "one of its fields"),
        (np.zeros(2, "M8[s]"), TypeError, r"datetime64\[s\], which tensors do not support \(expected bool, uint8"),
        (np.array([None]), TypeError, "the array's dtype is object"),
        (np.array(["a"]), TypeError, "the array's dtype is <U1"),
        (np.zeros([1] * 17), ValueError, "17 dimensions"),
    ],
)
def test_errors_name_the_function(make, array, error, text):
    if make.startswith("tensor") and array.ndim > 16:
        error = (ValueError, TypeError)
    with pytest.raises(error, match=f"^{make.partition('(')[0]}: .*{text}"):
        MAKE[make](pydist, array)


@pytest.mark.parametrize("dtype", [d for d in HERE if np.dtype(d).itemsize > 1])
def test_unaligned_arrays_are_copied_where_that_is_allowed(dtype):
    """PyTorch reads them in place, and crashes at some."""
    a = of(dtype, (3, 5))
    for array in (unaligned(a), unaligned(a).T, np.broadcast_to(unaligned(a), (2, 3, 5))):
        for make in (pydist.tensor, pydist.as_tensor, pydist.asarray):
            assert make(array).tolist() == array.tolist() and make(array).dtype == getattr(pydist, dtype)
        for share in (pydist.from_numpy, lambda array: pydist.asarray(array, copy=False)):
            with pytest.raises(ValueError, match="aligned"):
                share(array)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_integers_come_in_another_dtype(dtype):
    """PyTorch has dtypes for them; the numbers are the same."""
    top = np.iinfo(dtype).max
    array = np.array([[0, 1, 2], [top - 1, top, 7]], dtype)
    for wanted in HERE:
        got = pydist.tensor(array, dtype=getattr(pydist, wanted))
        with np.errstate(over="ignore"):
            assert np.array_equal(got.numpy(), array.astype(wanted)), wanted
    assert pydist.as_tensor(array.T, dtype=pydist.int64).tolist() == array.T.astype("int64").tolist()
    assert pydist.tensor(array[0, 1], dtype=pydist.int32).tolist() == 1
    for make in (pydist.tensor, pydist.as_tensor, pydist.asarray):
        with pytest.raises(TypeError, match=rf"is {dtype}, which tensors do not support .*; or dtype=, to convert it"):
            make(array)
    for refused in (pydist.from_numpy, lambda a: pydist.asarray(a, dtype=pydist.int64, copy=False)):
        with pytest.raises(TypeError, match=rf"is {dtype}, which tensors do not support .*: astype\(\)"):
            refused(array)
    with pytest.raises(ValueError, match="negative"):
        pydist.tensor(array[:, ::-1], dtype=pydist.int64)


def test_numbers_of_numpy():
    for dtype in HERE:
        number = np.dtype(dtype).type(1)
        t = pydist.tensor(number)
        assert t.dtype == getattr(pydist, dtype) and t.shape == () and t.item() == 1
        assert pydist.as_tensor(number).add_(t).item() == (1 if dtype == "bool" else 2)
    for number in (np.datetime64(5, "s"), np.timedelta64(5, "s"), np.str_("a"), np.longdouble(1), np.void(b"12345678")):
        for make in (pydist.tensor, pydist.as_tensor, pydist.asarray, pydist.from_numpy):
            with pytest.raises(TypeError, match="which tensors do not support"):
                make(number)


@pytest.mark.parametrize(
    "data",
    [
        [np.ones(2, "f2"), np.zeros(2, "f8")],
        [np.ones(2, "i4"), np.ones(2, "f4")],
        [np.ones(2, "?"), np.zeros(2, "?")],
        [np.ones(2), [1, 2]],
        ([1, 2.5], np.arange(2)),
        [[np.ones((2, 2), "c8")], [np.zeros((2, 2), "f4")]],
        [np.arange(6.0).reshape(2, 3).T, np.ones((3, 2))],
        [np.arange(3)[::-1], np.arange(3)],
        [np.ones((0, 3), "f4")],
        [np.array([[1, 2]], "O")],
        [np.float32(1), np.int32(2)],
        [1, np.float64(2)],
        [True, np.float16(2)],
        [np.complex64(1j), 2.0],
    ],
)
def test_arrays_and_numbers_in_lists(torch, data):
    got = pydist.tensor(data)
    if isinstance(data[0], np.ndarray) and data[0].dtype == object:
        assert got.tolist() == [[[1, 2]]]  # PyTorch refuses them
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "creating a tensor from a list of numpy.ndarrays is extremely slow"
        want = torch.tensor(data)
    assert (
        str(got.dtype)[7:] == str(want.dtype)[6:] and got.shape == tuple(want.shape) and got.tolist() == want.tolist()
    )


def test_wrong_arrays_in_lists():
    for data, error in (
        ([np.ones(2), np.ones(3)], ValueError),
        ([np.ones((2, 2)), [1, 2]], ValueError),
        ([np.array(["a"])], TypeError),
        ([np.array([None])], TypeError),
        ([np.zeros(1, "M8[s]")], TypeError),
        ([np.longdouble(2)], TypeError),
        ([np.uint16(2)], TypeError),
        ([np.array([1, 2], "u2")], TypeError),
        ([np.ones([1] * 16)], ValueError),
    ):
        with pytest.raises(error, match="^tensor: "):
            pydist.tensor(data)
    assert pydist.tensor([np.uint16(7), 2], dtype=pydist.int64).tolist() == [7, 2]
    assert pydist.tensor([np.array([1, 60000], "u2")], dtype=pydist.float32).tolist() == [[1, 60000]]


@pytest.mark.skipif(not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"), reason="NumPy 1")
def test_strings_of_numpy_2():
    for make in MAKE.values():
        with pytest.raises(TypeError, match="which tensors do not support"):
            make(pydist, np.array(["a", "bc"], np.dtypes.StringDType()))


def test_huge_arrays():
    wide = np.broadcast_to(np.float32(3), (1 << 40,))
    t = pydist.from_numpy(wide)
    assert t.numel() == 1 << 40 and t[-1].item() == 3 and t.stride() == (0,)
    deep = np.broadcast_to(unaligned(np.ones((1, 1))), (1 << 30, 1 << 29))
    for make in (
        lambda: pydist.tensor(wide),
        lambda: pydist.as_tensor(wide, dtype=pydist.int64),
        lambda: pydist.tensor(deep),
    ):
        with pytest.raises(MemoryError):
            make()
    for shape in ((0, 1 << 40), (1 << 40, 0, 3)):
        empty = np.zeros(shape, "int16")
        assert pydist.from_numpy(empty).shape == shape and pydist.tensor(empty).numpy().shape == shape


# ---- tensors as arrays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HERE)
def test_arrays_over_tensors(dtype):
    x = pydist.from_numpy(of(dtype)).clone()
    views = [
        x, x.t(), x[1:, ::2], x[0, 3], x[:0], x[:1].expand(5, 6), x.reshape(2, 2, 6).permute(2, 0, 1),
        x[2].view(3, 2),
    ]  # fmt: skip
    for t in views:
        for array in (t.numpy(), np.asarray(t), t.__array__()):
            assert type(array) is np.ndarray and array.dtype == dtype and array.shape == tuple(t.shape)
            assert array.tolist() == t.tolist() and array.flags.aligned and array.flags.writeable
            assert not t.numel() or array.ctypes.data == t.data_ptr()
            assert not array.size or array.strides == tuple(s * array.itemsize for s in t.stride())
        assert t.numpy().flags.c_contiguous == t.is_contiguous()
    x.numpy()[0, 0] = 2
    assert x[0, 0].item() == np.array(2, dtype)
    back = pydist.from_numpy(x.numpy())
    assert back.data_ptr() == x.data_ptr() and back.tolist() == x.tolist()


def test_array_protocol():
    x = pydist.arange(6.0).reshape(2, 3)
    assert x.__array__("int16").dtype == np.int16 and x.__array__(np.float32, copy=False).ctypes.data == x.data_ptr()
    for fresh in (
        x.__array__(copy=True),
        x.__array__("f4", True),
        np.array(x),
        x.__array__("f8"),
        np.array(x, copy=True),
    ):
        assert not np.shares_memory(fresh, x.numpy()) and fresh.tolist() == x.tolist() and fresh.flags.owndata
    assert x.__array__(None, None).base is not None
    with pytest.raises(ValueError, match="__array__: float32 as float64 needs a copy"):
        x.__array__("f8", copy=False)
    with pytest.raises(TypeError):
        x.__array__("no dtype")
    with pytest.raises(TypeError):
        x.__array__("f4", False, 1)
    with pytest.raises(ValueError):
        np.array(x, dtype="f8", copy=False) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else int("a")
    with pytest.raises(RuntimeError, match=r"expected detach\(\)"):
        np.asarray(x.clone().requires_grad_())
    assert np.add(x, 1).tolist() == (x + 1).tolist() and np.concatenate([x, x]).shape == (4, 3)
    assert np.array([x, x]).shape == (2, 2, 3) and float(np.asarray(x).sum()) == 15


def test_arrays_travel():
    x = pydist.arange(6.0).reshape(2, 3).t()
    file = io.BytesIO()
    np.savez(file, x=x, y=x.numpy())
    file.seek(0)
    loaded = np.load(file)
    assert loaded["x"].tolist() == loaded["y"].tolist() == x.tolist()
    for protocol in range(2, 6):
        assert pickle.loads(pickle.dumps(x.numpy(), protocol)).tolist() == x.tolist()
    twin = copy.deepcopy(x.numpy())
    twin[:] = 0
    assert x[0, 1].item() == 3 and copy.copy(x.numpy()).tolist() == x.tolist()


# ---- who keeps whose memory ---------------------------------------------------------------------------------------


class Array(np.ndarray):
    """Tells when it goes, and may raise where NumPy calls it."""

    gone, raises = 0, False

    def __array_finalize__(self, other):
        if Array.raises:
            raise RuntimeError("__array_finalize__")

    def __array__(self, *args, **kwargs):
        return self

    def __del__(self):
        Array.gone += 1

    __array_priority__ = 1e9
    __array_interface__ = property(lambda self: {"data": (1, False), "shape": (9,), "typestr": "<f8", "version": 3})
    shape = strides = dtype = property(lambda self: (_ for _ in ()).throw(RuntimeError("asked")))


def test_an_array_lives_as_long_as_it_is_needed():
    array = np.arange(6.0).view(Array)
    Array.gone = 0
    t = pydist.from_numpy(array)
    part, second = t[2:4], t.numpy()
    third = second[1:]
    del array
    del t
    del part
    del second
    assert Array.gone == 0 and third.tolist() == [1, 2, 3, 4, 5]
    del third
    assert Array.gone == 1


def test_an_array_gives_its_loan_back():
    x = pydist.arange(4.0)
    array = x.numpy()
    view = array[1:][::2]
    del array
    with pytest.raises(RuntimeError, match="lent to 1 NumPy array"):
        x.resize_(100)
    copied = view.copy()
    del view
    assert x.resize_(100).shape == (100,) and copied.tolist() == [1, 3]
    array = x.numpy()
    del x
    gc.collect()
    assert array[:4].tolist() == [0, 1, 2, 3]


def test_an_array_kept_by_its_tensor_is_no_cycle():
    """An array's base is its loan of the memory, not the tensor."""
    x = pydist.arange(4.0)
    x.array = x.numpy()
    live = pydist._C.live()
    gc.disable()
    try:
        del x
        assert pydist._C.live() != live
    finally:
        gc.enable()


def test_read_only_memory_stays_so():
    x = pydist.arange(4.0)
    array = x.numpy()
    array.flags.writeable = False
    with pytest.raises(ValueError):
        array[0] = 1
    array.flags.writeable = True  # the memory is
    array[0] = 9
    assert x[0].item() == 9
    array = pydist.from_numpy(np.frombuffer(b"12345678", "f4")).numpy()
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array.flags.writeable = True
    with pytest.raises(TypeError):
        memoryview(array.base).cast("B")[0] = 1
    warns = pydist.from_numpy(LAYOUTS["broadcast, warns"](np.ones((2, 3))))
    with pytest.raises(RuntimeError, match="read-only"):
        warns.add_(1)


def test_nothing_of_a_subclass_is_called():
    array = np.arange(6.0).view(Array)
    Array.raises = True
    try:
        for make in MAKE.values():
            assert make(pydist, array).tolist() == [0, 1, 2, 3, 4, 5]
        late = unaligned(np.arange(6.0))
        Array.raises = False
        late = late.view(Array)
        Array.raises = True
        assert pydist.tensor(late).tolist() == [0, 1, 2, 3, 4, 5]
        assert type(np.multiply(pydist.ones(2), 2)) is pydist.Tensor
    finally:
        Array.raises = False
    del array, late


def test_what_only_looks_like_an_array():
    class Fake:
        __array_interface__ = {"data": (8, False), "shape": (2,), "typestr": "<f8", "version": 3}
        __array__ = None

    for make in (pydist.from_numpy, pydist.tensor, pydist.as_tensor, pydist.asarray):
        with pytest.raises(TypeError):
            make(Fake())


def test_an_array_that_changes_its_form_afterwards():
    array = np.arange(8, dtype="int32")
    t = pydist.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer NumPys advise against it
        array.shape = (2, 4)
    with pytest.raises(ValueError, match="resize"):
        array.resize((1000,))
    assert t.tolist() == list(range(8))


def test_threads():
    x = pydist.arange(1000.0)
    failed = []

    def work():
        try:
            for i in range(2000):
                a = np.full(i % 7, i, "float32")
                t = pydist.from_numpy(a)
                del a
                assert t.numpy().sum() == i * (i % 7) and x.numpy()[i % 1000] == i % 1000
                assert pydist.tensor(t.numpy()).shape == t.shape
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and x.resize_(2000).shape == (2000,)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_after_fork():
    program = """
import os, numpy as np, pydist
x, a = pydist.arange(4.0), np.arange(4.0)
array, t = x.numpy(), pydist.from_numpy(a)
child = os.fork()
if not child:
    array[0] = 7; t[0] = 7
    try: x.resize_(100)
    except RuntimeError: pass
    else: os._exit(1)
    del array, a
    x.resize_(100)
    os._exit(0 if x[0].item() == t[0].item() == 7 and t.numpy()[3] == 3 else 2)
assert os.waitpid(child, 0)[1] == 0 and array[0] == t[0].item() == 0
print("ok")
"""
    assert run(program) == "ok\n"


# ---- where NumPy is not, or is not as it should be ----------------------------------------------------------------


def run(program, **env):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


BLOCKED = """
import array, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
sys.meta_path.insert(0, Blocker())
import pydist
"""


@pytest.mark.parametrize("how", ["numpy is nowhere", "numpy is None"])
def test_without_numpy(how):
    program = (
        BLOCKED if how == "numpy is nowhere" else "import array, sys\nsys.modules['numpy'] = None\nimport pydist\n"
    )
    program += """
numbers = array.array("f", [1, 2, 3])
t = pydist.from_numpy(numbers)
assert t.add_(1).tolist() == numbers.tolist() == [2, 3, 4]
assert pydist.tensor(memoryview(numbers)[::2]).tolist() == [2, 4] and pydist.asarray(numbers).data_ptr() == t.data_ptr()
assert memoryview(t).tolist() == [2, 3, 4] and pydist.tensor([[1, 2.5]]).shape == (1, 2)
for f in (t.numpy, t.__array__):
    try: f()
    except ModuleNotFoundError as error: pass
    else: raise SystemExit("numpy() without NumPy")
assert sys.modules.get("numpy") is None
print("ok")
"""
    assert run(program) == "ok\n"


def test_numpy_whose_api_cannot_be_opened():
    """Arrays go by the buffer protocol then; numpy() says what is wrong."""
    program = """
import sys, types, numpy as np
names = ["numpy._core._multiarray_umath", "numpy.core._multiarray_umath"]  # of NumPy 2 and 1
kept = {name: sys.modules.get(name) for name in names}
sys.modules.update(dict.fromkeys(names, types.ModuleType("empty")))
import pydist
a = np.arange(6.0).reshape(2, 3).T
t = pydist.from_numpy(a)
assert t.data_ptr() == a.ctypes.data and t.tolist() == a.tolist() and pydist.tensor(a).tolist() == a.tolist()
assert np.asarray(t).ctypes.data == t.data_ptr() and pydist.tensor(np.float32(2)).dtype == pydist.float32
for broken in (a[::-1], a.astype(">f8"), np.zeros(2, "M8[s]"), np.array([None]), np.zeros(2, "u4"), np.zeros(1, "i4,i4")):
    try: pydist.tensor(broken)
    except (TypeError, ValueError): pass
    else: raise SystemExit(f"{broken.dtype} was taken")
pydist.from_numpy(np.datetime64(5, "s"))  # 8 bytes to this protocol; its buffer has no strides
try: t.numpy()
except AttributeError as error: assert "_ARRAY_API" in str(error)
else: raise SystemExit("numpy() without the API")
for name in names:
    if kept[name]: sys.modules[name] = kept[name]
    else: del sys.modules[name]
assert t.numpy().tolist() == a.tolist()
print("ok")
"""
    assert run(program) == "ok\n"


def test_without_ml_dtypes():
    program = """
import sys; sys.modules["ml_dtypes"] = None
import numpy as np, pydist
x = pydist.ones(2, dtype=pydist.bfloat16)
for f in (x.numpy, x.__array__, lambda: np.asarray(x), lambda: np.sin(x)):
    try: f()
    except TypeError as error: assert "bfloat16" in str(error) and "ml_dtypes" in str(error), error
    else: raise SystemExit("an array of bfloat16")
print("ok")
"""
    assert run(program) == "ok\n"


@pytest.mark.parametrize("forged", ["int", "'f4'", "None", "dtype([('a', 'u1'), ('b', 'i1')])"])
def test_a_forged_ml_dtypes(forged):
    program = f"""
import sys, types, numpy as np, pydist
from numpy import dtype
sys.modules["ml_dtypes"] = types.SimpleNamespace(bfloat16={forged})
try: pydist.ones(2, dtype=pydist.bfloat16).numpy()
except TypeError as error: print("ok" if "expected a dtype of 2 bytes" in str(error) else error)
"""
    assert run(program) == "ok\n"


# ---- ml_dtypes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ml_dtypes():
    return pytest.importorskip("ml_dtypes")


@pytest.mark.filterwarnings("ignore:.* encountered in")
def test_bfloat16(ml_dtypes):
    bits = np.arange(1 << 16, dtype="uint16")
    array = bits.view(ml_dtypes.bfloat16).reshape(256, 256)
    t = pydist.from_numpy(array)
    assert t.dtype == pydist.bfloat16 and t.data_ptr() == array.ctypes.data
    assert np.array_equal(t.float().numpy(), array.astype("float32"), equal_nan=True)
    for back in (t.numpy(), np.asarray(t), t.__array__(), t.t().numpy().T):
        assert back.dtype == ml_dtypes.bfloat16 and np.array_equal(back.view("uint16"), bits.reshape(256, 256))
        assert back.ctypes.data == array.ctypes.data
    assert pydist.tensor(array[1, ::2]).tolist() == array[1, ::2].astype("float32").tolist()
    assert pydist.tensor(array[3, 3]).dtype == pydist.bfloat16  # its numbers, too
    assert np.array(t[:2], dtype="float32").dtype == np.float32 and t.__array__("f8").dtype == np.float64
    assert type(np.add(t, t)) is pydist.Tensor and np.add(t, t).dtype == pydist.bfloat16
    for broken, error, text in ((array[::-1], ValueError, "negative"), (array.view("u1")[:, 1:-1].view(array.dtype), ValueError, "aligned"),
                                (array.astype(array.dtype.newbyteorder()), TypeError, "byte order")):  # fmt: skip
        with pytest.raises(error, match=text):
            pydist.from_numpy(broken)
    with pytest.raises(BufferError):
        memoryview(t)  # the buffer protocol has no letter for it


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4"])
def test_small_numbers_come_in_another_dtype(ml_dtypes, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.arange(256, dtype="uint8").view(dtype) if "float" in name else np.arange(7).astype(dtype)
    for wanted in ("float16", "float32", "float64"):
        with np.errstate(all="ignore"):
            want = array.astype(wanted)
        assert np.array_equal(pydist.tensor(array, dtype=getattr(pydist, wanted)).numpy(), want, equal_nan=True)
    assert pydist.tensor(array[:4], dtype=pydist.bfloat16).float().tolist() == array[:4].astype("float32").tolist()
    with pytest.raises(TypeError, match=f"is {name}, which tensors do not support .* to convert it"):
        pydist.tensor(array)
    with pytest.raises(TypeError, match=f"is {name}, which tensors do not support .*astype"):
        pydist.from_numpy(array)
