"""The examples as a user starts them: one process, two ranks, bad data."""

import functools
import gzip
import importlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import pydist
from lib.package import installed
from pydist import distributed
from pydist.distributed.checkpoint.format_utils import load_whole

np = pytest.importorskip("numpy")
LONG = "FULL_LONG" in os.environ  # .ci/full


def start(*command, ranks=None, timeout=120):
    launcher = [] if ranks is None else ["-m", "pydist.run", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *launcher, *map(str, command)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def mnist(*args, ranks=None):
    return start("-m", "pydist.examples.mnist", *args, ranks=ranks)


@pytest.fixture
def refusal(monkeypatch, capsys):
    """A function that calls an example's main() in this process: what it says where it ends by itself with an error."""

    def refusal(name, *args):
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(f"pydist.examples.{name}").main()
        distributed.destroy_process_group()
        assert ended.value.code not in (None, 0)
        return ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err

    return refusal


def accuracy(done):
    assert done.returncode == 0, done.stderr
    return float(re.search(r"test accuracy: ([01]\.\d+)$", done.stdout.strip()).group(1))


@pytest.mark.slow
def test_digits_on_one_and_two_ranks(folder):
    pytest.importorskip("sklearn")
    one, two = mnist(), mnist(ranks=2)
    assert accuracy(one) >= 0.96 and accuracy(two) >= 0.96
    assert abs(accuracy(one) - accuracy(two)) <= 0.01
    assert "batch/s" in one.stderr and two.stdout.count("test accuracy: ") == 1
    assert "batch" not in mnist("--data", folder, "--epochs", 1, "--no-progress").stderr


@pytest.mark.skipif(not LONG, reason="takes long: .ci/full runs it")
def test_digits_with_convolutions():
    pytest.importorskip("sklearn")
    assert accuracy(mnist("--model", "cnn", "--epochs", 10, "--no-progress", ranks=2)) >= 0.96


def test_fashion_mnist(data_folder):
    folder = data_folder("fashion-mnist")
    epochs, least = (5, 0.87) if LONG else (1, 0.84)
    options = ("--data", folder, "--epochs", epochs, "--no-progress")
    two, *one = (accuracy(mnist(*options, ranks=ranks)) for ranks in (2, None)[: 1 + LONG])
    assert min(two, *one, 1) >= least and all(abs(two - a) <= 0.01 for a in one)


@pytest.mark.parametrize("model, ranks", [("mlp", None)] * LONG + [("cnn", 2)])
def test_resume_goes_on_as_if_nothing_had_happened(tmp_path, model, ranks):
    """The same lines and the same bits of weights and optimizer state as without the interruption."""
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 500), ("t10k", 70)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = rng.integers(0, 128, (count, 8, 8)) + 12 * labels[:, None, None]
        write(tmp_path / f"{prefix}-images-idx3-ubyte", images.astype(np.uint8))
        write(tmp_path / f"{prefix}-labels-idx1-ubyte", labels)
    done, epochs = (2, 4) if LONG else (1, 2)
    options = ("--data", tmp_path, "--model", model, "--epochs", epochs, "--no-progress")
    whole = mnist(*options, "--save", tmp_path / "whole", ranks=ranks)
    step = tmp_path / "whole" / f"step-{done:012d}"
    rest = mnist(*options, "--resume", step, "--save", tmp_path / "rest", ranks=ranks)
    assert accuracy(whole) == accuracy(rest)

    def last(ended):
        return ended.stdout.splitlines()[-(epochs - done + 1) :]

    assert f"epoch {done + 1}/{epochs}" in last(whole)[0] and last(rest) == last(whole) == rest.stdout.splitlines()
    a, b = (load_whole(tmp_path / name / f"step-{epochs:012d}") for name in ("whole", "rest"))
    assert a["epoch"] == b["epoch"] == epochs and a["random"] == b["random"] and a["schedule"] == b["schedule"]
    assert all((value == b["model"][name]).all() for name, value in a["model"].items())
    for i, state in a["optimizer"]["state"].items():
        assert (state["exp_avg_sq"] == b["optimizer"]["state"][i]["exp_avg_sq"]).all()


