"""SqueezeNet (Iandola et al., arXiv 1602.07360), versions 1.0 and 1.1."""

import pydist
from pydist import nn
from pydist.vision.models._api import builder, weights_of


class Fire(nn.Module):
    """A narrow 1 x 1 convolution, then 1 x 1 and 3 x 3 convolutions side by side."""

    def __init__(self, inplanes, squeeze_planes, expand1x1_planes, expand3x3_planes):
        super().__init__()
        self.inplanes = inplanes
        self.squeeze = nn.Conv2d(inplanes, squeeze_planes, kernel_size=1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeeze_planes, expand1x1_planes, kernel_size=1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeeze_planes, expand3x3_planes, kernel_size=3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.squeeze_activation(self.squeeze(x))
        wide = self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))
        return pydist.cat(wide, 1)


def _pool():
    return nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)


def _fire(inplanes, squeeze, expand):
    return Fire(inplanes, squeeze, expand, expand)


def _features(version):
    """The layers of a version. The two versions have the same Fire modules, with pools at different places."""
    fires = [
        _fire(*sizes)
        for sizes in (
            (64 if version == "1_1" else 96, 16, 64),
            (128, 16, 64),
            (128, 32, 128),
            (256, 32, 128),
            (256, 48, 192),
            (384, 48, 192),
            (384, 64, 256),
            (512, 64, 256),
        )
    ]
    if version == "1_0":
        first = nn.Conv2d(3, 96, kernel_size=7, stride=2)
        return [first, nn.ReLU(inplace=True), _pool(), *fires[:3], _pool(), *fires[3:7], _pool(), fires[7]]
    first = nn.Conv2d(3, 64, kernel_size=3, stride=2)
    return [first, nn.ReLU(inplace=True), _pool(), *fires[:2], _pool(), *fires[2:4], _pool(), *fires[4:]]


class SqueezeNet(nn.Module):
    """Eight Fire modules for images [N, 3, H, W]. Returns [N, num_classes]. version: "1_0" or "1_1"; any other raises
    ValueError."""

    def __init__(self, version="1_0", num_classes=1000, dropout=0.5):
        super().__init__()
        if version not in ("1_0", "1_1"):
            raise ValueError(f"Unsupported SqueezeNet version {version}: 1_0 or 1_1 expected")
        self.num_classes = num_classes
        self.features = nn.Sequential(*_features(version))
        last = nn.Conv2d(512, num_classes, kernel_size=1)
        self.classifier = nn.Sequential(
            nn.Dropout(p=dropout), last, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1))
        )
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                if m is last:
                    nn.init.normal_(m.weight, mean=0.0, std=0.01)
                else:
                    nn.init.kaiming_uniform_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.classifier(self.features(x)).flatten(1)


SqueezeNet1_0_Weights = weights_of("SqueezeNet1_0_Weights", 1248424, "squeezenet1_0-b66bff10.pth")
SqueezeNet1_1_Weights = weights_of("SqueezeNet1_1_Weights", 1235496, "squeezenet1_1-b8a52dc0.pth")

squeezenet1_0 = builder("squeezenet1_0", SqueezeNet1_0_Weights, SqueezeNet, "1_0")
squeezenet1_1 = builder("squeezenet1_1", SqueezeNet1_1_Weights, SqueezeNet, "1_1")
