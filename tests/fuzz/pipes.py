"""Forged messages of rpc: what strangers, and a worker that has the job's token, send to an agent.

    python tests/fuzz/pipes.py [--seconds 20] [--seed 0]       (runner.py says how)

A case has an agent of its own, over a unix socket or tcp, and one worker beside it, which is played here. Greetings are
damaged, replayed, or of another job, world or worker; valid messages of all kinds are damaged (bits, ends, lengths, kinds,
counts, slabs with and without memory), repeated, cut off and sent in pieces. After each attack the agent answers a right
call. At the end nothing is held but what the worker has references to, and the process has as many descriptors as before.

The agent allows nothing to be called but what is harmless, since else a damaged pickle might do anything.
"""

import collections
import faulthandler
import fcntl
import hashlib
import hmac
import os
import queue
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import runner
from runner import descriptors, noise, rss

os.environ.setdefault("PYDIST_LOG", "0")  # pipes have much to say

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import logging

import pydist
from lib.control import CALL, CHALLENGE, HELLO, PING, PONG, PROOF, REPLY, WELCOME, exactly, frame, mac, read
from pydist import _C
from pydist.distributed.rpc import _agent, _pickling, _report
from pydist.distributed.rpc.options import TensorPipeRpcBackendOptions
from pydist.distributed.rpc.rref import RRef

logging.disable()  # of messages that make no sense

MAGIC, SLAB, INLINE = 0x31504450, 0xFF01, 16 << 10
PATIENCE = 15.0  # s for an answer, on a busy machine
GROWTH = 768 << 20  # bytes by which a process may grow: ASan keeps freed memory for a while
NUMBERS = [0, 1, 2, 3, 7, 31, 63, 64, 255, 1023, 1024, 4095, 4096, 65535, 65536, 1 << 20, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
           1 << 32, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]  # fmt: skip
first_rss = None


def echo(x):
    return x


def links():
    return sorted(
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    )


# The job: a control server, the agent as rank 0, and this side as rank 1.


