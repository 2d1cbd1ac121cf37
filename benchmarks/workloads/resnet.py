"""ResNet-18 for 32 x 32 images (first convolution 3 x 3, no pooling after it), SGD with momentum."""

from functools import partial

BEST = {"torch": {"fused": True, "channels_last": True}, "pydist": {"channels_last": True}}


def make(lib, best, batch):
    nn = lib.nn
    F = nn.functional

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.shortcut = nn.Sequential()
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x):
            y = F.relu(self.bn1(self.conv1(x)))
            return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            layers, width = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
            for stage, outputs in enumerate((64, 128, 256, 512)):
                layers += [Block(width, outputs, 1 + (stage > 0)), Block(outputs, outputs, 1)]
                width = outputs
            self.layers = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))

        def forward(self, x, t):
            return F.cross_entropy(self.layers(x), t)

    net, x = ResNet(), lib.randn(batch, 3, 32, 32)
    options = dict(best)
    if options.pop("channels_last", False):
        net, x = net.to(memory_format=lib.channels_last), x.to(memory_format=lib.channels_last)
    return (
        net,
        (x, lib.randint(0, 10, (batch,))),
        partial(lib.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4, **options),
    )
