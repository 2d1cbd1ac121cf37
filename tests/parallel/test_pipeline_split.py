"""Models that `pipeline` cuts: each cut has the bits of the whole model, and what cannot be cut is refused with its line."""

import copy
import hashlib
import pickle
from collections import OrderedDict

import pytest

import pydist
from pydist import fx, models, nn
from pydist.distributed.pipelining import (
    Pipe,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleZBVZeroBubble,
    SplitPoint,
    build_stage,
    pipe_split,
    pipeline,
)
from pydist.nn import functional as F
from pydist.testing import run_ranks

BEGIN, END = SplitPoint.BEGINNING, SplitPoint.END


def sha(tensors):
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(t.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def gradients_of(run, model):
    model.zero_grad()
    run().square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def same(a, b):
    return a is b is None or a.equal(b)


def check_whole(model, pipe, *batches, **kwargs):
    """The stages in turn, here, give what the model gives: results, gradients, names."""

    def first(result):
        return result[0] if isinstance(result, tuple) else result

    for x in batches:
        assert first(pipe(x, **kwargs)).equal(first(model(x, **kwargs)))
        whole, cut = (gradients_of(lambda run=run, x=x: first(run(x, **kwargs)), model) for run in (model, pipe))
        assert all(same(whole[name], cut[name]) for name in whole)
    stages = [pipe.get_stage_module(i) for i in range(pipe.num_stages)]
    names = [name for stage in stages for name in stage.state_dict()]
    assert sorted(names) == sorted(model.state_dict()) and [s.training for s in stages] == [True] * len(stages)


class Skips(nn.Module):
    """Four layers; what the first one makes is added before the last one."""

    def __init__(self, n=6):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(n, n) for _ in range(4))

    def forward(self, x):
        first = self.a(x).tanh()
        return self.d(self.c(self.b(first).tanh()).tanh() + first)


