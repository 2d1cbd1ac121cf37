"""Rows of tables by their numbers."""

from pydist import _C


def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False
):
    """The rows of weight[rows, columns] at the indices input (int64 or int32, any shape); the row padding_idx gets no
    gradient. Raises NotImplementedError for max_norm, scale_grad_by_freq and sparse."""
    for name, value in (("max_norm", max_norm), ("scale_grad_by_freq", scale_grad_by_freq), ("sparse", sparse)):
        if value:
            raise NotImplementedError(f"embedding: {name}={value} is not supported")
    return _C.embedding(weight, input, padding_idx)


def one_hot(tensor, num_classes=-1):
    """int64 zeros [..., num_classes] with a 1 at each index of tensor [...]; -1: one more than the largest index."""
    if tensor.dtype != _C.int64:
        raise TypeError(f"one_hot: tensor is {tensor.dtype} (expected int64)")
    if tensor.numel() and tensor.min().item() < 0:
        raise ValueError(f"one_hot: index {tensor.min().item()} is negative")
    if num_classes < 0:
        if not tensor.numel():
            raise ValueError("one_hot: num_classes of an empty tensor is not known")
        num_classes = tensor.max().item() + 1
    elif tensor.numel() and tensor.max().item() >= num_classes:
        raise ValueError(f"one_hot: index {tensor.max().item()} is out of range (expected 0 to {num_classes - 1})")
    return (tensor.unsqueeze(-1) == _C.arange(num_classes)).long()
