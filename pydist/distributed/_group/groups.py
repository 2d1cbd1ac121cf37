"""Groups of some of the ranks: made by all ranks of the job, or by their members alone.

A group has its own numbers, 0 to size - 1, in the order of its ranks; `group_src`, `group_dst` and `group_peer` count
so, `src` and `dst` mean ranks of the job. Groups are independent of each other: their collectives have orders of their
own, and the death of a rank ends only the groups that it is in.
"""

import datetime
import time

from pydist._C import PeerFailed
from pydist.distributed._group.process_group import GroupMember, current, get_process_group_ranks, is_fast, made_apart


def _ranks_of(op, ranks, world):
    """`ranks` as a list; None: all."""
    if ranks is None:
        return list(range(world))
    ranks = list(ranks)
    for rank in ranks:
        if isinstance(rank, bool) or not hasattr(rank, "__index__"):
            raise TypeError(f"{op}: rank {rank!r} (expected an int)")
        if not 0 <= rank < world:
            raise ValueError(f"{op}: rank {rank} (expected 0 to {world - 1})")
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"{op}: ranks {ranks} (expected at least one, and each once)")
    return [int(rank) for rank in ranks]


def _seconds(timeout):
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    if not seconds > 0:
        raise ValueError(f"new_group: timeout is {timeout} (expected more than 0)")
    return seconds


def _number_at(store, key, ranks):
    """The number that the store will have there. The death of ranks that are not in the group does not matter."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return int(store.get(key))
        except PeerFailed as error:
            if error.rank in ranks or time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def _agreed_epoch(world, ranks):
    """The number of a group that only its members know of, the same for all of them: its first rank counts it."""
    name, made = ",".join(map(str, ranks)), made_apart()
    turn = made[name] = made.get(name, 0) + 1
    store, key = world.store, f"pydist.group/{world.epoch}/{name}/{turn}"
    if world.rank != ranks[0]:
        return _number_at(store, key, ranks)
    epoch = store.add("pydist.groups", 1)
    store.set(key, str(epoch))
    return epoch


def new_group(
    ranks=None,
    timeout=None,
    backend=None,
    pg_options=None,
    use_local_synchronization=False,
    group_desc=None,
    device_id=None,
    sort_ranks=True,
    order=None,
):
    """A group of `ranks` (None: all), in increasing order as in PyTorch; GroupMember.NON_GROUP_MEMBER on other ranks.

    All ranks of the job call this, also those that are not in it, in the same order; with use_local_synchronization
    only its members do. `timeout`: a timedelta or seconds, after which a wait for a live peer raises CommTimeout.
    `order`: as init_process_group's, for this group alone.
    backend, pg_options, group_desc and device_id are accepted and mean nothing: a group talks as the job does.

    >>> from pydist import distributed as dist
    >>> pair = dist.new_group([0])  # a world of one
    >>> dist.get_world_size(pair), dist.get_group_rank(pair, 0)
    (1, 0)
    """
    world = current()
    if not sort_ranks:
        raise ValueError("new_group: sort_ranks is False (expected True: a group counts its ranks in increasing order)")
    ranks = sorted(_ranks_of("new_group", ranks, world.size))
    member, seconds, fast = world.rank in ranks, _seconds(timeout), is_fast("new_group", order)
    apart = use_local_synchronization and world.size > 1
    if member:
        return world.subgroup(ranks, seconds, _agreed_epoch(world, ranks) if apart else 0, fast)
    if not apart:
        world.skip()
    return GroupMember.NON_GROUP_MEMBER


def new_subgroups_by_enumeration(ranks_per_subgroup_list, timeout=None, backend=None, pg_options=None, group_desc=None):
    """(the group that this rank is in, all of them), one for each list of ranks; no rank is in two of them."""
    lists = [list(ranks) for ranks in ranks_per_subgroup_list]
    if not lists:
        raise ValueError("new_subgroups_by_enumeration: no lists of ranks (expected at least one)")
    flat = [rank for ranks in lists for rank in ranks]
    twice = sorted({rank for rank in flat if flat.count(rank) > 1})
    if twice:
        raise ValueError(f"new_subgroups_by_enumeration: rank {twice[0]} is in two groups (expected one)")
    own, made = GroupMember.NON_GROUP_MEMBER, []
    rank = current().rank
    for ranks in lists:
        made.append(new_group(ranks, timeout, backend, pg_options))
        own = made[-1] if rank in ranks else own
    return own, made


def new_subgroups(group_size=None, group=None, timeout=None, backend=None, pg_options=None, group_desc=None):
    """(the group that this rank is in, all of them): consecutive ranks of `group` (default: all), group_size each."""
    ranks = get_process_group_ranks(group)
    size = len(ranks) if group_size is None else group_size
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"new_subgroups: group_size is {type(size).__name__} (expected an int)")
    if size < 1 or len(ranks) % size:
        raise ValueError(f"new_subgroups: group_size {size} (expected a divisor of the {len(ranks)} ranks)")
    return new_subgroups_by_enumeration([ranks[i : i + size] for i in range(0, len(ranks), size)], timeout)


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, backend=None):
    """The group of that list of `split_ranks`, which count as `parent_pg` does, that this rank is in; None where it is
    in none. Only the ranks of parent_pg call this."""
    parent, world = current(parent_pg), current()
    if not split_ranks:
        raise ValueError("split_group: split_ranks is empty (expected lists of ranks)")
    lists = [_ranks_of("split_group", ranks, parent.size) for ranks in split_ranks]
    flat = [rank for ranks in lists for rank in ranks]
    if len(set(flat)) < len(flat):
        raise ValueError("split_group: a rank is in two lists (expected one)")
    seconds = _seconds(timeout)
    for ranks in lists:
        if parent.rank in ranks:
            ranks = [parent.ranks[rank] for rank in sorted(ranks)]
            return world.subgroup(ranks, seconds, _agreed_epoch(world, ranks) if world.size > 1 else 0)
    return None
