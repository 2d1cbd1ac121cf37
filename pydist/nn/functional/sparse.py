"""Rows of tables by their indices."""

import warnings

from pydist import _C
from pydist._functions.select import searchsorted
from pydist._grad_mode import no_grad
from pydist._replay import in_python


def _limit_rows(weight, indices, max_norm, norm_type):
    """Scales down, in place, the rows of weight at indices whose norm is greater than max_norm."""
    with no_grad():
        rows = indices.reshape(-1).unique()
        chosen = weight.detach()[rows]
        size = chosen.norm(norm_type, 1, keepdim=True)
        weight.detach()[rows] = chosen * _C.where(size > max_norm, max_norm / (size + 1e-7), 1.0)


def _by_frequency(found, indices, rows):
    """found, whose gradient is divided by the number of times that its index occurs in indices."""
    counts = indices.reshape(-1).bincount(minlength=rows)[indices].unsqueeze(-1)
    return found.detach() + (found - found.detach()) / counts


def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """The rows of weight[rows, columns] at the indices input (int64 or int32, any shape). Row padding_idx gets no
    gradient. max_norm: rows with a greater norm are scaled down first, in weight itself. scale_grad_by_freq: gradients
    are divided by the number of times that their row occurs in input. Gradients are dense, even with `sparse`."""
    if max_norm is not None:
        _limit_rows(weight, input, max_norm, norm_type)
    found = _C.embedding(weight, input, padding_idx)
    return _by_frequency(found, input, weight.shape[0]) if scale_grad_by_freq else found


def embedding_bag(
    input,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """The "mean", "sum" or "max" of the rows of weight in each bag of indices: a row of input[bags, n], or the part of
    the vector input between two offsets. Empty bags give zeros; padding_idx does not count. Gradients are dense, even
    with `sparse`. The older order (weight, input, ...) works, too, with a warning. See nn.EmbeddingBag."""
    if weight.dtype in (_C.int64, _C.int32) and input.is_floating_point():
        warnings.warn(
            "embedding_bag: got (weight, input, ...), the order of older versions of PyTorch (expected (input, weight, "
            "...))",
            stacklevel=2,
        )
        input, weight = weight, input
    if mode not in ("mean", "sum", "max"):
        raise ValueError(f"embedding_bag: mode has to be one of sum, mean or max, got {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            f"embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' (got mode='{mode}')."
        )
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated as a mini-batch of fixed length "
                "sequences."
            )
        bags, each = input.shape
        offsets = (
            _C.arange(0, bags * each, each, device=input.device)
            if each
            else _C.zeros(bags, dtype=_C.int64, device=input.device)
        )
    elif input.dim() != 1 or offsets is None or offsets.dim() != 1:
        raise ValueError(f"embedding_bag: input has {input.dim()} dims (expected 2, or 1 with offsets of 1 dim)")
    else:
        offsets = offsets[:-1] if include_last_offset else offsets
        if offsets.numel() and not offsets.is_meta and (offsets[0].item() != 0 or offsets[-1].item() > input.numel()):
            raise ValueError(
                "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0."
            )
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ValueError(
            f"embedding_bag: per_sample_weights has shape {tuple(per_sample_weights.shape)} (expected {tuple(input.shape)})"
        )
    indices, count = input.reshape(-1), offsets.numel()
    if max_norm is not None:
        _limit_rows(weight, indices, max_norm, norm_type)
    bag = searchsorted(offsets, _C.arange(indices.numel(), device=input.device), right=True) - 1
    if padding_idx is not None:
        kept = indices != padding_idx % weight.shape[0]
        indices, bag = indices[kept], bag[kept]
        per_sample_weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)[kept]
    rows = _C.embedding(weight, indices)
    rows = _by_frequency(rows, indices, weight.shape[0]) if scale_grad_by_freq else rows
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    out = _C.zeros(count, weight.shape[1], dtype=weight.dtype, device=weight.device)
    if mode == "max":
        return out.scatter_reduce(0, bag.unsqueeze(1).expand(rows.shape), rows, "amax", include_self=False)
    out = out.index_add(0, bag, rows)
    return out if mode == "sum" else out / bag.bincount(minlength=count).clamp(1).unsqueeze(1)


@in_python
def _check_classes(tensor, num_classes):
    if tensor.min().item() < 0:
        raise _C.ArgumentError(f"one_hot: index {tensor.min().item()} is negative (expected 0 or more)")
    if tensor.max().item() >= num_classes:
        raise _C.ArgumentError(
            f"one_hot: index {tensor.max().item()} is out of range (expected 0 to {num_classes - 1})"
        )


def one_hot(tensor, num_classes=-1):
    """int64 zeros [..., num_classes] with a 1 at each index of tensor [...]. num_classes -1: one more than the largest
    index."""
    if tensor.dtype != _C.int64:
        raise _C.DTypeError(f"one_hot: tensor is {tensor.dtype} (expected int64)")
    if num_classes < 0:
        if not tensor.numel():
            raise _C.ArgumentError("one_hot: the tensor is empty, so num_classes is unknown (expected num_classes)")
        num_classes = tensor.max().item() + 1
    if tensor.numel() and not tensor.is_meta:
        _check_classes(tensor, num_classes)
    return (tensor.unsqueeze(-1) == _C.arange(num_classes, device=tensor.device)).long()
