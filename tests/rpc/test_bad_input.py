"""What users and machines do wrong, beside what test_rpc.py has: each is a clear error, and the agent goes on."""

import contextlib
import gc
import os
import resource
import subprocess
import sys
import threading
import time

import pytest

import pydist
from lib.ranks import LONG
from pydist.distributed import CommTimeout, DistError, autograd, rpc
from pydist.testing import run_ranks

finished = threading.Event()


def pair(body, *args, but=(), host=False):
    """body(*args) at worker0, while worker1 answers. Afterwards nobody holds anything of the other, `but` for these. host: the
    place where they meet is in a third process, so nothing that is done to worker0 is done to it."""

    def worker(rank, body, args):
        name = f"worker{rank - host}" if rank >= host else "host"
        rpc.init_rpc(name, rank=rank, world_size=2 + host)
        if name == "worker0":
            body(*args)
            assert rpc.rpc_sync("worker1", echo, args=(1,)) == 1
            settle(lambda: not held() and not rpc.rpc_sync("worker1", held).keys() - set(but))
            for other in range(2 + host):
                rpc.rpc_sync(other, finish)
        finished.wait()
        rpc.shutdown(timeout=60)

    run_ranks(2 + host, worker, body, args, processes=True, timeout=120)


def finish():
    finished.set()


def held():
    gc.collect()
    names = "calls_pending", "owner_rrefs", "user_rrefs", "pending_children", "calls_waiting"
    return {name: n for name in names if (n := rpc.stats()[name])}


