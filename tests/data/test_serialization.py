"""Files: .pt both ways with PyTorch, safetensors, and files that are damaged or mean harm."""

import collections
import io
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import threading
import tracemalloc
import zipfile
import zlib

import pytest

import pydist
from pydist import nn, safetensors, serialization

DTYPES = [
    pydist.float32, pydist.float64, pydist.float16, pydist.bfloat16, pydist.int64, pydist.int32, pydist.int16,
    pydist.int8, pydist.uint8, pydist.bool,
]  # fmt: skip


def everything():
    base = pydist.arange(12).float().reshape(3, 4)
    tensors = {str(dtype): pydist.arange(5).to(dtype) for dtype in DTYPES}
    return {
        **tensors,
        "base": base,
        "transposed": base.t(),
        "row": base[1],
        "scalar": pydist.tensor(3.5),
        "empty": pydist.empty(0, 3),
        "wanting": pydist.ones(2).requires_grad_(),
        "parameter": nn.Parameter(pydist.randn(3)),
        "frozen": nn.Parameter(pydist.randn(2), requires_grad=False),
        "plain": [1, 2.5, "text", None, True, (1, 2), {3}, b"\x00\xff", complex(1, 2), 2**80],
        "frozen set": frozenset([4]),
        "ordered": collections.OrderedDict(b=1, a=[2]),
        "shape": base.shape,
        "dtype": pydist.bfloat16,
        "device": base.device,
    }


def same(a, b):
    if isinstance(a, pydist.Tensor):
        kept = type(a) is type(b) and a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()
        return kept and a.requires_grad == b.requires_grad and bool((a.detach() == b.detach()).all())
    return type(a) is type(b) and a == b


def saved(obj, **options):
    file = io.BytesIO()
    pydist.save(obj, file, **options)
    return file.getvalue()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_is_saved_comes_back(protocol):
    was = everything()
    now = pydist.load(io.BytesIO(saved(was, pickle_protocol=protocol)))
    assert list(now) == list(was)
    for name in was:
        assert same(was[name], now[name]), name


@pytest.mark.parametrize("mapped", [False, True])
def test_tensors_that_share_memory_still_do(tmp_path, mapped):
    path = tmp_path / "file.pt"
    pydist.save(everything(), path)
    size = path.stat().st_size
    now = pydist.load(path, mmap=mapped)
    now["base"][1, 2] = 99.0
    assert now["row"][2] == 99 and now["transposed"][2, 1] == 99
    assert pydist.load(path)["row"][2] == 6 and path.stat().st_size == size


def test_records_that_lie_anywhere_are_mapped_too(tmp_path):
    """Other writers, and zip itself, align nothing."""
    good = zipfile.ZipFile(io.BytesIO(saved(everything())))
    for pad in range(1, 9):
        with zipfile.ZipFile(tmp_path / "file.pt", "w") as archive:
            archive.writestr("pad", b"x" * pad)
            for record in good.namelist():
                archive.writestr(record, good.read(record))
        assert pydist.load(tmp_path / "file.pt", mmap=True)["base"].tolist() == everything()["base"].tolist()


def test_one_storage_is_written_once():
    big = pydist.zeros(1 << 16)
    assert len(saved([big[i : i + 2] for i in range(50)])) < big.numel() * 4 + 20_000


def test_records_lie_at_multiples_of_64():
    data = saved(everything())
    for info in zipfile.ZipFile(io.BytesIO(data)).infolist():
        name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
        assert (info.header_offset + 30 + name + extra) % 64 == 0


def test_pytorch_reads_ours():
    torch = pytest.importorskip("torch")
    was = everything()
    del was["frozen set"]  # PyTorch refuses it
    now = torch.load(io.BytesIO(saved(was)), weights_only=True)
    for name, value in was.items():
        if isinstance(value, pydist.Tensor):
            there = now[name]
            assert str(there.dtype)[6:] == str(value.dtype)[7:] and tuple(there.shape) == tuple(value.shape)
            assert there.detach().double().tolist() == value.detach().double().tolist()
            assert there.requires_grad == value.requires_grad and there.stride() == value.stride()
            assert isinstance(there, torch.nn.Parameter) == isinstance(value, nn.Parameter)
    assert now["plain"] == was["plain"] and now["ordered"] == was["ordered"] and now["dtype"] is torch.bfloat16


