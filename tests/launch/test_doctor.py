"""Verdicts: each fault that can be made here has to be the first line."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

import pydist
from lib.processes import start
from pydist import _C, doctor
from pydist._doctor import attach, calls
from pydist._doctor import pairs as pairwise


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
        assert code == 1 and lines[0].startswith(f"problem: port: pid {os.getpid()} (")
    assert doctor.port_finding(port).severity == "ok"


def test_few_descriptors():
    code, lines = verdict(preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)))
    assert code == 1 and lines[0].startswith("problem: limits: at most 200 open files")


def test_too_many_threads():
    cores = len(os.sched_getaffinity(0))
    code, lines = verdict(OMP_NUM_THREADS=str(cores))
    first = f"warning: cores: 2 ranks with {cores} threads each (OMP_NUM_THREADS={cores})"
    assert code == 0 and lines[0].startswith(first)


PATCHED = """
import os, socket, sys
{}
from pydist import doctor
doctor.main()
"""


@pytest.mark.parametrize("patch, options, first", [
    ("socket.getaddrinfo = lambda *_: [(2, 1, 6, '', ('127.0.1.1', 0))]", ["--nnodes", "2"],
     "warning: name: this host's name "),
    ("full = list(os.statvfs('/')); full[3:5] = 0, 2; os.statvfs = lambda _: os.statvfs_result(full)", [],
     "warning: shared memory: /dev/shm has 0 MiB left"),
    ("from pydist import doctor; doctor.quota = lambda: 1", [], "warning: cores: 2 ranks with 1 threads each"),
])  # fmt: skip
def test_faults_of_this_host_come_first(patch, options, first):
    command = [sys.executable, "-c", PATCHED.format(patch), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0 and done.stdout.startswith(first), done.stdout + done.stderr


def test_an_interface_that_is_not_there():
    code, lines = verdict(PYDIST_IFACE="none")
    assert code == 1 and lines[0].startswith(
        "problem: network: PYDIST_IFACE=none matches no network interface (expected some of"
    )


def test_quota_of_a_container(monkeypatch):
    for cores, want in ((0.0, None), (2.5, 2), (0.01, 1)):
        monkeypatch.setattr(_C, "_limits", lambda cores=cores: (0, cores))
        assert doctor.quota() == want


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


def test_memory_of_wholes(monkeypatch):
    monkeypatch.setattr(doctor, "_in_huge_pages", lambda: 2 << 20)
    assert [(f.severity, f.check) for f in doctor.whole_findings()] == [("ok", "memory files"), ("ok", "huge pages")]
    monkeypatch.setattr(doctor, "_in_huge_pages", lambda: 0)
    assert "gives none for memory that ranks share" in list(doctor.whole_findings())[1].text
    code, lines = verdict(preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, resource.RLIM_INFINITY)))
    assert code == 0 and lines[0].startswith("warning: memory files: files may have 8 MiB (ulimit -f)")
    assert lines[1].startswith(
        "warning: huge pages: not known: shared memory: cannot size and seal the memory file of 16777216"
    )


def test_huge_pages_are_counted():
    """As many as the memory has that was asked for, or none where Linux gives none."""
    before = doctor._in_huge_pages()
    kept = pydist.empty(4 << 20, device="cpu").share_memory_()
    assert doctor._in_huge_pages() - before in (0, kept.numel() * 4)


def test_comparison():
    def rank(number, **changes):
        same = {"pydist": "1", "Python": "3.11", "script": changes.pop("script", "a")}
        usual = {"rank": number, "host": f"h{number}", "clock": 0.0, "speed": 1.0, "latency": 1e-6, "bandwidth": 1e9}
        return {**usual, "transport": "tcp", "same": same, **changes}

    assert [(f.severity, f.check) for f in doctor.compare([rank(0), rank(1)])] == [("ok", "link"), ("ok", "cost")]
    found = list(doctor.compare([rank(0), rank(1, script="b"), rank(2), rank(3, speed=1.6)]))
    assert [f.check for f in found] == ["versions", "slow rank", "link", "cost"]
    assert "rank 1 on h1 has script b" in found[0].text and "rank 3" in found[1].text


def test_wrong_arguments():
    command = [sys.executable, "-m", "pydist.doctor", "--script", "/no/such"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no such file" in done.stderr


# Between each two ranks.


def test_slow_pairs():
    pairs = {(low, high): (1e-3, 1e9) for low in range(4) for high in range(4) if low != high}
    hosts = dict(enumerate("abcd"))
    assert pairwise.slow_pairs(pairs, hosts) == [] and pairwise.chosen([0, 0, 1]) == [0, 1, 2]
    pairs[1, 3], pairs[0, 2] = (6e-3, 1e9), (1e-3, 1e8)
    assert pairwise.slow_pairs(pairs, hosts) == [(0, 2, 10.0, "bandwidth"), (1, 3, 6.0, "latency")]
    lines = pairwise.table(range(4), pairs).splitlines()
    assert len(lines) == 6 and lines[3].split() == ["1", "1", "-", "1000.0", "6000.0"]
    ranks = [{"rank": low, "host": f"h{low}", "place": hosts[low],
              "pairs": [[high, *pairs[low, high]] for high in range(4) if high != low]} for low in range(4)]  # fmt: skip
    first = next(doctor.pair_findings(ranks))
    assert first.severity == "warning" and "bandwidth between rank 0 on h0 and rank 2 on h2 is 10.0 times" in first.text
    assert len(pairwise.chosen([rank // 4 for rank in range(32)])) == 8


def test_the_ranks_of_the_launcher():
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", "2", "-m", "pydist.doctor", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.removeprefix("[0] "))
    assert {"pairs", "link", "limits", "cores"} <= {one["check"] for one in found}


# A job that hangs.


def attached(target):
    command = [sys.executable, "-m", "pydist.doctor", "--attach", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
def test_attach(tmp_path):
    """By the launcher, by a rank, by a port: who waits, for whom, where; then a rank that is stopped."""
    script = tmp_path / "hang.py"
    script.write_text("""
