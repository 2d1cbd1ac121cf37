"""The default group: alone, under the launcher, in threads; what bad settings say; how an end reaches the others."""

import os
import socket
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest

import pydist
from pydist import distributed as dist
from pydist import multiprocessing as mp

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PYDIST_CONTROL", "PYDIST_SECRET_FD")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launch(tmp_path):
    def run(text, ranks=2, *options):
        path = tmp_path / "script.py"
        path.write_text("import sys, pydist\nfrom pydist import distributed as dist\n" + textwrap.dedent(text))
        command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(ranks), *options, str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


# A world of one.


def test_alone_without_init():
    assert (dist.get_rank(), dist.get_world_size(), dist.is_available(), dist.is_initialized()) == (0, 1, True, False)
    x = pydist.arange(3.0)
    for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        assert dist.all_reduce(x, getattr(dist.ReduceOp, op)) is None
    dist.broadcast(x, 0)
    dist.broadcast(x, group_src=0)
    dist.barrier()
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() and work.is_completed()
    assert x.tolist() == [0, 1, 2] and not dist.is_initialized()


def test_init_and_destroy():
    dist.destroy_process_group()
    for backend, name in ((None, "native"), ("gloo", "gloo"), ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl")):
        dist.init_process_group(backend, timeout=timedelta(seconds=20))
        assert dist.is_initialized() and dist.get_backend() == name and dist.group.WORLD.size == 1
        assert dist.get_rank(dist.group.WORLD) == 0 and dist.get_world_size(dist.group.WORLD) == 1
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group()
        dist.destroy_process_group()
        assert not dist.is_initialized()
    dist.barrier()  # makes a group on demand, which a later init takes over
    group = dist.group.WORLD
    with pytest.raises(
        ValueError, match="rank=0, world_size=2, but an earlier collective has made the group with rank 0 of 1"
    ):
        dist.init_process_group(world_size=2, rank=0)
    dist.init_process_group("gloo", rank=0, world_size=1, init_method="tcp://127.0.0.1:29500")
    assert dist.group.WORLD is group


@pytest.mark.parametrize(
    "env, arguments, kind, message",
    [
        ({}, {"backend": "nccl"}, RuntimeError, "backend 'nccl': (there is no CUDA device|NCCL: )"),
        ({}, {"backend": "cpu:nccl"}, ValueError, "nccl is for cuda"),
        ({}, {"backend": "smoke"}, ValueError, "unknown backend 'smoke'"),
        ({}, {"world_size": 2}, ValueError, "RANK is not set"),
        ({}, {"world_size": 2, "rank": 2}, ValueError, "rank 2 \\(expected 0 to 1\\)"),
        ({}, {"world_size": 2, "rank": 0}, RuntimeError, "2 ranks, but no launcher .* --nproc-per-node 2"),
        ({}, {"store": 1, "rank": 0, "world_size": 2}, TypeError, "store is int"),
        ({}, {"store": dist.HashStore()}, ValueError, "without rank and world_size"),
        ({}, {"store": dist.HashStore(), "init_method": "env://"}, ValueError, "got both init_method and store"),
        ({}, {"backend": 3}, ValueError, "Backend: 3 \\(expected a name"),
        ({}, {"init_method": "udp://h:1"}, ValueError, "init_method 'udp://h:1' \\(expected env://, tcp:// or file://"),
        ({}, {"init_method": "tcp://h"}, ValueError, "init_method 'tcp://h' \\(expected tcp://host:port"),
        ({}, {"init_method": "file://"}, ValueError, "expected file:///path"),
        ({}, {"init_method": 5}, TypeError, "init_method is 5"),
        ({}, {"init_method": "tcp://h:1?rank=x"}, ValueError, "'rank=x' \\(expected rank=N&world_size=N"),
        ({}, {"rank": "0"}, TypeError, "rank is '0' \\(expected a number"),
        ({}, {"init_method": "file:///no/such/folder/f", "rank": 0, "world_size": 2}, OSError, "No such file"),
        ({"MASTER_ADDR": "localhost"}, {"rank": 0, "world_size": 2}, RuntimeError, "no MASTER_ADDR and MASTER_PORT"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "x"}, {"rank": 0, "world_size": 2}, ValueError, "MASTER_PORT='x'"),
        ({"WORLD_SIZE": "two"}, {}, ValueError, "WORLD_SIZE='two' in the environment"),
        ({"WORLD_SIZE": "3", "RANK": "1"}, {}, RuntimeError, "3 ranks, but no launcher"),
        ({"WORLD_SIZE": "1", "RANK": "4"}, {}, ValueError, "rank 4 \\(expected 0 to 0\\)"),
    ],
)
def test_bad_settings(monkeypatch, env, arguments, kind, message):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kind, match=message):
        dist.init_process_group(**arguments)
    assert not dist.is_initialized()


