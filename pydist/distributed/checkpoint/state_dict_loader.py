"""load."""

import pydist
from pydist import _C
from pydist.distributed._group.process_group import get_rank, get_world_size, is_initialized
from pydist.distributed.checkpoint._sharing import Sharing, are_to_share
from pydist.distributed.checkpoint._tree import flatten, nest
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.default_planner import DefaultLoadPlanner
from pydist.distributed.checkpoint.filesystem import FileSystemReader
from pydist.distributed.checkpoint.layout import TensorPart
from pydist.distributed.checkpoint.metadata import TensorStorageMetadata
from pydist.distributed.checkpoint.stateful import check_state, is_stateful, plain

__all__ = ["load", "load_state_dict"]


def load(
    state_dict,
    *,
    checkpoint_id=None,
    storage_reader=None,
    planner=None,
    process_group=None,
    no_dist=False,
    share="auto",
):
    """Loads a checkpoint into a state, in place: tensors get new values, other values are replaced, and objects with
    load_state_dict() get theirs: a module what its own state_dict() has, any other object, such as an optimizer that has
    not stepped yet, all that was saved of it. See save for an example.

    state_dict: the values that are wanted; a name that the checkpoint does not have is an error, names that only the
    checkpoint has are not read. Each rank reads what it wants: the number of ranks and the parts that they hold may
    differ from those that saved. checkpoint_id: any checkpoint that FileSystemReader knows. Each block of 4 MiB that is
    read is checked. share=True: one rank reads a tensor that all ranks want as a whole, and sends it to the others, so
    that a slow file system is read once; "auto" does so if the ranks are on several hosts. Then all ranks call load
    alike. share=False: no rank waits for another one. Raises CheckpointException, after which tensors of the state may
    have any values.
    """
    if share not in (True, False, "auto"):
        raise ValueError(f"load: share is {share!r} (expected True, False or 'auto')")
    if storage_reader is None:
        if checkpoint_id is None:
            raise ValueError("load: got neither checkpoint_id nor storage_reader (expected one of them)")
        storage_reader = FileSystemReader(checkpoint_id)
    if not isinstance(storage_reader, FileSystemReader):
        raise TypeError(f"load: storage_reader is {type(storage_reader).__name__} (expected FileSystemReader)")
    check_state(state_dict, "load")
    planner, state, sharing = planner or DefaultLoadPlanner(), plain(state_dict), None
    if not no_dist and (process_group is not None or is_initialized()):
        planner.rank, planner.ranks = get_rank(process_group), get_world_size(process_group)
        if are_to_share(share, planner, process_group):
            sharing = Sharing(process_group)
    failure = None
    try:
        about = storage_reader.read_metadata()
        for key, value in state_dict.items():
            if is_stateful(value) and not hasattr(value, "named_parameters"):
                state[key] = _as_saved(key, state[key], about)
        planner.set_up_planner(state, about, planner.rank == 0)
        plan = planner.finish_plan(planner.create_local_plan())
        storage_reader.read_data(sharing.mine(plan, planner) if sharing else plan, planner)
    except OSError as error:
        failure = CheckpointException(f"load: {error}", {planner.rank: error})
        failure.__cause__ = error
    except Exception as error:
        failure = error
    if sharing:
        sharing.finish(failure, storage_reader, planner)
    elif failure:
        raise failure
    for key, value in state_dict.items():
        if is_stateful(value):
            value.load_state_dict(state[key])
        else:
            state_dict[key] = state[key]


def load_state_dict(state_dict, storage_reader, process_group=None, coordinator_rank=0, no_dist=False, planner=None):
    """PyTorch's old name of load."""
    load(state_dict, storage_reader=storage_reader, planner=planner, process_group=process_group, no_dist=no_dist)


def _as_saved(key, state, about):
    """The nested state of an object as the checkpoint has it, to be read into: tensors of `state` where they fit."""
    paths = {name: path for name, path in (about.planner_data or {}).items() if path[0] == key and len(path) > 1}
    if not paths:
        return state
    mine, _ = flatten({key: state})
    flat = {}
    for name in paths:
        stored, flat[name] = about.state_dict_metadata.get(name), mine.get(name)
        if isinstance(stored, TensorStorageMetadata):
            here = flat[name] if isinstance(flat[name], (_C.Tensor, TensorPart)) else None
            if here is None or tuple(here.shape) != tuple(stored.size):
                flat[name] = pydist.empty(stored.size, dtype=stored.properties.dtype, device="cpu")
        elif stored is None or isinstance(flat[name], (_C.Tensor, TensorPart)):
            flat[name] = None
    return nest({name: value for name, value in flat.items() if name in about.state_dict_metadata}, paths)[key]
