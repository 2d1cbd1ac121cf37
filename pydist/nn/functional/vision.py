"""Resizing and sampling of images."""

import math
from warnings import warn

from pydist import _C
from pydist.nn.functional.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

_AXES = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
_ENGINE = {"nearest": "nearest", "nearest-exact": "exact", "bicubic": "cubic"}


def _target(input, size, scale_factor, recompute):
    """(sizes, how many source elements one result covers along each axis, or 0)."""
    dims = input.dim() - 2
    if (size is None) == (scale_factor is None):
        which = (
            "either size or scale_factor should be defined"
            if size is None
            else "only one of size or scale_factor should be defined"
        )
        raise ValueError(which)
    given = size if scale_factor is None else scale_factor
    given = tuple(given) if isinstance(given, (tuple, list)) else (given,) * dims
    if len(given) != dims:
        raise ValueError(
            f"interpolate: {len(given)} numbers in {'size' if scale_factor is None else 'scale_factor'} for {dims} "
            f"dimensions (expected {dims} numbers)"
        )
    if scale_factor is None:
        if recompute:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size (expected scale_factor)")
        return tuple(int(n) for n in given), (0.0,) * dims
    if not all(0 < float(f) < math.inf for f in given):
        raise _C.ShapeError(f"interpolate: scale_factor is {scale_factor} (expected more than 0)")
    sizes = tuple(math.floor(n * float(f)) for n, f in zip(input.shape[2:], given))
    return sizes, (0.0,) * dims if recompute else tuple(1.0 / float(f) for f in given)


def interpolate(
    input,
    size=None,
    scale_factor=None,
    mode="nearest",
    align_corners=None,
    recompute_scale_factor=None,
    antialias=False,
):
    """input[N, C, ...] resized to `size`, or by `scale_factor`, along its last one, two or three dimensions.

    mode "nearest", "nearest-exact" and "area" are for one to three dimensions, "linear" for one, "bilinear" and
    "bicubic" for two, "trilinear" for three. align_corners: the centres of the corner elements keep their positions,
    instead of the corners themselves. antialias (bilinear, bicubic): a smaller result is filtered as in Pillow. Raises
    ValueError if size and scale_factor are both given, both missing, or do not fit; NotImplementedError if the mode is
    not for this number of dimensions.

    >>> import pydist
    >>> pydist.nn.functional.interpolate(pydist.tensor([[[1.0, 2.0]]]), scale_factor=2).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    if mode in ("nearest", "area", "nearest-exact"):
        if align_corners is not None:
            raise ValueError(
                "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
            )
        align_corners = False
    sizes, scales = _target(input, size, scale_factor, recompute_scale_factor)
    dims = len(sizes)
    if antialias and not (mode in ("bilinear", "bicubic") and input.dim() == 4):
        raise ValueError(
            "interpolate: antialias with another mode or shape (expected mode bilinear or bicubic, and [N, C, H, W])"
        )
    if (
        dims not in (1, 2, 3)
        or _AXES.get(mode, dims) != dims
        or mode not in (*_AXES, "nearest", "nearest-exact", "area")
    ):
        raise NotImplementedError(
            f"interpolate: mode {mode!r} for {input.dim()} dimensions (expected [N, C, ...] and a mode for it)"
        )
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[dims - 1](input, sizes)
    if min(sizes) < 1 or min(input.shape[2:]) < 1:
        raise RuntimeError(f"interpolate: from {tuple(input.shape[2:])} to {sizes} (expected sizes of at least 1)")
    out = input if input.is_floating_point() else input.float()
    exact = mode.startswith("nearest")
    for dim in range(input.dim() - 1, 1, -1):
        n, scale = sizes[dim - 2], scales[dim - 2]
        if n != out.shape[dim] or scale not in (0.0, 1.0) and not align_corners:
            way = _ENGINE.get(mode, "linear") + ("_aa" if antialias else "")
            out = _C.resample(out, dim, n, way, bool(align_corners), scale)
    if out is input:
        return input.clone()
    return out if out.dtype is input.dtype else (out if exact else out.round().clamp(0, 255)).to(input.dtype)


def upsample(input, size=None, scale_factor=None, mode="nearest", align_corners=None):
    """interpolate."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input, size=None, scale_factor=None):
    """interpolate with mode "nearest"."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input, size=None, scale_factor=None):
    """interpolate with mode "bilinear" and align_corners."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def affine_grid(theta, size, align_corners=None):
    """The positions [N, H, W, 2] (or [N, D, H, W, 3]), in [-1, 1], to which the affine maps theta[N, 2, 3] ([N, 3, 4])
    send the elements of an image of `size`. For grid_sample."""
    dims = len(size) - 2
    if not theta.is_floating_point() or dims not in (2, 3) or tuple(theta.shape) != (size[0], dims, dims + 1):
        raise ValueError(
            f"affine_grid: theta has shape {tuple(theta.shape)}, size is {tuple(size)} (expected [N, 2, 3] or [N, 3, 4])"
        )
    axes = []
    for n in size[2:]:
        steps = (_C.arange(n, dtype=theta.dtype, device=theta.device) * 2 + (0 if align_corners else 1)) / (
            max(n - 1, 1) if align_corners else n
        ) - 1
        axes.append(steps * 0 if n == 1 else steps)
    shape = tuple(size[2:])
    parts = [axis.reshape([-1 if d == k else 1 for d in range(dims)]).expand(shape) for k, axis in enumerate(axes)]
    base = _C.stack([*reversed(parts), _C.ones(shape, dtype=theta.dtype, device=theta.device)], -1).reshape(
        1, -1, dims + 1
    )
    return (base @ theta.transpose(1, 2)).reshape(size[0], *shape, dims)


