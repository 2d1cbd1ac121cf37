"""Batches in page-locked memory, which GPUs read by themselves."""

from collections.abc import Mapping, Sequence

from pydist import _C


def pinned(batch):
    """The batch with its tensors pinned, also inside mappings, sequences and named tuples. An object with a method
    pin_memory is replaced by its result."""
    if isinstance(batch, _C.Tensor) or hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        return type(batch)({key: pinned(value) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(pinned, batch))
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        return type(batch)(map(pinned, batch))
    return batch
