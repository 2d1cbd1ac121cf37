"""Graphs, pinned memory, other streams' use of memory, ranges, and mixed precision on CUDA's devices."""

import gc

import pytest

import pydist
from pydist import _C, cuda, nn
from pydist.nn import functional as F

if not pydist.cuda.is_available() or _C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)


def test_a_graph_does_again_what_was_captured():
    x, g = pydist.zeros(64, device="cuda"), cuda.CUDAGraph()
    (x * 2 + 1).sum()
    with pytest.raises(RuntimeError, match="nothing has been captured"):
        g.replay()
    with cuda.graph(g):
        assert cuda.is_current_stream_capturing()
        y = x * 2 + 1
        total = y.sum()
    assert not cuda.is_current_stream_capturing()
    for value in (3.0, -1.0):
        x.fill_(value)
        g.replay()
        cuda.synchronize()
        assert y.tolist() == [value * 2 + 1] * 64 and total.item() == 64 * (value * 2 + 1)
    with pytest.raises(RuntimeError, match="captured already"):
        g.capture_begin()
    g.reset()


def test_sums_in_a_graph_and_beside_it():
    """Two graphs of one stream, and work on this one, each with the counters by which blocks find the last of them."""
    x, side = pydist.randn(3000, 24).cuda(), cuda.Stream()
    want, graphs, found = x.sum(0).tolist(), [cuda.CUDAGraph(), cuda.CUDAGraph()], []
    for g in graphs:
        with cuda.graph(g, stream=side):
            found.append((x * 2).sum(0))
    for turn in range(3):
        for g in graphs if turn % 2 else graphs[::-1]:
            g.replay()
            assert x.sum(0).tolist() == want
        cuda.synchronize()
        assert [[v / 2 for v in sums.tolist()] for sums in found] == [want, want]
        for sums in found:
            sums.zero_()


def test_a_graph_keeps_its_memory():
    x, g = pydist.ones(1000, device="cuda"), cuda.CUDAGraph()
    with cuda.graph(g):
        y = (x + 1) * (x + 2)  # temporaries that are gone by the time of the replay
    others = [pydist.full((1000,), float(i), device="cuda") for i in range(20)]
    g.replay()
    cuda.synchronize()
    assert y.tolist() == [6.0] * 1000
    assert [t.amax().item() for t in others] == [float(i) for i in range(20)] == [t.amin().item() for t in others]
    del y, g, others
    gc.collect()
    cuda.empty_cache()


def test_training_by_a_graph_is_training():
    x, t = pydist.randn(16, 8).cuda(), pydist.randn(16, 4).cuda()
    losses = []
    for captured in (False, True):
        pydist.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).cuda()
        optimizer = pydist.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(model=model):
            loss = F.mse_loss(model(x), t)
            loss.backward()
            return loss

        found = []
        if captured:
            step()  # opens what is opened at first use
            optimizer.zero_grad()
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                loss = step()
        for _ in range(5):
            if captured:
                g.replay()
                cuda.synchronize()
            else:
                optimizer.zero_grad()
                loss = step()
            found.append(loss.item())
            optimizer.step()
        losses.append(found)
    assert losses[0] == losses[1] and losses[0][0] > losses[0][-1]


STEPS = {
    "SGD": {"momentum": 0.9}, "Lion": {}, "Adam": {"capturable": True, "amsgrad": True}, "AdamW": {"capturable": True},
    "Adadelta": {"capturable": True}, "RMSprop": {"capturable": True, "centered": True, "momentum": 0.5},
    "Adamax": {"capturable": True}, "Rprop": {"capturable": True}, "NAdam": {"capturable": True, "momentum_decay": 0.5},
    "RAdam": {"capturable": True, "weight_decay": 0.1, "decoupled_weight_decay": True, "betas": (0.9, 0.8)},
    "Adagrad": {"fused": True, "lr_decay": 0.5}, "ASGD": {"capturable": True, "lambd": 0.1, "t0": 2},
}  # fmt: skip


def counted_there(name):
    """The option that puts the count of steps into the device's memory, if there is one."""
    return next((option for option in ("capturable", "fused") if option in STEPS[name]), None)


