"""Tensors made from other tensors, ranges and windows: thin functions over the engine's."""

import math

from pydist import _C


def _finished(name, values, out, dtype, pin_memory, requires_grad):
    """The values in dtype (None: the default dtype), written to out if that is given."""
    values = values.to(dtype or (_C.get_default_dtype() if out is None else out.dtype))
    if out is not None:
        _C._write_out(name, out, values)
        return out
    return (values.pin_memory() if pin_memory else values).requires_grad_(requires_grad)


def full_like(input, fill_value, *, dtype=None, requires_grad=False, **options):
    """A tensor filled with a number, with input's shape, strides and (unless given) dtype."""
    return _C.empty_like(input, dtype=dtype, **options).fill_(fill_value).requires_grad_(requires_grad)


def _options(input, dtype, device, options):
    """The options of a tensor like input."""
    return {"dtype": dtype or input.dtype, "device": device or input.device, **options}


def rand_like(input, *, dtype=None, device=None, requires_grad=False, **options):
    """Random numbers, uniform in [0, 1), with input's shape and (unless given) dtype."""
    if _C.spread_of(input) is not None:
        return _C.empty_like(input, dtype=dtype).uniform_().requires_grad_(requires_grad)
    return _C.rand(tuple(input.shape), requires_grad=requires_grad, **_options(input, dtype, device, options))


def randn_like(input, *, dtype=None, device=None, requires_grad=False, **options):
    """Random numbers, normal with mean 0 and variance 1, with input's shape and (unless given) dtype."""
    if _C.spread_of(input) is not None:
        return _C.empty_like(input, dtype=dtype).normal_().requires_grad_(requires_grad)
    return _C.randn(tuple(input.shape), requires_grad=requires_grad, **_options(input, dtype, device, options))


def randint_like(input, low=None, high=None, *, dtype=None, device=None, **options):
    """Random integers in [low, high), or [0, high), with input's shape and (unless given) dtype."""
    if low is None and high is None:
        raise TypeError(
            "randint_like: high is missing (expected randint_like(input, high) or randint_like(input, low, high))"
        )
    low, high = (0, low) if high is None else (low or 0, high)
    if _C.spread_of(input) is not None:
        return _C.empty_like(input, dtype=dtype).random_(low, high)
    return _C.randint(low, high, tuple(input.shape), **_options(input, dtype, device, options))


def linspace(
    start, end, steps=None, *, out=None, dtype=None, requires_grad=False, device=None, layout=None, pin_memory=False
):
    """`steps` numbers from start to end, both included, evenly spaced: start + i (end - start) / (steps - 1).

    >>> import pydist
    >>> pydist.linspace(0, 1, 5)
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    steps = 100 if steps is None else steps
    if steps < 0:
        raise RuntimeError(f"linspace: steps is {steps} (expected at least 0)")
    start, end = (v.item() if isinstance(v, _C.Tensor) else v for v in (start, end))
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    # Computed from both ends in float64, as PyTorch does: exact at both ends.
    counts = _C.arange(steps, dtype=_C.float64, device=device, layout=layout)
    values = _C.where(counts < steps / 2, counts * step + start, (counts - (steps - 1)) * step + end)
    return _finished("linspace", values, out, dtype, pin_memory, requires_grad)


def logspace(
    start,
    end,
    steps=None,
    base=10.0,
    *,
    out=None,
    dtype=None,
    requires_grad=False,
    device=None,
    layout=None,
    pin_memory=False,
):
    """`steps` numbers from base**start to base**end, both included, whose exponents are evenly spaced.

    >>> import pydist
    >>> pydist.logspace(0, 2, 3)
    tensor([  1.,  10., 100.])
    """
    exponents = linspace(start, end, steps, dtype=_C.float64, device=device, layout=layout)
    return _finished("logspace", float(base) ** exponents, out, dtype, pin_memory, requires_grad)


def eye(n, m=None, *, out=None, dtype=None, requires_grad=False, device=None, layout=None, pin_memory=False):
    """The identity matrix, n x m, with ones on the diagonal.

    >>> import pydist
    >>> pydist.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    m = n if m is None else m
    if n < 0 or m < 0:
        raise RuntimeError(f"eye: sizes {n} and {m} (expected at least 0)")
    out = _C.zeros(n, m, dtype=dtype, device=device, out=out)
    diagonal = out.as_strided((min(n, m),), (sum(out.stride()),), out.storage_offset())
    diagonal.fill_(1)
    return out.requires_grad_(requires_grad)