import os, time
import pydist
from pydist import distributed as dist
def load():
    time.sleep(60)
dist.barrier()
print(os.environ["RANK"], os.getpid(), os.environ["MASTER_PORT"], flush=True)
if os.environ["RANK"] == "1":
    load()
dist.all_reduce(pydist.ones(4))
""")
    with start("--nproc-per-node=3", script) as job:
        said = sorted(job.stdout.readline().split()[1:] for _ in range(3))
        pids, port = [int(line[1]) for line in said], said[0][2]
        try:
            for target in (job.pid, pids[2]):
                code, lines = attached(target)
                hang = f"problem: hang: ranks 0, 2 wait for rank 1: rank 1 (pid {pids[1]}): it sleeps at hang.py:6, in load"
                assert code == 1 and lines[0].startswith(hang), lines
                assert re.match(rf"rank 0 of 3 \(pid {pids[0]}\): it has been waiting [\d.]+ s for rank 1 in "
                                r"all_reduce\(float32\[4\], SUM\) at hang\.py:11 ", lines[1]), lines  # fmt: skip
                assert sum(line.startswith("flight record of rank") for line in lines) == 3
            os.kill(pids[1], signal.SIGSTOP)
            code, lines = attached(job.pid)
            assert "wait for rank 1: rank 1" in lines[0] and "its process is stopped (SIGSTOP" in lines[0], lines
        finally:
            os.kill(pids[1], signal.SIGCONT)
            job.send_signal(signal.SIGINT)
            _, err = job.communicate(timeout=20)
    assert "flight record" not in err  # it went to those who asked
    script.write_text("""
import sys
from pydist import distributed as dist
dist.init_process_group(init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
print("here", flush=True)
dist.recv_object_list([None], 1 - dist.get_rank())
""")
    jobs = [subprocess.Popen([sys.executable, script, port, str(rank)], stdout=subprocess.PIPE) for rank in range(2)]
    try:
        for job in jobs:  # without a launcher: by the port where they meet
            assert job.stdout.readline() == b"here\n"
        time.sleep(0.1)
        code, lines = attached(port)
        assert code == 1 and lines[0].startswith(
            "problem: hang: ranks 0-1 wait for each other: rank 0: it has been waiting"
        ), lines
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    command = [sys.executable, "-m", "pydist.doctor", "--attach", str(pids[0])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no rank on this host" in done.stderr


def test_attach_follows_calls_by_rpc(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text("""
import os, time
from pydist.distributed import rpc
def deep():
    print("here", os.getpid(), flush=True)
    time.sleep(60)
def middle():
    return rpc.rpc_sync("worker2", deep)
def main():
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}")
    if rank == 0:
        rpc.rpc_sync("worker1", middle)
    rpc.shutdown()
