"""DenseNet (Huang et al., arXiv 1608.06993)."""

import re

import pydist
from pydist import nn
from pydist.nn import functional as F
from pydist.vision.models._api import builder, weights_of


class _DenseLayer(nn.Module):
    """growth_rate new channels, made from all channels before."""

    def __init__(self, num_input_features, growth_rate, bn_size, drop_rate):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_input_features)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(num_input_features, bn_size * growth_rate, kernel_size=1, stride=1, bias=False)
        self.norm2 = nn.BatchNorm2d(bn_size * growth_rate)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bn_size * growth_rate, growth_rate, kernel_size=3, stride=1, padding=1, bias=False)
        self.drop_rate = float(drop_rate)

    def forward(self, features):
        features = pydist.cat(features, 1) if isinstance(features, list) else features
        narrow = self.conv1(self.relu1(self.norm1(features)))
        new = self.conv2(self.relu2(self.norm2(narrow)))
        return F.dropout(new, p=self.drop_rate, training=self.training) if self.drop_rate > 0 else new


class _DenseBlock(nn.ModuleDict):
    def __init__(self, num_layers, num_input_features, bn_size, growth_rate, drop_rate):
        super().__init__()
        for i in range(num_layers):
            layer = _DenseLayer(num_input_features + i * growth_rate, growth_rate, bn_size, drop_rate)
            self.add_module(f"denselayer{i + 1}", layer)

    def forward(self, init_features):
        features = [init_features]
        for layer in self.values():
            features.append(layer(features))
        return pydist.cat(features, 1)


class _Transition(nn.Sequential):
    def __init__(self, num_input_features, num_output_features):
        super().__init__()
        self.norm = nn.BatchNorm2d(num_input_features)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(num_input_features, num_output_features, kernel_size=1, stride=1, bias=False)
        self.pool = nn.AvgPool2d(kernel_size=2, stride=2)


class DenseNet(nn.Module):
    """Blocks of block_config[i] layers, each of which reads all before it, for images [N, 3, H, W]. Returns [N,
    num_classes].

    memory_efficient is accepted and changes nothing.
    """

    def __init__(
        self,
        growth_rate=32,
        block_config=(6, 12, 24, 16),
        num_init_features=64,
        bn_size=4,
        drop_rate=0,
        num_classes=1000,
        memory_efficient=False,
    ):
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module(
            "conv0", nn.Conv2d(3, num_init_features, kernel_size=7, stride=2, padding=3, bias=False)
        )
        self.features.add_module("norm0", nn.BatchNorm2d(num_init_features))
        self.features.add_module("relu0", nn.ReLU(inplace=True))
        self.features.add_module("pool0", nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
        channels = num_init_features
        for i, num_layers in enumerate(block_config, 1):
            block = _DenseBlock(num_layers, channels, bn_size, growth_rate, drop_rate)
            self.features.add_module(f"denseblock{i}", block)
            channels += num_layers * growth_rate
            if i < len(block_config):
                self.features.add_module(f"transition{i}", _Transition(channels, channels // 2))
                channels //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight)
            elif isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)

    def forward(self, x):
        out = F.relu(self.features(x), inplace=True)
        return self.classifier(F.adaptive_avg_pool2d(out, (1, 1)).flatten(1))


def _renamed(key):
    """The network's names for names in published files, which have denselayer1.norm.1 instead of denselayer1.norm1."""
    return re.sub(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)", r"\1\2", key)


DenseNet121_Weights = weights_of("DenseNet121_Weights", 7978856, "densenet121-a639ec97.pth")
DenseNet161_Weights = weights_of("DenseNet161_Weights", 28681000, "densenet161-8d451a50.pth")
DenseNet169_Weights = weights_of("DenseNet169_Weights", 14149480, "densenet169-b2777c0a.pth")
DenseNet201_Weights = weights_of("DenseNet201_Weights", 20013928, "densenet201-c1103571.pth")


def _densenet(name, weights, growth_rate, blocks, channels):
    return builder(name, weights, DenseNet, growth_rate, blocks, channels, rename=_renamed)


densenet121 = _densenet("densenet121", DenseNet121_Weights, 32, (6, 12, 24, 16), 64)
densenet161 = _densenet("densenet161", DenseNet161_Weights, 48, (6, 12, 36, 24), 96)
densenet169 = _densenet("densenet169", DenseNet169_Weights, 32, (6, 12, 32, 32), 64)
densenet201 = _densenet("densenet201", DenseNet201_Weights, 32, (6, 12, 48, 32), 64)
