"""The control plane: who is let in, the store, what strangers can do (nothing), and that nothing is left behind."""

import contextlib
import hmac
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from lib.control import (
    CALL,
    CHALLENGE,
    HELLO,
    MAGIC,
    NEWS,
    PROOF,
    REFUSED,
    REPLY,
    WELCOME,
    all_good,
    call,
    dial,
    finish,
    frame,
    free_port,
    greeting,
    hello,
    mac,
    read,
    secret,
    start,
)
from lib.processes import shared_files
from pydist import _C

LEFT, RAISED = 1, 3


@pytest.fixture(params=["unix", "tcp"])
def server(request):
    """Most of what follows has to hold on both sockets."""
    s = _C.ControlServer(2, listen="127.0.0.1:0" if request.param == "tcp" else None)
    yield s
    s.close()


def piped(data):
    """The end of a pipe to read `data` from."""
    r, w = os.pipe()
    os.write(w, data)
    os.close(w)
    return r


@pytest.fixture
def listening():
    """A socket that stands for a control server of this host, and its address."""
    address = "@pydist-test-%d" % os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.bind("\0" + address[1:])
        s.listen(1)
        yield s, address


def handshake(s, key, rank, world=2):
    """The server's answer to a rank that speaks the protocol by hand."""
    s.sendall(hello(rank, world))
    kind, _, challenge = read(s)
    assert kind == CHALLENGE
    nonce, proof = challenge[:16], challenge[16:]
    if proof != mac(key, b"server", greeting(rank, world), nonce):
        return None
    s.sendall(frame(PROOF, mac(key, b"client", greeting(rank, world), nonce)))
    return read(s)


def join(server, rank, world=2):
    s = dial(server)
    kind, _, payload = handshake(s, secret(server), rank, world)
    assert kind == WELCOME and payload[32:] == struct.pack("<i", -1)
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
    start = time.monotonic()
    kind, _, text = handshake(s, secret(server), 0, world=77)
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


def test_both_prove_that_they_know_the_secret(server):
    join(server, 0).close()


@pytest.mark.parametrize("n", [0, 1, 31, 32, 63, 64, 65, 200])
def test_the_proof_is_hmac_sha256(n):
    for size in (0, 1, 55, 56, 63, 64, 119, 120, 1000):
        key, data = os.urandom(n), os.urandom(size)
        assert _C.hmac_sha256(key, data) == hmac.digest(key, data, "sha256")


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0" * 64,
        os.urandom(4096),
        frame(CALL, b"x" * 28),
        frame(NEWS, b"x" * 28),
        frame(HELLO, b"x"),
        frame(HELLO, b"x" * 27),
        struct.pack("<IHHII", MAGIC, HELLO, 0, 0xFFFFFFFF, 0),
        struct.pack("<IHHII", MAGIC ^ 0x01000000, HELLO, 0, 32, 0) + b"x" * 32,
        struct.pack("<IHHII", MAGIC, HELLO, 1, 32, 0) + b"x" * 32,
        frame(PROOF, b"x" * 32),
        hello(0) * 2,
        hello(0) + frame(PROOF, b"x" * 32),
    ],
    ids=[
        "http", "zeros", "noise", "call", "news", "short", "almost", "huge", "version", "descriptor", "proof",
        "twice", "guess",
    ],
)  # fmt: skip
def test_garbage_is_refused(server, bad):
    s = dial(server)
    s.sendall(bad)
    with contextlib.suppress(EOFError, ConnectionResetError):
        assert read(s)[0] == CHALLENGE
        assert closed(s)
    assert serves(server)


def test_wrong_secret_is_refused(server):
    assert handshake(dial(server), bytes(32), 0) is None  # the server's proof is not ours
    s = dial(server)
    s.sendall(hello(0))
    nonce = read(s)[2][:16]
    wrong = bytearray(mac(secret(server), b"client", greeting(0), nonce))
    wrong[31] ^= 1
    s.sendall(frame(PROOF, bytes(wrong)))
    assert closed(s)
    join(server, 0).close()


