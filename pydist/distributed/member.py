"""Members: objects that depend on a process group and go on in its successor when ranks have died or come.

A member is any object of a training program that depends on a group: a wrapper with buckets, shards, a trainer, a
notebook's session. It registers once. From then on pydist calls these methods and needs to know nothing else of it:

    settle(on)    on=True: from now on, whatever a backward starts has ended when the backward returns, so errors are
                  raised before the optimizer's step begins. on=False: it may still run when the backward returns.
    rejoin(group) `group` has replaced the member's group: the member drops what belongs to the old group and makes it
                  again. It may call collectives of the new group, if the same member of every rank calls them.
    steps         optional: how many training steps its state has seen. A member with steps also has state_dict() and
                  load_state_dict(state), which sets `steps`, too. Before rejoin, a member that has seen fewer steps than
                  the same member of another rank loads the state of the first rank that has seen the most.

DistributedDataParallel and Transaction are members. Members are called in the order in which they registered. It has to
be the same on all ranks; rejoin checks that. They are referenced weakly: a member that is deleted needs no call to leave.

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

Transaction calls all of that by itself. A program without it tells rejoin which group has ended and which one follows:

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
        self.count = 0  # how many registrations there were

    def add(self, entry):
        self.count += 1
        entry.room, entry.number = self, self.count
        self.entries.append(entry)


class _Entry(weakref.ref):
    """One registration, with a weak reference to its member: a call returns the member. It ends when the member is
    deleted."""

    __slots__ = ("number", "room")
    __eq__, __hash__ = object.__eq__, object.__hash__

    def __new__(cls, member):
        return super().__new__(cls, member, _Entry.end)

    def end(self):
        if self in self.room.entries:
            self.room.entries.remove(self)
        if not self.room.entries:
            _rooms.pop(self.room.group, None)


_rooms = {}  # by group, for groups that have a member


def _entry_of(member):
    rooms = list(_rooms.values())  # other threads are other ranks, with their own groups
    return next((entry for room in rooms for entry in list(room.entries) if entry() is member), None)


def _check(member):
    for name in ("settle", "rejoin"):
        if not callable(getattr(member, name, None)):
            raise TypeError(
                f"register: {type(member).__name__} has no {name} (expected a member, which has settle and rejoin)"
            )
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
    """Registers `member` in `group` (default: the default group). Returns the group. All ranks of the group call this,
    in the same order.

    A member that is registered already moves: it becomes the last one of the group. Raises TypeError if it has no
    settle or rejoin, has `steps` without state_dict and load_state_dict, or cannot be referenced weakly; ValueError if
    this rank is not in the group.

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
        raise ValueError("register: this rank is not in the group (expected a group with this rank)")
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
    """The live members of `group` (default: the default group), in the order of registration."""
    room = _rooms.get(current(group))
    return [member for entry in list(room.entries) if (member := entry()) is not None] if room else []


def group_of(member):
    """The group that `member` is registered in, or None."""
    entry = _entry_of(member)
    return None if entry is None else entry.room.group


def settle(on, group=None):
    """Calls settle(on) of all members of `group`. If one of them raises, those before it are set back."""
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
    """Moves the members of `before` to `group`, in front of those that have registered there already."""
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
        gc.collect()  # an object that is garbage here may be deleted already on other ranks
        check_agreement("rejoin: member", lines(), group)


def _catch_up(member, group):
    from pydist.distributed._ops.objects import all_gather_object, broadcast_object_list  # few programs need pickle

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
    """Moves the members of the group `before`, which has ended, to `group`. All ranks of `group` call this.

    In the order of registration, each member with `steps` first gets the newest state that any rank has of it; then its
    rejoin(group) is called. Raises RuntimeError on all ranks if they do not have the same members, and names the first
    one that differs; no member has been called then. PeerFailed: another rank has died meanwhile. The members then
    belong to `group`, so call rejoin(group, the next group). An error that a member raises is passed on.
    """
    group = current(group)
    _move(before, group)
    _check_same(group)
    for member in members(group):
        if hasattr(member, "steps"):
            _catch_up(member, group)
        member.rejoin(group)
