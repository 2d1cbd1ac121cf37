"""The profiler's lanes of a GPU."""

import json

import pytest

import pydist
from pydist import _C, nn
from pydist.nn import functional as F
from pydist.profiler import ProfilerActivity, profile, record_function, supported_activities

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)


def work(model, x):
    with record_function("forward"):
        loss = F.cross_entropy(model(x), pydist.zeros(8, dtype=pydist.int64, device=x.device))
    loss.backward()


def test_times_of_the_device(tmp_path):
    assert supported_activities() == {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    model, x = nn.Linear(16, 4).cuda(), pydist.randn(8, 16, device="cuda")
    near = pydist.ones(1000)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        for _ in range(3):
            work(model, x)
        near.exp()  # the CPU's
    events = {e.key: e for e in prof.key_averages()}
    assert events["linear"].count == 3 and events["linear"].device_time_total > 0 == events["exp"].device_time_total
    assert 0 < events["linear"].self_cuda_time_total <= events["linear"].cuda_time_total
    assert events["forward"].device_time_total >= events["linear"].device_time_total
    assert events["linear"].cuda_time == pytest.approx(events["linear"].device_time_total / 3)
    table = prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=3)
    assert "Self CUDA" in table and "CUDA total" in table and "Self CUDA time total: " in table
    for e in prof.events():
        if e.device_time_range:
            assert e.device_index == 0 and e.device_time_range.start <= e.device_time_range.end
            assert e.cpu_parent is None or e.cpu_parent.device_time_range.start <= e.device_time_range.start + 1
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    (lane,) = [e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == "GPU 0"]
    on_gpu = [e for e in events if e["tid"] == lane and e["ph"] == "X"]
    assert {"linear", "forward"} <= {e["name"] for e in on_gpu} and all(
        e["cat"] == "kernel" and e["dur"] >= 0 for e in on_gpu
    )


def test_without_the_gpu():
    x = pydist.ones(8, device="cuda")
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        x + 1
    assert [e.device_time_range for e in prof.events()] == [None] and "CUDA" not in str(prof.key_averages())


def test_graphs_can_be_captured_meanwhile():
    x, g = pydist.ones(8, device="cuda"), pydist.cuda.CUDAGraph()
    with profile() as prof:
        x + 1
        with pydist.cuda.graph(g):
            y = x * 3
        g.replay()
    assert y.tolist() == [3.0] * 8
    times = {e.key: e.device_time_total for e in prof.key_averages()}
    assert times["add"] > 0 == times["mul"]


def test_spans_that_are_none():
    with profile():
        span = bytearray(_C._span_begin())
        span[-4:] = b"\xff\xff\xff\x7f"  # a point that there is not
        _C._span_end(bytes(span), "made up")
        pydist.ones(3, device="cuda").exp()
