"""TCPStore: a table in one process, which others reach by an address.

Every connection is authenticated (HMAC-SHA256 of a fresh number, by the secret in PYDIST_SECRET_FILE); without a secret
it listens on the loopback interface only. Nothing is unpickled, and lengths are bounded.
"""

import hmac
import os
import socket
import struct
import threading
import time
import weakref
from datetime import timedelta

from pydist import _C
from pydist.distributed.store import Store, _Late, _seconds, _Table

_MAGIC = b"pydist store 2\0\0"
_MOST = 64 << 20  # bytes of a message
_HANDSHAKE = 5.0  # seconds that a stranger may keep a connection without having shown the secret
_INIT = "init/"  # the name by which workers are counted, as in PyTorch


def _secret():
    """The secret in PYDIST_SECRET_FILE, or None."""
    path = os.environ.get("PYDIST_SECRET_FILE")
    if not path:
        return None
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise PermissionError(f"TCPStore: {path} can be read by others (expected mode 0600)")
        return file.read()


def _is_loopback(host):
    return all(info[4][0].startswith("127.") or info[4][0] == "::1" for info in socket.getaddrinfo(host, None))


def _proof(secret, nonce):
    return hmac.digest(secret or b"loopback", _MAGIC + nonce, "sha256")


def _read_exactly(connection, size):
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(connection, *parts):
    """One message: u32 number of parts, u32 length of each, the parts."""
    head = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    connection.sendall(head + b"".join(parts))


def _receive(connection):
    (count,) = struct.unpack("<I", _read_exactly(connection, 4))
    if count > 1 << 16:
        raise ConnectionError("a message out of bounds")
    sizes = struct.unpack(f"<{count}I", _read_exactly(connection, 4 * count))
    if sum(sizes) > _MOST:
        raise ConnectionError("a message out of bounds")
    data, at, parts = _read_exactly(connection, sum(sizes)), 0, []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return parts


class _Server:
    """Listens, and answers every connection in a thread of its own."""

    def __init__(self, host, port):
        self.secret, self.table, self.open = _secret(), _Table(), set()
        loopback = _is_loopback(host)
        if not loopback and self.secret is None and os.environ.get("PYDIST_INSECURE") != "1":
            raise _C.DistError(
                f"TCPStore: {host} is beyond this machine and there is no secret (expected PYDIST_SECRET_FILE on every "
                "node, or PYDIST_INSECURE=1)"
            )
        self.socket = socket.create_server((host, port), backlog=512)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, name="TCPStore", daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self.answer, args=(connection,), name="TCPStore", daemon=True).start()

    def answer(self, connection):
        self.open.add(connection)
        try:
            connection.settimeout(_HANDSHAKE)
            nonce = os.urandom(32)
            connection.sendall(_MAGIC + nonce)
            if not hmac.compare_digest(_read_exactly(connection, 32), _proof(self.secret, nonce)):
                return
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"y")
            while True:
                verb, *parts = _receive(connection)
                try:
                    _send(connection, b"ok", *self.do(verb.decode(), parts))
                except _Late as late:
                    _send(connection, b"late", *(key.encode() for key in late.args[0]))
                except (ValueError, KeyError, IndexError, struct.error) as error:
                    _send(connection, b"bad", str(error).encode())
        except (OSError, ValueError):
            pass
        finally:
            self.open.discard(connection)
            connection.close()

    def do(self, verb, parts):
        table = self.table
        if verb == "get":
            (seconds,), keys = struct.unpack("<d", parts[0]), [part.decode() for part in parts[1:]]
            return table.get(keys, seconds, lambda: self.socket.fileno() < 0)
        if verb == "check":
            return [b"1" if table.check([part.decode() for part in parts]) else b""]
        if verb == "keys":
            return [key.encode() for key in table.keys()]
        key, *values = parts[0].decode(), *parts[1:]
        if verb == "set":
            return [table.set(key, values[0]) or b""]
        if verb == "append":
            return [table.append(key, values[0]) or b""]
        if verb == "add":
            return [str(table.add(key, int(values[0]))).encode()]
        if verb == "compare_set":
            return [table.compare_set(key, values[0], values[1])]
        if verb == "delete":
            return [b"1" if table.delete(key) else b""]
        if verb == "push":
            return [table.push(key, values[0]) or b""]
        if verb == "pop":
            return [table.pop(key, *struct.unpack("<d", values[0]), lambda: self.socket.fileno() < 0)]
        if verb == "length":
            return [str(table.length(key)).encode()]
        raise ValueError(f"unknown verb {verb}")

    def close(self):
        for connection in [self.socket, *self.open]:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()


