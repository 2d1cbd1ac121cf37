"""Trains a language model of single characters whose feed-forward layers are mixtures of experts, which are shared out over
the ranks.

    python -m pydist.examples.moe
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.moe
    python -m pydist.run --nproc-per-node 4 -m pydist.examples.moe --expert-parallel 2 --capacity-factor 1.25

Each token goes to the --top-k experts that the router likes best. With --expert-parallel N (default: all ranks) N ranks
have the experts between them, and send each other the tokens; the other dimension of the mesh is data parallel. Without
--capacity-factor no token is dropped, and the losses are those of one process. The text is that of pydist.examples.gpt.
"""

import argparse
import math
import sys

import numpy as np
from tqdm import tqdm

import pydist
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import _functional_collectives as collectives
from pydist.distributed.device_mesh import init_device_mesh
from pydist.examples.gpt import Text, pairs
from pydist.nn import functional as F


def places_of(order, kept):
    """Where the copies in `order` go, if the kept ones go one after the other and the others nowhere."""
    where = pydist.where(kept, kept.long().cumsum(0) - 1, -1)
    return pydist.empty_like(order).scatter_(0, order, where)


class Experts(nn.Module):
    """Feed-forward networks of one size, `numbers` of them: those of a rank. An expert's first values depend on its number
    and the seed only."""

    def __init__(self, width, hidden, numbers, seed, dtype=None):
        super().__init__()
        self.up = nn.Parameter(pydist.empty(len(numbers), width, hidden, dtype=dtype))
        self.down = nn.Parameter(pydist.empty(len(numbers), hidden, width, dtype=dtype))
        for i, number in enumerate(numbers):
            generator = pydist.Generator().manual_seed(seed * 1_000_003 + number)
            for weight in (self.up, self.down):
                nn.init.normal_(weight.data[i], 0.0, 1 / math.sqrt(weight.shape[1]), generator=generator)

    def forward(self, x, counts):
        """The experts' results for their rows: counts[0] rows for the first one, and so on."""
        parts = x.split(counts) if counts else []
        return pydist.cat([F.gelu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down)] or [x])


