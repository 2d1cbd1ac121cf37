"""all_to_all: every rank has a part for every other."""

from pydist.distributed._group.process_group import current


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
    group = current(group)
    if not output_split_sizes and not input_split_sizes:
        return group.all_to_all(output, input, async_op)
    return group.all_to_all(output, input, async_op, output_split_sizes or None, input_split_sizes or None)
