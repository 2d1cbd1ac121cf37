"""The device "meta": tensors with shapes and no memory, next to torch's, and what hostile programs do with them."""

import copy
import io
import pickle
import threading
import warnings

import numpy as np
import pytest

import pydist
from pydist import nn
from pydist.testing import run_ranks
from pydist.vision.models import resnet50


def meta(*shape, **options):
    return pydist.empty(*shape, device="meta", **options)


def test_a_tensor_has_a_shape_and_no_memory():
    before = pydist._C.memory_allocated()
    x = pydist.zeros(2**20, 2**20, 2**10, device="meta")
    assert x.is_meta and x.device == pydist.device("meta") and not x.is_cuda and not x.is_cpu and x.get_device() == -1
    assert x.data_ptr() == 0 and x[5:, 3].data_ptr() == 0 and x.nbytes == 2**52
    y = (x.transpose(0, 1) * 2 + 1)[::2].sum((0, 2))
    assert y.shape == (2**20,) and y.is_meta
    assert pydist._C.memory_allocated() == before
    assert not pydist.ones(1).is_meta and pydist.ones(1).to("meta").is_meta


def test_text_as_torch(torch):
    def texts(lib, name):
        x = lib.ones(2, 3, device="meta")
        yield x
        yield x.double().requires_grad_()
        yield lib.empty((), device="meta", dtype=lib.int64)
        yield lib.nn.Parameter(x)
        yield lib.empty(0, 2, device="meta")

    for ours, theirs in zip(texts(pydist, "pydist"), texts(torch, "torch"), strict=True):
        assert repr(ours) == repr(theirs).replace("dtype=torch", "dtype=pydist")


def test_makers():
    makers = {
        "zeros": (2, 3), "ones": (2, 3), "empty": (2, 3), "rand": (2, 3), "randn": (2, 3), "eye": (3,), "arange": (5,),
        "linspace": (0, 1, 5), "full": ((2, 3), 1.5), "randint": (0, 5, (2,)), "randperm": (4,), "tensor": ([1, 2],),
        "as_tensor": ([1.0],), "asarray": ([1.0],), "logspace": (0, 1, 3), "tril_indices": (3, 3), "hann_window": (5,),
        "scalar_tensor": (2,), "empty_strided": ((2, 2), (1, 2)),
    }  # fmt: skip
    for name, args in makers.items():
        want = getattr(pydist, name)(*args)
        for got in (getattr(pydist, name)(*args, device="meta"), getattr(pydist, name)(*args, device="meta:0")):
            assert got.is_meta and got.shape == want.shape and got.dtype is want.dtype, name
        with pydist.device("meta"):
            assert getattr(pydist, name)(*args).is_meta, name
    x = meta(2, 3)
    for like in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"):
        assert getattr(pydist, like)(x).is_meta and not getattr(pydist, like)(x, device="cpu").is_meta
        assert getattr(pydist, like)(pydist.ones(2), device="meta").is_meta
    assert pydist.full_like(x, 2).is_meta and x.new_zeros(3).is_meta and x.new_tensor([1.0]).is_meta
    assert pydist.tensor([0.0, x.shape[0]]).device.type == "cpu"


def test_copies():
    x, y = meta(2, 3), pydist.ones(2, 3)
    assert x.copy_(y) is x and x.clone().is_meta and x.to("meta") is x and x.to("meta", pydist.float64).is_meta
    assert x.double().dtype is pydist.float64 and y.to(x).is_meta and x.add_(1).is_meta
    for use in (lambda: y.copy_(x), lambda: x.cpu(), lambda: x.to(y), lambda: y.__setitem__(0, x[0])):
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
            use()
    assert y.tolist() == [[1.0] * 3] * 2
    y.data = x  # as with other devices
    assert y.is_meta


