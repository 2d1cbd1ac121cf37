"""Groups of some of the ranks: all ranks of the job make them together, or only their members do.

A group numbers its ranks 0 to size - 1, in order. `group_src`, `group_dst` and `group_peer` are such numbers; `src` and
`dst` are ranks of the job. Groups are independent of each other: each has its own order of collectives, and when a rank
dies, only the groups that it is in end.
"""

import datetime
import time

from pydist._C import PeerFailed
from pydist.distributed._group.process_group import GroupMember, current, get_process_group_ranks, is_fast, made_apart


def _ranks_of(op, ranks, world):
    """`ranks` as a list; None means all ranks."""
    if ranks is None:
        return list(range(world))
    ranks = list(ranks)
    for rank in ranks:
        if isinstance(rank, bool) or not hasattr(rank, "__index__"):
            raise TypeError(f"{op}: rank {rank!r} (expected an int)")
        if not 0 <= rank < world:
            raise ValueError(f"{op}: rank {rank} (expected 0 to {world - 1})")
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"{op}: ranks {ranks} (expected at least one rank, and no rank twice)")
    return [int(rank) for rank in ranks]


def _seconds(timeout):
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    if not seconds > 0:
        raise ValueError(f"new_group: timeout is {timeout} (expected more than 0)")
    return seconds


def _number_at(store, key, ranks):
    """The number that the store's counter will have. Deaths of ranks outside the group do not matter."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return int(store.get(key))
        except PeerFailed as error:
            if error.rank in ranks or time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def _agreed_epoch(world, ranks):
    """The epoch of a group that only its members make: its first rank counts it, so all members get the same one."""
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
    """Makes a group of `ranks` (None: all), in increasing order as in PyTorch. Ranks outside it get
    GroupMember.NON_GROUP_MEMBER.

    All ranks of the job call this in the same order, including those outside the group; with use_local_synchronization
    only the members do. `timeout`: a timedelta or seconds; a wait for a live rank that takes longer raises CommTimeout.
    `order`: as for init_process_group, for this group only. backend, pg_options, group_desc and device_id are accepted
    and ignored: a group uses the job's backend.

    >>> from pydist import distributed as dist
    >>> pair = dist.new_group([0])  # a world of one
    >>> dist.get_world_size(pair), dist.get_group_rank(pair, 0)
    (1, 0)
    """
    world = current()
    if not sort_ranks:
        raise ValueError(
            "new_group: sort_ranks is False (expected True: a group numbers its ranks in increasing order)"
        )
    ranks = sorted(_ranks_of("new_group", ranks, world.size))
    member, seconds, fast = world.rank in ranks, _seconds(timeout), is_fast("new_group", order)
    apart = use_local_synchronization and world.size > 1
    if member:
        return world.subgroup(ranks, seconds, _agreed_epoch(world, ranks) if apart else 0, fast)
    if not apart:
        world.skip()
    return GroupMember.NON_GROUP_MEMBER


def new_subgroups_by_enumeration(ranks_per_subgroup_list, timeout=None, backend=None, pg_options=None, group_desc=None):
    """Makes one group for each list of ranks. Returns (the group of this rank, all of them). No rank may be in two
    groups."""
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
    """Splits `group` (default: all ranks) into groups of group_size consecutive ranks. Returns (the group of this rank,
    all of them)."""
    ranks = get_process_group_ranks(group)
    size = len(ranks) if group_size is None else group_size
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"new_subgroups: group_size is {type(size).__name__} (expected an int)")
    if size < 1 or len(ranks) % size:
        raise ValueError(f"new_subgroups: group_size {size} (expected a divisor of the {len(ranks)} ranks)")
    return new_subgroups_by_enumeration([ranks[i : i + size] for i in range(0, len(ranks), size)], timeout)


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, backend=None):
    """Makes one group for each list of `split_ranks`, which hold numbers in `parent_pg`. Returns this rank's group, or
    None if it is in no list. Only the ranks of parent_pg call this."""
    parent, world = current(parent_pg), current()
    if not split_ranks:
        raise ValueError("split_group: split_ranks is empty (expected lists of ranks)")
    lists = [_ranks_of("split_group", ranks, parent.size) for ranks in split_ranks]
    flat = [rank for ranks in lists for rank in ranks]
    if len(set(flat)) < len(flat):
        raise ValueError("split_group: split_ranks has a rank in two lists (expected each rank in one list)")
    seconds = _seconds(timeout)
    for ranks in lists:
        if parent.rank in ranks:
            ranks = [parent.ranks[rank] for rank in sorted(ranks)]
            return world.subgroup(ranks, seconds, _agreed_epoch(world, ranks) if world.size > 1 else 0)
    return None
