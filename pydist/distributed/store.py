"""Bytes under names, shared by processes: PyTorch's stores, for users. The engine's own rendezvous does not need them.

    HashStore     this process's threads
    FileStore     processes that see one file system: a log of records, written under a lock
    TCPStore      processes that reach one address: a table in the process that is_master, served by its threads
    PrefixStore   another store, with a prefix before every name

TCPStore authenticates every connection (HMAC-SHA256 of a fresh number, by the secret in PYDIST_SECRET_FILE); without a
secret it listens on the loopback interface only. Nothing is unpickled, and lengths are bounded.
"""

import fcntl
import hmac
import os
import socket
import struct
import threading
import time
import weakref
from datetime import timedelta

from pydist import _C

_MAGIC = b"pydist store 1\0\0"
_MOST = 64 << 20  # bytes of a message
_HANDSHAKE = 5.0  # seconds that a stranger may keep a connection without having shown the secret
_INIT = "init/"  # the name by which workers are counted, as in PyTorch


def _seconds(timeout):
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


def _text(key):
    if not isinstance(key, str):
        raise TypeError(f"Store: key: {type(key).__name__} (expected str)")
    return key


def _raw(value):
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"Store: value: {type(value).__name__} (expected str or bytes)")
    return bytes(value)


class _Late(Exception):
    """A wait that took too long; the names that are missing."""


class _Table:
    """The names and values, and waiting for them."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def append(self, key, value):
        with self.changed:
            self.values[key] = self.values.get(key, b"") + value
            self.changed.notify_all()

    def add(self, key, amount):
        with self.changed:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            self.changed.notify_all()
            return total

    def compare_set(self, key, expected, desired):
        with self.changed:
            now = self.values.get(key)
            if now is None and expected:
                return expected
            if now is None or now == expected:
                self.values[key] = now = desired
                self.changed.notify_all()
            return now

    def delete(self, key):
        with self.changed:
            return self.values.pop(key, None) is not None

    def check(self, keys):
        with self.changed:
            return all(key in self.values for key in keys)

    def count(self):
        with self.changed:
            return len(self.values)

    def get(self, keys, seconds, gone=lambda: False):
        """The values, once all are there. Raises _Late after that many seconds, or when gone() is true."""
        end = time.monotonic() + seconds
        with self.changed:
            while missing := [key for key in keys if key not in self.values]:
                left = end - time.monotonic()
                if left <= 0 or gone():
                    raise _Late(missing)
                self.changed.wait(min(left, 0.5))
            return [self.values[key] for key in keys]


class Store:
    """What all stores have. Keys are str; values str or bytes, and come back as bytes.

    `get` and `wait` wait for the key, at most `timeout` (default 300 s), and raise CommTimeout.
    """

    def __init__(self):
        self._timeout = 300.0

    # What a kind of store gives: _set, _append, _add, _compare_set, _delete, _check, _count, _get.

    def set(self, key, value):
        """key = value."""
        self._set(_text(key), _raw(value))

    def get(self, key):
        """The value, as bytes, once there is one."""
        return self._values([_text(key)], self._timeout)[0]

    def add(self, key, amount):
        """key += amount, from 0; the sum. The value is the number's decimal text."""
        try:
            return self._add(_text(key), int(amount))
        except ValueError:
            raise ValueError(f"Store.add: the value of {key!r} is no number") from None

    def append(self, key, value):
        """key = what is there and value, joined."""
        self._append(_text(key), _raw(value))

    def compare_set(self, key, expected_value, desired_value):
        """key = desired_value where its value is expected_value, or where there is none and b"" is expected. The value
        that is there afterwards; expected_value where there is none."""
        return self._compare_set(_text(key), _raw(expected_value), _raw(desired_value))

    def delete_key(self, key):
        """Whether the key was there. It is not any more."""
        return self._delete(_text(key))

    def check(self, keys):
        """Whether all of these keys are there."""
        return self._check([_text(key) for key in keys])

    def num_keys(self):
        """How many keys there are."""
        return self._count()

    def wait(self, keys, timeout=None):
        """Returns once all of these keys are there."""
        self._values([_text(key) for key in keys], self._timeout if timeout is None else _seconds(timeout))

    def multi_get(self, keys):
        """The values of all keys, once they are there."""
        return self._values([_text(key) for key in keys], self._timeout)

    def multi_set(self, keys, values):
        """keys[i] = values[i]."""
        if len(keys) != len(values):
            raise ValueError(f"Store.multi_set: {len(keys)} keys, {len(values)} values")
        for key, value in zip(keys, values):
            self.set(key, value)

    def set_timeout(self, timeout):
        self._timeout = _seconds(timeout)

    @property
    def timeout(self):
        return timedelta(seconds=self._timeout)

    def has_extended_api(self):
        return True

    def _values(self, keys, seconds):
        try:
            return self._get(keys, seconds)
        except _Late as late:
            missing = ", ".join(map(repr, late.args[0]))
            raise _C.CommTimeout(f"{type(self).__name__}: no {missing} after {seconds:g} s") from None


class HashStore(Store):
    """A store of this process, for its threads.

    >>> from datetime import timedelta
    >>> from pydist.distributed import HashStore
    >>> store = HashStore()
    >>> store.set("a", "1")
    >>> store.get("a"), store.add("n", 2), store.num_keys()
    (b'1', 2, 2)
    """

    def __init__(self):
        super().__init__()
        table = _Table()
        self._set, self._append, self._add, self._compare_set = table.set, table.append, table.add, table.compare_set
        self._delete, self._check, self._count, self._get = table.delete, table.check, table.count, table.get

    def clone(self):
        return self