def test_devices_do_not_mix():
    x, y = meta(2, 3), pydist.ones(2, 3)
    for use in (lambda: x + y, lambda: y + x, lambda: pydist.cat([x, y]), lambda: y @ x.T, lambda: y.add_(x)):
        with pytest.raises(RuntimeError, match="the same device"):
            use()
    assert (x + pydist.tensor(2.0)).is_meta and (pydist.tensor(2.0) * x).is_meta  # 0-d tensors count as numbers
    assert x[:, pydist.tensor([0, 2])].shape == (2, 2)  # an index may be on the CPU
    assert x[pydist.tensor([True, False])].shape == (1, 3)
    with pytest.raises(RuntimeError, match="on meta"):
        y[pydist.zeros(1, dtype=pydist.int64, device="meta")]


def test_autograd():
    w = meta(4, 3, requires_grad=True)
    y = (meta(5, 4) @ w).relu()
    view = y[1:, :2]
    (view.sum() + y.mul(2).square().mean()).backward()
    assert w.grad.is_meta and w.grad.shape == (4, 3)
    w.grad.zero_()
    (g,) = pydist.autograd.grad((w * w).sum(), w, create_graph=True)
    (h,) = pydist.autograd.grad(g.sum(), w)
    assert h.is_meta and h.shape == (4, 3)
    x = w.clone()
    x[0] = 1
    x.t().mul_(2)
    x.sum().backward()
    with pytest.raises(RuntimeError, match="scalar"):
        y.backward()
    with pytest.raises(RuntimeError, match="on cpu"):
        (w * 2).backward(pydist.ones(4, 3))
    seen = []
    w.register_hook(seen.append)
    (w * 2).sum().backward()
    assert seen[0].is_meta
    z = pydist.ones(2, requires_grad=True)
    moved = (z.to("meta") * 2).sum()
    with pytest.raises(NotImplementedError, match="no data"):
        moved.backward()  # the gradient would have to come back


