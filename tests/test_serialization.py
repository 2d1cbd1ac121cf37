"""Files: .pt both ways with PyTorch, safetensors, and files that are damaged or mean harm."""

import collections
import io
import os
import pickle
import random
import signal
import struct
import threading
import zipfile

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
    with pytest.raises(RuntimeError, match="no .pt file"):
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
        assert made["epoch"] == 3 and made["a"].tolist() == shared.tolist() and made["t"].tolist() == shared.t().tolist()
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
    with pytest.raises(pickle.UnpicklingError, match="another length"):
        pydist.load(io.BytesIO(bytes(wrong)))
    huge = data.replace(b"K\x06N", b"M\xff\xffN")
    assert huge != data
    with pytest.raises(pickle.UnpicklingError, match="65535 elements"):
        pydist.load(io.BytesIO(huge))
    evil = old_file(torch, {"a": print})
    with pytest.raises(pickle.UnpicklingError, match="print, which is not among what is safe"):
        pydist.load(io.BytesIO(evil))
