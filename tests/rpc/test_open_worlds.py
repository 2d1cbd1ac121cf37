"""Worlds without a size: workers come and go, and know each other by name and id."""

import gc
import os
import signal
from datetime import timedelta

import pytest
from rpc.test_rpc import Counter, add_all, echo, settle

import pydist
from pydist.distributed import FileStore, PeerFailed, autograd, init_process_group, rpc
from pydist.testing import run_ranks


def unlaunched():
    """Forgets what the launcher of this test's processes has said."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYDIST_CONTROL", "PYDIST_MEETING"):
        os.environ.pop(name, None)


def come(name, rank, path):
    unlaunched()
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}/meet", rpc_timeout=30)
    rpc.init_rpc(name, rank=rank, rpc_backend_options=options)


class Order:
    """Lets processes wait for each other's steps."""

    def __init__(self, path):
        self.store = FileStore(f"{path}/order")

    def tell(self, step):
        self.store.set(step, "1")

    def wait(self, *steps):
        self.store.wait(list(steps), timedelta(seconds=60))


def one_after_the_other(number, path):
    order, rank, name = Order(path), (70, 0, 900)[number], f"worker{number}"  # the first one has not the least id
    if number:
        order.wait(f"came {number - 1}")
    come(name, rank, path)
    order.tell(f"came {number}")
    x = pydist.arange(5000.0).requires_grad_()
    for other in range(number):  # those that were there, and they this one
        assert rpc.rpc_sync(f"worker{other}", add_all, (x, 1)).sum().item() == (x + 1).sum().item()
        assert rpc.rpc_sync((70, 0, 900)[other], rpc.get_worker_info, (name,)) == rpc.WorkerInfo(name, rank)
        with autograd.context() as context_id:
            autograd.backward(context_id, [rpc.rpc_sync(f"worker{other}", pydist.mul, (x, x)).sum()])
            assert pydist.equal(autograd.get_gradients(context_id)[x], 2 * x)
    if number == 2:
        rref = rpc.remote("worker0", Counter, (5,))
        assert rpc.rpc_sync("worker1", take, (rref,)) == 6  # which had not met the owner
        found = rpc._get_current_rpc_agent().get_worker_infos()
        assert [worker.id for worker in found] == [0, 70, 900]
        assert rpc.api._all_gather(1, ["worker2"]) == {"worker2": 1}
        del rref
        gc.collect()
        settle(lambda: rpc.rpc_sync("worker0", rpc.stats)["owner_rrefs"] == 0)
        with pytest.raises(RuntimeError, match="could not find destination worker9"):
            rpc.rpc_sync("worker9", echo, (1,))
        order.tell("done")
    order.wait("done")
    rpc.shutdown()


def take(rref):
    return rref.rpc_sync().add(1)


def test_workers_come_one_after_the_other(tmp_path):
    run_ranks(3, one_after_the_other, str(tmp_path), processes=True)


def come_and_go(rank, path):
    for turn in range(5):
        come(f"worker{rank}", rank, f"{path}/{turn}")
        assert rpc.rpc_sync(rank, echo, (turn,)) == turn
        rpc.shutdown()


def test_all_come_and_go_at_once(tmp_path):
    for turn in range(5):
        (tmp_path / str(turn)).mkdir()
    run_ranks(4, come_and_go, str(tmp_path), processes=True)


def id_of(name):
    try:
        return rpc.rpc_sync(name, rpc.get_worker_info).id
    except PeerFailed:  # it has left a moment ago, and this worker has not heard of it yet
        return None


def successors(number, path):
    order = Order(path)
    if number == 0:
        come("host", 0, path)
        order.tell("host")
        order.wait("first")
        assert rpc.rpc_sync("actor", add_all, (1, 2)) == 3
        rref = rpc.remote("actor", Counter, (1,))
        rref.to_here()
        order.tell("go")
        order.wait("second")
        settle(lambda: id_of("actor") == 2)
        with pytest.raises(PeerFailed, match="actor"):
            rref.to_here()
        order.tell("die")
        settle(lambda: 2 in rpc._get_current_rpc_agent().gone)
        with pytest.raises(PeerFailed, match="actor .rank 2. is gone"):
            rpc.rpc_sync("actor", echo, (1,))
        order.tell("dead")
        order.wait("third")
        settle(lambda: id_of("actor") == 3)
        order.tell("end")
    elif number == 1:
        order.wait("host")
        come("actor", 1, path)
        order.tell("first")
        order.wait("go")
        rpc.shutdown()
        with pytest.raises(pydist.distributed.DistError, match="rank 1 was here before and has left"):
            come("actor", 1, path)
        order.tell("left")
        order.wait("end")
        return
    elif number == 2:
        order.wait("left")
        with pytest.raises(RuntimeError, match="WorkerName host is not unique"):
            come("host", 20, path)
        come("actor", 2, path)
        order.tell("second")
        order.wait("die")
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        order.wait("dead")
        come("actor", 3, path)
        order.tell("third")
        order.wait("end")
    rpc.shutdown()


