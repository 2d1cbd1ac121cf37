"""Checkpoints that others wrote: torch.distributed.checkpoint's folders, Hugging Face's, .safetensors and .pt files."""

import io
import json
import os
import re
from math import prod

from pydist import _C, serialization
from pydist.distributed.checkpoint import _format, _tree
from pydist.distributed.checkpoint.api import CheckpointException

_HF_INDEX = "model.safetensors.index.json"
_TORCH = "torch.distributed.checkpoint"


class _Record:
    """An object of PyTorch's metadata: its attributes."""

    def __init__(self, *args):
        pass

    def __setstate__(self, state):
        vars(self).update(state if isinstance(state, dict) else {"dtype": state[0]})


def _kinds():
    """The classes that PyTorch's .metadata may name, as records of ours."""
    names = {
        f"{_TORCH}.metadata": "Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata "
        "TensorProperties StorageMeta _MEM_FORMAT_ENCODING",
        f"{_TORCH}.filesystem": "_StorageInfo _StoragePrefix",
        "torch.serialization": "_get_layout",
        "pathlib": "PosixPath WindowsPath Path",
        "pathlib._local": "PosixPath WindowsPath Path",
    }
    return {f"{module}.{name}": type(name, (_Record,), {}) for module, text in names.items() for name in text.split()}


_KINDS = _kinds()


def index_of(path):
    """The _format.Index of what lies at this path. Raises CheckpointException if it is no checkpoint."""
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, ".metadata")):
            return _torch_folder(path)
        return _hugging_face(path)
    if not os.path.exists(path):
        raise CheckpointException(f"load: there is no checkpoint at {path}")
    index = _format.Index()
    if path.endswith(".safetensors"):
        index.add(path)
        index.check()
        return index
    return _pt_file(path, index)


def _hugging_face(path):
    index, listed, places = _format.Index(), os.path.join(path, _HF_INDEX), {}
    names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    if os.path.exists(listed):
        try:
            with open(listed, "rb") as file:
                places = json.load(file)["weight_map"]
            names = sorted(set(places.values()))
            if not all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}", name) for name in names):
                raise ValueError("it names a file outside of the folder (expected names of files in it)")
        except Exception as error:
            raise CheckpointException(f"{listed}: the index is damaged: {error}") from None
    if not names:
        raise CheckpointException(
            f"load: {path} is no checkpoint: it has no {_format.MANIFEST} (so a save to it was not finished), no .metadata and no "
            "file of safetensors"
        )
    for name in names:
        if not os.path.isfile(os.path.join(path, name)):
            raise CheckpointException(f"{path}: the file {name} is missing, or is no file")
        index.add(os.path.join(path, name))
    if index.save_ids != {None} and not places:
        raise CheckpointException(
            f"load: {path} is no checkpoint: it has files of a save but no {_format.MANIFEST}, so the save was not finished"
        )
    missing = next((name for name in places if name not in index.tensors), None)
    if missing is not None:
        raise CheckpointException(f"{listed}: the tensor {missing!r} is in none of the files")
    index.check()
    return index


def _pt_file(path, index):
    try:
        state = serialization.load(path, map_location="cpu", mmap=False)
    except Exception as error:
        raise CheckpointException(f"{path}: {type(error).__name__}: {error}") from None
    if not isinstance(state, dict):
        raise CheckpointException(f"{path}: it has a {type(state).__name__} (expected a dict, the state)")
    try:
        return _in_memory(path, *_tree.flatten(state), index)
    except Exception as error:  # two values of one name, a dict that has itself
        raise CheckpointException(f"{path}: {type(error).__name__}: {error}") from None


def _in_memory(path, flat, paths, index):
    tensors = {name: value.detach() for name, value in flat.items() if isinstance(value, _C.Tensor)}
    memory = _Memory(path, tensors)
    for name, value in flat.items():
        index.paths[name] = paths[name]
        if name not in tensors:
            index.leaves[name] = _tree.encode(name, value, allow_pickle=True).decode()
            continue
        whole = index.tensors[name] = _format.Whole(value.dtype, tuple(value.shape))
        nbytes = value.numel() * value.element_size()
        whole.boxes.append(_format.Stored(memory, 0, nbytes, (0,) * value.dim(), tuple(value.shape), None))
    return index


