"""A rank of test_gpu_nccl.py: `nccl_rank.py SCENARIO[:ARGUMENT] ...`, one after the other until one does not say "same". A line for each says
what happened, as JSON, and another one that all has ended."""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

# How ranks share a GPU; read by NCCL when it is opened.
SHARING = {
    "apart": {},  # they do not
    "hosts": {  # each says that it is another host: sockets alone, any version
        "NCCL_HOSTID": f"pydist-host{os.environ['RANK']}", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "2", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple",
        "NCCL_MNNVL_ENABLE": "0", "NCCL_NET": "Socket",
    },
    "ranks": {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"},  # NCCL's own way from 2.30 on, for two of them
}  # fmt: skip
os.environ.update(
    SHARING[os.environ["SHARING"]],
    NCCL_NVLS_ENABLE="0",
    NCCL_NET_GDR_LEVEL="LOC",
    NCCL_RAS_ENABLE="0",
    CUDA_MODULE_LOADING="EAGER",
)

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import pydist
from lib import shard_sums, sharded, sharded_models
from pydist import _C, nn
from pydist import distributed as dist
from pydist.distributed.algorithms.ddp_comm_hooks import default_hooks
from pydist.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)
from pydist.distributed.fsdp import MixedPrecisionPolicy

EMULATED = "FAKE_NCCL_FOLDER" in os.environ
FLOATS = ("float32", "float64", "float16", "bfloat16")
BY_DTYPE = {**dict.fromkeys(FLOATS, ("SUM", "AVG", "PRODUCT", "MIN", "MAX")), "int32": ("SUM", "MIN", "MAX", "PRODUCT"), "int64": ("SUM", "MAX"),
            "uint8": ("SUM", "MAX"), "bool": ("SUM", "BAND")}  # fmt: skip
INEXACT = {"float32": 1e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 2e-2}


def made(n, dtype, salt=0):
    """Numbers that differ by rank and are small enough for products."""
    x = (pydist.arange(n) * (3 + dist.get_rank()) + salt) % 5
    return (
        (x > 1)
        if dtype == "bool"
        else ((x - 2) * 0.37).to(getattr(pydist, dtype))
        if dtype in FLOATS
        else x.to(getattr(pydist, dtype))
    )


def same(on_gpu, on_cpu, what):
    """The engine's own collective on the CPU is the reference."""
    assert on_gpu.is_cuda and not on_cpu.is_cuda
    got, near = on_gpu.cpu(), INEXACT.get(str(on_cpu.dtype).split(".")[1], 0)
    assert got.dtype == on_cpu.dtype and got.shape == on_cpu.shape, what
    apart = (got.to(pydist.float64) - on_cpu.to(pydist.float64)).abs().max().item() if got.numel() else 0
    assert apart <= near * 4, (what, apart, got.tolist()[:8], on_cpu.tolist()[:8])


def both(run, *shapes, dtype="float32"):
    """run(tensors...) on the CPU and on the GPU; the tensors afterwards."""
    tensors = [made(n, dtype, salt) for salt, n in enumerate(shapes)]
    on_gpu = [t.cuda() for t in tensors]
    run(*tensors)
    run(*on_gpu)
    for i, (a, b) in enumerate(zip(on_gpu, tensors)):
        same(a, b, (getattr(run, "__name__", "?"), i, dtype, shapes))


