"""The launcher, from outside: what it gives to workers, what it prints, and that nobody outlives it."""

import importlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from lib.processes import ROOT, all_end, environment, launch, start, terminal, within
from pydist import _C, run
from pydist._launch import options, screen, stream, traces, worker
from pydist._launch.report import Report


def read_lines(process, count):
    return [process.stdout.readline() for _ in range(count)]


def numbers(text):
    return [int(word) for word in re.findall(r"\d+", re.sub(r"^\[\d+\]", "", text, flags=re.M))]


# What a worker gets.


def test_environment(script):
    path = script("""
        names = ("RANK LOCAL_RANK ROLE_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE GROUP_WORLD_SIZE"
                 " TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS MASTER_ADDR PYTHONUNBUFFERED").split()
        print(*(os.environ[name] for name in names))
        assert 1 <= int(os.environ["MASTER_PORT"]) <= 65535
        assert os.environ["TORCHELASTIC_RUN_ID"] and os.environ["PYDIST_CONTROL"]
        assert "OMP_NUM_THREADS" not in os.environ or os.environ["OMP_NUM_THREADS"] == "7"
        os.fstat(int(os.environ["PYDIST_SECRET_FD"]))
        assert os.getsid(0) == os.getpid() and os.read(0, 1) == b""
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
        open_fds = {int(fd) for fd in os.listdir("/proc/self/fd")} - {0, 1, 2, int(os.environ["PYDIST_SECRET_FD"])}
        assert len(open_fds) <= 1, open_fds  # listdir's own
    """)
    with open(os.devnull) as extra:  # inherited by the launcher, not by its workers
        code, out, err, _ = launch(
            "--nproc_per_node=3", "--standalone", path, env=environment(OMP_NUM_THREADS="7"), pass_fds=(extra.fileno(),)
        )
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{r}] {r} {r} {r} 0 3 3 3 1 0 0 127.0.0.1 1" for r in range(3)]


def test_ports_and_run_ids_differ(script):
    path = script("print(os.environ['MASTER_PORT'], os.environ['TORCHELASTIC_RUN_ID'])")
    seen = {launch(path)[1] for _ in range(2)}
    assert len(seen) == 2 and len({line.split()[0] for line in seen}) > 1
    given = script("print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])")
    assert launch("--master-port", 29511, "--master_addr=localhost", given)[1] == "localhost 29511\n"


def test_arguments_and_module(script, tmp_path):
    path = script("print(__name__, sys.argv[1:])", "tool.py")
    expected = "__main__ ['--nproc-per-node', '-m', 'a b', '']\n"
    assert launch("--", path, "--nproc-per-node", "-m", "a b", "")[:3] == (0, expected, "")
    assert launch("-m", "--nproc-per-node", 1, "tool", "--nproc-per-node", "-m", "a b", "", cwd=tmp_path)[:3] == (
        0,
        expected,
        "",
    )
    assert launch("--no-python", "--nproc-per-node=2", "sh", "-c", "echo $RANK$0", "x")[1] in (
        "[0] 0x\n[1] 1x\n",
        "[1] 1x\n[0] 0x\n",
    )


def test_one_rank_has_our_stdin_and_no_prefix(script):
    path = script("print(sys.stdin.read().upper())")
    with start(path, stdin=subprocess.PIPE) as process:
        assert process.communicate("yes", timeout=20)[0] == "YES\n"


def test_nproc_auto(script):
    code, out, _, _ = launch("--nproc-per-node", "auto", script("print(os.environ['WORLD_SIZE'])"))
    assert code == 0 and set(numbers(out)) == {len(os.sched_getaffinity(0))}


