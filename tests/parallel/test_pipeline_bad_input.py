"""What pipelines refuse, and what they say; nothing hangs, and no rank is left behind."""

import re
import threading

import pytest

import pydist
from pydist import nn
from pydist.distributed import pipelining
from pydist.distributed.pipelining import PipelineStage, StageFailed
from pydist.distributed.pipelining.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks
from pydist.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _PipelineScheduleRuntime,
    _ScheduleForwardOnly,
    get_schedule_class,
)
from pydist.nn import functional as F
from pydist.testing import run_ranks


def stage(rank=0, p=1, module=None):
    return PipelineStage(module or nn.Linear(4, 4), rank, p, "cpu")


# ---- what one rank can know


def test_constructors():
    for index, count, error in (
        (2, 2, ValueError),
        (-1, 2, ValueError),
        (0, 0, ValueError),
        (1.0, 2, TypeError),
        (True, 2, TypeError),
    ):
        with pytest.raises(error, match="stage_index"):
            PipelineStage(nn.Linear(1, 1), index, count, "cpu")
    with pytest.raises(TypeError, match="submodule is int"):
        PipelineStage(3, 0, 1, "cpu")
    for m in (0, -1, 1.0, True, None):
        with pytest.raises(ValueError, match=f"n_microbatches is {m!r}"):
            pipelining.ScheduleGPipe(stage(), m)
    for stages in ([], stage(), [1], None):
        with pytest.raises(TypeError, match="expected a list with at least one PipelineStage"):
            pipelining.ScheduleLoopedBFS(stages, 2)
    with pytest.raises(TypeError, match="loss_fn is int"):
        pipelining.Schedule1F1B(stage(), 2, 3)
    with pytest.raises(ValueError, match="num_stages is 3 for 1 ranks"):
        pipelining.Schedule1F1B(stage(0, 3), 2)
    with pytest.raises(ValueError, match=r"rank 0 was given stages \[0, 2\] \(expected \[0, 1, 2\], by the table\)"):
        pipelining.ScheduleLoopedBFS([stage(0, 3), stage(2, 3)], 2)
    with pytest.raises(ValueError, match=r"given stages \[0, 0\]"):
        pipelining.ScheduleLoopedBFS([stage(0, 2), stage(0, 2)], 2)
    with pytest.raises(ValueError, match="differ in num_stages or group"):
        pipelining.ScheduleLoopedBFS([stage(0, 2), stage(1, 3)], 2)
    with pytest.raises(ValueError, match="num_stages is 1 for 1 ranks .expected 2 on each rank"):
        pipelining.ScheduleZBVZeroBubble([stage()], 2)
    with pytest.raises(ValueError, match="schedule_name is 'x'"):
        get_schedule_class("x")
    with pytest.raises(NotImplementedError):
        PipelineScheduleMulti([stage()], 2)


def test_batches():
    schedule = pipelining.Schedule1F1B(stage(), 4, F.mse_loss)
    x = pydist.ones(8, 4)
    with pytest.raises(ValueError, match="size 3, for 4 microbatches"):
        schedule.step(x[:3], target=x)
    with pytest.raises(ValueError, match="step: target: dimension 0 of a tensor has size 2"):
        schedule.step(x, target=x[:2])
    with pytest.raises(ValueError, match="target is None"):
        schedule.step(x)
    with pytest.raises(TypeError, match="losses is tuple"):
        schedule.step(x, target=x, losses=())
    with pytest.raises(TypeError, match="weird"):
        schedule.step(x, target=x, weird=1)
    with (
        pydist.no_grad(),
        pytest.raises(RuntimeError, match=re.escape("step: gradients are disabled (expected eval() under no_grad)")),
    ):
        schedule.step(x, target=x)
    with pytest.raises(RuntimeError, match="no step yet"):
        schedule.timeline()
    assert schedule.step(x, target=x).shape == (8, 4)  # it is as good as new
    schedule.eval(x)
    assert schedule.step(x, target=x).shape == (8, 4)
    for fn, said in (
        (lambda out, y: out, "a tensor of shape"),
        (lambda out, y: 1.0, "float"),
        (lambda out, y: None, "NoneType"),
    ):
        with pytest.raises(ValueError, match=f"loss_fn returned {said}"):
            pipelining.Schedule1F1B(stage(), 2, fn).step(x, target=x)
    losses = []
    pipelining.Schedule1F1B(stage(), 2, lambda out, y: out.sum() * float("nan")).step(x, target=x, losses=losses)
    assert len(losses) == 2 and losses[0].isnan().all()