def whole_steps(name, replayed, scaled=False, dtype=pydist.float32):
    """Losses of steps whose rate a schedule moves; all in one graph: forward, loss, backward, clipping, step, scaler."""
    pydist.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).cuda().to(dtype)
    x, t = pydist.randn(16, 8).cuda().to(dtype), pydist.randint(0, 4, (16,)).cuda()
    rate = pydist.full((), 0.1, device="cuda")
    optimizer = getattr(pydist.optim, name)(model.parameters(), lr=rate, **STEPS[name])
    schedule = pydist.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    scaler = pydist.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2, enabled=scaled)
    bad = pydist.zeros((), device="cuda")

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), t, label_smoothing=0.1)
        scaler.scale(loss + bad * loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    g, found = cuda.CUDAGraph(), [step().item()]
    if replayed:
        with cuda.graph(g):
            loss = step()
    for i in range(6):
        bad.fill_(float("inf") if scaled and i == 2 else 0.0)  # this step is left out
        if replayed:
            g.replay()
        else:
            loss = step()
        found.append(loss.item())
        schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.0125)
    counts = {float(s["step"]) for s in optimizer.state.values() if optimizer._counts_there(optimizer.param_groups[0])}
    return found, scaler.get_scale(), counts, [p.tolist() for p in model.parameters()]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_whole_steps_are_captured(name, scaled):
    want, got = whole_steps(name, False, scaled), whole_steps(name, True, scaled)
    assert got == want and len(set(want[0])) > 5
    if counted_there(name):
        assert want[2] == {6.0 if scaled else 7.0}


def test_steps_on_the_device_are_those_of_the_host():
    """With the count and the rate in the device's memory, or given by the host."""
    for name, options in STEPS.items():
        found = []
        for there in (False, True):
            p = pydist.linspace(-1, 1, 7, device="cuda").requires_grad_()
            rate = pydist.full((), 0.125, device="cuda") if there else 0.125
            optimizer = getattr(pydist.optim, name)(
                [p], lr=rate, **{**options, **({option: there} if (option := counted_there(name)) else {})}
            )
            for _ in range(4):
                p.grad = p.detach() * 2
                optimizer.step()
            found.append(p.detach().cpu())
        assert (found[0] - found[1]).abs().max().item() < 1e-6, name
        before = p.detach().clone()
        copy = pydist.zeros_like(p).requires_grad_()
        copied = type(optimizer)([copy], lr=rate)
        copied.load_state_dict(optimizer.state_dict())
        # goes on as it would have, numbers of the method and all
        for param, stepping in ((p, optimizer), (copy, copied)):
            param.data.copy_(before)
            param.grad = before * 2
            stepping.step()
            if counted_there(name):
                numbers = [stepping.state[param][n] for n in stepping._numbers]
                assert numbers[0].item() == 5.0 and all(n.is_cuda and n.dtype is pydist.float32 for n in numbers)
        assert p.tolist() == copy.tolist() != before.tolist(), name


@pytest.mark.parametrize("name", ["Adagrad", "NAdam", "RAdam", "ASGD"])
def test_a_rate_on_the_device_serves_steps_that_the_host_counts(name):
    found = []
    for there in (False, True):
        p = pydist.linspace(-1, 1, 7, device="cuda").requires_grad_()
        optimizer = getattr(pydist.optim, name)([p], lr=pydist.full((), 0.125, device="cuda") if there else 0.125)
        for _ in range(3):
            p.grad = p.detach() * 2
            optimizer.step()
        found.append(p.tolist())
        assert not optimizer.state[p]["step"].is_cuda and optimizer.state[p]["step"].item() == 3.0
    assert found[0] == found[1] and p[0].item() > -0.99


def test_stochastic_rounding_is_captured():
    found = []
    for replayed in (False, True):
        p = pydist.ones(64, device="cuda", dtype=pydist.bfloat16).requires_grad_()
        optimizer = pydist.optim.Adam([p], lr=1e-3, capturable=True, stochastic_rounding=3)
        p.grad = pydist.ones_like(p)
        optimizer.step()
        g = cuda.CUDAGraph()
        if replayed:
            with cuda.graph(g):
                optimizer.step()
        for _ in range(4):
            if replayed:
                g.replay()
            else:
                optimizer.step()
        found.append(p.float().tolist())
    assert found[0] == found[1] and len(set(found[0])) > 1


def test_parameters_without_gradients_count_apart():
    a, b = (pydist.ones(3, device="cuda").requires_grad_() for _ in range(2))
    optimizer = pydist.optim.Adam([a, b], capturable=True)
    for both in (True, False, True):
        a.grad, b.grad = pydist.ones_like(a), pydist.ones_like(b) if both else None
        optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in (a, b)] == [3.0, 2.0]


