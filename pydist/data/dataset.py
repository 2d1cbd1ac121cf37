"""Dataset: tf.data's names over pydist's tensors."""

from pydist import _C
from pydist.data import batch, function, order, sources, spec
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
        outer = spec.flatten(given, leaves)
        steps = [_step_of(one, "zip") for one in leaves]
        if not steps:
            raise ValueError("zip: got no data sets (expected at least one)")
        return Dataset(order.Zip(outer, steps))

    # Steps

    def map(self, map_func, num_parallel_calls=None, deterministic=None, synchronous=None, use_unbounded_threadpool=None,
            name=None, batched=False):  # fmt: skip
        """The results of a function of each element; members of tuples are its arguments. It may return tensors, arrays,
        numbers, tuples and dictionaries.

        `num_parallel_calls` threads call it ahead (AUTOTUNE: as many as help). Python runs in one thread at a time, so that
        this helps functions that spend their time in NumPy, Pillow or pydist. Random operations of pydist draw by the number
        of the element: any number of threads gives the same results. `batched`: where `batch` follows, the function
        gets whole batches. An exception of the function gets a note that names the element.

        >>> [x.item() for x in Dataset.range(3).map(lambda x: x * x)]
        [0, 1, 4]
        """
        return self._with(function.Map(self._node, map_func, _threads(num_parallel_calls, "map"), batched))

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


__all__ = ["Dataset"]
