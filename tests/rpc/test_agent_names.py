"""What programs for PyTorch look up or replace in an agent: picklers, kinds of agents, debug info, checks at shutdown."""

import time

import pytest
from rpc.test_rpc import add_all, echo, settle, workers

import pydist
from pydist.distributed import autograd, distributed_c10d, init_process_group, rendezvous, rpc
from pydist.distributed.rpc import api, backend_registry, internal
from pydist.testing import run_ranks

KIND = backend_registry.BackendType.TENSORPIPE


class Bytes:
    """A pickler that adds a mark to what it writes."""

    def __init__(self):
        self.calls = []

    def serialize(self, call):
        assert isinstance(call, internal.PythonUDF)
        self.calls.append(call.func.__name__)
        return internal.serialize(call._replace(kwargs={"mark": 10}))


def test_another_pickler_writes_calls():
    def body():
        pickler = Bytes()
        with api._use_rpc_pickler(pickler):
            assert api._default_pickler is pickler
            assert rpc.rpc_sync("worker1", add_all, (1, 2)) == 13
            x = rpc.rpc_async("worker1", add_all, (pydist.ones(2), 1)).wait()
            assert x.tolist() == [12, 12] and pickler.calls == ["add_all", "add_all"]
        assert api._default_pickler is internal._internal_rpc_pickler
        assert rpc.rpc_sync("worker1", add_all, (1, 2)) == 3
        data, tensors = internal.serialize({"x": x, "y": [x, 2]})
        back = internal.deserialize(data, tensors)
        assert len(tensors) == 1 and back["x"] is x and back["y"] == [x, 2]
        rref = rpc.remote("worker1", echo, (1,))
        with pytest.raises(RuntimeError, match="got an RRef"):
            internal.serialize(rref)
        return rref, [rref.to_here()]

    def with_reference():
        rref, _ = body()
        return rref

    workers(2, lambda: body()[1])
    with pytest.raises(RuntimeError, match="Can not pickle rref"):
        workers(2, with_reference)  # its result goes to the test by pickle


def test_debug_info_of_all_parts():
    def body():
        info, agent = rpc._get_debug_info(), rpc._get_current_rpc_agent()
        parts = rpc._rref_context_get_debug_info(), agent.get_debug_info(), autograd._get_debug_info()
        assert set(info) == {name for part in parts for name in part} and len(info) == sum(map(len, parts))
        assert all(isinstance(value, str) for value in info.values())
        assert info["agent.thread_pool_size"] == "3" and "agent.gil_average_wait_time_us" not in info
        rpc.enable_gil_profiling(True)
        assert float(agent.get_debug_info()["agent.gil_average_wait_time_us"]) > 0
        waiting = rpc.rpc_async("worker1", time.sleep, (0.3,))
        assert agent.get_debug_info()["agent.num_pending_requests"] == "1"
        settle(lambda: rpc.rpc_sync("worker1", busy) == "2")  # that one and this one
        waiting.wait()
        assert isinstance(agent, rpc.TensorPipeAgent) and agent.get_worker_info() == rpc.get_worker_info()
        assert agent.get_worker_infos() == [rpc.WorkerInfo("worker0", 0), rpc.WorkerInfo("worker1", 1)]
        rref = rpc.RRef(1)
        assert str(rref) == "OwnerRRef(GloballyUniqueId(created_on=0, local_id=0))"
        used = rpc.remote("worker1", echo, (rref,))
        assert str(used).startswith("UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=1), ForkId = ")
        settle(lambda: rpc._rref_context_get_debug_info()["num_forks"] == "1")

    workers(2, body, threads=3)


def busy():
    return rpc._get_current_rpc_agent().get_debug_info()["agent.server_active_calls"]


def keep_references(rank):
    found, delete = [], api._delete_all_user_and_unforked_owner_rrefs
    for ignore, ends in ((True, False), (False, True), (False, False)):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        api._delete_all_user_and_unforked_owner_rrefs = delete if ends else lambda: None
        api._ignore_rref_leak = ignore
        rref = rpc.remote(1 - rank, echo, (1,))
        rref.to_here()
        try:
            rpc.shutdown()
            found.append(None)
        except RuntimeError as error:
            found.append(str(error).split(" still")[0])
        assert not rpc._is_current_rpc_agent_set()
    return found


def test_references_that_outlive_shutdown():
    want = [[None, None, f"Leaking RRef: worker{rank}"] for rank in (0, 1)]
    assert run_ranks(2, keep_references, processes=True) == want


class Slow:
    def __getstate__(self):
        time.sleep(0.3)
        return {}


def gather_slowly(rank):
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    begin = "timed out in _all_gather after 0.10 seconds" if rank == 0 else "RPC ran for more than set timeout"
    with pytest.raises(rpc.RpcTimeout, match=f"^{begin}.*worker{rank} came after"):
        api._all_gather(Slow(), timeout=0.1)
    assert api._all_gather(rank) == {"worker0": 0, "worker1": 1}  # the next one is not mixed up with it
    rpc.shutdown()


def test_the_time_limit_of_all_gather_has_the_pickling_in_it():
    run_ranks(2, gather_slowly, processes=True)


