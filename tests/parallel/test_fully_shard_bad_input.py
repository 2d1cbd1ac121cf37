"""fully_shard and bad input: each line that test_fully_shard.py does not have. Every mismatch ends on all ranks, with a text
that says what was wrong, and before data is lost."""

import io
import os
import resource
import signal
import threading
import time

import numpy as np
import pytest

import pydist
from lib.processes import within
from lib.shard_deaths import descriptors
from lib.sharded_models import RULES, batch, gpt, loss_of, sharded, whole
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed.device_mesh import DeviceMesh
from pydist.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from pydist.distributed.tensor import DTensor
from pydist.testing import RankFailed, run_ranks
from pydist.utils.data import DataLoader

# ---- parameters


def test_integers_and_several_dtypes():
    def work(rank):
        model = nn.Module()
        model.a, model.b = nn.Parameter(pydist.ones(4, 2)), nn.Parameter(pydist.ones(4, 2, dtype=pydist.float64))
        model.steps = nn.Parameter(pydist.arange(4), requires_grad=False)
        model.forward = lambda: (model.a.sum().double() + model.b.sum() * 2, model.steps.sum().item())
        fully_shard(model)
        loss, steps = model()
        loss.backward()
        assert steps == 6 and model.steps.to_local().tolist() == [[0, 1], [2, 3]][rank]
        assert (model.a.grad.dtype, model.b.grad.dtype) == (pydist.float32, pydist.float64)
        assert whole(model.a.grad).tolist() == [[1.0] * 2] * 4 and whole(model.b.grad).tolist() == [[2.0] * 2] * 4
        assert nn.utils.clip_grad_norm_(model.parameters(), 10.0).item() == pytest.approx(40**0.5)

    run_ranks(2, work)


@pytest.mark.parametrize("way, world", [("auto", 1), ("auto", 2), ("private", 2)])
def test_integers_beside_a_dtype_of_parameters(way, world, monkeypatch):
    """param_dtype is about floating parameters."""
    monkeypatch.setenv("PYDIST_FSDP", way)

    def work(rank):
        model = nn.Module()
        model.weight = nn.Parameter(pydist.ones(4, 2))
        model.steps = nn.Parameter(pydist.arange(4) + 300, requires_grad=False)  # more than bfloat16 can count
        model.forward = lambda: (model.weight.sum(), model.weight.dtype, model.steps + 0)
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=pydist.bfloat16))
        rule = pydist.optim.SGD(model.parameters(), lr=0.5)
        for step in range(3):
            loss, dtype, steps = model()
            loss.backward()
            rule.step()
            rule.zero_grad()
            assert dtype == pydist.bfloat16 and steps.tolist() == [k + step for k in range(300, 304)]
            with pydist.no_grad():
                model.steps += 1
        assert whole(model.weight).tolist() == [[-0.5] * 2] * 4 and whole(model.steps).tolist() == [303, 304, 305, 306]

    run_ranks(world, work)


def test_a_parameter_of_two_units():
    """Units beside each other: an error that says what to do. A unit below another one: both show the same shards."""

    def tied():
        net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        net[1].weight = net[0].weight
        return net

    def grad(net):
        net(pydist.ones(1, 4)).sum().backward()
        return whole(net[0].weight.grad)

    def work(rank):
        pydist.manual_seed(0)
        expected = grad(tied())
        for choose in (lambda net: [net], lambda net: [[net[0], net[1]]], lambda net: [net[0], net]):
            pydist.manual_seed(0)
            net = tied()
            for unit in choose(net):
                fully_shard(unit)
            assert pydist.equal(grad(net), expected) and net[0].weight is net[1].weight
        net = tied()
        fully_shard(net[0])
        with pytest.raises(
            ValueError, match=r"parameter weight belongs to another unit already .*fully_shard\(\[a, b\]\)"
        ):
            fully_shard(net[1])

    run_ranks(2, work)


def test_a_mesh_without_this_rank():
    def work(rank):
        mesh = DeviceMesh("cpu", [0, 2])
        if rank == 1:
            with pytest.raises(RuntimeError, match=r"this rank is not in DeviceMesh\(\(2,\), 'cpu'\)"):
                fully_shard(nn.Linear(4, 4), mesh=mesh)
            return
        fully_shard(nn.Linear(4, 4), mesh=mesh)(pydist.ones(1, 4)).sum().backward()

    run_ranks(3, work)


def test_another_order_of_fully_shard():
    """Modules of equal shapes: found when the model above them is sharded, or else by the first backward."""

    def work(rank, root):
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for k in (0, 1) if rank == 0 else (1, 0):
            fully_shard(net[k])
        if root:
            text = "rank 0 has unit 0 in module 0, rank 1 has unit 0 in module 1"
            with pytest.raises(RuntimeError, match=text):
                fully_shard(net)
        else:
            net[1](pydist.ones(1, 4)).sum().backward()

    run_ranks(2, work, True)
    with pytest.raises(RankFailed, match=r"(?s)reduce_unit: ranks called.*unit [01],.*unit [01],"):
        run_ranks(2, work, False)


