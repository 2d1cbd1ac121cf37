"""`python -m pydist.tune` and the file that it writes: used by init, agreed among ranks, never a reason to fail."""

import json
import os
import subprocess
import sys
import warnings

import pytest

from lib.ranks import good, processes, run
from lib.trees import reduce_everything
from pydist import _C
from pydist.distributed._group import tuning
from pydist.tune import best_switch, best_value, write

ROW = {"mesh": 0, "world": 2, "gather": 3000, "direct": 7000, "piece": 2048, "block": 1024, "fast": 0, "fast_from": 0}


def test_the_program_and_a_job_that_uses_its_file(tmp_path, monkeypatch):
    where = tmp_path / "new" / "tune.json"
    command = [sys.executable, "-m", "pydist.tune", "--worlds", "2", "--rounds", "1", "--output", str(where)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "2 ranks over shm" in done.stdout and done.stdout.count("before") >= 10 and str(where) in done.stdout
    on, (row,) = tuning.read(where)
    assert on == tuning.machine() and (row["mesh"], row["world"]) == (0, 2)

    write(where, {**row, "world": 3})
    write(where, ROW)  # in place of the measured one
    assert sorted(r["world"] for r in tuning.read(where)[1]) == [2, 3]
    script = """
        from pydist import distributed as dist
        dist.init_process_group()
        own = dist.new_group([rank], use_local_synchronization=True)
        print(dist.group.WORLD.tuning, dist.new_group().tuning, own.tuning)
        dist.destroy_process_group()
    """
    prelude = "import os\nrank = int(os.environ['RANK'])\n"
    ended = processes(2, script, prelude=prelude, PYDIST_TUNE=str(where))
    assert all(code == 0 for code, _, _ in ended), ended
    alone = _C.comm_init(0, 1, None, -1).tuning
    assert {out.strip() for _, out, _ in ended} == {f"{ROW} {ROW} {alone}"}


def test_ranks_use_the_first_ones():
    """They give different figures, also for other worlds and messages, and every result has its bits."""

    def rows(rank):
        return tuning.packed([{**ROW, "mesh": 1}, {**ROW, "world": 5}, {**ROW, "gather": 3000 + rank}])

    def fn(group):
        return group.tuning, group.subgroup([1, 0]).tuning, [x.tobytes() for *_, x in reduce_everything(group)]

    from threading import Thread

    hub, found = _C.Hub(2), [None, None]

    def body(rank):
        group = _C.comm_init_hub(hub, rank, tuning=rows(rank))
        found[rank] = fn(group)
        group.destroy()

    threads = [Thread(target=body, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert found[0][0] == ROW and found[0][1] == {**ROW, "gather": 3001}  # whose rank 0 is the other
    default = good(run(2, fn))
    assert default[0][0]["gather"] == 1024 and default[0][2] == found[0][2]


def test_a_file_that_is_damaged(tmp_path, monkeypatch):
    where = tmp_path / "tune.json"
    monkeypatch.setenv("PYDIST_TUNE", str(where))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuning.load() is None  # none
    good_file = {"machine": tuning.machine(), "rows": [ROW]}
    where.write_text(json.dumps(good_file))
    assert tuning.load() == tuning.packed([ROW])
    wrong = [
        "", "{", "[]", "null", "\0\1", '{"rows": 5}', json.dumps({**good_file, "rows": [{}]}),
        *(json.dumps({**good_file, "rows": [{**ROW, **change}]})
          for change in ({"piece": 0}, {"gather": -1}, {"gather": 1 << 40}, {"fast": 3}, {"block": "x"}, {"direct": 1.5})),
    ]  # fmt: skip
    for text in wrong:
        where.write_text(text)
        with pytest.warns(UserWarning, match=r"tune\.json: it is damaged .* built-in switch points .*pydist\.tune"):
            assert tuning.load() is None
    where.write_bytes(os.urandom(200))
    with pytest.warns(UserWarning, match="it is damaged"):
        tuning.load()
    where.write_text(json.dumps({**good_file, "machine": "an abacus"}))
    with pytest.warns(UserWarning, match=r"measured on another machine \(an abacus\)"):
        assert tuning.load() is None
    assert tuning.load(warns=False) is None
    write(where, ROW)
    assert tuning.read(where) == (tuning.machine(), [ROW])
    monkeypatch.setenv("PYDIST_TUNE", "none")
    assert tuning.path() is None and tuning.load() is None
    monkeypatch.delenv("PYDIST_TUNE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuning.path() == str(tmp_path / "pydist" / "tune.json")


def test_bad_rows():
    for data, kind in ((b"x", TypeError), ("text", TypeError), (bytes(32), ValueError)):
        with pytest.raises(kind, match="tuning"):
            _C.comm_init(0, 1, None, -1, tuning=data)


def test_choices():
    sizes = (1, 2, 4, 8)
    low, high = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, {1: 3.0, 2: 3.0, 4: 3.0, 8: 3.0}
    assert best_switch(low, high, 8) == 2 and best_switch(low, high, 2) == 2
    assert best_switch(dict.fromkeys(sizes, 1.0), dict.fromkeys(sizes, 0.99), 4) == 4  # not enough
    assert best_value({1: [1.0, 2.0], 2: [0.5, 2.0], 3: [1.0, 1.9]}, 1) == 2
    assert best_value({1: [1.0, 2.0], 3: [1.0, 1.95]}, 1) == 1
