"""One training step of a GPT with AdamW: gpt_step.py LIBRARY SIZE [KIND [THREADS]]."""

import sys
from importlib import import_module

from gpt import SIZES, gpt
from timing import best

lib = import_module(sys.argv[1])
size, kind = sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "default"
optim = import_module(f"{lib.__name__}.optim")
_, _, _, tokens, texts, vocabulary = SIZES[size]

lib.set_num_threads(int(sys.argv[4]) if len(sys.argv) > 4 else 2)
lib.manual_seed(0)
net = gpt(lib, size)
optimizer = optim.AdamW(net.parameters(), lr=3e-4, **({} if kind == "default" else {kind: True}))
x, t = (lib.randint(0, vocabulary, (texts, tokens)) for _ in range(2))


def step():
    optimizer.zero_grad()
    loss = net(x, t)
    loss.backward()
    optimizer.step()


print(best(step, 8 if size == "nano" else 1, 10 if size == "nano" else 4))
