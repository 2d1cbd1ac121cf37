"""Attention over a sequence whose rows are spread over ranks: by blocks of keys that go round the ranks (ring attention,
csrc/parallel/ring_attention.h), or by exchanging rows for heads (Ulysses, arXiv 2309.14509)."""

import math
from contextlib import contextmanager

from pydist import _C, _sdpa
from pydist._autocast import in_low
from pydist._grad_mode import no_grad
from pydist.autograd.function import Function, once_differentiable
from pydist.distributed._group.process_group import for_call
from pydist.distributed.device_mesh import DeviceMesh
from pydist.distributed.nn.functional import all_to_all_single

_rotated = False  # set_rotate_method


# ---- the split of a sequence ----


def _chunk(length, size, chunk):
    """Rows of one of the 2 * size chunks, as pd_ring_chunk counts them."""
    return length // (2 * size) + (chunk < length % (2 * size))


def _ends(length, size, rank):
    """(first row, rows) of the rank's two chunks."""
    sizes = [_chunk(length, size, chunk) for chunk in range(2 * size)]
    return [(sum(sizes[:chunk]), sizes[chunk]) for chunk in (rank, 2 * size - 1 - rank)]


def _part(tensor, dim, length, size, rank):
    return _C.cat([tensor.narrow(dim, first, rows) for first, rows in _ends(length, size, rank)], dim)


def _group_of(op, mesh):
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"{op}: mesh is {type(mesh).__name__} (expected a DeviceMesh)")
    if mesh.ndim != 1:
        raise ValueError(f"{op}: mesh has {mesh.ndim} dimensions (expected 1, as mesh['cp'] has)")
    return _member(op, mesh.get_group())


def _member(op, group):
    group = for_call(group)
    if group.size < 0:
        raise ValueError(f"{op}: this rank is not in the group (expected one of its ranks)")
    return group


def _listed(op, name, value):
    if value is None:
        return []
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise TypeError(f"{op}: {name} is {type(value).__name__} (expected a list)")
    return list(value)


def _checked_dims(op, buffers, dims, dims_name):
    """The dims of the sequence, from 0 on. Raises TypeError, ValueError or IndexError for what does not fit."""
    if len(buffers) != len(dims):
        raise ValueError(
            f"{op}: `{dims_name}` must have the same number of elements as `buffers`: got {len(dims)} (expected {len(buffers)})"
        )
    checked = []
    for number, (buffer, dim) in enumerate(zip(buffers, dims, strict=True)):
        if not isinstance(buffer, _C.Tensor):
            raise TypeError(f"{op}: buffer {number} is {type(buffer).__name__} (expected a Tensor)")
        if not isinstance(dim, int):
            raise TypeError(f"{op}: {dims_name}[{number}] is {type(dim).__name__} (expected an int)")
        if not -buffer.dim() <= dim < buffer.dim():
            raise IndexError(
                f"{op}: {dims_name}[{number}] is {dim} (expected {-buffer.dim()} to {buffer.dim() - 1}, for shape {tuple(buffer.shape)})"
            )
        checked.append(dim % buffer.dim())
    return checked


# ---- ring attention ----


class _RingAttention(Function):
    @staticmethod
    def forward(ctx, group, scale, is_causal, query, key, value):
        ctx.group, ctx.how = group, (scale, is_causal, _rotated)
        out, lse, ctx.keys = _C.ring_attention(group, (query, key, value), *ctx.how)
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        tensors = (*ctx.saved_tensors, grad)
        return None, None, None, *_C.ring_attention_grad(ctx.group, tensors, *ctx.how, ctx.keys)