@pytest.mark.parametrize("capturable", [False, True])
def test_a_capture_makes_no_counts(capturable):
    """Where the numbers are not there yet, or would be made anew, a replay would begin with them again."""
    a, b = (pydist.ones(3, device="cuda").requires_grad_() for _ in range(2))
    a.grad, b.grad = pydist.ones_like(a), pydist.ones_like(b)
    optimizer = pydist.optim.NAdam([a, b], capturable=capturable)
    optimizer.step()
    if capturable:
        b.grad = None  # rests from now on, so a counts by itself
    optimizer.param_groups[0]["capturable"] = True
    with pytest.raises(RuntimeError, match="expected a step before the capture"), cuda.graph(cuda.CUDAGraph()):
        optimizer.step()
    optimizer.step()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        optimizer.step()
    for _ in range(2):
        g.replay()
    assert [optimizer.state[p]["step"].item() for p in (a, b)] == ([4.0, 1.0] if capturable else [4.0, 4.0])


@pytest.mark.parametrize(
    ("name", "why"),
    [("Adam", "expected capturable=True"), ("NAdam", "expected capturable=True"), ("Adagrad", "expected fused=True"), ("SGD", "expected a step before"),
     ("Muon", "expected a step before"), ("LAMB", "the host counts its steps"), ("Adafactor", "the host counts its steps"), ("SparseAdam", "the host counts its steps")],
)  # fmt: skip
def test_steps_that_cannot_be_captured_say_why(name, why):
    p = pydist.ones(3, 3, device="cuda").requires_grad_()
    optimizer = getattr(pydist.optim, name)([p], lr=0.1, **({"momentum": 0.9} if name == "SGD" else {}))
    p.grad = pydist.ones_like(p)
    with (
        pytest.raises(RuntimeError, match=f"{name}.step: a CUDA graph cannot capture it: .*{why}"),
        cuda.graph(cuda.CUDAGraph()),
    ):
        optimizer.step()
    optimizer.step()  # and all goes on
    assert p.sum().item() < 9


def test_steps_of_ops_are_captured():
    found = []
    for replayed in (False, True):
        pydist.manual_seed(0)
        p = pydist.randn(4, 3, device="cuda").requires_grad_()
        optimizer, g = pydist.optim.Muon([p], lr=0.1), cuda.CUDAGraph()
        p.grad = pydist.randn(4, 3, device="cuda")
        optimizer.step()
        if replayed:
            with cuda.graph(g):
                optimizer.step()
        for _ in range(3):
            g.replay() if replayed else optimizer.step()
        found.append(p.tolist())
    assert found[0] == found[1]


def test_replays_draw_what_the_same_work_without_a_graph_draws():
    x, found = pydist.linspace(1, 2, 500).cuda().requires_grad_(), []
    for replayed in (False, True):
        pydist.manual_seed(3)
        g, drawn = cuda.CUDAGraph(), []

        def work(drawn=drawn):
            y = F.dropout(x, 0.5) * pydist.rand(500, device="cuda")
            return [
                y,
                *pydist.autograd.grad(y.sum(), x),
                pydist.randn(7, device="cuda"),
                pydist.randint(0, 9, (7,), device="cuda"),
                pydist.randperm(600, device="cuda"),
            ]

        if replayed:
            with cuda.graph(g):
                made = work()
        for i in range(4):
            if i == 2:
                pydist.manual_seed(11)
            if replayed:
                g.replay()
            else:
                made = work()
            drawn += [t.tolist() for t in made] + [pydist.rand(1).item()]
        found.append(drawn)
    assert found[0] == found[1] and len(set(map(str, found[0]))) == len(found[0])


@pytest.mark.parametrize("module", [False, True])
def test_graphed_callables_train_alike(module):
    losses = []
    for graphed in (False, True):
        pydist.manual_seed(0)
        first = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.25)).cuda()
        second = nn.Linear(16, 4).cuda()
        optimizer = pydist.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
        batches = [(pydist.randn(16, 8).cuda(), pydist.randint(0, 4, (16,)).cuda()) for _ in range(4)]
        parts = (first, second)
        if graphed:
            x, y = pydist.randn(16, 8, device="cuda"), pydist.randn(16, 16, device="cuda").requires_grad_()
            if module:
                parts = cuda.make_graphed_callables(parts, ((x,), (y,)))
                assert parts == (first, second)
            else:
                parts = (cuda.make_graphed_callables(first, (x,)), lambda h: second(h))
        pydist.manual_seed(7)
        found = []
        for x, t in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(parts[1](parts[0](x)), t)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        first.eval()
        found.append(F.cross_entropy(second(first(x)), t).item())
        losses.append(found)
    assert losses[0] == losses[1] and len(set(losses[0])) == 5