def test_bad_checkpoints(tmp_path, folder, refusal):
    mnist("--data", folder, "--epochs", 1, "--save", tmp_path / "mlp")
    other = load_whole(tmp_path / "mlp" / "step-000000000001")
    del other["model"][next(iter(other["model"]))]
    pydist.save(other, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    pydist.save([1], tmp_path / "list.pt")
    for options, message in (
        (("--resume", tmp_path / "missing.pt"), "there is no checkpoint"),
        (("--resume", tmp_path / "text.pt"), "--resume .*text.pt: "),
        (("--resume", tmp_path / "list.pt"), "--resume .*list.pt: "),
        (("--resume", tmp_path / "other.pt"), "Missing key"),
        (("--epochs", 1, "--resume", tmp_path / "mlp"), "1 epochs are done"),
    ):
        assert re.search(message, refusal("mnist", "--data", folder, *options))


def write(path, array, opener=open):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    with opener(path, "wb") as file:
        file.write(header + array.tobytes())


@pytest.fixture
def folder(tmp_path):
    """A small idx data set of two plain and two zipped files."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 64).astype(np.uint8)
    images = (np.arange(16).reshape(1, 4, 4) * labels[:, None, None]).astype(np.uint8)
    for prefix, opener, end in (("train", open, ""), ("t10k", gzip.open, ".gz")):
        write(tmp_path / f"{prefix}-images-idx3-ubyte{end}", images, opener)
        write(tmp_path / f"{prefix}-labels-idx1-ubyte{end}", labels, opener)
    return tmp_path


def test_idx_files(folder):
    from pydist.vision.datasets import idx

    images, labels = idx.read_pair(folder, "t10k")
    assert images.shape == (64, 4, 4) and labels.dtype == np.uint8
    assert 0 <= accuracy(mnist("--data", folder, "--epochs", 1, "--batch-size", 30, ranks=3)) <= 1


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda d: [f.unlink() for f in d.iterdir()] and d.rmdir(), "no such data folder"),
        (lambda d: (d / "train-labels-idx1-ubyte").unlink(), "no train-labels-idx1-ubyte or train-.*ubyte.gz in"),
        (lambda d: cut(d / "train-images-idx3-ubyte", 500), r"484 bytes of data \(expected 1024 for \(64, 4, 4\)\)"),
        (lambda d: cut(d / "train-images-idx3-ubyte", 7), "cut short in its header"),
        (lambda d: cut(d / "train-images-idx3-ubyte", 0), "not an idx file"),
        (lambda d: cut(d / "t10k-images-idx3-ubyte.gz", 40), "damaged or cut short"),
        (lambda d: (d / "t10k-images-idx3-ubyte.gz").write_bytes(b"no zip"), "damaged or cut short"),
        (lambda d: (d / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x0d\1" + b"\0" * 9), "not an idx file"),
        (lambda d: write(d / "train-labels-idx1-ubyte", np.zeros(3, np.uint8)), "64 train images and 3 labels"),
    ],
)
def test_bad_data(folder, refusal, spoil, message):
    spoil(folder)
    assert re.search(message, refusal("mnist", "--data", folder))


def test_bad_arguments(folder, refusal):
    done = mnist("--data", folder, "--model", "cnn")
    assert done.returncode == 1 and "images of 4 x 4 pixels are too small for --model cnn" in done.stderr
    assert "Traceback" not in done.stderr
    assert "must be at least 1" in refusal("mnist", "--epochs", 0)


@pytest.mark.parametrize("ranks", [None, 2])
def test_readme_program(tmp_path, ranks):
    """The README's main job runs as it stands there, and learns."""
    readme = Path(__file__).resolve().parents[2] / "README.md"
    with open(readme) as file:
        program, *_ = re.findall(r"```python\n(.*?)```", file.read(), re.S)  # the first one is whole
    assert len(program.splitlines()) <= 32
    (tmp_path / "train.py").write_text(program)
    done = start(tmp_path / "train.py", ranks=ranks)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"epoch \d: loss (\d+\.\d+)", done.stdout)]
    assert len(losses) == 5 and losses[-1] < 0.7 * losses[0]


SMALL = ("--layers", 1, "--width", 32, "--heads", 2, "--no-progress")


def gpt(*args, ranks=None):
    return start("-m", "pydist.examples.gpt", *SMALL, "--block", 32, *args, ranks=ranks)


def test_gpt_on_one_and_two_ranks(tmp_path):
    one = gpt("--steps", 60, "--lr", 1e-2, "--sample", 20, "--save", tmp_path / "gpt.pt")
    two = gpt("--steps", 60, "--lr", 1e-2, "--sample", 0, ranks=2)
    losses = []
    for done in (one, two):
        assert done.returncode == 0, done.stderr
        losses.append(float(done.stdout.split("validation loss: ")[1]))
    assert losses[0] < 3.6 and abs(losses[0] - losses[1]) < 1e-3  # ln 100 is 4.6
    assert "transformer.h.0.attn.c_attn.weight" in pydist.load(tmp_path / "gpt.pt")