def test_a_name_is_taken_over_and_an_id_is_not(tmp_path):
    results = run_ranks(4, successors, str(tmp_path), processes=True, return_exceptions=True)
    assert [str(result) for result in results if isinstance(result, Exception)][1:] == [], results


_kept = []


def keep(rref):
    _kept.append(rref)


def holders(number, path):
    order = Order(path)
    if number == 0:
        come("host", 0, path)
        order.tell("host")
        order.wait("came 1", "came 2", "came 3")
        rref = rpc.RRef(Counter())
        for name in ("worker1", "worker2"):
            rpc.rpc_sync(name, keep, (rref,))
        assert len(rpc.leaks()) == 1 and rpc.leaks()[0][2] == ["worker1", "worker2"]
        order.tell("kept")  # one leaves, one dies; the third one has never called anybody
        settle(lambda: rpc.leaks() == [], 20)
        order.tell("end")
    else:
        order.wait("host")
        come(f"worker{number}", number, path)
        order.tell(f"came {number}")
        order.wait("kept" if number < 3 else "end")
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    rpc.shutdown()


def test_references_of_those_that_have_gone_end(tmp_path):
    results = run_ranks(4, holders, str(tmp_path), processes=True, return_exceptions=True)
    assert [bool(result) for result in results] == [False, False, True, False], results


def fails(to):
    try:
        rpc.rpc_sync(to, echo, (1,))
    except PeerFailed:
        return True
    return False


def without_host(number, path):
    order = Order(path)
    if number == 0:
        come("host", 0, path)
        order.tell("host")
        order.wait("met 1", "met 2")
        os.kill(os.getpid(), signal.SIGKILL)
    order.wait("host")
    come(f"worker{number}", number, path)
    order.tell(f"came {number}")
    order.wait("came 1", "came 2")
    other = f"worker{3 - number}"
    assert rpc.rpc_sync(other, echo, (number,)) == number
    order.tell(f"met {number}")
    settle(lambda: fails(other), 20)
    rpc.shutdown()  # does not wait for those that it cannot hear of


def test_the_end_of_the_host_is_the_end_of_its_world(tmp_path):
    results = run_ranks(3, without_host, str(tmp_path), processes=True, return_exceptions=True)
    assert [bool(result) for result in results] == [True, False, False], results


def mixed(rank, path, static_first):
    order, place = Order(path), f"file://{path}/meet"
    unlaunched()
    init_process_group("gloo", init_method=place, rank=rank, world_size=3)
    options = rpc.TensorPipeRpcBackendOptions(init_method=place)
    size = {"world_size": 2} if static_first else {}
    if rank < 2:
        rpc.init_rpc(f"worker{rank}", rank=rank, rpc_backend_options=options, **size)
        order.tell(f"came {rank}")
    order.wait("came 0", "came 1")
    if rank == 2:
        size = {} if static_first else {"world_size": 1}
        with pytest.raises(RuntimeError, match="RPC group mixes statically and dynamically initialized members"):
            rpc.init_rpc("worker2", rank=rank if static_first else 0, rpc_backend_options=options, **size)
        order.tell("refused")
    order.wait("refused")
    if rank < 2:
        assert rpc.rpc_sync(f"worker{1 - rank}", add_all, (1, 2)) == 3
        order.tell(f"asked {rank}")
        order.wait("asked 0", "asked 1")  # in an open world nobody waits for others
        rpc.shutdown()


@pytest.mark.parametrize("static_first", [True, False])
def test_the_two_kinds_of_worlds_do_not_mix(tmp_path, static_first):
    run_ranks(3, mixed, str(tmp_path), static_first, processes=True)


def test_who_has_no_rank_cannot_come(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for place, rank, text in (
        (f"file://{tmp_path}/meet", -1, "rank parameter missing"),
        ("tcp://127.0.0.1:23456", -1, "rank parameter missing"),
        ("env://", -1, "environment variable RANK expected"),
        ("env://", 0, "MASTER_ADDR"),
        (f"file://{tmp_path}/meet", 1024, "rank is 1024 .expected 0 to 1023"),
    ):
        with pytest.raises(ValueError, match=text):
            rpc.init_rpc("me", rank=rank, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=place))