class Net(nn.Module):
    """What goes on from stage to stage is a tuple, a dict, a number and a shape."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.heads = nn.Embedding(9, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)
        self.register_buffer("places", pydist.arange(64.0).view(32, 2), persistent=False)
        self.register_buffer("scale", pydist.ones(1))

    def forward(self, tokens, factor=2.0, mask=None):
        if tokens.dim() != 2 or tokens.shape[1] > 32:
            raise ValueError("tokens")
        n, length = tokens.shape
        x = self.embed(tokens) * factor
        pipe_split()
        out, (h, c) = self.lstm(x)
        sizes = out.shape
        ends = {"h": h.squeeze(0), "c": c.squeeze(0)}
        pipe_split()
        y = out + self.places[:length].sum(1)[:, None] / length + pydist.arange(length)[None, :, None]
        if mask is not None:
            y = y * mask
        pipe_split()
        ends["h"] = ends["h"] + ends["c"]
        return self.heads(y.reshape(sizes) * self.scale + ends["h"][:, None]).view(n, length, 4)


class UNet(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU(inplace=True))
        self.down2 = nn.Sequential(nn.Conv2d(n, 2 * n, 3, padding=1), nn.ReLU())
        self.middle = nn.Conv2d(2 * n, 2 * n, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(2 * n, 2 * n, 2, stride=2)
        self.up1 = nn.Conv2d(3 * n, 1, 3, padding=1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        low = self.middle(two) + two
        up = self.up2(low)
        up = F.pad(up, (0, one.shape[-1] - up.shape[-1], 0, one.shape[-2] - up.shape[-2]))
        return self.up1(pydist.cat([one, up], 1)) + x


def test_a_skip_connection_goes_through_the_stages_between():
    model, spec = Skips(), {"b": BEGIN, "c": BEGIN, "d": BEGIN}
    pipe = pipeline(model, (pydist.randn(2, 6),), split_spec=spec)
    assert pipe.num_stages == 4
    check_whole(model, pipe, pydist.randn(3, 6), pydist.randn(1, 7, 6))
    check_whole(model, pipeline(model, (), split_spec=spec), pydist.randn(3, 6))  # no control flow: no shapes needed


def test_lengths_may_change_and_values_of_all_kinds_go_on():
    pydist.manual_seed(0)
    model, tokens = Net(), [pydist.randint(0, 9, (2, n)) for n in (5, 1, 17, 32)]
    pipe = pipeline(model, (tokens[0],))
    assert pipe.num_stages == 4
    check_whole(model, pipe, *tokens)
    with pytest.raises(AssertionError, match=r"what test_pipeline_split.py:\d+ asks for .* got another value: True"):
        pipe(pydist.zeros(2, 33, dtype=pydist.int64))
    with pytest.raises(
        AssertionError, match="factor has been specialized to have value 2.0 but got another value: 3.0"
    ):
        pipe(tokens[0], factor=3.0)
    mask = pydist.rand(2, 5, 1)
    masked = pipeline(model, (tokens[0],), {"mask": mask, "factor": 0.5})
    check_whole(model, masked, tokens[0], mask=mask, factor=0.5)


@pytest.mark.parametrize("spec", [{"down2": BEGIN, "up2": BEGIN}, {"down1": END, "middle": END}])
def test_a_unet_in_three_stages(spec):
    pydist.manual_seed(0)
    model = UNet()
    pipe = pipeline(model, (pydist.randn(2, 1, 8, 8),), split_spec=spec)
    model.eval()
    for x in (pydist.randn(2, 1, 8, 8), pydist.randn(1, 1, 9, 11)):
        assert pipe(x)[0].equal(model(x))
    assert pipe.num_stages == 3 and not pipe.get_stage_module(0).get_submodule("down1").training


@pytest.mark.parametrize("name", ["GPT", "LLaMA", "BERT"])
def test_models_of_pydist(name):
    """A trace does not read the parameters: the model may stand on meta."""
    config = {
        "GPT": lambda: models.GPT(models.GPTConfig(50, 16, 4, 2, 16, 0.0)),
        "LLaMA": lambda: models.LLaMA(models.LLaMAConfig(50, 16, 4, 4, 2, 16)),
        "BERT": lambda: models.BERT(models.BERTConfig(50, 16, 2, 4, 2, 16, dropout=0.0)),
    }[name]
    pydist.manual_seed(0)
    model = config()
    layers = next(path for path, m in model.named_modules() if isinstance(m, nn.ModuleList))
    spec = {f"{layers}.1": BEGIN, f"{layers}.2": END}
    pipe = pipeline(model, (pydist.randint(0, 50, (2, 8)),), split_spec=spec)
    if not pipe.info().ties:
        check_whole(model, pipe, pydist.randint(0, 50, (3, 11)))
    with pydist.device("meta"):
        empty = config()
    pipe = pipeline(empty, (pydist.randint(0, 50, (2, 8)),), split_spec=spec)
    parts = [pipe.get_stage_module(i).to_empty(device="cpu") for i in range(3)]
    for part in parts:
        part.load_state_dict({k: v for k, v in model.state_dict().items() if k in part.state_dict()})
    assert [sha(part.state_dict()[n] for n in part.state_dict()) for part in parts] == [
        sha(model.state_dict()[n] for n in part.state_dict()) for part in parts
    ]


def test_a_sequential_is_cut():
    """At both kinds of points, also inside; names stay; a step has the bits of the whole model."""

    def model():
        pydist.manual_seed(0)
        inner = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12))
        return nn.Sequential(OrderedDict(a=nn.Linear(12, 12), b=inner, c=nn.Linear(12, 12), d=nn.ReLU()))

    spec = {"b.1": BEGIN, "b": END, "c": END}
    pipe = pipeline(model(), (), split_spec=spec)
    parts = [list(pipe.get_stage_module(i).state_dict()) for i in range(pipe.num_stages)]
    assert parts == [
        ["a.weight", "a.bias", "b.0.weight", "b.0.bias"],
        ["b.2.weight", "b.2.bias"],
        ["c.weight", "c.bias"],
        [],
    ]

    def work(rank):
        pipe = pipeline(model(), (), split_spec=spec)
        stages = [pipe.build_stage(s, "cpu") for s in (rank, 3 - rank)]
        return one_step(ScheduleZBVZeroBubble(stages, 3, F.mse_loss), *batch(6, 12), whole=False)

    first, second = run_ranks(2, work)
    whole, (x, y) = model(), batch(6, 12)
    for a, b in zip(x.chunk(3), y.chunk(3), strict=True):
        (F.mse_loss(whole(a), b) / 3).backward()
    found = {**first, **second}
    assert sha(found[name] for name, _ in whole.named_parameters()) == sha(q.grad for q in whole.parameters())


def batch(rows, n):
    generator = pydist.Generator().manual_seed(3)
    return (pydist.randn(rows, n, generator=generator) for _ in range(2))


def one_step(schedule, x, y, whole=True):
    """{name: gradient} of this rank's stages."""
    first = any(stage.is_first for stage in schedule._stages)
    schedule.step(*([x] if first else []), target=y)
    return {name: q.grad for stage in schedule._stages for name, q in stage.submod.named_parameters()}


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_steps_of_a_model_with_a_skip_connection(schedule):
    def work(rank):
        pydist.manual_seed(0)
        pipe = pipeline(Skips(), (pydist.ones(1, 6),), split_spec={"b": BEGIN, "c": BEGIN, "d": BEGIN})
        stage = build_stage(pipe.get_stage_module(rank), rank, pipe.info(), "cpu")
        return one_step(schedule(stage, 3, F.mse_loss), *batch(7, 6))

    found = {name: grad for part in run_ranks(4, work) for name, grad in part.items()}
    pydist.manual_seed(0)
    whole, (x, y) = Skips(), batch(7, 6)
    for a, b in zip(x.tensor_split(3), y.tensor_split(3), strict=True):
        (F.mse_loss(whole(a), b) / 3).backward()
    assert sha(found[name] for name, _ in whole.named_parameters()) == sha(q.grad for q in whole.parameters())


