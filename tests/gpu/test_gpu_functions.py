"""Functions that are written in Python over the engine's ops, on CUDA: the CPU's results and gradients, on the device."""

import threading

import numpy as np
import pytest

import pydist
from pydist import _C

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

# x, y [4, 5], s [3, 3] positive definite, v [6] in (0, 1) and c [3, 4] complex have gradients; i [6] in 0..3, b [4, 5]
# bool; m is b on the CPU, d the device.
CALLS = """
x.tril()
x.triu(1)
b.triu(-1)
p.tril_indices(3, 4, device=d)
p.triu_indices(3, 4, 1, device=d)
p.full((3, 3), float('-inf'), device=d).triu(1)
p.nn.Transformer.generate_square_subsequent_mask(4, device=d)
x.diag_embed(1)
v.diagflat(-1)
v.diag()
s.diag()
s.clone().fill_diagonal_(0.5)
p.block_diag(s, x)
p.vander(v, 3)
s.matrix_power(0) + s.matrix_power(-2)
x.rot90()
x.select_scatter(y[0], 0, 1)
x.slice_scatter(y[:2], 0, 1, 3)
s.diagonal_scatter(v[:3])
p.cartesian_prod(v[:2], v[3:5])
p.combinations(v, 2)
p.empty(0, device=d).set_(x.detach(), 0, (2, 3)).clone()
x.detach().clone().resize_(2, 3)
i.unique(return_inverse=True, return_counts=True)
i.reshape(3, 2).unique(dim=0, return_inverse=True, return_counts=True)
x.round().unique()
i.unique_consecutive(return_inverse=True, return_counts=True)
i.bincount()
i.bincount(v, 9)
x.repeat_interleave(2, 1)
x.repeat_interleave(p.tensor([1, 0, 2, 1], device=d), 0)
x.repeat_interleave(p.tensor([1, 0, 2, 1]), 0)
p.repeat_interleave(i)
x.scatter(0, i[:5].reshape(1, 5), 2.5)
x.scatter(1, i.reshape(2, 3), y)
x.scatter(1, i.reshape(2, 3), y, reduce='add')
x.scatter_add(1, i.reshape(2, 3), y)
x.index_add(0, i, y[i], alpha=2)
x.index_copy(0, p.tensor([2, 0], device=d), y[:2])
x.index_fill(1, i, 0.5)
x.index_fill(1, i, v[0].detach())
x.index_reduce(0, i[:4], y, 'amax')
x.take_along_dim(x.argsort(1), 1)
x.take(i)
x.put(i[:2], v[:2])
x.masked_fill(b, 2.0)
x.masked_fill(b, v[0])
x.masked_scatter(b, y)
x.masked_select(b)
b.nonzero()
b.nonzero(as_tuple=True)
x.round().count_nonzero(0)
x.median()
x.median(1)
x.nanmedian()
x.nanmedian(0)
x.quantile(0.3)
x.quantile(p.tensor([0.1, 0.7], device=d).double(), 1, interpolation='midpoint')
x.masked_fill(b, float('nan')).nanquantile(0.6, 0)
x.masked_fill(b, float('nan')).nansum(0)
x.masked_fill(b, float('nan')).nanmean(1)
x.kthvalue(2, 1)
x.mode(1)
i.mode()
x.msort()
x.cummax(1)
x.cummin(0)
x.cumprod(1)
x.logcumsumexp(1)
p.diff(x, 2)
p.trapezoid(x, dx=0.5)
p.cumulative_trapezoid(x, y.detach().cumsum(1))
x.cov()
x.corrcoef()
x.renorm(2, 0, 0.5)
x.dist(y, 3)
p.cdist(x, y)
p.searchsorted(v.detach().sort().values, x.detach())
p.searchsorted(v.detach().sort().values, 0.4)
p.bucketize(x.detach(), v.detach().sort().values, right=True)
p.isin(i, p.tensor([1, 3], device=d))
p.isin(i, 2)
p.isin(i, i[:0])
x.histc(5)
x.detach().histogram(5)
x.detach().histogram(p.tensor([-2.0, 0.0, 0.5, 3.0], device=d).double(), density=True)
x.isclose(y) | x.isinf() | ~x.isfinite() | i[:5].isfinite() | i[:5].isinf() | x.isreal()
x.copysign(y)
p.copysign(y, -1.0)
x.hypot(y)
x.nextafter(y)
v.xlogy(v)
p.xlogy(v, 2.0)
x.heaviside(y)
x.float_power(2)
x.logaddexp2(y)
v.logit()
x.sinc()
x.frexp()
i.gcd(i.flip(0))
i.lcm(i.flip(0))
p.cosine_similarity(x, y)
v.lgamma()
v.digamma()
v.polygamma(1)
(v + 2).mvlgamma(3)
x.erfc()
v.erfinv()
x.i0()
p.special.ndtr(x)
p.special.log_ndtr(x)
p.special.ndtri(v)
p.special.erfcx(x)
p.special.zeta(v + 1.5, 2.0)
p.special.entr(v)
p.special.xlog1py(x, v[:5])
s.cholesky()
s.inverse()
s.det()
s.logdet()
s.slogdet()
s.pinverse()
s.qr()
s.svd()[1]
p.svd(x.detach(), compute_uv=False)
s.matrix_exp()
x[:3].cholesky_solve(s.cholesky())
p.cholesky_inverse(s.cholesky())
p.linalg.cholesky_ex(s)
p.linalg.cholesky_ex(-s.detach())
p.linalg.inv_ex(s)
p.linalg.solve(s, x[:3])
p.linalg.solve(s, v[:3])
p.linalg.solve_triangular(s, x[:3], upper=True, unitriangular=True)
p.linalg.qr(x.detach(), 'r')[1]
p.linalg.qr(x.detach(), 'complete')
p.linalg.eigh(s)[0]
p.linalg.eigvalsh(s)
p.linalg.eig(s.detach())[0].abs().sort()[0]
p.linalg.svdvals(x)
p.linalg.svd(x)[1]
p.linalg.cond(s)
p.linalg.cond(s, 1)
p.linalg.matrix_rank(x)
p.linalg.matrix_norm(x, 'nuc')
p.linalg.pinv(x)
p.linalg.lstsq(x[:, :2], y)[0]
p.linalg.multi_dot([x.T, y, s[0].new_ones(5)])
p.fft.fft(x)
p.fft.rfft(x, 6)
p.fft.irfft(p.fft.rfft(x))
p.fft.fft2(c).abs()
p.fft.fftshift(p.fft.fftfreq(5, device=d))
p.fft.rfftfreq(5, 0.5, device=d)
p.hann_window(5, device=d)
p.hann_window(1, device=d)
p.linspace(0, 1, 7, device=d)
p.logspace(0, 1, 7, device=d)
p.eye(3, device=d)
p.func.jacrev(lambda t: t.cumprod(0))(v.detach())
p.autograd.functional.jacobian(lambda t: t * t, v.detach())
F.one_hot(i)
F.embedding_bag(i.reshape(3, 2), x, mode='mean')
F.embedding_bag(i, x, p.tensor([0, 2, 2], device=d), mode='max', padding_idx=1)
F.embedding_bag(i, x, p.tensor([0, 4], device=d), mode='sum', per_sample_weights=v)
F.embedding(i, x, scale_grad_by_freq=True)
F.embedding(i, x.detach().clone(), max_norm=1.0)
F.ctc_loss(p.stack([x, y, x + y]).log_softmax(2), i[:4].reshape(4, 1) + 1, (3, 3, 2, 1), (1, 0, 1, 1))
F.pdist(x)
F.multi_margin_loss(x, i[:4])
F.multilabel_margin_loss(x, p.tensor([[3, 0, -1, 1, 2]] * 4, device=d))
F.gaussian_nll_loss(x, y, 0.5)
F.cosine_embedding_loss(x, y, i[:4].clamp(0, 1) * 2 - 1)
F.triplet_margin_loss(x, y, y.flip(0))
F.poisson_nll_loss(x, y.exp(), full=True)
F.cross_entropy(x, i[:4], weight=v[:5], label_smoothing=0.1)
F.max_unpool1d(*F.max_pool1d(x.unsqueeze(0), 2, return_indices=True), 2)
F.lp_pool1d(x.abs().unsqueeze(0), 3.0, 2)
F.fractional_max_pool2d(x.unsqueeze(0), 2, (2, 3), _random_samples=v[:2].detach().reshape(1, 1, 2))
F.adaptive_max_pool3d(x.reshape(1, 2, 2, 5), 2)
F.pad(x.unsqueeze(0), (1, 2), 'reflect')
F.unfold(x.reshape(1, 1, 4, 5), 2)
F.fold(x.reshape(1, 4, 5), (2, 6), 2)
F.interpolate(x.reshape(1, 1, 4, 5), scale_factor=1.5, mode='bicubic')
F.grid_sample(x.reshape(1, 1, 4, 5), F.affine_grid(v.reshape(1, 2, 3), (1, 1, 3, 3), False), 'bicubic', 'reflection', False)
F.affine_grid(x[:3, :4].reshape(1, 3, 4), (1, 1, 2, 3, 1), True)
F.local_response_norm(x.unsqueeze(0), 2)
F.scaled_dot_product_attention(x, y, y, b[:, :4] | p.eye(4, dtype=p.bool, device=d))
F.multi_head_attention_forward(*[x[:, :4].unsqueeze(1)] * 3, 4, 2, x.new_ones(12, 4) / 4, None, None, None, True, 0.0, s.new_ones(4, 4), None, attn_mask=b[:, :4].triu(1))[0]
x[p.tensor([2, 0, 2])]
x[:, p.tensor([4, 1])]
x[[0, 2], [1, 3]]
x[p.tensor([True, False, True, True])]
x[m]
x[i[:4], p.tensor([0, 1, 2, 3])]
put(x, p.tensor([2, 0]), y[:2])
put(x, m, 0.5)
put(x, m, v[0].detach().cpu())
put(x, (slice(None), [1, 2]), [0.5, 1.5])
x.index_put((p.tensor([2, 0]),), y[:2], True)
x * v[0].detach().cpu() + p.tensor(2.0)
p.where(b, p.tensor(1.0), x)
x.clamp(p.tensor(-0.5), p.tensor(0.5))
x.lerp(y, p.tensor(0.3, dtype=p.float64))
x.addcmul(y, p.tensor(0.3, dtype=p.float64))
v ** p.tensor(2.0) + (x > p.tensor(0.1)).sum()
p.sparse_coo_tensor(i.reshape(2, 3), v[:3].detach(), (4, 4)).to_dense()
p.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3), device=d).coalesce().to_dense()
p.sparse.mm(p.sparse_coo_tensor(i.reshape(2, 3), v[:3], (4, 4)), x)
p.nn.utils.rnn.pad_sequence([x[:2], y, x[:1]], True, 0.5)
p.nn.utils.rnn.pad_packed_sequence(p.nn.utils.rnn.pack_padded_sequence(x, [2, 4, 1, 3, 4], enforce_sorted=False))[0]
""".strip().split("\n")


