"""Pooling."""

from pydist import _C

max_pool1d_with_indices = _C.max_pool1d_with_indices
max_pool2d_with_indices = _C.max_pool2d_with_indices
avg_pool1d = _C.avg_pool1d
avg_pool2d = _C.avg_pool2d
adaptive_avg_pool1d = _C.adaptive_avg_pool1d


def max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest element of each window of input[N, C, L] or [C, L], and their positions along L if return_indices."""
    pool = _C.max_pool1d_with_indices if return_indices else _C.max_pool1d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest element of each window of input[N, C, H, W] or [C, H, W], and their positions in the H * W plane if
    return_indices; see nn.MaxPool2d."""
    pool = _C.max_pool2d_with_indices if return_indices else _C.max_pool2d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode)


def _output_size(input, size):
    """A pair of sizes, None standing for the input's own."""
    size = (size, size) if size is None or isinstance(size, int) else tuple(size)
    return tuple(input.shape[i - len(size)] if n is None else n for i, n in enumerate(size))


def adaptive_avg_pool2d(input, output_size):
    """The mean of input's window [floor(i n / m), ceil((i + 1) n / m)) for every i of output_size m (None: n), n being
    the size of input[N, C, H, W] or [C, H, W]."""
    return _C.adaptive_avg_pool2d(input, _output_size(input, output_size))


def adaptive_max_pool2d_with_indices(input, output_size, return_indices=False):
    """adaptive_max_pool2d, and the position of each result in the H * W plane."""
    return _C.adaptive_max_pool2d_with_indices(input, _output_size(input, output_size))


def adaptive_max_pool2d(input, output_size, return_indices=False):
    """The largest element of adaptive_avg_pool2d's windows, and its position in the H * W plane if return_indices."""
    if return_indices:
        return adaptive_max_pool2d_with_indices(input, output_size)
    return _C.adaptive_max_pool2d(input, _output_size(input, output_size))


def adaptive_max_pool1d_with_indices(input, output_size, return_indices=False):
    """adaptive_max_pool1d, and the position of each result along L."""
    return tuple(_C.adaptive_max_pool1d(input, output_size))


def adaptive_max_pool1d(input, output_size, return_indices=False):
    """The largest element of input's window [floor(i n / m), ceil((i + 1) n / m)) for every i of output_size m along the
    last of the n elements of input[N, C, L] or [C, L], and its position if return_indices."""
    values, indices = _C.adaptive_max_pool1d(input, output_size)
    return (values, indices) if return_indices else values
