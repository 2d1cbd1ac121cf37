"""Trains a classifier of small images on one or more ranks.

    python -m pydist.examples.mnist
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.mnist
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.mnist --data DIR --epochs 5

DIR has the idx files of MNIST or Fashion-MNIST. The default is scikit-learn's digits (8 x 8 pixels). The batch is
global: the ranks divide it, so the result does not depend on their number. `--save FOLDER` writes a checkpoint
after each epoch, by all ranks and while the next epoch runs; `--resume FOLDER` continues from the newest one, on any
number of ranks, with the same losses as a run without interruption. With `--logical-shards 8` all parameters have the same bits on any number of ranks, too.
"""

import argparse
import os
import sys

import numpy as np
from tqdm import tqdm

import pydist
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import checkpoint
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, DistributedSampler, TensorDataset
from pydist.vision.datasets import idx

CLASSES = 10
HIDDEN = 128


class Convolutional(nn.Module):
    """PyTorch's example network: two 3 x 3 convolutions, 2 x 2 max pooling, two affine layers with dropout."""

    def __init__(self, height, width):
        super().__init__()
        if min(height, width) < 6:
            raise ValueError(
                f"images of {height} x {width} pixels are too small for --model cnn (expected 6 x 6 or more)"
            )
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.pool = nn.MaxPool2d(2)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), HIDDEN)
        self.dropout2 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        x = self.conv1(x).relu()
        x = self.conv2(x).relu()
        x = self.dropout1(self.pool(x))
        x = self.fc1(x.flatten(1)).relu()
        return self.fc2(self.dropout2(x))


def network(model, height, width):
    """The model of this name, for images of this size."""
    if model == "cnn":
        return Convolutional(height, width)
    return nn.Sequential(nn.Flatten(), nn.Linear(height * width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def digits():
    """scikit-learn's 1797 digits. Every fifth one is for testing."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = data.images, data.target
    is_test = np.arange(len(labels)) % 5 == 0
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def datasets(folder):
    """Training and test set. The pixels of the training set have mean 0 and standard deviation 1."""
    train, test = digits() if folder is None else (idx.read_pair(folder, "train"), idx.read_pair(folder, "t10k"))
    mean, deviation = train[0].mean(), train[0].std()

    def as_dataset(images, labels):
        pixels = (images.astype(np.float32) - np.float32(mean)) / np.float32(deviation)
        return TensorDataset(pydist.from_numpy(pixels).unsqueeze(1), pydist.from_numpy(labels.astype(np.int64)))

    return as_dataset(*train), as_dataset(*test)


def steps_of(loader):
    """The batches of each step of this rank: one, or one for each of its logical shards."""
    if dist.get_logical_shards() is None:
        yield from ([batch] for batch in loader)
        return
    for step in dist.shards(loader):
        yield (batch for shard in step for batch in shard)


def train_epoch(model, loader, optimizer, schedule, bar):
    """One pass over the loader. Returns the mean loss over all ranks' batches."""
    model.train()
    loss_of = nn.CrossEntropyLoss()
    total = pydist.zeros(2)
    for batches in steps_of(loader):
        optimizer.zero_grad()
        for images, labels in batches:
            loss = loss_of(model(images), labels)
            loss.backward()
            total += pydist.tensor([loss.item(), 1.0])
        optimizer.step()
        schedule.step()
        bar.update()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@pydist.no_grad()
def accuracy(model, loader):
    """The fraction of the whole test set that is classified correctly."""
    model.eval()
    counts = pydist.zeros(2, dtype=pydist.int64)
    for images, labels in loader:
        hits = (model(images).argmax(1) == labels).sum().item()
        counts += pydist.tensor([hits, len(labels)])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def common_random():
    """The part of the random state that all ranks share: their streams differ in the last bytes."""
    return bytes(pydist.get_rng_state()[:16].tolist())


def resume(path, state):
    """Loads a checkpoint: the newest one in a folder of --save, or the one at this path. Returns its epoch."""
    steps = checkpoint.CheckpointManager(path).all_steps() if os.path.isdir(path) else []
    if steps:
        checkpoint.CheckpointManager(path).restore(state)
    else:
        checkpoint.load(state, checkpoint_id=path)
    pydist.set_rng_state(
        pydist.cat([pydist.tensor(list(state["random"]), dtype=pydist.uint8), pydist.get_rng_state()[16:]])
    )
    return state["epoch"]


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m pydist.examples.mnist", description=__doc__.split("\n")[0])
    parser.add_argument("--data", metavar="DIR", help="folder with idx files (default: scikit-learn's digits)")
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, help="default: 20 on the digits, 5 with --data")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="at the start, falls to 0 (default: %(default)s)")
    parser.add_argument("--save", metavar="FOLDER", help="a checkpoint after each epoch; the last three stay")
    parser.add_argument(
        "--resume", metavar="PATH", help="go on after the newest checkpoint in this folder, or after this one"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--logical-shards", type=int, metavar="V", help="a step is the work of so many shards, on any ranks"
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args()
    if args.epochs is None:
        args.epochs = 20 if args.data is None else 5
    if args.epochs < 1 or args.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return args


def main():
    """Trains, and prints the test accuracy."""
    args = arguments()
    try:
        train, test = datasets(args.data)
        pydist.manual_seed(args.seed)
        net = network(args.model, *train.tensors[0].shape[2:])
    except (OSError, ValueError) as error:
        sys.exit(f"mnist: {error}")

    dist.init_process_group(logical_shards=args.logical_shards)
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = dist.get_logical_shards() or world
    train_loader = DataLoader(
        train, batch_size=-(-args.batch_size // parts), sampler=DistributedSampler(train, seed=args.seed)
    )
    test_loader = DataLoader(test, batch_size=1024, sampler=DistributedSampler(test, shuffle=False, pad=False))

    model = DistributedDataParallel(net)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    steps_of_epoch = len(train_loader) if dist.get_logical_shards() is None else len(dist.shards(train_loader))
    steps = args.epochs * steps_of_epoch
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    state = {"model": net, "optimizer": optimizer, "schedule": schedule, "epoch": 0, "random": b""}
    manager = checkpoint.CheckpointManager(args.save) if args.save else None
    done = 0
    if args.resume:
        try:
            done = resume(args.resume, state)
        except (OSError, RuntimeError, ValueError) as error:
            sys.exit(f"mnist: --resume {args.resume}: {error}")
        if done >= args.epochs:
            sys.exit(f"mnist: --resume {args.resume}: {done} epochs are done (expected less than {args.epochs})")

    progress = {"unit": "batch", "disable": args.no_progress or rank != 0}
    with tqdm(initial=done * steps_of_epoch, total=steps, **progress) as bar:
        for epoch in range(done + 1, args.epochs + 1):
            train_loader.sampler.set_epoch(epoch)
            loss = train_epoch(model, train_loader, optimizer, schedule, bar)
            right = accuracy(model, test_loader)
            if rank == 0:
                bar.write(f"epoch {epoch}/{args.epochs}  loss {loss:.4f}  test accuracy {right:.4f}")
            if manager:
                state["epoch"], state["random"] = epoch, common_random()
                manager.save(epoch, state)
    if manager:
        manager.close()
    if rank == 0:
        print(f"test accuracy: {right:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
