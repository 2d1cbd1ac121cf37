"""TCPStore: a table in one process, which other processes reach at an address.

Who may use it. With a secret (PYDIST_SECRET_FILE, the same file on every host, at least 32 bytes, mode 0600) everybody
who knows the secret. Both sides prove that they know it, the server first, by HMAC-SHA256 over fresh random numbers of
both. Each message carries a MAC with a key that only this connection has. An attacker between the two, or one that
poses as the server, can read messages and cut the connection, but can neither get in nor forge a value. Without a
secret, processes of this user on this host may use it: they connect by a unix socket, on which the kernel says who is
at the other end. TCP is then closed, unless PYDIST_INSECURE is 1, which lets everybody in who reaches the port.

Nothing is unpickled, lengths are bounded, and a stranger holds a descriptor for at most 5 s.
"""

import hmac
import os
import select
import socket
import struct
import threading
import time
import weakref
from datetime import timedelta

from pydist import _C
from pydist.distributed.store import Store, _Late, _Table, _seconds

_MAGIC = b"pydist store 3\0\0"
_RANDOM = 32  # bytes of each side's random number and of a proof
_HELLO = len(_MAGIC) + _RANDOM
_MOST = 64 << 20  # most bytes of a message
_STRANGERS = 64  # most connections at one time that have not proved the secret
_HANDSHAKE = 5.0  # s that a stranger has to prove it
_PRESSED = 1.0  # s of these that it gets even if others wait behind it
_PAUSE = 0.05  # s without accepting when descriptors or memory run out
_TRIES = 4  # after so many connections in a row that a server ends at once, it counts as one that refuses us
_INIT = "init/"  # the key that counts workers, as in PyTorch
_OURS, _THEIRS = b"client", b"server"  # which side speaks, in MACs


def _secret():
    """The secret in PYDIST_SECRET_FILE, or None."""
    path = os.environ.get("PYDIST_SECRET_FILE")
    return _C.secret_file(path) if path else None


def _insecure():
    return os.environ.get("PYDIST_INSECURE") == "1"


def _addresses(host):
    return {(info[0], info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def _is_loopback(host):
    return all(address.startswith("127.") or address == "::1" for _, address in _addresses(host))


def _is_here(host):
    """Whether `address` is an address of this host: the kernel lets a socket bind to those only."""
    for family, address in _addresses(host):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, 0))
                return True
            except OSError:
                pass
    return False


def _unix_name(port):
    return f"\0pydist-store-{os.geteuid()}-{port}"


