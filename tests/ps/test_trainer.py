"""Trainer, files, compression and stores without a server."""

import gc

import numpy as np
import pytest

import pydist
from pydist import nn, optim
from pydist.distributed import ps
from pydist.testing import run_ranks


def linear():
    pydist.manual_seed(3)
    return nn.Linear(5, 4)


def rows(rank, i):
    return pydist.tensor(np.random.default_rng(10 * i + rank).standard_normal((8, 5)).astype(np.float32))


def by_hand(world, steps, make, scale):
    """One process steps by the sum of all workers' gradients, times scale."""
    model = linear()
    opt = make(model)
    for i in range(steps):
        opt.zero_grad()
        sum(model(rows(w, i)).square().sum() for w in range(world)).mul(scale).backward()
        opt.step()
    return [p.detach() for p in model.parameters()]


def by_trainer(rank, kind, update_on_kvstore, steps):
    model = linear()
    options = {"learning_rate": 0.01, "momentum": 0.9, "wd": 0.1}
    trainer = ps.Trainer(model.parameters(), "sgd", options, kvstore=kind, update_on_kvstore=update_on_kvstore)
    for i in range(steps):
        trainer.zero_grad()
        model(rows(rank, i)).square().sum().backward()
        trainer.step(batch_size=16)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("kind, on", [("dist_sync", None), ("dist_sync", False), ("horovod", None), ("byteps", False)])
@pytest.mark.parametrize("world", [1, 2])
def test_gluons_step(kind, on, world):
    """Wherever the update is done."""
    want = by_hand(world, 5, lambda m: optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1), 1 / 16)
    for found in run_ranks(world, by_trainer, kind, on, 5):
        for f, w in zip(found, want, strict=True):
            np.testing.assert_allclose(f.numpy(), w.numpy(), rtol=2e-5, atol=1e-6)


def test_groups_of_an_optimizer():
    model = linear()
    opt = optim.SGD(
        [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.1, "momentum": 0.9}], lr=1.0
    )
    trainer = ps.Trainer(model.named_parameters(), opt)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = pydist.ones_like(p)
    trainer.step(1)
    assert [round((b - p).flatten()[0].item(), 6) for b, p in zip(before, model.parameters(), strict=True)] == [
        0.5,
        0.1,
    ]
    assert trainer.learning_rate == 0.5
    trainer.set_learning_rate(0.25)
    assert trainer.learning_rate == 0.25


def test_a_schedule():
    model = linear()
    model.bias.requires_grad_(False)
    trainer = ps.Trainer(model.parameters(), "sgd", {"learning_rate": 1.0, "lr_scheduler": lambda n: 1.0 / n})
    first = model.weight.detach()[0, 0].item()
    for _ in range(3):
        model.weight.grad = pydist.ones_like(model.weight)
        trainer.step(1)
    assert abs(first - model.weight[0, 0].item() - (1 + 1 / 2 + 1 / 3)) < 1e-6


def test_gradients_that_are_missing():
    model = linear()
    trainer = ps.Trainer(model.parameters(), "sgd", {"learning_rate": 1.0})
    bias = model.bias.detach().clone()
    model.weight.grad = pydist.ones_like(model.weight)
    trainer.step(1, ignore_stale_grad=True)
    assert (model.bias == bias).all()


# Files.


def first_half(rank, path, name):
    model = linear()
    trainer = ps.Trainer(model.named_parameters(), name, {"learning_rate": 0.01}, kvstore="dist_sync", reduce="mean")
    for i in range(6):
        trainer.zero_grad()
        model(rows(0, i)).square().sum().backward()  # the same on every worker, so any number of them goes on alike
        trainer.step(1)
        if i == 2:
            trainer.kvstore.save(path)
    return [p.tolist() for p in model.parameters()]


def second_half(rank, path, name):
    model = linear()
    trainer = ps.Trainer(model.named_parameters(), name, {"learning_rate": 0.5}, kvstore="dist_sync", reduce="mean")
    trainer.kvstore.load(path)
    assert trainer.learning_rate == 0.01  # that of the file
    for i in range(3, 6):
        trainer.zero_grad()
        model(rows(0, i)).square().sum().backward()
        trainer.step(1)
    return [p.tolist() for p in model.parameters()]


@pytest.mark.parametrize("name", ["adam", "nadam", "sgd"])
def test_a_store_goes_on_with_other_workers(name, tmp_path):
    path = str(tmp_path / "store.pt")
    want = run_ranks(2, first_half, path, name)[0]
    for world in (1, 2, 4):
        for found in run_ranks(world, second_half, path, name):
            assert found == want


