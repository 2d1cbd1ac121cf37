"""Tensor parallel modules beside the same models in one process, in float64: losses and all parameters after 20 steps."""

import functools
import hashlib
import os
import re
import signal
import time

import numpy as np
import pytest

import pydist
from lib.processes import within
from lib.ranks import LONG
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from pydist.distributed.diagnostics import flight_record
from pydist.distributed.fsdp import fully_shard
from pydist.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from pydist.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from pydist.examples import llama
from pydist.models import LLaMA, LLaMAConfig
from pydist.nn import functional as F
from pydist.testing import RankFailed, run_ranks

F64 = pydist.float64
STEPS = 20


def whole(t):
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach()


def wholes(model):
    named = getattr(model, "module", model).named_parameters()
    return {name.replace("_checkpoint_wrapped_module.", ""): whole(p).numpy().copy() for name, p in sorted(named)}


def close(got, expected, bound=1e-9):
    """Both are lists of losses and parameters by name."""
    assert all(abs(a - b) <= bound for a, b in zip(got[0], expected[0], strict=True))
    assert got[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        assert got[1][name].shape == value.shape, name
        assert np.abs(got[1][name] - value).max() <= bound, name


# ---- LLaMA


def made(heads=4, kv_heads=2, vocabulary=50, dim=32, hidden=48):
    pydist.manual_seed(0)
    sizes = LLaMAConfig(vocabulary, 16, 2, heads, kv_heads, dim, hidden)
    return LLaMA(sizes).double()


def tokens(step, vocabulary=50, rows=4, length=8):
    drawn = pydist.randint(0, vocabulary, (rows, length + 1), generator=pydist.Generator().manual_seed(step))
    return drawn[:, :-1], drawn[:, 1:]


def train(model, data=None, losses=False, steps=STEPS, length=8, vocabulary=50):
    """The mean losses of the steps, and all parameters; `data`: a mesh, whose ranks have rows of their own."""
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    rank, ranks = (data.get_local_rank(), data.size()) if data is not None else (0, 1)
    seen = []
    for step in range(steps):
        x, t = (part[rank::ranks] for part in tokens(step, vocabulary, length=length))
        optimizer.zero_grad()
        loss = llama.loss_of(model, x, t, losses)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        seen.append(llama.mean_over(loss, data.get_group()) if data is not None else whole(loss).item())
    return seen, wholes(model)


@functools.cache
def alone(length=8):
    return train(made(), length=length)


def parallel(rank, tp, dp, sequence, losses, again, ddp, length):
    mesh = init_device_mesh("cpu", (dp, 1, tp), mesh_dim_names=("dp", "cp", "tp"))
    model = llama.parallelize(made(), mesh, sequence, losses, again, ddp)
    assert any(isinstance(p, DTensor) for p in model.parameters())
    return train(model, mesh["dp"], losses, length=length)


WAYS = {  # tp, dp, sequence, losses, again, ddp
    "tp 2": (2, 1, False, False, False, False),
    "tp 2, loss": (2, 1, False, True, False, False),
    "tp 2, sequence": (2, 1, True, False, False, False),
    "tp 2, sequence, loss, again": (2, 1, True, True, True, False),
    "tp 4, sequence, loss": (4, 1, True, True, False, False),
    "tp 4, again": (4, 1, False, False, True, False),
    "fully_shard, tp": (2, 2, True, True, False, False),
    "fully_shard, tp, again": (2, 2, False, False, True, False),
    "DDP, tp": (2, 2, True, True, False, True),
    "DDP, tp, again": (2, 2, False, True, True, True),
}


@pytest.mark.parametrize("length", [8, 7])  # 7: the ranks have parts of different sizes
@pytest.mark.parametrize("way", WAYS)
def test_a_llama(way, length):
    tp, dp, *rest = WAYS[way]
    for got in run_ranks(tp * dp, parallel, tp, dp, *rest, length):
        close(got, alone(length))


def test_fully_shard_with_replicas_over_tensor_parallel_layers():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicas", "shards", "tp"))
        model = made()
        parallelize_module(model, mesh["tp"], llama.tensor_plan(model.config, 2))
        fully_shard(model, mesh=mesh["replicas", "shards"])
        return train(model, mesh["replicas"])

    for got in run_ranks(4, work):
        close(got, alone())


def test_parameters_of_fully_shard_and_tensor_parallel_layers():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        layers = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 3))
        expected = wholes(layers)
        parallelize_module(layers, mesh["tp"], {"0": ColwiseParallel(block=2), "1": RowwiseParallel(block=2)})
        fully_shard(layers, mesh=mesh["dp"])
        up, down = layers[0].weight, layers[1].weight
        assert up.device_mesh.mesh_dim_names == ("tp", "dp") and up.placements == (Shard(0, 2), Shard(0))
        assert down.placements == (Shard(1, 2), Shard(0))
        for name, value in wholes(layers).items():
            assert np.array_equal(value, expected[name]), name
        # 5 blocks of 2 rows: 6 and 4 for tp, each halved for dp
        return list(up.to_local().shape), list(down.to_local().shape)

    assert run_ranks(4, work) == [([3, 6], [2, 6]), ([2, 6], [2, 4]), ([3, 6], [1, 6]), ([2, 6], [1, 4])]


