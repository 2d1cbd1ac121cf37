"""Sums of logical shards on a GPU: the kernel that adds in the order of a tree, for every dtype, and the reducer in a world of one.
test_gpu_nccl.py has worlds of several ranks."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pydist
from lib.shard_sums import Net, expected, loss_of, named, one_step, reducer_of, same, wide
from lib.trees import FLOATS, INTS, from_bf16, sample, to_bf16
from pydist import _C

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

CSRC = Path(__file__).resolve().parents[2] / "csrc"
NUMBERS = re.findall(r"^PD_DTYPE\(\w+,\s+(\w+),", (CSRC / "base/dtype.def").read_text(), re.MULTILINE)
ROWS = re.findall(r"^PD_KERNEL\(\w+, \w+, (\w+)", (CSRC / "kernels/kernels.def").read_text(), re.MULTILINE)
WIDE = {"float16": lambda x: x.astype(np.float32), "bfloat16": from_bf16}


class SumTree(ctypes.Structure):
    """pd_sum_tree of csrc/kernels/kernels.h."""

    _fields_ = [
        ("n", ctypes.c_int64), ("apart", ctypes.c_int64), ("at_others", ctypes.c_void_p), ("own", ctypes.c_void_p * 2),
        ("out", ctypes.c_void_p), ("scale", ctypes.c_double), ("last", ctypes.c_int), ("inputs", ctypes.c_int),
        ("at", ctypes.c_int16 * 2), ("sums", ctypes.c_uint8 * 1024),
    ]  # fmt: skip


class Library(ctypes.Structure):
    """The first members of pd_cuda_library (csrc/device/cuda_library.h)."""

    _fields_ = [("layout", ctypes.c_uint64), ("built", ctypes.c_char_p), ("kernels", ctypes.POINTER(ctypes.c_void_p))]


@pytest.fixture(scope="module")
def kernel():
    """The library's kernel sum_tree."""
    pydist.ones(1, device="cuda")
    built = os.environ.get("PYDIST_CUDA_LIBRARY") or Path(pydist.__file__).with_name("_cuda.so")
    library = Library.in_dll(ctypes.CDLL(str(built)), "pd_cuda_library_of_pydist")
    address = library.kernels[ROWS.index("sum_tree")]
    return ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(SumTree))(address)


def by_split(items, split, op):
    """As pd_reduce_tree adds (csrc/comm/algo/reduce.h)."""
    if len(items) == 1:
        return items[0]
    left = split[0]
    return op(by_split(items[:left], split[1:], op), by_split(items[left:], split[left:], op))


def sums_of(inputs, split):
    """After which input how many sums are complete."""
    sums = [0] * inputs
    by_split(
        [(i, i) for i in range(inputs)], split, lambda a, b: sums.__setitem__(b[1], sums[b[1]] + 1) or (a[0], b[1])
    )
    return sums


def wanted(inputs, dtype, split, scale, last):
    wide = [WIDE.get(last if k + 1 == len(inputs) else dtype, np.copy)(x) for k, x in enumerate(inputs)]
    with np.errstate(over="ignore"):
        total = by_split(wide, split, np.logical_or if dtype == "bool" else np.add)
        total = total * total.dtype.type(scale) if dtype in FLOATS else total
        return to_bf16(total) if dtype == "bfloat16" else total.astype(dtype)


def by_kernel(kernel, inputs, dtype, split, scale=1.0, last=None, own=(), zeros=(), shift=0, into=None):
    """The sum as the kernel makes it. own: inputs with a place of their own, of which `zeros` are NULL; shift: elements by which all
    memory is out of place; into: the input whose place the sum gets."""
    last, kind = last or dtype, sample(dtype, 0, 0).dtype
    n, size, rooms = inputs[0].size, kind.itemsize, []

    def placed(rows):
        """These arrays on the device, each at a multiple of 64 bytes, moved by the shift."""
        apart = (n * size + shift * size + 63) // 64 * 64
        room = np.zeros((max(1, len(rows)), apart), np.uint8)
        for i, row in enumerate(rows):
            room[i, shift * size : shift * size + row.nbytes] = row.view(np.uint8)
        rooms.append(pydist.from_numpy(room).cuda())
        return rooms[-1].data_ptr() + shift * size, apart

    others, apart = placed([x for i, x in enumerate(inputs) if i not in own])
    call = SumTree(n=n, apart=apart, at_others=others, scale=scale, last=NUMBERS.index(last), inputs=len(inputs))
    call.at[:] = [-1, -1]
    for k, i in enumerate(own):
        call.at[k] = i
        call.own[k] = None if i in zeros else placed([inputs[i]])[0]
    call.sums[: len(inputs)] = sums_of(len(inputs), split)
    target, _ = placed([np.ones(n, kind)])
    call.out = target if into is None else call.own[into]
    kernel(NUMBERS.index(dtype), ctypes.byref(call))
    pydist.cuda.synchronize()
    room = rooms[-1] if into is None else rooms[1 + into]
    return room.cpu().numpy()[0, shift * size : (shift + n) * size].view(kind)