def collectives():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, ops in BY_DTYPE.items():
        for op in ops:
            op = getattr(dist.ReduceOp, op)
            for n in (0, 1, 7, 3000):
                both(lambda x: dist.all_reduce(x, op), n, dtype=dtype)
            both(lambda x: dist.reduce(x, 1, op) if rank == 1 else dist.reduce(x.clone(), 1, op), 33, dtype=dtype)
            both(lambda y, x: dist.reduce_scatter_tensor(y, x, op), 9, 9 * size, dtype=dtype)
        both(lambda x: dist.broadcast(x, size - 1), 50, dtype=dtype)
        both(lambda y, x: dist.all_gather_into_tensor(y, x), 11 * size, 11, dtype=dtype)
        both(lambda y, x: dist.all_to_all_single(y, x), 5 * size, 5 * size, dtype=dtype)
        both(lambda x: dist.all_to_all_single(x, x), 5 * size, dtype=dtype)
        sizes = [(r + 1) % 3 * 4 for r in range(size)]  # some have none; what r gives to each is sizes[r]
        both(
            lambda y, x: dist.all_to_all_single(y, x, sizes, [sizes[rank]] * size),
            sum(sizes),
            sizes[rank] * size,
            dtype=dtype,
        )
        both(lambda y, x: dist.all_gather(list(y.split(sizes)), x), sum(sizes), sizes[rank], dtype=dtype)
        for op in ops:
            op = getattr(dist.ReduceOp, op)
            both(lambda y, x: dist.reduce_scatter(y, list(x.split(sizes)), op), sizes[rank], sum(sizes), dtype=dtype)
        both(
            lambda y, x: dist.gather(x, list(y.view(size, -1).unbind(0)) if rank == 1 else None, 1),
            4 * size,
            4,
            dtype=dtype,
        )
        both(
            lambda y, x: dist.scatter(y, list(x.view(size, -1).unbind(0)) if rank == 0 else None, 0),
            4,
            4 * size,
            dtype=dtype,
        )
    both(lambda x: dist.all_reduce(x, dist._make_nccl_premul_sum(0.5 + rank)), 40)
    both(lambda x: dist.all_reduce(x.view(20, 2).t()), 40)  # not contiguous
    both(lambda x, y: dist.all_reduce_coalesced([x, y]), 6, 70)
    both(lambda x: [dist.all_reduce(x[i : i + 8], async_op=True).wait() for i in range(0, 64, 8)], 64)
    both(
        lambda x: [work.wait() for work in [dist.all_reduce(x[i : i + 8], async_op=True) for i in range(0, 64, 8)]], 64
    )
    both(lambda x: dist.send(x, 1) if rank == 0 else dist.recv(x, 0) if rank == 1 else None, 30)
    pair = dist.new_group([0, 1])
    if rank < 2:
        both(lambda x: dist.all_reduce(x, group=pair), 21)
    fast = dist.new_group(order="fast")
    both(lambda x: dist.all_reduce(x, group=fast), 64, dtype="bfloat16")
    work = dist.all_reduce(pydist.ones(4, device="cuda"), async_op=True)
    assert work.wait() and work.result()[0].tolist() == [float(size)] * 4 and work.wait(timeout=5)
    assert work.is_completed() and work.exception() is None
    for wrong, error in ((lambda x: dist.all_reduce(x.to(pydist.int16)), "NCCL does not support int16"),
                         (lambda x: dist.all_reduce(x.to(pydist.int32), dist.ReduceOp.BXOR), "NCCL does not support reduce op BXOR of int32"),
                         (lambda x: dist.all_gather_into_tensor(pydist.zeros(size), x[:1]), "expected cuda")):  # fmt: skip
        try:
            wrong(made(4, "float32").cuda())
        except (RuntimeError, ValueError, TypeError) as caught:
            assert error in str(caught) or "is on" in str(caught), caught
        else:
            raise AssertionError(error)
    dist.barrier()
    record = dist.flight_record()
    assert "all_reduce(float32[4] on cuda, SUM) at nccl_rank.py:" in record, record
    return "same"


def other_streams():
    """A tensor of one stream, reduced and let go in another: its memory is not given away before that stream is through."""
    side = pydist.cuda.Stream()
    for asynchronous in (False, True):
        x = pydist.ones(5000, device="cuda")
        side.wait_stream(pydist.cuda.current_stream())
        with pydist.cuda.stream(side):
            work = dist.all_reduce(x, async_op=asynchronous)
            if EMULATED:  # where a stream's byte says that it hangs
                ctypes.memset(side.cuda_stream, 1, 1)
            if work is not None:
                work.wait()
        place = x.data_ptr()
        del x, work
        others = [pydist.zeros(5000, device="cuda") for _ in range(4)]
        if EMULATED:
            assert place not in [other.data_ptr() for other in others], asynchronous
            ctypes.memset(side.cuda_stream, 0, 1)
            again = [pydist.zeros(5000, device="cuda") for _ in range(4)]
            assert place in [other.data_ptr() for other in again], asynchronous
        pydist.cuda.synchronize()
        assert [other.abs().sum().item() for other in others] == [0.0] * 4
    x = pydist.ones(10, device="cuda")
    with pydist.cuda.stream(side):
        dist.all_reduce(x)
    del side  # before the memory that waits for it
    del x
    return "same"


