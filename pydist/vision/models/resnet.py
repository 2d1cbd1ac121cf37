"""Residual networks (He et al., arXiv 1512.03385), wide ones (1605.07146) and ResNeXt (1611.05431)."""

from pydist import nn
from pydist.vision.models._api import builder, weights_of


def conv3x3(in_planes, out_planes, stride=1, groups=1, dilation=1):
    """A 3 x 3 convolution that keeps the size at stride 1."""
    return nn.Conv2d(in_planes, out_planes, 3, stride, dilation, dilation, groups, bias=False)


def conv1x1(in_planes, out_planes, stride=1):
    """A 1 x 1 convolution."""
    return nn.Conv2d(in_planes, out_planes, 1, stride, bias=False)


class BasicBlock(nn.Module):
    """x plus two 3 x 3 convolutions of x. `downsample` gives x their shape."""

    expansion = 1

    def __init__(
        self, inplanes, planes, stride=1, downsample=None, groups=1, base_width=64, dilation=1, norm_layer=None
    ):
        super().__init__()
        norm_layer = norm_layer or nn.BatchNorm2d
        if groups != 1 or base_width != 64:
            raise ValueError(f"BasicBlock only supports groups=1 and base_width=64, got {groups} and {base_width}")
        if dilation > 1:
            raise NotImplementedError("Dilation > 1 not supported in BasicBlock")
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = norm_layer(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = norm_layer(planes)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """x plus (1 x 1, 3 x 3, 1 x 1 convolutions of x). The middle one is narrow and has the stride."""

    expansion = 4

    def __init__(
        self, inplanes, planes, stride=1, downsample=None, groups=1, base_width=64, dilation=1, norm_layer=None
    ):
        super().__init__()
        norm_layer = norm_layer or nn.BatchNorm2d
        width = int(planes * (base_width / 64.0)) * groups
        self.conv1 = conv1x1(inplanes, width)
        self.bn1 = norm_layer(width)
        self.conv2 = conv3x3(width, width, stride, groups, dilation)
        self.bn2 = norm_layer(width)
        self.conv3 = conv1x1(width, planes * self.expansion)
        self.bn3 = norm_layer(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Four stages of layers[i] blocks for images [N, 3, H, W]. Returns [N, num_classes].

    zero_init_residual: each block starts as the identity. replace_stride_with_dilation: three bools, for the later
    stages.
    """

    def __init__(
        self,
        block,
        layers,
        num_classes=1000,
        zero_init_residual=False,
        groups=1,
        width_per_group=64,
        replace_stride_with_dilation=None,
        norm_layer=None,
    ):
        super().__init__()
        self._norm_layer = norm_layer or nn.BatchNorm2d
        self.inplanes = 64
        self.dilation = 1
        dilate = replace_stride_with_dilation or (False, False, False)
        if len(dilate) != 3:
            raise ValueError(
                f"replace_stride_with_dilation should be None or a 3-element tuple, got {replace_stride_with_dilation}"
            )
        self.groups = groups
        self.base_width = width_per_group
        self.conv1 = nn.Conv2d(3, self.inplanes, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = self._norm_layer(self.inplanes)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, 64, layers[0])
        self.layer2 = self._make_layer(block, 128, layers[1], 2, dilate[0])
        self.layer3 = self._make_layer(block, 256, layers[2], 2, dilate[1])
        self.layer4 = self._make_layer(block, 512, layers[3], 2, dilate[2])
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        self._initialize(zero_init_residual)

    def _initialize(self, zero_init_residual):
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
        if zero_init_residual:
            for m in self.modules():
                last = m.bn3 if isinstance(m, Bottleneck) else m.bn2 if isinstance(m, BasicBlock) else None
                if last is not None and last.weight is not None:
                    nn.init.zeros_(last.weight)

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        before = self.dilation
        if dilate:
            self.dilation *= stride
            stride = 1
        out = planes * block.expansion
        downsample = None
        if stride != 1 or self.inplanes != out:
            downsample = nn.Sequential(conv1x1(self.inplanes, out, stride), self._norm_layer(out))
        common = (self.groups, self.base_width)
        layers = [block(self.inplanes, planes, stride, downsample, *common, before, self._norm_layer)]
        self.inplanes = out
        layers += [block(out, planes, 1, None, *common, self.dilation, self._norm_layer) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def _forward_impl(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))

    def forward(self, x):
        return self._forward_impl(x)


ResNet18_Weights = weights_of("ResNet18_Weights", 11689512, "resnet18-f37072fd.pth")
ResNet34_Weights = weights_of("ResNet34_Weights", 21797672, "resnet34-b627a593.pth")
ResNet50_Weights = weights_of("ResNet50_Weights", 25557032, "resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth")
ResNet101_Weights = weights_of("ResNet101_Weights", 44549160, "resnet101-63fe2227.pth", "resnet101-cd907fc2.pth")
ResNet152_Weights = weights_of("ResNet152_Weights", 60192808, "resnet152-394f9c45.pth", "resnet152-f82ba261.pth")
ResNeXt50_32X4D_Weights = weights_of(
    "ResNeXt50_32X4D_Weights", 25028904, "resnext50_32x4d-7cdf4587.pth", "resnext50_32x4d-1a0047aa.pth"
)
ResNeXt101_32X8D_Weights = weights_of(
    "ResNeXt101_32X8D_Weights", 88791336, "resnext101_32x8d-8ba56ff5.pth", "resnext101_32x8d-110c445d.pth"
)
ResNeXt101_64X4D_Weights = weights_of(
    "ResNeXt101_64X4D_Weights", 83455272, "resnext101_64x4d-173b62eb.pth", v1_resize=232
)
Wide_ResNet50_2_Weights = weights_of(
    "Wide_ResNet50_2_Weights", 68883240, "wide_resnet50_2-95faca4d.pth", "wide_resnet50_2-9ba9bcbe.pth"
)
Wide_ResNet101_2_Weights = weights_of(
    "Wide_ResNet101_2_Weights", 126886696, "wide_resnet101_2-32ee1156.pth", "wide_resnet101_2-d733dc28.pth"
)

resnet18 = builder("resnet18", ResNet18_Weights, ResNet, BasicBlock, [2, 2, 2, 2])
resnet34 = builder("resnet34", ResNet34_Weights, ResNet, BasicBlock, [3, 4, 6, 3])
resnet50 = builder("resnet50", ResNet50_Weights, ResNet, Bottleneck, [3, 4, 6, 3])
resnet101 = builder("resnet101", ResNet101_Weights, ResNet, Bottleneck, [3, 4, 23, 3])
resnet152 = builder("resnet152", ResNet152_Weights, ResNet, Bottleneck, [3, 8, 36, 3])
resnext50_32x4d = builder(
    "resnext50_32x4d", ResNeXt50_32X4D_Weights, ResNet, Bottleneck, [3, 4, 6, 3], groups=32, width_per_group=4
)
resnext101_32x8d = builder(
    "resnext101_32x8d", ResNeXt101_32X8D_Weights, ResNet, Bottleneck, [3, 4, 23, 3], groups=32, width_per_group=8
)
resnext101_64x4d = builder(
    "resnext101_64x4d", ResNeXt101_64X4D_Weights, ResNet, Bottleneck, [3, 4, 23, 3], groups=64, width_per_group=4
)
wide_resnet50_2 = builder(
    "wide_resnet50_2", Wide_ResNet50_2_Weights, ResNet, Bottleneck, [3, 4, 6, 3], width_per_group=128
)
wide_resnet101_2 = builder(
    "wide_resnet101_2", Wide_ResNet101_2_Weights, ResNet, Bottleneck, [3, 4, 23, 3], width_per_group=128
)
