"""Verdicts: each fault that can be made here has to be the first line."""

import json
import os
import resource
import socket
import subprocess
import sys

import pytest

from pydist import doctor


def verdict(*options, preexec=None, **env):
    """(exit code, the lines) of the program."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    command = [sys.executable, "-m", "pydist.doctor", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, preexec_fn=preexec)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def test_nothing_wrong():
    code, lines = verdict()
    assert code == 0 and any(line.startswith("ok: link: 2 ranks over shm: all_reduce") for line in lines)
    assert any(line.startswith("ok: shared memory") for line in lines) and not any("problem" in line for line in lines)


def test_json(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("pass")
    code, lines = verdict("--json", "--nproc-per-node", "3", "--script", str(script))
    found = json.loads(lines[0])
    assert code == 0 and {"severity", "check", "text"} == set(found[0])
    assert any("3 ranks over shm" in one["text"] for one in found)


@pytest.mark.parametrize(
    "fault, first",
    [
        ("clock:1:3600", "warning: clocks: the clock of rank 1"),
        ("clock:2:-9", "warning: clocks: the clock of rank 2"),
        ("version:1:0.0.9", "problem: versions: rank 1 on"),
        ("slow:2:40", "warning: slow rank: rank 2 on"),
    ],
)
def test_injected_faults_come_first(fault, first):
    code, lines = verdict("--nproc-per-node", "3", PYDIST_FAULT=fault, OMP_NUM_THREADS="1")
    worst = [line for line in lines if not line.startswith("warning: cores")]  # 3 ranks may be too many here
    assert worst[0].startswith(first) and code == ("problem" in first)


def test_a_taken_port_and_its_owner():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = verdict("--master-port", str(port))
        assert code == 1 and lines[0].startswith(f"problem: port: port {port} is taken by pid {os.getpid()} (")
    assert doctor.port_finding(port).severity == "ok"


def test_few_descriptors():
    code, lines = verdict(preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)))
    assert code == 1 and lines[0].startswith("problem: limits: at most 200 open files")


def test_too_many_threads():
    cores = len(os.sched_getaffinity(0))
    code, lines = verdict(OMP_NUM_THREADS=str(cores))
    first = f"warning: cores: 2 ranks with {cores} threads each (OMP_NUM_THREADS={cores})"
    assert code == 0 and lines[0].startswith(first)


def test_names_that_mean_this_host_only(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(2, 1, 6, "", ("127.0.1.1", 0))])
    assert doctor.name_finding("box").severity == "ok"
    finding = doctor.name_finding("box", hosts=2)
    assert finding.severity == "warning" and "127.0.1.1" in finding.text and "--master-addr" in finding.text


def test_small_or_missing_shm(tmp_path, monkeypatch):
    missing = next(doctor.memory_findings(str(tmp_path / "no")))
    assert missing.severity == "warning" and "there is no" in missing.text
    real = os.statvfs(str(tmp_path))
    full = os.statvfs_result([real.f_bsize, 1 << 12, 0, 0, 2, *list(real)[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    small = next(doctor.memory_findings(str(tmp_path)))
    assert small.severity == "warning" and "MiB left" in small.text and "--shm-size" in small.text


def test_comparison():
    def rank(number, **changes):
        same = {"pydist": "1", "Python": "3.11", "script": changes.pop("script", "a")}
        usual = {"rank": number, "host": f"h{number}", "clock": 0.0, "speed": 1.0, "latency": 1e-6, "bandwidth": 1e9}
        return {**usual, "transport": "tcp", "same": same, **changes}

    assert [f.severity for f in doctor.compare([rank(0), rank(1)])] == ["ok"]
    found = list(doctor.compare([rank(0), rank(1, script="b"), rank(2), rank(3, speed=1.6)]))
    assert [f.check for f in found] == ["versions", "slow rank", "link"]
    assert "rank 1 on h1 has script b" in found[0].text and "rank 3" in found[1].text


def test_wrong_arguments():
    command = [sys.executable, "-m", "pydist.doctor", "--script", "/no/such"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no such file" in done.stderr
