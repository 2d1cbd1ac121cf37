"""KVStore: values under keys that workers push gradients to and pull, with MXNet's names."""

import pydist
from pydist import _C
from pydist.distributed._group.groups import new_group
from pydist.distributed._group.process_group import current, get_rank
from pydist.distributed._ops.collectives import ReduceOp, all_reduce, barrier, broadcast
from pydist.distributed.ps import _rules, roles
from pydist.distributed.ps._squeeze import Squeeze

_SYNC, _ASYNC, _HOGWILD = range(3)
_LOCAL = "local local_update_cpu local_allreduce_cpu local_allreduce_device device".split()
_MODES = {
    **dict.fromkeys(("dist", "dist_sync", "dist_device_sync", "dist_sync_device"), _SYNC),
    **dict.fromkeys(("dist_async", "dist_device_async", "dist_async_device"), _ASYNC),
    "dist_hogwild": _HOGWILD,
}
_REDUCED = ("horovod", "byteps")
_GUARDS = ("apply", "raise", "skip")
_FACTORS = 256


def create(
    name="local",
    *,
    reduce="sum",
    max_staleness=None,
    staleness_lr="none",
    on_death=None,
    nan="raise",
    group=None,
):
    """Makes a store. `name` is one of MXNet's types, or "dist_hogwild":

    | name | a push | a pull |
    |---|---|---|
    | local, device | sums the list of one process's gradients and updates | copies |
    | dist_sync | round r is applied when every worker has pushed r times | waits for the round of the last push |
    | dist_async | is one update | copies what is there |
    | dist_hogwild | is one update without locks | the values themselves are shared: nothing |
    | horovod, byteps | pushpull() is an all_reduce | |

    Every worker of `group` (None: all ranks) calls it with the same arguments. The workers are processes of one host.

    reduce: "sum", as MXNet, or "mean". max_staleness (dist_async): how many clocks the fastest worker may be ahead of the
    slowest, see clock(); 0 is dist_sync; None: no bound. staleness_lr: by what a push's learning rate is multiplied when n
    updates of others came between its pull and it: "none", "inverse" for 1 / (n + 1), a number e for (n + 1) ** -e, or a
    function of n. on_death: "raise" ends every wait with PeerFailed when a worker has died, "continue" goes on without it;
    default: "raise" for dist_sync, else "continue". nan: what a push of NaN or infinities does: "raise" ValueError, "skip",
    "apply".

    Under DMLC_ROLE the process takes part in that job: a worker joins the others, a server or scheduler waits here until all
    workers have ended and then ends the process (see roles.py).

    Raises ValueError for a type or option that does not exist, NotImplementedError for workers on several hosts.

    >>> import pydist
    >>> from pydist.distributed import ps
    >>> kv = ps.create("local")
    >>> kv.init("w", pydist.ones(2))
    >>> kv.set_optimizer("sgd", learning_rate=0.5)
    >>> kv.push("w", pydist.tensor([1.0, 2.0]))
    >>> kv.pull("w").tolist()
    [0.5, 0.0]
    """
    if not isinstance(name, str):
        raise TypeError(f"create: name is {type(name).__name__} (expected a str)")
    known = (*_LOCAL, *_MODES, *_REDUCED)
    if name not in known:
        raise ValueError(f"create: got {name!r} (expected one of {', '.join(known)})")
    if name not in _LOCAL and group is None:
        roles.take_part()
    if name in _REDUCED:
        return _ReducedStore(name, group)
    return KVStore(name, reduce, max_staleness, staleness_lr, on_death, nan, group)


def _factors(staleness_lr):
    """The factors of the learning rate by staleness; the last one holds for all more stale pushes."""
    if staleness_lr == "none":
        return None
    if staleness_lr == "inverse":
        staleness_lr = 1.0
    if isinstance(staleness_lr, (int, float)) and not isinstance(staleness_lr, bool):
        power = float(staleness_lr)
        return tuple((n + 1) ** -power for n in range(_FACTORS))
    if callable(staleness_lr):
        return tuple(float(staleness_lr(n)) for n in range(_FACTORS))
    raise ValueError(f'create: staleness_lr is {staleness_lr!r} (expected "none", "inverse", a number or a function)')


def _bound(max_staleness, mode):
    """The number of clocks, -1 for no bound."""
    if max_staleness is None:
        return -1
    whole = isinstance(max_staleness, int) and not isinstance(max_staleness, bool)
    if not whole or max_staleness < 0:
        raise ValueError(f"create: max_staleness is {max_staleness!r} (expected None or an int of at least 0)")
    if mode == _SYNC and max_staleness > 0:
        raise ValueError(f"create: max_staleness is {max_staleness} for a synchronous store (expected dist_async)")
    return max_staleness


