"""The contract of collectives: where ranks differ in what they call, every rank gets an error that names it, at once, with
its data untouched; and the processes can form a group again."""

import itertools
import os
import subprocess
import sys
import time

import pytest

import pydist
from lib.processes import shared_files
from pydist import distributed as dist

WORLD = 3
BOUND = 1.0  # seconds for a run of three threads; the error itself takes well under 100 ms


class Call:
    """One collective with its arguments; `run` performs it and returns the tensors that it may write to."""

    def __init__(self, name, **given):
        self.name = name
        self.given = {"dtype": pydist.float32, "count": 6, "op": dist.ReduceOp.SUM, "root": 0, **given}

    def __str__(self):
        return self.name

    def but(self, **given):
        return Call(given.pop("name", self.name), **{**self.given, **given})

    def tensors(self, rank):
        """(written, read): filled so that any change shows."""
        n, dtype, name = self.given["count"], self.given["dtype"], self.name
        sizes = {
            "all_reduce": (n, 0), "reduce": (n, 0), "broadcast": (n, 0), "barrier": (0, 0),
            "all_gather_into_tensor": (n * WORLD, n), "reduce_scatter_tensor": (n, n * WORLD),
            "all_gather": (n * WORLD, n), "gather": (n * WORLD, n), "scatter": (n, n * WORLD),
            "all_to_all_single": (n * WORLD, n * WORLD),
        }  # fmt: skip
        written, read = sizes[name]
        return pydist.full((written,), 3 + rank).to(dtype), pydist.full((read,), 7 + rank).to(dtype)

    def run(self, rank, out, given, group=None):
        """`rank` and the root count as the group does."""
        op, root = self.given["op"], self.given["root"]
        n = self.given["count"]
        at = dist.get_global_rank(group or dist.group.WORLD, root)

        def parts(tensor):
            return [tensor[i * n : (i + 1) * n] for i in range(WORLD)] if rank == root else None

        match self.name:
            case "all_reduce":
                dist.all_reduce(out, op, group)
            case "reduce":
                dist.reduce(out, at, op, group)
            case "broadcast":
                dist.broadcast(out, at, group)
            case "barrier":
                dist.barrier(group)
            case "all_gather_into_tensor":
                dist.all_gather_into_tensor(out, given, group)
            case "all_gather":
                dist.all_gather([out[i * n : (i + 1) * n] for i in range(WORLD)], given, group)
            case "reduce_scatter_tensor":
                dist.reduce_scatter_tensor(out, given, op, group)
            case "gather":
                dist.gather(given, parts(out), at, group)
            case "scatter":
                dist.scatter(out, parts(given), at, group)
            case "all_to_all_single":
                dist.all_to_all_single(out, given, group=group)


BASE = {
    name: Call(name)
    for name in (
        "all_reduce reduce broadcast barrier all_gather_into_tensor all_gather reduce_scatter_tensor gather scatter "
        "all_to_all_single"
    ).split()
}
WITH_OP = ("all_reduce", "reduce", "reduce_scatter_tensor")
WITH_ROOT = ("reduce", "broadcast", "gather", "scatter")


def differences():
    """(kind, what ranks 0 and 2 call, what rank 1 calls)."""
    for name, call in BASE.items():
        if name != "barrier":
            yield "dtype of another size", call, call.but(dtype=pydist.float64)
            yield "dtype of the same size", call, call.but(dtype=pydist.int32)
            yield "count", call, call.but(count=7)
            yield "no elements", call, call.but(count=0)
            yield "count and dtype, equal bytes", call, call.but(dtype=pydist.float64, count=3)
        if name in WITH_OP:
            yield "reduce operation", call, call.but(op=dist.ReduceOp.MAX)
            yield "sum and average", call, call.but(op=dist.ReduceOp.AVG)
        if name in WITH_ROOT:
            yield "root", call, call.but(root=1)
    for one, other in itertools.permutations(BASE.values(), 2):
        if {one.name, other.name} != {"all_gather", "all_gather_into_tensor"}:  # the same operation
            yield "operation", one, other


CASES = list(differences())


