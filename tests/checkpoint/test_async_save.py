"""async_save and CheckpointManager: values of the call, and never of two moments."""

import os
import shutil
import warnings

import pytest

import pydist
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import CheckpointException, CheckpointManager, staging
from pydist.testing import run_ranks


def value_of(path, name="x", size=1 << 21):
    """The one value that all elements of a tensor of 2 M have."""
    state = {name: pydist.zeros(size)}
    checkpoint.load(state, checkpoint_id=path)
    (value,) = state[name].unique().tolist()
    return value


@pytest.mark.parametrize("kind", ["sgd", "adam", "lamb", "python"])
def test_steps_of_optimizers_wait(tmp_path, kind):
    """Each save of a training that saves every step has the values of its call. FULL_LONG: of 200 steps."""

    class Own(optim.Optimizer):
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.sub_(p.grad)

    params = [nn.Parameter(pydist.randn(1 << 20)) for _ in range(3)]
    before = params[0].detach().clone()
    made = {"sgd": optim.SGD, "adam": optim.Adam, "lamb": optim.LAMB}
    optimizer = Own(params, {}) if kind == "python" else made[kind](params, lr=0.01)
    for step in range(200 if "FULL_LONG" in os.environ else 6):
        for p in params:
            p.grad = pydist.randn_like(p)
        noted = [p.detach().clone() for p in params]
        future = checkpoint.async_save({str(i): p for i, p in enumerate(params)}, checkpoint_id=tmp_path / str(step))
        optimizer.step()
        future.staging_completion.result()
        future.result()
        found = {str(i): pydist.zeros_like(p) for i, p in enumerate(noted)}
        checkpoint.load(found, checkpoint_id=tmp_path / str(step))
        assert all(pydist.equal(found[str(i)], p) for i, p in enumerate(noted))
        shutil.rmtree(tmp_path / str(step))
    assert not pydist.equal(params[0], before)


@pytest.mark.parametrize("write", [lambda p: p.mul_(2), lambda p: p.data.mul_(2), lambda p: p.detach()[5:].zero_()])
def test_other_writes_are_an_error_of_that_save(tmp_path, write):
    with pydist.no_grad():
        state = {"small": pydist.ones(4), "x": pydist.ones(1 << 23)}
        for _ in range(20):
            future = checkpoint.async_save(state, checkpoint_id=tmp_path / "a")
            write(state["x"])
            try:
                future.result()
            except CheckpointException as error:
                assert "'x' was written before it was copied" in str(error)
                break
            state["x"].fill_(1)  # all was copied before the write: once more
        else:
            pytest.fail("each time all was copied before the write")
    assert os.listdir(tmp_path) in ([], ["a"])


def test_small_tensors_are_copied_at_the_call(tmp_path):
    state = {"statistics": pydist.zeros(1000), "n": 1}
    future = checkpoint.async_save(state, checkpoint_id=tmp_path / "a")
    state["statistics"].add_(1)
    future.result()
    found = {"statistics": pydist.ones(1000), "n": 0}
    checkpoint.load(found, checkpoint_id=tmp_path / "a")
    assert found["statistics"].sum().item() == 0 and found["n"] == 1


def test_a_second_save_waits_for_the_first(tmp_path):
    futures = [
        checkpoint.async_save({"x": pydist.full((1 << 21,), float(i))}, checkpoint_id=tmp_path / str(i))
        for i in range(3)
    ]
    assert futures[0].done() and futures[1].done()
    checkpoint.save({"x": pydist.full((1 << 21,), 3.0)}, checkpoint_id=tmp_path / "3")
    assert futures[2].done()
    assert [value_of(tmp_path / str(i)) for i in range(4)] == [0, 1, 2, 3]


def test_on_several_ranks_beside_collectives(tmp_path):
    def job(rank):
        x, total = pydist.full((300, 300), 1.0), pydist.ones(1000)
        for step in range(5):
            future = checkpoint.async_save({"x": x}, checkpoint_id=tmp_path / str(step))
            for _ in range(20):
                dist.all_reduce(total)
                total /= 3
            future.result()
        return total[0].item()

    assert run_ranks(3, job) == [pytest.approx(1.0)] * 3
    assert sorted(os.listdir(tmp_path)) == list("01234")


