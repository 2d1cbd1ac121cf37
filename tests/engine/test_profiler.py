"""The profiler: what it records, its averages and tables next to torch's, schedules, traces of ranks, its bounds."""

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

import pydist
from pydist import _C, nn
from pydist import distributed as dist
from pydist.autograd.profiler_legacy import profile as legacy_profile
from pydist.distributed.fsdp import fully_shard
from pydist.nn import functional as F
from pydist.profiler import (
    ProfilerAction,
    ProfilerActivity,
    merge_chrome_traces,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)
from pydist.testing import run_ranks


def step():
    """A training step with every product that has a formula."""
    pydist.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 16))
    optimizer = pydist.optim.Adam(net.parameters())
    x = pydist.randn(3, 2, 8, 8)
    with record_function("forward"):
        loss = net(x).square().mean()
    loss.backward()
    optimizer.step()


def by_key(events):
    return {e.key: e for e in events}


def test_events_nest_and_times_add_up():
    with profile(record_shapes=True) as prof:
        step()
    events = prof.events()
    forward = next(e for e in events if e.name == "forward")
    assert {"conv2d", "relu", "linear"} <= {e.name for e in forward.cpu_children} and forward.cpu_parent is None
    backward = next(e for e in events if e.name == "backward")
    names = {e.name for e in backward.cpu_children}
    assert {"linear.backward", "conv2d.backward", "relu.backward"} <= names
    linear = next(e for e in backward.cpu_children if e.name == "linear.backward")
    assert any(e.name == "bmm" for e in linear.cpu_children) and linear.input_shapes == [[3, 16]]
    assert any(e.name == "adam_step" for e in events)
    for e in events:
        assert e.self_cpu_time_total >= -1e-6 and e.cpu_time_total >= 0
        if e.cpu_parent:
            assert (
                e.cpu_parent.time_range.start <= e.time_range.start <= e.time_range.end <= e.cpu_parent.time_range.end
            )
    top = sum(e.cpu_time_total for e in events if e.cpu_parent is None)
    assert top == pytest.approx(events.self_cpu_time_total)
    averages = prof.key_averages()
    assert sum(e.self_cpu_time_total for e in averages) == pytest.approx(top)
    assert sum(e.count for e in averages) == len(events)
    assert by_key(averages)["conv2d"].count == 1 and by_key(averages)["conv2d"].input_shapes is None
    shapes = [e.input_shapes for e in prof.key_averages(group_by_input_shape=True) if e.key == "linear"]
    assert shapes == [[[3, 256], [16, 256], [16]]]


