"""The planners that `save` and `load` use. Programs derive theirs from them."""

import io

from pydist import _C
from pydist.distributed.checkpoint._tree import decode, encode, flatten, put
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.layout import TensorPart, as_part, meet, wanted, written
from pydist.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from pydist.distributed.checkpoint.planner import (
    BytesIOWriteData,
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

__all__ = ["DefaultLoadPlanner", "DefaultSavePlanner"]


def _is_tensor(value):
    return isinstance(value, (_C.Tensor, TensorPart))


def _is_number(value):
    """Whether it is a tensor that can take a number."""
    return isinstance(value, _C.Tensor) and value.shape == () and _C.spread_of(value) is None


def _plain(state):
    """The state by its own keys, for planners that do not flatten."""
    return dict(state), {key: (key,) for key in state}


class DefaultSavePlanner(SavePlanner):
    """Saves every value under the keys that lead to it, with dots between them.

    flatten_state_dict=False: the state has no nested tensors, and keys stay as they are. allow_pickle: values that are
    neither tensors nor numbers, text, bytes or containers of these are pickled; without it they are an error.

    A planner that writes 16-bit numbers:

    >>> import os, pydist, tempfile
    >>> from pydist.distributed import checkpoint
    >>> class Half(checkpoint.DefaultSavePlanner):
    ...     def transform_object(self, write_item, object):
    ...         object = super().transform_object(write_item, object)
    ...         return object.half() if isinstance(object, pydist.Tensor) else object
    >>> path = os.path.join(tempfile.mkdtemp(), "half")
    >>> _ = checkpoint.save({"w": pydist.ones(2, 3)}, checkpoint_id=path, planner=Half())
    >>> checkpoint.FileSystemReader(path).read_metadata().state_dict_metadata["w"].properties.dtype
    pydist.float16
    """

    def __init__(
        self,
        flatten_state_dict=True,
        flatten_sharded_tensors=True,
        dedup_replicated_tensors=None,
        dedup_save_to_lowest_rank=False,
        enable_plan_caching=False,
        *,
        allow_pickle=False,
    ):
        self.flatten_state_dict, self.allow_pickle = flatten_state_dict, allow_pickle
        self.dedup_save_to_lowest_rank = dedup_save_to_lowest_rank
        self.holders = None  # {name: ranks} of plain tensors, where ranks have different ones

    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        """Takes the state."""
        self.state_dict, self.mappings = (flatten if self.flatten_state_dict else _plain)(state_dict)
        self.is_coordinator = is_coordinator

    def create_local_plan(self):
        """What this rank writes: a share of the rows of each tensor, its parts of others, and all values that are no
        tensors, which are small."""
        tensors = {name: value for name, value in self.state_dict.items() if _is_tensor(value)}
        boxes, self._boxes, self._bytes, items = written(tensors, self.rank, self.ranks, self.holders), {}, {}, []
        for name, offsets, tensor, shape in boxes:
            kind = WriteItemType.SHARD if tensor.shape != shape else WriteItemType.TENSOR
            box = ChunkStorageMetadata(offsets, tuple(tensor.shape))
            data = TensorWriteData(box, TensorProperties.create_from_tensor(tensor), shape)
            items.append(WriteItem(MetadataIndex(name, offsets), kind, tensor_data=data))
            self._boxes[items[-1].index] = tensor
        for name, value in self.state_dict.items():
            if not _is_tensor(value):
                data = self._bytes[name] = encode(name, value, self.allow_pickle)
                items.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO, BytesIOWriteData(len(data))))
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def listing(self):
        """{name: dtype and shape} of the plain tensors of this rank."""
        found = {}
        for name, value in self.state_dict.items():
            if _is_tensor(value) and not isinstance(as_part(value), TensorPart):
                found[name] = f"{value.dtype} of shape {tuple(value.shape)}"
        return found

    def finish_plan(self, new_plan):
        """The plan as it is."""
        self.plan = new_plan
        return new_plan

    def lookup_object(self, index):
        """The box of this name and these offsets; the value of a name without offsets."""
        return self.state_dict[index.fqn] if index.offset is None else self._boxes[index]

    def transform_object(self, write_item, object):
        """What is written for a value. The shape of a tensor has to stay."""
        if write_item.type is WriteItemType.BYTE_IO:
            return io.BytesIO(self._bytes[write_item.index.fqn])
        return object

    def resolve_data(self, write_item):
        """The tensor, or an io.BytesIO, of this item."""
        return self.transform_object(write_item, self.lookup_object(write_item.index))


