"""The public stores: PyTorch's methods on each of them, waiting, other processes, strangers."""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest

from pydist import distributed as dist
from pydist.distributed import tcp_store

KINDS = ["hash", "file", "tcp", "prefix"]


@pytest.fixture(params=KINDS)
def stores(request, tmp_path):
    """Two handles of one store."""
    if request.param == "hash":
        one = dist.HashStore()
        yield one, one
    elif request.param == "file":
        yield dist.FileStore(str(tmp_path / "store")), dist.FileStore(str(tmp_path / "store"))
    elif request.param == "tcp":
        one = dist.TCPStore("127.0.0.1", 0, None, True)
        yield one, dist.TCPStore("127.0.0.1", one.port)
    else:
        one = dist.HashStore()
        yield dist.PrefixStore("a", one), dist.PrefixStore("a", one)


def test_values(stores):
    one, other = stores
    one.set("text", "ü")
    one.set("bytes", b"\x00\xff")
    one.set("empty", "")
    assert other.get("text") == "ü".encode() and other.get("bytes") == b"\x00\xff" and other.get("empty") == b""
    one.set("text", "again")
    assert other.get("text") == b"again" and other.num_keys() == 3
    assert other.multi_get(["text", "empty"]) == [b"again", b""]
    other.multi_set(["x", "y"], ["1", "2"])
    assert one.check(["x", "y"]) and not one.check(["x", "z"])
    assert one.delete_key("x") and not one.delete_key("x") and not other.check(["x"])
    other.append("y", "34")
    other.append("fresh", "5")
    assert one.get("y") == b"234" and one.get("fresh") == b"5"


def test_add(stores):
    one, other = stores
    assert one.add("n", 1) == 1 and other.add("n", 5) == 6 and one.add("n", -7) == -1 and other.get("n") == b"-1"
    one.set("text", "no number")
    with pytest.raises(ValueError, match="not a number"):
        one.add("text", 1)
    assert one.get("text") == b"no number"


def test_compare_set(stores):
    one, other = stores
    assert one.compare_set("k", "expected", "new") == b"expected" and not other.check(["k"])
    assert one.compare_set("k", "", "first") == b"first" and other.get("k") == b"first"
    assert other.compare_set("k", "wrong", "second") == b"first"
    assert other.compare_set("k", "first", "second") == b"second" and one.get("k") == b"second"


def test_queues_lists_and_barriers(stores):
    one, other = stores
    one.set("k", "v")
    for value in ("a", b"", "c"):
        one.queue_push("q", value)
    assert other.queue_len("q") == 3 and other.check(["q"]) and other.list_keys() == ["k"] and other.num_keys() == 1
    other.wait(["q", "k"], timedelta(seconds=1))
    assert [other.queue_pop("q"), one.queue_pop("q"), other.queue_pop("q", False)] == [b"a", b"", b"c"]
    assert one.queue_len("q") == other.queue_len("x") == 0 and not one.check(["q"])
    with pytest.raises(dist.QueueEmptyError, match="'q' is empty"):
        other.queue_pop("q", block=False)
    thread = threading.Thread(target=lambda: (time.sleep(0.05), one.barrier("b", 2), one.queue_push("q", "late")))
    thread.start()
    other.barrier("b", 2, timedelta(seconds=20))
    assert other.queue_pop("q") == b"late"
    thread.join()
    one.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(dist.CommTimeout, match="q'"):
        one.queue_pop("q")
    with pytest.raises(dist.CommTimeout):
        one.barrier("c", 2)


def test_waiting(stores):
    one, other = stores
    thread = threading.Thread(target=lambda: (time.sleep(0.1), other.set("late", "here")))
    thread.start()
    one.wait(["late"], timedelta(seconds=20))
    assert one.get("late") == b"here"
    thread.join()
    begin = time.monotonic()
    with pytest.raises(dist.CommTimeout, match="never'"):
        one.wait(["late", "never"], timedelta(seconds=0.2))
    one.set_timeout(timedelta(milliseconds=100))
    assert one.timeout == timedelta(milliseconds=100)
    with pytest.raises(TimeoutError):
        one.get("never")
    assert time.monotonic() - begin < 5
    assert one.get("late") == b"here"


def test_wrong_arguments(stores):
    one, _ = stores
    with pytest.raises(TypeError, match="key: int"):
        one.set(1, "x")
    with pytest.raises(TypeError, match="value: int"):
        one.set("x", 1)
    with pytest.raises(ValueError, match="got 2 keys and 1 values"):
        one.multi_set(["a", "b"], ["1"])


