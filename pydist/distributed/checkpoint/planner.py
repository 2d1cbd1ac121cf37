"""Plans: which boxes a rank writes or reads. The names are PyTorch's.

`save` calls set_up_planner, create_local_plan, finish_plan, then resolve_data for each item; `load` calls
set_up_planner, create_local_plan, finish_plan, then load_bytes or resolve_tensor and commit_tensor for each item. Each rank
computes its plan alone. So create_global_plan is not called: no plan travels between ranks.
"""

import abc
import io
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from pydist.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties

__all__ = [
    "BytesIOWriteData",
    "LoadItemType",
    "LoadPlan",
    "LoadPlanner",
    "ReadItem",
    "SavePlan",
    "SavePlanner",
    "TensorWriteData",
    "WriteItem",
    "WriteItemType",
]


class WriteItemType(Enum):
    """Of a WriteItem: a whole tensor, a box of one, or another value."""

    TENSOR = auto()
    SHARD = auto()
    BYTE_IO = auto()


class LoadItemType(Enum):
    """Of a ReadItem: a box of a tensor, or another value."""

    TENSOR = auto()
    BYTE_IO = auto()


@dataclass(frozen=True)
class BytesIOWriteData:
    """The size of a value that is no tensor."""

    nbytes: int


@dataclass(frozen=True)
class TensorWriteData:
    """A box of a tensor, and the size of the whole."""

    chunk: ChunkStorageMetadata
    properties: TensorProperties
    size: tuple


@dataclass(frozen=True)
class WriteItem:
    """What is written: a box of a tensor, or another value."""

    index: MetadataIndex
    type: WriteItemType
    bytes_io_data: BytesIOWriteData | None = None
    tensor_data: TensorWriteData | None = None


@dataclass(frozen=True)
class ReadItem:
    """What is read: `lengths` elements along each dimension, from `storage_offsets` in the stored box to `dest_offsets` in
    the box of the state."""

    type: LoadItemType
    dest_index: MetadataIndex
    dest_offsets: tuple
    storage_index: MetadataIndex
    storage_offsets: tuple
    lengths: tuple


@dataclass(frozen=True)
class SavePlan:
    """What a rank writes."""

    items: list
    storage_data: Any = None
    planner_data: Any = None
    usable: bool = True


@dataclass
class LoadPlan:
    """What a rank reads."""

    items: list
    storage_data: Any = None
    planner_data: Any = None


class SavePlanner(abc.ABC):
    """What a rank writes of a state. `rank` and `ranks` are set before set_up_planner. See DefaultSavePlanner."""

    rank, ranks = 0, 1

    @abc.abstractmethod
    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        """Takes the state."""

    @abc.abstractmethod
    def create_local_plan(self) -> SavePlan:
        """The plan of this rank."""

    def create_global_plan(self, all_plans):
        """The plans of all ranks, as they are. `save` does not call it."""
        return all_plans, None

    @abc.abstractmethod
    def finish_plan(self, new_plan) -> SavePlan:
        """The plan that is carried out."""

    @abc.abstractmethod
    def resolve_data(self, write_item) -> Any:
        """The tensor, or an io.BytesIO, of this item."""


class LoadPlanner(abc.ABC):
    """What a rank reads into a state. `rank` and `ranks` are set before set_up_planner. See DefaultLoadPlanner."""

    rank, ranks = 0, 1

    @abc.abstractmethod
    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        """Takes the state and what the checkpoint holds."""

    @abc.abstractmethod
    def create_local_plan(self) -> LoadPlan:
        """The plan of this rank."""

    def create_global_plan(self, global_plan):
        """The plans of all ranks, as they are. `load` does not call it."""
        return global_plan

    @abc.abstractmethod
    def finish_plan(self, central_plan) -> LoadPlan:
        """The plan that is carried out."""

    @abc.abstractmethod
    def load_bytes(self, read_item, value: io.BytesIO):
        """Puts a value that is no tensor into the state."""

    @abc.abstractmethod
    def resolve_tensor(self, read_item) -> Any:
        """The tensor into which this item is read."""

    @abc.abstractmethod
    def commit_tensor(self, read_item, tensor):
        """Is called when the values are in the tensor that resolve_tensor gave."""
