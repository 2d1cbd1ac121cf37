"""Trains a language model of single characters on a text, on one or more ranks, and generates some text.

    python -m pydist.examples.gpt
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.gpt --data FILE

FILE is any text in UTF-8. The default is the help texts of Python's own documentation. The first 90 % are for training,
the rest for validation. The defaults are nanoGPT's for a CPU (4 layers, 4 heads, 128 features, 64 characters, 2,000
steps with batches of 12). The batch is global: the ranks divide it, so the result does not depend on their number. With
`--logical-shards 4` all parameters have the same bits on any number of ranks, too.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import pydist
from pydist import distributed as dist
from pydist import models, nn, optim
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, Dataset, DistributedSampler


class Text:
    """Characters as numbers: `train` and `validation` are int64 arrays, `characters` says which character each number
    is."""

    def __init__(self, path):
        if path is None:
            from pydoc_data.topics import topics

            text = "".join(topics[name] for name in sorted(topics))
        else:
            text = Path(path).read_text("utf-8")
        self.characters = sorted(set(text))
        if len(text) < 1000:
            raise ValueError(f"the text has {len(text)} characters (expected at least 1,000)")
        number = {c: i for i, c in enumerate(self.characters)}
        data = np.array([number[c] for c in text])
        cut = len(data) * 9 // 10
        self.train, self.validation = data[:cut], data[cut:]

    def decode(self, numbers):
        """The text of these numbers."""
        return "".join(self.characters[i] for i in numbers)


def pairs(data, starts, block):
    """(inputs, targets): the `block` characters from each start on, and the same shifted by one."""
    places = np.asarray(starts)[:, None] + np.arange(block)
    return pydist.from_numpy(data[places]), pydist.from_numpy(data[places + 1])


class Windows(Dataset):
    """Parts of a text, each with its targets, from the given places on."""

    def __init__(self, data, starts, block):
        self.data, self.starts, self.block = data, starts, block

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        x, t = pairs(self.data, self.starts[i : i + 1], self.block)
        return x[0], t[0]


def steps_of(args, data, rank, world):
    """The batches of each step of this rank: one, or one for each of its logical shards. All ranks draw the same places,
    and each takes its part."""
    draw, last = np.random.default_rng(args.seed), len(data) - args.block - 1
    if (shards := dist.get_logical_shards()) is None:
        for _ in range(args.steps):
            starts = draw.integers(0, last, args.batch_size)
            yield [pairs(data, starts[rank::world], args.block)]
        return
    windows = Windows(data, draw.integers(0, last, args.steps * args.batch_size), args.block)
    sampler = DistributedSampler(windows, shuffle=False)
    for step in dist.shards(DataLoader(windows, batch_size=args.batch_size // shards, sampler=sampler)):
        yield (batch for shard in step for batch in shard)


def network(args, characters):
    """The model that the arguments ask for."""
    if args.model == "llama":
        sizes = models.LLaMAConfig(characters, args.block, args.layers, args.heads, args.heads, args.width)
        return models.LLaMA(sizes)
    sizes = models.GPTConfig(characters, args.block, args.layers, args.heads, args.width, args.dropout, bias=False)
    return models.GPT(sizes)


def optimizer_of(model, args):
    """AdamW with weight decay only for matrices."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.99))


def rate(step, steps, warmup=100):
    """The learning rate: rises for some steps, then falls along a cosine to a tenth."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@pydist.no_grad()
def validation_loss(model, data, block, rank, world):
    """The mean over all of the data, in adjacent blocks."""
    model.eval()
    starts = np.arange(0, len(data) - block - 1, block)[rank::world]
    total = pydist.zeros(2)
    for i in range(0, len(starts), 64):
        x, t = pairs(data, starts[i : i + 64], block)
        total += pydist.tensor([model.loss(x, t).item() * len(x), len(x)])
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m pydist.examples.gpt", description=__doc__.split("\n")[0])
    parser.add_argument("--data", metavar="FILE", help="a text (default: the help texts of Python's documentation)")
    parser.add_argument("--model", choices=("gpt", "llama"), default="gpt", help="default: %(default)s")
    for name, value, text in (
        ("layers", 4, "blocks"), ("heads", 4, "of attention"), ("width", 128, "of the states"),
        ("block", 64, "characters of context"), ("batch-size", 12, "of all ranks together"),
        ("steps", 2000, "of training"), ("sample", 300, "characters to write at the end"), ("seed", 0, ""),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="at its highest (default: %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.0, help="default: %(default)s; of --model gpt")
    parser.add_argument(
        "--logical-shards", type=int, metavar="V", help="a step is the work of so many shards, on any ranks"
    )
    parser.add_argument("--save", metavar="FILE", help="the weights, at the end")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args()
    if min(args.steps, args.batch_size, args.block) < 1:
        parser.error("--steps, --batch-size and --block must be at least 1")
    return args


def main():
    """Trains, and prints the validation loss and some text."""
    args = arguments()
    try:
        text = Text(args.data)
        if len(text.validation) < args.block + 2:
            raise ValueError(
                f"--block {args.block} is longer than the text for validation (expected a smaller --block or a "
                "longer text)"
            )
        pydist.manual_seed(args.seed)
        net = network(args, len(text.characters))
    except (OSError, ValueError) as error:
        sys.exit(f"gpt: {error}")

    dist.init_process_group(logical_shards=args.logical_shards)
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.batch_size % (dist.get_logical_shards() or world):
        whose = f"{world} ranks" if dist.get_logical_shards() is None else f"{dist.get_logical_shards()} logical shards"
        sys.exit(f"gpt: --batch-size {args.batch_size} (expected a multiple of {whose})")
    model = DistributedDataParallel(net)
    optimizer = optimizer_of(net, args)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, args.steps))
    loss = pydist.tensor(math.nan)  # of a rank without logical shards
    with tqdm(total=args.steps, unit="step", disable=args.no_progress or rank != 0) as bar:
        for step, batches in enumerate(steps_of(args, text.train, rank, world), 1):
            optimizer.zero_grad()
            for x, t in batches:
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), t.flatten())
                loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            bar.update()
            if step % 500 == 0 or step == args.steps:
                value = validation_loss(net, text.validation, args.block, rank, world)
                if rank == 0:
                    bar.write(f"step {step}/{args.steps}  loss {loss.item():.4f}  validation loss {value:.4f}")
    if rank == 0:
        if args.sample:
            begin = pydist.tensor([[text.characters.index("\n") if "\n" in text.characters else 0]])
            print(text.decode(net.generate(begin, args.sample, temperature=0.8)[0].tolist()))
        if args.save:
            pydist.save(net.state_dict(), args.save)
        print(f"validation loss: {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