@pytest.mark.parametrize("schedule", [Schedule1F1B, ScheduleZBVZeroBubble])
def test_weights_that_two_stages_share_are_tied(schedule):
    """The embedding and the last layer of a GPT: both copies get the sum of their gradients, and the model keeps its tie."""
    one = schedule is Schedule1F1B
    config = models.GPTConfig(50, 16, 4, 2, 16, 0.0)
    spec = {"transformer.h.2": BEGIN} if one else {f"transformer.h.{i}": BEGIN for i in (1, 2, 3)}
    tokens, targets = (pydist.randint(0, 50, (6, 8), generator=pydist.Generator().manual_seed(n)) for n in range(2))

    def loss(out, target):
        return F.cross_entropy(out.flatten(0, 1), target.flatten())

    def work(rank, wrap):
        pydist.manual_seed(0)
        model = models.GPT(config).double()
        pipe = pipeline(model, (tokens[:2],), split_spec=spec)
        assert model.lm_head.weight is model.transformer["wte"].weight
        ((_, name, other, other_name),) = pipe.info().ties
        assert (name, other, other_name) == ("transformer.wte.weight", pipe.num_stages - 1, "lm_head.weight")
        own = (rank,) if one else (rank, 3 - rank)
        stages = [build_stage(wrap(pipe.get_stage_module(s)), s, pipe.info(), "cpu") for s in own]
        made = schedule(stages[0] if one else stages, 3, loss)
        found = {}
        for _ in range(2):
            found = one_step(made, tokens, targets)
        return {name.removeprefix("module."): grad for name, grad in found.items()}

    def parallel(module):
        alone = pydist.distributed.new_group([pydist.distributed.get_rank()], use_local_synchronization=True)
        return nn.parallel.DistributedDataParallel(module, process_group=alone)

    pydist.manual_seed(0)
    whole = models.GPT(config).double()
    for a, b in zip(tokens.chunk(3), targets.chunk(3), strict=True):
        (loss(whole(a), b) * 2 / 3).backward()
    for wrap in (lambda module: module, parallel):
        found = {name: grad for part in run_ranks(2, work, wrap) for name, grad in part.items()}
        assert found["lm_head.weight"].equal(found["transformer.wte.weight"])
        for name, p in whole.named_parameters():
            assert (found[name] - p.grad).abs().max() <= 1e-12, name