def _is_list(value):
    return isinstance(value, (list, tuple))


def _fill(targets, value):
    """Copies a value into one tensor or each of a list."""
    with pydist.no_grad():
        for target in targets if _is_list(targets) else [targets]:
            target.copy_(value)


class _Keyed:
    """What all stores do with keys and lists."""

    def _pairs(self, op, key, value):
        """[(key, value)]: `key` may be a list, then `value` is one of the same length, or None."""
        if _is_list(key):
            if value is None:
                return [(self._name(op, k), None) for k in key]
            if not _is_list(value) or len(value) != len(key):
                got = f"{len(value)} values" if _is_list(value) else type(value).__name__
                raise ValueError(f"{op}: got {len(key)} keys and {got} (expected one value for each key)")
            return [(self._name(op, k), v) for k, v in zip(key, value)]
        return [(self._name(op, key), value)]

    def _name(self, op, key):
        """The key itself. A store has either ints or strings."""
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            raise TypeError(f"{op}: a key is {type(key).__name__} (expected int or str)")
        if self._kind is None:
            self._kind = int if isinstance(key, int) else str
        if not isinstance(key, self._kind):
            raise TypeError(f"{op}: key {key!r} in a store of {self._kind.__name__} keys (expected one kind of keys)")
        return key

    def _sum(self, op, key, value):
        """One gradient: that of a list is the sum, in the list's order."""
        if not _is_list(value):
            return value
        if not value:
            raise ValueError(f"{op}: key {key!r} has an empty list of gradients (expected one for each device)")
        total = value[0]
        for more in value[1:]:
            total = total + more
        return total


