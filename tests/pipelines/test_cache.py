"""What is kept: caches in memory and in files, snapshots, saved data sets; and how threads are asked for."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from itertools import count

import numpy as np
import pytest

import pydist
from lib.elements import items, plain
from pydist import data
from pydist.data import Dataset, StringTensor, experimental, pool


class Counted:
    """A function that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * 2, StringTensor(["s"] * (x.item() % 3))


def plans(counted):
    """One that is read by number and one that is a stream."""
    rows = Dataset.range(7)
    return {"numbers": rows.map(counted), "stream": rows.filter(lambda x: True).map(counted)}


@pytest.mark.parametrize("plan", ["numbers", "stream"])
@pytest.mark.parametrize("file", [False, True])
def test_a_second_pass_computes_nothing(plan, file, tmp_path):
    counted = Counted()
    path = str(tmp_path / "folder" / "cache") if file else ""
    dataset = plans(counted)[plan].cache(path)
    expected = items(plans(Counted())[plan])
    iterator = iter(dataset)
    next(iterator)
    iterator.close()  # a part of a pass is no cache
    del iterator
    assert not file or not os.path.exists(path)
    assert items(dataset) == expected
    calls = counted.calls
    assert calls <= 8 and items(dataset) == items(dataset) == expected and counted.calls == calls
    assert items(dataset.take(2)) == expected[:2] and sorted(items(dataset.shuffle(7, seed=0))) == expected
    for x in dataset:
        x[0].zero_()
    assert items(dataset) == expected  # elements are not the cache
    if file:
        again = plans(counted)[plan].cache(path)
        assert items(again) == expected and counted.calls == calls and os.listdir(tmp_path / "folder") == ["cache"]
    if plan == "numbers":
        assert len(dataset) == 7 and dataset.element_spec[0] == data.TensorSpec((), pydist.int64)


def test_rows_of_a_cache():
    images = np.random.default_rng(0).integers(0, 255, (40, 3, 2)).astype(np.uint8)
    calls = []
    dataset = Dataset.from_tensor_slices((images, np.arange(40))).map(lambda x, y: (calls.append(1), x.float(), y)[1:])
    cached = dataset.cache().shuffle(40, seed=1).batch(8)
    seen = {}
    for _ in range(3):
        for x, y in cached:
            for image, number in zip(x, y.tolist()):
                assert np.array_equal(image.numpy(), images[number])
                seen[number] = seen.get(number, 0) + 1
    assert len(calls) == 40 and seen == dict.fromkeys(range(40), 3)
    uneven = Dataset.range(6).map(lambda n: pydist.ones(3 if n < 4 else 4)).cache()
    assert [len(x) for x in uneven] == [len(x) for x in uneven] == [3, 3, 3, 3, 4, 4]
    assert [tuple(x.shape) for x in uneven.take(4).batch(2)] == [(2, 3), (2, 3)]
    with pytest.raises(data.DataError, match="padded_batch"):
        list(uneven.skip(2).batch(4))


def test_passes_get_the_first_ones_numbers():
    """Also where a program goes on from a state in a new process, without the memory's cache."""

    def made():
        return Dataset.range(10).shuffle(10).map(lambda x: x + pydist.rand(())).cache().shuffle(10).batch(3)

    pydist.manual_seed(1)
    dataset = made()
    with pytest.warns(UserWarning, match="cache: a function before it draws random numbers") as caught:
        first = items(dataset)
        second_pass = iter(dataset)
        head = [next(second_pass).tolist() for _ in range(2)]
        state = second_pass.state_dict()
        rest = [x.tolist() for x in second_pass]
    assert len(caught) == 1
    values = sorted(x for batch in first for x in batch)
    assert values == sorted(x for batch in head + rest for x in batch) and first != head + rest
    other = iter(made())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.load_state_dict(json.loads(json.dumps(state)))
        assert [x.tolist() for x in other] == rest


