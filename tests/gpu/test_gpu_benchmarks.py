"""What measures a GPU runs; its figures are not tested here."""

import math
import sys
from pathlib import Path

import pytest

import pydist
from pydist import _C

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]
import timings

from benchmarks import cuda
from benchmarks.workloads import gpt


def test_training_is_measured(monkeypatch):
    monkeypatch.setitem(gpt.SIZES, "tiny", (1, 2, 16, 8, 2, 40))
    monkeypatch.setitem(cuda.ON_CUDA, "tiny", ("gpt", {"size": "tiny"}))
    monkeypatch.setattr(cuda, "STEPS", 2)
    monkeypatch.setitem(cuda.PEAK, pydist.cuda.get_device_name(), 1e12)
    found = cuda.measure("pydist", "tiny")
    assert found["unit"] == "tokens" and found["rate"] == pytest.approx(16 / found["ms"] * 1e3)
    assert abs(found["loss"] - math.log(40)) < 1 and found["utilisation"] > 0 and found["memory"] > 0


def test_what_is_measured_on_a_gpu():
    assert gpt.SIZES[cuda.ON_CUDA["gpt2-124M"][1]["size"]] == (12, 12, 768, 1024, 32, 50304)
    assert cuda.ON_CUDA["resnet50"][1]["batch"] >= 256 and list(cuda.FRAMEWORKS) == ["pydist", "torch", "torch.compile"]


def test_kernels_are_timed():
    found = dict(timings.measured(pydist, 4096, sides=(16,)))
    assert found["copy float32"].endswith("100%") and "TFLOP/s" in found["matmul 16 bfloat16"]
    assert {"AdamW", "layer_norm, both ways, bfloat16", "cross_entropy, both ways, bfloat16"} <= found.keys()
