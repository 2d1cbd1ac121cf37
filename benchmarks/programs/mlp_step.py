"""One training step of an MLP: zero_grad, forward, backward, Adam."""

import sys
from importlib import import_module

from timing import best

lib = import_module(sys.argv[1])
kind = sys.argv[2] if len(sys.argv) > 2 else "default"
nn, optim = import_module(f"{lib.__name__}.nn"), import_module(f"{lib.__name__}.optim")

lib.set_num_threads(2)
lib.manual_seed(0)
net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = optim.Adam(net.parameters(), lr=1e-3, **({} if kind == "default" else {kind: True}))
loss_of = nn.CrossEntropyLoss()
x, t = lib.randn(64, 784), lib.randint(0, 10, (64,))


def step():
    optimizer.zero_grad()
    loss = loss_of(net(x), t)
    loss.backward()
    optimizer.step()


print(best(step, 200))
