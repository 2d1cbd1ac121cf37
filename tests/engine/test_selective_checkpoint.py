"""Selective checkpoints: what a policy keeps is not computed again, the gradients are those without a checkpoint, and
the same ops run again as in torch."""

import copy
import functools
import gc
import pickle
import threading

import pytest

import pydist
from pydist import _C, nn
from pydist.nn import functional as F
from pydist.utils import _selective
from pydist.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

aten = pydist.ops.aten


def selective(policy, function, *args, **options):
    context_fn = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(function, *args, use_reentrant=False, context_fn=context_fn, **options)


@pytest.fixture
def again(monkeypatch):
    """The names of the ops that run again, in their order."""
    names, heard = [], _selective._Again._heard

    def listen(self, name, visible, inputs, results):
        found = heard(self, name, visible, inputs, results)
        if results is None and found is None:
            names.append(str(_selective._of_call(name, inputs)).split(".")[1])
        return found

    monkeypatch.setattr(_selective._Again, "_heard", listen)
    return names


def chain(lib):
    return lambda x, y: lib.sigmoid(lib.matmul(lib.matmul(x, y), y)) * y


class Block(nn.Module):
    """Ops with one result and several, with and without random numbers, that save inputs and outputs."""

    def __init__(self, width=16):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.conv, self.bn = nn.Conv2d(1, 1, 3, padding=1, bias=False), nn.BatchNorm2d(1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), is_causal=True).squeeze(1)
        y = F.dropout(F.gelu(self.out(y)), 0.3)
        y = y + self.bn(self.conv(y.unsqueeze(1))).squeeze(1).relu() * y.softmax(-1)
        y = F.max_pool1d(F.dropout(y, 0.5), 2).mean(-1, keepdim=True) + y
        return x + F.dropout(y, 0.1)


def train(run):
    """Bits of the outputs, of the gradients and of the next random numbers, after two steps."""
    pydist.manual_seed(3)
    net = nn.ModuleList([Block() for _ in range(2)])
    x, outputs = pydist.randn(2, 5, 16, requires_grad=True), []
    for _ in range(2):
        h = x
        for block in net:
            h = run(block, h)
        outputs.append(h.tolist())
        h.square().sum().backward()
    return outputs, [p.grad.tolist() for p in [x, *net.parameters()]], pydist.rand(2).tolist()