@pytest.mark.parametrize("kind, usual, odd", CASES, ids=[f"{kind}: {a} - {b}" for kind, a, b in CASES])
def test_a_difference_is_an_error_on_every_rank(kind, usual, odd):
    def work(rank):
        dist.barrier()
        call = odd if rank == 1 else usual
        out, given = call.tensors(rank)
        before = out.tolist(), given.tolist()
        begin = time.perf_counter()
        with pytest.raises(dist.CommMismatch) as caught:
            call.run(rank, out, given)
        took = time.perf_counter() - begin
        with pytest.raises(dist.DistError):  # the group is poisoned: at once, with the first text
            dist.all_reduce(pydist.ones(2))
        return str(caught.value), took, before == (out.tolist(), given.tolist())

    begin = time.perf_counter()
    results = dist.threads.run(work, WORLD)
    assert time.perf_counter() - begin < 5 * BOUND
    for text, took, untouched in results:
        assert untouched and took < BOUND
        assert "rank 1" in text and "test_contract.py:" in text


OTHERS = {"barrier": "all_reduce"}  # what the odd rank calls where arguments do not differ
IN_GROUPS = [(call, call.but(count=5) if name not in OTHERS else BASE[OTHERS[name]]) for name, call in BASE.items()]
IN_GROUPS += [(BASE[name], BASE[name].but(root=1)) for name in WITH_ROOT]
IN_GROUPS += [(BASE[name], BASE[name].but(op=dist.ReduceOp.MAX)) for name in WITH_OP]


@pytest.mark.parametrize("usual, odd", IN_GROUPS, ids=lambda call: f"{call} {call.given['root']} {call.given['op']}")
def test_a_difference_in_a_subgroup_ends_only_that(usual, odd):
    members = [0, 2, 3]

    def work(rank):
        group = dist.new_group(members)
        if rank in members:
            call = odd if rank == 2 else usual
            out, given = call.tensors(rank)
            before = out.tolist(), given.tolist()
            with pytest.raises(dist.CommMismatch, match="rank 2: (?s:.*)test_contract.py:"):
                call.run(members.index(rank), out, given, group)
            assert before == (out.tolist(), given.tolist())
        x = pydist.ones(3)
        dist.all_reduce(x)  # the others are in the world's group only, which goes on
        return x.tolist()

    assert dist.threads.run(work, 4) == [[4.0] * 3] * 4


MESSAGES = [{"dtype": pydist.float64}, {"dtype": pydist.int32}, {"count": 7}, {"count": 0},
            {"dtype": pydist.float64, "count": 3}]  # fmt: skip


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("odd", MESSAGES, ids=str)
def test_a_receive_that_does_not_fit_is_an_error_on_every_rank(odd, asynchronous):
    def work(rank):
        dist.barrier()
        usual = pydist.full((6,), 3.0)
        got = pydist.full((odd.get("count", 6),), 9).to(odd.get("dtype", pydist.float32))
        before = got.tolist()
        begin = time.perf_counter()
        with pytest.raises(dist.CommMismatch, match=r"recv(?s:.*)rank 0 called send\(float32\[6\]") as caught:
            if rank == 0:
                dist.isend(usual, 1).wait() if asynchronous else dist.send(usual, 1)
            elif rank == 1:
                dist.irecv(got, 0).wait() if asynchronous else dist.recv(got, 0)
            dist.barrier()  # a send may be done before, and the third rank has no part in it
        assert time.perf_counter() - begin < BOUND
        assert "test_contract.py:" in str(caught.value) and got.tolist() == before
        with pytest.raises(dist.DistError):
            dist.send(usual, 1 - rank if rank < 2 else 0)

    dist.threads.run(work, WORLD)


def test_a_difference_found_by_a_wait():
    def work(rank):
        x = pydist.ones(4 + (rank == 1))
        works = [dist.all_reduce(pydist.ones(2), async_op=True)]
        with pytest.raises(dist.CommMismatch, match=r"float32\[5\]"):  # by a call already, where the others came first
            works.append(dist.all_reduce(x, async_op=True))
            if rank:
                works.append(dist.all_reduce(pydist.ones(3), async_op=True))
            for w in works[1:]:
                w.wait()
        return x.sum().item()

    assert dist.threads.run(work, WORLD) == [4.0, 5.0, 4.0]


