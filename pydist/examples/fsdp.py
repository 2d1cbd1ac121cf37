"""Trains a language model of single characters whose parameters, gradients and optimizer states are shared out over the
ranks (fully_shard), saves it in parts, and goes on with another number of ranks.

    python -m pydist.run --nproc-per-node 2 -m pydist.examples.fsdp --save FOLDER
    python -m pydist.run --nproc-per-node 3 -m pydist.examples.fsdp --resume FOLDER --steps 400

The model begins on the device `meta`, without memory; each rank then fills its own rows. A step has --micro-batches
parts, whose gradients are added up, and is clipped. With --bf16 the ranks compute with 16-bit copies. The text and the
sizes are those of pydist.examples.gpt.
"""

import argparse
import math
import sys

import numpy as np
from tqdm import tqdm

import pydist
from pydist import distributed as dist
from pydist import models, nn, optim
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from pydist.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from pydist.examples.gpt import Text, pairs


def sharded(config, policy):
    """A GPT whose blocks are units, and the rest is one; filled with first values on each rank for its own rows."""
    with pydist.device("meta"):
        model = models.GPT(config)
    for block in model.transformer["h"]:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for name, p in model.named_parameters():
        if p.ndim == 2:
            small = math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 1
            nn.init.normal_(p, 0.0, 0.02 / small)
    register_fsdp_forward_method(model, "loss")
    register_fsdp_forward_method(model, "generate")
    return model


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m pydist.examples.fsdp", description=__doc__.split("\n")[0])
    parser.add_argument("--data", metavar="FILE", help="a text (default: the help texts of Python's documentation)")
    for name, value, text in (
        ("layers", 4, "blocks"), ("heads", 4, "of attention"), ("width", 128, "of the states"),
        ("block", 64, "characters of context"), ("batch-size", 12, "of a part, of all ranks together"),
        ("micro-batches", 2, "parts of a step"), ("steps", 200, "of training"), ("sample", 0, "characters to write"),
        ("seed", 0, ""),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="default: %(default)s")
    parser.add_argument("--bf16", action="store_true", help="compute with 16-bit copies of the parameters")
    parser.add_argument(
        "--save", metavar="FOLDER", help="writes a checkpoint at the end, in which each rank has a share"
    )
    parser.add_argument("--resume", metavar="FOLDER", help="goes on from a checkpoint, on any number of ranks")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args()
    if min(args.steps, args.batch_size, args.block, args.micro_batches) < 1:
        parser.error("--steps, --batch-size, --block and --micro-batches must be at least 1")
    return args


def main():
    """Trains, and prints the loss and how much of the model a rank has."""
    args = arguments()
    try:
        text = Text(args.data)
        config = models.GPTConfig(
            len(text.characters), args.block, args.layers, args.heads, args.width, dropout=0.0, bias=False
        )
    except (OSError, ValueError) as error:
        sys.exit(f"fsdp: {error}")
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.batch_size % world:
        sys.exit(f"fsdp: --batch-size {args.batch_size} (expected a multiple of {world} ranks)")
    pydist.manual_seed(args.seed)
    policy = MixedPrecisionPolicy(pydist.bfloat16, pydist.float32) if args.bf16 else MixedPrecisionPolicy()
    model = sharded(config, policy)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99))
    done = 0
    if args.resume:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "steps": 0}
        checkpoint.load(state, checkpoint_id=args.resume)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        done = state["steps"]
    draw = np.random.default_rng(args.seed)
    loss = pydist.tensor(math.nan)
    with tqdm(total=args.steps, initial=done, unit="step", disable=args.no_progress or rank != 0) as bar:
        for step in range(args.steps):
            starts = draw.integers(0, len(text.train) - args.block - 1, (args.micro_batches, args.batch_size))
            if step < done:  # the same places again: what was seen before
                continue
            optimizer.zero_grad()
            for part in starts:
                x, t = pairs(text.train, part[rank::world], args.block)
                loss = model.loss(x, t) / args.micro_batches
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            bar.update()
    total = loss.detach().float() * args.micro_batches
    dist.all_reduce(total, dist.ReduceOp.AVG)
    if args.save:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "steps": args.steps}
        checkpoint.save(state, checkpoint_id=args.save)
    if rank == 0:
        if args.sample:  # the other ranks need not take part
            begin = pydist.tensor([[text.characters.index("\n") if "\n" in text.characters else 0]])
            print(text.decode(model.generate(begin, args.sample, temperature=0.8)[0].tolist()))
        whole = sum(p.numel() for p in model.parameters())
        own = sum(p.to_local().numel() for p in model.parameters())
        print(f"parameters: {whole:,}, of which rank 0 trains {own:,}")
        print(f"loss: {total.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
