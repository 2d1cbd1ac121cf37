"""Stores of arrays under keys: pydist.distributed.ps with NDArrays."""

import numpy as np

from pydist.compat.mxnet._base import MXNetError
from pydist.compat.mxnet.ndarray._array import NDArray
from pydist.compat.mxnet.optimizer import Optimizer, get_updater
from pydist.distributed import ps


class KVStoreBase:
    """A base class of stores: register()ed subclasses can be made by create(). They have is_capable("optimizer"),
    broadcast(key, value, out) and pushpull(key, value, out=None)."""

    kv_registry, OPTIMIZER = {}, "optimizer"
    rank, num_workers = 0, 1
    type = property(lambda self: type(self).__name__.lower(), doc="The name that create() takes.")

    @staticmethod
    def register(klass):
        """A class decorator: create() finds it under its name in small letters."""
        KVStoreBase.kv_registry[klass.__name__.lower()] = klass
        return klass

    def set_optimizer(self, optimizer):
        """Only for stores that are capable of "optimizer"."""
        raise NotImplementedError(f"{type(self).__name__} has no optimizer (expected update_on_kvstore=False)")

    save_optimizer_states = load_optimizer_states = set_optimizer


def _list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


@KVStoreBase.register
class TestStore(KVStoreBase):
    """A store in one process without an optimizer, for tests: "teststore"."""

    @staticmethod
    def is_capable(capability):
        """It has no optimizer."""
        return False

    def broadcast(self, key, value, out, priority=0):
        """Copies a value into arrays."""
        for each in _list(out):
            each[:] = value

    def pushpull(self, key, value, out=None, priority=0):
        """Sums a list of arrays."""
        values = _list(value)
        self.broadcast(key, sum(values[1:], values[0].copy()), values if out is None else out)