def _four_dims(op, query, key, value, enable_gqa):
    """The tensors as [B, H, T, E], whose leading dimensions have become one batch; and the shape of the result."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, _C.Tensor):
            raise TypeError(f"{op}: {name} is {type(x).__name__} (expected a Tensor)")
    ndim, shapes = query.dim(), [tuple(x.shape) for x in (query, key, value)]
    good = ndim >= 2 and key.dim() == value.dim() == ndim
    good = good and shapes[0][:-3] == shapes[1][:-3] == shapes[2][:-3] and shapes[1][:-1] == shapes[2][:-1]
    good = good and (ndim == 2 or shapes[0][-3] == shapes[1][-3] or enable_gqa)
    if not good:
        raise _C.ShapeError(
            f"{op}: query has shape {shapes[0]}, key {shapes[1]}, value {shapes[2]} (expected [..., H, T, E], [..., H, S, E], "
            f"[..., H, S, Ev]{', and an H of the query that is a multiple of the others' if enable_gqa else ''})"
        )
    batch = math.prod(shapes[0][:-3])
    four = [x.reshape(batch, x.shape[-3] if ndim > 2 else 1, *x.shape[-2:]) for x in (query, key, value)]
    return four, (*shapes[0][:-1], shapes[2][-1])


def _scale_of(query, scale):
    return 1 / math.sqrt(query.shape[-1] or 1) if scale is None else float(scale)


@in_low
def ring_attention(query, key, value, group=None, *, is_causal=False, scale=None, enable_gqa=False):
    """scaled_dot_product_attention over the rows of all ranks of the group, of which each gives its own and gets its own
    rows of the result. All ranks call it together, and call backward together.

    query [..., H, T, E], key [..., H, S, E] and value [..., H, S, Ev]; T and S may differ between ranks. With is_causal a
    rank has the chunks r and 2 W - 1 - r of 2 W chunks of the sequence, one behind the other (context_parallel cuts so):
    then all ranks have as much to do. Chunks differ by one row at most, the first ones are longer. A rank keeps its rows
    and a log-sum-exp for backward. set_rotate_method says how keys and values travel. The order of sums is fixed, so the
    bits of the result do not depend on the transport. enable_gqa: key and value may have fewer heads.

    Raises ShapeError, DTypeError or ValueError for arguments that do not fit, CommMismatch if those of another rank do
    not, PeerFailed if a rank dies. Liu et al., arXiv 2310.01889.

    Cost: gathered, one all_gather of keys and values, and in backward another one and a reduce_scatter of their
    gradients; rotated, W - 1 messages of each, one remote block at a time.

    >>> import pydist
    >>> from pydist.distributed.tensor.experimental import ring_attention
    >>> def work(rank):
    ...     x = pydist.tensor([[0.0], [3.0]] if rank == 0 else [[1.0], [2.0]]).view(1, 1, 2, 1)
    ...     return ring_attention(x * 0, x, x, is_causal=True).flatten().tolist()
    >>> pydist.testing.run_ranks(2, work)
    [[0.0, 1.5], [0.5, 1.0]]
    """
    tensors, shape = _four_dims("ring_attention", query, key, value, enable_gqa)
    group = _member("ring_attention", group)
    out = _RingAttention.apply(group, _scale_of(query, scale), bool(is_causal), *tensors)
    return out if query.dim() == 4 else out.reshape(shape)


def _attend_over(group):
    """What computes scaled_dot_product_attention inside context_parallel."""

    def attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
        op = "scaled_dot_product_attention: inside context_parallel"
        if attn_mask is not None:
            raise ValueError(f"{op}: attn_mask has shape {tuple(attn_mask.shape)} (expected None, or is_causal=True)")
        if dropout_p:
            raise ValueError(f"{op}: dropout_p is {dropout_p} (expected 0: no rank has all probabilities of a row)")
        return ring_attention(query, key, value, group, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)

    return attend


def set_rotate_method(rotate_method):
    """How keys and values reach the other ranks in ring attention, the same on all ranks. "allgather", which holds from
    the start: a rank gathers those of all ranks, for one layer at a time. "alltoall": they go round the ranks, and a rank
    holds one remote block and the next one. Both have the same bits; only gradients of keys and values are summed in
    another order. NotImplementedError: another word.

    >>> from pydist.distributed.tensor.experimental import set_rotate_method
    >>> set_rotate_method("allgather")
    """
    global _rotated
    if rotate_method not in ("allgather", "alltoall"):
        raise NotImplementedError(f"set_rotate_method: got {rotate_method!r} (expected 'allgather' or 'alltoall')")
    _rotated = rotate_method == "alltoall"


# ---- buffers ----


def _checked_buffers(buffers, dims, kept):
    op = "context_parallel"
    dims = _checked_dims(op, buffers, dims, "buffer_seq_dims")
    for number, (buffer, dim) in enumerate(zip(buffers, dims, strict=True)):
        if buffer.requires_grad:
            raise ValueError(f"{op}: buffer {number} requires grad (expected one that does not)")
        if any(buffer is other for other in buffers[:number]):
            raise ValueError(f"{op}: buffer {number} is there twice (expected each buffer once)")
        if buffer.shape[dim] < buffers[0].shape[dims[0]]:
            raise ValueError(
                f"{op}: buffer {number} has {buffer.shape[dim]} rows (expected at least {buffers[0].shape[dims[0]]}, as the "
                "first buffer has)"
            )
    for buffer in kept:
        if not any(buffer is other for other in buffers):
            raise ValueError(
                f"{op}: `no_restore_buffers` must be a subset of `buffers`: got another tensor (expected tensors of buffers)"
            )
    return dims


@contextmanager
def context_parallel(mesh, *, buffers=None, buffer_seq_dims=None, no_restore_buffers=None):
    """A block in which each rank of a mesh of one dimension has its part of a sequence, and in which this thread's
    scaled_dot_product_attention knows the keys of all ranks (ring_attention). Forward and backward run inside.

    `buffers`, such as ids, labels and tables of positions, have all rows before, on each rank the same. Inside they have
    this rank's along the dims `buffer_seq_dims`: chunks r and 2 W - 1 - r of 2 W chunks, so that causal attention gives
    all ranks as much to do. A sequence that cannot be cut evenly gives the first chunks one row more; a loss that is a
    mean then needs weights. The first buffer says how long the sequence is; of a longer table its first rows are taken.
    At the end, also after an exception, they have again what they had, except those in `no_restore_buffers`. Memory that
    others see of a buffer does not change: a buffer gets other memory for the block's time.

    scaled_dot_product_attention takes no attn_mask and no dropout inside. Raises TypeError, ValueError or IndexError for
    arguments that do not fit; no buffer has changed then. PyTorch: torch.distributed.tensor.experimental.

    >>> import pydist
    >>> from pydist.distributed.tensor import init_device_mesh
    >>> from pydist.distributed.tensor.experimental import context_parallel
    >>> def work(rank):
    ...     mesh, ids = init_device_mesh("cpu", (2,)), pydist.arange(6)
    ...     with context_parallel(mesh, buffers=[ids], buffer_seq_dims=[0]):
    ...         return ids.tolist()
    >>> pydist.testing.run_ranks(2, work)
    [[0, 1, 5], [2, 3, 4]]
    """
    op = "context_parallel"
    group, buffers = _group_of(op, mesh), _listed(op, "buffers", buffers)
    kept = _listed(op, "no_restore_buffers", no_restore_buffers)
    dims = _checked_buffers(buffers, _listed(op, "buffer_seq_dims", buffer_seq_dims), kept)
    length = buffers[0].shape[dims[0]] if buffers else 0
    parts = [_part(b.data, dim, length, group.size, group.rank) for b, dim in zip(buffers, dims, strict=True)]
    wholes = [(b, b.data) for b in buffers if not any(b is other for other in kept)]
    try:
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.data = part
        del parts
        with _sdpa.computed_by(_attend_over(group), op):
            yield
    finally:
        for buffer, whole in wholes:
            buffer.data = whole


@no_grad()
def context_parallel_unshard(mesh, buffers, seq_dims, load_balancer=None):
    """A list of whole tensors, on every rank, of parts that have the rows of context_parallel along `seq_dims`: logits,
    losses, keys. Autograd does not record it.

    load_balancer: None, the split of context_parallel; NotImplementedError for another one. Raises ValueError on all
    ranks if the ranks' numbers of rows are not those of a sequence, CommMismatch if the other sizes differ.
    """
    op = "context_parallel_unshard"
    group, buffers = _group_of(op, mesh), _listed(op, "buffers", buffers)
    if load_balancer is not None:
        raise NotImplementedError(f"{op}: load_balancer is {type(load_balancer).__name__} (expected None)")
    dims = _checked_dims(op, buffers, _listed(op, "seq_dims", seq_dims), "seq_dims")
    if not buffers:
        return []
    own = _C.tensor([b.shape[dim] for b, dim in zip(buffers, dims, strict=True)], dtype=_C.int64, device="cpu")
    rows = _C.empty((group.size, len(buffers)), dtype=_C.int64, device="cpu")
    group.all_gather(rows, own)
    return [
        _joined(op, group, number, buffer.detach(), dim, rows[:, number].tolist())
        for number, (buffer, dim) in enumerate(zip(buffers, dims, strict=True))
    ]


def _joined(op, group, number, part, dim, rows):
    size, length = group.size, sum(rows)
    ends = [_ends(length, size, rank) for rank in range(size)]
    if rows != [head[1] + tail[1] for head, tail in ends]:
        raise ValueError(
            f"{op}: buffer {number} has {rows} rows on the ranks (expected parts of a sequence of {length}, as "
            "context_parallel cuts it)"
        )
    shapes = [(*part.shape[:dim], n, *part.shape[dim + 1 :]) for n in rows]
    parts = [_C.empty(shape, dtype=part.dtype, device=part.device) for shape in shapes]
    group.all_gather(parts, part.contiguous())
    heads = [p.narrow(dim, 0, ends[rank][0][1]) for rank, p in enumerate(parts)]
    tails = [p.narrow(dim, ends[rank][0][1], ends[rank][1][1]) for rank, p in enumerate(parts)]
    return _C.cat(heads + tails[::-1], dim)


# ---- Ulysses ----


def _to_heads(x, group, rows):
    """[B, H, t, E], own rows of all heads, becomes [B, H / W, T, E]: all rows of own heads."""
    batch, heads, own, width = x.shape
    x = x.reshape(batch, group.size, heads // group.size, own, width).permute(1, 3, 0, 2, 4)
    x = x.reshape(group.size * own, batch, heads // group.size, width)
    out = _C.empty((sum(rows), *x.shape[1:]), dtype=x.dtype, device=x.device)
    return all_to_all_single(out, x, rows, [own] * group.size, group).permute(1, 2, 0, 3)


def _to_rows(x, group, rows):
    """The way back of _to_heads."""
    batch, heads, _, width = x.shape
    own = rows[group.rank]
    x = x.permute(2, 0, 1, 3).contiguous()
    out = _C.empty((group.size * own, batch, heads, width), dtype=x.dtype, device=x.device)
    out = all_to_all_single(out, x, [own] * group.size, rows, group)
    out = out.reshape(group.size, own, batch, heads, width).permute(2, 0, 3, 1, 4)
    return out.reshape(batch, group.size * heads, own, width)


@in_low
def ulysses_attention(query, key, value, group=None, *, is_causal=False, scale=None, enable_gqa=False):
    """scaled_dot_product_attention over the rows of all ranks of the group, which follow each other in the ranks' order:
    the ranks exchange rows for heads, each attends with all rows of its heads, and they exchange back. All ranks call it
    together, and call backward together. A rank may have any number of rows, the same of query, key and value.

    The number of query heads must be a multiple of the number of ranks. With enable_gqa key and value may have fewer heads;
    if these are no multiple of the number of ranks, they are repeated first. Raises ShapeError for other numbers of heads,
    CommMismatch if shapes differ between ranks, PeerFailed if a rank dies. Jacobs et al., arXiv 2309.14509.

    Cost: an all_to_all of query, key, value and result, and as many in backward.

    >>> import pydist
    >>> from pydist.distributed.tensor.experimental import ulysses_attention
    >>> def work(rank):
    ...     x = pydist.tensor([0.0, 1.0] if rank == 0 else [2.0, 3.0]).view(1, 1, 2, 1).expand(1, 2, 2, 1)
    ...     return ulysses_attention(x * 0, x, x, is_causal=True)[0, 0].flatten().tolist()
    >>> pydist.testing.run_ranks(2, work)
    [[0.0, 0.5], [1.0, 1.5]]
    """
    op = "ulysses_attention"
    group = _member(op, group)
    tensors, shape = _four_dims(op, query, key, value, enable_gqa)
    heads, shared = tensors[0].shape[1], tensors[1].shape[1]
    if heads % group.size or (shared and heads % shared):
        raise _C.ShapeError(
            f"{op}: query has {heads} heads and key {shared} (expected a multiple of {group.size}, the number of ranks, and of "
            "key's heads)"
        )
    if tensors[0].shape[2] != tensors[1].shape[2]:
        raise _C.ShapeError(
            f"{op}: got {tensors[0].shape[2]} queries and {tensors[1].shape[2]} keys (expected as many)"
        )
    if shared % group.size:
        tensors[1:] = [x.repeat_interleave(heads // shared, 1) for x in tensors[1:]]
    rows = _C.empty(group.size, dtype=_C.int64, device="cpu")
    group.all_gather(rows, _C.tensor([tensors[0].shape[2]], dtype=_C.int64, device="cpu"))
    rows = rows.tolist()
    whole = [_to_heads(x, group, rows) for x in tensors]
    out = _C.scaled_dot_product_attention(*whole, None, 0.0, is_causal, _scale_of(query, scale), True)
    return _to_rows(out, group, rows).reshape(shape)