POLICIES = {
    "everything": lambda context, op, *args: CheckpointPolicy.MUST_SAVE,
    "nothing": lambda context, op, *args: CheckpointPolicy.PREFER_RECOMPUTE,
    "products": [aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default],
    "attention and dropout": [aten._scaled_dot_product_flash_attention.default, aten.native_dropout.default],
    "every second": lambda context, op, *args, _n=[0]: _n.append(0) or len(_n) % 2 == 0,
    "to the host": lambda context, op, *args: CheckpointPolicy.MUST_CPU_OFFLOAD,
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_bits_are_those_without(name):
    plain = train(lambda block, x: block.eval()(x))
    assert train(lambda block, x: selective(POLICIES[name], block.eval(), x)) == plain


def test_batch_statistics_of_a_kept_norm_move_once():
    """The kernel of a batch norm also moves the running statistics."""
    bn, x = nn.BatchNorm2d(2), pydist.randn(3, 2, 4, 4, requires_grad=True)
    selective([aten.native_batch_norm.default], lambda x: bn(x).exp(), x).sum().backward()
    other = nn.BatchNorm2d(2)
    other(x)
    assert bn.running_mean.tolist() == other.running_mean.tolist()


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_kept_is_not_computed_again(kept):
    """A weight that changes after forward shows which of both products the gradient of exp saw."""
    w, x = pydist.eye(2), pydist.tensor([[1.0, 2.0]], requires_grad=True)
    y = selective([aten.mm.default] if kept else [], lambda x: (x @ w).exp().sum(), x)
    w.data.mul_(2)
    y.backward()
    seen = 1 if kept else 2  # times x: the product; the gradient of the product itself is 2 in both cases
    assert x.grad.tolist() == (2 * (x.detach() * seen).exp()).tolist()


@pytest.mark.parametrize("name", ["list", "everything", "nothing", "every second product", "all but products"])
def test_beside_torch(torch, again, name):
    from torch.utils import checkpoint as theirs
    from torch.utils._python_dispatch import TorchDispatchMode

    def policy_of(aten, policies):
        save, drop = policies.MUST_SAVE, policies.PREFER_RECOMPUTE
        calls = []

        def second(context, op, *args, **kwargs):
            if op == aten.mm.default:
                calls.append(op)
            return save if op == aten.mm.default and len(calls) % 2 == 0 else drop

        return {
            "list": [aten.mm.default],
            "everything": lambda context, op, *args, **kwargs: save,
            "nothing": lambda context, op, *args, **kwargs: drop,
            "every second product": second,
            "all but products": lambda context, op, *args, **kwargs: drop if op == aten.mm.default else save,
        }[name]

    class Listen(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.names.append(op.name().partition("::")[2].partition(".")[0])
            return op(*args, **(kwargs or {}))

    x, y = pydist.rand(4, 4, dtype=pydist.float64), pydist.rand(4, 4, dtype=pydist.float64)
    a, b = (torch.tensor(t.tolist(), dtype=torch.float64, requires_grad=True) for t in (x, y))
    x, y = x.requires_grad_(), y.requires_grad_()
    with set_checkpoint_early_stop(False), theirs.set_checkpoint_early_stop(False):
        ours = selective(policy_of(aten, CheckpointPolicy), chain(pydist), x, y)
        context_fn = functools.partial(
            theirs.create_selective_checkpoint_contexts, policy_of(torch.ops.aten, theirs.CheckpointPolicy)
        )
        other = theirs.checkpoint(chain(torch), a, b, use_reentrant=False, context_fn=context_fn)
        loss, wanted = ours.sum(), other.sum()
        loss.backward()
        listen = Listen()
        with listen:
            wanted.backward()
    assert ours.flatten().tolist() == pytest.approx(other.flatten().tolist(), rel=1e-14)
    for p, q in ((x, a), (y, b)):
        assert p.grad.flatten().tolist() == pytest.approx(q.grad.flatten().tolist(), rel=1e-13)
    until = listen.names[: listen.names.index("sigmoid_backward")]
    # after what runs again, the gradient of the last product multiplies twice
    assert [op for op in until if op in ("mm", "sigmoid", "mul")] == [*again, "mul", "mul"]
    assert (
        len(again) == {"list": 2, "everything": 0, "nothing": 4, "every second product": 3, "all but products": 2}[name]
    )


def test_the_policy_sees_each_op_once():
    seen = []

    def policy(context, op, *args):
        assert isinstance(context, SelectiveCheckpointContext) and not context.is_recompute
        assert _C._saved_hooks() is not None  # the checkpoint's own hooks stay
        seen.append((str(op), [None if a is None else tuple(a.shape) for a in args], context.op_output))
        args[0].exp()  # nobody hears of what a policy computes
        return CheckpointPolicy.PREFER_SAVE

    lin, bare = nn.Linear(3, 2), nn.Linear(2, 2, bias=False)
    x = pydist.randn(5, 3, requires_grad=True)
    out = selective(policy, lambda x: bare(lin(x)).max(0), x)
    assert [name for name, *_ in seen] == ["aten.addmm.default", "aten.mm.default", "aten.max.default"]
    assert seen[0][1] == [(5, 3), (2, 3), (2,)] and seen[1][1] == [(5, 2), (2, 2), None]
    assert seen[1][2].shape == (5, 2) and isinstance(seen[2][2], tuple)
    out[0].sum().backward()
    assert len(seen) == 3


def test_misuse_raises():
    x = pydist.rand(3, 3, requires_grad=True)
    keep = [aten.mm.default]
    for wrong in ([aten.mm], ["mm"], [pydist.mm]):
        with pytest.raises(ValueError, match=r"in the list \(expected ops such as pydist.ops.aten.mm.default\)"):
            create_selective_checkpoint_contexts(wrong)
    with pytest.raises(TypeError, match="got tuple"):
        create_selective_checkpoint_contexts(tuple(keep))
    with pytest.raises(
        TypeError, match=r"the policy returned 'save' for aten.mm.default \(expected a CheckpointPolicy"
    ):
        selective(lambda *a: "save", chain(pydist), x, x)
    with pytest.raises(ZeroDivisionError):
        selective(lambda *a: 1 // 0, chain(pydist), x, x)
    with pytest.raises(AttributeError, match="pydist.ops.aten has no mmm"):
        _ = aten.mmm
    assert (x @ x).exp().sum().backward() is None  # nothing is left behind

    y = selective(keep, chain(pydist), x, x).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"what the policy kept of aten.mm.default has been used by a backward"):
        y.backward()
    y = selective(keep, lambda x: (x @ x).add_(1).exp(), x).sum()
    with pytest.raises(
        RuntimeError, match="result of aten.mm.default of shape .3, 3., which the policy keeps, was changed"
    ):
        y.backward()
    contexts = functools.partial(create_selective_checkpoint_contexts, keep, allow_cache_entry_mutation=True)
    checkpoint(lambda x: (x @ x).add_(1).exp(), x, use_reentrant=False, context_fn=contexts).sum().backward()

    calls = []

    def more_products(x):
        calls.append(0)
        return functools.reduce(lambda a, b: a @ b, [x] * (1 + len(calls))).exp()

    with pytest.raises(RuntimeError, match=r"calls aten.mm.default 2 times \(expected 1 calls, as in forward\)"):
        selective(keep, more_products, x).sum().backward()

    def another_shape(x):
        calls.append(0)
        return (x[: len(calls) % 2 + 1] @ x).exp()

    with pytest.raises(RuntimeError, match=r"kept a result of shape .*, and when the function runs again it has shape"):
        selective(keep, another_shape, x, determinism_check="none").sum().backward()


def test_without_gradients_no_policy_is_asked():
    with pydist.no_grad():
        selective(lambda *a: 1 // 0, chain(pydist), pydist.rand(2, 2), pydist.rand(2, 2))


def test_other_threads_are_not_heard():
    seen = []
    x = pydist.rand(4, 4, requires_grad=True)

    def policy(context, op, *args):
        seen.append(op)
        return True

    def function(x):
        other = threading.Thread(target=lambda: x.detach().exp().sin())
        other.start()
        other.join()
        return (x @ x).exp()

    selective(policy, function, x).sum().backward()
    assert set(map(str, seen)) == {"aten.mm.default", "aten.exp.default"}


def test_nested_checkpoints():
    x = pydist.rand(4, 4, dtype=pydist.float64, requires_grad=True)

    def inner(x):
        return selective([aten.exp.default], lambda x: (x @ x).exp().sin(), x)

    def outer(x):
        return inner(x @ x).cos() @ x

    h = x @ x
    (want,) = pydist.autograd.grad(((h @ h).exp().sin().cos() @ x).sum(), x)
    (found,) = pydist.autograd.grad(selective([aten.mm.default], outer, x).sum(), x)
    assert found.tolist() == want.tolist()


def test_what_is_kept_ends_with_the_graph():
    def kept():
        gc.collect()
        return sum(isinstance(o, _selective._Kept) for o in gc.get_objects())

    x = pydist.rand(4, 4, requires_grad=True)
    y = selective([aten.mm.default], chain(pydist), x, x).sum()
    assert kept() == 2
    del y
    assert kept() == 0
    y = selective([aten.mm.default], chain(pydist), x, x).sum()
    y.backward()
    assert kept() == 0  # though y lives


def test_handles():
    assert aten.mm.default is aten.mm.out is pydist.ops.aten.mm.default
    assert aten.add.Tensor is aten.add.default and aten.add.Tensor != aten.mul.Tensor
    assert aten._scaled_dot_product_efficient_attention.default == aten.scaled_dot_product_attention.default
    assert aten._scaled_dot_product_flash_attention_for_cpu.default == aten.scaled_dot_product_attention.default
    assert pickle.loads(pickle.dumps(aten.mm.default)) is aten.mm.default is copy.deepcopy(aten.mm.default)
    assert aten.mm.default.name() == "aten::mm" and "mm" in repr(aten.mm) and "mm" in repr(aten.mm.default)
    assert pydist.ops._c10d_functional.reduce_scatter_tensor.default not in [aten.mm.default]
