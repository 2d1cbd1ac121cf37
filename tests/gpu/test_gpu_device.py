"""Tensors on CUDA's devices: moving, mixing, memory, errors, streams and events."""

import gc
import os
import subprocess
import sys

import pytest

import pydist
from pydist import _C, cuda, info

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)


def test_there_and_back():
    x = pydist.arange(24, dtype=pydist.float32).reshape(2, 3, 4)
    for layout in (x, x.permute(2, 0, 1), x[:, :, ::2], x[:1].expand(5, 3, 4), x[0, 0, 0]):
        there = layout.cuda()
        assert there.is_cuda and not there.is_cpu and str(there.device) == "cuda:0" and there.get_device() == 0
        assert there.cpu().tolist() == layout.tolist() == there.tolist()
        assert there.to("cuda:0") is there
    assert x.to("cuda", pydist.float64).dtype is pydist.float64
    assert x.cpu() is x
    assert x.to(there).is_cuda
    assert "device='cuda:0'" in repr(there)


def test_creation_on_the_device():
    for made in (
        pydist.zeros(2, 3, device="cuda"),
        pydist.full((2, 3), 0.0, device="cuda"),
        pydist.tensor([[0.0] * 3] * 2, device="cuda"),
    ):
        assert made.is_cuda and made.cpu().tolist() == [[0.0] * 3] * 2
    like = pydist.ones_like(made)
    assert like.is_cuda and like.sum().item() == 6
    for new in (
        like.new_zeros(2),
        like.new_ones(2) - 1,
        like.new_full((2,), 0.0),
        like.new_tensor([0.0, 0.0]),
        like.new_empty(2).zero_(),
    ):
        assert new.is_cuda and new.tolist() == [0.0, 0.0]
    assert not like.new_zeros(2, device="cpu").is_cuda and not pydist.ones(1).new_tensor(like).is_cuda
    assert pydist.arange(5, device="cuda").tolist() == [0, 1, 2, 3, 4]
    pydist.manual_seed(1)
    on_cpu = pydist.randn(7)
    pydist.manual_seed(1)
    assert pydist.randn(7, device="cuda").tolist() == on_cpu.tolist()


def test_gradients_cross_devices():
    x = pydist.randn(3, 4, requires_grad=True)
    y = (x.cuda() * 2).tanh()
    y.sum().backward()
    assert not x.grad.is_cuda
    again = x.detach().requires_grad_()
    (again * 2).tanh().sum().backward()
    assert (x.grad - again.grad).abs().max().item() < 1e-6


def test_numbers_on_the_cpu_follow():
    x = pydist.ones(3, device="cuda")
    assert (x + pydist.tensor(2.0)).tolist() == [3.0] * 3
    assert (pydist.tensor(2.0) - x).is_cuda
    x += pydist.tensor(1.0)
    x.copy_(pydist.tensor([4.0, 5.0, 6.0]))
    assert x.tolist() == [4.0, 5.0, 6.0]
    near = pydist.zeros(3)
    near.copy_(x)
    assert near.tolist() == [4.0, 5.0, 6.0]


def test_mixed_devices_are_refused():
    x, y = pydist.ones(3, device="cuda"), pydist.ones(3)
    for bad in (lambda: x + y, lambda: y + x, lambda: y.add_(x), lambda: x.add_(y), lambda: pydist.where(y > 0, x, x)):
        with pytest.raises(RuntimeError, match="on the same device: got c.* and, for input.*expected one device"):
            bad()
    with pytest.raises(RuntimeError, match="invalid device ordinal 100"):
        pydist.ones(3, device="cuda:100")
    for bad in (x.numpy, lambda: memoryview(x)):
        with pytest.raises(TypeError, match="numpy: the tensor is on cuda:0 .expected the CPU"):
            bad()
    assert (x + 1).tolist() == [2.0] * 3  # and all goes on


def test_memory_is_counted_and_reused():
    gc.collect()
    cuda.empty_cache()
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    x = pydist.empty(1 << 18, device="cuda")
    at = x.data_ptr()
    assert cuda.memory_allocated() - before == 1 << 20
    del x
    assert cuda.memory_allocated() == before and cuda.max_memory_allocated() - before == 1 << 20
    assert cuda.memory_reserved() >= 2 << 20
    assert pydist.empty(1 << 18, device="cuda").data_ptr() == at
    cuda.empty_cache()
    assert cuda.memory_reserved() - cuda.memory_allocated() < 2 << 20


