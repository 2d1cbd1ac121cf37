"""A model of the order of reads and writes of common memory (csrc/comm/group/readers.h), of which all interleavings are
explored: no read is torn or old, and no rank waits for ever. With any wait of the protocol removed one of these happens.

A step of the model is one statement of C that other ranks can see: `STATEMENTS` says which. Each rank's part of the
memory is two cells, one for each of two units; a cell holds the number of the last training step that wrote it."""

import re
from collections import deque

import pytest

from lib.source import TOP

READERS, QUEUE, SHARDED = "csrc/comm/group/readers.c", "csrc/comm/group/queue.c", "csrc/parallel/sharded.c"

# Step of the model: (file, function, statement), in the order in which a function has them.
STATEMENTS = {
    "begin: end own section": (READERS, "pd_readers_begin", "pd_readers_written(r);"),
    "begin: wait": (READERS, "pd_readers_begin", "wait_for_writers(r, site);"),
    "begin: check": (READERS, "pd_readers_begin", "PD_THEN(check_ahead(r, site));"),
    "write: barrier": (READERS, "pd_readers_write", "if (!early) PD_TRY(pd_group_write_gate(r->group, site));"),
    "write: open": (READERS, "pd_readers_write", "enlist(r);"),
    "end a section": (READERS, "end_section", "if (r->lines) count_section(r);"),
    "collective: end own section": (QUEUE, "pd_group_enter", "pd_readers_written_here();"),
    "reduce: barrier": (SHARDED, "start_in_slots", "pd_group_reduce_gate("),
    "reduce: last barrier": (SHARDED, "last_gate", "pd_group_reduce_gate("),
    "backward: end": (SHARDED, "at_end", "pd_readers_written(s->readers);"),
    "step: end": ("pydist/optim/optimizer.py", "step", "_C.end_writes()"),
}
WAITS = {  # what is removed: the fault that this makes
    "begin: end own section": "old",
    "begin: wait": "old",
    "write: barrier": "new",
    "collective: end own section": "circle",
    "step: end": "circle",
    "reduce: barrier": "new",
}


class Program:
    """What one rank does: a list of steps, which `moves` explains. Those named `without` are left out."""

    def __init__(self, rank, world, without=None):
        self.rank, self.world, self.without = rank, world, without
        self.steps, self.made = [], 0

    def add(self, name, *step):
        if name != self.without:
            self.steps.append(step)

    def begin(self):
        self.add("begin: end own section", "end")
        self.add("begin: wait", "wait")
        self.add("begin: check", "check")

    def read(self, cells, values):
        """Reads other ranks' cells, one after the other; the values are those of this rank's steps."""
        for cell, value in zip(cells, values, strict=True):
            for rank in range(self.world):
                if rank != self.rank:
                    self.add("read", "read", rank, cell, value)

    def barrier(self, name):
        self.add("collective: end own section", "end")
        self.add(name, "arrive")
        self.add(name, "pass")

    def forward(self):
        self.begin()
        self.read((0, 1), (self.made, self.made))

    def alone(self):
        """generate(), or evaluation: this rank does it, or does not."""
        at = len(self.steps)
        self.forward()
        self.steps.insert(at, ("maybe", len(self.steps) - at))

    def backward(self, hooks):
        """hooks: the optimizer steps as soon as a unit's gradient is reduced (pd_readers_write, early)."""
        self.begin()
        for cell in (1, 0):
            self.read((cell,), (self.made,))
            self.barrier("reduce: barrier")
            if hooks:
                self.add("write: open", "open")
                self.add("write", "write", cell, self.made + 1)
        self.made += hooks
        self.barrier("reduce: last barrier")
        self.add("backward: end", "end")

    def step(self, optimizer):
        """optimizer False: an edit under no_grad(), whose section goes on."""
        self.made += 1
        self.barrier("write: barrier")
        self.add("write: open", "open")
        for cell in (0, 1):
            self.add("write", "write", cell, self.made)
        if optimizer:
            self.add("step: end", "end")

    def train(self, steps, kind):
        for _ in range(steps):
            self.alone()
            self.forward()
            self.alone()
            self.backward(kind == "hooks")
            self.alone()
            if kind != "hooks":
                self.step(kind == "optimizer")
            self.alone()
            if kind == "edits":
                self.barrier("another collective")
        self.alone()
        return self.steps


