"""Files of tensors and nested containers: `save` and `load`, in PyTorch's .pt format (zip), readable by both.

    archive/data.pkl        the object, pickled; a tensor is (storage key, offset, size, stride)
    archive/data/0, 1, ...  the storages' bytes, each once however many tensors share it, at multiples of 64
    archive/byteorder, archive/version

`load` runs nothing that a file says: its unpickler knows containers, numbers, text and tensors, and refuses other
names. `weights_only=False` asks for the ordinary unpickler, which is safe only with files that you trust.

Format: torch/serialization.py of PyTorch 2.x, "zipfile" form, version 3; the form before 1.6 is read too.
"""

import io
import mmap as _mmap
import os
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from contextlib import contextmanager

from pydist import _C
from pydist._files import replacing

_ALIGNMENT = 64
_PROTOCOL = 2  # what PyTorch reads with weights_only=True

_STORAGES = {
    "FloatStorage": _C.float32,
    "DoubleStorage": _C.float64,
    "ComplexFloatStorage": _C.complex64,
    "ComplexDoubleStorage": _C.complex128,
    "HalfStorage": _C.float16,
    "BFloat16Storage": _C.bfloat16,
    "LongStorage": _C.int64,
    "IntStorage": _C.int32,
    "ShortStorage": _C.int16,
    "CharStorage": _C.int8,
    "ByteStorage": _C.uint8,
    "BoolStorage": _C.bool,
}
_DTYPES = {str(dtype).rpartition(".")[2]: dtype for dtype in _STORAGES.values()}


_safe = {}  # "module.name" -> object, by add_safe_globals


def add_safe_globals(safe_globals):
    """Lets `load` make these classes and call these functions: a list of them, or of (one, "module.name")."""
    for item in safe_globals:
        obj, name = item if isinstance(item, tuple) else (item, f"{item.__module__}.{item.__qualname__}")
        _safe[name] = obj


def clear_safe_globals():
    """Forgets what `add_safe_globals` was given."""
    _safe.clear()


def get_safe_globals():
    """What `add_safe_globals` was given, as a list."""
    return list(_safe.values())


@contextmanager
def safe_globals(safe_globals):
    """`add_safe_globals` inside a with statement."""
    before = dict(_safe)
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        _safe.clear()
        _safe.update(before)


class _Global:
    """Something that the file calls by this name, whatever is installed here."""

    def __init__(self, name):
        self.module, _, self.name = name.rpartition(".")

    def __call__(self):  # pickle takes only what is callable for a function
        raise NotImplementedError(f"{self.module}.{self.name}")


_REBUILD_TENSOR = _Global("torch._utils._rebuild_tensor_v2")
_REBUILD_PARAMETER = _Global("torch._utils._rebuild_parameter")
_SIZE, _DEVICE = _Global("torch.Size"), _Global("torch.device")
_STORAGE_GLOBALS = {dtype: _Global(f"torch.{name}") for name, dtype in _STORAGES.items()}
_DTYPE_GLOBALS = {dtype: _Global(f"torch.{name}") for name, dtype in _DTYPES.items()}


class _StorageId(tuple):
    """A storage within the pickle: ("storage", type, key, location, numel)."""