def test_many_at_once(stores):
    one, other = stores

    def work(store):
        for _ in range(50):
            store.add("n", 1)

    threads = [threading.Thread(target=work, args=(store,)) for store in (one, other, one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.get("n") == b"200"


def test_prefixes_keep_apart():
    base = dist.HashStore()
    a, b = dist.PrefixStore("a", base), dist.PrefixStore("b", dist.PrefixStore("c", base))
    a.set("k", "1")
    b.set("k", "2")
    assert a.get("k") == b"1" and base.get("a/k") == b"1" and base.get("c/b/k") == b"2" and a.underlying_store is base


CHILD = """
import sys
from pydist import distributed as dist
kind, at = sys.argv[1:]
store = dist.FileStore(at, 2) if kind == "file" else dist.TCPStore("127.0.0.1", int(at), 2)
for _ in range(100):
    store.add("n", 1)
store.set("done", "yes")
assert store.get("go") == b"now"
"""


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_processes(kind, tmp_path):
    path = str(tmp_path / "store")
    if kind == "file":
        store = dist.FileStore(path, 2)
    else:
        store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    child = subprocess.Popen([sys.executable, "-c", CHILD, kind, path if kind == "file" else str(store.port)])
    for _ in range(100):
        store.add("n", 1)
    store.wait(["done"], timedelta(seconds=60))
    assert store.get("n") == b"200"
    store.set("go", "now")
    assert child.wait(60) == 0
    if kind == "file":
        del store
        gc.collect()
        assert not os.path.exists(path)


def test_the_master_waits_for_its_workers():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(dist.CommTimeout, match="1 of 2 workers"):
        dist.TCPStore("127.0.0.1", port, 2, True, timedelta(seconds=0.2))
    worker = []
    thread = threading.Thread(target=lambda: worker.append(dist.TCPStore("127.0.0.1", port, 2, False)))
    thread.start()  # before the master
    time.sleep(0.05)
    master = dist.TCPStore("127.0.0.1", port, 2, True, timedelta(seconds=30))
    thread.join()
    assert master.num_keys() == worker[0].num_keys() == 1


def test_nobody_listens_and_taken_ports():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(dist.DistError, match="cannot listen.*in use"):
            dist.TCPStore("127.0.0.1", port, None, True)
    with pytest.raises(dist.CommTimeout, match="nobody listens"):
        dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=0.2))


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """A function that writes the file of PYDIST_SECRET_FILE."""
    path = tmp_path / "secret"

    def write(text=b"s" * 32, mode=0o600):
        path.write_bytes(text)
        path.chmod(mode)

    write()
    monkeypatch.setenv("PYDIST_SECRET_FILE", str(path))
    return write


def closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_strangers_are_refused(secret):
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    for garbage in (b"GET / HTTP/1.0\r\n\r\n" + b"x" * 64, b"\xff" * 100, b""):
        with socket.create_connection(("127.0.0.1", store.port), 10) as stranger:
            stranger.sendall(garbage)
            with contextlib.suppress(OSError):  # it may be closed already
                stranger.shutdown(socket.SHUT_WR)
            assert closed(stranger)
    with socket.create_connection(("127.0.0.1", store.port), 10) as stranger:
        stranger.sendall(tcp_store._MAGIC + b"r" * 32)
        assert len(stranger.recv(1000)) == 64
        stranger.sendall(b"p" * 32)
        assert closed(stranger)
    secret(b"t" * 32)
    with pytest.raises(dist.DistError, match="does not know our secret.*same secret"):
        dist.TCPStore("127.0.0.1", store.port)
    secret(b"s" * 32 + b"\r\n")  # another editor
    dist.TCPStore("127.0.0.1", store.port).set("still", "there")
    assert store.get("still") == b"there"
    secret(mode=0o644)
    with pytest.raises(dist.DistError, match="644.*600"):
        dist.TCPStore("127.0.0.1", store.port)


@pytest.mark.parametrize("text", [b"", b"short\n", b"s" * 31, b"\n" * 64])
def test_a_secret_has_32_bytes(secret, text):
    secret(text)
    for master in (True, False):
        with pytest.raises(dist.DistError, match="expected at least 32"):
            dist.TCPStore("0.0.0.0" if master else "127.0.0.1", 0, None, master)


