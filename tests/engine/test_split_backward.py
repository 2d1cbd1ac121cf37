"""Backward in two halves (csrc/autograd/deferred.c): gradients of inputs, then those of parameters, with the bits of one."""

import gc

import pytest

import pydist
from pydist import _C, nn
from pydist.nn import functional as F
from pydist.utils.checkpoint import checkpoint


class Scale(pydist.autograd.Function):
    """Counts its backwards: it runs once."""

    calls = 0

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        Scale.calls += 1
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum((0, 1))


class Block(nn.Module):
    """Attention, a packed projection whose parts are used apart, a weight used twice and transposed, a Function."""

    def __init__(self, n=16):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(n), nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.scale, self.up, self.down = nn.Parameter(pydist.rand(n)), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

    def forward(self, x):
        b, t, n = x.shape
        q, k, v = (part.view(b, t, 2, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, n))
        x = Scale.apply(x, self.scale)
        first, second = self.up.weight.split(n)
        x = x + self.down(F.gelu(self.up(self.norm(x)))) * self.scale + x @ first @ second.t()
        return x + x @ self.out.weight.t()


class Convs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 1, 3, padding=1),
        )

    def forward(self, x):
        return self.second(F.relu(self.norm(self.first(x[:, None])))).squeeze(1)


MODELS = {
    "blocks": lambda: nn.Sequential(Block(), Block()),
    "convolutions": Convs,
    "mlp": lambda: nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.RMSNorm(32), nn.Linear(32, 16, bias=False)),
}


def bits(tensors):
    return [None if t is None else t.detach().contiguous().numpy().tobytes() for t in tensors]


def gradients(model, how, autocast=False, again=False):
    """Bits of the inputs' gradients and of the parameters', of three microbatches."""
    model.zero_grad(set_to_none=True)
    generator, of_inputs, late = pydist.Generator().manual_seed(1), [], []
    for _ in range(3):
        x = pydist.randn(3, 5, 16, generator=generator, dtype=next(model.parameters()).dtype).requires_grad_()
        with pydist.autocast("cpu", dtype=pydist.bfloat16, enabled=autocast):
            y = checkpoint(model, x, use_reentrant=False) if again else model(x)
            loss = y.float().square().mean() if autocast else y.square().mean()
        if how == "whole":
            loss.backward()
            of_inputs.append(x.grad)
            continue
        before = bits(p.grad for p in model.parameters())
        run, found = _C._split_backward([loss], [None], [x])
        assert again or bits(p.grad for p in model.parameters()) == before
        of_inputs += found
        late.append(run)
        if how == "at once":
            _C._split_finish(late.pop())
    for run in late:
        _C._split_finish(run)
    return bits(of_inputs), bits(p.grad for p in model.parameters())


@pytest.mark.parametrize("dtype", [pydist.float32, pydist.float64], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_bits_are_those_of_one_backward(name, dtype):
    pydist.manual_seed(0)
    model = MODELS[name]().to(dtype)
    want = gradients(model, "whole")
    assert None not in want[1]
    assert gradients(model, "at once") == want and gradients(model, "late") == want


@pytest.mark.parametrize("name", MODELS)
def test_bits_under_autocast_and_with_checkpoints(name):
    pydist.manual_seed(0)
    model = MODELS[name]().eval()
    want = gradients(model, "whole", autocast=True)
    assert gradients(model, "at once", autocast=True) == want and gradients(model, "late", autocast=True) == want
    want = gradients(model, "whole", again=True)
    assert gradients(model, "late", again=True) == want


def test_a_function_runs_once_and_hooks_in_their_half():
    model, x, log = Block(), pydist.randn(2, 3, 16, requires_grad=True), []
    model.scale.register_hook(lambda g: log.append("parameter"))
    h = model(x)
    h.register_hook(lambda g: log.append("result"))
    Scale.calls = 0
    run, (grad,) = _C._split_backward([h.sum()], [None], [x])
    assert log == ["result"] and Scale.calls == 1 and grad.shape == x.shape and x.grad is None
    _C._split_finish(run)
    assert log == ["result", "parameter"] and Scale.calls == 1


def test_what_no_input_needs_waits_for_the_second_half():
    """Without inputs the first half does nothing; an input that is not reached has no gradient."""
    x, w, other = pydist.randn(3, 5), pydist.randn(5, 5, requires_grad=True), pydist.randn(2, requires_grad=True)
    for inputs in ([], [other]):
        w.grad, seen = None, []
        y = x @ w
        y.register_hook(lambda g, seen=seen: seen.append(1))
        run, found = _C._split_backward([y.sum() + 0 * (y * 0).sum()], [None], inputs)
        assert list(found) == [None] * len(inputs) and w.grad is None
        _C._split_finish(run)
        assert w.grad.equal(x.sum(0)[:, None].expand(5, 5)) and len(seen) == 1


def test_memory_is_freed_in_each_half():
    """The first half frees what no parameter needs: here exp's results. The rest goes in the second, or with the run."""
    n = 1 << 16

    def allocated(finish):
        x = pydist.randn(1, n, requires_grad=True)
        w = pydist.randn(1, n, requires_grad=True)
        y = x * w
        for _ in range(8):
            y = (y * 0.1).exp()
        loss = y.sum()
        del y
        gc.collect()
        counts = [_C.memory_allocated()]
        run, found = _C._split_backward([loss], [None], [x])
        counts.append(_C.memory_allocated())
        if finish:
            _C._split_finish(run)
        del run, found, loss
        counts.append(_C.memory_allocated())
        return [(a - counts[0]) / (4 * n) for a in counts]

    for finish in (True, False):
        _, first, last = allocated(finish)
        assert first <= -5 and last <= first, (first, last)


def test_bad_calls():
    x, w = pydist.randn(3, requires_grad=True), pydist.randn(3, requires_grad=True)
    run, _ = _C._split_backward([(x * w).sum()], [None], [x])
    _C._split_finish(run)
    with pytest.raises(RuntimeError, match="closed"):
        _C._split_finish(run)
    with pytest.raises(ValueError, match="2 tensors and 1 gradients"):
        _C._split_backward([x, w], [None], [x])
    with pytest.raises(RuntimeError, match="does not require grad"):
        _C._split_backward([pydist.ones(())], [None], [x])
    with pytest.raises(TypeError):
        _C._split_backward([1], [None], [x])
    run = _C._run_open([(x * w).sum()], [None], fed=False)
    with pytest.raises(RuntimeError, match="no second turn"):
        _C._split_finish(run)
    y = (x * w).sum()
    run, _ = _C._split_backward([y], [None], [x])
    y.backward()  # frees what the second half needs
    with pytest.raises(RuntimeError, match="a second time"):
        _C._split_finish(run)
