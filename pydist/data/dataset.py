"""Dataset: tf.data's names over pydist's tensors."""

import bisect
import glob
import hashlib
import os
import warnings

from pydist import _C
from pydist.data import batch, cache, files, function, nested, order, saved, sources, spec, state
from pydist.data.iterator import Iterator, NumpyIterator, drawn_seed
from pydist.data.options import Options
from pydist.data.spec import AUTOTUNE, INFINITE, UNKNOWN
from pydist.data.step import Step


def _seed(seed, where):
    """A program's seed. None: the first pass draws one from the default generator (iterator.py)."""
    return None if seed is None else spec.count_of(seed, where, "seed") % (1 << 64)


def _threads(number, where):
    if number is None:
        return 0
    number = spec.count_of(number, where, "num_parallel_calls")
    if number != AUTOTUNE and number < 1:
        raise ValueError(f"{where}: num_parallel_calls is {number} (expected 1 or more, AUTOTUNE or None)")
    return number


CYCLE = 16  # data sets that are read in turn where a program does not say: a number that every machine has


def _warn_of_order(step):
    """Warns of a shuffle whose input hides what it should shuffle."""
    steps = step.steps()
    if any(before.name == "shuffle" for before in steps):
        return
    if any(before.name == "repeat" and before.times != 1 for before in steps):
        text = "shuffle after repeat mixes passes: an element may come twice before another one comes at all"
        warnings.warn(f"{text} (expected shuffle before repeat)", stacklevel=3)
    elif any(before.name in ("batch", "padded_batch") for before in steps):
        text = "shuffle after batch changes the order of batches: the same elements stay together"
        warnings.warn(f"{text} (expected shuffle before batch)", stacklevel=3)


def _path(given, where):
    """A path that a program gave, also as a tensor of a string."""
    (path,) = files.paths_of(given, where)
    return path


def _alike(datasets, where):
    """The steps of data sets that follow each other."""
    steps = [_step_of(one, where) for one in datasets]
    if not steps:
        raise ValueError(f"{where}: got no data sets (expected at least one)")
    return steps


def _step_of(dataset, where):
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{where}: got {type(dataset).__name__} (expected a pydist.data.Dataset)")
    return dataset._node


