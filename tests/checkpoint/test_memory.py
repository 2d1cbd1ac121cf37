"""CheckpointManager(memory_every=): snapshots that the launcher keeps in memory while it starts the ranks again."""

import os
import re
import subprocess
import warnings

import pytest

import pydist
from lib.processes import environment, launch, start, within
from pydist import _C
from pydist._launch.snapshots import PREFIX, Snapshots
from pydist.distributed.checkpoint import CheckpointException, CheckpointManager, _format
from pydist.testing import run_ranks

TRAINING = """
import hashlib, os, signal, sys
import pydist
from pydist import distributed as dist, nn, optim
from pydist.distributed.checkpoint import CheckpointManager
from pydist.nn.parallel import DistributedDataParallel

folder, dies, options = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
dist.init_process_group()
pydist.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 300), nn.LayerNorm(300), nn.Linear(300, 8))
model, optimizer = DistributedDataParallel(net), optim.Adam(net.parameters())
state = {"model": net, "optimizer": optimizer}
manager = CheckpointManager(folder, every=5, **options)
first = manager.restore(state) or 0
print("from", first, flush=True)
for step in range(first + 1, 13):
    optimizer.zero_grad()
    x = pydist.randn(16, 64, generator=pydist.Generator().manual_seed(step * 2 + dist.get_rank()))
    model(x).square().sum().backward()
    optimizer.step()
    manager.save(step, state)
    if step == dies and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        manager.wait_until_finished()
        os.kill(os.getpid(), signal.SIGKILL)
manager.close()
sha = hashlib.sha256(b"".join(bytes(t.contiguous().numpy()) for t in net.state_dict().values())).hexdigest()
print("sha", sha, sorted(manager.all_steps()), flush=True)
dist.destroy_process_group()
"""


def trained(folder, dies, options, restarts=1):
    """(the steps from which ranks began, what they printed at the end, stderr)."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(TRAINING)
    args = ("--nproc-per-node", 2, "--max-restarts", restarts, script, folder / "saved", dies, options)
    code, out, err, _ = launch(*args, timeout=within(60))
    assert code == 0, out + err
    return set(re.findall(r"from (\d+)", out)), set(re.findall(r"sha .*", out)), err


def ours():
    return {name for name in os.listdir("/dev/shm") if name.startswith(PREFIX)}


@pytest.mark.parametrize("more", ["", pytest.param(", asynchronous=False", marks=pytest.mark.slow)])
def test_a_restart_goes_on_from_memory(tmp_path, more):
    """From the step before the death, not from the last one on the disk, and to the same bits."""
    before = ours()
    _, undisturbed, _ = trained(tmp_path / "a", 0, "{}", restarts=0)
    began, end, err = trained(tmp_path / "b", 9, f"dict(memory_every=1{more})")
    assert began == {"0", "9"} and end == undisturbed and len(end) == 1 and "[5, 10]" in end.pop()
    began, end, _ = trained(tmp_path / "c", 9, f"dict(memory_every=4{more})")
    assert began == {"0", "8"} and end == undisturbed
    began, end, _ = trained(tmp_path / "d", 9, f"dict(memory_every=None{more})")
    assert began == {"0", "5"} and end == undisturbed
    assert ours() == before  # the end of the job frees the memory


def test_a_launcher_that_was_killed_leaves_what_the_next_one_removes(tmp_path):
    script = tmp_path / "a.py"
    script.write_text("import os, time; print(os.environ['PYDIST_SNAPSHOTS'], flush=True); time.sleep(100)")
    env = environment(PYDIST_SNAPSHOTS_DIR=str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    with start("--max-restarts", 1, script, env=env) as job:
        folder = job.stdout.readline().strip()
        assert os.path.dirname(folder) == str(tmp_path / "memory") and os.stat(folder).st_mode & 0o777 == 0o700
        script.write_text("print('done')")
        assert launch("--max-restarts", 1, script, env=env)[0] == 0
        assert os.path.isdir(folder)  # its launcher lives
        job.kill()
    assert os.path.isdir(folder)
    assert launch("--max-restarts", 1, script, env=env)[:3] == (0, "done\n", "")
    assert os.listdir(tmp_path / "memory") == []


def test_where_there_is_no_memory_the_job_runs(tmp_path):
    script = tmp_path / "a.py"
    script.write_text("import os; print('PYDIST_SNAPSHOTS' in os.environ)")
    env = environment(PYDIST_SNAPSHOTS_DIR=str(tmp_path / "none"))
    code, out, err, _ = launch("--max-restarts", 1, script, env=env)
    assert (code, out) == (0, "False\n") and "pydist.run: no snapshots in memory: [Errno 2]" in err


@pytest.fixture
def held(tmp_path, monkeypatch):
    """A launcher's folder."""
    monkeypatch.setenv("PYDIST_SNAPSHOTS_DIR", str(tmp_path / "memory"))
    monkeypatch.delenv("PYDIST_SNAPSHOTS", raising=False)
    (tmp_path / "memory").mkdir()
    with Snapshots():
        yield tmp_path / "memory"


