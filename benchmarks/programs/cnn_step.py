"""One training step of the mnist example's convolutional network on 28 x 28 images, batch 64, with Adadelta."""

import sys
from importlib import import_module

from timing import best

lib = import_module(sys.argv[1])
kind = sys.argv[2] if len(sys.argv) > 2 else "default"
nn, optim = import_module(f"{lib.__name__}.nn"), import_module(f"{lib.__name__}.optim")
F = nn.functional


class Net(nn.Module):
    """PyTorch's own mnist example."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


lib.set_num_threads(2)
lib.manual_seed(0)
net = Net()
optimizer = optim.Adadelta(net.parameters(), lr=1.0, **({} if kind == "default" else {kind: True}))
x, t = lib.randn(64, 1, 28, 28), lib.randint(0, 10, (64,))


def step():
    optimizer.zero_grad()
    loss = F.nll_loss(net(x), t)
    loss.backward()
    optimizer.step()


print(best(step, 10))