def graphs(how):
    """Collectives in a CUDA graph, launched several times with other inputs; the engine's own on the CPU do the same."""
    rank, size = dist.get_rank(), dist.get_world_size()
    names = ("all_reduce", "bfloat16", "average", "gathered", "scattered", "exchanged", "from_1", "ring")

    def run(x, out):
        """Into `out`, one tensor for each name; what is asynchronous ends within."""
        half, average, scaled = out["bfloat16"], out["average"], x * 2
        for y in (out["all_reduce"], half, average, out["from_1"]):
            y.copy_(x)
        work = dist.all_reduce(average, "avg", async_op=True)
        dist.all_reduce(out["all_reduce"])
        dist.all_reduce(half)
        work.wait()
        dist.all_gather_into_tensor(out["gathered"], scaled)
        dist.reduce_scatter_tensor(out["scattered"], x, dist.ReduceOp.MAX)
        dist.all_to_all_single(out["exchanged"], scaled)
        dist.broadcast(out["from_1"], 1)
        if x.is_cuda:
            ops = [
                dist.P2POp(dist.isend, scaled, (rank + 1) % size),
                dist.P2POp(dist.irecv, out["ring"], (rank - 1) % size),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        else:
            work = dist.isend(scaled, (rank + 1) % size)
            dist.recv(out["ring"], (rank - 1) % size)
            work.wait()

    def outputs(device):
        sizes = {"gathered": 6 * size * size, "scattered": 6}
        return {
            k: pydist.zeros(sizes.get(k, 6 * size), dtype=pydist.bfloat16 if k == "bfloat16" else None, device=device)
            for k in names
        }

    x, out, graph = made(6 * size, "float32").cuda(), outputs("cuda"), pydist.cuda.CUDAGraph()
    if how == "warm":
        with pydist.cuda.stream(pydist.cuda.Stream()):
            run(x, out)
    with pydist.cuda.graph(graph):
        run(x, out)
    for salt in range(4):
        on_cpu, expected = made(6 * size, "float32", salt), outputs("cpu")
        x.copy_(on_cpu)
        graph.replay()
        if salt == 2:
            both(lambda x: dist.all_reduce(x), 9)  # a collective of its own, in between
        pydist.cuda.synchronize()
        run(on_cpu, expected)
        for name in names:
            same(out[name], expected[name], (salt, name))
    graph.reset()
    return "same"


def hooks():
    """Steps with each communication hook on the GPU, next to those of the same hook on the CPU."""
    rank, near = dist.get_rank(), {"fp16": 4e-3, "bf16": 3e-2}

    def own(state, bucket):
        """A hook as users write them."""
        work = dist.all_reduce(bucket.buffer(), "avg", async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    made = {
        "fp16": lambda m: m.register_builtin_comm_hook("fp16"),
        "bf16": lambda m: m.register_builtin_comm_hook("bf16"),
        "bf16 by its function": lambda m: m.register_comm_hook(None, default_hooks.bf16_compress_hook),
        "fp16 around": lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_wrapper(own)),
        "topk": lambda m: m.register_builtin_comm_hook("topk", 0.1),
        "sign": lambda m: m.register_builtin_comm_hook("sign"),
        "powersgd": lambda m: m.register_comm_hook(PowerSGDState(None, 2, 2, min_compression_rate=1), powerSGD_hook),
        "batched": lambda m: m.register_comm_hook(PowerSGDState(None, 2, 2), batched_powerSGD_hook),
        "own": lambda m: m.register_comm_hook(None, own),
    }
    for name, register in made.items():
        pydist.manual_seed(9)
        on_cpu, on_gpu = Net(), Net().cuda()
        on_gpu.load_state_dict(on_cpu.state_dict())
        pair = [nn.parallel.DistributedDataParallel(m, bucket_cap_mb=0.004) for m in (on_cpu, on_gpu)]
        for m in pair:
            register(m)
        for step in range(4):
            pydist.manual_seed(100 * rank + step)
            x, y = pydist.randn(8, 12), pydist.randn(8, 3)
            for m, device in zip(pair, ("cpu", "cuda")):
                m.zero_grad()
                (m(x.to(device), True) - y.to(device)).square().mean().backward()
            for (parameter, a), b in zip(on_cpu.named_parameters(), on_gpu.parameters()):
                tolerance, size = near.get(name[:4], 1e-4), a.grad.abs().amax().item()
                apart = (b.grad.cpu() - a.grad).abs().amax().item()
                assert apart <= tolerance * size + 1e-6, (name, step, parameter, apart, size)
        for m in pair:
            dist.check_replicas({parameter: p.grad for parameter, p in m.named_parameters()})
    return "same"


def captured_step(hook=""):
    """Whole steps of DistributedDataParallel, the optimizer's with them, as a graph, next to one process over the whole batch on the
    CPU."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pydist.manual_seed(5)
    alone, inner = Net(), Net().cuda()
    inner.load_state_dict(alone.state_dict())
    wrapped = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.004)
    near = 1e-3
    if hook:
        wrapped.register_builtin_comm_hook(hook)
        near = 5e-2
    optimizers = [pydist.optim.AdamW(m.parameters(), lr=1e-2, capturable=m is wrapped) for m in (alone, wrapped)]
    x, y = pydist.randn(5, 6 * size, 12), pydist.randn(5, 6 * size, 3)
    mine, graph = slice(6 * rank, 6 * rank + 6), pydist.cuda.CUDAGraph()
    input, target = x[0, mine].cuda(), y[0, mine].cuda()

    def step():
        optimizers[1].zero_grad()
        loss = (wrapped(input, True) - target).square().mean()
        loss.backward()
        optimizers[1].step()
        return loss

    side = pydist.cuda.Stream()
    side.wait_stream(pydist.cuda.current_stream())
    with pydist.cuda.stream(side):
        loss = step()  # opens what is opened at first use
    pydist.cuda.synchronize()
    for i in range(5):
        if i == 1:
            with pydist.cuda.graph(graph):
                loss = step()
        if i:
            input.copy_(x[i, mine])
            target.copy_(y[i, mine])
            graph.replay()
        optimizers[0].zero_grad()
        expected = (alone(x[i], True) - y[i]).square().mean()
        expected.backward()
        optimizers[0].step()
        everybody = loss.detach().clone()
        dist.all_reduce(everybody, "avg")
        pydist.testing.assert_close(everybody.cpu(), expected.detach(), rtol=near, atol=1e-5)
    for (name, a), b in zip(alone.named_parameters(), inner.parameters()):
        far = 0.03 if hook else 1e-4  # AdamW divides by the gradient's own size
        pydist.testing.assert_close(
            b.detach().cpu(), a.detach(), rtol=near, atol=far, msg=lambda text: f"{name}: {text}"
        )
    dist.check_replicas(wrapped)
    optimizers[1].zero_grad()
    try:
        with pydist.cuda.graph(pydist.cuda.CUDAGraph()):
            wrapped(input, False).square().mean().backward()  # without the last layer
    except RuntimeError as caught:
        assert "a parameter has no gradient in a backward that a CUDA graph captures" in str(caught), caught
    else:
        raise AssertionError("captured")
    graph.reset()
    return "same"


def captured_by_one():
    dist.all_reduce(pydist.ones(4, device="cuda"))
    x, graph = pydist.ones(4, device="cuda"), pydist.cuda.CUDAGraph()
    if dist.get_rank():
        dist.all_reduce(x)
    else:
        with pydist.cuda.graph(graph):
            dist.all_reduce(x)
    return "no error"


def killed_in_replays():
    """The last rank dies while all of them launch a graph."""
    x, graph = pydist.ones(1000, device="cuda"), pydist.cuda.CUDAGraph()
    dist.all_reduce(x)
    with pydist.cuda.graph(graph):
        dist.all_reduce(x)
    until = time.monotonic() + 15
    for i in range(100000):
        if i == 5 and dist.get_rank() == dist.get_world_size() - 1:
            die()
        graph.replay()
        pydist.cuda.synchronize()  # returns, since the communicator is aborted
        if i > 5:
            break
        assert time.monotonic() < until
    while time.monotonic() < until:
        dist.all_reduce(x)
    return "no error"


def messages():
    """Batches, next to the engine's own on the CPU: around the ring, several with one peer, with every other rank, in a subgroup."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [(rank + d) % size for d in range(1, size)]

    def run(ops):
        works = dist.batch_isend_irecv([dist.P2POp(*op[:3], **(op[3] if len(op) > 3 else {})) for op in ops])
        assert len(works) == len(ops) and all(work.wait() for work in works)

    def around(y, x):
        run([(dist.isend, x, (rank + 1) % size), (dist.irecv, y, (rank - 1) % size)])

    def with_all(y, x):
        run([op for r in others for op in ((dist.irecv, y.view(size, -1)[r], r), (dist.isend, x.view(size, -1)[r], r))])

    def several(y, x, **group):
        other = 1 - rank
        run([(dist.isend, x[:5], other, {"tag": 3, **group}), (dist.isend, x[5:], other, {"tag": 4, **group}),
             (dist.irecv, y[:5], other, {"tag": 3, **group}), (dist.irecv, y[5:], other, {"tag": 4, **group})])  # fmt: skip

    for dtype in ("float32", "bfloat16", "int16", "bool"):
        for _ in range(2):
            both(around, 30, 30, dtype=dtype)
        both(with_all, 4 * size, 4 * size, dtype=dtype)
    if rank < 2:
        both(several, 16, 16)
    pair = dist.new_group([0, 1])
    if rank < 2:
        both(lambda y, x: several(y, x, group=pair), 16, 16)
    both(lambda x: dist.all_reduce(x), 8)
    return "same"


def batch_mismatch(what):
    """The other end of a batch has another count, in a batch or alone."""
    x, rank = pydist.ones(6, device="cuda"), dist.get_rank()
    if what == "count":
        ops = [dist.P2POp(dist.isend, x, 1)] if rank == 0 else [dist.P2POp(dist.irecv, x[:5], 0)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        dist.barrier()
    elif rank == 0:
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])
        dist.barrier()
    else:
        dist.recv(x, 0)
    return "no error"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(12, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)
        )
        self.last = nn.Linear(3, 3)

    def forward(self, x, whole):
        x = self.first(x)
        return self.last(x) if whole else x


