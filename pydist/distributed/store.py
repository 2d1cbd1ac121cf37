"""Key-value stores that processes share, with PyTorch's names, for users. The engine's own rendezvous does not need them.

    HashStore     for this process's threads
    FileStore     for processes that see one file system: a log of records, written under a lock
    TCPStore      for processes that reach one address: a table in the process with is_master, which its threads serve
    PrefixStore   another store, with a prefix before every key

A key has a value, or a queue of values. TCPStore is in tcp_store.py.
"""

import fcntl
import os
import struct
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager
from datetime import timedelta

from pydist import _C


class QueueEmptyError(_C.DistError):
    """Raised by queue_pop(key, block=False) if the queue is empty."""


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
    """A wait that took too long, with the missing keys."""


class _Table:
    """The keys with their values, the queues, and waiting for them."""

    def __init__(self):
        self.values, self.queues, self.changed = {}, {}, threading.Condition()

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
            return not self.missing(keys)

    def missing(self, keys):
        return [key for key in keys if key not in self.values and key not in self.queues]

    def keys(self):
        with self.changed:
            return list(self.values)

    def push(self, key, value):
        with self.changed:
            self.queues.setdefault(key, deque()).append(value)
            self.changed.notify_all()

    def pop(self, key, seconds, gone=lambda: False):
        """The oldest value of a queue, once there is one."""
        with self.changed:
            self._wait(lambda: [] if key in self.queues else [key], seconds, gone)
            value = self.queues[key].popleft()
            if not self.queues[key]:
                del self.queues[key]
            return value

    def length(self, key):
        with self.changed:
            return len(self.queues.get(key, ()))

    def get(self, keys, seconds, gone=lambda: False):
        """The values, once all are there; b"" for queues. Raises _Late after that many seconds, or when gone() is
        true."""
        with self.changed:
            self._wait(lambda: self.missing(keys), seconds, gone)
            return [self.values.get(key, b"") for key in keys]

    def _wait(self, missing, seconds, gone):
        end = time.monotonic() + seconds
        while names := missing():
            left = end - time.monotonic()
            if left <= 0 or gone():
                raise _Late(names)
            self.changed.wait(min(left, 0.5))