class DefaultLoadPlanner(LoadPlanner):
    """Reads every value of the state from the name that DefaultSavePlanner gave it.

    allow_partial_load: names of the state that the checkpoint does not have keep their values; without it they are an
    error. Names that only the checkpoint has are not read. allow_pickle: pickles of a checkpoint, which can run any code,
    are loaded.
    """

    def __init__(
        self, flatten_state_dict=True, flatten_sharded_tensors=True, allow_partial_load=False, *, allow_pickle=False
    ):
        self.flatten_state_dict, self.allow_partial_load = flatten_state_dict, allow_partial_load
        self.allow_pickle = allow_pickle

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        """Takes the state, into which `load` reads, and what the checkpoint holds."""
        self.original_state_dict, self.metadata = state_dict, metadata
        self.state_dict, self.mappings = (flatten if self.flatten_state_dict else _plain)(state_dict)
        self.is_coordinator = is_coordinator

    def create_local_plan(self):
        """What this rank reads: of each tensor the stored boxes that it meets."""
        items, self._boxes, missing = [], {}, []
        for name, value in self.state_dict.items():
            stored = self.metadata.state_dict_metadata.get(name)
            if stored is None:
                if _is_tensor(value) or value != {}:  # PyTorch does not save empty dicts
                    missing.append(name)
            elif isinstance(stored, BytesStorageMetadata) == _is_tensor(value) and not _is_number(value):
                raise CheckpointException(
                    f"load: {name!r} is {'a tensor' if _is_tensor(value) else type(value).__name__} in the state, but "
                    f"{'no tensor' if _is_tensor(value) else 'a tensor'} in the checkpoint"
                )
            elif not isinstance(stored, BytesStorageMetadata):
                items += self._tensor_items(name, value, stored)
            else:
                items.append(ReadItem(LoadItemType.BYTE_IO, MetadataIndex(name), (0,), MetadataIndex(name), (0,), (0,)))
        if missing and not self.allow_partial_load:
            raise CheckpointException(
                f"load: Missing key in checkpoint state_dict: {', '.join(map(repr, missing[:5]))}"
                f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''} (expected allow_partial_load=True, or a state "
                "with the names that the checkpoint has)"
            )
        return LoadPlan(items)

    def _tensor_items(self, name, value, stored):
        boxes, shape = wanted(value)
        if tuple(shape) != tuple(stored.size):
            raise CheckpointException(
                f"load: Size mismatch between saved {tuple(stored.size)} and current: {tuple(shape)} for {name!r}"
            )
        for offsets, tensor in boxes:
            index = MetadataIndex(name, offsets)
            self._boxes[index] = tensor
            for chunk in stored.chunks:
                shared = meet((offsets, tuple(tensor.shape)), (chunk.offsets, chunk.sizes))
                if shared:
                    begin, lengths = shared
                    to = tuple(b - o for b, o in zip(begin, offsets, strict=True))
                    at = tuple(b - o for b, o in zip(begin, chunk.offsets, strict=True))
                    yield ReadItem(LoadItemType.TENSOR, index, to, MetadataIndex(name, chunk.offsets), at, lengths)

    def finish_plan(self, central_plan):
        """The plan as it is."""
        return central_plan

    def load_bytes(self, read_item, value):
        """Replaces the value in the state. A tensor without dimensions takes a number, such as a step count."""
        name = read_item.dest_index.fqn
        data = decode(name, value.read(), self.allow_pickle)
        here = self.state_dict[name]
        if _is_number(here):
            if type(data) not in (int, float):
                raise CheckpointException(
                    f"load: {name!r} is a tensor in the state, but {type(data).__name__} in the checkpoint (expected a number)"
                )
            here.detach().fill_(data)
            return
        self.state_dict[name] = data
        put(self.original_state_dict, self.mappings[name], data)

    def lookup_tensor(self, index):
        """The box of the state with this name and these offsets."""
        return self._boxes[index]

    def transform_tensor(self, read_item, tensor):
        """The part of a box into which this item is read."""
        for dim, (begin, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            tensor = tensor.narrow(dim, begin, length)
        return tensor

    def resolve_tensor(self, read_item):
        """The tensor into which this item is read."""
        return self.transform_tensor(read_item, self.lookup_tensor(read_item.dest_index))

    def commit_tensor(self, read_item, tensor):
        """Does nothing: the values are in the state."""
