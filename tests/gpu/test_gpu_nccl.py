"""Collectives and DistributedDataParallel on GPUs, two and three ranks: with NCCL where there is a GPU, all of them on it if there are
fewer than ranks (nccl_rank.py says how), and on the emulator with tests/fakes/nccl.c, which shows what happens around NCCL and nothing about NCCL itself."""

import ctypes
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import pydist
from lib.processes import within
from pydist import distributed as dist

if not pydist.cuda.is_available() or pydist._C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

TOP = Path(__file__).resolve().parents[2]
EMULATED = pydist.cuda.get_device_name() == "emulated"
RANK = Path(__file__).with_name("nccl_rank.py")
LIMIT = within(60 if EMULATED else 150)  # seconds a job; NCCL takes about 10 ms a collective where ranks share a GPU


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """The environment with the fake, where the device is emulated."""
    if not EMULATED:
        if not dist.is_nccl_available():
            pytest.skip("no NCCL (pip install nvidia-nccl-cu13): NOT tested")
        return {}
    folder = tmp_path_factory.mktemp("nccl")
    command = [*sysconfig.get_config_var("CC").split(), "-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{TOP / 'csrc'}",
               "-Wall", "-Wextra", "-Werror", str(TOP / "tests/fakes/nccl.c"), "-o", str(folder / "libnccl.so")]  # fmt: skip
    subprocess.run(command, check=True)
    return {"PYDIST_NCCL": str(folder / "libnccl.so"), "FAKE_NCCL_FOLDER": str(folder)}


def launch(fake, scenarios, world, fault="", sharing=None, **env):
    """Lines of JSON that ranks wrote for these scenarios, and all output."""
    sharing = sharing or ("apart" if not EMULATED and pydist.cuda.device_count() >= world else "hosts")
    command = [
        sys.executable, "-m", "pydist.run", "--nproc-per-node", str(world), "--on-failure", "keep", str(RANK),
        *scenarios,
    ]  # fmt: skip
    env = {**os.environ, **fake, "FAKE_NCCL": fault, "SHARING": sharing, "OMP_NUM_THREADS": "1", **env}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT)
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:  # the ranks die with their launcher
        output = (
            "".join((part or b"").decode(errors="replace") for part in (error.stdout, error.stderr))
            + f"\nkilled after {LIMIT} s"
        )
    return [json.loads(line.partition("SAID ")[2]) for line in output.splitlines() if "SAID {" in line], output


def ranks(fake, scenario, world=2, expect=None, **more):
    """What the ranks say of one scenario, by rank, and all output."""
    said, output = launch(fake, [scenario], world, **more)
    assert len(said) == output.count("ENDED") == (world if expect is None else expect), output
    return {one["rank"]: one for one in said}, output


def died(output):
    """When a rank did."""
    return float(re.search(r"DYING ([\d.]+)", output)[1])


COLD = "graphs:cold"  # makes the communicator inside a capture, so it runs alone; last, as it is the likeliest to hang
ALIKE = [
    "graphs:warm", "collectives", "ddp", "captured_step", "captured_step:bf16", "hooks", "messages", "other_streams", COLD,
]  # fmt: skip
_found = {}  # by world and settings: what came of each scenario


def alike(fake, world, **more):
    """ "same" or the output, for each scenario of ALIKE. All but COLD run in one job, since a start takes seconds on a GPU; what did not end well
    is taken out, and the rest runs in another one."""
    found = _found.setdefault((world, *more.items()), {})
    while len(found) < len(ALIKE):
        left = [scenario for scenario in ALIKE if scenario not in found and scenario != COLD] or [COLD]
        said, output = launch(fake, left, world, **more)
        if "killed after" in output:  # whatever hung may be there still
            found.update(dict.fromkeys(left, output))
        for scenario in left:
            words = [one["said"] for one in said if one["scenario"] == scenario]
            found[scenario] = "same" if words == ["same"] * world else output
            if found[scenario] != "same":
                break
        else:
            if output.count("ENDED") != world:
                found[left[-1]] = output
    return found


@pytest.mark.parametrize("scenario", ALIKE)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_do_what_the_cpus_do(fake, world, scenario):
    assert alike(fake, world)[scenario] == "same"


@pytest.mark.parametrize("world, scenario", [(2, "fully_shard"), (2, "fully_shard::low"), (2, "fully_shard:::meta"), (2, "fully_shard:replicas"), (4, "fully_shard"),
                                             (4, "fully_shard:replicas")])  # fmt: skip
def test_sharded_parameters(fake, world, scenario):
    if not EMULATED and pydist.cuda.device_count() < world > 2:
        pytest.skip("the emulator's alone: so many ranks of one GPU")
    said, output = ranks(fake, scenario, world)
    assert [one["said"] for one in said.values()] == ["same"] * world, output


