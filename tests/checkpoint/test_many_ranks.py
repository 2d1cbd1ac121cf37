"""512 ranks save 200 tensors: planning, and what the ranks say over the store, without the bytes. The ranks' sides of 512
connections to a control server stand for the ranks."""

import os
import resource
import struct
import time
import zlib

import pytest

import pydist
from lib import control
from lib.processes import within
from pydist import _C
from pydist.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from pydist.distributed.checkpoint._words import Words
from pydist.distributed.checkpoint._writing import Writing

RANKS = 512
SET, GET, ADD, DELETE = 0, 1, 3, 5


class Store:
    """A rank's store, over its own connection to the control server."""

    said = 0  # bytes of all values that all stores of this process have set

    def __init__(self, server, rank):
        key, hello = control.secret(server), control.greeting(rank, RANKS)
        self._socket = control.dial(server)
        self._socket.sendall(control.hello(rank, RANKS))
        nonce = control.read(self._socket, control.CHALLENGE)[2][:16]
        self._socket.sendall(control.frame(control.PROOF, control.mac(key, b"client", hello, nonce)))
        assert control.read(self._socket, control.WELCOME)

    def begin(self, verb, key, data=b"", amount=0):
        self._socket.sendall(control.call(verb, key.encode(), data, amount, 60.0))

    def end(self):
        """(number, bytes) of the answer to the call that was begun."""
        number, status, _ = struct.unpack("<qii", (answer := control.read(self._socket, control.REPLY)[2])[:16])
        assert status == 0, answer
        return number, answer[16:]

    def _call(self, *args):
        self.begin(*args)
        return self.end()

    def set(self, key, value):
        value = value.encode() if isinstance(value, str) else value
        Store.said += len(value)
        self._call(SET, key, value)

    def get(self, key, timeout):
        return self._call(GET, key)[1]

    def add(self, key, amount):
        return self._call(ADD, key, b"", amount)[0]

    def delete(self, key):
        self._call(DELETE, key)


class Group:
    size, ranks, epoch = RANKS, tuple(range(RANKS)), 0

    def __init__(self, server, rank):
        self.rank, self.store = rank, Store(server, rank)


def others(groups, path):
    """All ranks but 0: their words before and after writing, then they wait for the answers. Returns how many bytes they
    have said."""
    all_words = [Words(group) for group in groups]
    for group, words in zip(groups, all_words, strict=True):
        group.store.set(words._key(f"print/{group.rank}"), f"{zlib.crc32(b'{}'):08x}")
        group.store.begin(GET, words._key("print"))
    assert all(group.store.end()[1] == b"equal" for group in groups)
    for group, words in zip(groups, all_words, strict=True):
        words.say(f"- 1000000000 {group.rank:08x}".encode())
        group.store.begin(GET, words._key("done"))
    assert all(group.store.end()[1] == b"1" for group in groups)
    return Store.said


def committed(rank_0, rest, path):
    """(seconds, bytes said): from the first word until all ranks have the answer."""
    Store.said = 0
    read, write = os.pipe()
    begin = time.monotonic()
    child = os.fork()
    if not child:
        try:
            os.write(write, struct.pack("<q", others(rest, path)))
        finally:
            os._exit(0)
    words = Words(rank_0)
    assert words.holders({}) is None
    words.say(b"- 1000000000 00000000")
    assert len(words.collect(path)) == RANKS
    words.tell()
    os.close(write)
    said = os.read(read, 8)
    seconds = time.monotonic() - begin
    os.close(read)
    os.waitpid(child, 0)
    return seconds, struct.unpack("<q", said)[0] + Store.said


def planned(state, path, rank):
    """Seconds that a rank needs to know what it writes, its header included."""

    class Alone:
        id, ranks, holders = "id", RANKS, staticmethod(lambda listing: None)

    Alone.rank = rank
    begin = time.perf_counter()
    writing = Writing(FileSystemWriter(path), Alone, {})
    writing.prepare(state, DefaultSavePlanner())
    for file in writing.files:
        file.boxes.header(None, file.more)
    return time.perf_counter() - begin


@pytest.fixture
def joined():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 5 * RANKS:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 5 * RANKS), hard))
    server = _C.ControlServer(RANKS)
    groups = [Group(server, rank) for rank in range(RANKS)]
    yield groups
    for group in groups:
        group.store._socket.close()
    server.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_planning_and_commit_of_512_ranks(joined, tmp_path):
    state = {"model": {f"layer{i}": pydist.zeros(1024, 1 + i % 40) for i in range(200)}, "step": 1}
    plan = min(max(planned(state, tmp_path / "a", rank) for rank in (0, 255, 511)) for _ in range(3))
    ends = [committed(joined[0], joined[1:], tmp_path) for _ in range(3)]
    commit = min(seconds for seconds, _ in ends)
    print(f"planning {plan * 1e3:.1f} ms on each rank, commit {commit * 1e3:.0f} ms")
    assert plan + commit < within(3)  # 0.5 s where nothing else runs
    assert min(said for _, said in ends) <= 64 * RANKS