def test_a_policy_says_where_stages_begin():
    def halves(traced):
        calls = [node for node in traced.graph.nodes if node.op == "call_module"]
        with traced.graph.inserting_before(calls[len(calls) // 2]):
            traced.graph.call_function(pipe_split)
        traced.recompile()
        return traced

    model = Skips()
    pipe = pipeline(model, (pydist.ones(1, 6),), split_policy=halves)
    assert [list(pipe.get_stage_module(i).state_dict())[::2] for i in range(2)] == [
        ["a.weight", "b.weight"],
        ["c.weight", "d.weight"],
    ]
    check_whole(model, pipe, pydist.randn(2, 6))


def test_stages_can_be_copied_and_pickled():
    model = Skips()
    pipe = pipeline(model, (pydist.ones(1, 6),), split_spec={"c": BEGIN})
    x = pydist.randn(2, 6)
    for copied in (copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))):
        parts = [copied(pipe.get_stage_module(i)) for i in range(2)]
        assert parts[1](*parts[0](x)).equal(model(x))


def test_pipe_split_does_nothing_elsewhere():
    assert pipe_split() is None
    assert Net()(pydist.zeros(1, 3, dtype=pydist.int64)).shape == (1, 3, 4)


def test_a_constant_that_forward_makes_is_no_part_of_the_model():
    class Model(Skips):
        def forward(self, x):
            y = self.a(x + pydist.tensor([1.0] * 6))
            pipe_split()
            return self.b(y * pydist.tensor([2.0] * 6))

    model = Model()
    before = set(vars(model))
    pipe = pipeline(model, (pydist.ones(1, 6),))
    assert set(vars(model)) == before and not list(model.buffers())
    assert [len(pipe.get_stage_module(i).state_dict()) for i in range(2)] == [2, 2]
    x = pydist.randn(2, 6)
    assert pipe(x)[0].equal(model(x))


class Calls(nn.Module):
    """What `forward` does with the layers a and b, and with others of its own."""

    def __init__(self, forward):
        super().__init__()
        self.a, self.b, self.relu, self.drop, self.program = (
            nn.Linear(4, 4),
            nn.Linear(4, 4),
            nn.ReLU(),
            nn.Dropout(0.0),
            forward,
        )

    def forward(self, x, y=pydist.ones(2, 4), scale=None):
        return self.program(self, x, y, scale)


def through(*parts):
    """Parts with a new stage between."""

    def forward(self, x, y, scale):
        for part in parts[:-1]:
            x = part(self, x, y, scale)
            pipe_split()
        return parts[-1](self, x, y, scale)

    return forward


def written(self, x, y, scale):
    out = pydist.zeros(x.shape[0], 4)
    out[:, :2] = x[:, 2:]
    return self.b(out)


