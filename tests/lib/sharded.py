"""Small training runs over logical shards, whose result must not depend on the number of ranks."""

import hashlib

import pydist
from pydist import distributed as dist
from pydist import nn, optim
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, DistributedSampler, TensorDataset

F = nn.functional


class Gpt(nn.Module):
    """A small decoder with dropout, run under autocast."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 16)

    def forward(self, x):
        with pydist.autocast(x.device.type, dtype=pydist.bfloat16):
            return self.head(self.blocks(self.embed(x), nn.Transformer.generate_square_subsequent_mask(x.shape[1])))


def parts(kind, rows=104):
    """(model, data, loss, optimizer, scheduler or None, scaler or None)."""
    pydist.manual_seed(0)
    if kind == "gpt":
        x = pydist.randint(0, 16, (rows, 9))
        data, net = TensorDataset(x[:, :-1], x[:, 1:]), Gpt()
        optimizer = optim.AdamW(net.parameters(), lr=1e-2)
        scheduler = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
        return (
            net,
            data,
            lambda out, y: F.cross_entropy(out.float().flatten(0, 1), y.flatten()),
            optimizer,
            scheduler,
            None,
        )
    x = pydist.randn(rows, 1, 8, 8)
    data = TensorDataset(x, x.flatten(1)[:, :4].argmax(1))
    if kind == "mlp":
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
        return net, data, F.cross_entropy, optim.Adam(net.parameters()), None, None
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(288, 4)
    )
    scaler = pydist.amp.GradScaler("cpu", init_scale=2.0**20)  # the first steps overflow and are skipped
    return net, data, F.cross_entropy, optim.SGD(net.parameters(), lr=0.1, momentum=0.9), None, scaler


def digest(net, optimizer):
    found = hashlib.sha256()
    for _, value in sorted(net.state_dict().items()):
        found.update(value.cpu().numpy().tobytes())
    for _, state in sorted(optimizer.state_dict()["state"].items()):
        for _, value in sorted(state.items()):
            found.update(value.cpu().numpy().tobytes() if isinstance(value, pydist.Tensor) else repr(value).encode())
    return found.hexdigest()


def train(kind, shards=8, epochs=1, accumulate=1, **how):
    """(sha of model and optimizer, losses). With how["over"]: in attempts of a Transaction."""
    if not dist.is_initialized() or dist.get_logical_shards() is None:
        dist.init_process_group(logical_shards=shards)
    net, data, loss_of, optimizer, scheduler, scaler = parts(kind, how.get("rows", 104))
    model = DistributedDataParallel(net.to(how.get("device", "cpu")), bucket_cap_mb=0.004)
    half = kind == "cnn"
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), **how.get("loader", {}))
    objects = [item for item in (model, optimizer, scheduler, scaler) if item is not None]
    transaction = dist.Transaction(*objects, balance=how.get("balance", False))
    losses = []
    for _ in range(epochs):
        steps = transaction.over(loader, accumulate) if how.get("over") else dist.shards(loader, accumulate)
        for step in steps:
            if how.get("over"):
                with step:
                    one_step(step, model, loss_of, optimizer, scaler, half, how)
                if not step.made:
                    continue
            else:
                one_step(step, model, loss_of, optimizer, scaler, half, how)
            losses.append(step.mean())
            if scheduler is not None:
                scheduler.step()
    return digest(net, optimizer), losses


def one_step(step, model, loss_of, optimizer, scaler, half, how):
    optimizer.zero_grad()
    for shard in step:
        for x, y in shard:
            how.get("before", lambda step, shard: None)(step.number, shard.number)
            x, y = x.to(how.get("device", "cpu")), y.to(how.get("device", "cpu"))
            with pydist.autocast(x.device.type, dtype=pydist.float16, enabled=half):
                loss = loss_of(model(x), y)
            (scaler.scale(loss) if scaler else loss).backward()
            step.note(loss)
    step.mean()
    if scaler is None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return
    scaler.step(optimizer)
    scaler.update()