def test_a_server_that_does_not_know_the_secret_learns_nothing(secret):
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        heard = []

        def serve():
            connection, _ = impostor.accept()
            heard.append(connection.recv(1000))
            connection.sendall(bytes(64))
            heard.append(connection.recv(1000))

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(dist.DistError, match="does not know our secret"):
            dist.TCPStore("127.0.0.1", impostor.getsockname()[1])
        thread.join()
    assert b"s" * 32 not in heard[0] and heard[1] == b""


@pytest.mark.parametrize("towards", ["server", "client"])
def test_who_stands_between_can_change_nothing(secret, towards):
    """A relay passes the handshake on, and then forges a byte: the connection ends, the table is as before."""
    master = dist.TCPStore("127.0.0.1", 0, None, True)
    master.set("key", "true")
    forge = threading.Event()

    def copy(source, to, changes):
        while data := source.recv(1 << 16):
            if changes and forge.is_set():
                data = data[:-33] + bytes([data[-33] ^ 1]) + data[-32:]
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as door:

        def relay():
            client, _ = door.accept()
            with client, socket.create_connection(("127.0.0.1", master.port)) as server:
                back = threading.Thread(target=copy, args=(server, client, towards == "client"))
                back.start()
                copy(client, server, towards == "server")
                back.join()

        thread = threading.Thread(target=relay)
        thread.start()
        victim = dist.TCPStore("127.0.0.1", door.getsockname()[1])
        assert victim.get("key") == b"true"
        forge.set()
        with pytest.raises(dist.DistError, match="lost the connection to"):
            victim.set("key", "false") if towards == "server" else victim.get("key")
        del victim
        gc.collect()
        thread.join()
    assert master.get("key") == b"true"


def test_without_a_secret_nobody_comes_by_tcp(monkeypatch):
    monkeypatch.delenv("PYDIST_SECRET_FILE", raising=False)
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    with socket.create_connection(("127.0.0.1", store.port), 10) as stranger:
        assert closed(stranger)
    with pytest.raises(dist.DistError, match="cannot listen"):
        dist.TCPStore("127.0.0.1", store.port, None, True)
    with socket.create_server(("127.0.0.1", 0)) as another:
        with pytest.raises(dist.DistError, match="belongs to another user"):
            dist.TCPStore("127.0.0.1", another.getsockname()[1])
    with pytest.raises(dist.DistError, match="no secret"):
        dist.TCPStore("192.0.2.1", 1)


def test_everybody_comes_by_tcp_where_that_was_asked_for(monkeypatch):
    monkeypatch.delenv("PYDIST_SECRET_FILE", raising=False)
    monkeypatch.setenv("PYDIST_INSECURE", "1")
    store = dist.TCPStore("0.0.0.0", 0, None, True)
    monkeypatch.setattr(tcp_store, "_is_here", lambda host: False)
    far = dist.TCPStore("127.0.0.1", store.port)
    far.set("far", "yes")
    assert store.get("far") == b"yes" and far._channel.connection.family == socket.AF_INET


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
def test_without_a_secret_other_users_stay_outside(monkeypatch):
    monkeypatch.delenv("PYDIST_SECRET_FILE", raising=False)
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    program = f"""
import os, socket, sys
os.setuid(int(sys.argv[1]))
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
try:
    s.connect({tcp_store._unix_name(store.port)!r})
    s.sendall({tcp_store._MAGIC + bytes(32)!r})
    print(len(s.recv(1000)))
except ConnectionError:
    print(0)
"""
    for user, heard in ((65534, "0\n"), (0, "64\n")):
        ran = subprocess.run([sys.executable, "-c", program, str(user)], capture_output=True, text=True, timeout=100)
        assert (ran.stdout, ran.stderr) == (heard, "")


def test_a_question_that_was_given_up_is_not_answered_later():
    one = dist.TCPStore("127.0.0.1", 0, None, True)
    other = dist.TCPStore("127.0.0.1", one.port)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        other.get("never")
        time.sleep(10)
    timer.join()
    one.set("never", "late")
    one.set("next", "right")
    assert other.get("next") == b"right"


def test_messages_are_bounded():
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    with pytest.raises(ValueError, match="TCPStore: set: a message of"):
        store.set("key", bytes((64 << 20) + 1))
    for half in "ab":
        store.set(half, bytes(40 << 20))
    with pytest.raises(ValueError, match="a message of"):
        store.multi_get(["a", "b"])
    assert len(store.get("a")) == 40 << 20


# Strangers at the door

