"""Memory that others look at by its address (arrays, capsules, collectives under way), and the one check that writes pass."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

import pydist
from pydist import _C, nn
from pydist import distributed as dist

LENDERS = {
    "numpy": (lambda t: t.numpy(), "1 NumPy array"),
    "asarray": (np.asarray, "1 NumPy array"),
    "memoryview": (memoryview, "1 NumPy array or other buffer"),
    "dlpack": (np.from_dlpack, "1 DLPack capsule"),
    "capsule": (lambda t: t.__dlpack__(), "1 DLPack capsule"),
}


@pytest.mark.parametrize("how", sorted(LENDERS))
def test_lent_memory_does_not_move(how):
    lend, who = LENDERS[how]
    t = pydist.arange(6.0)
    view = t[2:4]
    loan = lend(view)
    address = t.data_ptr()
    for move in (lambda: t.resize_(100), lambda: t.resize_as_(pydist.empty(7)), t.share_memory_, view.share_memory_):
        with pytest.raises(RuntimeError, match=f"while it is lent to {who}"):
            move()
    assert t.data_ptr() == address and t.tolist() == [0, 1, 2, 3, 4, 5]
    t.resize_(6).resize_(2, 2)  # no other memory is needed
    assert t.tolist() == [[0, 1], [2, 3]] and t.data_ptr() == address
    del loan
    assert t.resize_(9)[:4].tolist() == [0, 1, 2, 3]
    assert view.share_memory_().is_shared()


def test_loans_are_counted():
    t = pydist.arange(6.0)
    loans = [t.numpy(), np.from_dlpack(t), t.numpy(), t.detach()[1:].numpy()]
    with pytest.raises(RuntimeError, match="lent to 3 NumPy arrays or other buffers, 1 DLPack capsule "):
        t.resize_(7)
    empty = pydist.empty(0)
    loans.append(empty.numpy())
    # out= of no elements takes the result's size
    with pytest.raises(RuntimeError, match="resize_: .* lent to 1 NumPy array"):
        pydist.cat([t, t], out=empty)
    loans.clear()
    assert t.resize_(7).shape == (7,)


@pytest.mark.parametrize("exchange", ["data", "set_", "data of a view"])
@pytest.mark.parametrize("how", sorted(set(LENDERS) - {"capsule"}))
def test_an_array_keeps_its_memory(how, exchange):
    n = 1 << 16
    t = pydist.full((n,), 5.0)
    array = LENDERS[how][0](t[:] if exchange == "data of a view" else t)
    if exchange == "set_":
        t.set_(pydist.zeros(3))
    else:
        t.data = pydist.zeros(3)
    _C.trim()
    others = [pydist.full((n,), 7.0) for _ in range(3)]
    assert np.all(np.asarray(array) == 5) and t.tolist() == [0, 0, 0]
    np.asarray(array)[:] = 1
    assert all(bool((x == 7).all()) for x in others)


def test_buffers_have_the_order_that_is_asked_for():
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.c_char_p, ctypes.c_int]
    get.restype, release = ctypes.c_int, ctypes.pythonapi.PyBuffer_Release
    rows, c_order, f_order, any_order, strides = pydist.ones(2, 3), 0x38, 0x58, 0x98, 0x18

    def serves(t, flags):
        view = ctypes.create_string_buffer(200)
        try:
            get(t, view, flags)
        except BufferError:
            return False
        release(view)
        return True

    for t, expected in [
        (rows, (True, False, True, True)),
        (rows.t(), (False, True, True, True)),
        (rows[:, ::2], (False, False, False, True)),
        (rows[:1].expand(4, 3), (False, False, False, True)),
        (rows[0], (True, True, True, True)),
        (rows[:0], (True, True, True, True)),
    ]:
        assert tuple(serves(t, flags) for flags in (c_order, f_order, any_order, strides)) == expected


@pytest.mark.parametrize("offset", [-1, -(2**63), 9, 2**63 - 1])
def test_frombuffer_refuses_places_outside(offset):
    with pytest.raises(ValueError, match="whole elements within the buffer"):
        pydist.frombuffer(b"12345678", dtype=pydist.float32, offset=offset)


WHILE_IT_RUNS = """
import threading, time, pydist
from pydist import nn