def test_a_checkpoint_is_read_by_other_numbers_of_ranks(tmp_path):
    def work(rank, tp, dp, action):
        mesh = init_device_mesh("cpu", (dp, 1, tp), mesh_dim_names=("dp", "cp", "tp"))
        model = llama.parallelize(made(), mesh, True, True)
        with pydist.no_grad():
            for p in model.parameters():
                p.mul_(0.5 if action == "save" else 0.0)
        state = {"model": get_model_state_dict(model)}
        if action == "save":
            checkpoint.save(state, checkpoint_id=tmp_path)
        else:
            checkpoint.load(state, checkpoint_id=tmp_path)
            set_model_state_dict(model, state["model"])
        return wholes(model)

    run_ranks(4, work, 2, 2, "save")
    expected = wholes(made())
    for tp, dp in ((2, 2), (2, 1), (1, 2), (4, 1), (1, 1)):
        for got in run_ranks(tp * dp, work, tp, dp, "load"):
            for name, value in expected.items():
                assert np.array_equal(got[name], value * 0.5), (tp, dp, name)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_vocabulary_that_no_number_of_ranks_divides(world):
    def work(rank):
        mesh = init_device_mesh("cpu", (1, 1, world), mesh_dim_names=("dp", "cp", "tp"))
        model = llama.parallelize(made(4, 4, 50257, 16, 24), mesh, world == 2, True)
        assert model.lm_head.weight.to_local().shape[0] == min(-(-50257 // world), 50257 - rank * -(-50257 // world))
        losses, values = train(model, None, True, 2, vocabulary=50257)
        return losses, {
            name: values[name] for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")
        }

    losses, values = train(made(4, 4, 50257, 16, 24), steps=2, vocabulary=50257)
    got = run_ranks(world, work)
    close(got[0], (losses, {name: values[name] for name in got[0][1]}))


# ---- heads


class Attention(nn.Module):
    def __init__(self, heads, kv_heads, width=4, dim=12):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, n * width) for n in (heads, kv_heads, kv_heads))
        self.o, self.width = nn.Linear(heads * width, dim), width

    def forward(self, x):
        def heads(y):
            return y.view(*y.shape[:2], y.shape[2] // self.width, self.width).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(x)), heads(self.v(x)), is_causal=True, enable_gqa=True
        )
        return self.o(y.transpose(1, 2).flatten(2))