class _Pickler(pickle._Pickler):  # Python's own: the one in C insists on finding every global where it is named
    def __init__(self, file, protocol):
        super().__init__(file, protocol)
        self.storages = {}  # address -> (key, its bytes as a tensor)

    def persistent_id(self, obj):
        return tuple(obj) if isinstance(obj, _StorageId) else None

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, _C.dtype):
            obj = _DTYPE_GLOBALS[obj]
        if isinstance(obj, _Global):
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        else:
            super().save(obj, save_persistent_id)

    def reducer_override(self, obj):
        if isinstance(obj, _C.Tensor):
            return self._reduce_tensor(obj)
        if isinstance(obj, _C.Size):
            return _SIZE, (tuple(obj),)
        if isinstance(obj, _C.device):
            return _DEVICE, (str(obj),)
        return NotImplemented

    def _reduce_tensor(self, tensor):
        from pydist.nn import Parameter

        data = tensor.detach()
        if isinstance(tensor, Parameter):
            return _REBUILD_PARAMETER, (data, tensor.requires_grad, OrderedDict())
        whole = _C.storage_bytes(data)
        key, _ = self.storages.setdefault(whole.data_ptr(), (str(len(self.storages)), whole))
        storage = _StorageId(
            ("storage", _STORAGE_GLOBALS[data.dtype], key, "cpu", whole.numel() // data.element_size())
        )
        geometry = data.storage_offset(), tuple(data.shape), tuple(data.stride())
        return _REBUILD_TENSOR, (storage, *geometry, tensor.requires_grad, OrderedDict())


def save(obj, f, pickle_module=pickle, pickle_protocol=_PROTOCOL, _use_new_zipfile_serialization=True):
    """Writes `obj` to `f`, a path or a file opened for writing in binary: tensors, and containers, numbers, text that
    hold them (other objects that pickle takes need `load(weights_only=False)`). Tensors that share memory still do when
    loaded.

    A path gets its new content at the end at once, on the disk: what was there stays if anything fails, and keeps its
    mode. Errors: OSError, pickle.PicklingError, ValueError for another pickle_module.

    >>> import io, pydist
    >>> file = io.BytesIO()
    >>> pydist.save({"w": pydist.ones(2), "step": 3}, file)
    >>> pydist.load(io.BytesIO(file.getvalue()))
    {'w': tensor([1., 1.]), 'step': 3}
    """
    if pickle_module is not pickle:
        raise ValueError("save: another pickle_module is not supported")
    if hasattr(f, "write"):
        _write(obj, f, pickle_protocol)
        return
    with replacing(f) as file:
        _write(obj, file, pickle_protocol)


def _write(obj, file, protocol):
    text = io.BytesIO()
    pickler = _Pickler(text, protocol)
    pickler.dump(obj)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:

        def put(name, data):
            info = zipfile.ZipInfo(f"archive/{name}")
            begin = archive.fp.tell() + 30 + len(info.filename)  # 30: a local header
            padding = -(begin + 4) % _ALIGNMENT
            if len(data) < zipfile.ZIP64_LIMIT:  # beyond it zipfile writes a longer header
                info.extra = struct.pack("<HH", 0x4246, padding) + b"Z" * padding  # "FB", as PyTorch's files have
            archive.writestr(info, data)

        put("data.pkl", text.getvalue())
        put("byteorder", sys.byteorder.encode())
        for key, whole in pickler.storages.values():
            put(f"data/{key}", memoryview(whole) if whole.numel() else b"")
        put("version", b"3\n")


class _Storage:
    """A storage named by the file: its bytes, and 1-d tensors over them by dtype."""

    def __init__(self, data, dtype, numel):
        self.data, self.dtype, self.numel, self.flat = data, dtype, numel, {}

    def view(self, dtype, offset, size, stride):
        if dtype not in self.flat:
            count = self.numel if dtype is self.dtype else None
            self.flat[dtype] = _over(self.data, dtype, count)
        return self.flat[dtype].as_strided(size, stride, offset).detach()


def _over(data, dtype, count=None):
    """A 1-d tensor over bytes; `count` elements, or all."""
    item = dtype.itemsize
    if count is None:
        count = len(data) // item
    if not isinstance(count, int) or count < 0 or count * item > len(data):
        raise ValueError(f"a storage of {len(data)} bytes (expected {count} of {dtype})")
    return _C.frombuffer(data, dtype=dtype, count=count) if count else _C.empty(0, dtype=dtype)


class _Names:
    """What a file may name. Bound methods, so that a file can change nothing in them."""

    def __init__(self):
        self.torch = {
            "Size": self.size,
            "device": self.device,
            **{name: _Kind(dtype) for name, dtype in _STORAGES.items()},
            **_DTYPES,
        }
        self.modules = {
            "torch": self.torch,
            "torch.storage": {"UntypedStorage": _Kind(None), "TypedStorage": _Kind(None)},
            "torch._utils": {
                "_rebuild_tensor": self.tensor,
                "_rebuild_tensor_v2": self.tensor,
                "_rebuild_tensor_v3": self.tensor_v3,
                "_rebuild_parameter": self.parameter,
                "_rebuild_parameter_with_state": self.parameter,
            },
            "torch._tensor": {"_rebuild_from_type_v2": self.from_type},
            "torch.nn.parameter": {"Parameter": _Kind(None)},
            "collections": {"OrderedDict": OrderedDict, "Counter": self.counter},
            "_codecs": {"encode": self.encode},
        }
        plain = {"set": set, "frozenset": frozenset, "complex": complex, "bytearray": self.bytearray}
        self.modules["builtins"] = self.modules["__builtin__"] = plain

    def find(self, module, name):
        return self.modules.get(module, {}).get(name)

    def size(self, sizes):
        return _C.Size(sizes)

    def device(self, *names):
        return _C.device("cpu")  # the only one there is: tensors from elsewhere come to it

    def tensor(self, storage, offset, size, stride, requires_grad=False, hooks=None, metadata=None):
        made = storage.view(storage.dtype, offset, size, stride)
        return made.requires_grad_() if requires_grad else made

    def tensor_v3(self, storage, offset, size, stride, requires_grad, hooks, dtype, metadata=None):
        made = storage.view(dtype, offset, size, stride)
        return made.requires_grad_() if requires_grad else made

    def parameter(self, data, requires_grad, hooks, state=None):
        from pydist.nn import Parameter

        return Parameter(data, requires_grad)

    def from_type(self, function, kind, arguments, state):
        return function(*arguments)

    def counter(self, pairs=()):
        from collections import Counter

        return Counter(pairs)

    def encode(self, text, encoding="utf-8"):
        if encoding not in ("latin1", "utf-8"):
            raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
        return text.encode(encoding)

    def bytearray(self, data=b"", *encoding):
        if isinstance(data, int):
            raise pickle.UnpicklingError("a bytearray without content")
        return bytearray(data, *encoding)


class _Kind:
    """The type of a storage, as a name within the file."""

    __slots__ = ("dtype",)

    def __init__(self, dtype):
        self.dtype = dtype


class _Unpickler(pickle.Unpickler):
    def __init__(self, text, storage_of, restricted):
        super().__init__(text, encoding="utf-8")
        self.storage_of, self.restricted, self.names = storage_of, restricted, _Names()

    def persistent_load(self, saved):
        what, kind, key, _, numel = saved
        if what != "storage" or not isinstance(kind, _Kind):
            raise pickle.UnpicklingError(f"an object of kind {what!r} outside the pickle (expected a storage)")
        return self.storage_of(key, kind.dtype or _C.uint8, numel)

    def find_class(self, module, name):
        known = self.names.find(module, name)
        if known is None and self.restricted and module.partition(".")[0] == "numpy":
            from pydist._numpy_pickle import NAMES

            known = NAMES.get((module, name))
        if known is None:
            known = _safe.get(f"{module}.{name}")
        if known is not None:
            return known
        if self.restricted:
            raise pickle.UnpicklingError(
                f"the file names {module}.{name}, which is not among what is safe to make. If you trust where the file "
                "comes from: load(..., weights_only=False), or serialization.add_safe_globals([...])"
            )
        return super().find_class(module, name)


def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None, **pickle_load_args):
    """What `save` or PyTorch wrote to `f`, a path or a file opened for reading in binary. Tensors come to the CPU,
    whatever device they were on; those that shared memory do so again.

    `weights_only` True: containers, numbers, text, tensors and NumPy's arrays alone, and nothing in the file is run. `mmap` True (f a
    path): tensors are mapped, not read; writes to them stay in memory. `map_location`: "cpu" or None.

    Errors: pickle.UnpicklingError (damaged, or it names something that is not safe), RuntimeError (no .pt file,
    truncated), OSError.

    >>> import pydist
    >>> pydist.load("no such file")
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'no such file'
    """
    if pickle_module not in (None, pickle):
        raise ValueError("load: another pickle_module is not supported")
    if map_location is not None and not callable(map_location) and not isinstance(map_location, dict):
        _C.empty(0, device=map_location)  # raises for what there is not
    if not hasattr(f, "read"):
        with open(f, "rb") as file:
            return _read(file, os.fspath(f), weights_only, mmap)
    if mmap:
        raise ValueError("load: mmap=True takes a path (got an open file)")
    return _read(f, getattr(f, "name", "file"), weights_only, False)


