"""Trains a small GPT on the characters of a text, on one or more ranks.

    python -m pydist.examples.gpt --data tinyshakespeare.txt
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.gpt --data tinyshakespeare.txt

The defaults are nanoGPT's setting for the CPU: 4 layers of 4 heads, 128 wide, 64 characters, batch 12, 2,000 steps
without dropout. The last tenth of the text is for validation. The batch is global: ranks divide it.
"""

import argparse
import math

import numpy as np
from tqdm import tqdm

import pydist
from pydist import distributed as dist
from pydist import nn, optim
from pydist.models import GPT, GPTConfig
from pydist.nn.parallel import DistributedDataParallel

WARMUP = 100
BETAS = (0.9, 0.99)
DECAY = 0.1
CLIP = 1.0
EVALUATED = 128  # pieces at a time


def characters(path):
    """(training tokens, validation tokens, the characters in order)."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    alphabet = sorted(set(text))
    number = {c: i for i, c in enumerate(alphabet)}
    tokens = np.array([number[c] for c in text], dtype=np.int64)
    cut = len(tokens) * 9 // 10
    return tokens[:cut], tokens[cut:], alphabet


def batch(tokens, count, length, random):
    """`count` pieces of `length` tokens and those that follow each, from random places."""
    at = random.integers(0, len(tokens) - length, (count, 1)) + np.arange(length)
    return pydist.from_numpy(tokens[at]), pydist.from_numpy(tokens[at + 1])


def rate(step, args):
    """Up in a line, then a half cosine down to a tenth."""
    if step < WARMUP:
        return args.lr * (step + 1) / (WARMUP + 1)
    done = min(1.0, (step - WARMUP) / max(1, args.steps - WARMUP))
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def optimizer_of(model, lr):
    """AdamW that decays matrices and leaves vectors alone."""
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    return optim.AdamW(groups, lr=lr, betas=BETAS)


class WithLoss(nn.Module):
    """The model's loss as its forward, which DistributedDataParallel wraps."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, targets):
        return self.model.loss(tokens, targets)


@pydist.no_grad()
def validation(model, tokens, args):
    """The mean loss of all tokens in pieces of `block`, one after another."""
    model.eval()
    count = (len(tokens) - 1) // args.block
    inputs, targets = (
        pydist.from_numpy(tokens[begin : begin + count * args.block].reshape(count, args.block)) for begin in (0, 1)
    )
    losses = [
        model.loss(x, y).item() * len(x) for x, y in zip(inputs.split(EVALUATED), targets.split(EVALUATED))
    ]
    model.train()
    return sum(losses) / count


def train(model, data, args, rank, world):
    """The validation losses, printed every `eval_every` steps and at the end."""
    step_model = DistributedDataParallel(WithLoss(model)) if world > 1 else WithLoss(model)
    optimizer, random = optimizer_of(model, args.lr), np.random.default_rng(args.seed)
    bar = tqdm(total=args.steps, unit="step", disable=rank > 0 or args.no_progress)
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args)
        tokens, targets = batch(data[0], args.batch, args.block, random)  # ranks draw alike
        optimizer.zero_grad()
        step_model(tokens[rank::world], targets[rank::world]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        bar.update()
        if (step + 1) % args.eval_every == 0 or step + 1 == args.steps:
            loss = validation(model, data[1], args)
            if rank == 0:
                tqdm.write(f"step {step + 1}: validation loss {loss:.4f}")
    bar.close()


def options(argv=None):
    parser = argparse.ArgumentParser(prog="python -m pydist.examples.gpt", description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a text file")
    for name, default in (("layers", 4), ("heads", 4), ("width", 128), ("block", 64), ("batch", 12), ("steps", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--eval-every", type=int, default=250, metavar="STEPS")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="write N characters at the end")
    parser.add_argument("--no-progress", action="store_true")
    return parser.parse_args(argv)


def main():
    args = options()
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.batch % world:
        raise SystemExit(f"--batch {args.batch} does not divide by {world} ranks")
    pydist.manual_seed(args.seed)
    *data, alphabet = characters(args.data)
    if min(map(len, data)) <= args.block:
        raise SystemExit(f"{args.data}: too short for pieces of {args.block} characters")
    config = GPTConfig(len(alphabet), args.block, args.layers, args.heads, args.width, args.dropout, bias=False)
    model = GPT(config)
    train(model, data, args, rank, world)
    if args.sample and rank == 0:
        model.eval()
        tokens = model.generate(pydist.zeros(1, 1, dtype=pydist.int64), args.sample)[0, 1:]
        print("".join(alphabet[i] for i in tokens.tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