class KVStore(KVStoreBase):
    """A store that create() makes. Keys are ints or strings; a list of keys goes with a list of values, and a value may
    be the list of the devices' arrays. `priority` has no effect."""

    def __init__(self, store):
        self._ps, self._updater, self._optimizer, self._rate, self._stypes = store, None, None, None, {}
        self._half = set()

    type = property(lambda self: self._ps.type, doc="The name that create() was given.")
    rank = property(lambda self: self._ps.rank, doc="This worker's number, from 0.")
    num_workers = property(lambda self: self._ps.num_workers, doc="How many workers the store has.")

    def __repr__(self):
        return repr(self._ps)

    @staticmethod
    def is_capable(capability):
        """It has an optimizer."""
        if capability.lower() != KVStoreBase.OPTIMIZER:
            raise ValueError(f"is_capable: got {capability!r} (expected 'optimizer')")
        return True

    def _call(self, op, *args):
        try:
            return getattr(self._ps, op)(*args)
        except (ValueError, KeyError, TypeError) as error:
            raise MXNetError(error.args[0] if error.args else str(error)) from error

    @staticmethod
    def _rows(op, key, value):
        """[(key, list of arrays)]."""
        keys, values = (key, value) if isinstance(key, (list, tuple)) else ([key], [value])
        if not isinstance(values, (list, tuple)) or len(keys) != len(values):
            got = len(values) if isinstance(values, (list, tuple)) else type(values).__name__
            raise MXNetError(f"{op}: got {len(keys)} keys and {got} values (expected one value, or list, for each key)")
        rows = [(k, _list(v)) for k, v in zip(keys, values)]
        wrong = [(k, each) for k, arrays in rows for each in arrays if not isinstance(each, NDArray)]
        if wrong:
            raise TypeError(f"{op}: key {wrong[0][0]!r} has a {type(wrong[0][1]).__name__} (expected NDArrays)")
        return rows

    def init(self, key, value):
        """Gives keys their first values, on every worker; rank 0's count."""
        rows = self._rows("init", key, value)
        self._half |= {k for k, arrays in rows if arrays[0].dtype == np.float16}
        self._call("init", [k for k, _ in rows], [arrays[0]._t.detach() for _, arrays in rows])

    def push(self, key, value, priority=0):
        """Adds gradients, those of devices summed. An optimizer or updater changes the value, or the sum is it."""
        rows = self._rows("push", key, value)
        keys = [k for k, _ in rows]
        self._follow(keys)
        devices = [self._call("value", k).device for k in keys]
        self._stypes.update((k, arrays[0].stype) for k, arrays in rows)
        self._call("push", keys, [[a._t.detach().to(d) for a in arrays] for d, (_, arrays) in zip(devices, rows)])

    def _follow(self, keys):
        """Tells a distributed store what this worker's optimizer has now: its scale and its learning rate."""
        if self._optimizer is None or self._updater is not None:
            return
        self._optimizer._update_count(keys)
        if self._optimizer.learning_rate != self._rate:
            self._rate = self._optimizer.learning_rate
            self._ps.set_learning_rate(self._rate)
        self._ps._optimizer.rescale_grad = float(self._optimizer.rescale_grad)

    def pull(self, key, out=None, priority=0, ignore_sparse=True):
        """Copies values into arrays. ignore_sparse: row_sparse arrays stay as they are, see row_sparse_pull()."""
        rows = [
            (k, [a for a in arrays if not ignore_sparse or a.stype == "default"])
            for k, arrays in self._rows("pull", key, out)
        ]
        for k, arrays in rows:
            value = self._call("value", k)
            for each in arrays:
                if value.shape != each._t.shape:
                    raise MXNetError(f"pull: out of key {k!r} has shape {each.shape} (expected {tuple(value.shape)})")
        for k, arrays in [row for row in rows if row[1]]:
            value, first = self._ps.value(k), arrays[0]._t.detach()
            if value.dtype is first.dtype and value.device == first.device:
                self._call("pull", k, first)
            else:
                first = self._call("pull", k)
            for each in arrays:
                if each._t.data_ptr() != first.data_ptr():
                    each._t.detach().copy_(first)

    def pushpull(self, key, value, out=None, priority=0):
        """push(), then pull() into `out`, or into `value`."""
        self.push(key, value)
        self.pull(key, value if out is None else out, ignore_sparse=False)

    def broadcast(self, key, value, out, priority=0):
        """init(), then pull()."""
        self.init(key, value)
        self.pull(key, out)

    def row_sparse_pull(self, key, out=None, priority=0, row_ids=None):
        """Copies some rows into row_sparse arrays; their other rows become 0."""
        rows = self._rows("row_sparse_pull", key, out)
        ids = (
            row_ids if isinstance(key, (list, tuple)) and isinstance(row_ids, (list, tuple)) else [row_ids] * len(rows)
        )
        for (k, arrays), wanted in zip(rows, ids):
            wanted = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted] * len(arrays)
            if any(a.stype != "row_sparse" for a in arrays) or len(wanted) != len(arrays):
                raise MXNetError(f"row_sparse_pull: key {k!r} has {len(arrays)} arrays of {arrays[0].stype} and "
                                 f"{len(wanted)} row_ids (expected row_sparse, row_ids for each or all)")  # fmt: skip
            value = NDArray(self._call("pull", k))
            for each, these in zip(arrays, wanted):
                places = these._t.detach().reshape(-1).long().to(value._t.device)
                target = each._t.detach().zero_()
                target[places] = value._t[places].to(target.dtype)

    def set_optimizer(self, optimizer):
        """The update after each push: in this process, or, in a distributed store, a rule of pydist.distributed.ps."""
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"set_optimizer: got {type(optimizer).__name__} (expected an mx.optimizer.Optimizer)")
        self._optimizer, self._rate = optimizer, optimizer.learning_rate
        if self.type.startswith("dist"):
            self._call("set_optimizer", optimizer.rule(self._half.__contains__))
        else:
            self.set_updater(get_updater(optimizer))

    def set_updater(self, updater):
        """updater(key, gradient, value) after each push, in a store of one process."""
        self._call("set_updater", lambda k, g, v: updater(k, NDArray(g).tostype(self._stypes[k]), NDArray(v)))
        self._updater = updater

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params):
        """{"type": "2bit", "threshold": 0.5}, or 1bit."""
        self._call("set_gradient_compression", compression_params)

    def barrier(self):
        """Waits for all workers."""
        self._ps.barrier()

    _barrier = barrier

    def get_num_dead_node(self, node_id=None, timeout=60):
        """How many workers have died or left."""
        return self._ps.get_num_dead_node(node_id, timeout)

    def save_optimizer_states(self, fname, dump_optimizer=False):
        """Writes what the optimizer remembers."""
        if self._updater is None:
            self._call("save_optimizer_states", fname)
            return
        with open(fname, "wb") as file:
            file.write(self._updater.get_states(dump_optimizer))

    def load_optimizer_states(self, fname):
        """Reads it again."""
        if self._updater is None:
            self._call("load_optimizer_states", fname)
            return
        with open(fname, "rb") as file:
            self._updater.set_states(file.read())


def create(name="local"):
    """A store: "local", "device", "dist_sync", "dist_async" and MXNet's other names, or a registered class's name."""
    if not isinstance(name, str):
        raise TypeError(f"kvstore: name is {type(name).__name__} (expected a str)")
    if name.lower() in KVStoreBase.kv_registry:
        return KVStoreBase.kv_registry[name.lower()]()
    try:
        return KVStore(ps.create(name.lower()))
    except ValueError as error:
        raise MXNetError(str(error)) from error
