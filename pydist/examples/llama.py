"""Trains a LLaMA on the bytes of a text, in several ways of parallelism at once: a mesh of ranks with the dimensions pp
(stages of layers), dp (data), cp (the sequence within attention) and tp (within the layers).

    python -m pydist.examples.llama
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.llama --tp 2 --sp --steps 3
    python -m pydist.run --nproc-per-node 4 -m pydist.examples.llama --tp 2 --dp 2 --sp --loss-parallel
    python -m pydist.run --nproc-per-node 8 -m pydist.examples.llama --pp 2 --dp 2 --tp 2 --schedule ZBVZeroBubble

The ranks of --tp share the weights of each layer out, by whole heads and by vocabulary. With --sp they share the tokens
between the layers out, too; with --loss-parallel no rank has all logits. The ranks of --pp have layers of their own, through
which --microbatches go by a schedule. The ranks of --dp have sequences of their own, and share parameters, gradients and states
out (fully_shard), or average gradients with --ddp. Those of --cp have parts of the same sequences. The batch is that of all
ranks together, so the losses do not depend on their numbers. A checkpoint (--save, --resume) goes on with any mesh. FILE is any
file; the default is the help texts of Python's own documentation.
"""

import argparse
import sys
import time
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

import pydist
from pydist import distributed as dist
from pydist import models, nn, optim
from pydist.distributed import checkpoint
from pydist.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from pydist.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import fully_shard
from pydist.distributed.pipelining import SplitPoint, build_stage, pipeline
from pydist.distributed.pipelining.schedules import get_schedule_class
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


def tensor_plan(config, ranks, sequence=False, losses=False, stages=False):
    """The styles of a LLaMA's modules on so many ranks. `sequence`: between the layers each rank has a part of the
    sequence; `losses`: the logits stay sharded by vocabulary; `stages`: what goes between layers are local tensors, which
    messages take."""
    width = config.dim // config.n_heads
    between = Shard(1) if sequence else Replicate()
    # Query heads that share a key head stay together, unless there are fewer key heads than ranks.
    group = config.n_heads // config.n_kv_heads if config.n_kv_heads >= ranks else 1
    rows = {"output_layouts": between, "use_local_output": stages or not sequence}
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


def parallelize(model, mesh, sequence=False, losses=False, again=False, ddp=False, stage_of=None):
    """The LLaMA over a mesh with the dimensions dp, cp and tp; or a stage of one with the sizes `stage_of`."""
    if mesh["tp"].size() > 1:
        plan = tensor_plan(stage_of or model.config, mesh["tp"].size(), sequence, losses, stage_of is not None)
        names = [name for name, _ in model.named_modules()]
        own = {path: style for path, style in plan.items() if any(fnmatch(name, path) for name in names)}
        parallelize_module(model, mesh["tp"], own)
    layers = model.get_submodule("model.layers")
    if again:
        for name, block in list(layers.named_children()):
            layers.register_module(name, checkpoint_wrapper(block))
    data = mesh["dp", "cp"]._flatten("data")
    if data.size() == 1:
        return model
    if ddp:
        return DistributedDataParallel(model, device_mesh=data)
    for block in layers.children():
        fully_shard(block, mesh=data)
    return fully_shard(model, mesh=data)


SCHEDULES = {  # name: which stages rank r of p has
    "GPipe": lambda r, p: [r],
    "1F1B": lambda r, p: [r],
    "LoopedBFS": lambda r, p: [r, r + p],
    "Interleaved1F1B": lambda r, p: [r, r + p],
    "InterleavedZeroBubble": lambda r, p: [r, r + p],
    "ZBVZeroBubble": lambda r, p: [r, 2 * p - 1 - r],
    "DualPipeV": lambda r, p: [r, 2 * p - 1 - r],
}


