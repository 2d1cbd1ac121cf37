"""Kernels at sizes that the op samples do not have: rows of several tiles, repeated places, heads on tensor cores."""

import ctypes
import os
from types import SimpleNamespace

import numpy as np
import pytest

import pydist
from pydist.nn import functional as F

if not pydist.cuda.is_available() or pydist._C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)


def both(f, *tensors):
    """f of the tensors on the CPU and on the GPU, as lists."""
    results = []
    for device in ("cpu", "cuda"):
        made = f(*(t.to(device) for t in tensors))
        results.append([r.detach().cpu() for r in (made if isinstance(made, (tuple, list)) else [made])])
    return results


def near(f, *tensors, by=1e-5):
    want, got = both(f, *tensors)
    for w, g in zip(want, got, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        assert ((g.double() - w.double()).abs() <= by).all().item()


def same(f, *tensors):
    want, got = both(f, *tensors)
    for w, g in zip(want, got, strict=True):
        assert g.dtype == w.dtype and g.tolist() == w.tolist()


@pytest.mark.parametrize("n", [2, 33, 513, 1500])
def test_rows_in_order(n):
    x = (pydist.randn(3, n) * 10).round()  # many equals
    x[1, n // 2] = float("nan")
    for descending in (False, True):
        same(lambda v: v.argsort(dim=1, descending=descending), x)
        same(lambda v: v.topk(n // 2, largest=descending)[1], x)
        same(lambda v: v.sort(dim=1, descending=descending)[1], x.to(pydist.int16))
    same(lambda v: (v.argmax(dim=1), v.argmin(dim=1), v[0].max(dim=0)[1]), x)
    same(lambda v: v.cumsum(1), x[2:].to(pydist.int32))
    near(lambda v: v.cumsum(1), pydist.randn(3, n).double(), by=1e-10)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(1, 65, 1024), (2, 700, 40), (3, 129, 7), (1, 3000, 264), (5, 64, 9), (2, 9000, 1)])
def test_folds_of_columns_and_rows(shape, dtype):
    """In vectors and one by one where memory is not aligned; of one part and of several, in the same order every time."""
    values = np.random.default_rng(3).integers(0, 100, shape) / (1 if "int" in dtype else 128)
    x = pydist.tensor(values).to(getattr(pydist, dtype))
    apart = pydist.cat([x[:1, :1, :1].reshape(1), x.reshape(-1)]).cuda()[1:].view(shape)
    exact = x.double().numpy()
    by = 1e-2 if dtype == "bfloat16" else 1e-5
    for there in (x.cuda(), apart):
        total = there.sum(1)
        np.testing.assert_allclose(total.cpu().double().numpy(), exact.sum(1), rtol=by)
        assert total.tolist() == there.sum(1).tolist()
        assert there.amax(1).cpu().double().tolist() == exact.max(1).tolist()
        assert there.amin(1).cpu().double().tolist() == exact.min(1).tolist()
        assert (there > 99 / 128).any(1).tolist() == (exact > 99 / 128).any(1).tolist()
        if "float" in dtype:
            np.testing.assert_allclose(there.mean(1).cpu().double().numpy(), exact.mean(1), rtol=by)
            np.testing.assert_allclose(pydist.linalg.vector_norm(there).item(), np.linalg.norm(exact), rtol=by)


@pytest.fixture
def backwards():
    """A function that sets whether the emulator runs blocks from the last to the first."""
    if pydist.cuda.get_device_name() != "emulated":
        pytest.skip("only the emulator runs blocks in an order that can be chosen")
    turn = ctypes.CDLL(os.environ["PYDIST_CUDA_LIBRARY"]).pd_emulated_backwards
    yield turn
    turn(False)


def test_whichever_block_ends_last_sums_have_the_same_bits(backwards):
    x, logp, target = pydist.randn(200, 40).cuda(), pydist.randn(2100, 2).cuda(), pydist.arange(2100).cuda() % 2
    w, b = (pydist.randn(40).cuda().requires_grad_() for _ in range(2))

    def sums():
        y = F.layer_norm(x, (40,), w, b)
        found = (*pydist.grad((y * x).sum(), (w, b)), x.sum(), x.sum(0), x[:, :33].amax(0), F.nll_loss(logp, target))
        return [t.tolist() for t in found]

    first = sums()
    for turn in (True, False, True):
        backwards(turn)
        assert sums() == first


def test_sums_on_more_streams_than_have_counters(backwards):
    x = pydist.randn(300, 40).cuda()
    want = x.sum(0).tolist()
    for turn, stream in enumerate([pydist.cuda.Stream() for _ in range(40)]):
        backwards(turn % 2)
        with stream:
            assert x.sum(0).tolist() == want


def test_the_gradient_of_a_bias_is_summed_in_float32():
    """Autocast's gradient of 16 bits is summed once, and not rounded to 16 bits again."""
    layer, x = pydist.nn.Linear(24, 40).cuda(), pydist.randn(3, 100, 24).cuda()
    g = pydist.randn(3, 100, 40).to("cuda", pydist.bfloat16)
    with pydist.autocast("cuda", dtype=pydist.bfloat16):
        y = layer(x)
    y.backward(g)
    exact = g.cpu().double().numpy().sum((0, 1))
    assert layer.bias.grad.dtype == pydist.float32
    np.testing.assert_allclose(layer.bias.grad.cpu().numpy(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_squares_and_cubes_are_products(dtype):
    """On the CPU, too: powers by logarithms have other last digits."""
    x = pydist.randn(20000).to(getattr(pydist, dtype))

    def powers(u, two, three):
        u = u.detach().requires_grad_()
        (u**2 + u**3).sum().backward()
        return u**2, u**3, u**two, u[::3] ** three, u.grad

    same(powers, x, pydist.tensor(2.0), pydist.tensor(3.0))


@pytest.mark.parametrize("other", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats_of_different_sizes_and_numbers(dtype, other):
    """In vectors, one by one where memory is not aligned, and by strides; with numbers, which are float32."""
    x, y = pydist.randn(1037).to(getattr(pydist, dtype)), pydist.randn(1037).abs().add(0.1).to(getattr(pydist, other))
    for a, b in ((x, y), (x[1:], y[1:]), (x[3:], y[:-3]), (x[::3], y[:346]), (x[:1], y), (x[1:].view(28, 37), y[:37])):
        same(lambda u, v: (u + v, v - u, u * v, u / v, pydist.maximum(u, v)), a, b)
        same(lambda u, v: (u * 0.73456, 1e-8 * u, 0.3 - v, v / 3e4, u**2, u == 0.73456), a, b)
    same(lambda u, v: (u * v[0], v[1] + u, u.clone().add_(v), pydist.lerp(u, u, 0.3)), x, y)

    def gradients(u, v):
        u, v = u.detach().requires_grad_(), v.detach().requires_grad_()
        (u * v + v / u.abs().add(1)).sum().backward()
        return u.grad, v.grad

    same(gradients, x, y)


def shifted(t):
    """t in memory that does not begin at a multiple of 16 bytes."""
    room = pydist.zeros(t.numel() + 1, dtype=t.dtype, device=t.device)
    room[1:] = t.flatten()
    return room[1:].reshape(t.shape)


@pytest.mark.parametrize("stream", [pydist.float32, pydist.float16, pydist.float64, pydist.bfloat16], ids=str)
@pytest.mark.parametrize(
    "rows, n, shift",
    [
        (37, 24, 0),
        (9, 24, 1),
        (300, 10, 0),
        (21, 127, 0),
        (9, 129, 0),
        (19, 768, 0),
        (3, 1024, 0),
        (11, 2056, 0),
        (5, 9000, 0),
        (3, 9001, 0),
    ],  # fmt: skip
)
def test_norms_of_sums(rows, n, shift, stream):
    """Rows by warps and by blocks, in vectors and not, kept in registers and not; the branch has 16 bits."""
    low = stream if stream in (pydist.float64, pydist.float16) else pydist.bfloat16

    def work(x, y, w, b, gs, gn):
        x, y = (shifted(t) if shift else t for t in (x.to(stream), y.to(low)))
        x, y, w, b = (t.detach().requires_grad_() for t in (x, y, w.to(stream), b.to(stream)))
        results = []
        for norm in (lambda x, y, w, b: F.add_layer_norm(x, y, n, w, b), lambda x, y, w, b: F.add_rms_norm(x, y, n, w)):
            s, t = norm(x, y, w, b)
            used = (x, y, w) if results else (x, y, w, b)
            results += [s, t, *pydist.autograd.grad((s, t), used, (gs.to(stream), gn.to(stream)))]
        y = (x + F.layer_norm(x, (n,), w, b).sin()) * gs.to(stream)  # the norm adds to the stream's gradient
        return [*results, *pydist.autograd.grad(y, (x, w, b), gn.to(stream))]

    tensors = [pydist.randn(*shape).double() for shape in ((rows, n), (rows, n), (n,), (n,), (rows, n), (rows, n))]
    want, got = both(work, *tensors)
    rough = {pydist.bfloat16: 2**-6, pydist.float16: 2**-9, pydist.float32: 2e-5}.get(stream, 1e-11)
    for a, b in zip(want, got, strict=True):
        near = 2**-7 if a.dtype is pydist.bfloat16 else rough
        assert a.dtype == b.dtype and ((a.double() - b.double()).abs() <= near * (1 + a.double().abs())).all().item()


@pytest.mark.parametrize("rows, n", [(1, 1), (1000, 10), (9, 32), (17, 33), (3, 1024), (2, 1025), (8, 3000), (0, 5)])
def test_softmax_of_rows(rows, n):
    """Rows by warps and by blocks."""
    nears = {pydist.float64: 1e-12, pydist.float32: 1e-5, pydist.bfloat16: 2**-7}

    def work(x, g):
        results = []
        for dtype in nears:
            for softmax in (F.softmax, F.log_softmax):
                leaf = x.to(dtype).requires_grad_()
                y = softmax(leaf, -1)
                results += [y, *pydist.grad(y, leaf, g.to(dtype))]
        return results

    x = pydist.randn(rows, n).double() * 3
    x[:, 1:2] = float("-inf")
    for a, b in zip(*both(work, x, pydist.randn(rows, n).double()), strict=True):
        wide = a.double()
        assert a.dtype == b.dtype
        assert ((a == b) | ((wide - b.double()).abs() <= nears[a.dtype] * (1 + wide.abs()))).all().item()


KINDS = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [getattr(pydist, name) for name in KINDS], ids=KINDS)
def test_topk_chooses(dtype, largest):
    """Values and places, equals in the order of their places; rows of several lengths are chosen from, or sorted."""
    random, top = np.random.default_rng(0), {1: 127, 2: 9999}.get(dtype.itemsize, 10**9)
    for rows, n, ks in ((5, 513, (0, 1, 256, 257, 513)), (2, 3000, (1, 40, 1499)), (1, 40000, (1, 7, 2048, 2049))):
        x = pydist.tensor(random.uniform(0 if dtype is pydist.uint8 else -top, top, (rows, n))).to(dtype)
        x[:, 100:400] = x[:, 7:8]  # equals, many of them, and at the ends
        x[:, 5] = x.amax(1)
        x[:, 401:404] = x.amin(1, keepdim=True)
        if dtype.is_floating_point:
            x[:, 10:20] = pydist.tensor([0.0, -0.0] * 5)
            x[0, 30], x[0, 40], x[0, 450:452], x[0, 60] = -float("inf"), float("inf"), float("nan"), -float("nan")
        for k in ks:
            same(lambda v: v.topk(k, largest=largest)[1], x)
            (value, at), given = x.cuda().topk(k, largest=largest, sorted=False), x.cuda()
            assert pydist.equal(value.nan_to_num(7.0), given.gather(1, at).nan_to_num(7.0))


@pytest.mark.parametrize("kind", ["equal", "two values", "rising", "falling", "nan"])
def test_topk_of_rows_that_do_not_differ(kind):
    n = 50000
    x = {
        "equal": pydist.zeros(2, n), "two values": (pydist.arange(2 * n) % 3 == 0).float().reshape(2, n), "nan": pydist.full((2, n), float("nan")),
        "rising": pydist.arange(2.0 * n).reshape(2, n), "falling": -pydist.arange(2.0 * n).reshape(2, n),
    }[kind]  # fmt: skip
    for largest in (False, True):
        same(lambda v: v.topk(100, largest=largest)[1], x)
        same(lambda v: v.topk(100, largest=largest)[1], x.double())
    same(lambda v: v.t().topk(3, dim=0)[1], x)
    same(lambda v: v.bool().topk(20000)[1], x)


def test_topk_of_a_long_row():
    x = pydist.tensor(np.random.default_rng(0).standard_normal(1_500_000, dtype=np.float32))
    same(lambda v: v.topk(50)[1], x)
    same(lambda v: v.topk(2500, largest=False)[1], x)


def test_permutations_are_the_cpus():
    for n in [*range(12), 511, 513, 1000, 100_000]:
        for seed in range(8 if n < 12 else 2):
            drawn = []
            for device in ("cpu", "cuda"):
                pydist.manual_seed(seed)
                # the stream goes on alike, too
                drawn.append([pydist.randperm(n, device=device).tolist(), pydist.rand(1).item()])
            assert drawn[0] == drawn[1] and sorted(drawn[0][0]) == list(range(n))
    found = [pydist.randperm(1000, device=d, generator=pydist.Generator().manual_seed(3)) for d in ("cpu", "cuda")]
    assert found[1].is_cuda and found[0].tolist() == found[1].tolist() != list(range(1000))
    with pytest.raises(RuntimeError, match="out of memory"):
        pydist.randperm(2**40, device="cuda")
    assert pydist.randperm(3, device="cuda").sum().item() == 3  # and all goes on


def test_what_goes_to_one_place():
    index = pydist.tensor(np.random.default_rng(0).integers(0, 7, 1300))
    x, rows = pydist.zeros(7, 5), pydist.randn(1300, 5)

    def put(x, rows, index, accumulate):
        return x.clone().index_put((index,), rows, accumulate)

    same(lambda *a: put(*a, False), x, rows, index)  # the last one stays
    near(lambda *a: put(*a, True), x, rows, index, by=1e-3)
    same(lambda *a: put(*a, True), x.to(pydist.int32), (rows * 9).to(pydist.int32), index)
    on_gpu = [t.cuda() for t in (x, rows, index)]
    assert put(*on_gpu, True).tolist() == put(*on_gpu, True).tolist()


def test_padding_gets_no_gradient():
    def run(weight, index):
        weight = weight.detach().requires_grad_()
        F.embedding(index, weight, padding_idx=2).square().sum().backward()
        return weight.grad

    near(run, pydist.randn(5, 33), pydist.tensor([[2, 0, 2], [4, 0, 1]]))


def test_bad_indices_are_named():
    x, far = pydist.randn(3, 4, device="cuda"), pydist.tensor([1, 9], device="cuda")
    for call, text in (
        (lambda: x[far].sum().item(), "index: index 9 is out of range for dimension 0 of size 3"),
        (lambda: x[:, far].sum().item(), "index: index 9 is out of range for dimension 1 of size 4"),
        (lambda: F.embedding(far, x).sum().item(), "embedding: index 9 is out of range .expected 0 to 2"),
        (lambda: x.gather(0, far[None] - 2).sum().item(), "gather: index -1 is out of range"),
    ):
        with pytest.raises(IndexError, match=text):
            call()
        assert x[far - far].shape == (2, 4)  # and all goes on
    with pytest.raises(IndexError, match="index 0 is out of range for dimension 0 of size 0"):
        x[:0][far - far].cpu()


@pytest.mark.parametrize("format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("shape, low", [((5, 3, 17, 17), False), ((3, 40, 9, 8), False), ((3, 40, 9, 8), True)])
def test_batch_norm_over_many(shape, low, format):
    """`low`: the input alone has 16 bits."""
    x, w, b = pydist.randn(*shape) * 2 + (1 if low else 100), pydist.randn(shape[1]), pydist.randn(shape[1])
    mean, var = pydist.zeros(shape[1]), pydist.ones(shape[1])
    x = x.to(pydist.bfloat16 if low else pydist.float32).to(memory_format=getattr(pydist, format))

    def run(x, w, b, mean, var):
        x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
        mean, var = mean.clone(), var.clone()
        y = F.batch_norm(x, mean, var, w, b, training=True)
        (y * y.detach().sin()).sum().backward()
        return y, mean, var, x.grad, w.grad, b.grad, F.batch_norm(x, mean, var, w, b)

    near(run, x, w, b, mean, var, by=5e-2 if low else 5e-3)


ATTENTION = {
    "plain": (1, 2, 2, 70, 70, {}),
    "causal": (1, 1, 1, 130, 130, {"is_causal": True}),
    "groups": (2, 4, 2, 20, 66, {"enable_gqa": True}),
    "longer": (1, 2, 1, 9, 5, {"is_causal": True, "enable_gqa": True}),
}


@pytest.mark.parametrize("width", [64, 128, 8, 32, 80, 96, 256, 136, 200, 36])  # 36 is not for tensor cores
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name, width):
    B, H, Hkv, T, S, options = ATTENTION[name]
    dtype = pydist.bfloat16 if name != "plain" else pydist.float16
    q, k, v, g = (pydist.randn(*s, width).to(dtype) for s in ((B, H, T), (B, Hkv, S), (B, Hkv, S), (B, H, T)))

    def run(q, k, v, g, mask=None):
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, mask, **options)
        y.backward(g)
        return y, q.grad, k.grad, v.grad

    want = run(*(t.double() for t in (q, k, v, g)))
    for w, r in zip(want, run(*(t.cuda() for t in (q, k, v, g))), strict=True):
        assert r.dtype == dtype
        assert (r.cpu().double() - w).abs().max().item() <= 0.02 * w.abs().max().item()
    if options:
        return
    masks = pydist.rand(B, 1, T, S) < 0.3, pydist.randn(T, S)
    masks[0][0, 0, 3] = False  # a query that may see nothing
    for mask in masks:
        wide, narrow = (mask, mask) if mask.dtype == pydist.bool else (mask.to(dtype).double(), mask.to(dtype))
        want = run(*(t.double() for t in (q, k, v, g)), wide)
        for w, r in zip(want, run(*(t.cuda() for t in (q, k, v, g)), narrow.cuda()), strict=True):
            assert (r.cpu().double() - w).abs().max().item() <= 0.02 * w.abs().max().item()


@pytest.mark.parametrize("dtype", [pydist.bfloat16, pydist.float32], ids=str)
@pytest.mark.parametrize("width", [64, 4])  # the rows of 4 begin at odd multiples of 8 bytes
def test_attention_of_slices(width, dtype):
    """Attention writes its gradients into one of q, k and v together, with 4 columns that nobody uses."""
    x, g = pydist.randn(2, 70, 8 * width + 4).to(dtype), pydist.randn(2, 4, 70, width).to(dtype)

    def run(x, g):
        x = x.detach().requires_grad_()
        q, k, v = (
            t.view(2, 70, -1, width).transpose(1, 2) for t in (x * 1).split([4 * width, 2 * width, 2 * width, 4], 2)[:3]
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y.backward(g)
        return y, x.grad

    for w, r in zip(run(x.double(), g.double()), run(x.cuda(), g.cuda()), strict=True):
        assert (r.cpu().double() - w).abs().max().item() <= (
            0.02 if dtype == pydist.bfloat16 else 1e-4
        ) * w.abs().max().item()
    assert not r[..., 8 * width :].any()


@pytest.mark.parametrize("how", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("count", [64, 65, 128, 1000])
def test_many_blocks_for_one_place(count, how):
    """Places that begin and end anywhere within the stretches that the kernel folds by themselves."""
    for shares in (
        (count,),
        (1, count - 1),
        (count - 1, 1),
        (63, 1, count - 64),
        (3, count // 2, count - 3 - count // 2),
    ):
        index = pydist.cat([pydist.full((n,), 2 * i, dtype=pydist.int64) for i, n in enumerate(shares)])
        index = index[pydist.randperm(count)]
        source, begin = pydist.randint(-3, 4, (count, 3)), pydist.randint(-3, 4, (2 * len(shares), 3))
        for dtype in (pydist.int64, pydist.float32, pydist.complex64)[: 2 if how.startswith("a") else 3]:
            x = (source if how != "prod" else source.sign() + (source == 0)).to(dtype)

            def reduced(begin, index, x):
                if dtype.is_complex:
                    return begin.index_add(0, index, x) if how == "sum" else begin
                return begin.scatter_reduce(0, index[:, None].expand(-1, 3), x, how)

            same(reduced, begin.to(dtype), index, x)


@pytest.mark.parametrize("dtype", [pydist.float64, pydist.float32, pydist.float16, pydist.bfloat16], ids=str)
@pytest.mark.parametrize("rows, classes, skip", [(3, 1, 0), (7, 5, 1), (5, 1031, 3), (2, 9000, 0), (4500, 6, 1)])
def test_cross_entropy_of_rows(rows, classes, skip, dtype):
    """Rows that begin anywhere within 16 bytes; so many rows that their losses are added in parts."""
    data = (4 * pydist.randn(rows * classes + skip)).to(dtype)
    labels = pydist.randint(0, classes, (rows,))
    labels[rows // 2] = -100
    for reduction in ("none", "mean"):
        found = []
        for device in ("cpu", "cuda"):
            x = data.clone().to(device).requires_grad_()
            with pydist.autocast(device, dtype=pydist.bfloat16):
                loss = F.cross_entropy(x[skip:].view(rows, classes), labels.to(device), reduction=reduction)
            loss.sum().backward()
            found.append((loss.detach().cpu().double(), x.grad.cpu().double()))
        for got, want in zip(*found):
            eps = (
                1e-12 if dtype is pydist.float64 else 2e-6 if got is found[0][0] else max(2e-6, pydist.finfo(dtype).eps)
            )
            assert ((got - want).abs() <= eps * max(1.0, want.abs().max().item())).all().item()


def test_cross_entropy_of_infinite_logits():
    inf = float("inf")
    rows = [[0.0, -inf, 1.0], [-inf, -inf, -inf], [inf, 0.0, 1.0], [float("nan"), 0.0, 1.0], [-inf, -inf, 2.0]]
    labels = pydist.tensor([2, 0, 1, 1, 2])
    want = F.cross_entropy(pydist.tensor(rows), labels, reduction="none")
    got = F.cross_entropy(pydist.tensor(rows).cuda(), labels.cuda(), reduction="none").cpu()
    assert (got.isnan() == want.isnan()).all().item() and got[0].isfinite().item() and got[4].item() == 0
    assert (got[0] - want[0]).abs().item() < 1e-6


@pytest.mark.parametrize("row", [0, 2000, 9999])
def test_a_bad_label_anywhere_is_found(row):
    labels = pydist.zeros(10000, dtype=pydist.int64)
    labels[row] = 3
    with pytest.raises(IndexError, match=f"target 3 at row {row} is out of range"):
        F.cross_entropy(pydist.zeros(10000, 3, device="cuda"), labels.cuda()).item()
    pydist.cuda.synchronize()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("chunk", [0, 5])
def test_linear_cross_entropy(chunk, dtype):
    x, w, b = pydist.randn(33, 8), pydist.randn(11, 8), pydist.randn(11)
    y = pydist.tensor(np.random.default_rng(1).integers(0, 11, 33))
    y[3] = -100

    def run(x, w, b, y):
        x, w, b = (t.to(getattr(pydist, dtype)).detach().requires_grad_() for t in (x, w, b))
        options = SimpleNamespace(batch_chunk_size=chunk)
        loss = F.linear_cross_entropy(x, w, y, linear_bias=b, label_smoothing=0.1, options=options)
        (loss * 3).backward()
        return loss, x.grad, w.grad, b.grad

    near(run, x, w, b, y, by=2e-5 if dtype == "float32" else 0.1)


@pytest.mark.parametrize(
    "dtype", [pydist.float32, pydist.float64, pydist.float16, pydist.bfloat16, pydist.complex64], ids=str
)
def test_made_where_they_are_asked_for_as_on_the_cpu(dtype):
    for n in (1, 7, 5000):
        for make in (pydist.rand, pydist.randn):
            near_bits = 1e-6 if dtype is pydist.float32 else 0.01 if dtype.itemsize == 2 else 1e-6
            pydist.manual_seed(n)
            want = make(n, dtype=dtype)
            pydist.manual_seed(n)
            assert (make(n, dtype=dtype, device="cuda").cpu() - want).abs().max().item() <= near_bits
    assert pydist.arange(3, 50, 7, device="cuda").tolist() == list(range(3, 50, 7))


@pytest.mark.parametrize("bounds", [(0, 9), (-5, 300), (-(2**63), 2**63 - 1), (0, 2**40 + 3)])
def test_whole_numbers_are_the_cpus(bounds):
    for dtype in (pydist.int64, pydist.int16, pydist.float32) if bounds[1] < 2**32 else (pydist.int64,):
        pydist.manual_seed(5)
        want = pydist.randint(*bounds, (1001,), dtype=dtype)
        pydist.manual_seed(5)
        assert pydist.randint(*bounds, (1001,), dtype=dtype, device="cuda").tolist() == want.tolist()
