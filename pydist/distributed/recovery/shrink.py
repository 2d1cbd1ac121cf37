"""Going on with the survivors after ranks have died."""

import operator
import time
from hashlib import blake2b

from pydist._C import CommTimeout, DistError
from pydist.distributed._group import process_group
from pydist.distributed._group.rendezvous import Place, listening_place

_PATIENCE = 300.0  # seconds, as init_process_group's
_MEET = 10.0  # seconds for ranks that have just agreed to meet
_root = None  # after a first shrinking: the group over the launcher's connection, and our ranks' numbers in it


def _known_to_all(own):
    """The group whose server says who is gone, our ranks' numbers in it, and whether the server is a launcher's."""
    if "://" not in process_group._joined.address:
        return own, list(range(own.size)), True
    return (*_root, True) if _root is not None else (own, list(range(own.size)), False)


class _Agreement:
    """On the ranks that are gone: the same set on all that stay, each of which has to ask.

    All hear of deaths from one server, so each says what it knows in the server's store until everybody who stays has
    said the same. Without the server, whose process may be the one that died, what this rank knows has to do.
    """

    def __init__(self, own, group, names, launched):
        self.own, self.group, self.names, self.launched = own, group, names, launched
        self.key = f"pydist.shrink/{self.names}"
        self.said = None

    def _gone(self):
        """By their names. Who has said something here and left on its own has only gone on, faster than this rank."""
        news = self.group.gone
        gone = {self.names[i] for i, left in self.own.gone.items() if not left}
        return gone | {r for r in self.names if r in news and not (news[r] and self._has_said(r))}

    def _has_said(self, rank, gone=None):
        return self.group.store.check(f"{self.key}/{rank}/{gone or ''}")

    def reach(self, seconds):
        """The numbers of those who are gone in the group as it was, and whether that is sure."""
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
                    raise DistError(f"shrink_group: rank {self.own.rank} has lost its launcher: {error}") from None
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
        raise ValueError(f"shrink_group: called by rank {group.rank}, which it excludes (expected a rank that stays)")
    return excluded


def _over_hosts(first, store, name, patience):
    """Where ranks of several hosts meet: the first of them says it in the store that all of them reach."""
    key = f"pydist.shrink/{name}"
    if first:
        store.set(key, listening_place())
    return bytes(store.get(key, patience)).decode()


def _meet(own, group, names, launched, excluded, before, timeout, patience=None):
    """The ranks that stay, at a place that only they know; `before`: where they met the last time."""
    global _root
    stay = [rank for rank in range(own.size) if rank not in excluded]
    name = blake2b(repr((before, stay)).encode(), digest_size=12).hexdigest()
    address = f"job://{name}" if len(stay) > 1 else None
    if address and own.transport == "tcp":
        address = _over_hosts(own.rank == stay[0], group.store, name, _PATIENCE if patience is None else patience)
    process_group.destroy_process_group()
    process_group.leave(timeout, keep=True)
    process_group.init_at(Place(stay.index(own.rank), len(stay), address, -1), timeout, patience)
    _root = (group, [names[rank] for rank in stay]) if launched else None
    return process_group.current()


def shrink_group(ranks_to_exclude=None, group=None, shrink_flags=0, pg_options=None, timeout=None):
    """The default group without some of its ranks: None, those that have died or left, on which the others agree here;
    else a list, the same on every rank that stays, of ranks that are dead or will not be asked any more.

    Each rank that stays calls this, at any time after the failure; the others do not. The ranks that stay are numbered
    0 to n - 1 in their old order. The old group ends, also where it has not failed; the new one, which is returned, is
    the default group from then on (RANK and WORLD_SIZE in the environment stay as they are). `timeout`: as of
    init_process_group, also for the others to come. shrink_flags and pg_options are accepted and mean nothing here.

    Several ranks may die at once, or while the others meet, as long as a launcher lives. Without one, rank 0 keeps the
    books: where it dies, the others know only of deaths before its own.

    Raises TypeError or ValueError, and leaves the group as it is, where ranks_to_exclude is no list of some of the
    group's ranks or has this one, or where it is None and nobody is gone; NotImplementedError for other than the
    default group of processes; DistError or CommTimeout where a rank that stays does not come.

        try:
            train(model)
        except dist.PeerFailed:
            before = dist.group.WORLD
            after = dist.shrink_group()  # under `pydist.run --on-failure=keep`
            dist.member.rejoin(before, after)

    Wrappers of the old group (DistributedDataParallel) and other members stay in it until member.rejoin. See Transaction
    for a training step that survives.
    """
    own = process_group._existing()
    if own is None or own is getattr(process_group._here, "group", None) or group not in (None, own):
        raise NotImplementedError("shrink_group: not the default group of a process (expected group=None after init)")
    excluded = None if ranks_to_exclude is None else _excluded(ranks_to_exclude, own)
    if excluded is None and not own.gone:
        raise ValueError("shrink_group: all ranks are there (expected some that are gone, or ranks_to_exclude)")
    known, before = _known_to_all(own), process_group._joined.address
    if excluded is not None:
        return _meet(own, *known, excluded, before, timeout)
    seconds = getattr(timeout, "total_seconds", lambda: _PATIENCE if timeout is None else float(timeout))()
    agreement, failed = _Agreement(own, *known), None
    while True:
        tried = excluded
        excluded, sure = agreement.reach(seconds)
        if excluded == tried:
            raise failed
        try:
            return _meet(own, *known, excluded, before, timeout, min(_MEET, seconds) if sure else None)
        except DistError as error:  # one of them has died meanwhile, if the others say so too
            failed = error
