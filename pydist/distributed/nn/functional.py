"""Collectives with gradients. Each returns a new tensor; its backward is the collective that sends the gradients
back.

The loss is the sum of the ranks' losses, so the gradient of a broadcast is the sum of all ranks' gradients. Every rank
has to call backward through the same collectives in the same order.

    forward         backward
    all_reduce SUM  all_reduce SUM
    broadcast       reduce SUM to the source          reduce    broadcast from the destination
    all_gather      reduce_scatter SUM                reduce_scatter   all_gather       (also of different sizes)
    gather          scatter                           scatter   gather
    all_to_all      all_to_all, back, with the sizes exchanged

Reductions other than SUM and AVG have no gradient. PyTorch: torch.distributed.nn.functional.
"""

from pydist import _C
from pydist import distributed as dist
from pydist.autograd import Function
from pydist.distributed import ReduceOp


def _linear(name, op):
    """The factor for a gradient. Raises NotImplementedError if the reduction is not linear."""
    if op == ReduceOp.SUM:
        return False
    if op == ReduceOp.AVG:
        return True
    raise NotImplementedError(f"nn.functional.{name}: {op} has no gradient (expected SUM or AVG)")


def _mean(grad, average, group):
    return grad / dist.get_world_size(group) if average else grad


class _AllReduce(Function):
    @staticmethod
    def forward(ctx, op, group, tensor):
        ctx.op, ctx.group = op, group
        out = tensor.detach().clone()
        dist.all_reduce(out, op, group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return None, None, _AllReduce.apply(ctx.op, ctx.group, grad)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx, src, group, tensor):
        ctx.src, ctx.group = src, group
        out = tensor.detach().clone()
        dist.broadcast(out, src, group)
        return out

    @staticmethod
    def backward(ctx, grad):
        whole = _Reduce.apply(ctx.src, ReduceOp.SUM, ctx.group, grad)
        return None, None, whole if dist.get_rank(ctx.group) == ctx.src else whole * 0


class _Reduce(Function):
    @staticmethod
    def forward(ctx, dst, op, group, tensor):
        ctx.dst, ctx.average, ctx.group = dst, _linear("reduce", op), group
        out = tensor.detach().clone()
        dist.reduce(out, dst, op, group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return None, None, None, _mean(_Broadcast.apply(ctx.dst, ctx.group, grad), ctx.average, ctx.group)


class _AllGather(Function):
    """shapes: the shapes of all ranks' tensors; None if they are equal."""

    @staticmethod
    def forward(ctx, group, shapes, tensor):
        ctx.group = group
        if shapes is not None:
            parts = [_C.empty(shape, dtype=tensor.dtype, device=tensor.device) for shape in shapes]
            dist.all_gather(parts, tensor.detach(), group)
            return tuple(parts)
        world = dist.get_world_size(group)
        out = _C.empty((world, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        dist.all_gather_into_tensor(out, tensor.detach(), group)
        return tuple(part.clone() for part in out)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, _ReduceScatter.apply(ReduceOp.SUM, ctx.group, *grads)


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx, op, group, *tensors):
        ctx.average, ctx.group = _linear("reduce_scatter", op), group
        own = tensors[dist.get_rank(group)]
        ctx.shapes = [tensor.shape for tensor in tensors]
        out = _C.empty(own.shape, dtype=own.dtype, device=own.device)
        dist.reduce_scatter(out, [tensor.detach() for tensor in tensors], op, group)
        return out

    @staticmethod
    def backward(ctx, grad):
        shapes = ctx.shapes if len(set(ctx.shapes)) > 1 else None
        return None, None, *_AllGather.apply(ctx.group, shapes, _mean(grad, ctx.average, ctx.group))


class _Gather(Function):
    @staticmethod
    def forward(ctx, dst, group, tensor):
        ctx.dst, ctx.group = dst, group
        world = dist.get_world_size(group)
        parts = [_C.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device) for _ in range(world)]
        dist.gather(tensor.detach(), parts if dist.get_rank(group) == dst else None, dst, group)
        return tuple(parts)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, _Scatter.apply(ctx.dst, ctx.group, *grads)


class _Scatter(Function):
    @staticmethod
    def forward(ctx, src, group, *tensors):
        ctx.src, ctx.group = src, group
        out = _C.empty(tensors[0].shape, dtype=tensors[0].dtype, device=tensors[0].device)
        parts = [tensor.detach() for tensor in tensors]
        dist.scatter(out, parts if dist.get_rank(group) == src else None, src, group)
        return out

    @staticmethod
    def backward(ctx, grad):
        parts = _Gather.apply(ctx.src, ctx.group, grad)
        return None, None, *parts


class _AllToAll(Function):
    @staticmethod
    def forward(ctx, group, outputs, *tensors):
        ctx.group, ctx.shapes = group, [tensor.shape for tensor in tensors]
        dist.all_to_all(outputs, [tensor.detach() for tensor in tensors], group)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *grads):
        outputs = [_C.empty(shape, dtype=grads[0].dtype, device=grads[0].device) for shape in ctx.shapes]
        return None, None, *_AllToAll.apply(ctx.group, outputs, *grads)


