"""Collectives on tensors, in the default or a given group.

Each returns None, or with async_op=True a Work: wait(timeout) ends it and raises its error, is_completed(), exception()
and result() ask. All ranks of the group must call the same collective with the same arguments: a difference in the
operation, the dtype, the number of elements, the reduce operation or the root raises CommMismatch on all of them before
any data is touched; the death of a rank raises PeerFailed on the others; an argument that is wrong by itself raises
TypeError, ValueError or RuntimeError on its own rank (ShapeError, DTypeError are both) and leaves the group usable.

Tensors on a GPU go through NCCL: a call returns when the GPU has been told, the caller's stream goes on after it, and
wait() makes the current stream wait, not the host; an error of the GPU's part is raised by the group's next call.
float16 and bfloat16 are summed in float32 there too, unless the group was made with order="fast".

Tensors may have any layout: what is not contiguous goes through a copy. Lists whose tensors are the consecutive parts
of one contiguous tensor are used where they lie. Nothing here is recorded by autograd.

Cost lines say for W ranks with n bytes each how often ranks wait for each other, P being pieces of 256 KiB, and the bytes
that one rank writes for others and reads of theirs. docs/algorithms.md has all algorithms, also over messages.
"""

from pydist.distributed._group.process_group import current, get_group_rank
from pydist.distributed._ops.coalescing import recorded


