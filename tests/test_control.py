"""The control plane: who is let in, the store, what strangers can do (nothing), and that nothing is left behind."""

import contextlib
import os
import socket
import struct
import threading
import time

import pytest

from pydist import _C

MAGIC = 0x31434450
HELLO, WELCOME, REFUSED, CALL, REPLY, NEWS = range(1, 7)
LEFT, RAISED = 1, 3


@pytest.fixture
def server():
    s = _C.ControlServer(2)
    yield s
    s.close()


def dial(server):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.connect("\0" + server.address[1:])
    s.settimeout(5)
    return s


def frame(kind, payload=b"", ident=0, handles=0):
    return struct.pack("<IHHII", MAGIC, kind, handles, len(payload), ident) + payload


def read(s):
    def exactly(n):
        data = b""
        while len(data) < n:
            more = s.recv(n - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    magic, kind, _, size, ident = struct.unpack("<IHHII", exactly(16))
    assert magic == MAGIC
    return kind, ident, exactly(size)


def secret(server):
    return os.pread(server.secret_fd, 32, 0)


def hello(server, rank, world=2, half=None):
    half = secret(server)[:16] if half is None else half
    return frame(HELLO, half + struct.pack("<iii", rank, world, os.getpid()))


def join(server, rank):
    """A rank that speaks the protocol by hand."""
    s = dial(server)
    s.sendall(hello(server, rank))
    kind, _, payload = read(s)
    assert kind == WELCOME and payload == secret(server)[16:]
    return s


def closed(s, within=5):
    """The server ended this connection without a word."""
    s.settimeout(within)
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


def serves(server):
    """The server is alive: it refuses a wrong world with a reason, at once."""
    s = dial(server)
    s.sendall(hello(server, 0, world=77))
    start = time.monotonic()
    kind, _, text = read(s)
    s.close()
    return kind == REFUSED and b"77" in text and time.monotonic() - start < 1


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def threads():
    return len(os.listdir("/proc/self/task"))


def test_address_is_abstract_and_random(server):
    assert server.address.startswith("@pydist-") and len(server.address) == 24
    other = _C.ControlServer(1)
    assert other.address != server.address
    assert secret(other) != secret(server)
    other.close()
    assert not os.path.exists(server.address[1:])


def test_secret_descriptor_is_not_inherited_by_default(server):
    assert not os.get_inheritable(server.secret_fd)
    with pytest.raises(OSError):
        os.pwrite(server.secret_fd, b"x", 0)


def test_closed_server():
    s = _C.ControlServer(1)
    s.close()
    s.close()
    for use in (lambda: s.address, lambda: s.secret_fd, s.first_raised, lambda: s.dead(0, "x")):
        with pytest.raises(ValueError):
            use()


@pytest.mark.parametrize("world", [0, -1, 1 << 20])
def test_impossible_worlds(world):
    with pytest.raises(ValueError):
        _C.ControlServer(world)


def test_handshake_shows_both_halves(server):
    join(server, 0).close()


@pytest.mark.parametrize("bad", [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\0" * 64,
    os.urandom(4096),
    frame(CALL, b"x" * 28),
    frame(NEWS, b"x" * 28),
    frame(HELLO, b"x"),
    frame(HELLO, b"x" * 27),
    struct.pack("<IHHII", MAGIC, HELLO, 0, 0xFFFFFFFF, 0),
    struct.pack("<IHHII", MAGIC ^ 0x02000000, HELLO, 0, 28, 0) + b"x" * 28,
    struct.pack("<IHHII", MAGIC, HELLO, 1, 28, 0) + b"x" * 28,
], ids=["http", "zeros", "noise", "call", "news", "short", "almost", "huge", "version", "descriptor"])
def test_garbage_is_refused(server, bad):
    s = dial(server)
    s.sendall(bad)
    assert closed(s)
    assert serves(server)


def test_wrong_secret_is_refused(server):
    s = dial(server)
    s.sendall(hello(server, 0, half=bytes(16)))
    assert closed(s)
    right = bytearray(secret(server)[:16])
    right[15] ^= 1
    s = dial(server)
    s.sendall(hello(server, 0, half=bytes(right)))
    assert closed(s)
    join(server, 0).close()


def test_wrong_world_rank_and_a_rank_twice_are_told_why(server):
    for rank, world, word in ((0, 3, "3 ranks"), (2, 2, "rank 2"), (-1, 2, "rank -1")):
        s = dial(server)
        s.sendall(hello(server, rank, world))
        kind, _, text = read(s)
        assert kind == REFUSED and word in text.decode()
    first = join(server, 1)
    s = dial(server)
    s.sendall(hello(server, 1))
    kind, _, text = read(s)
    assert kind == REFUSED and "already" in text.decode()
    first.close()


def test_port_scan_and_silence_do_not_stall(server):
    silent = [dial(server) for _ in range(40)]  # connected, say nothing
    for _ in range(200):  # a port scan
        dial(server).close()
    assert serves(server)
    rank = join(server, 0)
    for s in silent:
        with contextlib.suppress(BrokenPipeError):  # pushed out by the scan
            s.sendall(b"P")  # a byte each: still no hello
    assert serves(server)
    rank.close()
    for s in silent:
        s.close()


def test_too_many_strangers_push_out_the_oldest(server):
    silent = [dial(server) for _ in range(64)]
    time.sleep(0.1)
    rank = join(server, 0)
    more = [dial(server) for _ in range(10)]
    assert all(closed(s, within=1) for s in silent[:10])
    assert serves(server)
    rank.settimeout(0.1)
    with pytest.raises(TimeoutError):  # still here
        rank.recv(1)
    for s in (rank, *silent, *more):
        s.close()


def test_silence_ends_at_the_deadline(server):
    s = dial(server)
    start = time.monotonic()
    assert closed(s, within=10)
    assert 4 < time.monotonic() - start < 7


def test_descriptors_of_strangers_are_not_taken(server):
    before = descriptors()
    s = dial(server)
    r, w = os.pipe()
    try:
        socket.send_fds(s, [hello(server, 0)], [r, w])
    finally:
        os.close(r)
        os.close(w)
    kind, _, _ = read(s)
    assert kind == WELCOME  # the server did not look at them, the kernel closed them
    assert descriptors() <= before + 3  # the connection's two ends and a pidfd
    s.close()


def call(verb, key, data=b"", amount=0, timeout=0.0, ident=1, handles=0):
    head = struct.pack("<IIIIqq", verb, len(key), len(data), 0, amount, int(timeout * 1e9))
    return frame(CALL, head + key + data, ident, handles)


@pytest.mark.parametrize("bad", [
    frame(CALL, b"short"),
    frame(CALL, struct.pack("<IIIIqq", 99, 1, 0, 0, 0, 0) + b"k"),
    frame(CALL, struct.pack("<IIIIqq", 0, 0, 0, 0, 0, 0)),
    frame(CALL, struct.pack("<IIIIqq", 0, 5, 0, 0, 0, 0) + b"k"),
    frame(CALL, struct.pack("<IIIIqq", 0, 0xFFFFFFFF, 2, 0, 0, 0) + b"k"),
    frame(CALL, struct.pack("<IIIIqq", 0, 1, 1 << 30, 0, 0, 0) + b"k"),
    frame(NEWS, b"short"),
    frame(NEWS, struct.pack("<IiiIi", 4, 0, 0, 0, 0) + b"I say rank 0 is dead"),
    frame(77, b""),
    struct.pack("<IHHII", MAGIC, CALL, 0, 3 << 20, 0),
], ids=["short", "verb", "nokey", "lengths", "overflow", "value", "news", "forged", "kind", "long"])
def test_a_rank_that_talks_nonsense_is_dropped(server, bad):
    s, other = join(server, 0), join(server, 1)
    s.sendall(bad)
    assert closed(s)
    other.settimeout(2)
    kind, _, payload = read(other)
    assert kind == NEWS and payload[:4] == struct.pack("<I", 4)  # and counts as dead
    assert serves(server)
    other.close()


def test_store_by_hand(server):
    s = join(server, 0)

    def ask(*args, **kw):
        s.sendall(call(*args, **kw))
        kind, ident, payload = read(s)
        assert kind == REPLY
        amount, status, _ = struct.unpack("<qiI", payload[:16])
        return amount, status, payload[16:]

    assert ask(0, b"k", b"value") == (0, 0, b"value"[:0])
    assert ask(1, b"k") == (0, 0, b"value")
    assert ask(3, b"n", amount=5)[0] == 5
    assert ask(3, b"n", amount=-7)[0] == -2
    assert ask(4, b"n")[0] == 1 and ask(5, b"n")[0] == 1 and ask(4, b"n")[0] == 0
    amount, status, text = ask(1, b"missing", timeout=0.05)
    assert status and b"missing" in text
    amount, status, text = ask(3, b"k", amount=1)
    assert status and b"not a number" in text
    s.close()


def test_traceback_of_the_first_rank_is_kept(server):
    assert server.first_raised() is None
    a, b = join(server, 0), join(server, 1)
    b.sendall(frame(NEWS, struct.pack("<IiiIi", RAISED, 0, 0, 0, 0) + "Traceback ...\nValueError: ä".encode()))
    kind, _, payload = read(a)
    assert kind == NEWS and struct.unpack("<Ii", payload[:8]) == (RAISED, 1)
    a.sendall(frame(NEWS, struct.pack("<IiiIi", RAISED, 0, 0, 0, 0) + b"PeerFailed"))
    time.sleep(0.05)
    assert server.first_raised() == (1, "Traceback ...\nValueError: ä")
    a.close()
    b.close()


def test_the_launchers_word_reaches_the_others(server):
    a, b = join(server, 0), join(server, 1)
    server.dead(1, "died: SIGKILL (killed)")
    kind, _, payload = read(a)
    assert kind == NEWS and struct.unpack("<Ii", payload[:8]) == (4, 1) and payload[20:] == b"died: SIGKILL (killed)"
    server.dead(5, "no such rank")
    a.close()
    b.close()


def test_a_rank_that_left_is_not_dead(server):
    a, b = join(server, 0), join(server, 1)
    b.sendall(frame(NEWS, struct.pack("<IiiIi", LEFT, 0, 0, 0, 0)))
    b.close()
    assert struct.unpack("<Ii", read(a)[2][:8]) == (LEFT, 1)
    server.dead(1, "exited with code 0")
    a.settimeout(0.4)
    with pytest.raises(TimeoutError):
        a.recv(1)
    a.close()


def test_latecomers_hear_the_past(server):
    b = join(server, 1)
    server.dead(1, "died: SIGSEGV")
    a = join(server, 0)
    kind, _, payload = read(a)
    assert kind == NEWS and payload[20:] == b"died: SIGSEGV"
    a.close()
    b.close()


# The client.

def connect(server, rank, world=2, **kw):
    return _C.comm_init(rank, world, server.address, os.dup(server.secret_fd), kw.pop("timeout", 5), **kw)


@pytest.fixture
def leave():
    yield
    _C.comm_leave()


def test_no_launcher(leave):
    s = _C.ControlServer(2)
    address, fd = s.address, os.dup(s.secret_fd)
    s.close()
    before = descriptors()
    with pytest.raises(_C.DistError, match="cannot reach the launcher"):
        _C.comm_init(0, 2, address, fd, 5)
    assert descriptors() == before - 1  # the secret is read once, then closed


@pytest.mark.parametrize("address", ["", "@", "nonsense", "@" + "x" * 200, "/tmp/socket"])
def test_bad_addresses(server, address, leave):
    with pytest.raises((ValueError, _C.DistError)):
        _C.comm_init(0, 2, address, os.dup(server.secret_fd), 5)


def test_bad_secrets(server, leave):
    with pytest.raises(_C.DistError, match="secret"):
        _C.comm_init(0, 2, server.address, 9999, 5)
    r, w = os.pipe()
    os.write(w, b"short")
    os.close(w)
    with pytest.raises(_C.DistError, match="too short"):
        _C.comm_init(0, 2, server.address, r, 5)
    r, w = os.pipe()
    os.write(w, bytes(32))
    os.close(w)
    with pytest.raises(_C.DistError, match="refused"):
        _C.comm_init(0, 2, server.address, r, 5)
    assert serves(server)


def test_secret_through_a_pipe(server, leave):
    one = _C.ControlServer(1)
    r, w = os.pipe()
    os.write(w, secret(one))
    os.close(w)
    g = _C.comm_init(0, 1, one.address, r, 5)
    assert (g.rank, g.size) == (0, 1)
    g.destroy()
    _C.comm_leave()
    one.close()


def test_an_impostor_learns_half_a_secret_and_nothing_else(leave):
    """A server of our own user that does not know the secret: the client refuses it."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind("\0pydist-test-impostor-%d" % os.getpid())
    listening.listen(1)
    got = []

    def impostor():
        s, _ = listening.accept()
        got.append(read(s))
        s.sendall(frame(WELCOME, bytes(16)))
        time.sleep(0.1)
        s.close()

    t = threading.Thread(target=impostor)
    t.start()
    r, w = os.pipe()
    os.write(w, b"A" * 16 + b"B" * 16)
    os.close(w)
    with pytest.raises(_C.DistError, match="does not know our secret"):
        _C.comm_init(0, 2, "@pydist-test-impostor-%d" % os.getpid(), r, 5)
    t.join()
    listening.close()
    assert b"A" * 16 in got[0][2] and b"B" not in got[0][2]


def test_a_silent_server_times_out(leave):
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind("\0pydist-test-silent-%d" % os.getpid())
    listening.listen(1)
    r, w = os.pipe()
    os.write(w, bytes(32))
    os.close(w)
    start = time.monotonic()
    with pytest.raises(_C.CommTimeout):
        _C.comm_init(0, 2, "@pydist-test-silent-%d" % os.getpid(), r, 0.3)
    assert time.monotonic() - start < 2
    listening.close()


def test_store_over_the_socket(leave):
    one = _C.ControlServer(1)
    g = _C.comm_init(0, 1, one.address, os.dup(one.secret_fd), 5)
    check_store(g.store, lambda: g.store)
    g.destroy()
    _C.comm_leave()
    with pytest.raises(_C.DistError):
        g.store.set("a", b"b")
    one.close()


def test_store_of_a_hub():
    hub = _C.Hub(1)
    g = _C.comm_init_hub(hub, 0)
    check_store(g.store, lambda: g.store)


def check_store(store, another):
    store.set("bytes", b"\0\1\2")
    store.set("text", "grün")
    store.set("empty", b"")
    assert store.get("bytes") == b"\0\1\2" and store.get("text").decode() == "grün" and store.get("empty") == b""
    store.set("bytes", b"x" * (1 << 20))
    assert store.get("bytes") == b"x" * (1 << 20)
    assert [store.add("n"), store.add("n", 10), store.add("n", -20)] == [1, 11, -9]
    assert store.get("n") == b"-9"
    with pytest.raises(ValueError):
        store.add("text", 1)
    assert store.check("n") and store.delete("n") and not store.check("n") and not store.delete("n")
    for key in ("", "k" * 1025):
        with pytest.raises(ValueError):
            store.set(key, b"")
    with pytest.raises(ValueError):
        store.set("big", b"x" * ((1 << 20) + 1))
    start = time.monotonic()
    with pytest.raises(_C.CommTimeout, match="never"):
        store.get("never", 0.2)
    assert 0.15 < time.monotonic() - start < 1
    with pytest.raises(_C.CommTimeout):
        store.wait(["text", "never"], 0.1)
    store.wait(["text", "empty"], 1)
    later = threading.Timer(0.1, lambda: another().set("later", b"here"))
    later.start()
    assert store.get("later", 5) == b"here"
    later.join()
    for i in range(300):
        store.set(f"key{i}", str(i))
    assert all(store.get(f"key{i}") == str(i).encode() for i in range(300))


def test_the_launchers_end_is_noticed(leave):
    one = _C.ControlServer(1)
    g = _C.comm_init(0, 1, one.address, os.dup(one.secret_fd), 5)
    store, caught = g.store, []

    def wait():
        try:
            store.get("never", 20)
        except _C.DistError as e:
            caught.append(e)

    t = threading.Thread(target=wait)
    t.start()
    time.sleep(0.1)
    start = time.monotonic()
    one.close()
    t.join(5)
    assert caught and time.monotonic() - start < 1


def test_one_process_is_one_rank(server, leave):
    one = _C.ControlServer(1)
    g = _C.comm_init(0, 1, one.address, os.dup(one.secret_fd), 5)
    with pytest.raises(ValueError, match="already"):
        _C.comm_init(1, 2, server.address, os.dup(server.secret_fd), 5)
    again = _C.comm_init(0, 1, one.address, -1, 5)  # the connection is there already
    assert again.epoch == g.epoch + 1
    _C.comm_leave()
    one.close()


def test_nothing_is_left(leave):
    def cycle():
        one = _C.ControlServer(1)
        g = _C.comm_init(0, 1, one.address, os.dup(one.secret_fd), 5)
        g.store.set("a", b"b")
        g.destroy()
        _C.comm_leave()
        one.close()

    cycle()
    before = descriptors(), threads(), len(os.listdir("/dev/shm"))
    for _ in range(50):
        cycle()
    assert (descriptors(), threads(), len(os.listdir("/dev/shm"))) == before