def attention_gradients(model, given):
    x = given.clone().requires_grad_()
    y = model(x * 1)
    (whole(y) if not y.requires_grad else y * y).sum().backward()
    found = {"y": y, "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return {name: whole(t).numpy().copy() for name, t in found.items()}


@pytest.mark.parametrize("local", [True, False], ids=["plain results", "DTensors"])
@pytest.mark.parametrize("world, heads, kv_heads", [
    (2, 4, 4), (2, 5, 5), (3, 5, 5), (2, 4, 2), (2, 6, 3), (4, 10, 5), (2, 4, 1), (4, 4, 1), (4, 8, 2), (2, 5, 1), (4, 5, 1),
])  # fmt: skip
def test_heads_are_never_cut(world, heads, kv_heads, local):
    """Also uneven numbers of heads, and fewer key heads than ranks."""
    if not local and kv_heads < world and heads % world:
        pytest.skip("as a whole, query heads are a multiple of the key heads, of which there is one for each rank")

    def build():
        pydist.manual_seed(1)
        return Attention(heads, kv_heads).double()

    pydist.manual_seed(2)
    x = pydist.randn(2, 5, 12, dtype=F64)
    together = 4 * (heads // kv_heads if kv_heads >= world else 1)

    def work(rank):
        model = build()
        plan = {
            "q": ColwiseParallel(block=together, use_local_output=local),
            "[kv]": ColwiseParallel(block=4, use_local_output=local),
            "o": RowwiseParallel(block=together),
        }
        parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
        assert kv_heads < world or model.q.weight.to_local().shape[0] % together == 0
        return attention_gradients(model, x)

    expected = attention_gradients(build(), x)
    for got in run_ranks(world, work):
        close(([], got), ([], expected), 1e-12)


# ---- other models


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("hidden", [12, 7])
def test_an_mlp(world, hidden):
    def build():
        pydist.manual_seed(0)
        return nn.Sequential(nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, 3)).double()

    def steps(model):
        optimizer, losses = optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
        for step in range(STEPS):
            x = pydist.cos(pydist.arange(20.0, dtype=F64) + step).view(4, 5)
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            losses.append(loss.item())
        return losses, wholes(model)

    def work(rank):
        model = build()
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        assert parallelize_module(model, init_device_mesh("cpu", (world,)), plan) is model
        return steps(model)

    for got in run_ranks(world, work):
        close(got, steps(build()))


class Encoder(nn.Module):
    """A block of BERT, with dropout, and a classifier over some words."""

    def __init__(self, dim=16, width=4):
        super().__init__()
        self.words, self.places = nn.Embedding(30, dim), nn.Embedding(8, dim)
        self.first, self.drop = nn.LayerNorm(dim), nn.Dropout(0.2)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.second, self.third = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down, self.head = nn.Linear(dim, 36), nn.Linear(36, dim), nn.Linear(dim, 30)
        self.width = width

    def attend(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x):
        h = self.drop(self.first(self.words(x) + self.places(pydist.arange(x.shape[1]).expand(x.shape))))
        h = self.second(h + self.drop(self.attend(h)))
        return self.head(self.third(h + self.drop(self.down(F.gelu(self.up(h))))))


def encoder_steps(model, losses=False):
    optimizer, seen = optim.Adam(model.parameters(), lr=1e-2), []
    pydist.manual_seed(7)
    for step in range(STEPS):
        x, t = tokens(step, 30)
        optimizer.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(model(x).flatten(0, 1), t.flatten(), label_smoothing=0.1, ignore_index=3)
        loss.backward()
        optimizer.step()
        seen.append(whole(loss).item())
    return seen, wholes(model)


def encoder():
    pydist.manual_seed(0)
    return Encoder().double()


@pytest.mark.parametrize("world", [2, 4])
def test_an_encoder_with_dropout(world):
    """Dropout has the masks that it would have in one process, also where each rank has a part of the sequence."""

    def work(rank):
        model, part = encoder(), Shard(1)
        cols, rows = ColwiseParallel, RowwiseParallel
        plan = {
            "words": rows(input_layouts=Replicate(), output_layouts=part, use_local_output=False),
            "places": rows(input_layouts=Replicate(), output_layouts=part, use_local_output=False),
            "first": SequenceParallel(), "second": SequenceParallel(), "third": SequenceParallel(), "drop": SequenceParallel(),
            "[qkv]": cols(input_layouts=part, block=4), "o": rows(output_layouts=part, use_local_output=False),
            "up": cols(input_layouts=part), "down": rows(output_layouts=part, use_local_output=False),
            "head": cols(input_layouts=part, output_layouts=Shard(-1), use_local_output=False),
        }  # fmt: skip
        parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
        return encoder_steps(model)

    expected = encoder_steps(encoder())
    for got in run_ranks(world, work):
        close(got, expected)


class Channels(ParallelStyle):
    """Of a convolution or a BatchNorm: each rank has some of its output channels (dim 0), of its input channels (1), or
    all (None)."""

    def __init__(self, dim=None):
        self.dim = dim

    def _apply(self, module, device_mesh):
        for register in (module._parameters, module._buffers):
            for name, t in register.items():
                cut = self.dim is not None and t.dim() > self.dim
                spread = distribute_tensor(
                    t.detach(), device_mesh, [Shard(self.dim) if cut else Replicate()], src_data_rank=self.src_data_rank
                )
                register[name] = nn.Parameter(spread) if register is module._parameters else spread
        return module


def conv_net():
    pydist.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 10, 3), nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 5),
    ).double()  # fmt: skip