class _Memory(dict):
    """{name: tensor}, in the place of a file."""

    def __init__(self, path, tensors):
        super().__init__(tensors)
        self.path = path

    __hash__ = object.__hash__


def box(tensor, begin, sizes):
    """A box of a tensor."""
    for dim, (at, size) in enumerate(zip(begin, sizes, strict=True)):
        tensor = tensor.narrow(dim, at, size)
    return tensor


def _torch_folder(path):
    """A folder of torch.distributed.checkpoint. Its .metadata is a pickle, of which only data is taken; each box is a .pt
    file inside of a file."""
    listed, index = os.path.join(path, ".metadata"), _format.Index()
    try:
        with serialization.safe_globals([(kind, name) for name, kind in _KINDS.items()]):
            about = serialization.load(listed, mmap=False)
        _read_torch(path, about, index)
    except CheckpointException:
        raise
    except Exception as error:  # whatever a hostile file makes these lines raise
        raise CheckpointException(f"{listed}: {type(error).__name__}: {error}") from None
    index.check()
    return index


def _read_torch(path, about, index):
    places = {(key.fqn, tuple(key.offset) if getattr(key, "offset", None) is not None else None): place
              for key, place in about.storage_data.items()}  # fmt: skip
    for name, keys in (about.planner_data or {}).items():
        index.paths[name] = _tree.path_from_json([[key] if type(key) is int else key for key in keys])
    for name, stored in about.state_dict_metadata.items():
        if not isinstance(name, str):
            raise CheckpointException(f"{path}: the name {str(name)[:50]!r} (expected text)")
        if not hasattr(stored, "chunks"):
            value = _torch_part(path, places[name, None])
            index.leaves[name] = _tree.encode(name, value, allow_pickle=True).decode()
            continue
        dtype, size = stored.properties.dtype, _format.whole_numbers(list(stored.size))
        if not isinstance(dtype, _C.dtype):
            raise CheckpointException(f"{path}: {name!r} has the dtype {str(dtype)[:50]!r}")
        whole = index.tensors[name] = _format.Whole(dtype, size)
        for chunk in stored.chunks:
            offsets, sizes = _format.whole_numbers(list(chunk.offsets)), _format.whole_numbers(list(chunk.sizes))
            part = _TorchPart(path, places[name, offsets], name, dtype, sizes)
            whole.boxes.append(_format.Stored(part, 0, 0, offsets, sizes, None))


def _torch_part(path, place):
    name, offset, length = place.relative_path, place.offset, place.length
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        raise CheckpointException(f"{path}: .metadata names the file {name[:50]!r} (expected a file of the folder)")
    with open(os.path.join(path, name), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not all(type(n) is int and 0 <= n <= size for n in (offset, length)) or offset + length > size:
            raise CheckpointException(f"{path}: .metadata names bytes of {name} that are not there")
        file.seek(offset)
        return serialization.load(io.BytesIO(file.read(length)))


class _TorchPart:
    """A box in a file of torch.distributed.checkpoint, in the place of a file. It is read when it is wanted."""

    def __init__(self, folder, place, name, dtype, sizes):
        self.path, self._place, self._name, self._dtype, self._sizes = folder, place, name, dtype, sizes
        if not isinstance(place.length, int) or place.length < prod(sizes) * dtype.itemsize:
            raise CheckpointException(f"{folder}: a box of {name!r} has {place.length} bytes, which are too few")

    def __getitem__(self, name):
        try:
            tensor = _torch_part(self.path, self._place).detach()
            found, tensor = (tensor.dtype, tuple(tensor.shape)), tensor.cpu()
        except CheckpointException:
            raise
        except Exception as error:  # whatever a hostile file makes these lines raise
            raise CheckpointException(f"{self.path}: a box of {name!r}: {type(error).__name__}: {error}") from None
        if found != (self._dtype, self._sizes):
            raise CheckpointException(
                f"{self.path}: a box of {name!r} is {found[0]} of {found[1]} (expected {self._dtype} of {self._sizes})"
            )
        return tensor