@pytest.mark.parametrize("name", sorted(BASE))
def test_a_rank_that_returns_early_is_named(name):
    def work(rank):
        dist.barrier()
        if rank == 1:
            return None
        out, given = BASE[name].tensors(rank)
        before = out.tolist(), given.tolist()
        begin = time.perf_counter()
        with pytest.raises(dist.PeerFailed, match="rank 1"):
            BASE[name].run(rank, out, given)
            BASE[name].run(rank, out, given)  # what one rank only sends may notice at the next call
        return time.perf_counter() - begin, before == (out.tolist(), given.tolist())

    for took, untouched in filter(None, dist.threads.run(work, WORLD)):
        assert took < BOUND
        assert untouched or name in ("broadcast", "scatter", "gather", "reduce")  # a root that was there has delivered


@pytest.mark.parametrize("name", sorted(BASE))
def test_a_rank_that_raises_ends_the_others_waits(name):
    def work(rank):
        dist.barrier()
        if rank == 1:
            raise KeyError("the reason")
        out, given = BASE[name].tensors(rank)
        begin = time.perf_counter()
        with pytest.raises(dist.PeerFailed, match="rank 1(?s:.*)the reason"):
            BASE[name].run(rank, out, given)
            BASE[name].run(rank, out, given)
        assert time.perf_counter() - begin < BOUND

    with pytest.raises(KeyError, match="the reason"):
        dist.threads.run(work, WORLD)


def test_a_tensor_met_by_an_object():
    def work(rank):
        with pytest.raises(dist.CommMismatch):
            if rank == 1:
                dist.broadcast_object_list([None], 0)
            else:
                dist.all_reduce(pydist.ones(4))

    dist.threads.run(work, WORLD)


# Deaths at random moments, in processes.

DEATH = """
import os, random, signal, sys, threading, time
import pydist
from pydist import _C, distributed as dist

seed, clock = int(sys.argv[1]), sys.argv[2]
random = random.Random(seed)
world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
victim, how, moment = random.randrange(world), random.choice(sys.argv[3].split()), random.uniform(0, 0.3)
sizes = [random.choice((1, 1000, 20_000, 300_000)) for _ in range(50)]
before = len(os.listdir("/proc/self/fd"))

def die():
    with open(clock, "w") as file:
        file.write(str(time.monotonic()))
    if how in ("SIGKILL", "SIGSTOP"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)  # a stop may take effect a moment later
    os._exit(3)

dist.barrier()
end = time.monotonic() + moment
if rank == victim and how in ("SIGKILL", "SIGSTOP", "exit"):
    threading.Timer(moment, die).start()
try:
    for step in range(10 ** 9):
        if rank == victim and how in ("return", "raise") and time.monotonic() > end:
            with open(clock, "w") as file:
                file.write(str(time.monotonic()))
            if how == "raise":
                raise KeyError("the reason")
            sys.exit()
        works = [dist.group.WORLD.all_reduce(pydist.ones(size), async_op=True) for size in sizes[:step % 4]]
        dist.broadcast(pydist.ones(sizes[step % 50]), step % world)
        for work in works:
            work.wait()
        dist.all_reduce(pydist.ones(sizes[step % 50]))
except dist.PeerFailed as failed:
    took = time.monotonic() - float(open(clock).read())
    assert failed.rank == victim, failed
dist.destroy_process_group()
_C.comm_leave()
assert len(os.listdir("/proc/self/fd")) <= before
print(f"survived {took:.2f}", flush=True)
"""
SILENT = 2  # seconds after which a stopped rank counts as dead in these tests


def relatives(mark):
    """Processes that have this text in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found.append(int(pid))
        except OSError:
            continue  # it has ended, or is not ours
    return found


@pytest.mark.parametrize("seed", range(int(os.environ.get("FULL_DEATHS", 6))))
def test_deaths_at_random_moments(tmp_path, seed):
    script, clock, mark = tmp_path / "deaths.py", tmp_path / "clock", f"mark-{os.getpid()}-{seed}-{time.monotonic_ns()}"
    script.write_text(DEATH)
    world = 2 + seed % 3
    hows = "SIGSTOP" if seed % 10 == 9 else "SIGKILL exit return raise"
    shared = shared_files()
    ended = subprocess.run(
        [sys.executable, "-m", "pydist.run", f"--nproc-per-node={world}", script, str(seed), clock, hows],
        env={**os.environ, "MARK": mark, "PYDIST_SILENT": str(SILENT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    took = [float(line.split()[-1]) for line in ended.stdout.splitlines() if "survived" in line]
    assert len(took) == world - 1, ended.stderr
    assert max(took) < (SILENT + 3 * BOUND if hows == "SIGSTOP" else 2 * BOUND)
    assert relatives(mark) == [] and shared_files() == shared


def test_survivors_go_on_without_the_dead(tmp_path):
    script = tmp_path / "shrink.py"
    script.write_text("""
