"""One pass over a data set, whose place can be saved."""

from pydist import _C
from pydist.data import spec, state
from pydist.data.step import Run

_VERSION = 1
_SEEDS = 1 << 62


def drawn_seed():
    """A seed from the default generator."""
    return _C.randint(0, _SEEDS, (), device="cpu").item()


class Iterator:
    """The elements of a data set, one after another, as `iter(dataset)` gives them.

    `state_dict()` says where it is; `load_state_dict` goes there. The state of a plan that reads by number is a small
    dictionary of numbers and strings. That of a plan with streams (`filter`, `interleave`, generators) also has the
    elements that have been read and not yet given away, as tensors: `pydist.save` keeps it.

    >>> from pydist.data import Dataset
    >>> ds = Dataset.range(6).shuffle(6, seed=1)
    >>> first = iter(ds)
    >>> begun = [next(first).item() for _ in range(2)]
    >>> second = iter(ds)
    >>> second.load_state_dict(first.state_dict())
    >>> [x.item() for x in first] == [x.item() for x in second]
    True
    """

    def __init__(self, dataset):
        self._dataset, self._step = dataset, dataset._node
        steps = self._step.steps()
        self._seeded = [step for step in reversed(steps) if hasattr(step, "seed")]
        for step in self._seeded:
            if step.seed is None:
                step.seed = drawn_seed()
        self._counters = [step for step in self._seeded if hasattr(step, "epochs")] or [dataset]
        epoch = max(one.epochs for one in self._counters)
        self._begin(self._run_of(epoch, dataset._base(), {}))

    def _run_of(self, epoch, base, seeds):
        options = self._dataset.options()
        return Run(
            epoch, base, seeds, options.threading.private_threadpool_size or 0, options.deterministic is not False
        )

    def _begin(self, run):
        for one in self._counters:
            one.epochs = run.epoch + 1
        self._run, self._taken = run, 0
        self._stream = self._step.start(run)

    def __iter__(self):
        return self

    def __next__(self):
        self._taken += 1  # also where the element raises
        try:
            leaves = next(self._stream)
        except StopIteration:
            self._taken -= 1
            raise
        tree = self._step.tree
        return leaves[0] if tree is None else spec.pack(tree, leaves)

    def get_next(self):
        """The next element. Raises StopIteration at the end."""
        return next(self)

    def get_next_as_optional(self):
        """The next element, or None at the end."""
        return next(self, None)

    @property
    def element_spec(self):
        """The shapes and dtypes of elements."""
        return self._dataset.element_spec

    def state_dict(self):
        """Where the iterator is: the fingerprint of the plan, the number of the pass, of the next element, and seeds; where
        the plan has streams, also where they are (None: they cannot say, and all elements before are made again)."""
        saved = {
            "version": _VERSION,
            "plan": state.fingerprint(self._step),
            "epoch": self._run.epoch,
            "next": self._taken,
            "base": self._run.base,
            "seeds": [self._run.seeds.get(id(step), step.seed) for step in self._seeded],
        }
        try:
            place = self._stream.save()
        except state.CannotBeSaved:
            place = None
        if self._step.indexed and isinstance(place, int):
            saved["next"] = place
        else:
            saved["stream"] = place
        return saved

    def load_state_dict(self, saved):
        """Goes where another iterator of the same plan was. Raises ValueError for a state of another plan."""
        where = "load_state_dict"
        if not isinstance(saved, dict) or saved.get("version") != _VERSION:
            raise ValueError(f"{where}: the state is {type(saved).__name__} (expected a dictionary of state_dict())")
        ours = state.fingerprint(self._step)
        theirs, seeds, numbers = (
            saved.get("plan"),
            saved.get("seeds"),
            [saved.get(k) for k in ("epoch", "next", "base")],
        )
        if theirs != ours:
            raise ValueError(f"{where}: another plan's state: {state.difference(ours, str(theirs))} (expected {ours})")
        whole = isinstance(seeds, list) and all(isinstance(n, int) and n >= 0 for n in (*numbers, *seeds))
        if not whole or len(seeds) != len(self._seeded):
            raise ValueError(f"{where}: the state is damaged (expected the dictionary that state_dict returned)")
        epoch, count, base = numbers
        self.close()
        self._begin(self._run_of(epoch, base, {id(step): seed for step, seed in zip(self._seeded, seeds)}))
        stream = saved.get("stream", count if self._step.indexed else None)
        if stream is not None:
            self._stream.load(stream)
        else:
            state.log.info(
                "load_state_dict: makes %d elements again: the plan has data sets that no state holds", count
            )
            self._stream.skip(count)
        self._taken = count

    def close(self):
        """Ends the threads."""
        stream = self.__dict__.get("_stream")
        if stream is not None:
            stream.close()

    def __del__(self):
        self.close()


class NumpyIterator:
    """The elements of an iterator as NumPy's arrays, of strings as bytes."""

    def __init__(self, iterator):
        self._iterator = iterator

    def __iter__(self):
        return self

    def __next__(self):
        return as_numpy(next(self._iterator))

    def __getattr__(self, name):
        return getattr(self._iterator, name)


def as_numpy(value):
    """A nested value of tensors as arrays and numbers."""
    leaves = []
    tree = spec.flatten(value, leaves)
    return spec.pack(tree, [_array(leaf) for leaf in leaves])


def _array(leaf):
    if leaf is None:
        return None
    if hasattr(leaf, "_node"):
        return leaf.as_numpy_iterator()
    array = leaf.numpy()
    return array[()] if isinstance(leaf, _C.Tensor) and not leaf.ndim else array
