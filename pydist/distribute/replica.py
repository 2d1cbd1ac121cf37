"""Replicas of one process: threads that pass a baton, so that one of them runs at a time.

A replica keeps the baton until it ends or comes to a place that all replicas have in common: merge_call, all_reduce,
an optimizer's step. When all have come, the thread that called `run` does the common part once, and the first one
goes on. So there is no race, and every replica may use all cores. A replica that ends while others wait at such a
place, or that comes to another one, is an error on all of them.

Replicas share the parameters. What each has of its own is swapped with the baton: gradients, and the buffers of
modules that were made in the strategy's scope, whose mean goes on after the run.
"""

import threading
import traceback
from contextlib import ExitStack, contextmanager
from functools import reduce
from time import perf_counter_ns

from pydist import _C, _settings
from pydist._grad_mode import no_grad
from pydist.amp import autocast_mode
from pydist.autograd import Function
from pydist.distribute.context import caller, here
from pydist.distribute.reduce import ReduceOp
from pydist.distribute.values import PerReplica, as_tensor, regroup
from pydist.distributed._group import process_group
from pydist.utils._pytree import tree_flatten, tree_map

__all__ = ["ReplicaContext"]

carriers = []  # each, called by the thread of run, gives a function that gives a context manager for a replica's thread


class ReplicaContext:
    """What a function under `strategy.run` may ask: which replica it is, and sums over all of them.

    >>> from pydist import distribute
    >>> distribute.get_replica_context().num_replicas_in_sync
    1
    """

    def __init__(self, strategy, replica_id_in_sync_group, _member=None, _local=0):
        self._strategy, self._id, self._member, self._local = strategy, replica_id_in_sync_group, _member, _local
        self._before = []
        self._of_layers = {}  # what Keras' layers keep during a call
        self._reduced = frozenset()  # the ids of parameters whose gradients backward sums over all replicas by itself

    @property
    def replica_id_in_sync_group(self):
        """The number of this replica among all replicas of all processes."""
        return self._id

    @property
    def num_replicas_in_sync(self):
        """The number of replicas."""
        return self._strategy.num_replicas_in_sync

    @property
    def strategy(self):
        """The strategy."""
        return self._strategy

    @property
    def devices(self):
        """The device of this replica, in a tuple."""
        return (self._strategy._devices[self._local % len(self._strategy._devices)],)

    def __enter__(self):
        self._before.append(here.replica)
        here.replica = self
        return self

    def __exit__(self, *error):
        here.replica = self._before.pop()

    def _check_here(self, op):
        if here.replica is not self and self._strategy.num_replicas_in_sync > 1:
            raise RuntimeError(
                f"{op}: called outside its replica (expected within the function that strategy.run calls)"
            )

    @property
    def _weight(self):
        """How often this replica's mean counts in a step on a global batch; None outside such a step."""
        share = self._strategy._share
        return None if share is None else share.weight(self._local)

    def meet(self, kind, value, merge):
        """What merge([value of each local replica]) returns for this replica: a list with an entry for each. The thread
        of `run` calls it once, when all local replicas have come."""
        self._check_here(kind)
        if self._member is not None:
            return self._member.wait(kind, value, merge)
        before, here.replica = here.replica, None
        here.scopes.append(self._strategy)
        try:
            return merge([value])[0]
        finally:
            here.scopes.pop()
            here.replica = before

    def merge_call(self, merge_fn, args=(), kwargs=None):
        """merge_fn(strategy, *args, **kwargs), called once for all replicas of this process, in the cross-replica
        context. Its arguments are PerReplica where the process has several replicas, and so are parts of its result
        that differ between them."""

        def merge(values):
            given, named = regroup([value[0] for value in values]), regroup([value[1] for value in values])
            result = merge_fn(self._strategy, *given, **named)
            return [select_result(result, i) for i in range(len(values))]

        return self.meet("merge_call", (tuple(args), dict(kwargs or {})), merge)

    def all_reduce(self, reduce_op, value, options=None):
        """The sum or mean over all replicas of tensors or trees of tensors. It has a gradient."""
        op = ReduceOp.from_name(reduce_op)
        leaves, spec = tree_flatten(value)
        leaves = [leaf if isinstance(leaf, _C.Tensor) else as_tensor(leaf, "all_reduce") for leaf in leaves]
        if _C.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves):
            return spec.unflatten(list(_AllReduce.apply(self, op, *leaves)))
        return spec.unflatten(self._sums(op, leaves))

    def _sums(self, op, leaves):
        def merge(values):
            _check_same([[(tuple(leaf.shape), leaf.dtype) for leaf in value] for value in values], "all_reduce")
            totals = self._strategy._sums(list(zip(*values)))
            if op is ReduceOp.MEAN:
                totals = [total / self.num_replicas_in_sync for total in totals]
            return [totals] + [[total.clone() for total in totals] for _ in values[1:]]

        return self.meet("all_reduce", leaves, merge)

    def all_gather(self, value, axis, options=None):
        """The tensors of all replicas, one behind the other along `axis`. Their sizes along it may differ."""
        strategy = self._strategy

        def merge(values):
            gathered = strategy.gather(regroup(values), axis)
            return [gathered] + [tree_map(lambda leaf: leaf.clone(), gathered) for _ in values[1:]]

        return self.meet("all_gather", value, merge)

    def __repr__(self):
        return f"ReplicaContext(replica {self._id} of {self.num_replicas_in_sync})"


