"""Groups of some of the ranks: who is in them, that they do not disturb each other, and how they end."""

import time
import warnings

import pytest

import pydist
from pydist import distributed as dist

run = dist.threads.run


def total(rank, group):
    x = pydist.full((5,), float(rank + 1))
    dist.all_reduce(x, group=group)
    return x.tolist()[0]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_every_rank_in_the_groups_that_have_it(world):
    """All groups of two neighbours and of every second rank, used in turn with the whole."""
    tables = [[r, (r + 1) % world] for r in range(world)] if world > 1 else [[0]]
    tables = [sorted(set(t)) for t in tables] + [list(range(0, world, 2))]

    def work(rank):
        groups = [dist.new_group(table) for table in tables]
        for table, group in zip(tables, groups, strict=True):
            if rank not in table:
                assert group is dist.GroupMember.NON_GROUP_MEMBER
                assert dist.get_rank(group) == dist.get_world_size(group) == -1
                continue
            assert dist.get_process_group_ranks(group) == table
            assert dist.get_world_size(group) == len(table)
            assert [dist.get_group_rank(group, r) for r in table] == list(range(len(table)))
            assert dist.get_global_rank(group, dist.get_rank(group)) == rank
            assert total(rank, group) == sum(r + 1 for r in table)
        assert total(rank, None) == world * (world + 1) / 2
        for group in groups:
            dist.destroy_process_group(group)
        assert total(rank, None) == world * (world + 1) / 2

    run(work, world)


def test_roots_are_ranks_of_the_job():
    def work(rank):
        group = dist.new_group([3, 1])  # in increasing order
        if rank not in (1, 3):
            return None
        x = pydist.tensor([float(rank)])
        dist.broadcast(x, 3, group=group)
        y = pydist.tensor([float(rank)])
        dist.reduce(y, group_dst=0, group=group)
        objects = [None, None]
        dist.all_gather_object(objects, f"rank {rank}", group=group)
        said = [f"from {rank}"]
        dist.broadcast_object_list(said, 3, group=group)
        parts = [pydist.zeros(1), pydist.zeros(1)] if rank == 3 else None
        dist.gather(pydist.tensor([rank * 2.0]), parts, 3, group=group)
        with pytest.raises(ValueError, match="src: rank 2 is not in the group"):
            dist.broadcast(x, 2, group=group)
        return x.item(), y.item(), objects, said, parts and [p.item() for p in parts]

    results = run(work, 4)
    names = ["rank 1", "rank 3"]
    assert results[1] == (3.0, 4.0, names, ["from 3"], None)
    assert results[3] == (3.0, 3.0, names, ["from 3"], [2.0, 6.0])


def test_made_by_members_alone():
    def work(rank):
        seen = []
        for _ in range(3):
            if rank < 2:
                group = dist.new_group([0, 1], use_local_synchronization=True)
                seen.append(total(rank, group))
        half = dist.split_group(split_ranks=[[0, 2], [1, 3]])
        seen.append(total(rank, half))
        half = dist.split_group(half, [[1, 0]])
        seen.append(dist.get_process_group_ranks(half))
        return seen

    for rank, seen in enumerate(run(work, 4)):
        assert seen[:-2] == ([3.0] * 3 if rank < 2 else [])
        assert seen[-2:] == [[4.0, 6.0][rank % 2], [rank % 2, rank % 2 + 2]]


