"""Exact norms: the sums against Python's fractions, in any cut; clipping over ranks; the same beside torch."""

import hashlib
import math
import os
import random
import subprocess
import sys
from fractions import Fraction

import pytest

import pydist
from pydist import _C, nn
from pydist import distributed as dist
from pydist.testing import run_ranks

DTYPES = (pydist.float32, pydist.bfloat16, pydist.float16, pydist.float64)
DIGITS, NAN, INF, BELOW = 134, 134, 135, 2176  # csrc/kernels/exact.h


def spread(count, dtype, seed, decades=60):
    """Random elements whose sizes cover so many powers of ten, as far as the dtype has them."""
    rng = random.Random(seed)
    low, high = {pydist.float16: (-7, 4.8)}.get(dtype, (-decades / 2, decades / 2))
    values = [rng.choice((-1, 1)) * 10.0 ** rng.uniform(low, high) for _ in range(count)]
    return pydist.tensor(values, dtype=dtype)


def exactly(*tensors):
    """The sum of squares, as a fraction."""
    return sum((Fraction(v) ** 2 for t in tensors for v in t.double().flatten().tolist()), Fraction(0))


def in_digits(bins):
    return sum((Fraction(d) * Fraction(2) ** (32 * i - BELOW) for i, d in enumerate(bins[:DIGITS])), Fraction(0))


def is_nearest_root(norm, squares):
    """Whether no float is nearer to the square root."""
    half = Fraction(math.ulp(norm)) / 2
    return max(Fraction(norm) - half, 0) ** 2 <= squares <= (Fraction(norm) + half) ** 2