def _connect(host, port, seconds):
    """A connection that both sides have proved themselves on; tried again until the server is there."""
    end, secret = time.monotonic() + seconds, _secret()
    while True:
        try:
            connection = socket.create_connection((host, port), max(end - time.monotonic(), 0.1))
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise _C.CommTimeout(f"TCPStore: nobody listens on {host}:{port} after {seconds:g} s") from None
            time.sleep(0.02)
        except OSError as error:
            raise _C.DistError(f"TCPStore: {host}:{port}: {error}") from None
    try:
        connection.settimeout(_HANDSHAKE)
        hello = _read_exactly(connection, len(_MAGIC) + 32)
        if hello[: len(_MAGIC)] != _MAGIC:
            raise ConnectionError("not a pydist store")
        connection.sendall(_proof(secret, hello[len(_MAGIC) :]))
        _read_exactly(connection, 1)
    except OSError as error:
        connection.close()
        raise _C.DistError(
            f"TCPStore: {host}:{port} refused the connection: {error} (expected the same secret)"
        ) from None
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class TCPStore(Store):
    """The table lives in the process with is_master=True, as long as its store object does; the others connect, and
    wait for it at most `timeout`. `port` 0: any free one, see `.port`. `world_size` with `wait_for_workers`: the master
    waits until so many stores, itself included, are connected.

    Errors: CommTimeout, DistError (no connection, wrong secret, no secret beyond this machine).

    >>> from pydist.distributed import TCPStore
    >>> master = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    >>> other = TCPStore("127.0.0.1", master.port, 2, wait_for_workers=False)
    >>> other.set("a", "1")
    >>> master.get("a")
    b'1'
    """

    def __init__(
        self,
        host_name,
        port=29500,
        world_size=None,
        is_master=False,
        timeout=timedelta(seconds=300),
        wait_for_workers=True,
        multi_tenant=False,
        master_listen_fd=None,
        use_libuv=True,
    ):
        super().__init__()
        self.host, self._timeout, self._lock = host_name, _seconds(timeout), threading.Lock()
        self._server = None
        if is_master:
            try:
                self._server = _Server(host_name, port)
            except OSError as error:
                raise _C.DistError(f"TCPStore: cannot listen on {host_name}:{port}: {error.strerror}") from None
            port = self._server.port
            weakref.finalize(self, self._server.close)
        self.port = port
        self._connection = _connect(host_name, port, self._timeout)
        weakref.finalize(self, self._connection.close)
        if wait_for_workers and world_size is not None and world_size > 0:
            self._add(_INIT, 1)
            end = time.monotonic() + self._timeout
            while is_master and self._add(_INIT, 0) < world_size:
                if time.monotonic() > end:
                    raise _C.CommTimeout(
                        f"TCPStore: {self._add(_INIT, 0)} of {world_size} workers after {self._timeout:g} s"
                    )
                time.sleep(0.005)

    def _ask(self, verb, *parts):
        with self._lock:
            try:
                _send(self._connection, verb.encode(), *parts)
                status, *answer = _receive(self._connection)
            except OSError as error:
                raise _C.DistError(f"TCPStore: {self.host}:{self.port} is gone: {error}") from None
        if status == b"late":
            raise _Late([key.decode() for key in answer])
        if status == b"bad":
            raise ValueError(answer[0].decode())
        return answer

    def _set(self, key, value):
        self._ask("set", key.encode(), value)

    def _append(self, key, value):
        self._ask("append", key.encode(), value)

    def _add(self, key, amount):
        return int(self._ask("add", key.encode(), str(amount).encode())[0])

    def _compare_set(self, key, expected, desired):
        return self._ask("compare_set", key.encode(), expected, desired)[0]

    def _delete(self, key):
        return self._ask("delete", key.encode())[0] == b"1"

    def _check(self, keys):
        return self._ask("check", *(key.encode() for key in keys))[0] == b"1"

    def _keys(self):
        return [key.decode() for key in self._ask("keys")]

    def _push(self, key, value):
        self._ask("push", key.encode(), value)

    def _pop(self, key, seconds):
        return self._ask("pop", key.encode(), struct.pack("<d", seconds))[0]

    def _length(self, key):
        return int(self._ask("length", key.encode())[0])

    def _get(self, keys, seconds):
        return self._ask("get", struct.pack("<d", seconds), *(key.encode() for key in keys))

    def clone(self):
        """Another connection to the same table."""
        return TCPStore(self.host, self.port, None, False, self._timeout, False)

    @property
    def libuvBackend(self):
        return False