def fully_shard(replicas="", low="", start=""):
    """Training of sharded parameters on the GPU, whose wholes are gathered into windows, next to DistributedDataParallel on
    the CPU."""
    mesh, size = None, dist.get_world_size()
    if replicas:
        mesh = dist.init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    policy = {"mp_policy": MixedPrecisionPolicy(pydist.bfloat16, pydist.float32)} if low else {}
    near = 5e-2 if low else 1e-4
    losses, params, _ = sharded_models.reference("SGD", parts=2)
    if start == "meta":
        with pydist.device("meta"):
            model = sharded_models.Gpt()
        mesh = dist.init_device_mesh("cuda", (size,))
        model = sharded_models.sharded(model, mesh=mesh).to_empty(device="cuda")
        model.load_state_dict(sharded_models.gpt().cuda().state_dict())
    else:
        model = sharded_models.sharded(sharded_models.gpt().cuda(), mesh=mesh, **policy)
    got, _ = sharded_models.train(model, model.parameters(), "SGD", parts=2, device="cuda", sync=lambda m, on: None)
    assert max(abs(a - b) for a, b in zip(got, losses, strict=True)) < near, (got, losses)
    for name, p in model.named_parameters():
        assert p.to_local().is_cuda, name
        apart = (p.detach().full_tensor().cpu() - params[name]).abs().max().item() if p.numel() else 0
        assert apart < near, (name, apart)
    kinds = {block._fsdp.unit.kind for block in model.blocks}
    assert kinds == {"alone" if replicas and size == 2 else "gathered"}, kinds
    return "same"