def test_flops_are_torchs(torch):
    """Products counted as torch counts them in forward; the gradients of a product are two products of its size."""

    def forward(lib, x, w, b, image, kernel):
        functional = lib.nn.functional
        functional.linear(x, w, b)
        functional.conv2d(image, kernel, stride=2, padding=1, groups=2)
        return x @ w.t()

    shapes = [(5, 7), (3, 7), (3,), (2, 4, 9, 9), (6, 2, 3, 3)]
    with profile(with_flops=True) as ours:
        forward(pydist, *(pydist.ones(*s) for s in shapes))
    with torch.profiler.profile(with_flops=True, activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        forward(torch, *(torch.ones(*s) for s in shapes))
    want = {e.key: e.flops for e in theirs.key_averages()}
    got = {e.key: e.flops for e in ours.key_averages()}
    assert (
        got["linear"] == want["aten::addmm"]
        and got["bmm"] == want["aten::mm"]
        and got["conv2d"] == want["aten::conv2d"]
    )

    x, w = pydist.ones(5, 7, requires_grad=True), pydist.ones(3, 7, requires_grad=True)
    image, kernel = pydist.ones(2, 4, 9, 9, requires_grad=True), pydist.ones(6, 4, 3, 3, requires_grad=True)
    q = pydist.ones(2, 3, 16, 8, requires_grad=True)
    with profile(with_flops=True) as prof:
        (
            F.linear(x, w).sum() + F.conv2d(image, kernel).sum() + F.scaled_dot_product_attention(q, q, q).sum()
        ).backward()
    got = {e.key: e.flops for e in prof.key_averages()}
    assert got["bmm"] == 2 * got["linear"] == 4 * 5 * 7 * 3
    assert got["conv2d_grad_input"] == got["conv2d_grad_weight"] == got["conv2d"] == 2 * (2 * 6 * 7 * 7) * 4 * 9
    assert got["attend"] == 4 * 2 * 3 * 16 * 16 * 8 and got["attend.backward"] == 10 * 2 * 3 * 16 * 16 * 8


def test_autocast_counts_no_product_twice():
    def flops(context):
        x, w = pydist.ones(5, 7, requires_grad=True), pydist.ones(3, 7, requires_grad=True)
        image, kernel = pydist.ones(2, 4, 9, 9, requires_grad=True), pydist.ones(6, 4, 3, 3, requires_grad=True)
        with profile(with_flops=True) as prof:
            with context:
                loss = F.linear(x, w).sum() + F.conv2d(image, kernel).sum()
            loss.backward()
        found = by_key(prof.key_averages())
        assert found["linear"].count == found["conv2d"].count == 1
        return sum(e.flops for e in prof.events())

    assert flops(pydist.autocast("cpu", dtype=pydist.bfloat16)) == flops(contextlib.nullcontext()) > 0


def test_bytes_and_memory():
    x = pydist.ones(1 << 18)
    with profile(profile_memory=True, with_flops=True) as prof:
        y = x + x
        y.add_(1)
        del y
    found = by_key(prof.key_averages())
    assert found["add"].bytes == 3 << 20 and found["add"].cpu_memory_usage == 1 << 20
    assert found["add_"].bytes == 2 << 20 and found["add_"].cpu_memory_usage == 0
    assert "1.00 MB" in prof.key_averages().table(sort_by="cpu_memory_usage", row_limit=1)


def test_table_looks_like_torchs(torch):
    def program(lib):
        with lib.profiler.profile(record_shapes=True, profile_memory=True, with_flops=True) as prof:
            with lib.profiler.record_function("mine"):
                lib.ones(200, 300) @ lib.ones(300, 20)
        return prof.key_averages(group_by_input_shape=True).table(sort_by="self_cpu_time_total", row_limit=5)

    ours, theirs = program(pydist), program(torch)
    for title in ("Name", "Self CPU %", "Self CPU", "CPU total", "CPU time avg", "CPU Mem", "# of Calls", "Input Shapes",
                  "Total MFLOPs", "Self CPU time total: "):  # fmt: skip
        assert title in ours and title in theirs, title
    assert "mine" in ours and "[[200, 300], [300, 20]]" in ours and "2.400" in ours and "2.400" in theirs


def test_table_options():
    with profile() as prof:
        with record_function("outer"):
            for _ in range(3):
                pydist.ones(4).exp()
    averages = prof.key_averages()
    assert "3" in next(line for line in averages.table().splitlines() if re.match(r" *exp ", line)).split()
    assert len(averages.table(row_limit=1).splitlines()) < len(averages.table(row_limit=-1).splitlines())
    top = prof.events().table(top_level_events_only=True)
    assert "outer" in top and " exp " not in top
    assert "ms" in averages.table(time_unit="ms") and averages.table(header="title").splitlines()[1] == "title"
    assert averages.table(sort_by="cuda_time_total")
    assert averages.total_average().count == len(prof.events())
    with pytest.raises(ValueError, match="sort_by is 'speed'"):
        averages.table(sort_by="speed")
    with pytest.raises(ValueError, match="time_unit is 'h'"):
        averages.table(time_unit="h")


def test_schedule_is_torchs(torch):
    for options in (
        {"wait": 1, "warmup": 1, "active": 2},
        {"wait": 0, "warmup": 1, "active": 1, "repeat": 2},
        {"wait": 2, "warmup": 1, "active": 3, "repeat": 1, "skip_first": 4},
        {"wait": 3, "warmup": 1, "active": 1, "skip_first": 2, "skip_first_wait": 1},
    ):
        ours, theirs = schedule(**options), torch.profiler.schedule(**options)
        assert [ours(i).name for i in range(20)] == [theirs(i).name for i in range(20)], options
    for bad in ({"wait": -1, "warmup": 0, "active": 1}, {"wait": 0, "warmup": 0, "active": 0}):
        with pytest.raises(ValueError, match="schedule: wait="):
            schedule(**bad)
    with pytest.raises(ValueError, match="step is -1"):
        schedule(wait=0, warmup=0, active=1)(-1)


def test_steps_follow_the_schedule():
    ready = []
    with profile(
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda p: ready.append((p.step_num, names(p))),
    ) as prof:
        for _ in range(10):
            pydist.ones(2).exp()
            prof.step()
    steps = [[n for n in found if n.startswith("ProfilerStep")] for _, found in ready]
    assert [n for n, _ in ready] == [4, 8]
    assert steps == [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]]
    assert prof.current_action == ProfilerAction.NONE

    ready.clear()
    with pytest.warns(UserWarning, match="without RECORD_AND_SAVE"):
        with profile(schedule=lambda i: ProfilerAction.RECORD if i == 0 else ProfilerAction.NONE) as prof:
            prof.step()
    with profile(schedule=schedule(wait=0, warmup=0, active=5), on_trace_ready=lambda p: ready.append(1)):
        pass  # it ends in the middle of a cycle
    assert ready == [1]


