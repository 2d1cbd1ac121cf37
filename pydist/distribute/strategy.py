"""Strategy: who the replicas are, and what runs on all of them."""

import contextlib
import re
import weakref

from pydist import _C, _replicas
from pydist._grad_mode import no_grad
from pydist.distribute.cluster_resolver import SimpleClusterResolver
from pydist.distribute.context import caller, here
from pydist.distribute.logical import Numbers
from pydist.distribute.made import Made
from pydist.distribute.options import ValueContext
from pydist.distribute.reduce import ReduceOp, add, gather_rows, packs
from pydist.distribute.replica import Crew, Private, ReplicaContext
from pydist.distribute.survival import Survival, survives
from pydist.distribute.values import DistributedValues, PerReplica, as_tensor, regroup, select
from pydist.distribute.variables import Round, Variables
from pydist.distributed._group import process_group
from pydist.distributed._ops.agreement import check_agreement
from pydist.optim.optimizer import Optimizer
from pydist.utils._pytree import tree_map

__all__ = ["OneDeviceStrategy", "Strategy", "StrategyExtended"]


def device_of(name, strategy):
    """The device of a name such as "CPU:0", "/gpu:1" or "cuda:0", as "cpu:0" or "cuda:1". Raises ValueError for one
    that is not there."""
    found = re.fullmatch(r"(?:/job:\w+)?(?:/replica:\d+)?(?:/task:\d+)?/?(?:device:)?(cpu|gpu|cuda|tpu|xpu)(?::(\d+))?",
                         str(name).lower())  # fmt: skip
    if not found:
        raise ValueError(f"{strategy}: device is {name!r} (expected names such as 'CPU:0' or 'GPU:0')")
    kind, index = {"gpu": "cuda"}.get(found[1], found[1]), int(found[2] or 0)
    if kind in ("tpu", "xpu"):
        raise ValueError(f"{strategy}: device {name!r}: there is no {kind.upper()} backend (expected a CPU or a GPU)")
    count = 0 if _C.pretended_cuda() else _C.cuda_count()
    if kind == "cuda" and index >= count:
        why = f": {_C.cuda_why()}" if not count else ""
        raise ValueError(f"{strategy}: device {name!r} is not there{why} (expected one of {count} GPUs or a CPU)")
    return f"{kind}:{index}"


def joined_group():
    """The default process group, if this process is one of several ranks; None in a world of one."""
    if getattr(process_group._here, "group", None) is None and process_group.get_world_size() == 1:
        return None
    group = process_group.current()
    return group if group.size > 1 else None


