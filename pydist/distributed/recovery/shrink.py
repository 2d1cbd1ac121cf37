"""Going on with the survivors after ranks have died."""

import operator
import time
from hashlib import blake2b

from pydist._C import CommTimeout, DistError, PeerFailed
from pydist.distributed._group import process_group
from pydist.distributed._group.rendezvous import Place, listening_place

_PATIENCE = 300.0  # seconds, as for init_process_group
_MEET = 10.0  # seconds for ranks that have just agreed to meet
_root = None  # after the first shrink_group: the group on the launcher's connection, and our ranks' numbers in it


def _known_to_all(own):
    """(the group whose server knows which ranks are gone, our ranks' numbers in it, whether the server belongs to a
    launcher)."""
    if "://" not in process_group._joined.address:
        return own, list(range(own.size)), True
    return (*_root, True) if _root is not None else (own, list(range(own.size)), False)


class _Agreement:
    """Agreement on which ranks are gone. All ranks that stay get the same set, and each of them has to ask.

    All ranks hear of deaths from one server. Each writes what it knows into the server's store, until all ranks that
    stay have written the same. Without the server (its process may be the one that died) a rank has to use what it
    knows itself.
    """

    def __init__(self, own, group, names, launched):
        self.own, self.group, self.names, self.launched = own, group, names, launched
        self.key = f"pydist.shrink/{self.names}"
        self.said = None

    def _gone(self):
        """The names of the ranks that are gone. A rank that has written here and left in good order is not gone, only
        faster."""
        news = self.group.gone
        gone = {self.names[i] for i, left in self.own.gone.items() if not left}
        return gone | {r for r in self.names if r in news and not (news[r] and self._has_said(r))}

    def _has_said(self, rank, gone=None):
        return self.group.store.check(f"{self.key}/{rank}/{gone or ''}")

    def reach(self, seconds):
        """(the numbers in the old group of the ranks that are gone, whether that is certain)."""
        deadline, me = time.monotonic() + seconds, self.names[self.own.rank]
        while True:
            try:
                gone = sorted(self._gone())
                stay = [r for r in self.names if r not in gone]
                if gone != self.said:
                    self.said = gone
                    for text in ("", gone):
                        self.group.store.set(f"{self.key}/{me}/{text}", "")
                if all(self._has_said(r, gone) for r in stay):
                    return {self.names.index(r) for r in gone}, True
                if time.monotonic() > deadline:
                    missing = [self.names.index(r) for r in stay if not self._has_said(r)]
                    raise CommTimeout(f"shrink_group: rank {self.own.rank} waited {seconds:.0f} s for ranks {missing}")
            except CommTimeout:
                raise
            except DistError as error:
                if self.launched:
                    raise DistError(
                        f"shrink_group: rank {self.own.rank} lost the connection to its launcher: {error}"
                    ) from None
                return set(self.own.gone), False
            time.sleep(0.001)


def _excluded(ranks, group):
    try:
        excluded = {operator.index(rank) for rank in ranks}
    except TypeError:
        raise TypeError(f"shrink_group: ranks_to_exclude is {ranks!r} (expected a list of ranks)") from None
    if not excluded or not all(0 <= rank < group.size for rank in excluded):
        raise ValueError(
            f"shrink_group: ranks_to_exclude is {ranks!r} (expected some of the ranks 0 to {group.size - 1})"
        )
    if group.rank in excluded:
        raise ValueError(
            f"shrink_group: rank {group.rank} excludes itself (expected only ranks that stay to call this)"
        )
    return excluded


def _over_hosts(first, group, stay, name, patience):
    """Where ranks of several hosts meet: the first of them writes it into the store that all of them reach. Raises
    PeerFailed if one of them (`stay`: their names in the group) has died, CommTimeout after `patience` seconds."""
    key, deadline = f"pydist.shrink/{name}", time.monotonic() + patience
    if first:
        group.store.set(key, listening_place())
    while not group.store.check(key):  # a wait at the store would end at once, because a rank has died
        if gone := set(stay) & set(group.gone):
            raise PeerFailed(f"shrink_group: rank {min(gone)} has died, too")
        if time.monotonic() > deadline:
            raise CommTimeout(
                f"shrink_group: waited {patience:.0f} s for rank {stay[0]} to say where ranks {stay} meet"
            )
        time.sleep(0.002)
    return bytes(group.store.get(key, 1.0)).decode()


