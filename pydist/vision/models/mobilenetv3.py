"""MobileNetV3 (Howard et al., arXiv 1905.02244), large and small."""

from functools import partial

from pydist import nn
from pydist.vision.models._api import builder, weights_of
from pydist.vision.models._blocks import Conv2dNormActivation, SqueezeExcitation, initialize, make_divisible


class InvertedResidualConfig:
    """The sizes of one InvertedResidual, with channels scaled by width_mult. activation: "RE" (ReLU) or "HS"
    (Hardswish)."""

    def __init__(
        self, input_channels, kernel, expanded_channels, out_channels, use_se, activation, stride, dilation, width_mult
    ):
        self.input_channels = self.adjust_channels(input_channels, width_mult)
        self.kernel = kernel
        self.expanded_channels = self.adjust_channels(expanded_channels, width_mult)
        self.out_channels = self.adjust_channels(out_channels, width_mult)
        self.use_se = use_se
        self.use_hs = activation == "HS"
        self.stride = stride
        self.dilation = dilation

    @staticmethod
    def adjust_channels(channels, width_mult):
        """The channels, scaled by width_mult and rounded to a multiple of 8."""
        return make_divisible(channels * width_mult)


class InvertedResidual(nn.Module):
    """1 x 1, depthwise, squeeze and excitation (optional), 1 x 1; added to the input if the shapes agree."""

    def __init__(self, cnf, norm_layer, se_layer=None):
        super().__init__()
        if cnf.stride not in (1, 2):
            raise ValueError(f"illegal stride value: got {cnf.stride} (expected 1 or 2)")
        self.use_res_connect = cnf.stride == 1 and cnf.input_channels == cnf.out_channels
        wide = cnf.expanded_channels
        common = {"norm_layer": norm_layer, "activation_layer": nn.Hardswish if cnf.use_hs else nn.ReLU}
        layers = []
        if wide != cnf.input_channels:
            layers.append(Conv2dNormActivation(cnf.input_channels, wide, kernel_size=1, **common))
        stride = 1 if cnf.dilation > 1 else cnf.stride
        layers.append(Conv2dNormActivation(wide, wide, cnf.kernel, stride, wide, dilation=cnf.dilation, **common))
        if cnf.use_se:
            se_layer = se_layer or partial(SqueezeExcitation, scale_activation=nn.Hardsigmoid)
            layers.append(se_layer(wide, make_divisible(wide // 4)))
        layers.append(Conv2dNormActivation(wide, cnf.out_channels, 1, norm_layer=norm_layer, activation_layer=None))
        self.block = nn.Sequential(*layers)
        self.out_channels = cnf.out_channels

    def forward(self, input):
        result = self.block(input)
        return result + input if self.use_res_connect else result


class MobileNetV3(nn.Module):
    """Inverted residuals (a list of InvertedResidualConfig) for images [N, 3, H, W]. Returns [N, num_classes]."""

    def __init__(
        self, inverted_residual_setting, last_channel, num_classes=1000, block=None, norm_layer=None, dropout=0.2
    ):
        super().__init__()
        if not inverted_residual_setting:
            raise ValueError("The inverted_residual_setting should not be empty")
        if not all(isinstance(cnf, InvertedResidualConfig) for cnf in inverted_residual_setting):
            raise TypeError("The inverted_residual_setting should be List[InvertedResidualConfig]")
        block = block or InvertedResidual
        norm_layer = norm_layer or partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)
        common = {"norm_layer": norm_layer, "activation_layer": nn.Hardswish}
        last = inverted_residual_setting[-1].out_channels
        self.features = nn.Sequential(
            Conv2dNormActivation(3, inverted_residual_setting[0].input_channels, 3, 2, **common),
            *(block(cnf, norm_layer) for cnf in inverted_residual_setting),
            Conv2dNormActivation(last, 6 * last, kernel_size=1, **common),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * last, last_channel),
            nn.Hardswish(inplace=True),
            nn.Dropout(p=dropout, inplace=True),
            nn.Linear(last_channel, num_classes),
        )
        initialize(self)

    def forward(self, x):
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _large(half, dilation):
    """Rows of (input channels, kernel, expanded and output channels, squeeze and excitation, activation, stride,
    dilation)."""
    return [
        (16, 3, 16, 16, False, "RE", 1, 1),
        (16, 3, 64, 24, False, "RE", 2, 1),
        (24, 3, 72, 24, False, "RE", 1, 1),
        (24, 5, 72, 40, True, "RE", 2, 1),
        (40, 5, 120, 40, True, "RE", 1, 1),
        (40, 5, 120, 40, True, "RE", 1, 1),
        (40, 3, 240, 80, False, "HS", 2, 1),
        (80, 3, 200, 80, False, "HS", 1, 1),
        (80, 3, 184, 80, False, "HS", 1, 1),
        (80, 3, 184, 80, False, "HS", 1, 1),
        (80, 3, 480, 112, True, "HS", 1, 1),
        (112, 3, 672, 112, True, "HS", 1, 1),
        (112, 5, 672, 160 // half, True, "HS", 2, dilation),
        (160 // half, 5, 960 // half, 160 // half, True, "HS", 1, dilation),
        (160 // half, 5, 960 // half, 160 // half, True, "HS", 1, dilation),
    ]


def _small(half, dilation):
    return [
        (16, 3, 16, 16, True, "RE", 2, 1),
        (16, 3, 72, 24, False, "RE", 2, 1),
        (24, 3, 88, 24, False, "RE", 1, 1),
        (24, 5, 96, 40, True, "HS", 2, 1),
        (40, 5, 240, 40, True, "HS", 1, 1),
        (40, 5, 240, 40, True, "HS", 1, 1),
        (40, 5, 120, 48, True, "HS", 1, 1),
        (48, 5, 144, 48, True, "HS", 1, 1),
        (48, 5, 288, 96 // half, True, "HS", 2, dilation),
        (96 // half, 5, 576 // half, 96 // half, True, "HS", 1, dilation),
        (96 // half, 5, 576 // half, 96 // half, True, "HS", 1, dilation),
    ]


def _mobilenet_v3(rows, last_channel, width_mult=1.0, reduced_tail=False, dilated=False, **kwargs):
    half, dilation = (2 if reduced_tail else 1), (2 if dilated else 1)
    setting = [InvertedResidualConfig(*row, width_mult) for row in rows(half, dilation)]
    return MobileNetV3(setting, make_divisible(last_channel // half * width_mult), **kwargs)


MobileNet_V3_Large_Weights = weights_of(
    "MobileNet_V3_Large_Weights", 5483032, "mobilenet_v3_large-8738ca79.pth", "mobilenet_v3_large-5c1a4163.pth"
)
MobileNet_V3_Small_Weights = weights_of("MobileNet_V3_Small_Weights", 2542856, "mobilenet_v3_small-047dcff4.pth")

mobilenet_v3_large = builder("mobilenet_v3_large", MobileNet_V3_Large_Weights, _mobilenet_v3, _large, 1280)
mobilenet_v3_small = builder("mobilenet_v3_small", MobileNet_V3_Small_Weights, _mobilenet_v3, _small, 1024)
