"""Streams: their elements are those of Python's loops and of TensorFlow, and a pass goes on from any place."""

import collections
import io
import itertools
import logging
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import pydist
from lib.elements import items, plain
from lib.ranks import LONG
from pydist import data
from pydist.data import Dataset, TensorSpec


def streamed(dataset):
    """The same elements, one after another."""
    return dataset.filter(lambda *x: True)


# What Python's loops give


def interleaved(lists, cycle, block):
    slots, waiting, out, place = [None] * cycle, iter(lists), [], 0
    taken, ended = 0, False
    while True:
        if slots[place] is None and not ended:
            following = next(waiting, None)
            ended = following is None
            slots[place] = iter(following) if following is not None else None
        value = next(slots[place], None) if slots[place] is not None else None
        if value is not None:
            out.append(value)
            taken += 1
        elif slots[place] is None and ended and not any(slots):
            return out
        else:
            slots[place] = None
        if value is None or taken == block:
            place, taken = (place + 1) % cycle, 0


def windows(model, size, shift, stride, drop):
    out = []
    for begin in range(0, len(model), shift):
        part = model[begin : begin + (size - 1) * stride + 1 : stride]
        if part and (len(part) == size or not drop):
            out.append(part)
    return out


def chunks(model, size):
    return [model[i : i + size] for i in range(0, len(model), size)]


