"""fully_shard over logical shards: the bits of DistributedDataParallel over them, for 1, 2, 4 and 8 ranks."""

import hashlib

import pytest

import pydist
from lib.sharded_models import gpt, sharded
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from pydist.nn.parallel import DistributedDataParallel
from pydist.nn.utils import clip_grad_norm_
from pydist.testing import run_ranks
from pydist.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    """With buffers and random numbers, and a layer that only some shards use."""

    def __init__(self):
        super().__init__()
        self.gpt, self.norm, self.drop = gpt(again=False, frozen=True), nn.BatchNorm1d(11), nn.Dropout(0.2)
        self.some = nn.Linear(11, 11)

    def forward(self, tokens):
        x = self.drop(self.norm(self.gpt(tokens).mean(1)))
        return self.some(x) if tokens[0, 0] < 3 else x


def trained(form, steps=4, accumulate=2):
    """The sha of parameters, buffers and states after these steps over logical shards."""
    pydist.manual_seed(0)
    tokens = pydist.randint(0, 11, (8 * 3 * accumulate * steps, 4))
    loader = DataLoader(TensorDataset(tokens), batch_size=3, sampler=DistributedSampler(TensorDataset(tokens)))
    net = Net()
    if form == "ddp":
        net = DistributedDataParallel(net)
    else:
        sharded(net.gpt)
        net = fully_shard(net)
    rule = optim.AdamW(net.parameters(), lr=0.02)
    losses = []
    for step in dist.shards(loader, accumulate=accumulate):
        rule.zero_grad()
        for shard in step:
            for (x,) in shard:
                loss = net(x).square().mean()
                loss.backward()
                step.note(loss)
        clip_grad_norm_(net.parameters(), 0.5)
        rule.step()
        losses.append(step.mean())
    sha = hashlib.sha256(repr(losses).encode())
    for _, value in sorted((k.removeprefix("module."), v) for k, v in net.state_dict().items()):
        sha.update((value.full_tensor() if hasattr(value, "full_tensor") else value).numpy().tobytes())
    return sha.hexdigest()


def run(form, world, **options):
    def work(rank):
        dist.init_process_group(logical_shards=8)
        return trained(form, **options)

    found = run_ranks(world, work)
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("way", ["auto", "private"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_bits_of_ddp(way, accumulate, monkeypatch):
    want = run("ddp", 1, accumulate=accumulate)
    monkeypatch.setenv("PYDIST_FSDP", way)
    for world in (1, 2, 4, 8):
        assert run("fully_shard", world, accumulate=accumulate) == want, world


def test_what_is_refused():
    def work(rank):
        dist.init_process_group(logical_shards=4)
        for options, text in (
            ({"mp_policy": MixedPrecisionPolicy(param_dtype=pydist.bfloat16)}, "MixedPrecisionPolicy"),
            ({"mesh": dist.init_device_mesh("cpu", (2, 1))}, "replicas"),
        ):
            with pytest.raises(NotImplementedError, match=text):
                fully_shard(nn.Linear(2, 2), **options)
        with pytest.raises(NotImplementedError, match="16 bits"):
            fully_shard(nn.Linear(2, 2, dtype=pydist.bfloat16))
        with pytest.raises(NotImplementedError, match="SyncBatchNorm"):
            fully_shard(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))
        net = fully_shard(nn.Linear(2, 2))
        with pytest.raises(RuntimeError, match="outside of a logical shard"):
            net(pydist.ones(1, 2))
        with pydist.no_grad():
            net(pydist.ones(1, 2))  # an evaluation

    run_ranks(2, work)

    def three(rank):
        dist.init_process_group(logical_shards=4)
        with pytest.raises(NotImplementedError, match="unequal shares"):
            fully_shard(nn.Linear(2, 2))

    run_ranks(3, three)


def test_a_step_that_fails_leaves_nothing():
    def work(rank):
        dist.init_process_group(logical_shards=4)
        net = fully_shard(nn.Linear(2, 1, bias=False))
        data = TensorDataset(pydist.ones(16, 2))
        loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data))

        def steps(fails):
            for step in dist.shards(loader):
                for shard in step:
                    for (x,) in shard:
                        net(x).sum().backward()
                        if fails and shard.number % 2:
                            raise KeyError("on purpose")
                yield net.weight.grad.full_tensor().tolist()
                net.zero_grad()

        with pytest.raises(KeyError):
            next(steps(True))
        assert list(steps(False)) == [[[1.0, 1.0]]] * 4

    run_ranks(2, work)