class _AllToAllSingle(Function):
    @staticmethod
    def forward(ctx, group, output, output_sizes, input_sizes, tensor):
        ctx.group, ctx.sizes, ctx.shape = group, (input_sizes, output_sizes), tensor.shape
        dist.all_to_all_single(output, tensor.detach(), output_sizes, input_sizes, group)
        return output

    @staticmethod
    def backward(ctx, grad):
        output = _C.empty(ctx.shape, dtype=grad.dtype, device=grad.device)
        return None, None, None, None, _AllToAllSingle.apply(ctx.group, output, *ctx.sizes, grad)


def all_reduce(tensor, op=ReduceOp.SUM, group=None):
    """op (SUM or AVG) over the ranks' tensors. The gradients of all ranks are reduced in the same way.

    >>> import pydist
    >>> from pydist.distributed.nn.functional import all_reduce
    >>> x = pydist.ones(2, requires_grad=True)
    >>> all_reduce(x).sum().backward()  # a world of one
    >>> x.grad.tolist()
    [1.0, 1.0]
    """
    _linear("all_reduce", op)
    return _AllReduce.apply(op, group, tensor)


def broadcast(tensor, src, group=None):
    """Rank src's tensor, on every rank. The gradient on rank src is the sum of all ranks' gradients; on other ranks it
    is zero."""
    return _Broadcast.apply(src, group, tensor)


def reduce(tensor, dst, op=ReduceOp.SUM, group=None):
    """op (SUM or AVG) over the ranks' tensors, on rank dst. Other ranks get their own tensor. The gradient is that of
    rank dst."""
    return _Reduce.apply(dst, op, group, tensor)


def all_gather(tensor, group=None, shapes=None):
    """A tuple of all ranks' tensors. The gradient is the sum of all ranks' gradients of this rank's tensor.

    shapes: the shapes of the tensors by rank, if they differ, the same list on all ranks; None: all have this one's
    shape.

    >>> import pydist
    >>> from pydist.distributed.nn.functional import all_gather
    >>> x = pydist.ones(2, requires_grad=True)
    >>> (part,) = all_gather(x, shapes=[(2,)])  # a world of one
    >>> (part * 3).sum().backward()
    >>> x.grad.tolist()
    [3.0, 3.0]
    """
    return _AllGather.apply(group, shapes, tensor)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None):
    """op (SUM or AVG) over the ranks' `input_list[rank]`. Sizes may differ between ranks. `output` is ignored, as in
    PyTorch."""
    return _ReduceScatter.apply(op, group, *input_list)


def gather(tensor, dst=0, group=None):
    """A tuple of all ranks' tensors on rank dst, and of zeros on the others."""
    return _Gather.apply(dst, group, tensor)


def scatter(tensors, src=0, group=None):
    """Rank src's `tensors[rank]`. The other ranks give tensors of the same shape, whose gradients are zero."""
    return _Scatter.apply(src, group, *tensors)


def all_to_all(output_tensor_list, input_tensor_list, group=None):
    """A tuple of the output tensors, which are filled: output r is rank r's input_tensor_list[this rank]. The gradients
    go back the same way."""
    return _AllToAll.apply(group, list(output_tensor_list), *input_tensor_list)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None):
    """The output, which is filled: part r is rank r's part of `input` for this rank. Parts are equal along the first
    dimension, or have the given sizes. The gradients go back the same way."""
    return _AllToAllSingle.apply(group, output, output_split_sizes, input_split_sizes, input)