def check(kernel, dtype, blocks, n=1000, seed=0, **more):
    inputs = [sample(dtype, n, [seed, i]) for i in range(len(blocks.table))]
    scale = more.setdefault("scale", 0.125 if dtype in FLOATS else 1.0)
    for i in more.get("zeros", ()):
        inputs[i] = np.zeros_like(inputs[i])
    got = by_kernel(kernel, inputs, dtype, blocks.split, **more)
    assert got.tobytes() == wanted(inputs, dtype, blocks.split, scale, dtype).tobytes(), (dtype, blocks.table, more)


TABLES = {
    "one": (8, [8]), "eight": (8, [1] * 8), "three": (8, [3, 3, 2]), "few": (16, [8, 5, 3]), "comb": (256, [128, 64, 32, 16, 8, 4, 4]),
    "many": (64, [1] * 64), "most": (1024, [1] * 1024),
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_the_kernel_adds_as_the_tree_does(kernel, dtype, table):
    shards, shares = TABLES[table]
    check(kernel, dtype, _C.Blocks(shards, shares), 37 if table == "most" else 1030)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "uint8"])
def test_where_the_inputs_are(kernel, dtype):
    blocks = _C.Blocks(8, [3, 3, 2])
    for n in (1, 3, 4, 257):
        check(kernel, dtype, blocks, n, own=(0, 3))
        check(kernel, dtype, blocks, n, own=(1, 4), shift=1, into=0)
        check(kernel, dtype, blocks, n, own=(2, 4), zeros=(4,), into=0)
        check(kernel, dtype, blocks, n, own=(3, 0), zeros=(3, 0), scale=1.0)
    check(kernel, dtype, _C.Blocks(2, [1, 1]), 5, own=(0, 1), into=1)


@pytest.mark.parametrize("last", ["float16", "bfloat16"])
def test_a_last_input_of_16_bits(kernel, last):
    for inputs, split in ((1, []), (2, [1]), (4, [1, 1, 1])):
        arrays = [sample("float32", 300, [i]) for i in range(inputs - 1)] + [sample(last, 300, [9])]
        got = by_kernel(kernel, arrays, "float32", split, last=last, own=(inputs - 1,))
        assert got.tobytes() == wanted(arrays, "float32", split, 1.0, last).tobytes()


# ---- the reducer, in a world of one


@pytest.mark.parametrize("parts, announced", [(1, True), (2, False)])
@pytest.mark.parametrize("shards", [1, 2, 8])
def test_the_bits_of_the_tree(shards, parts, announced):
    net, blocks = Net().cuda(), _C.Blocks(shards, [shards])
    reducer = reducer_of(net, blocks)
    for _ in range(2):
        one_step(net, reducer, blocks.of_rank(0), parts, announced)
        same(net, expected(shards, parts, device="cuda"))


@pytest.mark.parametrize("dtype", [pydist.bfloat16, pydist.float16, pydist.float64], ids=str)
def test_parameters_of_other_dtypes(dtype):
    net, blocks = Net(dtype).cuda(), _C.Blocks(8, [8])
    one_step(net, reducer_of(net, blocks), blocks.of_rank(0))
    same(net, expected(8, 1, dtype, "cuda"))


@pytest.mark.parametrize("half", [pydist.bfloat16, pydist.float16], ids=str)
def test_gradients_that_are_rounded_and_hashed(half):
    """As by the hooks fp16 and bf16; the hashes are those of the same bits on a CPU."""
    net, blocks = Net().cuda(), _C.Blocks(2, [2])
    reducer = reducer_of(net, blocks)
    reducer.round_shards(half)
    reducer.hash_shards()
    one_step(net, reducer, blocks.of_rank(0))
    leaves = []
    for shard in (0, 1):
        alone = Net().cuda()
        loss_of(alone, shard).backward()
        leaves.append({k: None if p.grad is None else p.grad.cpu().to(half).float() for k, p in named(alone).items()})
    for at, (name, p) in enumerate(named(net).items()):
        found = [leaf[name] for leaf in leaves if leaf[name] is not None]
        if found:
            mean = (sum(found[1:], found[0]) * 0.5).to(half).float()
            assert wide(p.grad).tobytes() == wide(mean).tobytes(), name
        last = leaves[1][name]  # shard 1's
        in_memory = None if last is None else last.permute(0, 2, 3, 1) if name == "conv.weight" else last
        bits = 0 if last is None else _C.hash_tensors([in_memory.contiguous()])[0]
        assert reducer.hashes[at] == bits, name


def test_what_measures_may_not_choose():
    code = (
        "import pydist\nfrom pydist import nn\npydist.distributed.init_process_group(logical_shards=2)\n"
        "nn.parallel.DistributedDataParallel(nn.Linear(1, 1).cuda())"
    )
    env = {**os.environ, "PYDIST_CUDA_TUNE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert "PYDIST_CUDA_TUNE is 1 with logical shards on cuda:0 (expected 0: " in done.stderr, done.stderr
