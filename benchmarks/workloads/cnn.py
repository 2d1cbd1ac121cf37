"""The network of PyTorch's mnist example on 28 x 28 images, with Adadelta."""

from functools import partial

BEST = {"torch": {"foreach": True}}


def make(lib, best, batch):
    nn = lib.nn
    F = nn.functional

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
            self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
            self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

        def forward(self, x, t):
            x = F.relu(self.conv2(F.relu(self.conv1(x))))
            x = self.dropout1(F.max_pool2d(x, 2))
            x = F.relu(self.fc1(x.flatten(1)))
            return F.nll_loss(F.log_softmax(self.fc2(self.dropout2(x)), dim=1), t)

    return (
        Net(),
        (lib.randn(batch, 1, 28, 28), lib.randint(0, 10, (batch,))),
        partial(lib.optim.Adadelta, lr=1.0, **best),
    )
