"""What ranks tell each other about a save over the store: before it which plain tensors they have, after it one word each,
and rank 0's answers. No collective, so a save in the background never meets the training's collectives."""

import itertools
import json
import os
import secrets
import socket
import zlib
from concurrent.futures import wait

from pydist import _C
from pydist.distributed._group.process_group import current, is_initialized
from pydist.distributed.checkpoint.api import CheckpointException

_PATIENCE = 300.0  # s after which a wait asks again; the wait ends when the word comes or a rank dies
_ERROR = b"!"
_alone = itertools.count(1)  # saves of this process alone
_run = secrets.token_hex(6)
_running = {}  # {(key of a group, rank): the Future of its last async_save}


def words_of(group=None, no_dist=False):
    """The Words of the next save of this group's ranks, which all begin their saves in the same order. None: the default
    group; a world of one without a group."""
    if not no_dist and (group is not None or is_initialized()):
        group = current(group)
        if group.size > 1:
            return Words(group)
    return Words(None)


def _all_equal(words):
    """Whether ranks say the same, but those that have failed, of which all hear at the end."""
    return b"equal" if len(set(words) - {_ERROR}) <= 1 else b"differ"


def _merged(words):
    """JSON of {name: [ranks that have it]}, or of a text that says what does not fit."""
    known, holders = {}, {}
    for rank, word in enumerate(words):
        for name, text in json.loads(word).items():
            first, before = known.setdefault(name, (rank, text))
            if before != text:
                said = f"save: {name!r} is {before} on rank {first} and {text} on rank {rank} (expected TensorPart for parts)"
                return json.dumps(said).encode()
            holders.setdefault(name, []).append(rank)
    return json.dumps(holders).encode()


def _get(store, key):
    while True:
        try:
            return bytes(store.get(key, _PATIENCE))
        except _C.CommTimeout:
            continue  # a rank that lives may be busy for long


class Words:
    """The words of one save. `id` is the same on all ranks, and never comes again."""

    def __init__(self, group):
        self.rank, self.ranks, self._store, self._group, self._asked = 0, 1, None, "alone", False
        if group is None:
            self.wait_for_last()
            self.number, run = next(_alone), f"{_run}{os.getpid():x}"  # a forked process has a number of its own
        else:
            self.rank, self.ranks, self._store = group.rank, group.size, group.store
            self._group = f"pydist.save/{zlib.crc32(repr(group.ranks).encode()):08x}.{group.epoch}"
            self.wait_for_last()
            self.number = self._store.add(f"{self._group}/saves/{self.rank}", 1)
            if self.rank == 0 and self.number == 1:
                self._store.set(f"{self._group}/run", secrets.token_hex(6))
            run = _get(self._store, f"{self._group}/run").decode()
        self.id = f"{run}-{self.number}"

    def wait_for_last(self):
        """Waits until this rank's last async_save has ended."""
        last = _running.get((self._group, self.rank))
        if last is not None:
            wait([last])

    def running(self, future):
        """`future` stands for this save: the next one begins after it."""
        key = self._group, self.rank
        _running[key] = future

        def forget(done):  # its error would keep the caller's frames alive
            if _running.get(key) is done:
                del _running[key]

        future.add_done_callback(forget)

    def of_rank_0(self, text=None):
        """Rank 0's text, on all ranks."""
        if self.ranks == 1:
            return text
        if self.rank == 0:
            self._store.set(self._key("text"), text.encode())
            return text
        return _get(self._store, self._key("text")).decode()

    def _key(self, what):
        return f"{self._group}/{self.number}/{what}"

    def holders(self, listing):
        """{name: the ranks that have it} of plain tensors; None if all ranks have the same ones. listing: {name: text} of this
        rank, in which a dtype and a shape stand. Raises CheckpointException if a name has two of them. Waits until all ranks
        are here; cost: one word of 8 bytes each way, and the lists where they differ."""
        if self.ranks == 1:
            return None
        text = json.dumps(listing, sort_keys=True).encode("utf-8", "surrogatepass")
        if self._exchanged("print", f"{zlib.crc32(text):08x}".encode(), _all_equal) == b"equal":
            return None
        found = json.loads(self._exchanged("names", text, _merged))
        if isinstance(found, str):
            raise CheckpointException(found)
        return found

    def _exchanged(self, what, word, merge):
        """merge(words of all ranks), which rank 0 makes, on all ranks."""
        self._asked = True
        if self.rank:
            self._store.set(self._key(f"{what}/{self.rank}"), word)
            return _get(self._store, self._key(what))
        words = [word]
        for rank in range(1, self.ranks):
            words.append(_get(self._store, self._key(f"{what}/{rank}")))
            self._store.delete(self._key(f"{what}/{rank}"))
        merged = merge(words)
        self._store.set(self._key(what), merged)
        return merged

    def say(self, word):
        """Tells rank 0 this rank's word (bytes)."""
        if self.ranks > 1 and self.rank:
            self._store.set(self._key(self.rank), word)
        self._mine = word

    def say_error(self, text):
        """Tells rank 0 that this rank has failed."""
        text = f"rank {self.rank} on {socket.gethostname()}: {text}"
        if self.ranks > 1 and not self._asked:  # nobody waits for this rank in `holders`
            self._store.set(
                self._key(f"print/{self.rank}" if self.rank else "print"), _ERROR if self.rank else b"equal"
            )
        self.say(_ERROR + text.encode("utf-8", "replace")[:2000])

    def collect(self, path):
        """On rank 0: the words of all ranks. Raises CheckpointException naming the ranks that failed or died."""
        words, failures, death = [self._mine], {}, None
        for rank in range(1, self.ranks):
            try:
                words.append(_get(self._store, self._key(rank)))
                self._store.delete(self._key(rank))
            except _C.DistError as error:
                rank, death = getattr(error, "rank", rank), error
                failures[rank] = str(error) if f"rank {rank}" in str(error) else f"rank {rank}: {error}"
                break  # a rank has died: the job's own handling is next
        failures |= {r: word[1:].decode("utf-8", "replace") for r, word in enumerate(words) if word[:1] == _ERROR}
        if failures:
            raise CheckpointException(
                f"save: {path} was not saved: " + "; ".join(failures.values()), failures
            ) from death
        return words

    def tell(self, error=None):
        """On rank 0: the answer to all ranks."""
        if self.ranks == 1:
            return
        failures = getattr(error, "failures", {}) or ({0: str(error)} if error else {})
        text = "; ".join(f"{rank}\t{text}" for rank, text in failures.items())
        self._store.set(self._key("done"), f"!{error}\n{text}".encode("utf-8", "replace") if error else b"1")
        if self.number > 1:
            for what in ("done", "print", "names"):  # all have heard them, as they have come here
                self._store.delete(f"{self._group}/{self.number - 1}/{what}")

    def listen(self, path):
        """On other ranks: waits for rank 0's answer. Raises CheckpointException as rank 0 does."""
        try:
            answer = _get(self._store, self._key("done"))
        except _C.DistError as error:
            raise CheckpointException(
                f"save: {path}: rank 0 has not said that it was saved: {error}", {0: str(error)}
            ) from error
        if answer[:1] == _ERROR:
            message, _, text = answer[1:].decode("utf-8", "replace").partition("\n")
            failures = dict(part.split("\t", 1) for part in text.split("; ") if "\t" in part)
            raise CheckpointException(message, {int(rank): said for rank, said in failures.items()})
