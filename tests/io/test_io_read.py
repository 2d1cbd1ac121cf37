"""_C.io_read: boxes of stored tensors, compared with NumPy's slices."""

import errno
import os
import pickle
import random
import zlib

import numpy as np
import pytest

import pydist
from pydist import _C

BLOCK = 4 << 20
DTYPES = [np.uint8, np.int16, np.float32, np.float64, np.complex128]


@pytest.fixture(autouse=True)
def nothing_stays_open():
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def sums(data):
    return [zlib.crc32(data[i : i + BLOCK]) for i in range(0, len(data), BLOCK)]


def numbers(shape, dtype, seed=0):
    """Small numbers, so that every dtype has them."""
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def destination(sizes, dtype, draw):
    """(tensor of the sizes, its whole memory): contiguous, or a view with gaps and dimensions in another order."""
    if draw.random() < 0.3:
        t = pydist.zeros(sizes, dtype=dtype)
        return t, t
    order = draw.sample(range(len(sizes)), len(sizes))
    steps = [draw.choice([1, 1, 2, 3]) for _ in sizes]
    whole = pydist.zeros([sizes[d] * steps[d] + draw.randrange(2) for d in order], dtype=dtype)
    view = whole[tuple(slice(0, sizes[d] * steps[d], steps[d]) for d in order)] if sizes else whole
    back = [order.index(d) for d in range(len(sizes))]
    return (view.permute(back) if sizes else view), whole


def job_of(array, begin, lo, sizes, tensor, crcs):
    return begin, array.nbytes, array.shape, lo, sizes, crcs, tensor


@pytest.mark.parametrize("seed", range(60))
def test_random_boxes(tmp_path, seed):
    draw = random.Random(seed)
    large = seed % 6 == 0
    arrays, content, begins = [], bytearray(), []
    for k in range(draw.randrange(1, 4)):
        ndim = draw.randrange(5)
        top = {0: 1, 1: 2_000_000, 2: 1500, 3: 120, 4: 40}[ndim] if large else {0: 1, 1: 3000, 2: 50, 3: 14, 4: 7}[ndim]
        array = numbers([draw.randrange(top + 1) for _ in range(ndim)], draw.choice(DTYPES), k)
        content += bytes(draw.randrange(5000))
        begins.append(len(content))
        content += array.tobytes()
        arrays.append(array)
    path = tmp_path / "f"
    path.write_bytes(content)
    jobs, wanted = [], []
    for _ in range(draw.randrange(1, 12)):
        k = draw.randrange(len(arrays))
        array = arrays[k]
        lo = [draw.randrange(n + 1) for n in array.shape]
        sizes = [draw.randrange(n - at + 1) for n, at in zip(array.shape, lo)]
        if draw.random() < 0.3:
            lo, sizes = [0] * array.ndim, list(array.shape)
        tensor, whole = destination(sizes, pydist.from_numpy(np.zeros(1, array.dtype)).dtype, draw)
        crcs = sums(array.tobytes()) if draw.random() < 0.7 else None
        jobs.append(job_of(array, begins[k], lo, sizes, tensor, crcs))
        wanted.append((array[tuple(slice(a, a + n) for a, n in zip(lo, sizes))], tensor, whole))
    _C.io_read(path, jobs, draw.randrange(1, 6), draw.random() < 0.5)
    for want, tensor, whole in wanted:
        assert np.array_equal(want, tensor.numpy())
        if tensor is not whole:  # the gaps are as they were
            assert whole.sum().item() == pytest.approx(tensor.sum().item())


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 5])
def test_sizes_around_blocks(tmp_path, n, direct):
    data = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)
    path, t = tmp_path / "f", pydist.zeros(n, dtype=pydist.uint8)
    crcs = _C.io_write(path, [data], 4096)[0]
    _C.io_read(path, [(4096, n, (n,), (0,), (n,), crcs, t)], direct=direct)
    assert np.array_equal(t.numpy(), data)