n, end = 3_000_000, time.monotonic() + 60
x, parameter = pydist.ones(n), nn.Parameter(pydist.ones(n))
adam = pydist.optim.Adam([parameter], lr=0.0)
done = False

def exchange():
    while not done:
        x.data = pydist.ones(n)
        parameter.data = pydist.ones(n)
        parameter.grad = pydist.ones(n)
        x.data = pydist.ones(n)[::3]

thread = threading.Thread(target=exchange)
parameter.grad = pydist.ones(n)
thread.start()
try:
    for i in range(15):
        x.exp(), x.add_(1), pydist.sum(x), pydist.cat([x, x])
        adam.step()
        nn.utils.clip_grad_norm_([parameter], 1.0)
        if time.monotonic() > end: break
finally:
    done = True
    thread.join()
print("ok")
"""


def test_memory_may_be_exchanged_while_an_op_runs():
    """Long ops give up Python's lock: another thread's `.data =` frees nothing, and reshapes nothing, under them."""
    env = {**os.environ, "PYDIST_CACHE": "0"}  # what is freed is gone
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", WHILE_IT_RUNS],
        capture_output=True,
        text=True,
        timeout=200,
        env=env,
    )
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr[-2000:]


# ---- collectives under way ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "strided", "list"])
@pytest.mark.parametrize("exchange", ["data", "resize_"])
def test_a_collective_keeps_its_memory(layout, exchange):
    n = 1 << 15

    def work(rank):
        t = {"contiguous": pydist.ones(n), "strided": pydist.ones(2 * n)[::2], "list": pydist.ones(n)}[layout]
        others = [pydist.ones(n // 4)] if layout == "list" else []
        alias = t.detach()
        if rank == 1:
            dist.recv(pydist.empty(1), 0)
        run = (
            (lambda: dist.all_reduce_coalesced([t, *others], async_op=True))
            if layout == "list"
            else (lambda: dist.all_reduce(t, async_op=True))
        )
        pending = run()
        if rank == 0:
            if exchange == "data":
                t.data = pydist.zeros(3 * n)
            else:
                with pytest.raises(
                    RuntimeError,
                    match="resize_: the memory cannot move while it is lent to 1 collective in progress",
                ):
                    t.resize_(3 * n)
            _C.trim()
            strangers = [pydist.full((2 * n,), 3.0) for _ in range(3)]
            dist.send(pydist.empty(1), 1)
        pending.wait()
        assert bool((alias == 2).all())
        if rank == 0:
            assert all(bool((x == 3).all()) for x in strangers)
            if exchange == "data":
                assert bool((t == 0).all())
        assert t.resize_(4 * n).numel() == 4 * n
        return True

    assert dist.threads.run(work, 2) == [True, True]


def test_a_message_keeps_its_memory():
    def work(rank):
        t = pydist.full((1 << 14,), float(rank + 1))
        alias = t.detach()
        if rank == 0:
            pending = dist.irecv(t, 1)
            with pytest.raises(RuntimeError, match="1 collective in progress"):
                t.resize_(1 << 16)
            t.data = pydist.zeros(1)
            dist.barrier()
            pending.wait()
            return bool((alias == 2).all()) and t.tolist() == [0]
        dist.barrier()
        dist.send(t, 0)
        return t.resize_(1 << 16).numel() == 1 << 16

    assert dist.threads.run(work, 2) == [True, True]


def test_what_only_lies_side_by_side_is_not_one_memory():
    """Tensors over neighbouring parts of one array are two storages: neither's loan would keep the other."""

    def work(rank):
        array = np.arange(8, dtype="float32")
        parts = [pydist.from_numpy(array[:4]), pydist.from_numpy(array[4:])]
        dist.all_reduce_coalesced(parts)
        return array.tolist() == [2.0 * i for i in range(8)]

    assert dist.threads.run(work, 2) == [True, True]


# ---- the check -----------------------------------------------------------------------------------------------------