def test_llama_on_a_text(tmp_path):
    (tmp_path / "text").write_text("abcd" * 1000)
    done = gpt("--model", "llama", "--data", tmp_path / "text", "--steps", 40, "--lr", 1e-2)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("validation loss: ")[1]) < 0.3


TINY = (
    "--layers",
    2,
    "--dim",
    32,
    "--heads",
    4,
    "--kv-heads",
    2,
    "--vocabulary",
    300,
    "--length",
    16,
    "--steps",
    4,
    "--lr",
    0.02,
)


def llama(*args, ranks=None):
    done = start("-m", "pydist.examples.llama", *TINY, *args, ranks=ranks)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"step \d+: loss (\S+),", done.stdout)], done.stdout


@functools.cache
def llama_alone():
    losses, said = llama()
    assert len(losses) == 4 and losses[0] > losses[-1] and "parameters: 43,936, of which rank 0 has 43,936" in said
    return losses


@pytest.mark.parametrize("options, ranks, own", [
    (("--tp", 2, "--sp"), 2, "22,048"),
    (("--pp", 2, "--dp", 2), 4, "10,976"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (("--tp", 2, "--sp", "--loss-parallel", "--checkpoint"), 4, "11,024"),
        (("--dp", 2, "--ddp"), 2, "43,936"),
        (("--cp", 2, "--tp", 2, "--sp"), 4, "11,024"),
        (("--pp", 2, "--tp", 2, "--schedule", "GPipe", "--microbatches", 2), 4, "11,008"),
    )),
])  # fmt: skip
def test_a_llama_in_parallel(options, ranks, own):
    losses, said = llama(*options, ranks=ranks)
    assert f"of which rank 0 has {own}" in said
    assert max(abs(a - b) for a, b in zip(losses, llama_alone(), strict=True)) < 2e-3


@pytest.mark.parametrize("options, text", [
    (("--tp", 2), "--pp 1 x --dp 1 x --cp 1 x --tp 2 is not the number of ranks, 1"), (("--data", os.devnull), "has 0 bytes"),
    (("--dp", 1, "--heads", 3), "multiple"),
])  # fmt: skip
def test_the_llama_says_what_is_wrong(refusal, options, text):
    assert text in refusal("llama", *options)


@pytest.mark.parametrize("options, text", [
    (("--data", os.devnull), "0 characters"), (("--data", "/nowhere"), "No such file"), (("--width", 33), "multiple"),
    (("--batch-size", 0), "at least 1"),
])  # fmt: skip
def test_gpt_says_what_is_wrong(refusal, options, text):
    assert text in refusal("gpt", *SMALL, *options)


@pytest.mark.skipif(not LONG, reason="takes long: .ci/full runs it")
def test_gpt_on_shakespeare(data_folder):
    done = start("-m", "pydist.examples.gpt", "--data", data_folder("text") / "tinyshakespeare.txt", "--no-progress",
                 ranks=2, timeout=900)  # fmt: skip
    assert float(done.stdout.split("validation loss: ")[1]) <= 1.90


def sentiment(*args, ranks=None):
    return start("-m", "pydist.examples.sentiment", *SMALL, *args, ranks=ranks)


@pytest.mark.slow
def test_sentiment_on_one_and_two_ranks(tmp_path, refusal):
    """The words 'good' and 'bad' among others say it all."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 400), ("dev", 50), ("test", 101)):
        lines = []
        for _ in range(count):
            words, label = list(rng.choice(["the", "a", "film", "plot", ",", "."], rng.integers(1, 9))), rng.integers(2)
            words.insert(rng.integers(len(words) + 1), ("bad", "good")[label])
            lines.append(f"{label} {' '.join(words)}\n")
        (tmp_path / f"stsa.binary.{name}").write_text("".join(lines))
    for ranks in (None, 2):
        assert accuracy(sentiment("--data", tmp_path, "--lr", 5e-3, "--dropout", 0.0, ranks=ranks)) > 0.9
    options = ("--data", tmp_path, "--lr", 5e-3, "--dropout", 0.0, "--bf16", "--shares", "measured", "--slow", "1=4.0")
    done = sentiment(*options, ranks=2)
    assert accuracy(done) > 0.9
    shares = re.findall(r"shards of each rank \[(\d), (\d)\]", done.stdout)
    assert len(shares) == 4 and all(int(one) + int(other) == 8 for one, other in shares)
    (tmp_path / "stsa.binary.dev").write_text("2 bad label\n")
    for folder, text in ((tmp_path, "stsa.binary.dev:1"), (tmp_path / "none", "No such file")):
        assert text in refusal("sentiment", *SMALL, "--data", folder)
    for slow in ("1", "1=0.5", "-1=2", "1=inf"):
        assert f"--slow: invalid slowness value: '{slow}'" in refusal("sentiment", "--data", tmp_path, f"--slow={slow}")
    assert "power of two" in refusal("sentiment", "--data", tmp_path, "--logical-shards", 3)


@pytest.fixture
def colours(tmp_path):
    """A folder with small files like CIFAR-10's, whose images have the colour of their class."""
    random = np.random.default_rng(0)
    for name, count in (("data_batch_1.bin", 64), ("test_batch.bin", 16)):
        classes = np.arange(count, dtype=np.uint8) % 10
        images = random.integers(0, 25, (count, 3072), dtype=np.uint8) + 25 * classes[:, None]
        (tmp_path / name).write_bytes(np.concatenate([classes[:, None], images], 1).tobytes())
    return tmp_path