def names(prof):
    return [e.name for e in prof.events()]


def test_one_profiler_at_a_time():
    with profile() as outer:
        with pytest.raises(RuntimeError, match="another profiler is running"):
            profile().start()
        with pytest.raises(RuntimeError, match="is running"):
            outer.events()
        pydist.ones(2).exp()
    assert "exp" in names(outer)
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        profile().key_averages()
    with pytest.raises(ValueError, match="max_events is 0"):
        profile(max_events=0).start()
    with pytest.raises(TypeError, match="activities"):
        profile(activities=["cpu"])
    with pytest.raises(TypeError, match="schedule is int"):
        profile(schedule=3)
    with pytest.raises(TypeError, match="name is int"):
        record_function(3)
    with pytest.raises(ValueError, match="3 bytes"):
        _C._span_end(b"abc", "x")
    with pytest.warns(UserWarning, match="no GPU"):
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])


def test_profilers_of_threads_run_beside_each_other_and_one_of_the_process():
    found, all_began = {}, threading.Barrier(3)

    def work(op):
        all_began.wait()
        with legacy_profile() as prof, record_function(op.__name__):
            op(pydist.ones(2), 1)
            with legacy_profile() as inner:
                op(pydist.ones(2), 1)
            all_began.wait()
        found[op.__name__] = [e.name for e in prof.function_events], [e.name for e in inner.function_events]

    threads = [threading.Thread(target=work, args=(op,)) for op in (pydist.add, pydist.sub)]
    with profile() as prof:
        for thread in threads:
            thread.start()
        all_began.wait()  # both profile from here on
        all_began.wait()
        for thread in threads:
            thread.join()
    for name in ("add", "sub"):
        assert found[name] == ([name, f"aten::{name}", f"aten::{name}"], [f"aten::{name}"])
        assert sum(e.name == name for e in prof.events()) == 3
    recording = _C._profile_start(10, False, False, False, False, False, False)
    del recording  # ends it
    assert _C._span_begin() is None


def test_the_buffer_is_bounded():
    with profile(max_events=10) as prof:
        for _ in range(25):
            pydist.ones(2).exp()
    assert len(prof.events()) == 10 and prof.events().dropped == 15 + (len(names(prof)) - names(prof).count("exp"))
    assert f"{prof.events().dropped} events were dropped" in prof.key_averages().table()
    with profile() as prof:
        for i in range(6000):
            with record_function(f"name {i}"):
                pass
    assert len(prof.events()) == 6000 and "(other names)" in names(prof) and "name 100" in names(prof)


