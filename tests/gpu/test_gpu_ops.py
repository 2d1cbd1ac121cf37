"""CUDA against the CPU: every op's samples (op_samples.py), forward and gradients; and that what has no kernel yet says so.

Needs a device: a GPU (tests/gpu/run.sh), or the emulator (tests/emulator/build.py; .ci/run runs these files on it)."""

import re
from pathlib import Path

import numpy as np
import pytest

import pydist
from lib.op_samples import RANDOM, SAMPLES, arguments, arrays, build, call

if not pydist.cuda.is_available() or pydist._C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Ops of which some kernel is not there yet.
NOT_YET = {"combine_rows", "dispatch_rows"}
SAMPLED = [name for name, samples in SAMPLES.items() if samples]


def moved(tensors, device):
    return [t.to(device) if t is not None else None for t in tensors]


def as_list(result):
    return [r for r in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(r, pydist.Tensor)]


def agree(got, want, c, what, size=1):
    assert got.is_cuda and got.dtype == want.dtype and tuple(got.shape) == tuple(want.shape), what
    got, want = got.detach().cpu(), want.detach()
    if not want.is_floating_point():
        assert got.tolist() == want.tolist(), what
        return
    eps = EPS[str(want.dtype).split(".")[-1]]
    a, b = got.double().numpy(), want.double().numpy()
    size = np.abs(b[np.isfinite(b)]).max(initial=size)  # of sums what was added counts: the samples are about 1
    with np.errstate(invalid="ignore"):
        near = (
            (a == b)
            | (np.isnan(a) & np.isnan(b))
            | (np.abs(a - b) <= 1e-6 * np.abs(b) * (eps > 1e-10) + 2 * c * eps * size)
        )
    assert near.all(), (what, a[~near][:5], b[~near][:5])


def run(name, sample, values, dtype, device, grad):
    """Results, and gradients of the floating inputs for ones that alternate."""
    tensors = moved(build(pydist, sample, values, dtype), device)
    wanted = [t.requires_grad_() for t in tensors if grad and t.is_floating_point()]
    results = as_list(call(pydist, name, *arguments(sample, tensors), **sample.kwargs))
    floating = [r for r in results if r.requires_grad] if wanted else []
    if not floating:
        return results, []
    seeds = [
        (pydist.arange(r.numel(), dtype=pydist.float64) % 3 - 0.5).reshape(r.shape).to(r.dtype).to(device)
        for r in floating
    ]
    return results, [g for g in pydist.autograd.grad(floating, wanted, seeds, allow_unused=True) if g is not None]


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("name", SAMPLED)
def test_as_on_the_cpu(name, dtype):
    seen = missed = False
    for i, sample in enumerate(SAMPLES[name]):
        if sample.dtypes == "wide" and dtype not in ("float64", "float32"):
            continue
        values, what = arrays(name, sample), f"{name}[{i}] {dtype}"
        grad = not sample.writes
        try:
            try:
                want = run(name, sample, values, dtype, "cpu", grad)
            except RuntimeError:
                grad = False
                want = run(name, sample, values, dtype, "cpu", grad)
            got = run(name, sample, values, dtype, "cuda", grad)
        except NotImplementedError as e:
            assert "CUDA kernel" in str(e) or "on CUDA" in str(e), (what, e)
            assert name in NOT_YET, (what, e)
            missed = True
            continue
        seen = True
        assert len(got[0]) == len(want[0]) and len(got[1]) == len(want[1]), what
        size = 1
        if sample.linear:
            whole = run(name, sample, [np.abs(v) if v.dtype == float else v for v in values], "float64", "cpu", False)[
                0
            ]
            size = max([abs(r).max().item() for r in whole if r.numel()], default=1)
        for g, w in zip(got[0] + got[1], want[0] + want[1]):
            agree(g, w, max(sample.c, 4), what, max(size, 1))
    assert not seen or missed == (name in NOT_YET), f"{name}: has its kernels (expected not in NOT_YET)"
    assert seen or missed or all(s.dtypes == "wide" for s in SAMPLES[name]), f"{name}: no sample ran"


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("name", SAMPLED)
def test_whole_numbers(name, dtype):
    for i, sample in enumerate(SAMPLES[name]):
        if sample.dtypes != "all":
            continue
        values, what = [np.asarray(abs(v)) for v in arrays(name, sample)], f"{name}[{i}] {dtype}"
        try:
            want, _ = run(name, sample, values, dtype, "cpu", False)
        except (RuntimeError, IndexError, TypeError, NotImplementedError):
            continue
        try:
            got, _ = run(name, sample, values, dtype, "cuda", False)
        except NotImplementedError:
            assert name in NOT_YET, what
            continue
        for g, w in zip(got, want, strict=True):
            agree(g, w, 4, what)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("name", RANDOM)
def test_draws_are_the_cpus(name, dtype):
    for args, _, _ in RANDOM[name]:
        for n in (1, 6, 1001):
            drawn = []
            for device in ("cpu", "cuda"):
                pydist.manual_seed(7)
                drawn.append(
                    getattr(pydist.empty(n, dtype=getattr(pydist, dtype), device=device), name + "_")(*args)
                    .cpu()
                    .double()
                )
            assert (drawn[0] - drawn[1]).abs().max().item() <= 4 * EPS[dtype], (name, args, n)


def test_dropout_drops_the_same():
    masks = []
    for device in ("cpu", "cuda"):
        pydist.manual_seed(3)
        masks.append(pydist.nn.functional.dropout(pydist.ones(1000, device=device), 0.4).cpu())
    assert masks[0].tolist() == masks[1].tolist()


@pytest.mark.parametrize("shape", [(3, 70000), (70000, 3), (1, 300000), (5, 17, 999), (257, 1025), (0, 4), (4, 0)])
def test_long_sums(shape):
    x = pydist.randn(*shape)
    for dim in [None, *range(len(shape))]:
        got, want = (pydist.sum(v, dim=dim).cpu() for v in (x.cuda(), x.double()))
        assert ((got.double() - want).abs() <= 1e-5 * x.numel() ** 0.5).all().item(), (shape, dim)
        again = pydist.sum(x.cuda(), dim=dim).cpu()
        assert again.tolist() == got.tolist()


def test_none_is_missing_unnoticed():
    """What has a kernel on the CPU and none here, by the register."""
    register = Path(__file__).resolve().parents[2] / "csrc/kernels/kernels.def"
    rows = re.findall(r"^PD_KERNEL\((\w+), \w+, (\w+),", register.read_text(), re.MULTILINE)
    assert len(rows) > 60
    only_cpu = {name for devices, name in rows if devices == "cpu"}
    experts = {"route", "dispatch_rows", "combine_rows", "row_products"}
    vocabularies = {"vocab_rows", "vocab_loss", "vocab_grad"}
    norms = {"group_norm", "group_norm_grad", "group_norm_scratch", "exact_squares"}  # or an ordered sum
    assert only_cpu == experts | vocabularies | norms
