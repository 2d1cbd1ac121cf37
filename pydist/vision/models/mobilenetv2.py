"""MobileNetV2 (Sandler et al., arXiv 1801.04381)."""

from pydist import nn
from pydist.nn import functional as F
from pydist.vision.models._api import builder, weights_of
from pydist.vision.models._blocks import Conv2dNormActivation, initialize, make_divisible


class InvertedResidual(nn.Module):
    """A wide depthwise convolution between two 1 x 1 convolutions, added to its input if the shapes agree."""

    def __init__(self, inp, oup, stride, expand_ratio, norm_layer=None):
        super().__init__()
        if stride not in (1, 2):
            raise ValueError(f"stride should be 1 or 2 instead of {stride}")
        self.stride = stride
        norm_layer = norm_layer or nn.BatchNorm2d
        wide = round(inp * expand_ratio)
        self.use_res_connect = stride == 1 and inp == oup
        common = {"norm_layer": norm_layer, "activation_layer": nn.ReLU6}
        layers = [Conv2dNormActivation(inp, wide, kernel_size=1, **common)] if expand_ratio != 1 else []
        layers.append(Conv2dNormActivation(wide, wide, stride=stride, groups=wide, **common))
        layers += [nn.Conv2d(wide, oup, 1, 1, 0, bias=False), norm_layer(oup)]
        self.conv = nn.Sequential(*layers)
        self.out_channels = oup

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(nn.Module):
    """Inverted residuals for images [N, 3, H, W]. Returns [N, num_classes]. width_mult scales all channels.

    inverted_residual_setting: rows of (expansion, channels, number of blocks, stride of the first).
    """

    def __init__(
        self,
        num_classes=1000,
        width_mult=1.0,
        inverted_residual_setting=None,
        round_nearest=8,
        block=None,
        norm_layer=None,
        dropout=0.2,
    ):
        super().__init__()
        block, norm_layer = block or InvertedResidual, norm_layer or nn.BatchNorm2d
        if inverted_residual_setting is None:
            inverted_residual_setting = [
                (1, 16, 1, 1),
                (6, 24, 2, 2),
                (6, 32, 3, 2),
                (6, 64, 4, 2),
                (6, 96, 3, 1),
                (6, 160, 3, 2),
                (6, 320, 1, 1),
            ]
        if not inverted_residual_setting or len(inverted_residual_setting[0]) != 4:
            raise ValueError(
                f"inverted_residual_setting should be non-empty or a 4-element list, got {inverted_residual_setting}"
            )
        common = {"norm_layer": norm_layer, "activation_layer": nn.ReLU6}
        channels = make_divisible(32 * width_mult, round_nearest)
        self.last_channel = make_divisible(1280 * max(1.0, width_mult), round_nearest)
        features = [Conv2dNormActivation(3, channels, stride=2, **common)]
        for expansion, wanted, count, stride in inverted_residual_setting:
            out = make_divisible(wanted * width_mult, round_nearest)
            for i in range(count):
                features.append(
                    block(channels, out, stride if i == 0 else 1, expand_ratio=expansion, norm_layer=norm_layer)
                )
                channels = out
        features.append(Conv2dNormActivation(channels, self.last_channel, kernel_size=1, **common))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(p=dropout), nn.Linear(self.last_channel, num_classes))
        initialize(self)

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), (1, 1)).flatten(1))


MobileNet_V2_Weights = weights_of(
    "MobileNet_V2_Weights", 3504872, "mobilenet_v2-b0353104.pth", "mobilenet_v2-7ebf99e0.pth"
)

mobilenet_v2 = builder("mobilenet_v2", MobileNet_V2_Weights, MobileNetV2)
