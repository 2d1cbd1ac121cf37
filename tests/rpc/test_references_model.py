"""The protocol of remote references (pydist/distributed/rpc/references.py) under schedules that are drawn from a seed: the
real code, several workers in one process, and a transport that is pretended. Messages from one worker to another keep
their order, nothing else does. Workers die at any moment, and what they had not sent yet, or only just, is lost."""

import gc
import itertools
import random
import weakref
from collections import deque

import pytest

from lib.ranks import LONG
from pydist.distributed.rpc.references import Owned, References, Used
from pydist.distributed.rpc.rref import RRef

SCHEDULES = 100_000 if LONG else 2000


class Agent:
    """What References asks of an agent. What is put into the outbox leaves later, in order."""

    def __init__(self, rank, world):
        self.rank, self.workers = rank, dict.fromkeys(range(world))
        self.gone, self.closing, self.outbox = {}, False, deque()
        self.pipes, self.references = self, References(self)
        self.hands = []  # RRefs that its program has
        self.jobs = []  # values that remote() has asked it to make, as (state, id)

    def put(self, to, kind, data):
        self.outbox.append((to, kind, data))

    def wake(self):
        pass


class Value:
    pass


class World:
    """`agents` and what is under way between them. The seed says how they behave."""

    def __init__(self, seed, size=None):
        self.random = random.Random(seed)
        size = size or self.random.choice((2, 3, 4, 4, 5))
        self.agents = [Agent(rank, size) for rank in range(size)]
        self.living = list(self.agents)
        self.pipes = {(a, b): deque() for a in range(size) for b in range(size) if a != b}
        self.untold = []  # (worker, dead worker): the news that it will get after all messages from there
        self.owners, self.values = {}, {}  # by id: the agent; a weak reference to the value, once that was made
        self.most = self.random.choice((1, 1, 2, 5, 50))  # values at most
        self.busy, self.keep = self.random.choice((0.2, 0.4, 0.7)), self.random.choice((0.5, 1))
        self.weights = self.random.randrange(2, 8), self.random.choice((0, 1)), self.random.randrange(1, 8)
        self.urgency = {}  # what happens first: the most urgent of what can
        self.change = self.random.choice((0.02, 0.1, 1))  # how often that changes
        self.wrong = None  # what was found out where nothing can be raised

    # What happens by itself: outboxes, messages, news, calls that run.

    def send(self, sender, to, message):
        if self.agents[to] in self.living:
            self.pipes[sender.rank, to].append(message)

    def step(self):
        """One thing that happens without the programs. False: there is none."""
        draw = [(self.flush, agent) for agent in self.living if agent.outbox]
        draw += [(self.receive, ends) for ends, pipe in self.pipes.items() if pipe]
        draw += [(self.tell, news) for news in self.untold if not self.pipes[news[1], news[0].rank]]
        draw += [(self.run, agent) for agent in self.living if agent.jobs]
        if not draw:
            return False
        do, what = first = max(draw, key=lambda one: self.urgency.setdefault(one, self.random.random()))
        if self.random.random() < self.change:
            del self.urgency[first]
        do(what)
        assert not self.wrong, self.wrong
        return True

    def flush(self, agent):
        to, kind, data = agent.outbox.popleft()
        if to not in agent.gone:
            self.send(agent, to, ("control", kind, data))

    def receive(self, ends):
        sender, me = ends[0], self.agents[ends[1]]
        what, *rest = self.pipes[ends].popleft()
        if what == "control":
            return me.references.control(sender, *rest)
        if what == "remote":
            number, fork, rows = rest
            me.jobs.append((me.references.create(number, fork, sender), number))
        else:
            (rows,) = rest
        found = me.references.receive(rows, sender)
        for rref in found:
            if rref.is_owner() and rref._state.id in self.values:
                assert rref._state.future.done(), f"value {rref._state.id:#x} is freed, and worker {sender} asks for it"
        me.hands += [rref for rref in found if self.random.random() < self.keep]

    def run(self, agent):
        self.make(*agent.jobs.pop(self.random.randrange(len(agent.jobs))))

    def make(self, state, number):
        value = Value()
        self.values[number] = weakref.ref(value, lambda _: self.check_freed(number))
        state.future.set_result(value)

    def tell(self, news):
        agent, dead = news
        self.untold.remove(news)
        agent.gone[dead] = RuntimeError(f"worker {dead} is gone")
        agent.references.lose(dead)

    # What programs do.

    def act(self):
        having = [agent for agent in self.living if agent.hands]
        new = 3 * (len(self.owners) < self.most or not having)
        do = self.random.choices((self.create, self.hand, self.use, self.drop), (new, *self.weights))[0]
        agent = self.random.choice(self.living if do == self.create else having or self.living)
        do(agent, self.random.choice([other for other in self.agents if other is not agent]).rank)

    def create(self, agent, to):
        if self.random.random() < 0.3:
            self.own(agent)
        elif to not in agent.gone:
            self.ask(agent, to, self.some(agent) if self.random.random() < 0.3 else [])

    def own(self, agent):
        number = agent.references.unique()
        self.owners[number], state = agent, Owned(number, agent.rank)
        self.make(state, number)
        agent.hands.append(RRef._of(state))

    def ask(self, agent, to, rrefs):
        """As rpc.remote does."""
        number = agent.references.unique(2)
        self.owners[number], state = self.agents[to], Used(agent.references, number, number + 1, to)
        agent.references.used[state.fork] = state
        self.send(agent, to, ("remote", number, state.fork, agent.references.lend(rrefs, to)))
        agent.hands.append(RRef._of(state))

    def some(self, agent):
        """Some of the references that a program has."""
        return self.random.sample(agent.hands, min(len(agent.hands), self.random.choice((1, 1, 2))))

    def hand(self, agent, to):
        rrefs = self.some(agent)
        if not rrefs or to in agent.gone:
            return
        rows = agent.references.lend(rrefs, to)
        if self.agents[to] not in self.living and self.random.random() < 0.5:  # the sending finds out
            return agent.references.take_back(rows)
        self.send(agent, to, ("rows", rows))

    def use(self, agent, _):
        for rref in self.some(agent):
            owner = rref._state.owner
            if owner != agent.rank and owner not in agent.gone:
                self.send(agent, owner, ("rows", agent.references.lend([rref], owner)))

    def drop(self, agent, _):
        if agent.hands:
            agent.hands.pop(self.random.randrange(len(agent.hands)))

    def victim(self):
        """A worker that dies, mostly one that has something to say."""
        busy = [agent for agent in self.living if agent.outbox] or self.living
        return self.random.choice(self.random.choice((busy, self.living)))

    def kill(self, dead):
        """Of what a dead worker has sent last, some may be lost."""
        self.living.remove(dead)
        dead.closing = True
        self.untold = [news for news in self.untold if news[0] is not dead]
        for (a, b), pipe in self.pipes.items():
            if a == dead.rank:
                lost = self.random.choice((0, 0, 1, 2, 9))
                for _ in range(min(lost, len(pipe))):
                    pipe.pop()
            if b == dead.rank:
                pipe.clear()
        dead.hands.clear()
        dead.jobs.clear()
        self.untold += [(agent, dead.rank) for agent in self.living]

    # What must hold.

    def holders(self, number):
        """The living workers that have a reference, or will get one with a message that is under way."""
        found = {agent.rank for agent in self.living for rref in agent.hands if rref._state.id == number}
        for (_, to), pipe in self.pipes.items():
            for what, *rest in pipe:
                if what != "control" and any(row[1] == number for row in rest[-1]):
                    found.add(to)
        return found

    def check_freed(self, number):
        """Called by the weak reference, out of which no exception comes."""
        if self.owners[number] in self.living and self.holders(number):
            self.wrong = self.wrong or f"value {number:#x} is freed, and workers {self.holders(number)} have it"

    def settle(self):
        """Everything arrives, and every reference can be used."""
        while self.step():
            pass
        for agent in self.living:
            assert not agent.references.children, "a copy that was handed on is never confirmed"
            for rref in agent.hands:
                state = rref._state
                owner = self.agents[state.owner]
                if owner not in self.living:
                    continue
                there = state if owner is agent else owner.references.owned.get(state.id)
                assert there is not None, f"the owner of {state.id:#x} has forgotten it"
                assert there.future.done(), f"who asks for {state.id:#x} waits for ever"
                if there.future.exception() is not None:
                    assert self.agents[state.id >> 48] not in self.living
                if owner is not agent:
                    assert there.forks[state.fork] == agent.rank, f"the owner of {state.id:#x} does not know a copy"
                    assert state.confirmed.is_set() or state.id >> 48 == agent.rank, "a call waits for ever"

    def end(self):
        """All programs drop what they have."""
        while any(agent.hands for agent in self.living):
            self.drop(self.random.choice(self.living), None)
            self.step()
        self.settle()
        for agent in self.living:
            left = {name: n for name, n in agent.references.stats().items() if n}
            assert not left, f"left at the end: {left}"
        assert not any(value() for number, value in self.values.items() if self.owners[number] in self.living)


