"""The public stores: PyTorch's methods on each of them, waiting, other processes, strangers."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest

from pydist import distributed as dist

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
    with pytest.raises(ValueError, match="no number"):
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
    with pytest.raises(ValueError, match="2 keys, 1 values"):
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


def test_strangers_are_refused(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    secret.chmod(0o600)
    monkeypatch.setenv("PYDIST_SECRET_FILE", str(secret))
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    for garbage in (b"GET / HTTP/1.0\r\n\r\n" + b"x" * 64, b"\xff" * 100, b""):
        with socket.create_connection(("127.0.0.1", store.port), 10) as stranger:
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
            hello = stranger.recv(1000)
            assert hello.startswith(b"pydist store") and b"s" * 32 not in hello
            try:
                assert stranger.recv(1000) == b""
            except ConnectionResetError:
                pass
    secret.write_bytes(b"t" * 32)
    with pytest.raises(dist.DistError, match="refused.*same secret"):
        dist.TCPStore("127.0.0.1", store.port)
    secret.write_bytes(b"s" * 32)
    dist.TCPStore("127.0.0.1", store.port).set("still", "there")
    assert store.get("still") == b"there"
    secret.chmod(0o644)
    with pytest.raises(PermissionError, match="0600"):
        dist.TCPStore("127.0.0.1", store.port)


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
    with pytest.raises(dist.DistError, match="is gone"):
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
