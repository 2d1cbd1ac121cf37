"""Forged frames: what strangers and ranks that know the secret send to a control server and a TCPStore, and what a
server that lies sends to a client.

    python tests/fuzz/frames.py [--seconds 20] [--seed 0]       (runner.py says how)

A case has a server of its own, a few attackers and an honest client, which has to be answered after each of them. At
its end another honest client comes, and the process has as many descriptors as before. Attackers damage handshakes and
messages (bits, ends, lengths, descriptors, verbs, ranks, times), send them in pieces, and leave in several ways.
"""

import os
import socket
import struct
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import runner
from runner import descriptors, noise, rss

os.environ.setdefault("PYDIST_LOG", "0")  # servers have much to say

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.control import (
    CALL,
    CHALLENGE,
    HELLO,
    MAGIC,
    NEWS,
    PING,
    PONG,
    PROOF,
    REFUSED,
    REPLY,
    WELCOME,
    exactly,
    mac,
    read,
)
from lib.control import frame as plain
from pydist import _C
from pydist.distributed import tcp_store

PATIENCE = 15.0  # s for an honest client's answer, on a busy machine
GROWTH = 768 << 20  # bytes by which a process may grow: ASan keeps freed memory for a while
NUMBERS = [0, 1, 2, 3, 7, 31, 32, 33, 255, 1023, 1024, 1025, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, (1 << 20) + 1200,
           0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]  # fmt: skip
VERBS = [b"get", b"set", b"add", b"pop", b"push", b"check", b"keys", b"append", b"compare_set", b"delete", b"length"]
TIMES = [0, 1, -1, 10**6, 10**9, 2**62, 2**63 - 1, -(2**63)]

secret_file = tempfile.NamedTemporaryFile()
secret_file.write(b"s" * 32)
secret_file.flush()
first_rss = None


# What is sent.


def number(random):
    return random.choice(NUMBERS) if random.random() < 0.7 else random.getrandbits(32)


def damaged(random, data):
    data = bytearray(data)
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        way = random.randrange(6)
        if not data or way == 0:
            data += noise(random)
        elif way == 1:
            for _ in range(random.randrange(1, 5)):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        elif way == 2:
            del data[random.randrange(len(data)) :]
        elif way == 3 and len(data) >= 4:
            at = random.randrange(len(data) - 3)
            data[at : at + 4] = struct.pack("<I", number(random))
        elif way == 4:
            data += bytes(data)
        else:
            at = random.randrange(len(data))
            del data[at : at + random.randrange(1, 9)]
    return bytes(data)


def frame(random, kind, payload=b"", handles=None):
    size = number(random) if random.random() < 0.05 else len(payload)
    handles = random.choice([0, 0, 0, 1, 2, 65535]) if handles is None else handles
    return struct.pack("<IHHII", MAGIC, kind, handles, size, random.getrandbits(32)) + payload


def signed(random):
    return struct.unpack("<i", struct.pack("<I", number(random)))[0]


def call(random):
    key = random.choice([b"k", b"key", b"pd:1.0.0", b"", noise(random, 1100)])
    data = noise(random) if random.random() < 0.9 else bytes(random.choice([1 << 20, (1 << 20) + 1, 1 << 19]))
    key_bytes, data_bytes = len(key), len(data)
    if random.random() < 0.1:
        key_bytes = number(random)
    if random.random() < 0.1:
        data_bytes = number(random)
    verb = random.choice([0, 0, 1, 2, 3, 4, 5, 6, number(random)])
    head = struct.pack("<IIIIqq", verb, key_bytes, data_bytes, 0, random.choice(TIMES), random.choice(TIMES))
    return frame(random, CALL, head + key + data)


def news(random):
    kind = random.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, number(random)])
    status = random.choice([0, 1, -1, 2, signed(random)])
    head = struct.pack("<IiiIi", kind, signed(random), signed(random), random.choice([0, 1, number(random)]), status)
    return frame(random, NEWS, head + noise(random, random.choice([3, 300, 70000])))


def of_a_rank(random):
    """A message of one who has been let in."""
    draw = random.random()
    if draw < 0.5:
        data = call(random)
    elif draw < 0.8:
        data = news(random)
    else:
        data = frame(random, random.choice([*range(12), number(random) & 0xFFFF]), noise(random))
    return damaged(random, data) if random.random() < 0.2 else data


# How it is sent.


