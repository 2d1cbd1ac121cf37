"""Members: what lives in a process group, and goes on in the next one where ranks have died or come.

A member is any object of a training program that depends on a group: a wrapper with buckets, shards, a trainer, a
notebook's session. It registers once, and is then told what it has to do, without anybody knowing what it is:

    settle(on)    on=True: from now on what a backward starts has ended when the backward returns, so that an error is
                  raised before the optimizer's step begins; False: it may go on behind it.
    rejoin(group) the member's group has been replaced by `group`: what belongs to the old one is given up, and made anew.
                  It may use collectives of the new group, which the same member of every rank then does.
    steps         optional: how many steps of training its state has seen. Then it also has state_dict() and
                  load_state_dict(state), which sets `steps`, too: before rejoin, members that have seen fewer steps than
                  the same member of another rank take the state of the first one that has seen most.

DistributedDataParallel and Transaction are members. Members are told in the order in which they registered, which has to
be the same on all ranks: rejoin compares. They are referenced weakly: who drops a member need not do anything else.

A trainer that counts the samples of all ranks, and loses none when a rank dies:

>>> import pydist
>>> from pydist import distributed as dist
>>> class Trainer:
...     def __init__(self):
...         self.steps, self.samples = 0, 0
...         self.rejoin(dist.member.register(self))
...     def rejoin(self, group):
...         self.group, self.share = group, 64 // group.size
...     def settle(self, on):
...         pass
...     def state_dict(self):
...         return {"steps": self.steps, "samples": self.samples}
...     def load_state_dict(self, state):
...         self.steps, self.samples = state["steps"], state["samples"]
...     def step(self):
...         batch = pydist.tensor([self.share])
...         dist.all_reduce(batch, group=self.group)
...         self.steps, self.samples = self.steps + 1, self.samples + batch.item()
>>> trainer = Trainer()
>>> trainer.step()
>>> trainer.steps, trainer.samples
(1, 64)
>>> group = dist.new_group([0])  # after a death: dist.shrink_group()
>>> dist.member.rejoin(dist.group.WORLD, group)
>>> trainer.group is group, trainer.share
(True, 64)

Transaction calls all of that by itself. A program that goes on by hand says who has ended and who follows:

    try:
        trainer.step()
    except dist.PeerFailed:
        before = dist.group.WORLD
        dist.member.rejoin(before, dist.shrink_group())
"""

import gc
import operator
import weakref

from pydist.distributed._group.process_group import current
from pydist.distributed._ops.agreement import check_agreement

__all__ = ["group_of", "members", "register", "rejoin", "settle"]


class _Room:
    """The members of one group."""

    def __init__(self, group):
        self.group = group
        self.entries = []  # in order of registration
        self.count = 0  # registrations so far

    def add(self, entry):
        self.count += 1
        entry.room, entry.number = self, self.count
        self.entries.append(entry)


class _Entry(weakref.ref):
    """One registration: it ends with its member, which calling it gives."""

    __slots__ = ("number", "room")
    __eq__, __hash__ = object.__eq__, object.__hash__

    def __new__(cls, member):
        return super().__new__(cls, member, _Entry.end)

    def end(self):
        if self in self.room.entries:
            self.room.entries.remove(self)
        if not self.room.entries:
            _rooms.pop(self.room.group, None)


_rooms = {}  # by group, as long as it has a member


def _entry_of(member):
    rooms = list(_rooms.values())  # other threads are ranks with groups of their own
    return next((entry for room in rooms for entry in list(room.entries) if entry() is member), None)


def _check(member):
    for name in ("settle", "rejoin"):
        if not callable(getattr(member, name, None)):
            raise TypeError(f"register: {type(member).__name__} has no {name} (expected a member: settle and rejoin)")
    if not hasattr(member, "steps"):
        return
    try:
        operator.index(member.steps)
    except TypeError:
        raise TypeError(
            f"register: steps of {type(member).__name__} is {type(member.steps).__name__} (expected an int)"
        ) from None
    for name in ("state_dict", "load_state_dict"):
        if not callable(getattr(member, name, None)):
            raise TypeError(f"register: {type(member).__name__} has steps and no {name} (expected both)")


