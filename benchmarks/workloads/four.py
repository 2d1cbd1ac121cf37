"""The four models on which logical shards are shown: rows, model, loss, optimizer and what else a step has.

mlp       784-128-10 with dropout, Adam
cnn       the network of PyTorch's mnist example with BatchNorm, SGD with momentum, float16 by autocast with a GradScaler
resnet18  in its form for 32 x 32 images, SGD with momentum, a cosine schedule
gpt       4 layers, 128 wide, dropout, AdamW, clipped gradients, warm-up, bfloat16 by autocast, two micro-batches a step
"""

from types import SimpleNamespace

from benchmarks.workloads import resnet
from pydist import amp, autocast, bfloat16, float16, manual_seed, nn, optim, randint, randn
from pydist.models import GPT, GPTConfig
from pydist.utils.data import TensorDataset

F = nn.functional
MODELS = ("mlp", "cnn", "resnet18", "gpt")
ROWS_OF_A_SHARD = {"mlp": 8, "cnn": 8, "resnet18": 8, "gpt": 12}  # in a micro-batch


def _cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def _images(rows, *size):
    x = randn(rows, *size)
    return TensorDataset(x, x.flatten(1)[:, :10].argmax(1))


def made(name, rows, dropout=True):
    """A namespace with net, data, loss(net, x, y), optimizer, scheduler or None, scaler or None, accumulate, clip."""
    manual_seed(0)
    scheduler = scaler = None
    accumulate, clip = 1, None

    def loss(net, x, y):
        return F.cross_entropy(net(x), y)

    if name == "mlp":
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
        data, optimizer = _images(rows, 1, 28, 28), optim.Adam(net.parameters())
    elif name == "cnn":
        net = _cnn()
        data, optimizer = _images(rows, 1, 28, 28), optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        scaler = amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=10)

        def loss(net, x, y):
            with autocast("cpu", dtype=float16):
                return F.cross_entropy(net(x), y)
    elif name == "resnet18":
        net, _, make = resnet.make(__import__("pydist"), {}, 1)
        data, optimizer = _images(rows, 3, 32, 32), make(net.parameters())
        scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)

        def loss(net, x, y):
            return net(x, y)
    else:
        net = GPT(
            GPTConfig(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128, dropout=0.1 if dropout else 0.0)
        )
        tokens = randint(0, 65, (rows, 65))
        data, optimizer = TensorDataset(tokens[:, :-1], tokens[:, 1:]), optim.AdamW(net.parameters(), lr=3e-4)
        scheduler, clip, accumulate = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10), 1.0, 2

        def loss(net, x, y):
            with autocast("cpu", dtype=bfloat16):
                return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    if not dropout:
        for module in net.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    return SimpleNamespace(
        net=net,
        data=data,
        loss=loss,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        accumulate=accumulate,
        clip=clip,
    )


def finish(parts, model):
    """What follows the gradients of a step."""
    if parts.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), parts.clip)
    if parts.scaler is None:
        parts.optimizer.step()
    else:
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()