class MoE(nn.Module):
    """A mixture of experts over rows of `width` features, [tokens, width].

    `experts` networks of `hidden` features; each token goes to `top_k` of them, and gets the sum of their results times
    the router's probabilities, which are scaled to a sum of 1. capacity_factor f: an expert takes at most ceil(f * top_k *
    tokens / experts) tokens, the first ones of all ranks; others pass by it, and get zeros. None: it takes all.
    `shared`: features of a network that all tokens go through.

    `mesh` (dimensions "dp" and "ep", all ranks of the job): the ranks along "ep" have the experts between them, as
    Tensor.chunk cuts; those along "dp" have the same ones. All ranks call forward together; each has tokens of its own,
    as many as it likes. After backward an expert's gradient is that of the mean of the losses of the ranks along "ep":
    average it over "dp". Those of the other parameters are averaged over all ranks (average_gradients does both).

    forward returns the rows and the load-balancing loss, whose mean over the ranks is experts * sum over experts of
    (share of the copies) * (mean probability). `dropped`: the part of all copies that the last forward dropped.
    """

    def __init__(self, width, hidden, experts, top_k=2, capacity_factor=None, shared=0, mesh=None, seed=0, dtype=None):
        super().__init__()
        if not 1 <= top_k <= experts:
            raise ValueError(f"MoE: top_k is {top_k} (expected 1 to {experts}, the number of experts)")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"MoE: capacity_factor is {capacity_factor} (expected a number over 0, or None)")
        self.count, self.top_k, self.capacity_factor, self.dropped = experts, top_k, capacity_factor, 0.0
        ep, self.rank, place = 1, 0, 0
        if mesh is not None:
            if mesh.mesh_dim_names != ("dp", "ep") or mesh.size() != dist.get_world_size():
                raise ValueError(f"MoE: mesh is {mesh!r} (expected dimensions ('dp', 'ep') and all ranks)")
            ep, self.rank, place = mesh.shape[1], dist.get_rank(), mesh.get_local_rank("ep")
        if experts < ep:
            raise ValueError(f"MoE: got {experts} experts for {ep} ranks (expected one for each, at least)")
        self.mesh, self.ep = mesh, ep
        self.owned = [list(part) for part in np.array_split(np.arange(experts), ep)]
        self.router = nn.Linear(width, experts, bias=False, dtype=dtype)
        self.experts = Experts(width, hidden, [int(n) for n in self.owned[place]], seed, dtype)
        self.shared = None
        if shared:
            self.shared = nn.Sequential(
                nn.Linear(width, shared, dtype=dtype), nn.GELU(), nn.Linear(shared, width, dtype=dtype)
            )
        if ep > 1:
            for p in self.experts.parameters():
                p.register_hook(lambda grad: grad / ep)

    def counts_of(self, own):
        """[ranks, experts]: how many copies each rank has for each expert."""
        if self.mesh is None:
            return own.unsqueeze(0)
        return collectives.all_gather_single(own.unsqueeze(0), 0, None)

    def forward(self, x):
        scores = F.softmax(self.router(x).to(pydist.promote_types(x.dtype, pydist.float32)), -1)
        weights, ids = scores.topk(self.top_k, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        ids = ids.flatten()
        own = pydist.bincount(ids, minlength=self.count)
        counts = self.counts_of(own)
        total = max(1, counts.sum().item())
        balance = (
            self.count
            * (counts.sum(0).to(scores.dtype) * scores.sum(0)).sum()
            / total
            * (len(counts) * self.top_k / total)
        )

        # The copies by expert, in the order of the tokens; those of earlier ranks come before.
        order = ids.argsort(stable=True)
        before = counts.cumsum(0) - counts
        kept = counts
        number = pydist.arange(len(ids)) - (own.cumsum(0) - own)[ids[order]]
        keeps = pydist.ones_like(order, dtype=pydist.bool)
        if self.capacity_factor is not None:
            capacity = math.ceil(self.capacity_factor * total / self.count)
            kept = (capacity - before).clamp(0).minimum(counts)
            keeps = number < kept[self.rank][ids[order]]
        self.dropped = 1 - kept.sum().item() / total

        place = places_of(order, keeps).view(len(x), self.top_k)
        rows = pydist.dispatch_rows(x, place, int(kept[self.rank].sum()))
        out = pydist.combine_rows(self.by_experts(rows, kept), place, weights)
        return (out if self.shared is None else out + self.shared(x)), balance

    def by_experts(self, rows, kept):
        """The results of all experts for this rank's rows, which are ordered by expert."""
        if self.ep == 1:
            return self.experts(rows, kept[self.rank].tolist())
        first = self.rank // self.ep * self.ep
        mine = self.owned[self.rank - first]
        sizes = [int(kept[self.rank][part].sum()) for part in self.owned]
        got = kept[first : first + self.ep][:, mine]  # [ranks along "ep", experts here]
        group = (self.mesh, 1)
        received = collectives.all_to_all_single_autograd(rows, got.sum(1).tolist(), sizes, group)
        # They come by rank, and by expert for each rank.
        expert = pydist.arange(len(mine)).repeat(self.ep).repeat_interleave(got.flatten())
        order = expert.argsort(stable=True)
        place = places_of(order, pydist.ones_like(order, dtype=pydist.bool)).unsqueeze(1)
        done = self.experts(pydist.dispatch_rows(received, place, len(received)), got.sum(0).tolist())
        return collectives.all_to_all_single_autograd(
            pydist.combine_rows(done, place), sizes, got.sum(1).tolist(), group
        )


def average_gradients(model, mesh):
    """Averages the gradients of experts over "dp", those of all other parameters over all ranks."""
    own = {id(p) for m in model.modules() if isinstance(m, Experts) for p in m.parameters()}
    for group, is_expert in ((mesh.get_group("dp"), True), (None, False)):
        grads = [p.grad for p in model.parameters() if (id(p) in own) == is_expert and p.grad is not None]
        if grads and dist.get_world_size(group) > 1:
            dist.all_reduce_coalesced(grads, dist.ReduceOp.AVG, group)


class Model(nn.Module):
    """Predicts a character from the `block` characters before it: embeddings, then layers of experts."""

    def __init__(self, characters, block, width, layers, **moe):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.enter = nn.Linear(block * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(MoE(width, 2 * width, seed=i, **moe) for i in range(layers))
        self.head = nn.Linear(width, characters)

    def forward(self, x):
        """(logits, load-balancing loss)"""
        x = self.enter(self.embedding(x).flatten(1))
        balance = 0.0
        for norm, layer in zip(self.norms, self.layers):
            y, loss = layer(norm(x))
            x, balance = x + y, balance + loss
        return self.head(x), balance


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m pydist.examples.moe", description=__doc__.split("\n")[0])
    parser.add_argument("--data", metavar="FILE", help="a text (default: the help texts of Python's documentation)")
    for name, value, text in (
        ("experts", 8, "in a layer"), ("top-k", 2, "experts of a token"), ("layers", 2, "of experts"),
        ("width", 64, "of the states"), ("shared", 64, "features of the shared expert, 0: none"),
        ("block", 8, "characters of context"), ("batch-size", 256, "of all ranks together"),
        ("steps", 100, "of training"), ("expert-parallel", 0, "ranks that have the experts between them, 0: all"),
        ("seed", 0, ""),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default: %(default)s)")
    parser.add_argument("--capacity-factor", type=float, help="of an expert (default: no token is dropped)")
    parser.add_argument("--balance", type=float, default=0.01, help="factor of the load-balancing loss")
    parser.add_argument("--lr", type=float, default=3e-3, help="default: %(default)s")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args()
    if min(args.steps, args.batch_size, args.block, args.width, args.layers) < 1:
        parser.error("--steps, --batch-size, --block, --width and --layers must be at least 1")
    return args


def main():
    """Trains, and prints losses."""
    args = arguments()
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    ep = args.expert_parallel or world
    if world % ep or args.batch_size % world:
        sys.exit(
            f"moe: --expert-parallel {ep}, --batch-size {args.batch_size} (expected a divisor and a multiple of {world})"
        )
    pydist.manual_seed(args.seed)
    try:
        text = Text(args.data)
        mesh = init_device_mesh("cpu", (world // ep, ep), mesh_dim_names=("dp", "ep"))
        model = Model(
            len(text.characters), args.block, args.width, args.layers, experts=args.experts, top_k=args.top_k,
            capacity_factor=args.capacity_factor, shared=args.shared, mesh=mesh,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        sys.exit(f"moe: {error}")
    optimizer = optim.AdamW(model.parameters(), lr=args.lr)
    draw = np.random.default_rng(args.seed)
    for step in tqdm(range(args.steps), unit="step", disable=args.no_progress or rank != 0):
        starts = draw.integers(0, len(text.train) - args.block - 1, args.batch_size)
        x, t = pairs(text.train, starts[rank::world], args.block)
        logits, balance = model(x)
        loss = F.cross_entropy(logits, t[:, -1])
        optimizer.zero_grad()
        (loss + args.balance * balance).backward()
        average_gradients(model, mesh)
        optimizer.step()
        if step % max(1, args.steps // 5) == 0 or step == args.steps - 1:
            both = pydist.stack([loss.detach(), balance.detach()])
            dist.all_reduce(both, dist.ReduceOp.AVG)
            if rank == 0:
                dropped = sum(layer.dropped for layer in model.layers) / args.layers
                tqdm.write(f"step {step}: loss {both[0]:.4f}, balance {both[1]:.3f}, dropped {dropped:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