def put(x, key, value):
    x = x.clone()
    x[key] = value
    return x


def inputs(device):
    rng = np.random.default_rng(3)
    root = rng.normal(size=(3, 3))
    of = {
        "x": rng.normal(size=(4, 5)),
        "y": rng.normal(size=(4, 5)),
        "s": root @ root.T + np.eye(3),
        "v": rng.uniform(0.1, 0.9, 6),
    }
    of["c"] = rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))
    leaves = {name: pydist.tensor(value, device=device).requires_grad_() for name, value in of.items()}
    mask = pydist.tensor(rng.normal(size=(4, 5)) > 0.3)
    return leaves, {"i": pydist.tensor([3, 1, 0, 1, 2, 1], device=device), "b": mask.to(device), "m": mask, "d": device}


def tensors(value):
    if isinstance(value, pydist.Tensor):
        return [value]
    return [t for part in value for t in tensors(part)] if isinstance(value, (tuple, list)) else []


def run(text, device):
    leaves, rest = inputs(device)
    results = tensors(eval(text, {"p": pydist, "F": pydist.nn.functional, "put": put, **leaves, **rest}))
    assert results and all(t.device.type == device for t in results)
    total = sum((t * t.detach().sign()).sum() for t in map(real, results) if t.requires_grad)
    wanted = list(leaves.values())
    grads = pydist.autograd.grad(total, wanted, allow_unused=True) if isinstance(total, pydist.Tensor) else []
    grads = [g for g in grads if g is not None]
    assert all(g.device.type == device for g in grads)
    return [t.detach().cpu().numpy() for t in results + grads]