def test_a_stream_goes_on_within_its_cache(tmp_path):
    for path in ("", str(tmp_path / "cache")):

        def made(path=path):
            return Dataset.range(12).filter(lambda x: x % 2 == 0).cache(path).map(lambda x: x + 1)

        dataset = made()
        whole = items(dataset)
        for before in (0, 1):
            begun = iter(dataset)
            for _ in range(4 * before):
                next(begun)
            for again in (dataset, made()):
                other = iter(again)
                other.load_state_dict(begun.state_dict())
                assert [x.item() for x in other] == whole[4 * before :]
    dataset = made("")
    begun, other = iter(dataset), iter(made(""))
    next(begun)
    other.load_state_dict(begun.state_dict())  # of a pass that fills the cache
    assert [x.item() for x in other] == whole[1:]


def test_cache_files_of_others_are_refused(tmp_path):
    path = str(tmp_path / "cache")
    items(Dataset.range(5).map(lambda x: x + 1).cache(path))
    with pytest.raises(
        data.DataError, match=r"cache: .*cache has the elements of another plan: step 1 \(map\) has other"
    ):
        items(Dataset.range(5).map(lambda x: x + 2).cache(path))
    good = open(path, "rb").read()
    for content, text in [
        (good[:-4], "is cut"),
        (good[:40] + bytes([good[40] ^ 1]) + good[41:], "damaged"),
        (b"", "is no file of elements"),
        (pydist._C._data_crc32c(b"").to_bytes(4, "little") * 9, "damaged, or no file of TFRecords"),
    ]:
        open(path, "wb").write(content)
        with pytest.raises(data.DataError, match=text):
            items(Dataset.range(5).map(lambda x: x + 1).cache(path))
    with data.TFRecordWriter(path) as writer:
        writer.write(b'{"format": "pydist elements 1"}')
    with pytest.raises(data.DataError, match="is no file of elements .expected one that cache has written"):
        items(Dataset.range(5).cache(path))
    plan = pydist.data.state.fingerprint(Dataset.range(1)._node)
    for element in (b"\x05\1", b"\xff" * 8, b"\5\1" + bytes(6) + b"\xff" * 8):
        with data.TFRecordWriter(path) as writer:
            writer.write(element)
            said = {"format": "pydist elements 1", "plan": plan, "tree": None, "specs": [[[], "int64"]], "order": None}
            writer.write(json.dumps(said))
        for dataset in (Dataset.range(1).cache(path), Dataset.range(1).cache(path).batch(1)):
            with pytest.raises(data.DataError, match="cache: an element of .*cache is damaged"):
                items(dataset)