@pytest.mark.parametrize(
    "program",
    [
        through(lambda s, x, y, _: s.a(x) + y, lambda s, x, *_: s.b(x)),
        through(lambda s, x, *_: s.drop(s.relu(s.a(x))), lambda s, x, *_: s.drop(s.relu(s.b(x)))),
        through(lambda s, x, *_: s.a(x) if isinstance(x, pydist.Tensor) else x, lambda s, x, *_: s.b(x)),
        through(lambda s, x, *_: s.a(x) if pydist.is_tensor(x) else x, lambda s, x, *_: s.b(x)),
        through(lambda s, x, *_: s.a(x), written),
        through(lambda s, x, y, scale: s.a(x) if scale is None else x, lambda s, x, *_: s.b(x)),
    ],
)
def test_programs_that_pytorch_cuts(program):
    """Defaults that are tensors, layers without parameters that two stages call, questions for types, assignments."""
    model, x = Calls(program), pydist.randn(2, 4)
    pipe = pipeline(model, (x,))
    assert pipe.num_stages == 2 and pipe(x)[0].equal(model(x))
    whole, cut = (gradients_of(run, model) for run in (lambda: model(x), lambda: pipe(x)[0]))
    assert all(same(whole[name], cut[name]) for name in whole)
    assert {name for name, _ in pipe.named_parameters()} == set(whole) and pipe.state_dict().keys() == whole.keys()
    given = pipeline(model, (x,), {"y": x})
    assert given(x, y=x)[0].equal(model(x, y=x))


def test_a_layer_that_two_stages_call_is_tied():
    model = Calls(through(lambda s, x, *_: s.a(x).relu(), lambda s, x, *_: s.a(x)))
    pipe = pipeline(model, (pydist.ones(2, 4),))
    assert pipe.info().ties == ((0, "a.weight", 1, "a.weight"), (0, "a.bias", 1, "a.bias"))
    stages = [pipe.get_stage_module(i) for i in range(2)]
    assert stages[0].get_submodule("a") is model.a and stages[1].get_submodule("a") is not model.a


def test_random_numbers_are_drawn_when_a_stage_runs():
    pipe = pipeline(
        Calls(through(lambda s, x, *_: s.a(x), lambda s, x, *_: s.b(x) + pydist.rand(2, 4))), (pydist.ones(2, 4),)
    )
    x = pydist.ones(2, 4)
    pydist.manual_seed(0)
    first, second = pipe(x)[0], pipe(x)[0]
    pydist.manual_seed(0)
    assert not first.equal(second) and pipe(x)[0].equal(first)


def test_a_pipe_as_a_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    pipe = pipeline(model, (), split_spec={"1": BEGIN})
    assert len(list(pipe.parameters())) == 4 and list(pipe.state_dict()) == list(model.state_dict())
    assert not pipe.eval().get_stage_module(1).training and pipe.train().get_stage_module(1).training
    assert [name for name, _ in pipe.split_gm.named_children()] == ["submod_pp_0", "submod_pp_1"]
    assert "stage 1" in repr(pipe) and "def forward" in repr(pipe) and not pipe.has_loss_and_backward
    assert pipe.to(pydist.float64).get_stage_module(0).state_dict()["0.weight"].dtype == pydist.float64


# ---- what is refused


@pytest.mark.parametrize("mode", [pydist.no_grad, lambda: pydist.autocast("cpu", dtype=pydist.bfloat16)])
def test_modes_are_switched_in_modules_that_are_not_cut(mode):
    """A graph would lose them."""

    def switched(s, x, *_):
        with mode():
            return s.a(x)

    with pytest.raises(fx.TraceError, match=r"^test_pipeline_split.py:\d+: gradients or autocast are switched"):
        pipeline(Calls(through(switched, lambda s, x, *_: s.b(x))), (pydist.ones(2, 4),))

    class Inner(nn.Linear):
        def forward(self, x):
            with mode():
                return super().forward(x)

    model, x = nn.Sequential(Inner(4, 4), Inner(4, 4)), pydist.randn(2, 4)
    pipe = pipeline(model, (x,), split_spec={"1": BEGIN})
    assert pipe(x)[0].equal(model(x))
    with mode():
        assert pipeline(model, (x,), split_spec={"1": BEGIN})(x)[0].equal(model(x))


class Branch(nn.Module):
    def __init__(self, ask):
        super().__init__()
        self.a, self.b, self.ask = nn.Linear(4, 4), nn.Linear(4, 4), ask

    def forward(self, x):
        x = self.ask(self.a(x))
        pipe_split()
        return self.b(x)


