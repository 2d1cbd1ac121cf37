"""All-reduce of buckets in full and in half precision. `process_group` is the hooks' state; None means the default
group.

>>> from pydist import nn
>>> from pydist.distributed.algorithms.ddp_comm_hooks import default_hooks
>>> model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
>>> model.register_comm_hook(None, default_hooks.bf16_compress_hook)
"""

import pydist
from pydist.distributed._group.process_group import current

__all__ = [
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
]


def _mean(group, tensor):
    group = current(group)
    return group.all_reduce(tensor.div_(group.size), "sum", True).get_future()


def allreduce_hook(process_group, bucket):
    """The mean over the ranks, as without a hook."""
    return _mean(process_group, bucket.buffer()).then(lambda future: future.value()[0])


def _compressed(dtype, process_group, bucket):
    buffer = bucket.buffer()
    future = _mean(process_group, buffer.to(dtype))
    return future.then(lambda future: buffer.copy_(future.value()[0]))


def fp16_compress_hook(process_group, bucket):
    """Rounds to float16, divides by the number of ranks, sums in float32 and rounds again."""
    return _compressed(pydist.float16, process_group, bucket)


def bf16_compress_hook(process_group, bucket):
    """Rounds to bfloat16, divides by the number of ranks, sums in float32 and rounds again."""
    return _compressed(pydist.bfloat16, process_group, bucket)


def in_c(hook):
    """The name of the hook in C that replaces `hook` on a GPU, where NCCL sums 16-bit numbers; None if there is
    none."""
    return {fp16_compress_hook: "fp16", bf16_compress_hook: "bf16"}.get(hook)


def _wrapped(dtype, hook):
    def compressing_hook(state, bucket):
        buffer = bucket.buffer()
        bucket.set_buffer(buffer.to(dtype))

        def back(future):
            value = future.value()
            return buffer.copy_(value[0] if isinstance(value, list) else value)

        return hook(state, bucket).then(back)

    return compressing_hook


def fp16_compress_wrapper(hook):
    """A hook that gives `hook` the buckets in float16."""
    return _wrapped(pydist.float16, hook)


def bf16_compress_wrapper(hook):
    """A hook that gives `hook` the buckets in bfloat16."""
    return _wrapped(pydist.bfloat16, hook)
