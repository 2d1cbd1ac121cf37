"""What stages send each other: a header with dtypes and shapes, then the tensors. So shapes may change with each message.

Where ranks share memory, a tensor lies in their arena, and the header says where (_arena.py). A failure is sent in the place of
a message. Each message has a tag of its own, by stage, microbatch and direction.
"""

import queue
import threading

from pydist import _C

WORDS = 64  # of a header
_FIRST_TAG = 1 << 28  # programs have the smaller ones
_OK, _FAILED = 0, 1
_NO_TENSOR = -1
_SENT = -1  # not in the arena
_IN_RING = 4096  # bytes that a send leaves in the group's memory without anybody's help
_DTYPES = [
    getattr(_C, name)
    for name in (
        "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 bool complex64 complex128"
    ).split()
]  # fmt: skip


class StageFailed(RuntimeError):
    """Another rank's stage has raised. `stage`, `microbatch` and `rank` say where; stage is -1 outside of a microbatch."""

    def __init__(self, message, rank=-1, stage=-1, microbatch=-1):
        super().__init__(message)
        self.rank, self.stage, self.microbatch = rank, stage, microbatch

    def __reduce__(self):
        return StageFailed, (self.args[0], self.rank, self.stage, self.microbatch)


def words_of(tensors, places):
    """The header of these tensors, some of which may be None. places: where each lies in the arena; None: it is sent."""
    words = [_OK, 0, len(tensors)]
    for t, place in zip(tensors, places, strict=True):
        if t is None:
            words.append(_NO_TENSOR)
        else:
            place = _SENT if place is None else place
            words += [_DTYPES.index(t.dtype), int(t.requires_grad), place, t.ndim, *t.shape]
    words[1] = len(words)
    return words


def tensors_of(words):
    """[(dtype, shape, requires_grad, place in the arena or _SENT) or None for each] that a header announces."""
    found, at = [], 3
    for _ in range(words[2]):
        if words[at] == _NO_TENSOR:
            found.append(None)
            at += 1
            continue
        dtype, grad, place, ndim = words[at : at + 4]
        found.append((_DTYPES[dtype], tuple(words[at + 4 : at + 4 + ndim]), bool(grad), place))
        at += 4 + ndim
    return found


class Mover(threading.Thread):
    """Keeps messages moving while its rank computes: a rank moves messages only while it waits for one."""

    def __init__(self):
        super().__init__(daemon=True, name="pydist-pipeline")
        self._works = queue.SimpleQueue()
        self.start()

    def watch(self, work):
        """Waits for this one, too."""
        self._works.put(work)

    def stop(self):
        """Ends it, once all that it watches is done."""
        self._works.put(None)

    def run(self):
        while (work := self._works.get()) is not None:
            try:
                work.wait()
            except Exception:  # the rank itself waits for each of them, and raises
                pass


class Messages:
    """The messages of one step. peer_of: {stage: its rank in the group}. room: a Room."""

    def __init__(self, group, peer_of, microbatches, device, room):
        self._room = room
        self._group, self._peer_of, self._microbatches, self._device = group, peer_of, microbatches, device
        self._sends, self._posted, self._mover = [], {}, None

    def _tag(self, stage, microbatch, forward):
        """Of the message to this stage."""
        return _FIRST_TAG + 2 * (stage * self._microbatches + microbatch) + forward

    def _start(self, tensor, peer, tag):
        work = self._group.send(tensor, peer, tag, True)
        self._sends.append((work, tensor))
        if tensor.nbytes > _IN_RING:
            self.mover.watch(work)

    @property
    def mover(self):
        """The thread, which is started for the first large message."""
        if self._mover is None:
            self._mover = Mover()
            for work, _ in self._posted.values():
                self._mover.watch(work)
        return self._mover

    def send(self, tensors, stage, microbatch, forward):
        """Starts to send these to a stage. Nobody may write them until the step ends."""
        peer, tag = self._peer_of[stage], self._tag(stage, microbatch, forward)
        places = [None if t is None else self._room.put(t) for t in tensors]
        self._send_words(words_of(tensors, places), peer, tag)
        for t, place in zip(tensors, places, strict=True):
            if t is not None and t.numel() and place is None:
                self._start(t.detach().contiguous(), peer, tag)
        self._sends = [pair for pair in self._sends if not pair[0].is_completed()]

    def _send_words(self, words, peer, tag):
        words += [0] * (WORDS - len(words))
        self._start(_C.tensor(words[:WORDS], dtype=_C.int64), peer, tag)
        if len(words) > WORDS:
            self._start(_C.tensor(words[WORDS:], dtype=_C.int64), peer, tag)

    def send_failure(self, failure, stage, microbatch, forward):
        """Sends a StageFailed in the place of tensors."""
        text = failure.args[0].encode()
        where = [failure.rank, failure.stage, failure.microbatch]
        peer, tag = self._peer_of[stage], self._tag(stage, microbatch, forward)
        self._send_words([_FAILED, 6, len(text), *where], peer, tag)
        self._start(_C.tensor(list(text), dtype=_C.uint8), peer, tag)

    def post(self, stage, microbatch, forward, source):
        """Starts to receive a header, ahead of `receive`."""
        key = stage, microbatch, forward
        if key not in self._posted:
            header = _C.empty(WORDS, dtype=_C.int64)
            work = self._group.recv(header, self._peer_of[source], self._tag(*key), True)
            self._posted[key] = work, header
            if self._mover is not None:
                self._mover.watch(work)

    def receive(self, stage, microbatch, forward, source):
        """The tensors that the source stage has sent to this one, as leaves that require gradients as they did. Raises
        StageFailed if the sender has failed."""
        self.post(stage, microbatch, forward, source)
        work, header = self._posted.pop((stage, microbatch, forward))
        work.wait()
        peer, tag, words = self._peer_of[source], self._tag(stage, microbatch, forward), header.tolist()
        if words[0] == _FAILED:
            text = _C.empty(words[2], dtype=_C.uint8)
            self._group.recv(text, peer, tag)
            raise StageFailed(bytes(text.tolist()).decode(), *words[3:6])
        if words[1] > WORDS:
            rest = _C.empty(words[1] - WORDS, dtype=_C.int64)
            self._group.recv(rest, peer, tag)
            words += rest.tolist()
        return self._bodies(tensors_of(words), peer, tag)

    def _bodies(self, announced, peer, tag):
        found, works = [], []
        for entry in announced:
            if entry is None:
                found.append(None)
                continue
            dtype, shape, grad, place = entry
            if place == _SENT:
                made = _C.empty(shape, dtype=dtype, device=self._device)
                if made.numel():
                    works.append(self._group.recv(made, peer, tag, True))
            else:
                made = self._room.arena.view(peer, place, dtype, shape)
            found.append((made, grad))
        for work in works:
            work.wait()
        return [entry and entry[0].requires_grad_(entry[1]) for entry in found]

    def finish(self):
        """Waits until all that was sent has been taken."""
        for work, _ in self._sends:
            work.wait()
        self._sends = []
        mover = self._mover
        self.close()
        if mover is not None and not self._posted:  # all that it watches is done: it ends now, and keeps no work
            mover.join()

    def close(self):
        """Ends the thread. Nothing is waited for."""
        if self._mover is not None:
            self._mover.stop()
            self._mover = None