class Store:
    """The methods of all stores. Keys are str. Values are str or bytes, and are returned as bytes.

    `get` and `wait` wait for the key for at most `timeout` (default 300 s), and then raise CommTimeout.
    """

    def __init__(self):
        self._timeout = 300.0

    # What each kind of store defines: _set, _append, _add, _compare_set, _delete, _check, _keys, _get, _push, _pop, _length.

    def set(self, key, value):
        """key = value."""
        self._set(_text(key), _raw(value))

    def get(self, key):
        """The value, as bytes. Waits until there is one."""
        return self._values([_text(key)], self._timeout)[0]

    def add(self, key, amount):
        """Adds `amount` to the value of `key`, which starts at 0. Returns the sum. The value is stored as decimal
        text."""
        try:
            return self._add(_text(key), int(amount))
        except ValueError:
            raise ValueError(f"Store.add: the value of {key!r} is not a number (expected decimal text)") from None

    def append(self, key, value):
        """Appends `value` to the value of `key`."""
        self._append(_text(key), _raw(value))

    def compare_set(self, key, expected_value, desired_value):
        """Sets the key to desired_value if its value is expected_value, or if it has none and expected_value is empty.
        Returns the value that the key has then, or expected_value if it has none."""
        return self._compare_set(_text(key), _raw(expected_value), _raw(desired_value))

    def delete_key(self, key):
        """Deletes the key. Returns whether it was there."""
        return self._delete(_text(key))

    def check(self, keys):
        """Whether all of these keys are there."""
        return self._check([_text(key) for key in keys])

    def num_keys(self):
        """The number of keys, without queues."""
        return len(self._keys())

    def list_keys(self):
        """The keys, in any order, without queues."""
        return self._keys()

    def queue_push(self, key, value):
        """Adds a value to the end of the queue `key`. A key of a queue should not have a value, too."""
        self._push(_text(key), _raw(value))

    def queue_pop(self, key, block=True):
        """Takes the oldest value from the queue and waits for one if it is empty. With block=False an empty queue
        raises QueueEmptyError."""
        try:
            return self._late(self._pop, _text(key), self._timeout if block else 0)
        except _C.CommTimeout:
            if block:
                raise
            raise QueueEmptyError(f"{type(self).__name__}: the queue {key!r} is empty") from None

    def queue_len(self, key):
        """The number of values in the queue; 0 if there is no such queue."""
        return self._length(_text(key))

    def barrier(self, key, world_size, timeout=None):
        """Returns when `world_size` workers have called it with this key. A key serves once."""
        if self.add(f"{key}/count", 1) >= world_size:
            self.set(f"{key}/all", "")
        self.wait([f"{key}/all"], timeout)

    def wait(self, keys, timeout=None):
        """Returns when all of these keys are there."""
        self._values([_text(key) for key in keys], self._timeout if timeout is None else _seconds(timeout))

    def multi_get(self, keys):
        """The values of all keys. Waits until all are there."""
        return self._values([_text(key) for key in keys], self._timeout)

    def multi_set(self, keys, values):
        """Sets each key to the value at the same position."""
        if len(keys) != len(values):
            raise ValueError(
                f"Store.multi_set: got {len(keys)} keys and {len(values)} values (expected as many values as keys)"
            )
        for key, value in zip(keys, values):
            self.set(key, value)

    def set_timeout(self, timeout):
        """Sets how long `get`, `wait` and others wait: a timedelta or seconds."""
        self._timeout = _seconds(timeout)

    @property
    def timeout(self):
        """How long `get`, `wait` and others wait, as a timedelta."""
        return timedelta(seconds=self._timeout)

    def has_extended_api(self):
        """True: every store has append, multi_get and multi_set."""
        return True

    def _values(self, keys, seconds):
        return self._late(self._get, keys, seconds)

    def _late(self, call, what, seconds):
        try:
            return call(what, seconds)
        except _Late as late:
            missing = ", ".join(map(repr, late.args[0]))
            raise _C.CommTimeout(
                f"{type(self).__name__}: waited {seconds:g} s for {missing} (expected another process to set it)"
            ) from None


