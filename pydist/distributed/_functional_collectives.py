"""Collectives that return new tensors, with gradients: PyTorch's functional collectives.

`group` is a process group, a DeviceMesh of one dimension, a pair (mesh, dimension), or None for the default group. Ranks
are counted in the group. A collective is done when it returns, so `wait_tensor` only returns its argument, and no result is
an AsyncCollectiveTensor. The loss is the sum of the ranks' losses; all ranks call backward through the same collectives in
the same order. Reductions other than sum and avg have no gradient: backward raises NotImplementedError.

    forward           backward
    all_reduce        all_reduce
    all_gather        reduce_scatter            reduce_scatter    all_gather
    all_to_all        all_to_all, back          broadcast         the sum, on the source
"""

from pydist import _C
from pydist.autograd import Function
from pydist.distributed._group.process_group import for_call
from pydist.distributed.device_mesh import DeviceMesh

__all__ = [
    "AsyncCollectiveTensor",
    "all_gather_into_tensor_coalesced",
    "all_gather_single",
    "all_gather_single_autograd",
    "all_gather_single_coalesced",
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "all_to_all_single_autograd",
    "broadcast",
    "permute_tensor",
    "reduce_scatter_single",
    "reduce_scatter_single_autograd",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd",
    "reduce_scatter_tensor_coalesced",
    "wait_tensor",
]


class AsyncCollectiveTensor(_C.Tensor):
    """For isinstance only: collectives here are done when they return, so there is no tensor of this class."""


def _group(op, group):
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], DeviceMesh):
        return for_call(group[0].get_group(group[1]))
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"{op}: the mesh has {group.ndim} dimensions (expected 1, or a pair (mesh, dimension))")
        return for_call(group.get_group())
    if isinstance(group, (list, tuple, str)):
        raise TypeError(
            f"{op}: group is {group!r} (expected a process group, such as one of new_group, or a DeviceMesh)"
        )
    return for_call(group)


def _factor(op, reduction, group):
    """By what a gradient is multiplied."""
    if reduction == "sum":
        return 1
    if reduction == "avg":
        return 1 / group.size
    raise NotImplementedError(f"{op}: {reduction} has no gradient (expected sum or avg)")


def _scaled(grad, op, reduction, group):
    factor = _factor(op, reduction, group)
    return grad if factor == 1 else grad * factor


class _AllReduce(Function):
    @staticmethod
    def forward(ctx, x, reduction, group):
        ctx.rest = reduction, group
        out = x.clone(memory_format=_C.contiguous_format)
        group.all_reduce(out, reduction)
        return out

    @staticmethod
    def backward(ctx, grad):
        _factor("all_reduce", *ctx.rest)
        return _AllReduce.apply(grad, *ctx.rest), None, None