main()
""")
    with start("--nproc-per-node=3", script) as job:
        try:
            pid = job.stdout.readline().split()[-1]
            code, lines = attached(pid)
        finally:
            job.send_signal(signal.SIGINT)
            job.communicate(timeout=20)
    assert code == 1 and re.fullmatch(
        r"problem: hang: rank 0 has been waiting [\d.]+ s at hang\.py:13, in main for a call of middle at rank 1, which "
        r"waits at hang\.py:8, in middle for a call of deep at rank 2, which runs there at hang\.py:6, in deep",
        lines[0],
    ), lines
    record = "\n".join(lines)
    assert re.search(r"rpc: worker1 \(rank 1 of 3\): 1 call under way, 1 runs, 0 wait for a thread; ", record), record


def test_what_a_call_waits_for():
    def rank(number, *calls):
        return attach.Rank(10 + number, number, 3, None, "", "".join(f"rpc: {line}\n" for line in calls))

    waits = "call 0.1 to b (rank 1): f, 2.0 s; waits at t.py:3, in g"
    for ranks, text in (
        ((), ""),
        ((rank(0, "call 0.1 to b (rank 1): f, 2.0 s"),), ""),  # nobody waits for it
        ((rank(0, waits), rank(1)), "rank 0 has been waiting 2 s at t.py:3, in g for a call of f at rank 1, which does not run there"),
        (
            (rank(0, waits), rank(1, "runs call 2.4 of c (rank 2): h, 9.0 s; at t.py:9, in h")),
            "rank 0 has been waiting 2 s at t.py:3, in g for a call of f at rank 1, which has not begun there",
        ),
        (
            (rank(0, waits), rank(1, "runs call 0.1 of a (rank 0): f, 1.0 s; at t.py:7, in f; waits for call 1.2",
                                  "call 1.2 to a (rank 0): k, 0.5 s; waits")),
            "rank 0 has been waiting 2 s at t.py:3, in g for a call of f at rank 1, which waits at t.py:7, in f for a call of "
            "k at rank 0, which does not run there",
        ),
    ):  # fmt: skip
        assert calls.story(ranks) == text
    assert attach.verdict([rank(0, waits), rank(1)])[0] == "problem"


def test_what_attach_makes_of_answers():
    def rank(number, on, place="it began x"):
        return attach.Rank(10 + number, number, 4, on, place, "record")

    for ranks, severity, text in (
        ([rank(0, None), rank(1, None)], "ok", "no rank waits for another one"),
        (
            [rank(0, 1), rank(1, 2), rank(2, 1)],
            "problem",
            "ranks 1-2 wait for each other: rank 1: it began x; rank 2: it",
        ),
        ([rank(0, 3), rank(1, 3)], "problem", "ranks 0-1 wait for rank 3, not on this host"),
        (
            [rank(0, 1), rank(1, None, "A"), rank(2, None, "B")],
            "problem",
            "rank 0 waits for rank 1: rank 1 (pid 11): A; nor",
        ),
        ([rank(0, None)._replace(record="", place="gone")], "problem", "rank 0 (pid 10): gone"),
    ):
        got = attach.verdict(ranks)
        assert got[0] == severity and got[1].startswith(text), got
    text = "rank 1 of 4\non -1\nit sleeps\nrank 1 of 4, group 1\n  row\n"
    assert attach.understand(5, text) == (5, 1, 4, None, "it sleeps", "rank 1 of 4, group 1\n  row\n")


ANSWERING = """
import os, signal, socket, sys, time
def answer(*_):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\\0pydist-doctor-" + sys.argv[1])
        try:
            for _ in range(1000):
                s.sendall(b"x" * (1 << 16))
        except OSError:
            pass
signal.signal(signal.SIGUSR1, answer)
if sys.argv[2] == "stranger":
    while True:
        try:
            answer()
        except OSError:
            time.sleep(0.001)
print("ready", flush=True)
time.sleep(60)
"""


def test_only_who_was_asked_may_answer_and_not_for_ever():
    command = [sys.executable, "-c", ANSWERING, str(os.getpid())]
    asked = subprocess.Popen([*command, "asked"], stdout=subprocess.PIPE)
    stranger = subprocess.Popen([*command, "stranger"])
    try:
        asked.stdout.readline()
        answers = attach.ask([asked.pid], 30)
        assert list(answers) == [asked.pid] and len(answers[asked.pid]) == attach.ANSWER_BYTES
    finally:
        for process in (asked, stranger):
            process.kill()
            process.wait()
        asked.stdout.close()