def read_only(n=4):
    return pydist.from_numpy(np.frombuffer(np.ones(n, "float32").tobytes(), "float32"))


def batch_norm(t):
    nn.functional.batch_norm(pydist.randn(5, 4), t, pydist.ones(4), training=True)


def step(kind, states=()):
    def write(t):
        parameter = nn.Parameter(pydist.ones(4))
        parameter.grad = pydist.ones(4)
        optimizer = kind([parameter])
        if not states:
            parameter.data = t
        else:
            optimizer.step()
            for name in states:
                optimizer.state[parameter][name] = t
        optimizer._plans.clear()
        optimizer.step()

    return write


def graded(write):
    def run(t):
        parameter = nn.Parameter(pydist.ones(4))
        parameter.grad = t
        write(parameter)

    return run


def collective(name, *args):
    def write(t):
        def work(rank):
            getattr(dist, name)(t, *args)

        dist.threads.run(work, 1)

    return write


WRITES = {
    "add_": lambda t: t.add_(1),
    "out=": lambda t: pydist.add(pydist.ones(4), 1, out=t),
    "setitem": lambda t: t.__setitem__(0, 2.0),
    "setitem of a mask": lambda t: t.__setitem__(t > 0, 2.0),
    "copy_": lambda t: t.copy_(pydist.zeros(4)),
    "fill_": lambda t: t.fill_(3),
    "index_put_": lambda t: t.index_put_((pydist.tensor([0]),), pydist.zeros(1)),
    "scatter_": lambda t: t.scatter_(0, pydist.tensor([0]), 2.0),
    "normal_": lambda t: t.normal_(),
    "load_state_dict": lambda t: _load(t),
    "batch_norm": batch_norm,
    "sgd": step(lambda p: pydist.optim.SGD(p, lr=0.1)),
    "adam": step(pydist.optim.Adam),
    "adam's state": step(pydist.optim.Adam, ("exp_avg",)),
    "sgd's state": step(lambda p: pydist.optim.SGD(p, lr=0.1, momentum=0.9), ("momentum_buffer",)),
    "zero_grad": graded(lambda p: pydist.optim.SGD([p], lr=0.1).zero_grad(set_to_none=False)),
    "clip_grad_norm_": graded(lambda p: nn.utils.clip_grad_norm_([p], 0.1)),
    "backward": graded(lambda p: p.sum().backward()),
    "all_reduce": collective("all_reduce"),
    "broadcast": collective("broadcast", 0),
    "all_gather_into_tensor": lambda t: dist.threads.run(
        lambda rank: dist.all_gather_into_tensor(t, pydist.ones(4)), 1
    ),
}


def _load(t):
    layer = nn.Linear(4, 1, bias=False)
    layer.weight.data = t.view(1, 4)
    layer.load_state_dict({"weight": pydist.zeros(1, 4)})


@pytest.mark.parametrize("name", sorted(WRITES))
def test_every_write_passes_the_door(name):
    t = read_only()
    with pytest.raises(Exception, match="read-only"):
        WRITES[name](t)
    assert t.tolist() == [1, 1, 1, 1] and t._version == 0


@pytest.mark.parametrize(
    "name", sorted(set(WRITES) - {"adam", "sgd", "adam's state", "sgd's state", "load_state_dict"})
)
def test_every_write_is_counted(name):
    t = pydist.ones(4)
    WRITES[name](t)
    assert t._version > 0


def test_writes_through_an_array_reach_casts_that_are_kept():
    """A 16-bit copy that autocast keeps is no longer right once an array has been written, also when the array is gone."""
    layer = nn.Linear(4, 4, bias=False)
    optimizer = pydist.optim.SGD(layer.parameters(), lr=0.0)
    x = pydist.ones(1, 4)

    def run():
        with pydist.autocast("cpu", dtype=pydist.bfloat16):
            return layer(x)

    for value in (1.0, 2.0, 3.0):
        layer.weight.detach().numpy()[:] = value
        assert run().tolist() == [[4 * value] * 4]
        run().sum().backward()
        optimizer.step()
