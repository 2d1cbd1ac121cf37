"""Modules, losses, distributions, initializers and files on CUDA: the CPU's results and gradients, on the device."""

import copy
import io
import pickle

import numpy as np
import pytest

import pydist
from lib.layer_samples import DISTRIBUTIONS, LAYERS, LAZY, LOSSES, TWO, loss_arguments
from pydist import nn

if not pydist.cuda.is_available() or pydist._C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

MORE = [
    ("RNN(4, 6, 2, bidirectional=True)", (5, 3, 4)), ("LSTM(4, 6, 2, proj_size=2, batch_first=True)", (3, 5, 4)), ("GRU(4, 6)", (5, 3, 4)),
    ("RNNCell(4, 6)", (3, 4)), ("LSTMCell(4, 6)", (3, 4)), ("GRUCell(4, 6)", (3, 4)), ("BatchNorm1d(4)", (3, 4)), ("SyncBatchNorm(4)", (3, 4)),
    ("GroupNorm(2, 4)", (2, 4, 3)), ("RMSNorm(4)", (3, 4)), ("RReLU()", (3, 4)), ("FeatureAlphaDropout(0.3)", (3, 4, 2)), ("Dropout3d()", (3, 4, 2, 2, 2)),
    ("FractionalMaxPool2d(2, 3)", (1, 2, 7, 7)), ("utils.parametrizations.spectral_norm(nn.Linear(4, 3))", (2, 4)), ("utils.weight_norm(nn.Linear(4, 3))", (2, 4)),
    ("utils.parametrizations.weight_norm(nn.Linear(4, 3))", (2, 4)), ("utils.spectral_norm(nn.Linear(4, 3))", (2, 4)),
]  # fmt: skip


def tensors(value):
    if isinstance(value, pydist.Tensor):
        return [value]
    return [t for part in value for t in tensors(part)] if isinstance(value, (tuple, list)) else []


def same(by_device):
    """by_device(device) returns tensors: on the device, and the CPU's."""
    found = []
    for device in ("cuda", "cpu"):
        pydist.manual_seed(0)
        made = tensors(by_device(device))
        assert made and all(t.device.type == device for t in made)
        found.append([t.detach().cpu() for t in made])
    for k, (got, want) in enumerate(zip(*found, strict=True)):
        assert got.dtype is want.dtype
        np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-6, 1e-7, err_msg=str(k))


def gradients(results, *more):
    """The results, and the gradients of leaves, after backward."""
    results = tensors(results)
    floating = [r for r in results if r.requires_grad]
    if floating:
        sum((r * r).sum() for r in floating).backward()
    return [*results, *(t.grad for t in more if t.grad is not None)]


@pytest.mark.parametrize("text, shape", LAYERS + LAZY + MORE)
def test_modules_are_the_cpus(text, shape):
    inputs = [pydist.tensor(np.random.default_rng(k).normal(size=shape)) for k in range(1 + text.startswith(TWO))]

    def run(device):
        module, found = eval(f"nn.{text}", {"nn": nn}).double().to(device), []
        for train in (True, False):
            args = [x.clone().to(device).requires_grad_() for x in inputs]
            module.zero_grad()
            found += gradients(module.train(train)(*args), *args, *module.parameters())
        return [*found, *module.buffers()]

    same(run)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("text, kinds", LOSSES)
def test_losses_are_the_cpus(text, kinds, reduction):
    loss = eval(f"nn.{text}", {"nn": nn})
    loss.reduction = reduction

    def run(device):
        args = [pydist.tensor(a, device=device) for a in loss_arguments(kinds)]
        return gradients(loss(args[0].requires_grad_(), *args[1:]), args[0])

    same(run)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_are_the_cpus(name):
    args, kwargs, value = DISTRIBUTIONS[name]

    def run(device):
        def leaf(v):
            return pydist.tensor(v, dtype=pydist.float64, device=device).requires_grad_()

        given = [leaf(a) if isinstance(a, list) else a for a in args]
        named = {k: leaf(v) for k, v in kwargs.items()}
        d = getattr(pydist.distributions, name.split(":")[0])(*given, **named)
        values = pydist.tensor(value, dtype=None if name.startswith("Categorical") else pydist.float64, device=device)
        found = (
            [d.log_prob(values), d.sample(), d.sample((3, 2)), d.expand((2, *d.batch_shape)).sample()]
            if hasattr(d, "expand")
            else [d.log_prob(values), d.sample((3, 2))]
        )
        for what in ("mean", "variance", "mode", "entropy", "cdf", "enumerate_support"):
            try:
                x = getattr(d, what)
                found.append((x(values) if what == "cdf" else x()) if callable(x) else x)
            except (NotImplementedError, AttributeError):
                pass
        found += [d.rsample((4,))] if d.has_rsample else []
        return gradients(
            [t.nan_to_num(0, 0, 0) if t.requires_grad else t for t in found], *tensors([*given, *named.values()])
        )

    same(run)


@pytest.mark.parametrize("call", [
    "uniform_(t)", "normal_(t)", "trunc_normal_(t)", "constant_(t, 3.0)", "eye_(t)", "xavier_uniform_(t)", "kaiming_normal_(t)", "orthogonal_(t)",
    "sparse_(t, 0.3)", "dirac_(t.view(4, 5, 1))",
])  # fmt: skip
def test_initializers_are_the_cpus(call):
    same(lambda device: eval(f"init.{call}", {"init": nn.init, "t": pydist.empty(4, 5, device=device)}))


