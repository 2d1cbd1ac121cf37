"""`python -m benchmarks.data [case ...]`: rows per second of input pipelines, beside tf.data and torch's DataLoader.

Each peer runs in a process of its own, one after the other, round after round; the figure is the median over the rounds,
and a ratio is the median of the rounds' ratios. The DataLoader counts with no or two workers, whichever is faster. The
peers may live in other environments: `--tensorflow PYTHON`, `--torch PYTHON`. Data: MNIST from PYDIST_DATA, where it is
there, else random images.
"""

import argparse
import gzip
import io
import os
import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.harness import PROGRAMS, ROOT, measure

CASES = {  # what pydist has to reach: times the rows per second of tf.data, and of the DataLoader
    "slices": ("MNIST slices, shuffle(60,000), batch 64", 5, 3),
    "mapped": ("the same, cast and divide on batches", 2, 2),
    "example": ("TFRecord, Example (784 bytes, label) parsed in batches of 128", 1.5, None),
    "example_each": ("the same, parsed row by row", 1.5, None),
    "jpeg": ("JPEG of 96 px decoded, cropped, flipped in two threads, batch 64", 0.8, None),
    "lines": ("lines of a text in batches of 128", 1, None),
    "first": ("shuffle(10,000,000): the first batch", None, None),
}
PEERS = {"tensorflow": ("tensorflow",), "torch": ("torch", "torch-2")}


def mnist():
    """(images, labels): 60,000 real digits, or noise."""
    folder = Path(os.environ.get("PYDIST_DATA", ROOT.parent / "shared" / "data"), "mnist")
    try:
        with (
            gzip.open(folder / "train-images-idx3-ubyte.gz") as images,
            gzip.open(folder / "train-labels-idx1-ubyte.gz") as labels,
        ):
            return (np.frombuffer(images.read()[16:], np.uint8).reshape(-1, 28, 28).copy(),
                    np.frombuffer(labels.read()[8:], np.uint8).astype(np.int64))  # fmt: skip
    except FileNotFoundError:
        random = np.random.default_rng(0)
        return random.integers(0, 256, (60_000, 28, 28)).astype(np.uint8), random.integers(0, 10, 60_000)


def make_files(folder):
    from pydist.data import BytesList, Example, Feature, Features, Int64List, TFRecordWriter

    images, labels = mnist()
    np.savez(folder / "mnist.npz", images=images, labels=labels)
    with TFRecordWriter(folder / "mnist.tfrecord") as writer:
        for image, label in zip(images, labels.tolist()):
            feature = {"image": Feature(bytes_list=BytesList(value=[image.tobytes()])),
                       "label": Feature(int64_list=Int64List(value=[label]))}  # fmt: skip
            writer.write(Example(features=Features(feature=feature)).SerializeToString())
    with TFRecordWriter(folder / "jpeg.tfrecord") as writer:
        for image in images[:4000]:
            writer.write(jpeg(image))
    words = [f"{label} {'word ' * (label + 5)}" for label in labels.tolist()]
    (folder / "lines.txt").write_text("\n".join(words * 5))


def jpeg(image):
    """A JPEG of 96 px, as smooth as a photograph: three digits as its colours, enlarged."""
    from PIL import Image

    colours = np.stack([image, image.T, image[::-1]], -1)
    file = io.BytesIO()
    Image.fromarray(colours).resize((96, 96), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def peers_of(case, pythons):
    """{name: command} of a case."""
    program = str(PROGRAMS / "pipelines.py")
    names = {"pydist": [sys.executable, program, "pydist"]}
    for (peer, variants), bar in zip(PEERS.items(), CASES[case][1:]):
        if bar is not None and pythons[peer]:
            names |= {variant: [pythons[peer], program, variant] for variant in variants}
    return names


def run(case, folder, pythons, rounds):
    """Prints the rows per second of each peer and pydist's ratio to it."""
    title, *bars = CASES[case]
    samples = {}
    for _ in range(rounds):
        for peer, command in peers_of(case, pythons).items():
            seconds, _, _ = measure([*command, case, str(folder)])
            samples.setdefault(peer, []).append(1 / seconds)
    if "torch" in samples:
        both = samples.pop("torch"), samples.pop("torch-2")
        samples["torch"] = max(both, key=statistics.median)
    print(f"{case}: {title}")
    for peer, rates in samples.items():
        line = f"  {peer:12} {statistics.median(rates):14,.0f} rows/s"
        if peer != "pydist":
            ratio = statistics.median(ours / theirs for ours, theirs in zip(samples["pydist"], rates))
            bar = bars[list(PEERS).index(peer)]
            line += f"   pydist has {ratio:6.2f} times as many (wanted: {bar:g})"
        elif case == "first":
            line += f"   {64e3 / statistics.median(rates):.2f} ms (wanted: 5)"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    for peer, (module, *_) in PEERS.items():
        here = sys.executable if find_spec(module) else None
        parser.add_argument(f"--{peer}", metavar="PYTHON", default=here, help="the interpreter that has it")
    args = parser.parse_args()
    unknown = set(args.cases) - CASES.keys()
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))} (expected {', '.join(CASES)})")
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        for case in args.cases or CASES:
            run(case, folder, vars(args), args.rounds)


if __name__ == "__main__":
    main()