class Fault(Exception):
    pass


def move(programs, state, rank):
    """The state after the next step of a rank; None: it waits. A rank is (place in its program, sections that it has
    ended, whether it is in a section, barriers at which it has arrived, its two cells)."""
    at, ended, is_open, arrived, cells = state[rank]
    others = [other for k, other in enumerate(state) if k != rank]
    what, *rest = programs[rank][at]
    if what == "end":
        ended, is_open = ended + is_open, False
    elif what == "wait" and any(other[1] < ended for other in others):
        return None
    elif what == "check" and any(other[1] > ended for other in others):
        raise Fault("ahead")
    elif what == "read":
        owner, cell, value = rest
        if state[owner][4][cell] != value:
            raise Fault("new" if state[owner][4][cell] > value else "old")
    elif what == "arrive":
        arrived += 1
    elif what == "pass" and any(other[3] < arrived for other in others):
        return None
    elif what == "open":
        is_open = True
    elif what == "write":
        cell, value = rest
        cells = (value, cells[1]) if cell == 0 else (cells[0], value)
    return (*state[:rank], (at + 1, ended, is_open, arrived, cells), *state[rank + 1 :])


def explore(programs):
    """(number of states, names of faults). A fault ends its interleaving."""
    start = tuple((0, 0, False, 0, (0, 0)) for _ in programs)
    seen, todo, faults = {start}, deque([start]), set()
    while todo:
        state = todo.popleft()
        following = []
        try:
            for rank, program in enumerate(programs):
                at, *rest = state[rank]
                if at < len(program):
                    following.append(move(programs, state, rank))
                    if program[at][0] == "maybe":
                        following.append((*state[:rank], (at + 1 + program[at][1], *rest), *state[rank + 1 :]))
        except Fault as fault:
            faults.add(str(fault))
            continue
        following = {after for after in following if after is not None}
        if not following and any(own[0] < len(program) for own, program in zip(state, programs, strict=True)):
            faults.add("circle")
        todo.extend(following - seen)
        seen |= following
    return len(seen), faults


KINDS = ("optimizer", "edits", "hooks")


@pytest.mark.parametrize("kind", KINDS)
def test_all_interleavings(kind):
    """Two ranks, three steps; each rank may read alone between all it does."""
    states, faults = explore([Program(rank, 2).train(3, kind) for rank in range(2)])
    assert states > 1000 and not faults


@pytest.mark.parametrize("kind", KINDS)
def test_three_ranks(kind):
    states, faults = explore([Program(rank, 3).train(1, kind) for rank in range(3)])
    assert states > 1000 and not faults


@pytest.mark.parametrize("wait", WAITS)
def test_each_wait_is_needed(wait):
    faults = [explore([Program(rank, 2, wait).train(3, kind) for rank in range(2)])[1] for kind in KINDS]
    assert WAITS[wait] in set().union(*faults)


def test_a_step_of_one_rank():
    """The other one is told, in all interleavings."""
    for rank in range(2):
        programs = [Program(0, 2), Program(1, 2)]
        for k, program in enumerate(programs):
            program.forward()
            program.backward(hooks=k == rank)
            program.alone()
            program.forward()
        assert explore([program.steps for program in programs])[1] == {"ahead"}


def body(file, function):
    text = (TOP / file).read_text()
    if file.endswith(".py"):
        return text
    return re.search(rf"^[^\n;]*\b{function}\([^;{{]*\) \{{\n(.*?)^\}}", text, re.M | re.S).group(1)


def test_the_model_is_that_of_the_sources():
    places = {}
    for name, (file, function, statement) in STATEMENTS.items():
        place = body(file, function).find(statement)
        assert place >= 0, f"{name}: {function} has no {statement}"
        assert place > places.get(function, -1), f"{name}: {function} has another order"
        places[function] = place
