"""Making one batch from a list of items."""

from collections.abc import Mapping, MutableMapping, Sequence
from copy import copy

from pydist import _C


def _is_numpy(value):
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")  # without importing NumPy


def _rebuild(like, values):
    """`values` as a sequence with the type of `like`: named tuples keep their type, other sequences become lists."""
    return type(like)(*values) if hasattr(like, "_fields") else list(values)


def default_convert(data):
    """Converts NumPy arrays and scalars inside `data` to tensors. Everything else stays as it is."""
    if isinstance(data, _C.Tensor):
        return data
    if _is_numpy(data):
        return data if data.dtype.kind in "SU" else _C.as_tensor(data, device="cpu")
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _rebuild(data, map(default_convert, data))
    return data


def default_collate(batch):
    """Stacks tensors and arrays of equal shapes, makes tensors of numbers (int64, float64, bool), and does so inside
    mappings and sequences. Text stays as it is.

    Raises TypeError for other types, RuntimeError for sequences of different lengths.

    >>> batch = default_collate([{"x": 1.5, "name": "a"}, {"x": 2.5, "name": "b"}])
    >>> batch["x"].tolist(), batch["name"]
    ([1.5, 2.5], ['a', 'b'])
    """
    first = batch[0]
    if isinstance(first, _C.Tensor):
        return _C.stack(batch)
    if _is_numpy(first) and first.dtype.kind not in "SUO":
        return _C.stack([_C.as_tensor(item, device="cpu") for item in batch])
    if isinstance(first, (bool, int)):
        return _C.tensor(batch, device="cpu")
    if isinstance(first, float):
        return _C.tensor(batch, dtype=_C.float64, device="cpu")
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        made = {key: default_collate([item[key] for item in batch]) for key in first}
        if type(first) is dict or not isinstance(first, MutableMapping):
            return made
        like = copy(first)  # keeps its type and its other attributes
        like.update(made)
        return like
    if isinstance(first, Sequence):
        if any(len(item) != len(first) for item in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        return _rebuild(first, map(default_collate, zip(*batch)))
    raise TypeError(
        f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {type(first)}"
    )
