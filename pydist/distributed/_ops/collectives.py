"""Collectives on tensors, in the default group or a given one.

Each collective returns None, or with async_op=True a Work: its wait(timeout) waits for the end and raises the
collective's error; is_completed(), exception() and result() ask about it. All ranks of the group must call the same
collective with the same arguments. If the operation, the dtype, the number of elements, the reduce operation or the
root differ, all ranks raise CommMismatch before any data are touched. If a rank dies, the others raise PeerFailed. An
argument that is wrong by itself raises TypeError, ValueError or RuntimeError (ShapeError and DTypeError are both) only
on the rank that passed it, and the group stays usable.

Tensors on a GPU go through NCCL. The call returns when the work is queued on the GPU; later work of the caller's stream
runs after it. wait() makes the current stream wait, not the host. If the GPU part fails, the group's next call raises
the error. float16 and bfloat16 are summed in float32 on GPUs, too, unless the group was made with order="fast".

Tensors may have any layout: a tensor that is not contiguous is copied. If the tensors of a list are the consecutive
parts of one contiguous tensor, they are used in place. Autograd does not record these collectives; those of
`distributed.nn.functional` have gradients.

"Cost" says, for W ranks with n bytes each, how often ranks wait for each other (steps; P is the number of pieces of 256
KiB), how many bytes one rank writes for others, and how many bytes of others it reads. docs/algorithms.md has all
algorithms, also those over messages.
"""

from pydist.distributed._group.process_group import for_call, get_group_rank
from pydist.distributed._ops.coalescing import recorded


class ReduceOp:
    """How elements are combined. AVG and PREMUL_SUM take floating dtypes; BAND, BOR and BXOR take the other dtypes;
    bool takes all operations but AVG and PREMUL_SUM. PREMUL_SUM multiplies each rank's tensor by a factor of that rank
    and sums the products; _make_nccl_premul_sum(factor) returns it."""

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
    """ReduceOp.PREMUL_SUM together with its factor."""


def _make_nccl_premul_sum(factor):
    """The reduce operation "sum over ranks r of factor_r * tensor_r". factor: a number or a tensor of one element;
    ranks may have different factors. Each product is rounded to the tensors' dtype before the sum, as NCCL does.

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
    """A rank's number in the group, given its number in the job (`rank`) or in the group (`group_rank`)."""
    if (rank is None) == (group_rank is None):
        got = f"neither {name} nor" if rank is None else f"both {name} and"
        raise ValueError(f"{op}: got {got} group_{name} (expected exactly one)")
    if rank is None or group is None or for_call(group).size < 0:  # numbers in the job are numbers in the default group
        return group_rank if rank is None else rank
    try:
        return get_group_rank(group, rank)
    except ValueError as error:
        raise ValueError(f"{op}: {name}: {error}") from None


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """tensor = op over all ranks' tensors, in place. All ranks get the same bits.

    Cost: small tensors P steps, n bytes written, n(W-1) read; large ones P + 1 steps, 2n(W-1)/W written and read.

    >>> import pydist
    >>> x = pydist.ones(3)
    >>> pydist.distributed.all_reduce(x)
    >>> x.tolist()  # a world of one
    [1.0, 1.0, 1.0]
    """
    waits, work = recorded(group, "all_reduce", async_op, tensor, op)
    return work if waits else for_call(group).all_reduce(tensor, op, async_op)


def reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    """On rank `dst`: tensor = op over all ranks' tensors, in place. The other ranks' tensors keep their values.

    Cost: P + 1 steps; rank `dst` writes n(W-1)/W and reads 2n(W-1)/W; each other rank writes n and reads n(W-1)/W.
    """
    return for_call(group).reduce(tensor, rank_of("reduce", group, "dst", dst, group_dst), op, async_op)


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    """tensor = rank `src`'s tensor, in place. Cost: P steps; rank `src` writes n, each other rank reads n."""
    return for_call(group).broadcast(tensor, rank_of("broadcast", group, "src", src, group_src), async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """tensor_list[r] = rank r's tensor. The list has one tensor per rank, with the shape and dtype of that rank's
    tensor.

    Shapes may differ between ranks if all ranks give the same list of sizes; otherwise they raise CommMismatch. Cost: P
    steps for the largest tensor, n written, the other ranks' bytes read: n(W-1) if all are equal.

    >>> import pydist
    >>> parts = [pydist.empty(2)]
    >>> pydist.distributed.all_gather(parts, pydist.tensor([1.0, 2.0]))
    >>> parts[0].tolist()
    [1.0, 2.0]
    """
    return for_call(group).all_gather(tensor_list, tensor, async_op)


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """output_tensor = the input tensors of all ranks, concatenated ([W * n, ...]) or stacked ([W, n, ...]). Cost: P
    steps, n written, n(W-1) read."""
    waits, work = recorded(group, "all_gather_into_tensor", async_op, output_tensor, input_tensor, None)
    return work if waits else for_call(group).all_gather(output_tensor, input_tensor, async_op)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    """output = op over all ranks' input_list[this rank], with the same bits as all_reduce. input_list has one tensor
    per rank, with the shape of that rank's output. Shapes may differ if all ranks give the same list of sizes.

    Cost: P steps, n(W-1)/W written and read; n is the size of the whole input in bytes.
    """
    return for_call(group).reduce_scatter(output, input_list, op, async_op)


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """output = this rank's part of op over all ranks' inputs; an input has world size times as many elements as the
    output. The bits are the same as those of an all_reduce of the whole input.

    Cost: P steps, n(W-1)/W written and read; n is the size of the whole input in bytes.

    >>> import pydist
    >>> part = pydist.empty(2)
    >>> pydist.distributed.reduce_scatter_tensor(part, pydist.tensor([1.0, 2.0]))
    >>> part.tolist()
    [1.0, 2.0]
    """
    waits, work = recorded(group, "reduce_scatter_tensor", async_op, input, output, op)
    return work if waits else for_call(group).reduce_scatter(output, input, op, async_op)


def _filled(tensors):
    """None for an empty list, which PyTorch takes in its place on ranks that give or get no list."""
    return None if isinstance(tensors, list) and not tensors else tensors


def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    """On rank `dst` (default 0): gather_list[r] = rank r's tensor. On other ranks gather_list is None or []. Cost: P steps;
    rank `dst` reads n(W-1), each other rank writes n."""
    dst = 0 if dst is None and group_dst is None else rank_of("gather", group, "dst", dst, group_dst)
    return for_call(group).gather(_filled(gather_list), tensor, dst, async_op)


def scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    """tensor = scatter_list[this rank] of rank `src` (default 0). On other ranks scatter_list is None or []. Cost: P steps;
    rank `src` writes n(W-1), each other rank reads n; n is the size of one part in bytes."""
    src = 0 if src is None and group_src is None else rank_of("scatter", group, "src", src, group_src)
    return for_call(group).scatter(tensor, _filled(scatter_list), src, async_op)


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    """output_tensor_list[r] = rank r's input_tensor_list[this rank]. Sizes may differ if sender and receiver agree.

    Each list has one tensor per rank, all of one dtype; contiguous tensors are used in place. If a rank expects another
    number of elements than the sender has for it, all ranks raise CommMismatch, which names the pair. A list of the
    wrong length, a mix of dtypes, or an input that overlaps an output raises ValueError or TypeError only on that rank.

    Cost: one step for each piece of the largest part; a piece has 256 KiB / (W-1). A rank writes what it sends to
    others and reads what others send to it. Large parts are read in place, in 2 steps, if the kernel allows it
    (docs/algorithms.md).

    >>> import pydist
    >>> out = [pydist.zeros(2)]
    >>> pydist.distributed.all_to_all(out, [pydist.ones(2)])  # a world of one
    >>> out[0].tolist()
    [1.0, 1.0]
    """
    return for_call(group).all_to_all(list(output_tensor_list), list(input_tensor_list), async_op)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    """Part r of output = rank r's part of input for this rank. Parts are equal along the first dimension, or have the
    given sizes.

    Sizes count rows, one size per rank, and add up to the first dimension; None means equal parts on that side. Either
    all ranks give sizes or none does. If two ranks disagree about a size, all ranks raise CommMismatch, which names the
    pair. Sizes that are negative, too many or too few, or that do not add up raise ValueError only on their own rank.

    Cost: as all_to_all; for equal parts P steps of 256 KiB of the input, n(W-1)/W bytes written and read.

    >>> import pydist
    >>> out = pydist.zeros(3)
    >>> pydist.distributed.all_to_all_single(out, pydist.ones(3), [3], [3])  # a world of one
    >>> out.tolist()
    [1.0, 1.0, 1.0]
    """
    return for_call(group).all_to_all(output, input, async_op, output_split_sizes or None, input_split_sizes or None)


def barrier(group=None, async_op=False, device_ids=None, timeout=None):
    """Returns when all ranks have called it. timeout: seconds or a timedelta; a wait that takes longer raises
    CommTimeout on this rank. device_ids is ignored on CPUs."""
    if timeout is None or async_op:
        return for_call(group).barrier(async_op)
    for_call(group).barrier(True).wait(timeout)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """A barrier whose CommTimeout, after `timeout`, names all missing ranks. That holds on whichever rank raises it, so
    wait_all_ranks changes nothing."""
    return barrier(group, timeout=timeout)


def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op=False):
    """all_reduce of a list of tensors of one dtype, as one collective."""
    return for_call(group).all_reduce(list(tensors), op, async_op)