def test_nothing_is_read_behind_garbage():
    """The launcher's word on a rank makes the server look at what it still says. After a head that lies, what follows is
    no frame: its length is not to be believed."""
    for _ in range(40):
        server = _C.ControlServer(2)
        s, other = join(server, 0), join(server, 1)
        s.sendall(struct.pack("<IHHII", MAGIC, CALL, 0, 0xFFFFFFFF, 0))
        server.dead(0, "says the launcher")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            s.sendall(b"x" * 100_000)
        with contextlib.suppress(EOFError, ConnectionResetError):
            while read(s):
                pass
        assert other.recv(1)
        for one in (s, other, server):
            one.close()


def test_a_proof_cannot_be_used_again(server):
    s = dial(server)
    s.sendall(hello(0))
    nonce = read(s)[2][:16]
    proof = frame(PROOF, mac(secret(server), b"client", greeting(0), nonce))
    s.close()
    s = dial(server)
    s.sendall(hello(0))
    assert read(s)[2][:16] != nonce
    s.sendall(proof)
    assert closed(s)


def test_wrong_world_rank_and_a_rank_twice_are_told_why(server):
    for rank, world, word in ((0, 3, "3 ranks"), (2, 2, "rank 2"), (-1, 2, "rank -1")):
        kind, _, text = handshake(dial(server), secret(server), rank, world)
        assert kind == REFUSED and word in text.decode()
    first = join(server, 1)
    kind, _, text = handshake(dial(server), secret(server), 1)
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


@pytest.mark.slow
def test_where_too_many_strangers_come_those_outside_wait(server):
    start = time.monotonic()
    silent = [dial(server) for _ in range(100)]
    rank = join(server, 0)  # once the first 64 have had their second
    assert 0.9 < time.monotonic() - start < 4.5
    more = [dial(server) for _ in range(10)]
    assert all(closed(s) for s in silent[:64])
    rank.setblocking(False)
    with contextlib.suppress(BlockingIOError):  # still here: it hears nothing, or that the server lives
        assert rank.recv(1)
    for s in (rank, *silent, *more):
        s.close()


CROWD = """
import os, random, select, socket, struct, sys, time
resource = __import__("resource")
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
words = [b"", b"x", b"GET / HTTP/1.0", struct.pack("<IHHII", 0x32434450, 1, 0, 32, 0)]
open = {}
def come(word):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex((host, port))
    open[s.fileno()] = s, word
for i in range(count):
    come(words[i % 4])
print("here", flush=True)
poller = select.epoll()
for fd in open:
    poller.register(fd, select.EPOLLIN | select.EPOLLOUT | select.EPOLLONESHOT)
while os.getppid() == int(sys.argv[4]):
    for fd, event in poller.poll(0.1):
        s, word = open[fd]
        try:
            if event & (select.EPOLLERR | select.EPOLLHUP | select.EPOLLIN) and not s.recv(100):
                raise ConnectionError
            if event & select.EPOLLOUT:
                s.send(word)
            poller.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)
        except OSError:
            poller.unregister(fd)
            del open[fd]
            s.close()
            come(word)
            poller.register(next(reversed(open)), select.EPOLLIN | select.EPOLLOUT | select.EPOLLONESHOT)
"""


def join_from_afar(server, key, rank, world, way, deadline, patient):
    """As the client does it, with `way` seconds between two ends: again where the connection was closed."""
    while True:
        try:
            s = dial(server)
            s.settimeout(max(deadline - time.monotonic(), 1))
            time.sleep(way)
            s.sendall(hello(rank, world))
            nonce = read(s)[2][:16]
            time.sleep(2 * way)
            s.sendall(frame(PROOF, mac(key, b"client", greeting(rank, world), nonce)))
            kind, _, payload = read(s)
            return s if kind == WELCOME else payload
        except (EOFError, ConnectionError):
            if not patient or time.monotonic() > deadline:
                return None
            time.sleep(0.02)


