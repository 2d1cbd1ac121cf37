"""Files that lie: .pt (new form, old form, NumPy's arrays, deflated, plain pickles), CIFAR's batches and safetensors.

    python tests/fuzz/files.py [--seconds 20] [--seed 0]       (runner.py says how)

A case makes one file, by damaging a good one (its bytes, its opcodes, its zip directory, its header) or by writing
opcodes that it likes, and loads it every way there is. It fails where loading raises what load() does not promise,
takes more memory than the file's length allows, runs something, or changes what outlives it.
"""

import contextlib
import copy
import inspect
import io
import json
import os
import pickle
import pickletools
import resource
import struct
import sys
import tempfile
import tracemalloc
import zipfile
import zlib
from collections import Counter, OrderedDict

import numpy as np
import runner

import pydist
from pydist import _numpy_pickle, _unpickle, _utils, safetensors, serialization, storage
from pydist.distributed.tensor import _files  # noqa: F401 - load imports it for DTensors: here before it is watched
from pydist.nn import Parameter
from pydist.vision.datasets import cifar

PT_ERRORS = (pickle.UnpicklingError, RuntimeError, OSError)
PER_BYTE = 600  # an empty set takes 216 bytes and a place on the stack, and is one byte of a pickle
MORE = 8 << 20
RSS = 512 << 20  # by which the process may grow in one case

# What a file must not reach: events of sys.audit.
FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.remove", "os.rename", "os.mkdir", "os.putenv", "subprocess.",
    "socket.", "ctypes.", "shutil.", "exec", "pickle.find_class", "import", "sys.", "builtins.input",
)  # fmt: skip
watching, seen = False, []


def hook(event, arguments):
    if watching and event.startswith(FORBIDDEN):
        seen.append((event, str(arguments)[:200]))
    if (
        watching
        and event == "open"
        and isinstance(arguments[2], int)
        and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    ):
        seen.append((event, str(arguments)[:200]))


sys.addaudithook(hook)


def outlasting():
    """Attributes of what files may name, which no load may change."""
    found = {}
    for module in (serialization, _unpickle, _numpy_pickle, _utils, storage):
        for name, value in vars(module).items():
            if inspect.isfunction(value):
                found[module.__name__, name] = dict(vars(value))
            elif inspect.isclass(value) and value.__module__ == module.__name__:
                found[module.__name__, name] = sorted(vars(value))
                for inner, function in vars(value).items():
                    if inspect.isfunction(function):
                        found[module.__name__, name, inner] = dict(vars(function))
    return found


# Opcodes.


def text(t):
    data = t.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def num(n):
    return b"K" + bytes([n]) if 0 <= n < 256 else b"J" + struct.pack("<i", n)


def long(n):
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def data_of(content):
    return b"B" + struct.pack("<I", len(content)) + content


def name(module, of):
    return f"c{module}\n{of}\n".encode()


def tup(*parts):
    return b"(" + b"".join(parts) + b"t"


def call(f, *arguments):
    return f + tup(*arguments) + b"R"


NAMES = [(module, of) for module, names in serialization._Names(0, None).modules.items() for of in names]
NAMES += [(module, of) for module, names in _numpy_pickle.Arrays(None).modules.items() for of in names]
NAMES += [("os", "system"), ("builtins", "eval"), ("builtins", "getattr"), ("pydist", "load"), ("pydist._C", "Tensor"), ("numpy", "load"),
          ("pydist.serialization", "_Names"), ("copyreg", "_reconstructor"), ("builtins", "object")]  # fmt: skip
KEYS = [
    "storage", "0", "1", "2", "cpu", "x", "items", "__dict__", "__class__", "data", "requires_grad", "_metadata",
    "latin1", "u1", "f8", "<", "|", "C",
]  # fmt: skip
SIZES = [0, 1, 2, 3, 4, 7, 8, 16, 100, 255, 256, 4096, 65536, -1, 2**31 - 1, -(2**31)]
LARGE = [2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]


