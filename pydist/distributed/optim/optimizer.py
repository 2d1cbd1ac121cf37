"""Optimizers of parameters that several workers have: `DistributedOptimizer`, `DistributedSGD` and `DistributedAdam`."""

import contextlib
import threading
import weakref
from itertools import count

import pydist
from pydist import _C
from pydist._notes import note
from pydist.distributed._group import process_group as groups
from pydist.distributed.autograd import _contexts
from pydist.distributed.optim.functional import registered
from pydist.futures import Future
from pydist.optim import Adam, SGD
from pydist.optim.optimizer import Optimizer

__all__ = ["DistributedAdam", "DistributedOptimizer", "DistributedSGD"]


class DistributedOptimizer:
    """One optimizer for parameters of several workers, or of several ranks.

    DistributedOptimizer(optimizer_class, params_rref, *args, **kwargs): params_rref are references
    (`pydist.distributed.rpc.RRef`) to parameters. Each worker that owns some of them makes an
    `optimizer_class(its parameters, *args, **kwargs)`. `step(context_id)` lets all of them step at once, with the
    gradients that distributed autograd has left in that context. Optimizers that share a parameter step one after the
    other.

    DistributedOptimizer(optimizer, process_group=None): a local optimizer of this rank's copies of the parameters.
    `step()` averages their gradients over the ranks, steps, and drops the gradients. Gradients that
    DistributedDataParallel has averaged already are not sent again. Other attributes are those of the optimizer.

    Raises TypeError for parameters that are no references and for a class that is no optimizer, ValueError for an empty
    list. An error of an owner is raised here, with the errors of other owners as notes.

    Cost: one call for each owner in the constructor and in each step; in the second form one all_reduce per dtype.

    >>> import pydist
    >>> from pydist.distributed import autograd, rpc
    >>> rpc.init_rpc("worker0", rank=0, world_size=1)
    >>> weight = pydist.tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = DistributedOptimizer(pydist.optim.SGD, [rpc.RRef(weight)], lr=0.1)
    >>> with autograd.context() as context_id:
    ...     autograd.backward(context_id, [(weight * weight).sum()])
    ...     optimizer.step(context_id)
    >>> weight
    tensor([0.8000, 1.6000], requires_grad=True)
    >>> rpc.shutdown()

    >>> optimizer = DistributedOptimizer(pydist.optim.SGD([weight], lr=0.1))
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight
    tensor([0.7000, 1.5000], requires_grad=True)
    """

    def __init__(self, optimizer_class, params_rref=None, *args, **kwargs):
        self.local = None
        if isinstance(optimizer_class, Optimizer):
            self.local, self._group = optimizer_class, kwargs.pop("process_group", params_rref)
            if args or kwargs:
                raise TypeError(
                    f"DistributedOptimizer: got {len(args) + len(kwargs)} options with an optimizer, which has its own "
                    "(expected DistributedOptimizer(optimizer, process_group))"
                )
            return
        made = registered(optimizer_class) or optimizer_class
        if not (isinstance(made, type) and callable(getattr(made, "step", None))):
            raise TypeError(
                f"DistributedOptimizer: {made!r} is no optimizer (expected a class such as pydist.optim.SGD)"
            )
        by_owner = {}
        for rref in _references(params_rref):
            by_owner.setdefault(rref.owner().id, []).append(rref)
        self.remote_optimizers = _results(
            _at_all({owner: (_make, made, rrefs, args, kwargs) for owner, rrefs in by_owner.items()})
        )

    def step(self, context_id=None):
        """Steps all parameters that have a gradient in the context; in the second form, those that have `.grad`. Returns
        when all owners have. Raises RuntimeError for an unknown context."""
        if self.local is not None:
            return self._step_local(context_id)
        _contexts.worker().get(context_id)
        _results(_at_all({made.owner().id: (_step, made, context_id) for made in self.remote_optimizers}))

    def _step_local(self, context_id):
        if context_id is not None:
            raise TypeError("step: got a context with a local optimizer (expected step(), after backward())")
        average_gradients(self.local, self._group)
        self.local.step()
        self.local.zero_grad()

    def __getattr__(self, name):
        local = self.__dict__.get("local")
        if local is None or name.startswith("__"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(local, name)


_SHORT = """{name}(params, *args, process_group=None, **kwargs)

    DistributedOptimizer of pydist.optim.{rule} with these options. params: references to parameters, or parameters of this
    rank, whose gradients are then averaged over the process group.

    >>> import pydist
    >>> weight = pydist.ones(2, requires_grad=True)
    >>> optimizer = {name}([weight], lr=0.5)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight
    tensor([0.5000, 0.5000], requires_grad=True)
    """


def _short(made):
    """The class for one kind of optimizer, whose parameters say which form is meant."""
    name = f"Distributed{made.__name__}"

    def __init__(self, params, *args, process_group=None, **kwargs):
        params = list(params)
        if params and not isinstance(params[0], (_C.Tensor, dict, tuple)):
            if process_group is not None:
                raise TypeError(f"{name}: got a process group with references to parameters (expected None)")
            DistributedOptimizer.__init__(self, made, params, *args, **kwargs)
        else:
            DistributedOptimizer.__init__(self, made(params, *args, **kwargs), process_group)

    doc = _SHORT.format(name=name, rule=made.__name__)
    return type(name, (DistributedOptimizer,), {"__init__": __init__, "__doc__": doc, "__module__": __name__})


DistributedSGD, DistributedAdam = _short(SGD), _short(Adam)


def average_gradients(optimizer, group=None):
    """Replaces the `.grad` of the optimizer's parameters by their mean over the ranks, except those that
    DistributedDataParallel looks after. All gradients of one dtype and device travel together."""
    group, together = groups.current(group), {}
    if group.size == 1:
        return
    for param in (p for options in optimizer.param_groups for p in options["params"]):
        if param.grad is not None and _C._grad_owner(param) is None:
            together.setdefault((param.grad.dtype, param.grad.device), []).append(param.grad)
    for grads in together.values():
        flat = pydist.cat([grad.reshape(-1) for grad in grads])
        group.all_reduce(flat, "avg")
        at = 0
        for grad in grads:
            grad.copy_(flat[at : at + grad.numel()].view(grad.shape))
            at += grad.numel()


def _references(params_rref):
    from pydist.distributed.rpc import RRef

    rrefs = list(params_rref) if hasattr(params_rref, "__iter__") else [params_rref]
    if not rrefs:
        raise ValueError("DistributedOptimizer got an empty parameter list (expected at least one RRef)")
    for i, rref in enumerate(rrefs):
        if not isinstance(rref, RRef):
            raise TypeError(
                f"DistributedOptimizer: parameter {i} is {type(rref).__name__} (expected RRef: rpc.RRef(parameter) makes "
                "one; for parameters of this process, DistributedOptimizer(optimizer))"
            )
    return rrefs


def _at_all(calls):
    """The futures of {worker: (function, *args)}, all at once. This worker's is called in this thread meanwhile."""
    worker = _contexts.worker()
    futures = [worker.agent.request(rank, *call) for rank, call in calls.items() if rank != worker.id]
    if worker.id in calls:
        function, *args = calls[worker.id]
        futures.append(Future())
        try:
            futures[-1].set_result(function(*args))
        except Exception as error:
            futures[-1].set_exception(error)
    return futures


def _results(futures):
    """The results of all. Raises the first error, with the others as notes."""
    results, errors = [], []
    for future in futures:
        try:
            results.append(future.wait())
        except Exception as error:
            errors.append(error)
    for error in errors[1:]:
        note(errors[0], f"also: {type(error).__name__}: {error}")
    if errors:
        raise errors[0]
    return results


# ---- at the owner


class _LocalOptimizer:
    """The optimizer of one DistributedOptimizer at one owner."""

    def __init__(self, optimizer_class, rrefs, args, kwargs):
        self.params = [rref.local_value() for rref in rrefs]
        for i, param in enumerate(self.params):
            if not isinstance(param, _C.Tensor):
                raise TypeError(f"DistributedOptimizer: parameter {i} of this worker is {type(param).__name__} (expected a "
                                "reference to a tensor)")  # fmt: skip
        self.optim = optimizer_class(self.params, *args, **kwargs)
        self._locks = _locks_of(self.params)

    def step(self, context_id):
        """A step with the gradients that the context has here; `.grad` stays as it is."""
        context = _contexts.worker().contexts.get(context_id)
        grads = {} if context is None else context.grads  # no call has carried it here: nothing depends on this worker
        grads = [grads.get(param) for param in self.params]
        with contextlib.ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            if not isinstance(self.optim, Optimizer):
                return self.optim.step(grads)
            kept = [param.grad for param in self.params]
            try:
                for param, grad in zip(self.params, grads):
                    param.grad = grad
                self.optim.step()
            finally:
                for param, grad in zip(self.params, kept):
                    param.grad = grad


def _make(optimizer_class, rrefs, args, kwargs):
    from pydist.distributed.rpc import RRef

    return RRef(_LocalOptimizer(optimizer_class, rrefs, args, kwargs))


def _step(made, context_id):
    made.local_value().step(context_id)


class _Lock:
    """A lock with a number, so that those who need several take them in one order."""

    _numbers = count()

    def __init__(self):
        self._lock, self.number = threading.Lock(), next(self._numbers)

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


_locks = {}  # id of a parameter -> (weak reference to it, the lock of the first optimizer that had it)
_locking = threading.Lock()


def _locks_of(params):
    """The locks for a set of parameters, in order: optimizers that share a parameter share a lock."""
    new, found = _Lock(), set()
    with _locking:
        for param in params:
            known = _locks.get(id(param))
            if known is None:
                known = _locks[id(param)] = weakref.ref(param, lambda _, key=id(param): _locks.pop(key, None)), new
            found.add(known[1])
    return sorted(found, key=lambda lock: lock.number)
