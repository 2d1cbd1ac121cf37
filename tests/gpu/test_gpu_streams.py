"""What streams, captures, threads and forks may do to each other: on the emulator, which refuses what CUDA refuses."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time

import pytest

import pydist
from pydist import _C, cuda

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

N = 1 << 18  # elements: 1 MiB


def emulated():
    return cuda.get_device_name() == "emulated"


@pytest.fixture
def busy():
    """A function that makes the device busy for so many milliseconds."""
    if not emulated():
        pytest.skip("only the emulator can be told to be busy")
    wait = ctypes.CDLL(os.environ["PYDIST_CUDA_LIBRARY"]).pd_emulated_wait
    wait.argtypes, wait.restype = [ctypes.c_double], None
    yield wait
    wait(0)


def other_device():
    if cuda.device_count() < 2:
        pytest.skip("one device")
    return 1


def are(t, value):
    return t.amin().item() == t.amax().item() == value


# ---- captures ---------------------------------------------------------------------------------------------------------


def test_a_forked_streams_memory_is_the_graphs():
    x, side, g = pydist.ones(N, device="cuda"), cuda.Stream(), cuda.CUDAGraph()
    with cuda.graph(g):
        side.wait_stream(cuda.current_stream())
        with side:
            passing = x + 1
            at = passing.data_ptr()
            y = passing * 3
            del passing  # a replay writes there
        cuda.current_stream().wait_stream(side)
        z = y + 1
    with side:
        others = [pydist.full((N,), 5.0, device="cuda") for _ in range(4)]
    assert at not in [t.data_ptr() for t in others]
    g.replay()
    cuda.synchronize()
    assert are(y, 6) and are(z, 7) and all(are(t, 5) for t in others)


def test_a_forked_stream_that_does_not_come_back_is_told():
    x, side, g = pydist.ones(8, device="cuda"), cuda.Stream(), cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="CUDAGraph: CUDA: .*unjoined"), cuda.graph(g):
        side.wait_stream(cuda.current_stream())
        with side:
            x + 1
    with side:
        assert are(x + 1, 2)  # and all goes on


def test_memory_that_a_capture_uses_comes_back_after_it():
    pydist.ones(N, device="cuda")
    x, g = pydist.ones(N, device="cuda"), cuda.CUDAGraph()
    at = x.data_ptr()
    with cuda.graph(g):
        y = x + 1
        x.record_stream(cuda.current_stream())
        del x
        for _ in range(3):
            assert pydist.empty(N, device="cuda").data_ptr() != at
            y += 1  # an error that is kept would be told here
    cuda.synchronize()
    assert at in [pydist.empty(N, device="cuda").data_ptr(), pydist.empty(N, device="cuda").data_ptr()]


def test_nothing_waits_for_the_device_in_a_capture():
    x, old, g = pydist.ones(N, device="cuda"), cuda.CUDAGraph(), cuda.CUDAGraph()
    with cuda.graph(old):
        made = x * 2
    old.replay()
    cuda.synchronize()
    gone = cuda.CUDAGraph()
    with cuda.graph(gone):
        x * 3
    gone.me = gone  # for the collector
    gone.replay()
    retries = cuda.memory_stats()["num_alloc_retries"]
    with cuda.graph(g):
        y = x + 1
        with pytest.raises(cuda.OutOfMemoryError):
            pydist.empty(cuda.mem_get_info()[1], device="cuda")
        cuda.empty_cache()
        old.reset()
        del gone, made
        gc.collect()
        z = y * 2
    assert cuda.memory_stats()["num_alloc_retries"] == retries
    g.replay()
    cuda.synchronize()
    assert are(z, 4)
    del g, y, z
    held = cuda.memory_allocated()
    cuda.empty_cache()
    assert cuda.memory_reserved() - held < 4 << 20  # the pools of all three are everybody's


def test_waiting_in_a_capture_is_refused():
    x, g = pydist.ones(8, device="cuda"), cuda.CUDAGraph()
    with cuda.graph(g):
        y = x + 1
        with pytest.raises(RuntimeError, match="synchronize: a CUDA graph is being captured on cuda:0"):
            cuda.synchronize()
        for ask in (cuda.current_stream().synchronize, cuda.current_stream().query):
            with pytest.raises(RuntimeError, match=r"Stream\.\w+: a CUDA graph is being captured in this stream"):
                ask()
        with pytest.raises(RuntimeError, match="a CUDA graph is being captured"), cuda.graph(cuda.CUDAGraph()):
            x + 2
    g.replay()
    assert are(y, 2)


def test_a_broken_capture_is_told_and_all_goes_on():
    x, g, event = pydist.ones(8, device="cuda"), cuda.CUDAGraph(), cuda.Event()
    with pytest.raises(RuntimeError, match=r"CUDAGraph: CUDA: .*error 901"), cuda.graph(g):
        event.record()
        with pytest.raises(RuntimeError, match=r"Event.query: CUDA: .*error 907"):
            event.query()
    with pytest.raises(RuntimeError, match="nothing has been captured"):
        g.replay()
    with pytest.raises(RuntimeError, match="capture_end: nothing is being captured"):
        _C.cuda_capture_end(0)
    with cuda.graph(g):
        y = x + 1
    g.replay()
    assert are(y, 2)


def test_an_exception_in_a_capture_leaves_no_graph():
    x, side = pydist.ones(N, device="cuda"), cuda.Stream()
    held = cuda.memory_allocated()
    for forks in (False, True):
        g = cuda.CUDAGraph()
        with pytest.raises(ZeroDivisionError), cuda.graph(g):
            y = x + 1
            if forks:
                side.wait_stream(cuda.current_stream())
                with side:
                    y + 1
            1 / 0
        del y
        with pytest.raises(RuntimeError, match="nothing has been captured"):
            g.replay()
        with cuda.graph(g):
            y = x + 2
        g.replay()
        assert are(y, 3)
        del y, g
    gc.collect()
    assert cuda.memory_allocated() == held


def test_what_is_no_pool_is_refused():
    with pytest.raises(TypeError, match="CUDAGraph: pool is int .expected graph_pool_handle"):
        cuda.graph(cuda.CUDAGraph(), pool=3).__enter__()
    side = cuda.Stream()
    with side, pytest.raises(ValueError, match="got 77, which is no stream"):
        _C.cuda_pool_free(0, 1, (77,))


def test_a_graphs_memory_waits_for_its_launches(busy):
    """Of a graph that is gone: until the streams where it was launched are through."""
    x, g, launches = pydist.ones(N, device="cuda"), cuda.CUDAGraph(), cuda.Stream()
    with cuda.graph(g):
        y = x + 1
    with launches:
        g.replay()
    launches.synchronize()
    at, stream = y.data_ptr(), cuda.Stream()
    del g
    gc.collect()
    busy(150)
    begun = time.perf_counter()
    del y  # its reader may be in `launches`
    with stream:
        assert pydist.empty(N, device="cuda").data_ptr() != at
    assert time.perf_counter() - begun < 0.1  # the host waits for nothing


def test_tensors_die_on_another_thread_while_a_graph_replays():
    x, side, g = pydist.zeros(N, device="cuda"), cuda.Stream(), cuda.CUDAGraph()
    with cuda.graph(g):
        x += 1
    stop, wrong = threading.Event(), []

    def others():
        while not stop.is_set():
            t = pydist.full((N // 2,), 7.0, device="cuda")
            with side:
                t.record_stream(side)
            if not are(t, 7):
                wrong.append(t)
            del t

    thread = threading.Thread(target=others)
    thread.start()
    for _ in range(30):
        g.replay()
        time.sleep(0.002)
    stop.set()
    thread.join()
    assert are(x, 30) and not wrong


# ---- the host's lock --------------------------------------------------------------------------------------------------

WAITS = {
    "item": lambda t: t[0].item(), "tolist": lambda t: t.tolist(), "cpu": lambda t: t.cpu(), "to": lambda t: t.to("cpu"),
    "bool": lambda t: bool(t[0]), "float": lambda t: float(t[0]), "numpy": lambda t: t.numpy(force=True),
    "synchronize": lambda t: cuda.synchronize(), "stream": lambda t: cuda.current_stream().synchronize(),
    "empty_cache": lambda t: cuda.empty_cache(), "to the device": lambda t: pydist.ones(3).to("cuda"),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_other_threads_go_on_while_one_waits_for_the_device(name, busy):
    t, counted, stop = pydist.ones(4, device="cuda"), [0], threading.Event()

    def count():
        while not stop.is_set():
            time.sleep(0.002)
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    busy(300)
    begun, before = time.perf_counter(), counted[0]
    WAITS[name](t)
    took, after = time.perf_counter() - begun, counted[0]
    stop.set()
    thread.join()
    assert took > 0.2 and after - before > 10


def test_copies_to_the_host_need_not_wait(busy):
    x = pydist.arange(1000, device="cuda").reshape(10, 100)
    busy(300)
    begun = time.perf_counter()
    near = [x.to("cpu", non_blocking=True) for _ in range(3)]
    assert time.perf_counter() - begun < 0.2
    cuda.synchronize()
    assert all(t.is_pinned() and t.tolist() == x.tolist() for t in near)
    busy(300)
    at = x.to("cpu", non_blocking=True).data_ptr()  # nobody has it, but the copy is under way
    assert x.to("cpu", non_blocking=True).data_ptr() != at
    assert x.float().requires_grad_().to("cpu", non_blocking=True).grad_fn is not None


# ---- streams ----------------------------------------------------------------------------------------------------------


def test_streams_are_used_again():
    first, second = cuda.Stream(), cuda.Stream()
    numbers = {first.cuda_stream, second.cuda_stream}
    assert len(numbers) == 2
    del first, second
    again = [cuda.Stream(), cuda.Stream()]
    assert {s.cuda_stream for s in again} == numbers
    urgent = cuda.Stream(priority=-1)
    assert urgent.cuda_stream not in numbers
    number = cuda.Stream().cuda_stream
    for _ in range(50):
        assert cuda.Stream().cuda_stream == number


def test_a_stream_that_was_given_back_is_told():
    side = cuda.Stream()
    with side:
        kept = cuda.current_stream()
    x = pydist.ones(4, device="cuda")
    del side
    for use in (kept.synchronize, kept.query, kept.record_event, kept.__enter__):
        with pytest.raises(ValueError, match="given back when its Stream was deleted"):
            use()
    x.record_stream(kept)  # it is only waited for
    with pytest.raises(ValueError, match="Stream.query: got 12345, which is no stream"):
        cuda.Stream._of(0, 12345).query()
    with pytest.raises(ValueError, match="Stream.query: got -1, which is no stream"):
        cuda.Stream._of(0, -1).query()


def test_streams_of_another_device():
    far = cuda.Stream(other_device())
    x, event = pydist.ones(N, device="cuda"), cuda.Event()
    for use in (lambda: x.record_stream(far), lambda: _C.cuda_set_stream(0, far.cuda_stream)):
        with pytest.raises(ValueError, match="the stream is of cuda:1 .expected one of cuda:0"):
            use()
    with pytest.raises(ValueError, match="graph: the stream is of cuda:1 .expected one of the current device, cuda:0"):
        cuda.graph(cuda.CUDAGraph(), stream=far).__enter__()
    with far:
        y = pydist.ones(N, device="cuda:1") + 1
        z = x + 1  # in cuda:0's own stream
    event.record(far)
    with pytest.raises(ValueError, match="Event.record: a stream of cuda:0 .expected one of cuda:1, as before"):
        event.record()
    cuda.current_stream().wait_event(event)
    cuda.default_stream(1).wait_event(event)
    cuda.default_stream(1).record_event().synchronize()
    assert are(y, 2) and are(z, 2)


def test_a_graph_is_of_one_device():
    far, x, g = cuda.Stream(other_device()), pydist.ones(8, device="cuda"), cuda.CUDAGraph()
    pydist.ones(8, device="cuda:1")
    with cuda.graph(g):
        y = x + 1
        far.wait_stream(cuda.current_stream())
        with (
            far,
            pytest.raises(RuntimeError, match="a stream of cuda:1 takes part in the capture of another device's graph"),
        ):
            pydist.empty(8, device="cuda:1")
        cuda.current_stream().wait_stream(far)
    g.replay()
    assert are(y, 2)
    with cuda.device(1), pytest.raises(RuntimeError, match="CUDAGraph: the pool is of cuda:0 .expected one of cuda:1"):
        cuda.graph(cuda.CUDAGraph(), pool=g.pool()).__enter__()


def test_memory_of_another_device_waits_for_its_streams(busy):
    far = cuda.Stream(other_device())
    pydist.empty(N, device="cuda:1")
    x = pydist.ones(N, device="cuda:1")
    at = x.data_ptr()
    x.record_stream(far)
    busy(300)
    assert cuda.current_device() == 0
    pydist.zeros(4, device="cuda:0")
    del x
    assert pydist.empty(N, device="cuda:1").data_ptr() != at
    pydist.zeros(4, device="cuda:0")  # that it is not ready is no error of this one
    far.synchronize()
    assert at in [pydist.empty(N, device="cuda:1").data_ptr(), pydist.zeros(N, device="cuda:1").data_ptr()]


def test_pinned_memory_serves_all_devices():
    other_device()
    p = pydist.arange(100).pin_memory()
    for device in ("cuda:0", "cuda:1", "cuda:1", "cuda:0"):
        assert p.to(device, non_blocking=True).tolist() == list(range(100))


# ---- forks ------------------------------------------------------------------------------------------------------------

FORK = """
import ctypes, os, sys, threading, time
import pydist
from pydist import cuda

