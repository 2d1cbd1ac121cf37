"""VGG (Simonyan and Zisserman, arXiv 1409.1556), with batch normalization or without."""

from pydist import nn
from pydist.vision.models._api import builder, weights_of

# Channels of each convolution; "M" is a pool.
cfgs = {
    "A": [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"],
    "B": [64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"],
    "D": [64, 64, "M", 128, 128, "M", *[256] * 3, "M", *[512] * 3, "M", *[512] * 3, "M"],
    "E": [64, 64, "M", 128, 128, "M", *[256] * 4, "M", *[512] * 4, "M", *[512] * 4, "M"],
}


def make_layers(cfg, batch_norm=False):
    """The convolutions and pools of a row of `cfgs`."""
    layers, channels = [], 3
    for item in cfg:
        if item == "M":
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            continue
        layers.append(nn.Conv2d(channels, item, kernel_size=3, padding=1))
        layers += [nn.BatchNorm2d(item)] if batch_norm else []
        layers.append(nn.ReLU(inplace=True))
        channels = item
    return nn.Sequential(*layers)


class VGG(nn.Module):
    """`features` (512 channels) and three linear layers for images [N, 3, H, W]. Returns [N, num_classes]."""

    def __init__(self, features, num_classes=1000, init_weights=True, dropout=0.5):
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(True),
            nn.Dropout(p=dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(True),
            nn.Dropout(p=dropout),
            nn.Linear(4096, num_classes),
        )
        if init_weights:
            self._initialize()

    def _initialize(self):
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(m.bias)
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 0.01)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _vgg(cfg, batch_norm, **kwargs):
    return VGG(make_layers(cfgs[cfg], batch_norm), **kwargs)


VGG11_Weights = weights_of("VGG11_Weights", 132863336, "vgg11-8a719046.pth")
VGG11_BN_Weights = weights_of("VGG11_BN_Weights", 132868840, "vgg11_bn-6002323d.pth")
VGG13_Weights = weights_of("VGG13_Weights", 133047848, "vgg13-19584684.pth")
VGG13_BN_Weights = weights_of("VGG13_BN_Weights", 133053736, "vgg13_bn-abd245e5.pth")
VGG16_Weights = weights_of("VGG16_Weights", 138357544, "vgg16-397923af.pth")
VGG16_BN_Weights = weights_of("VGG16_BN_Weights", 138365992, "vgg16_bn-6c64b313.pth")
VGG19_Weights = weights_of("VGG19_Weights", 143667240, "vgg19-dcbb9e9d.pth")
VGG19_BN_Weights = weights_of("VGG19_BN_Weights", 143678248, "vgg19_bn-c79401a0.pth")

vgg11 = builder("vgg11", VGG11_Weights, _vgg, "A", False)
vgg11_bn = builder("vgg11_bn", VGG11_BN_Weights, _vgg, "A", True)
vgg13 = builder("vgg13", VGG13_Weights, _vgg, "B", False)
vgg13_bn = builder("vgg13_bn", VGG13_BN_Weights, _vgg, "B", True)
vgg16 = builder("vgg16", VGG16_Weights, _vgg, "D", False)
vgg16_bn = builder("vgg16_bn", VGG16_BN_Weights, _vgg, "D", True)
vgg19 = builder("vgg19", VGG19_Weights, _vgg, "E", False)
vgg19_bn = builder("vgg19_bn", VGG19_BN_Weights, _vgg, "E", True)