def send(random, s, data):
    """In pieces now and then, with descriptors now and then."""
    fds = [0] * random.choice([1, 2, 5, 100]) if s.family == socket.AF_UNIX and random.random() < 0.15 else []
    pieces = [data]
    if random.random() < 0.2 and data:
        cuts = sorted(random.randrange(len(data)) for _ in range(random.randrange(1, 12)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]
    for piece in pieces:
        if fds and piece:
            sent = socket.send_fds(s, [piece], fds)
            s.sendall(piece[sent:])
        else:
            s.sendall(piece)
        if len(pieces) > 1 and random.random() < 0.3:
            time.sleep(0.001)


def leave(random, s, kept):
    way = random.randrange(4)
    if way == 0:
        kept.append(s)  # says nothing more until the case ends
        return
    if way == 1:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    elif way == 2:
        s.shutdown(socket.SHUT_WR)
    s.close()


def attack(random, s, kept, do):
    s.settimeout(5)
    try:
        do()
    except (OSError, EOFError):  # it was shown the door
        pass
    finally:
        try:
            leave(random, s, kept)
        except OSError:
            s.close()


# The control server.


class Control:
    def __init__(self, random):
        self.random, self.world, self.tcp = random, random.choice([2, 3, 5]), random.random() < 0.5
        self.server = _C.ControlServer(self.world, "127.0.0.1:0" if self.tcp else None)
        self.secret = os.pread(self.server.secret_fd, 32, 0)
        self.honest, self.asked, self.next_rank = self.join(0), 0, 1

    def dial(self):
        if self.tcp:
            host, port = self.server.tcp_address.rsplit(":", 1)
            return socket.create_connection((host, int(port)), PATIENCE)
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(PATIENCE)
        s.connect("\0" + self.server.address[1:])
        return s

    def shake(self, s, rank, world=None):
        hello = bytes(16) + struct.pack("<iiii", rank, world or self.world, os.getpid(), 0)
        s.sendall(plain(HELLO, hello))
        challenge = read(s, CHALLENGE)[2]
        assert challenge[16:] == mac(self.secret, b"server", hello, challenge[:16])
        s.sendall(plain(PROOF, mac(self.secret, b"client", hello, challenge[:16])))
        return read(s, WELCOME, REFUSED)[0]

    def join(self, rank):
        s = self.dial()
        assert self.shake(s, rank) == WELCOME
        return s

    def check(self):
        """The honest rank is served: a value comes back."""
        self.asked += 1
        key, value = b"honest %d" % self.asked, self.random.randbytes(20)
        for verb, data in ((0, value), (1, b"")):
            head = struct.pack("<IIIIqq", verb, len(key), len(data), 0, 0, 0)
            self.honest.sendall(plain(CALL, head + key + data, self.asked))
            _, ident, reply = read(self.honest, REPLY)
            assert ident == self.asked and reply[8:12] == bytes(4), reply
        assert reply[16:] == value

    def stranger(self, s):
        random = self.random
        who = [random.choice([0, 1, self.world, signed(random)]) for _ in range(4)]
        hello = random.randbytes(16) + struct.pack("<iiii", *who)
        send(random, s, random.choice([noise(random, 5000), damaged(random, plain(HELLO, hello)), of_a_rank(random)]))
        if random.random() < 0.5:
            s.settimeout(0.1)
            read(s, CHALLENGE)
            send(random, s, damaged(random, plain(PROOF, noise(random, 64).ljust(32, b"\0"))))
            send(random, s, of_a_rank(random))

    def rank(self, s):
        random = self.random
        if random.random() < 0.2:
            assert (
                self.shake(s, random.choice([0, -1, self.world, 77]), random.choice([self.world, 1, 4096])) == REFUSED
            )
            send(random, s, of_a_rank(random))
            return
        if self.next_rank == self.world - 1:  # who comes at the end
            return
        self.next_rank += 1
        if self.shake(s, self.next_rank - 1) == REFUSED:  # the launcher's word was about it
            return
        for _ in range(random.randrange(12)):
            send(random, s, of_a_rank(random))

    def attack(self, kept):
        s = self.dial()
        attack(self.random, s, kept, lambda: (self.stranger if self.random.random() < 0.5 else self.rank)(s))
        if self.random.random() < 0.2:
            rank = signed(self.random)
            if rank not in (0, self.world - 1):  # the honest ones
                self.server.dead(rank, "says the launcher")
            self.server.silent(rank)
            self.server.first_raised()

    def close(self):
        self.join(self.world - 1).close()
        self.honest.close()
        self.server.close()


# TCPStore.


class Table:
    def __init__(self, random):
        self.random = random
        if random.random() < 0.7:
            os.environ["PYDIST_SECRET_FILE"] = secret_file.name
        else:
            os.environ.pop("PYDIST_SECRET_FILE", None)
        self.secret = tcp_store._secret()
        self.store = tcp_store.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=PATIENCE))
        self.honest = self.join()

    def join(self):
        return tcp_store.TCPStore("127.0.0.1", self.store.port, timeout=timedelta(seconds=PATIENCE))

    def check(self):
        key, value = f"honest {self.random.random()}", self.random.randbytes(20)
        self.honest.set(key, value)
        assert self.store.get(key) == value and self.honest.get(key) == value

    def stranger(self, s):
        random, magic = self.random, tcp_store._MAGIC
        hello = magic + random.randbytes(32)
        words = [noise(random, 500), damaged(random, hello), damaged(random, hello) + noise(random)]
        send(random, s, random.choice(words))
        if random.random() < 0.5:
            s.settimeout(0.1)
            exactly(s, 64)
            send(random, s, damaged(random, random.randbytes(32)))

    def rank(self, s):
        random = self.random
        channel = tcp_store._shake_hands(s, self.secret, time.monotonic() + PATIENCE)
        s.settimeout(5)
        for _ in range(random.randrange(12)):
            verb = random.choice([*VERBS, b"", noise(random, 20)])
            seconds = struct.pack("<d", random.choice([0, -1, 0.01, 1e300, float("nan"), float("inf"), 60]))
            words = [seconds, b"k", b"9" * 5000, b"-1", b"\xff\xfe", noise(random)]
            parts = random.choices(words, k=random.randrange(5))
            if verb == b"get" and random.random() < 0.7:
                parts = [seconds, *parts]
            lengths = [number(random) if random.random() < 0.05 else len(part) for part in (verb, *parts)]
            count = number(random) if random.random() < 0.05 else len(lengths)
            message = struct.pack(f"<{len(lengths) + 1}I", count, *lengths) + b"".join((verb, *parts))
            if random.random() < 0.1:
                message = damaged(random, message)
            if channel.key:
                message += tcp_store._mac(channel.key, channel.ours, channel.sent.to_bytes(8, "little"), message)
                channel.sent += 1
            send(random, s, damaged(random, message) if random.random() < 0.05 else message)

    def attack(self, kept):
        if self.secret or self.random.random() < 0.2:
            s = socket.create_connection(("127.0.0.1", self.store.port), PATIENCE)
        else:
            s = socket.socket(socket.AF_UNIX)
            s.connect(tcp_store._unix_name(self.store.port))
        knows = self.random.random() < 0.6

        def do():
            try:
                (self.rank if knows else self.stranger)(s)
            except tcp_store._Refused:
                pass

        attack(self.random, s, kept, do)

    def close(self):
        self.join().set("the last", "came")
        for store in (self.honest, self.store):
            store._channel.connection.close()
        self.store._server.close()