def images(*args, ranks=None):
    return start("-m", "pydist.examples.image_classification", "--batch-size", 32, *args, ranks=ranks, timeout=300)


@pytest.mark.slow
def test_image_classification(colours, refusal):
    assert 0 <= accuracy(images("--data", colours, "--epochs", 1)) <= 1
    assert len(list((colours / "records").glob("data-?-of-4.tfrecord"))) == 4
    for bad, content in (
        ("no data_batch*.bin", None),
        ("100 bytes (expected a multiple of 3073: 1 labels and an image)", b"x" * 100),
    ):
        folder = colours / f"bad{content is None}"
        folder.mkdir()
        if content:
            (folder / "data_batch_1.bin").write_bytes(content)
        assert bad in refusal("image_classification", "--data", folder)
    assert "at least 1" in refusal("image_classification", "--data", colours, "--epochs", 0)


@pytest.mark.skipif(not LONG, reason="takes a minute: .ci/full runs it")
def test_image_classification_ablates(colours):
    done = images("--data", colours, "--epochs", 1, "--ablate", ranks=2)
    rows = re.findall(r"^.*\| (\w+) +\| +[\d.]+ \| -?[\d.]+% \| [01]\.\d+ \|$", done.stdout, re.MULTILINE)
    assert rows == ["baseline", "input", "communication", "bf16", "all"], done.stdout + done.stderr


@pytest.mark.skipif(not installed("keras"), reason="no Keras")
def test_keras_mnist_on_one_and_two_ranks(folder, tmp_path):
    options = ("-m", "pydist.examples.keras_mnist", "--data", folder, "--epochs", 1)
    for ranks in (1, 2):
        done = start(*options, "--save", tmp_path / f"{ranks}.keras", ranks=ranks)
        assert 0 <= accuracy(done) <= 1 and f"Number of devices: {ranks}" in done.stdout
        assert done.stdout.count("val_accuracy") == 1 and (tmp_path / f"{ranks}.keras").stat().st_size > 1000


def test_keras_mnist_says_what_is_wrong(refusal):
    assert "no such data folder: /nowhere" in refusal("keras_mnist", "--data", "/nowhere")
    assert "at least 1" in refusal("keras_mnist", "--epochs", 0)


@pytest.mark.skipif(not LONG or not installed("keras"), reason="takes long, and needs Keras: .ci/full runs it")
def test_keras_mnist_learns(data_folder):
    assert (
        accuracy(start("-m", "pydist.examples.keras_mnist", "--data", data_folder("mnist"), ranks=2, timeout=900))
        >= 0.97
    )


@pytest.mark.slow
def test_experts():
    """The losses of one process and of two ranks are the same; four ranks with a capacity learn, too."""

    def losses(ranks, *args):
        done = start("-m", "pydist.examples.moe", "--no-progress", "--steps", 40, *args, ranks=ranks)
        assert done.returncode == 0, done.stderr
        return [float(x) for x in re.findall(r"step \d+: loss (\d+\.\d+), balance \d", done.stdout)]

    one, two = losses(None), losses(2)
    assert len(one) == 6 and one[-1] < 0.7 * one[0] and np.allclose(one, two, atol=2e-3)
    four = losses(4, "--expert-parallel", 2, "--capacity-factor", 1.0)
    assert four[-1] < 0.7 * four[0]


def test_experts_that_cannot_be(refusal):
    assert "top_k is 9 (expected 1 to 8" in refusal("moe", "--top-k", 9)
    assert "--expert-parallel 3" in refusal("moe", "--expert-parallel", 3)
    assert "at least 1" in refusal("moe", "--steps", 0)