class PrefixStore(Store):
    """`store` with "prefix/" before every key. Counts the other store's keys, all of them, as PyTorch's does."""

    def __init__(self, prefix, store):
        super().__init__()
        self._prefix, self.underlying_store = _text(prefix) + "/", store
        self._timeout = store._timeout

    def _of(self, key):
        return self._prefix + key

    def _set(self, key, value):
        self.underlying_store._set(self._of(key), value)

    def _append(self, key, value):
        self.underlying_store._append(self._of(key), value)

    def _add(self, key, amount):
        return self.underlying_store._add(self._of(key), amount)

    def _compare_set(self, key, expected, desired):
        return self.underlying_store._compare_set(self._of(key), expected, desired)

    def _delete(self, key):
        return self.underlying_store._delete(self._of(key))

    def _check(self, keys):
        return self.underlying_store._check([self._of(key) for key in keys])

    def _count(self):
        return self.underlying_store._count()

    def _get(self, keys, seconds):
        return self.underlying_store._get([self._of(key) for key in keys], seconds)


# A file


class FileStore(Store):
    """Shared by processes that see the file `file_name`, which should not exist before or be empty. `world_size` (-1:
    not said): the last of so many stores to be closed removes the file.

    The file is a log: u32 length of the key, u32 of the value (2^32 - 1: the key is deleted), both. Who reads or writes
    holds the file's lock.
    """

    _DELETED = 0xFFFFFFFF

    def __init__(self, file_name, world_size=-1):
        super().__init__()
        self.path = os.path.abspath(file_name)
        self._file = open(self.path, "a+b", buffering=0)
        self._at, self._table, self._lock = 0, {}, threading.RLock()
        if world_size is not None and world_size > 0:
            weakref.finalize(self, _leave_file, self.path, world_size)

    class _Locked:
        def __init__(self, store):
            self.store = store

        def __enter__(self):
            self.store._lock.acquire()
            fcntl.flock(self.store._file, fcntl.LOCK_EX)
            self.store._read()
            return self.store

        def __exit__(self, *error):
            fcntl.flock(self.store._file, fcntl.LOCK_UN)
            self.store._lock.release()

    def _read(self):
        """What was written since the last time. A record that a dying process left unfinished is cut off."""
        size = os.fstat(self._file.fileno()).st_size
        data = os.pread(self._file.fileno(), size - self._at, self._at) if size > self._at else b""
        at = 0
        while at + 8 <= len(data):
            key_bytes, value_bytes = struct.unpack_from("<II", data, at)
            length = 0 if value_bytes == self._DELETED else value_bytes
            if at + 8 + key_bytes + length > len(data):
                break
            key = data[at + 8 : at + 8 + key_bytes].decode()
            if value_bytes == self._DELETED:
                self._table.pop(key, None)
            else:
                self._table[key] = data[at + 8 + key_bytes : at + 8 + key_bytes + length]
            at += 8 + key_bytes + length
        if at < len(data):
            os.ftruncate(self._file.fileno(), self._at + at)
        self._at += at

    def _write(self, key, value):
        name = key.encode()
        record = struct.pack("<II", len(name), self._DELETED if value is None else len(value)) + name + (value or b"")
        os.write(self._file.fileno(), record)

    def _set(self, key, value):
        with self._Locked(self):
            self._write(key, value)

    def _append(self, key, value):
        with self._Locked(self):
            self._write(key, self._table.get(key, b"") + value)

    def _add(self, key, amount):
        with self._Locked(self):
            total = int(self._table.get(key, b"0")) + amount
            self._write(key, str(total).encode())
            return total

    def _compare_set(self, key, expected, desired):
        with self._Locked(self):
            now = self._table.get(key)
            if now is None and expected:
                return expected
            if now is None or now == expected:
                self._write(key, desired)
                return desired
            return now

    def _delete(self, key):
        with self._Locked(self):
            there = key in self._table
            if there:
                self._write(key, None)
            return there

    def _check(self, keys):
        with self._Locked(self):
            return all(key in self._table for key in keys)

    def _count(self):
        with self._Locked(self):
            return len(self._table)

    def _get(self, keys, seconds):
        end, pause = time.monotonic() + seconds, 0.001
        while True:
            with self._Locked(self):
                missing = [key for key in keys if key not in self._table]
                if not missing:
                    return [self._table[key] for key in keys]
            if time.monotonic() > end:
                raise _Late(missing)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def clone(self):
        return FileStore(self.path)


def _leave_file(path, world_size):
    try:
        if FileStore(path)._add("pydist:left", 1) >= world_size:
            os.unlink(path)
    except OSError:  # gone already
        pass


# TCP


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
        if verb == "count":
            return [str(table.count()).encode()]
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

    def _count(self):
        return int(self._ask("count")[0])

    def _get(self, keys, seconds):
        return self._ask("get", struct.pack("<d", seconds), *(key.encode() for key in keys))

    def clone(self):
        """Another connection to the same table."""
        return TCPStore(self.host, self.port, None, False, self._timeout, False)

    @property
    def libuvBackend(self):
        return False
