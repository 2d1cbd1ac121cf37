"""The simulator of pipelines against closed formulae, exactly, and small tables by hand."""

from fractions import Fraction

import pytest

from pydist.distributed.pipelining import Simulation, simulate, tables

SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 4, 7, 8, 16, 32)]
COSTS = [(1, 1, 1), (3, 5, 2), (2, 1, 4), (Fraction(1, 3), Fraction(2, 7), 1)]


@pytest.mark.parametrize("f, i, w", COSTS)
@pytest.mark.parametrize("p, m", SIZES)
def test_gpipe_and_1f1b(p, m, f, i, w):
    """(m + p - 1) (F + B); the idle part is (p - 1) / (m + p - 1) on every rank."""
    for table in (tables.gpipe(p, m), tables.one_f_one_b(p, m)):
        found = simulate(table, f, i, w)
        assert found.time == (m + p - 1) * (f + i + w)
        assert found.idle == [(p - 1) * (f + i + w)] * p and found.busy == [m * (f + i + w)] * p
        assert found.idle_share == [pytest.approx((p - 1) / (m + p - 1), abs=1e-12)] * p
    assert simulate(tables.gpipe(p, m)).live == dict.fromkeys(range(p), m)
    assert simulate(tables.one_f_one_b(p, m)).live == {s: min(m, p - s) for s in range(p)}


@pytest.mark.parametrize("p, m", [(p, m) for p, m in SIZES if m % p == 0])
def test_looped(p, m):
    """(m v + p - 1) (F + B) if the rounds are whole; a rank's live microbatches are its warm-up and one."""
    for v in (1, 2, 3):
        for f, i, w in COSTS[:2]:
            assert simulate(tables.interleaved_1f1b(p, v, m), f, i, w).time == (m * v + p - 1) * (f + i + w)
            assert simulate(tables.looped_bfs(p, v, m), f, i, w).time == (m * v + p - 1) * (f + i + w)
        live = [min(m * v, (v - 1) * p + 2 * (p - 1 - rank) + 1) for rank in range(p)]
        assert simulate(tables.interleaved_1f1b(p, v, m)).live_on_rank == live


@pytest.mark.parametrize("p, m", [(p, m) for p, m in SIZES if m >= p])
def test_zero_bubble(p, m):
    """ZB1P waits (p - 1) (F + I - W) where that is positive, here p - 1; 1F1B three times as long."""
    found = simulate(tables.interleaved_zero_bubble(p, 1, m))
    assert found.time == 3 * m + p - 1
    assert found.live_on_rank == [p - rank for rank in range(p)]
    assert found.kept_on_rank == [min(m, rank + 1) for rank in range(p)]


@pytest.mark.parametrize("p, m", [(p, m) for p, m in SIZES if m >= 2 * p - 1])
def test_zbv(p, m):
    """No wait between a rank's first and last action if F = I = W, and p - 1 in all."""
    for cost in (1, 5):
        found = simulate(tables.zbv_zero_bubble(p, m), cost, cost, cost)
        assert found.inner_idle == [0] * p and found.time == cost * (6 * m + p - 1)
    assert max(found.live_on_rank) <= 2 * p


def test_by_hand():
    """p = 2, m = 1, F = 2, I = 3, W = 1, a send takes 10."""
    found = simulate([["0F0", "0I0", "0W0"], ["1F0", "1B0"]], F=2, I=3, W=1, send=10)
    assert [(str(a), begin, end) for a, begin, end in found.spans[0]] == [
        ("0F0", 0, 2),
        ("0I0", 28, 31),
        ("0W0", 31, 32),
    ]
    assert [(str(a), begin, end) for a, begin, end in found.spans[1]] == [("1F0", 12, 14), ("1B0", 14, 18)]
    assert found.time == 32 and found.idle == [26, 26] and found.inner_idle == [26, 0]
    assert found.live == {0: 1, 1: 1} and found.kept == {0: 1, 1: 0}
    by_stage = simulate(tables.gpipe(2, 1), F=[1, 5], I={0: 2, 1: 3}, W=lambda stage: 10 * stage)
    assert by_stage.time == 1 + 5 + 3 + 10 + 2 + 0


def test_a_stage_hands_over_to_its_own_rank_at_once():
    """In V form the last stage of the way down and the first of the way up are on one rank."""
    found = simulate(tables.zbv_zero_bubble(2, 1), send=100)
    ends = {str(a): (begin, end) for row in found.spans for a, begin, end in row}
    assert ends["2F0"][0] == ends["1F0"][1] and ends["1F0"][0] == ends["0F0"][1] + 100


def test_order_of_results_is_that_of_time():
    """Whatever the table, an action begins after what it needs, and no two of a rank overlap."""
    for table in (tables.dualpipe_v(4, 11), tables.interleaved_1f1b(3, 2, 7)):
        found = simulate(table, F=2, I=3, W=1, send=1)
        done = {}
        for row in found.spans:
            assert all(a[2] <= b[1] for a, b in zip(row, row[1:], strict=False))
            done.update({(a[0], a[1].value, a[2]): (begin, end) for a, begin, end in row})
        for (s, kind, mb), (begin, _) in done.items():
            if kind == "F" and s:
                assert begin >= done[s - 1, "F", mb][1]
            if kind in "BI" and (nexts := [done[s + 1, k, mb] for k in "BI" if (s + 1, k, mb) in done]):
                assert begin >= nexts[0][1]


def test_pictures():
    picture = "rank 0 |F0 F1 .........B0    B1    |\nrank 1 |...F0 F1 B0    B1    ......|"
    assert simulate(tables.gpipe(2, 2)).gantt() == picture
    lines = simulate(tables.looped_bfs(2, 2, 1)).gantt(4).splitlines()
    assert lines[0].startswith("rank 0 |0F0 ....2F0 ....") and len(set(map(len, lines))) == 1
    assert repr(simulate(tables.gpipe(2, 1))) == "Simulation(time=6, idle=50.0 %, 50.0 %)"
    assert Simulation([[], []]).time == 0 and Simulation([[]]).gantt() == "rank 0 ||"


def test_bad_arguments():
    for name in ("F", "I", "W", "send"):
        for value in (-1, None, True, "x"):
            with pytest.raises(ValueError, match=f"simulate: {name} is"):
                simulate(tables.gpipe(2, 2), **{name: value})
    with pytest.raises(ValueError, match="waits for"):
        simulate([["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]])


def test_measured_costs_are_those_that_were_simulated():
    """Of split backwards and of whole ones, for each stage."""
    given = {"F": [2, 3, 4, 5], "I": [1, 2, 3, 4], "W": [6, 5, 4, 3]}
    split = simulate(tables.zbv_zero_bubble(2, 3), **given)
    assert split.costs() == {kind: dict(enumerate(times)) for kind, times in given.items()}
    even = given | {"W": given["I"]}
    assert simulate(tables.interleaved_1f1b(2, 2, 4), **even).costs() == {
        k: dict(enumerate(t)) for k, t in even.items()
    }
    assert (
        simulate(tables.zbv_zero_bubble(2, 5), **split.costs()).time
        == simulate(tables.zbv_zero_bubble(2, 5), **given).time
    )