def _meet(own, group, names, launched, excluded, before, timeout, patience=None):
    """The group of the ranks that stay, at a place that only they know. `before`: where they met the last time."""
    global _root
    stay = [rank for rank in range(own.size) if rank not in excluded]
    if own.transport == "tcp" and "://" not in before:
        before = ""  # each host has an address of its own for the launcher; in its store the name is unique as it is
    name = blake2b(repr((before, stay)).encode(), digest_size=12).hexdigest()
    address = f"job://{name}" if len(stay) > 1 else None
    if address and own.transport == "tcp":
        ours = [names[rank] for rank in stay]
        address = _over_hosts(own.rank == stay[0], group, ours, name, _PATIENCE if patience is None else patience)
    process_group.destroy_process_group()
    process_group.leave(timeout, keep=True)
    process_group.init_at(Place(stay.index(own.rank), len(stay), address, -1), timeout, patience)
    _root = (group, [names[rank] for rank in stay]) if launched else None
    return process_group.current()


def shrink_group(ranks_to_exclude=None, group=None, shrink_flags=0, pg_options=None, timeout=None):
    """Makes the default group anew without some of its ranks. `ranks_to_exclude`: None for the ranks that have died or
    left; the remaining ranks agree on them here. Otherwise a list, the same on every rank that stays, of ranks that are
    dead or are to be left out.

    Every rank that stays calls this, at any time after the failure; the others do not. The ranks that stay are numbered
    0 to n - 1 in their old order. The old group ends, even if it has not failed. The new group is returned and becomes
    the default group (RANK and WORLD_SIZE in the environment stay as they are). `timeout`: as for init_process_group;
    it also limits how long the other ranks may take to come. shrink_flags and pg_options are accepted and ignored.

    Several ranks may die at once, or while the others meet, as long as a launcher lives. Without a launcher rank 0
    keeps the record of deaths: if it dies, the others know only of the deaths before its own.

    Raises TypeError or ValueError, and leaves the group as it is, if ranks_to_exclude is not a list of some of the
    group's ranks or contains this rank, or if it is None and no rank is gone; NotImplementedError for a group that is
    not the default group of a process; DistError or CommTimeout if a rank that stays does not come.

        try:
            train(model)
        except dist.PeerFailed:
            before = dist.group.WORLD
            after = dist.shrink_group()  # under `pydist.run --on-failure=keep`
            dist.member.rejoin(before, after)

    Members of the old group, such as DistributedDataParallel, stay in it until member.rejoin. See Transaction for a
    training step that survives deaths.
    """
    own = process_group._existing()
    if own is None or own is getattr(process_group._here, "group", None) or group not in (None, own):
        raise NotImplementedError(
            "shrink_group: got a group that is not the process's default group (expected None, after init_process_group)"
        )
    excluded = None if ranks_to_exclude is None else _excluded(ranks_to_exclude, own)
    if excluded is None and not own.gone:
        raise ValueError("shrink_group: no rank has died or left (expected one that has, or ranks_to_exclude)")
    known, before = _known_to_all(own), process_group._joined.address
    if excluded is not None:
        return _meet(own, *known, excluded, before, timeout)
    seconds = getattr(timeout, "total_seconds", lambda: _PATIENCE if timeout is None else float(timeout))()
    agreement, failed, since = _Agreement(own, *known), None, None
    while True:
        tried = excluded
        excluded, sure = agreement.reach(seconds)
        if excluded == tried:
            if not isinstance(failed, PeerFailed) or time.monotonic() - since > _MEET:
                raise failed
            time.sleep(0.002)  # somebody has died, but who knows of all deaths has not heard of it yet
            continue
        try:
            return _meet(own, *known, excluded, before, timeout, min(_MEET, seconds) if sure else None)
        except DistError as error:  # one of them may have died meanwhile: ask the others
            failed, since = error, time.monotonic()