CROWD = """
import resource, sys, threading, time
from datetime import timedelta
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
from pydist import distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True)
print(store.port, flush=True)
sys.stdin.readline()  # strangers have come
dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=60)).set("a", "1")
print(store.get("a"), flush=True)
"""


def crowd(port, count):
    """That many connections that say nothing."""
    found = []
    for _ in range(count):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
        found.append(connection)
    return found


@pytest.mark.slow
def test_a_crowd_at_the_door_does_not_shut_it(secret):
    server = subprocess.Popen([sys.executable, "-c", CROWD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    strangers = crowd(int(server.stdout.readline()), 300)  # more than it has descriptors
    out, _ = server.communicate("\n", 100)
    assert out == "b'1'\n" and server.returncode == 0
    for stranger in strangers:
        stranger.close()


def test_a_handshake_has_one_deadline(secret, monkeypatch):
    monkeypatch.setattr(tcp_store, "_HANDSHAKE", 0.5)
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    with socket.create_connection(("127.0.0.1", store.port), 10) as slow:
        start, gone = time.monotonic(), False
        slow.settimeout(0.1)
        while not gone:
            try:
                slow.send(tcp_store._MAGIC[:1])  # a byte now and then
                gone = slow.recv(1) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                gone = True
        assert 0.4 < time.monotonic() - start < 10
    dist.TCPStore("127.0.0.1", store.port).set("a", "1")


def test_a_server_without_threads_goes_on(secret, monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    start, failed = threading.Thread.start, []

    def fails(self):
        if self.name == "TCPStore" and not failed:
            failed.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fails)
    dist.TCPStore("127.0.0.1", store.port).set("a", "1")  # the first try was closed
    assert failed and store.get("a") == b"1"


def test_waits_of_those_who_are_gone_end(secret):
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    code = "import sys; from pydist import distributed as d; d.TCPStore('127.0.0.1', int(sys.argv[1])).get('never')"
    child = subprocess.Popen([sys.executable, "-c", code, str(store.port)])
    while len(store._server.open) < 2:
        time.sleep(0.01)
    child.kill()
    child.wait()
    end = time.monotonic() + 30
    while len(store._server.open) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(store._server.open) == 1


def test_beyond_this_machine_there_has_to_be_a_secret(monkeypatch):
    monkeypatch.delenv("PYDIST_SECRET_FILE", raising=False)
    with pytest.raises(dist.DistError, match="no secret"):
        dist.TCPStore("0.0.0.0", 0, None, True)


def test_a_master_that_is_gone():
    master = dist.TCPStore("127.0.0.1", 0, None, True)
    other = dist.TCPStore("127.0.0.1", master.port)
    other.set("a", "1")
    del master
    gc.collect()
    with pytest.raises(dist.DistError, match="lost the connection to"):
        other.get("a")


def test_a_record_cut_off_by_a_death(tmp_path):
    path = tmp_path / "store"
    store = dist.FileStore(str(path))
    store.set("a", "1")
    with open(path, "ab") as file:
        file.write(b"\x05\x00\x00\x00\x09\x00\x00\x00abc")
    other = dist.FileStore(str(path))
    other.set("b", "2")
    assert store.get("a") == b"1" and store.get("b") == b"2" and store.num_keys() == 2


FULL = """
import resource, sys
from pydist import distributed as dist
store, other = dist.FileStore(sys.argv[1]), dist.FileStore(sys.argv[1])
store.set("key", "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # as on a full disk, a part of a record is written
for change in (lambda: store.set("key", bytes(5000)), lambda: store.append("key", bytes(5000)),
               lambda: store.queue_push("queue", bytes(5000)), lambda: store.compare_set("key", "old", bytes(5000))):
    try:
        change()
        print("no error")
    except OSError as error:
        print(error.errno, str(error).split(": ")[0], store.get("key"), other.get("key"), store.queue_len("queue"))
store.set("key", "new")
print(other.get("key"))
"""


def test_a_value_that_does_not_fit_on_the_disk(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "store")], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.splitlines() == ["27 [Errno 27] FileStore b'old' b'old' 0"] * 4 + ["b'new'"], ran


def test_who_holds_the_lock_of_a_file_for_too_long(tmp_path):
    store, other = (dist.FileStore(str(tmp_path / "store")) for _ in range(2))
    other.set_timeout(timedelta(seconds=0.2))
    with store._locked():
        with pytest.raises(dist.CommTimeout, match="held the file's lock for 0.2 s"):
            other.set("a", "1")
    other.set("a", "1")
    assert store.get("a") == b"1"