@pytest.mark.parametrize("world, way, strangers", [
    (100, 0.02, 0),
    (50, 0.01, 150),
    pytest.param(200, 0.06, 1000, marks=pytest.mark.skipif("FULL_LONG" not in os.environ, reason=".ci/full runs it")),
])  # fmt: skip
def test_ranks_far_away_join_at_one_time(world, way, strangers):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    server = _C.ControlServer(world, listen="127.0.0.1:0")
    host, port = server.tcp_address.rsplit(":", 1)
    crowd = [sys.executable, "-c", CROWD, host, port, str(strangers), str(os.getpid())]
    crowd = subprocess.Popen(crowd, stdout=subprocess.PIPE) if strangers else None
    try:
        if crowd:
            crowd.stdout.readline()
        key, came, gate = secret(server), [], threading.Barrier(world)
        deadline = time.monotonic() + 200

        def run(rank):
            gate.wait()
            came.append(join_from_afar(server, key, rank, world, way, deadline, strangers > 0))

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(came) == world and all(isinstance(s, socket.socket) for s in came), came
    finally:
        if crowd:
            crowd.kill()
            crowd.wait()
            crowd.stdout.close()
        server.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for s in came:
        s.close()


SHORT_OF_DESCRIPTORS = """
import resource, sys, time
from pydist import _C
server = _C.ControlServer(2, listen="127.0.0.1:0", secret=b"s" * 32)
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
print(server.tcp_address, flush=True)
sys.stdin.readline()
print(time.process_time(), flush=True)
time.sleep(1)
print(time.process_time(), flush=True)
sys.stdin.readline()
"""