def test_only_touched_blocks_are_read(tmp_path):
    """A column of rows that are longer than a block: the blocks between its elements may be damaged."""
    array = numbers((4, 3 * BLOCK), np.uint8)
    crcs = sums(array.tobytes())
    spoiled = array.copy()
    spoiled[:, BLOCK:] ^= 1
    path, t = tmp_path / "f", pydist.zeros(4, 5, dtype=pydist.uint8)
    path.write_bytes(spoiled.tobytes())
    _C.io_read(path, [job_of(array, 0, (0, 7), (4, 5), t, crcs)])
    assert np.array_equal(t.numpy(), array[:, 7:12])
    with pytest.raises(_C.IoDamaged) as e:
        _C.io_read(path, [job_of(array, 0, (1, BLOCK), (3, 5), pydist.zeros(3, 5, dtype=pydist.uint8), crcs)], 4)
    assert e.value.block == 4


def test_a_stored_shape_of_very_many_blocks(tmp_path):
    """Only the blocks that a box touches cost time: between these two lie 2^37 others."""
    path, t = tmp_path / "f", pydist.zeros(2, 1, dtype=pydist.uint8)
    path.write_bytes(b"abc")
    with pytest.raises(_C.IoDamaged) as e:
        _C.io_read(path, [(0, 1 << 60, (2, 1 << 59), (0, 1), (2, 1), None, t)])
    assert e.value.args == (0, (1 << 59) // BLOCK, None, None)
    assert t[0].item() == ord("b")


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_damaged_block_is_named(tmp_path, threads, direct):
    array = numbers(6 * BLOCK + 100, np.uint8)
    data = bytearray(array.tobytes())
    crcs = sums(array.tobytes())
    data[2 * BLOCK + 17] ^= 4
    data[5 * BLOCK] ^= 1
    path, t = tmp_path / "f", pydist.zeros(array.size, dtype=pydist.uint8)
    path.write_bytes(bytes(100) + data)
    good = job_of(array, 100, (0,), (BLOCK,), pydist.zeros(BLOCK, dtype=pydist.uint8), crcs)
    for _ in range(5):
        with pytest.raises(_C.IoDamaged, match="block 2 of job 1 is damaged: its checksum is 0x") as e:
            _C.io_read(path, [good, job_of(array, 100, (0,), array.shape, t, crcs)], threads, direct)
    error = e.value
    assert (error.job, error.block) == (1, 2) and isinstance(error, RuntimeError) and error.filename == path
    assert error.expected == crcs[2] and error.got == zlib.crc32(data[2 * BLOCK : 3 * BLOCK])
    assert error.args == (1, 2, error.expected, error.got)
    assert pickle.loads(pickle.dumps(error)).args == error.args


@pytest.mark.parametrize("direct", [True, False])
def test_short_files(tmp_path, direct):
    array = numbers(2 * BLOCK + 100, np.uint8)
    path, crcs = tmp_path / "f", sums(array.tobytes())
    t = pydist.zeros(array.size, dtype=pydist.uint8)
    for kept, block in [(0, 0), (1, 0), (BLOCK, 1), (BLOCK + 4096, 1), (2 * BLOCK + 99, 2)]:
        path.write_bytes(array.tobytes()[:kept])
        for given in (crcs, None):
            with pytest.raises(_C.IoDamaged, match="the file ends before") as e:
                _C.io_read(path, [job_of(array, 0, (0,), array.shape, t, given)], direct=direct)
            assert e.value.args == (0, block, given and given[block], None)


def test_errors_of_the_system(tmp_path):
    t = pydist.zeros(1, dtype=pydist.uint8)
    for path, number in [(tmp_path / "none", errno.ENOENT), (tmp_path, errno.EISDIR)]:
        with pytest.raises(OSError) as e:
            _C.io_read(path, [(0, 1, (1,), (0,), (1,), None, t)])
        assert e.value.errno == number and e.value.filename == path
    _C.io_put(tmp_path / "f", b"x")
    _C.io_read(tmp_path / "f", [])


def test_writes_are_counted_and_refused(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(16)))
    x = pydist.zeros(4)
    before = x._version
    _C.io_read(path, [(0, 16, (4,), (0,), (4,), None, x)])
    assert x._version > before
    locked = np.zeros(4, np.float32)
    locked.flags.writeable = False
    with pytest.raises(RuntimeError):
        _C.io_read(path, [(0, 16, (4,), (0,), (4,), None, pydist.from_numpy(locked))])