@pytest.mark.parametrize(
    "ask, said",
    [
        (lambda x: x if x.sum() > 0 else -x, "the program asks whether gt is true"),
        (lambda x: x * int(x.argmax()), "the program uses argmax, a Tensor, as a number"),
        (lambda x: x * x.sum().item(), None),
        (lambda x: x[: x.argmax().item()], None),
        (lambda x: x if (x > 0).sum().item() else -x, "whether .* is not known"),
        (lambda x: x if x.nonzero().shape[0] else -x, "whether .* is not known"),
    ],
)
def test_what_depends_on_values_is_refused_with_its_line(ask, said):
    if said is None:  # a number that is not asked for goes on: the stage reads it
        model, x = Branch(ask), pydist.randn(4, 4)
        assert pipeline(model, (x,))(x)[0].equal(model(x))
        return
    with pytest.raises(fx.TraceError, match=rf"^test_pipeline_split.py:\d+: .*{said}"):
        pipeline(Branch(ask), (pydist.ones(2, 4),))


def test_without_example_inputs_no_way_may_depend_on_shapes():
    with pytest.raises(fx.TraceError, match=r"^test_pipeline_split.py:\d+: whether .* is not known \(expected mb_args"):
        pipeline(Branch(lambda x: x if x.dim() == 2 else x[0]), ())


def test_modules_and_written_buffers_of_two_stages_are_refused():
    tied = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    tied[1].weight = tied[2].weight = tied[0].weight
    with pytest.raises(ValueError, match="2.weight of stage 2 belongs to three stages"):
        pipeline(tied, (), split_spec={"1": BEGIN, "2": BEGIN})
    shared = nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match="of stage 1 is .* of stage 0"):
        pipeline(nn.Sequential(shared, nn.Tanh(), shared), (), split_spec={"1": BEGIN})

    class Counts(nn.Module):
        def __init__(self, write):
            super().__init__()
            self.write = write
            self.register_buffer("seen", pydist.zeros(1))

        def forward(self, x):
            y = x + self.seen
            pipe_split()
            return y * (self.seen.add_(1) if self.write else self.seen)

    assert pipeline(Counts(False), (pydist.ones(2),)).num_stages == 2
    with pytest.raises(ValueError, match="seen of stage 1 is seen of stage 0"):
        pipeline(Counts(True), (pydist.ones(2),))


def test_bad_arguments():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4))
    for spec, idle in (({"0": BEGIN}, 0), ({"1": BEGIN, "0": END}, 1)):
        with pytest.raises(ValueError, match=f"stage {idle} of . does nothing"):
            pipeline(model, (), split_spec=spec)
    assert pipeline(model, (), split_spec={"0": END, "2": END}).num_stages == 2
    with pytest.raises(ValueError, match="split_spec names '3'"):
        pipeline(model, (), split_spec={"3": BEGIN})
    with pytest.raises(TypeError, match="split_spec has 1 for '1'"):
        pipeline(model, (), split_spec={"1": 1})
    with pytest.raises(ValueError, match="split_spec and split_policy"):
        pipeline(model, (), split_spec={"1": BEGIN}, split_policy=lambda traced: traced)
    with pytest.raises(TypeError, match="split_policy returned NoneType"):
        pipeline(model, (), split_policy=lambda traced: None)
    with pytest.raises(TypeError, match="module is function"):
        pipeline(lambda x: x, ())
    with pytest.raises(TypeError, match="do not fit forward: too many positional"):
        pipeline(model, (1, 2))
    with pytest.raises(ValueError, match="get_stage_module: stage_idx is 1"):
        pipeline(model, ()).get_stage_module(1)
    with pytest.raises(ValueError, match="needs nothing that an earlier one makes"):
        pipeline(Apart(), (pydist.ones(2, 4),))
    assert isinstance(pipeline(model, ()), Pipe)


class Apart(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Embedding(3, 4)

    def forward(self, x):
        self.a(x)
        pipe_split()
        return self.b(pydist.tensor([1]))