# A server that lies.


def answer(random, ident):
    head = struct.pack("<qiI", random.choice(TIMES), random.choice([0, 0, 0, 1, 2, 5, 99, signed(random)]), 0)
    data = plain(REPLY, head + noise(random), ident)
    return damaged(random, data) if random.random() < 0.2 else data


def lie(random, door):
    s, _ = door.accept()
    with s:
        s.settimeout(PATIENCE)
        hello, number = read(s, HELLO)[2], random.randbytes(16)
        challenge = plain(CHALLENGE, number + mac(b"s" * 32, b"server", hello, number))
        send(random, s, damaged(random, challenge) if random.random() < 0.1 else challenge)
        read(s, PROOF)
        welcome = plain(WELCOME, random.randbytes(32) + struct.pack("<i", random.choice([-1, 0, 1, signed(random)])))
        send(random, s, damaged(random, welcome) if random.random() < 0.1 else welcome)
        for _ in range(random.randrange(12)):
            draw = random.random()
            if draw < 0.5:
                send(random, s, answer(random, read(s, CALL)[1]))
            elif draw < 0.8:
                send(random, s, news(random))
            else:
                send(random, s, damaged(random, plain(random.choice([REPLY, PING, PONG, NEWS, 77]), noise(random))))


def client(random):
    """A real one, whose server is us; it may fail, and has to end."""
    theirs, name = type(random)(random.random()), f"pydist-fuzz-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("\0" + name)
        door.listen()

        def serve():
            try:
                lie(theirs, door)
            except (OSError, EOFError):  # it has seen through us
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        secret = os.memfd_create("secret")
        os.write(secret, b"s" * 32)
        number = os.fstat(secret).st_ino
        try:
            group = _C.comm_init(0, 1, "@" + name, secret, 0.5)
            for _ in range(random.randrange(1, 8)):
                word = random.choice(["k", "key", "n"])
                do = random.choice([group.store.get, group.store.add, group.store.check, group.store.delete])
                try:
                    do(word, 1) if do in (group.store.get, group.store.add) else do(word)
                except Exception as error:  # the server says of which kind
                    assert not isinstance(error, SystemError)
            group.destroy()
        except (_C.DistError, RuntimeError, OSError):
            pass
        finally:
            _C.comm_leave()
        thread.join()
        try:  # after a failure comm_init keeps the secret for this number, and lets the descriptor be
            if os.fstat(secret).st_ino == number:
                os.close(secret)
        except OSError:
            pass


def served(random):
    kept, target = [], (Control if random.random() < 0.6 else Table)(random)
    target.check()
    for _ in range(random.randrange(1, 9)):
        target.attack(kept)
        target.check()
    target.close()
    for s in kept:
        s.close()


def case(random):
    global first_rss
    before = descriptors()
    served(random) if random.random() < 0.85 else client(random)
    end = time.monotonic() + PATIENCE
    while descriptors() != before and time.monotonic() < end:  # threads of the store close theirs in a moment
        time.sleep(0.001)
    assert descriptors() == before, f"{descriptors()} descriptors, {before} before"
    first_rss = first_rss or rss()
    assert rss() - first_rss < GROWTH, f"the process has grown by {rss() - first_rss} bytes"


runner.main(case)