class _AllReduce(Function):
    """all_reduce with its gradient, which is the all_reduce of the gradients."""

    @staticmethod
    def forward(ctx, context, op, *leaves):
        ctx.context, ctx.op, ctx.weight = context, op, context._weight
        return tuple(context._sums(op, list(leaves)))

    @staticmethod
    def backward(ctx, *grads):
        """Where a replica's gradients will count by its rows, those of the others count here by theirs."""
        weight = 1.0 if ctx.weight is None else ctx.weight
        sums = ctx.context._sums(ctx.op, [grad * weight for grad in grads] if weight != 1 else list(grads))
        return None, None, *(sums if weight == 1 else [total / weight if weight else total for total in sums])


def select_result(tree, index):
    """The tree of merge_fn's result for local replica `index`."""
    return tree_map(lambda leaf: leaf.values[index] if isinstance(leaf, PerReplica) else leaf, tree)


def _check_same(lists, op):
    for replica, entries in enumerate(lists):
        if entries != lists[0]:
            raise ValueError(f"{op}: replica 0 has {lists[0]}, replica {replica} has {entries} (expected the same)")


# Threads.


class _Stopped(BaseException):
    """Ends a replica after another one has failed."""


class _Member:
    """One replica's thread."""

    def __init__(self, local, body):
        self.local, self._body = local, body
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.request = self.answer = self.error = self.result = None
        self.ended, self.where, self.failure, self.taken = False, "", None, 0  # ns
        self.thread = threading.Thread(target=self._run, name=f"replica {local}", daemon=True)

    def turn(self):
        """Gives the baton; returns when this replica waits or has ended."""
        self.request = None
        if self.thread.ident is None:
            self.thread.start()
        else:
            self._go.release()
        self._back.acquire()

    def _run(self):
        try:
            self.result = self._body(self)
        except _Stopped:
            pass
        except BaseException as error:
            self.error = error
            tail = traceback.extract_tb(error.__traceback__)
            self.where = f"{tail[-1].filename}:{tail[-1].lineno}" if tail else ""
        finally:
            self.ended = True
            self._body = None
            self._back.release()

    def wait(self, kind, value, merge):
        """Hands the baton back until all replicas have come; returns this replica's part of what merge gives."""
        if self.failure is not None:
            raise self.failure
        self.request, self.where = (kind, value, merge), caller()
        self._back.release()
        self._go.acquire()
        if self.failure is not None:
            raise self.failure
        answer, self.answer = self.answer, None
        return answer