def scalar_tensor(s, *, dtype=None, requires_grad=False, device=None, layout=None, pin_memory=False):
    """The number as a 0-d tensor of the default dtype.

    >>> import pydist
    >>> pydist.scalar_tensor(2)
    tensor(2.)
    """
    return _C.tensor(s, dtype=dtype or _C.get_default_dtype(), device=device, requires_grad=requires_grad)


def asarray(obj, *, dtype=None, device=None, copy=None, requires_grad=None):
    """obj (a tensor, a NumPy array or another object with the buffer protocol, a number, a sequence) as a tensor, which
    shares obj's memory if possible.

    copy: True never shares; False raises ValueError if a copy is needed. requires_grad: None keeps the value of a
    tensor. A tensor keeps its history unless requires_grad is False. Errors: as for `from_numpy`.

    >>> import numpy, pydist
    >>> array = numpy.zeros(2)
    >>> pydist.asarray(array).add_(1)
    tensor([1., 1.], dtype=pydist.float64)
    >>> array
    array([1., 1.])
    """
    if not isinstance(obj, _C.Tensor):
        return _C._asarray(obj, dtype, device, copy, requires_grad)
    made = obj.to(obj.device if device is None else device, obj.dtype if dtype is None else dtype, copy=bool(copy))
    if copy is False and made is not obj:
        raise ValueError("asarray: copy is False, but another dtype or device needs a copy (expected copy=None)")
    if requires_grad is None or made.requires_grad == bool(requires_grad):
        return made
    return made.detach().requires_grad_(bool(requires_grad))


def empty_strided(size, stride, *, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
    """An uninitialised tensor with these strides, in elements."""
    span = 1 + sum((n - 1) * step for n, step in zip(size, stride)) if min(size, default=1) else 0
    memory = _C.empty(span, dtype=dtype, device=device, layout=layout)
    made = (memory.pin_memory() if pin_memory else memory).as_strided(tuple(size), tuple(stride))
    return made.detach().requires_grad_(requires_grad)


def range(
    start=0, end=None, step=1, *, out=None, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False
):
    """start, start + step, ... up to and including end, in the default dtype.

    >>> import pydist
    >>> pydist.range(0, 2)
    tensor([0., 1., 2.])
    """
    start, end = (0, start) if end is None else (start, end)
    if not step or (end - start) / step < 0:
        raise RuntimeError(f"range: got {start} to {end} by {step} (expected a nonzero step towards end)")
    counts = _C.arange(int((end - start) / step) + 1, dtype=_C.float64, device=device, layout=layout)
    return _finished("range", counts * step + start, out, dtype, pin_memory, requires_grad)


def _window(name, n, periodic, weights, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
    """sum_k weights[k] cos(2 pi k i / m), where m is n, or n - 1 unless periodic."""
    if n < 0:
        raise RuntimeError(f"{name}: window_length is {n} (expected at least 0)")
    steps = max(n if periodic else n - 1, 1)
    angle = _C.arange(n, dtype=_C.float64, device=device, layout=layout) * (2 * math.pi / steps)
    values = (
        sum((angle * k).cos() * w for k, w in enumerate(weights))
        if n != 1
        else _C.ones(1, dtype=_C.float64, device=device)
    )
    return _finished(name, values, None, dtype, pin_memory, requires_grad)


def hann_window(window_length, periodic=True, **options):
    """0.5 - 0.5 cos(2 pi i / n)."""
    return _window("hann_window", window_length, periodic, (0.5, -0.5), **options)


def hamming_window(window_length, periodic=True, alpha=0.54, beta=0.46, **options):
    """alpha - beta cos(2 pi i / n)."""
    return _window("hamming_window", window_length, periodic, (alpha, -beta), **options)


def blackman_window(window_length, periodic=True, **options):
    """0.42 - 0.5 cos(2 pi i / n) + 0.08 cos(4 pi i / n)."""
    return _window("blackman_window", window_length, periodic, (0.42, -0.5, 0.08), **options)


def numel(input):
    """The number of elements."""
    return input.numel()


def is_inference(input):
    """Whether the tensor was made in inference mode."""
    return input.is_inference()


def is_nonzero(input):
    """Whether the only element is not zero."""
    return input.is_nonzero()