@pytest.mark.parametrize(
    "args, message",
    [
        (["--nnodes=2", "x.py"], "--nnodes 2 needs --node-rank, the number of this host (0 to 1)"),
        (["--nnodes=2", "--node-rank=0", __file__], "several hosts need --master-addr"),
        (["--nnodes=2", "--node-rank=0", "--master-addr=a", __file__], "several hosts need PYDIST_SECRET_FILE"),
        (["--nnodes=2:1", "x.py"], "--nnodes: '1' (expected a number from 2 to 4096)"),
        (["--nnodes=two", "x.py"], "--nnodes: 'two' (expected a number from 1 to 4096)"),
        (["--nnodes=2", "--standalone", "x.py"], "got both --standalone and --nnodes"),
        (["--node-rank", "1", "x.py"], "--node-rank: '1' (expected a number from 0 to 0)"),
        (["--nnodes=64", "--node-rank=0", "--nproc-per-node=100", "x.py"], "100 ranks on each of 64 hosts (expected"),
        (["--rdzv-backend=etcd", "x.py"], "--rdzv-backend: 'etcd' (expected static or c10d)"),
        (["--rdzv-endpoint=host:port", "x.py"], "--master-port: 'port' (expected a number"),
        (["--max-restarts", "x", "x.py"], "--max-restarts: 'x' (expected a number from 0 to 1000000)"),
        (["--on-failure", "x", "x.py"], "--on-failure: 'x' (expected stop or keep)"),
        (["-x", "x.py"], "unknown option -x"),
        (["--nproc-per-node", "0", "x.py"], "--nproc-per-node: '0' (expected"),
        (["--nproc-per-node", "gpu", __file__], "--nproc-per-node: gpu, but there is no GPU: "),
        (["--nproc-per-node"], "--nproc-per-node needs a value"),
        (["--master-port=0x50", __file__], "--master-port: '0x50' (expected a number"),
        (["--standalone=yes", __file__], "--standalone got a value"),
        (["-m", "--no-python", "x"], "got both"),
        (["missing.py"], "no such script: missing.py"),
        ([], "no script given"),
    ],
)
def test_usage_errors(args, message, capfd):
    assert run.main(args) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("pydist.run: ") and message in err


@pytest.mark.parametrize(
    "words, expected",
    [
        ("", {"local": 1, "hosts": 1, "host": 0, "address": "127.0.0.1", "port": 0, "world": 1, "first": 0}),
        ("--standalone --nproc_per_node=3 --nnodes 1:1", {"local": 3, "world": 3, "hosts": 1}),
        (
            "--nnodes=2 --node_rank=1 --nproc-per-node 2 --master_addr=a --master_port=7",
            {"world": 4, "first": 2, "address": "a", "port": 7},
        ),
        ("--nnodes=1:3 --node-rank 2 --master-addr a", {"hosts": 3, "first": 2, "port": options.PORT}),
        (
            "--rdzv-backend c10d --rdzv_endpoint=b:9 --rdzv-id=job7 --rdzv-conf=timeout=9 --max-restarts=0 --role=trainer",
            {"address": "b", "port": 9, "run_id": "job7", "role": "trainer"},
        ),
        (
            "--rdzv-endpoint=localhost --use-env --monitor-interval=5 --start-method=spawn --local-addr=x",
            {"address": "localhost", "port": 0},
        ),
        ("--insecure", {"insecure": True}),
    ],
)
def test_plans(words, expected, monkeypatch):
    monkeypatch.setenv("PYDIST_SECRET_FILE", "anything")
    plan = options.plan_from(*options.parse([*words.split(), __file__, "--nnodes=9"]))
    assert plan.command == (__file__, "--nnodes=9") and plan.run_id
    assert {name: getattr(plan, name) for name in expected} == expected


def test_console_script():
    path = os.path.join(ROOT, "pyproject.toml")
    if not os.path.exists(path):
        pytest.skip("not a checkout")
    with open(path) as file:
        module, _, name = re.search(r'^pydistrun = "(.*)"$', file.read(), re.M)[1].partition(":")
    assert getattr(importlib.import_module(module), name) is run.main


def test_help(capfd):
    assert run.main(["--help"]) == 0
    out = capfd.readouterr().out
    assert all(f"--{name}" in out for name, *_ in options.OPTIONS)


def test_program_that_cannot_start(tmp_path):
    code, out, err, seconds = launch("--no-python", "--nproc-per-node=2", tmp_path / "nothing")
    assert (code, out) == (127, "") and seconds < within(2)
    assert err == (f"pydist.run: cannot start rank 0: spawn: exec: {tmp_path}/nothing: No such file or directory\n")


# Output.