class HashStore(Store):
    """A store for the threads of this process.

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
        self._delete, self._check, self._keys, self._get = table.delete, table.check, table.keys, table.get
        self._push, self._pop, self._length = table.push, table.pop, table.length

    def clone(self):
        """The store itself: its threads share one table."""
        return self


class PrefixStore(Store):
    """`store` with "prefix/" before every key. num_keys counts all keys of the other store, as in PyTorch."""

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

    def num_keys(self):
        """The number of keys of the other store, also of those without the prefix, as in PyTorch."""
        return self.underlying_store.num_keys()

    def _keys(self):
        return [key[len(self._prefix) :] for key in self.underlying_store._keys() if key.startswith(self._prefix)]

    def _get(self, keys, seconds):
        return self.underlying_store._get([self._of(key) for key in keys], seconds)

    def _push(self, key, value):
        self.underlying_store._push(self._of(key), value)

    def _pop(self, key, seconds):
        return self.underlying_store._pop(self._of(key), seconds)

    def _length(self, key):
        return self.underlying_store._length(self._of(key))

    def clone(self):
        """The same prefix before a clone of the other store."""
        return PrefixStore(self._prefix[:-1], self.underlying_store.clone())


# A file


class FileStore(Store):
    """A store in the file `file_name`, for processes that all see it. The file should not exist before, or be empty.
    `world_size` (-1: unknown): the last of that many stores to be closed removes the file.

    The file is a log: u32 length of the key, u32 length of the value (2^32 - 1: the key is deleted), key, value. A
    process that reads or writes holds the file's lock.
    """

    _DELETED = 0xFFFFFFFF
    _QUEUE = "\0queue "  # stands before the key of a queue, whose value is u32 length, value, ...

    def __init__(self, file_name, world_size=-1):
        super().__init__()
        self.path = os.path.abspath(file_name)
        self._file = open(self.path, "a+b", buffering=0)
        self._at, self._table, self._lock = 0, {}, threading.RLock()
        if world_size is not None and world_size > 0:
            weakref.finalize(self, _leave_file, self.path, world_size)

    @contextmanager
    def _locked(self):
        with self._lock:
            self._take_lock()
            try:
                self._read()
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take_lock(self):
        """Takes the file's lock, with a time limit: a stopped process that holds it would block the others for ever."""
        end, pause = time.monotonic() + self._timeout, 0.0001
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise _C.CommTimeout(
                        f"FileStore: {self.path}: another process has held the file's lock for {self._timeout:g} s: is "
                        "one stopped?"
                    ) from None
            time.sleep(pause)
            pause = min(2 * pause, 0.005)

    def _read(self):
        """Reads what was written since the last time. Cuts off a record that a dying process left unfinished."""
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
        """Writes the whole record, or raises OSError and leaves the file as it was."""
        name, file = key.encode(), self._file.fileno()
        if max(len(name), len(value or b"")) >= self._DELETED:
            raise ValueError(f"FileStore: a value of {len(value or b'')} bytes (expected at most {self._DELETED - 1})")
        record = struct.pack("<II", len(name), self._DELETED if value is None else len(value)) + name + (value or b"")
        left = memoryview(record)
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError as error:
            os.ftruncate(file, self._at)
            raise OSError(error.errno, f"FileStore: cannot write {len(record)} bytes for {key!r}: {error.strerror}",
                          self.path) from None  # fmt: skip

    def _set(self, key, value):
        with self._locked():
            self._write(key, value)

    def _append(self, key, value):
        with self._locked():
            self._write(key, self._table.get(key, b"") + value)

    def _add(self, key, amount):
        with self._locked():
            total = int(self._table.get(key, b"0")) + amount
            self._write(key, str(total).encode())
            return total

    def _compare_set(self, key, expected, desired):
        with self._locked():
            now = self._table.get(key)
            if now is None and expected:
                return expected
            if now is None or now == expected:
                self._write(key, desired)
                return desired
            return now

    def _delete(self, key):
        with self._locked():
            there = key in self._table
            if there:
                self._write(key, None)
            return there

    def _missing(self, keys):
        return [key for key in keys if key not in self._table and self._QUEUE + key not in self._table]

    def _check(self, keys):
        with self._locked():
            return not self._missing(keys)

    def _keys(self):
        with self._locked():
            return [key for key in self._table if not key.startswith(self._QUEUE)]

    def _wait(self, keys, seconds, take):
        """take(), under the lock, once all of these keys are there."""
        end, pause = time.monotonic() + seconds, 0.001
        while True:
            with self._locked():
                missing = self._missing(keys)
                if not missing:
                    return take()
            if time.monotonic() > end:
                raise _Late(missing)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _get(self, keys, seconds):
        return self._wait(keys, seconds, lambda: [self._table.get(key, b"") for key in keys])

    def _push(self, key, value):
        with self._locked():
            name = self._QUEUE + key
            self._write(name, self._table.get(name, b"") + struct.pack("<I", len(value)) + value)

    def _pop(self, key, seconds):
        def take():
            value = self._table[self._QUEUE + key]
            end = 4 + struct.unpack_from("<I", value)[0]
            self._write(self._QUEUE + key, value[end:] or None)
            return value[4:end]

        return self._wait([key], seconds, take)

    def _length(self, key):
        with self._locked():
            value, at, count = self._table.get(self._QUEUE + key, b""), 0, 0
        while at < len(value):
            at += 4 + struct.unpack_from("<I", value, at)[0]
            count += 1
        return count

    def clone(self):
        """Another store on the same file."""
        return FileStore(self.path)


def _leave_file(path, world_size):
    try:
        if FileStore(path)._add("pydist:left", 1) >= world_size:
            os.unlink(path)
    except OSError:  # already removed
        pass