# ---- writes and lent memory


def test_dlpack_of_wholes_is_read_only():
    def work(rank):
        model = fully_shard(nn.Linear(4, 4))
        model.unshard()
        array = np.from_dlpack(model.weight.detach())
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        model.reshard()

    run_ranks(2, work)


def test_a_whole_that_is_lent_when_it_goes(monkeypatch):
    monkeypatch.setenv("PYDIST_FSDP", "private")

    def work(rank):
        model = fully_shard(nn.Linear(4, 4))
        model.unshard()
        array = model.weight.detach().numpy()
        with pytest.raises(RuntimeError, match=r"parameter weight is lent when its unit is resharded \(expected clone"):
            model.reshard()
        assert np.array_equal(array, whole(model.weight).numpy()) and isinstance(model.weight, DTensor)
        del array
        model(pydist.eye(4)).sum().backward()

    run_ranks(2, work)


# ---- steps that ranks do not do together


@pytest.mark.parametrize("other", ["ends", "barrier", "step", "forward"])
def test_a_backward_of_one_rank(other):
    def work(rank):
        model = sharded(gpt())
        optimizer = RULES["SGD"](model.parameters())
        loss_of(model, batch(0)).backward()
        if rank == 0:
            loss_of(model, batch(1)).backward()
        elif other == "barrier":
            dist.barrier()
        elif other == "step":
            optimizer.step()
        elif other == "forward":
            with pydist.no_grad():
                model(batch(0))

    text = {
        "barrier": r"ranks called different collectives.*\n  rank 0: reduce_unit.*\n  rank 1: barrier",
        "step": r"ranks called different collectives.*\n  rank 0: reduce_unit.*\n  rank 1: write_shards",
    }
    begin = time.monotonic()
    with pytest.raises(RankFailed, match=text.get(other, "reduce_unit.*rank 1 left the group")):
        run_ranks(2, work)
    assert time.monotonic() - begin < within(10)


def test_a_state_for_one_rank():
    def work(rank):
        model = sharded(gpt())
        full = {name: whole(value) for name, value in model.state_dict().items()}
        try:
            model.load_state_dict(full if rank == 1 else {})
        finally:
            assert pydist.equal(model.scale.to_local(), full["scale"][rank : rank + 1])  # nothing is lost

    with pytest.raises(RankFailed, match=r"rank 0 of 2 raised RuntimeError: (?s:.*)Missing key.*embed.weight"):
        run_ranks(2, work)


def test_states_that_do_not_fit_have_one_text():
    def work(rank):
        model = sharded(gpt())
        full, texts = {name: whole(value) for name, value in model.state_dict().items()}, []
        for wrong in (
            {name: value for name, value in full.items() if name != "head.weight"},
            {**full, "more": full["scale"]},
            {**full, "scale": pydist.ones(2)},
        ):
            with pytest.raises(RuntimeError) as raised:
                model.load_state_dict(wrong)
            texts.append(str(raised.value))
        model.load_state_dict(full)
        return texts

    texts, others = run_ranks(2, work)
    assert texts == others
    for text, said in zip(
        texts, ("Missing key.*head.weight", "Unexpected key.*more", "size mismatch for scale"), strict=True
    ):
        assert pytest.raises(RuntimeError, match=said).matches(RuntimeError(text)), text


# ---- gradients


def test_nan_reaches_all_ranks():
    def work(rank):
        model = fully_shard(nn.Linear(2, 4, bias=False))
        x = pydist.ones(1, 2)
        if rank == 1:
            x[0, 0] = float("nan")
        model(x).sum().backward()
        before = whole(model.weight.grad)
        assert before.isnan().tolist() == [[True, False]] * 4
        with pytest.raises(RuntimeError, match="non-finite"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        after = whole(model.weight.grad)
        assert pydist.equal(after[:, 1], before[:, 1]) and after[:, 0].isnan().all()  # unchanged
        assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).isnan().item()

    run_ranks(2, work)


@pytest.mark.parametrize("most", [0.0, float("inf"), -1.0, float("nan")])
def test_clipping_is_that_of_one_rank(most):
    def work(rank):
        pydist.manual_seed(0)
        plain = nn.Linear(2, 4, bias=False)
        pydist.manual_seed(0)
        model = fully_shard(nn.Linear(2, 4, bias=False))
        found = []
        for net in (plain, model):
            net(pydist.ones(1, 2)).sum().backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), most)
            found.append((whole(norm).item(), str(whole(net.weight.grad).tolist())))
        assert found[0] == found[1]

    run_ranks(2, work)


def test_no_gradient_at_all():
    def work(rank):
        model = sharded(gpt())
        optimizer, before = RULES["AdamW"](model.parameters()), whole(model.scale).clone()
        optimizer.step()
        assert pydist.equal(whole(model.scale), before) and not optimizer.state
        assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) == 0
        assert not sharded(gpt().requires_grad_(False))(batch(0)).requires_grad

    run_ranks(2, work)