class Strategy:
    """Runs functions on replicas, and models that are trained on all of them together. Its subclasses say who the
    replicas are.

    >>> from pydist import distribute
    >>> strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.run(lambda: distribute.get_replica_context().replica_id_in_sync_group)
    PerReplica(0, 1)
    """

    _is_set = False
    _bytes_per_pack = 0  # of sums over ranks, 0: no limit

    def __init__(self, devices=("cpu:0",), group=None, resolver=None, logical=None):
        name = type(self).__name__
        self._devices = tuple(device_of(device, name) for device in devices)
        if len(set(self._devices)) < len(self._devices):
            raise ValueError(f"{name}: devices are {list(devices)} (expected each once)")
        if len(self._devices) > 1 and any(device.startswith("cuda") for device in self._devices):
            raise NotImplementedError(
                f"{name}: several GPUs in one process: start a rank for each with `python -m pydist.run "
                "--nproc-per-node "
                f"{len(self._devices)}`"
            )
        self._resolver = resolver
        self._logical = logical  # None: each device of each process is a replica
        self._join(group)
        self._made, self._variables_made = Made(), Variables()  # modules and optimizers; variables
        self._known = 0  # how many of both have rank 0's values
        self._share = None  # of the batch on which the replicas make a step
        self._survival = Survival(self) if group is not None and logical is None and survives() else None
        self._followers = weakref.WeakSet()  # objects with a method `rejoin`, for a new group
        self.extended = StrategyExtended(self)

    def _join(self, group):
        """Makes the ranks of `group` the replicas' processes."""
        world, rank = (1, 0) if group is None else (group.size, group.rank)
        self._group = group if world > 1 else None
        local = len(self._devices)
        self._count = world * local
        if self._logical is not None:
            self._logical.check(type(self).__name__, self._count)
            self._count = self._logical.shards
        self._next = (tuple(range(rank * local, (rank + 1) * local)), None)  # who has which rows of the next batch
        self._deal_out()
        self._deal = None  # that of the run under way, or of the last one
        self._take(self._next)
        for follower in getattr(self, "_followers", ()):
            follower.rejoin()

    def _deal_out(self):
        if self._logical is not None:
            self._next = self._logical.deal(self._group)

    def deal_anew(self, now=False):
        """Before a batch is divided, on all ranks: logical shards may go to faster ranks, in every 20th batch, or now."""
        if self._logical is not None and self._group is not None and self._logical.measure(now):
            self._deal_out()

    def _take(self, deal):
        """From now on these are the replicas of this process: their numbers, and the Blocks of logical shards or None."""
        if deal is self._deal:
            return
        self._deal = deal
        self._mine, self._blocks = deal
        self._context = ReplicaContext(self, self._mine[0])
        # Each rank has one replica, in their order: the ranks' sums are the sums over all replicas.
        self._is_single = self._count == (1 if self._group is None else self._group.size)
        if self._is_single and self._logical is not None:
            table = () if self._blocks is None else self._blocks.table
            self._is_single = not self._logical.measured and all(i == row[2] for i, row in enumerate(table))
            self._blocks = None if self._is_single else self._blocks

    # Scope.

    @contextlib.contextmanager
    def scope(self):
        """Modules and optimizers that are made in this block belong to the strategy. On several ranks they get rank 0's
        values before the first step."""
        if here.replica is not None and self._count > 1:
            raise RuntimeError("scope: called in a replica (expected outside the function that strategy.run calls)")
        if here.scopes and here.scopes[-1] is not self:
            raise RuntimeError("scope: called in the scope of another strategy (expected one at a time)")
        self._enter_scope()
        here.scopes.append(self)
        before, here.replica = here.replica, None
        try:
            with self._on_device():
                yield self
        finally:
            here.replica = before
            here.scopes.pop()
            self._leave_scope()

    def _enter_scope(self):
        pass

    def _leave_scope(self):
        self._is_set = False

    def _on_device(self):
        kind = self._devices[0]
        return contextlib.nullcontext() if kind.startswith("cpu") else _C.device(kind)

    def _adopt(self, thing):
        self._made.add(thing)

    def _variables(self, things):
        """(parameters, buffers) of modules and optimizers, each once."""
        params, buffers = {}, {}
        for thing in things:
            if isinstance(thing, Optimizer):
                params.update((id(p), p) for group in thing.param_groups for p in group["params"])
            else:
                params.update((id(p), p) for p in thing._parameters.values() if p is not None)
                buffers.update((id(b), b) for b in thing._buffers.values() if b is not None)
        return list(params.values()), list(buffers.values())

    def _synchronize(self, again=False):
        """Gives what was made since the last call rank 0's values; again: everything. Returns (parameters, buffers) of
        all."""
        made = self._made.count + self._variables_made.count
        is_due = again or made > self._known
        if self._group is None or not is_due:
            params, buffers = self._variables(self._made.all())
        else:
            things, variables = self._made.agree(self._group), self._variables_made.agree(self._group)
            params, buffers = self._variables(things)
            variables = [v for v in variables if v._value is not None]
            values = {id(v): v for v in (*params, *buffers, *(v._value for v in variables))}
            names = {id(v._value): f"{v.path} " for v in variables}
            lines = [f"{names.get(i, '')}of shape {tuple(v.shape)}, {v.dtype}" for i, v in values.items()]
            check_agreement(f"{type(self).__name__}: variable", lines, self._group)
            values = [v.detach() for v in values.values()]
            for positions in packs(values):
                self._group.broadcast([values[i] for i in positions], 0, False)
        if is_due:
            self._variables_made.begin()
        self._known = made
        return params, buffers

    # Running.

    def run(self, fn, args=(), kwargs=None, options=None):
        """Calls fn(*args, **kwargs) on each replica; a PerReplica in the arguments gives each its own value.

        Returns the results as PerReplica where this process has several replicas, else the result itself. If a
        replica raises, or does not come to a merge that the others have come to, all of them get the error.
        """
        kwargs = kwargs or {}
        if self._logical is not None:
            self._take(self._next)
        self._check_values((args, kwargs))

        def body(i):
            return lambda: fn(*select(tuple(args), i), **select(kwargs, i))

        return regroup(self._run([body(i) for i in range(len(self._mine))]))

    def _run(self, bodies, share=None):
        """The results of a function for each local replica. `share`: they make a step on a global batch, in which the mean
        over a replica's rows counts by their number."""
        if here.replica is not None and here.replica.strategy is not default():
            raise RuntimeError(
                "strategy.run: called in a replica (expected outside the function that strategy.run calls)"
            )
        if share is not None and share.deal is not None:
            self._take(share.deal)
        params, buffers = [], []
        if self._count > 1 and share is None:
            params, buffers = self._synchronize()
        elif self._count > 1:
            params, buffers = self._variables(self._made.all())
        self._share = share
        try:
            with contextlib.nullcontext() if self._logical is None else Numbers() as numbers:
                if not self._is_single:
                    return self._run_crew(bodies, params, buffers, share, numbers)
                if numbers is not None:
                    numbers.begin(self._mine[0])
                return [self._run_alone(bodies[0], buffers, share)]
        finally:
            self._share = None

    def _run_crew(self, bodies, params, buffers, share, numbers):
        """The results of the replicas of this process."""
        self._round = Round(self, share)
        params += [v._value for v in self._variables_made.with_values() if v.trainable]
        bodies = [lambda context, body=body: body() for body in bodies]
        private = Private(params, buffers, len(bodies))
        results = Crew(self, bodies, numbers, private, self._round).run()
        self._merge_buffers(buffers, private.values)
        return results

    def _run_alone(self, body, buffers, share):
        """The result of the only replica of this process."""
        versions, changes = [b._version for b in buffers], Round(self, share) if self._count > 1 else None
        before, here.replica = here.replica, self._context
        try:
            try:
                result = body()
            finally:
                here.replica = before
            if changes is not None:
                changes.end()
            self._merge_buffers([b for b, version in zip(buffers, versions) if b._version != version])
            return result
        except BaseException:
            if changes is not None:
                changes.undo()
            raise

    def _check_values(self, tree):
        def look(leaf):
            if isinstance(leaf, DistributedValues) and len(leaf.values) != len(self._mine):
                raise ValueError(
                    f"strategy.run: got {len(leaf.values)} values by replica (expected {len(self._mine)}, as "
                    "this process has replicas)"
                )

        tree_map(look, tree)

    def _merge_buffers(self, buffers, values=None):
        """Buffers that a run has changed get the mean over all replicas; integers keep the first replica's value.
        `values`: a list by local replica for each buffer; None: the buffers themselves."""
        floats = [i for i, b in enumerate(buffers) if b.is_floating_point()]
        parts = [[buffers[i]] if values is None else values[i] for i in floats]
        with no_grad():
            for i, total in zip(floats, self._sums(parts) if self._count > 1 else ()):
                buffers[i].detach().copy_(total / self._count)

    def _sums(self, parts_of):
        """[the sum over all replicas] of tensors that are given as one list for each: its parts on the local
        replicas. All ranks get the same bits."""
        return add(parts_of, self._group, self._blocks, self._bytes_per_pack)

    # Values.

    def experimental_local_results(self, value):
        """The values of this process's replicas, as a tuple."""
        return value.values if isinstance(value, DistributedValues) else (value,) * len(self._mine)

    def _parts(self, value, op):
        return [as_tensor(part, op) for part in self.experimental_local_results(value)]

    def reduce(self, reduce_op, value, axis=None):
        """The sum or mean over all replicas of a value of each, or of a tree of such values. All ranks get the
        same bits.

        With an `axis`, elements along it are added, too, and MEAN divides by how many there were in all: the exact
        mean over the rows of a batch, however they were distributed.
        """
        op = ReduceOp.from_name(reduce_op)
        self._check_cross("reduce")
        return tree_map(lambda leaf: self._reduced(op, leaf, axis), value)

    def _reduced(self, op, value, axis):
        parts = self._parts(value, "reduce")
        if axis is None:
            total = self._sums([parts])[0]
            return total / self._count if op is ReduceOp.MEAN else total
        if parts[0].dim() == 0:
            raise ValueError(f"reduce: axis={axis} of a value without dimensions (expected axis=None)")
        rows = sum(part.shape[axis] for part in parts)
        if self._group is not None:
            counted = _C.tensor([rows], dtype=_C.int64)
            self._group.all_reduce(counted, "sum", False)
            rows = counted.item()
        total = self._sums([[part.sum(axis) for part in parts]])[0]
        return total / rows if op is ReduceOp.MEAN else total

    def gather(self, value, axis):
        """The tensors of all replicas, one behind the other along `axis`, on every rank. Their sizes along it may
        differ."""
        self._check_cross("gather")
        return tree_map(lambda leaf: self._gathered(leaf, axis), value)

    def _gathered(self, value, axis):
        parts = self._parts(value, "gather")
        if parts[0].dim() == 0:
            raise ValueError("gather: got a value without dimensions (expected at least one)")
        with no_grad():
            own = _C.cat(parts, axis).movedim(axis, 0).contiguous()
            if self._group is None:
                return own.movedim(0, axis)
            sizes = [None] * self._group.size
            from pydist.distributed._ops.objects import all_gather_object

            rows = [part.shape[axis] for part in parts]
            all_gather_object(sizes, (tuple(own.shape[1:]), str(own.dtype), rows, self._mine), self._group)
            for rank, (shape, dtype, _, _) in enumerate(sizes):
                if (shape, dtype) != sizes[0][:2]:
                    raise ValueError(
                        f"gather: rank 0 has rows of {sizes[0][0]}, {sizes[0][1]}, rank {rank} of {shape}, {dtype} "
                        "(expected the same)"
                    )
            found = gather_rows(self._group, own, [sum(rows) for _, _, rows, _ in sizes])
            return self._in_order(found, [rows for _, _, rows, _ in sizes], [mine for *_, mine in sizes]).movedim(
                0, axis
            )

    @staticmethod
    def _in_order(found, rows_of, replicas_of):
        """The rows that ranks have given, which are those of their replicas, in the order of the replicas."""
        replicas = [replica for mine in replicas_of for replica in mine]
        if replicas == sorted(replicas):
            return found
        parts = found.split([n for rows in rows_of for n in rows])
        return _C.cat([part for _, part in sorted(zip(replicas, parts), key=lambda pair: pair[0])])

    def _check_cross(self, op):
        if here.replica is not None and self._count > 1 and here.replica.strategy is self:
            raise RuntimeError(
                f"{op}: called in a replica (expected outside strategy.run, or ReplicaContext.all_reduce)"
            )

    def experimental_distribute_values_from_function(self, value_fn):
        """The values that value_fn(ValueContext) gives for this process's replicas."""
        values = [value_fn(ValueContext(replica, self._count)) for replica in self._mine]
        return values[0] if len(values) == 1 else PerReplica(values)

    # Data.

    def experimental_distribute_dataset(self, dataset, options=None):
        """A DistributedDataset: each batch of `dataset`, an iterable of (trees of) tensors, is a global one, whose
        rows are divided among all replicas."""
        from pydist.distribute.input import DistributedDataset

        return DistributedDataset(self, dataset, options)

    def distribute_datasets_from_function(self, dataset_fn, options=None):
        """A DistributedDataset of what dataset_fn(InputContext) gives on each rank: batches of one replica."""
        from pydist.distribute.input import DistributedDatasetsFromFunction

        return DistributedDatasetsFromFunction(self, dataset_fn, options)

    @property
    def num_replicas_in_sync(self):
        """The number of replicas of all processes."""
        return self._count

    @property
    def cluster_resolver(self):
        """The resolver, or None."""
        return self._resolver

    def __repr__(self):
        return f"{type(self).__name__}(replica {self._mine[0]} of {self._count}, {', '.join(self._devices)})"