@pytest.mark.parametrize("scenario", ALIKE)
def test_two_ranks_on_a_gpu_by_nccls_own_way(fake, scenario):
    """NCCL_MULTI_RANK_GPU_ENABLE: peer-to-peer between two ranks on one device, as sockets are not."""
    if not EMULATED and (pydist._C.nccl_version() < 23000 or pydist.cuda.device_count() > 1):
        pytest.skip("needs NCCL 2.30 or newer and a single GPU: NOT tested")
    assert alike(fake, 2, fault="0 version 23007", sharing="ranks", PYDIST_REGISTER="1")[scenario] == "same"


def test_buckets_in_registered_memory(fake):
    said, output = ranks(fake, "ddp", PYDIST_REGISTER="1")
    assert [one["said"] for one in said.values()] == ["same"] * 2
    assert "NCCL has not registered the memory" not in output
    if EMULATED:
        assert output.count("FAKE: registered with 2") == output.count("FAKE: freed") == 2, output


def test_a_capture_on_one_rank_alone_is_a_mismatch(fake):
    said, _ = ranks(fake, "captured_by_one")
    for one in said.values():
        assert one["said"].startswith("CommMismatch: "), one
        assert "rank 0: all_reduce(float32[4] on cuda, SUM, captured) at" in one["said"], one
        assert "rank 1: all_reduce(float32[4] on cuda, SUM) at" in one["said"], one


def test_replays_end_when_a_rank_dies(fake):
    said, output = ranks(fake, "killed_in_replays", 3, expect=2)
    for one in said.values():
        assert one["said"].startswith("PeerFailed: all_reduce(float32[1000] on cuda, SUM"), output
        assert "rank 2" in one["said"] and one["at"] - died(output) < 5, output


@pytest.mark.parametrize("scenario, text", [
    ("batch_mismatch:count", "batch_isend_irecv: message 0 from rank 0 is float32[6] with tag 0 (expected message 0, float32[5] with tag 0, on rank 1)"),
    ("batch_mismatch:plain", "rank 0 called send(uint8[24], dst=1, tag=0)"),
])  # fmt: skip
def test_batches_that_differ_are_named(fake, scenario, text):
    said, _ = ranks(fake, scenario)
    for one in said.values():
        assert one["said"].startswith("CommMismatch: ") and text in one["said"], one


def test_a_world_of_one_needs_no_nccl():
    x = pydist.arange(6).float().cuda()
    for op, factor in (("sum", 1), ("avg", 1), (dist._make_nccl_premul_sum(0.5), 0.5)):
        y = x.clone()
        assert dist.all_reduce(y, op, async_op=True).wait()
        assert y.is_cuda and y.tolist() == [factor * i for i in range(6)]
    side = pydist.cuda.Stream()
    with pydist.cuda.stream(side):
        work = dist.all_reduce(y, async_op=True)
    if EMULATED:  # where a stream's byte says that it hangs
        ctypes.memset(side.cuda_stream, 1, 1)
        assert not work.is_completed()
        ctypes.memset(side.cuda_stream, 0, 1)
    assert work.wait() and work.wait(timeout=5) and work.is_completed()
    graph = pydist.cuda.CUDAGraph()
    with pydist.cuda.graph(graph):
        work = dist.all_gather_into_tensor(y, x, async_op=True)
        assert work.wait() and work.is_completed()
    x += 1
    graph.replay()
    pydist.cuda.synchronize()
    assert y.tolist() == x.tolist()
    half, out = x.half(), pydist.zeros(6, device="cuda")
    dist.all_reduce(half, dist._make_nccl_premul_sum(0.25))
    dist.all_gather_into_tensor(out, x)
    assert half.tolist() == [0.25 * (i + 1) for i in range(6)] and out.tolist() == x.tolist()
    with pytest.raises(ValueError, match="output is on cpu .expected cuda:0"):
        dist.all_gather_into_tensor(pydist.zeros(6), x)


@pytest.mark.parametrize("scenario, texts", [
    ("mismatch", ["rank 0: all_reduce(float32[4] on cuda, SUM) at nccl_rank.py:", "rank 1: all_reduce(float32[5] on cuda, SUM) at nccl_rank.py:"]),
    ("places_differ", ["rank 0: all_reduce(float32[4], SUM) at nccl_rank.py:", "rank 1: all_reduce(float32[4] on cuda, SUM) at nccl_rank.py:"]),
])  # fmt: skip
def test_what_differs_is_named_before_data_are_touched(fake, scenario, texts):
    said, _ = ranks(fake, scenario)
    for one in said.values():
        assert one["said"].startswith("CommMismatch: ") and all(text in one["said"] for text in texts), one


@pytest.mark.parametrize("scenario", ["killed", "killed:shards"])
def test_the_death_of_a_rank_ends_the_others_within_5_s(fake, scenario):
    said, output = ranks(fake, scenario, 3, expect=2)
    for one in said.values():
        assert one["said"].startswith("PeerFailed: all_reduce(float32[1000] on cuda, SUM"), one
        assert "at nccl_rank.py:" in one["said"] and "rank 2" in one["said"], one
        assert one["at"] - died(output) < 5, output