def test_gradients_of_gradients_and_double_use():
    """As without sharding."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(pydist.tanh(self.layer(x)))

    def penalty(net):
        x = pydist.arange(6.0).reshape(2, 3).requires_grad_()
        (grad,) = pydist.autograd.grad(net(x).sum(), x, create_graph=True)
        grad.square().sum().backward()
        return [whole(p.grad) for p in net.parameters() if p.grad is not None]

    def work(rank):
        pydist.manual_seed(0)
        plain = Twice()
        pydist.manual_seed(0)
        model = Twice()
        fully_shard(model.layer)
        fully_shard(model)
        for a, b in zip(penalty(plain), penalty(model), strict=True):
            assert pydist.allclose(a, b)

    run_ranks(2, work)


# ---- files, forks, interrupts


def test_saving_the_module():
    def work(rank):
        with pytest.raises(TypeError, match=r"FSDPLinear cannot be pickled \(expected state_dict"):
            pydist.save(fully_shard(nn.Linear(2, 2)), io.BytesIO())

    run_ranks(2, work)


def test_meta_without_values():
    def work(rank):
        with pydist.device("meta"):
            model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        fully_shard(model)
        with pytest.raises(RuntimeError, match="got cpu and, for input 1, meta"):
            model(pydist.ones(2, 4))
        model.to_empty(device="cpu")
        with pydist.no_grad():
            for param in model.parameters():
                param.fill_(1)
        with pytest.raises(RuntimeError, match="nothing has been written to 1.running_mean, 1.running_var"):
            model(pydist.ones(2, 4))
        model[1].reset_running_stats()
        model(pydist.ones(2, 4)).sum().backward()

    run_ranks(2, work)


@pytest.mark.parametrize("limit, who, said", [
    ("RLIMIT_FSIZE", 0, "cannot size and seal the memory file of 16777216 bytes"),
    ("RLIMIT_AS", 0, "cannot map"),
    ("RLIMIT_AS", 1, "cannot map"),
])  # fmt: skip
def test_no_room_for_wholes(limit, who, said):
    """MemoryError on all ranks, nothing is left, and the module is as it was."""

    def work(rank):
        net = nn.Linear(1024, 4096, bias=False)  # 16 MiB
        fully_shard(nn.Linear(2, 2))
        before, values, kind = descriptors(), net.weight.detach().clone(), getattr(resource, limit)
        usual = resource.getrlimit(kind)
        if rank == who:
            with open("/proc/self/statm") as file:
                mapped = int(file.read().split()[0]) * resource.getpagesize() if limit == "RLIMIT_AS" else 0
            resource.setrlimit(kind, (mapped + (4 << 20), usual[1]))
        text = said if rank == who else f"rank {who} could not"
        try:
            with pytest.raises(MemoryError, match=text):
                fully_shard(net)
        finally:
            resource.setrlimit(kind, usual)
        assert not descriptors() - before and type(net) is nn.Linear and pydist.equal(net.weight, values)
        fully_shard(net)
        assert pydist.equal(whole(net.weight), values)

    run_ranks(2, work, processes=True)


def test_forks_and_workers_of_a_loader():
    """A forked child may neither read nor write; workers of a DataLoader do not mind."""

    def work(rank):
        model = sharded(gpt())
        child = os.fork()
        if not child:
            code = 0
            for attempt in (lambda: model.scale.data.fill_(7), lambda: model(batch(0))):
                try:
                    attempt()
                    code = 1
                except dist.DistError as error:
                    code |= 2 * ("was forked from" not in str(error))
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert whole(model.scale).item() == 1
        optimizer, count = RULES["SGD"](model.parameters()), 0
        for tokens in DataLoader(list(batch(0)), batch_size=1, num_workers=2):
            optimizer.zero_grad()
            loss_of(model, tokens).backward()
            optimizer.step()
            count += 1
        return count

    assert run_ranks(2, work, processes=True) == [3, 3]


def test_an_interrupt_while_a_forward_waits(tmp_path):
    """The wait ends with KeyboardInterrupt; then the training goes on, with all steps."""

    def work(rank):
        model = fully_shard(nn.Linear(4, 4, bias=False))
        optimizer = optim.SGD(model.parameters(), lr=1.0)
        with pydist.no_grad():
            model.weight.fill_(0)  # a section, which the next forward ends
        if rank == 0:
            with pytest.raises(KeyboardInterrupt):
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                model(pydist.eye(4))
            (tmp_path / "interrupted").touch()
        while not (tmp_path / "interrupted").exists():
            time.sleep(0.01)
        model(pydist.eye(4)).sum().backward()
        optimizer.step()
        return model(pydist.eye(4)).tolist()

    assert run_ranks(2, work, processes=True) == [[[-1.0] * 4] * 4] * 2