def test_files_of_something_else(tmp_path):
    kv = ps.create("local")
    kv.init("w", pydist.ones(3))
    kv.set_optimizer("sgd", momentum=0.9)
    path = str(tmp_path / "f.pt")
    pydist.save({"w": 1}, path)
    with pytest.raises(ValueError, match="holds no parameter store"):
        kv.load(path)
    kv.save(path)
    other = ps.create("local")
    other.init(["w", "v"], [pydist.ones(3), pydist.ones(3)])
    with pytest.raises(KeyError, match="has no key 'v'"):
        other.load(path)
    third = ps.create("local")
    third.init("w", pydist.ones(3))
    with pytest.raises(ValueError, match=r"key 'w' has states \['1'\] in the file \(expected \[\]\)"):
        third.load(path)
    with pytest.raises(FileNotFoundError):
        third.load(str(tmp_path / "nothing"))


# Compression.


def squeezed(gradients, threshold):
    """MXNet's 2-bit rule, in NumPy."""
    residual, sent = 0.0, []
    for g in gradients:
        residual = residual + g
        q = np.where(residual >= threshold, threshold, np.where(residual <= -threshold, -threshold, 0.0))
        residual = residual - q
        sent.append(q)
    return sent


def test_two_bits():
    r = np.random.default_rng(0)
    gradients = [r.standard_normal(100).astype(np.float32) for _ in range(10)]
    kv = ps.create("local")
    kv.init("w", pydist.zeros(100))
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.75})
    for g, want in zip(gradients, squeezed(gradients, np.float32(0.75)), strict=True):
        kv.push("w", pydist.tensor(g))
        np.testing.assert_allclose(kv.pull("w").numpy(), want, atol=1e-6)


@pytest.mark.parametrize("kind", ["1bit", "fp16", "bf16"])
def test_other_compressions(kind):
    kv = ps.create("local")
    kv.init("w", pydist.zeros(3))
    kv.set_gradient_compression({"type": kind})
    kv.push("w", pydist.tensor([0.3, -2.0, 1.001]))
    want = {"1bit": [1.0, -1.0, 1.0], "fp16": pydist.tensor([0.3, -2.0, 1.001]).half().float().tolist()}
    want["bf16"] = pydist.tensor([0.3, -2.0, 1.001]).bfloat16().float().tolist()
    assert kv.pull("w").tolist() == want[kind]


# Names.


@pytest.mark.parametrize(
    "name", "local local_update_cpu local_allreduce_cpu local_allreduce_device device dist dist_sync dist_device_sync "
    "dist_async dist_hogwild".split(),
)  # fmt: skip
def test_every_type(name):
    kv = ps.create(name)
    assert kv.type == name and kv.rank == 0 and kv.num_workers == 1 and kv.is_capable("optimizer")
    kv.init(3, pydist.ones(2))
    kv.set_optimizer("test")
    kv.pushpull(3, pydist.ones(2), out := pydist.zeros(2))
    kv.barrier()
    assert out.tolist() == [2.0, 2.0] and "worker 0 of 1, 1 keys" in repr(kv)
    assert 'pydist_ps_pushes{worker="0"} 1' in kv.metrics("prometheus")


def reduced(rank):
    kv = ps.create("horovod")
    value = pydist.full((2,), float(rank))
    kv.broadcast("w", value, out := pydist.empty(2))
    kv.pushpull("w", pydist.full((2,), rank + 1.0), total := pydist.empty(2))
    with pytest.raises(NotImplementedError, match="only broadcast"):
        kv.push("w", value)
    return kv.rank, kv.num_workers, out.tolist(), total.tolist(), kv.is_capable("optimizer")


def test_stores_without_a_server():
    assert run_ranks(2, reduced) == [(r, 2, [0.0, 0.0], [3.0, 3.0], False) for r in range(2)]


def test_the_memory_goes_with_the_last_user():
    ps.create("local")  # makes the group of this process, which stays
    gc.collect()
    before = pydist._C.live()
    kv = ps.create("local")
    kv.init("w", pydist.arange(5.0))
    value = kv.value("w")
    assert pydist._C.live()["parameter stores"] == before["parameter stores"] + 1
    del kv
    gc.collect()
    assert value.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    del value
    gc.collect()
    assert pydist._C.live() == before
