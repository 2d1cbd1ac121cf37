"""What a checkpoint holds, as data: PyTorch's names."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydist import _C

__all__ = [
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
]


@dataclass(frozen=True)
class ChunkStorageMetadata:
    """A box of a tensor: where it begins along each dimension, and its sizes."""

    offsets: tuple
    sizes: tuple


@dataclass
class TensorProperties:
    """What a tensor has beside its shape."""

    dtype: Any = None
    requires_grad: bool = False

    @staticmethod
    def create_from_tensor(tensor):
        """The properties of this tensor."""
        return TensorProperties(tensor.dtype, tensor.requires_grad)


@dataclass
class TensorStorageMetadata:
    """A stored tensor: dtype, shape, and the boxes in which its values lie."""

    properties: TensorProperties
    size: tuple
    chunks: list


@dataclass
class BytesStorageMetadata:
    """A stored value that is no tensor."""


@dataclass
class StorageMeta:
    """Which checkpoint a planner is asked about."""

    checkpoint_id: str | os.PathLike | None = None
    save_id: str | None = None
    load_id: str | None = None
    modules: list = field(default_factory=list)


@dataclass
class Metadata:
    """All names of a checkpoint. `planner_data`: the path of each name in the nested state."""

    state_dict_metadata: dict
    planner_data: Any = None
    storage_data: Any = None
    storage_meta: StorageMeta | None = None
    version: str | None = None


@dataclass(frozen=True)
class MetadataIndex:
    """A name, and for a box of a tensor where the box begins. `index` is a hint and takes no part in comparisons."""

    fqn: str
    offset: Sequence | None = None
    index: int | None = field(hash=False, compare=False, default=None)

    def __post_init__(self):
        if self.offset is not None:
            object.__setattr__(self, "offset", _C.Size(self.offset))
