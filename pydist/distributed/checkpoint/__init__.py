"""Checkpoints that all ranks write and read together, with the names of torch.distributed.checkpoint.

    save        the state as a folder of safetensors files; each rank writes a share
    async_save  the same while training goes on
    load        into any number of ranks, and any parts of tensors
    CheckpointManager  which steps to save, which to keep, and the newest one to go on from

A checkpoint is whole or absent, whatever crashes; each block of it has a checksum; PyTorch and the safetensors package
read it. docs/guide/checkpoints.md explains it and its files.
"""

from pydist.distributed.checkpoint import state_dict
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from pydist.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, StorageReader, StorageWriter
from pydist.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from pydist.distributed.checkpoint.layout import TensorPart
from pydist.distributed.checkpoint.manager import CheckpointManager
from pydist.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from pydist.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from pydist.distributed.checkpoint.state_dict_loader import load, load_state_dict
from pydist.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
    save,
    save_state_dict,
)
from pydist.distributed.checkpoint.stateful import Stateful

__all__ = [
    "AsyncCheckpointerType",
    "AsyncSaveResponse",
    "BytesStorageMetadata",
    "CheckpointException",
    "CheckpointManager",
    "ChunkStorageMetadata",
    "DefaultLoadPlanner",
    "DefaultSavePlanner",
    "FileSystemReader",
    "FileSystemWriter",
    "HuggingFaceStorageReader",
    "HuggingFaceStorageWriter",
    "LoadPlan",
    "LoadPlanner",
    "Metadata",
    "ReadItem",
    "SavePlan",
    "SavePlanner",
    "Stateful",
    "StorageReader",
    "StorageWriter",
    "TensorPart",
    "TensorStorageMetadata",
    "WriteItem",
    "async_save",
    "load",
    "load_state_dict",
    "save",
    "save_state_dict",
    "state_dict",
]