class Agent:
    """One that a program brings along."""

    def __init__(self, store, name, rank, world_size, rpc_backend_options):
        store.set("agent", name)
        self.store = store  # whose file would be removed with it
        self.me, self.started, self.args = rpc.WorkerInfo(name, rank), False, (rank, world_size, rpc_backend_options)

    def start(self):
        self.started = True


def test_kinds_of_agents(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(api, "_set_and_start_rpc_agent", started.append)
    monkeypatch.setattr(autograd, "_init", started.append)
    kind = backend_registry.register_backend("MINE", lambda **options: options, Agent)
    try:
        assert repr(kind) == "BackendType.MINE" and backend_registry.backend_registered("MINE")
        with pytest.raises(RuntimeError, match="^RPC backend MINE: already registered$"):
            backend_registry.register_backend("MINE", None, None)
        made = backend_registry.construct_rpc_backend_options(kind, init_method="env://", color=3)
        assert made == {"rpc_timeout": 60.0, "init_method": "env://", "color": 3}
        options = rpc.RpcBackendOptions(init_method=f"file://{tmp_path}/meet")
        rpc.init_rpc("me", backend=kind, rank=0, world_size=1, rpc_backend_options=options)
        assert started[0].args == (0, 1, options) and started[1] == 0
        assert started[0].store.underlying_store.get("rpc/agent") == b"me"
    finally:
        backend_registry.BackendType = type(KIND)
    assert not backend_registry.backend_registered("MINE")
    with pytest.raises(TypeError, match="Could not infer backend for options"):
        rpc.init_rpc("me", rank=0, world_size=1, rpc_backend_options=options)
    with pytest.raises(TypeError, match="must be a `TensorPipeRpcBackendOptions`"):
        rpc.init_rpc("me", backend=KIND, rank=0, world_size=1, rpc_backend_options=options)
    with pytest.raises(TypeError, match=r"backend is 3 \(expected a BackendType\)"):
        backend_registry.construct_rpc_backend_options(3)
    with pytest.raises(RuntimeError, match="Current RPC agent is not set! Did you initialize the RPC framework"):
        rpc.RRef(1)


def by_store(rank, path):
    store, mine, world = next(rendezvous(f"file://{path}", rank=rank, world_size=2))
    assert (mine, world) == (rank, 2)
    rpc._init_rpc_backend(backend=KIND, store=store, name=f"worker{rank}", rank=rank, world_size=2)
    found = rpc.rpc_sync(1 - rank, rpc.get_worker_info)
    rpc.shutdown()
    init_process_group("gloo", init_method=f"file://{path}.group", rank=rank, world_size=2)
    shared = distributed_c10d._get_default_store()
    shared.set(f"key{rank}", str(rank))
    shared.wait(["key0", "key1"])
    return found.name, bytes(shared.get(f"key{1 - rank}"))


def test_workers_that_share_a_store(tmp_path):
    assert run_ranks(2, by_store, f"{tmp_path}/meet", processes=True) == [("worker1", b"1"), ("worker0", b"0")]
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        next(rendezvous("env://", rank=0, world_size=1))


class Picky(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def raise_picky():
    raise Picky("first", "second")


def raise_lines():
    raise ValueError("\nfirst line\n  second line")


def test_texts_of_errors():
    def body():
        with pytest.raises(RuntimeError, match="Original exception on remote side was: On WorkerInfo.*\nPicky"):
            rpc.rpc_sync("worker1", raise_picky)
        with pytest.raises(ValueError, match="ValueError\\('\nfirst line\n  second line'\\)"):
            rpc.rpc_sync("worker1", raise_lines)
        with pytest.raises(
            RuntimeError, match="Overloaded torch operator .* failed to match any schema: add: .*missing"
        ):
            rpc.rpc_sync("worker1", pydist.add)
        with pytest.raises(RuntimeError, match="size of tensor a .10. must match the size of tensor b .5."):
            rpc.rpc_sync("worker1", pydist.add, (pydist.ones(10), pydist.ones(5)))
        rpc.rpc_sync("worker1", forget_echo)
        with pytest.raises(RuntimeError, match="'echo'.*RPC pickler does not serialize function code"):
            rpc.rpc_sync("worker1", echo, (1,))
        slow = rpc.remote("worker1", time.sleep, (0.5,), timeout=0.01)
        with pytest.raises(rpc.RpcTimeout, match="RPC ran for more than"):
            slow._get_future().wait()
        with pytest.raises(rpc.RpcTimeout, match=r"RRef creation via rpc.remote\(\) timed out"):
            slow.to_here()
        following = rpc.rpc_async("worker1", abs, (-1,)).then(lambda future: future + 1)
        with pytest.raises(RuntimeError, match=r"TypeError: unsupported operand type\(s\) for \+"):
            following.wait()
        rref = rpc.remote("worker1", dict)
        with pytest.raises(AttributeError, match="has no attribute 'non_exist'"):
            rref.remote().non_exist()
        assert rref.remote().copy().to_here() == {}

    workers(2, body)


def forget_echo():
    from rpc import test_rpc

    del test_rpc.echo