class Writer:
    """Draws programs: mostly such as writers write, with something else now and then."""

    def __init__(self, random):
        self.random, self.memo = random, 0

    def pick(self, *functions):
        return self.random.choice(functions)()

    def value(self, depth=3):
        r = self.random
        if r.random() < 0.05:
            return self.noise(r.randrange(1, 6))
        if depth <= 0:
            return self.atom()
        made = self.pick(self.atom, self.atom, self.tensor, self.tensor, self.array, lambda: self.container(depth),
                         lambda: self.container(depth), lambda: self.called(depth), lambda: self.built(depth))  # fmt: skip
        if r.random() < 0.2:
            made += self.put()
        if r.random() < 0.1:
            made = self.get()
        return made

    def put(self):
        self.memo += 1
        if self.random.random() < 0.02:
            return b"r" + struct.pack("<I", self.random.choice([1000, 2**20, 2**31, 2**32 - 1]))
        return self.pick(lambda: b"q" + bytes([self.memo % 256]), lambda: b"\x94", lambda: b"p%d\n" % self.memo)

    def get(self):
        return b"h" + bytes([self.random.randrange(self.memo + 1) % 256])

    def integer(self):
        r = self.random
        return r.choice(
            [num(r.choice(SIZES)), num(r.randrange(9)), long(r.choice(LARGE)), b"I%d\n" % r.randrange(99), b"L7L\n"]
        )

    def atom(self):
        r = self.random
        return self.pick(self.integer, lambda: text(r.choice(KEYS)), lambda: r.choice([b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f"]),
                         lambda: b"G" + r.randbytes(8), lambda: data_of(r.randbytes(r.randrange(20))), lambda: name(*r.choice(NAMES)),
                         lambda: b"U\x02ab", lambda: b"V\\u00e9\n", lambda: b"S'a'\n", lambda: b"F1e5\n")  # fmt: skip

    def storage(self):
        r = self.random
        kind = r.choice(list(serialization._STORAGES)) if r.random() < 0.9 else r.choice(["UntypedStorage", "device"])
        numel = num(r.choice(SIZES)) if r.random() < 0.9 else self.atom()
        key = text(str(r.randrange(4))) if r.random() < 0.95 else self.value(1)
        part = r.choice([b"", b"", b"N", tup(text("v"), self.integer(), self.integer())])
        return tup(text("storage"), name("torch", kind), key, text("cpu"), numel, part) + b"Q"

    def sizes(self):
        r = self.random
        return tup(
            *(
                num(r.choice(SIZES[:9])) if r.random() < 0.9 else self.integer()
                for _ in range(r.choice([0, 1, 1, 2, 3, 20, 100]))
            )
        )

    def tensor(self):
        r = self.random
        function = r.choice(["_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v2", "_rebuild_tensor_v3"])
        more = [] if function == "_rebuild_tensor" else [r.choice([b"\x88", b"\x89"]), b"}"]
        more += [name("torch", r.choice(list(serialization._DTYPES)))] if function == "_rebuild_tensor_v3" else []
        stride = r.choice([self.sizes(), tup(num(1)), tup(num(0))])
        size = r.choice([self.sizes(), tup(num(r.randrange(9)))])
        made = call(name("torch._utils", function), self.storage(), num(r.choice([0, 0, 0, 1, 5])), size, stride, *more)
        return call(name("torch._utils", "_rebuild_parameter"), made, b"\x88", b"}") if r.random() < 0.2 else made

    def dtype(self):
        r = self.random
        code = r.choice(["u1", "f4", "f8", "i8", "c16", "b1", "O8", "V9", "i3", "f99"])
        order = tup(num(3), text(r.choice("<>|=O")), *[b"N"] * 3, num(-1), num(-1), num(0))
        return call(name("numpy", "dtype"), text(code), b"\x89", b"\x88") + (order + b"b" if r.random() < 0.9 else b"")

    def array(self):
        r = self.random
        core = r.choice(["numpy.core", "numpy._core"])
        n, item = r.choice([0, 1, 2, 8]), r.choice([1, 4, 8, 16])
        shape = tup(num(n)) if r.random() < 0.8 else self.sizes()
        content = r.choice([data_of(bytes(n * item)), text("a" * n), self.atom()])
        if r.random() < 0.3:
            return call(name(f"{core}.numeric", "_frombuffer"), content, self.dtype(), shape, text(r.choice("CFA")))
        if r.random() < 0.2:
            return call(name(f"{core}.multiarray", "scalar"), self.dtype(), content)
        begun = call(name(f"{core}.multiarray", "_reconstruct"), name("numpy", "ndarray"), tup(num(0)), data_of(b"b"))
        begun += self.put() if r.random() < 0.5 else b""
        state = tup(num(1), shape, self.dtype(), r.choice([b"\x88", b"\x89"]), content) + b"b"
        return begun + state * r.choice([0, 1, 1, 1, 1, 2])

    def container(self, depth):
        r = self.random
        items = [self.value(depth - 1) for _ in range(r.choice([0, 1, 2, 3, 8]))]
        flat = b"".join(items)
        return r.choice([
            tup(*items), b"(" + flat + b"l", b"](" + flat + b"e", b"}(" + flat + b"u", b"(" + flat + b"d", b"\x8f(" + flat + b"\x90",
            b"(" + flat + b"\x91", b"}" + self.atom() + self.value(depth - 1) + b"s", b"]" + self.value(depth - 1) + b"a",
            self.value(depth - 1) + b"(" + flat + b"e", self.value(depth - 1) + b"(" + flat + b"u",
            b")" + b"2\x86" * r.choice([3, 20, 90]), self.value(depth - 1) + b"\x85" * r.choice([1, 5, 300, 5000]),
        ])  # fmt: skip

    def called(self, depth):
        r = self.random
        f = name(*r.choice(NAMES)) if r.random() < 0.9 else self.value(depth - 1)
        arguments = [self.value(depth - 1) for _ in range(r.choice([0, 1, 1, 2, 2, 3, 4]))]
        if r.random() < 0.2:
            return (
                f
                + self.put()
                + tup(*arguments)
                + self.put()
                + b"R"
                + (f"h{chr(max(0, self.memo - 1) % 100)}h{chr(self.memo % 100)}R".encode()) * 30
            )
        return r.choice([call(f, *arguments), f + tup(*arguments) + b"\x81", f + tup(*arguments) + b"}\x92"])

    def built(self, depth):
        r = self.random
        state = b"}" + b"".join(text(r.choice(KEYS)) + self.value(depth - 1) + b"s" for _ in range(r.randrange(3)))
        state = r.choice([state, b"N" + state + b"\x86", self.value(depth - 1)])
        return r.choice([call(name("collections", "OrderedDict")), self.value(depth - 1)]) + state + b"b"

    def noise(self, n):
        codes = b"().0122NKMJGXBCTUS]}laesudtqhrjpgcRb\x81\x92Q\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x93\x94\x95\x96\x97\x98\x80\x82PioIF"
        return b"".join(
            bytes([self.random.choice(codes)]) + self.random.randbytes(self.random.choice([0, 0, 0, 1, 2, 4]))
            for _ in range(n)
        )

    def program(self):
        return (
            b"\x80"
            + bytes([self.random.choice([2, 2, 2, 3, 4, 5])])
            + self.value(self.random.choice([1, 2, 3, 4]))
            + b"."
        )


# Good files.


def contents():
    base = pydist.arange(24).float().reshape(4, 6)
    return {
        "base": base, "row": base[1], "t": base.t(), "half": pydist.ones(3).half(), "ints": pydist.arange(5), "empty": pydist.empty(0, 2),
        "parameter": Parameter(pydist.ones(2)), "plain": [1, 2.5, "text", None, True, (1, (2, 3)), {3}, b"\0\xff", 2**80, 1j],
        "ordered": OrderedDict(b=1), "shape": base.shape, "dtype": pydist.int8, "frozen": frozenset([4]), "bytes": bytearray(b"ab"),
    }  # fmt: skip


def arrays():
    return {"a": np.arange(6.0).reshape(2, 3), "f": np.arange(6, dtype=">i2").reshape(2, 3).T, "s": np.float32(1.5), "c": Counter("aab"), "data": np.zeros((1, 3072), np.uint8), "labels": [3]}  # fmt: skip


def new_form(protocol):
    file = io.BytesIO()
    pydist.save(contents(), file, pickle_protocol=protocol)
    return file.getvalue()


def rezipped(records, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for record, content in records.items():
            archive.writestr(record, content)
    return file.getvalue()


def records_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {entry: archive.read(entry) for entry in archive.namelist()}


def numpy_form(protocol):
    return rezipped({"a/data.pkl": pickle.dumps(arrays(), protocol)})


def old_form(program, storages):
    """storages: {key: (number of elements, bytes)}"""
    head = [pickle.dumps(part, 2) for part in (serialization._MAGIC, 1001, {"little_endian": True})]
    tail = [struct.pack("<q", count) + data for count, data in storages.values()]
    return b"".join([*head, program, pickle.dumps(list(storages), 2), *tail])


def old_good():
    one = call(name("torch._utils", "_rebuild_tensor_v2"), tup(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), num(4), b"N") + b"Q",
               num(0), tup(num(2), num(2)), tup(num(2), num(1)), b"\x89", b"}")  # fmt: skip
    return old_form(b"\x80\x02" + one + b".", {"0": (4, struct.pack("4f", 1, 2, 3, 4))})


def good_safetensors():
    named = {
        "w": pydist.ones(3, 2),
        "i": pydist.arange(4),
        "h": pydist.ones(3).half(),
        "e": pydist.empty(0, 2),
        "s": pydist.tensor(1.5),
    }
    return safetensors.save(named, {"format": "pt"})


GOOD = [new_form(p) for p in (2, 3, 4, 5)] + [numpy_form(p) for p in (2, 3, 4, 5)]
OLD, SAFE = old_good(), good_safetensors()
PLAIN = [pickle.dumps(arrays(), p) for p in (2, 4, 5)]


# Damage.


def damaged(random, data):
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 4, 16])):
        if not data:
            break
        at = random.randrange(len(data))
        kind = random.randrange(6)
        if kind == 0:
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
        elif kind == 2:
            del data[at : at + random.choice([1, 2, 4, 50])]
        elif kind == 3:
            data[at:at] = data[random.randrange(len(data)) :][: random.choice([1, 4, 60])]
        elif kind == 4:
            code = random.choice("<I <Q <H".split())
            value = random.choice([0, 1, 2**8, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
            piece = struct.pack("<Q", value)[: struct.calcsize(code)]
            data[at : at + len(piece)] = piece
        else:
            del data[at:]
    return bytes(data)


def opcodes_changed(random, program):
    """A pickle whose opcodes are left out, doubled, exchanged, or have other ones between them."""
    try:
        places = [place for _, _, place in pickletools.genops(program)] + [len(program)]
    except Exception:
        return damaged(random, program)
    parts = [program[a:b] for a, b in zip(places, places[1:], strict=False)]
    writer = Writer(random)
    writer.memo = 20
    for _ in range(random.choice([1, 1, 2, 3, 8])):
        at, other = random.randrange(len(parts)), random.randrange(len(parts))
        kind = random.randrange(6)
        if kind == 0 and len(parts) > 1:
            del parts[at]
        elif kind == 1:
            parts.insert(at, parts[other])
        elif kind == 2:
            parts[at], parts[other] = parts[other], parts[at]
        elif kind == 3:
            parts[at] = writer.value(2)
        elif kind == 4:
            parts.insert(at, writer.pick(lambda: writer.value(1), lambda: writer.noise(2), writer.get, writer.put))
        else:
            parts[at] = parts[at][:1] + damaged(random, parts[at][1:])
    return b"".join(parts)


def directory_changed(random, data):
    """The zip's directory says something else of its records: fields of one entry, mostly lengths and offsets."""
    data = bytearray(data)
    places, at = [], data.find(b"PK\1\2")
    while at >= 0:
        places.append(at)
        at = data.find(b"PK\1\2", at + 1)
    for _ in range(random.choice([1, 1, 2, 3])):
        at = random.choice(places)
        field, size = random.choice(
            [
                (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (20, 4), (24, 4), (24, 4), (28, 2), (30, 2), (32, 2),
                (42, 4), (42, 4),
            ]
        )  # fmt: skip
        other = random.choice(places)
        value = random.choice(
            [0, 1, 8, 0xFFFF, 2**31, 2**32 - 2, 2**32 - 1, len(data), *struct.unpack_from("<I", data, other + field)]
        )
        data[at + field : at + field + size] = struct.pack("<Q", value)[:size]
        if random.random() < 0.3:
            data[at + 24 : at + 28] = data[at + 20 : at + 24]
    return bytes(data)


def pt_file(random):
    kind = random.randrange(9)
    method = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    good = random.choice(GOOD)
    if kind == 0:
        return damaged(random, good)
    if kind == 1:
        return directory_changed(random, rezipped(records_of(good), method))
    if kind in (2, 3):
        records = records_of(good)
        pickled = next(entry for entry in records if entry.endswith("data.pkl"))
        change = damaged if kind == 2 else opcodes_changed
        records[pickled] = change(random, records[pickled])
        if random.random() < 0.2:
            record = random.choice(list(records))
            records[record] = damaged(random, records[record])
        return rezipped(records, method)
    if kind == 4:
        return damaged(random, OLD)
    if kind == 5:
        storages = {
            str(k): (n, bytes(n * random.choice([1, 4, 8])))
            for k in range(random.randrange(4))
            for n in [random.choice(SIZES[:9])]
        }
        return old_form(Writer(random).program(), storages)
    if kind == 6:
        return opcodes_changed(random, random.choice(PLAIN))
    program = Writer(random).program()
    if kind == 7:
        return program
    records = {
        "a/data.pkl": program,
        **{f"a/data/{k}": random.randbytes(random.choice([0, 3, 16, 64, 5000])) for k in range(3)},
    }
    return rezipped(records, method)


def safe_file(random):
    (length,) = struct.unpack("<Q", SAFE[:8])
    header, body = json.loads(SAFE[8 : 8 + length]), SAFE[8 + length :]
    kind = random.randrange(4)
    if kind == 0:
        return damaged(random, SAFE)

    def number():
        return random.choice(
            [
                0, 1, 2, 3, 8, 24, -1, 1.5, True, None, "1", 2**31, 2**62, 2**63, 2**64, 10**300, 10**4000, len(body),
                [], [1], {},
            ]
        )  # fmt: skip

    for _ in range(random.choice([1, 1, 2, 4])):
        entry = random.choice(list(header))
        value = header[entry]
        what = random.randrange(6)
        if what == 0 and isinstance(value, dict) and "shape" in value:
            value["shape"] = [number() for _ in range(random.choice([0, 1, 2, 3, 100]))]
        elif what == 1 and isinstance(value, dict):
            value["data_offsets"] = [number() for _ in range(random.choice([0, 1, 2, 2, 2, 3]))]
        elif what == 2 and isinstance(value, dict):
            value["dtype"] = random.choice([*safetensors._DTYPES, "F99", None, 1, []])
        elif what == 3:
            header[entry] = number()
        elif what == 4:
            header[random.choice(["x", "w", "__metadata__", "\ud800", ""])] = copy.deepcopy(value)
        elif len(header) > 1:
            del header[entry]
    data = json.dumps(header).encode()
    if kind == 1:
        data = damaged(random, data)
    if kind == 2 and random.random() < 0.3:
        data = random.choice(
            [b"[" * 900 + b"]" * 900, b"{" + b'"a":{' * 900 + b"}" * 901, b" " * 5000, b'{"w":' + b"9" * 5000 + b"}"]
        )
    size = len(data) if random.random() < 0.9 else random.choice([0, 1, len(data) + 1, 2**31, 2**63, 2**64 - 1])
    return struct.pack("<Q", size) + data + body


# Loading.


def touch(value, left):
    """Reads what came, and writes to it, for the sanitizer."""
    left[0] -= 1
    if left[0] < 0:
        return
    if isinstance(value, pydist.Tensor):
        if 0 < value.numel() < 1 << 16 and value.storage_offset() >= 0:
            value.detach().clone().zero_()
    elif isinstance(value, np.ndarray):
        value.copy()
        if value.flags.writeable:
            value.fill(1)
    elif type(value) in (dict, OrderedDict, Counter):
        for key, item in list(value.items())[:200]:
            touch(key, left)
            touch(item, left)
    elif type(value) in (list, tuple, set, frozenset):
        for item in list(value)[:200]:
            touch(item, left)


def watched(load, most, errors):
    """Loads, and what comes is read; raises where it did more than it may."""
    global watching
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        made = None
        watching = True
        with contextlib.suppress(*errors):
            made = load()
        watching = False
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        watching = False
        tracemalloc.stop()
    with contextlib.suppress(RecursionError):
        touch(made, [500])
    if seen:
        raise AssertionError(f"the file reached {seen}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss) * 1024
    if peak > most or grown > max(RSS, most):
        raise AssertionError(f"{peak} bytes (grown by {grown}) for a file that allows {most}")


def allowed(data):
    """Bytes that loading may take: by the length of the file, deflated records by what deflate can stand for."""
    with contextlib.suppress(Exception), zipfile.ZipFile(io.BytesIO(data)) as archive:
        if any(info.compress_type for info in archive.infolist()):
            return len(data) * (serialization._DEFLATED + serialization._DEFLATED_PICKLE * PER_BYTE) + MORE
    return len(data) * PER_BYTE + MORE


LASTING = outlasting()
path = os.path.join(tempfile.mkdtemp(), "file")


def case(random):
    seen.clear()
    if random.random() < 0.2:
        data = safe_file(random)
        with open(path, "wb") as file:
            file.write(data)
        watched(lambda: safetensors.load(data), allowed(data), (safetensors.SafetensorError,))
        watched(lambda: safetensors.load_file(path), allowed(data), (safetensors.SafetensorError, OSError))
        return
    data = pt_file(random)
    with open(path, "wb") as file:
        file.write(data)
    watched(lambda: pydist.load(io.BytesIO(data)), allowed(data), PT_ERRORS)
    watched(lambda: pydist.load(path, mmap=True), allowed(data), PT_ERRORS)
    if data[:1] == b"\x80":
        watched(lambda: cifar.load_batch(path), allowed(data), (ValueError,))
    if outlasting() != LASTING:
        raise AssertionError("something changed what outlives the file")


for warm in (*GOOD, OLD, *PLAIN, zlib.compress(b"")):  # what is imported at first use
    with contextlib.suppress(*PT_ERRORS):
        pydist.load(io.BytesIO(warm))

if __name__ == "__main__":
    runner.main(case)