def test_we_read_pytorchs(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 1, 5, 5)).sum().backward()
    optimizer.step()
    was = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    was["half"] = torch.randn(3).bfloat16()
    torch.save(was, tmp_path / "file.pt")
    for mapped in (False, True):
        now = pydist.load(tmp_path / "file.pt", mmap=mapped)
        assert now["epoch"] == 3 and now["half"].tolist() == was["half"].tolist()
        for name, value in was["model"].items():
            assert now["model"][name].tolist() == value.tolist()
        assert now["optimizer"]["param_groups"] == was["optimizer"]["param_groups"]
        assert now["optimizer"]["state"][0]["exp_avg"].tolist() == was["optimizer"]["state"][0]["exp_avg"].tolist()


def test_a_model_saved_by_pytorch_gives_the_same_output():
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
    file = io.BytesIO()
    torch.save(theirs.state_dict(), file)
    ours = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).to(pydist.float64)
    file.seek(0)
    ours.load_state_dict(pydist.load(file))
    x = numpy.random.randn(3, 5)
    expected = theirs(torch.tensor(x)).detach().numpy()
    numpy.testing.assert_allclose(ours(pydist.tensor(x)).detach().numpy(), expected, 1e-12)


class Harm:
    def __reduce__(self):
        return os.system, ("echo harm > harmed",)


def test_nothing_in_a_file_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (Harm(), [Harm()], {"a": {"b": Harm()}}, collections.OrderedDict(x=Harm())):
        with pytest.raises(pickle.UnpicklingError, match="system.*weights_only=False"):
            pydist.load(io.BytesIO(saved(content)))
    assert not os.path.exists("harmed")


@pytest.mark.parametrize(
    "text",
    [
        b"\x80\x02cbuiltins\neval\nX\x03\x00\x00\x001+1\x85R.",
        b"\x80\x02c__builtin__\ngetattr\n.",
        b"\x80\x02cpydist._C\nTensor\n.",
        b"\x80\x04\x8c\x10pydist.serializ.\x8c\x04save\x93.",
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x10\x85R.",  # 2^44 bytes
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aK\x01s\x86b.",  # sets an attribute
        b"\x80\x02ctorch\nFloatStorage\n}X\x05\x00\x00\x00dtypeK\x01s\x86b.",
        b"\x80\x02" + b"(" * 200_000 + b".",
        b"\x80\x02" + b"]" * 5_000 + b"a" * 4_999 + b".",  # a list in a list in a list: may be read
        b"",
        b"\x00",
        b"\x80\x02K\x01",
    ],
)
def test_pickles_that_mean_harm(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", text)
    try:
        assert isinstance(pydist.load(file), (list, dict))
    except (pickle.UnpicklingError, RuntimeError):
        pass
    assert pydist.load(io.BytesIO(saved([1]))) == [1]


# What a pickle says, by opcode.


def text(t):
    return b"X" + struct.pack("<I", len(t)) + t.encode()


def tup(*parts):
    return b"(" + b"".join(parts) + b"t"


def name(module, name):
    return f"c{module}\n{name}\n".encode()


def call(f, *args):
    return f + tup(*args) + b"R"


def num(n):
    return b"J" + struct.pack("<i", n)


def zipped(pickled, records=(), compress=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compress) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + pickled + b".")
        for record, content in records:
            archive.writestr(f"a/{record}", content)
    return file.getvalue()