@pytest.mark.parametrize("norm", [2.0, 1.0, float("inf"), 0.0])
def test_clipping_is_the_cpus(norm):
    def run(device):
        leaves = [pydist.linspace(-1, k, 6, device=device).requires_grad_() for k in (1, 3)]
        gradients([p * p for p in leaves])
        size = nn.utils.clip_grad_norm_(leaves, 0.5, norm, error_if_nonfinite=True)
        nn.utils.clip_grad_value_(leaves, 0.1)
        return [size, *(p.grad for p in leaves)]

    same(run)
    apart = [pydist.ones(3, device=device).requires_grad_() for device in ("cuda", "cpu")]
    for p in apart:
        p.grad = pydist.ones_like(p)
    assert nn.utils.clip_grad_norm_(apart, 0.5, norm).item() == pytest.approx(
        {0.0: 2, 1.0: 6, 2.0: 6**0.5}.get(norm, 1)
    )
    assert apart[0].grad.tolist() == apart[1].grad.tolist() and apart[1].grad[0].item() < 0.6


@pytest.mark.parametrize("policy", [None, "products", "everything", "to the host"])
def test_activation_checkpoints_are_the_cpus(policy):
    from pydist.utils import checkpoint

    keep = {
        "products": [pydist.ops.aten.mm.default],
        "everything": lambda *args: checkpoint.CheckpointPolicy.MUST_SAVE,
        "to the host": lambda *args: checkpoint.CheckpointPolicy.MUST_CPU_OFFLOAD,
    }.get(policy)
    more = {} if policy is None else {"context_fn": lambda: checkpoint.create_selective_checkpoint_contexts(keep)}

    def run(device):
        x = pydist.linspace(-1, 1, 9, dtype=pydist.float64, device=device).view(3, 3).requires_grad_()
        y = checkpoint.checkpoint(lambda x: ((x @ x).exp() @ x.t()).sin(), x, use_reentrant=False, **more)
        y.sum().backward()
        return [y, x.grad]

    same(run)


def test_offloaded_activations_and_modules_made_empty():
    from pydist.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper

    def run(device):
        net = offload_wrapper(nn.Sequential(nn.Linear(3, 4), nn.Tanh())).to(device)
        for p in net.parameters():
            nn.init.ones_(p)
        net(pydist.linspace(-1, 1, 6, device=device).view(2, 3)).sum().backward()
        return [p.grad for p in net.parameters()]

    same(run)
    layer = nn.Linear(2, 2, device="meta").to_empty(device="cuda")
    with pytest.raises(RuntimeError, match="nothing has been written to weight, bias since to_empty"):
        layer(pydist.ones(1, 2, device="cuda"))
    layer.reset_parameters()
    assert layer(pydist.ones(1, 2, device="cuda")).is_cuda


def test_norms_over_ranks_and_devices():
    def norm(rank):
        parts = [pydist.tensor([3.0], device="cuda")] if rank else [pydist.tensor([4.0])]
        return nn.utils.get_total_norm(parts, group=pydist.distributed.group.WORLD).item()

    assert pydist.testing.run_ranks(2, norm) == [5.0, 5.0]
    assert pydist.distributed.init_device_mesh("cuda", (1,)).device_type == "cuda"


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_packed_sequences_are_the_cpus(kind):
    def run(device):
        layer = getattr(nn, kind)(4, 5, 2, bidirectional=True).double().to(device)
        x = pydist.randn(6, 3, 4, dtype=pydist.float64, device=device).requires_grad_()
        packed = nn.utils.rnn.pack_padded_sequence(x, pydist.tensor([4, 6, 2]), enforce_sorted=False)
        assert packed.is_cuda == (device == "cuda") and not packed.batch_sizes.is_cuda
        out, last = layer(packed.cpu().to(device))
        y, lengths = nn.utils.rnn.pad_packed_sequence(out)
        assert lengths.tolist() == [4, 6, 2] and not lengths.is_cuda
        return gradients([y, last], x, *layer.parameters())

    same(run)


@pytest.mark.parametrize("options", [{}, {"batch_first": True, "norm_first": True}])
def test_transformers_with_masks_are_the_cpus(options):
    def run(device):
        model = nn.Transformer(8, 2, 1, 1, 16, 0.1, **options).double().to(device)
        x, y = (pydist.randn(5, 5, 8, dtype=pydist.float64).to(device).requires_grad_() for _ in range(2))
        mask = model.generate_square_subsequent_mask(5, device=device, dtype=pydist.float64)
        hidden = pydist.zeros(5, 5, dtype=pydist.bool, device=device)
        hidden[0, 3:] = True
        found = [
            model.train(train)(x, y, mask, mask, None, hidden, hidden, tgt_is_causal=True) for train in (True, False)
        ]
        return gradients(found, x, y)

    same(run)


def test_copies_and_files_keep_to_devices():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).cuda()
    optimizer = pydist.optim.Adam(model.parameters())
    gradients(model(pydist.ones(4, 3, device="cuda")))
    optimizer.step()
    x = pydist.arange(6.0, device="cuda")
    state, file = (
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "x": x, "part": x[2:]},
        io.BytesIO(),
    )
    pydist.save(state, file)
    here, there = (pydist.load(io.BytesIO(file.getvalue()), map_location=where) for where in (None, "cuda"))
    assert not here["x"].is_cuda and not here["model"]["0.weight"].is_cuda
    assert there["x"].is_cuda and there["model"]["0.weight"].tolist() == model[0].weight.tolist()
    there["x"].zero_()
    assert there["part"].sum().item() == 0  # they still share memory
    other = pydist.optim.Adam(model.parameters())
    other.load_state_dict(here["optimizer"])
    assert all(s["exp_avg"].is_cuda for s in other.state.values())
    other.step()
    model.load_state_dict(here["model"])
    assert pickle.loads(pickle.dumps(x)).is_cuda and pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    assert copy.deepcopy(model)[0].weight.is_cuda
