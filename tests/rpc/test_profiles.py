"""Profiles of calls: spans at the caller, and what the callee has done for them."""

import json
import threading
import time

import pytest
from rpc.test_rpc import add_all, echo, workers

import pydist
from pydist.autograd import profiler, profiler_legacy
from pydist.distributed import autograd, rpc
from pydist.profiler import record_function

ADD = "rpc_sync#add_all(worker0 -> worker1)"


def forward(x):
    with record_function("forward"):
        return (x * x).relu()


@rpc.functions.async_execution
def ask_further(to, x):
    return rpc.rpc_async(to, forward, (x,))


def fail(x):
    raise ValueError(f"not {x + 1}")


def nap():
    time.sleep(0.5)


def named(events, name):
    found = [e for e in events if e.name == name]
    assert len(found) == 1, (name, [e.name for e in events])
    return found[0]


def test_what_the_callee_does_is_seen_at_the_caller():
    def body():
        x = pydist.ones(3)
        for profile, aten in ((profiler_legacy.profile, "aten::"), (profiler.profile, "")):
            with profile(record_shapes=True, profile_memory=True) as prof, record_function("here"):
                rpc.rpc_sync("worker1", add_all, (x, x))
                rpc.rpc_sync("worker1", pydist.mul, (x, x))
                rpc.rpc_async("worker1", forward, (x,)).wait()
                rref = rpc.remote("worker1", forward, (x,))
                assert rref.to_here().tolist() == [1, 1, 1]
                assert rref._get_profiling_future().wait() is None
            events = prof.function_events
            here, call = named(events, "here"), named(events, ADD)
            assert (call.node_id, call.is_remote, call.is_async, call.count) == (0, False, True, 1)
            mul = named(events, "rpc_sync#aten::mul(worker0 -> worker1)")
            inner = named(events, f"{mul.name}#remote_op: {aten}mul")
            assert (inner.node_id, inner.is_remote, inner.input_shapes) == (1, True, [[3], [3]])
            assert inner.cpu_memory_usage > 0
            for how in ("async", "remote"):
                key = f"rpc_{how}#forward(worker0 -> worker1)#remote_op: "
                span = named(events, f"{key}forward")
                assert [e.name for e in span.cpu_children] == [f"{key}{aten}mul", f"{key}{aten}relu"]
            for e in events:
                if e is not here:
                    assert here.time_range.start <= e.time_range.start <= e.time_range.end <= here.time_range.end, e
                if e.is_remote:
                    assert mul.time_range.start <= inner.time_range.start <= inner.time_range.end <= mul.time_range.end
            assert {(a.key, a.node_id) for a in prof.key_averages()} >= {(ADD, 0), (inner.name, 1)}
        with profiler_legacy.profile() as prof:
            pass
        assert rpc.rpc_sync("worker1", add_all, (x, x)).tolist() == [2, 2, 2] and list(prof.function_events) == []

    workers(2, body)


def test_calls_that_a_call_makes_are_seen_with_their_workers():
    def body():
        with profiler_legacy.profile() as prof:
            rpc.rpc_sync("worker1", ask_further, ("worker2", pydist.ones(2)))
        outer, inner = "rpc_sync#ask_further(worker0 -> worker1)", "rpc_async#forward(worker1 -> worker2)"
        assert named(prof.function_events, f"{outer}#remote_op: {inner}").node_id == 1
        assert named(prof.function_events, f"{outer}#remote_op: {inner}#remote_op: aten::mul").node_id == 2

    workers(3, body)


def test_a_call_that_fails_or_that_nobody_waits_for():
    def body():
        with profiler_legacy.profile() as prof:
            with pytest.raises(ValueError, match="not 2"):
                rpc.rpc_sync("worker1", fail, (1,))
            with pytest.raises(rpc.RpcTimeout):
                rpc.rpc_sync("worker1", nap, timeout=0.01)
        assert [e.name for e in prof.function_events] == [
            f"rpc_sync#{what}(worker0 -> worker1)" for what in ("fail", "nap")
        ]
        with profiler_legacy.profile() as prof:
            late = rpc.rpc_async("worker1", echo, (1,))
        late.wait()
        assert len(prof.function_events) <= 1  # its answer may have come before the profiler's end
        with profiler_legacy.profile() as prof, record_function("block") as block:
            done = block._call_end_callbacks_on_future(rpc.rpc_async("worker1", echo, (7,)))
            with pytest.raises(RuntimeError, match="can only be called once"):
                block._call_end_callbacks_on_future(done)
            assert done.wait() == 7
        span = named(prof.function_events, "block")
        assert span.is_async and not span.is_remote

    workers(2, body)