def refused(data, match):
    """What loading takes at most, in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises((pickle.UnpicklingError, RuntimeError), match=match):
            pydist.load(io.BytesIO(data))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


MULTIARRAY = "numpy._core.multiarray"
U1 = (
    call(name("numpy", "dtype"), text("u1")) + tup(num(3), text("|"), b"N", b"N", b"N", num(-1), num(-1), num(0)) + b"b"
)
ARRAY = call(name(MULTIARRAY, "_reconstruct"), name("numpy", "ndarray"), tup(num(0)), text("b"))


def content(n, byte=b"A"):
    return tup(num(1), tup(num(n)), U1, b"\x89", b"B" + struct.pack("<I", n) + byte * n) + b"b"


def test_an_array_gets_its_content_once():
    np = pytest.importorskip("numpy")
    made = pydist.load(io.BytesIO(zipped(ARRAY + b"q\x01" + content(4) + b"h\x01\x86")))
    assert all(type(array) is np.ndarray and array.tolist() == [65] * 4 for array in made) and made[0] is made[1]
    made[0][0] = 1  # it can be written to
    for again in (content(4) + content(1), content(1) + b"q\x01" + call(name("numpy._core.numeric", "_frombuffer"),
                  b"h\x01", U1, tup(num(1)), text("C"))):  # fmt: skip
        refused(zipped(ARRAY + again), "state for a ndarray|lacks content")
    for shape in (5, 3, -2, 2**31 - 1):
        refused(zipped(ARRAY + content(4).replace(num(4), num(shape), 1)), "array|buffer|negative|allocate")


STORAGE = tup(text("storage"), name("torch", "ByteStorage"), text("0"), text("cpu"), num(4)) + b"Q"
TENSOR = call(name("torch._utils", "_rebuild_tensor_v2"), STORAGE, num(0), tup(num(4)), tup(num(1)), b"\x89", b"}")
STATE = b"}" + text("x") + num(1) + b"s"


@pytest.mark.parametrize(
    "said",
    [
        TENSOR + STATE + b"b",
        TENSOR + b"N" + b"}" + text("requires_grad") + b"\x88s\x86b",
        TENSOR + num(0) + num(1) + b"s",
        STORAGE + STATE + b"b",
        STORAGE + STATE + b"N\x86b",
        ARRAY + content(4) + num(0) + num(1) + b"s",
        call(name("builtins", "bytearray"), b"C\x02ab") + num(0) + num(1) + b"s",
        call(name("builtins", "bytearray"), b"C\x02ab") + num(0) + b"a",
        b"]" + num(0) + num(1) + b"s",
        b"}" + STATE + b"b",
        b"}" + num(0) + b"a",
        b"(" + num(0) + b"e",
        call(TENSOR, num(0)),
        call(STORAGE),
        b"N)R",
        name("collections", "OrderedDict") + b")\x81",
        name("torch", "FloatStorage") + b")\x81",
        call(name("collections", "OrderedDict")) + b"}" + text("items") + num(1) + b"sb",
        call(name("torch._tensor", "_rebuild_from_type_v2"), name("builtins", "set"), b"N", b")", b"N"),
        call(name("_codecs", "encode"), text("a"), text("rot13")),
    ],
)
def test_a_file_changes_and_calls_only_what_it_made(said):
    refused(zipped(said, [("data/0", b"1234")]), "load: file")


def test_names_keep_their_attributes():
    """A state for a function or a class would outlive the load."""
    for module, f in [
        ("torch", "Size"), ("torch", "FloatStorage"), ("torch", "float32"), ("builtins", "set"), ("_codecs", "encode"),
        ("collections", "OrderedDict"), ("collections", "Counter"), ("torch._utils", "_rebuild_tensor_v2"),
        ("numpy", "dtype"), ("numpy", "ndarray"), (MULTIARRAY, "_reconstruct"), (MULTIARRAY, "scalar"),
    ]:  # fmt: skip
        for state in (STATE + b"b", b"N" + STATE + b"\x86b", num(0) + num(1) + b"s", num(0) + b"a"):
            refused(zipped(name(module, f) + state), "to a global name .expected an object that the pickle has made")


def test_keys_that_would_take_for_ever():
    """Each line of the file doubles what hash() has to walk, or nests it deeper than the C stack is high."""
    wide = b")" + b"2\x86" * 60
    refused(zipped(b"}" + wide + b"Ns"), "keys")
    refused(zipped(b"\x8f(" + wide + b"\x90"), "keys")
    refused(zipped(b"(" + wide + b"\x91"), "keys")
    refused(zipped(call(name("builtins", "set"), b"](" + wide + b"e")), "keys")
    refused(zipped(call(name("collections", "OrderedDict"), b"](" + wide + b"N\x86e")), "keys")
    refused(zipped(tup(text("storage"), name("torch", "ByteStorage"), wide, text("cpu"), num(4)) + b"Q"), "storage")
    refused(zipped(call(name("_codecs", "encode"), text("a"), wide)), "encoding")
    refused(zipped(wide + b"Q"), "outside the pickle")
    refused(zipped(call(name("torch", "Size"), wide)), "damaged")
    refused(zipped(TENSOR.replace(tup(num(4)), wide), [("data/0", b"1234")]), "damaged")
    refused(zipped(b"}" + b")" + b"\x85" * 1_000_000 + b"Ns"), "a key has too many nested tuples")
    key = pydist.load(io.BytesIO(saved({((1, 2), "a"): 1})))
    assert key == {((1, 2), "a"): 1}


def test_a_small_file_takes_little():
    """Bytes that the file only speaks of are not allocated: by the memo, lengths of texts, records, storages, copies."""
    most = 4_000_000
    assert refused(zipped(b"Nr" + struct.pack("<I", 300_000_000)), "the memo") < most
    for code, size in ((b"\x96", "<Q"), (b"\x8e", "<Q"), (b"\x8d", "<Q"), (b"X", "<I"), (b"B", "<I"), (b"\x8b", "<I")):
        assert refused(zipped(code + struct.pack(size, 4_000_000_000)), "cut off") < most
    copies = (
        b"B"
        + struct.pack("<I", 10_000)
        + bytes(10_000)
        + b"q\x010]"
        + call(name("builtins", "bytearray"), b"h\x01") * 5_000
    )
    assert refused(zipped(copies), "larger than the file") < most
    copies = b"](" + b"K\x01" * 10_000 + b"eq\x010" + call(name("builtins", "set"), b"h\x01") * 5_000
    refused(zipped(b"}" + copies), "too large")
    state = b"}(" + b"".join(text(f"a{i}") + b"N" for i in range(5_000)) + b"uq\x010"
    refused(zipped(state + call(name("collections", "OrderedDict")) + b"h\x01b" * 20_000), "larger than the file")
    for compress in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        data = bytearray(zipped(TENSOR, [("data/0", b"1234")], compress))
        at = data.rfind(b"a/data/0") - 46
        data[at + 24 : at + 28] = struct.pack("<I", 3_900_000_000)
        assert refused(bytes(data), "data/0: 3900000000 bytes") < most
    bomb = zipped(b"N" * 100_000_000, compress=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 200_000 and refused(bomb, "data.pkl: 1000000") < most
    zeros = zipped(TENSOR.replace(num(4), num(3_000_000)), [("data/0", bytes(3_000_000))], zipfile.ZIP_DEFLATED)
    assert len(zeros) < 10_000 and pydist.load(io.BytesIO(zeros)).shape == (3_000_000,)  # a legal one
    bzip = zipped(TENSOR, [("data/0", b"1234")], zipfile.ZIP_BZIP2)
    refused(bzip, "method 12")


def test_records_that_share_bytes_are_refused():
    """Directory entries are short, what they name is long: many of them may point to one place."""
    records, data = [(f"data/{i}", b"") for i in range(300)], b"x" * 20_000
    tensors = [TENSOR.replace(text("0"), text(str(i))).replace(num(4), num(20_000)) for i in range(300)]
    file = bytearray(zipped(tup(*tensors), [*records, ("data/last", data)]))
    for i in range(300):  # the content of each is what follows it
        begin = file.index(f"a/data/{i}".encode()) + len(f"a/data/{i}")
        at = file.index(f"a/data/{i}".encode(), file.index(b"PK\1\2")) - 46
        file[at + 16 : at + 28] = struct.pack("<III", zlib.crc32(file[begin : begin + 20_000]), 20_000, 20_000)
    assert refused(bytes(file), "in a file of|cut off|damaged") < 4_000_000


def old_form(*pickles, tail=b""):
    head = (serialization._MAGIC, 1001, {"little_endian": True})
    return b"".join([*(pickle.dumps(part, 2) for part in head), *(b"\x80\x02" + p + b"." for p in pickles), tail])


def test_storages_of_an_old_file_take_its_length_together():
    one = TENSOR.replace(STORAGE, STORAGE.replace(b"tQ", b"NtQ"))
    many = b"".join(one.replace(text("0"), text(str(i))).replace(num(4), num(50_000)) for i in range(1_000))
    data = old_form(b"](" + many + b"e", b"]", tail=bytes(100_000))
    assert refused(data, "50000 elements") < 8_000_000
    fine = old_form(one, b"](" + text("0") + b"e", tail=struct.pack("<q", 4) + b"abcd")
    assert pydist.load(io.BytesIO(fine)).tolist() == [97, 98, 99, 100]
    refused(old_form(one, b"]", tail=struct.pack("<q", 4) + b"abcd"), "storages are not those of its tensors")


def test_archives_that_zipfile_stumbles_over():
    data = zipped(TENSOR, [("data/0", b"1234")])
    at = data.rfind(b"a/data/0") - 46
    newer = data[: at + 6] + b"\xff\xff" + data[at + 8 :]  # the version that it takes
    named = data[: at + 9] + b"\x08" + data[at + 10 :].replace(b"a/data/0", b"a/\xff\xff\xff\xff/0")  # as UTF-8
    for wrong in (newer, named):
        with pytest.raises(RuntimeError, match="not a .pt file"):
            pydist.load(io.BytesIO(wrong))


def rebuilt(numel, offset, size, stride, dtype="FloatStorage"):
    """A file with one tensor over a storage of 4 floats, and this geometry."""

    class Writer(serialization._Pickler):
        def persistent_id(self, obj):
            return tuple(obj) if isinstance(obj, serialization._StorageId) else None

    class Claim:
        def __reduce__(self):
            kind = serialization._Global(f"torch.{dtype}")
            storage = serialization._StorageId(("storage", kind, "0", "cpu", numel))
            return serialization._REBUILD_TENSOR, (storage, offset, size, stride, False, {})

    text, file = io.BytesIO(), io.BytesIO()
    Writer(text, 2).dump(Claim())
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", text.getvalue())
        archive.writestr("a/data/0", struct.pack("4f", 1, 2, 3, 4))
    return pydist.load(file)


def test_geometry_is_checked_against_the_storage():
    assert rebuilt(4, 1, (3,), (1,)).tolist() == [2, 3, 4]
    for claim in [
        (5, 0, (5,), (1,)), (4, 2, (3,), (1,)), (4, 0, (2, 3), (2, 1)), (4, 0, (2,), (4,)), (4, -1, (1,), (1,)),
        (4, 0, (2**62, 4), (0, 1)), (4, 0, (-1,), (1,)), (4, 0, (2,), (-1,)), (4, 0, "ab", (1,)), (4, 0, (2,), (1, 1)),
        (-1, 0, (1,), (1,)), (2**61, 0, (2**61,), (1,)), ("4", 0, (1,), (1,)), (4, 0, (2,), (2**62,)),
    ]:  # fmt: skip
        with pytest.raises(pickle.UnpicklingError, match="damaged"):
            rebuilt(*claim)


def test_damaged_files_are_clear_errors():
    data = saved(everything())
    chance = random.Random(0)
    known = (RuntimeError, pickle.UnpicklingError)
    with pytest.raises(RuntimeError, match="not a .pt file"):
        pydist.load(io.BytesIO(b"\x80"))
    for end in [0, 1, 4, 100, *(chance.randrange(len(data)) for _ in range(100)), len(data) - 1]:
        with pytest.raises(known, match="load: file"):
            pydist.load(io.BytesIO(data[:end]))
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 1, 8))):
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            pydist.load(io.BytesIO(damaged))  # what is damaged may be padding
        except known:
            pass


class Point:
    def __init__(self, x):
        self.x = x


def test_other_classes_by_permission():
    data = saved({"p": Point(pydist.ones(2))})
    with pytest.raises(pickle.UnpicklingError, match="test_serialization.Point"):
        pydist.load(io.BytesIO(data))
    assert pydist.load(io.BytesIO(data), weights_only=False)["p"].x.tolist() == [1, 1]
    serialization.add_safe_globals([Point])
    try:
        assert pydist.load(io.BytesIO(data))["p"].x.tolist() == [1, 1]
    finally:
        serialization.clear_safe_globals()


def test_safe_globals_of_threads_at_the_same_time(tmp_path):
    """What one thread allows is allowed until it ends the with, whatever others do; and to it alone."""
    path, inside, done = tmp_path / "a.pt", threading.Event(), threading.Event()
    pydist.save(Point(1), path)

    def other():
        with pydist.serialization.safe_globals([io.StringIO]):
            inside.set()
            done.wait()

    with pydist.serialization.safe_globals([Point]):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait()
        assert pydist.serialization.get_safe_globals() == [Point]
        done.set()
        thread.join()
        assert pydist.load(path).x == 1
    with pytest.raises(pickle.UnpicklingError, match="not among the names"):
        pydist.load(path)


def test_a_failed_save_leaves_what_was_there(tmp_path):
    path = tmp_path / "file.pt"
    pydist.save([1], path)
    for save in (lambda: pydist.save(lambda: 1, path), lambda: pydist.save({"a": (i for i in "x")}, path)):
        with pytest.raises((pickle.PicklingError, TypeError, AttributeError)):
            save()
        assert pydist.load(path) == [1] and os.listdir(tmp_path) == ["file.pt"]
    with pytest.raises(FileNotFoundError):
        pydist.save([1], tmp_path / "no" / "file.pt")


SAVES = [lambda path, x: pydist.save({"x": x}, path), lambda path, x: safetensors.save_file({"x": x}, path)]


@pytest.mark.parametrize("write", SAVES)
def test_a_file_gets_its_new_content_at_once(tmp_path, write, monkeypatch):
    """Its mode stays, a link stays one, the content is on the disk before the name, and strangers' links are not followed."""
    path, link, other = tmp_path / "file", tmp_path / "link", tmp_path / "other"
    write(path, pydist.ones(2))
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    path.chmod(0o600)
    link.symlink_to(path)
    other.write_bytes(b"kept")
    (tmp_path / f"file.{os.getpid()}.part").symlink_to(other)
    done = []
    monkeypatch.setattr(os, "fsync", lambda fd, sync=os.fsync: (done.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b, replace=os.replace: (done.append("replace"), replace(a, b)))
    write(link, pydist.zeros(3))
    assert done == ["sync", "replace", "sync"] and link.is_symlink() and other.read_bytes() == b"kept"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == sorted(["file", "link", "other", f"file.{os.getpid()}.part"])
    write("/dev/null", pydist.ones(1))
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize("write", SAVES)
@pytest.mark.parametrize("has_nameless", [True, False])
def test_threads_that_save_to_one_path_do_not_mix(tmp_path, write, has_nameless, monkeypatch):
    if not has_nameless:
        monkeypatch.delattr(os, "O_TMPFILE")
    path = tmp_path / "file"
    errors = []

    def again(value):
        try:
            for _ in range(5):
                write(path, pydist.full((20_000 * value,), value))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=again, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and os.listdir(tmp_path) == ["file"]
    load = safetensors.load_file if write is SAVES[1] else pydist.load
    x = load(path)["x"]
    assert x.numel() == 20_000 * int(x[0]) and x.min() == x.max()


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
def test_a_killed_save_leaves_nothing(tmp_path):
    from pydist._files import _nameless

    fd = _nameless(tmp_path)
    if fd is None:
        pytest.skip("this file system has no files without a name")
    os.close(fd)
    pydist.save([1], tmp_path / "file")
    child = os.fork()
    if not child:  # killed when the content is written, and has no name yet
        os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
        pydist.save([2] * 1000, tmp_path / "file")
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.listdir(tmp_path) == ["file"] and pydist.load(tmp_path / "file") == [1]


def test_bad_arguments(tmp_path):
    with pytest.raises(FileNotFoundError):
        pydist.load(tmp_path / "missing.pt")
    (tmp_path / "text").write_text("not a zip")
    with pytest.raises(RuntimeError, match="not a .pt file"):
        pydist.load(tmp_path / "text")
    with pytest.raises(RuntimeError):
        pydist.load(io.BytesIO(saved([1])), map_location="cuda:0")
    assert pydist.load(io.BytesIO(saved([1])), map_location="cpu") == [1]
    with pytest.raises(ValueError, match="path"):
        pydist.load(io.BytesIO(saved([1])), mmap=True)


# safetensors


def tensors():
    many = {str(dtype): pydist.arange(7).to(dtype) for dtype in DTYPES}
    grid = pydist.arange(6).float().reshape(2, 3)
    part = pydist.arange(9)[2:5]
    return {**many, "transposed": grid.t(), "part": part, "scalar": pydist.tensor(1.5), "empty": pydist.empty(0, 2)}


def test_safetensors_round_trip(tmp_path):
    was, path = tensors(), tmp_path / "t.safetensors"
    safetensors.save_file(was, path, metadata={"format": "pt"})
    assert path.read_bytes() == safetensors.save(was, metadata={"format": "pt"})
    for now in (safetensors.load_file(path), safetensors.load(path.read_bytes())):
        assert set(now) == set(was)
        for name in was:
            assert now[name].dtype is was[name].dtype and now[name].tolist() == was[name].tolist()
            assert now[name].is_contiguous() and now[name].shape == was[name].shape
    with safetensors.safe_open(path) as file:
        assert file.metadata() == {"format": "pt"} and file.get_tensor("part").tolist() == [2, 3, 4]
    mapped = safetensors.load_file(path)
    mapped["part"].fill_(7)
    assert safetensors.load_file(path)["part"].tolist() == [2, 3, 4]


def test_safetensors_by_the_layout(tmp_path):
    """Read by hand, from the specification."""
    import json

    ints, doubles = pydist.tensor([1, 2], dtype=pydist.int32), pydist.tensor([0.5], dtype=pydist.float64)
    data = safetensors.save({"b": ints, "a": doubles})
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header == {
        "a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
        "b": {"dtype": "I32", "shape": [2], "data_offsets": [8, 16]},
    }
    assert struct.unpack("<dii", data[8 + length :]) == (0.5, 1, 2)


def test_safetensors_shared_memory_is_refused():
    x = pydist.ones(4)
    with pytest.raises(safetensors.SafetensorError, match="'a' and 'b' share memory"):
        safetensors.save({"a": x, "b": x[1:]})
    with pytest.raises(safetensors.SafetensorError, match="expected a tensor"):
        safetensors.save({"a": 1})


def built(header, data=b"\0" * 8):
    import json

    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 8,
        b"\xff" * 30,
        struct.pack("<Q", 100) + b"{}",
        built(b"[1]", b""),
        built(b"{", b""),
        built(b"[" * 100_000, b""),
        built(b'{"a":1,"a":2}'),
        built({"a": 1}),
        built({"a": {"dtype": "F32", "shape": [2]}}),
        built({"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}),
        built({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}),
        built({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}),
        built({"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}}),
        built({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}),
        built({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
        built({"a": {"dtype": "F32", "shape": [2**40, 2**40, 0], "data_offsets": [0, 8]}}),
        built({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}),
        built({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        built({n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in "ab"}),
        built({"a": {"dtype": "F32", "shape": [2, *[1] * 100], "data_offsets": [0, 8]}}),
        built({"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}, b""),
        built({"a": {"dtype": "F32", "shape": [0, 2**80], "data_offsets": [0, 0]}}, b""),
        built({"a": {"dtype": "F32", "shape": [10**4000] * 1000, "data_offsets": [0, 8]}}),
        built(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'),
        built('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.encode("utf-16")),
        built({"__metadata__": 1}, b""),
        built({"__metadata__": {"a": 1}}, b""),
        built({"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}),
        built(b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"),
    ],
)
def test_safetensors_damaged(data, tmp_path):
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    for load in (lambda: safetensors.load(data), lambda: safetensors.load_file(path)):
        with pytest.raises(safetensors.SafetensorError, match="load:"):
            load()


def test_safetensors_of_other_writers_need_not_be_aligned():
    data = built(
        {
            "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
        },
        b"\x07" + struct.pack("f", 2.5),
    )
    now = safetensors.load(data)
    assert now["a"].tolist() == [7] and now["b"].tolist() == [2.5]


def test_numpy_arrays_are_read_and_nothing_is_run(tmp_path, torch):
    """PyTorch's files with arrays and NumPy numbers in them, restricted; arrays of objects are refused."""
    np = pytest.importorskip("numpy")
    given = {
        "f": np.arange(6.0).reshape(2, 3),
        "t": np.arange(6, dtype=">i4").reshape(2, 3).T,
        "c": np.array([1 + 2j]),
        "s": np.float32(1.5),
        "b": np.array([True, False]),
    }
    torch.save(given, tmp_path / "a.pt")
    got = pydist.load(tmp_path / "a.pt")
    assert all(np.array_equal(got[k], given[k]) and got[k].dtype == given[k].dtype.newbyteorder("=") for k in given)
    assert isinstance(got["f"], np.ndarray) and pydist.from_numpy(got["f"]).sum().item() == 15
    torch.save(np.array([print], dtype=object), tmp_path / "b.pt")
    with pytest.raises(pickle.UnpicklingError):
        pydist.load(tmp_path / "b.pt")
    with pydist.serialization.safe_globals([io.StringIO]):
        assert pydist.serialization.get_safe_globals() == [io.StringIO]
    assert pydist.serialization.get_safe_globals() == []
    with pytest.raises(RuntimeError, match="no CUDA device"):
        pydist.load(tmp_path / "a.pt", map_location=pydist.device("cuda"))


def old_file(torch, value):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def test_files_before_1_6_are_read(tmp_path, torch):
    shared = torch.arange(6.0).reshape(2, 3)
    net = torch.nn.Linear(2, 3)
    value = {
        "a": shared,
        "t": shared.t(),
        "i": torch.tensor([1, 2]),
        "b": torch.ones(2, dtype=torch.bfloat16),
        "net": net.state_dict(),
        "epoch": 3,
        "empty": torch.zeros(0, 2),
    }
    data = old_file(torch, value)
    got = pydist.load(io.BytesIO(data))
    (tmp_path / "old.pt").write_bytes(data)
    again = pydist.load(tmp_path / "old.pt")
    for made in (got, again):
        assert (
            made["epoch"] == 3 and made["a"].tolist() == shared.tolist() and made["t"].tolist() == shared.t().tolist()
        )
        assert made["i"].tolist() == [1, 2] and made["b"].dtype is pydist.bfloat16 and made["empty"].shape == (0, 2)
        assert made["net"]["weight"].tolist() == net.weight.tolist()
    got["a"][0, 1] = 9.0
    assert got["t"][1, 0] == 9
    with pytest.raises(RuntimeError, match="before 1.6"):
        pydist.load(tmp_path / "old.pt", mmap=True)


def test_damaged_and_malicious_old_files(torch):
    data = old_file(torch, {"a": torch.arange(6.0)})
    for cut in (14, 20, 60, 150, 250, len(data) - 30, len(data) - 1):
        with pytest.raises((pickle.UnpicklingError, RuntimeError)):
            pydist.load(io.BytesIO(data[:cut]))
    wrong = bytearray(data)
    at = data.rindex((6).to_bytes(8, "little"))
    wrong[at] = 7
    with pytest.raises(pickle.UnpicklingError, match="length is not the one"):
        pydist.load(io.BytesIO(bytes(wrong)))
    huge = data.replace(b"K\x06N", b"M\xff\xffN")
    assert huge != data
    with pytest.raises(pickle.UnpicklingError, match="65535 elements"):
        pydist.load(io.BytesIO(huge))
    evil = old_file(torch, {"a": print})
    with pytest.raises(pickle.UnpicklingError, match="print, which is not among the names that are safe"):
        pydist.load(io.BytesIO(evil))


def plain_pickle(torch, protocol):
    """Tensors and parameters by pickle itself, and what they should become."""
    noted, grid = torch.ones(3), torch.arange(6.0).reshape(2, 3)
    noted.note = 5
    given = {
        "grid": grid.t(),
        "noted": noted,
        "half": torch.ones(2, dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "wanting": torch.ones(1, requires_grad=True),
        "empty": torch.empty(0, 2),
        "state": torch.nn.Linear(2, 1).state_dict(),
        "rest": [grid.shape, torch.float16, torch.device("cpu"), (1, "a", {2.5})],
    }
    return given, pickle.dumps(given, protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_of_pytorchs_tensors(torch, protocol, tmp_path):
    given, data = plain_pickle(torch, protocol)
    (tmp_path / "file.pkl").write_bytes(data)
    for options in ({}, {"weights_only": False}):
        made = pydist.load(tmp_path / "file.pkl", **options)
        for key in ("grid", "noted", "half", "parameter", "wanting", "empty"):
            a, b = made[key], given[key]
            assert a.tolist() == b.tolist() and tuple(a.stride()) == b.stride() and a.requires_grad == b.requires_grad
            assert (
                isinstance(a, nn.Parameter) == isinstance(b, torch.nn.Parameter)
                and str(a.dtype)[7:] == str(b.dtype)[6:]
            )
        assert made["state"]["weight"].tolist() == given["state"]["weight"].tolist()
        assert made["rest"] == [pydist.Size([2, 3]), pydist.float16, pydist.device("cpu"), (1, "a", {2.5})]
    with pytest.raises(RuntimeError, match="mmap"):
        pydist.load(tmp_path / "file.pkl", mmap=True)
    for cut in (20, len(data) // 2, len(data) - 1):
        with pytest.raises(pickle.UnpicklingError, match="damaged"):
            pydist.load(io.BytesIO(data[:cut]))


def test_pickle_reads_pytorchs_tensors_in_its_place(torch, tmp_path):
    """pickle.load under compat; the storages within are read as load() reads them, so they run nothing."""
    given, data = plain_pickle(torch, 2)
    (tmp_path / "file.pkl").write_bytes(data)
    inner = old_file(torch, {"a": os.system})
    (tmp_path / "evil.pkl").write_bytes(
        b"\x80\x02"
        + call(name("torch.storage", "_load_from_bytes"), b"B" + struct.pack("<I", len(inner)) + inner)
        + b"."
    )
    (tmp_path / "read.py").write_text(
        "import pickle, torch\n"
        "made = pickle.load(open('file.pkl', 'rb'))\n"
        "assert made['grid'].tolist() == torch.arange(6.0).reshape(2, 3).t().tolist() and made['noted'].note == 5\n"
        "assert isinstance(made['parameter'], torch.nn.Parameter) and made['half'].dtype is torch.bfloat16\n"
        "assert made['rest'][:2] == [torch.Size([2, 3]), torch.float16]\n"
        "try:\n    pickle.load(open('evil.pkl', 'rb'))\n"
        "except pickle.UnpicklingError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-m", "pydist.compat", "read.py"]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(pydist.__file__))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "system, which is not among the names that are safe" in done.stdout, done.stderr


def test_storages_within_storages_end(torch):
    """_load_from_bytes within _load_from_bytes, and one content many times."""
    inner = b"\x80\x02N."
    for _ in range(300):
        inner = (
            b"\x80\x02"
            + call(name("torch.storage", "_load_from_bytes"), b"B" + struct.pack("<I", len(inner)) + inner)
            + b"."
        )
    refused(inner, "RecursionError")
    data = old_file(torch, torch.ones(10_000).untyped_storage())
    f = name("torch.storage", "_load_from_bytes")
    many = b"B" + struct.pack("<I", len(data)) + data + b"q\x010](" + call(f, b"h\x01") * 1_000 + b"e"
    assert refused(b"\x80\x02" + many + b".", "larger than the file") < 2_000_000