def test_decorator_recursion_and_threads():
    @record_function("fib")
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def work():
        with record_function("in thread"):
            pydist.ones(8).exp()

    with profile() as prof:
        assert fib(4) == 3
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    events = prof.events()
    assert sum(e.name == "fib" for e in events) == 9
    other = next(e for e in events if e.name == "in thread")
    assert other.thread != events[0].thread and [e.name for e in other.cpu_children if e.name == "exp"] == ["exp"]
    shared = record_function("again")  # one object, entered twice
    with profile() as prof, shared, shared:
        pass
    assert names(prof) == ["again", "again"]


def test_stacks_name_the_callers_lines(tmp_path):
    def inner():
        return nn.functional.relu(pydist.ones(3))  # through a module of the package

    with profile(with_stack=True) as prof:
        inner()
    relu = next(e for e in prof.events() if e.name == "relu")
    assert re.match(rf"{re.escape(__file__)}\(\d+\): inner", relu.stack[0]) and "test_stacks_name" in relu.stack[1]
    assert (
        prof.key_averages(group_by_stack_n=1)[0].stack
        and "test_profiler.py" in prof.key_averages(group_by_stack_n=1).table()
    )
    with record_function("slow"):
        pass
    with profile(with_stack=True) as prof:
        with record_function("slow"):
            time.sleep(0.002)
    prof.export_stacks(tmp_path / "stacks.txt")
    assert re.search(r"inner|test_stacks", (tmp_path / "stacks.txt").read_text())
    with profile() as prof:
        pass
    with pytest.raises(RuntimeError, match="with_stack=True"):
        prof.export_stacks(tmp_path / "none")


def test_chrome_trace(tmp_path):
    handler = tensorboard_trace_handler(tmp_path / "logs", worker_name="me", use_gzip=True)
    with profile(record_shapes=True, on_trace_ready=handler) as prof:
        step()
    prof.add_metadata("model", "small")
    prof.add_metadata_json("sizes", "[1, 2]")
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["pid"] for e in spans} == {0} and trace["distributedInfo"]["world_size"] == 1
    assert trace["model"] == "small" and trace["sizes"] == [1, 2]
    began = trace["baseTimeNanoseconds"] / 1e9 + spans[0]["ts"] / 1e6
    assert abs(began - time.time()) < 60
    assert next(e for e in spans if e["name"] == "linear")["args"]["Input Dims"][0] == [3, 256]
    (packed,) = (tmp_path / "logs").iterdir()
    assert re.fullmatch(r"me\.\d+\.pt\.trace\.json\.gz", packed.name)
    assert json.load(gzip.open(packed))["traceEvents"]
    with pytest.raises(ValueError, match="no traces"):
        merge_chrome_traces(tmp_path / "whole.json")


RANKS = """
import sys
import pydist
from pydist import distributed as dist, nn
from pydist.profiler import profile
dist.init_process_group()
net = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
with profile() as prof:
    net(pydist.ones(2, 64)).sum().backward()
    dist.all_reduce(pydist.ones(1000))
prof.export_chrome_trace(f"{sys.argv[1]}/{dist.get_rank()}.json")
dist.destroy_process_group()
"""