class Worker:
    """Rank 1, by hand: it has joined the job, and has a door, where the agent's messages arrive."""

    def __init__(self, random, server, number, far):
        self.random, self.number, self.far, self.closing = random, number, far, False
        self.control = socket.socket(socket.AF_UNIX)
        self.control.settimeout(PATIENCE)
        self.control.connect("\0" + server.address[1:])
        secret = os.pread(server.secret_fd, 32, 0)
        hello = os.urandom(16) + struct.pack("<iiii", 1, 2, os.getpid(), 0)
        self.control.sendall(frame(HELLO, hello))
        nonce = read(self.control, CHALLENGE)[2][:16]
        self.control.sendall(frame(PROOF, mac(secret, b"client", hello, nonce)))
        masked = read(self.control, WELCOME)[2][:32]
        self.token = bytes(a ^ b for a, b in zip(masked, mac(secret, b"token", hello, nonce)))
        self.mails = queue.Queue()  # (kind, id, frame) from the agent
        self.frames = collections.deque(maxlen=40)  # valid ones to be damaged: what the agent itself has sent
        self.door = socket.create_server(("127.0.0.1", 0)) if far else socket.socket(socket.AF_UNIX)
        if not far:
            self.door.bind(f"\0pydist-pipe-fuzz-{os.getpid()}-{number}")
            self.door.listen()
        self.threads = [threading.Thread(target=self.let_in)]
        self.guests = []

    def store(self, verb, key, data=b""):
        """A call of the store: 0 sets, 1 gets."""
        key = f"pd:pipe.{self.number}.{key}".encode()
        head = struct.pack("<IIIIqq", verb, len(key), len(data), 0, 0, int(PATIENCE * 1e9))
        self.control.sendall(frame(CALL, head + key + data, 1))
        while True:
            kind, _, reply = read(self.control)
            if kind == REPLY:
                assert reply[8:12] == bytes(4), reply
                return reply[16:]

    def pong(self):
        """Answers the server's questions whether this rank is there."""
        self.control.setblocking(False)
        try:
            while True:
                if struct.unpack_from("<IH", exactly(self.control, 16))[1] == PING:
                    self.control.sendall(frame(PONG))
        except (BlockingIOError, EOFError, OSError):
            self.control.settimeout(PATIENCE)

    def publish(self):
        near = self.store(1, "near.0")
        host = near[:8] if not self.far else bytes(8)
        if self.far:
            self.store(0, "tcp.1", b"127.0.0.1:%d" % self.door.getsockname()[1])
            name = b""
        else:
            name = b"@" + self.door.getsockname()[1:]
        self.store(0, "near.1", host + name.ljust(64, b"\0"))
        self.near = near[8:].rstrip(b"\0").decode()
        self.threads[0].start()

    # What the agent sends.

    def let_in(self):
        while True:
            try:
                s = self.door.accept()[0]
            except OSError:
                return
            self.guests.append(s)
            self.threads.append(threading.Thread(target=self.hear, args=(s,)))
            self.threads[-1].start()

    def hear(self, s):
        try:
            nonce = os.urandom(16)
            s.sendall(nonce)
            hello = exactly(s, 64)[:32]
            s.sendall(self.prove(b"listen", hello, nonce))
            while True:
                head = exactly(s, 24)
                _, kind, parcels, ident, size = struct.unpack("<IHHQQ", head)
                if kind == SLAB:
                    continue
                table = exactly(s, 24 * parcels)
                body = exactly(s, size)
                data = b"".join(
                    exactly(s, n) for n, _, way, _ in struct.iter_unpack("<QQII", table) if way == 0
                )  # not in memory that is shared
                self.mails.put((kind, ident, body))
                if len(data) < 100_000:
                    self.frames.append(head + table + body + data)
        except (EOFError, OSError):
            pass

    def prove(self, who, hello, nonce):
        return hmac.new(self.token, who.ljust(8, b"\0") + hello + nonce, hashlib.sha256).digest()

    # How it connects.

    def dial(self):
        if self.far and self.random.random() < 0.7:
            host, port = self.store(1, "tcp.0").split()[0].decode().rsplit(":", 1)
            s = socket.create_connection((host.strip("[]"), int(port)), PATIENCE)
        else:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(PATIENCE)
            s.connect("\0" + self.near[1:])
        return s

    def greet(self, s, number=None, magic=MAGIC, sender=1, to=0, right=True):
        """True: the agent has let it in."""
        nonce = exactly(s, 16)
        hello = struct.pack("<IIii", magic, self.number if number is None else number, sender, to) + os.urandom(16)
        proof = self.prove(b"dial", hello, nonce)
        s.sendall(hello + (proof if right else os.urandom(32)))
        try:
            return exactly(s, 32) == self.prove(b"listen", hello, nonce)
        except (EOFError, ConnectionResetError):
            return False

    def connect(self):
        """A connection that is let in. The agent keeps one more than it reads."""
        end = time.monotonic() + PATIENCE
        while True:
            s = self.dial()
            if self.greet(s):
                return s
            s.close()
            assert time.monotonic() < end, "the agent lets nobody in any more"
            time.sleep(0.001)

    def close(self):
        for s in (self.door, self.control, *self.guests):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def start(random, number):
    """(the agent, the worker, the server)."""
    far = random.random() < 0.5
    server = _C.ControlServer(2)
    worker = Worker(random, server, number, far)
    made = []
    publisher = threading.Thread(target=worker.publish)
    publisher.start()
    made = _C.Pipes(
        0, 2, server.address, os.dup(server.secret_fd), number, PATIENCE, random.choice([0, 1 << 20, 64 << 20])
    )
    publisher.join()
    infos = [_agent.WorkerInfo("agent", 0), _agent.WorkerInfo("worker", 1)]
    options = TensorPipeRpcBackendOptions(num_worker_threads=random.choice([1, 4]), rpc_timeout=2)
    agent = _agent.Agent(infos[0], infos, made, options)
    agent.number = number
    _agent.set_current(agent)
    agent.start()
    return agent, worker, server


# What is sent.


def number(random):
    return random.choice(NUMBERS) if random.random() < 0.8 else random.getrandbits(64)


