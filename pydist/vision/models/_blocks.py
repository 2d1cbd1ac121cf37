"""Blocks of the mobile networks."""

from pydist import nn


class Conv2dNormActivation(nn.Sequential):
    """A convolution that keeps the size at stride 1, then a norm (the convolution has no bias then), then an
    activation. Norm and activation are optional."""

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size=3,
        stride=1,
        groups=1,
        norm_layer=nn.BatchNorm2d,
        activation_layer=nn.ReLU,
        dilation=1,
    ):
        padding = (kernel_size - 1) // 2 * dilation
        bias = norm_layer is None
        conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        norm = [] if norm_layer is None else [norm_layer(out_channels)]
        activation = [] if activation_layer is None else [activation_layer(inplace=True)]
        super().__init__(conv, *norm, *activation)
        self.out_channels = out_channels


class SqueezeExcitation(nn.Module):
    """input * scale_activation(fc2(activation(fc1(the mean of each channel)))) (Hu et al., arXiv 1709.01507)."""

    def __init__(self, input_channels, squeeze_channels, activation=nn.ReLU, scale_activation=None):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(input_channels, squeeze_channels, 1)
        self.fc2 = nn.Conv2d(squeeze_channels, input_channels, 1)
        self.activation = activation()
        self.scale_activation = (scale_activation or nn.Sigmoid)()

    def forward(self, input):
        scale = self.fc2(self.activation(self.fc1(self.avgpool(input))))
        return self.scale_activation(scale) * input


def make_divisible(value, divisor=8):
    """The multiple of `divisor` that is nearest to `value`, but at least 0.9 times value."""
    near = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * value else near


def initialize(network):
    """Sets the mobile networks' initial values."""
    for m in network.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out")
            if m.bias is not None:
                nn.init.zeros_(m.bias)
        elif isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, 0, 0.01)
            nn.init.zeros_(m.bias)
