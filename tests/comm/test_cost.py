"""What algorithms say that they cost, against the steps and bytes that a group counts while it runs them."""

import doctest
import subprocess
import sys
from functools import partial
from math import log2

import algorithms
import numpy as np
import pytest

import pydist
from lib.ranks import good, run
from pydist import _C

TYPES = ("float32", "float16", "int8")


def spent(group, call):
    before = group.counted
    call()
    after = group.counted
    return {
        "steps": after["steps"] - before["steps"],
        "memory": tuple(a - b for a, b in zip(after["memory"], before["memory"], strict=True)),
        "messages": tuple(a - b for a, b in zip(after["messages"], before["messages"], strict=True)),
    }


def told(group, op, count, **options):
    found = _C.comm_cost(op, group.size, count, rank=group.rank, slot=1024, **options)
    found.pop("algorithm")
    return found


def calls(group, dtype, n, world):
    """(operation, root, call) of all collectives of equal parts."""

    def made(count):
        return np.ones(count, dtype)

    last = world - 1
    mine = group.rank == last
    yield "all_reduce", -1, lambda: group.all_reduce(made(n))
    yield "reduce", last, lambda: group.reduce(made(n), last)
    yield "broadcast", last, lambda: group.broadcast(made(n), last)
    yield "reduce_scatter", -1, lambda: group.reduce_scatter(made(n), made(n * world))
    yield "all_gather", -1, lambda: group.all_gather(made(n * world), made(n))
    yield "gather", last, lambda: group.gather(made(n * world) if mine else None, made(n), last)
    yield "scatter", last, lambda: group.scatter(made(n), made(n * world) if mine else None, last)
    yield "all_to_all", -1, lambda: group.all_to_all(made(n * world), made(n * world))
    yield "barrier", -1, group.barrier


@pytest.mark.parametrize(
    "algo, hosts",
    [("", 1), ("", "all"), ("gather_sum", 1), ("gather_sum", "all"), ("scatter_gather", 1), ("scatter_gather", "all"),
     ("slot_sum", 1), ("hierarchical", 2), ("ring", 1), ("ring", "all"), ("halving", 1), ("halving", "all")],
)  # fmt: skip
@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_every_algorithm(algo, hosts, world):
    if hosts == 2 and world != 4:
        pytest.skip("hosts of two ranks each")
    fast = algo in ("ring", "halving")

    def fn(group):
        if hosts != 1:
            assert group.transport == "tcp" and group.ranks_per_host == (2 if hosts == 2 else 1)
        how = {"messages": hosts != 1, "local": group.ranks_per_host, "algo": algo or None, "fast": fast}
        for dtype in TYPES:
            for n in (0, 1, 70, 999, 5000):
                for op, root, call in calls(group, dtype, n, world):
                    count = 0 if op == "barrier" else n
                    want = told(group, op, count, dtype=dtype, root=root, **how)
                    assert spent(group, call) == want, (op, dtype, n, group.rank)

    good(run(world, fn, hub=_C.Hub(world, world if hosts == "all" else hosts), algo=algo, slot=1024, fast=fast))


@pytest.mark.parametrize("hosts", [1, 3])
def test_parts_of_different_sizes(hosts):
    """In memory large parts are read where they lie, if there are fewer cores than ranks; else they are staged."""

    def fn(group):
        rank = group.rank
        for dtype in TYPES:
            for most in (0, 40, 2000):
                table = np.random.default_rng(most).integers(0, most + 1, (3, 3)).tolist()
                row, taken = table[0], [source[rank] for source in table]
                tensors = [pydist.ones(n).to(getattr(pydist, dtype)) for n in row]
                x, y = np.ones(sum(table[rank]), dtype), np.ones(sum(taken), dtype)
                ways = [{"dtype": dtype, "messages": hosts != 1, "direct": direct} for direct in (False, hosts == 1)]
                for op, sizes, call in (
                    ("all_to_all", table, partial(group.all_to_all, y, x, False, taken, table[rank])),
                    ("all_gather", row, partial(group.all_gather, tensors, tensors[rank].clone())),
                    ("reduce_scatter", row, partial(group.reduce_scatter, tensors[rank].clone(), tensors)),
                ):
                    if op != "all_to_all" and len(set(row)) == 1:
                        continue  # equal parts
                    assert spent(group, call) in [told(group, op, 0, sizes=sizes, **how) for how in ways], (op, most)

    good(run(3, fn, hub=_C.Hub(3, hosts), slot=1024))