def damaged(random, data):
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        way = random.randrange(7)
        if not data or way == 0:
            data += noise(random)
        elif way == 1:
            for _ in range(random.randrange(1, 5)):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        elif way == 2 and random.random() < 0.3:
            del data[random.randrange(len(data)) :]
        elif way in (3, 4, 5):  # a field
            size = random.choice([2, 4, 8])
            at = random.randrange(max(1, len(data) - size)) // size * size
            data[at : at + size] = (number(random) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif way == 6:
            at = random.randrange(len(data))
            del data[at : at + random.randrange(1, 9)]
    return bytes(data)


def harmless(data):
    """A pickle may ask for gigabytes by a number (LONG_BINPUT)."""
    for at, byte in enumerate(data):
        if byte == ord("r") and data[at + 3 : at + 5].strip(b"\0"):
            data = data[:at] + b"s" + data[at + 1 :]
    return data


def whole(kind, ident, body, table=b"", data=b""):
    return struct.pack("<IHHQQ", MAGIC, kind, len(table) // 24, ident, len(body)) + table + body + data


def row(random, parcel, good):
    if good:
        return struct.pack("<BBHIqqq", 0, 1, 0, parcel, 0, 4, 1)
    ndim = random.choice([0, 1, 2, 8, 64, 65, 255])
    shape = [random.choice([0, 1, 4, -1, number(random) - (1 << 63)]) for _ in range(2 * min(ndim, 70))]
    shape = [max(-(1 << 63), min(n, (1 << 63) - 1)) for n in shape]
    offset = random.choice([0, 0, 1, -1, 1 << 62])
    return struct.pack(
        f"<BBHIq{len(shape)}q", random.randrange(20), ndim, 0, random.choice([parcel, 7]), offset, *shape
    )


def message(random, worker):
    """A message whose frame is right, and whose content may be."""
    good = random.random() < 0.5
    kind = random.choice([*range(16), random.randrange(1 << 16)])
    references = b""
    count = random.choice([0, 0, 1, 2])
    for _ in range(count):
        owner = random.choice([0, 1, 1, number(random) & 0xFFFFFFFF])
        references += struct.pack(
            "<IQQ", owner, random.choice([1, 2, 1 << 48 | 5, number(random)]), random.choice([0, 1, 1 << 48 | 9])
        )
    context = random.choice([0, 0, 0, 1 << 48 | 3, number(random)])
    flags = bytes(random.choice([0, 0, 1, 2]) for _ in range(random.choice([0, 1, 3])))
    parcels = random.choice([0, 1, 1, 2])
    table = b"".join(
        struct.pack(
            "<QQII", 16, *random.choice([(0, 0, 0)] * 6 + [(4096, 1, 0), (number(random), random.choice([1, 2, 9]), 3)])
        )
        for _ in range(parcels)
    )
    rows = b"".join(row(random, i, good or random.random() < 0.5) for i in range(parcels))
    pickled = random.choice(PICKLES)
    if random.random() < 0.4:
        pickled = harmless(damaged(random, pickled))
    if 6 <= kind <= 12:
        content = b"".join(
            struct.pack("<Q", random.choice([1, 1 << 48 | 5, number(random)])) for _ in range(random.randrange(4))
        )
        content += b"\1\0\0\0" * random.randrange(2)
    else:
        content = (
            struct.pack("<QQHH", context, number(random) * bool(context), len(flags), count)
            + flags
            + references
            + pickled
        )
    body = struct.pack("<II", parcels if good else number(random) & 0xFFFFFFFF, 0) + rows + content
    return whole(kind, random.choice([1, 2, 1 << 48 | 1, number(random)]), body, table, bytes(16 * parcels))


PICKLES = [_pickling._pickled(_pickling.pickle.Pickler, value, RRef, None)[0] for value in (
    (max, (3, 5), None), (sorted, ([3, 1, 2],), {"reverse": True}), 7, ("On a worker", b"..."), {"a": [1.5, b"x" * 200]},
    (_pickling._tensor, (0, None), None), (_pickling._reference, (0,), None))] + [b""]  # fmt: skip


def slab(random, s):
    """News of shared memory; True if it comes with a descriptor."""
    size = random.choice([8192, 1 << 20, number(random)])
    data = struct.pack("<IHHQQ", MAGIC, SLAB, 0, random.choice([0, 3, 9, 1023, 1024, number(random)]), size)
    if s.family != socket.AF_UNIX or random.random() < 0.3:
        s.sendall(data)
        return
    fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, random.choice([0, 8192, 1 << 20]))
        if random.random() < 0.8:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        socket.send_fds(s, [data], [fd] * random.choice([1, 1, 2]))
    finally:
        os.close(fd)


def send(random, s, data):
    """In pieces now and then."""
    pieces = [data]
    if random.random() < 0.05 and data:
        cuts = sorted(random.randrange(len(data)) for _ in range(random.randrange(1, 8)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]
    for piece in pieces:
        s.sendall(piece)


def stranger(random, worker):
    """Damaged, replayed and foreign greetings, and what follows them."""
    s = worker.dial()
    way = random.randrange(5)
    with s:
        if way == 0:
            s.sendall(noise(random, 5000))
        elif way == 1:
            others = {"number": random.choice([0, 1, worker.number + 1]), "magic": random.choice([0, MAGIC + (1 << 24)]),
                      "sender": random.choice([-1, 0, 2, 1 << 30]), "to": random.choice([-1, 1, 5]), "right": False}  # fmt: skip
            name = random.choice(list(others))
            assert not worker.greet(s, **{name: others[name]}), f"a greeting with another {name} was let in"
            s.sendall(message(random, worker))
        elif way == 2:  # the greeting of another connection
            with worker.dial() as other:
                nonce = exactly(other, 16)
            hello = struct.pack("<IIii", MAGIC, worker.number, 1, 0) + os.urandom(16)
            s.sendall(hello + worker.prove(b"dial", hello, nonce) + message(random, worker))
        elif way == 3:
            exactly(s, 16)
            s.sendall(os.urandom(random.randrange(64)))
        else:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def attack(random, worker):
    """A connection that is let in, and what it sends. Messages in number."""
    n = 0
    with worker.connect() as s:
        for _ in range(random.randrange(1, 60)):
            draw, n = random.random(), n + 1
            if draw < 0.06:
                slab(random, s)
            elif draw < 0.75 or not worker.frames:
                send(random, s, message(random, worker))
            elif draw < 0.95:
                data = random.choice(worker.frames)
                send(random, s, harmless(damaged(random, data)) if random.random() < 0.7 else data)
            else:
                send(random, s, damaged(random, message(random, worker)))
        if random.random() < 0.3:
            s.sendall(message(random, worker)[: random.randrange(60)])
    return n


def check(random, worker, agent):
    """The agent answers a right call with the right value. Of a worker's connections it keeps one more than it reads, so
    a fresh one may be closed."""
    ident, value, end = 1 << 50 | random.getrandbits(40), random.getrandbits(60), time.monotonic() + PATIENCE
    call = bytes(28) + _pickling._pickled(_pickling.pickle.Pickler, (max, (value, 0), None), RRef, None)[0]
    while time.monotonic() < end:
        try:
            with worker.connect() as s:
                s.sendall(whole(1, ident, call))
                while True:
                    kind, found, body = worker.mails.get(timeout=2)
                    if found == ident:
                        assert kind == 4 and _pickling.pickle.loads(body[28:]) == value, (kind, body)
                        return
        except (OSError, queue.Empty):
            pass
    faulthandler.dump_traceback()
    raise AssertionError(f"no answer; {_report.text(agent)}")


def case(random):
    global first_rss
    _pickling.allow(["builtins.max", "builtins.sorted"])
    before = descriptors()
    agent, worker, server = start(random, random.randrange(1, 1 << 30))
    try:
        for to in (lambda: agent.call(1, max, (3, 5), timeout=1), lambda: agent.call(1, pydist.add, (pydist.ones(4), 1), timeout=1),
                   lambda: agent.call(1, sorted, ([pydist.ones(4)],), timeout=1)):  # fmt: skip
            to()
        for _ in range(random.randrange(5, 25)):
            try:
                stranger(random, worker) if random.random() < 0.2 else attack(random, worker)
            except (OSError, EOFError):  # it was shown the door
                pass
            worker.pong()
            if random.random() < 0.3:
                check(random, worker, agent)
        check(random, worker, agent)
        assert agent.idle > 0
    finally:
        _agent.set_current(None)
        agent.closing = True
        agent.close(0.5)
        worker.close()
        server.close()
    end = time.monotonic() + PATIENCE
    while descriptors() != before and time.monotonic() < end:
        time.sleep(0.001)
    assert descriptors() == before, f"{links()}, {before} before"
    first_rss = first_rss or rss()
    assert rss() - first_rss < GROWTH, f"the process has grown by {rss() - first_rss} bytes"


runner.main(case)
