"""One training step of ResNet-18 for 32 x 32 images (first convolution 3 x 3, no pooling after it), SGD with momentum."""

import sys
from importlib import import_module

from timing import best

lib, kind = import_module(sys.argv[1]), sys.argv[2]
batch = int(sys.argv[3])
nn, optim = import_module(f"{lib.__name__}.nn"), import_module(f"{lib.__name__}.optim")
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
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18(classes=10):
    layers, width = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        layers += [Block(width, outputs, 1 + (stage > 0)), Block(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(512, classes))


lib.set_num_threads(2)
lib.manual_seed(0)
net = resnet18()
x, t = lib.randn(batch, 3, 32, 32), lib.randint(0, 10, (batch,))
if kind == "channels_last":
    net, x = net.to(memory_format=lib.channels_last), x.to(memory_format=lib.channels_last)
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def step():
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), t)
    loss.backward()
    optimizer.step()


print(best(step, 3))