BAD = [
    ({"op": "nothing"}, "op is 'nothing'"),
    ({"op": "send"}, "op is 'send'"),
    ({"world": 1}, "of 1 ranks"),
    ({"rank": 4}, "rank 4 and root -1 of 4"),
    ({"count": -1}, "-1 elements"),
    ({"local": 3}, "3 ranks on a host"),
    ({"dtype": "float31"}, "float31"),
    ({"algo": "quick"}, "quick"),
    ({"op": "all_gather", "sizes": [1, 2]}, "sizes does not fit the world .expected 4"),
    ({"op": "all_to_all", "sizes": [1, 2, 3, 4]}, "sizes is int .expected a sequence"),
    ({"op": "all_to_all", "sizes": [[1] * 4] * 3 + [[1, 1, 1, -1]]}, "each at least 0"),
    ({"op": "broadcast", "sizes": [1] * 4}, "broadcast"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_wrong_questions(number):
    given, text = BAD[number]
    with pytest.raises((ValueError, TypeError), match=text):
        _C.comm_cost(**{"op": "all_reduce", "world": 4, "count": 100, **given})


def test_what_costs_less():
    """Numbers that a reader of docs/algorithms.md would work out."""
    n, world = 1 << 20, 8
    small = _C.comm_cost("all_reduce", world, n // 4, algo="gather_sum")
    large = _C.comm_cost("all_reduce", world, n // 4, algo="scatter_gather")
    ring = _C.comm_cost("all_reduce", world, n // 4, algo="ring", fast=True)
    assert small["memory"] == (n, 7 * n) and small["steps"] == 4  # pieces of 256 KiB
    assert large["memory"] == (n, 2 * 7 * n // 8) and large["steps"] == 5
    assert ring["memory"][1] == 2 * 7 * n // 8 and ring["steps"] == 4 * 14


def test_the_table_in_docs():
    text = algorithms.FILE.read_text()
    assert algorithms.written(text) == text, "run python tools/algorithms.py"
    found = doctest.testfile(str(algorithms.FILE), module_relative=False, parser=Fenced())
    assert found.attempted == 3 and not found.failed


class Fenced(doctest.DocTestParser):
    """Examples in a block of Markdown end where the block does."""

    def get_examples(self, string, name="<string>"):
        return super().get_examples(string.replace("```", ""), name)

    def parse(self, string, name="<string>"):
        return super().parse(string.replace("```", ""), name)


@pytest.mark.parametrize("number", range(len(algorithms.ROWS)))
def test_the_formulas_in_docs(number):
    op, algorithm, who, steps, memory, messages, more = algorithms.ROWS[number]
    for world, local in ((4, 2), (8, 4)):
        n = world * world * 64 * 4 * 150  # parts of parts are whole blocks of 64 elements
        names = {"n": n, "W": world, "L": local, "log2": log2}
        count = n // 4 // (world if op in algorithms.IN_PARTS else 1)
        rooted = op in ("reduce", "broadcast", "gather", "scatter")
        given = {"root": 0 if rooted else -1, "rank": 0 if who in ("root", "") else 1, "slot": n // 2, **more}
        given["local"] = local if algorithm == "hierarchical" else 1
        if op == "barrier":
            count = 0
        ways = [memory] if algorithm == "hierarchical" else [memory, messages]
        for level, formulas in zip((False, True), ways, strict=False):
            if formulas is None:
                continue
            cost = _C.comm_cost(op, world, count, messages=level or algorithm == "hierarchical", **given)
            assert cost["algorithm"] == algorithm and cost["steps"] == eval(steps, names | {"P": 2})
            assert cost["messages" if level else "memory"] == tuple(eval(text, names) for text in formulas)
            if algorithm == "hierarchical":
                assert cost["messages"] == tuple(eval(text, names) for text in messages)


def test_doctor_and_tune_say_it():
    from pydist.distributed._ops.cost import cost_text

    assert cost_text("all_reduce", 4, 1 << 20, "shm") == (
        "all_reduce of 1 MiB: slot_sum, 5 steps; a rank writes 1.5 MiB and reads 1.5 MiB in shared memory"
    )
    assert cost_text("all_reduce", 4, 4, "tcp") == (
        "all_reduce of 4 B: gather_sum, 1 step; a rank sends 12 B and receives 12 B"
    )
    assert "; a rank sends 512 KiB" in cost_text("all_reduce", 4, 1 << 20, "tcp", local=2)
    command = [sys.executable, "-m", "pydist.doctor", "--nproc-per-node", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "all_reduce of 4 MiB: slot_sum, 17 steps" in done.stdout, done.stdout + done.stderr
