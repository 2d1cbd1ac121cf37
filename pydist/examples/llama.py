"""Trains a LLaMA on the bytes of a text, in several ways of parallelism at once: a mesh of ranks with the dimensions dp
(data), cp (the sequence within attention) and tp (the layers).

    python -m pydist.examples.llama
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.llama --tp 2 --sp --steps 3
    python -m pydist.run --nproc-per-node 4 -m pydist.examples.llama --tp 2 --dp 2 --sp --loss-parallel

The ranks of --tp share the weights of each layer out, by whole heads and by vocabulary. With --sp they share the tokens
between the layers out, too; with --loss-parallel no rank has all logits. The ranks of --dp have sequences of their own, and
share parameters, gradients and states out (fully_shard), or average gradients with --ddp. Those of --cp have parts of the
same sequences. The batch is that of all ranks together, so the losses do not depend on their numbers. FILE is any file; the
default is the help texts of Python's own documentation.
"""

import argparse
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

import pydist
from pydist import distributed as dist
from pydist import models, nn, optim
from pydist.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import fully_shard
from pydist.distributed.tensor import DTensor, Replicate, Shard
from pydist.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from pydist.examples.gpt import pairs
from pydist.nn import functional as F
from pydist.nn.parallel import DistributedDataParallel


def tensor_plan(config, ranks, sequence=False, losses=False):
    """The styles of a LLaMA's modules on so many ranks. `sequence`: between the layers each rank has a part of the
    sequence; `losses`: the logits stay sharded by vocabulary."""
    width = config.dim // config.n_heads
    between = Shard(1) if sequence else Replicate()
    # Query heads that share a key head stay together, unless there are fewer key heads than ranks.
    group = config.n_heads // config.n_kv_heads if config.n_kv_heads >= ranks else 1
    rows = {"output_layouts": between, "use_local_output": not sequence}
    plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), **rows),
        "model.layers.*.self_attn": PrepareModuleInput(
            input_layouts=(between, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "model.layers.*.self_attn.q_proj": ColwiseParallel(block=width * group),
        "model.layers.*.self_attn.[kv]_proj": ColwiseParallel(block=width),
        "model.layers.*.self_attn.o_proj": RowwiseParallel(block=width * group, **rows),
        "model.layers.*.mlp": PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate()),
        "model.layers.*.mlp.gate_proj": ColwiseParallel(),
        "model.layers.*.mlp.up_proj": ColwiseParallel(),
        "model.layers.*.mlp.down_proj": RowwiseParallel(**rows),
        "lm_head": ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1) if losses else Replicate(), use_local_output=not losses
        ),
    }
    if sequence:
        norms = "model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm"
        plan.update(dict.fromkeys(norms, SequenceParallel()))
    return plan


def parallelize(model, mesh, sequence=False, losses=False, again=False, ddp=False):
    """The LLaMA over a mesh with the dimensions dp, cp and tp."""
    if mesh["tp"].size() > 1:
        parallelize_module(model, mesh["tp"], tensor_plan(model.config, mesh["tp"].size(), sequence, losses))
    layers = model.model["layers"]
    if again:
        for i, block in enumerate(layers):
            layers[i] = checkpoint_wrapper(block)
    data = mesh["dp", "cp"]._flatten("data")
    if data.size() == 1:
        return model
    if ddp:
        return DistributedDataParallel(model, device_mesh=data)
    for block in layers:
        fully_shard(block, mesh=data)
    return fully_shard(model, mesh=data)


def loss_of(model, x, t, losses=False):
    """The mean cross entropy of this rank's tokens."""
    with loss_parallel() if losses else nullcontext():
        return F.cross_entropy(model(x).flatten(0, 1), t.flatten())


def mean_over(loss, group):
    """The mean of the losses of a group's ranks."""
    total = (loss.full_tensor() if isinstance(loss, DTensor) else loss).detach().clone()
    dist.all_reduce(total, dist.ReduceOp.AVG, group=group)
    return total.item()


def bytes_of(path, vocabulary):
    """A file, or the default text, as numbers below `vocabulary`."""
    if path is None:
        from pydoc_data.topics import topics

        text = "".join(topics[name] for name in sorted(topics)).encode()
    else:
        text = Path(path).read_bytes()
    return np.frombuffer(text, np.uint8).astype(np.int64) % vocabulary


