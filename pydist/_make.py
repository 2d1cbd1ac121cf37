"""Tensors made from others, and counted ones: thin functions over the engine's."""

from pydist import _C


def full_like(input, fill_value, *, dtype=None, requires_grad=False, **options):
    """Filled with a number, of input's shape, strides and (unless given) dtype."""
    return _C.empty_like(input, dtype=dtype, **options).fill_(fill_value).requires_grad_(requires_grad)


def rand_like(input, *, dtype=None, requires_grad=False, **options):
    """Uniform in [0, 1), of input's shape and (unless given) dtype."""
    return _C.rand(tuple(input.shape), dtype=dtype or input.dtype, requires_grad=requires_grad, **options)


def randn_like(input, *, dtype=None, requires_grad=False, **options):
    """Normal, mean 0, variance 1, of input's shape and (unless given) dtype."""
    return _C.randn(tuple(input.shape), dtype=dtype or input.dtype, requires_grad=requires_grad, **options)


def randint_like(input, low=None, high=None, *, dtype=None, **options):
    """Whole numbers in [low, high), or [0, low), of input's shape and (unless given) dtype."""
    if low is None and high is None:
        raise TypeError("randint_like: no high given (expected randint_like(input, high) or (input, low, high))")
    low, high = (0, low) if high is None else (low or 0, high)
    return _C.randint(low, high, tuple(input.shape), dtype=dtype or input.dtype, **options)


def linspace(start, end, steps, *, dtype=None, requires_grad=False, device=None):
    """`steps` numbers from start to end, both included, evenly spaced: start + i (end - start) / (steps - 1).

    >>> import pydist
    >>> pydist.linspace(0, 1, 5)
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    if steps < 0:
        raise RuntimeError(f"linspace: steps is {steps} (expected at least 0)")
    start, end = (v.item() if isinstance(v, _C.Tensor) else v for v in (start, end))
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    # From both ends, in double: exact at both, as PyTorch does it.
    counts = _C.arange(steps, dtype=_C.float64, device=device)
    values = _C.where(counts < steps / 2, counts * step + start, (counts - (steps - 1)) * step + end)
    return values.to(dtype or _C.get_default_dtype()).requires_grad_(requires_grad)


def logspace(start, end, steps, base=10.0, *, dtype=None, requires_grad=False, device=None):
    """`steps` numbers from base**start to base**end, both included, whose exponents are evenly spaced.

    >>> import pydist
    >>> pydist.logspace(0, 2, 3)
    tensor([  1.,  10., 100.])
    """
    exponents = linspace(start, end, steps, dtype=_C.float64, device=device)
    return (float(base) ** exponents).to(dtype or _C.get_default_dtype()).requires_grad_(requires_grad)


def eye(n, m=None, *, dtype=None, requires_grad=False, device=None):
    """The identity: n x m, ones on the diagonal.

    >>> import pydist
    >>> pydist.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    m = n if m is None else m
    if n < 0 or m < 0:
        raise RuntimeError(f"eye: sizes {n} and {m} (expected at least 0)")
    out = _C.zeros(n, m, dtype=dtype, device=device)
    out.as_strided((min(n, m),), (m + 1,)).fill_(1)
    return out.requires_grad_(requires_grad)


def numel(input):
    """How many elements."""
    return input.numel()


def is_inference(input):
    """Whether the tensor's memory was made in inference mode."""
    return input.is_inference()


def is_nonzero(input):
    """The truth of the one element."""
    return input.is_nonzero()
