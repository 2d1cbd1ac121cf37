"""Members of a group: who is told what, in which order, and that all ranks go on with the newest state."""

import ast
import gc
import subprocess
import sys

import pytest

import pydist
from pydist import distributed as dist
from pydist.distributed import member


class Plain:
    """A member that notes what it is told."""

    def __init__(self, name="", told=None):
        self.name, self.told = name, [] if told is None else told

    def settle(self, on):
        self.told.append((self.name, on))

    def rejoin(self, group):
        self.told.append((self.name, group.size))


class Stateful(Plain):
    def __init__(self, steps, **kwargs):
        super().__init__(**kwargs)
        self.steps, self.value = steps, f"made {steps}"

    def state_dict(self):
        return self.steps, self.value

    def load_state_dict(self, state):
        self.steps, self.value = state


def registered(*several):
    for one in several:
        assert member.register(one) is dist.group.WORLD


def test_members_are_told_in_order_and_referenced_weakly():
    told = []
    first, second = Plain("first", told), Plain("second", told)
    registered(first, second, Plain("gone", told))
    assert member.members() == [first, second] and member.group_of(first) is dist.group.WORLD
    member.settle(True)
    assert told == [("first", True), ("second", True)]
    registered(first)  # once more: it is the last one now
    assert member.members() == [second, first]
    first = None
    assert member.members() == [second]
    second = None
    assert member.members() == []


def test_a_member_in_a_cycle_goes_with_it():
    one = Plain()
    one.itself = one
    member.register(one)
    one = None
    gc.collect()
    assert member.members() == []


def test_members_may_compare_as_they_like():
    class Odd(Plain):
        __hash__ = None

        def __eq__(self, other):
            raise ValueError("compared")

    odd, other = Odd(), Odd()
    registered(odd, other, odd)
    assert [id(one) for one in member.members()] == [id(other), id(odd)]
    odd = None
    assert len(member.members()) == 1


def test_who_cannot_settle_sets_back_those_before():
    class Refuses(Plain):
        def settle(self, on):
            raise KeyError("not now")

    one, two, three = Plain("one"), Refuses(), Plain("three")
    registered(one, two, three)
    with pytest.raises(KeyError, match="not now"):
        member.settle(True)
    assert one.told == [("one", True), ("one", False)] and three.told == []


def test_what_is_no_member_is_an_error():
    lacking = Plain()
    lacking.rejoin = None
    for wrong, text in [
        (3, "int has no settle"),
        (lacking, "Plain has no rejoin"),
        (type("Counts", (Plain,), {"steps": 0})(), "has steps and no state_dict"),
        (type("Counts", (Stateful,), {"steps": "some", "__init__": lambda self: None})(), "steps of Counts is str"),
    ]:
        with pytest.raises(TypeError, match=text):
            member.register(wrong)
    with pytest.raises(TypeError, match="weak"):
        member.register(type("Slotted", (), {"__slots__": (), "settle": Plain.settle, "rejoin": Plain.rejoin})())
    with pytest.raises(ValueError, match="not in the group"):
        member.register(Plain(), dist.GroupMember.NON_GROUP_MEMBER)
    assert member.members() == [] and member.group_of(3) is None


def test_all_take_the_newest_state():
    """Of the first rank that has made most steps; each member by itself, before its rejoin."""

    def work(rank):
        before, told = dist.group.WORLD, []
        one = Stateful([3, 5, 5][rank], name="one", told=told)
        plain = Plain("plain", told)
        two = Stateful([8, 7, 6][rank], name="two", told=told)
        one.value += f" on {rank}"
        for each in (one, plain, two):
            member.register(each)
        group = dist.new_group([0, 1, 2])
        late = Plain("late", told)
        member.register(late, group)
        member.rejoin(before, group)
        assert member.members(before) == [] and member.members(group) == [one, plain, two, late]
        return one.steps, one.value, two.value, told

    told = [(name, 3) for name in ("one", "plain", "two", "late")]
    taken, own = (5, "made 5 on 1", "made 8", told), (5, "made 5 on 2", "made 8", told)
    assert dist.threads.run(work, 3) == [taken, taken, own]


def test_members_that_differ_are_an_error_on_all_ranks():
    def work(rank):
        before, told = dist.group.WORLD, []
        kept = [Plain("a", told), Stateful(rank, name="b", told=told) if rank != 1 else Plain("b", told)]
        for each in kept:
            member.register(each)
        with pytest.raises(RuntimeError) as caught:
            member.rejoin(before, dist.new_group([0, 1, 2]))
        return told, str(caught.value)

    text = (
        "rejoin: member 1 differs between ranks: rank 0 has Stateful (registration 2), "
        "rank 1 has Plain (registration 2)"
    )
    assert dist.threads.run(work, 3) == [([], text)] * 3


