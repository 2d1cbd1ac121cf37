"""Windows of M samples. sym=True: the first and the last sample are equal; False: the window continues with period M, as
spectra need it.

>>> import pydist
>>> pydist.signal.windows.bartlett(5)
tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
"""

import math
from numbers import Real

from pydist import _C
from pydist._make import _finished

__all__ = (
    "bartlett blackman cosine exponential gaussian general_cosine general_hamming hamming hann kaiser nuttall"
).split()


def _window(name, M, formula, sym, dtype, layout, device, requires_grad):
    """formula(k, n), where k counts the samples in float64 and n is the distance after which the window repeats."""
    dtype = _C.get_default_dtype() if dtype is None else dtype
    count = M.item() if isinstance(M, _C.Tensor) and M.numel() == 1 else M
    if not isinstance(count, Real) or not count >= 0 or count % 1:
        raise ValueError(f"{name}: M is {M!r} (expected an integer of at least 0)")
    M = int(count)
    if dtype not in (_C.float32, _C.float64):
        raise ValueError(f"{name}: dtype is {dtype} (expected float32 or float64)")
    k = _C.arange(M, dtype=_C.float64, device=device, layout=layout)
    values = formula(k, max(M - 1 if sym else M, 1)) if M > 1 else _C.ones_like(k)
    return _finished(name, values, None, dtype, False, requires_grad)


def _cosines(name, M, weights, sym, dtype, layout, device, requires_grad):
    """sum_j weights[j] (-1)^j cos(2 pi j k / n)"""

    def formula(k, n):
        return sum((k * (2 * math.pi * j / n)).cos() * (w if j % 2 == 0 else -w) for j, w in enumerate(weights))

    return _window(name, M, formula, sym, dtype, layout, device, requires_grad)


def general_cosine(M, *, a, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """a[0] - a[1] cos(2 pi k / n) + a[2] cos(4 pi k / n) - ..."""
    if not a:
        raise ValueError("general_cosine: a is empty (expected at least one weight)")
    return _cosines("general_cosine", M, a, sym, dtype, layout, device, requires_grad)


def general_hamming(M, *, alpha=0.54, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """alpha - (1 - alpha) cos(2 pi k / n)"""
    return _cosines("general_hamming", M, (alpha, 1 - alpha), sym, dtype, layout, device, requires_grad)


def hamming(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """0.54 - 0.46 cos(2 pi k / n)"""
    return _cosines("hamming", M, (0.54, 0.46), sym, dtype, layout, device, requires_grad)


def hann(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """0.5 - 0.5 cos(2 pi k / n)"""
    return _cosines("hann", M, (0.5, 0.5), sym, dtype, layout, device, requires_grad)


def blackman(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """0.42 - 0.5 cos(2 pi k / n) + 0.08 cos(4 pi k / n)"""
    return _cosines("blackman", M, (0.42, 0.5, 0.08), sym, dtype, layout, device, requires_grad)


def nuttall(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """Four cosines with Nuttall's weights (1981): the highest side lobe is at -98 dB."""
    weights = (0.3635819, 0.4891775, 0.1365995, 0.0106411)
    return _cosines("nuttall", M, weights, sym, dtype, layout, device, requires_grad)


def bartlett(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """1 - |2 k / n - 1|: a triangle."""

    def formula(k, n):
        return 1 - (k * (2 / n) - 1).abs()

    return _window("bartlett", M, formula, sym, dtype, layout, device, requires_grad)


def cosine(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """sin(pi (k + 1/2) / (n + 1)): one half of a wave."""

    def formula(k, n):
        return ((k + 0.5) * (math.pi / (n + 1))).sin()

    return _window("cosine", M, formula, sym, dtype, layout, device, requires_grad)


def exponential(M, *, center=None, tau=1.0, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """exp(-|k - center| / tau). center: default n / 2; only a window with sym=False may have another one."""
    if tau <= 0:
        raise ValueError(f"exponential: tau is {tau} (expected more than 0)")
    if sym and center is not None:
        raise ValueError(f"exponential: center is {center} and sym is True (expected center=None)")

    def formula(k, n):
        return (-(k - (n / 2 if center is None else center)).abs() / tau).exp()

    return _window("exponential", M, formula, sym, dtype, layout, device, requires_grad)


def gaussian(M, *, std=1.0, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """exp(-(k - n / 2)^2 / (2 std^2))"""
    if std <= 0:
        raise ValueError(f"gaussian: std is {std} (expected more than 0)")

    def formula(k, n):
        return (-((k - n / 2) / std).square() / 2).exp()

    return _window("gaussian", M, formula, sym, dtype, layout, device, requires_grad)


def kaiser(M, *, beta=12.0, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """I0(beta sqrt(1 - (2 k / n - 1)^2)) / I0(beta), where I0 is the modified Bessel function."""
    if beta < 0:
        raise ValueError(f"kaiser: beta is {beta} (expected at least 0)")

    def formula(k, n):
        root = (1 - (k * (2 / n) - 1).square()).clamp(min=0).sqrt()
        return (root * beta).i0() / _C.full((), beta, dtype=_C.float64, device=k.device).i0()

    return _window("kaiser", M, formula, sym, dtype, layout, device, requires_grad)