def schedule(seed):
    world = World(seed)
    steps = world.random.randrange(20, 80)
    first, apart = world.random.randrange(steps), world.random.choice((2, 6, 30))  # of the deaths
    deaths = [first + i * world.random.randrange(1, apart) for i in range(world.random.choice((0, 1, 2, 2, 3)))]
    for i in range(steps):
        for _ in range(min(deaths.count(i), len(world.living) - 1)):
            world.kill(world.victim())
        if world.random.random() < world.busy or not world.step():
            world.act()
    world.settle()
    world.end()


@pytest.mark.parametrize("part", range(10))
def test_schedules(part):
    gc.disable()  # nothing here has cycles
    try:
        for seed in range(part * SCHEDULES // 10, (part + 1) * SCHEDULES // 10):
            try:
                schedule(seed)
            except BaseException as error:
                raise AssertionError(f"schedule({seed}): {error}") from error
    finally:
        gc.enable()


@pytest.mark.parametrize("dead", [d for n in (1, 2, 3) for d in itertools.permutations((0, 1, 2), n)])
def test_dead_workers_had_handed_copies_on(dead):
    """Worker 0 has a reference to a value of worker 4, from 0 it went to 1, then to 2, then to 3. The owner has heard of none
    of these copies when some of the workers die, and the last copy may be under way. In the end only 3 has one."""
    for seed in range(100):
        world = World(seed, size=5)
        world.keep = 1
        world.ask(world.agents[0], 4, [])
        world.receive((0, 4))
        world.run(world.agents[4])
        for rank in range(3):
            world.hand(world.agents[rank], rank + 1)
            if rank < 2 or seed % 2:
                world.receive((rank, rank + 1))
        for rank in dead:
            world.kill(world.agents[rank])
        for rank in range(3):
            world.agents[rank].hands.clear()
        world.settle()
        world.end()
