"""Messages between two ranks: order, tags, sizes, both ways at once, and what happens where an end is missing."""

import random
import threading
import time

import pytest

import pydist
from pydist import _C
from pydist import distributed as dist

run = dist.threads.run


@pytest.mark.parametrize("count", [0, 1, 1000, 16384, 300_001])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_everybody_to_everybody_at_once(world, count):
    def work(rank):
        others = [r for r in range(world) if r != rank]
        for r in others:  # blocking, before anybody receives
            dist.send(pydist.arange(count).to(pydist.float32) + 10 * rank + r, r)
        for r in reversed(others):
            x = pydist.zeros(count)
            assert dist.recv(x, r) == r
            assert x.tolist()[-3:] == [i + 10.0 * r + rank for i in range(count)][-3:]
            assert count == 0 or x.sum().item() == pytest.approx(count * (count - 1) / 2 + count * (10 * r + rank))

    run(work, world)


def test_order_and_tags():
    """A random sequence of sends, received in another order of tags: within a tag, the order of sending."""
    rng = random.Random(3)
    sent = [(rng.randrange(3), float(i), rng.choice([1, 7, 20_000])) for i in range(60)]
    wanted = sorted(range(60), key=lambda i: (rng.random() < 0.2, sent[i][0]))
    queues = {tag: [(value, n) for t, value, n in sent if t == tag] for tag in range(3)}

    def work(rank):
        if rank == 0:
            works = [dist.isend(pydist.full((n,), value), 1, tag=tag) for tag, value, n in sent]
            for w in works:
                w.wait()
            return
        for i in wanted:
            value, n = queues[sent[i][0]].pop(0)
            x = pydist.zeros(n)
            dist.recv(x, 0, tag=sent[i][0])
            assert x[0].item() == x[-1].item() == value

    run(work, 2)


def test_from_any_rank():
    def work(rank):
        if rank:
            dist.send(pydist.tensor([float(rank)]), 0)
            return None
        got = []
        for _ in range(3):
            x = pydist.zeros(1)
            got.append((dist.recv(x), int(x.item())))
        return sorted(got)

    assert run(work, 4)[0] == [(1, 1), (2, 2), (3, 3)]


def test_collectives_do_not_wait_for_messages():
    """A large message is carried on while its sender stands in a barrier, and while its receiver does."""

    def work(rank):
        x = pydist.full((200_000,), float(rank))
        if rank == 0:
            w = dist.isend(x, 1)
            dist.barrier()
            w.wait()
        else:
            dist.recv(x, 0)
            dist.barrier()
        if rank == 1:
            w = dist.isend(x + 5, 0)
        dist.barrier()
        if rank == 0:
            dist.recv(x, 1)
        else:
            w.wait()
        return x[-1].item()

    assert run(work, 2) == [5.0, 0.0]


def test_in_a_subgroup():
    def work(rank):
        group = dist.new_group([0, 2])
        if rank == 1:
            return None
        x = pydist.tensor([rank, 7], dtype=pydist.int64)
        if rank == 0:
            dist.send(x, 2, group=group)
            dist.send_object_list([{"a": 1}, "b"], group_dst=1, group=group)
            return None
        got, objects = pydist.zeros(2, dtype=pydist.int64), [None, None]
        with pytest.raises(ValueError, match="rank 1 is not in the group"):
            dist.send(x, 1, group=group)
        return dist.recv(got, group=group), got.tolist(), dist.recv_object_list(objects, 0, group=group), objects

    assert run(work, 3)[2] == (0, [0, 7], 0, [{"a": 1}, "b"])


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("wrong", [{"dtype": pydist.float64}, {"size": 5}])
def test_a_difference_is_an_error_on_both(wrong, early):
    def work(rank):
        begin = time.perf_counter()
        with pytest.raises(dist.CommMismatch, match=r"recv\((?s:.*)send\(float32\[4\]") as caught:
            if rank == 0:
                dist.send(pydist.ones(4), 1)
                dist.barrier()
            else:
                time.sleep(0.1 if early else 0)
                x = pydist.zeros(wrong.get("size", 4), dtype=wrong.get("dtype", pydist.float32))
                dist.recv(x, 0)
        assert "test_p2p.py:" in str(caught.value)
        assert time.perf_counter() - begin < 20  # not after the group's timeout

    run(work, 2)


def test_the_other_end_is_gone():
    def work(rank):
        if rank == 0:
            dist.send(pydist.ones(3), 1)
            return
        x = pydist.zeros(3)
        time.sleep(0.1)
        dist.recv(x, 0)  # what it sent before it left has come
        assert x.tolist() == [1.0] * 3
        begin = time.perf_counter()
        with pytest.raises(dist.PeerFailed, match="rank 0 left") as caught:
            dist.recv(x, 0)
        assert caught.value.rank == 0
        assert time.perf_counter() - begin < 20

    run(work, 2)


def test_a_rank_that_left_is_missed_by_its_peers_only():
    def work(rank):
        if rank == 0:
            return None
        x = pydist.tensor([float(rank)])
        time.sleep(0.5)
        dist.send(x, 3 - rank)
        dist.recv(x, 3 - rank)
        return x.item()

    assert run(work, 3) == [None, 2.0, 1.0]


def test_timeouts():
    def work(rank):
        x = pydist.zeros(2)
        if rank == 1:
            dist.barrier()
            dist.send(pydist.ones(2), 0)
            return None
        w = dist.irecv(x, 1)
        with pytest.raises(dist.CommTimeout, match="recv.*src=1"):
            w.wait(0.1)
        assert not w.is_completed()
        dist.barrier()
        assert w.wait()
        assert w.source_rank() == 1
        return x.tolist()

    assert run(work, 2)[0] == [1.0, 1.0]


def test_wrong_arguments():
    def work(rank):
        x = pydist.zeros(2)
        for call, kind in (
            (lambda: dist.send(x, rank), ValueError),
            (lambda: dist.recv(x, 7), ValueError),
            (lambda: dist.send(x), ValueError),
            (lambda: dist.send([], 1 - rank), ValueError),
            (lambda: dist.send(x, 1 - rank, tag="a"), TypeError),
            (lambda: dist.P2POp(dist.send, x, 1 - rank), ValueError),
        ):
            with pytest.raises(kind):
                call()
        dist.barrier()

    run(work, 2)


@pytest.mark.parametrize("hosts", [2, 3])
def test_over_messages(hosts):
    hub, failures = _C.Hub(3, hosts), []

    def body(rank):
        try:
            group = _C.comm_init_hub(hub, rank)
            for n in (1, 100_000):
                for r in range(3):
                    if r != rank:
                        group.send(pydist.full((n,), float(rank)), r)
                for r in range(3):
                    x = pydist.zeros(n)
                    if r != rank:
                        assert group.recv(x, r) == r
                        assert x[-1].item() == r
                x = pydist.ones(n)
                group.all_reduce(x)
                assert x[-1].item() == 3
            group.barrier()
            group.destroy()
        except BaseException as error:
            failures.append(error)
            group.raised(repr(error))

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_message_of_a_batch_is_a_tuple():
    group = _C.comm_init_hub(_C.Hub(1, 1), 0)
    with pytest.raises(TypeError, match="message 0 has type int .expected a tuple"):
        group.messages([5])
    with pytest.raises(TypeError, match="exactly 4 arguments .3 given"):
        group.messages([(True, pydist.ones(2), 1)])