def test_a_call_to_itself_and_threads_with_profilers_of_their_own():
    def body():
        found = {}

        def profiled(name, op, to):
            with profiler_legacy.profile() as prof:
                for _ in range(20):
                    rpc.rpc_sync(to, op, (pydist.ones(2), pydist.ones(2)))
            found[name] = sorted({e.name for e in prof.function_events})

        threads = [
            threading.Thread(target=profiled, args=case)
            for case in (("one", pydist.add, "worker0"), ("two", pydist.sub, "worker1"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        key = "rpc_sync#aten::add(worker0 -> worker0)"
        assert found["one"] == [key, f"{key}#remote_op: aten::add"]
        key = "rpc_sync#aten::sub(worker0 -> worker1)"
        assert found["two"] == [key, f"{key}#remote_op: aten::sub"]

    workers(2, body)


def enter(prof):
    prof.local_value().__enter__()


def leave(prof):
    prof.local_value().__exit__(None, None, None)


def names_by_thread(prof):
    return [[e.name for e in events] for events in prof.local_value().process_global_function_events]


def test_a_server_is_profiled_from_outside():
    def body():
        x, outer, inner = pydist.ones(2), *(rpc.remote("worker1", rpc._server_process_global_profile) for _ in range(2))
        for prof, op in ((outer, pydist.add), (inner, pydist.sub)):
            rpc.rpc_sync("worker1", enter, (prof,))
            rpc.rpc_sync("worker1", op, (x, x))
        for prof in (outer, inner):  # not in the order in which they were entered
            rpc.rpc_sync("worker1", leave, (prof,))
        assert sum(rpc.rpc_sync("worker1", names_by_thread, (inner,)), []) == ["aten::sub"]
        assert sorted(sum(rpc.rpc_sync("worker1", names_by_thread, (outer,)), [])) == ["aten::add", "aten::sub"]
        assert [a.key for a in inner.rpc_sync().key_averages()] == ["aten::sub"]

    workers(2, body)


def test_backward_over_workers_and_traces(tmp_path):
    def body():
        x = pydist.ones(2, requires_grad=True)
        with autograd.context() as context_id, profiler_legacy.profile() as prof:
            loss = rpc.rpc_sync("worker1", pydist.mul, (x, x)).sum()
            autograd.backward(context_id, [loss])
            assert autograd.get_gradients(context_id)[x].tolist() == [2, 2]
        named(prof.function_events, "torch::distributed::autograd::backward")
        named(prof.function_events, "RecvRpcBackward")
        prof.export_chrome_trace(tmp_path / "list.json")
        with profiler.profile() as prof:
            rpc.rpc_sync("worker1", add_all, (x, x))
        prof.export_chrome_trace(tmp_path / "trace.json")

    workers(2, body)
    spans = {e["name"]: e for e in json.loads((tmp_path / "list.json").read_text()) if e["ph"] == "X"}
    key = "rpc_sync#aten::mul(worker0 -> worker1)"
    assert spans[key]["pid"] == 0 and spans[f"{key}#remote_op: aten::mul"]["pid"] == 1
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ours = next(e for e in trace if e["name"] == ADD)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert names[0, ours["tid"]] == "calls to worker 1"


def test_spans_by_hand():
    def body():
        with profiler_legacy.profile() as prof:
            handle = pydist.ops.profiler._record_function_enter("hand", None)
            future = rpc.rpc_async("worker1", echo, (3,))
            done = pydist.ops.profiler._call_end_callbacks_on_jit_fut(handle, future)
            pydist.ops.profiler._record_function_exit(handle)  # it ends with the future
            with record_function("block") as block:
                assert pydist.ops.profiler._call_end_callbacks_on_jit_fut(block.record, done).wait() == 3
            x = pydist.ops.aten.mul.Tensor(pydist.ones(2), 2)
        names = [e.name for e in prof.function_events]
        assert {"hand", "block", "aten::mul"} <= set(names) and x.tolist() == [2, 2]
        assert named(prof.function_events, "hand").time_range.end <= named(prof.function_events, "block").time_range.end

    workers(2, body)
    for name in ("nope", "tied", "__len__"):
        with pytest.raises(AttributeError, match=f"ops.aten has no {name}"):
            getattr(pydist.ops.aten, name)


def test_what_found_no_room_is_counted():
    def body():
        rpc.rpc_sync("worker1", set_most, (3,))
        with profiler_legacy.profile() as prof:
            rpc.rpc_sync("worker1", many, (5,))
        remote = [e for e in prof.function_events if e.is_remote]
        assert len(remote) == 3 and prof.function_events.dropped == 2

    workers(2, body)


def set_most(n):
    from pydist.distributed.rpc import _spans

    _spans._MOST = n


def many(n):
    for _ in range(n):
        pydist.ones(1) * 2