def test_graphed_functions():
    def f(x, pair):
        return {"sum": (x * 2 + pair[0]).sin(), "count": 3}, pair[1] + 1

    x, a, b = (pydist.randn(5, device="cuda").requires_grad_(r) for r in (True, False, True))
    with pytest.raises(TypeError, match="sample_args hold int .expected only tensors"):
        cuda.make_graphed_callables(f, (x, (a, 3)))
    graphed = cuda.make_graphed_callables(f, (x, (a, b)))
    for _ in range(2):
        given = [pydist.randn(5, device="cuda") for _ in range(3)]
        results = []
        for call in (f, graphed):
            x, a, b = (t.clone().requires_grad_(i != 1) for i, t in enumerate(given))
            made, other = call(x, (a, b))
            assert made["count"] == 3
            (made["sum"].sum() * 2 + other.sum()).backward()
            results.append([t.tolist() for t in (made["sum"], other, x.grad, b.grad)])
        assert results[0] == results[1]
    unused = pydist.randn(5, device="cuda").requires_grad_()
    with pytest.raises(RuntimeError):
        cuda.make_graphed_callables(lambda x, y: x * 2, (x, unused))
    y = cuda.make_graphed_callables(lambda x, y: x * 2, (x, unused), allow_unused_input=True)(x, unused)
    y.sum().backward()
    assert unused.grad is None
    with pytest.raises(RuntimeError, match="the Module has hooks"):
        hooked = nn.Linear(2, 2).cuda()
        hooked.register_forward_hook(lambda *args: None)
        cuda.make_graphed_callables(hooked, (pydist.ones(1, 2, device="cuda"),))


def test_what_the_host_reads_cannot_be_captured():
    x, g = pydist.ones(4, device="cuda"), cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="to: copy to the device: a CUDA graph is being captured"),
        cuda.graph(cuda.CUDAGraph()),
    ):
        x + pydist.ones(4).pin_memory().to("cuda", non_blocking=True)
    with pytest.raises(RuntimeError, match="item: copy to the host: a CUDA graph"), cuda.graph(g):
        x.sum().item()
    assert (x + 1).sum().item() == 8  # and all goes on
    with pytest.raises(RuntimeError, match="binary_cross_entropy: copy to the host: a CUDA graph"), cuda.graph(g):
        pydist.nn.functional.binary_cross_entropy(x, x)  # whether x is in [0, 1]
    with pytest.raises(pydist.cuda.OutOfMemoryError, match="out of memory on cuda:0"), cuda.graph(g):
        pydist.empty(1 << 50, device="cuda")
    assert (x + 1).sum().item() == 8
    with pytest.raises(RuntimeError), cuda.graph(cuda.CUDAGraph(), stream=cuda.default_stream()):
        x + 1
    assert (x + 1).sum().item() == 8


def test_graphs_share_a_pool():
    pool, x = cuda.graph_pool_handle(), pydist.ones(1 << 18, device="cuda")
    first, second = cuda.CUDAGraph(), cuda.CUDAGraph()
    with cuda.graph(first, pool=pool):
        y = x + 1
    with cuda.graph(second, pool=first.pool()):
        z = y * 2
    first.replay()
    second.replay()
    cuda.synchronize()
    assert z.amin().item() == z.amax().item() == 4


def test_pinned_memory():
    x = pydist.arange(1000, dtype=pydist.float32).reshape(10, 100)
    assert not x.is_pinned()
    for layout in (x, x.t(), x[:, ::2], pydist.zeros(0)):
        p = layout.pin_memory()
        assert p.is_pinned() and p.tolist() == layout.tolist() and p.pin_memory() is p
        assert p.to("cuda", non_blocking=True).tolist() == layout.tolist()
    p.fill_(3)
    with pytest.raises(RuntimeError, match="pin_memory: the tensor is on cuda:0 .expected the CPU"):
        x.cuda().pin_memory()
    del p
    side = cuda.Stream()
    there = []
    for i in range(10):  # blocks are used again only after the copies out of them
        p = pydist.full((1 << 16,), float(i)).pin_memory()
        with cuda.stream(side if i % 2 else cuda.default_stream()):
            there.append(p.to("cuda", non_blocking=True))
        del p
    cuda.synchronize()
    assert [t.amax().item() for t in there] == [float(i) for i in range(10)]