def test_specs():
    x = pydist.ones(4, 4)
    with pytest.raises(ValueError, match="the spec has 2 entries, the value 1"):
        split_args_kwargs_into_chunks((x,), None, 2, (TensorChunkSpec(0),) * 2)
    with pytest.raises(ValueError, match=r"the spec has \['y'\], the value has \['x'\]"):
        split_args_kwargs_into_chunks((), {"x": x}, 2, None, {"y": TensorChunkSpec(0)})
    with pytest.raises(TypeError, match="the spec of a Tensor is 1"):
        split_args_kwargs_into_chunks((x,), None, 2, (1,))
    for dim in (2, -3, None, "0"):
        with pytest.raises(ValueError, match=f"split_dim is {dim!r}"):
            split_args_kwargs_into_chunks((x,), None, 2, (TensorChunkSpec(dim),))
    for chunks in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"chunks is {chunks}"):
            split_args_kwargs_into_chunks((x,), None, chunks)
    with pytest.raises(ValueError, match="expected at least one"):
        merge_chunks([])
    with pytest.raises(ValueError, match="different structure"):
        merge_chunks([(x,), (x, x)])


def test_tables(tmp_path):
    schedule, path = _PipelineScheduleRuntime([stage(0, 2), stage(1, 2)], 2, F.mse_loss), tmp_path / "t.csv"
    for text, said in (
        ("0F0,0B0\n", "given stages|stages \\[0\\]"),
        ("0F0,1F0,1B0,0B0", "rank 0 has no 0F1"),
        ("0F0,1F0,1B0,0B0,0F1,1F1,0B1,1B1", r"rank 0, cell 6 \(0B1\) waits for 1I1"),
        ("0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n0F5", r"rank 1, cell 0 \(0F5\): stage 0 is on rank 0, too"),
        ("0F0,1X0", "line 1, column 2"),
        ("0F0,0SEND_F0", r"0SEND_F0\) is no F, B, I or W"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            schedule._load_csv(path)
    for name in ("_load_csv", "_dump_csv"):
        with pytest.raises(ValueError, match="format is 'x'"):
            getattr(schedule, name)(path, "x")
    x = pydist.ones(2, 4)
    for use in (
        lambda: schedule.step(x, target=x),
        lambda: schedule._dump_csv(path),
        lambda: schedule.tie_weights(0, "bias", 1, "bias"),
    ):
        with pytest.raises(RuntimeError, match="there is no table yet"):
            use()
    path.write_text("0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1")
    schedule._load_csv(path)
    path.write_text("0F0,1F0,0F1,1F1")
    with pytest.raises(ValueError, match="rank 0 has no backward of stage 0, microbatch 0"):
        schedule._load_csv(path)
    schedule.step(x, target=x)  # with the table from before


def test_microbatches_that_are_given_as_such():
    schedule, x = pipelining.ScheduleGPipe(stage(), 2, F.mse_loss), pydist.ones(2, 4)
    for given, said in (
        ({"arg_mbs": [(x,)]}, "arg_mbs: got 1 of them .expected a list with one for each of 2"),
        ({"arg_mbs": x}, "arg_mbs: got Tensor"), ({"arg_mbs": [(x,)] * 2, "target_mbs": [x] * 3}, "targets: got 3"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            schedule.step(**given, target=x)
    for build, said in (
        (lambda: pipelining.ScheduleLoopedBFS([stage()], 2, F.mse_loss, kwargs_chunk_spec=False), "kwargs_chunk_spec is False"),
        (lambda: pipelining.ScheduleGPipe(stage(), 2, F.mse_loss, 3), "args_chunk_spec is 3"),
        (lambda: pipelining.ScheduleLoopedBFS([stage()], 2, backward_requires_autograd=False), "backward_requires_autograd is False"),
        (lambda: _ScheduleForwardOnly(stage(), 2, F.mse_loss), "loss_fn was given"),
    ):  # fmt: skip
        with pytest.raises((TypeError, NotImplementedError, RuntimeError), match=said):
            build()


# ---- what ranks know together


def test_ranks_that_disagree():
    """Another number of microbatches, another table, a loss_fn on some ranks only: said on all, at the first step."""

    def work(rank, what):
        m = 4 if what == "m" and rank else 2
        cls = pipelining.ScheduleGPipe if what == "table" and rank else pipelining.Schedule1F1B
        schedule = cls(stage(rank, 2), m, None if what == "loss" and rank == 0 else F.mse_loss)
        x = pydist.ones(8, 4)
        with pytest.raises(RuntimeError, match="pipeline: line .* differs between ranks") as caught:
            if what == "eval" and rank:
                schedule.eval()
            else:
                schedule.step(*([] if rank else [x]), target=x)
        return str(caught.value)

    for what, said in (
        ("m", "4 microbatches"),
        ("table", "1RECV_F0 1F0 1RECV_F1 1F1"),
        ("loss", "eval, or no loss_fn"),
        ("eval", "step with backward"),
    ):
        texts = run_ranks(2, work, what)
        assert texts[0] == texts[1] and said in texts[0]


class Returns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.linear, self.what = nn.Linear(4, 4), what

    def forward(self, x):
        y = self.linear(x)
        return {"none": None, "dict": {"y": y}, "text": (y, "text"), "empty": (), "float": 1.0, "tensor": y}[self.what]


@pytest.mark.parametrize("what, said", [("none", "NoneType"), ("dict", "dict"), ("text", "tuple with str"),
                                        ("empty", "tuple without entries"), ("float", "float")])  # fmt: skip
def test_what_a_stage_may_not_return(what, said):
    def work(rank):
        schedule = pipelining.Schedule1F1B(stage(rank, 2, Returns(what) if rank == 0 else None), 2, F.mse_loss)
        x = pydist.ones(4, 4)
        with pytest.raises(
            TypeError if rank == 0 else StageFailed, match=f"stage 0: forward returned {said}"
        ) as caught:
            schedule.step(*([] if rank else [x]), target=x)
        return getattr(caught.value, "stage", 0)

    assert run_ranks(2, work) == [0, 0]


def test_other_failures_in_a_stage():
    """An in-place op on a received tensor that needs a gradient; a result without one; a stage that gets more than it takes; a
    failure on both ranks at once."""

    class InPlace(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x), x

    def work(rank, first, last, error):
        schedule = pipelining.ScheduleGPipe(stage(rank, 2, [first, last][rank]()), 2, F.mse_loss)
        x = pydist.ones(4, 4)
        with pytest.raises((StageFailed, error)) as caught:
            schedule.step(*([] if rank else [x]), target=x)
        return str(caught.value)

    texts = run_ranks(2, work, lambda: nn.Linear(4, 4), InPlace, RuntimeError)
    assert "in-place" in texts[1] and "stage 1, microbatch 0, forward" in texts[0]
    texts = run_ranks(2, work, Two, lambda: nn.Linear(4, 4), TypeError)
    assert "positional argument" in texts[0]
    texts = run_ranks(
        2, work, lambda: lambda x: x / 0 if isinstance(x, int) else x.nothing, lambda: nn.Linear(4, 4), AttributeError
    )
    assert all("nothing" in text for text in texts)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_rank_that_is_interrupted(kind):
    """The others hear of it at once, and the next step is whole."""

    class Interrupted(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 3:
                raise kind("stop")
            return super().forward(x)

    def work(rank):
        module = (Interrupted if rank == 1 else nn.Linear)(4, 4)
        schedule, x = pipelining.Schedule1F1B(stage(rank, 3, module), 4, F.mse_loss), pydist.ones(8, 4)
        with pytest.raises(kind if rank == 1 else StageFailed, match="stop"):
            schedule.step(*([x] if rank == 0 else []), target=x)
        schedule.step(*([x] if rank == 0 else []), target=x)

    run_ranks(3, work)


def test_nothing_is_left_behind():
    """No thread, and no message that the next step would take for its own, after 20 steps that failed."""
    before = threading.active_count()

    def work(rank):
        pydist.manual_seed(0)
        module = nn.Linear(4, 4)
        calls = iter(range(10**6))

        def forward(x):
            if next(calls) % 7 == 3 and rank == 1 and failing:
                raise ValueError("now")
            return module(x)

        failing = True
        schedule = pipelining.Schedule1F1B(PipelineStage(forward, rank, 2, "cpu"), 4, F.mse_loss)
        x, failed = pydist.ones(4 * 600, 4), 0
        for _ in range(20):
            try:
                schedule.step(*([] if rank else [x]), target=x)
            except (ValueError, StageFailed):
                failed += 1
        failing = False
        module.zero_grad()
        schedule.step(*([] if rank else [x]), target=x)
        return failed, module.weight.grad.numpy().tobytes()

    (failed, first), (also, second) = run_ranks(2, work)
    assert failed == also >= 5
    pydist.manual_seed(0)
    pair, x = [], pydist.ones(600, 4)
    for _ in range(2):
        pydist.manual_seed(0)
        pair.append(nn.Linear(4, 4))
    for _ in range(4):
        (F.mse_loss(pair[1](pair[0](x)), x) / 4).backward()
    assert [m.weight.grad.numpy().tobytes() for m in pair] == [first, second]
    assert threading.active_count() <= before + 1
