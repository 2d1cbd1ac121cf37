"""Tensors of several processes: shared memory, queues, pipes, arguments."""

import ctypes
import gc
import mmap
import os
import re

import pytest

import pydist
from pydist import multiprocessing as mp
from pydist import nn

METHODS = ["spawn", "forkserver", "fork"]


def double(tensors, queue):
    for tensor in tensors:
        tensor.mul_(2)
    queue.put("done")


def answer(questions, answers):
    while (tensor := questions.get()) is not None:
        answers.put((tensor.sum().item(), tensor.requires_grad, type(tensor).__name__, tensor.stride()))


def make(queue, taken):
    base = pydist.arange(6).float()
    queue.put((base, base[2:4], pydist.ones(2, dtype=pydist.bfloat16)))
    taken.wait()
    assert base[2] == -1


@pytest.mark.parametrize("method", METHODS)
def test_a_process_writes_to_its_arguments(method):
    context = mp.get_context(method)
    queue = context.Queue()
    x, parameter = pydist.arange(4).float().reshape(2, 2), nn.Parameter(pydist.ones(3))
    column = x[:, 1]
    with pydist.no_grad():
        process = context.Process(target=double, args=([x.share_memory_(), parameter.detach().share_memory_()], queue))
        process.start()
        assert queue.get(timeout=60) == "done"
        process.join()
    assert process.exitcode == 0 and x.tolist() == [[0, 2], [4, 6]] and column.tolist() == [2, 6]
    assert parameter.tolist() == [2, 2, 2]


def test_queues_keep_geometry_type_and_gradient():
    context = mp.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=answer, args=(questions, answers))
    process.start()
    grid = pydist.arange(6).float().reshape(2, 3)
    wanting, parameter = pydist.ones(2).requires_grad_(), nn.Parameter(pydist.ones(3))
    for tensor in (grid, grid.t(), grid[1], wanting, parameter, pydist.empty(0)):
        questions.put(tensor)
        expected = (tensor.sum().item(), tensor.requires_grad, type(tensor).__name__, tensor.stride())
        assert answers.get(timeout=60) == expected
    questions.put(None)
    process.join()
    assert process.exitcode == 0


def test_views_that_come_through_a_queue_share_memory():
    context = mp.get_context("spawn")
    queue, taken = context.Queue(), context.Event()
    process = context.Process(target=make, args=(queue, taken))
    process.start()
    base, part, half = queue.get(timeout=60)
    assert base.tolist() == [0, 1, 2, 3, 4, 5] and half.tolist() == [1, 1] and half.dtype is pydist.bfloat16
    part.fill_(-1)
    assert base.tolist() == [0, 1, -1, -1, 4, 5]
    taken.set()
    process.join()
    assert process.exitcode == 0


def test_share_memory_():
    x = pydist.arange(6).float()
    view, array = x[2:], pytest.importorskip("numpy").asarray(x)
    assert not x.is_shared()
    with pytest.raises(RuntimeError, match="share_memory_: the memory cannot move while it is lent to 1 NumPy array"):
        x.share_memory_()
    del array
    assert x.share_memory_() is x and x.is_shared() and view.is_shared() and not x.clone().is_shared()
    x[2] = 9.0
    assert view[0] == 9
    assert x.share_memory_().data_ptr() == x.data_ptr()
    model = nn.Linear(2, 2)
    assert model.share_memory() is model and all(p.is_shared() for p in model.parameters())


def kernel_gives_huge_pages(size):
    """Whether Linux makes a huge page of shared memory on demand here."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    fd = os.memfd_create("probe")
    os.posix_fallocate(fd, 0, size)
    start = libc.mmap(None, 2 * size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    at = libc.mmap(-(-start // size) * size, size, 3, mmap.MAP_SHARED | 0x10, fd, 0)  # 0x10: exactly there
    given = libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), 25) == 0
    libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(2 * size))
    os.close(fd)
    return given


def test_large_memory_lies_in_huge_pages():
    huge = 2 << 20
    if not kernel_gives_huge_pages(huge):
        pytest.skip("this kernel makes no huge pages of shared memory on demand")
    t = pydist.zeros(9 << 20, dtype=pydist.uint8).share_memory_()
    assert t.data_ptr() % huge == 0
    with open("/proc/self/smaps") as file:
        entries = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", file.read())
    own = next(e for e in entries if e.startswith(f"{t.data_ptr():x}-"))
    assert int(re.search(r"ShmemPmdMapped: +(\d+) kB", own)[1]) == 8 << 10


def test_memory_and_descriptors_are_given_back():
    def shared():
        pydist.ones(1 << 20).share_memory_()

    def held():
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), maps.read().count("memfd:pydist")

    shared()
    gc.collect()
    before = held()
    for _ in range(50):
        shared()
    assert held() == before


def test_errors():
    x = pydist.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="part of a graph"):
        mp.reductions.reduce_tensor(x * 2)
    with pytest.raises(ValueError, match="read-only memory of another library"):
        pydist.frombuffer(b"12345678", dtype=pydist.float32).share_memory_()
    with pytest.raises(ValueError, match="not a shared memory file of the announced size"):
        with open("/dev/null") as file:
            pydist._C.shared_open(file.fileno(), 8, pydist.float32)
    with pytest.raises(OSError):
        pydist._C.shared_open(-1, 8, pydist.float32)
    y = pydist.ones(2).share_memory_()
    with pytest.raises(ValueError, match="not a shared memory file of the announced size"):
        pydist._C.shared_open(pydist._C.shared_fd(y), 1 << 20, pydist.float32)