class _AllGather(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = _C.empty((group.size * x.size(0), *x.shape[1:]), dtype=x.dtype, device=x.device)
        group.all_gather(out, x)
        return out

    @staticmethod
    def backward(ctx, grad):
        return _ReduceScatter.apply(grad, "sum", ctx.group), None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx, x, reduction, group):
        ctx.rest = reduction, group
        out = _C.empty((x.size(0) // group.size, *x.shape[1:]), dtype=x.dtype, device=x.device)
        group.reduce_scatter(out, x, reduction)
        return out

    @staticmethod
    def backward(ctx, grad):
        return _AllGather.apply(_scaled(grad, "reduce_scatter", *ctx.rest), ctx.rest[1]), None, None


class _AllToAll(Function):
    @staticmethod
    def forward(ctx, x, out_sizes, in_sizes, group):
        ctx.rest = in_sizes, out_sizes, group
        rows = sum(out_sizes) if out_sizes is not None else x.size(0)
        out = _C.empty((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
        group.all_to_all(out, x, False, out_sizes, in_sizes)
        return out

    @staticmethod
    def backward(ctx, grad):
        return _AllToAll.apply(grad, *ctx.rest), None, None, None


class _Broadcast(Function):
    @staticmethod
    def forward(ctx, x, src, group):
        ctx.rest = src, group
        out = x.clone(memory_format=_C.contiguous_format)
        group.broadcast(out, src)
        return out

    @staticmethod
    def backward(ctx, grad):
        src, group = ctx.rest
        total = _AllReduce.apply(grad, "sum", group)
        return total if group.rank == src else total * 0, None, None


def wait_tensor(tensor):
    """The tensor: its collective is done already."""
    return tensor


def broadcast(self, src, group, tag=""):
    """The tensor of rank `src` of the group, in a new tensor."""
    return _Broadcast.apply(self, src, _group("broadcast", group))


def all_reduce(self, reduceOp, group, tag=""):
    """The reduction ("sum", "avg", "max", ...) of all ranks' tensors, in a new tensor.

    >>> import pydist
    >>> from pydist.distributed import _functional_collectives as funcol
    >>> funcol.all_reduce(pydist.ones(2), "sum", None)  # a world of one
    tensor([1., 1.])
    """
    return _AllReduce.apply(self, reduceOp.lower(), _group("all_reduce", group))


def _dim(op, x, dim):
    if not -x.dim() <= dim < x.dim():
        raise IndexError(
            f"{op}: dim is {dim} for a tensor of shape {list(x.shape)} (expected {-x.dim()} to {x.dim() - 1})"
        )
    return dim % x.dim()


def all_gather_single(self, gather_dim, group, tag=""):
    """All ranks' tensors, which have one shape, one after the other along gather_dim."""
    group, dim = _group("all_gather_single", group), _dim("all_gather_single", self, gather_dim)
    out = _AllGather.apply(self, group)
    return (
        out
        if dim == 0
        else _C.cat(out.chunk(group.size), dim)
        if len(out)
        else out.new_empty([n * group.size if d == dim else n for d, n in enumerate(self.shape)])
    )


def reduce_scatter_single(self, reduceOp, scatter_dim, group, tag=""):
    """The rank's part, along scatter_dim, of the reduction of all ranks' tensors. Raises ValueError if the parts would
    differ in size."""
    op = "reduce_scatter_single"
    group, dim = _group(op, group), _dim(op, self, scatter_dim)
    if self.size(dim) % group.size:
        raise ValueError(
            f"{op}: dimension {dim} has size {self.size(dim)} (expected a multiple of the group's {group.size} ranks)"
        )
    if dim and self.numel():
        self = _C.cat(self.chunk(group.size, dim))
    elif dim:
        return self.narrow(dim, 0, self.size(dim) // group.size)
    return _ReduceScatter.apply(self, reduceOp.lower(), group)


def _sizes(arg, sizes, group):
    sizes = [int(n) for n in sizes]
    if len(sizes) != group.size or min(sizes) < 0:
        raise ValueError(f"all_to_all_single: {arg} is {sizes} (expected {group.size} sizes of at least 0)")
    return sizes


def all_to_all_single(self, output_split_sizes, input_split_sizes, group, tag=""):
    """Part r of the result is rank r's part for this rank. Sizes count rows, one for each rank; None on both sides: equal
    parts. Raises ValueError, on its own rank, for sizes that are negative, too few or too many, or do not add up, and
    CommMismatch on all ranks if two of them do not agree.

    >>> import pydist
    >>> from pydist.distributed import _functional_collectives as funcol
    >>> funcol.all_to_all_single(pydist.arange(3), [3], [3], None)  # a world of one
    tensor([0, 1, 2])
    """
    op = "all_to_all_single"
    group = _group(op, group)
    if self.dim() == 0:
        raise ValueError(f"{op}: the tensor has no dimensions (expected at least 1)")
    if (output_split_sizes is None) != (input_split_sizes is None):
        raise ValueError(f"{op}: got sizes of one side only (expected both sides' or None twice)")
    if input_split_sizes is None:
        if len(self) % group.size:
            raise ValueError(f"{op}: got {len(self)} rows (expected sizes, or a multiple of {group.size})")
        return _AllToAll.apply(self, None, None, group)
    out_sizes = _sizes("output_split_sizes", output_split_sizes, group)
    in_sizes = _sizes("input_split_sizes", input_split_sizes, group)
    if sum(in_sizes) != len(self):
        raise ValueError(f"{op}: input_split_sizes is {in_sizes} (expected a sum of {len(self)}, the tensor's rows)")
    return _AllToAll.apply(self, out_sizes, in_sizes, group)


def permute_tensor(self, src_dst, group, tag=""):
    """The tensor of the rank that sends to this one: rank r sends to rank src_dst[r].

    >>> import pydist
    >>> from pydist.distributed import _functional_collectives as funcol
    >>> pydist.testing.run_ranks(2, lambda rank: funcol.permute_tensor(pydist.ones(1) * rank, [1, 0], None).item())
    [1.0, 0.0]
    """
    group = _group("permute_tensor", group)
    if sorted(src_dst) != list(range(group.size)):
        raise ValueError(f"permute_tensor: src_dst is {list(src_dst)} (expected each of {group.size} ranks once)")
    sends, receives = [0] * group.size, [0] * group.size
    sends[src_dst[group.rank]] = receives[list(src_dst).index(group.rank)] = self.numel()
    return _AllToAll.apply(self.reshape(-1), receives, sends, group).view(self.shape)


def all_reduce_coalesced(self, reduceOp, group, tag=""):
    """A list: all_reduce of each tensor."""
    return [all_reduce(x, reduceOp, group) for x in self]


def all_gather_single_coalesced(self, group, tag=""):
    """A list: all_gather_single of each tensor along its first dimension."""
    return [all_gather_single(x, 0, group) for x in self]


def reduce_scatter_single_coalesced(inputs, reduceOp, scatter_dim, group, tag=""):
    """A list: reduce_scatter_single of each tensor along its own dimension."""
    return [reduce_scatter_single(x, reduceOp, dim, group) for x, dim in zip(inputs, scatter_dim, strict=True)]


all_gather_tensor = all_gather_tensor_autograd = all_gather_single_autograd = all_gather_single
reduce_scatter_tensor = reduce_scatter_tensor_autograd = reduce_scatter_single_autograd = reduce_scatter_single
all_to_all_single_autograd = all_to_all_single
all_gather_into_tensor_coalesced = all_gather_single_coalesced
reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
