"""Pooling: the maximum or the mean of windows."""

from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class _MaxPool(Module):
    """y[..., i] = max of x[..., i * stride - padding + k * dilation] over 0 <= k < kernel_size, padding being -inf.

    `stride` is kernel_size unless given; `ceil_mode` adds a last window that begins inside x and ends outside. With
    `return_indices` also the positions of the maxima in their plane (int64). Raises ValueError and ShapeError for
    windows that do not fit.
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


class MaxPool1d(_MaxPool):
    __doc__ = f"Over x[N, C, L] or x[C, L]. {_MaxPool.__doc__}"
    _pool = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    __doc__ = f"Over x[N, C, H, W] or x[C, H, W]; sizes are ints or pairs. {_MaxPool.__doc__}"
    _pool = staticmethod(F.max_pool2d)


def _single(value):
    return (value,) if isinstance(value, int) else tuple(value)


class AvgPool1d(Module):
    """y[..., i] = mean of x[..., i * stride - padding + k] over 0 <= k < kernel_size, for x[N, C, L] or x[C, L].

    Padding counts as zeros, or (count_include_pad=False) not at all. `stride` is kernel_size unless given; `ceil_mode`
    adds a last window that begins inside x and ends outside.
    """

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        super().__init__()
        self.kernel_size = _single(kernel_size)
        self.stride = _single(kernel_size if stride is None else stride)
        self.padding = _single(padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input):
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of each window of x[N, C, H, W] or x[C, H, W]; as AvgPool1d, sizes being ints or pairs.
    `divisor_override` divides the sums instead of the window's size."""

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
        return F.avg_pool2d(
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


class _AdaptiveAvgPool(Module):
    """The mean of window [floor(i n / m), ceil((i + 1) n / m)) for every i below output_size m (None: n)."""

    def __init__(self, output_size):
        super().__init__()
        self.output_size = output_size

    def forward(self, input):
        return self._pool(input, self.output_size)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    __doc__ = f"Over x[N, C, L] or x[C, L]. {_AdaptiveAvgPool.__doc__}"
    _pool = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    __doc__ = f"Over x[N, C, H, W] or x[C, H, W]. {_AdaptiveAvgPool.__doc__}"
    _pool = staticmethod(F.adaptive_avg_pool2d)


class _AdaptiveMaxPool(Module):
    """The maximum of window [floor(i n / m), ceil((i + 1) n / m)) for every i below output_size m (None: n); with
    `return_indices` also its position in its plane (int64)."""

    def __init__(self, output_size, return_indices=False):
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input):
        return self._pool(input, self.output_size, self.return_indices)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    __doc__ = f"Over x[N, C, L] or x[C, L]. {_AdaptiveMaxPool.__doc__}"
    _pool = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    __doc__ = f"Over x[N, C, H, W] or x[C, H, W]. {_AdaptiveMaxPool.__doc__}"
    _pool = staticmethod(F.adaptive_max_pool2d)
