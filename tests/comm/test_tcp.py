"""Ranks on several hosts: what tcp alone has to stand (test_comm.py runs most of its tests over tcp, too): strangers at its
ports, connections that end, sends and receives that fail."""

import contextlib
import hmac
import os
import socket
import struct
import time

import numpy as np
import pytest

import lib.ranks
from lib.control import (
    NEWS,
    PROOF,
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
from lib.ranks import PRELUDE, Ranks, good, outputs, processes, run
from lib.trees import reduce_everything
from pydist import _C

pytestmark = pytest.mark.usefixtures("apart")  # a host of its own for every rank


def test_it_is_tcp():
    assert good(run(2, lambda group: group.transport)) == ["tcp", "tcp"]
    assert good(run(3, lambda group: group.transport, hub=_C.Hub(3, 2))) == ["tcp"] * 3
    assert set(outputs(processes(2, "print(group.transport)\nleave()"))) == {"tcp\n"}


# A control server on another host.


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_far_from_the_control_server(world):
    script = """
x = np.full(100000, rank + 1.0)
group.all_reduce(x)
assert (x == world * (world + 1) / 2).all()
group.store.set(f"key{rank}", "x" * 1000)
group.store.wait([f"key{r}" for r in range(world)], 10)
group.destroy()
group = init()
group.all_reduce(x)
print(group.transport)
leave()
"""
    assert set(outputs(processes(world, script, far=range(1, world)))) == {"tcp\n"}


def test_a_far_rank_that_dies():
    script = """
if rank == 2:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    group.barrier()
except _C.PeerFailed as e:
    print(e.rank, time.monotonic() - begin)
"""
    for _, out, err in processes(3, script, far=(1, 2))[:2]:
        rank, seconds = out.split()
        assert rank == "2" and float(seconds) < 1.5, err


def own_address():
    """An address of this host that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            return s.getsockname()[0]
        except OSError:
            pytest.skip("this host has no address but loopback")


def test_hosts_share_a_secret_file(tmp_path):
    """Rank 0 hosts the server, rank 1 comes over tcp as from another host; a third has another secret."""
    address = f"{own_address()}:{free_port()}"
    files = []
    for name in ("secret", "other"):
        path = tmp_path / name
        path.write_bytes(os.urandom(40))
        path.chmod(0o600)
        files.append(str(path))
    script = """
        group = join(url=url if rank else "tcp://" + url)
        check(group)
        print(group.transport)
        time.sleep(0.5 if rank else 0)
        _C.comm_leave()
    """
    first = start(script, address, 0, 2, PYDIST_SECRET_FILE=files[0])
    ((code, _, err),) = finish([start(script, address, 1, 2, PYDIST_SECRET_FILE=files[1])])
    assert code and "does not know this job's secret" in err
    ((code, _, err),) = finish([start(script, address, 1, 2)])
    assert code and "no secret" in err
    second = start(script, address, 1, 2, PYDIST_SECRET_FILE=files[0])
    ended = all_good(finish([first, second]))
    assert {out for _, out, _ in ended} == {"tcp\n"}
    assert "another secret" in ended[0][2]


def test_insecure_is_said(tmp_path):
    address = f"{own_address()}:{free_port()}"
    script = """
        group = join(url=url if rank else "tcp://" + url)
        check(group)
        _C.comm_leave()
    """
    all_good(finish([start(script, address, r, 2, PYDIST_INSECURE="1") for r in range(2)]))


# The data connections.

SET, GET = 0, 1  # verbs of the store


def test_strangers_at_the_data_port():
    """Rank 1 by hand: rank 0 waits for its data connection among garbage, silence and a port scan."""
    script = """
        init()
    """
    prelude = PRELUDE.replace("group = init()", "")
    with Ranks(2, script, prelude=prelude) as ranks:
        ranks.processes[1].kill()
        ranks.processes[1].wait()
        control, token = join_with_token(ranks.server, 1)

        def ask(verb, key, data=b""):
            control.sendall(call(verb, key, data, timeout=10))
            while (answer := read(control))[0] == NEWS:
                pass
            return answer[2][16:]

        status, _, _, setting, size, *spot = struct.unpack("<iIQQQiiQQ", ask(GET, b"pd:1.0.0"))
        ask(SET, b"pd:1.0.1", struct.pack("<iIQQQiiQQ", status, 0, 12345, setting, size, *spot))  # another host
        host, port = ask(GET, b"pd:1.tcp.0").decode().split()[0].rsplit(":", 1)

        def dial():
            return socket.create_connection((host, int(port)), 5)

        strangers = [dial() for _ in range(100)]
        for i, s in enumerate(strangers[:60]):
            with contextlib.suppress(OSError):
                s.sendall((b"GET / HTTP/1.1\r\n\r\n" * 10, b"x", os.urandom(80), bytes(80))[i % 4])
        for s in strangers[60:90]:
            s.close()
        for wrong in ("token", "epoch", "rank"):
            s = dial()
            head = greeting_of(epoch=2 if wrong == "epoch" else 1, rank=0 if wrong == "rank" else 1)
            s.sendall(head + proof(bytes(32) if wrong == "token" else token, b"dial", head, s.recv(16)))
            with contextlib.suppress(ConnectionResetError):
                assert s.recv(1) == b"", wrong
        s, head = dial(), greeting_of()
        nonce = s.recv(16)
        s.sendall(head + proof(token, b"dial", head, nonce))
        assert s.recv(32) == proof(token, b"listen", head, nonce)
        time.sleep(0.2)
        assert ranks.processes[0].poll() is None
        s.sendall(b"garbage from one who has proved itself" * 10)
        _, err = ranks.processes[0].communicate(timeout=10)
        assert "carries data that are not valid" in err and err.count("refused a data connection") == 1
        for one in (*strangers, s, control):
            one.close()


def join_with_token(server, rank):
    """A connection of a rank by hand, and the job's token, which travels masked."""
    s, key = dial(server), secret(server)
    s.sendall(hello(rank))
    nonce = read(s)[2][:16]
    s.sendall(frame(PROOF, mac(key, b"client", greeting(rank), nonce)))
    kind, _, payload = read(s)
    assert kind == WELCOME
    return s, bytes(a ^ b for a, b in zip(payload[:32], mac(key, b"token", greeting(rank), nonce)))


def greeting_of(epoch=1, rank=1):
    return struct.pack("<IIii", 0x314D4450, epoch, rank, 0) + b"sixteen bytes..."


def proof(token, who, head, nonce):
    return hmac.digest(token, who.ljust(8, b"\0") + head + nonce, "sha256")


@pytest.mark.parametrize("kind", ["send", "recv"])
@pytest.mark.parametrize("world", [2, 3])
def test_every_send_and_receive_may_fail(kind, world):
    """An error on all ranks each time, and a new group over the same hub works."""

    def scenario(group):
        x = np.full(150000, group.rank + 1.0, np.float32)
        group.all_reduce(x)
        y = np.full(10, group.rank)
        group.broadcast(y, 1)
        group.barrier()
        return x[0], y[0]

    hub, want, failures = _C.Hub(world, world), (world * (world + 1) / 2, 1), 0
    for n in (1, 2, 3, 5, 8, 13, 21, 34, 55, 10**6):

        def fn(group):
            group.barrier()
            if group.rank == 0:
                _C.fault(kind, n)
            return scenario(group)

        results = run(world, fn, hub=hub, timeout=20)
        seen = _C.fault(kind, 0)
        if seen < n:
            assert good(results) == [want] * world
            continue
        failures += 1
        wrong = [r for r in results if not isinstance(r, _C.DistError) and r != want]
        assert not wrong and any(isinstance(r, _C.DistError) and "PYDIST_FAULT" in str(r) for r in results), results
    assert failures >= 3
    assert good(run(world, scenario, hub=hub)) == [want] * world


def test_a_connection_that_is_cut_is_an_error():
    """The data connection ends, both processes live: the control plane has nothing to say."""
    script = """
        import socket
        for fd in range(3, 200):
            try:
                s = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            if rank == 0 and s.family == socket.AF_INET and s.type == socket.SOCK_STREAM:
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        begin = time.monotonic()
        try:
            group.barrier()
            print("passed")
        except _C.DistError as e:
            print(type(e).__name__, time.monotonic() - begin)
        leave()
    """
    for out in outputs(processes(2, script)):
        kind, seconds = out.split()
        assert kind == "PeerFailed" and float(seconds) < 3


def test_ddp_over_tcp_gives_the_bits_of_shared_memory(monkeypatch):
    script = """
        import pydist
        from pydist import nn, optim
        from pydist.nn.parallel import DistributedDataParallel
        import hashlib
        pydist.distributed.init_process_group()
        pydist.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10)))
        opt = optim.SGD(model.parameters(), lr=0.1)
        pydist.manual_seed(rank)
        for _ in range(3):
            opt.zero_grad()
            model(pydist.randn(16, 300)).square().mean().backward()
            opt.step()
        h = hashlib.sha256()
        for p in model.parameters():
            h.update(p.detach().numpy().tobytes())
        print(pydist.distributed.group.WORLD.transport, h.hexdigest())
        pydist.distributed.destroy_process_group()
    """
    prelude = PRELUDE.replace("group = init()", "")
    ended = {}
    for where in ("shm", "tcp"):
        monkeypatch.setattr(lib.ranks, "APART", where == "tcp")
        with Ranks(3, script, prelude=prelude) as ranks:
            ended[where] = outputs(ranks.wait())
    shm, tcp = (ended[w][0].split() for w in ("shm", "tcp"))
    assert (shm[0], tcp[0]) == ("shm", "tcp") and shm[1] == tcp[1]
    assert len(set(ended["tcp"])) == 1


def test_a_wait_that_does_not_sleep_past_its_data_takes_under_8_s():
    start = time.monotonic()
    good(run(3, reduce_everything, algo="gather_sum", slot=1024))
    assert time.monotonic() - start < 8  # 0.2 s; with a nap of 50 ms too many here and there: 10 s