def test_errors_come_with_the_result(tmp_path):
    (tmp_path / "file").write_text("")
    future = checkpoint.async_save({"x": pydist.ones(3)}, checkpoint_id=tmp_path / "file" / "a")
    with pytest.raises(CheckpointException, match="was not saved: rank 0 on .*(Not a directory|File exists)"):
        future.result()
    with pytest.raises(CheckpointException, match="is or has a"):
        checkpoint.async_save({"x": object()}, checkpoint_id=tmp_path / "b")
    checkpoint.async_save({"x": 1}, checkpoint_id=tmp_path / "c", async_stager=staging.BlockingAsyncStager()).result()


# The manager.


def test_which_steps_stay(tmp_path):
    with CheckpointManager(tmp_path, keep_last=2, keep_every=4, every=2) as manager:
        made = [manager.save(step, {"x": step}) for step in range(1, 13)]
        assert manager.save(13, {"x": 13}, force=True)
    assert made == [step % 2 == 0 for step in range(1, 13)]
    assert manager.all_steps() == [4, 8, 12, 13] and manager.latest_step() == 13
    state = {"x": 0}
    assert manager.restore(state) == 13 and state["x"] == 13
    assert manager.restore(state, step=8) == 8 and state["x"] == 8
    with pytest.raises(CheckpointException, match="there is no checkpoint"):
        manager.restore(state, step=9)
    assert sorted(os.listdir(tmp_path)) == [f"step-{step:012d}" for step in (4, 8, 12, 13)]


def test_the_manager_keeps_the_memory_of_copies_until_it_is_closed(tmp_path):
    manager, seen = CheckpointManager(tmp_path), []
    for step in range(3):
        manager.save(step, {"x": pydist.full((1 << 20,), float(step))})
        manager.wait_until_finished()
        seen.append([staging.fd for staging in manager._arenas])
    assert len(seen[0]) == 1 and seen[0] == seen[1] == seen[2]
    assert [value_of(tmp_path / f"step-{step:012d}", size=1 << 20) for step in range(3)] == [0, 1, 2]
    manager.save(3, {"x": pydist.ones(5)})
    manager.close()
    assert manager._arenas == [] and manager.all_steps() == [1, 2, 3]


def test_without_a_step_there_is_nothing_to_restore(tmp_path):
    assert CheckpointManager(tmp_path / "new").restore({"x": 1}) is None
    assert CheckpointManager(tmp_path / "new").latest_step() is None


def test_a_damaged_step_is_passed_over(tmp_path, capfd):
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save(step, {"x": pydist.full((3,), float(step))})
    path = tmp_path / "step-000000000002" / "00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    state = {"x": pydist.zeros(3)}
    assert manager.restore(state) == 1 and state["x"].tolist() == [1, 1, 1]
    assert "checkpoint: step 2 is damaged, so an older one is loaded" in capfd.readouterr().err
    (tmp_path / "step-000000000001" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointException, match=r"no step in .* is whole: \[2, 1\]"):
        manager.restore(state)


def test_what_a_crash_left_is_finished_or_removed(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"x": step})
    os.rename(tmp_path / "step-000000000003", tmp_path / ".tmp-step-000000000003-abc-1")  # all but the last rename
    os.rename(tmp_path / "step-000000000001", tmp_path / ".trash-step-000000000001-00")
    os.mkdir(tmp_path / ".tmp-step-000000000004-abc-2")
    manager = CheckpointManager(tmp_path)
    assert manager.all_steps() == [2, 3] and len(os.listdir(tmp_path)) == 2
    state = {"x": 0}
    assert manager.restore(state) == 3 and state["x"] == 3


def test_a_failed_save_may_be_a_warning(tmp_path):
    manager = CheckpointManager(tmp_path, on_error="warn")
    with pytest.warns(UserWarning, match="step 1 was not saved: .*is or has a"):
        manager.save(1, {"x": object()})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.save(2, {"x": 1})
        manager.close()
    assert manager.all_steps() == [2]
    loud = CheckpointManager(tmp_path, asynchronous=False)
    with pytest.raises(CheckpointException):
        loud.save(3, {"x": object()})


@pytest.mark.parametrize(
    "wrong", [{"keep_last": 0}, {"keep_every": -1}, {"every": 1.5}, {"on_error": "ignore"}, {"keep_last": True}]
)
def test_wrong_options(tmp_path, wrong):
    with pytest.raises(ValueError, match="CheckpointManager"):
        CheckpointManager(tmp_path, **wrong)
    with pytest.raises(ValueError, match="step is -1"):
        CheckpointManager(tmp_path).save(-1, {})
