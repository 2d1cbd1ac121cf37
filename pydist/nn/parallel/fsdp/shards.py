"""Sharded models over logical shards (docs/guide/shards.md): the gradient of a step is the mean over the shards of all
ranks, with the bits of DistributedDataParallel over them.

Backward only adds up the gradients of wholes, on this rank. When a shard has ended they are leaves, which are added in
the order of the tree, as csrc/parallel/stack.h does. When the last one has ended the ranks reduce this rank's sums, in
the same order."""

import weakref

from pydist import _C
from pydist.autograd import no_grad
from pydist.distributed import member
from pydist.distributed._group import numerics
from pydist.distributed._group.logical import current as logical_now
from pydist.distributed._group.process_group import current
from pydist.distributed._ops.agreement import check_agreement
from pydist.nn.modules.sync_batchnorm import SyncBatchNorm
from pydist.nn.parallel._step_buffers import StepBuffers, take_from

_OP = "fully_shard"


class RunsShards:
    """The sharded modules of the default group, a member (distributed/member.py) that runs logical shards."""

    runs_shards = True

    def __init__(self, logical, group):
        self._shards, self._group = logical.shards, group
        self._modules = []  # weak references, in the order of fully_shard
        self._at = None  # the shard under way, of this rank's; None: no step is
        self._buffers = StepBuffers()
        check_agreement(f"{_OP}: the ranks' arithmetic", [f"{n}: {v}" for n, v in numerics.fingerprint()], group)
        member.register(self, group)

    def add(self, modules, state):
        self._modules = [ref for ref in self._modules if ref() is not None] + [weakref.ref(one) for one in modules]
        state.logical = self
        if not state.divisor:
            state.divisor = float(self._shards)

    def check_forward(self):
        """Raises RuntimeError in a training forward outside of a shard, unless each rank has one shard."""
        logical = logical_now()
        if logical is None or logical.open is not None:  # None: the group is closed, and says so
            return
        if self._shards != self._group.size:
            raise RuntimeError(
                f"{_OP}: a forward outside of a logical shard on {self._group.size} ranks with {self._shards} of them "
                "(expected `for step in dist.shards(loader):` and `for shard in step:` around it, or no_grad())"
            )
        if self._at is not None:  # a step that has failed
            self._leave()

    # ---- what the step calls

    def open_shard(self, at):
        self._at = at
        self._buffers.open(at, self._buffers_now())
        for state in self._states():
            if not state.syncs:
                raise RuntimeError(
                    f"{_OP}: no gradient sync inside of a logical shard, whose micro-batches accumulate anyway (expected "
                    "set_requires_gradient_sync(True))"
                )
            state.in_shard = True
            state.push()
            if at == 0:
                state.sums = [[] for _ in state.spec_of_param]
                self._take_leaves(state)  # of a step that has failed

    def last_backward(self):
        """The shard's last backward comes. Nothing is reduced while it runs."""

    @no_grad()
    def close_shard(self, number):
        for state in self._states():
            for sums, leaf in zip(state.sums, self._take_leaves(state), strict=True):
                at = self._at
                while at & 1:
                    leaf, at = _added(sums.pop(), leaf), at >> 1
                sums.append(leaf)
        self._buffers.close(number, self._buffers_now())

    def end_step(self, owner):
        models = {}
        self._leave()
        for state in self._states():
            for number, (total,) in enumerate(state.sums):
                if total is not None:
                    state.unit.give(number, total)
            state.sums = None
            if state.model is not None:
                models[id(state.model)] = state.model
        for model in models.values():
            model.engine.shadow()
        self._buffers.end(self._group.rank == owner, self._buffers_now())
        take_from(self._group, owner, self._buffers_now())

    # ---- what a member has, for ranks that die or come

    def settle(self, on):
        pass

    def rejoin(self, group):
        raise NotImplementedError(
            f"{_OP}: ranks have died or come (expected those that the parameters are sharded over)"
        )

    # ---- parts

    def _leave(self):
        """Backwards reduce gradients again."""
        self._at = None
        for state in self._states():
            state.in_shard = False
            state.push()

    def _states(self):
        found = {}
        for ref in self._modules:
            module = ref()
            state = module.__dict__.get("_fsdp") if module is not None else None
            if state is not None and state.unit is not None:
                found[id(state)] = state
        return found.values()

    @staticmethod
    def _take_leaves(state):
        wholes = [state.unit.whole(number) for number in range(len(state.spec_of_param))]
        leaves = [whole.grad for whole in wholes]
        for whole in wholes:
            whole.grad = None
        return leaves

    def _buffers_now(self):
        found = {}
        for ref in self._modules:
            module = ref()
            for buffer in module.buffers() if module is not None else ():
                found[id(buffer)] = buffer
        return list(found.values())


def _added(a, b):
    """a + b; None counts as zeros."""
    if a is None or b is None:
        return None if a is b else (b if a is None else a).add_(0.0)  # no -0
    return a.add_(b)


def run_shards(modules, state, policy, params):
    """Registers the modules of a new State, if the default group has logical shards."""
    logical = logical_now()
    if logical is None or (state.group is not current() and state.replicas is None):
        return
    wrong, ranks = None, current().size
    if state.replicas is not None:
        wrong = "replicas of shards (expected a mesh of one dimension)"
    elif [row[1:3] for row in logical.blocks().table] != [(logical.shards // ranks, rank) for rank in range(ranks)]:
        wrong = f"{ranks} ranks with unequal shares (expected a power of two of ranks, no more than shards)"
    elif policy.param_dtype is not None or policy.reduce_dtype is not None:
        wrong = "a MixedPrecisionPolicy (expected none)"
    elif any(param.dtype not in (_C.float32, _C.float64) for param in params):
        wrong = "parameters of 16 bits (expected float32 or float64)"
    elif any(isinstance(below, SyncBatchNorm) for module in modules for below in module.modules()):
        wrong = "SyncBatchNorm, which would mix their rows (expected BatchNorm)"
    if wrong:
        raise NotImplementedError(f"{_OP}: {logical.shards} logical shards beside {wrong}")
    if logical.sharded is None:
        logical.sharded = RunsShards(logical, state.group)
    logical.sharded.add(modules, state)