def check_sum(t):
    want, bins = exactly(t), _C.exact_squares([t]).tolist()
    assert in_digits(bins) == want and bins[NAN] == bins[INF] == 0
    assert all(0 <= digit < 2**32 for digit in bins[:DIGITS])
    assert _C.sums_of_squares([t]).item() == want.numerator / want.denominator  # Python rounds this once
    assert is_nearest_root(_C.exact_norm(_C.exact_squares([t])), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_are_exact(dtype):
    for n in (0, 1, 7, 64, 1000, 1023, 1024, 1025, 3000, 40000):
        for decades in (0, 6, 60):
            check_sum(spread(n, dtype, n, decades))
    check_sum(pydist.zeros(5000, dtype=dtype))
    check_sum(-spread(100, dtype, 1)[::3])


def test_blocks_that_are_unlike_the_one_before():
    """Larger, smaller, of other spreads, zeros, infinite, shorter: a block is first taken for one like the last."""
    rng = random.Random(3)
    scales = [1, 1, 2, 4, 300, 0.5, 1e-3, 0, 0, 1e-44, 1e-30, 1e30, 2e37, 1e-3, 1, 7]
    for dtype in (pydist.float32, pydist.bfloat16):
        blocks = [spread(1024, dtype, i, 0) * scale for i, scale in enumerate(scales)]
        for at in (3, 5, 8):
            blocks[at][17] *= 2.0**-30  # needs more than one cut
        for _ in range(8):
            rng.shuffle(blocks)
            check_sum(pydist.cat([*blocks, spread(rng.randrange(1024), dtype, 1, 0)]))
    for bad, place in ((math.inf, INF), (math.nan, NAN)):
        t = pydist.cat([spread(3 * 1024, pydist.float32, 1, 0), pydist.tensor([bad]), pydist.ones(4000)])
        bins = _C.exact_squares([t]).tolist()
        assert bins[place] == 1 and bins[NAN + INF - place] == 0
        assert in_digits(bins) == exactly(t[t.isfinite()])


def test_the_smallest_and_the_largest():
    check_sum(pydist.tensor([2.0**-149, 1e-40, 3.4e38, 3.4e38]))
    for values in ([5e-324], [5e-324, 1e-310, 3.0], [1e308, -1.1e308], [1e200] * 3000, [1e-200] * 3000):
        t = pydist.tensor(values, dtype=pydist.float64)
        want, bins = exactly(t), _C.exact_squares([t])
        assert in_digits(bins.tolist()) == want
        assert is_nearest_root(_C.exact_norm(bins), want)  # though the square may be no double
    rng = random.Random(2)
    for _ in range(500):
        values = [math.ldexp(rng.random(), rng.randrange(-1074, 512)) for _ in range(rng.randrange(1, 4))]
        check_sum(pydist.tensor(values, dtype=pydist.float64))
    # halfway between two floats, to even; then a square that decides, hundreds of bits below
    ulp = 2.0**-52
    for more in (1e-300, 0.0):
        parts = [1.0, math.sqrt(ulp / 2), more]
        assert _C.sums_of_squares([pydist.tensor(parts, dtype=pydist.float64)]).item() == (
            float(exactly(pydist.tensor(parts, dtype=pydist.float64)))
        )
    halfway = pydist.tensor([1.0, 2.0**-27, 2.0**-27, 0.0], dtype=pydist.float64)  # 1 + 2^-53
    assert _C.sums_of_squares([halfway]).item() == 1.0
    halfway[3] = 1e-300
    assert _C.sums_of_squares([halfway]).item() == 1.0 + ulp


def cut(t, rng, parts):
    """The elements as this many tensors, some of them empty."""
    places = sorted(rng.randrange(t.numel() + 1) for _ in range(parts - 1))
    return [t[a:b] for a, b in zip([0, *places], [*places, t.numel()])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_500_cuttings(dtype):
    rng, whole = random.Random(3), spread(3000, dtype, 3)
    want = exactly(whole)
    norm = nn.utils.get_total_norm([whole.double()]).item()
    assert is_nearest_root(norm, want)
    for _ in range(500 if dtype is pydist.float32 else 50):
        parts = cut(whole, rng, rng.randrange(1, 40))
        rng.shuffle(parts)
        ranks = [_C.exact_squares(parts[r::8]) for r in range(8)]
        assert _C.exact_norm(sum(ranks[1:], ranks[0])) == norm
        parts[0] = parts[0].double()  # the result's dtype, and dtypes beside each other
        assert nn.utils.get_total_norm(parts).item() == norm


@pytest.mark.parametrize("world", range(1, 9))
def test_ranks_return_the_same_bits(world):
    whole = spread(5000, pydist.float32, 4, 20)
    clipped = nn.Parameter(pydist.zeros(5000))
    clipped.grad = whole.clone()
    norm = nn.utils.clip_grad_norm_(clipped, 2.0)

    def body(rank):
        params = []
        for part in cut(whole, random.Random(5), world * 3)[rank::world]:
            params.append(nn.Parameter(pydist.zeros(part.numel())))
            params[-1].grad = part.clone()
        found = nn.utils.clip_grad_norm_(params, 2.0, group=dist.group.WORLD)
        return found.item(), [p.grad.tolist() for p in params]

    results = run_ranks(world, body)
    assert {found for found, _ in results} == {norm.item()}
    order = [results[i % world][1][i // world] for i in range(world * 3)]
    assert [v for part in order for v in part] == clipped.grad.tolist()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, 0.0, math.inf, -math.inf])
def test_other_norms_over_ranks(norm_type):
    """Rank 1 has no elements, rank 2 no tensors."""
    parts = [[pydist.tensor([-3.0, 4.0]), pydist.tensor([0.5])], [pydist.zeros(0)], [], [pydist.tensor([2.0])]]
    want = nn.utils.get_total_norm([t for part in parts for t in part], norm_type).item()
    found = run_ranks(4, lambda rank: nn.utils.get_total_norm(parts[rank], norm_type, group=dist.group.WORLD).item())
    assert found == pytest.approx([want] * 4, rel=1e-6)


def test_nan_and_infinity():
    for dtype in DTYPES:
        t = pydist.ones(3000, dtype=dtype)
        t[5], t[1500], t[2999] = math.nan, math.inf, -math.inf
        bins = _C.exact_squares([t, t]).tolist()
        assert bins[NAN] == 2 and bins[INF] == 4 and in_digits(bins) == 2 * 2997
        assert math.isnan(nn.utils.get_total_norm(t).item())
        t[5] = 1.0
        assert nn.utils.get_total_norm(t).item() == math.inf and _C.sums_of_squares([t]).tolist() == [math.inf]
    bad = [pydist.ones(2), pydist.tensor([math.nan])]

    def body(rank):
        with pytest.raises(RuntimeError, match="The total norm of order 2.0 .* is non-finite"):
            nn.utils.get_total_norm(bad[rank], error_if_nonfinite=True, group=dist.group.WORLD)
        return nn.utils.get_total_norm(bad[rank], group=dist.group.WORLD).item()

    assert all(map(math.isnan, run_ranks(2, body)))


def test_bits_do_not_depend_on_threads():
    t, before, found = spread(200000, pydist.float32, 6, 30), pydist.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            pydist.set_num_threads(threads)
            found.append(_C.exact_squares([t]).tolist())
    finally:
        pydist.set_num_threads(before)
    assert found[0] == found[1] == found[2] and in_digits(found[0]) == exactly(t)


PRINTED = """
import sys
sys.path[:0] = sys.argv[1:]
import pydist
from nn.test_clip_grad import DTYPES, digest_of_sums
print(pydist._C.isa(), digest_of_sums())
"""


def digest_of_sums():
    found = hashlib.sha256()
    for dtype in DTYPES:
        for n in (1, 5, 100, 1500, 70000):
            found.update(repr(_C.exact_squares([spread(n, dtype, n, d) for d in (1, 60)]).tolist()).encode())
    return found.hexdigest()


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_every_instruction_set_has_the_same_bits(isa):
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", PRINTED, here], env={**os.environ, "PYDIST_ISA": isa}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == digest_of_sums()


@pytest.mark.parametrize("norm_type", [1, 2, 3, math.inf])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_beside_torch(torch, norm_type, name):
    dtype = getattr(pydist, name)
    ours = [spread(n, dtype, n, 4) for n in (1, 30, 2000)]
    theirs = [torch.tensor(t.double().tolist(), dtype=getattr(torch, name)) for t in ours]
    for max_norm in (0.5, 0.0, math.inf, -1.0):
        p = [nn.Parameter(pydist.zeros_like(t)) for t in ours]
        q = [torch.nn.Parameter(torch.zeros_like(t)) for t in theirs]
        for param, t in zip([*p, *q], [*ours, *theirs]):
            param.grad = t.clone()
        a = nn.utils.clip_grad_norm_(p, max_norm, norm_type)
        b = torch.nn.utils.clip_grad_norm_(q, max_norm, norm_type)
        close = {"float64": 1e-12, "float32": 1e-6}.get(name, 2 * pydist.finfo(dtype).eps)
        least = 1e-7 if name == "float16" else 0.0  # its smallest number is 6e-8
        assert a.dtype is dtype and a.item() == pytest.approx(b.item(), rel=close, nan_ok=True)
        for x, y in zip(p, q):
            assert x.grad.tolist() == pytest.approx(y.grad.tolist(), rel=4 * close, abs=least, nan_ok=True)


def test_complex_and_strided_tensors():
    z = pydist.tensor([3 + 4j, 1 - 2j])
    assert in_digits(_C.exact_squares([z]).tolist()) == 30
    t = spread(60, pydist.float32, 7).view(5, 12)
    assert in_digits(_C.exact_squares([t.t()[::2]]).tolist()) == exactly(t.t()[::2])
    assert in_digits(_C.exact_squares([t[:1].expand(4, 12)]).tolist()) == 4 * exactly(t[:1])


def test_wrong_arguments():
    with pytest.raises(TypeError, match="floating dtype"):
        _C.exact_squares([pydist.tensor([1])])
    with pytest.raises(TypeError, match="floating dtype"):
        nn.utils.get_total_norm([pydist.tensor([1])], 1.0)
    with pytest.raises(RuntimeError, match=r"tensor 1 is on meta \(expected cpu\)"):
        _C.exact_squares([pydist.ones(1), pydist.ones(1, device="meta")])
    for wrong in (pydist.zeros(136), pydist.zeros(135, dtype=pydist.int64), pydist.zeros(272, dtype=pydist.int64)[::2]):
        with pytest.raises(ValueError, match="expected what exact_squares returned"):
            _C.exact_norm(wrong)
    for more, bins in ((math.nan, NAN), (math.inf, INF)):
        assert _C.exact_squares([], more).tolist()[bins] == 1
    assert in_digits(_C.exact_squares([pydist.ones(2)], 0.1).tolist()) == 2 + Fraction(0.1)