class ReduceOp:
    """How elements are combined. AVG and PREMUL_SUM are for floating dtypes, BAND, BOR and BXOR are for the others (bool
    takes all but those two). PREMUL_SUM, the sum of the ranks' tensors each times a factor of its rank, is what
    _make_nccl_premul_sum(factor) returns."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    PREMUL_SUM = "premul_sum"


reduce_op = ReduceOp  # PyTorch's old name


class _PremulSum(str):
    """ReduceOp.PREMUL_SUM with its factor."""


def _make_nccl_premul_sum(factor):
    """The reduce operation sum over ranks r of factor_r * tensor_r; factor: a number or a tensor of one element. Each
    product is rounded to the tensors' dtype before the sum, as NCCL does; ranks may have different factors.

    >>> import pydist
    >>> from pydist import distributed as dist
    >>> x = pydist.ones(2)
    >>> dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    >>> x.tolist()  # a world of one
    [0.5, 0.5]
    """
    op = _PremulSum(ReduceOp.PREMUL_SUM)
    op.factor = float(factor)
    return op


def rank_of(op, group, name, rank, group_rank):
    """The number in the group of a rank that is given by its number in the job or in the group."""
    if (rank is None) == (group_rank is None):
        raise ValueError(f"{op}: exactly one of {name} and group_{name} has to be given")
    if rank is None or group is None or current(group).size < 0:  # the job's numbers are the default group's
        return group_rank if rank is None else rank
    try:
        return get_group_rank(group, rank)
    except ValueError as error:
        raise ValueError(f"{op}: {name}: {error}") from None


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """tensor = op over all ranks' tensors, in place, with the same bits everywhere.

    Cost: small P steps, n written, n(W-1) read; large P + 1 steps, 2n(W-1)/W written and read.

    >>> import pydist
    >>> x = pydist.ones(3)
    >>> pydist.distributed.all_reduce(x)
    >>> x.tolist()  # a world of one
    [1.0, 1.0, 1.0]
    """
    waits, work = recorded(group, "all_reduce", async_op, tensor, op)
    return work if waits else current(group).all_reduce(tensor, op, async_op)


def reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    """Rank `dst`'s tensor = op over all ranks' tensors, in place; the others' keep their values.

    Cost: P + 1 steps; the others write n and read n(W-1)/W, rank `dst` writes n(W-1)/W and reads 2n(W-1)/W.
    """
    return current(group).reduce(tensor, rank_of("reduce", group, "dst", dst, group_dst), op, async_op)


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    """tensor = rank `src`'s tensor, in place. Cost: P steps; rank `src` writes n, the others read n."""
    return current(group).broadcast(tensor, rank_of("broadcast", group, "src", src, group_src), async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """tensor_list[r] = rank r's tensor; the list has a tensor of that one's shape and dtype for each rank.

    Shapes may differ between ranks, as long as all ranks give the same list of sizes; else CommMismatch.
    Cost: P steps (of the largest tensor), n written, the others' bytes read: n(W-1) of equal ones.

    >>> import pydist
    >>> parts = [pydist.empty(2)]
    >>> pydist.distributed.all_gather(parts, pydist.tensor([1.0, 2.0]))
    >>> parts[0].tolist()
    [1.0, 2.0]
    """
    return current(group).all_gather(tensor_list, tensor, async_op)


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """output_tensor = the ranks' input tensors one after the other, world size times as many elements: concatenated
    ([W * n, ...]) or stacked ([W, n, ...]). Cost: P steps, n written, n(W-1) read."""
    waits, work = recorded(group, "all_gather_into_tensor", async_op, output_tensor, input_tensor, None)
    return work if waits else current(group).all_gather(output_tensor, input_tensor, async_op)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    """output = op over all ranks' input_list[this rank], with the bits of all_reduce; the list has a tensor for each rank,
    of the shape that the output has there. Shapes may differ, as long as all ranks give the same list of sizes.
    Cost: P steps, n(W-1)/W written and read, n being the bytes of the whole input."""
    return current(group).reduce_scatter(output, input_list, op, async_op)


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """output = this rank's part of op over all ranks' inputs, which have world size times the output's elements. The
    bits are those of an all_reduce of the whole input. Cost: P steps, n(W-1)/W written and read, n being the bytes of the
    whole input.

    >>> import pydist
    >>> part = pydist.empty(2)
    >>> pydist.distributed.reduce_scatter_tensor(part, pydist.tensor([1.0, 2.0]))
    >>> part.tolist()
    [1.0, 2.0]
    """
    waits, work = recorded(group, "reduce_scatter_tensor", async_op, input, output, op)
    return work if waits else current(group).reduce_scatter(output, input, op, async_op)


def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    """On rank `dst` (0): gather_list[r] = rank r's tensor. Elsewhere gather_list is None. Cost: P steps; rank `dst` reads
    n(W-1), the others write n."""
    dst = 0 if dst is None and group_dst is None else rank_of("gather", group, "dst", dst, group_dst)
    return current(group).gather(gather_list, tensor, dst, async_op)


def scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    """tensor = rank `src`'s (0) scatter_list[this rank]. Elsewhere scatter_list is None. Cost: P steps; rank `src` writes
    n(W-1), n being the bytes of one part, the others read n."""
    src = 0 if src is None and group_src is None else rank_of("scatter", group, "src", src, group_src)
    return current(group).scatter(tensor, scatter_list, src, async_op)


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    """output_tensor_list[r] = rank r's input_tensor_list[this rank]; sizes may differ, as long as both ends agree.

    Each list has a tensor for each rank, all of one dtype; contiguous tensors are used where they lie. Where a rank
    expects another number of elements than the other one has for it, CommMismatch on all ranks names the pair. Lists of
    another length, of several dtypes, and inputs that overlap outputs raise ValueError or TypeError on their own rank.

    Cost: a step for each piece of the largest part, 256 KiB / (W-1) for W ranks; the bytes for others written, those of
    others read. Large parts are read where they lie, in 2 steps, where the kernel allows it (docs/algorithms.md).

    >>> import pydist
    >>> out = [pydist.zeros(2)]
    >>> pydist.distributed.all_to_all(out, [pydist.ones(2)])  # a world of one
    >>> out[0].tolist()
    [1.0, 1.0]
    """
    return current(group).all_to_all(list(output_tensor_list), list(input_tensor_list), async_op)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    """Part r of output = rank r's part of input for this rank: equal parts of the first dimension, or of these sizes.

    Sizes count rows, one for each rank, and add up to the first dimension; None on one side: equal parts there. Either
    all ranks give sizes or none does. Where two ranks disagree about a size, CommMismatch on all ranks names the pair;
    sizes that are negative, too many or too few, or do not add up raise ValueError on their own rank. Cost: as
    all_to_all; equal parts P steps of 256 KiB of the input, n(W-1)/W bytes written and read.

    >>> import pydist
    >>> out = pydist.zeros(3)
    >>> pydist.distributed.all_to_all_single(out, pydist.ones(3), [3], [3])  # a world of one
    >>> out.tolist()
    [1.0, 1.0, 1.0]
    """
    return current(group).all_to_all(output, input, async_op, output_split_sizes or None, input_split_sizes or None)


def barrier(group=None, async_op=False, device_ids=None, timeout=None):
    """Returns when all ranks have called it. timeout: seconds or a timedelta, after which this rank raises CommTimeout.
    device_ids means nothing on CPUs."""
    if timeout is None or async_op:
        return current(group).barrier(async_op)
    current(group).barrier(True).wait(timeout)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """barrier; the CommTimeout after `timeout` names all the ranks that are missing, on whichever rank raises it, so
    wait_all_ranks changes nothing."""
    return barrier(group, timeout=timeout)


def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op=False):
    """all_reduce of a list of tensors of one dtype, as one collective."""
    return current(group).all_reduce(list(tensors), op, async_op)
