"""async_save of tensors on GPUs: the copies are in order with the program's work, and the call waits for nothing."""

import ctypes
import os
import time

import pytest

import pydist
from pydist import _C, cuda, nn, optim
from pydist.distributed import checkpoint

if not cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

N = 1 << 18


def saved(path, like):
    found = {name: pydist.zeros_like(value, device="cpu") for name, value in like.items()}
    checkpoint.load(found, checkpoint_id=path)
    return found


@pytest.mark.parametrize("change", ["mul_", "data", "step"])
def test_what_comes_next_changes_nothing(tmp_path, change):
    params = {str(i): nn.Parameter(pydist.randn(N, device="cuda")) for i in range(3)}
    optimizer = optim.Adam(params.values(), lr=0.1)
    for step in range(4):
        want = {name: p.detach().cpu() for name, p in params.items()}
        state = {**params, "cpu": (cpu := pydist.full((N,), float(step)))}
        future = checkpoint.async_save(state, checkpoint_id=tmp_path / str(step))
        cpu.zero_()
        for p in params.values():
            p.grad = pydist.ones_like(p)
            if change == "mul_":
                with pydist.no_grad():
                    p.mul_(3)
            elif change == "data":
                p.data.fill_(7)
        optimizer.step()
        future.result()
        found = saved(tmp_path / str(step), {**want, "cpu": cpu})
        assert all(pydist.equal(found[name], want[name]) for name in want)
        assert found["cpu"].unique().tolist() == [step]


def test_rows_columns_and_small_tensors(tmp_path):
    x = pydist.randn(40, 60, device="cuda")
    state = {"t": x.t(), "column": x[:, 3], "empty": x[:0], "scalar": x.sum(), "half": x.half()}
    want = {name: value.cpu().contiguous() for name, value in state.items()}
    checkpoint.async_save(state, checkpoint_id=tmp_path / "a").result()
    found = saved(tmp_path / "a", want)
    assert all(found[name].shape == want[name].shape and (found[name] == want[name]).all() for name in want)


def test_the_call_does_not_wait_for_the_device(tmp_path):
    if cuda.get_device_name() != "emulated":
        pytest.skip("only the emulator can be told to be busy")
    wait = ctypes.CDLL(os.environ["PYDIST_CUDA_LIBRARY"]).pd_emulated_wait
    wait.argtypes, wait.restype = [ctypes.c_double], None
    x = pydist.ones(N, device="cuda")
    checkpoint.async_save({"x": x}, checkpoint_id=tmp_path / "before").result()  # the pinned memory is there
    wait(400)
    try:
        begin = time.monotonic()
        future = checkpoint.async_save({"x": x}, checkpoint_id=tmp_path / "a")
        x.zero_()
        assert time.monotonic() - begin < 0.2 and not future.staging_completion.done()
        future.result()
        assert time.monotonic() - begin > 0.3
    finally:
        wait(0)
    assert saved(tmp_path / "a", {"x": x})["x"].unique().tolist() == [1]


def test_loading_to_the_device(tmp_path):
    want = {"w": pydist.randn(100, 30), "n": pydist.arange(5)}
    checkpoint.save({name: value.cuda() for name, value in want.items()}, checkpoint_id=tmp_path / "a")
    found = {name: pydist.zeros_like(value, device="cuda") for name, value in want.items()}
    checkpoint.load(found, checkpoint_id=tmp_path / "a")
    assert all(found[name].is_cuda and pydist.equal(found[name].cpu(), want[name]) for name in want)