class _OldUnpickler(_Unpickler):
    """Storages have one entry more: None, or which part of them is meant."""

    def persistent_load(self, saved):
        *rest, part = saved
        storage = super().persistent_load(tuple(rest))
        if part is None:
            return storage
        _, offset, size = part
        item = storage.dtype.itemsize
        return _Storage(memoryview(storage.data)[offset * item : (offset + size) * item], storage.dtype, size)


_MAGIC, _OLD_VERSION = 0x1950A86A20F9469CFC6C, 1001


def _read_old(data, restricted):
    """The object in a file as PyTorch wrote them before 1.6: pickles of a number, the version, sizes of types, the object
    and the keys of its storages; then of each storage its length (8 bytes) and its bytes."""
    file, storages = io.BytesIO(data), {}

    def plain():
        return _Unpickler(file, None, True).load()

    def storage_of(key, dtype, numel):
        if key not in storages:
            if not isinstance(numel, int) or not 0 <= numel * dtype.itemsize <= len(data):
                raise ValueError(f"a storage of {numel} elements in a file of {len(data)} bytes")
            storages[key] = _Storage(bytearray(numel * dtype.itemsize), dtype, numel)
        return storages[key]

    if plain() != _MAGIC:
        raise ValueError("the first number is another one")
    version, system = plain(), plain()
    if version != _OLD_VERSION or not isinstance(system, dict) or not system.get("little_endian", True):
        raise ValueError(f"version {version!r} (expected {_OLD_VERSION}, little-endian)")
    made = _OldUnpickler(file, storage_of, restricted).load()
    for key in plain():
        storage, head = storages[key], file.read(8)
        if len(head) != 8 or struct.unpack("<q", head)[0] != storage.numel:
            raise ValueError(f"storage {key}: another length than its tensors say")
        if file.readinto(storage.data) != len(storage.data):
            raise ValueError(f"storage {key}: cut off")
    return made