def _reflected(at, low, high):
    """Positions mirrored at low and high until they lie between them."""
    if high <= low:
        return at * 0
    span = float(high - low)
    away = (at - low).abs()
    flips = (away / span).floor()
    rest = away - flips * span
    return _C.where(_C.remainder(flips, 2) == 0, rest + low, span - rest + low)


def _inside(at, n, padding_mode, align_corners):
    """Positions moved into the image, as padding_mode says."""
    if padding_mode == "reflection":
        at = _reflected(at, 0, n - 1) if align_corners else _reflected(at, -0.5, n - 0.5)
    return at if padding_mode == "zeros" else at.clamp(0, n - 1)


def _at(input, index, keep):
    """input[N, C, ...] at the positions index (a list of [N, *out], one for each dimension); 0 where keep is false."""
    n, c, *size = input.shape
    flat, out = 0, index[0].shape[1:]
    for i, length in zip(index, size):
        flat = flat * length + i.clamp(0, length - 1).long()
    chosen = input.reshape(n, c, -1).gather(2, flat.reshape(n, 1, -1).expand(n, c, -1)).reshape(n, c, *out)
    return chosen if keep is None else chosen * keep.unsqueeze(1).to(input.dtype)


def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """input[N, C, H, W] at the positions grid[N, P, Q, 2] (x, y in [-1, 1]), or input[N, C, D, H, W] at grid[N, O, P,
    Q, 3]. mode: "bilinear", "nearest" or "bicubic" (images only). padding_mode for positions outside: "zeros", "border"
    (its nearest element) or "reflection"."""
    if mode not in ("bilinear", "nearest", "bicubic") or padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            f"grid_sample: mode is {mode!r}, padding_mode is {padding_mode!r} (expected bilinear, nearest or "
            "bicubic, and zeros, border or reflection)"
        )
    dims = input.dim() - 2
    if (
        dims not in (2, 3)
        or grid.dim() != input.dim()
        or grid.shape[-1] != dims
        or grid.shape[0] != input.shape[0]
        or 0 in input.shape[2:]
    ):
        raise RuntimeError(
            f"grid_sample: shapes {tuple(input.shape)} and {tuple(grid.shape)} (expected [N, C, H, W] and [N, P, Q, 2])"
        )
    if mode == "bicubic" and dims != 2:
        raise RuntimeError("grid_sample: mode is bicubic, but input is not of images (expected input of 4 dimensions)")
    if align_corners is None:
        warn("grid_sample: align_corners is False by default, as in PyTorch since 1.3", stacklevel=2)
    size, places = input.shape[2:], []
    for n, g in zip(size, reversed(grid.unbind(-1))):
        at = (g + 1) * ((n - 1) / 2) if align_corners else ((g + 1) * n - 1) / 2
        places.append(at if mode == "bicubic" else _inside(at, n, padding_mode, align_corners))

    def tap(index, weight):
        inside = None
        if mode == "bicubic":
            index = [_inside(i, n, padding_mode, align_corners) for i, n in zip(index, size)]
        if padding_mode == "zeros":
            inside = (index[0] >= 0) & (index[0] < size[0])
            for i, n in zip(index[1:], size[1:]):
                inside = inside & (i >= 0) & (i < n)
        found = _at(input, index, inside)
        return found if weight is None else found * weight.unsqueeze(1)

    if mode == "nearest":
        return tap([at.detach().round() for at in places], None)
    first = [at.detach().floor() for at in places]
    away = [at - f for at, f in zip(places, first)]
    reach = (-1, 0, 1, 2) if mode == "bicubic" else (0, 1)
    weights = [[_cubic((t - k).abs()) for k in reach] if mode == "bicubic" else [1 - t, t] for t in away]
    total = None
    for corner in range(len(reach) ** dims):
        steps = [corner // len(reach) ** d % len(reach) for d in range(dims)]
        weight = weights[0][steps[0]]
        for d in range(1, dims):
            weight = weight * weights[d][steps[d]]
        part = tap([f + reach[s] for f, s in zip(first, steps)], weight)
        total = part if total is None else total + part
    return total


def _cubic(d):
    """The weight of a neighbour at distance d (Keys, 1981, with -0.75)."""
    near, far = (1.25 * d - 2.25) * d * d + 1, ((-0.75 * d + 3.75) * d - 6) * d + 3
    return _C.where(d <= 1, near, far)
