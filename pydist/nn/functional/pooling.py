"""Pooling."""

from pydist import _C
from pydist._autocast import in_float32
from pydist.nn.functional.conv import sizes_of

max_pool1d_with_indices = _C.max_pool1d_with_indices
max_pool2d_with_indices = _C.max_pool2d_with_indices
avg_pool1d = _C.avg_pool1d
avg_pool2d = _C.avg_pool2d
adaptive_avg_pool1d = _C.adaptive_avg_pool1d


def max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest element of each window of input[N, C, L] or [C, L]; with return_indices also the positions along
    L."""
    pool = _C.max_pool1d_with_indices if return_indices else _C.max_pool1d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest element of each window of input[N, C, H, W] or [C, H, W]; with return_indices also the positions in
    the H * W plane. See nn.MaxPool2d."""
    pool = _C.max_pool2d_with_indices if return_indices else _C.max_pool2d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode)


def _output_size(input, size, dims=2):
    """A size for each dimension. None means the input's own size."""
    size = (size,) * dims if size is None or isinstance(size, int) else tuple(size)
    return tuple(input.shape[i - len(size)] if n is None else n for i, n in enumerate(size))


def adaptive_avg_pool2d(input, output_size):
    """The mean over the windows [floor(i n / m), ceil((i + 1) n / m)) of input[N, C, H, W] or [C, H, W], for every i
    below output_size m (None: n), where n is input's size."""
    return _C.adaptive_avg_pool2d(input, _output_size(input, output_size))


def adaptive_max_pool2d_with_indices(input, output_size, return_indices=False):
    """(adaptive_max_pool2d, the position of each result in the H * W plane)."""
    return _C.adaptive_max_pool2d_with_indices(input, _output_size(input, output_size))


def adaptive_max_pool2d(input, output_size, return_indices=False):
    """The largest element of adaptive_avg_pool2d's windows; with return_indices also its position in the H * W
    plane."""
    if return_indices:
        return adaptive_max_pool2d_with_indices(input, output_size)
    return _C.adaptive_max_pool2d(input, _output_size(input, output_size))


def adaptive_max_pool1d_with_indices(input, output_size, return_indices=False):
    """(adaptive_max_pool1d, the position of each result along L)."""
    return tuple(_C.adaptive_max_pool1d(input, output_size))


def adaptive_max_pool1d(input, output_size, return_indices=False):
    """The largest element of the windows [floor(i n / m), ceil((i + 1) n / m)) of input[N, C, L] or [C, L], for every i
    below output_size m, where n is input's last size; with return_indices also its position."""
    values, indices = _C.adaptive_max_pool1d(input, output_size)
    return (values, indices) if return_indices else values


def _three(input, name):
    if input.dim() not in (4, 5):
        raise _C.ShapeError(f"{name}: input has shape {tuple(input.shape)} (expected [N, C, D, H, W] or [C, D, H, W])")
    return input.reshape(-1, *input.shape[-3:])


def _planes_then_depth(input, name, planes, depth):
    """Applies `planes` to the last two dimensions, then `depth` to the third last."""
    x = _three(input, name)
    y = planes(x)
    z = depth(y.flatten(2).transpose(1, 2)).transpose(1, 2)
    return z.reshape(*input.shape[:-3], z.shape[1], *y.shape[2:])