def test_a_killed_program_leaves_no_cache(tmp_path):
    path = str(tmp_path / "cache")
    program = f"""
import os, signal
from pydist.data import Dataset
for x in Dataset.range(100).cache({path!r}):
    if x == 50:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    assert not os.path.exists(path)
    assert items(Dataset.range(100).cache(path)) == list(range(100)) and os.path.exists(path)


def test_snapshots_belong_to_plans(tmp_path):
    counted = Counted()
    folder = str(tmp_path / "snapshots")
    for _ in range(2):
        assert len(items(Dataset.range(6).map(counted).snapshot(folder))) == 6
    assert counted.calls == 6
    assert items(Dataset.range(3).snapshot(folder)) == [0, 1, 2] and len(os.listdir(folder)) == 2
    with pytest.raises(NotImplementedError, match="expected neither"):
        Dataset.range(3).snapshot(folder, shard_func=len)


# Saving


def every_kind():
    """Elements of all dtypes, of shapes that differ."""
    names = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()

    def element(n):
        k = n.item()
        rows = {name: (pydist.arange(2 * k).reshape(2, k) % 2).to(getattr(pydist, name)) for name in names}
        return rows, (StringTensor([["a" * k, "\u00e9"]]), StringTensor("x"), pydist.tensor(k))

    return Dataset.range(5).map(element)


def test_saved_elements_are_the_elements(tmp_path):
    dataset = every_kind()
    dataset.save(tmp_path / "saved")
    loaded = Dataset.load(tmp_path / "saved")
    assert len(loaded) == 5
    for a, b in zip(loaded, dataset):
        assert plain(a) == plain(b) and a[0]["bfloat16"].dtype is pydist.bfloat16 and list(a[0]) == list(b[0])
    assert loaded.element_spec[0]["int8"] == data.TensorSpec((2, None), pydist.int8)
    assert items(loaded.shuffle(5, seed=1)) == [items(loaded)[i] for i in items(Dataset.range(5).shuffle(5, seed=1))]
    square = Dataset.from_tensor_slices((np.eye(4, dtype=np.float32), ["a", "b", "c", "d"]))
    square.save(str(tmp_path / "saved"))  # in its place
    assert len(os.listdir(tmp_path / "saved")) == 2
    loaded = Dataset.load(str(tmp_path / "saved"), element_spec=square.element_spec)
    x, y = next(iter(loaded.batch(4)))
    assert np.array_equal(x.numpy(), np.eye(4)) and y.tolist() == [b"a", b"b", b"c", b"d"]
    numbers = Dataset.from_tensor_slices(np.arange(12).reshape(6, 2))
    numbers.save(tmp_path / "numbers")
    assert np.array_equal(next(iter(Dataset.load(tmp_path / "numbers").batch(6))).numpy(), np.arange(12).reshape(6, 2))
    with pytest.raises(ValueError, match=r"load: .* has TensorSpec\(shape=\(2,\).* .expected TensorSpec\(shape=\(3,\)"):
        Dataset.load(tmp_path / "numbers", element_spec=data.TensorSpec((3,), pydist.int64))
    for empty in (Dataset.range(0), Dataset.range(3).filter(lambda x: False)):
        empty.save(tmp_path / "empty")
        assert items(Dataset.load(tmp_path / "empty")) == []


def test_saved_files_by_numbers(tmp_path):
    Dataset.range(10).save(tmp_path / "saved", shard_func=lambda x: x % 3)
    assert len(os.listdir(tmp_path / "saved")) == 4
    assert items(Dataset.load(tmp_path / "saved")) == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
    turns = Dataset.load(tmp_path / "saved", reader_func=lambda files: files.interleave(lambda x: x, cycle_length=3))
    assert items(turns) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="the result of shard_func is -1"):
        Dataset.range(10).save(tmp_path / "saved", shard_func=lambda x: -1)
    with pytest.raises(TypeError, match="load: got int"):
        Dataset.load(tmp_path / "saved", reader_func=lambda files: 3)
    assert items(Dataset.load(tmp_path / "saved"))[0] == 0


def test_what_was_saved_before_stays_whole(tmp_path):
    path = tmp_path / "saved"
    Dataset.range(3).save(path)
    with pytest.raises(ZeroDivisionError):
        Dataset.range(5).map(lambda x: 1 // (x.item() - 3)).save(path)
    assert items(Dataset.load(path)) == [0, 1, 2] and len(os.listdir(path)) == 2
    with pytest.raises(FileNotFoundError, match="load: .* has no dataset.json"):
        Dataset.load(tmp_path)
    for content in ("", "[]", '{"format": "pydist dataset 1", "files": [3]}', '{"format": 1}'):
        (path / "dataset.json").write_text(content)
        with pytest.raises(data.DataError, match=r"dataset.json is damaged"):
            Dataset.load(path)
    with pytest.raises(TypeError, match="save: elements have Dataset"):
        Dataset.range(5).window(2).save(tmp_path / "windows")


# Threads


def test_results_as_they_are_ready():
    """Each element once, and from a state the rest of them."""

    def slow(x):
        time.sleep(0.02 if x % 7 == 0 else 0.001)
        return x

    draw = random.Random(0)
    options = data.Options()
    options.deterministic = False
    for stream in (False, True):
        rows = Dataset.range(40).filter(lambda x: True) if stream else Dataset.range(40)
        dataset = rows.map(slow, num_parallel_calls=4, deterministic=False)
        found = items(dataset)
        assert sorted(found) == list(range(40)) and found != sorted(found)
        begun = iter(rows.map(slow, num_parallel_calls=4).with_options(options))
        place = draw.randrange(8, 30)
        first = [next(begun).item() for _ in range(place)]
        other = iter(rows.map(slow, num_parallel_calls=4).with_options(options))
        state = begun.state_dict()
        begun.close()
        other.load_state_dict(state)
        assert sorted(first + [x.item() for x in other]) == list(range(40))
    assert items(Dataset.range(40).map(slow, num_parallel_calls=4)) == list(range(40))


def test_options_limit_threads():
    before, most = threading.active_count(), []

    def slow(x):
        time.sleep(0.001)
        most.append(threading.active_count())
        return x

    options = data.Options()
    options.threading.private_threadpool_size = 2
    dataset = Dataset.range(60).map(slow, num_parallel_calls=6)
    assert items(dataset.with_options(options)) == list(range(60)) and max(most) == before + 2
    most.clear()
    items(dataset)
    assert max(most) == before + 6


def test_prefetch_deepens_while_the_consumer_waits():
    """More results wait where elements take times that differ, up to 16 of them."""
    begun, taken, ahead = [], 0, 0

    def uneven(x):
        begun.append(x)
        time.sleep(0.0004 if x.item() % 40 else 0.02)
        return x

    for _ in Dataset.range(400).map(uneven).prefetch(data.AUTOTUNE):
        taken += 1
        ahead = max(ahead, len(begun) - taken)
        time.sleep(0.0005)
    assert 3 < ahead <= 17


def test_a_function_that_threads_do_not_help_is_named(caplog, monkeypatch):
    """A lock stands for Python's. A clock of ours says that each of the first elements, which are timed, takes `trial`."""

    def passed(trial):
        lock, clock = threading.Lock(), count(step=trial)

        def works(x):
            with lock:
                time.sleep(0.005)
            return x

        caplog.clear()
        monkeypatch.setattr(pool, "perf_counter", lambda: next(clock))
        with caplog.at_level("INFO", "pydist.data"):
            items(Dataset.range(60).map(works, num_parallel_calls=2))
        return [record.message for record in caplog.records]

    (line,) = passed(0.001)
    assert "works: 2 threads take as long as one: the function spends its time in Python" in line
    assert passed(100) == []