def test_one_copy_in_the_file_itself(held, tmp_path):
    """Tensors of the state are copied once, into the file; only the newest snapshot stays."""
    params = {str(i): pydist.randn(1 << 18) for i in range(4)}
    manager = CheckpointManager(tmp_path / "disk", every=100, memory_every=2)
    assert [manager.save(step, params) for step in (1, 2, 3, 4)] == [False, True, False, True]
    manager.wait_until_finished()
    assert manager.all_steps() == [] and manager.latest_step() == 4
    (job,) = os.listdir(held)
    (own,) = os.listdir(held / job)
    assert os.listdir(held / job / own) == ["step-000000000004"]
    index, about = _format.index_of(held / job / own / "step-000000000004")
    assert index.nbytes < 4 * (1 << 20) + 8192 and about["durable"] is False
    found = {name: pydist.zeros_like(value) for name, value in params.items()}
    assert manager.restore(found) == 4 and all(pydist.equal(found[name], params[name]) for name in params)
    assert CheckpointManager(tmp_path / "other", memory_every=1).latest_step() is None


def test_a_save_on_the_disk_frees_the_memory(held, tmp_path):
    manager = CheckpointManager(tmp_path / "disk", every=3, memory_every=1)
    for step in (1, 2, 3):
        manager.save(step, {"x": step})
    manager.close()
    assert manager._found() == [(3, str(tmp_path / "disk"))]
    manager.save(4, {"x": 4})
    manager.close()
    assert [step for step, _ in manager._found()] == [4, 3]
    assert manager.restore(state := {"x": 0}, step=3) == 3 and state == {"x": 3}
    assert manager.restore(state) == 4 and state == {"x": 4}


def test_a_damaged_snapshot_is_passed_over(held, tmp_path, capfd):
    manager = CheckpointManager(tmp_path / "disk", every=2, memory_every=1)
    for step in (2, 3):
        manager.save(step, {"x": pydist.full((3,), float(step))})
    manager.close()
    (_, folder), _ = manager._found()
    path = os.path.join(folder, "step-000000000003", "00000.safetensors")
    os.truncate(path, os.stat(path).st_size - 1)
    state = {"x": pydist.zeros(3)}
    assert manager.restore(state) == 2 and state["x"].tolist() == [2, 2, 2]
    assert "checkpoint: step 3 is damaged, so an older one is loaded" in capfd.readouterr().err
    with pytest.raises(CheckpointException, match="has .* bytes"):
        manager.restore(state, step=3)


def test_full_memory_is_an_error_that_names_it(held, tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "pydist-test", held], capture_output=True)
    if mounted.returncode:
        pytest.skip("mount is not allowed")
    try:
        with Snapshots():
            manager = CheckpointManager(tmp_path / "disk", every=9, memory_every=1)
            manager.save(1, {"x": pydist.ones(1 << 16)})
            with pytest.raises(CheckpointException, match=r"No space left on device: \d+ bytes are free"):
                manager.save(2, {"x": pydist.ones(1 << 18)})
            warned = CheckpointManager(tmp_path / "disk", every=9, memory_every=1, on_error="warn")
            with pytest.warns(UserWarning, match="step 3 was not saved: .*No space left"):
                warned.save(3, {"x": pydist.ones(1 << 18)})
            assert warned.latest_step() == 1 and warned.save(4, {"x": pydist.ones(4)})
            warned.close()
            assert warned.latest_step() == 4
            with pytest.raises(MemoryError, match="cannot get 1048576 bytes"):
                _C.io_stage([pydist.ones(1 << 18)], 1, held / "file", 4096).wait()
    finally:
        subprocess.run(["umount", held], check=True)


def test_without_a_launcher_there_is_one_warning(tmp_path, monkeypatch):
    monkeypatch.delenv("PYDIST_SNAPSHOTS", raising=False)

    def work(rank):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            manager = CheckpointManager(tmp_path, every=2, memory_every=1)
            saved = [manager.save(step, {"x": step}) for step in (1, 2)]
            manager.close()
        return saved, [str(w.message) for w in caught], manager.restore({"x": 0})

    (first, warned, _), (second, quiet, step) = run_ranks(2, work)
    assert first == second == [False, True] and quiet == [] and step == 2
    assert len(warned) == 1 and "nobody keeps snapshots in memory (expected pydist.run with --max-restarts" in warned[0]
    with pytest.raises(ValueError, match="memory_every is 0"):
        CheckpointManager(tmp_path, memory_every=0)