def test_wrong_jobs(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(4096))
    x = pydist.zeros(2, 3)
    good = [0, 48, (4, 3), (1, 0), (2, 3), None, x]
    _C.io_read(path, [tuple(good)])

    class Hostile:
        def __index__(self):
            x.data = pydist.zeros(1)
            raise ZeroDivisionError

    def wrong(kind, **changes):
        job = list(good)
        for place, value in changes.items():
            job["begin nbytes shape lo sizes crcs tensor".split().index(place)] = value
        with pytest.raises(kind):
            _C.io_read(path, [tuple(job)])

    for word in ("begin", "nbytes"):
        for value in (-1, 1 << 63, 1 << 100):
            wrong(ValueError, **{word: value})
        for value in (None, 1.0, "1", b"", True, x):
            wrong(TypeError, **{word: value})
    wrong(ValueError, nbytes=47)
    wrong(ValueError, begin=(1 << 63) - 48)
    for shape in [(3, 3), (4, 3, 1), (4,), (), (-4, -3), (1 << 62, 1 << 62), (4, 1 << 63), (1,) * 17, (0, 3)]:
        wrong(ValueError, shape=shape)
    for lo in [(3, 0), (1, 1), (-1, 0), (1,), (1, 0, 0), (1 << 62, 0), (1 << 63, 0)]:
        wrong(ValueError, lo=lo)
    for sizes in [(2, 2), (3, 2), (2, 3, 1), (-2, 3), (1 << 62, 3)]:
        wrong(ValueError, sizes=sizes)
    for word in ("shape", "lo", "sizes"):
        for value in (None, 3, (1.0, 2), "ab", [None, 1]):
            wrong(TypeError, **{word: value})
    for crcs in [[], [1, 2], [-1], [1 << 32], [1 << 70]]:
        wrong(ValueError, crcs=crcs)
    for crcs in [3, ["a"], [1.0], [None]]:
        wrong(TypeError, crcs=crcs)
    for tensor in (None, np.zeros((2, 3), np.float32), b"", pydist.zeros(2, 3, device="meta")):
        wrong(TypeError, tensor=tensor)
    for tensor in (pydist.zeros(3, 2), pydist.zeros(6), pydist.zeros(2, 3).double(), pydist.zeros(2, 1).expand(2, 3)):
        wrong(ValueError, tensor=tensor)
    wrong(ZeroDivisionError, sizes=(2, Hostile()))
    for jobs in (None, 3, [()], [tuple(good[:6])], [good], [None], "ab"):
        with pytest.raises(TypeError):
            _C.io_read(path, jobs)
    with pytest.raises(ValueError):
        _C.io_read(path, [], 0)
    with pytest.raises(TypeError):
        _C.io_read(None, [])


def test_each_allocation_may_fail(tmp_path):
    path, t = tmp_path / "f", pydist.zeros(2 * BLOCK, dtype=pydist.uint8)
    crcs = _C.io_write(path, [t], 0)[0]
    for n in range(1, 100):
        _C.fault("malloc", n)
        try:
            _C.io_read(path, [(0, 2 * BLOCK, (2 * BLOCK,), (0,), (2 * BLOCK,), crcs, t)])
            break
        except MemoryError:
            pass
        finally:
            _C.fault("malloc", 0)
    assert n > 5