def test_building_a_resnet_is_free():
    from time import process_time

    best = 9.0
    for _ in range(3):
        began = process_time()
        with pydist.device("meta"):
            model = resnet50()
            y = model(pydist.ones(83, 3, 224, 224))
        best = min(best, process_time() - began)
    assert y.shape == (83, 1000) and best < 1
    y.sum().backward()
    assert all(p.grad.is_meta for p in model.parameters())


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Lion"])
def test_optimizers(kind):
    layer = nn.Linear(3, 2, device="meta")
    optimizer = getattr(pydist.optim, kind)(layer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(meta(4, 3)).sum().backward()
        optimizer.step()
    assert layer.weight.is_meta


def test_modules():
    layer = nn.Sequential(
        nn.Linear(3, 2, device="meta"), nn.LSTM(2, 2, device="meta"), nn.BatchNorm1d(2, device="meta")
    )
    assert all(p.is_meta for p in layer.state_dict().values())
    with pytest.raises(NotImplementedError, match="to_empty"):
        layer.to("cpu")
    made = copy.deepcopy(layer).to_empty(device="cpu")
    assert not any(p.is_meta for p in made.state_dict().values()) and made[0].weight.requires_grad
    assert all(p.is_meta for p in made.to("meta").parameters())
    state = {name: pydist.ones(t.shape) for name, t in layer.state_dict().items()}
    with pytest.warns(UserWarning, match="which is a no-op.*assign=True"):
        layer.load_state_dict(state)
    assert layer[0].weight.is_meta
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.load_state_dict(state, assign=True)
    assert layer[0].weight.tolist() == [[1.0] * 3] * 2 and layer[0].weight.requires_grad
    for init in ("xavier_uniform_", "kaiming_normal_", "trunc_normal_", "zeros_", "dirac_", "sparse_"):
        args = {"dirac_": (4, 4, 3), "sparse_": (4, 4)}.get(init, (4, 4))
        assert getattr(nn.init, init)(meta(*args), *([0.5] if init == "sparse_" else [])).is_meta


def test_default_devices():
    pydist.set_default_device("meta")
    try:
        layer = nn.Linear(3, 2)
        assert layer.weight.is_meta and pydist.tensor([1.0]).is_meta and pydist.get_default_device().type == "meta"
        with pydist.device("cpu"):
            assert not pydist.ones(2).is_meta
            with pydist.device("meta"):
                assert pydist.rand(2).is_meta
            assert not nn.Linear(1, 1).weight.is_meta
        assert layer(pydist.ones(4, 3)).is_meta
        found = []
        thread = threading.Thread(target=lambda: found.append(pydist.ones(1).is_meta))
        thread.start()
        thread.join()
        assert found == [False]  # each thread has its own
    finally:
        pydist.set_default_device(None)
    assert pydist.ones(1).item() == 1


class Tied(nn.Module):
    """A weight that two modules share, a buffer that two modules share, and a weight without values of its own."""

    def __init__(self):
        super().__init__()
        self.embed, self.body, self.norm = nn.Embedding(5, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.head, self.nothing = nn.Linear(3, 5, bias=False), nn.Parameter(pydist.empty(0, 3))
        self.head.weight = self.embed.weight
        table = pydist.zeros(3)
        self.register_buffer("table", table, persistent=False)
        self.body.register_buffer("table", table, persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.body(self.embed(x)) + self.table + self.body.table))


def made_empty():
    with pydist.device("meta"):
        net = Tied()
    return net.to_empty(device="cpu")


def write(net):
    pydist.manual_seed(0)
    with pydist.no_grad():
        for t in [*net.parameters(), *net.buffers()]:
            t.uniform_(1, 2) if t.is_floating_point() else t.zero_()


def test_to_empty_keeps_what_is_shared():
    net = made_empty()
    assert net.head.weight is net.embed.weight and net.table is net.body.table and not net.table.is_meta
    write(net)
    net.embed.weight.data[0, 0] = 7
    assert net.head.weight[0, 0].item() == 7
    x = pydist.tensor([0, 1, 4])
    net(x).sum().backward()
    assert net.head.weight.grad is net.embed.weight.grad
    plain = Tied()
    plain.load_state_dict(net.state_dict())
    plain.table.copy_(net.table)
    assert plain.eval()(x).tolist() == net.eval()(x).tolist()


def test_what_is_not_written_raises_at_the_first_forward():
    x, net = pydist.tensor([0, 1]), made_empty()
    names = "embed.weight, body.weight, body.bias, norm.weight, norm.bias, table, norm.running_mean, norm.running_var"
    with pytest.raises(RuntimeError, match=f"Tied: nothing has been written to {names} and 1 more since to_empty"):
        net(x)
    with pytest.raises(RuntimeError, match="Embedding: nothing has been written to weight since"):
        net.embed(x)
    nn.init.normal_(net.embed.weight)
    assert net.embed(x).shape == (2, 3) and not net.embed._forward_pre_hooks
    nn.init.zeros_(net.body.weight)
    net.body.bias.data.fill_(0)
    net.norm.reset_parameters()
    with pytest.raises(RuntimeError, match="Tied: nothing has been written to table since"):
        net(x)
    net.table.numpy()[:] = 1
    assert net(x).shape == (2, 5)
    assert not any(m._forward_pre_hooks for m in net.modules())  # nothing is left that slows later calls


def test_every_way_to_write_counts():
    def layer():
        return nn.Linear(2, 2, bias=False, device="meta").to_empty(device="cpu")

    state, x = {"weight": pydist.ones(2, 2)}, pydist.ones(1, 2)
    lent = []
    ways = {
        "load": lambda m: m.load_state_dict(state),
        "assign": lambda m: m.load_state_dict(state, assign=True),
        "data": lambda m: setattr(m.weight, "data", pydist.ones(2, 2)),
        "parameter": lambda m: setattr(m, "weight", nn.Parameter(pydist.ones(2, 2))),
        "reset": lambda m: m.reset_parameters(),
        "in place": lambda m: m.weight.detach().zero_(),
        "item": lambda m: m.weight.data.__setitem__((0, 0), 1.0),
        "out": lambda m: pydist.add(pydist.ones(2, 2), 1, out=m.weight.data),
        "numpy": lambda m: lent.append(m.weight.detach().numpy()),
        "address": lambda m: m.weight.data_ptr(),
        "dtype": lambda m: m.double().float(),
        "shared": lambda m: m.share_memory(),
        "init": lambda m: nn.init.orthogonal_(m.weight),
        "meta again": lambda m: m.to_empty(device="meta").to_empty(device="cpu").reset_parameters(),
    }
    for name, way in ways.items():
        m = layer()
        with pytest.raises(RuntimeError, match="Linear: nothing has been written to weight since to_empty"):
            m(x)
        way(m)
        assert m(x).shape == (1, 2), name
    with pytest.raises(RuntimeError, match="nothing has been written"):
        layer().to_empty(device="cpu")(x)
    assert layer().to_empty(device="meta")(meta(1, 2)).is_meta
    net = nn.Sequential(nn.Linear(2, 2), layer())
    net.to_empty(device="cpu", recurse=False)
    with pytest.raises(RuntimeError, match="Sequential: nothing has been written to 1.weight since"):
        net(x)
    net[1].reset_parameters()
    assert net(x).shape == (1, 2)


def test_ranks_that_get_values_from_rank_0():
    def work(rank):
        net = nn.Linear(2, 2, device="meta").to_empty(device="cpu")
        if rank == 0:
            net.reset_parameters()
        for t in net.state_dict().values():
            pydist.distributed.broadcast(t, 0)
        return net(pydist.ones(1, 2)).tolist()

    one, two = run_ranks(2, work)
    assert one == two


def test_copies_of_what_is_not_written():
    net = made_empty()
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        write(copied)
        assert copied(pydist.tensor([0, 1])).shape == (2, 5) and not copied._forward_pre_hooks


def test_files_and_copies():
    x = meta(4, 6, dtype=pydist.bfloat16)[:, ::2]
    kept = {"x": x, "p": nn.Parameter(meta(2, 3))}
    file = io.BytesIO()
    pydist.save(kept, file)
    for back in (
        copy.deepcopy(kept),
        pickle.loads(pickle.dumps(kept)),
        pydist.load(io.BytesIO(file.getvalue())),
        pydist.load(io.BytesIO(file.getvalue()), weights_only=False),
        pydist.load(io.BytesIO(file.getvalue()), map_location="cpu"),
    ):
        assert back["x"].is_meta and back["x"].stride() == x.stride() and back["x"].dtype is x.dtype
        assert back["x"].shape == x.shape and type(back["p"]) is nn.Parameter and back["p"].requires_grad
    real = io.BytesIO()
    pydist.save({"x": pydist.ones(3)}, real)
    assert pydist.load(io.BytesIO(real.getvalue()), map_location="meta")["x"].is_meta
    with pytest.raises(pydist.safetensors.SafetensorError, match="on meta"):
        pydist.safetensors.save({"x": x})
    shared = copy.copy(kept["p"])
    assert shared.is_meta and shared.requires_grad


def test_files_of_torch(torch):
    file = io.BytesIO()
    torch.save({"x": torch.empty(2, 3, device="meta", dtype=torch.float64)}, file)
    x = pydist.load(io.BytesIO(file.getvalue()))["x"]
    assert x.is_meta and x.shape == (2, 3) and x.dtype is pydist.float64
    file = io.BytesIO()
    pydist.save({"x": meta(2, 3)}, file)
    assert torch.load(io.BytesIO(file.getvalue()))["x"].is_meta


def test_loaders():
    data = [(meta(3), i) for i in range(4)]
    x, i = next(iter(pydist.utils.data.DataLoader(data, batch_size=2)))
    assert x.is_meta and x.shape == (2, 3) and i.tolist() == [0, 1]
    batches = list(pydist.utils.data.DataLoader(data, batch_size=2, num_workers=1))
    assert [x.shape for x, _ in batches] == [(2, 3)] * 2 and batches[0][0].is_meta


def test_other_memory_refuses():
    x = meta(2, 3)
    for use, kind in (
        (lambda: x.share_memory_(), NotImplementedError),
        (lambda: x.numpy(), TypeError),
        (lambda: np.array(x), TypeError),
        (lambda: pydist.from_dlpack(x), (TypeError, NotImplementedError)),
        (lambda: float(x.sum()), NotImplementedError),
        (lambda: int(x.sum()), NotImplementedError),
        (lambda: [*map(float, x[0])], NotImplementedError),
        (lambda: pydist.equal(x, x), NotImplementedError),
        (lambda: pydist.allclose(x, x), NotImplementedError),
        (lambda: pydist.set_rng_state(meta(20, dtype=pydist.uint8)), Exception),
        (lambda: pydist.linalg.inv(meta(2, 2)), NotImplementedError),
        (lambda: pydist.arange(meta(())), (TypeError, NotImplementedError)),
        (lambda: f"{x.sum():.2f}", NotImplementedError),
        (lambda: x.storage().tolist(), Exception),
    ):
        with pytest.raises(kind):
            use()
    assert pydist.tensor(x).is_meta and pydist.as_tensor(x) is x and len(list(x)) == 2 and len(x) == 2


def test_hostile_shapes():
    for shape in ((0,), (0, 5), (), (1,) * 8, (2**40, 2**18), (2**58,)):
        x = meta(*shape)
        for use in (
            lambda x: x + 1, lambda x: x.sum(), lambda x: x.reshape(-1), lambda x: x.flatten().unsqueeze(0),
            lambda x: x.clone().fill_(3), lambda x: x.expand(2, *x.shape), lambda x: pydist.cat([x.view(-1)] * 2),
            lambda x: x.reshape(-1).as_strided((2,), (0,)) if x.numel() else x, lambda x: x.to(pydist.float64).norm(),
        ):  # fmt: skip
            try:
                assert use(x).is_meta
            except RuntimeError as error:  # as on any device
                assert "elements" in str(error) or "dim" in str(error), error
    with pytest.raises(RuntimeError, match="too many elements"):
        meta(2**40, 2**40)
    x = meta(4)
    with pytest.raises((RuntimeError, ValueError)):
        x.as_strided((9,), (1,))
    x.resize_(9)
    assert x.shape == (9,) and x.is_meta
    x.set_(pydist.ones(2))
    with pytest.raises((RuntimeError, IndexError)):
        meta(3)[5]


def test_threads():
    errors = []

    def work():
        try:
            with pydist.device("meta"):
                layer = nn.Linear(8, 8)
                for _ in range(50):
                    layer(pydist.ones(4, 8)).sum().backward()
                    assert layer.weight.grad.is_meta and pydist.ones(1, device="cpu").item() == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and pydist.ones(1).item() == 1


def test_ranks_refuse():
    def work(rank):
        dist, said = pydist.distributed, []
        for use in (
            lambda: dist.all_reduce(meta(3)),
            lambda: dist.broadcast(meta(3), 0),
            lambda: dist.all_gather([meta(3), meta(3)], meta(3)),
            lambda: dist.reduce_scatter_tensor(meta(2), meta(4)),
            lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2, device="meta")),
            lambda: dist.send(meta(3), 1 - rank),
        ):
            try:
                use()
                said.append("went through")
            except NotImplementedError as error:
                said.append("meta" if "meta" in str(error) else str(error))
        x = pydist.ones(2)
        dist.all_reduce(x)
        return said, x.tolist()

    assert run_ranks(2, work) == [(["meta"] * 6, [2.0, 2.0])] * 2


def test_modes():
    with pydist.autograd.detect_anomaly(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        w = meta(3, requires_grad=True)
        (w.log() * 0).sum().backward()
    with pydist.amp.autocast("cpu", dtype=pydist.bfloat16):
        assert nn.Linear(3, 3, device="meta")(meta(2, 3)).is_meta
    with pydist.inference_mode():
        assert meta(2).add_(1).is_inference()
    with pydist.profiler.profile() as session:
        (meta(3) + 1).sum()
    assert session.key_averages()
    value, product = pydist.func.vjp(lambda x: x * x, meta(3))
    assert product(meta(3))[0].is_meta
    assert pydist.utils.checkpoint.checkpoint(lambda x: x * 2, w, use_reentrant=False).is_meta
