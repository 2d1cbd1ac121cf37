"""Checkpoints of all ranks as one .pt file, and back."""

import pydist
from pydist.distributed.checkpoint._tree import nest
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.default_planner import DefaultLoadPlanner
from pydist.distributed.checkpoint.filesystem import FileSystemReader
from pydist.distributed.checkpoint.metadata import BytesStorageMetadata
from pydist.distributed.checkpoint.state_dict_loader import load
from pydist.distributed.checkpoint.state_dict_saver import save

__all__ = ["dcp_to_torch_save", "load_whole", "torch_save_to_dcp"]


def load_whole(path):
    """The whole nested state of a checkpoint, in the memory of this process."""
    reader = FileSystemReader(path)
    about = reader.read_metadata()
    flat = {
        name: None
        if isinstance(stored, BytesStorageMetadata)
        else pydist.empty(stored.size, dtype=stored.properties.dtype, device="cpu")
        for name, stored in about.state_dict_metadata.items()
    }
    load(flat, storage_reader=reader, planner=DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)
    return nest(flat, about.planner_data or {})


def dcp_to_torch_save(dcp_checkpoint_dir, torch_save_path):
    """Writes the whole state of a checkpoint as one .pt file. One process calls it."""
    pydist.save(load_whole(dcp_checkpoint_dir), torch_save_path)


def torch_save_to_dcp(torch_save_path, dcp_checkpoint_dir):
    """Writes the state in a .pt file as a checkpoint. One process calls it."""
    state = pydist.load(torch_save_path)
    if not isinstance(state, dict):
        raise CheckpointException(f"{torch_save_path}: it has a {type(state).__name__} (expected a dict, the state)")
    save(state, checkpoint_id=dcp_checkpoint_dir, no_dist=True)