class KVStore(_Keyed):
    """A store made by create(). Keys are ints or strings, values are tensors of any dtype; lists of keys go with lists of
    values, and a value may be a list of tensors (of several devices), which are summed. `priority` is accepted; on one host
    it has no effect."""

    def __init__(self, name, reduce, max_staleness, staleness_lr, on_death, nan, group):
        self.type = name
        local = name in _LOCAL
        mode = _SYNC if local else _MODES[name]
        if reduce not in ("sum", "mean"):
            raise ValueError(f'create: reduce is {reduce!r} (expected "sum" or "mean")')
        if nan not in _GUARDS:
            raise ValueError(f'create: nan is {nan!r} (expected "raise", "skip" or "apply")')
        bound, factors = _bound(max_staleness, mode), _factors(staleness_lr)
        if bound == 0 and mode == _ASYNC:
            mode, bound = _SYNC, -1
        on_death = on_death or ("raise" if mode == _SYNC else "continue")
        if on_death not in ("raise", "continue"):
            raise ValueError(f'create: on_death is {on_death!r} (expected "raise" or "continue")')
        self._group = new_group([get_rank()], use_local_synchronization=True) if local else current(group)
        mean, goes_on = reduce == "mean", on_death == "continue"
        self._c = _C.ParameterStore(self._group, mode, _GUARDS.index(nan), bound, mean, goes_on)
        if factors:
            self._c.set_factors(factors)
        self.mode = ("sync", "async", "hogwild")[mode]
        self._kind, self._keys, self._shapes = None, {}, {}
        self._optimizer = self._updater = self._squeeze = None

    def __repr__(self):
        return f"KVStore({self.type!r}, worker {self.rank} of {self.num_workers}, {len(self._keys)} keys)"

    @property
    def rank(self):
        """This worker's number, from 0."""
        return self._c.rank

    @property
    def num_workers(self):
        """How many workers the store has."""
        return self._c.num_workers

    def is_capable(self, name):
        """Whether the store can run an optimizer ("optimizer"), as MXNet asks."""
        if name != "optimizer":
            raise ValueError(f"is_capable: got {name!r} (expected 'optimizer')")
        return True

    def _of(self, op, key):
        """The engine's number of a key. Raises KeyError for one that init() has not seen."""
        try:
            return self._keys[key]
        except KeyError:
            raise KeyError(f"{op}: key {key!r} has no value (expected init() first)") from None

    # ---- values

    def init(self, key, value):
        """Gives keys their first values. Every worker calls it; rank 0's values count, and the others' must have the same
        dtypes and shapes (CommMismatch). Raises ValueError for a key that has a value."""
        for name, item in self._pairs("init", key, value):
            if name in self._keys:
                raise ValueError(f"init: key {name!r} has a value already (expected a new key)")
            if _is_list(item):
                item = item[0] if item else None
            if not isinstance(item, _C.Tensor):
                raise TypeError(f"init: the value of key {name!r} is {type(item).__name__} (expected a tensor)")
            # a rule that does not fit is rank 0's error; the others learn it from the store
            rule = self._rule(name, item.dtype) if self._optimizer else None
            self._keys[name] = self._c.add(str(name), item.detach(), rule)

    def value(self, key):
        """The value itself: a tensor in the memory that all workers share. It changes when others update it."""
        return self._c.value(self._of("value", key))

    def push(self, key, value, priority=0):
        """Adds gradients; see create() for what that does in which kind of store. A list is one call, so all its keys are
        ready when the first is waited for."""
        names, gradients = [], []
        for name, item in self._pairs("push", key, value):
            names.append(name)
            gradients.append(self._sum("push", name, item))
        self._push(names, [self._of("push", name) for name in names], gradients)

    def _push(self, names, numbers, gradients):
        if self._squeeze:
            gradients = [self._squeeze(name, gradient) for name, gradient in zip(names, gradients)]
        if self._updater is None:
            self._c.push(numbers, gradients, self._optimizer.rescale_grad if self._optimizer else 1.0)
            return
        for name, number, gradient in zip(names, numbers, gradients):
            self._check_like(name, gradient)
            self._updater(name, gradient, self._c.value(number))

    def _check_like(self, name, gradient):
        value = self.value(name)
        if not isinstance(gradient, _C.Tensor) or gradient.shape != value.shape:
            got = tuple(gradient.shape) if isinstance(gradient, _C.Tensor) else type(gradient).__name__
            raise ValueError(f"push: the gradient of key {name!r} is {got} (expected shape {tuple(value.shape)})")

    def pull(self, key, out=None, priority=0, ignore_sparse=True, *, consistent=False):
        """Copies values into `out` (a tensor, or a list of tensors for several devices), or returns new tensors. In a
        synchronous store it waits until this worker's last push of the key is applied. consistent: an asynchronous pull sees
        each push of another worker whole or not at all."""
        pairs = self._pairs("pull", key, out)
        numbers = [self._of("pull", name) for name, _ in pairs]
        made = [pydist.empty_like(self._c.value(n)) for n in numbers] if out is None else None
        outs = made or [item[0] if _is_list(item) and item else item for _, item in pairs]
        self._c.pull(numbers, [o.detach() if isinstance(o, _C.Tensor) else o for o in outs], consistent)
        if made:
            return made if _is_list(key) else made[0]
        for (_, item), first in zip(pairs, outs):
            _fill(item[1:] if _is_list(item) else [], first)
        return None

    def row_sparse_pull(self, key, out=None, priority=0, row_ids=None):
        """The rows of these ids, [n, ...], in `out` or as a new tensor; lists as for pull(). Waits like pull()."""
        if row_ids is None:
            raise ValueError("row_sparse_pull: row_ids is None (expected int64 ids)")
        ids = row_ids if _is_list(key) and _is_list(row_ids) else [row_ids] * (len(key) if _is_list(key) else 1)
        pairs, found = self._pairs("row_sparse_pull", key, out), []
        if len(ids) != len(pairs):
            raise ValueError(
                f"row_sparse_pull: got {len(pairs)} keys and {len(ids)} row_ids (expected one for each key)"
            )
        numbers = [self._of("row_sparse_pull", name) for name, _ in pairs]
        self._c.pull(numbers, [None] * len(numbers), False)
        for (name, item), number, rows in zip(pairs, numbers, ids):
            value, rows = self._c.value(number), rows.detach()
            if rows.numel() and not (0 <= int(rows.min()) and int(rows.max()) < value.shape[0]):
                raise IndexError(
                    f"row_sparse_pull: row_ids of key {name!r} are {rows.tolist()[:5]} (expected 0 to {value.shape[0] - 1})"
                )
            found.append(value.index_select(0, rows.reshape(-1)))
            _fill([] if item is None else item, found[-1])
        if out is not None:
            return None
        return found if _is_list(key) else found[0]

    def pushpull(self, key, value, out=None, priority=0):
        """push(), then pull() into `out`, or into `value` if there is none."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key, value, out, priority=0):
        """init(), then pull()."""
        self.init(key, value)
        self.pull(key, out, priority)

    def barrier(self):
        """Waits for all workers of the store."""
        if self.num_workers > 1:
            barrier(self._group)

    _barrier = barrier

    # ---- updates

    def set_optimizer(self, optimizer, **options):
        """The update that follows each sum: a name and options of MXNet ("sgd", learning_rate=0.1, momentum=0.9, wd=0,
        rescale_grad=1, clip_gradient=None, multi_precision=False), or a pydist optimizer, whose parameter groups' options are
        taken. Every worker calls it, before the first push; rank 0's counts. Without it a push replaces the value by the
        sum, and an asynchronous store refuses pushes."""
        chosen = _rules.read(optimizer, **options)
        if self.rank == 0:
            for name, number in self._keys.items():
                self._c.set_rule(number, self._rule(name, self._c.value(number).dtype, chosen))
        self._optimizer = chosen
        self.barrier()

    def _rule(self, name, dtype, optimizer=None):
        """That of a key. multi_precision is for 16-bit values alone, as in MXNet."""
        rule = (optimizer or self._optimizer).rule(name)
        return rule._replace(wide=rule.wide and rule.name != "add" and dtype in (pydist.float16, pydist.bfloat16))

    def set_updater(self, updater):
        """`updater(key, gradient, value)` changes the value of a store in one process ("local", "device") in place of an
        optimizer."""
        if not callable(updater):
            raise TypeError(f"set_updater: got {type(updater).__name__} (expected a function)")
        if self.num_workers > 1:
            raise NotImplementedError(
                f"set_updater: {self.type} with {self.num_workers} workers (expected a local store, or set_optimizer())"
            )
        self._updater = updater

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params):
        """{"type": "2bit", "threshold": 0.5}, or 1bit, fp16, bf16: what later pushes lose is kept and pushed later. On one
        host it saves no time."""
        if not isinstance(compression_params, dict):
            raise TypeError(f"set_gradient_compression: got {type(compression_params).__name__} (expected a dict)")
        self._squeeze = Squeeze(**compression_params)

    def set_learning_rate(self, lr, keys=None):
        """The learning rate of all pushes from now on, of these keys or of all; any worker may set it."""
        mult = getattr(self._optimizer, "lr_mult", {})
        for name in self._keys if keys is None else keys:
            self._c.set_lr(self._of("set_learning_rate", name), float(lr) * mult.get(name, 1.0))

    def learning_rate(self, key):
        """That of a key."""
        return self._c.lr(self._of("learning_rate", key))

    # ---- clocks

    def clock(self, n=1):
        """This worker has finished n more steps. With max_staleness s it returns when no worker is more than s steps
        behind, and names the slow ones after PYDIST_WARN seconds."""
        self._c.clock(n)

    def version(self, key):
        """How many updates of a key are applied."""
        return self._c.version(self._of("version", key))

    def staleness(self):
        """{"workers": [{n: pushes}], "keys": {key: {n: pushes}}}: how many pushes came when n updates of others had been
        applied since their worker's pull. Everything over 254 counts as 255."""
        workers = [_bins(self._c.worker(w)[3]) for w in range(self.num_workers)]
        return {"workers": workers, "keys": {name: _bins(self._c.key_lags(n)) for name, n in self._keys.items()}}

    def metrics(self, format="dict"):
        """Clocks, pushes, refused pushes and staleness of each worker. format: "dict", or "prometheus" for lines of text."""
        rows = []
        for w in range(self.num_workers):
            clock, refused, gone, lags = self._c.worker(w)
            rows.append(
                {"clock": clock, "pushes": sum(lags), "refused": refused, "gone": gone, "staleness": _bins(lags)}
            )
        if format == "dict":
            return {"type": self.type, "workers": rows, "versions": {k: self.version(k) for k in self._keys}}
        if format != "prometheus":
            raise ValueError(f'metrics: format is {format!r} (expected "dict" or "prometheus")')
        lines = []
        for w, row in enumerate(rows):
            lines += [
                f'pydist_ps_{what}{{worker="{w}"}} {row[what]:d}' for what in ("clock", "pushes", "refused", "gone")
            ]
            lines += [f'pydist_ps_staleness{{worker="{w}",updates="{n}"}} {c}' for n, c in row["staleness"].items()]
        return "\n".join(lines) + "\n"

    def get_num_dead_node(self, node_id=None, timeout=60):
        """How many workers have died or left."""
        return sum(self._c.worker(w)[2] for w in range(self.num_workers))

    # ---- files

    def _states(self):
        rows = {}
        for name, number in self._keys.items():
            states = {str(i): s.clone() for i, s in enumerate(self._c.states(number)) if s is not None}
            rows[name] = {"steps": self._c.version(number), "lr": self._c.lr(number), "states": states}
        return rows

    def save_optimizer_states(self, fname, dump_optimizer=False):
        """Rank 0 writes what the optimizers know: step counts, learning rates, states. Nobody may push meanwhile."""
        self._check_optimizer("save_optimizer_states")
        self._save(fname, states=self._states)

    def load_optimizer_states(self, fname):
        """Reads them again, into a store with the same keys and optimizer. Every worker calls it."""
        self._check_optimizer("load_optimizer_states")
        self._load(fname)

    def save(self, path):
        """Rank 0 writes all values and what the optimizers know; a store of any number of workers can load it. Every worker
        calls it, and nobody pushes meanwhile. After a death the first worker that is left writes: in a synchronous store
        each key then has all rounds that its version() says, and nothing of the next one."""
        self._save(path, states=self._states, values=lambda: {k: self.value(k).clone() for k in self._keys})

    def load(self, path):
        """Reads what save() wrote, into a store with the same keys and optimizer. Every worker calls it."""
        self._load(path)

    def _check_optimizer(self, op):
        if self._optimizer is None:
            raise RuntimeError(f"{op}: the store has no optimizer (expected set_optimizer() first)")

    def _save(self, path, **content):
        """Writes what the functions in `content` return."""
        deaths = self.get_num_dead_node()
        if not deaths:
            self.barrier()
        if self.rank == min(w for w in range(self.num_workers) if not self._c.worker(w)[2]):
            pydist.save({"format": "pydist.ps 1", **{name: make() for name, make in content.items()}}, path)
        if not deaths:
            self.barrier()

    def _load(self, path):
        content = pydist.load(path)
        if not isinstance(content, dict) or content.get("format") != "pydist.ps 1":
            raise ValueError(f"load: {path} holds no parameter store (expected a file of save())")
        for name in self._keys:
            if name not in content["states"]:
                raise KeyError(f"load: {path} has no key {name!r}")
        self.barrier()
        if self.rank == 0:
            for name, number in self._keys.items():
                self._put(name, number, content["states"][name], content.get("values", {}).get(name))
        self.barrier()

    def _put(self, name, number, row, value):
        states = {str(i): s for i, s in enumerate(self._c.states(number)) if s is not None}
        if sorted(states) != sorted(row["states"]):
            raise ValueError(
                f"load: key {name!r} has states {sorted(row['states'])} in the file (expected {sorted(states)})"
            )
        for i, state in states.items():
            state.copy_(row["states"][i])
        if value is not None:
            self._c.value(number).copy_(value)
        self._c.set_version(number, row["steps"])
        self._c.set_lr(number, row["lr"])


