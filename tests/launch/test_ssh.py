"""--hosts: a job on several hosts that is started from one terminal, with a program that stands for ssh: it gives the
line to a shell in a session and an environment of its own, as a far host would."""

import os
import re
import signal
import time

import pytest

from lib.processes import all_end, environment, launch, own_lines, start, within
from pydist._launch import hosts, options

HEAD = """
import os, sys, time
import pydist
from pydist import distributed as dist
rank = int(os.environ["RANK"])
x = pydist.ones(1)
dist.all_reduce(x)
"""
TWO = "127.0.0.1:2,127.0.0.2"  # the second: --nproc-per-node, 1


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(HEAD + text)
        return path

    return write


def test_environment_folder_and_secret(ssh, script, tmp_path):
    path = script("""
names = "LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE PYDIST_HOST OMP_NUM_THREADS PYDIST_ODD".split()
print(x.item(), *(os.environ[name] for name in names), os.getcwd() == sys.argv[1], sys.argv[2])
assert not set(os.environ) & {"PYDIST_SECRET_FILE", "NOT_OURS"}
""")
    env = environment(OMP_NUM_THREADS="1", PYDIST_ODD="a 'b'", NOT_OURS="1", PYDIST_SECRET_FILE="/none")
    code, out, err, _ = launch("--hosts", TWO, "--ssh", ssh, path, tmp_path, "it's", cwd=tmp_path, env=env)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        f"[{rank}] 3.0 {local} {ranks} {host} 2 127.0.0.{host + 1} 1 a 'b' True it's"
        for rank, (local, ranks, host) in enumerate([(0, 2, 0), (1, 2, 0), (0, 1, 1)])
    ]
    log = (tmp_path / "ssh.log").read_text()
    assert log.count("--by-ssh") == 2 and not re.search("[0-9a-f]{40}", log)  # the secret went another way


def test_a_failing_rank(ssh, script):
    path = script("if rank == 1:\n    sys.exit(5)\ndist.barrier()\n")
    code, _, err, _ = launch("--hosts", TWO, "--ssh", ssh, path)
    assert code == 5 and re.search(r"^pydist\.run: 127\.0\.0\.1: rank 1 \(pid \d+\) exited with code 5$", err, re.M)
    assert "pydist.run: 127.0.0.2: rank 2 (pid" in err


@pytest.mark.parametrize("what", ["starter", "launcher", "ssh", "Ctrl-C"])
def test_the_end_of_one_is_the_end_of_all(ssh, script, what):
    path = script("print('pids', os.getpid(), os.getppid(), flush=True)\ntime.sleep(60) if rank else dist.barrier()\n")
    with start("--hosts", "127.0.0.1,127.0.0.2", "--ssh", ssh, path) as process:
        lines = sorted(process.stdout.readline() for _ in range(2))
        pids = [int(word) for line in lines for word in line.split()[2:]]
        if what == "starter":
            process.kill()
        elif what == "launcher":
            os.kill(pids[3], signal.SIGKILL)
        elif what == "ssh":
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                children = [int(pid) for pid in file.read().split()]
            os.killpg(children[-1], signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        _, err = process.communicate(timeout=20)
        assert all_end(pids, 5) and time.monotonic() - begin < 6
        if what == "Ctrl-C":
            assert process.returncode == 130 and own_lines(err)[-1] == "pydist.run: ended by SIGINT (Ctrl-C)"
            assert "pydist.run: 127.0.0.2: rank 1 at script.py:" in err
        elif what != "starter":
            assert process.returncode == 137 and "pydist.run: host 127.0.0.2: " in err


def test_a_host_that_cannot_be_reached(tmp_path):
    for ssh, code, text in (("false", 1, ""), (tmp_path / "none", 127, "cannot start"),
                            ("sh -c 'exit 255' {host}", 255, "host b: no connection")):  # fmt: skip
        got, _, err, seconds = launch("--hosts", "b:2", "--ssh", ssh, "x.py")
        assert got == code and text in err and seconds < within(3)


def parsed(*words):
    return options.host_list(options.parse([*words, "x.py"])[0], 3)


def test_lists_of_hosts(tmp_path):
    assert parsed("--hosts", "a:2,user@b:1,c,[::1]:4") == (("a", "user@b", "c", "[::1]"), (2, 1, 3, 4))
    assert hosts.ssh_argv("/bin/ssh -p 22", "user@b", "x y") == ["/bin/ssh", "-p", "22", "user@b", "x y"]
    assert options.bare("user@[::1]") == "::1" and options.bare("b") == "b"
    path = tmp_path / "hosts"
    path.write_text("# two\na slots=2\n\nb:4 # big\nc\nd 5 max_slots=6\n")
    assert parsed("--hostfile", str(path)) == (("a", "b", "c", "d"), (2, 4, 3, 5))
    for words in (("--hosts", "a:0"), ("--hosts", "a:b"), ("--hosts", ","), ("--hostfile", "/none"),
                  ("--hosts", "a", "--hostfile", str(path))):  # fmt: skip
        with pytest.raises(options.UsageError):
            parsed(*words)