def settle(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, (held(), rpc.rpc_sync("worker1", held))
        time.sleep(0.01)


def echo(x):
    return x


def throw(kind, *args):
    raise kind(*args)


class NoReduce(Exception):
    def __reduce__(self):
        raise OSError("no reduce")


class NoRebuild(Exception):
    def __reduce__(self):
        return throw, (OSError, "no rebuild")


class NoText(Exception):
    def __repr__(self):
        raise OSError("no text")

    __str__ = __repr__


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__("x")


class Holds(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class NoReduceNoText(NoReduce, NoText):
    pass


def count_up():
    yield from range(3)


def one():
    import nowhere

    return nowhere


def exceptions_that_cannot_travel():
    for to in ("worker1", "worker0"):
        for kind, args in ((NoReduce, ()), (NoRebuild, ()), (Holds, ("it",)), (StopIteration, (3,)), (NoText, ()),
                           (NoReduceNoText, ())):  # fmt: skip
            with pytest.raises(kind) as caught:
                rpc.rpc_sync(to, throw, args=(kind, *args))
            said = (
                caught.value.args[0]
                if not issubclass(kind, NoText)
                else "".join(getattr(caught.value, "__notes__", caught.value.args))
            )
            assert f"name={to}" in said and "in throw" in said
        for kind in (TwoArguments, KeyboardInterrupt, GeneratorExit):
            with pytest.raises(rpc.RemoteError, match=f"(?s)name={to}.*{kind.__name__}"):
                rpc.rpc_sync(to, throw, args=(kind, 1, 2))
        with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"):
            rpc.rpc_sync(to, one)
        failed = rpc.remote(to, throw, args=(NoText,))
        with pytest.raises(NoText):
            failed.to_here()


def references_to_odd_values():
    for to in ("worker1", "worker0"):
        numbers = rpc.remote(to, count_up)
        assert [numbers.rpc_sync().__next__() for _ in range(2)] == [0, 1]
        if to == "worker1":
            with pytest.raises(TypeError, match="cannot pickle 'generator'"):
                numbers.to_here()
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            numbers.rpc_sync().nothing()
        itself = rpc.remote(to, dict)
        itself.rpc_sync().update({"me": itself})
        assert itself.to_here()["me"].to_here()["me"].owner_name() == to
        itself.rpc_sync().clear()  # nobody finds circles over workers


def test_a_module_that_is_not_there(tmp_path):
    (tmp_path / "only_here.py").write_text("def f():\n    return 1\n")

    def body(folder):
        sys.path.insert(0, folder)
        import only_here

        with pytest.raises(ModuleNotFoundError, match=r"No module named 'only_here'.*sys\.path, which begins with /"):
            rpc.rpc_sync("worker1", only_here.f)
        assert rpc.rpc_sync("worker0", only_here.f) == 1

    pair(body, str(tmp_path))


def double_later(x):
    y = x * 1
    threading.Timer(0.1, y.mul_, (2,)).start()
    return y


def odd_tensors():
    x = pydist.ones(3, requires_grad=True)
    for to in ("worker1", "worker0"):
        with pydist.no_grad():
            assert rpc.rpc_sync(to, echo, args=(x,)).tolist() == [1, 1, 1]
        sparse = pydist.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
        assert pydist.equal(rpc.rpc_sync(to, echo, args=(sparse,)).to_dense(), sparse.to_dense())
        with pytest.raises(RuntimeError, match="sparse tensor and int"):
            rpc.rpc_sync(to, pydist.add, args=(sparse, 1))
        assert rpc.rpc_sync(to, echo, args=(pydist.ones(1).expand(10**12),))[-1] == 1
        for odd in (pydist.arange(5.0).flip(0), pydist.arange(6.0).as_strided((4, 3), (1, 1)), pydist.zeros(4)[4:],
                    pydist.arange(3 * 7.0).reshape(3, 7).t()[::2]):  # fmt: skip
            assert pydist.equal(rpc.rpc_sync(to, echo, args=(odd,)), odd)
        assert rpc.rpc_sync(to, echo, args=(pydist.empty(3, device="meta"),)).is_meta
        for size in (10, 100_000):  # changes after the sending are not seen, on either side
            y = pydist.ones(size)
            future = rpc.rpc_async(to, echo, args=(y,))
            y.zero_()
            assert future.wait().sum() == size
            y = rpc.rpc_sync(to, double_later, args=(pydist.ones(size),))
            time.sleep(0.15)
            assert y.sum() == size


def test_odd_values_and_errors():
    """In one world, since each takes a second to begin."""

    def body():
        for part in (
            exceptions_that_cannot_travel,
            references_to_odd_values,
            odd_tensors,
            changes_after_sending,
            clocks_that_jump,
        ):
            part()

    pair(body)


def descriptors(n):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (n or hard, hard))


def test_no_descriptors_left():
    """Shared memory that cannot be mapped: its message is an error, and the connection stays."""

    def body():
        x, y = pydist.rand(1 << 18), pydist.rand(1 << 20)
        rpc.rpc_sync("worker1", echo, args=(1,))  # the workers are connected
        rpc.rpc_sync("worker1", descriptors, args=(3,))
        for function in (echo, pydist.neg):
            with pytest.raises(MemoryError, match="a message of rank 0 could not be taken"):
                rpc.rpc_sync("worker1", function, args=(x,))
        rpc.rpc_sync("worker1", descriptors, args=(0,))
        assert pydist.equal(rpc.rpc_sync("worker1", echo, args=(x,)), x)
        descriptors(3)
        with pytest.raises(MemoryError, match="a message of rank 1 could not be taken"):
            rpc.rpc_sync("worker1", pydist.ones, args=(1 << 20,))
        descriptors(0)
        assert pydist.equal(rpc.rpc_sync("worker1", echo, args=(y,)), y)

    pair(body)


@pytest.mark.parametrize("mib", ["0", "1"] if LONG else ["1"])
def test_little_shared_memory(mib, monkeypatch):
    monkeypatch.setenv("PYDIST_RPC_ARENA", mib)

    def body(mib):
        x = pydist.rand(300_000)
        kept = [rpc.rpc_sync("worker1", echo, args=(x,)) for _ in range(5)]
        assert all(pydist.equal(y, x) for y in kept) and rpc.stats()["arena_bytes"] <= mib << 20

    pair(body, int(mib))


def fail_at(n):
    pydist._C.fault_malloc(n)


@pytest.mark.parametrize("at", ["worker0", "worker1"])
def test_every_allocation_of_a_call_may_fail(at):
    """At the caller or at the callee: the call is right or raises MemoryError, and nothing is held afterwards; only the news
    that a reference has ended may be lost if worker1 has no memory for it."""

    def body(at):
        x, large = pydist.ones(3), pydist.ones(5000)
        calls = [
            lambda: rpc.rpc_sync("worker1", echo, args=([x, large],), timeout=5)[0].tolist() == [1, 1, 1],
            lambda: rpc.rpc_sync("worker1", pydist.add, args=(x, large[0]), timeout=5).tolist() == [2, 2, 2],
            lambda: rpc.remote("worker1", dict, kwargs={"a": x}).to_here(timeout=5)["a"].tolist() == [1, 1, 1],
        ]
        for call in calls:
            assert call()
            failed, right, n = 0, 0, 0
            while right < 10:  # the first allocations of worker1 are those of the answer to fail_at
                n += 1
                try:
                    fail_at(n) if at == "worker0" else rpc.rpc_sync("worker1", fail_at, args=(n,))
                    assert call()
                    right += 1
                except MemoryError:
                    failed, right = failed + 1, 0
                finally:
                    fail_at(0)
                    with contextlib.suppress(MemoryError):  # it was this call
                        rpc.rpc_sync("worker1", fail_at, args=(0,))
                assert call()
            assert failed > 5

    pair(body, at, but=("owner_rrefs",) if at == "worker1" else (), host=True)


def fail_once(what, n):
    pydist._C.fault(what, n)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["send", "recv"])
