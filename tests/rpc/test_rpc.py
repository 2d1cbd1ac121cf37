"""Calls and references between real processes. Rank 0 runs each test's body; the others answer until all shut down."""

import gc
import os
import pickle
import signal
import threading
import time
from collections import Counter as Multiset

import pytest

import pydist
from lib.ranks import LONG
from pydist.distributed import PeerFailed, rpc
from pydist.testing import run_ranks

ROUNDS = 10 if LONG else 2


def workers(world, body, *args, threads=16, timeout=60, dead=()):
    """The result of body(*args) at worker0. dead: workers that the body kills."""
    results = run_ranks(world, _worker, world, body, args, threads, set(dead), processes=True, timeout=timeout,
                        return_exceptions=bool(dead))  # fmt: skip
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def _worker(rank, world, body, args, threads, dead):
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=threads, rpc_timeout=30)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world, rpc_backend_options=options)
    result = None
    try:
        if rank == 0:
            result = body(*args)
    finally:
        begin = time.monotonic()
        rpc.shutdown(timeout=20)
        assert not (dead and rank == 0) or time.monotonic() - begin < 3
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        rpc.get_worker_info()
    return result


def settle(condition, seconds=5):
    """Waits for something that happens soon."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return True


def echo(x):
    return x


def add_all(*args, **kwargs):
    return sum(args) + sum(kwargs.values())


def test_calls_and_what_travels():
    def body():
        assert rpc.rpc_sync("worker1", add_all, args=(1, 2), kwargs={"a": 3}) == 6
        assert rpc.rpc_sync(1, add_all, args=[1]) == 1
        assert rpc.rpc_async(rpc.get_worker_info("worker1"), echo, args=("x",)).wait() == "x"
        assert rpc.rpc_sync("worker1", rpc.get_worker_info) == rpc.WorkerInfo("worker1", 1)
        for to in ("worker0", "worker1"):  # a worker calls itself with the same copies
            for shape in ((), (0,), (3, 0), (4,), (2, 3, 4), (300, 70)):
                for dtype in (
                    pydist.float32,
                    pydist.bfloat16,
                    pydist.complex64,
                    pydist.bool,
                    pydist.int64,
                    pydist.uint8,
                ):
                    x = (pydist.rand(shape) * 3).to(dtype)
                    y = rpc.rpc_sync(to, echo, args=(x,))
                    assert y.dtype == dtype and y.shape == x.shape and pydist.equal(x, y) and y is not x
                    y.zero_()
            base = pydist.arange(40000.0).reshape(200, 200)
            views = [base, base[3:5], base.t(), base[:, ::7], base[5, 5], base[:1].expand(6, 200), base[:, 3:150]]
            got = rpc.rpc_sync(to, echo, args=(views,))
            assert all(pydist.equal(a, b) for a, b in zip(views, got))
            assert got[2].stride() == (1, 200)
            got[0][3, 0] = -1
            assert got[1][0, 0] == -1 and base[3, 0] == 600  # what shares memory still does, and is a copy
            module = pydist.nn.Linear(3, 200)
            there = rpc.rpc_sync(to, echo, args=(module,))
            assert isinstance(there.weight, pydist.nn.Parameter) and there.weight.requires_grad
            assert pydist.equal(there.weight, module.weight)
            n = 7
            assert rpc.rpc_sync(to, lambda x: x * n, args=(6,)) == 42
            with pytest.raises(TypeError, match="cannot pickle"):
                rpc.rpc_sync(to, echo, args=(threading.Lock(),))
            with pytest.raises((TypeError, RuntimeError), match="cannot pickle"):
                rpc.rpc_sync(to, threading.Lock)
            big = pydist.rand(3 << 20)
            assert pydist.equal(rpc.rpc_sync(to, echo, args=(big,)), big)
        x = pydist.rand(5, 5)
        assert pydist.equal(rpc.rpc_sync("worker1", pydist.add, args=(x, 1)), x + 1)
        assert pydist.equal(rpc.rpc_sync("worker1", pydist.matmul, args=(x, x)), x @ x)
        assert rpc.rpc_sync("worker1", pydist.add, args=(1, 2)).item() == 3
        with pytest.raises(RuntimeError, match="matmul"):
            rpc.rpc_sync("worker1", pydist.matmul, args=(x, pydist.rand(3, 3)))
        return rpc.stats()["calls_pending"]

    assert workers(2, body) == 0


class Counter:
    made = 0

    def __init__(self, start=0):
        type(self).made += 1
        self.n = start

    def add(self, x):
        self.n += x
        return self.n

    @staticmethod
    def twice(x):
        return 2 * x

    @classmethod
    def count(cls):
        return cls.made

    @staticmethod
    @rpc.functions.async_execution
    def later(to, x):
        return rpc.rpc_async(to, Counter.twice, args=(x,)).then(lambda future: future.wait() + 1)

    @rpc.functions.async_execution
    @classmethod
    def later_too(cls, to, x):
        return rpc.rpc_async(to, cls.twice, args=(x,))

    @rpc.functions.async_execution
    def mine_later(self, to):
        return rpc.rpc_async(to, Counter.twice, args=(self.n,))


def use(rref):
    return rref.to_here()


def use_at(rref, to):
    return rpc.rpc_sync(to, use, args=(rref,))


def confirmed(rref):
    return rref.confirmed_by_owner()


def owned():
    return rpc.stats()["owner_rrefs"]


def test_references():
    def body():
        rref = rpc.remote("worker1", Counter, args=(5,))
        assert rref.owner() == rpc.get_worker_info("worker1") and not rref.is_owner() and rref.owner_name() == "worker1"
        assert rref.rpc_sync().add(3) == 8
        assert rref.rpc_async().add(1).wait() == 9
        assert rref.remote().add(1).to_here() == 10
        assert rref.to_here().n == 10 and rref.confirmed_by_owner() and rref._get_type() is Counter
        assert rref.rpc_sync().mine_later("worker2") == 20
        with pytest.raises(RuntimeError, match="can't call localValue"):
            rref.local_value()
        with pytest.raises(RuntimeError, match="Can not pickle rref"):
            pickle.dumps(rref)
        assert rpc.rpc_sync("worker2", Counter.later, args=("worker0", 4)) == 9
        assert rpc.rpc_sync("worker2", Counter.later_too, args=("worker1", 4)) == 8
        assert rpc.rpc_sync("worker1", Counter.count) == 1
        own = rpc.RRef(pydist.ones(2))
        assert own.is_owner() and own.local_value() is own.to_here()
        for to in ("worker0", "worker1", "worker2"):
            assert rpc.rpc_sync(to, use, args=(own,)).sum() == 2  # user to owner, owner to user
            assert rpc.rpc_sync(to, use, args=(rref,)).n == 10  # user to owner, user to user
            assert rpc.rpc_sync(to, confirmed, args=(rref,))
            for then in ("worker0", "worker1", "worker2"):
                assert rpc.rpc_sync(to, use_at, args=(own, then)).sum() == 2
                assert rpc.rpc_sync(to, use_at, args=([rref, own][0], then)).n == 10
        back = rpc.rpc_sync("worker1", echo, args=({"a": rref, "b": [own, own]},))
        assert back["a"].to_here().n == 10 and back["b"][0].is_owner()
        failed = rpc.remote("worker1", int, args=("x",))
        with pytest.raises(ValueError, match="invalid literal"):
            failed.to_here()
        with pytest.raises(ValueError, match="invalid literal"):
            failed.rpc_sync().bit_length()
        assert rpc.rpc_sync("worker1", owned) > 0
        del rref, own, back, failed
        gc.collect()
        settle(lambda: [rpc.rpc_sync(i, owned) for i in range(3)] == [0, 0, 0])
        return rpc.stats()["user_rrefs"], rpc.leaks()

    assert workers(3, body) == (0, [])


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)
        self.both = a, b


def raise_it(kind, *args):
    raise kind(*args)


class BadReduce:
    def __reduce__(self):
        raise RuntimeError("no pickle")


class BadRebuild:
    def __reduce__(self):
        return raise_it, (ZeroDivisionError, "rebuilt")


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def test_errors():
    def body():
        for to in ("worker0", "worker1"):
            with pytest.raises(KeyError, match=r"On WorkerInfo\(id=\d, name=worker\d\)"):
                rpc.rpc_sync(to, raise_it, args=(KeyError, "k"))
            with pytest.raises(Odd) as odd:
                rpc.rpc_sync(to, raise_it, args=(Odd, 1, 2))
            assert odd.value.both == (1, 2)
            with pytest.raises(rpc.RemoteError, match="SystemExit"):
                rpc.rpc_sync(to, raise_it, args=(SystemExit, 3))
            with pytest.raises(RuntimeError, match="no pickle"):
                rpc.rpc_sync(to, echo, args=(BadReduce(),))
            with pytest.raises(RuntimeError, match="no pickle"):
                rpc.rpc_sync(to, BadReduce)
            with pytest.raises(ZeroDivisionError, match="rebuilt"):
                rpc.rpc_sync(to, echo, args=(BadRebuild(),))
            with pytest.raises(ZeroDivisionError, match="rebuilt"):
                rpc.rpc_sync(to, BadRebuild)
            with pytest.raises(RuntimeError, match="must return a .*Future"):
                rpc.rpc_sync(to, rpc.functions.async_execution(echo), args=(1,))
        begin = time.monotonic()
        with pytest.raises(rpc.RpcTimeout, match=r"RPC ran for more than set timeout \(200 ms\).*sleep at worker1"):
            rpc.rpc_sync("worker1", sleep, args=(1,), timeout=0.2)
        future = rpc.rpc_async("worker1", sleep, args=(2,), timeout=0.3)  # nobody waits for it
        settle(future.done, 1.5)
        with pytest.raises(rpc.RpcTimeout):
            future.value()
        assert time.monotonic() - begin < 1.5
        rref = rpc.RRef(3)
        with pytest.raises(RuntimeError, match="could not find destination"):
            rpc.rpc_sync("nobody", echo, args=(1,))
        for timeout in ("1", None, True):
            with pytest.raises(TypeError, match="timeout"):
                rpc.rpc_sync("worker1", echo, args=(1,), timeout=timeout)
        for timeout in (-2, float("nan"), -0.5):
            with pytest.raises(ValueError, match="timeout"):
                rpc.rpc_sync("worker1", echo, args=(1,), timeout=timeout)
        assert rpc.rpc_sync("worker1", echo, args=(1,), timeout=float("inf")) == 1
        with pytest.raises(rpc.RpcTimeout):
            rpc.rpc_sync("worker1", sleep, args=(0.2,), timeout=1e-9)
        with pytest.raises(TypeError, match="callable"):
            rpc.rpc_sync("worker1", "max", args=(1,))
        with pytest.raises(TypeError, match="args"):
            rpc.rpc_sync("worker1", echo, args=3)
        with pytest.raises(RuntimeError, match="already initialized"):
            rpc.init_rpc("again", rank=0, world_size=2)
        assert rref.local_value() == 3 and rpc.rpc_sync("worker1", echo, args=(4,)) == 4
        settle(lambda: rpc.stats()["late_answers"] >= 3)

    workers(2, body)


def down(depth, to, back):
    return [threading.active_count()] if depth == 0 else rpc.rpc_sync(to, down, args=(depth - 1, back, to))


def call_back(n):
    futures = [rpc.rpc_async("worker0", sleep, args=(0.01,)) for _ in range(n)]
    return sum(future.wait() for future in futures)


def test_one_thread_is_enough_for_calls_that_call_back():
    def body():
        rpc.rpc_sync("worker1", down, args=(8, "worker0", "worker1"))
        futures = [rpc.rpc_async("worker1", call_back, args=(2,)) for _ in range(32)]
        return sum(future.wait() for future in futures)

    assert workers(2, body, threads=1) == pytest.approx(32 * 2 * 0.01)


def raise_again(depth, to, back):
    if not depth:
        raise KeyError("the cause")
    try:
        rpc.rpc_sync(to, raise_again, args=(depth - 1, back, to))
    except KeyError as error:
        raise KeyError(f"again: {error}") from error


def test_errors_through_many_workers_stay_short():
    def body():
        lengths = []
        for depth in (6, 14):
            with pytest.raises(KeyError) as raised:
                rpc.rpc_sync("worker1", raise_again, args=(depth, "worker0", "worker1"))
            lengths.append(len(str(raised.value)))
        return lengths

    assert max(workers(2, body)) < 300_000


def without_end(to, back):
    return rpc.rpc_sync(to, without_end, args=(back, to))


def test_calls_inside_of_calls_end_where_threads_end():
    def body():
        with pytest.raises(RuntimeError, match=r"has 272 threads, and all of them run calls \(\d+ x without_end\) or wait in "
                           r"them \(\d+ x without_end at worker[01]\)"):  # fmt: skip
            rpc.rpc_sync("worker1", without_end, args=("worker0", "worker1"))
        return rpc.rpc_sync("worker1", add_all, args=(1, 2))

    assert workers(2, body, threads=1) == 3


def test_many_threads_and_tensors():
    def body():
        wrong = []

        def caller(seed):
            generator = pydist.Generator().manual_seed(seed)
            for i in range(40 * ROUNDS):
                x = pydist.rand(int(10 ** (1 + 4 * (i % 7) / 6)), generator=generator)
                y = rpc.rpc_sync(
                    f"worker{1 + (seed + i) % 2}", pydist.add if i % 3 else echo, args=(x, 1) if i % 3 else (x,)
                )
                if not pydist.equal(y, x + 1 if i % 3 else x):
                    wrong.append(i)

        threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        stats = rpc.stats()
        assert stats["arena_bytes"] <= 256 << 20
        return [stats[name] for name in ("calls_pending", "arena_lent", "late_answers")]

    assert workers(3, body) == [0, 0, 0]


def test_memory_goes_back_without_a_copy():
    def body():
        x = pydist.rand(1 << 20)
        for _ in range(3):
            y = rpc.rpc_sync("worker1", echo, args=(x,))
            assert pydist.equal(x, y)
        return rpc.rpc_sync("worker1", rpc.stats)

    there = workers(2, body)
    assert there["bytes_moved"] == 3 * 4 << 20 and there["bytes_copied"] == 0


def die():
    os.kill(os.getpid(), signal.SIGKILL)


kept = []


def keep(rref):
    kept.append(rref)


@pytest.mark.parametrize("victim", [1, 3])
def test_deaths(victim):
    """Of a callee, and of a user and owner of references."""

    def body():
        name = f"worker{victim}"
        lives = rpc.remote("worker2", Counter, args=(1,))
        rpc.rpc_sync(name, keep, args=(lives,))
        gone = rpc.remote(name, Counter, args=(1,))
        gone.to_here()
        waiting = rpc.rpc_async(name, sleep, args=(60,))
        begin = time.monotonic()
        with pytest.raises(PeerFailed, match=f"{name} .*is gone"):
            rpc.rpc_sync(name, die)
        assert time.monotonic() - begin < 1
        for use_it in (waiting.wait, gone.to_here, lambda: rpc.rpc_sync(name, echo, args=(1,)), gone.rpc_sync().add):
            with pytest.raises((PeerFailed, TypeError)) as error:
                use_it()
            assert isinstance(error.value, PeerFailed) and error.value.rank == victim
        assert rpc.rpc_sync("worker2", echo, args=(1,)) == 1 and lives.rpc_sync().add(1) == 2
        del lives
        gc.collect()
        settle(lambda: rpc.rpc_sync("worker2", owned) == 0)  # the copy of the dead worker counts no longer

    workers(4, body, dead=[victim])


def test_a_stuck_worker_is_named():
    def body(rank):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 1:
            time.sleep(3)
            rpc.shutdown(graceful=False)
            return
        with pytest.raises(rpc.RpcTimeout, match=r"worker1 \(rank 1\) did not come within 1 s"):
            rpc.shutdown(timeout=1)

    run_ranks(2, body, processes=True)


def held():
    """Threads, and what the process has open."""
    names = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    ]
    return threading.active_count(), sorted(name.partition(":")[0] for name in names)


@pytest.mark.parametrize("at", ["the ranks' own address", "a new address"])
def test_agents_come_and_go(at, tmp_path):
    def body(rank):
        here = None
        for i in range(5 * ROUNDS):
            options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/meet")
            rpc.init_rpc(
                f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options if at[0] == "a" else None
            )
            x = pydist.rand(10000)
            assert pydist.equal(rpc.rpc_sync(1 - rank, echo, args=(x,)), x)
            rpc.shutdown()
            here = here or held()
        threads, files = held()
        assert threads == here[0] and not Multiset(files) - Multiset(here[1])

    run_ranks(2, body, processes=True)


def test_names_and_forked_children():
    def body(rank):
        with pytest.raises(RuntimeError, match="is not unique"):
            rpc.init_rpc("same", rank=rank, world_size=2)
        for name in ("", "a b", "x" * 128, "7"):
            with pytest.raises(RuntimeError, match="Worker name must"):
                rpc.init_rpc(name, rank=rank, world_size=2)
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        pid = os.fork()
        if pid == 0:
            try:
                rpc.rpc_sync("worker0", echo, args=(1,))
            except RuntimeError as error:
                os._exit(7 if "forked" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert rpc.rpc_sync(1 - rank, echo, args=(1,)) == 1
        rpc.shutdown()

    run_ranks(2, body, processes=True)


def test_only_what_is_allowed():
    def body(rank):
        rpc.allow([f"{__name__}.echo", f"{__name__}.Counter.*", f"{__name__}.Counter"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            x = pydist.ones(3)
            assert rpc.rpc_sync("worker1", echo, args=({"a": [x, 2.5, "b"]},))["a"][1] == 2.5
            assert rpc.rpc_sync("worker1", pydist.add, args=(x, 1)).sum() == 6
            assert rpc.remote("worker1", Counter, args=(2,)).rpc_sync().add(1) == 3
            for function, args in ((os.getcwd, ()), (eval, ("1",)), (sleep, (0,)), (echo, (BadRebuild(),))):
                with pytest.raises(pickle.UnpicklingError, match="not in the list"):
                    rpc.rpc_sync("worker1", function, args=args)
            with pytest.raises((pickle.PicklingError, AttributeError)):
                rpc.rpc_sync("worker1", lambda: 1)
        rpc.shutdown()
        for names in ("a", ["a"], [3]):
            with pytest.raises(ValueError, match="rpc.allow"):
                rpc.allow(names)
        rpc.allow(None)

    run_ranks(2, body, processes=True)
