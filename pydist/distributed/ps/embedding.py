"""EmbeddingTable: rows that are pushed and looked up by their numbers, more of them than memory has."""

import os

import pydist
from pydist import _C
from pydist.distributed.ps.kvstore import KVStore, create

# optimizer -> (number in csrc/ps/table.h, the options in its order with their defaults)
_RULES = {
    "sgd": (0, {"weight_decay": 0.0}),
    "adagrad": (1, {"eps": 1e-10, "weight_decay": 0.0}),
    "adam": (2, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}),
    "ftrl": (3, {"lamda1": 0.01, "beta": 1.0, "weight_decay": 0.0}),
}
_STARTS = ("zeros", "uniform", "normal")


class EmbeddingTable:
    """`rows` rows of `dim` float32 numbers, in the memory that all workers of a store share, or in a file.

    A row takes memory from its first update on; until then it is what `init`, `seed` and its number say: "uniform" in [-scale,
    scale], "normal" with that deviation, or "zeros". So 100 million rows cost what the pushed ones cost.

    optimizer, for the rows of a push only: "sgd"; "adagrad", p -= lr * g / (sqrt(G) + eps) with one sum G of mean(g^2) for a row;
    "adam" with the step count of the table; "ftrl". kvstore: a type for create(), or a KVStore, whose mode is the table's: in
    "dist_sync" a round adds the workers' gradients by rank and has the same bits in each run. mmap: a file of that name, made
    if it is not there; the pages in the system's cache are what takes memory, so it may be larger than that. capacity: the most
    ids of one push. All workers make the table with the same arguments.

    Raises ValueError for options that do not exist and for a file of another table, IndexError for an id out of range, OSError
    when the disk is full.

    >>> import pydist
    >>> from pydist.distributed import ps
    >>> table = ps.EmbeddingTable("users", 100_000_000, 2, optimizer="sgd", init="zeros", learning_rate=0.5)
    >>> table.push(pydist.tensor([7, 7]), pydist.tensor([[1.0, 2.0], [1.0, 0.0]]))
    >>> table.lookup(pydist.tensor([7, 8])).tolist(), table.made
    ([[-1.0, -1.0], [0.0, 0.0]], 1)
    """

    def __init__(
        self,
        name,
        rows,
        dim,
        dtype=None,
        optimizer="adagrad",
        init="uniform",
        mmap=None,
        *,
        kvstore="dist_async",
        learning_rate=0.01,
        scale=None,
        seed=0,
        capacity=1 << 17,
        **options,
    ):
        if dtype not in (None, pydist.float32):
            raise TypeError(f"EmbeddingTable: dtype is {dtype} (expected float32)")
        if optimizer not in _RULES:
            raise ValueError(f"EmbeddingTable: optimizer is {optimizer!r} (expected one of {', '.join(_RULES)})")
        if init not in _STARTS:
            raise ValueError(f"EmbeddingTable: init is {init!r} (expected one of {', '.join(_STARTS)})")
        rule, defaults = _RULES[optimizer]
        if "betas" in options:
            options["beta1"], options["beta2"] = options.pop("betas")
        unknown = sorted(set(options) - set(defaults))
        if unknown:
            raise ValueError(
                f"EmbeddingTable: {optimizer} has no option {unknown[0]!r} (expected one of {', '.join(defaults)})"
            )
        self.store = kvstore if isinstance(kvstore, KVStore) else create(kvstore)
        self.name, self.rows, self.dim = str(name), int(rows), int(dim)
        self._c = _C.EmbeddingTable(
            self.store._c,
            self.name,
            self.rows,
            self.dim,
            rule,
            tuple(float({**defaults, **options}[key]) for key in defaults),
            float(learning_rate),
            _STARTS.index(init),
            float((self.dim**-0.5 if init == "uniform" else 1.0) if scale is None else scale),
            int(seed),
            int(capacity),
            None if mmap is None else os.fspath(mmap),
        )

    def __repr__(self):
        return f"EmbeddingTable({self.name!r}, {self.rows} rows of {self.dim}, {self.made} made)"

    @property
    def made(self):
        """How many rows have been updated; it counts them."""
        return self._c.made()

    @property
    def version(self):
        """How many pushes, or rounds, are applied."""
        return self._c.version()

    @property
    def learning_rate(self):
        """That of all pushes from now on; any worker may set it."""
        return self._c.lr()

    @learning_rate.setter
    def learning_rate(self, lr):
        self._c.set_lr(lr)

    def _ids(self, op, ids):
        ids = ids if isinstance(ids, _C.Tensor) else pydist.tensor(ids, dtype=pydist.int64 if len(ids) == 0 else None)
        if ids.dtype in (pydist.int32, pydist.int16, pydist.uint8, pydist.int8):
            ids = ids.to(pydist.int64)
        if ids.dtype is not pydist.int64:
            raise TypeError(f"{op}: ids are {ids.dtype} (expected int64)")
        return ids.detach()

    def lookup(self, ids, out=None):
        """[*, dim]: the rows of these ids. In a synchronous store it waits until this worker's last push is applied."""
        ids = self._ids("lookup", ids)
        shape = (*ids.shape, self.dim)
        if out is None:
            out = pydist.empty(shape)
        elif tuple(out.shape) != shape:
            raise ValueError(f"lookup: out has shape {tuple(out.shape)} (expected {shape})")
        self._c.lookup(ids, out.detach())
        return out

    def push(self, ids, grad, rescale=1.0):
        """Updates the rows of these ids by gradients of shape [*, dim]; those of an id that is there several times are added in
        their order. No ids at all are a push, too: in a synchronous store every worker has one in each round."""
        ids = self._ids("push", ids)
        if tuple(grad.shape) != (*ids.shape, self.dim):
            raise ValueError(f"push: grad has shape {tuple(grad.shape)} (expected {(*ids.shape, self.dim)})")
        self._c.push(ids, grad.detach(), float(rescale))

    def prefetch(self, ids):
        """Has the system read the pages of a file ahead; returns at once."""
        self._c.prefetch(self._ids("prefetch", ids))

    def save(self, path):
        """Rank 0 writes the rows that have been updated, and their states; a table of any number of workers can load it. Every
        worker calls it, and nobody pushes meanwhile."""
        self.store.barrier()
        if self.store.rank == 0:
            n = self.made
            ids, rows = pydist.empty(n, dtype=pydist.int64), pydist.empty(n, self.dim)
            states = pydist.empty(n, self._c.per_row())
            self._c.save(ids, rows, states)
            content = {"format": "pydist.ps.table 1", "rows": self.rows, "dim": self.dim, "version": self.version}
            pydist.save({**content, "ids": ids, "values": rows, "states": states}, path)
        self.store.barrier()

    def load(self, path):
        """Reads what save() wrote, into a table of the same rows, dim and optimizer. Every worker calls it."""
        content = pydist.load(path)
        if not isinstance(content, dict) or content.get("format") != "pydist.ps.table 1":
            raise ValueError(f"load: {path} holds no table (expected a file of EmbeddingTable.save())")
        found = content["rows"], content["dim"], content["states"].shape[1]
        expected = self.rows, self.dim, self._c.per_row()
        if found != expected:
            raise ValueError(f"load: {path} has (rows, dim, numbers of state in a row) {found} (expected {expected})")
        self.store.barrier()
        if self.store.rank == 0:
            self._c.load(content["ids"], content["values"], content["states"], content["version"])
        self.store.barrier()
