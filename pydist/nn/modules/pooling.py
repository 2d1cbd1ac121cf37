"""Pooling: the maximum or the mean of windows."""

from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class _MaxPool(Module):
    """y[..., i] = max of x[..., i * stride - padding + k * dilation] over 0 <= k < kernel_size. Padding counts as -inf.

    `stride` is kernel_size unless given. `ceil_mode` adds a last window that begins inside x and ends outside.
    `return_indices` also returns the positions of the maxima in their plane (int64). Raises ValueError or ShapeError
    for windows that do not fit.
    """

    def __init__(self, kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False):
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input):
        return self._pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self):
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


def _single(value):
    return (value,) if isinstance(value, int) else tuple(value)


class AvgPool1d(Module):
    """y[..., i] = mean of x[..., i * stride - padding + k] over 0 <= k < kernel_size, for x[N, C, L] or x[C, L].

    Padding counts as zeros; with count_include_pad=False it does not count. `stride` is kernel_size unless given.
    `ceil_mode` adds a last window that begins inside x and ends outside.
    """

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        super().__init__()
        self.kernel_size = _single(kernel_size)
        self.stride = _single(kernel_size if stride is None else stride)
        self.padding = _single(padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input):
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of each window of x[N, C, H, W] or x[C, H, W]. As AvgPool1d, but sizes are ints or pairs.
    `divisor_override` divides the sums instead of the window's size."""

    _pool = staticmethod(F.avg_pool2d)

    def __init__(
        self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input):
        return self._pool(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool3d(AvgPool2d):
    """The mean of each window of x[N, C, D, H, W] or x[C, D, H, W]. As AvgPool2d, but sizes are ints or triples."""

    _pool = staticmethod(F.avg_pool3d)


class _AdaptiveAvgPool(Module):
    """The mean over the windows [floor(i n / m), ceil((i + 1) n / m)), for every i below output_size m (None: n)."""

    def __init__(self, output_size):
        super().__init__()
        self.output_size = output_size

    def forward(self, input):
        return self._pool(input, self.output_size)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class _AdaptiveMaxPool(_AdaptiveAvgPool):
    """The maximum of the windows [floor(i n / m), ceil((i + 1) n / m)), for every i below output_size m (None: n).
    `return_indices` also returns its position in its plane (int64)."""

    def __init__(self, output_size, return_indices=False):
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input):
        return self._pool(input, self.output_size, self.return_indices)


def _kind(name, base, pool, over):
    doc = f"Over {over}. {base.__doc__}"
    return type(name, (base,), {"__doc__": doc, "__module__": __name__, "_pool": staticmethod(pool)})


_ROWS, _PLANES, _BLOCKS = "x[N, C, L] or x[C, L]", "x[N, C, H, W] or x[C, H, W]", "x[N, C, D, H, W] or x[C, D, H, W]"
AdaptiveAvgPool1d = _kind("AdaptiveAvgPool1d", _AdaptiveAvgPool, F.adaptive_avg_pool1d, _ROWS)
AdaptiveAvgPool2d = _kind("AdaptiveAvgPool2d", _AdaptiveAvgPool, F.adaptive_avg_pool2d, _PLANES)
AdaptiveAvgPool3d = _kind("AdaptiveAvgPool3d", _AdaptiveAvgPool, F.adaptive_avg_pool3d, _BLOCKS)
AdaptiveMaxPool1d = _kind("AdaptiveMaxPool1d", _AdaptiveMaxPool, F.adaptive_max_pool1d, _ROWS)
AdaptiveMaxPool2d = _kind("AdaptiveMaxPool2d", _AdaptiveMaxPool, F.adaptive_max_pool2d, _PLANES)
AdaptiveMaxPool3d = _kind("AdaptiveMaxPool3d", _AdaptiveMaxPool, F.adaptive_max_pool3d, _BLOCKS)
MaxPool1d = _kind("MaxPool1d", _MaxPool, F.max_pool1d, _ROWS)
MaxPool2d = _kind("MaxPool2d", _MaxPool, F.max_pool2d, f"{_PLANES}; sizes are ints or pairs")
MaxPool3d = _kind("MaxPool3d", _MaxPool, F.max_pool3d, f"{_BLOCKS}; sizes are ints or triples")


class _MaxUnpool(Module):
    """y is zeros with x's elements at their `indices`, as MaxPool with return_indices returned them. forward's
    output_size chooses among the sizes that pooling maps to x's size."""

    def __init__(self, kernel_size, stride=None, padding=0):
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    def forward(self, input, indices, output_size=None):
        return self._pool(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


MaxUnpool1d = _kind("MaxUnpool1d", _MaxUnpool, F.max_unpool1d, _ROWS)
MaxUnpool2d = _kind("MaxUnpool2d", _MaxUnpool, F.max_unpool2d, _PLANES)
MaxUnpool3d = _kind("MaxUnpool3d", _MaxUnpool, F.max_unpool3d, _BLOCKS)


class _LPPool(Module):
    """y[...] = (sum of x ** p) ** (1 / p) over each window, where p is norm_type."""

    def __init__(self, norm_type, kernel_size, stride=None, ceil_mode=False):
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input):
        return self._pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self):
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


LPPool1d = _kind("LPPool1d", _LPPool, F.lp_pool1d, _ROWS)
LPPool2d = _kind("LPPool2d", _LPPool, F.lp_pool2d, _PLANES)
LPPool3d = _kind("LPPool3d", _LPPool, F.lp_pool3d, _BLOCKS)


class _FractionalMaxPool(Module):
    """The maxima of windows that begin at pseudo-random positions, so that each size is multiplied by about
    output_ratio. See functional.fractional_max_pool2d. Give one of output_size and output_ratio."""

    def __init__(self, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
        super().__init__()
        if (output_size is None) == (output_ratio is None):
            raise ValueError(
                f"{type(self).__name__} requires specifying either an output size, or a pooling ratio "
                f"(got output_size={output_size}, output_ratio={output_ratio})"
            )
        self.kernel_size = kernel_size
        self.output_size = output_size
        self.output_ratio = output_ratio
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input):
        return self._pool(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples
        )


FractionalMaxPool2d = _kind("FractionalMaxPool2d", _FractionalMaxPool, F.fractional_max_pool2d, _PLANES)
FractionalMaxPool3d = _kind("FractionalMaxPool3d", _FractionalMaxPool, F.fractional_max_pool3d, _BLOCKS)