def test_what_a_thread_finds_after_the_end_is_dropped(monkeypatch):
    """On a busy machine its last element may take longer than close() waits."""
    monkeypatch.setattr(pool, "GRACE", 0.01)
    begun, go = threading.Event(), threading.Event()

    def work(task):
        begun.set()
        go.wait(60)
        return pydist.ones(3)

    ahead = pool.Ahead(count().__next__, work, 1, 2)
    begun.wait(60)
    ahead.close()
    go.set()
    ahead.threads[0].join(60)
    assert not ahead.threads[0].is_alive() and not ahead.results


def test_orders_that_hide_elements_are_warned_of():
    rows = Dataset.range(10)
    with pytest.warns(UserWarning, match="shuffle after repeat mixes passes"):
        rows.repeat(2).map(lambda x: x).shuffle(10)
    with pytest.warns(UserWarning, match="shuffle after batch changes the order of batches"):
        rows.batch(2).shuffle(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows.shuffle(10).repeat().shuffle(3)
        rows.repeat(1).shuffle(10)
        rows.shuffle(5).batch(2).repeat(3)


def test_names_of_experimental():
    rows = Dataset.range(6)
    assert items(rows.apply(experimental.take_while(lambda x: x < 3))) == [0, 1, 2]
    assert items(rows.batch(2).apply(experimental.unbatch())) == list(range(6))
    assert items(rows.apply(experimental.scan(0, lambda s, x: (s + x, s)))) == [0, 0, 1, 3, 6, 10]
    assert experimental.cardinality(rows) == 6 and experimental.AUTOTUNE == data.AUTOTUNE
    checked = rows.filter(lambda x: True).apply(experimental.assert_cardinality(6))
    assert len(checked) == 6 and items(checked) == list(range(6))
    for wrong, text in [(5, "has more than 5 elements"), (7, "has 6 elements .expected 7")]:
        with pytest.raises(data.DataError, match=f"assert_cardinality: the data set {text}"):
            items(rows.filter(lambda x: True).apply(experimental.assert_cardinality(wrong)))
    assert sorted(items(rows.apply(experimental.shuffle_and_repeat(6, 2, seed=1)))) == sorted([*range(6)] * 2)
    assert items(rows.apply(experimental.map_and_batch(lambda x: x + 1, 3))) == [[1, 2, 3], [4, 5, 6]]
    turns = rows.take(2).apply(experimental.parallel_interleave(lambda n: Dataset.range(2), cycle_length=2))
    assert items(turns) == [0, 0, 1, 1]
    assert items(experimental.sample_from_datasets([rows], seed=0)) == list(range(6))
    with pytest.raises(AttributeError, match="experimental has no .*table_from_dataset"):
        experimental.table_from_dataset
