"""Products and convolutions by cuBLASLt and cuDNN, or by our own kernels where they are not there: the same numbers.

On the emulator PYDIST_CUBLASLT and PYDIST_CUDNN decide which; on a GPU what can be opened."""

import ctypes
import os
import subprocess
import sys

import pytest

import pydist
from pydist import _C
from pydist.nn import functional as F

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

DTYPES = {pydist.float64: 1e-11, pydist.float32: 2e-5, pydist.float16: 4e-3, pydist.bfloat16: 3e-2}


def near(got, want, eps):
    want = want.double()
    return ((got.cpu().double() - want).abs() <= eps * max(1.0, want.abs().max().item())).all().item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (33, 20, 17), (1, 40, 7), (40, 1, 7), (64, 64, 64), (5, 6, 1), (3, 4, 0)])
def test_layouts(sizes, dtype):
    """Each side by rows, by columns, as a part of a larger matrix; alone and in batches, shared ones too."""
    M, N, K = sizes
    for batch in ((), (3,)):
        a, b = pydist.randn(*batch, M, K).to(dtype), pydist.randn(*batch, K, N).to(dtype)
        want = a.double() @ b.double()
        wide_a, wide_b = pydist.zeros(*batch, M, K + 8, dtype=dtype), pydist.zeros(*batch, K, N + 8, dtype=dtype)
        wide_a[..., :K] = a
        wide_b[..., 8:] = b
        for x in (a.cuda(), a.mT.contiguous().cuda().mT, wide_a.cuda()[..., :K]):
            for y in (b.cuda(), b.mT.contiguous().cuda().mT, wide_b.cuda()[..., 8:]):
                assert near(x @ y, want, DTYPES[dtype]), (batch, x.stride(), y.stride())
        for _ in range(2):  # with what is known of the shape by now
            assert near(a.cuda() @ b.cuda(), want, DTYPES[dtype])
    one = pydist.randn(M, K).to(dtype)
    assert near(one.cuda().expand(3, M, K) @ b.cuda(), one.double().expand(3, M, K) @ b.double(), DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_with_its_gradients(dtype):
    x, w, b = (pydist.randn(*s).to(dtype) for s in ((6, 5, 24), (16, 24), (16,)))
    results = []
    for device in ("cpu", "cuda"):
        leaves = [t.clone().to(device).requires_grad_() for t in (x, w, b)]
        for _ in range(2):
            y = F.linear(*leaves)
            y.backward(pydist.ones_like(y))
        results.append([y, *(t.grad for t in leaves)])
    for got, want in zip(*reversed(results)):
        assert near(got.detach(), want.detach(), 4 * DTYPES[dtype])


def test_gradients_of_autocasts_products():
    """Of weight and bias by one product, in float32 at once, and again where the gradient's graph is wanted."""
    x, w, b = pydist.randn(12, 8), pydist.randn(16, 8), pydist.randn(16)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [t.clone().to(device).requires_grad_() for t in (x, w, b)]
        with pydist.autocast(device, dtype=pydist.bfloat16):
            y = F.linear(*leaves)
        grads = pydist.autograd.grad((y.float() ** 2).sum(), leaves, create_graph=True)
        again = pydist.autograd.grad(sum(g.float().square().sum() for g in grads), leaves)
        y = F.linear(*(t.to(pydist.bfloat16) for t in leaves))
        y.backward(pydist.ones_like(y))
        assert all(t.grad.dtype is pydist.float32 for t in leaves)
        results.append([*grads, *again, *(t.grad for t in leaves)])
    for got, want in zip(*reversed(results)):
        assert near(got.detach(), want.detach(), 0.06)


class Knobs:
    """The integers that the emulator's cuBLASLt has for tests: see tests/emulator/libraries.cpp."""

    def __init__(self, library):
        self.__dict__["library"] = library

    def __getattr__(self, name):
        return ctypes.c_int.in_dll(self.library, f"pd_lt_{name}").value

    def __setattr__(self, name, value):
        ctypes.c_int.in_dll(self.library, f"pd_lt_{name}").value = value


@pytest.fixture
def lt():
    library = os.environ.get("PYDIST_CUBLASLT", "")
    if library in ("", "none") or not hasattr(ctypes.CDLL(library), "pd_lt_slow"):
        pytest.skip("only the emulator's cuBLASLt can be told what to do")
    knobs = Knobs(ctypes.CDLL(library))
    yield knobs
    knobs.slow = knobs.refused = 0


@pytest.fixture
def tuned():
    pydist.cuda.tunable.enable()
    yield
    pydist.cuda.tunable.enable(False)


def gradients_with_sums(layer, x):
    """Of a linear layer; and whether a kernel of its own summed for the bias."""
    with pydist.profiler.profile() as prof:
        y = layer(x)
        grads = pydist.autograd.grad(y, list(layer.parameters()), pydist.ones_like(y))
    return grads, "sum" in {e.key for e in prof.key_averages()}


def test_bias_gradients_are_summed_by_the_faster_way(lt, tuned):
    x = pydist.randn(12, 8, device="cuda")
    for slow, by_itself in ((8, True), (16, False)):
        lt.slow = slow
        layer = pydist.nn.Linear(8, 16 + slow).cuda()
        for use in range(1, 6):
            (weight, bias), summed = gradients_with_sums(layer, x)
            assert summed == (use < 3 or by_itself), (slow, use)
            assert near(bias, pydist.full((16 + slow,), 12.0), 1e-5)
            assert near(weight, x.cpu().sum(0).expand(16 + slow, 8), 1e-5)


def test_without_timing_no_product_makes_sums_in_passing(lt):
    layer, x = pydist.nn.Linear(9, 16).cuda(), pydist.randn(12, 9, device="cuda")
    assert all(gradients_with_sums(layer, x)[1] for _ in range(4))


def algorithms(lt, k):
    """Those that serve five products of one shape, of which the first one proposed is slow. Only the first use asks."""
    a, b, served = pydist.randn(5, k), pydist.randn(k, 13), []
    lt.slow = 1
    for use in range(1, 6):
        before = lt.proposals
        assert near(a.cuda() @ b.cuda(), a.double() @ b.double(), 1e-5)
        assert lt.proposals - before == (use == 1)
        served.append(lt.served)
    return served


def test_without_timing_the_first_proposal_serves(lt):
    """So bits do not depend on what was faster, in another run or on another rank."""
    assert algorithms(lt, 10) == [0] * 5


def test_algorithms_are_timed_at_the_third_use(lt, tuned):
    """And not again."""
    assert algorithms(lt, 11) == [0, 0, 2, 2, 2]


def test_products_that_add_are_timed_and_added_once(lt, tuned):
    a, b, c = pydist.randn(5, 12), pydist.randn(12, 14), pydist.randn(5, 14)
    want = pydist.addmm(c.double(), a.double(), b.double())
    for _ in range(5):
        assert near(pydist.addmm(c.cuda(), a.cuda(), b.cuda()), want, 1e-5)


def test_a_refused_algorithm_gives_way_to_the_next(lt):
    a, b = pydist.randn(5, 17), pydist.randn(17, 13)
    want, before = a.double() @ b.double(), lt.proposals

    def asked():
        assert near(a.cuda() @ b.cuda(), want, 1e-5)
        return lt.proposals - before

    assert asked() == 1
    lt.refused = 1  # 41 never runs: 42
    assert asked() == asked() == 1
    lt.refused = 4  # and now none of those that are left: our own kernel, which is asked about no more than twice again
    assert asked() == 1 and asked() == 2
    lt.refused = 0
    assert asked() == 2


def test_a_shape_that_is_always_refused_is_given_up(lt):
    a, b = pydist.randn(5, 19), pydist.randn(19, 13)
    lt.refused, before = 7, lt.proposals
    for _ in range(6):
        assert near(a.cuda() @ b.cuda(), a.double() @ b.double(), 1e-5)
    assert lt.proposals - before == 3


def test_old_plans_make_room(lt):
    """5,000 shapes; one that is used all the time keeps its plan, the first one of the others has lost its own."""
    kept, rest = pydist.randn(1, 3, device="cuda"), pydist.randn(5100, device="cuda")

    def use(n):
        return rest[:n].reshape(n, 1) @ kept[:, :1]

    use(1)
    for n in range(2, 5002):
        use(n)
        before = lt.proposals
        assert n % 500 or (kept @ kept.mT).numel() == 1
        assert n < 1000 or lt.proposals == before
    assert lt.living <= 4096
    before = lt.proposals
    use(5001)
    assert lt.proposals == before
    use(2)
    assert lt.proposals == before + 1


def test_other_bias_the_same_plan():
    x, w = pydist.randn(8, 16).cuda(), pydist.randn(32, 16).cuda()
    for i in range(3):
        b = pydist.full((32,), float(i), device="cuda")
        assert near(F.linear(x, w, b) - F.linear(x, w), pydist.full((8, 32), float(i)), 1e-5)


def test_tf32_is_asked_for():
    a, b = pydist.randn(64, 64), pydist.randn(64, 64)
    want = a.double() @ b.double()

    def error():
        return ((a.cuda() @ b.cuda()).cpu().double() - want).abs().max().item()

    assert not pydist.backends.cuda.matmul.allow_tf32 and error() < 1e-4
    pydist.set_float32_matmul_precision("high")
    assert pydist.backends.cuda.matmul.allow_tf32
    if _C.cublaslt_version()[0]:
        always = pydist.cuda.get_device_name() == "emulated"  # a GPU's algorithm for so small a product may not round
        assert (1e-4 if always else 0) < error() < 0.2
    pydist.set_float32_matmul_precision("highest")
    assert not pydist.backends.cuda.matmul.allow_tf32 and error() < 1e-4


CONVOLUTIONS = {
    "plain": ((2, 4, 7, 6), (8, 4, 3, 3), {}),
    "one": ((2, 8, 5, 5), (4, 8, 1, 1), {}),
    "steps": ((2, 3, 9, 8), (5, 3, 3, 2), {"stride": (2, 3), "padding": (1, 2)}),
    "wide": ((1, 2, 11, 11), (2, 2, 3, 3), {"dilation": (2, 3), "padding": 2}),
    "groups": ((2, 6, 6, 6), (9, 2, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise": ((2, 4, 6, 5), (4, 1, 3, 3), {"groups": 4, "stride": 2}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, dtype):
    shape, filters, options = CONVOLUTIONS[name]
    x, w, b = pydist.randn(*shape).to(dtype), pydist.randn(*filters).to(dtype), pydist.randn(filters[0]).to(dtype)
    plain, last = pydist.contiguous_format, pydist.channels_last
    for layout, of_filters in ((plain, plain), (last, last), (last, plain)):
        results = []
        for device in ("cpu", "cuda"):
            leaves = [
                t.clone().to(memory_format=f).to(device).requires_grad_() for t, f in ((x, layout), (w, of_filters))
            ]
            leaves.append(b.clone().to(device).requires_grad_())
            y = F.conv2d(*leaves, **options)
            g = (pydist.arange(y.numel()) % 5 - 2).reshape(y.shape).to(dtype)
            y.backward(g.to(memory_format=of_filters).to(device))
            results.append([y, *(t.grad for t in leaves)])
        for got, want in zip(*reversed(results)):
            assert got.stride() == want.stride()
            assert near(got.detach(), want.detach(), 4 * DTYPES[dtype]), layout


def test_convolutions_are_tuned_and_rounded_as_asked():
    x, w = pydist.randn(2, 8, 9, 9), pydist.randn(8, 8, 3, 3)
    want = F.conv2d(x.double(), w.double())

    def error():
        return (F.conv2d(x.cuda(), w.cuda()).cpu().double() - want).abs().max().item()

    assert not pydist.backends.cudnn.allow_tf32 and error() < 1e-4
    pydist.backends.cudnn.benchmark = True
    assert pydist.backends.cudnn.benchmark and error() < 1e-4
    pydist.backends.cudnn.allow_tf32 = True
    assert error() < 0.2


def test_cudnn_can_be_left_out():
    cudnn, x, w = pydist.backends.cudnn, pydist.randn(2, 8, 9, 9), pydist.randn(8, 8, 3, 3)
    want, before = (
        F.conv2d(x.double(), w.double()),
        (cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, cudnn.deterministic),
    )
    with cudnn.flags(enabled=False, benchmark=True):
        assert not cudnn.enabled and cudnn.benchmark and near(F.conv2d(x.cuda(), w.cuda()), want, 1e-5)
    assert (cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, cudnn.deterministic) == before
    with pytest.raises(ZeroDivisionError), cudnn.flags(enabled=False):
        1 / 0
    assert cudnn.enabled
    if _C.cudnn_version()[0]:  # engines that round to tf32 are its own
        with cudnn.flags(enabled=True, allow_tf32=True):
            rounded = F.conv2d(x.cuda(), w.cuda())
        with cudnn.flags(enabled=False, allow_tf32=True):
            assert not (F.conv2d(x.cuda(), w.cuda()) == rounded).all().item()


def test_transposed_convolutions():
    x, w = pydist.randn(2, 6, 5, 4), pydist.randn(6, 3, 3, 3)
    for options in ({}, {"stride": 2, "padding": 1, "output_padding": 1}):
        want = F.conv_transpose2d(x, w, **options)
        assert near(F.conv_transpose2d(x.cuda(), w.cuda(), **options), want, 2e-5)


def test_versions_are_told():
    for version, why in (_C.cublaslt_version(), _C.cudnn_version()):
        assert version.count(".") == 2 if version else why


def test_libraries_of_another_major_version_are_refused(lt):
    program = "from pydist import _C\nprint(_C.cublaslt_version())"
    env = {**os.environ, "EMULATED_LT": "120901"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    why = "cuBLASLt: the library is of version 12.9.1 (expected 13); pip install nvidia-cublas"
    assert done.stdout == f"(None, {why!r})\n", done.stderr