@in_float32
def max_pool3d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest element of each window of input[N, C, D, H, W] or [C, D, H, W]; with return_indices also the
    positions in the D * H * W block. See nn.MaxPool3d."""
    k, d, p = (
        sizes_of(n, v, 3) for n, v in (("kernel_size", kernel_size), ("dilation", dilation), ("padding", padding))
    )
    s = k if stride is None else sizes_of("stride", stride, 3)
    if not return_indices:
        return _planes_then_depth(
            input,
            "max_pool3d",
            lambda x: _C.max_pool2d(x, k[1:], s[1:], p[1:], d[1:], ceil_mode),
            lambda x: _C.max_pool1d(x, k[0], s[0], p[0], d[0], ceil_mode),
        )
    x = _three(input, "max_pool3d")
    y, plane = _C.max_pool2d_with_indices(x, k[1:], s[1:], p[1:], d[1:], ceil_mode)
    rows = y.flatten(2).transpose(1, 2)
    z, depth = _C.max_pool1d_with_indices(rows, k[0], s[0], p[0], d[0], ceil_mode)
    within = plane.flatten(2).transpose(1, 2).gather(2, depth)
    shape = (*input.shape[:-3], z.shape[2], *y.shape[2:])
    index = depth * (x.shape[2] * x.shape[3]) + within
    return z.transpose(1, 2).reshape(shape), index.transpose(1, 2).reshape(shape)


def max_pool3d_with_indices(
    input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    """(max_pool3d, the positions)."""
    return max_pool3d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


@in_float32
def avg_pool3d(
    input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):
    """The mean of each window of input[N, C, D, H, W] or [C, D, H, W]; see nn.AvgPool3d."""
    k, p = sizes_of("kernel_size", kernel_size, 3), sizes_of("padding", padding, 3)
    s = k if stride is None else sizes_of("stride", stride, 3)
    if any(n < size for n, size in zip(input.shape[-3:], k)):
        raise _C.ShapeError(
            f"avg_pool3d: a window of {k} does not fit into the input {tuple(input.shape)} (expected at most its size)"
        )
    by = None if divisor_override is None else 1
    means = _planes_then_depth(
        input,
        "avg_pool3d",
        lambda x: _C.avg_pool2d(x, k[1:], s[1:], p[1:], ceil_mode, count_include_pad, by),
        lambda x: _C.avg_pool2d(
            x.unsqueeze(-1), (k[0], 1), (s[0], 1), (p[0], 0), ceil_mode, count_include_pad, by
        ).squeeze(-1),
    )
    return means if by is None else means / divisor_override


@in_float32
def adaptive_avg_pool3d(input, output_size):
    """adaptive_avg_pool2d for three dimensions."""
    size = _output_size(input, output_size, 3)
    return _planes_then_depth(
        input,
        "adaptive_avg_pool3d",
        lambda x: _C.adaptive_avg_pool2d(x, size[1:]),
        lambda x: _C.adaptive_avg_pool1d(x, size[0]),
    )


def adaptive_max_pool3d(input, output_size, return_indices=False):
    """adaptive_max_pool2d for three dimensions. Positions are those in the D * H * W block."""
    size = _output_size(input, output_size, 3)
    x = _three(input, "adaptive_max_pool3d")
    y, plane = _C.adaptive_max_pool2d_with_indices(x, size[1:])
    z, depth = _C.adaptive_max_pool1d(y.flatten(2).transpose(1, 2), size[0])
    shape = (*input.shape[:-3], *size)
    values = z.transpose(1, 2).reshape(shape)
    if not return_indices:
        return values
    index = depth * (x.shape[2] * x.shape[3]) + plane.flatten(2).transpose(1, 2).gather(2, depth)
    return values, index.transpose(1, 2).reshape(shape)


def adaptive_max_pool3d_with_indices(input, output_size, return_indices=False):
    """(adaptive_max_pool3d, the positions)."""
    return adaptive_max_pool3d(input, output_size, True)


def _unpooled(name, input, indices, kernel_size, stride, padding, output_size, dims):
    """Zeros, with input's elements at their positions."""
    kernel, padding = sizes_of("kernel_size", kernel_size, dims), sizes_of("padding", padding, dims)
    stride = kernel if stride is None else sizes_of("stride", stride, dims)
    if indices.shape != input.shape or indices.dtype is not _C.int64 or input.dim() not in (dims + 1, dims + 2):
        raise _C.ShapeError(
            f"{name}: input {tuple(input.shape)}, indices {indices.dtype} {tuple(indices.shape)} (expected equal "
            "shapes, indices int64)"
        )
    usual = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(input.shape[-dims:], stride, padding, kernel)]
    size = usual if output_size is None else list(output_size)[-dims:]
    if len(size) != dims or any(not n - s < m < n + s for m, n, s in zip(size, usual, stride)):
        raise ValueError(f"{name}: output_size is {tuple(size)} (expected near {tuple(usual)})")
    lead, count = input.shape[:-dims], 1
    for n in size:
        count *= n
    flat = _C.zeros(*lead, count, dtype=input.dtype, device=input.device)
    return flat.scatter(-1, indices.flatten(-dims), input.flatten(-dims)).reshape(*lead, *size)


def max_unpool1d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros, with input's elements at the positions that max_pool1d returned."""
    return _unpooled("max_unpool1d", input, indices, kernel_size, stride, padding, output_size, 1)


@in_float32
def max_unpool2d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros, with input's elements at the positions that max_pool2d returned."""
    return _unpooled("max_unpool2d", input, indices, kernel_size, stride, padding, output_size, 2)


@in_float32
def max_unpool3d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros, with input's elements at the positions that max_pool3d returned."""
    return _unpooled("max_unpool3d", input, indices, kernel_size, stride, padding, output_size, 3)


def _power_pool(input, norm_type, kernel, pool):
    """The p-norm of each window, by the mean of powers. Its sign is the sign of the sum of p-th powers."""
    mean = pool(input**norm_type)
    total = 1
    for k in kernel:
        total *= k
    return (mean.sign() * _C.relu(mean.abs()) * total) ** (1.0 / norm_type)


def lp_pool1d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(sum of x ** p) ** (1 / p) over each window of input[N, C, L] or [C, L]."""
    k = sizes_of("kernel_size", kernel_size, 1)
    return _power_pool(input, norm_type, k, lambda x: avg_pool1d(x, kernel_size, stride, 0, ceil_mode))


def lp_pool2d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(sum of x ** p) ** (1 / p) over each window of input[N, C, H, W] or [C, H, W]."""
    k = sizes_of("kernel_size", kernel_size, 2)
    return _power_pool(input, norm_type, k, lambda x: avg_pool2d(x, kernel_size, stride, 0, ceil_mode))


def lp_pool3d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(sum of x ** p) ** (1 / p) over each window of input[N, C, D, H, W] or [C, D, H, W]."""
    k = sizes_of("kernel_size", kernel_size, 3)
    return _power_pool(input, norm_type, k, lambda x: avg_pool3d(x, kernel_size, stride, 0, ceil_mode))
