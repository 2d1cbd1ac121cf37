"""complex64 and complex128 next to torch's: values, gradients (the conjugate of Wirtinger's), promotion, views, in-place
writes, what refuses them, and all ways in and out."""

import io
import itertools
import pickle

import numpy as np
import pytest

import pydist
from pydist import _C

torch = pytest.importorskip("torch", reason="needs torch")
LIBS = (pydist, torch)


def made(lib, shape, seed, dtype="complex128", grad=True):
    rng = np.random.default_rng(seed)
    v = rng.normal(size=shape)
    v = v + 1j * rng.normal(size=shape) if dtype.startswith("complex") else v
    return lib.tensor(v).to(getattr(lib, dtype)).requires_grad_(grad)


def arrays(value):
    """NumPy's arrays of results."""
    if isinstance(value, (tuple, list)):
        return [a for v in value for a in arrays(v)]
    return [value.detach().resolve_conj().resolve_neg().numpy()] if hasattr(value, "detach") else [np.asarray(value)]


def agree(ours, theirs, what, tol):
    for a, b in zip(arrays(ours), arrays(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (what, a.dtype, b.dtype, a.shape, b.shape)
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol, err_msg=what)


# Each is called with two complex tensors [2, 3], a complex matrix [3, 3] and a real tensor [2, 3].
CALLS = {
    "add": lambda lib, z, w, m, x: z + w, "add alpha": lambda lib, z, w, m, x: lib.add(z, w, alpha=2), "sub": lambda lib, z, w, m, x: z - w,
    "mul": lambda lib, z, w, m, x: z * w, "div": lambda lib, z, w, m, x: z / w, "real first": lambda lib, z, w, m, x: x * z + x / z - x,
    "numbers": lambda lib, z, w, m, x: (2 * z + 1j) / (1 - 2j) - (3 - z), "number over": lambda lib, z, w, m, x: (1 + 2j) / z,
    "complex times real": lambda lib, z, w, m, x: x * 1j, "broadcast": lambda lib, z, w, m, x: z[:1] * w + z[:, :1] * x,
    "neg": lambda lib, z, w, m, x: -z, "reciprocal": lambda lib, z, w, m, x: z.reciprocal(), "square": lambda lib, z, w, m, x: z.square(),
    "exp": lambda lib, z, w, m, x: z.exp(), "log": lambda lib, z, w, m, x: z.log(), "sqrt": lambda lib, z, w, m, x: z.sqrt(), "rsqrt": lambda lib, z, w, m, x: z.rsqrt(),
    "sin": lambda lib, z, w, m, x: z.sin(), "cos": lambda lib, z, w, m, x: z.cos(), "tan": lambda lib, z, w, m, x: z.tan(), "sinh": lambda lib, z, w, m, x: z.sinh(),
    "cosh": lambda lib, z, w, m, x: z.cosh(), "tanh": lambda lib, z, w, m, x: z.tanh(), "sigmoid": lambda lib, z, w, m, x: z.sigmoid(),
    "pow 2": lambda lib, z, w, m, x: z**2, "pow 3": lambda lib, z, w, m, x: z**3, "pow half": lambda lib, z, w, m, x: z**0.5, "pow -1": lambda lib, z, w, m, x: z**-1,
    "pow complex": lambda lib, z, w, m, x: z**w, "number to a power": lambda lib, z, w, m, x: 2**z, "pow 0": lambda lib, z, w, m, x: z**0, "pow 1j": lambda lib, z, w, m, x: z**1j,
    "abs": lambda lib, z, w, m, x: abs(z), "angle": lambda lib, z, w, m, x: z.angle(), "angle of real": lambda lib, z, w, m, x: lib.angle(x), "sgn": lambda lib, z, w, m, x: z.sgn(),
    "real": lambda lib, z, w, m, x: z.real * x, "imag": lambda lib, z, w, m, x: lib.imag(z), "conj": lambda lib, z, w, m, x: z.conj() * w, "conj of real": lambda lib, z, w, m, x: x.conj() * z,
    "view_as_real": lambda lib, z, w, m, x: lib.view_as_real(z * w), "view_as_complex": lambda lib, z, w, m, x: lib.view_as_complex(lib.stack([x, x * x], -1)) * z,
    "complex": lambda lib, z, w, m, x: lib.complex(x, x[:1] * 2) * z, "polar": lambda lib, z, w, m, x: lib.polar(x.abs(), x) * z,
    "sum": lambda lib, z, w, m, x: z.sum(), "sum dim": lambda lib, z, w, m, x: (z * w).T.sum(1, keepdim=True), "mean": lambda lib, z, w, m, x: z.mean((0, 1)), "mean dim": lambda lib, z, w, m, x: z.mean(0),
    "cumsum": lambda lib, z, w, m, x: z.cumsum(1), "matmul": lambda lib, z, w, m, x: z @ m @ w.T, "bmm": lambda lib, z, w, m, x: lib.bmm(z.expand(2, 2, 3), w.expand(2, 2, 3).transpose(1, 2)),
    "matrix and vector": lambda lib, z, w, m, x: m @ z[0], "vdot": lambda lib, z, w, m, x: lib.vdot(z[0], w[1]), "dot": lambda lib, z, w, m, x: lib.dot(z[0], w[1]), "outer": lambda lib, z, w, m, x: lib.outer(z[0], w[0]),
    "einsum": lambda lib, z, w, m, x: lib.einsum("ij,kj->ik", z, w), "H": lambda lib, z, w, m, x: z.H @ w, "mH": lambda lib, z, w, m, x: m.mH, "trace": lambda lib, z, w, m, x: m.trace(),
    "where": lambda lib, z, w, m, x: lib.where(x > 0, z, w), "where number": lambda lib, z, w, m, x: lib.where(x > 0, z, 1j), "where real": lambda lib, z, w, m, x: lib.where(x > 0, z, x.detach()), "masked_fill": lambda lib, z, w, m, x: z.masked_fill(x > 0, 2j),
    "cat": lambda lib, z, w, m, x: lib.cat([z, w, x.to(z.dtype)], 1), "cat of both": lambda lib, z, w, m, x: lib.cat([z, x]), "stack": lambda lib, z, w, m, x: lib.stack([z, w], 1), "index": lambda lib, z, w, m, x: z[:, [0, 2, 0]] * z[1],
    "index_put": lambda lib, z, w, m, x: z.index_put((lib.tensor([0, 0]),), w, accumulate=True), "gather": lambda lib, z, w, m, x: z.gather(1, lib.tensor([[0, 0], [2, 1]])), "flip": lambda lib, z, w, m, x: z.flip(1),
    "mask": lambda lib, z, w, m, x: z[x > 0], "reshape": lambda lib, z, w, m, x: z.T.reshape(6).view(3, 2).flatten(), "permute": lambda lib, z, w, m, x: z.T * 2, "expand": lambda lib, z, w, m, x: z.unsqueeze(0).expand(4, 2, 3),
    "diagonal": lambda lib, z, w, m, x: lib.diagonal(m), "as_strided": lambda lib, z, w, m, x: m.as_strided((2, 2), (3, 1), 1), "pad": lambda lib, z, w, m, x: lib.nn.functional.pad(z, (1, 0), value=1), "repeat": lambda lib, z, w, m, x: z.repeat(2, 1),
    "to complex": lambda lib, z, w, m, x: x.to(z.dtype) * z, "to real": lambda lib, z, w, m, x: z.real.to(lib.float32), "norm": lambda lib, z, w, m, x: z.norm(), "var": lambda lib, z, w, m, x: z.var(), "roll": lambda lib, z, w, m, x: lib.roll(z, 1, 1),
    "tril": lambda lib, z, w, m, x: m.tril(), "eq": lambda lib, z, w, m, x: [z == z, z == w, z != 1j, z == x, x == z.real], "isclose": lambda lib, z, w, m, x: lib.isclose(z, z + 1e-9), "isnan": lambda lib, z, w, m, x: [lib.isnan(z), lib.isfinite(z), lib.isinf(z), lib.isreal(z)],
    "zeros_like": lambda lib, z, w, m, x: [lib.zeros_like(z), lib.ones_like(z), lib.full_like(z, 1 + 2j), z.new_full((2,), 3j)], "unbind": lambda lib, z, w, m, x: z.unbind(1)[1] * z.split(1, 1)[0][:, 0], "index_select": lambda lib, z, w, m, x: z.index_select(1, lib.tensor([2, 2])), "scatter_add": lambda lib, z, w, m, x: z.scatter_add(1, lib.tensor([[0, 0, 1], [2, 1, 1]]), w),
    "clone": lambda lib, z, w, m, x: z.T.contiguous() + z.T.clone(), "nonzero": lambda lib, z, w, m, x: z.nonzero(), "bool": lambda lib, z, w, m, x: z.to(lib.bool), "logical": lambda lib, z, w, m, x: z.detach().bool().any(),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients(name):
    for dtype, tol in (("complex128", 1e-9), ("complex64", 2e-4)):
        found = []
        for lib in LIBS:
            real = str(getattr(lib, dtype).to_real()).split(".")[1]
            inputs = [
                made(lib, (2, 3), 0, dtype),
                made(lib, (2, 3), 1, dtype),
                made(lib, (3, 3), 2, dtype),
                made(lib, (2, 3), 3, real),
            ]
            result = CALLS[name](lib, *inputs)
            outs = [r for r in (result if isinstance(result, (list, tuple)) else [result]) if r.requires_grad]
            grads = []
            if outs:
                weights = [made(lib, tuple(o.shape), 9, str(o.dtype).split(".")[1], False) for o in outs]
                grads = [
                    lib.zeros_like(x) if g is None else g
                    for g, x in zip(lib.autograd.grad(outs, inputs, weights, allow_unused=True), inputs)
                ]
            found.append((result, grads))
        agree(found[0][0], found[1][0], name, tol)
        agree(found[0][1], found[1][1], f"gradients of {name}", tol * 10)


def test_second_derivatives():
    for f in (
        lambda z: (z * z * z.conj()).sum(),
        lambda z: z.abs().pow(3).sum(),
        lambda z: (z.exp() / (z + 3)).sum(),
        lambda z: z.angle().sum(),
    ):
        found = []
        for lib in LIBS:
            z = made(lib, (4,), 0)
            y = f(z)
            (g,) = lib.autograd.grad(y, z, lib.ones_like(y), create_graph=True)
            found.append(lib.autograd.grad(g, z, lib.full_like(g, 0.5 - 1j)))
        agree(*found, "second derivative", 1e-8)


def test_gradcheck():
    z, x = made(pydist, (3,), 0), made(pydist, (3,), 1, "float64")
    for f in (
        lambda z, x: z * x,
        lambda z, x: (z / x).abs(),
        lambda z, x: z**2.5 * x.exp(),
        lambda z, x: z.angle() + pydist.complex(x, x).sqrt(),
    ):
        assert pydist.autograd.gradcheck(f, (z, x)) and pydist.autograd.gradgradcheck(f, (z, x))
    with pytest.raises(RuntimeError, match="0, 0|differ|Jacobian"):
        pydist.autograd.gradcheck(lambda z: z.detach().conj() * z, (z,))


DTYPES = ("bool", "int64", "float16", "float32", "float64", "complex64", "complex128")


def test_promotion():
    for a, b, dims in itertools.product(DTYPES, DTYPES, ((2,), ())):
        if "float16" in (a, b) and any(t.startswith("complex") for t in (a, b)):
            continue  # torch has complex32
        got, want = (
            str((lib.ones(2, dtype=getattr(lib, a)) * lib.ones(dims, dtype=getattr(lib, b))).dtype).split(".")[1]
            for lib in LIBS
        )
        assert got == want, (a, b, dims)
        assert (
            str(pydist.promote_types(getattr(pydist, a), getattr(pydist, b)))[7:]
            == str(torch.promote_types(getattr(torch, a), getattr(torch, b)))[6:]
        )
    for a, number in itertools.product(DTYPES, (1j, 2.0, 3)):
        if a != "float16":
            got, want = (str((lib.ones(2, dtype=getattr(lib, a)) + number).dtype).split(".")[1] for lib in LIBS)
            assert got == want, (a, number)
    assert all(lib.tensor([1, 2j]).dtype is lib.complex64 and lib.full((1,), 1j).dtype is lib.complex64 for lib in LIBS)
    pydist.set_default_dtype(pydist.float64)
    assert (
        pydist.tensor(1j).dtype is pydist.complex128
        and (pydist.ones(1, dtype=pydist.int64) * 1j).dtype is pydist.complex128
    )
    pydist.set_default_dtype(pydist.float32)
    for lib in LIBS:
        assert (
            lib.complex64.is_complex and not lib.complex64.is_floating_point and lib.complex64.to_real() is lib.float32
        )
        assert (
            lib.cfloat is lib.complex64
            and lib.float64.to_complex() is lib.complex128
            and lib.finfo(lib.complex64).bits == 32
        )
        assert (
            lib.is_complex(lib.tensor(1j))
            and lib.can_cast(lib.float64, lib.complex64)
            and not lib.can_cast(lib.complex64, lib.float64)
        )


def test_views_share_memory_and_history():
    found = []
    for lib in LIBS:
        leaf = made(lib, (2, 3), 0)
        z = leaf * 1
        parts = lib.view_as_real(z)
        real, before = z.real, z.detach().clone()
        parts[0].mul_(2)  # z's history, and that of its other views, goes through the parts
        z[1] += 1j
        real.add_(1)
        z.imag = lib.zeros(2, 3).double()
        (z * z.conj() + real * parts[..., 1]).abs().sum().backward()
        found.append([z, parts, real, before, leaf.grad])
        assert parts._base is z and real.data_ptr() == z.data_ptr() and z.is_complex() and not z.real.is_complex()
        flat = lib.arange(4.0)
        lib.view_as_complex(flat.view(2, 2)).mul_(1j)
        assert flat.tolist() == [-1, 0, -3, 2]
        assert lib.ones(2).real.tolist() == [1, 1]
        w = lib.zeros(2, dtype=lib.complex64)
        w[0], w[1] = 1 + 2j, lib.tensor(3.0)
        w.real[1] = 5
        assert w.tolist() == [1 + 2j, 5] and complex(w[0]) == 1 + 2j and bool(w[0]) and w[0].item() == 1 + 2j
    agree(*found, "in-place", 1e-12)
    x = pydist.zeros(3, requires_grad=True)
    base = x * 1
    bits = base.view(pydist.int32)
    base.mul_(2)
    assert bits.tolist() == [0, 0, 0] and not bits.requires_grad


def test_view_dtype():
    cases = [
        ((2, 4), "float32", "int32"), ((2, 4), "float32", "int64"), ((2, 4), "float64", "uint8"),
        ((2, 4), "float32", "complex64"), ((2,), "complex128", "float32"), ((), "float32", "int32"),
    ]  # fmt: skip
    for shape, dtype, to in cases:
        got, want = (made(lib, shape, 0, dtype, False).view(getattr(lib, to)) for lib in LIBS)
        agree(got, want, to, 0)
    x = pydist.zeros(2, 4)
    x.view(dtype=pydist.int32)[0, 0] = 1065353216
    assert x[0, 0].item() == 1
    for wrong in (
        lambda: pydist.zeros(2, 3).view(pydist.int64),
        lambda: pydist.zeros(3, 2).T.view(pydist.uint8),
        lambda: pydist.zeros(()).view(pydist.uint8),
    ):
        with pytest.raises(RuntimeError, match="view"):
            wrong()


def test_in_and_out():
    v = np.array([[1 + 2j, -0.5j], [3, 4 - 1j]])
    for dtype in (np.complex64, np.complex128):
        a = v.astype(dtype)
        t = pydist.from_numpy(a)
        t[0, 0] = 7
        assert a[0, 0] == 7 and t.numpy() is not a and np.shares_memory(t.numpy(), a) and t.numpy().dtype == dtype
        assert (
            np.array_equal(torch.from_dlpack(t).numpy(), a)
            and pydist.from_dlpack(torch.tensor(a)).tolist() == a.tolist()
        )
        assert pydist.tensor(a[1, 1]).dtype is t.dtype and pydist.tensor(a[1, 1]).item() == 4 - 1j
        again = pickle.loads(pickle.dumps(t))
        assert again.dtype is t.dtype and again.tolist() == a.tolist()
        for ours, theirs in ((pydist, torch), (torch, pydist)):
            file = io.BytesIO()
            ours.save({"z": ours.tensor(a)}, file)
            file.seek(0)
            assert theirs.load(file)["z"].tolist() == a.tolist()
    from pydist.safetensors import load, save

    assert load(save({"z": pydist.tensor(v, dtype=pydist.complex64)}))["z"].tolist() == v.tolist()
    assert (
        pydist.tensor([[1j, 2], [3.0, True]]).tolist() == [[1j, 2], [3, 1]]
        and pydist.tensor(v).T.tolist() == v.T.tolist()
    )


def test_printed_as_torch():
    for values in (
        [1 + 2j, 3 - 4.5j], [[1e-5 + 1j, 2j], [100.25, -1j]], 1.5 - 2j, [], [complex("nan"), complex("inf"), -1j],
        [float(k) + k / 2 * 1j for k in range(30)],
    ):  # fmt: skip
        for dtype in ("complex64", "complex128"):
            got, want = (str(lib.tensor(values, dtype=getattr(lib, dtype))) for lib in LIBS)
            assert got == want.replace("torch", "pydist"), want


def test_refused_by_name():
    z = pydist.ones(2, 2, dtype=pydist.complex64)
    for (
        op
    ) in "lt ge maximum clamp relu floor atan2 erf argmax amax prod softmax sort topk log1p logical_and fmod".split():
        f = getattr(_C, op)
        with pytest.raises(pydist.DTypeError, match=f"^{op}.*complex64|sort_last.*complex64|argsort.*complex64"):
            f(z, 1) if op in ("softmax", "topk", "clamp") else f(z, z) if op in (
                "lt", "ge", "maximum", "atan2", "logical_and", "fmod",
            ) else f(z)  # fmt: skip
    for call, text in [
        (lambda: z.sum().backward(), "require grad"), (lambda: (z.requires_grad_() * 1).sum().backward(), "complex64"), (lambda: pydist.ones(2).mul_(1j), "complex"), (lambda: pydist.ones(2).fill_(1j), "complex"),
        (lambda: pydist.tensor([1j], dtype=pydist.float32), "complex"), (lambda: pydist.arange(1j), "complex"), (lambda: pydist.ones(2).imag, "imag"), (lambda: pydist.view_as_complex(pydist.zeros(3)), "view_as_complex"),
        (lambda: pydist.view_as_complex(pydist.zeros(2, 3).T[:2].T), "view_as_complex"), (lambda: pydist.view_as_real(pydist.zeros(2)), "view_as_real"), (lambda: pydist.complex(pydist.ones(1), pydist.ones(1).double()), "complex"),
        (lambda: pydist.polar(pydist.ones(1), pydist.ones(1).double()), "polar"), (lambda: pydist.nn.functional.linear(z.detach(), z.detach()), "linear"), (lambda: pydist.add(z, z, alpha=1j), "alpha"), (lambda: float(z[0, 0]), "complex|float"),
        (lambda: pydist.zeros(2, dtype=pydist.int64, requires_grad=True), "floating"),
    ]:  # fmt: skip
        with pytest.raises((RuntimeError, TypeError), match=text):
            call()


def test_rotary_embeddings_train():
    """As LLaMA's code has them."""
    found = []
    for lib in LIBS:
        x = made(lib, (2, 3, 4, 6), 0, "float32")
        angles = lib.outer(lib.arange(3).float(), 1.0 / 10 ** lib.arange(3).float())
        turn = lib.polar(lib.ones_like(angles), angles)
        z = lib.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        y = lib.view_as_real(z * turn.view(1, 3, 1, 3)).flatten(3).type_as(x)
        (y * y * y).sum().backward()
        found.append([y, x.grad])
    agree(*found, "rope", 1e-5)


def test_parameters_and_random():
    layer = pydist.nn.Module()
    layer.w = pydist.nn.Parameter(pydist.randn(1000, dtype=pydist.complex64))
    assert (
        0.8 < (layer.w.abs() ** 2).mean().item() < 1.2 and pydist.rand(3, dtype=pydist.complex128).imag.max().item() < 1
    )
    (layer.w * layer.w.conj()).real.sum().backward()
    assert pydist.allclose(layer.w.grad, 2 * layer.w) and layer.state_dict()["w"].is_complex()
    with pydist.no_grad():
        layer.w -= 0.5 * layer.w.grad
    assert layer.w.abs().max().item() < 1e-6


def test_optimizers_and_clipping():
    """Of complex parameters, whose parts are numbers of their own."""
    for name, kwargs in {
        "SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "RMSprop": {"momentum": 0.5},
        "Adagrad": {"initial_accumulator_value": 0.1}, "Adadelta": {}, "NAdam": {}, "Rprop": {},
    }.items():  # fmt: skip
        found = []
        for lib in LIBS:
            p, target = (
                lib.nn.Parameter(made(lib, (2, 3), 0, "complex64", False)),
                made(lib, (2, 3), 1, "complex64", False),
            )
            optimizer = getattr(lib.optim, name)([p], lr=0.05, **kwargs)
            for _ in range(4):
                optimizer.zero_grad()
                ((p - target).abs() ** 2).sum().backward()
                norm = lib.nn.utils.clip_grad_norm_([p], 1.0)
                optimizer.step()
            found.append([p, p.grad, norm])
        agree(*found, name, 1e-5)


FFT = {
    "fft": (lambda f, z, x: f.fft(z), lambda f, z, x: f.fft(x, 5, norm="ortho"), lambda f, z, x: f.fft(z, 2, dim=0, norm="forward")), "ifft": (lambda f, z, x: f.ifft(z), lambda f, z, x: f.ifft(x, dim=1)),
    "rfft": (lambda f, z, x: f.rfft(x), lambda f, z, x: f.rfft(x, 7, dim=0, norm="ortho")), "irfft": (lambda f, z, x: f.irfft(z), lambda f, z, x: f.irfft(z, 5, norm="forward"), lambda f, z, x: f.irfft(z, 6, dim=0)),
    "two": (lambda f, z, x: f.fft2(z), lambda f, z, x: f.ifft2(x, norm="ortho"), lambda f, z, x: f.rfft2(x), lambda f, z, x: f.irfft2(z, s=(3, 4))), "n": (lambda f, z, x: f.fftn(z, dim=(0, 2)), lambda f, z, x: f.ifftn(x), lambda f, z, x: f.rfftn(x), lambda f, z, x: f.irfftn(z)),
    "h": (lambda f, z, x: f.hfft(z, norm="ortho"), lambda f, z, x: f.ihfft(x, 4)), "shift": (lambda f, z, x: f.fftshift(z), lambda f, z, x: f.ifftshift(x, dim=1), lambda f, z, x: f.fftfreq(5, 0.5), lambda f, z, x: f.rfftfreq(6)),
}  # fmt: skip


@pytest.mark.parametrize("name", FFT)
def test_fft(name):
    for call in FFT[name]:
        found = []
        for lib in LIBS:
            z, x = made(lib, (2, 3, 4), 0), made(lib, (2, 3, 4), 1, "float64")
            y = call(lib.fft, z, x)
            grads = []
            if y.requires_grad:
                w = made(lib, tuple(y.shape), 2, str(y.dtype).split(".")[1], False)
                grads = [
                    g for g in lib.autograd.grad(y, [z, x], w, allow_unused=True, create_graph=True) if g is not None
                ]
                second = sum((g * g.conj()).real.sum() for g in grads) * sum(t.abs().sum() for t in (z, x))
                grads += [
                    lib.zeros_like(t) if g is None else g
                    for g, t in zip(lib.autograd.grad(second, [z, x], allow_unused=True), (z, x))
                ]
            found.append([y, *grads])
        agree(*found, name, 1e-9)
    for wrong in (
        lambda: pydist.fft.fft(pydist.ones(3), norm="half"),
        lambda: pydist.fft.rfft(pydist.ones(3) * 1j),
        lambda: pydist.fft.fft(pydist.ones(3), 0),
        lambda: pydist.fft.fft2(pydist.ones(2, 3), dim=(0, 0)),
    ):
        with pytest.raises(RuntimeError, match="fft"):
            wrong()
