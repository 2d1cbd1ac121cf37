"""Plans by number: their elements are those of lists in Python, whatever asks for them, and a pass goes on from any place."""

import gc
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import chain, count, islice, permutations

import numpy as np
import pytest

import pydist
from lib.elements import items
from pydist import _C, data
from pydist.data import Dataset


def some_chain(draw):
    """A random data set and the list that it has to be."""
    n = draw.randrange(0, 12)
    dataset, model = Dataset.range(n), list(range(n))
    if draw.random() < 0.5:
        dataset, model = Dataset.from_tensor_slices(np.arange(n) * 2), [2 * i for i in range(n)]
    depth = 0
    for _ in range(draw.randrange(1, 6)):
        step, k = (
            draw.choice("take skip shard repeat batch map enumerate concatenate zip prefetch".split()),
            draw.randrange(0, 5),
        )
        if step == "take":
            dataset, model = dataset.take(k - 1), model if k == 0 else model[: k - 1]
        elif step == "skip":
            dataset, model = dataset.skip(k - 1), [] if k == 0 else model[k - 1 :]
        elif step == "shard":
            dataset, model = dataset.shard(k + 1, k // 2), model[k // 2 :: k + 1]
        elif step == "repeat" and k < 3:
            dataset, model = dataset.repeat(k), model * k
        elif step == "concatenate" and len(model) < 40:
            dataset, model = dataset.concatenate(dataset.take(k)), model + model[:k]
        elif step == "map" and not depth:
            dataset, model = dataset.map(lambda x: x * 3 + 1), [3 * x + 1 for x in model]
        elif step == "prefetch":
            dataset = dataset.prefetch(k)
        elif step == "batch" and not depth and draw.random() < 0.5:
            size, drop = k + 1, draw.random() < 0.5
            dataset = dataset.batch(size, drop)
            model = [model[i : i + size] for i in range(0, len(model), size)]
            model = [batch for batch in model if len(batch) == size or not drop]
            depth = 1
    if draw.random() < 0.3:
        dataset, model = dataset.enumerate(5), list(enumerate(model, 5))
    return dataset, model


def test_chains_of_steps_are_lists():
    draw = random.Random(0)
    lengths = Counter()
    for _ in range(300):
        dataset, model = some_chain(draw)
        assert items(dataset) == model and len(dataset) == len(model) == dataset.cardinality()
        lengths[len(model)] += 1
    assert len(lengths) > 12


def test_rows_of_a_batch_are_the_elements():
    """A batch asks for all its rows at once, an iterator for one element after another: the same elements."""
    draw = random.Random(1)
    for seed in range(60):
        dataset = Dataset.range(draw.randrange(1, 30))
        if draw.random() < 0.5:
            dataset = dataset.concatenate(Dataset.range(100, 107))
        dataset = dataset.shuffle(draw.randrange(1, 40), seed=seed)
        if draw.random() < 0.5:
            dataset = dataset.map(lambda x: x + pydist.rand(()))
        dataset = dataset.repeat(draw.randrange(1, 4)).shuffle(draw.randrange(1, 100), seed=seed + 1)
        size = draw.randrange(1, 9)
        single, whole = iter(dataset), iter(dataset.batch(size))
        whole._begin(single._run)
        assert [x.item() for x in single] == list(chain.from_iterable(x.tolist() for x in whole))


def test_elements_between_functions_may_differ_in_shape():
    """Only those that are batched have to be equal."""
    ragged = Dataset.range(4).shuffle(4, seed=0, reshuffle_each_iteration=False).map(lambda n: pydist.ones(n.item()))
    assert sorted(items(ragged.map(lambda x: x.sum()).batch(4))[0]) == [0, 1, 2, 3]
    assert items(ragged.take(3).map(lambda x: x.sum()).batch(3)) == items(
        ragged.map(lambda x: x.sum()).take(3).batch(3)
    )
    assert items(Dataset.zip(ragged, ragged).map(lambda a, b: len(a) + len(b)).batch(4)) == [
        [2 * len(x) for x in ragged]
    ]
    padded = Dataset.range(4).map(lambda n: pydist.ones(n.item())).padded_batch(2)
    assert items(padded.map(lambda x: x.shape[1]).batch(2)) == [[1, 3]]


def test_structures_stay():
    rows = {"a": np.zeros((4, 2), np.float32), "b": (np.arange(4), [b"w", b"x", b"y", b"z"])}
    batch = next(iter(Dataset.from_tensor_slices(rows).batch(3)))
    assert batch["a"].shape == (3, 2) and batch["a"].dtype is pydist.float32
    assert batch["b"][0].tolist() == [0, 1, 2] and batch["b"][1].numpy().tolist() == [b"w", b"x", b"y"]
    assert Dataset.from_tensor_slices(rows).batch(3).element_spec == {
        "a": data.TensorSpec((None, 2), pydist.float32),
        "b": (data.TensorSpec((None,), pydist.int64), data.TensorSpec((None,), data.string)),
    }
    mapped = Dataset.range(3).map(lambda x: {"n": x, "pair": (x, 2.5)}).batch(2, drop_remainder=True)
    assert mapped.element_spec["n"] == data.TensorSpec((2,), pydist.int64)
    assert items(mapped) == [{"n": [0, 1], "pair": ([0, 1], [2.5, 2.5])}]
    assert items(Dataset.zip((Dataset.range(2), {"x": Dataset.range(5, 9)}))) == [(0, {"x": 5}), (1, {"x": 6})]
    assert items(Dataset.from_tensors((1, [2.0]))) == [(1, [2.0])]


def test_elements_are_not_the_source():
    source = pydist.arange(6).reshape(3, 2)
    for x in chain(Dataset.from_tensor_slices(source), Dataset.from_tensor_slices(source).batch(2)):
        x.zero_()
    assert source.tolist() == [[0, 1], [2, 3], [4, 5]]


# The order


@pytest.mark.parametrize("n", [3, 4, 5])
def test_all_orders_are_equally_likely(n):
    """Chi squared over all n! orders: five standard deviations above what is expected."""
    draws = 6000
    found = Counter(tuple(_C._data_order(n, n, seed, 0, range(n)).tolist()) for seed in range(draws))
    orders = list(permutations(range(n)))
    expected = draws / len(orders)
    chi = sum((found[order] - expected) ** 2 / expected for order in orders)
    assert set(found) <= set(orders) and chi < len(orders) + 5 * (2 * len(orders)) ** 0.5


@pytest.mark.parametrize("n, window", [(1, 1), (2, 1), (100, 1), (100, 2), (100, 7), (100, 99), (100, 100), (1000, 64)])
def test_a_window_holds_back(n, window):
    order = [x.item() for x in Dataset.range(n).shuffle(window, seed=3)]
    assert sorted(order) == list(range(n))
    assert all(x < p + window for p, x in enumerate(order))
    if window > 6:  # and it mixes
        assert np.mean(np.abs(np.array(order) - np.arange(n))) > window / 12


def test_a_window_over_an_endless_sequence():
    first = [x.item() for x in Dataset.counter().shuffle(10, seed=1).take(500)]
    assert len(set(first)) == 500 and all(x < p + 10 for p, x in enumerate(first)) and first != sorted(first)


def test_passes_differ_where_they_should():
    once = Dataset.range(50).shuffle(50, seed=1)
    a, b = items(once), items(once)
    assert a != b and sorted(a) == sorted(b) == list(range(50))
    again = Dataset.range(50).shuffle(50, seed=1)
    assert [items(again), items(again)] == [a, b]
    assert items(Dataset.range(50).shuffle(50, seed=1).repeat(2)) == a + b
    derived = Dataset.range(50).shuffle(50, seed=1)  # passes over what is made of it count, too
    assert list(chain(*items(derived.batch(50)))) == a and list(chain(*items(derived.batch(50)))) == b
    fixed = Dataset.range(50).shuffle(50, reshuffle_each_iteration=False)
    assert items(fixed) == items(fixed)
    assert sorted(items(fixed.take(20)) + items(fixed.skip(20))) == list(range(50))
    unseeded = Dataset.range(50).shuffle(50).map(lambda x: x)
    assert unseeded.element_spec.shape == ()  # draws nothing: the first pass does
    pydist.manual_seed(3)
    first = items(unseeded)
    pydist.manual_seed(3)
    assert items(Dataset.range(50).shuffle(50)) == first


def test_ten_million_rows_are_shuffled_without_a_buffer():
    program = """
import resource, time
from pydist.data import Dataset
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.perf_counter()
first = next(iter(Dataset.range(10_000_000).shuffle(10_000_000, seed=0).batch(64)))
print(len(set(first.tolist())), time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    rows, seconds, kilobytes = min((run.stdout.split() for run in runs), key=lambda found: float(found[1]))
    assert rows == "64" and float(seconds) < 0.005 and int(kilobytes) < 64 << 10


# Going on


def random_plan():
    rows = np.random.default_rng(0).normal(size=(101, 3)).astype(np.float32)
    dataset = Dataset.from_tensor_slices((rows, np.arange(101))).shuffle(101).repeat(2)
    dataset = dataset.map(lambda x, y: (x + pydist.rand(3), y), num_parallel_calls=2).shuffle(40)
    return dataset.batch(8).prefetch(2)


def bits(element):
    return [leaf.numpy().tobytes() for leaf in element]


def test_a_pass_goes_on_from_any_place():
    dataset = random_plan()
    whole = iter(dataset)
    states = [json.dumps(whole.state_dict())]
    seen = []
    for element in whole:
        seen.append(bits(element))
        states.append(json.dumps(whole.state_dict()))
    assert len(seen) == 26 and max(map(len, states)) < 1024
    for place in random.Random(0).sample(range(27), 10):
        other = iter(random_plan())  # with seeds of its own
        list(islice(other, place % 3))
        other.load_state_dict(json.loads(states[place]))
        assert [bits(element) for element in other] == seen[place:]
    following = [bits(x) for x in dataset]
    other.load_state_dict(json.loads(states[5]))
    assert [bits(x) for x in other._dataset] != following  # seeds of unseeded steps belong to the iterator


def test_states_of_other_plans_are_refused():
    saved = iter(Dataset.range(10).shuffle(10, seed=1).batch(2)).state_dict()
    for other, why in [
        (Dataset.range(11).shuffle(10, seed=1).batch(2), r"step 0 \(range\) has other arguments"),
        (Dataset.range(10).shuffle(10, seed=1).batch(3), r"step 2 \(batch\) has other arguments"),
        (Dataset.range(10).repeat(2).batch(2), "step 1 is repeat here and shuffle in the state"),
        (Dataset.range(10).shuffle(10, seed=1), "2 steps here and 3 in the state"),
    ]:
        with pytest.raises(ValueError, match=f"another plan's state: {why}"):
            iter(other).load_state_dict(saved)
    good = Dataset.range(10).shuffle(10, seed=1).batch(2)
    iter(good.prefetch(3)).load_state_dict(saved)  # it changes no element
    for change in [{"next": -1}, {"seeds": []}, {"seeds": None}, {"epoch": "x"}, {"version": 9}]:
        with pytest.raises(ValueError, match="expected"):
            iter(good).load_state_dict({**saved, **change})
    with pytest.raises(ValueError, match="expected a dictionary"):
        iter(good).load_state_dict([])
    changed = iter(Dataset.range(3).map(lambda x: x + 1)).state_dict()
    with pytest.raises(ValueError, match=r"\(map\) has other arguments"):
        iter(Dataset.range(3).map(lambda x: x + 2)).load_state_dict(changed)


# Threads


@pytest.mark.parametrize("threads", [None, 3, data.AUTOTUNE])
def test_recorded_functions_give_the_same_bits(threads):
    """Random numbers included, for rows in any order, and for another shape in the last pass."""
    images, calls = np.random.default_rng(0).integers(0, 255, (300, 9, 9)).astype(np.uint8), []

    def crop(image, label):
        calls.append(label)
        return (image[2:8, 1:7].float() / 255 + pydist.rand(6, 6)).clamp(0, 1), {"label": label * 2, "same": label}

    def made(**options):
        pydist.manual_seed(5)
        calls.clear()
        rows = Dataset.from_tensor_slices((images, np.arange(300))).shuffle(300)
        dataset = rows.map(crop, **options).batch(7).map(lambda x, y: (x * 2, y), **options)
        return [[x.numpy().tobytes(), y["label"].tolist(), y["same"].tolist()] for x, y in dataset]

    expected = made()
    assert len(calls) == 300
    assert made(num_parallel_calls=threads, recorded=True) == expected
    assert len(calls) < (20 if threads is None else 300)  # threads call the function while another one records


def test_recorded_functions_that_cannot_be_repeated():
    """They run as Python: what reads values, what has no tensors; and a place does not depend on it."""
    rows = Dataset.range(20)
    for function in (
        lambda x: x.item() * 2,
        lambda x: x.numpy() + 1,
        lambda x: np.arange(3),
        lambda x: Dataset.range(2),
    ):
        assert items(rows.map(function, recorded=True)) == items(rows.map(function))
    counted = count()
    assert items(rows.map(lambda x: x * next(counted), recorded=True)) == [n * n for n in range(20)]
    words = Dataset.from_tensor_slices(["a", "b", "c"] * 5)
    assert items(words.map(lambda s: s, recorded=True)) == items(words)
    function = lambda x: x + 1
    begun, other = iter(rows.map(function)), iter(rows.map(function, recorded=True))
    list(islice(begun, 7))
    other.load_state_dict(begun.state_dict())
    assert [x.item() for x in other] == list(range(8, 21))
    with pytest.raises(IndexError) as error:
        items(rows.map(lambda x: pydist.arange(9).gather(0, x.reshape(1)), recorded=True))
    said = getattr(error.value, "__notes__", error.value.args)[-1]  # Python 3.10
    assert "in map: function" in said and "element 9" in said


def slow(x):
    time.sleep(0.002)
    return x + pydist.randint(0, 100, ())


def test_threads_change_nothing_and_end():
    def made(threads):
        pydist.manual_seed(1)
        return items(Dataset.range(40).map(slow, num_parallel_calls=threads).batch(4).prefetch(3))

    before = threading.active_count()
    expected = made(None)
    begin = _C._rng_key()
    assert made(3) == made(data.AUTOTUNE) == expected and threading.active_count() == before
    assert _C._rng_key()[0] == begin[0]
    iterator = iter(Dataset.range(1000).map(slow, num_parallel_calls=3).prefetch(4))
    list(islice(iterator, 8))
    assert threading.active_count() == before + 3
    del iterator
    gc.collect()
    assert threading.active_count() == before


def test_quick_elements_start_no_thread():
    before, most = threading.active_count(), 0
    for _ in Dataset.range(200).batch(2).prefetch(data.AUTOTUNE):
        most = max(most, threading.active_count())
    assert most == before


def test_random_functions_leave_the_programs_generator_alone():
    pydist.manual_seed(5)
    dataset = Dataset.range(4).map(lambda x: pydist.rand(()))
    iterator = iter(dataset)
    expected = _C._rng_key()
    draws = [x.item() for x in iterator]
    assert len(set(draws)) == 4 and _C._rng_key() == expected
    assert [x.item() for x in dataset] != draws  # another pass


@pytest.mark.parametrize("threads", [None, 2])
def test_an_exception_names_the_element(threads):
    def fails(x):
        time.sleep(0.001)
        return 1 // (x.item() - 7)

    def made(dataset):
        return list(dataset.map(fails, num_parallel_calls=threads))

    with pytest.raises(ZeroDivisionError) as caught:
        made(Dataset.range(20))
    text = "".join(getattr(caught.value, "__notes__", caught.value.args))
    assert "in map: function test_an_exception_names_the_element.<locals>.fails, element 7" in text
    assert any(frame.name == "fails" for frame in caught.traceback)
    with pytest.raises(RuntimeError, match="raised StopIteration at element 0"):
        list(Dataset.range(3).map(lambda x: next(iter(()))))


def test_a_fork_leaves_threads_behind():
    program = """
import os, time
from pydist.data import Dataset
ds = Dataset.range(200).map(lambda x: (time.sleep(0.002), x)[1], num_parallel_calls=2)
it = iter(ds)
first = [next(it).item() for _ in range(8)]
pid = os.fork()
rest = [next(it).item() for _ in range(20)]
assert first + rest == list(range(28)), rest
if not pid:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_ctrl_c_ends_a_wait():
    program = """
import signal, threading, time
from pydist.data import Dataset
ds = Dataset.range(20).map(lambda x: (time.sleep(0.001 if x < 5 else 3), x)[1], num_parallel_calls=2)
it = iter(ds)
for _ in range(4):
    next(it)
threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT)).start()
begin = time.monotonic()
try:
    while True:
        next(it)
except KeyboardInterrupt:
    print(time.monotonic() - begin < 2, flush=True)
import os; os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


# What is wrong


@pytest.mark.parametrize(
    "make, kind, text",
    [
        (lambda d: d.batch(0), ValueError, "batch: batch_size is 0 .expected 1 or more"),
        (lambda d: d.batch(-3), ValueError, "batch_size is -3"),
        (lambda d: d.batch(2.5), TypeError, "batch_size is 2.5 .expected int"),
        (lambda d: d.batch(True), TypeError, "batch_size is True"),
        (lambda d: d.take(1 << 70), ValueError, "take: count is 1180591620717411303424 .expected an int64"),
        (lambda d: d.shuffle(0), ValueError, "buffer_size is 0"),
        (lambda d: d.shuffle(Dataset.counter().cardinality()), ValueError, "cardinality is not known"),
        (lambda d: d.shard(0, 0), ValueError, "num_shards is 0"),
        (lambda d: d.shard(2, 2), ValueError, "index is 2 .expected 0 to 1"),
        (lambda d: d.map(3), TypeError, "map: the function is int .expected a callable"),
        (lambda d: d.map(len, num_parallel_calls=0), ValueError, "num_parallel_calls is 0"),
        (lambda d: d.prefetch(-2), ValueError, "buffer_size is -2"),
        (lambda d: d.concatenate([1]), TypeError, "concatenate: got list .expected a pydist.data.Dataset"),
        (lambda d: Dataset.zip(), ValueError, "got no data sets"),
        (lambda d: d.apply(lambda d: 1), TypeError, "apply: got int"),
        (lambda d: d.with_options({}), TypeError, "expected pydist.data.Options"),
        (lambda d: Dataset.from_tensor_slices(3), ValueError, "expected rows; from_tensors takes scalars"),
        (lambda d: Dataset.from_tensor_slices(([1, 2], [3])), ValueError, r"\[2, 1\] rows .expected equal"),
        (lambda d: Dataset.range(1, 2, 3, 4), TypeError, "got 4 numbers"),
        (lambda d: len(d.repeat()), TypeError, "infinite"),
        (lambda d: d.get_single_element(), ValueError, "several elements"),
        (lambda d: d.take(0).get_single_element(), ValueError, "empty"),
        (lambda d: Dataset(3), TypeError, "expected Dataset.from_tensor_slices"),
        (
            lambda d: list(d.concatenate(d.map(lambda x: (x, x)))),
            data.DataError,
            r"elements \*, \(\*, \*\) .expected equal",
        ),
        (lambda d: list(d.map(lambda x: x if x < 3 else (x,))), data.DataError, r"returned \(\*,\) for element 3"),
        (lambda d: list(d.map(lambda x: pydist.zeros(x.item())).batch(3)), data.DataError, "padded_batch"),
        (lambda d: list(d.map(lambda x: x if x < 3 else x.float()).batch(5)), data.DataError, "element 3 of a batch"),
    ],
)
def test_what_is_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make(Dataset.range(5))


def test_huge_counts_are_only_numbers():
    huge = (1 << 63) - 1
    assert items(Dataset.range(3).take(huge)) == [0, 1, 2] and items(Dataset.range(3).skip(huge)) == []
    assert items(Dataset.range(3).batch(huge)) == [[0, 1, 2]] and len(Dataset.range(3).shuffle(huge)) == 3
    assert items(Dataset.range(3).repeat(huge).take(4)) == [0, 1, 2, 0]
    assert len(Dataset.range(huge)) == huge and items(Dataset.range(huge).skip(huge - 1)) == [huge - 1]


def test_numbers_out_of_range_are_refused():
    x = pydist.arange(6)
    for numbers in [range(7), range(-1, 2), pydist.tensor([6]), range(5, -2, -1)]:
        with pytest.raises(IndexError, match="expected 0 to 5"):
            _C._data_gather(x, numbers)
        with pytest.raises(IndexError, match="expected 0 to 5"):
            _C._data_order(6, 6, 0, 0, numbers)
    for bad in [3, [1], pydist.tensor([1.0]), pydist.tensor([[1]]), pydist.arange(4)[::2]]:
        with pytest.raises(TypeError):
            _C._data_gather(x, bad)
    with pytest.raises(TypeError, match="contiguous"):
        _C._data_gather(x.reshape(2, 3).T, range(1))


@pytest.mark.parametrize("dtype", [pydist.uint8, pydist.float16, pydist.float32, pydist.float64, pydist.complex128])
@pytest.mark.parametrize("rest", [(), (3,), (2, 5)])
def test_rows_are_numpys(dtype, rest):
    x = pydist.rand(50, *rest).mul(100).to(dtype)
    numbers = np.random.default_rng(0).integers(0, 50, 200)
    assert np.array_equal(_C._data_gather(x, pydist.from_numpy(numbers)).numpy(), x.numpy()[numbers])
    assert np.array_equal(_C._data_gather(x, range(40, 2, -3)).numpy(), x.numpy()[40:2:-3])
