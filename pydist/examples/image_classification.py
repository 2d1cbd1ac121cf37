"""Trains a ResNet to classify images, on one or more ranks, and measures what makes it faster.

    python -m pydist.examples.image_classification --data DIR
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.image_classification --data DIR --ablate

DIR has CIFAR-10's binary batches (data_batch_*.bin and test_batch.bin, also as .gz). The program writes them as JPEGs into
TFRecord files in `--records`, which later runs find. The batch is global: the ranks divide it. `--ablate` trains a baseline
(float32, one input thread, no prefetch, gradients in one bucket after the backward pass), then with faster input, with
faster communication, with 16-bit numbers, and with all three, and prints a table.
"""

import argparse
import glob
import io
import os
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import pydist
from pydist import data, nn, optim
from pydist import distributed as dist
from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from pydist.nn.parallel import DistributedDataParallel
from pydist.vision import models
from pydist.vision.datasets.cifar import load_binary

CLASSES, SIDE, PADDING = 10, 32, 4
SHARDS = 4
FEATURES = {"image": data.FixedLenFeature([], data.string), "label": data.FixedLenFeature([], pydist.int64)}
ALL = frozenset(("input", "communication", "bf16"))


def batches_of(folder, part):
    """(images [N, 32, 32, 3], labels) of CIFAR-10's "data" or "test" batches."""
    paths = sorted(glob.glob(f"{glob.escape(str(folder))}/{part}_batch*.bin*"))
    if not paths:
        raise FileNotFoundError(f"no {part}_batch*.bin or {part}_batch*.bin.gz in {folder}")
    images, labels = (np.concatenate(column) for column in zip(*map(load_binary, paths)))
    return images.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels


def write_records(folder, records, part):
    """Writes a part's images as JPEGs into SHARDS files, which appear when they are whole."""
    from PIL import Image

    images, labels = batches_of(folder, part)
    for shard in range(SHARDS):
        path = records / f"{part}-{shard}-of-{SHARDS}.tfrecord"
        with data.TFRecordWriter(f"{path}.new") as writer:
            for image, label in zip(images[shard::SHARDS], labels[shard::SHARDS].tolist()):
                file = io.BytesIO()
                Image.fromarray(image).save(file, "JPEG", quality=95)
                feature = {"image": data.Feature(bytes_list=data.BytesList(value=[file.getvalue()])),
                           "label": data.Feature(int64_list=data.Int64List(value=[label]))}  # fmt: skip
                writer.write(data.Example(features=data.Features(feature=feature)).SerializeToString())
        os.replace(f"{path}.new", path)


def files_of(args, part):
    """The TFRecord files of a part. One rank writes them, where they are not there."""
    records = Path(args.records or Path(args.data, "records"))
    paths = [records / f"{part}-{shard}-of-{SHARDS}.tfrecord" for shard in range(SHARDS)]
    if dist.get_rank() == 0 and not all(path.is_file() for path in paths):
        records.mkdir(parents=True, exist_ok=True)
        write_records(args.data, records, part)
    dist.barrier()
    return [str(path) for path in paths]


def pixels(record):
    """(image [32, 32, 3], label) of a record."""
    row = data.parse_single_example(record, FEATURES)
    return data.decode_jpeg(row["image"], channels=3), row["label"]


def augmented(record):
    """The same with the image moved by up to 4 pixels, and mirrored or not."""
    image, label = pixels(record)
    top, left, mirror = pydist.randint(0, 2 * PADDING + 1, (3,)).tolist()
    padded = nn.functional.pad(image, (0, 0, PADDING, PADDING, PADDING, PADDING))
    image = padded[top : top + SIDE, left : left + SIDE]
    return image.flip(1) if mirror % 2 else image, label


def pipeline(paths, size, function, fast, seed=None):
    """Batches of this rank's rows. With a seed they are shuffled, and all ranks make as many."""
    rows = data.TFRecordDataset(paths)
    if seed is not None:
        rows = rows.shuffle(len(rows), seed=seed)
    rows = rows.shard(dist.get_world_size(), dist.get_rank())
    batches = rows.map(function, num_parallel_calls=data.AUTOTUNE if fast else None).batch(size, seed is not None)
    return batches.prefetch(data.AUTOTUNE) if fast else batches


def prepared(images):
    """Pixels as the network wants them, in order [N, 3, 32, 32]."""
    return (images.permute(0, 3, 1, 2).float() - 120.0) / 64.0


def network(depth):
    """A ResNet for small images: its first convolution keeps their size."""
    net = getattr(models, f"resnet{depth}")(num_classes=CLASSES)
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return net


@pydist.no_grad()
def accuracy(net, batches):
    """The fraction of the test set that is classified correctly."""
    net.eval()
    counts = pydist.zeros(2, dtype=pydist.int64)
    for images, labels in batches:
        counts += pydist.tensor([(net(prepared(images)).argmax(1) == labels).sum().item(), len(labels)])
    dist.all_reduce(counts)
    net.train()
    return counts[0].item() / counts[1].item()


def train(args, files, fast):
    """(images per second of all ranks, accuracy on the test set). `fast`: what is faster than in the baseline."""
    pydist.manual_seed(args.seed)
    net, world = network(args.depth), dist.get_world_size()
    model = DistributedDataParallel(net, bucket_cap_mb=None if "communication" in fast else 1 << 12)
    if "communication" in fast:
        model.register_comm_hook(None, bf16_compress_hook)
    optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    size = max(1, args.batch_size // world)
    batches = pipeline(files["data"], size, augmented, "input" in fast, args.seed)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(batches))
    bar = tqdm(total=args.epochs * len(batches), unit="batch", disable=args.no_progress or dist.get_rank() != 0)
    seconds = 0.0
    for _ in range(args.epochs):
        begin = time.perf_counter()
        for images, labels in batches:
            optimizer.zero_grad()
            with pydist.autocast("cpu", pydist.bfloat16, enabled="bf16" in fast):
                loss = nn.functional.cross_entropy(model(prepared(images)), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update()
        seconds += time.perf_counter() - begin
    bar.close()
    right = accuracy(net, pipeline(files["test"], 256, pixels, True))
    return args.epochs * len(batches) * size * world / seconds, right


def ablate(args, files):
    """Prints a table of what is faster, alone and together."""
    ways = {"baseline": (), "input": ("input",), "communication": ("communication",), "bf16": ("bf16",), "all": ALL}
    first = None
    for name, fast in ways.items():
        rate, right = train(args, files, fast)
        first = first or rate
        if dist.get_rank() == 0:
            if name == "baseline":
                print("| faster | images/s | time saved | test accuracy |\n|---|---|---|---|")
            print(f"| {name} | {rate:.1f} | {1 - first / rate:.1%} | {right:.4f} |", flush=True)


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pydist.examples.image_classification", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--data", metavar="DIR", required=True, help="folder with CIFAR-10's binary batches")
    parser.add_argument("--records", metavar="DIR", help="folder of the TFRecord files (default: records in --data)")
    parser.add_argument("--depth", type=int, choices=(18, 34, 50), default=18, help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks together (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.1, help="the highest (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ablate", action="store_true", help="a table of what makes it faster")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args()
    if args.epochs < 1 or args.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return args


def main():
    """Trains, and prints the test accuracy, or a table."""
    args = arguments()
    dist.init_process_group()
    try:
        files = {part: files_of(args, part) for part in ("data", "test")}
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"image_classification: {error}")
    if args.ablate:
        ablate(args, files)
    else:
        rate, right = train(args, files, ALL)
        if dist.get_rank() == 0:
            print(f"{rate:.1f} images/s\ntest accuracy: {right:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
