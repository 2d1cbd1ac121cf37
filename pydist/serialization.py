"""Files of tensors and nested containers: `save` and `load`, in PyTorch's .pt format (zip), readable by both.

    archive/data.pkl        the object, pickled; a tensor is (storage key, offset, size, stride)
    archive/data/0, 1, ...  the bytes of the storages, each once even if tensors share it, aligned to 64 bytes
    archive/byteorder, archive/version

`load` never runs code from a file: its unpickler knows containers, numbers, text and tensors, and refuses other names.
`weights_only=False` asks for the ordinary unpickler, which is safe only with files that you trust.

Format: torch/serialization.py of PyTorch 2.x, "zipfile" form, version 3. The form before 1.6 can be read, too.
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
from contextvars import ContextVar
from types import MappingProxyType

from pydist import _C
from pydist._files import replacing
from pydist._make import empty_strided
from pydist._unpickle import Maker
from pydist._utils import _rebuild_parameter, _rebuild_tensor_v3
from pydist.storage import _load_from_bytes

_ALIGNMENT = 64
_WIDEST = 16  # most bytes of an element: complex128
_PROTOCOL = 2  # the names that PyTorch accepts with weights_only=True

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
_DTYPES = {
    repr(dtype).rpartition(".")[2]: dtype
    for dtype in (*_STORAGES.values(), _C.complex32, _C.float8_e4m3fn, _C.float8_e5m2)
}


_safe = {}  # "module.name" -> object, by add_safe_globals
_safe_here = ContextVar("safe_here", default=MappingProxyType({}))  # the same, by safe_globals


def _by_name(safe_globals):
    pairs = (
        item if isinstance(item, tuple) else (item, f"{item.__module__}.{item.__qualname__}") for item in safe_globals
    )
    return {name: obj for obj, name in pairs}


def add_safe_globals(safe_globals):
    """Allows `load` to make these classes and call these functions: a list of them, or of (one of them,
    "module.name")."""
    _safe.update(_by_name(safe_globals))


def clear_safe_globals():
    """Forgets everything that was given to `add_safe_globals`."""
    _safe.clear()


def get_safe_globals():
    """Everything that was given to `add_safe_globals` and `safe_globals`, as a list."""
    return list({**_safe, **_safe_here.get()}.values())


@contextmanager
def safe_globals(safe_globals):
    """`add_safe_globals` for the duration of a with statement, in this thread."""
    before = _safe_here.set({**_safe_here.get(), **_by_name(safe_globals)})
    try:
        yield
    finally:
        _safe_here.reset(before)


class _Global:
    """An object that the file names in this way, whatever is installed here."""

    def __init__(self, name):
        self.module, _, self.name = name.rpartition(".")

    def __call__(self):  # pickle requires functions to be callable
        raise NotImplementedError(f"{self.module}.{self.name}")


_REBUILD_TENSOR = _Global("torch._utils._rebuild_tensor_v2")
_REBUILD_META = _Global("torch._utils._rebuild_meta_tensor_no_storage")
_REBUILD_PARAMETER = _Global("torch._utils._rebuild_parameter")
_REBUILD_DTENSOR = _Global("pydist.distributed.tensor._files.rebuild")
_SIZE, _DEVICE = _Global("torch.Size"), _Global("torch.device")
_STORAGE_GLOBALS = {dtype: _Global(f"torch.{name}") for name, dtype in _STORAGES.items()}
_DTYPE_GLOBALS = {dtype: _Global(f"torch.{name}") for name, dtype in _DTYPES.items()}


class _StorageId(tuple):
    """A storage inside the pickle: ("storage", type, key, location, numel)."""


class _Pickler(pickle._Pickler):  # the pickler in Python: the one in C insists on importing every global by its name
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
        if isinstance(obj, _C.Tensor) and not obj.is_sparse:
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
        if _C.spread_of(tensor) is not None:
            from pydist.distributed.tensor._files import described

            return _REBUILD_DTENSOR, described(tensor)
        if data.is_meta:
            return _REBUILD_META, (data.dtype, tuple(data.shape), tuple(data.stride()), tensor.requires_grad)
        whole = _C.storage_bytes(data)
        key, _ = self.storages.setdefault(whole.data_ptr(), (str(len(self.storages)), whole))
        storage = _StorageId(
            ("storage", _STORAGE_GLOBALS[data.dtype], key, "cpu", whole.numel() // data.element_size())
        )
        geometry = data.storage_offset(), tuple(data.shape), tuple(data.stride())
        return _REBUILD_TENSOR, (storage, *geometry, tensor.requires_grad, OrderedDict())


def save(obj, f, pickle_module=pickle, pickle_protocol=_PROTOCOL, _use_new_zipfile_serialization=True):
    """Writes `obj` to `f`, a path or a file opened for writing in binary mode. obj: tensors, and containers, numbers
    and text with them (other picklable objects need `load(weights_only=False)`). Tensors that share memory still share
    it when they are loaded.

    A path gets its new content all at once, when it is on the disk. If anything fails, the old file stays; its mode is
    kept. Raises OSError, pickle.PicklingError, and ValueError for another pickle_module.

    >>> import io, pydist
    >>> file = io.BytesIO()
    >>> pydist.save({"w": pydist.ones(2), "step": 3}, file)
    >>> pydist.load(io.BytesIO(file.getvalue()))
    {'w': tensor([1., 1.]), 'step': 3}
    """
    if pickle_module is not pickle:
        raise ValueError("save: pickle_module is not supported (expected None, or Python's pickle)")
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
            begin = archive.fp.tell() + 30 + len(info.filename)  # 30 bytes: a local header
            padding = -(begin + 4) % _ALIGNMENT
            if len(data) < zipfile.ZIP64_LIMIT:  # for larger ones zipfile writes a longer header
                info.extra = struct.pack("<HH", 0x4246, padding) + b"Z" * padding  # "FB", as in PyTorch's files
            archive.writestr(info, data)

        put("data.pkl", text.getvalue())
        put("byteorder", sys.byteorder.encode())
        for key, whole in pickler.storages.values():
            put(f"data/{key}", memoryview(whole.cpu()) if whole.numel() else b"")
        put("version", b"3\n")


class _Storage:
    """A storage that the file names: its bytes, and 1-d tensors over them, on `device`, by dtype."""

    __slots__ = ("data", "dtype", "numel", "device", "flat")

    def __init__(self, data, dtype, numel, device="cpu"):
        self.data, self.dtype, self.numel, self.device, self.flat = data, dtype, numel, device, {}

    def view(self, dtype, offset, size, stride):
        if not isinstance(dtype, _C.dtype):
            raise TypeError("a tensor whose dtype is not a dtype")
        if dtype not in self.flat:
            count = self.numel if dtype is self.dtype else None
            self.flat[dtype] = _over(self.data, dtype, count).to(self.device)
        return self.flat[dtype].as_strided(size, stride, offset).detach()


def _over(data, dtype, count=None):
    """A 1-d tensor over bytes, with `count` elements or as many as there are."""
    item = dtype.itemsize
    if count is None:
        count = len(data) // item
    if not isinstance(count, int) or count < 0 or count * item > len(data):
        raise ValueError(f"a storage of {len(data)} bytes (expected {count} elements of {dtype})")
    return _C.frombuffer(data, dtype=dtype, count=count) if count else _C.empty(0, dtype=dtype, device="cpu")


class _Kind:
    """The type of a storage, as a name inside the file."""

    __slots__ = ("dtype",)

    def __init__(self, dtype):
        self.dtype = dtype


class _Names(Maker):
    """The names that a .pt file may use. storage_of(key, dtype, numel, part): the storage, which is outside the
    pickle."""

    def __init__(self, length, storage_of):
        super().__init__(length)
        self.storage_of = storage_of
        self.modules |= {
            "torch": {
                "Size": self.size,
                "device": self.device,
                "Tensor": _Kind(None),
                **{name: _Kind(dtype) for name, dtype in _STORAGES.items()},
                **_DTYPES,
            },
            "torch.storage": {
                "UntypedStorage": _Kind(None),
                "TypedStorage": _Kind(None),
                "_load_from_bytes": self.load_from_bytes,
            },
            "torch._utils": {
                "_rebuild_tensor": self.tensor,
                "_rebuild_tensor_v2": self.tensor,
                "_rebuild_tensor_v3": self.tensor_v3,
                "_rebuild_meta_tensor_no_storage": self.meta,
                "_rebuild_parameter": self.parameter,
                "_rebuild_parameter_with_state": self.parameter,
            },
            "torch._tensor": {"_rebuild_from_type_v2": self.from_type},
            "torch.nn.parameter": {"Parameter": _Kind(None)},
            "pydist.distributed.tensor._files": {"rebuild": self.dtensor},
        }

    def known(self, module, name):
        name, own = f"{module}.{name}", self.modules.get(module, {}).get(name)
        return own or _safe_here.get().get(name) or _safe.get(name)

    def find(self, module, name):
        try:
            return super().find(module, name)
        except pickle.UnpicklingError as error:
            if (safe := self.known(module, name)) is not None:
                return safe
            raise pickle.UnpicklingError(
                f"{error}. If you trust the source of the file, use load(..., weights_only=False), or "
                "serialization.add_safe_globals([...])"
            ) from None

    def new(self, kind, args, names):
        return kind.__new__(kind, *args, **names or {}) if _is_safe(kind) else super().new(kind, args, names)

    def build(self, made, state):
        if not _is_safe(type(made)):
            return super().build(made, state)
        if hasattr(made, "__setstate__"):
            made.__setstate__(state)
            return made
        attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
        vars(made).update(attributes or {})
        for name, value in (slots or {}).items():
            setattr(made, name, value)
        return made

    def append(self, made, items):
        made.extend(items) if _is_safe(type(made)) else super().append(made, items)

    def set(self, made, items):
        if not _is_safe(type(made)):
            return super().set(made, items)
        for key, value in zip(items[::2], items[1::2], strict=True):
            made[key] = value

    def persistent(self, saved):
        is_known = type(saved) is tuple and len(saved) in (5, 6) and saved[0] == "storage"
        if not is_known or self.storage_of is None:
            raise pickle.UnpicklingError("a reference outside the pickle to an object that is not a storage")
        _, kind, key, _, numel, *part = saved
        if type(kind) is not _Kind or type(key) is not str or type(numel) is not int:
            raise ValueError("a storage that lacks type, name or length")
        return self.storage_of(key, kind.dtype or _C.uint8, numel, *part)

    def size(self, sizes):
        self.spend(len(sizes))
        if type(sizes) is not tuple or not all(type(size) is int for size in sizes):
            raise TypeError("a Size with an element that is not an integer")
        return _C.Size(sizes)

    def device(self, *names):
        return _C.device("cpu")  # tensors of all devices are loaded to the CPU

    def load_from_bytes(self, data):
        self.spend(len(data))
        return _load_from_bytes(data)

    def tensor(self, storage, offset, size, stride, requires_grad=False, hooks=None, metadata=None):
        return self.tensor_v3(storage, offset, size, stride, requires_grad, hooks, storage.dtype)

    def tensor_v3(self, storage, offset, size, stride, requires_grad, hooks, dtype, metadata=None):
        if type(storage) is not _Storage:
            raise TypeError("a tensor without a storage")
        return _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype)

    def meta(self, dtype, size, stride, requires_grad):
        self.spend(len(size) + len(stride))
        if not isinstance(dtype, _C.dtype) or not all(type(n) is int for n in (*size, *stride)):
            raise TypeError("a tensor on meta: got other than a dtype and integers (expected dtype, size, stride)")
        return empty_strided(size, stride, dtype=dtype, device="meta", requires_grad=bool(requires_grad))

    def parameter(self, data, requires_grad, hooks, state=None):
        return _rebuild_parameter(data, requires_grad, hooks)

    def dtensor(self, *description):
        from pydist.distributed.tensor._files import rebuild

        return rebuild(*description)

    def from_type(self, function, kind, arguments, state):
        if function not in (self.tensor, self.tensor_v3, self.parameter):
            raise pickle.UnpicklingError("a tensor subclass, made by a function that makes no tensor")
        return function(*arguments)


def _is_safe(kind):
    return isinstance(kind, type) and any(kind is safe for safe in get_safe_globals())


class _Unpickler(pickle.Unpickler):
    """For weights_only=False: the ordinary unpickler, which also knows the names of a .pt file."""

    def __init__(self, file, names):
        super().__init__(file, encoding="utf-8")
        self.names, self.persistent_load = names, names.persistent

    def find_class(self, module, name):
        known = self.names.known(module, name) if module.partition(".")[0] == "torch" else None
        return super().find_class(module, name) if known is None else known


def _unpickled(data, begin, names, restricted):
    """(the object of the pickle that begins there in `data`, where the pickle ends)."""
    if restricted:
        made, size = _C.unpickle(memoryview(data)[begin:], names, "utf-8")
        return made, begin + size
    file = io.BytesIO(data)
    file.seek(begin)
    made = _Unpickler(file, names).load()
    return made, file.tell()


def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None, **pickle_load_args):
    """The object that `save` or PyTorch wrote to `f`, a path or a file opened for reading in binary mode. Tensors are
    loaded to the CPU, whatever device they were on, or to the device `map_location`; those that shared memory share it
    again. A plain pickle of PyTorch's tensors (`pickle.dump`, protocol 2 or later) can be read, too.

    `weights_only` True: only containers, numbers, text, tensors and NumPy's arrays; no code in the file is run. `mmap`
    True (f is a path): tensors are mapped, not read; writes to them stay in memory. `map_location`: a device; a function
    or dict is the CPU.

    Raises pickle.UnpicklingError (the file is damaged or names something that is not safe), RuntimeError (not a .pt
    file, or cut off), OSError.

    >>> import pydist
    >>> pydist.load("no such file")
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'no such file'
    """
    if pickle_module not in (None, pickle):
        raise ValueError("load: pickle_module is not supported (expected None, or Python's pickle)")
    device = "cpu" if map_location is None or callable(map_location) or isinstance(map_location, dict) else map_location
    _C.empty(0, device=device)  # raises if there is no such device
    if not hasattr(f, "read"):
        with open(f, "rb") as file:
            return _read(file, os.fspath(f), weights_only, mmap, device)
    if mmap:
        raise ValueError("load: mmap=True with an open file (expected a path)")
    return _read(f, getattr(f, "name", "file"), weights_only, False, device)


_MAGIC, _OLD_VERSION = 0x1950A86A20F9469CFC6C, 1001


def _read_old(data, restricted):
    """The object in a file of the form before PyTorch 1.6: pickles of a number, the version, sizes of types, the object
    and the keys of its storages; then of each storage its length (8 bytes) and its bytes."""
    storages, left, at = {}, len(data), 0

    def storage_of(key, dtype, numel, part=None):
        nonlocal left
        if key not in storages:
            if not 0 <= numel * dtype.itemsize <= left:
                raise ValueError(
                    f"a storage of {numel} elements in a file of {len(data)} bytes (expected a file that holds it)"
                )
            left -= numel * dtype.itemsize
            storages[key] = _Storage(bytearray(numel * dtype.itemsize), dtype, numel)
        storage = storages[key]
        if part is None:
            return storage
        _, offset, size = part
        item = storage.dtype.itemsize
        return _Storage(memoryview(storage.data)[offset * item : (offset + size) * item], storage.dtype, size)

    def following(restricted):
        nonlocal at
        made, at = _unpickled(data, at, _Names(len(data), storage_of), restricted)
        return made

    if following(True) != _MAGIC:
        raise ValueError("the first number is not that of PyTorch's files")
    version, system = following(True), following(True)
    if version != _OLD_VERSION or type(system) is not dict or not system.get("little_endian", True):
        raise ValueError(f"unknown version, or not little-endian (expected version {_OLD_VERSION})")
    made, keys = following(restricted), following(True)
    if type(keys) is not list or not all(type(key) is str for key in keys) or sorted(keys) != sorted(storages):
        raise ValueError("the file's storages are not those of its tensors")
    for key in keys:
        storage, size = storages[key], len(storages[key].data)
        if len(data) - at < 8 or struct.unpack_from("<q", data, at)[0] != storage.numel:
            raise ValueError("a storage's length is not the one that its tensors say")
        if len(data) - at - 8 < size:
            raise ValueError("a storage is cut off")
        memoryview(storage.data)[:] = memoryview(data)[at + 8 : at + 8 + size]
        at += 8 + size
    return made


def _begins(file):
    """How a file begins: "old" for a pickle of _MAGIC, "pickle" for another pickle (protocols 2 to 5), or ""."""
    at = file.tell()
    head = file.read(2 + 2 + 10)
    file.seek(at)
    if len(head) < 2 or head[0] != 0x80 or head[1] not in (2, 3, 4, 5):
        return ""
    return "old" if head[2:4] == b"\x8a\x0a" and head[4:] == _MAGIC.to_bytes(10, "little") else "pickle"


def _guarded(name, restricted, read):
    """Calls read(), and turns its errors into those of `load`."""
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


_DEFLATED = 1032  # most bytes that one compressed byte can expand to
_DEFLATED_PICKLE = 100  # objects take some hundred times a pickle's bytes; a real pickle never compresses so well


def _contents(archive, size):
    """content(info, most=_DEFLATED): the bytes of a record. A record, and all records together, may not claim more than
    an archive of `size` bytes can hold."""
    left = size

    def content(info, most=_DEFLATED):
        nonlocal left
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"record {info.filename}: compressed by method {info.compress_type} (expected 0 or 8)")
        factor, more = (1, 0) if info.compress_type == zipfile.ZIP_STORED else (most, 1000)
        left -= info.compress_size
        if left < 0 or info.file_size > info.compress_size * factor + more:
            raise ValueError(f"record {info.filename}: {info.file_size} bytes in a file of {size}")
        data = bytearray(info.file_size)
        with archive.open(info) as entry:  # the read at the end compares the checksum
            if entry.readinto(data) != info.file_size or entry.read(1):
                raise ValueError(f"record {info.filename}: cut off")
        return data

    return content


def _mapped(memory, read):
    """content(info) for a mapped archive: a part of `memory`. Records of other writers need not be aligned; those are
    read."""

    def content(info):
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"record {info.filename}: compressed (expected stored bytes, for mmap=True)")
        if not 0 <= info.header_offset <= len(memory) - 30:
            raise ValueError(f"record {info.filename}: cut off")
        name_bytes, extra = struct.unpack_from("<HH", memory, info.header_offset + 26)
        begin = info.header_offset + 30 + name_bytes + extra
        if begin + info.file_size > len(memory):
            raise ValueError(f"record {info.filename}: cut off")
        return read(info) if begin % _WIDEST else memoryview(memory)[begin : begin + info.file_size]

    return content


def _read_zip(archive, file, size, restricted, mapped, device):
    pickles = [entry for entry in archive.namelist() if entry.endswith("/data.pkl") and entry.count("/") == 1]
    if len(pickles) != 1:
        raise zipfile.BadZipFile(f"the archive has {len(pickles)} records data.pkl (expected 1)")
    folder, storages = pickles[0].rpartition("/")[0], {}
    content = _contents(archive, size)
    of_storage = content
    if mapped:
        of_storage = _mapped(_mmap.mmap(file.fileno(), 0, access=_mmap.ACCESS_COPY), content)

    def storage_of(key, dtype, numel):
        if key not in storages:
            storages[key] = _Storage(of_storage(archive.getinfo(f"{folder}/data/{key}")), dtype, numel, device)
        return storages[key]

    if f"{folder}/byteorder" in archive.namelist():
        order = content(archive.getinfo(f"{folder}/byteorder"))
        if order != sys.byteorder.encode():
            raise ValueError(f"the file has another byte order (expected {sys.byteorder}-endian)")
    text = content(archive.getinfo(pickles[0]), _DEFLATED_PICKLE)
    return _unpickled(text, 0, _Names(len(text), storage_of), restricted)[0]


def _read(file, name, restricted, mapped, device):
    begin, form = file.tell(), _begins(file)
    if form != "old":
        try:
            archive = zipfile.ZipFile(file)
        except OSError:
            raise
        except Exception as error:  # zipfile raises nearly any exception for a damaged archive
            if form != "pickle":
                raise RuntimeError(f"load: {name}: not a .pt file, or cut off: {error}") from None
        else:
            with archive:
                size = file.seek(0, os.SEEK_END)
                return _guarded(name, restricted, lambda: _read_zip(archive, file, size, restricted, mapped, device))
    if mapped:
        raise RuntimeError(
            f"load: {name}: a plain pickle, or a file of PyTorch before 1.6 (expected a newer .pt file, for mmap=True)"
        )
    if _C.device(device).type != "cpu" and not _C.pretended_cuda():
        raise RuntimeError(
            f"load: {name}: a plain pickle, or a file of PyTorch before 1.6 (expected a newer .pt file, for map_location={device!r})"
        )
    file.seek(begin)
    data = file.read()
    if form == "old":
        return _guarded(name, restricted, lambda: _read_old(data, restricted))
    return _guarded(name, restricted, lambda: _unpickled(data, 0, _Names(len(data), None), restricted)[0])
