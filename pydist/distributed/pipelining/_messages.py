"""What stages send each other: a header with dtypes and shapes, then the tensors. So shapes may change with each message.

A failure is sent in the place of a message. Each message has a tag of its own, by stage, microbatch and direction.
"""

import queue
import threading

from pydist import _C

WORDS = 64  # of a header
_FIRST_TAG = 1 << 28  # programs have the smaller ones
_OK, _FAILED = 0, 1
_NO_TENSOR = -1
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


def words_of(tensors):
    """The header of these tensors, some of which may be None."""
    words = [_OK, 0, len(tensors)]
    for t in tensors:
        if t is None:
            words.append(_NO_TENSOR)
        else:
            words += [_DTYPES.index(t.dtype), int(t.requires_grad), t.ndim, *t.shape]
    words[1] = len(words)
    return words


def tensors_of(words, device):
    """[(an empty tensor, requires_grad) or None for each] that a header announces."""
    found, at = [], 3
    for _ in range(words[2]):
        if words[at] == _NO_TENSOR:
            found.append(None)
            at += 1
            continue
        dtype, grad, ndim = words[at : at + 3]
        shape = words[at + 3 : at + 3 + ndim]
        found.append((_C.empty(tuple(shape), dtype=_DTYPES[dtype], device=device), bool(grad)))
        at += 3 + ndim
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
    """The messages of one step. peer_of: {stage: its rank in the group}."""

    def __init__(self, group, peer_of, microbatches, device):
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
        peer, tag, words = self._peer_of[stage], self._tag(stage, microbatch, forward), words_of(tensors)
        self._send_words(words, peer, tag)
        for t in tensors:
            if t is not None and t.numel():
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
        return self._bodies(tensors_of(words, self._device), peer, tag)

    def _bodies(self, announced, peer, tag):
        works = [self._group.recv(entry[0], peer, tag, True) for entry in announced if entry and entry[0].numel()]
        for work in works:
            work.wait()
        return [entry and entry[0].requires_grad_(entry[1]) for entry in announced]

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
