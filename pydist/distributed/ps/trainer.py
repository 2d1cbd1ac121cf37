"""Trainer: parameters whose gradients go through a KVStore, with gluon's names."""

import pydist
from pydist import _C
from pydist.distributed.ps import _rules
from pydist.distributed.ps.kvstore import _ReducedStore, create
from pydist.optim import Optimizer


def _named(params):
    """[(name, parameter)] of a dict, of a module's named_parameters(), of parameters, or of anything with collect_params().

    Parameters that need no gradient are left out.
    """
    if hasattr(params, "collect_params"):
        params = params.collect_params()
    if hasattr(params, "items"):
        params = params.items()
    rows = []
    for i, item in enumerate(params):
        name, param = item if isinstance(item, tuple) else (f"param{i}", item)
        param = param.data() if hasattr(param, "list_data") else param
        if not isinstance(param, _C.Tensor):
            raise TypeError(f"Trainer: parameter {name!r} is {type(param).__name__} (expected a tensor)")
        if param.requires_grad:
            rows.append((str(name), param))
    if not rows:
        raise ValueError("Trainer: no parameter needs a gradient (expected at least one)")
    return rows


class Trainer:
    """Steps parameters by an optimizer that runs where a KVStore keeps them.

    params: parameters, named parameters or a dict of them. optimizer: MXNet's name with `optimizer_params`, or a pydist
    optimizer, whose groups' options are taken. kvstore: a type for create() or a KVStore; None or "device" is this process
    alone. update_on_kvstore=False: the store only sums, each worker steps its own copy. max_staleness, reduce: as for
    create(). In "dist_sync" and "dist_hogwild" stores the parameters become views of the memory that all workers share, so a
    pull copies nothing.

    Raises TypeError and ValueError for what is no parameter, and for options that the optimizer lacks.

    >>> import pydist
    >>> from pydist import nn
    >>> from pydist.distributed import ps
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> trainer = ps.Trainer(model.named_parameters(), "sgd", {"learning_rate": 0.5})
    >>> model(pydist.tensor([[1.0, 2.0]])).sum().backward()
    >>> trainer.step(batch_size=1)
    >>> model.weight.tolist()
    [[0.5, 0.0]]
    """

    def __init__(
        self,
        params,
        optimizer,
        optimizer_params=None,
        kvstore="device",
        compression_params=None,
        update_on_kvstore=None,
        *,
        max_staleness=None,
        reduce=None,
    ):
        rows = _named(params)
        self._names, self._params = [name for name, _ in rows], [param for _, param in rows]
        options = dict(optimizer_params or {})
        if isinstance(optimizer, Optimizer):
            places = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
            groups = {name: places.get(id(param), 0) for name, param in rows}
            self._rule = _rules.Grouped(optimizer, groups, options.pop("multi_precision", False))
            if options:
                raise ValueError(
                    f"Trainer: options {sorted(options)} beside an optimizer (expected them in its groups)"
                )
        else:
            self._rule = _rules.Named(optimizer, **options)
        self._scale, self._updates = self._rule.rescale_grad, 0
        self._store = self._open(kvstore, max_staleness, reduce)
        self._on_store = update_on_kvstore is not False and not isinstance(self._store, _ReducedStore)
        self._place(compression_params)

    def _open(self, kvstore, max_staleness, reduce):
        if not isinstance(kvstore, (str, type(None))):
            if max_staleness is not None or reduce is not None:
                raise ValueError("Trainer: max_staleness or reduce beside a KVStore (expected them in create())")
            return kvstore
        options = {} if max_staleness is None else {"max_staleness": max_staleness}
        return create(kvstore or "device", **options, **({"reduce": reduce} if reduce else {}))

    def _place(self, compression_params):
        """Gives every worker rank 0's parameters, and puts them where they are stepped."""
        values, self._own = [p.detach() for p in self._params], None
        if isinstance(self._store, _ReducedStore):
            self._store.broadcast(self._names, values, values)
        else:
            if compression_params:
                self._store.set_gradient_compression(compression_params)
            if self._on_store:
                self._store.set_optimizer(self._rule)
            self._store.init(self._names, values)
            self._store.pull(self._names, values)
        if not self._on_store:  # a store of this process alone steps what each worker has
            self._own = create("local")
            self._own.set_optimizer(self._rule)
            self._own.init(self._names, values)
            return
        self._numbers = [self._store._of("Trainer", name) for name in self._names]
        self._shares, self._nothing = self._store.mode != "async", [None] * len(self._names)
        for name, param in zip(self._names, self._params) if self._shares else ():
            param.data = self._store.value(name)

    def _pull(self, store):
        store.pull(self._names, [p.detach() for p in self._params])

    @property
    def kvstore(self):
        """The store."""
        return self._store

    @property
    def optimizer(self):
        """What the trainer was given, as the store has it."""
        return self._rule

    @property
    def learning_rate(self):
        """That of the first parameter."""
        return (self._own or self._store).learning_rate(self._names[0])

    def set_learning_rate(self, lr):
        """The learning rate from the next step on, on every worker."""
        (self._own or self._store).set_learning_rate(lr)

    def zero_grad(self):
        """Drops the gradients."""
        for param in self._params:
            param.grad = None

    def _gradients(self, ignore_stale_grad):
        grads = [param.grad for param in self._params]
        for i, grad in enumerate(grads):
            if grad is None and not ignore_stale_grad:
                raise ValueError(
                    f"Trainer.step: parameter {self._names[i]!r} has no gradient (expected a backward() before, or "
                    "ignore_stale_grad=True, which takes zeros)"
                )
            if grad is None:
                grads[i] = pydist.zeros_like(self._params[i])
        return grads

    def step(self, batch_size, ignore_stale_grad=False):
        """Pushes all gradients, times rescale_grad / batch_size, and pulls all values; then counts one clock. batch_size: as
        in gluon, the number of rows that the gradients are sums over; 1 for gradients that are means."""
        if not batch_size > 0:
            raise ValueError(f"Trainer.step: batch_size is {batch_size} (expected more than 0)")
        if not self._on_store:
            self.allreduce_grads(ignore_stale_grad)
            self.update(batch_size, ignore_stale_grad)
            return
        self._schedule(self._store)
        self._rule.rescale_grad = self._scale / batch_size
        store = self._store
        store._push(self._names, self._numbers, self._gradients(ignore_stale_grad))
        store._c.pull(self._numbers, self._nothing if self._shares else [p.detach() for p in self._params], False)
        store._c.clock(1)

    def _schedule(self, store):
        self._updates += 1
        if self._rule.lr_scheduler is not None:
            store.set_learning_rate(self._rule.lr_scheduler(self._updates))

    def allreduce_grads(self, ignore_stale_grad=False):
        """Replaces the gradients by their sums over workers; only with update_on_kvstore=False."""
        if self._on_store:
            raise RuntimeError("Trainer.allreduce_grads: the store steps (expected update_on_kvstore=False)")
        grads = self._gradients(ignore_stale_grad)
        self._store.pushpull(self._names, grads, grads)
        for param, grad in zip(self._params, grads):
            param.grad = grad

    def update(self, batch_size, ignore_stale_grad=False):
        """This worker's own step; only with update_on_kvstore=False."""
        if self._on_store:
            raise RuntimeError("Trainer.update: the store steps (expected update_on_kvstore=False)")
        self._schedule(self._own)
        self._rule.rescale_grad = self._scale / batch_size
        self._own.push(self._names, self._gradients(ignore_stale_grad))
        self._pull(self._own)

    def save_states(self, fname):
        """Writes what the optimizer knows; see KVStore.save_optimizer_states."""
        (self._own or self._store).save_optimizer_states(fname)

    def load_states(self, fname):
        """Reads it again."""
        (self._own or self._store).load_optimizer_states(fname)
