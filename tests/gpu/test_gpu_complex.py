"""Complex numbers on CUDA: what the CPU gives."""

import pytest

import pydist
from pydist import _C, autograd

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

ROWS = "neg square exp log sqrt rsqrt reciprocal sin cos tan sinh cosh tanh sigmoid abs angle conj real imag"
CALLS = {
    **{name: (lambda x, y, f=getattr(pydist, name): f(x)) for name in ROWS.split()},
    "arithmetic": lambda x, y: pydist.sub(x + y * x, y, alpha=2) / (x + 3), "numbers": lambda x, y: (2 - 1j) * x + 1 - x / 2j,
    "pow": lambda x, y: x**2 + x**3 + x**0.5 + x**y, "eq": lambda x, y: (x == y) | (x != x.clone()),
    "sum": lambda x, y: x.sum(0) + x.mean(), "cumsum": lambda x, y: x.cumsum(1), "flip": lambda x, y: x.flip(0, 1),
    "matmul": lambda x, y: x @ y.T + y[:, :1] @ x[:1, :3], "bmm": lambda x, y: pydist.stack([x, y]) @ pydist.stack([y.mT, x.mT]),
    "parts": lambda x, y: pydist.complex(x.real, y.imag) + pydist.polar(x.abs(), y.angle()) + pydist.view_as_complex(pydist.view_as_real(x)),
    "casts": lambda x, y: x.to(pydist.complex128).to(pydist.complex64) + pydist.arange(4, device=x.device).to(x.dtype),
    "real": lambda x, y: x.float() + x.to(pydist.bfloat16).double(), "bool": lambda x, y: (x * (x.real > 0)).bool(),
    "where": lambda x, y: pydist.where(x.real > 0, x, y), "cat": lambda x, y: pydist.cat([x, y.flip(0)], 1),
    "index": lambda x, y: x[pydist.tensor([2, 0, 2], device=x.device), 1:] + x.index_select(0, pydist.tensor([1], device=x.device))[:, 1:],
    "gather": lambda x, y: x.gather(1, pydist.tensor([[3, 0], [1, 1], [2, 2]], device=x.device)),
    "put": lambda x, y: x.clone().index_put_((pydist.tensor([2, 0, 2], device=x.device),), y, accumulate=True),
    "fill": lambda x, y: pydist.full_like(x, 1 - 2j) + pydist.nn.functional.pad(x, (0, 1))[:, 1:],
    "strides": lambda x, y: x.T.contiguous() + y.mT * x[:, 1:2].expand(3, 4).T,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [pydist.complex64, pydist.complex128], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients(name, dtype):
    near = 2e-5 if dtype is pydist.complex64 or name == "casts" else 1e-12
    pydist.manual_seed(1)
    values = [pydist.randn(3, 4, dtype=dtype) * 2 for _ in range(2)]
    results = []
    for device in ("cpu", "cuda"):
        x, y = (v.to(device).requires_grad_() for v in values)
        out = CALLS[name](x, y)
        results.append([out.detach()])
        if out.requires_grad:
            weight = (pydist.arange(out.numel()) % 5 - 2).to(device).reshape(out.shape)
            results[-1] += [g for g in autograd.grad((out * weight).sum().real if out.is_complex() else (out * weight).sum(), (x, y),
                                                     allow_unused=True) if g is not None]  # fmt: skip
    assert len(results[0]) == len(results[1])
    for want, got in zip(*results):
        assert got.is_cuda and got.dtype is want.dtype and got.shape == want.shape
        got, want = (t.cpu().to(pydist.complex128) for t in (got, want))
        assert ((got - want).abs() <= near * (1 + want.abs())).all().item()


def test_at_their_edges():
    inf, nan = float("inf"), float("nan")
    x = pydist.tensor([0j, 1e30 + 1e30j, complex(inf, 1), complex(nan, 0), 1e-30j, -4 + 0j])
    for call in (pydist.abs, pydist.angle, pydist.sqrt, lambda v: v == v, lambda v: v.bool()):
        assert str(call(x.cuda()).cpu().tolist()) == str(call(x).tolist())
