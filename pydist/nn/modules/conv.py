"""Convolution."""

import math

from pydist import _C
from pydist.nn import functional as F
from pydist.nn import init
from pydist.nn.modules.module import Module
from pydist.nn.parameter import Parameter


class _Conv(Module):
    """y[n, k] = b[k] + sum_c w[k, c] * x[n, c] (cross-correlation), with w[K, C / groups, *kernel_size].

    Sizes are ints or one int per dim; padding also "same" (stride 1) or "valid", with zeros. w and b start uniform in
    +-1/sqrt(C / groups * elements of the kernel). Raises ValueError where groups do not divide both channel counts.
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
            raise ValueError("groups must be a positive integer")
        if in_channels % groups != 0:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups != 0:
            raise ValueError("out_channels must be divisible by groups")
        if padding_mode != "zeros":
            raise ValueError(f"padding_mode must be 'zeros', got {padding_mode!r}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = self._sizes(kernel_size)
        self.stride = self._sizes(stride)
        self.padding = padding if isinstance(padding, str) else self._sizes(padding)
        self.dilation = self._sizes(dilation)
        self.groups = groups
        self.padding_mode = padding_mode
        F.conv_padding(self.padding, self.kernel_size, self.stride, self.dilation)  # raises early
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(_C.empty(shape, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(_C.empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def _sizes(self, value):
        return (value,) * self._dims if isinstance(value, int) else tuple(value)

    def reset_parameters(self):
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = math.prod(self.weight.shape[1:])
            if fan_in > 0:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def forward(self, input):
        return self._function(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self):
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        for name, default in (("padding", self._sizes(0)), ("dilation", self._sizes(1)), ("groups", 1)):
            if (value := getattr(self, name)) != default:
                text += f", {name}={value}"
        return text if self.bias is not None else text + ", bias=False"


class Conv1d(_Conv):
    __doc__ = f"Over x[N, C, L] or x[C, L]. {_Conv.__doc__}"
    _dims, _function = 1, staticmethod(F.conv1d)


class Conv2d(_Conv):
    __doc__ = f"Over x[N, C, H, W] or x[C, H, W]. {_Conv.__doc__}"
    _dims, _function = 2, staticmethod(F.conv2d)