def _is_old(file):
    """Whether a file begins with a pickle of _MAGIC."""
    at = file.tell()
    head = file.read(2 + 2 + 10)
    file.seek(at)
    return head[:1] == b"\x80" and head[2:4] == b"\x8a\x0a" and head[4:] == _MAGIC.to_bytes(10, "little")


def _guarded(name, restricted, read):
    """read(), its errors being those of `load`."""
    try:
        return read()
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(f"load: {name}: {error}") from None
    except (MemoryError, OSError, KeyboardInterrupt):
        raise
    except zipfile.BadZipFile as error:
        raise RuntimeError(f"load: {name}: damaged: {error}") from None
    except Exception as error:
        if not restricted:
            raise
        raise pickle.UnpicklingError(f"load: {name}: damaged: {type(error).__name__}: {error}") from error


def _read(file, name, restricted, mapped):
    if _is_old(file):
        if mapped:
            raise RuntimeError(f"load: {name}: of PyTorch before 1.6 (expected a newer one, for mmap=True)")
        return _guarded(name, restricted, lambda: _read_old(file.read(), restricted))
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        raise RuntimeError(f"load: {name}: no .pt file, or cut off: {error}") from None
    with archive:
        pickles = [entry for entry in archive.namelist() if entry.endswith("/data.pkl") and entry.count("/") == 1]
        if len(pickles) != 1:
            raise RuntimeError(f"load: {name}: {len(pickles)} records data.pkl (expected 1)")
        folder = pickles[0].rpartition("/")[0]
        memory = _mmap.mmap(file.fileno(), 0, access=_mmap.ACCESS_COPY) if mapped else None
        storages = {}

        def record(key):
            info = archive.getinfo(f"{folder}/data/{key}")
            if memory is None:
                data = bytearray(info.file_size)
                with archive.open(info) as entry:  # compares the checksum at the end
                    if entry.readinto(data) != info.file_size or entry.read(1):
                        raise ValueError(f"record {key}: cut off")
                return data
            if info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"record {key}: compressed (expected stored bytes, for mmap=True)")
            name_bytes, extra = struct.unpack_from("<HH", memory, info.header_offset + 26)
            begin = info.header_offset + 30 + name_bytes + extra
            if begin + info.file_size > len(memory):
                raise ValueError(f"record {key}: cut off")
            return memoryview(memory)[begin : begin + info.file_size]

        def storage_of(key, dtype, numel):
            if key not in storages:
                storages[key] = _Storage(record(key), dtype, numel)
            return storages[key]

        def read():
            order = f"{folder}/byteorder"
            if order in archive.namelist() and archive.read(order).decode() != sys.byteorder:
                raise ValueError(f"bytes in {archive.read(order).decode()}-endian order (expected {sys.byteorder})")
            return _Unpickler(io.BytesIO(archive.read(pickles[0])), storage_of, restricted).load()

        return _guarded(name, restricted, read)