def test_loaders_pin():
    data = pydist.utils.data.TensorDataset(pydist.arange(6), pydist.randn(6, 2))
    for workers in (0, 1):
        for x, y in pydist.utils.data.DataLoader(data, batch_size=2, pin_memory=True, num_workers=workers):
            assert x.is_pinned() and y.is_pinned()


def test_memory_waits_for_other_streams():
    side, x = cuda.Stream(), pydist.ones(1 << 18, device="cuda")
    at = x.data_ptr()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        total = x.sum()
    x.record_stream(side)
    x.record_stream(side)
    allocated = cuda.memory_allocated()
    del x
    assert allocated - cuda.memory_allocated() == 1 << 20
    side.synchronize()
    assert total.item() == 1 << 18
    assert pydist.empty(1 << 18, device="cuda").data_ptr() == at  # the stream is through
    pydist.ones(2).record_stream(side)  # the CPU's: nothing to wait for


def test_ranges():
    assert cuda.nvtx.range_push("one") == 0 and cuda.nvtx.range_push("two") == 1
    assert cuda.nvtx.range_pop() == 1 and cuda.nvtx.range_pop() == 0
    with pytest.raises(RuntimeError, match="no range is open"):
        cuda.nvtx.range_pop()
    with cuda.nvtx.range("step {}", 3):
        cuda.nvtx.mark("here")


def test_autocast_is_the_devices_own():
    x, w, near = pydist.randn(4, 8, device="cuda"), pydist.randn(8, 8, device="cuda"), pydist.randn(4, 4)
    with pydist.autocast("cuda", dtype=pydist.bfloat16):
        assert (x @ w).dtype is pydist.bfloat16 and (x @ w).float().softmax(-1).dtype is pydist.float32
        assert (near @ near).dtype is pydist.float32  # the CPU's stay
    with pydist.autocast("cpu"):
        assert (x @ w).dtype is pydist.float32 and (near @ near).dtype is pydist.bfloat16
    with pydist.autocast("cuda"):
        assert (x @ w).dtype is pydist.float16


def test_clipping_is_the_cpus():
    shapes, found = ((30, 7), (7,), (1,)), []
    for device in ("cpu", "cuda"):
        pydist.manual_seed(0)
        grads = [pydist.randn(*shape).to(device) for shape in shapes]
        params = [pydist.zeros(*shape, device=device).requires_grad_() for shape in shapes]
        for largest in (1e6, 2.0, float("inf")):
            for p, g in zip(params, grads):
                p.grad = g.clone()
            if largest == float("inf"):
                params[2].grad[0] = largest
            norm = nn.utils.clip_grad_norm_(params, min(largest, 1e6))
            assert norm.device == params[0].device
            found.append([norm.item(), *(p.grad.cpu().flatten().tolist() for p in params)])
    for got, want in zip(found[3:], found[:3]):
        assert got[0] == pytest.approx(want[0], rel=1e-6)
        for g, w in zip(got[1:], want[1:]):
            assert g == pytest.approx(w, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("dtype", [pydist.float16, pydist.bfloat16], ids=str)
def test_mixed_training_is_the_cpus(dtype):
    losses = []
    for device in ("cpu", "cuda"):
        pydist.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)).to(device)
        optimizer = pydist.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = pydist.amp.GradScaler(device, init_scale=2.0**10, growth_interval=3)
        x, t = pydist.randn(32, 16).to(device), pydist.randint(0, 8, (32,)).to(device)
        found = []
        for i in range(6):
            optimizer.zero_grad()
            with pydist.autocast(device, dtype=dtype):
                loss = F.cross_entropy(model(x), t)
            scaler.scale(loss * (float("inf") if i == 2 else 1.0)).backward()  # this step is left out
            assert all(p.dtype is pydist.float32 is p.grad.dtype for p in model.parameters())
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            found.append(loss.item())
        state = scaler.state_dict()
        assert {s["step"].item() for s in optimizer.state.values()} == {5} and state["_growth_tracker"] == 0
        losses.append((found, state["scale"]))
    assert losses[0][1] == losses[1][1] == 1024.0
    assert max(abs(a - b) for a, b in zip(losses[0][0], losses[1][0])) < 0.03 and losses[1][0][0] > losses[1][0][-1]
