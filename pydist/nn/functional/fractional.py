"""Pooling with windows that begin at random positions (Graham, 2014)."""

from math import prod

from pydist import _C
from pydist.nn.functional.conv import sizes_of

__all__ = [
    "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
]


def _begins(samples, size, out, kernel):
    """The positions at which the `out` windows of each plane begin: samples [N, C] in [0, 1) to int64 [N, C, out]. The
    last window ends at the end of the plane."""
    if out == 1:
        return _C.full((*samples.shape, 1), size - kernel, dtype=_C.int64, device=samples.device)
    alpha = (size - kernel) / (out - 1)
    steps = _C.arange(out - 1, device=samples.device).to(samples.dtype)
    begins = ((steps + samples.unsqueeze(-1)) * alpha).to(_C.int64) - (samples * alpha).to(_C.int64).unsqueeze(-1)
    return _C.cat([begins, _C.full((*samples.shape, 1), size - kernel, dtype=_C.int64, device=samples.device)], -1)


def _sizes_out(name, sizes, kernel, output_size, output_ratio):
    dims = len(sizes)
    if (output_size is None) == (output_ratio is None):
        raise ValueError(f"{name} requires specifying either an output_size or an output_ratio (expected one of them)")
    if output_size is not None:
        out = sizes_of("output_size", output_size, dims)
    else:
        ratios = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * dims
        if not all(0 < r < 1 for r in ratios):
            raise ValueError(f"{name}: output_ratio must be between 0 and 1 (got {output_ratio})")
        out = tuple(int(n * r) for n, r in zip(sizes, ratios))
    if any(o < 1 or k < 1 or o + k - 1 > n for o, k, n in zip(out, kernel, sizes)):
        raise RuntimeError(f"{name}: {out} windows of {kernel} do not fit into {tuple(sizes)}")
    return out


def _pool(name, input, kernel_size, output_size, output_ratio, samples, dims):
    if input.dim() not in (dims + 1, dims + 2):
        raise RuntimeError(f"{name}: input has {input.dim()} dimensions (expected {dims + 1} or {dims + 2})")
    kernel, sizes = sizes_of("kernel_size", kernel_size, dims), input.shape[-dims:]
    out = _sizes_out(name, sizes, kernel, output_size, output_ratio)
    x = input if input.dim() == dims + 2 else input.unsqueeze(0)
    if samples is None:
        samples = _C.rand(*x.shape[:2], dims, dtype=input.dtype, device=input.device)
    elif tuple(samples.shape) != (*x.shape[:2], dims):
        raise RuntimeError(f"{name}: _random_samples {tuple(samples.shape)} (expected {(*x.shape[:2], dims)})")
    flat = None  # the position in its plane of each element of each window: [N, C, *out, *kernel]
    for d, (size, o, k) in enumerate(zip(sizes, out, kernel)):
        column = dims - 1 - d if dims == 2 else d  # PyTorch's order of the samples
        at = _begins(samples[..., column], size, o, k).unsqueeze(-1) + _C.arange(k, device=input.device)
        shape = [1] * (2 * dims)
        shape[d], shape[dims + d] = o, k
        at = at.reshape(*x.shape[:2], *shape)
        flat = at if flat is None else flat * size + at
    flat = flat.reshape(*x.shape[:2], prod(out), prod(kernel))
    windows = x.flatten(2).gather(2, flat.flatten(2)).reshape(flat.shape)
    values, best = windows.max(-1)
    indices = flat.gather(3, best.unsqueeze(-1)).squeeze(-1)
    shape = (*input.shape[:-dims], *out)
    return values.reshape(shape), indices.reshape(shape)


def fractional_max_pool2d_with_indices(
    input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None
):
    """(maxima, their positions in the plane). See fractional_max_pool2d."""
    return _pool("fractional_max_pool2d", input, kernel_size, output_size, output_ratio, _random_samples, 2)


def fractional_max_pool3d_with_indices(
    input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None
):
    """(maxima, their positions in the volume). See fractional_max_pool3d."""
    return _pool("fractional_max_pool3d", input, kernel_size, output_size, output_ratio, _random_samples, 3)


def fractional_max_pool2d(
    input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None
):
    """The maxima of windows of `kernel_size` that begin at pseudo-random positions. In each dimension, window i of a
    plane begins at floor((i + u) a) - floor(u a) with a = (size - kernel) / (out - 1) and u drawn from [0, 1); the last
    window ends at the end.

    input is [N, C, H, W] or [C, H, W]. Give one of `output_size` and `output_ratio` (in (0, 1)). `return_indices` also
    returns the positions in the plane (int64). `_random_samples`: u as [N, C, 2], last dimension first.

    >>> import pydist
    >>> pydist.nn.functional.fractional_max_pool2d(pydist.arange(16.0).reshape(1, 4, 4), 2, output_size=2).shape
    pydist.Size([1, 2, 2])
    """
    found = fractional_max_pool2d_with_indices(input, kernel_size, output_size, output_ratio, False, _random_samples)
    return found if return_indices else found[0]


def fractional_max_pool3d(
    input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None
):
    """fractional_max_pool2d for volumes [N, C, D, H, W] or [C, D, H, W]. `_random_samples` is [N, C, 3], first
    dimension first."""
    found = fractional_max_pool3d_with_indices(input, kernel_size, output_size, output_ratio, False, _random_samples)
    return found if return_indices else found[0]