def test_no_silent_world_of_one(monkeypatch):
    """WORLD_SIZE over 1 and nobody to talk to: a collective must not pretend."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert (dist.get_rank(), dist.get_world_size()) == (1, 2)
    with pytest.raises(RuntimeError, match="2 ranks, but no launcher"):
        dist.all_reduce(pydist.ones(1))


def test_broadcast_needs_one_source():
    for sources in ({}, {"src": 0, "group_src": 0}):
        with pytest.raises(ValueError, match="exactly one"):
            dist.broadcast(pydist.ones(1), **sources)


# Under the launcher.


def lines(done):
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_first_collective_joins(launch):
    done = launch("""
        x = pydist.tensor([1.0, 2.0]) * (dist.get_rank() + 1)
        dist.all_reduce(x)
        assert not dist.is_initialized() and dist.get_world_size() == 3
        dist.init_process_group("gloo", rank=dist.get_rank(), world_size=3)
        dist.broadcast(y := pydist.tensor([dist.get_rank()]), src=2)
        for op in ("AVG", "PRODUCT", "MIN", "MAX"):
            z = pydist.tensor([dist.get_rank() + 1.0])
            dist.all_reduce(z, getattr(dist.ReduceOp, op))
            x = pydist.cat([x, z])
        print(x.tolist(), y.tolist())
        dist.destroy_process_group()
    """, 3)  # fmt: skip
    assert lines(done) == [f"[{rank}] [6.0, 12.0, 2.0, 6.0, 1.0, 3.0] [2]" for rank in range(3)]


def test_dropout_differs_between_processes(launch):
    done = launch("""
        pydist.manual_seed(3)
        dist.init_process_group()
        mask = pydist.nn.functional.dropout(pydist.ones(64))
        for value in (mask, pydist.rand(64)):
            low, high = value.clone(), value.clone()
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
            print(bool((low == high).all()))
    """)  # fmt: skip
    assert lines(done) == ["[0] False", "[0] True", "[1] False", "[1] True"]


def test_arguments_that_contradict_the_launcher(launch):
    done = launch("""
        for wrong in ({"rank": 1 - dist.get_rank()}, {"world_size": 5}):
            try:
                dist.init_process_group(**wrong)
            except ValueError as error:
                print(error)
    """)  # fmt: skip
    assert lines(done)[0] == "[0] init_process_group: rank=1, but the launcher says RANK=0 (expected the same)"
    assert (
        lines(done)[-1]
        == "[1] init_process_group: world_size=5, but the launcher says WORLD_SIZE=2 (expected the same)"
    )


def test_groups_can_be_made_again(launch):
    done = launch("""
        for _ in range(3):
            dist.init_process_group()
            x = pydist.ones(1)
            dist.all_reduce(x)
            dist.destroy_process_group()
        print(x.item())
    """)  # fmt: skip
    assert lines(done) == ["[0] 2.0", "[1] 2.0"]


def test_an_exception_reaches_the_others(launch):
    done = launch("""
        dist.init_process_group()
        if dist.get_rank() == 1:
            raise KeyError("the cause")
        try:
            dist.barrier()
        except dist.PeerFailed as error:
            print("peer:", "KeyError: 'the cause'" in str(error), error.rank)
            raise
    """)  # fmt: skip
    assert done.returncode != 0
    assert "[0] peer: True 1" in done.stdout
    assert "rank 1" in done.stderr.splitlines()[0] and done.stderr.count('raise KeyError("the cause")') == 1


def test_a_caught_failure_leaves_the_exit_hook_alone(launch):
    """sys.excepthook of the script still runs, and once."""
    done = launch("""
        sys.excepthook = lambda *args: print("own hook")
        dist.init_process_group()
        raise ValueError
    """)  # fmt: skip
    assert done.returncode != 0 and sorted(done.stdout.splitlines()) == ["[0] own hook", "[1] own hook"]


def test_an_error_that_c_code_prints_ends_no_rank(launch):
    """CPython prints errors that it can tell nobody, and goes on: the other ranks go on, too."""
    done = launch("""
        dist.init_process_group()
        if dist.get_rank() == 1:
            sys.excepthook(SystemError, SystemError("printed by C"), None)
        x = pydist.ones(3)
        dist.all_reduce(x)
        print(x.tolist())
    """)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] [2.0, 2.0, 2.0]", "[1] [2.0, 2.0, 2.0]"]
    assert "printed by C" in done.stderr


# Without a launcher.


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def meet(rank, world, environment, arguments, queue):
    os.environ.update(environment)
    if "RANK" in environment:
        os.environ["RANK"] = str(rank)
    else:
        arguments = {"rank": rank, "world_size": world, **arguments}
    stores = arguments.pop("stores", None)
    for again in range(2):  # once more in the same processes
        if stores and again:  # as on several hosts
            os.environ["PYDIST_HOST"] = f"host{rank}"
            arguments["store"] = dist.PrefixStore("job", dist.TCPStore("127.0.0.1", stores[1], world, rank == 0))
        elif stores:
            arguments["store"] = dist.FileStore(stores[0], world)
        dist.init_process_group("gloo", **arguments)
        x = pydist.tensor([float(rank + 1)])
        dist.all_reduce(x)
        everyone = [None] * world
        dist.all_gather_object(everyone, (rank, x.item(), dist.get_world_size()))
        dist.destroy_process_group()
    queue.put(everyone)


@pytest.mark.parametrize("way", ["tcp", "tcp query", "env", "env alone", "file", "stores"])
def test_ranks_of_spawn_meet(way, tmp_path):
    port, world = free_port(), 3
    master = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    environment, arguments = {
        "tcp": ({}, {"init_method": f"tcp://127.0.0.1:{port}", "timeout": 30}),
        "tcp query": ({}, {"init_method": f"tcp://localhost:{port}?world_size={world}", "world_size": -1}),
        "env": (master, {"init_method": "env://"}),
        "env alone": ({**master, "RANK": "", "WORLD_SIZE": str(world)}, {}),
        "file": ({}, {"init_method": f"file://{tmp_path}/meet"}),
        "stores": ({}, {"stores": (f"{tmp_path}/store", port)}),
    }[way]
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(meet, (world, environment, arguments, queue), nprocs=world)
    assert [queue.get() for _ in range(world)] == [[(r, 6.0, world) for r in range(world)]] * world


def raise_in_one(rank, port):
    dist.init_process_group(init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
    dist.barrier()
    if rank == 1:
        raise KeyError("the cause")
    dist.barrier()


def test_the_cause_in_spawned_ranks():
    with pytest.raises(mp.ProcessRaisedException, match="KeyError: 'the cause'") as raised:
        mp.spawn(raise_in_one, (free_port(),), nprocs=3)
    assert raised.value.error_index == 1


def test_rank_that_comes_alone():
    program = f"""
