"""Going on with the survivors after ranks have died."""

import operator
from hashlib import blake2b

from pydist.distributed import process_group
from pydist.distributed.rendezvous import Place


def shrink_group(ranks_to_exclude, group=None, shrink_flags=0, pg_options=None, timeout=None):
    """The default group without some of its ranks, which are dead or will not be asked any more.

    Each rank that stays calls this with the same `ranks_to_exclude`, at any time after the failure; the others do not.
    The ranks that stay are numbered 0 to n - 1 in their old order. The old group ends, also where it has not failed;
    the new one, which is returned, is the default group from then on (RANK and WORLD_SIZE in the environment stay as
    they are). `timeout`: as of init_process_group, also for the others to come. shrink_flags and pg_options are
    accepted and mean nothing here.

    Raises TypeError or ValueError, and leaves the group as it is, where ranks_to_exclude is no list of some of the
    group's ranks or has this one; NotImplementedError for other than the default group of processes on one host;
    DistError or CommTimeout where a rank that stays does not come.

        try:
            train(model)
        except dist.PeerFailed as failed:
            dist.shrink_group([failed.rank])  # under `pydist.run --on-failure=keep`
    """
    own = process_group._existing()
    if own is None or own is getattr(process_group._here, "group", None) or group not in (None, own):
        raise NotImplementedError("shrink_group: not the default group of a process (expected group=None after init)")
    try:
        excluded = {operator.index(rank) for rank in ranks_to_exclude}
    except TypeError:
        raise TypeError(f"shrink_group: ranks_to_exclude is {ranks_to_exclude!r} (expected a list of ranks)") from None
    if not excluded or not all(0 <= rank < own.size for rank in excluded):
        raise ValueError(
            f"shrink_group: ranks_to_exclude is {ranks_to_exclude!r} (expected some of the ranks 0 to {own.size - 1})"
        )
    if own.rank in excluded:
        raise ValueError(f"shrink_group: called by rank {own.rank}, which it excludes (expected a rank that stays)")
    if own.transport == "tcp":
        raise NotImplementedError("shrink_group: ranks on several hosts (expected one host)")
    stay = [rank for rank in range(own.size) if rank not in excluded]
    before = process_group._joined.address  # the same for all of them, and another one after each shrinking
    name = blake2b(repr((before, stay)).encode(), digest_size=12).hexdigest()
    address = f"job://{name}" if len(stay) > 1 else None
    process_group.destroy_process_group()
    process_group.init_at(Place(stay.index(own.rank), len(stay), address, -1), timeout)
    return process_group.current()