def default():
    """The strategy without a scope."""
    from pydist.distribute.context import default_strategy

    return default_strategy()


class _DefaultStrategy(Strategy):
    """One replica, outside all scopes."""


class OneDeviceStrategy(Strategy):
    """One replica on `device`."""

    def __init__(self, device):
        super().__init__([device])


class StrategyExtended:
    """`strategy.extended`: what libraries use."""

    def __init__(self, strategy):
        self._of = weakref.ref(strategy)

    @property
    def _strategy(self):
        return self._of()

    @property
    def worker_devices(self):
        """The devices of this process's replicas."""
        return self._strategy._devices

    @property
    def parameter_devices(self):
        """The devices that hold parameters."""
        return self._strategy._devices[:1]

    def update(self, var, fn, args=(), kwargs=None, group=True):
        """fn(var, *args, **kwargs), once: all replicas of a process share the variable. For merge_call."""
        if here.replica is not None and self._strategy._count > 1:
            raise RuntimeError("extended.update: called in a replica (expected in merge_call)")
        given = (args, kwargs or {})

        def look(leaf):
            if isinstance(leaf, PerReplica):
                raise ValueError("extended.update: an argument has a value for each replica (expected a reduced one)")

        tree_map(look, given)
        with no_grad():
            result = fn(var, *args, **(kwargs or {}))
        return result if group else [result]

    def reduce_to(self, reduce_op, value, destinations=None, options=None):
        """The sum or mean over all replicas."""
        return self._strategy.reduce(reduce_op, value)

    def batch_reduce_to(self, reduce_op, value_destination_pairs, options=None):
        """reduce_to for each (value, destination), with one collective for each dtype and `bytes_per_pack`."""
        strategy, op = self._strategy, ReduceOp.from_name(reduce_op)
        totals = strategy._sums([strategy._parts(value, "batch_reduce_to") for value, _ in value_destination_pairs])
        return [total / strategy._count if op is ReduceOp.MEAN else total for total in totals]

    def colocate_vars_with(self, colocate_with_variable):
        """A scope for variables beside another one: nothing to do."""
        return contextlib.nullcontext()

    def variable_created_in_scope(self, v):
        """Whether a parameter or buffer belongs to a module or an optimizer that was made in the strategy's scope."""
        params, buffers = self._strategy._variables(self._strategy._made.all())
        return any(v is own for own in (*params, *buffers))