def in_stages(model, group, kind, microbatches, wrap):
    """The schedule of this rank of a group of ranks, among which the LLaMA's layers are shared out. wrap: a function that
    changes a stage's module."""
    own = SCHEDULES[kind](group.rank, group.size)
    count, layers = len(own) * group.size, model.config.n_layers
    if count > layers:
        raise ValueError(f"{layers} layers in {count} stages (expected a layer in each)")
    marks = {f"model.layers.{layers * s // count}": SplitPoint.BEGINNING for s in range(1, count)}
    pipe = pipeline(model, (pydist.zeros(1, 2, dtype=pydist.int64),), split_spec=marks)
    modules = [wrap(pipe.get_stage_module(s)) for s in own]
    stages = [build_stage(m, s, pipe.info(), "cpu", group) for m, s in zip(modules, own, strict=True)]
    make = get_schedule_class(kind)
    return make(stages if len(own) > 1 else stages[0], microbatches, summed_loss, scale_grads="count"), modules


def shared_out(model, mesh, args):
    """(schedule or None, the modules of this rank) of a LLaMA over a mesh with the dimensions pp, dp, cp and tp."""
    losses = args.loss_parallel and args.tp > 1
    ways = mesh["dp", "cp", "tp"], args.sp, losses, args.checkpoint, args.ddp
    if args.pp == 1:
        return None, [parallelize(model, *ways)]
    config, stages = model.config, mesh.get_group("pp")
    return in_stages(model, stages, args.schedule, args.microbatches, lambda m: parallelize(m, *ways, stage_of=config))


def token_loss(logits, t):
    """The mean cross entropy of tokens."""
    return F.cross_entropy(logits.flatten(0, 1), t.flatten())


def summed_loss(logits, t):
    """The sum of the cross entropies of tokens, and their number."""
    return F.cross_entropy(logits.flatten(0, 1), t.flatten(), reduction="sum"), t.numel()


def loss_of(model, x, t, losses=False):
    """The mean cross entropy of this rank's tokens."""
    with loss_parallel() if losses else nullcontext():
        return token_loss(model(x), t)


def gradients_of(schedule, model, x, t, losses=False):
    """Makes the gradients of one step, by the schedule if there is one. Returns the loss; on ranks of a pipeline without
    its end, 0."""
    if schedule is None:
        loss = loss_of(model, x, t, losses)
        loss.backward()
        return loss.detach()
    seen = []
    with loss_parallel() if losses else nullcontext():
        schedule.step(x, target=t, losses=seen, return_outputs=False)
    return sum(loss for loss, _ in seen) / sum(count for _, count in seen) if seen else pydist.zeros(())


def clip(schedule, parameters, limit):
    """Clips gradients by the norm of all of them, those of all stages together."""
    if schedule is None:
        return nn.utils.clip_grad_norm_(parameters, limit)
    norm = nn.utils.get_total_norm(schedule.gradients(), group=schedule._stages[0].group)
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


def mean_over(loss, group, stages=None):
    """The mean of the losses of a group's ranks; `stages`: a group of ranks with stages, of which one has the loss."""
    total = (loss.full_tensor() if isinstance(loss, DTensor) else loss).detach().to(pydist.float64, copy=True)
    if stages is not None:
        dist.all_reduce(total, group=stages)
    dist.all_reduce(total, dist.ReduceOp.AVG, group=group)
    return total.item()


FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def state_of(modules, optimizers, step):
    """(the state of this rank's stages together, that of each of them), by the names of the whole model."""
    pairs = zip(modules, optimizers, strict=True)
    each = [get_state_dict(module, optimizer, options=FLAT) for module, optimizer in pairs]
    state = {"model": {}, "optimizer": {}, "step": step}
    for of_model, of_optimizer in each:
        state["model"] |= of_model
        state["optimizer"] |= of_optimizer
    return state, each


def save(path, modules, optimizers, step):
    """All ranks write a checkpoint."""
    state, _ = state_of(modules, optimizers, step)
    checkpoint.save(state, checkpoint_id=path)


