"""Data sets on disk: the real ones where they are, small ones made here, damaged and malicious files."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import zipfile

import pytest

import pydist

np = pytest.importorskip("numpy")

from pydist.vision import datasets, transforms
from pydist.vision.datasets import cifar, folder, idx
from pydist.vision.datasets import utils as files


def rng():
    return np.random.default_rng(0)


def write_idx(path, array, opener=open):
    path.parent.mkdir(parents=True, exist_ok=True)
    with opener(path, "wb") as file:
        file.write(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def make_mnist(root, name="MNIST", counts=(20, 8), stems=("train", "t10k"), opener=open, end=""):
    """A small data set below `root`; returns {stem: (images, labels)}."""
    made = {}
    for stem, count in zip(stems, counts):
        images, labels = (rng().integers(0, 256, (count, 6, 5)).astype(np.uint8), np.arange(count, dtype=np.uint8) % 10)
        write_idx(root / name / "raw" / f"{stem}-images-idx3-ubyte{end}", images, opener)
        write_idx(root / name / "raw" / f"{stem}-labels-idx1-ubyte{end}", labels, opener)
        made[stem] = images, labels
    return made


# MNIST and its kin.


@pytest.mark.parametrize("opener, end", [(open, ""), (gzip.open, ".gz")])
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "KMNIST"])
def test_small_mnist(pil, tmp_path, name, opener, end):
    made = make_mnist(tmp_path, name, opener=opener, end=end)
    for train, stem in ((True, "train"), (False, "t10k")):
        images, labels = made[stem]
        data = getattr(datasets, name)(str(tmp_path), train=train, download=True)  # all is there: nothing is fetched
        assert len(data) == len(images) and data.data.dtype == pydist.uint8 and data.targets.dtype == pydist.int64
        assert np.array_equal(data.data.numpy(), images) and data.targets.tolist() == labels.tolist()
        image, target = data[3]
        assert image.mode == "L" and image.size == (5, 6) and target == 3 and type(target) is int
        assert np.array_equal(np.asarray(image), images[3])
        assert len(data.classes) == 10 and data.class_to_idx[data.classes[4]] == 4
        assert f"Split: {'Train' if train else 'Test'}" in repr(data)
    chosen = getattr(datasets, name)(tmp_path, transform=transforms.ToTensor(), target_transform=lambda t: -t)
    x, target = chosen[2]
    assert target == -2 and np.array_equal(x.numpy()[0], made["train"][0][2].astype(np.float32) / np.float32(255))
    chosen.data, chosen.targets = chosen.data[5:7], chosen.targets[5:7]  # as scripts do to take a part
    assert len(chosen) == 2 and chosen[0][1] == -5


def test_old_names_warn(tmp_path):
    make_mnist(tmp_path)
    data = datasets.MNIST(tmp_path)
    with pytest.warns(UserWarning, match="renamed targets"):
        assert data.train_labels is data.targets
    with pytest.warns(UserWarning, match="renamed data"):
        assert data.test_data is data.data


def test_emnist(pil, tmp_path):
    made = make_mnist(
        tmp_path, "EMNIST", stems=("emnist-letters-train", "emnist-letters-test"), opener=gzip.open, end=".gz"
    )
    data = datasets.EMNIST(tmp_path, "letters", train=False)
    assert len(data) == 8 and data.classes[1] == "a" and len(data.classes) == 27
    assert np.array_equal(np.asarray(data[5][0]), made["emnist-letters-test"][0][5])
    sizes = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 27, "digits": 10, "mnist": 10}
    assert {name: len(classes) for name, classes in datasets.EMNIST.classes_split_dict.items()} == sizes
    with pytest.raises(ValueError, match="Unknown value 'all' for argument split"):
        datasets.EMNIST(tmp_path, "all")


def test_emnist_has_torchvisions_classes(tv):
    assert datasets.EMNIST.classes_split_dict == {k: list(v) for k, v in tv.datasets.EMNIST.classes_split_dict.items()}


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "KMNIST", "EMNIST", "CIFAR10", "CIFAR100"])
def test_published_files_are_torchvisions(tv, name):
    mine, ref = getattr(datasets, name), getattr(tv.datasets, name)
    names = "resources mirrors url md5 classes base_folder filename tgz_md5 train_list test_list meta splits".split()
    there = [
        n for n in names if hasattr(ref, n) and not (name == "EMNIST" and n in ("classes", "resources", "mirrors"))
    ]
    assert len(there) >= 2 and all(getattr(mine, n) == getattr(ref, n) for n in there)


@pytest.mark.parametrize("name, kind", [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_real_mnist(pil, data_folder, tmp_path, name, kind):
    (tmp_path / kind).mkdir()
    (tmp_path / kind / "raw").symlink_to(data_folder(name))
    for train, count in ((True, 60000), (False, 10000)):
        data = getattr(datasets, kind)(tmp_path, train, transforms.ToTensor(), download=True)
        assert data.data.shape == (count, 28, 28) and np.bincount(data.targets.numpy()).min() >= 892
        x, target = data[count - 1]
        assert x.shape == (1, 28, 28) and target == data.targets[-1].item()
        assert np.array_equal((x * 255).numpy()[0], data.data[-1].numpy())
    means = {"MNIST": 0.1307, "FashionMNIST": 0.2860}  # what scripts normalize by
    train = getattr(datasets, kind)(tmp_path)
    assert abs(train.data.numpy().mean() / 255 - means[kind]) < 1e-4


def test_mnist_gives_torchvisions_items(pil, tv, tmp_path):
    make_mnist(tmp_path)
    mine, ref = datasets.MNIST(tmp_path), tv.datasets.MNIST(tmp_path)
    assert repr(mine) == repr(ref) and mine.classes == ref.classes
    assert all(mine[i][0].tobytes() == ref[i][0].tobytes() and mine[i][1] == ref[i][1] for i in range(20))
    mine, ref = (
        d.MNIST(tmp_path, transform=t.ToTensor()) for d, t in ((datasets, transforms), (tv.datasets, tv.transforms))
    )
    assert np.array_equal(mine[7][0].numpy(), ref[7][0].numpy()) and repr(mine) == repr(ref)


def test_missing_and_damaged_mnist(tmp_path):
    with pytest.raises(
        RuntimeError, match="Dataset not found. You can use download=True to download it .*train-images"
    ):
        datasets.MNIST(tmp_path)
    make_mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="train-labels-idx1-ubyte: 17 bytes of data"):
        datasets.MNIST(tmp_path)
    write_idx(path, np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match=r"images \(20, 6, 5\) and labels \(3,\)"):
        datasets.MNIST(tmp_path)
    assert len(datasets.MNIST(tmp_path, train=False)) == 8


def test_idx_reads_what_is_written(tmp_path):
    array = rng().integers(0, 256, (3, 4, 5, 2)).astype(np.uint8)
    write_idx(tmp_path / "a.gz", array, gzip.open)
    assert np.array_equal(idx.read(tmp_path / "a.gz"), array)


# CIFAR.

PROTOCOLS = [2, 4, 5]


def write_batch(path, images, entry, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps({"data": images, **entry}, protocol))


def make_cifar(root, batches=5, count=4, protocol=2):
    base = root / "cifar-10-batches-py"
    images = rng().integers(0, 256, (batches + 1, count, 3072)).astype(np.uint8)
    for i in range(batches):
        write_batch(
            base / f"data_batch_{i + 1}", images[i], {"labels": [i] * count, "filenames": ["x"] * count}, protocol
        )
    write_batch(base / "test_batch", images[-1], {"labels": [9] * count}, protocol)
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}, protocol))
    return images


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.filterwarnings("ignore:CIFAR10.*not as published")
def test_cifar10(pil, tmp_path, protocol):
    images = make_cifar(tmp_path, protocol=protocol)
    data = datasets.CIFAR10(tmp_path)
    assert data.data.shape == (20, 32, 32, 3) and data.data.dtype == np.uint8
    assert data.targets == [i // 4 for i in range(20)] and data.classes == list("abcdefghij")
    image, target = data[6]
    assert image.mode == "RGB" and image.size == (32, 32) and target == 1
    assert np.array_equal(np.asarray(image), images[1, 2].reshape(3, 32, 32).transpose(1, 2, 0))
    test = datasets.CIFAR10(tmp_path, train=False, transform=transforms.ToTensor(), target_transform=str)
    assert len(test) == 4 and test[0][1] == "9"
    assert np.array_equal(test[3][0].numpy(), images[5, 3].reshape(3, 32, 32).astype(np.float32) / np.float32(255))
    assert "Split: Test" in repr(test)


def test_python_2s_pickle_is_read():
    """As the published files were written: the bytes as a str, by numpy.core, order '|'."""
    text = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03"
        b"cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T\x00\x0c\x00\x00" + bytes(range(256)) * 12 + b"tbU\x06labelsq\x08]q\tK\x07au."
    )
    entry = cifar.unpickle(text, encoding="latin1")
    assert np.array_equal(entry["data"], np.tile(np.arange(256, dtype=np.uint8), 12).reshape(1, 3072))
    assert entry["labels"] == [7]


def test_what_is_on_disk_is_used_with_a_warning(pil, tmp_path):
    make_cifar(tmp_path, batches=2)
    with pytest.warns(
        UserWarning, match="data_batch_3, data_batch_4, data_batch_5 missing; data_batch_1, data_batch_2 not as pub"
    ):
        data = datasets.CIFAR10(tmp_path)
    assert len(data) == 8
    (tmp_path / "cifar-10-batches-py" / "batches.meta").unlink()
    with pytest.warns(UserWarning, match="test_batch not as published"):
        assert datasets.CIFAR10(tmp_path, train=False).class_to_idx["truck"] == 9


@pytest.mark.filterwarnings("ignore:CIFAR100.*not as published")
def test_cifar100(pil, tmp_path):
    images = rng().integers(0, 256, (6, 3072)).astype(np.uint8)
    base = tmp_path / "cifar-100-python"
    write_batch(base / "train", images, {"fine_labels": [99, 5, 1, 2, 3, 4], "coarse_labels": [0] * 6})
    with pytest.raises(RuntimeError, match="metadata file not found"):
        datasets.CIFAR100(tmp_path)
    (base / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"c{i}" for i in range(100)]}, 2))
    data = datasets.CIFAR100(tmp_path)
    assert data[0][1] == 99 and len(data.classes) == 100 and data.class_to_idx["c7"] == 7
    with pytest.raises(RuntimeError, match="Dataset not found or corrupted.*cifar-100-python"):
        datasets.CIFAR100(tmp_path, train=False)


@pytest.mark.filterwarnings("ignore:CIFAR10.*published")
@pytest.mark.skipif("FULL_LONG" not in os.environ, reason="takes long: .ci/full runs it")
def test_real_cifar10(pil, data_folder, tmp_path):
    """The binary version, written as the Python version."""
    base = tmp_path / "cifar-10-batches-py"
    for name in ("data_batch_1", "test_batch"):
        rows = np.frombuffer(gzip.decompress((data_folder("cifar-10") / f"{name}.bin.gz").read_bytes()), np.uint8)
        rows = rows.reshape(-1, 3073)
        write_batch(base / name, rows[:, 1:].copy(), {"labels": rows[:, 0].tolist()})
    for train in (True, False):
        data = datasets.CIFAR10(tmp_path, train, transforms.ToTensor())
        assert len(data) == 10000 and 900 <= np.bincount(data.targets).min() and data.classes[0] == "airplane"
    mean = data.data.reshape(-1, 3).mean(0) / 255
    assert np.abs(mean - [0.4942, 0.4851, 0.4504]).max() < 1e-3  # the test set's published means


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"data": Evil()}),
        pickle.dumps({b"data": np.zeros((1, 3072), object), "labels": [0]}),
        pickle.dumps([1, 2]),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}),
        pickle.dumps({"data": np.zeros((2, 5), np.uint8), "labels": [0, 0]}),
        pickle.dumps({"labels": [0, 0]}),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 0]})[:-40],
        b"",
        b"not a pickle",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(tR(K\x01(K\xffK\xfftNK\x00U\x00tb.",
    ],
)
@pytest.mark.filterwarnings("ignore:CIFAR10.*published")
def test_bad_batches_raise_and_run_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match="test_batch: not a batch of CIFAR's Python version"):
        datasets.CIFAR10(tmp_path, train=False)
    assert not (tmp_path / "evil").exists()


# Folders of files.


@pytest.fixture
def photos(pil, tmp_path):
    """root/{cat,dog}/..., with what is no image between."""
    for name in ("cat/2.png", "cat/1.JPG", "cat/deep/0.png", "dog/a.png", "dog/notes.txt"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".txt":
            path.write_text("no image")
        else:
            colour = (len(name) * 20, 10, 200)
            pil.new("RGB" if path.suffix == ".JPG" else "RGBA", (4, 3), colour).save(
                path, format={".JPG": "JPEG"}.get(path.suffix)
            )
    return tmp_path / "photos"


def test_image_folder(photos):
    data = datasets.ImageFolder(photos, transform=transforms.ToTensor())
    assert data.classes == ["cat", "dog"] and data.class_to_idx == {"cat": 0, "dog": 1}
    assert [os.path.relpath(path, photos) for path, _ in data.samples] == [
        "cat/1.JPG",
        "cat/2.png",
        "cat/deep/0.png",
        "dog/a.png",
    ]
    assert data.targets == [0, 0, 0, 1] and data.imgs is data.samples and len(data) == 4
    x, target = data[3]
    assert x.shape == (3, 3, 4) and target == 1
    assert (
        len(datasets.ImageFolder(str(photos), is_valid_file=lambda path: path.endswith("2.png"), allow_empty=True)) == 1
    )


def test_image_folder_is_torchvisions(tv, photos):
    mine, ref = datasets.ImageFolder(str(photos)), tv.datasets.ImageFolder(str(photos))
    assert mine.samples == ref.samples and mine.classes == ref.classes and repr(mine) == repr(ref)
    assert all(a[0].tobytes() == b[0].tobytes() and a[1] == b[1] for a, b in zip(mine, ref))


def test_dataset_folder(tmp_path):
    for name in ("x/1.txt", "y/2.txt", "y/3.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    data = datasets.DatasetFolder(
        tmp_path, lambda path: open(path).read(), (".txt",), target_transform=lambda t: t + 10
    )
    assert [data[i] for i in range(2)] == [("x/1.txt", 10), ("y/2.txt", 11)]
    (tmp_path / "z").mkdir()
    with pytest.raises(
        FileNotFoundError, match="Found no valid file for the classes z. Supported extensions are: .txt"
    ):
        datasets.DatasetFolder(tmp_path, open, (".txt",))
    with pytest.raises(ValueError, match="Both extensions and is_valid_file cannot be None or not None"):
        folder.make_dataset(tmp_path)
    with pytest.raises(ValueError, match="at least one entry"):
        folder.make_dataset(tmp_path, {}, ".txt")
    with pytest.raises(FileNotFoundError, match="Couldn't find any class folder in"):
        datasets.ImageFolder(tmp_path / "x")


def test_fake_data(pil):
    data = datasets.FakeData(size=5, image_size=(3, 6, 7), num_classes=4, transform=transforms.ToTensor())
    pydist.manual_seed(0)
    first = pydist.rand(3).tolist()
    pydist.manual_seed(0)
    image, target = data[2]
    assert pydist.rand(3).tolist() == first, "an item leaves the generator alone"
    assert image.shape == (3, 6, 7) and target.dtype == pydist.int64 and 0 <= target.item() < 4
    again, label = data[2]
    assert (again == image).all() and label.item() == target.item()
    assert not (data[3][0] == image).all() and len(data) == 5
    shifted = datasets.FakeData(
        size=5, image_size=(3, 6, 7), num_classes=4, transform=transforms.ToTensor(), random_offset=2
    )
    assert (shifted[0][0] == image).all()
    assert len({data[i][1].item() for i in range(5)}) > 1
    with pytest.raises(IndexError, match="out of range"):
        data[5]


def test_a_loader_takes_them(pil, tmp_path):
    from pydist.utils.data import DataLoader

    made = make_mnist(tmp_path)
    data = datasets.MNIST(
        tmp_path, transform=transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5], [0.5])])
    )
    batches = list(DataLoader(data, batch_size=8, num_workers=2))
    assert [tuple(x.shape) for x, _ in batches] == [(8, 1, 6, 5), (8, 1, 6, 5), (4, 1, 6, 5)]
    assert batches[0][1].dtype == pydist.int64 and batches[2][1].tolist() == [6, 7, 8, 9]
    pixels = made["train"][0][:8, None].astype(np.float32) / np.float32(255)
    assert np.array_equal(batches[0][0].numpy(), (pixels - np.float32(0.5)) / np.float32(0.5))


def test_random_transforms_do_not_depend_on_the_loaders_threads():
    from pydist.utils.data import DataLoader

    random = transforms.Compose([transforms.RandomCrop(6, padding=3), transforms.RandomErasing(value="random")])
    images = [random.transforms[0](pydist.full((1, 6, 6), float(i + 1))) for i in range(24)]

    class Images(datasets.VisionDataset):
        def __getitem__(self, index):
            return self.transform(images[index])

        def __len__(self):
            return len(images)

    def epoch(workers):
        pydist.manual_seed(1)
        return pydist.cat(list(DataLoader(Images(transform=random), batch_size=4, num_workers=workers))).numpy()

    assert np.array_equal(epoch(1), epoch(3)) and np.array_equal(epoch(2), epoch(2))


def test_transforms_of_both():
    class Two(datasets.VisionDataset):
        def __getitem__(self, index):
            return self.transforms(index, -index)

        def __len__(self):
            return 3

    data = Two("here", transforms=lambda x, y: (x + 1, y + 1))
    assert data[2] == (3, -1) and "Root location: here" in repr(data)
    assert Two("here", transform=lambda x: x * 10)[2] == (20, -2)
    with pytest.raises(ValueError, match="Only transforms or transform/target_transform"):
        Two("here", transforms=min, transform=max)
    with pytest.raises(NotImplementedError):
        len(datasets.VisionDataset("here"))


# Downloads, from files here.


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_download_mnist(tmp_path, monkeypatch):
    make_mnist(tmp_path / "site", opener=gzip.open, end=".gz")
    site = tmp_path / "site" / "MNIST" / "raw"
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["file:///nowhere/", f"{site.as_uri()}/"])
    monkeypatch.setattr(datasets.MNIST, "resources", [(p.name, md5(p)) for p in sorted(site.iterdir(), reverse=True)])
    names = [name for name, _ in datasets.MNIST.resources]
    assert names[0] == "train-labels-idx1-ubyte.gz"
    order = [names[1], names[0], names[3], names[2]]
    monkeypatch.setattr(datasets.MNIST, "resources", [(name, md5(site / name)) for name in order])
    data = datasets.MNIST(tmp_path / "root", download=True)
    assert len(data) == 20
    raw = sorted(path.name for path in (tmp_path / "root" / "MNIST" / "raw").iterdir())
    assert len(raw) == 8 and not [name for name in raw if "part" in name]


@pytest.mark.filterwarnings("ignore:CIFAR10.*published")
def test_download_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/", "file:///nowhere/"])
    with pytest.raises(RuntimeError) as error:
        datasets.MNIST(tmp_path, download=True)
    text = str(error.value)
    assert (
        text.startswith("Error downloading train-images-idx3-ubyte.gz:")
        and text.count("without a network put the file at") == 2
    )
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz failed: " in text and str(tmp_path / "MNIST" / "raw") in text
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/cifar.tar.gz")
    with pytest.raises(RuntimeError, match="put the file at .*cifar-10-python.tar.gz"):
        datasets.CIFAR10(tmp_path, download=True)
    make_cifar(tmp_path, batches=2)
    with pytest.warns(UserWarning, match="download of http"):
        assert len(datasets.CIFAR10(tmp_path, download=True)) == 8
    monkeypatch.setattr(datasets.CIFAR10, "download", None)
    assert len(datasets.CIFAR10(tmp_path, train=False, download=True)) == 4, "all that is asked for is there"


@pytest.mark.filterwarnings("ignore:CIFAR10.*published")
def test_download_cifar(tmp_path, monkeypatch):
    make_cifar(tmp_path / "site")
    archive = tmp_path / "c.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "site" / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(datasets.CIFAR10, "url", archive.as_uri())
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", md5(archive))
    assert len(datasets.CIFAR10(tmp_path / "root", download=True)) == 20


def test_a_wrong_file_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    with pytest.raises(RuntimeError, match="MD5 9a0364b9e99bb480dd25e1f0284c8555 \\(expected 00\\)"):
        files.download_url((tmp_path / "a").as_uri(), tmp_path / "to", md5="00")
    assert list((tmp_path / "to").iterdir()) == []
    files.download_url((tmp_path / "a").as_uri(), tmp_path / "to", "b", md5=md5(tmp_path / "a"))
    (tmp_path / "a").unlink()
    files.download_url((tmp_path / "a").as_uri(), tmp_path / "to", "b", md5="9a0364b9e99bb480dd25e1f0284c8555")
    with pytest.raises(RuntimeError, match="download of nonsense failed"):
        files.download_url("nonsense", tmp_path / "to")
    assert files.check_integrity(tmp_path / "to" / "b") and not files.check_integrity(tmp_path / "to" / "c")


def test_archives(tmp_path):
    (tmp_path / "x").write_bytes(b"hello")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "x", "in/x")
    files.extract_archive(tmp_path / "a.zip", tmp_path / "zip")
    assert (tmp_path / "zip" / "in" / "x").read_bytes() == b"hello"
    with gzip.open(tmp_path / "y.gz", "wb") as file:
        file.write(b"there")
    assert files.extract_archive(tmp_path / "y.gz", remove_finished=True) == str(tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == b"there" and not (tmp_path / "y.gz").exists()
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(b"x" * 9)[:12])
    (tmp_path / "cut.zip").write_bytes(b"PK")
    for name, text in (("cut.tar.gz", "damaged"), ("cut.zip", "damaged"), ("x", "unknown kind")):
        with pytest.raises(RuntimeError, match=text):
            files.extract_archive(tmp_path / name, tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        files.extract_archive(tmp_path / "none.zip")


def test_an_archive_stays_in_its_folder(tmp_path):
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("../out")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"bad"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../out", "bad")
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/"
        tar.addfile(link)
    for name in ("a.tar", "a.zip"):
        with pytest.raises(RuntimeError, match="outside its folder"):
            files.extract_archive(tmp_path / name, inside)
    files.extract_archive(tmp_path / "link.tar", inside)
    assert not (tmp_path / "deep" / "out").exists() and list(inside.iterdir()) == []