def test_ranks_have_lanes_of_their_own(tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", "2", str(tmp_path / "train.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})
    merge_chrome_traces(tmp_path / "whole.json", tmp_path / "0.json", tmp_path / "1.json")
    events = json.loads((tmp_path / "whole.json").read_text())["traceEvents"]
    for rank in (0, 1):
        mine = [e for e in events if e["pid"] == rank]
        assert any(e["args"].get("name") == f"rank {rank}" for e in mine)
        lanes = {e["tid"]: e["args"]["name"] for e in mine if e["name"] == "thread_name"}
        comm = [e for e in mine if e.get("cat") == "communication"]
        assert [e["name"] for e in comm] == ["comm:all_reduce"] * 2 and comm[1]["args"]["bytes"] == 4000
        assert all(lanes[e["tid"]].startswith("communication of group") for e in comm)
        assert any(e["name"] == "all_reduce" and lanes[e["tid"]].startswith("thread") for e in mine)
    spans = [
        [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == "comm:all_reduce" and e["pid"] == r][-1]
        for r in (0, 1)
    ]
    assert max(s[0] for s in spans) < min(s[1] for s in spans)  # the same moment on both


def test_what_sharded_models_do():
    """A reduction reads each rank's gradients and writes the sum, a step is a collective, and a forward waits for a rank
    that has not ended its step or its edit."""

    def work(rank):
        model = fully_shard(nn.Linear(64, 64, bias=False))
        optimizer = pydist.optim.SGD(model.parameters(), lr=0.1)
        for delay in (0.01, 0.1, 1, 10):  # s that the edit of rank 0 takes, in vain if rank 1 comes later
            with profile() if rank else contextlib.nullcontext() as prof:
                with pydist.no_grad():
                    model.weight.fill_(1)
                time.sleep(0 if rank else delay)
                model(pydist.ones(2, 64)).sum().backward()
                optimizer.step()
            found = {event.name: event for event in prof.events()} if rank else {}
            done = pydist.tensor("fully_shard: wait" in found)
            dist.all_reduce(done, dist.ReduceOp.MAX)
            if done:
                return found
        return found

    (_, found) = run_ranks(2, work)
    assert {"fully_shard: wait", "fully_shard: reduce", "write_shards", "reduce_unit"} <= set(found)


def test_what_gathered_units_do(monkeypatch):
    monkeypatch.setenv("PYDIST_FSDP", "private")

    def work(rank):
        model = fully_shard(nn.Linear(64, 64, bias=False))
        with profile() if rank else contextlib.nullcontext() as prof:
            model(pydist.ones(2, 64)).sum().backward()
        return {event.name for event in prof.events()} if rank else set()

    assert "fully_shard: unshard" in run_ranks(2, work)[1]


def test_older_names():
    from pydist.autograd import profiler

    with profiler.profile(record_shapes=True) as prof:
        pydist.ones(3).exp()
        with profiler.record_function("mine"):
            pass
    assert {"exp", "mine"} <= {e.key for e in prof.key_averages()} and "exp" in prof.table(sort_by="cpu_time_total")
    assert (
        len(prof.function_events) == prof.total_average().count and prof.self_cpu_time_total > 0 and "exp" in str(prof)
    )
    with profiler.profile(enabled=False) as prof:
        pass
    assert prof.function_events is None
    with pytest.warns(UserWarning, match="emit_nvtx"), profiler.emit_nvtx():
        pass


def test_compat_finds_them():
    code = """
import pydist.compat; pydist.compat.install()
import torch
from torch.profiler import profile, record_function, ProfilerActivity, schedule, tensorboard_trace_handler
import torch.autograd.profiler as old
with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as p, record_function("x"): torch.ones(3).exp()
with torch.autograd.profiler.record_function("y"): pass
assert "exp" in p.key_averages().table(sort_by="cpu_time_total", row_limit=10)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_fork_and_errors_leave_it_usable():
    with profile() as prof:
        child = os.fork()
        if not child:
            os._exit(int(_C._span_begin() is not None))  # the child is not profiled
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(RuntimeError):
            pydist.ones(2, 3) @ pydist.ones(2, 3)
        with pytest.raises(KeyError), record_function("failing"):
            raise KeyError
    assert "failing" in names(prof) and "bmm" not in names(prof)
    before = record_function("over the end")
    with profile() as prof:
        before.__enter__()
    before.__exit__()
    assert names(prof) == []
