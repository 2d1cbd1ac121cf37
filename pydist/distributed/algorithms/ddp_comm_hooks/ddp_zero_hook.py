"""Hooks that make a ZeroRedundancyOptimizer step in backward: a bucket's parameters are stepped once its gradients are
reduced.

>>> import pydist
>>> from pydist.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
>>> from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
>>> from pydist.distributed.optim import ZeroRedundancyOptimizer
>>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1, bias=False))
>>> pydist.nn.init.ones_(model.module.weight).shape
pydist.Size([1, 2])
>>> zero = ZeroRedundancyOptimizer(model.parameters(), pydist.optim.SGD, overlap_with_ddp=True, lr=0.5)
>>> model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, zero))
>>> model(pydist.ones(1, 2)).sum().backward()
>>> model.module.weight.tolist()
[[0.5, 0.5]]
"""

import weakref

import pydist
from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from pydist.distributed.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer
from pydist.futures import Future

__all__ = ["hook_with_zero_step", "hook_with_zero_step_interleaved"]


class _Stepping:
    """A hook: reduces a bucket by `hook`, then steps its parameters."""

    def __init__(self, hook, zero, interleaved):
        self.hook, self.zero, self.interleaved = hook, zero, interleaved
        self.group = zero.process_group
        self.gradients = []  # buffers of the backward under way
        self.last = None  # the future of the bucket before

    def _reduce(self, state, bucket):
        if self.hook is allreduce_hook and state in (None, self.group):  # one rounding less: the bits of no hook
            return self.group.all_reduce(bucket.buffer(), "sum", True, 1 / self.group.size).get_future()
        return self.hook(state, bucket)

    def __call__(self, state, bucket):
        if bucket.index() == 0:
            self.zero._note_gradients(None)
            self.gradients, self.last = [], None
        params, gradients = bucket.parameters(), bucket.gradients()
        reached = [param.grad is not None for param in params]
        used = pydist.tensor(reached, dtype=pydist.uint8, device="cpu")
        flags = self.group.all_reduce(used, "max", True)
        reduced = self._reduce(state, bucket)
        if not isinstance(reduced, Future):
            raise TypeError(
                f"hook_with_zero_step: hook returned {type(reduced).__name__} (expected a Future of a tensor)"
            )
        buffer, index, is_last = bucket.buffer(), bucket.index(), bucket.is_last()

        def step(future):
            value = future.value()
            value = value[0] if isinstance(value, (list, tuple)) else value
            if value.data_ptr() != buffer.data_ptr() or value.dtype != buffer.dtype:
                buffer.copy_(value.reshape(-1))
            flags.wait()
            found = {id(p): g for p, g, flag in zip(params, gradients, used.tolist()) if flag}
            self.zero._step_section(index, found)
            self.gradients.append(buffer)
            if is_last:
                self.zero._note_gradients(self.gradients)
            return buffer

        before, self.last = self.last, reduced.then(step)
        if self.interleaved and before is not None:
            before.wait()
        return self.last


def _step_alone(ddp, zero):
    """In a world of one no hook is called: each parameter is stepped when its gradient is complete."""
    known, stepping = weakref.ref(ddp), weakref.ref(zero)

    def hook_of(section):
        def step(param):
            ddp, zero = known(), stepping()
            if ddp is not None and zero is not None and ddp.require_backward_grad_sync:
                zero._step_section(section, {id(param): param.grad})

        return step

    params = [param for _, param in ddp._reduced_at_wrap]
    zero._follow([[param] for param in params])
    for section, param in enumerate(params):
        param.register_post_accumulate_grad_hook(hook_of(section))


def _made(name, hook, ddp, zero, interleaved):
    if not callable(hook):
        raise TypeError(f"{name}: hook is {type(hook).__name__} (expected a function)")
    if not isinstance(zero, ZeroRedundancyOptimizer):
        raise TypeError(f"{name}: zero is {type(zero).__name__} (expected a ZeroRedundancyOptimizer)")
    if getattr(ddp, "reducer", None) is None:
        raise TypeError(f"{name}: ddp is {type(ddp).__name__} (expected a DistributedDataParallel)")
    if not zero._overlaps:
        raise ValueError(
            f"{name}: the ZeroRedundancyOptimizer was made with overlap_with_ddp=False (expected overlap_with_ddp=True)"
        )
    if zero._hooked:
        raise RuntimeError(f"{name}: a hook steps this ZeroRedundancyOptimizer already (expected one hook)")
    if ddp.process_group is not zero.process_group:
        raise ValueError(f"{name}: ddp and zero are in different groups (expected one group)")
    if ddp.runs_shards:
        raise NotImplementedError(f"{name}: a step in backward with logical shards (expected overlap_with_ddp=False)")
    if zero.world_size == 1:
        _step_alone(ddp, zero)
        return hook
    params = [param for _, param in ddp._reduced_at_wrap]
    zero._follow([[params[row[0]] for row in rows] for rows in ddp.reducer.bucket_layout()])
    return _Stepping(hook, zero, interleaved)


def hook_with_zero_step(hook, ddp, zero, shard_buckets=False):
    """A hook for ddp.register_comm_hook that reduces each bucket by `hook`, and steps the parameters of the buckets, in
    their order, when backward has computed all gradients. All ranks call it.

    `zero`: a ZeroRedundancyOptimizer with overlap_with_ddp=True, of ddp's group. Backward steps it from the first one on,
    except in no_sync. `shard_buckets` is accepted and ignored: a bucket's parameters always belong to several ranks.
    Raises ValueError without overlap_with_ddp, or if the groups differ; RuntimeError if zero has a hook already.
    """
    return _made("hook_with_zero_step", hook, ddp, zero, False)


def hook_with_zero_step_interleaved(hook, ddp, zero, shard_buckets=False):
    """As hook_with_zero_step, but steps a bucket's parameters while backward goes on: when the gradients of the next bucket
    are there."""
    return _made("hook_with_zero_step_interleaved", hook, ddp, zero, True)
