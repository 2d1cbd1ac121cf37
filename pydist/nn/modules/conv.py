"""Convolution."""

import math

from pydist import _C
from pydist.nn import functional as F
from pydist.nn import init
from pydist.nn.modules.module import Module
from pydist.nn.parameter import Parameter


class _Conv(Module):
    """y[n, k] = b[k] + sum_c w[k, c] * x[n, c] (cross-correlation), with w[K, C / groups, *kernel_size].

    Sizes are ints or one int per dim. padding is also "same" (stride 1) or "valid"; it adds zeros, or what padding_mode
    says: "reflect", "replicate", "circular". w and b start uniform in +-1/sqrt(C / groups * elements of the kernel).
    Raises ValueError unless groups divides both channel counts.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        bias=True,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer, got {groups}")
        if in_channels % groups != 0:
            raise ValueError(f"in_channels must be divisible by groups, got {in_channels} and {groups}")
        if out_channels % groups != 0:
            raise ValueError(f"out_channels must be divisible by groups, got {out_channels} and {groups}")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                f"padding_mode must be zeros, reflect, replicate or circular, but got padding_mode='{padding_mode}'"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = self._sizes(kernel_size)
        self.stride = self._sizes(stride)
        self.padding = padding if isinstance(padding, str) else self._sizes(padding)
        self.dilation = self._sizes(dilation)
        self.groups = groups
        self.padding_mode = padding_mode
        F.conv_padding(
            self.padding, self.kernel_size, self.stride, self.dilation
        )  # raises an error for wrong arguments now
        self.weight = Parameter(_C.empty(self._shape(), device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(_C.empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def _shape(self):
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    def _sizes(self, value):
        return (value,) * self._dims if isinstance(value, int) else tuple(value)

    def reset_parameters(self):
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = math.prod(self.weight.shape[1:])
            if fan_in > 0:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def forward(self, input):
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input, weight, bias):
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._sides(), self.padding_mode), 0
        return self._function(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def _sides(self):
        """The padding before and after each dimension, last dimension first."""
        if not isinstance(self.padding, str):
            return [p for p in reversed(self.padding) for _ in range(2)]
        if self.padding == "valid":
            return [0] * (2 * self._dims)
        total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
        return [n for t in reversed(total) for n in (t // 2, t - t // 2)]

    def extra_repr(self):
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        zero, one = self._sizes(0), self._sizes(1)
        for name, default in (("padding", zero), ("dilation", one), ("output_padding", zero), ("groups", 1)):
            if (value := getattr(self, name, default)) != default:
                text += f", {name}={value}"
        text = text if self.bias is not None else text + ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"


class Conv1d(_Conv):
    __doc__ = f"Over x[N, C, L] or x[C, L]. {_Conv.__doc__}"
    _dims, _function = 1, staticmethod(F.conv1d)


class Conv2d(_Conv):
    __doc__ = f"Over x[N, C, H, W] or x[C, H, W]. {_Conv.__doc__}"
    _dims, _function = 2, staticmethod(F.conv2d)


class Conv3d(_Conv):
    __doc__ = f"Over x[N, C, D, H, W] or x[C, D, H, W]. {_Conv.__doc__}"
    _dims, _function = 3, staticmethod(F.conv3d)


class _ConvTranspose(_Conv):
    """y is the gradient that a convolution with weight w[C, K / groups, *kernel_size] gives its input, as a function of
    x, plus b[k]. Its size is (n - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + output_padding + 1.

    forward's output_size chooses, instead of output_padding, among the sizes that the convolution maps to x's size.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        bias=True,
        dilation=1,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        if isinstance(padding, str):
            raise ValueError(f"{type(self).__name__}: padding is {padding!r} (expected numbers)")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )
        self.output_padding = self._sizes(output_padding)

    def _shape(self):
        return (self.in_channels, self.out_channels // self.groups, *self.kernel_size)

    def _padding_for(self, input, output_size):
        if output_size is None:
            return self.output_padding
        size = tuple(output_size)[-self._dims :]
        places = zip(input.shape[-self._dims :], self.stride, self.padding, self.dilation, self.kernel_size)
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in places]
        if len(size) != self._dims or any(not m <= n < m + s for n, m, s in zip(size, least, self.stride)):
            most = [m + s - 1 for m, s in zip(least, self.stride)]
            raise ValueError(f"requested an output size of {size}, but valid sizes range from {least} to {most}")
        return [n - m for n, m in zip(size, least)]

    def forward(self, input, output_size=None):
        more = self._padding_for(input, output_size)
        return self._function(
            input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation
        )


class ConvTranspose1d(_ConvTranspose):
    __doc__ = f"Over x[N, C, L] or x[C, L]. {_ConvTranspose.__doc__}"
    _dims, _function = 1, staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    __doc__ = f"Over x[N, C, H, W] or x[C, H, W]. {_ConvTranspose.__doc__}"
    _dims, _function = 2, staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    __doc__ = f"Over x[N, C, D, H, W] or x[C, D, H, W]. {_ConvTranspose.__doc__}"
    _dims, _function = 3, staticmethod(F.conv_transpose3d)