def load(path, modules, optimizers):
    """All ranks read a checkpoint that ranks of any mesh wrote. Returns its step."""
    state, each = state_of(modules, optimizers, 0)
    checkpoint.load(state, checkpoint_id=path)
    for module, optimizer, (of_model, of_optimizer) in zip(modules, optimizers, each, strict=True):
        set_state_dict(
            module, optimizer, model_state_dict={name: state["model"][name] for name in of_model},
            optim_state_dict={name: state["optimizer"][name] for name in of_optimizer}, options=FLAT,
        )  # fmt: skip
    return state["step"]


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
        ("pp", 1, "ranks with layers of their own"), ("microbatches", 4, "of a step of --pp"),
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
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B", help="of --pp (default: %(default)s)")
    parser.add_argument("--save", metavar="FOLDER", help="write a checkpoint at the end")
    parser.add_argument("--resume", metavar="FOLDER", help="go on from a checkpoint")
    args = parser.parse_args()
    world = dist.get_world_size()
    if args.dp is None:
        args.dp = max(1, world // (args.pp * args.tp * args.cp))
    if min(args.pp, args.tp, args.cp, args.dp) < 1 or args.pp * args.tp * args.cp * args.dp != world:
        parser.error(
            f"--pp {args.pp} x --dp {args.dp} x --cp {args.cp} x --tp {args.tp} is not the number of ranks, {world}"
        )
    if args.pp > 1 and args.batch_size // args.dp < args.microbatches:
        parser.error(f"--batch-size {args.batch_size} (expected a row for each of {args.microbatches} microbatches)")
    if args.batch_size % args.dp:
        parser.error(f"--batch-size {args.batch_size} (expected a multiple of --dp {args.dp})")
    if args.length % (2 * args.cp if args.cp > 1 else 1):
        parser.error(f"--length {args.length} (expected a multiple of twice --cp {args.cp})")
    return args


def sequences_of(args, mesh, modules, x, t):
    """A context in which this rank has its part of each sequence."""
    if args.cp == 1:
        return nullcontext()
    from pydist.distributed.tensor.experimental import context_parallel

    angles = {id(b): b for m in modules for name, b in m.named_buffers() if name.split(".")[-1] in ("cos", "sin")}
    dims = [1, 1] + [0] * len(angles)
    return context_parallel(mesh["cp"], buffers=[x, t, *angles.values()], buffer_seq_dims=dims)


def main():
    """Runs the example."""
    dist.init_process_group()
    try:
        args = arguments()
        data = bytes_of(args.data, args.vocabulary)
        if len(data) < args.length + 2:
            raise ValueError(f"the text has {len(data)} bytes (expected at least {args.length + 2})")
        sizes = models.LLaMAConfig(args.vocabulary, args.length, args.layers, args.heads, args.kv_heads, args.dim)
        mesh = init_device_mesh("cpu", (args.pp, args.dp, args.cp, args.tp), mesh_dim_names=("pp", "dp", "cp", "tp"))
        pydist.manual_seed(args.seed)
        model = models.LLaMA(sizes)
        whole = sum(p.numel() for p in model.parameters())
        schedule, modules = shared_out(model, mesh, args)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    losses, stages = args.loss_parallel and args.tp > 1, mesh.get_group("pp")
    optimizers = [optim.AdamW(module.parameters(), lr=args.lr) for module in modules]
    parameters = [p for module in modules for p in module.parameters()]
    sharing = mesh["dp", "cp"]._flatten("data").get_group()
    done = load(args.resume, modules, optimizers) if args.resume else 0
    for step, (x, t) in enumerate(batches(args, data, mesh.get_local_rank("dp"), args.dp), 1):
        if step <= done:
            continue
        begin = time.perf_counter()
        for optimizer in optimizers:
            optimizer.zero_grad()
        with sequences_of(args, mesh, modules, x, t):
            loss = gradients_of(schedule, modules[0], x, t, losses)
        clip(schedule, parameters, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        mean = mean_over(loss, sharing, stages)
        if dist.get_rank() == 0:
            speed = args.batch_size * args.length / (time.perf_counter() - begin)
            print(f"step {step}: loss {mean:.4f}, {speed:,.0f} tokens/s", flush=True)
    if args.save:
        save(args.save, modules, optimizers, args.steps)
    if dist.get_rank() == 0:
        own = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in parameters)
        print(f"parameters: {whole:,}, of which rank 0 has {own:,}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