class Crew:
    """The replicas of one call of `run` in this process. `bodies`: a function of the ReplicaContext for each. `numbers`: the
    random numbers of logical shards, or None. `private`: what each has of its own (Private, Round)."""

    def __init__(self, strategy, bodies, numbers, *private):
        self._strategy, self._private, self._inherited = strategy, private, Inherited(numbers)
        self.members = [_Member(i, self._as_replica(body)) for i, body in enumerate(bodies)]

    def _as_replica(self, body):
        def run(member):
            replica = self._strategy._mine[member.local]
            context = ReplicaContext(self._strategy, replica, member, member.local)
            with self._inherited.entered(member.local, replica), context:
                process_group._here.group = ReplicaGroup(context)
                try:
                    return body(context)
                finally:
                    process_group._here.group = None

        return run

    def run(self):
        """The results by replica. Raises what the first replica that failed has raised."""
        _C._program_refuse("several replicas share this process")
        try:
            while waiting := self._round():
                self._merge(waiting)
        except BaseException as error:
            self._stop(error)
            for private in self._private:
                private.undo()
            raise
        for private in self._private:
            private.end()
        self._inherited.end()
        if self._strategy._logical is not None and _C.is_grad_enabled():  # a step of a training
            self._strategy._logical.times.extend(member.taken for member in self.members)
        return [member.result for member in self.members]

    def _round(self):
        """Each replica runs on until it waits or ends. The replicas that wait."""
        for member in self.members:
            if not member.ended:
                self._take_turn(member)
                if member.error is not None:
                    raise member.error
        return [member for member in self.members if not member.ended]

    def _take_turn(self, member):
        for private in self._private:
            private.enter(member.local)
        begin = perf_counter_ns()
        member.turn()
        member.taken += perf_counter_ns() - begin
        for private in self._private:
            private.leave(member.local)

    def _merge(self, waiting):
        kinds = {member.request[0] for member in waiting}
        if len(waiting) < len(self.members) or len(kinds) > 1:
            raise RuntimeError(self._difference())
        merge = waiting[0].request[2]
        here.scopes.append(self._strategy)
        try:
            answers = merge([member.request[1] for member in waiting])
        finally:
            here.scopes.pop()
        for member, answer in zip(waiting, answers):
            member.answer = answer

    def _difference(self):
        """The text of the error for replicas that are not at the same place."""
        lines = []
        for member in self.members:
            at = "has returned without it" if member.ended else f"waits in {member.request[0]} at {member.where}"
            lines.append(f"replica {self._strategy._mine[member.local]} {at}")
        return f"strategy.run: the replicas do not meet: {', '.join(lines)} (expected all of them at the same call)"

    def _stop(self, error):
        """Ends the replicas that wait: they raise the error, too."""
        for member in self.members:
            member.failure = error if isinstance(error, Exception) else _Stopped()
            if member.request is not None and not member.ended:
                member.turn()


class Inherited:
    """What belongs to a thread and the caller of `run` has set, for the replicas' threads: gradient mode, autocast,
    default device, strategies, random numbers."""

    def __init__(self, numbers=None):
        if _C.is_inference_mode_enabled():
            raise RuntimeError("strategy.run: called in inference mode (expected no_grad)")
        self._grad, self._device = _C.is_grad_enabled(), _settings._default.device
        self._cast, self._scopes = {**vars(autocast_mode._state)}, list(here.scopes)
        self._more, self._own, self._numbers = [carry() for carry in carriers], None, numbers

    @contextmanager
    def entered(self, local, replica):
        """For the thread of a replica."""
        _C._rng_own(True)  # begins with the caller's state
        _C._rng_shard(replica)
        if self._numbers is not None:
            self._numbers.begin(replica)
        _C.set_grad_enabled(self._grad)
        state, cast = autocast_mode._state, self._cast
        vars(state).update(cast, enabled=dict(cast["enabled"]), dtype=dict(cast["dtype"]))
        autocast_mode._apply()
        if self._device is not None:
            _settings.set_default_device(self._device)
        here.scopes = list(self._scopes)
        with ExitStack() as stack:
            for enter in self._more:
                stack.enter_context(enter())
            yield
            if local == 0:
                self._own = _C.get_rng_state()

    def end(self):
        """For the caller, after the run: its random numbers go on after those of the first replica."""
        _C.set_rng_state(self._own)