def test_lines_are_whole(script):
    path = script("""
        for i in range(300):
            for piece in ("a" * 40, "b" * 40, f" {i}\\n"):
                os.write(1 + i % 2, piece.encode())
    """)
    code, out, _, _ = launch("--nproc-per-node=4", path, stderr=subprocess.STDOUT)
    lines = out.splitlines()
    assert code == 0 and len(lines) == 1200
    for rank in range(4):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert sorted(mine) == sorted(f"[{rank}] " + "a" * 40 + "b" * 40 + f" {i}" for i in range(300))


def test_huge_output_and_long_lines(script):
    path = script("""
        block = b"x" * 99 + b"\\n"
        for _ in range(40): sys.stdout.buffer.write(block * 2500)
        sys.stdout.buffer.write(b"y" * (3 << 20) + b"\\n")
    """)
    code, out, err, _ = launch("--nproc-per-node=2", path, text=False)
    lines = out.split(b"\n")
    assert (code, err) == (0, b"")
    assert lines.count(b"[0] " + b"x" * 99) == lines.count(b"[1] " + b"x" * 99) == 100000
    long = [line for line in lines if line.startswith(b"[1] y")]
    assert sum(len(line) - 4 for line in long) == 3 << 20 and max(map(len, long)) < screen.LINE_MAX + (1 << 17)


def test_one_rank_is_byte_exact(script):
    path = script("os.write(1, bytes(range(256)) * 1000 + b'\\r\\n\\r  no end')\nos.write(2, b'Trace')")
    code, out, err, _ = launch(path, text=False)
    assert (code, out, err) == (0, bytes(range(256)) * 1000 + b"\r\n\r  no end", b"Trace")
    path = script("for i in range(500): os.write(1 + i % 2, b'%d ' % i)")
    assert launch(path, stderr=subprocess.STDOUT)[1].split() == [str(i) for i in range(500)]


def test_unfinished_lines_and_carriage_returns(script):
    path = script("""
        if rank:
            print("crlf", end="\\r\\n"); print("partial", end="")
        else:
            for i in range(3): print(f"\\r{i}0%", end="", flush=True); time.sleep(0.02)
            print("\\r100%"); os.write(2, b"bye")
    """)
    code, out, err, _ = launch("--nproc-per-node=2", path, text=False)
    assert sorted(out.split(b"\n")) == [b"", b"[0] 100%", b"[1] crlf", b"[1] partial"]
    assert (code, err) == (0, b"[0] bye\n")


def test_bar_on_a_terminal(script):
    path = script("""
        for i in range(20):
            if rank == 0: print(f"\\r{'#' * i:20}| {i}", end="", file=sys.stderr, flush=True)
            else: print("line", i)
            time.sleep(0.02)
        if rank == 0: print("\\r" + "#" * 20 + "| done", end="\\ngone\\r    \\r", file=sys.stderr, flush=True)
        if rank: time.sleep(0.1); print("line", i + 1)
    """)
    own, theirs = pty.openpty()
    with start("--nproc-per-node=2", path, stdout=theirs, stderr=theirs, env=environment(TERM="xterm")) as process:
        os.close(theirs)
        data = b""
        while select.select([own], [], [], 10)[0]:
            try:
                data += os.read(own, 4096)
            except OSError:
                break
        assert process.wait(timeout=10) == 0
    os.close(own)
    assert re.search(rb"\| [1-9]", data), "the bar moves while it is open"
    lines = [line.rstrip() for line in terminal(data.decode())]
    assert lines.pop() == "" and sorted(lines) == sorted(
        [f"[1] line {i}" for i in range(21)] + ["[0] " + "#" * 20 + "| done"]
    )


def test_slow_reader_hides_no_death(script):
    path = script("""
        if rank: time.sleep(0.2); os._exit(3)
        while True: print("x" * 1000)
    """)
    with start("--nproc-per-node=2", path) as process:  # nobody reads its stdout
        assert process.stderr.readline().startswith("pydist.run: rank 1 ")
        process.stdout.read()
        assert process.wait(timeout=5) == 3


def test_closed_reader_ends_the_workers(script):
    with start("--nproc-per-node=2", script("while True: print('x' * 1000)")) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=5) != 0