x, stream, event, g = pydist.ones(1000, device="cuda"), cuda.Stream(), cuda.Event(), cuda.CUDAGraph()
event.record()
with cuda.graph(g):
    y = x + 1
g.replay()
pinned = pydist.ones(10).pin_memory()
if cuda.get_device_name() == "emulated":
    wait = ctypes.CDLL(os.environ["PYDIST_CUDA_LIBRARY"]).pd_emulated_wait
    wait.argtypes = [ctypes.c_double]
    wait(500)
thread = threading.Thread(target=cuda.empty_cache)  # holds the cache's lock
thread.start()
time.sleep(0.1)
child = os.fork()
if not child:
    allocated = cuda.memory_allocated()
    del x, y, g, stream, event, pinned
    assert cuda.memory_allocated() == allocated > 0  # the parent's
    for use in (lambda: pydist.ones(3, device="cuda"), cuda.Stream, lambda: pydist.ones(3).pin_memory()):
        try:
            use()
        except RuntimeError as error:
            assert "CUDA cannot be used in a forked process (expected the start method 'spawn')" in str(error), error
        else:
            raise AssertionError(use)
    pydist.cuda.empty_cache()
    assert pydist.ones(3).sum().item() == 3
    sys.stdout.flush()
    os._exit(0)
thread.join()
_, status = os.waitpid(child, 0)
assert (x + 1).sum().item() == 2000
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_after_cuda_was_used():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