class ReplicaGroup:
    """What the default process group is in a replica's thread: its collectives go over all replicas."""

    def __init__(self, context):
        self._context = context
        self.rank, self.size = context.replica_id_in_sync_group, context.num_replicas_in_sync
        self.ranks = tuple(range(self.size))

    def all_reduce(self, tensor, op="sum", async_op=False):
        """The collective in place, for a tensor or a list of them."""
        if async_op:
            raise NotImplementedError("all_reduce: async_op=True in a replica (expected False)")
        group = self._context.strategy._group

        def merge(values):
            if op in ("sum", "avg"):
                totals = self._context.strategy._sums(list(zip(*values)))
            else:
                totals = [_combined(parts, op) for parts in zip(*values)]
                if group is not None:
                    group.all_reduce(totals, op, False)
            for value in values:
                for mine, total in zip(value, totals):
                    mine.detach().copy_(total / self.size if op == "avg" else total)
            return [None] * len(values)

        tensors = tensor if isinstance(tensor, (list, tuple)) else [tensor]
        return self._context.meet("distributed.all_reduce", list(tensors), merge)

    def __getattr__(self, name):
        if name.startswith("_") or not hasattr(_C.Group, name):
            raise AttributeError(f"ReplicaGroup has no attribute '{name}'")
        raise NotImplementedError(
            f"distributed.{name}: replicas that share a process have only all_reduce (expected ranks)"
        )


_COMBINE = {"product": _C.mul, "min": _C.minimum, "max": _C.maximum}


def _combined(parts, op):
    parts = [part.detach() for part in parts]
    if op not in _COMBINE:
        raise NotImplementedError(
            f"distributed.all_reduce: op {op!r} over replicas that share a process (expected sum)"
        )
    return reduce(_COMBINE[op], parts[1:], parts[0].clone())


class Private:
    """What each replica of a process has of its own and finds again when it gets the baton: the gradients of `params`,
    and the values of `buffers`."""

    def __init__(self, params, buffers, count):
        self._params, self._buffers = params, buffers
        self._grads = [[p.grad for p in params]] + [[None] * len(params) for _ in range(count - 1)]
        self._before = [b.data for b in buffers]
        self._values = [[b.data.clone() for b in buffers] for _ in range(count)]

    def enter(self, local):
        """Replica `local` gets the baton."""
        for p, grad in zip(self._params, self._grads[local]):
            p.grad = grad
        for b, value in zip(self._buffers, self._values[local]):
            b.data = value

    def leave(self, local):
        """Replica `local` has given the baton back."""
        self._grads[local] = [p.grad for p in self._params]
        self._values[local] = [b.data for b in self._buffers]
        for p in self._params:
            p.grad = None

    def end(self):
        """After the run: `values` has the replicas' values of each buffer; integers keep the first one's. Gradients are the
        first one's."""
        self.values = list(zip(*self._values))
        with no_grad():
            for b, before, values in zip(self._buffers, self._before, self.values):
                b.data = before
                if not b.is_floating_point():
                    b.copy_(values[0])
        self._set_grads()

    def undo(self):
        """After a failed run: buffers are as before."""
        for b, before in zip(self._buffers, self._before):
            b.data = before
        self._set_grads()

    def _set_grads(self):
        for p, grad in zip(self._params, self._grads[0]):
            p.grad = grad