def test_caught_traceback_is_shown_in_time(script):
    path = script("""
        import traceback
        try: 1 / 0
        except ZeroDivisionError: traceback.print_exc()
        time.sleep(0.8)
        print("on", flush=True)
        time.sleep(5)
    """)
    with start(path) as process:
        assert process.stdout.readline() == "on\n"
        assert select.select([process.stderr], [], [], 0)[0]
        process.send_signal(signal.SIGINT)
        assert "ZeroDivisionError" in process.stderr.read()


def test_pipe_held_by_a_grandchild(script):
    path = script(
        "print('a'); subprocess.Popen(['sh', '-c', 'trap \"echo term; exit\" TERM; sleep 60 & wait'])\ntime.sleep(0.2)"
    )
    code, out, err, seconds = launch(path)
    assert (code, out, err) == (0, "a\nterm\n", "") and seconds < within(3)


# A rank that fails.


@pytest.mark.parametrize(
    "end, code, cause",
    [
        ("sys.exit(3)", 3, "exited with code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "died: SIGKILL (killed; out of memory?)"),
        ("os.abort()", 134, "died: SIGABRT (aborted)"),
    ],
)
def test_first_line_names_the_rank(script, end, code, cause):
    path = script(f"""
        class PeerFailed(RuntimeError): pass
        if rank == 1:
            print(os.getpid())
            time.sleep(0.1)
            {end}
        time.sleep(0.3)
        raise PeerFailed("rank 1 died")
    """)
    got, out, err, seconds = launch("--nproc-per-node=3", path)
    assert got == code and seconds < within(2)
    assert err == (
        f"pydist.run: rank 1 (pid {numbers(out)[0]}) {cause}\n"
        "pydist.run: ranks 0, 2 then raised PeerFailed: rank 1 died\n"
    )


def test_exception_after_its_peers(script):
    path = script("""
        class PeerFailed(RuntimeError): pass
        if rank == 1:
            time.sleep(0.3)
            raise ValueError("the cause\\nin two lines")
        try: raise PeerFailed("rank 1 died")
        except PeerFailed as error:
            if rank == 0: raise
            raise RuntimeError("wrapped") from error
    """)
    code, out, err, seconds = launch("--nproc-per-node=3", path)
    lines = err.splitlines()
    assert (code, out) == (1, "") and seconds < within(2)
    assert re.fullmatch(r"pydist\.run: rank 1 \(pid \d+\) raised ValueError: the cause", lines[0])
    assert lines[1] == "Traceback (most recent call last):" and lines.count(lines[1]) == 1
    assert err.count("in two lines") == 2  # the source line and the message
    assert lines[-2:] == [
        "pydist.run: rank 0 then raised PeerFailed: rank 1 died",
        "pydist.run: rank 2 then raised RuntimeError: wrapped",
    ]


def test_only_peer_failures(script):
    path = script("""
        class PeerFailed(RuntimeError): pass
        if rank == 0: raise PeerFailed("rank 1 left")
    """)
    code, _, err, _ = launch("--nproc-per-node=2", path)
    assert code == 1
    assert re.fullmatch(r"pydist\.run: rank 0 \(pid \d+\) raised PeerFailed: rank 1 left", err.splitlines()[0])


def test_same_bug_everywhere_is_shown_once(script):
    code, _, err, _ = launch("--nproc-per-node=4", script("undefined"))
    assert code == 1 and err.count("Traceback") == 1 and err.count("then raised NameError") == 1
    code, _, err, _ = launch("--nproc-per-node=2", script("def ("))
    assert code == 1 and err.count("    def (") == 1 and "raised SyntaxError" in err.splitlines()[0]


def test_clean_end_of_one_rank_is_fine(script):
    code, out, err, _ = launch("--nproc-per-node=2", script("time.sleep(0.3 * rank); print('done')"))
    assert (code, out, err) == (0, "[0] done\n[1] done\n", "")


@pytest.mark.slow
def test_others_end_though_they_ignore_sigterm(script):
    path = script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sh", "-c", "trap '' TERM INT; sleep 60; sleep 60"], process_group=0) \\
            if sys.version_info >= (3, 11) else subprocess.Popen(["sleep", "60"])
        print(os.getpid(), child.pid, flush=True)
        if rank == 2:
            time.sleep(0.3)
            os._exit(9)
        time.sleep(60)
    """)
    with start("--nproc-per-node=3", path) as process:
        pids = numbers("".join(read_lines(process, 3)))
        assert process.stderr.readline().startswith("pydist.run: rank 2 ")
        assert process.wait(timeout=10) == 9
        assert len(pids) == 6 and all_end(pids, 0)
        assert process.stderr.read() == "pydist.run: ranks 0-1 ended by the launcher (SIGKILL)\n"


SLEEPERS = """
    child = subprocess.Popen(["sleep", "60"])
    print(os.getpid(), child.pid, flush=True)
    def step():
        time.sleep(60)
    step()
"""


def test_nobody_outlives_a_killed_launcher(script):
    with start("--nproc-per-node=2", script(SLEEPERS)) as process:
        pids = numbers("".join(read_lines(process, 2)))
        process.kill()
        process.wait()
        assert len(pids) == 4 and all_end(pids, 2)


def test_ctrl_c(script):
    with start("--nproc-per-node=2", script(SLEEPERS)) as process:
        pids = numbers("".join(read_lines(process, 2)))
        time.sleep(0.1)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=5)
        assert process.returncode == 130 and time.monotonic() - begin < 2
        assert out == "" and len(err.splitlines()) <= 5 and "Traceback" not in err
        assert err == ("pydist.run: ended by SIGINT (Ctrl-C)\npydist.run: ranks 0-1 at script.py:7 in step\n")
        assert all_end(pids, 0)


@pytest.mark.parametrize("sig, code, twice", [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)])
@pytest.mark.slow
def test_signals_to_stubborn_workers(script, sig, code, twice):
    path = script("""
        count = 0
        def heard(*_):
            global count
            count += 1
            print("heard", count, flush=True)
        signal.signal(signal.SIGINT, heard), signal.signal(signal.SIGTERM, heard)
        print("ready", flush=True)
        while True: time.sleep(1)
    """)
    with start("--nproc-per-node=2", path) as process:
        read_lines(process, 2)
        begin = time.monotonic()
        process.send_signal(sig)
        assert sorted(read_lines(process, 2)) == ["[0] heard 1\n", "[1] heard 1\n"]
        if twice:
            process.send_signal(sig)
        err = process.communicate(timeout=10)[1]
        assert process.returncode == code and len(err.splitlines()) <= 5
        seconds = time.monotonic() - begin
        assert seconds < 1.9 if twice else 2 < seconds < 8


def test_ignored_sigint_stays_ignored(script):
    with start(
        script("print('ready', flush=True); time.sleep(0.5); print('done')"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=5) == ("done\n", "") and process.returncode == 0


def marked(mark):
    """The processes with this text in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                found += [pid] if mark in file.read() else []
        except OSError:
            pass
    return found


def test_many_runs_leave_nothing(script):
    path = script("time.sleep(0.3 if sys.argv[1:] else 0); sys.exit(7 * (rank and int(os.environ['FAIL'])))")
    mark = f"PYDIST_TEST_MARK={os.getpid()}-{time.time_ns()}"
    name, _, value = mark.partition("=")
    with start("--nproc-per-node=2", path, "wait", env=environment(FAIL="0", **{name: value})) as process:
        deadline = time.monotonic() + 10
        while len(marked(mark.encode())) < 4 and time.monotonic() < deadline:  # launcher, guard, two workers
            time.sleep(0.005)
        assert time.monotonic() < deadline and process.wait(timeout=10) == 0
    for i in range(20 if "FULL_LONG" in os.environ else 6):
        fail = i % 2
        code, out, _, _ = launch("--nproc-per-node=2", path, env=environment(FAIL=str(fail), **{name: value}))
        assert (code, out) == (7 * fail, "")
    assert marked(mark.encode()) == []


# Several hosts: launchers that pretend to be on different ones, so that their ranks meet over tcp only.


@pytest.fixture
def hosts(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []

    def begin(host, path, *options, secret=b"s" * 40, local=2):
        key = tmp_path / f"secret{host}"
        key.write_bytes(secret)
        key.chmod(0o600)
        env = environment(PYDIST_HOST=f"host{host}", PYDIST_SECRET_FILE=str(key))
        options += ("--nnodes=2", f"--node-rank={host}", f"--nproc-per-node={local}")
        process = start(*options, "--master-addr=127.0.0.1", f"--master-port={port}", path, env=env)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


MEET = """
    import pydist, pydist.distributed as dist
    def meet():
        x = pydist.tensor([float(rank)])
        dist.all_reduce(x)
        return x.item()
"""


def ends(process, timeout=20):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, sorted(out.splitlines()), err


def test_two_hosts(hosts, script):
    """Whichever starts first; host 0's launcher serves until the other host's ranks have left."""
    path = script(
        MEET
        + """
    names = "LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE".split()
    print(meet(), *(os.environ[name] for name in names))
    dist.destroy_process_group()
    if rank > 1:
        time.sleep(0.5)
        print("late")
    """
    )
    second = hosts(1, path)
    time.sleep(0.5)
    begin = time.monotonic()
    assert ends(hosts(0, path)) == (0, [f"[{r}] 6.0 {r} 0 4 2 2" for r in range(2)], "")
    assert time.monotonic() - begin > 0.4
    assert ends(second) == (0, sorted(f"[{r}] {text}" for r in (2, 3) for text in (f"6.0 {r - 2} 1 4 2 2", "late")), "")


def test_training_has_the_same_bits_on_one_host_and_on_two(hosts, script):
    path = script("""
    import hashlib, pydist
    from pydist import nn
    pydist.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 4)))
    adam = pydist.optim.Adam(model.parameters())
    for step in range(10):
        pydist.manual_seed(100 * step + rank)
        adam.zero_grad()
        model(pydist.randn(8, 20)).square().mean().backward()
        adam.step()
    print(hashlib.sha256(b"".join(p.numpy().tobytes() for p in (q.detach() for q in model.parameters()))).hexdigest())
    """)
    first, second = hosts(0, path), hosts(1, path)
    apart = {line.split()[1] for process in (first, second) for line in ends(process)[1]}
    together = {line.split()[1] for line in launch("--nproc-per-node=4", path)[1].splitlines()}
    assert len(together) == 1 and apart == together


PEER = r"rank [01] \(pid \d+\) raised .*PeerFailed: .*rank "


@pytest.mark.parametrize("end, here, there", [
    ("raise ValueError('bad')", "raised ValueError: bad", r"rank 2 \(on another host\) raised ValueError: bad"),
    ("os.kill(os.getpid(), 9)", "died: SIGKILL (killed; out of memory?)", PEER + "2"),
    ("sys.exit(5)", "exited with code 5", PEER + "2"),
])  # fmt: skip
def test_a_rank_of_another_host_ends(hosts, script, end, here, there):
    path = script(
        MEET
        + f"""
    meet()
    if rank == 2:
        time.sleep(0.2)
        {end}
    meet()
    """
    )
    begin = time.monotonic()
    processes = [hosts(0, path), hosts(1, path)]
    (code, _, err), (code_there, _, err_there) = map(ends, processes)
    assert time.monotonic() - begin < 10 and code != 0 and code_there != 0
    assert re.match(rf"pydist\.run: {there}", err), err
    assert re.match(rf"pydist\.run: rank 2 \(pid \d+\) {re.escape(here)}", err_there), err_there


def test_a_killed_launcher_of_host_0_ends_the_other_host(hosts, script):
    path = script(
        MEET
        + """
    while True:
        meet()
        print(os.getpid(), flush=True)
        time.sleep(0.05)
    """
    )
    first, second = hosts(0, path), hosts(1, path)
    pids = numbers("".join(read_lines(second, 4)))
    first.kill()
    assert second.wait(timeout=5) != 0 and all_end(pids, 0)


def test_another_secret_is_refused(hosts, script):
    path = script(MEET + "    dist.init_process_group(timeout=20)")
    first, second = hosts(0, path), hosts(1, path, secret=b"t" * 40)
    code, _, err = ends(second)
    assert code != 0 and "secret" in err.splitlines()[0], err
    first.send_signal(signal.SIGTERM)
    assert ends(first)[0] != 0


# The judge, alone.


class Server:
    def __init__(self, raised):
        self.raised = raised

    def first_raised(self):
        return self.raised


TRACE = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in step\n    f()\n{}\n'


@pytest.mark.parametrize(
    "raised, root",
    [
        ((1, TRACE.format("ValueError: bad")), "rank 1 (pid 11) raised ValueError: bad"),
        ((2, TRACE.format("pydist.distributed.PeerFailed: rank 0")), "rank 0 (pid 10) exited with code 3"),
        ((7, TRACE.format("ValueError: bad")), "rank 7 (on another host) raised ValueError: bad"),
        (None, "rank 0 (pid 10) exited with code 3"),
    ],
)
def test_first_raised_comes_from_the_server(raised, root):
    said = []
    report = Report(options.Plan(local=3), said.append)
    for rank in range(3):
        report.workers.append(worker.Worker(rank, 10 + rank, None, stream.Stream(rank, None, None, None, True)))
    report.failed = [report.workers[0]]
    report.workers[0].code, report.workers[0].cause = 3, "exited with code 3"
    report.server = Server(raised)
    report.judge()
    assert said[0] == "pydist.run: " + root and len(said) <= 2


def test_tracebacks_as_text():
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n".join(
        [TRACE.format("KeyError: 'x'"), TRACE.format("pydist.PeerFailed: rank 1\nmore")]
    )
    assert traces.exceptions(chained) == ["KeyError: 'x'", "pydist.PeerFailed: rank 1"]
    assert traces.is_peer_failed(chained) and not traces.is_peer_failed(TRACE.format("ValueError: PeerFailed"))
    assert traces.place(chained) == "train.py:3 in step"
    assert traces.exceptions("no traceback\n") == [] and traces.place("") is None
    group = (
        '  + Exception Group Traceback (most recent call last):\n  |   File "a", line 1, in b\n'
        "  | ExceptionGroup: two (2 sub-exceptions)\n"
    )
    assert traces.exceptions(group) == ["ExceptionGroup: two (2 sub-exceptions)"]
    assert traces.listed([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7-8" and traces.listed([3]) == "rank 3"


# What happens after a failure.


def test_keep_lets_the_others_go_on(tmp_path):
    script = tmp_path / "x.py"
    script.write_text("""
import os, sys, time
if os.environ["RANK"] == "0":
    sys.exit(3)
time.sleep(1.3)  # longer than GRACE
print("went on", flush=True)
if os.environ["RANK"] == "2":
    time.sleep(0.1)
    sys.exit(int(sys.argv[1]))
""")
    started = {code: start("--on-failure=keep", "--nproc-per-node=3", script, code) for code in (0, 7)}
    for code, process in started.items():
        out, err = process.communicate(timeout=60)
        assert process.returncode == code and out.count("went on") == 2
        assert "rank 0 (pid" in err and "exited with code 3" in err


@pytest.mark.parametrize("name", ["pydist.run", "pydist.distributed.run", "pydist.distributed.launch"])
def test_restarts_are_counted(tmp_path, name):
    script = tmp_path / "x.py"
    script.write_text("""
import os, sys
from pydist.distributed.elastic.multiprocessing.errors import record
@record
def main():
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(os.environ["RANK"], count, os.environ["TORCHELASTIC_MAX_RESTARTS"])
    sys.exit(5 if os.environ["RANK"] == "1" and count < int(sys.argv[1]) else 0)
main()
""")
    for bad, code in ((1, 0), (9, 5)) if name == "pydist.run" else ((1, 0),):
        ended = subprocess.run([sys.executable, "-m", name, "--max-restarts=1", "--nproc-per-node=2", script, str(bad)],
                               capture_output=True, text=True, timeout=60)  # fmt: skip
        assert ended.returncode == code and ended.stderr.count("restart 1 of 1") == 1
        assert "[1] 1 0 1" in ended.stdout and "[1] 1 1 1" in ended.stdout


@pytest.mark.parametrize("before", ["", "dist.barrier()"])
@pytest.mark.slow
def test_a_stopped_rank_does_not_keep_the_job(tmp_path, before):
    """Neither one that has joined nor one that has not."""
    script = tmp_path / "x.py"
    script.write_text(f"""
import os, signal
from pydist import distributed as dist
{before}
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
dist.barrier()
""")
    ended = subprocess.run([sys.executable, "-m", "pydist.run", "--nproc-per-node=2", script], capture_output=True,
                           env={**os.environ, "PYDIST_SILENT": "1.5"}, text=True, timeout=30)  # fmt: skip
    assert ended.returncode == 137 and "rank 1" in ended.stderr and "no longer responded" in ended.stderr
    assert before or re.search(r"init: rank 1 is stopped \(process \d+: SIGSTOP", ended.stderr)


LOGGED = """
import os, sys
print("out", os.environ["RANK"], flush=True)
print("err", os.environ["RANK"], file=sys.stderr, flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and len(sys.argv) > 1:
    raise KeyError("the reason")
"""


@pytest.mark.parametrize("arguments, files, shown", [
    ([], ["0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log"], ["err 0", "err 1", "out 0", "out 1"]),
    (["--tee", "1"], ["0/stdout.log", "1/stdout.log"], ["err 0", "err 1", "out 0", "out 1"]),
    (["-r", "3", "-t", "0"], ["0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log"], []),
    (["--redirects=1:1", "--tee=0:2"], ["0/stderr.log", "1/stdout.log"], ["err 0", "err 1", "out 0"]),
])  # fmt: skip
def test_files_per_rank(tmp_path, arguments, files, shown):
    script, logs = tmp_path / "x.py", tmp_path / "logs"
    script.write_text(LOGGED)
    ended = subprocess.run([sys.executable, "-m", "pydist.run", "--log-dir", logs, *arguments, "--rdzv-id=job",
                            "--nproc-per-node=2", script], capture_output=True, text=True, timeout=60)  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = {str(path.relative_to(logs / "job" / "attempt_0")): path.read_text() for path in logs.rglob("*.log")}
    assert found == {name: f"{'out' if 'out' in name else 'err'} {name[0]}\n" for name in files}
    assert sorted(line[4:] for line in (ended.stdout + ended.stderr).splitlines()) == shown


def test_files_of_each_attempt_and_the_cause_of_a_redirected_rank(tmp_path):
    script = tmp_path / "x.py"
    script.write_text(LOGGED)
    ended = subprocess.run([sys.executable, "-m", "pydist.run", "--log-dir", tmp_path, "-r", "3", "--max-restarts=1",
                            "--rdzv-id=job", script, "fail"], capture_output=True, text=True, timeout=60)  # fmt: skip
    assert ended.returncode == 0 and "raised KeyError: 'the reason'" in ended.stderr
    assert "KeyError" in (tmp_path / "job" / "attempt_0" / "0" / "stderr.log").read_text()
    assert (tmp_path / "job" / "attempt_1" / "0" / "stderr.log").read_text() == "err 0\n"


def test_files_that_cannot_be_written(tmp_path):
    script, no_folder = tmp_path / "x.py", tmp_path / "file"
    script.write_text(LOGGED)
    no_folder.write_text("")
    cases = (
        (["--log-dir", no_folder], 127, "cannot start rank 0"),
        (["-t", "3"], 2, "need --log-dir"),
        (["--log-dir", tmp_path, "-t", "1:1"], 2, "--tee: '1'"),
    )
    for arguments, code, error in cases:
        ended = subprocess.run([sys.executable, "-m", "pydist.run", *arguments, script], capture_output=True, text=True,
                               timeout=60)  # fmt: skip
        assert ended.returncode == code and error in ended.stderr


def test_the_most_ranks_are_one_number():
    """The launcher's, the guard's, the control server's, the hub's."""
    most = _C.RANKS_MAX
    assert most == options.RANKS_MAX
    for make in (_C.ControlServer, _C.Hub):
        with pytest.raises(ValueError, match=f"world is {most + 1} .expected 1 to {most}."):
            make(most + 1)
    with pytest.raises(ValueError, match="session_kill: sessions"):
        _C.session_kill([2**31 - 1] * (most + 1), 0)
    assert _C.session_kill([2**31 - 1] * most, 0) == 0