def conv_steps(model, spread=None):
    optimizer, seen = optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for step in range(STEPS):
        x = pydist.cos(pydist.arange(6 * 3 * 49.0, dtype=F64) * (step + 1)).view(6, 3, 7, 7)
        t = pydist.arange(6) % 5
        x, t = (spread(x), spread(t)) if spread else (x, t)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), t)
        loss.backward()
        optimizer.step()
        seen.append(whole(loss).item())
    return seen, wholes(model)


@pytest.mark.parametrize("batch", [False, True], ids=["channels", "batch"])
@pytest.mark.parametrize("world", [2, 3])
def test_a_conv_net_by_a_style_of_ones_own(world, batch):
    def work(rank):
        model, mesh = conv_net(), init_device_mesh("cpu", (world,))
        whole_ones = {"[0137]": Channels()}
        by_channel = {"[01]": Channels(0), "3": Channels(1), "7": Channels()}
        parallelize_module(model, mesh, whole_ones if batch else by_channel)
        place = Shard(0) if batch else Replicate()
        return conv_steps(model, lambda t: distribute_tensor(t, mesh, [place]))

    expected = conv_steps(conv_net())
    for got in run_ranks(world, work):
        close(got, expected)


# ---- messages


def collectives(group):
    """[(kind, number)] of what the group has run."""
    text = next(part for part in re.split(r"(?m)^(?=rank )", flight_record(group)) if part)
    return [(kind, int(number)) for kind, number in re.findall(r"^  (\w+)\(.*\(#(\d+)\)", text, re.M)]


def added(group, fn):
    """What fn() returns, and how often it ran each kind of collective."""
    last, found = max(number for _, number in collectives(group)), {}
    result = fn()
    for kind, number in collectives(group):
        if number > last:
            found[kind] = found.get(kind, 0) + 1
    return result, found


def block_messages(rank, sequence, prepared):
    mesh = init_device_mesh("cpu", (2,))
    model = made()
    plan = llama.tensor_plan(model.config, 2, sequence, True)
    if not prepared:
        plan = {path: style for path, style in plan.items() if not isinstance(style, PrepareModuleInput)}
    parallelize_module(model, mesh, plan)
    block, group = model.model["layers"][1], mesh.get_group()
    x = pydist.randn(2, 4 if sequence else 8, 32, dtype=F64).requires_grad_() * 1
    if sequence:
        x = DTensor.from_local(x, mesh, [Shard(1)])
    for _ in range(2):  # the first one also makes plans
        (x, y), there = added(group, lambda x=x: block(x, None, model.cos[:8], model.sin[:8]))
        total = (x * y).sum()
        total = total.redistribute(placements=[Replicate()]) if sequence else total
        _, back = added(group, total.backward)
        x = x.detach().requires_grad_() * 1
    return there, back


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "plain inputs"])
def test_a_block_reduces_twice_each_way(prepared):
    """Attention and the feed-forward layers one all_reduce each, forward and backward: q, k and v share one."""
    for there, back in run_ranks(2, block_messages, False, prepared):
        assert there == {"all_reduce": 2} and back == {"all_reduce": 2}


def test_a_block_of_sequence_parallel_gathers_and_scatters_twice_each_way():
    """The weights of the norms add one all_reduce at the end of backward."""
    for there, back in run_ranks(2, block_messages, True, True):
        assert there == {"all_gather": 2, "reduce_scatter": 2}
        assert back == {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1}