def ddp():
    """Steps of DistributedDataParallel on the GPU next to one process over the whole batch on the CPU. In one step no rank uses the last
    layer, in another only rank 0 does."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pydist.manual_seed(5)
    alone = Net()
    inner = Net().cuda()
    inner.load_state_dict(alone.state_dict())
    wrapped = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.004)
    optimizers = [pydist.optim.AdamW(m.parameters(), lr=1e-2) for m in (alone, wrapped)]
    x, y = pydist.randn(5, 6 * size, 12), pydist.randn(5, 6 * size, 3)
    mine = slice(6 * rank, 6 * rank + 6)
    for step in range(5):
        whole = [step != 2 and (step != 3 or r == 0) for r in range(size)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = [
            (alone(x[step, 6 * r : 6 * r + 6], whole[r]) - y[step, 6 * r : 6 * r + 6]).square().mean()
            for r in range(size)
        ]
        (sum(losses) / size).backward()
        (wrapped(x[step, mine].cuda(), whole[rank]) - y[step, mine].cuda()).square().mean().backward()
        for (name, a), b in zip(alone.named_parameters(), inner.parameters()):
            assert (a.grad is None) == (b.grad is None), (step, name)
            if a.grad is not None:
                pydist.testing.assert_close(
                    b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-5, msg=lambda text: f"step {step}, {name}: {text}"
                )
        for optimizer in optimizers:
            optimizer.step()
    for (name, a), b in zip(alone.named_parameters(), inner.parameters()):
        pydist.testing.assert_close(
            b.detach().cpu(), a.detach(), rtol=1e-3, atol=1e-4, msg=lambda text: f"{name}: {text}"
        )
    dist.check_replicas(wrapped)
    assert len(wrapped.reducer.bucket_layout()) > 2
    return "same"


def survive():
    """Five steps of a Transaction; the last rank dies in the backward of the third. The survivors have what ranks that are computed here one
    after the other have."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pydist.manual_seed(3)
    alone, inner = nn.Linear(30, 20), nn.Linear(30, 20).cuda()
    inner.load_state_dict(alone.state_dict())
    model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.0001)
    optimizers = [pydist.optim.SGD(m.parameters(), lr=0.1, momentum=0.5) for m in (alone, model)]
    step, number, x = dist.Transaction(model, optimizers[1]), 0, pydist.randn(5, size, 8, 30)

    def die(grad):
        if number == 2 and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    inner.weight.register_hook(die)
    for number in range(5):
        for attempt in step:
            with attempt:
                optimizers[1].zero_grad()
                model(x[number, rank].cuda()).square().mean().backward()
                optimizers[1].step()
        optimizers[0].zero_grad()
        members = size if number < 2 else size - 1
        (sum(alone(x[number, r]).square().mean() for r in range(members)) / members).backward()
        optimizers[0].step()
    for a, b in zip(alone.parameters(), inner.parameters()):
        pydist.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-4, atol=1e-5)
    assert step.steps == 5 and dist.get_world_size() == size - 1
    return "same"