def some_stream(draw):
    """A random data set of streams and the list that it has to be."""
    n = draw.randrange(0, 14)
    dataset, model = Dataset.range(n), list(range(n))
    names = "filter take skip shard repeat concatenate zip map flat_map interleave scan take_while unbatch window group unique"
    for step in [*draw.choices(names.split(), k=draw.randrange(1, 6)), "filter"]:
        k = draw.randrange(1, 5)
        if step == "filter":
            dataset, model = dataset.filter(lambda x, k=k: x % (k + 1) != 0), [x for x in model if x % (k + 1)]
        elif step == "take":
            dataset, model = dataset.take(k), model[:k]
        elif step == "skip":
            dataset, model = dataset.skip(k - 1), model[k - 1 :]
        elif step == "shard":
            dataset, model = dataset.shard(k, k // 2), model[k // 2 :: k]
        elif step == "repeat" and len(model) < 60:
            dataset, model = dataset.repeat(k), model * k
        elif step == "concatenate":
            dataset, model = dataset.concatenate(Dataset.range(k)), model + list(range(k))
        elif step == "zip":
            dataset = Dataset.zip(dataset, dataset.skip(1)).map(lambda a, b: a + b)
            model = [a + b for a, b in zip(model, model[1:])]
        elif step == "map":
            dataset, model = dataset.map(lambda x: x * 3 + 1, num_parallel_calls=2), [3 * x + 1 for x in model]
        elif step == "flat_map" and len(model) < 60:
            dataset = dataset.flat_map(lambda x: Dataset.range(x % 4))
            model = [y for x in model for y in range(x % 4)]
        elif step == "interleave" and len(model) < 60:
            dataset = dataset.interleave(lambda x: Dataset.range(x % 5).map(lambda y: x + y), k, 1 + k // 2, 2)
            model = interleaved([[x + y for y in range(x % 5)] for x in model], k, 1 + k // 2)
        elif step == "scan":
            dataset = dataset.scan(np.int64(1), lambda total, x: (total + x, total))
            model = list(itertools.accumulate([1, *model]))[:-1] if model else []
        elif step == "take_while":
            dataset = dataset.take_while(lambda x: x < 20)
            model = list(itertools.takewhile(lambda x: x < 20, model))
        elif step == "unbatch":
            dataset = dataset.batch(k).rebatch(3).unbatch()
        elif step == "window":
            dataset = dataset.window(k, k // 2 + 1, 2, k > 2).flat_map(lambda w: w)
            model = [x for window in windows(model, k, k // 2 + 1, 2, k > 2) for x in window]
        elif step == "unique":
            dataset, model = dataset.unique(), list(dict.fromkeys(model))
        elif step == "group":
            dataset = dataset.group_by_window(lambda x: x % 3, lambda key, ds: ds, window_size=k)
            groups, out = {}, []
            for x in model:
                groups.setdefault(x % 3, []).append(x)
                if len(groups[x % 3]) == k:
                    out += groups.pop(x % 3)
            model = out + [x for key in sorted(groups) for x in groups[key]]
    if draw.random() < 0.5:
        dataset, model = dataset.batch(3), chunks(model, 3)
    return dataset.prefetch(draw.randrange(3)), model


def saved_and_loaded(state):
    """A state through a file."""
    file = io.BytesIO()
    pydist.save(state, file)
    file.seek(0)
    return pydist.load(file)


def test_chains_of_streams_are_loops():
    """And each goes on from a random place of it."""
    draw = random.Random(3)
    lengths = collections.Counter()
    for _ in range(150):
        dataset, model = some_stream(draw)
        assert items(dataset) == model
        lengths[len(model)] += 1
        place = draw.randrange(len(model) + 1)
        begun, other = iter(dataset), iter(dataset)
        for _ in range(place):
            next(begun)
        list(itertools.islice(other, draw.randrange(3)))
        other.load_state_dict(saved_and_loaded(begun.state_dict()))
        assert [plain(x) for x in other] == model[place:] == [plain(x) for x in begun]
    assert len(lengths) > 15


def test_interleave_is_tensorflows():
    """TensorFlow 2.21's order; the same by a stream and by a list of files' records (test_records.py)."""
    counts = [3, 0, 5, 1, 2, 7]
    dataset = Dataset.range(6).interleave(
        lambda i: Dataset.range(counts[i.item()]).map(lambda k: 10 * i + k), cycle_length=3, block_length=2
    )
    assert items(dataset) == [0, 1, 20, 21, 2, 30, 22, 23, 40, 41, 50, 51, 24, 52, 53, 54, 55, 56]
    assert items(Dataset.range(2).interleave(lambda x: Dataset.range(2))) == [0, 0, 1, 1]
    assert dataset.element_spec == TensorSpec((), pydist.int64) and dataset.cardinality() == data.UNKNOWN_CARDINALITY
    with pytest.raises(TypeError, match="of unknown length"):
        len(dataset)


def test_windows_of_several_components():
    rows = Dataset.from_tensor_slices((np.arange(5), np.arange(5) * 2.0))
    dataset = rows.window(3, shift=1, drop_remainder=True)
    assert isinstance(dataset.element_spec[0], data.DatasetSpec) and len(dataset) == 3
    joined = dataset.flat_map(lambda a, b: Dataset.zip(a.batch(3), b.batch(3)))
    assert items(joined) == [(list(range(i, i + 3)), [2.0 * k for k in range(i, i + 3)]) for i in range(3)]
    assert [len(rows.window(3, s, t, drop)) for s, t, drop in [(1, 2, True), (2, 2, False), (9, 1, False)]] == [1, 3, 1]
    assert [[x.item() for x in w] for w in Dataset.range(7).window(3, 2)] == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6]]


def test_padded_batches():
    dataset = Dataset.range(1, 5).map(
        lambda n: (pydist.arange(n.item()), pydist.ones(2, n.item()), data.StringTensor(["x"] * n.item()))
    )
    a, b, c = next(iter(dataset.padded_batch(3, padding_values=(-1, 0.5, "-"))))
    assert (
        a.tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
        and b.shape == (3, 2, 3)
        and b[0, 0].tolist() == [1, 0.5, 0.5]
    )
    assert c.tolist() == [[b"x", b"-", b"-"], [b"x", b"x", b"-"], [b"x", b"x", b"x"]]
    shaped = dataset.padded_batch(2, padded_shapes=([5], (2, None), None), drop_remainder=True)
    assert [tuple(x.shape) for x in list(shaped)[1]] == [(2, 5), (2, 2, 4), (2, 4)]
    assert shaped.element_spec[0] == TensorSpec((2, 5), pydist.int64) and shaped.element_spec[1].shape == (2, 2, None)
    named = Dataset.range(2).map(lambda n: {"a": pydist.arange(n.item()), "b": n})
    assert items(named.padded_batch(2, {"a": [-1], "b": []})) == [{"a": [[0], [0]], "b": [0, 1]}]
    assert items(streamed(named).padded_batch(2)) == [{"a": [[0], [0]], "b": [0, 1]}]
    with pytest.raises(
        data.DataError, match=r"element 2 of a batch has shape .3,. in component 0 .expected at most .2,"
    ):
        list(dataset.padded_batch(3, padded_shapes=([2], None, None)))
    for arguments, kind, text in [
        ({"padded_shapes": ([2], [3])}, ValueError, "padded_shapes is .* .expected 3 parts"),
        ({"padded_shapes": (2, None, None)}, TypeError, "padded_shapes has 2 .expected sizes"),
        ({"padding_values": (0, "x", None)}, TypeError, "padding_values has 'x' for .*float32"),
        ({"padding_values": (0, 0, 1)}, TypeError, "padding_values has 1 for strings"),
        ({"padded_shapes": ([1, 1], None, None)}, ValueError, "component 0 of 1 dims"),
    ]:
        with pytest.raises(kind, match=text):
            list(dataset.padded_batch(2, **arguments))
    with pytest.raises(data.DataError, match="expected equal dtypes and numbers of dims"):
        list(Dataset.range(2).map(lambda n: pydist.zeros([2] * (1 + n.item()))).padded_batch(2))


def test_buckets():
    lengths = [1, 5, 2, 9, 3, 4, 6, 2]
    dataset = Dataset.from_generator(lambda: (np.arange(n) for n in lengths))
    found = list(dataset.bucket_by_sequence_length(len, [3, 6], [2, 3, 1]))
    assert [tuple(x.shape) for x in found] == [(2, 2), (1, 9), (3, 5), (1, 6), (1, 2)]
    full = dataset.filter(lambda x: len(x) < 6).bucket_by_sequence_length(
        len, [3, 6], [2, 2, 1], pad_to_bucket_boundary=True
    )
    assert [tuple(x.shape) for x in full] == [(2, 2), (2, 5), (1, 2), (1, 5)]
    with pytest.raises(data.DataError, match="longer than 5"):
        list(dataset.bucket_by_sequence_length(len, [3, 6], [2, 2, 1], pad_to_bucket_boundary=True))
    for bounds, sizes in [([3], [1]), ([5, 3], [1, 1, 1]), ([3, 3], [1, 1, 1])]:
        with pytest.raises(ValueError, match="expected rising boundaries, and one more size"):
            dataset.bucket_by_sequence_length(len, bounds, sizes)


def test_several_data_sets():
    parts = [Dataset.range(0, 1000), Dataset.range(1000, 2000), Dataset.range(2000, 3000)]
    mixed = Dataset.sample_from_datasets(parts, [0.5, 0.2, 0.3], seed=1)
    first = collections.Counter(x // 1000 for x in items(mixed.take(1000)))
    assert abs(first[0] - 500) < 80 and abs(first[1] - 200) < 64 and abs(first[2] - 300) < 73  # five sigmas
    assert sorted(items(mixed)) == list(range(3000)) and items(mixed) != items(mixed)
    stopped = items(Dataset.sample_from_datasets(parts, seed=1, stop_on_empty_dataset=True))
    assert 2500 < len(stopped) < 3000
    again = Dataset.sample_from_datasets(parts, seed=1)
    assert items(again.take(50)) == items(Dataset.sample_from_datasets(parts, seed=1).take(50))
    assert items(Dataset.sample_from_datasets(parts[:2], [1, 0], seed=0)) == list(range(1000))
    choice = Dataset.from_tensor_slices(np.array([0, 1, 1, 0, 2, 0]))
    short = [Dataset.range(2), Dataset.range(10, 20), Dataset.range(20, 30)]
    assert items(Dataset.choose_from_datasets(short, choice)) == [0, 10, 11, 1, 20]
    assert items(Dataset.choose_from_datasets(short, choice.concatenate(choice), False)) == [
        0,
        10,
        11,
        1,
        20,
        12,
        13,
        21,
    ]
    with pytest.raises(data.DataError, match="the choice is 3 .expected 0 to 2"):
        list(Dataset.choose_from_datasets(short, Dataset.range(3, 4)))
    for weights in ([1], [-1, 1, 1], [0, 0, 0], 3):
        with pytest.raises(ValueError, match="weights is"):
            Dataset.sample_from_datasets(parts, weights)


@pytest.mark.parametrize("initial", [[0.8, 0.15, 0.05], None])
def test_classes_are_resampled(initial):
    kinds = np.random.default_rng(0).choice(3, 12_000, p=[0.8, 0.15, 0.05])
    dataset = Dataset.from_tensor_slices(kinds).rejection_resample(lambda x: x, [0.2, 0.3, 0.5], initial, seed=2)
    found = items(dataset)
    assert all(a == b for a, b in found) and len(found) > 800
    shares = np.bincount([a for a, _ in found], minlength=3) / len(found)
    assert np.all(np.abs(shares - [0.2, 0.3, 0.5]) < 0.08)
    for target in ([0.5, 0.4], [-1, 2], 3, []):
        with pytest.raises(ValueError, match="target_dist is"):
            Dataset.range(3).rejection_resample(lambda x: x, target)
    with pytest.raises(data.DataError, match="returned 3 for element 3 .expected a class, 0 to 2"):
        list(Dataset.range(9).rejection_resample(lambda x: x, [0.2, 0.3, 0.5]))


def test_a_buffer_shuffles():
    numbers = Dataset.from_generator(lambda: iter(range(500)), output_signature=TensorSpec((), pydist.int64))
    dataset = numbers.shuffle(50, seed=1)
    first, second = items(dataset), items(dataset)
    assert sorted(first) == list(range(500)) and first != second and all(x < p + 50 for p, x in enumerate(first))
    assert np.mean(np.abs(np.array(first) - np.arange(500))) > 10
    assert items(numbers.shuffle(50, seed=1)) == first
    fixed = numbers.shuffle(50, seed=1, reshuffle_each_iteration=False)
    assert items(fixed) == items(fixed)
    assert items(numbers.shuffle(50, seed=1).repeat(2)) == first + second
    places = np.array([[items(numbers.take(4).shuffle(4, seed=s))[p] for p in range(4)] for s in range(300)])
    assert np.all(np.abs([[np.mean(places[:, p] == x) for p in range(4)] for x in range(4)] - np.float64(0.25)) < 0.125)


def test_reduce():
    assert Dataset.range(5).reduce((0, 1), lambda state, x: (state[0] + x, state[1] * 2))[0] == 10
    assert Dataset.range(0).reduce(7, lambda a, b: b).item() == 7
    with pytest.raises(
        data.DataError, match=r"reduce: function .* returned a state \(\*, \*\) .* for element 0 .expected \*"
    ):
        Dataset.range(3).reduce(0, lambda state, x: (state, x))
    with pytest.raises(data.DataError, match="returned a state .*float32"):
        Dataset.range(3).reduce(0, lambda state, x: x / 2)


# Generators


def test_generators():
    def rows(n=3, word="w"):
        for i in range(n):
            yield {"x": np.full((i,), i), "s": word}

    signature = {"x": TensorSpec((None,), pydist.float32), "s": TensorSpec((), data.string)}
    dataset = Dataset.from_generator(rows, output_signature=signature, args=[2, "v"])
    assert dataset.element_spec == signature and items(dataset) == [{"x": [], "s": b"v"}, {"x": [1.0], "s": b"v"}]
    assert next(iter(dataset))["x"].dtype is pydist.float32
    old = Dataset.from_generator(lambda: iter([(1, [2.5])]), (pydist.int32, pydist.float64), ([], [None]))
    assert old.element_spec == (TensorSpec((), pydist.int32), TensorSpec((None,), pydist.float64))
    assert items(old) == [(1, [2.5])]
    assert items(Dataset.from_generator(lambda: [[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    exact = Dataset.from_generator(lambda: [0.1], output_signature=TensorSpec((), pydist.float64))
    assert items(exact) == [0.1]


@pytest.mark.parametrize(
    "made, signature, kind, text",
    [
        (lambda: [1, 2.5], None, data.DataError, r"element 1 has TensorSpec\(shape=\(\), .*float32\) in component 0"),
        (lambda: [1, (2, 3)], None, data.DataError, r"element 1 is \(\*, \*\) .expected \*"),
        (lambda: [[1], [[2]]], None, data.DataError, r"element 1 has TensorSpec\(shape=\(1, 1\)"),
        (
            lambda: [[1, 2]],
            TensorSpec((3,), pydist.int64),
            data.DataError,
            r"element 0 has .*shape=\(2,\).* .expected .*3",
        ),
        (lambda: [0.5], TensorSpec((), pydist.int64), data.DataError, "element 0 has .*float32"),
        (lambda: ["a"], TensorSpec((), pydist.int64), data.DataError, "element 0 has .*string"),
        (lambda: [object()], None, TypeError, "from_generator: got object"),
        (lambda: 3, None, TypeError, "the generator returned int .expected an iterable"),
        (3, None, TypeError, "generator is int .expected a callable"),
        (lambda: [1], 3, TypeError, "output_signature has 3 .expected TensorSpec"),
    ],
)
def test_generators_that_do_not_keep_their_word(made, signature, kind, text):
    with pytest.raises(kind, match=text):
        list(Dataset.from_generator(made, output_signature=signature))


def test_a_generator_that_raises_or_ends_early():
    def rows():
        yield 1
        raise ZeroDivisionError("here")

    iterator = iter(Dataset.from_generator(rows).prefetch(2))
    assert next(iterator).item() == 1
    with pytest.raises(ZeroDivisionError, match="here") as caught:
        next(iterator)
    assert any(frame.name == "rows" for frame in caught.traceback)
    assert list(iterator) == []  # the generator has ended
    assert items(Dataset.from_generator(lambda: iter(())).batch(3).repeat()) == []
    closed = []

    def watched():
        try:
            yield from range(100)
        finally:
            closed.append(1)

    iterator = iter(Dataset.from_generator(watched))
    next(iterator)
    iterator.close()
    assert closed == [1]


def test_a_generators_elements_are_made_again(caplog):
    made = []

    def rows():
        for i in range(50):
            made.append(i)
            yield i

    dataset = Dataset.from_generator(rows).shuffle(10, seed=1).batch(4)
    whole = items(dataset)
    begun, other = iter(dataset), iter(dataset)
    begun.load_state_dict({**begun.state_dict(), "epoch": 0, "stream": iter(dataset).state_dict()["stream"]})
    first = [next(begun).tolist() for _ in range(3)]
    made.clear()
    with caplog.at_level(logging.INFO, "pydist.data"):
        other.load_state_dict(saved_and_loaded(begun.state_dict()))
    assert made == list(range(21)) and "the generator makes 21 elements again" in caplog.text
    assert first + [x.tolist() for x in other] == whole


def test_data_sets_that_no_state_holds_are_made_again(caplog):
    dataset = Dataset.range(10).map(lambda n: Dataset.range(n)).filter(lambda ds: True).flat_map(lambda ds: ds)
    whole = items(dataset)
    begun, other = iter(dataset), iter(dataset)
    for _ in range(20):
        next(begun)
    state = begun.state_dict()
    assert state["stream"] is None
    with caplog.at_level(logging.INFO, "pydist.data"):
        other.load_state_dict(state)
    assert "makes 20 elements again" in caplog.text and [x.item() for x in other] == whole[20:]


# Random functions, threads and places


def images():
    return np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)


SLOW = {"seconds": 0.0}  # no part of the plan


def crops(slow=0.0):
    """Shows 14: shuffle, map with random crops, interleave, batch, prefetch."""
    rows = Dataset.from_tensor_slices(images())
    SLOW["seconds"] = slow

    def crop(image):
        time.sleep(SLOW["seconds"])
        top, left = pydist.randint(0, 3, (2,)).tolist()
        return image[top : top + 6, left : left + 6].float() + pydist.rand(6, 6)

    def part(k):
        return rows.shard(3, k.item()).shuffle(10).map(crop, num_parallel_calls=2)

    dataset = Dataset.range(3).interleave(part, cycle_length=2, block_length=3, num_parallel_calls=2)
    dataset = dataset.shuffle(12).map(lambda x: (x, x.mean() + pydist.rand(())), num_parallel_calls=data.AUTOTUNE)
    return dataset.batch(4).repeat(2).prefetch(2)


def bits(element):
    return [leaf.numpy().tobytes() for leaf in element]


@pytest.mark.parametrize("slow", [0.0, 0.0005])
def test_random_crops_go_on_from_any_place(slow):
    """With slow functions threads work ahead, and their results are the same."""
    pydist.manual_seed(1)
    whole = iter(crops())
    states, seen = [whole.state_dict()], []
    for element in whole:
        seen.append(bits(element))
        states.append(whole.state_dict())
    assert len(seen) == 30 and len({b for row in seen for b in row}) == 60
    begun = iter(crops(slow))
    begun.load_state_dict(states[0])
    assert [bits(x) for x in begun] == seen
    for place in random.Random(0).sample(range(31), 4):
        begun, other = iter(crops(slow)), iter(crops(slow))
        begun.load_state_dict(states[0])
        for _ in range(place):
            next(begun)
        other.load_state_dict(saved_and_loaded(begun.state_dict()))
        begun.close()
        assert [bits(element) for element in other] == seen[place:]


PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import hashlib, pydist
from test_streams import bits, crops
iterator = iter(crops(0.0002))
iterator.load_state_dict(pydist.load(sys.argv[1]))
print(hashlib.sha256(repr([bits(x) for x in iterator]).encode()).hexdigest())
"""


@pytest.mark.slow
def test_random_crops_go_on_in_new_processes(tmp_path):
    import hashlib

    pydist.manual_seed(2)
    whole = iter(crops())
    states, seen = [whole.state_dict()], []
    for element in whole:
        seen.append(bits(element))
        states.append(whole.state_dict())
    draw = random.Random(1)
    for _ in range(100 if LONG else 12):
        place = draw.randrange(31)
        begun = iter(crops(0.0002))
        begun.load_state_dict(states[0])
        for _ in range(place):
            next(begun)
        pydist.save(begun.state_dict(), tmp_path / "state")
        begun.close()
        program = PROGRAM.format(paths=sys.path)
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "state")], capture_output=True, text=True, check=True
        )
        assert done.stdout.split()[0] == hashlib.sha256(repr(seen[place:]).encode()).hexdigest()


def test_functions_of_data_sets_draw_by_their_elements():
    """Each inner data set has draws and orders of its own, which are the same in another pass with the same seeds."""
    dataset = Dataset.range(3).flat_map(lambda n: Dataset.range(20).shuffle(20).map(lambda x: (x, pydist.rand(()))))
    pydist.manual_seed(4)
    first = items(dataset)
    orders = [[x for x, _ in first[i : i + 20]] for i in (0, 20, 40)]
    assert len(set(map(tuple, orders))) == 3 and all(sorted(order) == list(range(20)) for order in orders)
    assert len({draw for _, draw in first}) == 60 and items(dataset) != first
    pydist.manual_seed(4)
    again = Dataset.range(3).flat_map(lambda n: Dataset.range(20).shuffle(20).map(lambda x: (x, pydist.rand(()))))
    assert items(again) == first


def slowly(x):
    time.sleep(0.001)
    return x


def test_threads_of_streams_end():
    before = threading.active_count()
    dataset = streamed(Dataset.range(200)).map(slowly, num_parallel_calls=3).batch(2).prefetch(4)
    iterator = iter(dataset)
    assert [next(iterator).tolist() for _ in range(8)] == [[2 * i, 2 * i + 1] for i in range(8)]
    assert threading.active_count() > before
    iterator.close()
    assert threading.active_count() == before
    parts = Dataset.range(4).interleave(lambda n: Dataset.range(20).map(slowly), 4, num_parallel_calls=4)
    assert items(parts)[:8] == [0, 0, 0, 0, 1, 1, 1, 1] and threading.active_count() == before


@pytest.mark.parametrize("threads", [None, 2])
def test_an_element_that_raises_is_one_element(threads):
    """The next call goes on behind it, whatever stands between, and a place behind it is that."""

    def fails(x):
        time.sleep(0.0005)
        if x % 5 == 3:
            raise ValueError(f"no {x.item()}")
        return x

    for dataset in (Dataset.range(20), streamed(Dataset.range(20))):
        dataset = dataset.map(fails, num_parallel_calls=threads)
        iterator, found = iter(dataset), []
        while True:
            try:
                found.append(next(iterator).item())
            except StopIteration:
                break
            except ValueError as error:
                found.append(str(error).split("\n")[0])  # before Python 3.11 notes are lines of the message
            if len(found) == 9:
                other = iter(dataset)
                other.load_state_dict(saved_and_loaded(iterator.state_dict()))
                assert next(other).item() == 9
                other.close()
        assert found == [f"no {x}" if x % 5 == 3 else x for x in range(20)]
        good = [x for x in range(20) if x % 5 != 3]
        assert items(dataset.ignore_errors()) == items(dataset.prefetch(2).ignore_errors()) == good
        batches = iter(dataset.ignore_errors().batch(16))
        assert next(batches).tolist() == good
    batches, found = iter(streamed(Dataset.range(20).map(fails)).batch(4)), []
    while (batch := next_or_error(batches)) is not None:
        found += batch
    assert found == good  # rows before an error stay for the next batch


def next_or_error(iterator):
    try:
        return next(iterator).tolist()
    except StopIteration:
        return None
    except ValueError:
        return []


def test_errors_left_out_are_logged(caplog):
    dataset = Dataset.range(4).map(lambda x: 1 // (x.item() - 2)).ignore_errors(log_warning=True)
    with caplog.at_level(logging.WARNING, "pydist.data"):
        assert len(items(dataset)) == 3
    assert "left out an element that raised ZeroDivisionError" in caplog.text


def test_an_error_that_waits_is_not_lost_by_a_state():
    """The state holds the task, so its function raises again."""
    fail = []

    def maybe(x):
        time.sleep(0.001)
        if x.item() == 9 and fail:
            raise ValueError("nine")
        return x

    dataset = streamed(Dataset.range(20)).map(maybe, num_parallel_calls=4).prefetch(8)
    iterator = iter(dataset)
    fail.append(1)
    assert [next(iterator).item() for _ in range(7)] == list(range(7))
    time.sleep(0.02)
    state = saved_and_loaded(iterator.state_dict())
    iterator.close()
    other = iter(dataset)
    other.load_state_dict(state)
    assert [next(other).item() for _ in range(2)] == [7, 8]
    with pytest.raises(ValueError, match="nine"):
        next(other)
    assert next(other).item() == 10
    other.close()


# What is refused


@pytest.mark.parametrize(
    "make, kind, text",
    [
        (lambda d: list(d.filter(lambda x: "yes")), TypeError, "filter: function .* returned 'yes' for element 0"),
        (lambda d: list(d.filter(lambda x: pydist.ones(2))), TypeError, "expected a bool"),
        (lambda d: list(d.filter(3)), TypeError, "filter: the function is int"),
        (lambda d: list(d.flat_map(lambda x: x)), TypeError, "flat_map: function .* returned Tensor for element 0"),
        (lambda d: d.interleave(lambda x: d, cycle_length=0), ValueError, "cycle_length is 0"),
        (lambda d: d.interleave(lambda x: d, block_length=0), ValueError, "block_length is 0"),
        (
            lambda d: list(d.flat_map(lambda x: d if x < 2 else Dataset.zip(d, d))),
            data.DataError,
            r"flat_map: function .* returned elements \(\*, \*\) for element 2 .expected \*, as before",
        ),
        (lambda d: list(d.scan(0, lambda s, x: x)), TypeError, "scan: function .* returned Tensor for element 0"),
        (lambda d: list(d.scan(0, lambda s, x: (x / 2, x))), data.DataError, "returned a state .*float32"),
        (
            lambda d: list(d.scan(0, lambda s, x: (s, x if x < 2 else (x,)))),
            data.DataError,
            r"returned \(\*,\) for element 2",
        ),
        (lambda d: d.window(0), ValueError, "window: size is 0"),
        (lambda d: d.window(2, shift=0), ValueError, "shift is 0"),
        (lambda d: d.window(2, stride=-1), ValueError, "stride is -1"),
        (
            lambda d: list(d.unbatch()),
            data.DataError,
            "unbatch: an element has components of shape .* .expected batches",
        ),
        (lambda d: list(d.rebatch(2)), data.DataError, "rebatch: an element has components of shape"),
        (lambda d: d.rebatch(0), ValueError, "rebatch: batch_size is 0"),
        (lambda d: d.rebatch([2, -1]), ValueError, "batch_size is -1"),
        (lambda d: d.group_by_window(len, len), ValueError, "expected one"),
        (lambda d: d.group_by_window(len, len, 0), ValueError, "window_size is 0"),
        (lambda d: d.group_by_window(len, len, window_size_func=3), TypeError, "window_size_func is int"),
        (
            lambda d: list(d.group_by_window(lambda x: 0.5, lambda k, w: w, 2)),
            TypeError,
            "group_by_window: function .* returned 0.5 for element 0 .expected an int",
        ),
        (lambda d: list(d.group_by_window(lambda x: 0, lambda k, w: 1, 2)), TypeError, "returned int for element 0"),
        (
            lambda d: list(d.group_by_window(lambda x: 0, lambda k, w: w, window_size_func=lambda k: 0)),
            ValueError,
            "the result of window_size_func is 0",
        ),
        (lambda d: list(Dataset.zip(d, d).unique()), TypeError, "unique: elements have 2 components"),
        (lambda d: d.ragged_batch(2), NotImplementedError, "padded_batch"),
        (lambda d: d.sparse_batch(2, [3]), NotImplementedError, "padded_batch"),
        (lambda d: Dataset.sample_from_datasets([]), ValueError, "got no data sets"),
        (lambda d: Dataset.sample_from_datasets([3]), TypeError, "got int"),
        (
            lambda d: d.filter(lambda x: x > 9).map(lambda x: x).element_spec,
            ValueError,
            "the data set is empty, so map",
        ),
        (lambda d: list(d.window(2).batch(2)), TypeError, "the elements are data sets"),
        (lambda d: d.filter(lambda x: True).shuffle(0), ValueError, "buffer_size is 0"),
    ],
)
def test_what_is_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make(Dataset.range(5))


def test_unequal_batches_of_streams_are_named():
    for dataset in (Dataset.range(1, 4), streamed(Dataset.range(1, 4))):
        with pytest.raises(
            data.DataError, match="element 1 of a batch has .* padded_batch makes batches of rows that differ"
        ):
            list(dataset.map(lambda n: pydist.zeros(n.item())).batch(3))
    uneven = Dataset.range(2).map(lambda n: (pydist.zeros(2), pydist.zeros(3)))
    with pytest.raises(data.DataError, match="expected batches of equal length"):
        list(uneven.unbatch())


def test_data_sets_without_elements_say_nothing_of_others():
    """Of several, those that have elements say what these are."""
    empty = Dataset.range(0).map(lambda x: (x, x))
    one = Dataset.range(1)
    assert items(empty.concatenate(one)) == items(streamed(empty).concatenate(one)) == [0]
    assert items(Dataset.choose_from_datasets([streamed(empty), one], Dataset.range(2), False)) == [0]


def test_ends_and_counts():
    assert items(Dataset.range(3).filter(lambda x: False).repeat()) == []
    assert items(Dataset.range(3).filter(lambda x: x > 0).repeat(0)) == []
    endless = streamed(Dataset.range(3)).repeat()
    assert endless.cardinality() == data.UNKNOWN_CARDINALITY and items(endless.take(7)) == [0, 1, 2, 0, 1, 2, 0]
    assert Dataset.range(0).filter(lambda x: True).cardinality() == 0
    assert Dataset.range(6).batch(2, drop_remainder=True).unbatch().cardinality() == 6
    assert Dataset.range(5).take(0).flat_map(lambda x: Dataset.range(2)).cardinality() == 0
    assert streamed(Dataset.range(3)).take(2).cardinality() == data.UNKNOWN_CARDINALITY
    assert items(streamed(Dataset.range(5)).skip(-1)) == [] and items(streamed(Dataset.range(5)).take(-1)) == list(
        range(5)
    )
    assert items(streamed(Dataset.range(5)).skip(10)) == [] and items(streamed(Dataset.range(5)).shard(7, 6)) == []
    assert items(streamed(Dataset.range(5)).enumerate(3)) == [(i + 3, i) for i in range(5)]
    assert streamed(Dataset.range(1)).get_single_element().item() == 0
    assert items(Dataset.range(4).batch(2).map(lambda x: x * 2, batched=True)) == [[0, 2], [4, 6]]
    assert items(streamed(Dataset.range(3)).map(lambda x: x * 2, batched=True)) == [0, 2, 4]


def test_a_fork_is_told_to_begin_anew():
    program = """
import os, time
from pydist.data import Dataset
ds = Dataset.range(200).filter(lambda x: True).map(lambda x: (time.sleep(0.002), x)[1], num_parallel_calls=2)
it = iter(ds)
first = [next(it).item() for _ in range(8)]
pid = os.fork()
if not pid:
    try:
        next(it)
    except RuntimeError as error:
        print(error, flush=True)
    other = [x.item() for x in ds.take(5)]
    print(other, flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert first + [x.item() for x in it] == list(range(200))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "expected a new iterator in the child" in done.stdout and "[0, 1, 2, 3, 4]" in done.stdout, done.stderr
    assert not done.returncode, done.stderr
