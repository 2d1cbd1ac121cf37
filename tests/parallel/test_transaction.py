"""A training step happens on all survivors or on none: ranks are killed at each point of it, and what the survivors have
in the end is computed here again, bit for bit."""

import ast
import os
import pickle
import random
import subprocess
import sys

import pytest

import pydist
from lib.transactions import POINTS, QUIET, SCRIPT, replay
from pydist import distributed as dist


def random_plan(seed):
    """Three deaths in nine steps of four ranks, some at once."""
    chance = random.Random(seed)
    plan, victims = [QUIET] * 9, chance.sample(range(4), 3)
    for at in sorted(chance.sample(range(8), 3)):
        together, victims = victims[: chance.choice((1, 1, 2))], victims[1:]
        plan[at] = tuple(together), chance.choice(POINTS)
    return plan


PLANS = [
    [QUIET, ((0,), "forward"), ((3,), "after backward"), QUIET, ((2,), "split"), QUIET],
    [((2,), "bucket"), QUIET, ((1,), "between"), QUIET, ((0,), "after step"), QUIET],
    [((1, 0), "before"), QUIET, ((3,), "late"), QUIET],
    *map(random_plan, range(int(os.environ.get("FULL_DEATHS", 0)))),
]


def run(tmp_path, plan, world, size=3, victim=-1, moment=0.0):
    """What the survivors print, by rank; and the launcher's words."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "-m", "pydist.run", "--on-failure=keep", f"--nproc-per-node={world}", script, repr(plan), str(size),
         str(victim), str(moment)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    lines = [ast.literal_eval(line.split("] ", 1)[-1]) for line in ended.stdout.splitlines()]
    return {line[0]: line for line in lines}, ended.stderr


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: ", ".join(f"{v} {w}" for v, w in plan if v))
def test_survivors_have_the_bits_of_whole_steps(tmp_path, plan):
    lines, errors = run(tmp_path, plan, 4)
    assert lines == replay(plan, 4), errors


@pytest.mark.parametrize("seed", range(2 + int(os.environ.get("FULL_DEATHS", 0)) // 2))
def test_whole_steps_after_a_death_at_any_moment(tmp_path, seed):
    """In the midst of a bucket's exchange, too: the victim's part counts up to some step, in which its death was seen or
    just before. Having made the last step, it may die before or after it says so."""
    chance, steps, world = random.Random(seed), 30, 2 + seed % 2
    victim, moment = chance.randrange(world), chance.uniform(0, 0.08)
    lines, errors = run(tmp_path, [QUIET] * steps, world, 150_000, victim, moment)
    assert set(range(world)) - {victim} <= set(lines), errors

    def without_sizes(lines):
        return {rank: (*line[:2], [(row[0], row[2]) for row in line[2]], *line[3:]) for rank, line in lines.items()}

    noticed = [next((n for n, size, _ in line[2] if size < world), steps) for line in lines.values()]
    assert max(noticed) - min(noticed) <= 1, lines
    candidates = [
        replay([*[QUIET] * k, ((victim,), "before"), *[QUIET] * (steps - k - 1)][:steps], world)
        for k in range(min(noticed), max(noticed) + 2)
    ]
    said = without_sizes(lines)
    wanted = [{rank: line for rank, line in without_sizes(one).items() if rank in said} for one in candidates]
    assert said in wanted, (noticed, errors)


def model_and_optimizer():
    model = pydist.nn.Linear(2, 1)
    return model, pydist.optim.SGD(model.parameters(), lr=0.1)


def test_an_error_of_the_users_goes_through():
    model, optimizer = model_and_optimizer()
    step = dist.Transaction(model, optimizer)
    for error in (KeyError, dist.CommTimeout):
        with pytest.raises(error):
            for attempt in step:
                with attempt:
                    raise error("the reason")
    assert step.steps == 0
    for attempt in step:
        with attempt:
            optimizer.step()
    assert step.steps == 1


def test_its_state_is_steps_objects_and_random_counter():
    """What a rank that is behind takes over: from there on both draw and learn the same."""
    pairs = [model_and_optimizer() for _ in range(2)]
    ahead, behind = (dist.Transaction(*pair) for pair in pairs)

    def go_on(step, model, optimizer):
        for attempt in step:
            with attempt:
                optimizer.zero_grad()
                model(pydist.rand(3, 2)).sum().backward()
                optimizer.step()
        return [p.tolist() for p in model.parameters()]

    go_on(ahead, *pairs[0])
    state = pickle.loads(pickle.dumps(ahead.state_dict()))
    wanted = go_on(ahead, *pairs[0])
    behind.load_state_dict(state)
    assert behind.steps == 1
    assert go_on(behind, *pairs[1]) == wanted and behind.steps == ahead.steps == 2


def test_misuse_is_an_error():
    model, optimizer = model_and_optimizer()
    with pytest.raises(TypeError, match="int"):
        dist.Transaction(model, 3)
    step = dist.Transaction(model, optimizer)
    with pytest.raises(RuntimeError, match="with attempt"):
        for _ in step:
            pass
    with pytest.raises(RuntimeError, match="inside another"), step, step:
        pass
    for attempt in step:
        with attempt:
            pass
    assert step.steps == 1
    with pytest.raises(NotImplementedError):
        dist.shrink_group()


def test_only_the_default_group_can_be_made_anew():
    def work(rank):
        group = dist.new_group([0, 1])
        model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1), process_group=group)
        with pytest.raises(NotImplementedError, match="default group"):
            dist.Transaction(model)
        step = dist.Transaction(model := pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1)))
        with pytest.raises(NotImplementedError, match="join"), model.join(), step:
            pass

    dist.threads.run(work, 2)


def test_hooks_live_on_and_a_shrinking_without_deaths_is_an_error(tmp_path):
    script = tmp_path / "hooks.py"
    script.write_text("""
import os
import pydist
from pydist import distributed as dist, nn
from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

dist.init_process_group()
try:
    dist.shrink_group()
except ValueError as error:
    assert "no rank has died or left" in str(error)
builtin, python = (nn.parallel.DistributedDataParallel(nn.Linear(2, 1)) for _ in range(2))
builtin.register_builtin_comm_hook("bf16")
seen = []
python.register_comm_hook(seen, lambda state, bucket: (state.append(1), allreduce_hook(None, bucket))[1])
step = dist.Transaction(builtin, python)
for attempt in step:
    with attempt:
        if dist.get_rank() == 2:
            os._exit(1)
        for model in (builtin, python):
            model(pydist.full((1, 2), 1 + 2**-12 + dist.get_rank())).sum().backward()
print(dist.get_world_size(), builtin.module.weight.grad.tolist(), python.module.weight.grad.tolist(), len(seen))
""")
    ended = subprocess.run([sys.executable, "-m", "pydist.run", "--on-failure=keep", "--nproc-per-node=3", script],
                           capture_output=True, text=True, timeout=60)  # fmt: skip
    exact = 1.5 + 2**-12
    said = [line.split("] ", 1)[-1] for line in ended.stdout.splitlines()]
    assert said == [f"2 [[1.5, 1.5]] [[{exact}, {exact}]] {1 + (said[0][-1] == '2')}"] * 2, ended.stderr