def _is_ours(connection):
    """Whether the process at the other end of this unix socket belongs to our user."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid == os.geteuid()


def _mac(key, who, *parts):
    return hmac.digest(key or bytes(32), b"".join((_MAGIC, who, *parts)), "sha256")


def _has_hung_up(connection):
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Channel:
    """Messages on a connection whose two ends have proved themselves: u32 number of parts, u32 length of each, the
    parts. With a secret also the MAC of all that, of which side speaks, and of how many messages it has sent before."""

    def __init__(self, connection, secret, randoms, ours, theirs):
        self.connection, self.key = connection, secret and _mac(secret, b"session", randoms)
        self.ours, self.theirs, self.sent, self.received = ours, theirs, 0, 0
        connection.settimeout(None)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *parts):
        if len(parts) > 1 << 16 or sum(map(len, parts)) > _MOST:
            raise ValueError(f"a message of {sum(map(len, parts))} bytes in {len(parts)} parts (expected at most {_MOST} "
                             f"in {1 << 16})")  # fmt: skip
        message = b"".join((struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts)), *parts))
        if self.key:
            message += _mac(self.key, self.ours, self.sent.to_bytes(8, "little"), message)
            self.sent += 1
        self.connection.sendall(message)

    def receive(self):
        head = self._read(4)
        (count,) = struct.unpack("<I", head)
        if count > 1 << 16:
            raise ConnectionError("received a message whose lengths are out of bounds")
        sizes = self._read(4 * count)
        head, sizes = head + sizes, struct.unpack(f"<{count}I", sizes)
        if sum(sizes) > _MOST:
            raise ConnectionError("received a message whose lengths are out of bounds")
        data, at, parts = self._read(sum(sizes)), 0, []
        if self.key:
            tag = _mac(self.key, self.theirs, self.received.to_bytes(8, "little"), head, data)
            if not hmac.compare_digest(self._read(_RANDOM), tag):
                raise ConnectionError("received a message that was changed on its way")
            self.received += 1
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        return parts

    def _read(self, size):
        parts = []
        while size:
            part = self.connection.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionError("closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class _Stranger:
    """A connection that has not yet proved the secret: what it has sent, and since when it exists."""

    def __init__(self, connection, secret):
        self.connection, self.secret, self.since = connection, secret, time.monotonic()
        self.heard, self.random = b"", None

    def hear(self):
        """None: the proof is not complete. Otherwise whether it knows the secret; False also if it sends nonsense or
        has closed."""
        want = _RANDOM if self.random else _HELLO
        try:
            data = self.connection.recv(want - len(self.heard))
            self.heard += data
            if not data:
                return False
            if len(self.heard) < want:
                return None
            if self.random:
                return hmac.compare_digest(self.heard, _mac(self.secret, _OURS, self.randoms))
            if not self.heard.startswith(_MAGIC):
                return False
            self.random = os.urandom(_RANDOM)
            self.randoms = self.heard[len(_MAGIC) :] + self.random
            self.heard = b""
            proof = _mac(self.secret, _THEIRS, self.randoms)
            return None if self.connection.send(self.random + proof) == 2 * _RANDOM else False
        except BlockingIOError:
            return None
        except OSError:
            return False


class _Server:
    """One thread accepts connections. A thread of its own answers each connection that has proved itself. If more
    strangers come than are allowed at one time, the rest wait until the oldest inside has had _PRESSED seconds."""

    def __init__(self, host, port):
        secret = _secret()
        if not _is_loopback(host) and secret is None and not _insecure():
            raise _C.DistError(
                f"TCPStore: {host} is not on this machine and there is no secret (expected PYDIST_SECRET_FILE on every "
                "node, or PYDIST_INSECURE=1)"
            )
        self.by_tcp = secret is not None or _insecure()
        self.secret, self.table, self.open, self.strangers = secret, _Table(), set(), []
        self.pid, self.ending, self.pause = os.getpid(), False, 0.0
        self.wake = socket.socketpair()
        self.sockets = []
        try:
            self.sockets.append(socket.create_server((host, port), backlog=1024))
            self.port = self.sockets[0].getsockname()[1]
            if secret is None:
                self.sockets.append(socket.socket(socket.AF_UNIX))
                self.sockets[1].bind(_unix_name(self.port))
                self.sockets[1].listen(1024)
            for listening in self.sockets:
                listening.setblocking(False)
            threading.Thread(target=self.serve, name="TCPStore", daemon=True).start()
        except BaseException:
            for one in (*self.sockets, *self.wake):
                one.close()
            raise

    def serve(self):
        try:
            while not self.ending:
                self.look()
        except (OSError, ValueError):
            if not self.ending:  # otherwise close() has closed a socket of ours
                raise
        finally:
            for one in (*self.wake, *(stranger.connection for stranger in self.strangers)):
                one.close()

    def look(self):
        """Waits until a connection comes, sends something or has been a stranger for too long, and handles it."""
        now = time.monotonic()
        patience = _PRESSED if len(self.strangers) >= _STRANGERS else _HANDSHAKE
        for stranger in [one for one in self.strangers if now - one.since >= patience]:
            self.drop(stranger)
        listens = len(self.strangers) < _STRANGERS and now >= self.pause
        times = [one.since + patience - now for one in self.strangers[:1]]  # the oldest comes first
        times += [self.pause - now] if now < self.pause else []
        polled = {one.connection.fileno(): one for one in self.strangers}
        if listens:
            polled.update({listening.fileno(): listening for listening in self.sockets})
        poller = select.poll()
        for fd in (self.wake[0].fileno(), *polled):
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(max(0.0, min(times)) * 1000 + 1 if times else None):
            one = polled.get(fd)
            if isinstance(one, _Stranger):
                self.hear(one)
            elif one is not None:
                while len(self.strangers) < _STRANGERS and self.let_in(one):
                    pass

    def let_in(self, listening):
        """Accepts a connection. False: there is none, or none can be accepted now."""
        try:
            connection, _ = listening.accept()
        except ConnectionAbortedError:
            return True
        except BlockingIOError:
            return False
        except OSError:  # no descriptor or no memory: accept nothing for a moment
            self.pause = time.monotonic() + _PAUSE
            return False
        if _is_ours(connection) if connection.family == socket.AF_UNIX else self.by_tcp:
            connection.setblocking(False)
            self.strangers.append(_Stranger(connection, self.secret))
        else:
            connection.close()
        return True

    def drop(self, stranger):
        self.strangers.remove(stranger)
        stranger.connection.close()

    def hear(self, stranger):
        known = stranger.hear()
        if known is None:
            return
        if not known:
            return self.drop(stranger)
        self.strangers.remove(stranger)
        channel = _Channel(stranger.connection, self.secret, stranger.randoms, _THEIRS, _OURS)
        self.open.add(channel.connection)
        try:
            threading.Thread(target=self.answer, args=(channel,), name="TCPStore", daemon=True).start()
        except (RuntimeError, MemoryError):  # no thread could be started
            self.forget(channel.connection)

    def forget(self, connection):
        self.open.discard(connection)
        connection.close()

    def answer(self, channel):
        try:
            channel.send(b"welcome")
            while True:
                verb, *parts = channel.receive()
                try:
                    channel.send(b"ok", *self.do(verb.decode(), parts, channel.connection))
                except _Late as late:
                    channel.send(b"late", *(key.encode() for key in late.args[0]))
                except (ValueError, KeyError, IndexError, struct.error) as error:
                    channel.send(b"bad", str(error).encode())
        except (OSError, ValueError, MemoryError):
            pass
        finally:
            self.forget(channel.connection)

    def do(self, verb, parts, connection):
        table = self.table

        def gone():
            return self.ending or _has_hung_up(connection)

        if verb == "get":
            (seconds,), keys = struct.unpack("<d", parts[0]), [part.decode() for part in parts[1:]]
            return table.get(keys, seconds, gone)
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
            return [table.pop(key, *struct.unpack("<d", values[0]), gone)]
        if verb == "length":
            return [str(table.length(key)).encode()]
        raise ValueError(f"unknown verb {verb}")

    def close(self):
        """Closes the server. In a process forked from the server's, the connections belong to the parent: they are
        closed but not shut down."""
        self.ending = True
        ours = os.getpid() == self.pid
        for one in [*self.sockets, *self.open, self.wake[1]]:
            try:
                if ours:
                    one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            if one in self.sockets or not ours:  # the thread of each other connection closes it
                one.close()


# The client


class _Refused(Exception):
    """The server ended the connection before it accepted us."""


def _dial(host, port, secret, seconds):
    """A connection to the server at that address; without a secret the server must be a process of our user on this
    host. Raises ConnectionRefusedError or BlockingIOError if nobody listens, or not at this moment."""
    here = secret is None and _is_here(host)
    if secret is None and not here and not _insecure():
        raise _C.DistError(
            f"TCPStore: {host} is not on this machine and there is no secret (expected PYDIST_SECRET_FILE on every node, "
            "or PYDIST_INSECURE=1)"
        )
    if here:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.connect(_unix_name(port))
            if not _is_ours(connection):
                raise _C.DistError(
                    f"TCPStore: a process of another user serves {host}:{port} (expected one of this user)"
                )
            return connection
        except ConnectionRefusedError:
            connection.close()
        except BaseException:
            connection.close()
            raise
    connection = socket.create_connection((host, port), seconds)
    if here and not _insecure():
        connection.close()
        raise _Refused("its server has a secret, belongs to another user, or is not a TCPStore of pydist")
    return connection


def _shake_hands(connection, secret, end):
    """The _Channel of a connection; None: the server does not know our secret."""

    def read(size):
        data = b""
        while len(data) < size:
            connection.settimeout(max(end - time.monotonic(), 0.001))
            try:
                part = connection.recv(size - len(data))
            except ConnectionError as error:
                raise _Refused(f"{error}") from None
            if not part:
                raise _Refused("the server closed it")
            data += part
        return data

    random = os.urandom(_RANDOM)
    connection.setblocking(True)
    connection.sendall(_MAGIC + random)
    answer = read(2 * _RANDOM)
    randoms = random + answer[:_RANDOM]
    if not hmac.compare_digest(answer[_RANDOM:], _mac(secret, _THEIRS, randoms)):
        return None
    connection.sendall(_mac(secret, _OURS, randoms))
    channel = _Channel(connection, secret, randoms, _OURS, _THEIRS)
    connection.settimeout(max(end - time.monotonic(), 0.001))
    channel.receive()  # its welcome
    connection.settimeout(None)
    return channel


def _connect(host, port, seconds):
    """The _Channel to the server, once both sides have proved themselves. Tries again until the server is there, and
    also if the server ended the connection because too many others came."""
    end, secret, refused = time.monotonic() + seconds, _secret(), 0
    place = f"TCPStore: {host}:{port}"
    while True:
        began, connection, channel = time.monotonic(), None, None
        try:
            connection = _dial(host, port, secret, max(end - began, 0.1))
            channel = _shake_hands(connection, secret, end)
            if not channel:
                raise _C.DistError(f"{place}: its server does not know our secret (expected the same secret)")
            return channel
        except (ConnectionRefusedError, BlockingIOError):
            why = f"TCPStore: nobody listens on {host}:{port} after {seconds:g} s"
        except TimeoutError:
            raise _C.CommTimeout(f"{place} does not answer after {seconds:g} s") from None
        except (_Refused, ConnectionError) as error:  # refused at once, so not because others wait
            refused = refused + 1 if time.monotonic() - began < _PRESSED / 2 else 0
            why = f"{place} refused the connection: {error}"
            if refused == _TRIES:
                raise _C.DistError(f"{why} (expected the same secret, and the same version of pydist)") from None
        except OSError as error:
            raise _C.DistError(f"{place}: {error}") from None
        finally:
            if connection and not channel:
                connection.close()
        if time.monotonic() > end:
            raise _C.CommTimeout(why)
        time.sleep(0.02)


class TCPStore(Store):
    """A store whose table lives in the process with is_master=True, as long as its store object exists. The other
    processes connect to it, and wait for it for at most `timeout`. `port` 0: any free port, see `.port`. `world_size`
    with `wait_for_workers`: the master waits until that many stores, itself included, are connected.

    Who may connect: with PYDIST_SECRET_FILE (a file of at least 32 bytes, mode 0600, the same on every host) everybody
    who knows the secret; without it the processes of this user on this host. Other machines need the secret, or
    PYDIST_INSECURE=1, which lets everybody in.

    Raises CommTimeout, DistError (no connection, wrong secret, no secret for another machine), ValueError (a message of
    more than 64 MiB).

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
        self._open()
        if wait_for_workers and world_size is not None and world_size > 0:
            self._add(_INIT, 1)
            end = time.monotonic() + self._timeout
            while is_master and self._add(_INIT, 0) < world_size:
                if time.monotonic() > end:
                    raise _C.CommTimeout(
                        f"TCPStore: {self._add(_INIT, 0)} of {world_size} workers came within {self._timeout:g} s"
                    )
                time.sleep(0.005)

    def _open(self):
        self._channel = _connect(self.host, self.port, self._timeout)
        weakref.finalize(self, self._channel.connection.close)

    def _ask(self, verb, *parts):
        with self._lock:
            if not self._channel:  # an exception such as KeyboardInterrupt cut off an answer
                self._open()
            try:
                self._channel.send(verb.encode(), *parts)
                status, *answer = self._channel.receive()
            except OSError as error:
                raise _C.DistError(f"TCPStore: lost the connection to {self.host}:{self.port}: {error}") from None
            except ValueError as error:  # the message was not sent
                raise ValueError(f"TCPStore: {verb}: {error}") from None
            except BaseException:
                self._channel.connection.close()
                self._channel = None
                raise
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
        """False: pydist does not use libuv."""
        return False