def batches(args, data, rank, ranks):
    """This rank's sequences of each step, with their targets. All ranks draw the same places."""
    draw = np.random.default_rng(args.seed)
    for _ in range(args.steps):
        yield pairs(data, draw.integers(0, len(data) - args.length - 1, args.batch_size)[rank::ranks], args.length)


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m pydist.examples.llama", description=__doc__.split("\n")[0])
    parser.add_argument("--data", metavar="FILE", help="a file (default: the help texts of Python's documentation)")
    for name, value, text in (
        ("tp", 1, "ranks that share each layer"), ("cp", 1, "ranks that share each sequence in attention"),
        ("layers", 6, "blocks"), ("heads", 8, "of attention"), ("kv-heads", 4, "of keys and values"),
        ("dim", 256, "features"), ("vocabulary", 2000, "of the embedding"), ("length", 64, "bytes of a sequence"),
        ("batch-size", 8, "sequences of a step, of all ranks together"), ("steps", 100, "of training"), ("seed", 0, ""),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default: %(default)s)")
    parser.add_argument("--dp", type=int, help="ranks with sequences of their own (default: all that are left)")
    parser.add_argument("--lr", type=float, default=1e-3, help="default: %(default)s")
    parser.add_argument("--sp", action="store_true", help="share the tokens between layers out over the ranks of --tp")
    parser.add_argument("--loss-parallel", action="store_true", help="keep the logits sharded by vocabulary")
    parser.add_argument("--checkpoint", action="store_true", help="compute blocks again in backward")
    parser.add_argument("--ddp", action="store_true", help="average gradients over --dp; without it fully_shard")
    args = parser.parse_args()
    world = dist.get_world_size()
    if args.dp is None:
        args.dp = max(1, world // (args.tp * args.cp))
    if min(args.tp, args.cp, args.dp) < 1 or args.tp * args.cp * args.dp != world:
        parser.error(f"--dp {args.dp} x --cp {args.cp} x --tp {args.tp} is not the number of ranks, {world}")
    if args.batch_size % args.dp:
        parser.error(f"--batch-size {args.batch_size} (expected a multiple of --dp {args.dp})")
    if args.length % (2 * args.cp if args.cp > 1 else 1):
        parser.error(f"--length {args.length} (expected a multiple of twice --cp {args.cp})")
    return args


def sequences_of(args, mesh, model, x, t):
    """A context in which this rank has its part of each sequence."""
    if args.cp == 1:
        return nullcontext()
    from pydist.distributed.tensor.experimental import context_parallel

    inner = getattr(model, "module", model)
    return context_parallel(mesh["cp"], buffers=[x, t, inner.cos, inner.sin], buffer_seq_dims=[1, 1, 0, 0])


def main():
    """Runs the example."""
    dist.init_process_group()
    try:
        args = arguments()
        data = bytes_of(args.data, args.vocabulary)
        if len(data) < args.length + 2:
            raise ValueError(f"the text has {len(data)} bytes (expected at least {args.length + 2})")
        sizes = models.LLaMAConfig(args.vocabulary, args.length, args.layers, args.heads, args.kv_heads, args.dim)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    mesh = init_device_mesh("cpu", (args.dp, args.cp, args.tp), mesh_dim_names=("dp", "cp", "tp"))
    pydist.manual_seed(args.seed)
    losses = args.loss_parallel and args.tp > 1
    model = parallelize(models.LLaMA(sizes), mesh, args.sp, losses, args.checkpoint, args.ddp)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr)
    sharing = mesh["dp", "cp"]._flatten("data").get_group()
    for step, (x, t) in enumerate(batches(args, data, mesh.get_local_rank("dp"), args.dp), 1):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with sequences_of(args, mesh, model, x, t):
            loss = loss_of(model, x, t, losses)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = mean_over(loss, sharing)
        if dist.get_rank() == 0:
            speed = args.batch_size * args.length / (time.perf_counter() - begin)
            print(f"step {step}: loss {mean:.4f}, {speed:,.0f} tokens/s", flush=True)
    if dist.get_rank() == 0:
        whole = sum(p.numel() for p in model.parameters())
        own = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
        print(f"parameters: {whole:,}, of which rank 0 has {own:,}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