import pydist.distributed as dist
try:
    dist.init_process_group(init_method="tcp://127.0.0.1:{free_port()}", rank=RANK, world_size=2, timeout=0.3)
except (dist.DistError, TimeoutError) as error:
    print(type(error).__name__, error)
"""
    for rank, expected in ((0, "rank 1"), (1, "rank 1 found no rank 0 at tcp://127.0.0.1:")):
        command = [sys.executable, "-c", program.replace("RANK", str(rank))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.startswith("CommTimeout") and expected in done.stdout, done


def test_a_hand_started_job():
    """PyTorch's variables set by the user in one shell for each rank; the first collective joins."""
    program = """
import os, pydist, pydist.distributed as dist
x = pydist.ones(1)
dist.all_reduce(x)
os.write(1, f"{dist.get_rank()} {x.item()}\\n".encode())
"""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    jobs = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                         env={**os.environ, **common, "RANK": str(rank)})
        for rank in range(2)
    ]  # fmt: skip
    assert [job.communicate(timeout=60)[0] for job in jobs] == ["0 2.0\n", "1 2.0\n"]


def test_gloo_is_said_once(capfd):
    for backend, lines_said in (("gloo", 1), ("native", 0), (None, 0), ("cpu:gloo,cuda:nccl", 1)):
        dist.init_process_group(backend)
        dist.destroy_process_group()
        assert capfd.readouterr().err.count("the native backend serves as gloo") == lines_said