# pydist's own modules and optimizers.


def _made(thing):
    if here.replica is not None and here.replica.num_replicas_in_sync > 1 and isinstance(thing, Optimizer):
        raise RuntimeError(
            f"{type(thing).__name__} was made in a replica, at {caller()} (expected in strategy.scope(), "
            "outside strategy.run)"
        )
    if here.scopes and not getattr(
        thing, "_has_variables", False
    ):  # Keras' layers: their variables are there by themselves
        here.scopes[-1]._adopt(thing)


def _step(optimizer, plain, args, kwargs):
    skip = kwargs.pop("skip_gradients_aggregation", False)
    replica = here.replica
    if replica is None or replica.num_replicas_in_sync == 1:
        return plain(optimizer, *args, **kwargs)
    strategy, name = replica.strategy, type(optimizer).__name__
    if optimizer not in strategy._made:
        raise ValueError(f"{name}.step: {name} was made outside strategy.scope() (expected inside, as its model)")
    if args or kwargs:
        raise ValueError(f"{name}.step: got a closure in a replica (expected none)")
    params = [p for group in optimizer.param_groups for p in group["params"]]

    def merge(grads):
        totals = grads[0] if skip else reduce_grads(params, grads, strategy, reduction_of(optimizer))
        for p, total in zip(params, totals):
            p.grad = total
        plain(optimizer)
        if len(grads) > 1:
            for p in params:
                p.grad = None
        return [None] * len(grads)

    grads = [p.grad for p in params]
    if replica._member is not None:
        for p in params:
            p.grad = None
    return replica.meet(f"{name}.step", grads, merge)


