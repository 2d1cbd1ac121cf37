"""The control protocol spoken by hand, and processes that join a job through a URL."""

import hmac
import os
import socket
import struct
import subprocess
import sys
import textwrap

MAGIC = 0x32434450
HELLO, CHALLENGE, PROOF, WELCOME, REFUSED, CALL, REPLY, NEWS, PING, PONG = range(1, 11)


def dial(server):
    if server.tcp_address:
        host, port = server.tcp_address.rsplit(":", 1)
        s = socket.create_connection((host.strip("[]"), int(port)))
    else:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.connect("\0" + server.address[1:])
    s.settimeout(5)
    return s


def frame(kind, payload=b"", ident=0, handles=0):
    return struct.pack("<IHHII", MAGIC, kind, handles, len(payload), ident) + payload


def exactly(s, size):
    data = b""
    while len(data) < size:
        part = s.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def read(s, *kinds):
    """(kind, ident, payload) of the next message of these kinds; without kinds, of the next one but PING."""
    while True:
        magic, kind, _, size, ident = struct.unpack("<IHHII", exactly(s, 16))
        assert magic == MAGIC
        payload = exactly(s, size)
        if kind in kinds or not kinds and kind != PING:
            return kind, ident, payload


def secret(server):
    return os.pread(server.secret_fd, 32, 0)


def mac(key, purpose, greeting, nonce):
    return hmac.new(key, purpose.ljust(8, b"\0") + greeting + nonce, "sha256").digest()


def greeting(rank, world=2):
    return b"client's number." + struct.pack("<iiii", rank, world, os.getpid(), 0)


def hello(rank, world=2):
    return frame(HELLO, greeting(rank, world))


def call(verb, key, data=b"", amount=0, timeout=0.0, ident=1, handles=0):
    head = struct.pack("<IIIIqq", verb, len(key), len(data), 0, amount, int(timeout * 1e9))
    return frame(CALL, head + key + data, ident, handles)


JOIN = """
import os, sys, time, signal
import numpy as np
from pydist import _C
url, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def join(timeout=20, url=url):
    return _C.comm_init(rank, world, url, -1, timeout)
def check(group):
    x = np.full(1000, rank + 1.0)
    group.all_reduce(x)
    assert (x == world * (world + 1) / 2).all()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def start(script, url, rank, world, **env):
    command = [sys.executable, "-c", JOIN + textwrap.dedent(script), url, str(rank), str(world)]
    return subprocess.Popen(
        command, env=dict(os.environ, OMP_NUM_THREADS="1", **env), text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(processes, timeout=60):
    """(code, stdout, stderr) of each."""
    try:
        return [(p.returncode, out, err) for p in processes for out, err in [p.communicate(timeout=timeout)]]
    finally:
        for p in processes:
            p.kill()
            p.wait()


def all_good(ended):
    for code, out, err in ended:
        assert code == 0, err
    return ended