def test_blocks_do_not_overlap():
    """Tensors of many sizes that come and go keep what was written to them."""
    import random

    draw, held = random.Random(5), []
    for i in range(300):
        if held and draw.random() < 0.45:
            x, value = held.pop(draw.randrange(len(held)))
            assert x.amin().item() == x.amax().item() == value
        else:
            held.append(
                (
                    pydist.full(
                        (draw.choice([1, 3, 100, 513, 4096, 70000, 300001, 700000]),),
                        i,
                        dtype=pydist.float32,
                        device="cuda",
                    ),
                    i,
                )
            )
    for x, value in held:
        assert x.amin().item() == x.amax().item() == value


def test_out_of_memory_can_be_caught():
    free, total = cuda.mem_get_info()
    failures = cuda.memory_stats()["num_ooms"]
    with pytest.raises(
        cuda.OutOfMemoryError, match="out of memory on cuda:0: tried to allocate .* bytes; tensors hold"
    ):
        pydist.empty(total, dtype=pydist.float64, device="cuda")
    for huge in (1 << 48, 1 << 50, (1 << 59) - 1):  # beyond any bin of the cache
        with pytest.raises(cuda.OutOfMemoryError, match=f"tried to allocate {huge} bytes"):
            pydist.empty(huge, dtype=pydist.uint8, device="cuda")
    assert cuda.memory_stats()["num_ooms"] == failures + 4
    held = []
    with pytest.raises(MemoryError):
        while True:
            held.append(pydist.empty(total // 8, dtype=pydist.uint8, device="cuda"))
    assert len(held) >= 5
    del held
    assert pydist.ones(4, device="cuda").sum().item() == 4
    assert pydist.empty(total // 8 * 5, dtype=pydist.uint8, device="cuda").numel()  # the cache gives way


def test_streams_and_events():
    side = cuda.Stream()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    assert cuda.current_stream() == cuda.default_stream() != side
    with cuda.stream(side):
        assert cuda.current_stream() == side
        start.record()
        x = pydist.ones(1000, device="cuda") * 3
        end.record()
    assert cuda.current_stream() == cuda.default_stream()
    cuda.current_stream().wait_stream(side)
    assert x.sum().item() == 3000
    end.synchronize()
    assert end.query() and side.query() and start.elapsed_time(end) >= 0
    cuda.synchronize()


def test_the_current_device():
    assert cuda.current_device() == 0
    if cuda.device_count() < 2:
        return
    with cuda.device(1):
        assert cuda.current_device() == 1
        x = pydist.ones(2, device="cuda")
    assert str(x.device) == "cuda:1" and cuda.current_device() == 0
    assert x.to("cuda:0").tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="on the same device"):
        x + x.to("cuda:0")


def test_properties():
    p = cuda.get_device_properties()
    assert p.name and p.total_memory > 1 << 20 and p.multi_processor_count >= 1
    assert cuda.get_device_capability() == (p.major, p.minor)


def test_numbers_go_to_indices_and_masks():
    for on_cpu in (pydist.arange(12).float(), pydist.arange(12).float().view(4, 3).t()):
        x = on_cpu.cuda()
        for t in (on_cpu, x):
            mask, first = t > 9, pydist.tensor([0, 2], device=t.device)
            t[first] = 5
            t[mask] = pydist.tensor(-1.0)
            t[t == 4] += 0.5
            t.index_fill_(0, first[1:], 3.0)
        assert x.cpu().tolist() == on_cpu.tolist()


def test_info_names_what_was_built_and_what_is_here():
    (line,) = [line for line in info.lines() if line.startswith("CUDA: ")]
    assert line.startswith(f"CUDA: {_C.cuda_built()}, {cuda.device_count()} devices") and _C.cuda_built().startswith(
        "CUDA"
    )


ASK = """
import pydist
try:
    print(pydist.ones(2, device="cuda").sum().item())
except RuntimeError as error:
    print(error)
print(pydist.ones(2).sum().item())
"""


@pytest.mark.parametrize(
    "knob, why",
    [
        (
            "EMULATED_DRIVER=12040",
            "the driver is too old: it serves CUDA 12.4 (expected 13.0, of which this pydist is built, ",
        ),
        ("EMULATED_DRIVER=0", "CUDA: there is no driver"),
        (
            "EMULATED_UNBUILT=1",
            "cuda:0: this pydist has no kernels for emulated, sm_00: it was built of CUDA (expected a build",
        ),
    ],
)
def test_what_cannot_serve_is_told(knob, why):
    if "emulate" not in cuda.get_device_name():
        pytest.skip("a device's driver and kind are what they are")
    name, value = knob.split("=")
    done = subprocess.run(
        [sys.executable, "-c", ASK], env={**os.environ, name: value}, capture_output=True, text=True, timeout=60
    )
    assert why in done.stdout and done.stdout.endswith("2.0\n"), done.stdout + done.stderr