def reduction_of(optimizer):
    """SUM, or MEAN for an optimizer of CrossReplicaOptimizer."""
    return getattr(optimizer, "_replica_reduction", None) or ReduceOp.SUM


def reduce_grads(params, grads, strategy, op=ReduceOp.SUM):
    """The sum or mean over all replicas of gradients, given as a list for each local replica. A gradient that no replica
    has is None. In a step on a global batch it is the mean over its rows."""
    share = getattr(strategy, "_share", None)
    weights = [1.0] * len(grads) if share is None else [share.weight(local) for local in range(len(grads))]
    with no_grad():
        there = [[float(part is not None) for part in parts] for parts in grads]
        parts_of = [
            [_C.zeros_like(p) if part is None else _weighted(part.detach(), w) for part, w in zip(parts, weights)]
            for p, *parts in zip(params, *grads)
        ]
        *totals, there = strategy._sums([*parts_of, [_C.tensor(flags, dtype=_C.float32) for flags in there]])
        there = there.tolist()
        if op is ReduceOp.MEAN or share is not None:
            totals = [total.mul_(1 / strategy._count) for total in totals]
    return [total if has else None for total, has in zip(totals, there)]


def _weighted(part, weight):
    if weight == 1:
        return part
    return part * weight if weight else _C.zeros_like(part)


_replicas.made, _replicas.step = _made, _step


def local_resolver():
    """The resolver of a process without a cluster, or of a rank that a launcher has started: its workers have names
    in the place of addresses."""
    rank, world = process_group.get_rank(), process_group.get_world_size()
    if world == 1:
        return SimpleClusterResolver({})
    return SimpleClusterResolver({"worker": [f"rank{r}.launcher:{1 + r}" for r in range(world)]}, task_type="worker",
                                 task_id=rank)  # fmt: skip