class Dataset:
    """Elements (tensors, or tuples and dictionaries of them) that are made one after another when a program asks for them.

    Methods return new data sets and change nothing. Each pass of `for` begins anew, with a new order of `shuffle`.

    >>> from pydist.data import Dataset
    >>> ds = Dataset.from_tensor_slices(([1, 2, 3], ["a", "b", "c"])).batch(2)
    >>> [(x.tolist(), y.tolist()) for x, y in ds]
    [([1, 2], [b'a', b'b']), ([3], [b'c'])]
    """

    def __init__(self, step, options=None):
        if not isinstance(step, Step):
            raise TypeError(
                "Dataset: got no plan (expected Dataset.from_tensor_slices, Dataset.range or another source)"
            )
        self._node, self._options, self._own_base, self.epochs = step, options, None, 0

    def _with(self, step):
        return Dataset(step, self._options)

    def _base(self):
        if self._own_base is None:
            self._own_base = drawn_seed()
        return self._own_base

    # Sources

    @staticmethod
    def from_tensors(tensors, name=None):
        """A data set of one element."""
        return Dataset(sources.Whole(*spec.leaves_of(tensors, "from_tensors")))

    @staticmethod
    def from_tensor_slices(tensors, name=None):
        """The rows of tensors, arrays or lists. Memory of arrays and tensors is shared, not copied. Raises ValueError
        if first sizes differ.

        >>> [x.item() for x in Dataset.from_tensor_slices([1, 2, 3])]
        [1, 2, 3]
        """
        tree, leaves = spec.leaves_of(tensors, "from_tensor_slices")
        if not leaves:
            raise ValueError("from_tensor_slices: got no tensors (expected at least one)")
        if any(leaf is None or not getattr(leaf, "ndim", 0) for leaf in leaves):
            raise ValueError("from_tensor_slices: a component has no dims (expected rows; from_tensors takes scalars)")
        sizes = [len(leaf) for leaf in leaves]
        if len(set(sizes)) > 1:
            raise ValueError(f"from_tensor_slices: the components have {sizes} rows (expected equal numbers)")
        return Dataset(
            sources.Slices(tree, [leaf.detach() if isinstance(leaf, _C.Tensor) else leaf for leaf in leaves])
        )

    @staticmethod
    def from_torch(dataset):
        """The items of a data set of `pydist.utils.data`, or of any object with `__getitem__` and `__len__`.

        >>> [x.item() for x in Dataset.from_torch([5, 6])]
        [5, 6]
        """
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(
                f"from_torch: got {type(dataset).__name__} (expected __getitem__ and __len__; from_generator takes iterables)"
            )
        return Dataset(sources.Items(dataset))

    @staticmethod
    def from_generator(generator, output_types=None, output_shapes=None, args=None, output_signature=None, name=None):
        """What a generator yields: `generator(*args)` is called for each pass.

        `output_signature` says what elements are, as nested TensorSpec (or `output_types` and `output_shapes`, the older
        form). An element that does not fit raises DataError. Without one, elements have to have the structure, dtypes and
        numbers of dims of the first one.

        >>> def squares(n):
        ...     for i in range(n):
        ...         yield i * i
        >>> [x.item() for x in Dataset.from_generator(squares, args=[3])]
        [0, 1, 4]
        """
        if not callable(generator):
            raise TypeError(f"from_generator: generator is {type(generator).__name__} (expected a callable)")
        arguments = [leaf.numpy() if hasattr(leaf, "numpy") else leaf for leaf in args or ()]
        if output_signature is None and output_types is not None:
            output_signature = spec.signature_of(output_types, output_shapes)
        tree = known = None
        if output_signature is not None:
            known = []
            tree = spec.flatten(output_signature, known)
            for one in known:
                if not isinstance(one, spec.TensorSpec):
                    raise TypeError(f"from_generator: output_signature has {one!r} (expected TensorSpec)")
        return Dataset(sources.Generator(generator, arguments, tree, known))

    @staticmethod
    def range(*args, output_type=_C.int64, name=None):
        """range(stop), range(start, stop) or range(start, stop, step), as int64."""
        if not 1 <= len(args) <= 3:
            raise TypeError(f"range: got {len(args)} numbers (expected stop; start, stop; or start, stop, step)")
        numbers = range(*(spec.count_of(n, "range", "a number") for n in args))
        return Dataset(sources.Range(numbers.start, numbers.stop, numbers.step, output_type))

    @staticmethod
    def counter(start=0, step=1, dtype=_C.int64, name=None):
        """start, start + step, ... without end."""
        start, step = (spec.count_of(n, "counter", what) for n, what in ((start, "start"), (step, "step")))
        return Dataset(sources.Range(start, None, step, dtype))

    @staticmethod
    def random(seed=None, rerandomize_each_iteration=None, name=None):
        """Random numbers in [0, 2**32) without end."""
        step = sources.Random(_seed(seed, "random"), bool(rerandomize_each_iteration))
        step.epochs = 0
        return Dataset(step)

    @staticmethod
    def zip(*args, datasets=None, name=None):
        """Tuples of the elements of several data sets (or nested ones, of nested data sets), as many as the shortest has.

        >>> ds = Dataset.zip(Dataset.range(3), Dataset.range(10, 20))
        >>> [(a.item(), b.item()) for a, b in ds]
        [(0, 10), (1, 11), (2, 12)]
        """
        given = datasets if datasets is not None else args[0] if len(args) == 1 else args
        leaves = []
        outer = spec.flatten(tuple(given) if isinstance(given, list) else given, leaves)
        steps = [_step_of(one, "zip") for one in leaves]
        if not steps:
            raise ValueError("zip: got no data sets (expected at least one)")
        return Dataset(order.Zip(outer, steps))

    @staticmethod
    def sample_from_datasets(datasets, weights=None, seed=None, stop_on_empty_dataset=False,
                             rerandomize_each_iteration=None):  # fmt: skip
        """Elements of several data sets, drawn with these weights (equal ones by default). A data set that has ended is
        drawn no more, or ends all of them.

        >>> ds = Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(10, 13)], seed=0)
        >>> sorted(x.item() for x in ds)
        [0, 1, 2, 10, 11, 12]
        """
        where = "sample_from_datasets"
        steps = _alike(datasets, where)
        weights = [1.0] * len(steps) if weights is None else weights
        weights = weights.tolist() if hasattr(weights, "tolist") else weights
        if not isinstance(weights, (list, tuple)) or len(weights) != len(steps):
            raise ValueError(
                f"{where}: weights is {weights!r} (expected a number for each of the {len(steps)} data sets)"
            )
        if min(weights) < 0 or not sum(weights) > 0:
            raise ValueError(f"{where}: weights is {weights!r} (expected 0 or more, and a sum above 0)")
        weights = tuple(float(weight) for weight in weights)
        step = nested.Choose(steps, bool(stop_on_empty_dataset), weights, seed=_seed(seed, where))
        step.epochs = 0
        return Dataset(step)

    @staticmethod
    def choose_from_datasets(datasets, choice_dataset, stop_on_empty_dataset=True):
        """Elements of several data sets: `choice_dataset` has the numbers of the data sets that they come from.

        >>> choice = Dataset.range(2).repeat(2)
        >>> ds = Dataset.choose_from_datasets([Dataset.range(3), Dataset.range(10, 13)], choice)
        >>> [x.item() for x in ds]
        [0, 10, 1, 11]
        """
        where = "choose_from_datasets"
        choice = _step_of(choice_dataset, where)
        return Dataset(nested.Choose(_alike(datasets, where), bool(stop_on_empty_dataset), choice=choice, seed=0))

    @staticmethod
    def list_files(file_pattern, shuffle=None, seed=None, name=None):
        """The paths of files that match a pattern, or one of several, as strings: in a random order unless `shuffle` is
        False, else sorted. Hidden files match only patterns that name the dot. Raises FileNotFoundError if none matches.
        """
        where = "list_files"
        patterns = files.paths_of(file_pattern, where)
        found = sorted({path for pattern in patterns for path in glob.glob(pattern)})
        if not found:
            raise FileNotFoundError(f"{where}: no file matches {', '.join(map(repr, patterns))} (expected one or more)")
        dataset = Dataset.from_tensor_slices([os.fsencode(path) for path in found])
        return dataset if shuffle is False else dataset.shuffle(len(found), seed)

    # Steps

    def map(self, map_func, num_parallel_calls=None, deterministic=None, synchronous=None, use_unbounded_threadpool=None,
            name=None, batched=False, recorded=False):  # fmt: skip
        """The results of a function of each element; members of tuples are its arguments. It may return tensors, arrays,
        numbers, tuples and dictionaries.

        `num_parallel_calls` threads call it ahead (AUTOTUNE: as many as help). Python runs in one thread at a time, so that
        this helps functions that spend their time in NumPy, Pillow or pydist. Random operations of pydist draw by the number
        of the element: any number of threads gives the same results. `batched`: where `batch` follows, the function
        gets whole batches. `recorded`: as in `tf.function`, Python runs the function for the first elements only; from then
        on what it did with tensors is repeated, with the same bits. `deterministic=False`: results of threads come as they are ready. An exception of the function
        gets a note that names the element.

        >>> [x.item() for x in Dataset.range(3).map(lambda x: x * x)]
        [0, 1, 4]
        """
        ordered = None if deterministic is None else bool(deterministic)
        threads = _threads(num_parallel_calls, "map")
        return self._with(function.Map(self._node, map_func, threads, batched, ordered, recorded))

    def filter(self, predicate, name=None):
        """The elements of which `predicate` is true.

        >>> [x.item() for x in Dataset.range(5).filter(lambda x: x % 2 == 0)]
        [0, 2, 4]
        """
        return self._with(function.Filter(self._node, predicate))

    def take_while(self, predicate, name=None):
        """The elements before the first one of which `predicate` is false."""
        return self._with(function.TakeWhile(self._node, predicate))

    def flat_map(self, map_func, name=None):
        """The elements of the data sets that a function makes of each element, one data set after another.

        >>> [x.item() for x in Dataset.range(4).flat_map(lambda n: Dataset.range(n))]
        [0, 0, 1, 0, 1, 2]
        """
        return self._with(nested.Interleave(self._node, map_func, 1, 1, where="flat_map"))

    def interleave(self, map_func, cycle_length=None, block_length=None, num_parallel_calls=None, deterministic=None,
                   name=None):  # fmt: skip
        """The elements of the data sets that a function makes of each element: of `cycle_length` data sets at a time (16 by
        default), `block_length` elements of each in turn. With `num_parallel_calls`, threads read ahead where that helps.

        >>> ds = Dataset.range(2).interleave(lambda n: Dataset.range(10 * n, 10 * n + 3))
        >>> [x.item() for x in ds]
        [0, 10, 1, 11, 2, 12]
        """
        cycle = AUTOTUNE if cycle_length is None else spec.count_of(cycle_length, "interleave", "cycle_length")
        cycle = CYCLE if cycle == AUTOTUNE else spec.count_of(cycle, "interleave", "cycle_length", 1)
        block = 1 if block_length is None else spec.count_of(block_length, "interleave", "block_length", 1)
        threads = _threads(num_parallel_calls, "interleave")
        return self._with(nested.Interleave(self._node, map_func, cycle, block, threads))

    def scan(self, initial_state, scan_func, name=None):
        """The elements that a function makes of a state and each element: it returns (next state, element).

        >>> sums = Dataset.range(4).scan(0, lambda total, x: (total + x, total + x))
        >>> [x.item() for x in sums]
        [0, 1, 3, 6]
        """
        return self._with(function.Scan(self._node, scan_func, *spec.leaves_of(initial_state, "scan")))

    def unique(self, name=None):
        """The elements that differ from all before. They have to be single tensors."""
        return self._with(function.Unique(self._node))

    def ignore_errors(self, log_warning=False, name=None):
        """Leaves out elements that raise an exception: damaged records, functions that fail."""
        return self._with(function.IgnoreErrors(self._node, bool(log_warning)))

    def group_by_window(self, key_func, reduce_func, window_size=None, window_size_func=None, name=None):
        """Gathers `window_size` elements with one key (an int), and gives the elements of the data set that
        `reduce_func(key, dataset)` returns. `window_size_func(key)`: how many.

        >>> ds = Dataset.range(6).group_by_window(lambda x: x % 2, lambda key, ds: ds.batch(3), window_size=3)
        >>> [x.tolist() for x in ds]
        [[0, 2, 4], [1, 3, 5]]
        """
        where = "group_by_window"
        if (window_size is None) == (window_size_func is None):
            raise ValueError(
                f"{where}: got window_size {window_size} and window_size_func {window_size_func} (expected one)"
            )
        size = window_size_func if window_size is None else spec.count_of(window_size, where, "window_size", 1)
        if window_size is None and not callable(size):
            raise TypeError(f"{where}: window_size_func is {type(size).__name__} (expected a callable)")
        return self._with(nested.GroupByWindow(self._node, key_func, reduce_func, size))

    def bucket_by_sequence_length(self, element_length_func, bucket_boundaries, bucket_batch_sizes, padded_shapes=None,
                                  padding_values=None, pad_to_bucket_boundary=False, no_padding=False,
                                  drop_remainder=False, name=None):  # fmt: skip
        """Padded batches of elements of similar length. An element goes to the first bucket whose boundary is above its
        length; there are one more batch sizes than boundaries.

        >>> import pydist
        >>> ds = Dataset.range(1, 7).map(lambda n: pydist.arange(n.item()))
        >>> for batch in ds.bucket_by_sequence_length(len, [3, 5], [2, 2, 2]):
        ...     print(tuple(batch.shape))
        (2, 2)
        (2, 4)
        (2, 6)
        """
        where = "bucket_by_sequence_length"
        bounds = [spec.count_of(n, where, "a boundary") for n in bucket_boundaries]
        sizes = [spec.count_of(n, where, "a batch size", 1) for n in bucket_batch_sizes]
        if len(sizes) != len(bounds) + 1 or bounds != sorted(set(bounds)):
            raise ValueError(
                f"{where}: got boundaries {bounds} and batch sizes {sizes} (expected rising boundaries, and one more size)"
            )

        def bucket(*element):
            return bisect.bisect_right(bounds, spec.count_of(element_length_func(*element), where, "a length"))

        def batches(key, elements):
            size = sizes[key.item()]
            if no_padding:
                return elements.batch(size, drop_remainder)
            shapes = padded_shapes
            if pad_to_bucket_boundary:
                if key.item() == len(bounds):
                    raise _C.DataError(
                        f"{where}: an element is longer than {bounds[-1] - 1} (expected a boundary above all)"
                    )
                shapes = elements._filled_shapes(padded_shapes, bounds[key.item()] - 1)
            return elements.padded_batch(size, shapes, padding_values, drop_remainder)

        return self.group_by_window(bucket, batches, window_size_func=lambda key: sizes[key.item()])

    def _filled_shapes(self, padded_shapes, length):
        """padded_shapes with a length for the sizes that are None."""
        specs = self._node.specs()
        shapes = spec.shapes_of(padded_shapes, len(specs), self._node, "bucket_by_sequence_length")
        full = [(None,) * len(one.shape) if shape is None else shape for one, shape in zip(specs, shapes)]
        return spec.Flat(tuple(length if n is None else n for n in shape) for shape in full)

    def rejection_resample(self, class_func, target_dist, initial_dist=None, seed=None, name=None):
        """(class, element) of elements that are left out so that their classes have the distribution `target_dist`.
        `initial_dist`: that of the data; without it, it is what has been seen so far."""
        where = "rejection_resample"
        target, initial = spec.distribution(target_dist, where, "target_dist"), None
        if initial_dist is not None:
            initial = spec.distribution(initial_dist, where, "initial_dist")
            if len(initial) != len(target):
                raise ValueError(
                    f"{where}: initial_dist has {len(initial)} classes (expected {len(target)}, as target_dist)"
                )
        step = function.Resample(self._node, class_func, target, initial, _seed(seed, where))
        step.epochs = 0
        return self._with(step)

    def window(self, size, shift=None, stride=1, drop_remainder=False, name=None):
        """Data sets of `size` elements that follow each other, `stride` apart; each window begins `shift` elements after the
        one before (`size` by default). Of elements with several components each one is a data set of its own.

        >>> ds = Dataset.range(5).window(3, shift=1, drop_remainder=True)
        >>> [x.tolist() for x in ds.flat_map(lambda window: window.batch(3))]
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        size = spec.count_of(size, "window", "size", 1)
        shift = size if shift is None else spec.count_of(shift, "window", "shift", 1)
        stride = spec.count_of(stride, "window", "stride", 1)
        return self._with(nested.Window(self._node, size, shift, stride, bool(drop_remainder)))

    def padded_batch(self, batch_size, padded_shapes=None, padding_values=None, drop_remainder=False, name=None):
        """Batches of elements whose shapes differ, filled up to the largest of the batch, or to `padded_shapes` (None or -1:
        the largest). `padding_values`: 0 and "" by default, for all components or nested as the elements are.

        >>> import pydist
        >>> ds = Dataset.range(1, 4).map(lambda n: pydist.full((n.item(),), n.item()))
        >>> next(iter(ds.padded_batch(3))).tolist()
        [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
        """
        size = spec.count_of(batch_size, "padded_batch", "batch_size", 1)
        return self._with(batch.PaddedBatch(self._node, size, padded_shapes, padding_values, bool(drop_remainder)))

    def unbatch(self):
        """The rows of batches.

        >>> [x.item() for x in Dataset.range(3).batch(2).unbatch()]
        [0, 1, 2]
        """
        return self._with(batch.Unbatch(self._node))

    def rebatch(self, batch_size, drop_remainder=False, name=None):
        """Batches of another size, made of batches without taking them apart. A list: these sizes in turn.

        >>> [x.tolist() for x in Dataset.range(7).batch(3).rebatch(2)]
        [[0, 1], [2, 3], [4, 5], [6]]
        """
        sizes = batch_size.tolist() if hasattr(batch_size, "tolist") else batch_size
        sizes = sizes if isinstance(sizes, (list, tuple)) and sizes else [sizes]
        sizes = [spec.count_of(size, "rebatch", "batch_size", 1) for size in sizes]
        return self._with(batch.Rebatch(self._node, sizes, bool(drop_remainder)))

    def ragged_batch(self, *args, **kwargs):
        """There are no ragged tensors: NotImplementedError."""
        raise NotImplementedError(
            "ragged_batch: there are no ragged tensors (expected padded_batch, which fills rows up)"
        )

    sparse_batch = ragged_batch

    def reduce(self, initial_state, reduce_func, name=None):
        """The last state: reduce_func(state, element) makes the next one.

        >>> Dataset.range(5).reduce(0, lambda total, x: total + x).item()
        10
        """
        tree, leaves = spec.leaves_of(initial_state, "reduce")
        reducer = function.Function(reduce_func, self._node, "reduce")
        iterator = iter(self)
        try:
            for number, element in enumerate(iterator):
                value = reducer.of((spec.pack(tree, leaves), element), number, iterator._run)
                after_tree, after = spec.leaves_of(value, "reduce")
                function.same_state(reducer, after_tree, after, tree, leaves, number)
                leaves = after
        finally:
            iterator.close()
        return spec.pack(tree, leaves)

    def batch(self, batch_size, drop_remainder=False, num_parallel_calls=None, deterministic=None, name=None):
        """Batches of this many elements, stacked; the last one may be smaller, or left out.

        >>> [x.tolist() for x in Dataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]
        """
        return self._with(
            batch.Batch(self._node, spec.count_of(batch_size, "batch", "batch_size", 1), bool(drop_remainder))
        )

    def shuffle(self, buffer_size, seed=None, reshuffle_each_iteration=True, name=None):
        """A random order. Where `buffer_size` is the number of elements or more (the cardinality will do), all orders are
        possible; otherwise element p of the result is one of the first p + buffer_size. No buffer is filled: an
        element's place is computed.

        The order of each pass is another one, unless `reshuffle_each_iteration` is False. Without a seed, the first pass draws
        one from pydist's generator.
        """
        size = spec.count_of(buffer_size, "shuffle", "buffer_size")
        if size == UNKNOWN or size == INFINITE:
            raise ValueError(f"shuffle: buffer_size is {size} (expected 1 or more; the cardinality is not known)")
        _warn_of_order(self._node)
        step = order.Shuffle(self._node, spec.count_of(size, "shuffle", "buffer_size", 1), _seed(seed, "shuffle"),
                            reshuffle_each_iteration is not False)  # fmt: skip
        step.epochs = 0
        return self._with(step)

    def repeat(self, count=None, name=None):
        """This many passes over the data, one after another; None or -1: without end."""
        times = INFINITE if count is None else spec.count_of(count, "repeat", "count")
        return self._with(order.Repeat(self._node, times))

    def take(self, count, name=None):
        """The first `count` elements; -1: all."""
        return self._with(order.Take(self._node, spec.count_of(count, "take", "count")))

    def skip(self, count, name=None):
        """All but the first `count` elements; -1: none."""
        return self._with(order.Skip(self._node, spec.count_of(count, "skip", "count")))

    def shard(self, num_shards, index, name=None):
        """The elements whose numbers are `index` modulo `num_shards`."""
        shards = spec.count_of(num_shards, "shard", "num_shards", 1)
        index = spec.count_of(index, "shard", "index")
        if not 0 <= index < shards:
            raise ValueError(f"shard: index is {index} (expected 0 to {shards - 1})")
        return self._with(order.Shard(self._node, shards, index))

    def prefetch(self, buffer_size, name=None):
        """Elements are made in a thread before they are asked for, up to `buffer_size` of them (AUTOTUNE: as many as help).
        Where an element takes less time than to hand it over, no thread starts."""
        room = AUTOTUNE if buffer_size is None else spec.count_of(buffer_size, "prefetch", "buffer_size", -1)
        return self._with(order.Prefetch(self._node, room))

    def cache(self, filename="", name=None):
        """The elements of the first whole pass: later passes take them from memory, or from a file, which the next program
        finds, too. The file appears under its name when it is complete; one of another plan is a DataError. A pass that
        ends early makes no file.
        """
        path = _path(filename, "cache")
        return self._with(cache.Cache(self._node, path or None))

    def snapshot(self, path, compression="AUTO", reader_func=None, shard_func=None, name=None):
        """A cache in the folder `path`, with a file for each plan: after a change of the plan, elements are made anew."""
        if reader_func is not None or shard_func is not None:
            raise NotImplementedError(
                "snapshot: got reader_func or shard_func (expected neither; save and load have them)"
            )
        mark = hashlib.sha256(state.fingerprint(self._node).encode()).hexdigest()[:16]
        return self._with(
            cache.Cache(self._node, os.path.join(_path(path, "snapshot"), f"{mark}.elements"), "snapshot")
        )

    def save(self, path, compression=None, shard_func=None, checkpoint_args=None):
        """Writes the elements to files in the folder `path`, for `Dataset.load`. A data set that the folder had before stays
        whole until the new one is. `shard_func(*element)`: the number of the file. Files are not compressed.
        """
        saved.save(self, _path(path, "save"), shard_func)

    @staticmethod
    def load(path, element_spec=None, compression=None, reader_func=None, wait=False):
        """The elements that `save` has written, read by number. `reader_func` gets a data set of the files' data sets and
        returns one of elements; without it the files follow each other.
        """
        parts = [Dataset(step) for step in saved.load(_path(path, "load"))]
        dataset = parts[0]
        for part in parts[1:]:
            dataset = dataset.concatenate(part)
        if element_spec is not None and len(dataset) and dataset.element_spec != element_spec:
            raise ValueError(f"load: {path} has {dataset.element_spec} (expected {element_spec})")
        if reader_func is None:
            return dataset
        read = reader_func(Dataset(sources.Held(None, [[part] for part in parts])))
        _step_of(read, "load")
        return read

    def enumerate(self, start=0, name=None):
        """(number, element), counted from `start`.

        >>> [(i.item(), x.item()) for i, x in Dataset.range(5, 7).enumerate()]
        [(0, 5), (1, 6)]
        """
        return self._with(order.Zip(("tuple", tuple, (None, None)), (Dataset.counter(start)._node, self._node)))

    def concatenate(self, dataset, name=None):
        """The elements of this data set, then of another one."""
        return self._with(order.Concatenate(self._node, _step_of(dataset, "concatenate")))

    def apply(self, transformation_func, name=None):
        """transformation_func(self), which returns a data set."""
        result = transformation_func(self)
        _step_of(result, "apply")
        return result

    # What is known, and the elements

    @property
    def element_spec(self):
        """The shapes and dtypes of elements. A `map` is called with one element to learn them."""
        return spec.pack(self._node.tree, self._node.specs())

    def cardinality(self, name=None):
        """How many elements, as an int64 tensor; INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return _C.tensor(self._node.count(), dtype=_C.int64, device="cpu")

    def __len__(self):
        count = self._node.count()
        if count < 0:
            raise TypeError(
                f"The dataset is {'infinite' if count == INFINITE else 'of unknown length'} (expected a finite one)"
            )
        return count

    def __bool__(self):
        return True

    def __iter__(self):
        return Iterator(self)

    def as_numpy_iterator(self):
        """The elements as NumPy's arrays and numbers, of strings as bytes.

        >>> [int(x) for x in Dataset.range(3).as_numpy_iterator()]
        [0, 1, 2]
        """
        return NumpyIterator(iter(self))

    def get_single_element(self, name=None):
        """The only element. Raises ValueError if there is none, or more than one."""
        iterator = iter(self)
        try:
            element = next(iterator, None)
            if element is None:
                raise ValueError("get_single_element: the data set is empty (expected one element)")
            if next(iterator, None) is not None:
                raise ValueError("get_single_element: the data set has several elements (expected one)")
            return element
        finally:
            iterator.close()

    def options(self):
        """The options of this data set."""
        return Options() if self._options is None else self._options

    def with_options(self, options, name=None):
        """The same elements, with these options in addition."""
        if not isinstance(options, Options):
            raise TypeError(f"with_options: got {type(options).__name__} (expected pydist.data.Options)")
        return Dataset(self._node, self.options().merge(options))

    def __repr__(self):
        count = self._node.count()
        known = {INFINITE: "infinite", UNKNOWN: "of unknown length"}.get(count, f"{count} elements")
        return f"<Dataset: {self._node.name}, {known}>"


__all__ = ["CYCLE", "Dataset"]