def register(member, group=None):
    """`member` lives in `group` (default: the default group) from now on. Returns the group. All its ranks call this,
    in the same order.

    A member that is registered already moves: it is the group's last one then. TypeError: it lacks settle or rejoin, or
    has `steps` without state_dict and load_state_dict, or cannot be referenced weakly. ValueError: this rank is not in
    the group.

    >>> from pydist import distributed as dist
    >>> class Silent:
    ...     def settle(self, on): pass
    ...     def rejoin(self, group): pass
    >>> silent = Silent()
    >>> dist.member.register(silent) is dist.group.WORLD
    True
    >>> silent in dist.member.members()
    True
    """
    _check(member)
    group = current(group)
    if group.size < 0:
        raise ValueError("register: this rank is not in the group (expected a group that it is in)")
    added, before = _Entry(member), _entry_of(member)
    _rooms.setdefault(group, _Room(group)).add(added)
    if before is not None:
        before.end()
    return group


def _alive(group):
    room = _rooms.get(group)
    pairs = [(entry.number, entry()) for entry in list(room.entries)] if room else ()
    return [(number, member) for number, member in pairs if member is not None]


def members(group=None):
    """The members of `group` (default: the default group) that live, in order of registration."""
    return [member for _, member in _alive(current(group))]


def group_of(member):
    """The group that `member` is registered in, or None."""
    entry = _entry_of(member)
    return None if entry is None else entry.room.group


def settle(on, group=None):
    """Calls settle(on) of all members of `group`. Where one of them raises, those before it are set back."""
    told = []
    try:
        for member in members(group):
            member.settle(on)
            told.append(member)
    except BaseException:
        for member in told:
            member.settle(not on)
        raise


def _move(before, group):
    """The members of `before` are those of `group`; what has registered there already comes behind."""
    if before is group or before not in _rooms:
        return
    ended, there, room = _rooms.pop(before), _rooms.get(group), _Room(group)
    _rooms[group] = room
    room.count = ended.count
    for entry in ended.entries:
        room.entries.append(entry)
        entry.room = room
    for entry in there.entries if there else ():
        room.add(entry)


def _check_same(group):
    def lines():
        return [f"{type(member).__name__} (registration {number})" for number, member in _alive(group)]

    try:
        check_agreement("rejoin: member", lines(), group)
    except RuntimeError:
        gc.collect()  # what is garbage here may have gone elsewhere
        check_agreement("rejoin: member", lines(), group)


def _catch_up(member, group):
    from pydist.distributed._ops.objects import all_gather_object, broadcast_object_list  # pickle is needed by few

    rows = [None] * group.size
    all_gather_object(rows, operator.index(member.steps), group)
    newest = max(rows)
    if min(rows) == newest:
        return
    source = rows.index(newest)
    state = [member.state_dict() if group.rank == source else None]
    broadcast_object_list(state, group=group, group_src=source)
    if member.steps == newest:
        return
    member.load_state_dict(state[0])
    if member.steps != newest:
        raise RuntimeError(
            f"rejoin: {type(member).__name__}.load_state_dict left steps at {member.steps} (expected {newest}, as on "
            f"rank {source}, whose state it is)"
        )


def rejoin(before, group):
    """The members of the group `before`, which has ended, go on in `group`. All ranks of `group` call this.

    In order of registration each one first gets the newest state that a rank has of it (where it has `steps`), then
    rejoin(group). RuntimeError on all ranks where their members are not the same, naming the first that differs: nothing
    has been told to any then. PeerFailed: another rank has died meanwhile; the members count as those of `group`, so
    call rejoin(group, the next one). An error of a member's goes through.
    """
    group = current(group)
    _move(before, group)
    _check_same(group)
    for member in members(group):
        if hasattr(member, "steps"):
            _catch_up(member, group)
        member.rejoin(group)
