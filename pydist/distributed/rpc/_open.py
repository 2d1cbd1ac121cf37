"""Open worlds: workers that come and go. Who is there stands in the store of the place where they meet.

    key                 value
    rpc.rank.NAME       the id of the worker with this name; "left ID": it has left
    rpc.claim.NAME.X    1: somebody has the name after X, what stood in rpc.rank.NAME before
    rpc.name.ID         the worker's name, once others may call it
    rpc.members         how many have come; rpc.member.K: the id of the K-th

A name may be taken again when its worker has left or died; an id may not, since others know whom they mean by it. A
worker meets another one (`Pipes.meet`) when it first looks it up, by name or by id.
"""

import contextlib

from pydist import _C
from pydist.distributed.rpc._agent import WorkerInfo

CAPACITY = 1024  # ids are smaller
NUMBER = 1  # of the pipes; a place has one open world


class _Found(dict):
    """Workers by id or by name. One that is missing is looked up."""

    def __init__(self, find):
        super().__init__()
        self._find = find

    def __missing__(self, key):
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found

    def get(self, key, default=None):
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key):
        return self.get(key) is not None


class Members:
    """The workers of an open world, as far as this one knows them."""

    def __init__(self, pipes, me):
        self.pipes, self.store, self.me = pipes, pipes.store(), me
        self.by_id, self.by_name = _Found(self._of_id), _Found(self._of_name)
        self._seen = 0
        self._keep(me)

    def _keep(self, worker):
        self.pipes.meet(worker.id)
        self.by_id[worker.id] = self.by_name[worker.name] = worker
        return worker

    def _of_id(self, rank):
        if not isinstance(rank, int) or not self.store.check(f"rpc.name.{rank}"):
            return None
        return self._keep(WorkerInfo(bytes(self.store.get(f"rpc.name.{rank}")).decode(), rank))

    def _of_name(self, name):
        found = self._holder(name)
        return self._of_id(int(found)) if found.isdigit() else None

    def _holder(self, name):
        key = f"rpc.rank.{name}"
        return bytes(self.store.get(key)).decode() if self.store.check(key) else "nobody"

    def named(self, name):
        """The worker that has this name now; None: there is none."""
        found = dict.get(self.by_name, name)
        if found is None or (found is not self.me and self._is_gone(found.id)):
            try:
                found = self._of_name(name)
            except _C.DistError:  # the place is gone, and so is everybody; without it nobody else can be found
                if found is None:
                    raise
        return found

    def look(self):
        """Finds all that have come."""
        with contextlib.suppress(_C.DistError):  # the place is gone
            for k in range(self._seen + 1, self.store.add("rpc.members", 0) + 1):
                self.by_id.get(int(self.store.get(f"rpc.member.{k}")))
                self._seen = k

    def come(self):
        """Lets the others call this worker. Raises RuntimeError if another one has its name."""
        name, rank = self.me.name, self.me.id
        before = self._holder(name)
        free = not before.isdigit() or self._is_gone(int(before))
        if not free or self.store.add(f"rpc.claim.{name}.{before}", 1) != 1:
            raise RuntimeError(
                f"RPC WorkerName {name} is not unique: another worker of this world has it (expected a name of its own for "
                "each worker)"
            )
        self.store.set(f"rpc.rank.{name}", str(rank))
        self.store.set(f"rpc.name.{rank}", name)
        self.store.set(f"rpc.member.{self.store.add('rpc.members', 1)}", str(rank))

    def _is_gone(self, rank):
        try:
            self.pipes.check(rank)
        except _C.PeerFailed:
            return True
        return False

    def forget(self, rank):
        """The worker is gone: its name may be another one's."""
        name = self.by_id[rank].name
        if dict.get(self.by_name, name) == self.by_id[rank]:  # no look-up
            self.by_name.pop(name, None)

    def go(self):
        """Says that this worker leaves."""
        with contextlib.suppress(_C.DistError):
            self.store.set(f"rpc.rank.{self.me.name}", f"left {self.me.id}")