def test_subgroups_of_one_size():
    def work(rank):
        own, groups = dist.new_subgroups(2)
        assert len(groups) == 2
        assert own is groups[rank // 2]
        return total(rank, own)

    assert run(work, 4) == [3.0, 3.0, 7.0, 7.0]


def test_outside_nothing_happens():
    def work(rank):
        group = dist.new_group([0])
        if rank == 1:
            x = pydist.ones(2)
            for call in (
                lambda: dist.all_reduce(x, group=group),
                lambda: dist.broadcast(x, 0, group=group),
                lambda: dist.all_gather_object([], 1, group=group),
                lambda: dist.barrier(group=group),
            ):
                with pytest.warns(UserWarning, match="not in the group"):
                    assert call() is None
            assert x.tolist() == [1.0, 1.0]

    with warnings.catch_warnings():
        run(work, 2)


def test_wrong_arguments_leave_the_rest_usable():
    def work(rank):
        for ranks, kind in (([0, 0], ValueError), ([2], ValueError), ([], ValueError), (["a"], TypeError)):
            with pytest.raises(kind, match="new_group"):
                dist.new_group(ranks)
        with pytest.raises(ValueError, match="divisor"):
            dist.new_subgroups(3)
        return total(rank, None)

    assert run(work, 2) == [3.0, 3.0]


def test_a_death_ends_only_its_groups():
    """Rank 2 raises: the group of ranks 0 and 1 goes on, that of all ends and says why, and a new group of the
    survivors can be made."""

    def work(rank):
        pair = dist.new_group([0, 1])
        other = dist.new_group([1, 2])
        dist.barrier()
        if rank == 2:
            raise KeyError("the reason")
        begin = time.perf_counter()
        with pytest.raises(dist.PeerFailed, match="rank 2(?s:.*)the reason"):
            total(rank, None)
        if rank == 1:
            with pytest.raises(dist.PeerFailed, match="rank 2(?s:.*)the reason"):
                total(rank, other)
        assert time.perf_counter() - begin < 20  # not after the group's timeout
        again = dist.new_group([0, 1], use_local_synchronization=True)
        return [total(rank, pair), total(rank, again)]

    results = []
    with pytest.raises(KeyError, match="the reason"):
        run(lambda rank: results.append(work(rank)), 3)
    assert results == [[3.0, 3.0]] * 2


def test_differences_name_ranks_of_the_job():
    def work(rank):
        pair, rest = dist.new_group([1, 3]), dist.new_group([0, 2])
        if rank in (0, 2):
            return total(rank, rest)
        with pytest.raises(
            dist.CommMismatch, match=r"rank 1: all_reduce\(float32\[2\](?s:.*)rank 3: all_reduce\(float32\[3\]"
        ):
            dist.all_reduce(pydist.ones(2 if rank == 1 else 3), group=pair)
        return total(rank, dist.new_group([1, 3], use_local_synchronization=True))

    assert run(work, 4) == [4.0, 6.0, 4.0, 6.0]


def test_a_subgroup_that_nobody_else_joins_times_out():
    def work(rank):
        if rank == 0:
            with pytest.raises(dist.CommTimeout, match="rank 0 waited .* for rank 1"):
                dist.new_group([0, 1], timeout=0.3)
        else:
            time.sleep(0.6)

    run(work, 2)


def test_ddp_over_a_subgroup():
    from pydist.nn.parallel import DistributedDataParallel

    def work(rank):
        group = dist.new_group([0, 2])
        if rank == 1:
            return None
        model = pydist.nn.Linear(2, 1, bias=False)
        with pydist.no_grad():
            model.weight.fill_(float(rank))
        model = DistributedDataParallel(model, process_group=group)
        model(pydist.full((1, 2), float(rank + 1))).sum().backward()
        return model.module.weight.tolist(), model.module.weight.grad.tolist()

    assert run(work, 3) == [([[0.0, 0.0]], [[2.0, 2.0]]), None, ([[0.0, 0.0]], [[2.0, 2.0]])]


@pytest.mark.parametrize("hosts", [2, 4])
def test_over_messages(hosts):
    """Ranks of different hosts, as if: the groups that need it talk over tcp."""
    import threading

    from pydist import _C

    hub, results = _C.Hub(4, hosts), [None] * 4

    def work(rank):
        world = _C.comm_init_hub(hub, rank)
        half = world.subgroup([0, 3]) if rank in (0, 3) else world.subgroup([1, 2], epoch=1)
        if rank in (1, 2):
            world.skip()
        x = pydist.full((70000,), float(rank + 1))
        half.all_reduce(x)
        world.barrier()
        results[rank] = half.transport, half.ranks, x[-1].item()
        half.destroy()
        world.destroy()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [("tcp", [0, 3], 5.0), ("tcp", [1, 2], 5.0), ("tcp", [1, 2], 5.0), ("tcp", [0, 3], 5.0)]


def test_monitored_barrier_names_who_is_missing():
    def work(rank):
        dist.monitored_barrier(timeout=5)
        tensors = [pydist.full((2,), float(rank)), pydist.full((3,), 1.0)]
        dist.all_reduce_coalesced(tensors)
        if rank == 0:
            with pytest.raises(dist.CommTimeout, match=r"rank 1 .*rank 2 "):
                dist.monitored_barrier(timeout=0.1)
        else:
            time.sleep(0.3)
        return [t.tolist() for t in tensors]

    assert run(work, 3) == [[[3.0, 3.0], [3.0, 3.0, 3.0]]] * 3