def test_one_that_came_later_is_another_one():
    """Registrations are counted: the second of two objects of a kind is not taken for the first."""

    def work(rank):
        before, stays, one = dist.group.WORLD, Plain(), Stateful(0)
        member.register(stays)
        member.register(one)
        if rank == 1:
            one = None
            one = Stateful(9)
            member.register(one)
        with pytest.raises(RuntimeError, match="registration 2.*registration 3"):
            member.rejoin(before, dist.new_group([0, 1]))

    dist.threads.run(work, 2)


def test_a_state_that_is_not_taken_is_an_error():
    class Forgets(Stateful):
        def load_state_dict(self, state):
            pass

    def work(rank):
        before, one = dist.group.WORLD, Forgets(rank)
        member.register(one)
        group = dist.new_group([0, 1])
        if rank == 1:
            return member.rejoin(before, group)
        with pytest.raises(RuntimeError, match="Forgets.load_state_dict left steps at 0 .expected 1, as on rank 1"):
            member.rejoin(before, group)

    dist.threads.run(work, 2)


def test_data_parallel_goes_on_in_a_smaller_group():
    def work(rank):
        before = dist.group.WORLD
        model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1, bias=False))
        grad = []
        for _ in range(2):
            model.zero_grad()
            model(pydist.full((1, 2), float(rank + 1))).sum().backward()
            grad.append(model.module.weight.grad[0, 0].item())
            group = dist.new_group([0, 2])
            if rank == 1:
                return grad
            if len(grad) == 1:
                member.rejoin(before, group)
                assert model.process_group is group and member.group_of(model) is group
        return grad

    first, last = sum((1.0, 2.0, 3.0)) * (1 / 3), 2.0
    assert dist.threads.run(work, 3) == [[first, last], [first], [first, last]]


def test_a_joined_replica_does_not_settle():
    def work(rank):
        model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
        with pytest.raises(NotImplementedError, match="within join"), model.join():
            member.settle(True)
        member.settle(True)
        assert model.reducer.waits is True
        member.settle(False)
        assert model.reducer.waits is False

    dist.threads.run(work, 2)


SCRIPT = """
import os, signal, sys
import pydist
from pydist import distributed as dist, nn, optim

me, plan = int(os.environ["RANK"]), eval(sys.argv[1])

class Count:
    steps = total = 0
    def settle(self, on): pass
    def rejoin(self, group): sizes.append(group.size)
    def state_dict(self): return self.steps, self.total
    def load_state_dict(self, state): self.steps, self.total = state

dist.init_process_group()
count, sizes = Count(), []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(pydist.zeros(2, dtype=pydist.float64))
    def forward(self, x):
        return (self.p * x).sum()

def part():
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    return model.module.p, model, optimizer, dist.Transaction(model, optimizer)

parts = part(), part()
dist.member.register(count)
for number, (victim, where) in enumerate(plan):
    for index, (p, model, optimizer, step) in enumerate(parts):
        for attempt in step:
            with attempt:
                here = f"{where} {index}" if dist.get_world_size() == 3 else None
                if here in ("begin 0 0", "begin 1 1") and me == victim:
                    os.kill(os.getpid(), signal.SIGKILL)
                if here == "split 1":
                    dist.all_reduce(pydist.ones(1))
                optimizer.zero_grad()
                model(12.0 * me + number + index).backward()
                if here == "split 0" and me == victim:
                    os.kill(os.getpid(), signal.SIGKILL)
                if here == "split 0" and me > 0:
                    dist.all_reduce(pydist.ones(1))
                optimizer.step()
    count.steps, count.total = count.steps + 1, count.total + dist.get_world_size()
print(repr((me, [(p[0].item(), p[1].item(), s.steps) for p, _, _, s in parts], count.steps, sizes)), flush=True)
"""


def replay(plan, world, place):
    """What survivors have: the parameter and the steps of both parts. `place`: the (number, part) from which on the
    victim is missing."""
    values = [0.0, 0.0]
    for number, _ in enumerate(plan):
        for index in (0, 1):
            ranks = [r for r in range(world) if r != plan[place[0]][0] or (number, index) < place]
            values[index] -= 0.5 * (sum(12.0 * r + number + index for r in ranks) * (1 / len(ranks)))
    return [(value, value, len(plan)) for value in values]


@pytest.mark.parametrize("victim, where, place", [(2, "begin 0", (1, 0)), (1, "begin 1", (1, 1)), (2, "split", (1, 1))])
def test_two_transactions_and_a_member_survive_a_death(tmp_path, victim, where, place):
    """Also where the survivors notice it in different Transactions ("split"): rank 0 has made the first one's step and is
    in the second one, the other survivor is in the first one still, and takes rank 0's state."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    quiet = (None, None)
    plan = [quiet, (victim, where), quiet, quiet]
    ended = subprocess.run(
        [sys.executable, "-m", "pydist.run", "--on-failure=keep", "--nproc-per-node=3", script, repr(plan)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    lines = [ast.literal_eval(line.split("] ", 1)[-1]) for line in ended.stdout.splitlines()]
    wanted = replay(plan, 3, place)
    assert sorted(lines) == [(r, wanted, 4, [2]) for r in range(3) if r != victim], ended.stderr
