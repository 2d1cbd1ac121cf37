"""Who counts what of remote references (RRef), so that a value lives exactly as long as somebody has a reference to it.

The owner of a value keeps an entry for each copy of its reference that another worker has (a fork). A worker that has a
copy is a user.

    what happens                 messages                                     why it is safe
    remote(to, f)                REMOTE(id, fork) to the owner                the entry is there before any later message
    owner -> user                nothing: the entry is made while it sends    the message is lost only with its receiver
    user -> owner                nothing                                      the user's DELETE comes after the message
    user A -> user B             B: FORK to the owner; the owner: CHILD_OK    A keeps its own copy until CHILD_OK; B's
                                 to A, FORK_OK to B                           calls come after its FORK
    the last copy at a user ends DELETE(fork)
    a worker X dies              who has handled all of X's messages sends    a copy that X had handed on was entered
                                 FLUSHED(X), with the copies that it has      before X's own entry goes, also if X had
                                 handed to X; the owner drops the dead        not sent its FORK any more, or had handed
                                 workers' entries when all living ones have   it to another one that is dead, too
                                 sent it for each of them
"""

import struct
import threading
import weakref

from pydist.distributed.rpc._agent import CHILD_OK, DELETE, FLUSHED, FORK, FORK_OK
from pydist.futures import Future

_ONE, _TWO, _THREE = struct.Struct("<Q"), struct.Struct("<QQ"), struct.Struct("<QQI")


class Owned:
    """A value of this worker with its copies elsewhere. `arrived`: not only copies of the reference have come, but also
    the remote() that makes the value; they come from different workers, so in any order."""

    __slots__ = ("__weakref__", "arrived", "forks", "future", "id", "made", "owner")

    def __init__(self, number, owner, arrived=True):
        self.id, self.owner, self.future, self.forks, self.arrived = number, owner, Future(), {}, arrived
        self.made = None  # the Answer of the remote() that made the value, if this worker has called itself


class Used:
    """A copy of a reference to another worker's value."""

    def __init__(self, table, number, fork, owner):
        self.table, self.id, self.fork, self.owner = table, number, fork, owner
        self.confirmed = threading.Event()  # the owner has an entry for this copy
        self.made = None  # the Answer of the remote() that made the value

    def __del__(self):
        table = self.table
        if table is not None:
            table.end(self)


