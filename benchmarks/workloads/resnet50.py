"""ResNet-50 for 224 x 224 images, channels last, SGD with momentum."""

from functools import partial

BEST = {"torch": {"fused": True}}
FLOPS = 3 * 2 * 4.089e9  # of an image, forward and backward


def make(lib, best, batch):
    nn = lib.nn
    F = nn.functional

    def convolution(inputs, outputs, size, stride=1):
        return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.conv1, self.bn1 = convolution(inputs, width, 1), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = convolution(width, width, 3, stride), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = convolution(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
            self.shortcut = nn.Sequential()
            if stride != 1 or inputs != 4 * width:
                self.shortcut = nn.Sequential(convolution(inputs, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

        def forward(self, x):
            y = F.relu(self.bn1(self.conv1(x)))
            y = F.relu(self.bn2(self.conv2(y)))
            return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            layers, inputs = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
            for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
                for i in range(count):
                    layers.append(Block(inputs, width, 1 + (stage > 0 and i == 0)))
                    inputs = 4 * width
            self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))

        def forward(self, x, t):
            return F.cross_entropy(self.layers(x), t)

    net = ResNet().to(memory_format=lib.channels_last)
    x = lib.randn(batch, 3, 224, 224).to(memory_format=lib.channels_last)
    return (
        net,
        (x, lib.randint(0, 1000, (batch,))),
        partial(lib.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4, **best),
    )
