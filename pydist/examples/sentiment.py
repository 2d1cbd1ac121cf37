"""Trains a BERT from scratch to classify sentences as positive or negative, on one or more ranks.

    python -m pydist.examples.sentiment --data DIR
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.sentiment --data DIR

DIR has the Stanford Sentiment Treebank as stsa.binary.train, .dev and .test. A line is a label 0 or 1, a space, and a
sentence with spaces between words. Words that are rare in training count as unknown. The batch is global: the ranks
divide it. `--bf16` computes products in bfloat16. `--shares measured` gives slow ranks fewer rows, as their speeds are found:
a step is the work of `--logical-shards`, so this changes no bit of the result. To see it, `--slow 1=2.0` makes rank 1 take
twice as long.
"""

import argparse
import collections
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import pydist
from pydist import distributed as dist
from pydist import models, nn, optim
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, DistributedSampler

PADDING, UNKNOWN, FIRST = 0, 1, 2  # FIRST comes before each sentence; its state is classified


def read(path):
    """[(label, words)]"""
    pairs = []
    for number, line in enumerate(Path(path).read_text("utf-8", errors="replace").splitlines(), 1):
        label, _, words = line.partition(" ")
        if label not in ("0", "1"):
            raise ValueError(f"{path}:{number}: begins with '{label[:20]}' (expected a label 0 or 1)")
        pairs.append((int(label), words.split()))
    if not pairs:
        raise ValueError(f"{path}: the file has no sentences (expected lines such as '1 a good film')")
    return pairs


def vocabulary(pairs):
    """The number of each word that is frequent enough."""
    counts = collections.Counter(word for _, words in pairs for word in words)
    known = [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count > 1]
    return {word: i for i, word in enumerate(known, 3)}


def as_batch(pairs, numbers, longest):
    """(tokens [N, T], mask [N, T], labels [N]), where T is the length of the longest sentence."""
    rows = [[FIRST] + [numbers.get(word, UNKNOWN) for word in words][: longest - 1] for _, words in pairs]
    tokens = np.full((len(rows), max(map(len, rows))), PADDING)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    labels = np.array([label for label, _ in pairs])
    return pydist.from_numpy(tokens), pydist.from_numpy(tokens != PADDING), pydist.from_numpy(labels)


@pydist.no_grad()
def accuracy(model, pairs, numbers, longest, rank, world):
    """The fraction of sentences that the model classifies correctly. Each rank computes its part."""
    model.eval()
    counts = pydist.zeros(2, dtype=pydist.int64)
    mine = sorted(pairs, key=lambda pair: len(pair[1]))[rank::world]  # sentences of similar length together
    for i in range(0, len(mine), 64):
        tokens, mask, labels = as_batch(mine[i : i + 64], numbers, longest)
        counts += pydist.tensor([(model(tokens, mask).argmax(1) == labels).sum().item(), len(labels)])
    dist.all_reduce(counts)
    model.train()
    return counts[0].item() / counts[1].item()


def slowness(text):
    """(rank, factor) of RANK=FACTOR."""
    rank, _, factor = text.partition("=")
    if int(rank) < 0 or not 1 <= float(factor) < float("inf"):
        raise ValueError(text)
    return int(rank), float(factor)


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m pydist.examples.sentiment", description=__doc__.split("\n")[0])
    parser.add_argument("--data", metavar="DIR", required=True, help="folder with stsa.binary.train, .dev and .test")
    for name, value, text in (
        ("epochs", 4, "over the sentences"), ("batch-size", 32, "of all ranks together"), ("layers", 4, ""),
        ("heads", 4, ""), ("width", 256, ""), ("longest", 48, "words of a sentence that are read"), ("seed", 0, ""),
        ("logical-shards", 8, "of a step, with --shares measured"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-4, help="at the start, falls to 0 (default: %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.2, help="default: %(default)s")
    parser.add_argument("--bf16", action="store_true", help="mixed precision: products in bfloat16")
    parser.add_argument("--shares", choices=("even", "measured"), default="even", help="of a step's rows on each rank")
    parser.add_argument(
        "--slow", metavar="RANK=FACTOR", type=slowness, default=(0, 1.0), help="a rank that takes longer"
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args()
    if min(args.epochs, args.batch_size, args.longest - 1) < 1:
        parser.error("--epochs and --batch-size must be at least 1, --longest at least 2")
    if args.logical_shards < 1 or args.logical_shards & (args.logical_shards - 1):
        parser.error("--logical-shards must be a power of two")
    return args


def even_steps(loader, backward, optimizer):
    """Makes an epoch's steps of one batch a rank. Gives each one's loss."""
    for batch in loader:
        optimizer.zero_grad()
        loss = backward(batch)
        optimizer.step()
        yield loss


def measured_steps(loader, backward, optimizer, step):
    """The same, of logical shards, which ranks share by their speeds."""
    for attempt in step.over(loader):
        loss = pydist.zeros(())  # of a rank without shards
        with attempt:
            optimizer.zero_grad()
            for shard in attempt:
                for batch in shard:
                    loss = backward(batch)
            optimizer.step()
        if attempt.made:
            yield loss


def main():
    """Trains, and prints the test accuracy."""
    args = arguments()
    try:
        train, dev, test = (read(Path(args.data) / f"stsa.binary.{name}") for name in ("train", "dev", "test"))
        numbers = vocabulary(train)
        pydist.manual_seed(args.seed)
        sizes = models.BERTConfig(
            len(numbers) + 3, args.longest, 1, args.layers, args.heads, args.width, dropout=args.dropout
        )
        net = models.BERTClassifier(sizes, 2)
    except (OSError, ValueError) as error:
        sys.exit(f"sentiment: {error}")

    measured = args.shares == "measured"
    dist.init_process_group(logical_shards=args.logical_shards if measured else None)
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = args.logical_shards if measured else world
    loader = DataLoader(
        train, -(-args.batch_size // parts), sampler=DistributedSampler(train, seed=args.seed),
        collate_fn=lambda pairs: as_batch(pairs, numbers, args.longest),
    )  # fmt: skip
    model = DistributedDataParallel(net)
    optimizer = optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.01)
    batches = len(dist.shards(loader)) if measured else len(loader)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (args.epochs * batches)))
    loss_of = nn.CrossEntropyLoss()
    slow = args.slow[1] - 1 if args.slow[0] == rank else 0.0

    def backward(batch):
        tokens, mask, labels = batch
        begin = time.perf_counter()
        with pydist.autocast("cpu", pydist.bfloat16, enabled=args.bf16):
            loss = loss_of(model(tokens, mask), labels)
        loss.backward()
        time.sleep(slow * (time.perf_counter() - begin))
        return loss.detach()

    step = dist.Transaction(model, optimizer, balance=True) if measured else None
    with tqdm(total=args.epochs * batches, unit="batch", disable=args.no_progress or rank != 0) as bar:
        for epoch in range(1, args.epochs + 1):
            loader.sampler.set_epoch(epoch)
            work = (loader, backward, optimizer)
            for loss in measured_steps(*work, step) if measured else even_steps(*work):
                schedule.step()
                bar.update()
            right = accuracy(net, dev, numbers, args.longest, rank, world)
            if rank == 0:
                shares = f"  shards of each rank {dist.work_shares()}" if measured else ""
                bar.write(f"epoch {epoch}/{args.epochs}  loss {loss.item():.4f}  dev accuracy {right:.4f}{shares}")
    right = accuracy(net, test, numbers, args.longest, rank, world)
    if rank == 0:
        print(f"test accuracy: {right:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
