"""Memory that the ranks of a pipeline share: a stage's results are copied there once, and the next stage reads them where they
lie."""

from pydist import _C

LEAST = 4096  # bytes of a tensor that is worth it
MOST = 256 << 20  # bytes of a rank's part; what does not fit is sent
_ALIGNED = 64


def _strides(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class Arena:
    """One segment of a group: each rank puts what it sends into its own part, and reads in those of others. At the end of a
    step, when all ranks have come there, all of it is free again."""

    def __init__(self, group, nbytes):
        segment = group.segment(nbytes)
        self.nbytes, self._group = nbytes, group
        self._own = _C.frombuffer(segment, dtype=_C.uint8, count=nbytes)
        self._segment, self._peers, self._at = segment, {}, 0

    def put(self, tensor):
        """Copies a tensor into this rank's part. Returns where it lies there; None if there is no room."""
        at, end = self._at, self._at + tensor.nbytes
        if end > self.nbytes:
            return None
        shape = tuple(tensor.shape)
        _C.storage_view(self._own, tensor.dtype, shape, _strides(shape), at // tensor.dtype.itemsize).copy_(
            tensor.detach()
        )
        self._at = end + -end % _ALIGNED
        return at

    def view(self, rank, at, dtype, shape):
        """A tensor that lies in another rank's part."""
        if rank not in self._peers:
            self._peers[rank] = _C.frombuffer(self._segment.peer(rank), dtype=_C.uint8, count=self.nbytes)
        return _C.storage_view(self._peers[rank], dtype, shape, _strides(shape), at // dtype.itemsize)

    def is_held(self):
        """Whether somebody still has a tensor that lies in another rank's part."""
        return any(_C.storage_refs(peer) > 1 for peer in self._peers.values())

    def clear(self):
        """All ranks have read what this one has put."""
        self._at = 0


class Room:
    """The arena of a schedule: it has what the largest step so far has sent. Only ranks that share memory have one."""

    def __init__(self, group):
        self._group, self.arena, self._wanted = group, None, 0
        self._works = group.size > 1 and group.transport in ("shm", "inproc")

    def put(self, tensor):
        """As Arena.put."""
        if not self._works or tensor.nbytes < LEAST or not tensor.is_cpu:
            return None
        self._wanted += tensor.nbytes + _ALIGNED
        return None if self.arena is None else self.arena.put(tensor)

    def words(self):
        """What the others have to know at the end of a step: how much this rank has sent, and whether the arena may be used
        again."""
        held = self.arena is not None and self.arena.is_held()
        return min(self._wanted, MOST), int(held)

    def drop(self):
        """The step has failed: what lies in the arena may still be of use to who looks at the error."""
        self.arena, self._wanted = None, 0

    def settle(self, all_words):
        """After the ranks have heard each other's words. All ranks make a larger arena together, or a new one if somebody
        still reads the old one."""
        wanted, held = max(words[0] for words in all_words), any(words[1] for words in all_words)
        self._wanted = 0
        if self.arena is not None and not held and wanted <= self.arena.nbytes:
            self.arena.clear()
        elif wanted and self._works:
            size = max(wanted, 0 if self.arena is None else self.arena.nbytes)
            self.arena = None
            try:
                self.arena = Arena(self._group, size)
            except MemoryError:  # on all ranks: messages do without
                self._works = False