def test_names():
    assert dist.Backend("NCCL") == dist.Backend.NCCL == "nccl"
    assert dist.is_backend_available("gloo") and dist.is_backend_available("nccl") == dist.is_nccl_available()
    assert dist.is_gloo_available()
    assert not dist.is_torchelastic_launched() and dist.get_process_group_ranks() == [0]
    assert dist.get_node_local_rank(fallback_rank=3) == 3
    with pytest.raises(RuntimeError, match="LOCAL_RANK"):
        dist.get_node_local_rank()


# Ranks as threads.


def test_threads_have_their_own_group():
    def work(rank, offset):
        assert dist.is_initialized() and dist.get_world_size() == 3
        x = pydist.tensor([float(rank + offset)])
        dist.all_reduce(x)
        return dist.get_rank(), x.item()

    assert dist.threads.run(work, 3, 10) == [(0, 33.0), (1, 33.0), (2, 33.0)]
    assert dist.get_world_size() == 1 and not dist.is_initialized()


def test_init_in_a_thread_that_is_a_rank():
    def work(rank):
        dist.init_process_group("gloo", rank=rank, world_size=2)
        with pytest.raises(ValueError, match=f"rank=1, world_size=3, but this is rank {rank} of 2"):
            dist.init_process_group(rank=1, world_size=3)
        x = pydist.ones(1)
        dist.all_reduce(x, group=dist.group.WORLD)
        assert isinstance(dist.group.WORLD, dist.ProcessGroup)
        return x.item()

    assert dist.threads.run(work, 2) == [2.0, 2.0]
    assert not dist.is_initialized()


def test_threads_have_their_own_random_numbers():
    pydist.manual_seed(5)
    state = pydist.get_rng_state()

    def work(rank):
        pydist.manual_seed(rank)
        return pydist.rand(4).tolist()

    a, b = dist.threads.run(work, 2)
    assert a != b and pydist.equal(pydist.get_rng_state(), state)
    assert dist.threads.run(work, 2) == [a, b]


def test_equal_seeds_equal_weights_different_masks():
    """Same manual_seed everywhere: parameters and permutations are equal, dropout is not, before and after it."""

    def work(rank):
        pydist.manual_seed(3)
        weight, mask = pydist.nn.Linear(8, 8).weight.tolist(), pydist.nn.functional.dropout(pydist.ones(64)).tolist()
        return weight, mask, pydist.randn(4).tolist()

    pydist.manual_seed(3)
    single = pydist.nn.Linear(8, 8).weight.tolist(), pydist.nn.functional.dropout(pydist.ones(64)).tolist()
    results = dist.threads.run(work, 3)
    assert [weight for weight, *_ in results] == [single[0]] * 3
    assert results[0][1] == single[1] and len({str(mask) for _, mask, _ in results}) == 3
    assert results[0][2] == results[1][2] == results[2][2]
    assert dist.threads.run(work, 3) == results


def test_the_cause_is_raised():
    def work(rank):
        if rank == 2:
            raise KeyError("the cause")
        dist.barrier()

    with pytest.raises(KeyError, match="the cause"):
        dist.threads.run(work, 3)
    assert dist.threads.run(lambda rank: rank, 2) == [0, 1]
