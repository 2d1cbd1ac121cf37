"""Several hosts: network namespaces on one machine, each with a cable to a common router. Needs root and `ip`."""

import ast
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lib.sharded import train
from lib.transactions import QUIET, SCRIPT, replay
from pydist.testing import run_ranks

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))
from benchmarks.hosts import Hosts as Namespaces
from benchmarks.hosts import can_make_namespaces, ip

pytestmark = pytest.mark.skipif(not can_make_namespaces(), reason="no root or no `ip`: several hosts were NOT tested")


class Hosts(Namespaces):
    """Hosts on which launchers run a script."""

    def __init__(self, count, folder, on_failure="stop"):
        super().__init__(count)
        self.on_failure, self.folder, self.jobs = on_failure, folder, []
        self.secret = folder / "secret"
        self.secret.write_bytes(os.urandom(32))
        self.secret.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def plug_in_twice(self, host):
        """A second cable, which this host takes where it can."""
        cable, end = f"{self.tag}d{host}", f"{self.tag}f{host}"
        ip("link", "add", cable, "type", "veth", "peer", "name", end)
        ip("link", "set", cable, "netns", f"{self.tag}-router")
        ip("link", "set", end, "netns", f"{self.tag}-{host}")
        for where, device, address in (("router", cable, f"10.214.{host}.1"), (host, end, f"10.214.{host}.2")):
            self.inside(where, "ip", "address", "add", f"{address}/24", "dev", device)
            self.inside(where, "ip", "link", "set", device, "up")
        self.inside(host, "ip", "route", "del", "default")
        for metric, via in ((10, f"10.214.{host}.1"), (20, f"10.213.{host}.1")):
            self.inside(host, "ip", "route", "add", "default", "via", via, "metric", str(metric))
        self.inside(host, "sh", "-c", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 2 > $f; done")

    def __exit__(self, *error):
        for job in self.jobs:
            job.kill()
            job.wait()
            job.stdout.close()
        super().__exit__()

    def cut_cable(self, host, which="c"):
        self.inside("router", "ip", "link", "set", f"{self.tag}{which}{host}", "down")

    def launcher(self, host, path, ranks=2, args=()):
        words = [
            sys.executable, "-m", "pydist.run", "--nnodes", self.count, "--node-rank", host, "--nproc-per-node", ranks,
            "--master-addr", self.address(0), "--master-port", self.port, "--on-failure", self.on_failure, path, *args,
        ]  # fmt: skip
        return [*self.command(host), *map(str, words)]

    def start(self, script, ranks=2, args=(), **env):
        """A launcher on every host, host 0's last."""
        path = self.folder / "script.py"
        path.write_text(script)
        shared = {"PYTHONPATH": str(TOP), "PYDIST_SECRET_FILE": str(self.secret), "OUT": str(self.folder)}
        env = {**os.environ, **shared, **env}
        for host in reversed(range(self.count)):
            command = self.launcher(host, path, ranks, args)
            job = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.jobs.insert(0, job)

    def finish(self, timeout=60):
        """[(exit code, output)] by host."""
        outputs = [job.communicate(timeout=timeout)[0] for job in self.jobs]
        return [(job.returncode, text) for job, text in zip(self.jobs, outputs)]

    def said(self):
        return [json.loads((self.folder / f"rank{r}").read_text()) for r in range(2 * self.count)]

    def ended(self):
        return [(job.poll(), job.stdout.read() if job.poll() is not None else "goes on") for job in self.jobs]

    def wait_for(self, name):
        end = time.monotonic() + 30
        while not (self.folder / name).exists():
            assert time.monotonic() < end, f"{name} did not come: {self.ended()}"
            time.sleep(0.02)


HEAD = """
import json, os, socket, time
import pydist
from pydist import distributed as dist, nn, optim
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()

def say(**what):
    with open(os.path.join(os.environ["OUT"], f"rank{rank}"), "w") as file:
        json.dump({"rank": rank, **what}, file)
"""

WORK = """
x = (pydist.arange(100_000).double() * 0.3 + rank).sin().float()
y, z = x.clone(), x.clone()
dist.all_reduce(y)
dist.broadcast(z, world - 1)
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
pydist.manual_seed(0)
data, labels = pydist.randn(96, 8), pydist.randint(0, 3, (96,))
part = 96 // world
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = optim.SGD(model.parameters(), lr=0.2)
for _ in range(5):
    optimizer.zero_grad()
    here = slice(rank * part, rank * part + part)
    nn.functional.cross_entropy(model(data[here]), labels[here]).backward()
    optimizer.step()
weights = [p.double().sum().item().hex() for p in model.parameters()]
say(sum=y.double().sum().item().hex(), sent=z.double().sum().item().hex(), objects=objects, weights=weights,
    transport=dist.group.WORLD.transport)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("count", [2, 3])
def test_the_bits_of_one_host(count, tmp_path):
    with Hosts(count, tmp_path) as hosts:
        hosts.start(HEAD + WORK)
        for code, text in hosts.finish():
            assert code == 0, text
        far = hosts.said()
    script = tmp_path / "script.py"
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(2 * count), str(script)]
    subprocess.run(command, check=True, env={**os.environ, "OUT": str(tmp_path)}, timeout=60)
    near = hosts.said()
    assert {one.pop("transport") for one in far} == {"tcp"} and {one.pop("transport") for one in near} == {"shm"}
    assert far == near


SHARDED_MODELS = """
import sys
sys.path.insert(0, os.path.join(os.environ["PYTHONPATH"].split(os.pathsep)[0], "tests"))
from lib.sharded_models import assert_same, gpt, reference, sharded, train
from pydist.distributed.device_mesh import init_device_mesh

def sync(model, on):
    model.set_requires_gradient_sync(on)

kinds = {}
for parts in (1, 2):
    expected = reference(parts=parts, clip=0.3)
    for name, shape in {"windows": None, "replicas": (2, 2)}.items():
        mesh = None if shape is None else init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        model = sharded(gpt(), mesh=mesh)
        assert_same(model, *train(model, model.parameters(), parts=parts, clip=0.3, sync=sync), expected)
        kinds[name] = model._fsdp.unit.kind
say(kinds=kinds, bits=[loss.hex() for loss in expected[0]], transport=dist.group.WORLD.transport)
dist.destroy_process_group()
"""


def test_the_bits_of_sharded_models(tmp_path):
    """Over hosts wholes are gathered into windows; shards inside of a host, replicas between hosts: nothing is gathered."""
    with Hosts(2, tmp_path) as hosts:
        hosts.start(HEAD + SHARDED_MODELS)
        for code, text in hosts.finish():
            assert code == 0, text
        for one in hosts.said():
            assert one["kinds"] == {"windows": "gathered", "replicas": "common"} and one["transport"] == "tcp"


def test_two_cables_of_which_one_is_dead(tmp_path):
    """Host 1's routes lead into it: its ranks find the living one, by probing or by its name."""
    with Hosts(2, tmp_path) as hosts:
        hosts.plug_in_twice(1)
        hosts.cut_cable(1, "d")
        for name in (None, f"{hosts.tag}e"):
            env = {"PYDIST_LOG": "2", **({"GLOO_SOCKET_IFNAME": name} if name else {})}
            begin = time.monotonic()
            hosts.start(HEAD + WORK, ranks=1, **env)
            (code, first), (code_1, second) = hosts.finish()
            assert (code, code_1) == (0, 0), first + second
            assert time.monotonic() - begin < 6
            why = "named by GLOO_SOCKET_IFNAME" if name else "the interface of this host's routing table did not answer"
            for line in ("control: rank 1 reaches the server at", "tcp: rank 1 reaches rank 0 at"):
                found = next(text for text in second.splitlines() if line in text)
                assert f"({hosts.tag}e1): {why}" in found, second
            hosts.jobs.clear()
        env = {**os.environ, "PYTHONPATH": str(TOP), "PYDIST_SECRET_FILE": str(hosts.secret), "PYDIST_IFACE": "none"}
        command = hosts.launcher(1, tmp_path / "script.py", ranks=1)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode and "PYDIST_IFACE=none matches no network interface (expected some of: " in done.stderr


@pytest.mark.slow
def test_two_hosts_that_cannot_reach_each_other(tmp_path):
    """pydist.doctor names the pair, though both reach host 0."""
    with Hosts(3, tmp_path) as hosts:
        hosts.inside(2, "ip", "route", "add", "unreachable", "10.213.1.0/24")
        words = [
            "--hosts", "0:1,1:1,2:1", "--ssh", f"ip netns exec {hosts.tag}-{{host}} sh -c", "--master-addr",
            hosts.address(0), "-m", "pydist.doctor", "--timeout", "2",
        ]  # fmt: skip
        command = [sys.executable, "-m", "pydist.run", *words]
        env = {**os.environ, "PYTHONPATH": str(TOP)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode
        firsts = [line for line in done.stdout.splitlines() if ": init: rank 2 cannot reach rank 1 at any of " in line]
        assert any(line.startswith("[2] problem: pairs: rank 2 on ") for line in firsts), done.stdout + done.stderr


LOOP = """
x = pydist.ones(1000)
begin = time.monotonic()
try:
    for i in range(100_000):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        if i == 50:
            open(os.path.join(os.environ["OUT"], f"going{rank}"), "w").close()
        begin = time.monotonic()
except dist.DistError as error:
    say(kind=type(error).__name__, text=str(error), waited=time.monotonic() - begin)
    raise SystemExit(3)
"""


@pytest.mark.slow
def test_a_cut_cable(tmp_path):
    with Hosts(2, tmp_path) as hosts:
        hosts.start(HEAD + LOOP, PYDIST_SILENT="1.5", PYDIST_WARN="1")
        for rank in range(4):
            hosts.wait_for(f"going{rank}")
        begin = time.monotonic()
        hosts.cut_cable(1)
        ended = hosts.finish()
        assert time.monotonic() - begin < 20
        assert all(code != 0 for code, _ in ended), ended
        for one in hosts.said():
            assert one["waited"] < 15 and one["kind"] in ("PeerFailed", "DistError"), one
        assert any(one["kind"] == "PeerFailed" for one in hosts.said())


def test_survivors_have_the_bits_of_whole_steps(tmp_path):
    """All of host 0's ranks die at once, so that the others meet on host 1, and then another one."""
    plan = [QUIET, ((0, 1), "bucket"), QUIET, ((3,), "split"), QUIET]
    with Hosts(2, tmp_path, "keep") as hosts:
        hosts.start(SCRIPT, args=(repr(plan), "3", "-1", "0"))
        said = "".join(text for _, text in hosts.finish())
    lines = [ast.literal_eval(line.split("] ", 1)[-1]) for line in said.splitlines() if line.startswith("[2] (")]
    assert {line[0]: line for line in lines} == replay(plan, 4), said


SHARDED = """
import os, random, signal, sys, threading
sys.path.insert(0, os.path.join(os.environ["PYTHONPATH"].split(os.pathsep)[0], "tests"))
from lib.sharded import train

seed, me = int(sys.argv[1]), int(os.environ["RANK"])
chance = random.Random(seed)
victim, moment = chance.randrange(4), chance.uniform(0, 0.5)

def before(step, shard):
    global victim
    if me == victim:
        victim = -1
        threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()

print("sha", train("cnn", epochs=3, over=True, before=before)[0], flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("seed", range(1 + int(os.environ.get("FULL_DEATHS", 0)) // 5))
def test_a_death_changes_no_bit_of_logical_shards(tmp_path, seed):
    want = run_ranks(1, lambda rank: train("cnn", epochs=3))[0][0]
    with Hosts(2, tmp_path, "keep") as hosts:
        hosts.start(SHARDED, 2, (seed,))
        said = "".join(text for _, text in hosts.finish())
    found = {line.split("sha ", 1)[1] for line in said.splitlines() if "sha " in line}
    assert found == {want}, said


def test_strangers_at_the_ports(tmp_path):
    with Hosts(2, tmp_path) as hosts:
        hosts.start(HEAD + LOOP.replace("100_000", "6000"))
        hosts.wait_for("going0")
        knock = (
            "import socket, sys\n"
            "for garbage in (b'GET / HTTP/1.0\\r\\n\\r\\n' * 50, b'\\xff' * 5000, b''):\n"
            "    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as s:\n"
            "        s.sendall(garbage)\n"
            "print('knocked')"
        )
        done = hosts.inside(1, sys.executable, "-c", knock, hosts.address(0), str(hosts.port))
        assert done.stdout == "knocked\n"
        for code, text in hosts.finish():
            assert code == 0, text


def test_started_from_here(tmp_path):
    """--hosts, with a program that stands for ssh: each host is another network."""
    with Hosts(2, tmp_path) as hosts:
        script = tmp_path / "script.py"
        script.write_text(HEAD + WORK)
        words = [
            "--hosts", "0:2,1:1", "--ssh", f"ip netns exec {hosts.tag}-{{host}} sh -c", "--master-addr",
            hosts.address(0), script,
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": str(TOP), "OUT": str(tmp_path)}
        command = [sys.executable, "-m", "pydist.run", *map(str, words)]
        done = subprocess.run(["env", f"OUT={tmp_path}", *command], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        said = [json.loads((tmp_path / f"rank{r}").read_text()) for r in range(3)]
        assert [one["transport"] for one in said] == ["tcp"] * 3 and len({one["sum"] for one in said}) == 1


def test_another_secret_is_refused(tmp_path):
    with Hosts(2, tmp_path) as hosts:
        other = tmp_path / "other"
        other.write_bytes(os.urandom(32))
        other.chmod(0o600)
        hosts.start(HEAD + WORK)
        hosts.jobs[1].kill()
        env = {**os.environ, "PYTHONPATH": str(TOP), "PYDIST_SECRET_FILE": str(other), "OUT": str(tmp_path)}
        command = hosts.launcher(1, tmp_path / "script.py")
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and "secret" in done.stdout + done.stderr