def digest(rank):
    losses, values = parallel(rank, 2, 2, True, True, False, False, 8)
    return hashlib.sha256(b"".join(values[name].tobytes() for name in sorted(values))).hexdigest(), losses


def test_bits_do_not_depend_on_the_run_or_on_processes():
    found = {result for processes in (False, True) for _ in range(3 if LONG else 1)
             for result in map(str, run_ranks(4, digest, processes=processes, timeout=within(60)))}  # fmt: skip
    assert len(found) == 1


# ---- inputs and outputs


class Sum(nn.Module):
    def forward(self, x, y=None, *, z=None):
        self.seen = [None if t is None else getattr(t, "placements", "plain") for t in (x, y, z)]
        return (x + 0, 3) if z is None else x + z


def test_inputs_and_outputs_of_other_modules():
    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), pydist.arange(8.0).view(2, 4).requires_grad_()  # a leaf
        R, S = Replicate(), Shard(0)

        def run(style, *args, **kwargs):
            module = parallelize_module(Sum(), mesh, style)
            return module(*args, **kwargs), module.seen

        (y, _), seen = run(PrepareModuleInput(input_layouts=(R, None), desired_input_layouts=(S, None)), x, x)
        assert seen == [(S,), "plain", None] and pydist.equal(y.to_local(), x[rank : rank + 1])
        (y, _), seen = run(PrepareModuleInput(input_layouts=R, desired_input_layouts=S, use_local_output=True), x)
        assert seen[0] == "plain" and y.shape == (1, 4)
        named = PrepareModuleInput(
            input_layouts=R, desired_input_layouts=S, input_kwarg_layouts={"z": S}, desired_input_kwarg_layouts={"z": S}
        )
        y, seen = run(named, x, z=x[:1])
        assert seen == [(S,), None, (S,)] and y.shape == (2, 4)
        outs = PrepareModuleOutput(output_layouts=(S, None), desired_output_layouts=(R, None))
        (y, three), _ = run(outs, x[:1])
        assert type(y) is pydist.Tensor and y.shape == (2, 4) and three == 3
        both = PrepareModuleInputOutput(
            input_layouts=R, desired_input_layouts=S, output_layouts=(S, None), desired_output_layouts=(R, None),
            use_local_output=False,
        )  # fmt: skip
        (y, _), seen = run(both, x)
        assert seen[0] == (S,) and y.placements == (R,) and pydist.equal(y.to_local(), x)
        assert "desired_input_layouts=(Shard(dim=0),)" in repr(both)

    run_ranks(2, work)


class Keep(nn.Module):
    def forward(self, x):
        return x


def test_the_gradient_of_a_gathered_input():
    """Each rank has a summand of it; other uses, hooks, autograd.grad and second gradients see the same as in one process."""

    def parts():
        pydist.manual_seed(0)
        return nn.Linear(4, 6).double(), nn.Linear(6, 4).double(), pydist.randn(6, 4, dtype=F64)

    def value(x, up, down):
        return (down(pydist.tanh(up(x))) ** 2).sum() + (x**3).sum() + (x.detach() * x).view(-1).sum()

    def gradients(start, x, up, down):
        seen = []
        x.register_hook(lambda g: seen.append(whole(g)))
        (g,) = pydist.autograd.grad(value(x, up, down), x, create_graph=True)
        (again,) = pydist.autograd.grad(whole_sum(g * g), start, retain_graph=True)
        (outer,) = pydist.autograd.grad(value(x, up, down), start)
        return [t.detach().clone() for t in (whole(g), seen[0], whole(outer), whole(again))], getattr(
            g, "placements", None
        )

    def whole_sum(t):
        return t.sum().full_tensor() if isinstance(t, DTensor) else t.sum()

    def work(rank):
        mesh, (up, down, x) = init_device_mesh("cpu", (2,)), parts()
        parallelize_module(up, mesh, ColwiseParallel(use_local_output=False))
        parallelize_module(down, mesh, RowwiseParallel(use_local_output=False))
        start = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
        style = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
        gathered = parallelize_module(Keep(), mesh, style)(start)
        assert gathered.placements == (Replicate(),)
        found, placements = gradients(start, gathered, up, down)
        assert placements == (Partial(),)
        plain = gathered.to_local()  # a plain copy, whose gradient is the same on all ranks
        (by_plain,) = pydist.autograd.grad((plain**2).sum(), start)
        assert pydist.allclose(by_plain.full_tensor(), 2 * x, atol=1e-12)
        return found

    up, down, x = parts()
    start = x.requires_grad_()
    expected, _ = gradients(start, start * 1, up, down)
    for got in run_ranks(2, work):
        for a, b in zip(got, expected, strict=True):
            assert (a - b).abs().max().item() < 1e-12