def _bins(counts):
    return {n: c for n, c in enumerate(counts) if c}


class _ReducedStore(_Keyed):
    """For scripts that use MXNet's "horovod" or "byteps": sums by all_reduce, no server."""

    def __init__(self, name, group):
        self.type, self._group, self._kind = name, current(group), None

    @property
    def rank(self):
        """This worker's number."""
        return self._group.rank

    @property
    def num_workers(self):
        """How many workers there are."""
        return self._group.size

    def is_capable(self, name):
        """It has no optimizer."""
        return False

    def broadcast(self, key, value, out, priority=0):
        """Rank 0's value, in `out` on every worker."""
        for (_, item), (_, to) in zip(self._pairs("broadcast", key, value), self._pairs("broadcast", key, out)):
            value = (item[0] if _is_list(item) else item).detach().clone()
            broadcast(value, 0, group=self._group)
            _fill(to, value)

    def pushpull(self, key, value, out=None, priority=0):
        """The sum over workers, in `out`, or in `value` itself."""
        outs = value if out is None else out
        for (name, item), (_, to) in zip(self._pairs("pushpull", key, value), self._pairs("pushpull", key, outs)):
            total = self._sum("pushpull", name, item).detach().clone()
            all_reduce(total, ReduceOp.SUM, group=self._group)
            _fill(to, total)

    def barrier(self):
        """Waits for all workers."""
        barrier(self._group)

    def _no(self, *args, **kwargs):
        raise NotImplementedError(f"{self.type}: it has only broadcast() and pushpull(), as in MXNet")

    init = push = pull = set_optimizer = set_updater = set_gradient_compression = row_sparse_pull = _no
