"""Jobs started as ps-lite's: a scheduler, servers and workers that DMLC_* variables tell who they are."""

import socket
import subprocess
import sys

import pytest

from lib.processes import environment, launch, within

SCRIPT = """
import os, pydist
from pydist.distributed import ps
kv = ps.create("dist_sync")
kv.init(3, pydist.ones(2))
kv.push(3, pydist.full((2,), kv.rank + 1.0))
print(kv.rank, kv.num_workers, kv.pull(3).tolist(), os.environ["DMLC_ROLE"])
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started(port, role, **more):
    names = {"DMLC_ROLE": role, "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port)}
    counts = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2"}
    env = {name: value for name, value in environment(**{**names, **counts, **more}).items() if value is not None}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def ended(process):
    out, err = process.communicate(timeout=within(60))
    return process.returncode, out, err


@pytest.mark.parametrize("numbered", [False, True])
def test_all_roles(numbered):
    """In any order; workers get their ranks from the scheduler, or bring them along; the others end when all workers have."""
    port = free_port()
    ids = [{"DMLC_WORKER_ID": str(1 - i)} if numbered else {} for i in range(2)]
    workers = [started(port, "worker", **more) for more in ids]
    others = [started(port, role) for role in ("server", "scheduler", "server")]
    said = []
    for i, worker in enumerate(workers):
        code, out, err = ended(worker)
        assert code == 0, err
        rank, rest = out.split(maxsplit=1)
        said.append(int(rank))
        assert rest == "2 [3.0, 3.0] worker\n" and (not numbered or int(rank) == 1 - i)
    assert sorted(said) == [0, 1]
    assert [ended(process)[:2] for process in others] == [(0, "")] * 3


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("DMLC_ROLE", "boss", "DMLC_ROLE is 'boss' .expected one of worker, server, scheduler"),
        ("DMLC_NUM_SERVER", "", "DMLC_NUM_SERVER is not set, but DMLC_ROLE, DMLC_PS_ROOT_URI"),
        ("DMLC_PS_ROOT_PORT", "", "DMLC_PS_ROOT_PORT is not set"),
        ("DMLC_NUM_WORKER", "two", "DMLC_NUM_WORKER is 'two' .expected a number from 1 to 256"),
        ("DMLC_PS_ROOT_PORT", "70000", "DMLC_PS_ROOT_PORT is '70000'"),
        ("DMLC_WORKER_ID", "2", "DMLC_WORKER_ID is '2' .expected a number from 0 to 1"),
    ],
)  # fmt: skip
def test_variables_that_are_wrong(monkeypatch, name, value, says):
    from pydist.distributed.ps import roles

    port = free_port()
    for key, good in {
        "ROLE": "worker",
        "PS_ROOT_URI": "127.0.0.1",
        "PS_ROOT_PORT": str(port),
        "NUM_WORKER": "2",
        "NUM_SERVER": "1",
    }.items():
        monkeypatch.setenv(f"DMLC_{key}", good)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(roles, "TCPStore", lambda *args, **more: None)
    with pytest.raises((ValueError, RuntimeError), match=says):
        roles.take_part()


def test_the_launcher(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    code, out, err, _ = launch("--workers", "2", "--servers", "3", str(path), timeout=within(30))
    assert code == 0, err
    assert sorted(line.partition("] ")[2] for line in out.splitlines()) == [
        f"{r} 2 [3.0, 3.0] worker" for r in range(2)
    ]