def real(t):
    return t.abs() if t.is_complex() else t


@pytest.mark.parametrize("text", CALLS)
def test_functions_are_the_cpus(text):
    for got, want in zip(run(text, "cuda"), run(text, "cpu"), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-5 if want.dtype == np.float32 else 1e-8, 1e-6)


@pytest.mark.parametrize("text", [
    "x.cpu()[i]", "put(x.cpu(), i[:2], 0.0)", "put(x, m, x[m].cpu())", "put(x, [0, 1], y[:2].cpu())", "x + y.cpu()",
    "p.where(m, x, y)", "x.gather(1, i.reshape(2, 3).cpu())", "F.embedding(i.cpu(), x)", "p.linalg.solve(s, s.cpu())",
])  # fmt: skip
def test_other_mixes_are_refused(text):
    with pytest.raises(RuntimeError, match="same device"):
        run(text, "cuda")


def test_default_device():
    def made():
        layer, table = pydist.nn.Linear(2, 2), pydist.models.llama.rotations(4, 3)
        return [pydist.zeros(2), pydist.tensor([1, 2]), pydist.as_tensor([1.0]), pydist.asarray([1.0]), pydist.arange(3), pydist.rand(2),
                pydist.randperm(3), pydist.full((), 2.0), pydist.linspace(0, 1, 3), pydist.eye(2), pydist.normal(0.0, 1.0, (2,)), layer.weight, *table]  # fmt: skip

    def elsewhere():
        found.extend(made())

    found, host = [], pydist.ones(2)
    try:
        pydist.set_default_device("cuda")
        assert pydist.get_default_device().type == "cuda" and all(t.is_cuda for t in made())
        stays = [
            pydist.ones_like(host),
            host.new_zeros(2),
            pydist.tensor(host),
            pydist.from_numpy(np.ones(2)),
            *pydist.utils.data.DataLoader([1.0, 2.0], 2),
        ]
        assert not any(t.is_cuda for t in [*stays, host.diag(), host.unique(), host.multinomial(1)])
        with pydist.device("cpu"), pydist.device("cpu"):
            assert not any(t.is_cuda for t in made())
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert found and not any(t.is_cuda for t in found)
        assert all(t.is_cuda for t in made())
    finally:
        pydist.set_default_device(None)
    with pydist.device("cuda:0"):
        assert all(t.is_cuda for t in made())
    assert not any(t.is_cuda for t in made()) and pydist.get_default_device() == pydist.device("cpu")


DRAWS = """
p.rand_like(x), p.randn_like(x, dtype=p.float32), p.randint_like(x, 5), p.randint_like(i, 2, 9)
x.detach().clone().exponential_(2), x.detach().clone().geometric_(0.3), x.detach().clone().cauchy_()
x.detach().clone().log_normal_(), x.detach().clone().bernoulli_(0.4), x.detach().clone().random_(7)
p.bernoulli(v), p.poisson(v * 9), p.normal(x, v[0].detach()), x.detach().clone().bernoulli_(v[:5])
v.multinomial(3), v.multinomial(9, True), x.new(2, 3) * 0, x.new([1, 2])
F.gumbel_softmax(x, hard=True), F.rrelu(x, training=True), F.fractional_max_pool2d(x.unsqueeze(0), 2, 3)
F.alpha_dropout(x, 0.3, True), F.dropout1d(x, 0.5, True), F.feature_alpha_dropout(x, 0.5, True)
""".strip().split("\n")


@pytest.mark.parametrize("text", DRAWS)
def test_draws_are_the_cpus(text):
    found = []
    for device in ("cuda", "cpu"):
        pydist.manual_seed(5)
        found.append(run(text, device))
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)
