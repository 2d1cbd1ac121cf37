"""A small decoder for tests of sharded training, and training loops whose bits are those of DistributedDataParallel."""

import pydist
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed.fsdp import fully_shard
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.checkpoint import checkpoint

RULES = {
    "AdamW": lambda params: optim.AdamW(params, lr=0.05),
    "SGD": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.05),
    "Lion": lambda params: optim.Lion(params, lr=0.01, weight_decay=0.1),
    "LAMB": lambda params: optim.LAMB(params, lr=0.01, weight_decay=0.1),
    "Muon": lambda params: optim.Muon([p for p in params if p.dim() == 2], lr=0.01),
}


class Block(nn.Module):
    """again: None, or the use_reentrant of a checkpoint inside of the block."""

    def __init__(self, n, again):
        super().__init__()
        self.norm, self.up, self.down, self.again = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n), again

    def body(self, x):
        return x + self.down(pydist.tanh(self.up(self.norm(x))))

    def forward(self, x):
        return self.body(x) if self.again is None else checkpoint(self.body, x, use_reentrant=self.again)


class Gpt(nn.Module):
    """Tied embeddings, parameters of fewer rows than ranks, and a layer that nothing uses."""

    def __init__(self, again=None, frozen=False, layers=5):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.blocks = nn.ModuleList([Block(6, again) for _ in range(layers)])
        self.unused, self.scale = nn.Linear(3, 3), nn.Parameter(pydist.ones(1))
        self.head.weight = self.embed.weight
        if frozen:
            self.blocks[1].requires_grad_(False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def gpt(seed=0, **options):
    pydist.manual_seed(seed)
    return Gpt(**options)


def sharded(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def batch(step, part=0):
    pydist.manual_seed(1000 * step + 10 * part + dist.get_rank())
    return pydist.randint(0, 11, (3, 4))


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def train(model, params, rule="AdamW", steps=3, parts=1, sync=None, clip=None, device="cpu"):
    """The losses, and the optimizer. sync(model, on): whether the next backward reduces."""
    optimizer, losses = RULES[rule](params), []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            if sync is not None:
                sync(model, part == parts - 1)
            loss = loss_of(model, batch(step, part).to(device)) / parts
            loss.backward()
            losses.append(loss.item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return losses, optimizer


def reference(rule="AdamW", parts=1, steps=3, clip=None, **options):
    """(losses, parameters by name, states by name) of DistributedDataParallel."""
    model = gpt(**options)
    wrapped = DistributedDataParallel(model)

    def sync(wrapped, on):
        wrapped.reducer.sync = on

    losses, optimizer = train(wrapped, model.parameters(), rule, steps, parts, sync, clip)
    states = {name: optimizer.state[p] for name, p in model.named_parameters() if p in optimizer.state}
    return losses, {name: p.detach() for name, p in model.named_parameters()}, states


def whole(value):
    return value.detach().full_tensor() if hasattr(value, "full_tensor") else value


def equal(a, b):
    return pydist.equal(a, b) if isinstance(a, pydist.Tensor) else a == b


def assert_same(model, losses, optimizer, expected):
    """The bits of losses, parameters and optimizer states."""
    want_losses, params, states = expected
    assert losses == want_losses
    named = dict(model.named_parameters())
    assert named.keys() == params.keys()
    for name, param in named.items():
        assert equal(whole(param), params[name]), name
        for key, value in states.get(name, {}).items():
            assert equal(whole(optimizer.state[param][key]), value), (name, key)