def test_dropout_of_plain_tensors():
    """The ranks of tp have the same masks, those of dp others."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        pydist.manual_seed(0)
        before = F.dropout(pydist.ones(64)).tolist()
        parallelize_module(nn.Linear(4, 4), mesh["tp"], ColwiseParallel())
        return before, F.dropout(pydist.ones(64)).tolist()

    (a, b, c, d) = run_ranks(4, work)
    assert a[1] == b[1] != c[1] == d[1] and a[0] != b[0]


def test_in_place_ops_keep_blocks_that_change_no_cut():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        whole = pydist.arange(32.0).view(16, 2)
        x = distribute_tensor(whole, mesh, [Shard(0, 4), Shard(0)])
        x.mul_(2).add_(1)
        assert x.placements == (Shard(0, 4), Shard(0)) and pydist.equal(x.full_tensor(), whole * 2 + 1)
        (_, found) = added(mesh.get_group(0), lambda: x.redistribute(placements=[Shard(0), Shard(0)]))
        assert not found  # rows 0 to 8 and 8 to 16 in both
        y = distribute_tensor(whole, mesh, [Shard(0, 6), Replicate()]).redistribute(placements=[Shard(0), Replicate()])
        assert y.to_local().shape[0] == 8 and pydist.equal(y.full_tensor(), whole)

    run_ranks(4, work)


def test_whose_values_are_taken():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        for source in (0, 1, None):
            layer = nn.Linear(2, 4)
            nn.init.constant_(layer.weight, float(rank + 1))
            parallelize_module(layer, mesh, ColwiseParallel(), src_data_rank=source)
            expected = [source + 1.0] * 2 if source is not None else [1.0, 2.0]
            assert layer.weight.full_tensor()[::2, 0].tolist() == expected
        with mesh:
            assert isinstance(parallelize_module(nn.Linear(2, 4), None, ColwiseParallel()).weight, DTensor)
        frozen = nn.Linear(2, 4)
        frozen.bias.requires_grad_(False)
        parallelize_module(frozen, mesh, {"": RowwiseParallel()})
        assert frozen.weight.requires_grad and not frozen.bias.requires_grad

    run_ranks(2, work)


# ---- what is wrong


def test_what_is_refused():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        grid = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        C, R, linear = ColwiseParallel, RowwiseParallel, nn.Linear(4, 6)
        for fn, kind, text in (
            (lambda: parallelize_module(nn.LayerNorm(4), mesh, C()), NotImplementedError,
             "ColwiseParallel: got LayerNorm .expected a Linear or an Embedding"),
            (lambda: parallelize_module(nn.Conv1d(4, 4, 1), mesh, R()), NotImplementedError, "RowwiseParallel: got Conv1d"),
            (lambda: parallelize_module(linear, grid, C()), ValueError, r"has 2 dimensions .expected 1"),
            (lambda: parallelize_module(linear, mesh, 3), TypeError, "parallelize_plan is int .expected"),
            (lambda: parallelize_module(linear, mesh, {"": 3}), TypeError, "the plan has '': int"),
            (lambda: parallelize_module(linear, None, C()), RuntimeError, "no mesh is active"),
            (lambda: parallelize_module(nn.ModuleDict({"a": linear}), mesh, {"a": C(), "b.*": C(), "c": C()}), ValueError,
             r"no module of ModuleDict is called 'b\.\*', 'c' .expected paths"),
            (lambda: C(input_layouts=(Replicate(),)), TypeError, "input_layouts is .Replicate.* .expected a Placement"),
            (lambda: R(block=0), ValueError, "RowwiseParallel: block is 0"),
            (lambda: parallelize_module(linear, mesh, C(block=4)), ValueError, "Linear has 6 outputs .expected blocks of 4"),
            (lambda: parallelize_module(linear, mesh, R(block=3)), ValueError, "Linear has 4 inputs .expected blocks of 3"),
            (lambda: PrepareModuleInput(input_layouts=(Shard(0), None), desired_input_layouts=(Shard(0),)), ValueError,
             "got 2 input_layouts and 1 desired_input_layouts"),
            (lambda: PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=()), ValueError,
             "got 1 output_layouts and 0"),
            (lambda: PrepareModuleInput(input_kwarg_layouts={"a": Shard(0)}), ValueError, r"of \['a'\] and .* of \[\]"),
        ):  # fmt: skip
            with pytest.raises(kind, match=text):
                fn()
        with pytest.warns(UserWarning, match="got no parallelize_plan, so nothing changes"):
            assert parallelize_module(linear, mesh) is linear
        assert not isinstance(linear.weight, DTensor)  # nothing has changed
        rows = parallelize_module(nn.Linear(4, 6), mesh, R())
        with pytest.raises(ValueError, match=r"part has shape \[3, 4\] .expected \[3, 2\] of the whole's \[3, 4\]"):
            rows(pydist.ones(3, 4))
        with pytest.raises(ValueError, match="weight of Linear is a DTensor already"):
            parallelize_module(rows, mesh, C())
        with pytest.raises(TypeError, match="ColwiseParallel: an input with a layout is int"):
            parallelize_module(nn.Linear(4, 6), mesh, C())(3)
        inputs = PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),))
        with pytest.raises(ValueError, match="Sum got 2 inputs .expected 1"):
            parallelize_module(Sum(), mesh, inputs)(pydist.ones(2), pydist.ones(2))
        outputs = PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate())
        with pytest.raises(ValueError, match="Sum has 2 outputs .expected 1"):
            parallelize_module(Sum(), mesh, outputs)(pydist.ones(2))
        other = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(
            ValueError, match="weight is a DTensor already, over .*, beside .*other dimensions of the same mesh"
        ):
            fully_shard(parallelize_module(nn.Linear(4, 6), grid["tp"], C()), mesh=other["dp"])

    run_ranks(2, work)


def test_blocks_that_no_rank_can_share():
    def work(rank):
        mesh = init_device_mesh("cpu", (3,))
        with pytest.raises(ValueError, match="got 2 blocks of 3 for 3 ranks .expected as many blocks as ranks"):
            parallelize_module(nn.Linear(4, 6), mesh, ColwiseParallel(block=3))

    run_ranks(3, work)


def test_parts_of_a_sequence_that_do_not_fit_together():
    """Plain parts are taken to be equal; where they are not, all ranks raise, and none hangs."""

    def work(rank):
        style = ColwiseParallel(input_layouts=Shard(1))
        layer = parallelize_module(nn.Linear(4, 6), init_device_mesh("cpu", (2,)), style)
        layer(pydist.ones(2, 3 - rank, 4))

    for error in run_ranks(2, work, return_exceptions=True):
        assert isinstance(error, RankFailed)


@pytest.mark.parametrize("moment", ["forward", "backward"])
def test_a_rank_dies(moment):
    def work(rank):
        mesh = init_device_mesh("cpu", (1, 1, 2), mesh_dim_names=("dp", "cp", "tp"))
        model = llama.parallelize(made(), mesh, True, True)
        for step in range(10**6):
            x, t = tokens(step)
            try:
                loss = llama.loss_of(model, x, t, True)
                if step == 2 and rank == 1 and moment == "backward":
                    os.kill(os.getpid(), signal.SIGKILL)
                began = time.monotonic()
                loss.backward()
                if step == 2 and rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                began = time.monotonic()
            except dist.PeerFailed as error:
                return str(error), time.monotonic() - began
        return None

    survivor, dead = run_ranks(2, work, processes=True, return_exceptions=True, timeout=within(60))
    assert isinstance(dead, RankFailed) and "SIGKILL" in str(dead)
    assert "rank 1" in survivor[0] and survivor[1] < within(2)