def repeated(timeout):
    """One collective again and again, until it raises."""
    x, group = pydist.ones(1000, device="cuda"), dist.new_group(timeout=float(timeout))
    until = time.monotonic() + 10
    while time.monotonic() < until:
        dist.all_reduce(x, group=group)
        time.sleep(0.01)
    return "no error"


def mismatch():
    dist.all_reduce(pydist.ones(4, device="cuda"))
    dist.all_reduce(pydist.ones(4 + dist.get_rank(), device="cuda"))
    return "no error"


def places_differ():
    dist.all_reduce(pydist.ones(4, device="cuda" if dist.get_rank() else "cpu"))
    return "no error"


# ---- logical shards

TABLES = {
    1: [(8, [8])], 2: [(8, [4, 4]), (8, [5, 3]), (8, [0, 8]), (2, [1, 1])], 3: [(8, [3, 3, 2]), (8, [6, 1, 1])],
    4: [(8, [2, 2, 2, 2]), (16, [9, 3, 2, 2])], 8: [(8, [1] * 8), (16, [3, 3, 2, 2, 2, 2, 1, 1])],
}  # fmt: skip


def sums_of_blocks():
    """The bits of the engine's own sums on the CPU, in parts that are even and in parts that are not."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    for shards, shares in TABLES[size]:
        blocks = _C.Blocks(shards, shares)
        for n in (0, 1, 65, 640, 3001):
            for dtype in ("float32", "float64"):
                numbers = np.random.default_rng([rank, n]).standard_normal((blocks.parts, n * size)).astype(dtype)
                on_cpu = pydist.from_numpy(numbers)
                on_gpu, out = on_cpu.cuda(), [pydist.zeros(n, dtype=on_cpu.dtype, device=d) for d in ("cpu", "cuda")]
                for x, y in ((on_cpu, out[0]), (on_gpu, out[1])):
                    group.reduce_scatter(y, x, scale=0.5, blocks=blocks)
                works = [group.all_reduce(x, scale=0.125, blocks=blocks, async_op=True) for x in (on_cpu, on_gpu)]
                assert all(work.wait() for work in works)
                for what, (a, b) in {"all": (on_cpu[0], on_gpu[0]), "part": out}.items():
                    assert a.numpy().tobytes() == b.cpu().numpy().tobytes(), (shards, shares, n, dtype, what)
            for half in (pydist.float16, pydist.bfloat16) if shards == size else ():  # leaves
                on_cpu = pydist.from_numpy(numbers[0]).to(half)
                on_gpu = on_cpu.cuda()
                group.all_reduce(on_cpu, scale=0.125)
                group.all_reduce(on_gpu, scale=0.125, blocks=blocks)
                assert on_cpu.view(pydist.int16).tolist() == on_gpu.cpu().view(pydist.int16).tolist(), (half, n)
    return "same"


def reduced_shards(dtype):
    """The reducer's gradients have the bits of NumPy's sums of the leaves, in the order of the tree."""
    dtype, rank = getattr(pydist, dtype), dist.get_rank()
    want = {shards: shard_sums.expected(shards, 1, dtype, "cuda") for shards in (2, 8)}
    for shards, shares in TABLES[dist.get_world_size()]:
        if shards not in want:
            continue
        net, blocks = shard_sums.Net(dtype).cuda(), _C.Blocks(shards, shares)
        reducer = shard_sums.reducer_of(net, blocks)
        for _ in range(2):
            shard_sums.one_step(net, reducer, blocks.of_rank(rank))
            shard_sums.same(net, want[shards])
    return "same"


def trained(kind, death=""):
    """The sha of a model that was trained over logical shards (PYDIST_SHARDS). death: the last rank dies in its second step."""

    is_last = dist.get_rank() == dist.get_world_size() - 1

    def before(step, shard):
        if death and step == 1 and is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    sha, losses = sharded.train(kind, device="cuda", rows=72, over=bool(death), before=before)
    return f"{sha} {[loss.hex() for loss in losses]}"


def tables_differ():
    x, shares = pydist.ones(2, 400, device="cuda"), [[5, 3], [3, 5]][dist.get_rank()]
    dist.group.WORLD.all_reduce(x, blocks=_C.Blocks(8, shares))
    return "no error"


def calls():
    """What NCCL is asked for, which the fake writes down."""
    x = pydist.ones(400, device="cuda")
    for blocks in (None, _C.Blocks(4, [2, 2])):
        dist.group.WORLD.all_reduce(x, blocks=blocks)
    pydist.cuda.synchronize()
    return "same"


def die():
    print(f"DYING {time.monotonic()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def killed(shards=""):
    """The last rank dies in the middle of everything."""
    x = pydist.ones(1000, device="cuda")
    blocks = _C.Blocks(4, [2, 1, 1]) if shards else None
    dist.group.WORLD.all_reduce(x, blocks=blocks)
    if dist.get_rank() == dist.get_world_size() - 1:
        threading.Timer(0.2, die).start()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        dist.group.WORLD.all_reduce(x, blocks=blocks)
        pydist.cuda.synchronize()
        time.sleep(0.01)
    return "no error"


def main():
    dist.init_process_group("nccl")
    for scenario in sys.argv[1:]:
        name, *arguments = scenario.split(":")
        started = time.monotonic()
        try:
            said = globals()[name](*arguments)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - started
        words = {
            "rank": dist.get_rank(),
            "scenario": scenario,
            "said": said,
            "seconds": seconds,
            "at": time.monotonic(),
        }
        print("SAID " + json.dumps(words), flush=True)
        if said != "same":
            break
    dist.destroy_process_group()
    print("ENDED", flush=True)


if __name__ == "__main__":
    main()