import os, signal
import pydist
from pydist import distributed as dist

dist.init_process_group()
dead = []
for victim in (2, 0):  # by the numbers of each time
    dist.barrier()
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(pydist.ones(1000))
            dist.barrier()
    except dist.PeerFailed as failed:
        assert failed.rank == victim, failed
        rank, world = dist.get_rank(), dist.get_world_size()
        if victim == 2:  # the launcher's store still answers, also for what is there already, and others can form groups
            dist.group.WORLD.store.set(f"key {rank}", "there")
            assert dist.group.WORLD.store.get(f"key {rank}", 1) == b"there"
            x = pydist.ones(2)
            dist.all_reduce(x, group=dist.new_group([0, 1, 3], use_local_synchronization=True))
            assert x.tolist() == [3, 3]
        for bad in ([], [world], [rank], ["x"], 3, [-1]):
            try:
                dist.shrink_group(bad)
            except (TypeError, ValueError) as error:
                assert "shrink_group" in str(error)
            else:
                raise AssertionError(bad)
        group = dist.shrink_group([victim])
        assert group is dist.group.WORLD and dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size()) == (rank - (rank > victim), world - 1)
    x = pydist.full((5,), float(dist.get_rank()))
    dist.all_reduce(x)
    assert x.tolist() == [sum(range(world - 1))] * 5
print("went on", dist.get_rank(), flush=True)
""")
    ended = subprocess.run([sys.executable, "-m", "pydist.run", "--on-failure=keep", "--nproc-per-node=4", script],
                           capture_output=True, text=True, timeout=60)  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert sorted(line[4:] for line in ended.stdout.splitlines()) == ["went on 0", "went on 1"], ended.stderr


def test_survivors_without_a_launcher(tmp_path):
    """Rank 0 keeps the books, and dies last."""
    script = tmp_path / "alone.py"
    script.write_text("""
import os, signal, sys
import pydist
from pydist import distributed as dist

me = int(sys.argv[1])
dist.init_process_group(init_method=f"file://{sys.argv[2]}", rank=me, world_size=4)
for victim in (3, 1, 0):
    dist.barrier()
    if me == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.barrier()
    except dist.PeerFailed:
        dist.shrink_group()
    x = pydist.ones(3)
    dist.all_reduce(x)
    print(x[0].item(), flush=True)
""")
    ranks = [subprocess.Popen([sys.executable, script, str(rank), tmp_path / "meet"], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for rank in range(4)]  # fmt: skip
    out, errors = ranks[2].communicate(timeout=30)
    assert out.split() == ["3.0", "2.0", "1.0"] and ranks[2].returncode == 0, errors
    assert [rank.communicate(timeout=30)[0].split() for rank in (ranks[0], ranks[1], ranks[3])] == [
        ["3.0", "2.0"],
        ["3.0"],
        [],
    ]


@pytest.mark.skipif("FULL_LONG" not in os.environ, reason="takes long: .ci/full runs it")
def test_a_rank_that_was_given_up_does_not_come_back(tmp_path):
    script = tmp_path / "back.py"
    script.write_text("""
import os, signal
import pydist
from pydist import distributed as dist

dist.init_process_group()
pids = [None] * 3
dist.all_gather_object(pids, os.getpid())
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    dist.barrier()
    dist.barrier()
except dist.PeerFailed as failed:
    dist.shrink_group()
    os.kill(pids[1], signal.SIGCONT)
    dist.barrier()
    print("went on", flush=True)
""")
    begin = time.monotonic()
    ended = subprocess.run([sys.executable, "-m", "pydist.run", "--on-failure=keep", "--nproc-per-node=3", script],
                           env={**os.environ, "PYDIST_SILENT": "3"}, capture_output=True, text=True, timeout=60)  # fmt: skip
    assert ended.stdout.count("went on") == 2, ended.stderr
    assert "rank 1" in ended.stderr and time.monotonic() - begin < 12