def test_a_server_without_descriptors_waits_for_some():
    program = [sys.executable, "-c", SHORT_OF_DESCRIPTORS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    server = subprocess.Popen(program, text=True, **pipes)
    host, port = server.stdout.readline().rsplit(":", 1)
    strangers = [socket.create_connection((host, int(port))) for _ in range(60)]
    server.stdin.write("\n")
    server.stdin.flush()
    before, after = (float(server.stdout.readline()) for _ in range(2))
    assert after - before < 0.5  # it does not turn round and round
    for s in strangers:
        s.close()
    s = socket.create_connection((host, int(port)), 10)
    assert handshake(s, b"s" * 32, 0)[0] == WELCOME
    s.close()
    assert "have to wait: Too many open files" in server.communicate("\n", 60)[1]


@pytest.mark.skipif("FULL_LONG" not in os.environ, reason="takes long: .ci/full runs it")
def test_silence_ends_at_the_deadline():
    servers = [_C.ControlServer(2), _C.ControlServer(2, listen="127.0.0.1:0")]
    strangers = [dial(server) for server in servers]
    start = time.monotonic()
    for s in strangers:
        assert closed(s, within=10)
        assert 4 < time.monotonic() - start < 7
    for server in servers:
        server.close()


def test_descriptors_of_strangers_are_not_taken():
    server = _C.ControlServer(2)
    before = descriptors()
    s = dial(server)
    r, w = os.pipe()
    try:
        socket.send_fds(s, [hello(0)], [r, w])
    finally:
        os.close(r)
        os.close(w)
    kind, _, _ = read(s)
    assert kind == CHALLENGE  # the server did not look at them, the kernel closed them
    assert descriptors() <= before + 2  # the connection's two ends
    s.close()
    server.close()


def test_a_message_brings_one_descriptor():
    """The kernel closes the others."""
    server = _C.ControlServer(1)
    s = join(server, 0, 1)
    r, w = os.pipe()
    before = descriptors()
    for fds in ([r, w], [r] * 5, [w, r]):
        socket.send_fds(s, [call(0, b"key", b"value", handles=1)], fds)
        assert read(s)[0] == REPLY
        deadline = time.monotonic() + 5  # the server may close the former value's after it has answered
        while descriptors() != before + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert descriptors() == before + 1  # the value's
    for fd in (r, w):
        os.close(fd)
    s.close()
    server.close()


@pytest.mark.parametrize(
    "bad",
    [
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
    ],
    ids=["short", "verb", "nokey", "lengths", "overflow", "value", "news", "forged", "kind", "long"],
)
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


def test_a_goodbye_counts_although_the_server_could_not_send():
    """Rank 0 leaves while the server is full of rank 1's news, which it can no longer pass on to rank 0."""
    goodbye = frame(NEWS, struct.pack("<IiiIi", LEFT, 0, 0, 0, 0))
    abort = frame(NEWS, struct.pack("<IiiIi", 2, 0, 0, 1, 0) + b"x" * 60000)
    for _ in range(10):
        server = _C.ControlServer(3)
        b, c, a = (join(server, r, 3) for r in (1, 2, 0))
        seen = []

        def drain(s=c, seen=seen):
            while not seen:
                kind, rank = struct.unpack("<Ii", read(s)[2][:8])
                if rank == 0:
                    seen.append(kind)

        draining = threading.Thread(target=drain)
        flood = threading.Thread(target=b.sendall, args=(abort * 60,))
        draining.start()
        flood.start()
        a.sendall(goodbye)
        a.close()
        draining.join(10)
        assert seen == [LEFT]
        flood.join()
        server.close()
        b.close()
        c.close()


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
        _C.comm_init(0, 2, address, os.dup(server.secret_fd), 0.5)


def test_bad_secrets(server, leave):
    with pytest.raises(_C.DistError, match="secret"):
        _C.comm_init(0, 2, server.address, 9999, 5)
    with pytest.raises(_C.DistError, match="too short"):
        _C.comm_init(0, 2, server.address, piped(b"short"), 5)
    with pytest.raises(_C.DistError, match="does not know this job's secret"):
        _C.comm_init(0, 2, server.address, piped(bytes(32)), 5)
    assert serves(server)


def test_secret_through_a_pipe(server, leave):
    one = _C.ControlServer(1)
    g = _C.comm_init(0, 1, one.address, piped(secret(one)), 5)
    assert (g.rank, g.size) == (0, 1)
    g.destroy()
    _C.comm_leave()
    one.close()


def test_an_impostor_learns_nothing(leave, listening):
    """A server of our own user that does not know the secret: the client refuses it before it proves itself."""
    door, address = listening
    got = []

    def impostor():
        s, _ = door.accept()
        got.append(read(s))
        s.sendall(frame(CHALLENGE, bytes(48)))
        got.append(s.recv(100))
        s.close()

    t = threading.Thread(target=impostor)
    t.start()
    with pytest.raises(_C.DistError, match="does not know this job's secret"):
        _C.comm_init(0, 2, address, piped(b"A" * 16 + b"B" * 16), 5)
    t.join()
    assert b"AAAA" not in got[0][2] and b"BBBB" not in got[0][2] and got[1] == b""


@pytest.mark.parametrize("closes", [1, 100])
def test_a_connection_that_is_closed_before_the_welcome_is_tried_again(leave, tmp_path, monkeypatch, closes):
    server = _C.ControlServer(1, listen="127.0.0.1:0")
    host, port = server.tcp_address.rsplit(":", 1)
    seen = []

    def copy(source, to):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as door:

        def relay():
            while True:
                try:
                    client, _ = door.accept()
                except OSError:
                    return
                seen.append(client)
                if len(seen) <= closes:
                    client.close()
                    continue
                far = socket.create_connection((host, int(port)))
                for pair in ((client, far), (far, client)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        start, address = time.monotonic(), "127.0.0.1:%d" % door.getsockname()[1]
        if closes == 1:
            _C.comm_init(0, 1, address, os.dup(server.secret_fd), 30).destroy()
            _C.comm_leave()
        else:
            with pytest.raises(_C.DistError, match="the server closed the connection of rank 0.*another version"):
                _C.comm_init(0, 1, address, os.dup(server.secret_fd), 30)
            assert 1 < len(seen) < 20 and time.monotonic() - start < 20
        door.shutdown(socket.SHUT_RDWR)
        thread.join()
    server.close()


def test_a_silent_server_times_out(leave, listening):
    start = time.monotonic()
    with pytest.raises(_C.CommTimeout):
        _C.comm_init(0, 2, listening[1], piped(bytes(32)), 0.3)
    assert time.monotonic() - start < 10


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
    assert 0.15 < time.monotonic() - start < 10
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
    one.close()
    t.join(15)
    assert caught and "never" not in str(caught[0])  # nor the timeout


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
    before = descriptors(), threads(), shared_files()
    for _ in range(50):
        cycle()
    assert (descriptors(), threads(), shared_files()) == before


# Without a launcher.


@pytest.mark.parametrize("kind", ["tcp", "name", "file"])
@pytest.mark.parametrize("world", [1, 3])
def test_ranks_meet_without_a_launcher(tmp_path, kind, world):
    """Rank 0 comes last, leaves first, and stays until the others have left."""
    url = (
        f"file://{tmp_path}/meet"
        if kind == "file"
        else f"tcp://{socket.gethostname() if kind == 'name' else '127.0.0.1'}:{free_port()}"
    )
    script = """
        if rank == 0:
            time.sleep(0.15)
        group = join()
        assert group.transport == ("none" if world == 1 else "shm")
        check(group)
        group.destroy()
        group = join()  # a second group over the same connection
        check(group)
        group.store.set(f"key{rank}", "value")
        group.destroy()
        if rank == world - 1 and world > 1:
            time.sleep(0.25)
            print(group.store.get("key0", 5).decode())
        _C.comm_leave()
        print(time.time())
    """
    ended = all_good(finish([start(script, url, r, world) for r in range(world)]))
    if world > 1:
        assert "value" in ended[-1][1]
        first, last = (float(ended[r][1].split()[-1]) for r in (0, -1))
        assert first > last - 0.05  # rank 0 was the last


def test_rank_0_that_dies_takes_the_server_along():
    url = f"tcp://127.0.0.1:{free_port()}"
    script = """
        group = join()
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            group.barrier()
        except _C.PeerFailed as e:
            print(e.rank, e)
    """
    ended = finish([start(script, url, r, 3) for r in range(3)])
    for code, out, err in ended[1:]:
        assert code == 0 and out.startswith("0 ") and "rank 0" in out, err


def test_a_wait_in_the_store_ends_with_rank_0():
    url = f"tcp://127.0.0.1:{free_port()}"
    script = """
        group = join()
        if rank == 0:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            group.store.get("never", 20)
        except _C.PeerFailed as e:
            print(e.rank, e)
    """
    (code, out, err) = finish([start(script, url, r, 2) for r in range(2)])[1]
    assert code == 0 and out.startswith("0 rank 0, which hosted the control server, is gone"), (out, err)


def test_two_jobs_on_one_port():
    url = f"tcp://127.0.0.1:{free_port()}"
    script = """
        group = join()
        print("here", flush=True)
        if rank == 0:
            sys.stdin.read()  # until finish()
        group.barrier()
        _C.comm_leave()
    """
    job = [start(script, url, r, 2) for r in range(2)]
    try:
        job[0].stdout.readline()
        ((code, _, err),) = finish([start("join(3)", url, 0, 2)])
        assert code and "taken by another job" in err and f"pid {job[0].pid}" in err and url.rsplit(":")[-1] in err
        ((code, _, err),) = finish([start("join(3)", url, 1, 2)])
        assert code and "rank 1 has already joined" in err
        ((code, _, err),) = finish([start("join(3)", url, 1, 4)])
        assert code and "expects 4 ranks, but this job has 2" in err
    finally:
        all_good(finish(job))


def test_a_missing_rank_0_is_named():
    url = f"tcp://127.0.0.1:{free_port()}"
    begin = time.monotonic()
    ((code, _, err),) = finish([start("join(0.5)", url, 1, 2)])
    assert code and "CommTimeout" in err and "found no rank 0" in err and time.monotonic() - begin < 10


def test_no_listening_beyond_this_host_without_a_secret(tmp_path):
    listen = "_C.ControlServer(2, listen='0.0.0.0:0').close()"
    ((code, _, err),) = finish([start(listen, "x", 0, 1)])
    assert code and "PYDIST_SECRET_FILE" in err and "PYDIST_INSECURE=1" in err
    all_good(finish([start(listen, "x", 0, 1, PYDIST_INSECURE="1")]))
    path = tmp_path / "secret"
    path.write_bytes(os.urandom(31) + b"\n")  # a byte like any other
    path.chmod(0o644)
    ((code, _, err),) = finish([start(listen, "x", 0, 1, PYDIST_SECRET_FILE=str(path))])
    assert code and "mode 644" in err
    path.chmod(0o600)
    all_good(finish([start(listen, "x", 0, 1, PYDIST_SECRET_FILE=str(path))]))
    path.write_bytes(b"short")
    ((code, _, err),) = finish([start(listen, "x", 0, 1, PYDIST_SECRET_FILE=str(path))])
    assert code and "5 bytes" in err
    ((code, _, err),) = finish([start(listen, "x", 0, 1, PYDIST_SECRET_FILE=str(tmp_path / "none"))])
    assert code and "No such file" in err


def test_an_address_elsewhere_needs_a_secret():
    ((code, _, err),) = finish([start("join(0.3)", "tcp://192.0.2.1:29500", 1, 2)])
    assert code and "PYDIST_SECRET_FILE" in err
    ((code, _, err),) = finish([start("join(0.3)", "tcp://192.0.2.1:29500", 0, 2, PYDIST_INSECURE="1")])
    assert code and "is not an address of this host" in err
    begin = time.monotonic()
    ((code, _, err),) = finish([start("join(0.3)", "tcp://192.0.2.1:29500", 1, 2, PYDIST_INSECURE="1")])
    assert code and time.monotonic() - begin < 10


@pytest.mark.parametrize(
    "url",
    [
        "tcp://", "tcp://:5", "tcp://localhost", "tcp://localhost:99999", "tcp://localhost:0", "tcp://localhost:x",
        "udp://localhost:1", "file://", "file:///no/such/folder/x", "tcp://no.such.host.invalid:5",
        "tcp://" + "x" * 5000 + ":1",
    ],
)  # fmt: skip
def test_bad_urls(url, leave):
    before = descriptors()
    with pytest.raises((ValueError, OSError, _C.DistError)):
        _C.comm_init(0, 2, url, -1, 0.5)
    assert descriptors() == before


@pytest.mark.parametrize("who", ["rank", "server"])
@pytest.mark.slow
def test_a_stopped_process_is_named(who):
    """SIGSTOP: a line after PYDIST_WARN seconds, the end after PYDIST_SILENT."""
    url = f"tcp://127.0.0.1:{free_port()}"
    script = """
        group = join()
        check(group)
        print("here", flush=True)
        if rank == %d:
            time.sleep(60)
        else:
            begin = time.monotonic()
            try:
                group.barrier()
            except _C.PeerFailed as e:
                print(e.rank, round(time.monotonic() - begin), e, flush=True)
        os._exit(0)
    """ % (1 if who == "rank" else 0)
    processes = [start(script, url, r, 3, PYDIST_WARN="1", PYDIST_SILENT="1.5") for r in range(3)]
    stopped = processes[1 if who == "rank" else 0]
    try:
        for p in processes:
            assert p.stdout.readline() == "here\n"
        os.kill(stopped.pid, signal.SIGSTOP)
        others = [p for p in processes if p is not stopped]
        for code, out, err in finish(others, 20):
            rank, seconds, text = out.split(maxsplit=2)
            assert int(rank) == processes.index(stopped) and 1 <= int(seconds) <= 6, (out, err)
            if who == "rank":
                assert "not responding" in text
        if who == "rank":
            assert stopped.poll() is None
    finally:
        stopped.kill()
        finish([stopped])


@pytest.mark.slow
def test_a_busy_process_is_not_silent():
    url = f"tcp://127.0.0.1:{free_port()}"
    script = """
        group = join()
        if rank == 1:
            begin = time.monotonic()
            n = 3 ** 4_000_000
            while time.monotonic() - begin < 1.4:
                n * n  # one long C call after the other
        group.barrier()
        _C.comm_leave()
    """
    ended = all_good(finish([start(script, url, r, 2, PYDIST_WARN="0.5", PYDIST_SILENT="1") for r in range(2)]))
    assert "not responding" not in ended[0][2]