@pytest.mark.parametrize("at", ["worker0", "worker1"])
def test_every_connection_of_a_call_may_break(what, at):
    """At the caller or at the callee, with the N-th system call: a lost call is an error, and the next one is right."""

    def body(what, at):
        x, failed = pydist.ones(5000), 0
        for call in (lambda: rpc.rpc_sync("worker1", echo, args=(x,), timeout=2).sum() == 5000,
                     lambda: rpc.rpc_sync("worker1", pydist.add, args=(x, 1), timeout=2).sum() == 10_000):  # fmt: skip
            for n in range(1, 7 if LONG else 2):
                try:
                    fail_once(what, n) if at == "worker0" else rpc.rpc_sync(
                        "worker1", fail_once, args=(what, n), timeout=3
                    )
                    assert call()
                except DistError:
                    failed += 1
                finally:
                    fail_once(what, 0)
                    for _ in range(2):  # it was this call, or the next one finds the connection closed
                        with contextlib.suppress(DistError):
                            rpc.rpc_sync("worker1", fail_once, args=(what, 0), timeout=2)
                assert rpc.rpc_sync("worker1", echo, args=(n,)) == n
        assert failed

    pair(body, what, at, host=True)


@pytest.mark.slow
def test_worlds_that_do_not_become_whole(tmp_path):
    """One worker never comes; two have the same rank; a rank is too large. Everybody hears of it, and can begin again."""

    def body(rank):
        for name in ("PYDIST_CONTROL", "PYDIST_MEETING", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            os.environ.pop(name, None)  # only init_method says where to meet
        pydist.distributed.barrier()  # the time begins for all
        rpc.api._JOIN = 3.0

        def init(place, number, world):
            options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/{place}")
            rpc.init_rpc(f"worker{rank}", rank=number, world_size=world, rpc_backend_options=options)

        with pytest.raises(CommTimeout, match="rank 3 has not come in time .expected all 4 ranks to call init_rpc"):
            init("a", rank, 4)
        with pytest.raises(ValueError, match="rank 7 .expected 0 to 2"):
            init("b", 7, 3)
        begin = time.monotonic()
        with pytest.raises(DistError, match="rank 1 has already joined, as pid|rank 2 has not come in time"):
            init("c", min(rank, 1), 3)
        assert time.monotonic() - begin < 20
        rpc.api._JOIN = 60.0
        init("d", rank, 3)
        assert rpc.rpc_sync((rank + 1) % 3, echo, args=(1,)) == 1
        rpc.shutdown(timeout=20)

    run_ranks(3, body, processes=True)


def test_what_the_environment_says(monkeypatch):
    for value in ("-1", "a", "1e3", "9" * 30, ""):
        monkeypatch.setenv("PYDIST_RPC_ARENA", value)
        with pytest.raises(ValueError, match=f"PYDIST_RPC_ARENA is '{value}' .expected a number of MiB"):
            rpc.init_rpc("alone", rank=0, world_size=1)
    monkeypatch.delenv("PYDIST_RPC_ARENA")
    monkeypatch.setenv("PYDIST_RPC_ALLOW", "nothing")
    with pytest.raises(ValueError, match="rpc.allow"):
        rpc.init_rpc("alone", rank=0, world_size=1)
    monkeypatch.delenv("PYDIST_RPC_ALLOW")
    rpc.init_rpc("alone", rank=0, world_size=1)
    assert rpc.rpc_sync("alone", echo, args=(1,)) == 1
    rpc.shutdown()


def clocks_that_jump():
    """The time of day changes all the time; limits are measured by the other clock."""
    real, jumps = time.time, iter(range(1, 10**9))
    time.time = lambda: real() + (-1) ** next(jumps) * 1e6
    try:
        assert rpc.rpc_sync("worker1", echo, args=(1,), timeout=20) == 1
        begin = time.monotonic()
        with pytest.raises(rpc.RpcTimeout):
            rpc.rpc_sync("worker1", time.sleep, args=(1,), timeout=0.3)
        assert time.monotonic() - begin > 0.29
    finally:
        time.time = real


OTHER_CLOCK = """
import os, sys, time
from pydist.distributed import rpc
rank = int(sys.argv[1])
options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[2])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
there = rpc.rpc_sync(1 - rank, time.monotonic, timeout=20)
assert abs(there - time.monotonic()) > 1e5, there
rref = rpc.remote(1 - rank, list, args=((1, 2),))
assert rref.to_here(timeout=20) == [1, 2]
try:
    rpc.rpc_sync(1 - rank, time.sleep, args=(1,), timeout=0.2)
except rpc.RpcTimeout:
    rpc.shutdown(timeout=20)
    print("done")
"""


def test_workers_whose_clocks_differ(tmp_path):
    """As those of two machines: one has run for a million seconds longer."""
    way = ["unshare", "--time", "--fork", "--monotonic", "1000000"]
    if subprocess.run([*way, "true"], capture_output=True).returncode:
        pytest.skip("no time namespaces here")
    program = [sys.executable, "-c", OTHER_CLOCK]
    both = [
        subprocess.Popen(
            [*way[: 5 * rank], *program, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    assert [process.communicate(timeout=60)[0] for process in both] == ["done\n"] * 2


def test_gradients_of_a_worker_that_has_left():
    def body(rank):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            with autograd.context() as context_id:
                x = pydist.ones(3, requires_grad=True)
                y = rpc.rpc_sync("worker1", pydist.mul, args=(x, 2))
                with pytest.raises(DistError, match="worker1"):
                    rpc.rpc_sync("worker1", os._exit, args=(0,))
                begin = time.monotonic()
                with pytest.raises(DistError, match="worker1 .rank 1. is gone"):
                    autograd.backward(context_id, [y.sum()])
                assert time.monotonic() - begin < 10 and autograd.get_gradients(context_id) == {}
                autograd.backward(context_id, [(x * x).sum()])
                assert autograd.get_gradients(context_id)[x].tolist() == [2, 2, 2]
        rpc.shutdown(timeout=20)
        return "here"

    found = run_ranks(2, body, processes=True, return_exceptions=True)
    assert found[0] == "here"


def changes_after_sending():
    """A tensor is changed in place after it was sent: its gradient is that of what was sent."""
    for to in ("worker1", "worker0"):
        with autograd.context() as context_id:
            x = pydist.ones(3, requires_grad=True)
            z = x * 3
            future = rpc.rpc_async(to, pydist.mul, args=(z, z))
            z.mul_(5)
            y = future.wait()
            assert y.tolist() == [9, 9, 9]
            autograd.backward(context_id, [y.sum() + z.sum()])
            assert autograd.get_gradients(context_id)[x].tolist() == [18 + 15] * 3


@pytest.mark.slow
def test_more_than_four_gibibytes(monkeypatch):
    """Once through shared memory, once through the socket."""
    if not LONG:
        pytest.skip("FULL_LONG is not set")
    with open("/proc/meminfo") as file:
        left = int(next(line for line in file if line.startswith("MemAvailable")).split()[1]) << 10
    if left < 20 << 30:
        pytest.skip(f"{left >> 30} GiB of memory are left (expected 20)")

    def body():
        n = (1 << 32) + 4096
        x = pydist.zeros(n, dtype=pydist.uint8)
        x[0], x[-1], x[1 << 32] = 1, 2, 3
        assert rpc.rpc_sync("worker1", ends, args=(x,), timeout=0) == (n, 1, 2, 3)

    for mib in ("8192", "0"):
        monkeypatch.setenv("PYDIST_RPC_ARENA", mib)
        pair(body)


def ends(x):
    return x.numel(), x[0].item(), x[-1].item(), x[1 << 32].item()