class References:
    """The references of one agent."""

    def __init__(self, agent):
        self.agent = agent
        self.owned = {}  # id -> Owned, while other workers have copies
        self.used = weakref.WeakValueDictionary()  # fork -> Used
        self.children = {}  # fork -> (Used, the worker that gets it): handed on, and not confirmed by the owner
        self.flushed = {}  # dead worker -> the workers that have handled all its messages
        self.lock = threading.Lock()
        self._numbers = 1

    def unique(self, count=1):
        """The number of a new value or copy, which no worker of this world uses for another one. count: so many following
        numbers are the caller's."""
        with self.lock:
            self._numbers += count
            return self.agent.rank << 48 | self._numbers - count

    def stats(self):
        """Counts of owned values, copies of others' values, and copies on their way."""
        return {"owner_rrefs": len(self.owned), "user_rrefs": len(self.used), "pending_children": len(self.children)}

    # ---- sending -----------------------------------------------------------------------------------------------------

    def lend(self, rrefs, to):
        """The rows (owner, id, fork) for a message to a worker that has these RRefs."""
        rows = []
        for rref in rrefs:
            state = rref._state
            owned = isinstance(state, Owned)
            owner = self.agent.rank if owned else state.owner
            fork = 0 if owner == to else self.unique()
            with self.lock:
                if owned:
                    self._enter(state, fork, to)
                elif fork and owner not in self.agent.gone:  # else nobody would confirm it
                    self.children[fork] = state, to
            rows.append((owner, state.id, fork))
        return rows

    def take_back(self, rows):
        """The message with these rows was not sent."""
        for owner, number, fork in rows:
            if owner == self.agent.rank:
                self._drop(number, fork)
            else:
                with self.lock:
                    self.children.pop(fork, None)

    # ---- receiving ---------------------------------------------------------------------------------------------------

    def create(self, number, fork, user):
        """The entry of a remote() that has arrived."""
        with self.lock:
            state = self._entry(number)
            state.arrived = True
            self._enter(state, fork, user)
        return state

    def entry(self, number):
        """The entry of a value that another worker asks for."""
        with self.lock:
            return self._entry(number)

    def _entry(self, number):
        """The entry of a value. A new one if its remote() has not come yet. Needs the lock."""
        state = self.owned.get(number)
        if state is None:
            state = Owned(number, self.agent.rank, arrived=False)
            error = self.agent.gone.get(number >> 48)
            if error is None:
                self.owned[number] = state
            else:  # it will not come
                state.arrived = True
                state.future.set_exception(error)
        return state

    def _enter(self, state, fork, user):
        """The worker `user` has this copy. Needs the lock."""
        state.forks[fork] = user
        self.owned[state.id] = state

    def receive(self, rows, sender):
        """The RRefs of a message."""
        from pydist.distributed.rpc.rref import RRef

        found = []
        for owner, number, fork in rows:
            if owner not in self.agent.workers:
                raise RuntimeError(f"rpc: a reference to a value of worker {owner} (expected one of the workers)")
            if owner == self.agent.rank:
                state = self.entry(number)
            else:
                state = Used(self, number, fork, owner)
                with self.lock:
                    self.used[fork] = state
                if sender == owner:
                    state.confirmed.set()
                else:
                    self.agent.put(owner, FORK, _THREE.pack(number, fork, sender))
            found.append(RRef._of(state))
        return found

    def control(self, sender, kind, data):
        """A message of the protocol, in the order in which the sender sent it."""
        if kind == FORK:
            number, fork, parent = _THREE.unpack(data)
            with self.lock:
                self._enter(self._entry(number), fork, sender)
            self.agent.put(parent, CHILD_OK, _ONE.pack(fork))
            self.agent.put(sender, FORK_OK, _ONE.pack(fork))
        elif kind == FORK_OK:
            state = self.used.get(_ONE.unpack(data)[0])
            if state is not None:
                state.confirmed.set()
        elif kind == CHILD_OK:
            with self.lock:
                found = self.children.pop(_ONE.unpack(data)[0], None)
            del found  # its end may send, so not under the lock
        elif kind == DELETE:
            self._drop(*_TWO.unpack(data))
        else:
            dead, *copies = struct.unpack(f"<{len(data) // 8}Q", data)
            self._flushed(sender, dead, list(zip(copies[::2], copies[1::2])))

    def _drop(self, number, fork):
        with self.lock:
            state = self.owned.get(number)
            if state is not None:
                state.forks.pop(fork, None)
                if not state.forks and state.arrived:
                    del self.owned[number]
        del state  # the value's end may run code, so not under the lock

    def end(self, state):
        """The last use of a copy has ended. Called by a destructor: takes no lock and sends nothing."""
        agent = self.agent
        if state.owner not in agent.gone and not agent.closing:
            agent.put(state.owner, DELETE, _TWO.pack(state.id, state.fork))
            agent.pipes.wake()

    # ---- deaths and the end ------------------------------------------------------------------------------------------

    def lose(self, rank):
        """A worker is gone, and all its messages were handled."""
        with self.lock:
            lost, self.children, handed = self.children, {}, {}
            for fork, (state, to) in lost.items():
                if to == rank:
                    handed.setdefault(state.owner, []).append((state.id, fork))
                elif state.owner != rank:
                    self.children[fork] = state, to
            never = [state for state in self.owned.values() if not state.arrived and state.id >> 48 == rank]
            for state in never:
                state.arrived = True  # it will not come any more
                if not state.forks:
                    del self.owned[state.id]
        for state in never:
            state.future.set_exception(self.agent.gone[rank])
        for one in self.agent.workers:
            if one != self.agent.rank and one not in self.agent.gone:
                copies = b"".join(_TWO.pack(*copy) for copy in handed.get(one, ()))
                self.agent.put(one, FLUSHED, _ONE.pack(rank) + copies)
        self._flushed(self.agent.rank, rank)

    def _flushed(self, sender, dead, copies=()):
        """A worker has handled all messages of a dead one, to which it had handed these copies."""
        with self.lock:
            for number, fork in copies:
                self._enter(self._entry(number), fork, dead)
            self.flushed.setdefault(dead, set()).add(sender)
            gone = set(self.agent.gone)
            living = self.agent.workers.keys() - gone
            if not all(living <= self.flushed.get(one, set()) for one in gone):
                return
            forks = [(s.id, fork) for s in self.owned.values() for fork, user in s.forks.items() if user in gone]
        for number, fork in forks:
            self._drop(number, fork)

    def clear(self):
        """The agent ends: nothing is counted any more."""
        for state in list(self.used.values()):
            state.table = None
        self.used.clear()
        with self.lock:
            for state, _ in self.children.values():
                state.table = None
            owned, self.owned, self.children = self.owned, {}, {}
        del owned