@pytest.mark.parametrize("registered", ["0", "1"])
def test_survivors_go_on_with_the_step(fake, registered):
    if registered == "1" and not EMULATED:
        pytest.skip("the emulator's alone, for the time that it takes")
    said, output = ranks(fake, "survive", 3, expect=2, PYDIST_REGISTER=registered)
    assert [one["said"] for one in said.values()] == ["same"] * 2, output
    if EMULATED:
        assert output.count("FAKE: registered with 2") == output.count("FAKE: freed") // 2 == 2 * int(registered), (
            output
        )


# ---- logical shards


@pytest.mark.parametrize(
    "world", [2, 3, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_sums_over_shards_have_the_bits_of_the_cpus(fake, world):
    if not EMULATED and world > 3:
        pytest.skip("the emulator's alone: so many ranks of one GPU")
    said, output = launch(fake, ["sums_of_blocks", "reduced_shards:float32", "reduced_shards:bfloat16"], world)
    assert [one["said"] for one in said] == ["same"] * 3 * world, output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_training_over_shards_has_one_sha(fake, kind):
    """On 1, 2 and 4 ranks, and if one of three dies in the second step."""
    found = set()
    for world, death in ((1, ""), (2, ""), (4, ""), (3, ":dies")):
        if not EMULATED and world > max(2, pydist.cuda.device_count()):
            continue
        said, output = ranks(fake, f"trained:{kind}{death}", world, expect=world - bool(death), PYDIST_SHARDS="8")
        found.update(one["said"] for one in said.values())
        assert len(found) == 1 and len(next(iter(found)).split()[0]) == 64, output


def test_tables_that_differ_are_named_before_data_are_touched(fake):
    said, _ = ranks(fake, "tables_differ")
    for one in said.values():
        assert one["said"].startswith("CommMismatch: ") and "logical shards" in one["said"], one


with_fake = pytest.mark.skipif(not EMULATED, reason="faults of NCCL are the fake's")
CALL = r"all_reduce\(float32\[1000\] on cuda, SUM\) at nccl_rank.py:\d+ \(#\d+\)"


@with_fake
def test_operations_in_progress_are_waited_for(fake):
    said, _ = ranks(fake, "ddp", fault="1 slow 300")
    assert [one["said"] for one in said.values()] == ["same"] * 2


@with_fake
def test_what_nccl_is_asked_for(fake):
    """Without logical shards one all_reduce; with them messages, the gathering of even parts, and the rest of the last rank."""
    _, output = ranks(fake, "calls", FAKE_NCCL_CALLS="1")
    calls = [line.partition("FAKE: ")[2] for line in output.splitlines() if "FAKE: " in line]
    for rank in (0, 1):
        names = [call.partition(": ")[2] for call in calls if call.startswith(f"rank {rank}: ")]
        assert names == ["all_reduce", "messages", "all_gather", "broadcast"], output


@with_fake
@pytest.mark.parametrize("fault, timeout, kind, why", [
    ("1 refuse 3", 20, "PeerFailed|DistError", r"NCCL: invalid argument \(fake.cc:1 the fake refuses operation 3\)"),
    ("0 error 3", 20, "PeerFailed|DistError", r"NCCL: remote process exited or there was a network error \(fake.cc:2"),
    ("1 hang 3", 1, "CommTimeout", r"not done on cuda:\d 1.0 s after all ranks began it"),
    ("0 stuck 2", 1, "CommTimeout", r"not done on cuda:\d 1.0 s after all ranks began it"),
])  # fmt: skip
def test_faults_end_all_ranks_with_their_reason(fake, fault, timeout, kind, why):
    said, output = ranks(fake, f"repeated:{timeout}", fault=fault, PYDIST_ABORT="0.3")
    for one in said.values():
        assert re.match(f"({kind}): {CALL}: ", one["said"]) and re.search(why, one["said"]), output
        assert one["seconds"] < 5, output
    assert ("NCCL has not aborted the communicator of group" in output) == ("stuck" in fault), output


def test_a_communicator_of_one_rank_is_made(fake):
    code = (
        "from pydist import _C, distributed; print(distributed.is_nccl_available(), _C.cuda_current(), _C.nccl_probe())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **fake}, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.stdout == "True 0 None\n", done.stderr


@with_fake
def test_an_older_nccl_is_refused(fake):
    code = "import pydist; pydist.distributed.init_process_group('nccl')"
    env = {**os.environ, **fake, "FAKE_NCCL": "0 version 22603"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=LIMIT)
    assert "backend 'nccl': NCCL: " in done.stderr and "is version 2.26.3 (expected 2.27 or newer)" in done.stderr, (
        done.stderr
    )
