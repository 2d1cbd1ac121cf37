"""Cross entropy and embedding over ranks that share a vocabulary, next to those of one process in float64."""

import subprocess
import sys

import pytest

import pydist
from pydist import distributed as dist
from pydist.distributed.tensor._vocab import vocab_cross_entropy, vocab_embedding
from pydist.nn import functional as F
from pydist.testing import run_ranks


def columns(classes, world, uneven=False):
    """(first, end) of each rank; uneven: rank 0 has most, and the last rank of several none."""
    if uneven and world > 1:
        edges = [0, *(classes - 1 for _ in range(world - 1)), classes][: world + 1]
        edges[-2:] = [classes, classes] if world > 2 else [classes - 1, classes]
    else:
        each = -(-classes // world)
        edges = [min(classes, each * rank) for rank in range(world + 1)]
    return list(zip(edges, edges[1:], strict=False))


def samples(rows, classes, seed=0, scale=3.0):
    g = pydist.Generator().manual_seed(seed)
    x = pydist.randn(rows, classes, generator=g, dtype=pydist.float64) * scale
    target = pydist.randint(0, classes, (rows,), generator=g)
    weight = pydist.rand(classes, generator=g, dtype=pydist.float64) + 0.1
    return x, target, weight


def whole(x, target, by, **options):
    """Loss, and gradient of the sum of loss * by."""
    x = x.detach().clone().requires_grad_()
    loss = F.cross_entropy(x, target, **options)
    (loss * by).sum().backward()
    return loss.detach(), x.grad


def close(a, b, within=1e-12):
    a, b = a.double(), b.double()
    assert a.shape == b.shape
    assert pydist.equal(a.isnan(), b.isnan()), (a, b)
    error = (a - b).nan_to_num().abs().max().item() if a.numel() else 0.0
    assert error <= within * max(1.0, b.nan_to_num().abs().max().item() if b.numel() else 0.0), error


def both(rank, spans, x, target, within=1e-12, **options):
    """Compares this rank's loss and gradient with those of one process; returns the loss."""
    first, end = spans[rank]
    by = pydist.arange(1.0, len(target) + 1) if options.get("reduction") == "none" else pydist.tensor(0.7)
    wanted, gradient = whole(x, target, by, **options)
    local = x[:, first:end].detach().clone().requires_grad_()
    loss = vocab_cross_entropy(local, target, first, x.size(1), **options)
    (loss * by).sum().backward()
    close(loss.detach(), wanted, within)
    close(local.grad, gradient[:, first:end], within)
    return loss.detach()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_as_one_process(world):
    x, target, weight = samples(7, 11)
    target[2] = -100

    def work(rank):
        found = []
        for spans in (columns(11, world), columns(11, world, uneven=True)):
            for reduction in ("mean", "sum", "none"):
                for smoothing in (0.0, 0.1, 1.0):
                    for given in (None, weight):
                        options = {"reduction": reduction, "label_smoothing": smoothing, "weight": given}
                        found.append(both(rank, spans, x, target, **options).tolist())
            found.append(both(rank, spans, x, target.clamp(0), ignore_index=int(target[0])).tolist())
        return found

    results = run_ranks(world, work)
    assert all(found == results[0] for found in results)  # bit for bit


@pytest.mark.parametrize("world", [2, 4])
def test_a_large_vocabulary(world):
    """That of GPT-2, which no number of ranks divides."""
    x, target, weight = samples(5, 50257)
    spans = columns(50257, world)

    def work(rank):
        both(rank, spans, x, target)
        both(rank, spans, x, target, label_smoothing=0.2, weight=weight)

    run_ranks(world, work)


def test_the_same_bits_in_threads_and_processes():
    """What the ranks found is combined in their order, wherever it comes from."""
    x, target, weight = samples(9, 1001)

    def work(rank):
        first, end = columns(1001, 3)[rank]
        local = x[:, first:end].float().detach().requires_grad_()
        loss = vocab_cross_entropy(local, target, first, 1001, weight=weight, label_smoothing=0.1)
        loss.backward()
        return loss.item(), local.grad.tolist()

    assert run_ranks(3, work) == run_ranks(3, work, processes=True)


@pytest.mark.parametrize(("dtype", "within"), [("float32", 2e-6), ("bfloat16", 2e-2), ("float16", 3e-3)])
def test_other_dtypes(dtype, within):
    """Computed in float32, and rounded once."""
    dtype = getattr(pydist, dtype)
    x, target, _ = samples(6, 301)
    x = x.to(dtype)

    def work(rank):
        first, end = columns(301, 2)[rank]
        local = x[:, first:end].detach().clone().requires_grad_()
        loss = vocab_cross_entropy(local, target, first, 301, label_smoothing=0.1)
        loss.backward()
        assert loss.dtype == local.grad.dtype == dtype
        wanted, gradient = whole(x.double(), target, 1.0, label_smoothing=0.1)
        close(loss.detach(), wanted, within)
        close(local.grad, gradient[:, first:end], within)
        with pydist.autocast("cpu", dtype=pydist.bfloat16):
            narrow = vocab_cross_entropy(local, target, first, 301)
        if dtype != pydist.float32:
            assert narrow.dtype == pydist.float32
            close(narrow.detach(), whole(x.double(), target, 1.0)[0], 1e-6)

    run_ranks(2, work)


def test_large_logits_lose_no_digits():
    """float32 numbers of 1e4: x - log(sum) would keep three digits of the probabilities."""
    x, target, _ = samples(4, 9, scale=1.0)
    x = (x + 1e4).float()

    def work(rank):
        first, end = columns(9, 3)[rank]
        local = x[:, first:end].detach().clone().requires_grad_()
        loss = vocab_cross_entropy(local, target, first, 9, label_smoothing=0.3)
        loss.backward()
        wanted, gradient = whole(x.double(), target, 1.0, label_smoothing=0.3)
        close(loss.detach(), wanted, 1e-6)
        close(local.grad, gradient[:, first:end], 1e-6)

    run_ranks(3, work)


def test_masked_and_broken_logits():
    """A rank whose columns are all -inf; inf and NaN give what they give in one process."""
    x, target, _ = samples(5, 8)
    x[:, 4:] = -float("inf")
    target = target % 4
    broken = x.clone()
    broken[1, 0], broken[2, 6], broken[3, 1] = float("nan"), float("nan"), float("inf")

    def work(rank):
        spans = columns(8, 2)
        both(rank, spans, x, target)
        first, end = spans[rank]
        found = vocab_cross_entropy(broken[:, first:end], target, first, 8, reduction="none")
        close(found, F.cross_entropy(broken, target, reduction="none"))

    run_ranks(2, work)


def test_nothing_counts():
    """Ignored everywhere, and no rows at all: a mean of nothing is NaN, its gradient 0."""
    x, target, _ = samples(3, 5)
    target = target * 0 - 100

    def work(rank):
        spans = columns(5, 2)
        for reduction in ("mean", "sum", "none"):
            both(rank, spans, x, target, reduction=reduction)
            both(rank, spans, x[:0], target[:0], reduction=reduction)
        both(rank, spans, x, target, label_smoothing=0.5)

    run_ranks(2, work)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_second_gradients(reduction):
    """Next to those of one process, with weights and smoothing; a third one is refused."""
    x, target, weight = samples(4, 7)
    target[1] = -100
    v, _, _ = samples(4, 7, seed=1)
    options = {"weight": weight, "label_smoothing": 0.2, "reduction": reduction}

    def gradients(loss_of, x, v, add):
        """Of sum(v * dloss/dx), by x and by the factor of the loss."""
        x = x.detach().clone().requires_grad_()
        by = pydist.tensor([0.5, 1.5, 2.5, 3.5] if reduction == "none" else 1.5, dtype=x.dtype, requires_grad=True)
        (g,) = pydist.autograd.grad((loss_of(x) * by).sum(), x, create_graph=True)
        return pydist.autograd.grad(add((g * v).sum()), (x, by), create_graph=True)

    wanted = gradients(lambda x: F.cross_entropy(x, target, **options), x, v, lambda s: s)

    def work(rank):
        for spans in (columns(7, 3), columns(7, 3, uneven=True)):
            first, end = spans[rank]
            of_x, of_by = gradients(
                lambda x, first=first: vocab_cross_entropy(x, target, first, 7, **options),
                x[:, first:end],
                v[:, first:end],
                lambda s: s,
            )
            close(of_x.detach(), wanted[0].detach()[:, first:end])
            close(of_by.detach(), wanted[1].detach())
            with pytest.raises(RuntimeError, match="once_differentiable"):
                of_x.sum().backward()

    run_ranks(3, work)


MEMORY = """
import pydist
from pydist import distributed as dist
from pydist.distributed.tensor._vocab import vocab_cross_entropy

dist.init_process_group()
rows, classes = 2048, 50257
first, end = (0, 25129) if dist.get_rank() == 0 else (25129, classes)
target = pydist.arange(rows)
for n in (2, rows):  # the first time only sets things up
    local = pydist.zeros(n, end - first, requires_grad=True)
    vocab_cross_entropy(local, target[:n], first, classes).backward()
    now = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
    if n == 2:
        before = now
print("KIB", now - before)
"""


@pytest.mark.slow
def test_the_logits_are_not_gathered(tmp_path):
    """The memory of GPT-2's loss over two ranks is that of a rank's logits and of their gradient."""
    (tmp_path / "peak.py").write_text(MEMORY)
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", "2", tmp_path / "peak.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    peaks = [int(line.split("KIB")[1]) * 1024 for line in done.stdout.splitlines() if "KIB" in line]
    assert len(peaks) == 2 and max(peaks) <= 1.05 * (2048 * 25129 * 4 * 2) + 10e6, peaks


def test_what_differs_between_ranks_raises_on_all():
    x, target, _ = samples(4, 6)

    def work(rank):
        first, end = columns(6, 2)[rank]
        local = x[:, first:end]
        errors = []
        for call in (
            lambda: vocab_cross_entropy(local, target if rank else target.flip(0), first, 6),
            lambda: vocab_cross_entropy(local, target, first, 6, label_smoothing=0.1 + 0.1 * rank),
            lambda: vocab_cross_entropy(local, target, 0, 6),
            lambda: vocab_cross_entropy(local, target, first, 7),
            lambda: vocab_cross_entropy(local, target, first, 6, reduction=("sum", "mean")[rank]),
        ):
            with pytest.raises(ValueError, match="vocab_cross_entropy: ") as caught:
                call()
            errors.append(str(caught.value))
        both(rank, columns(6, 2), x, target)  # the group goes on
        return errors

    results = run_ranks(2, work)
    assert "target, weight or options differ between ranks" in results[0][0]
    assert results[0][2] == "vocab_cross_entropy: rank 1 has columns [0, 3) (expected them to begin at 3)"
    assert results[0][3] == "vocab_cross_entropy: the ranks' columns end at 6 (expected 7)"


def test_targets_out_of_range():
    """On all ranks, whoever has the classes, and if one rank alone has such a target."""
    x, target, _ = samples(4, 6)

    def work(rank):
        first, end = columns(6, 2)[rank]
        errors = []
        for bad in (6, -1, 2**40):
            wrong = target.clone()
            wrong[2] = bad
            with pytest.raises(
                IndexError, match=f"vocab_cross_entropy: target {bad} at row 2 is out of range"
            ) as caught:
                vocab_cross_entropy(x[:, first:end], wrong, first, 6)
            errors.append(str(caught.value))
        with pytest.raises(ValueError if rank else IndexError):
            vocab_cross_entropy(x[:, first:end], target if rank else wrong, first, 6)
        both(rank, columns(6, 2), x, target)
        return errors

    first, second = run_ranks(2, work)
    assert first == second


def test_wrong_arguments():
    x, target, weight = samples(4, 6)
    for error, message, call in (
        (ValueError, "reduction is 'most'", lambda: vocab_cross_entropy(x, target, 0, 6, reduction="most")),
        (ValueError, "label_smoothing is 2", lambda: vocab_cross_entropy(x, target, 0, 6, label_smoothing=2)),
        (ValueError, "got 6 columns from 1 on", lambda: vocab_cross_entropy(x, target, 1, 6)),
        (ValueError, "got 6 columns from -1 on", lambda: vocab_cross_entropy(x, target, -1, 6)),
        (ValueError, "got 0 columns from 0 on", lambda: vocab_cross_entropy(x[:, :0], target, 0, 0)),
        (RuntimeError, "logits are int64", lambda: vocab_cross_entropy(x.long(), target, 0, 6)),
        (RuntimeError, "target is float64", lambda: vocab_cross_entropy(x, target.double(), 0, 6)),
        (RuntimeError, "logits have shape", lambda: vocab_cross_entropy(x[0], target, 0, 6)),
        (RuntimeError, "target \\[3\\]", lambda: vocab_cross_entropy(x, target[:3], 0, 6)),
        (RuntimeError, "weight is float64", lambda: vocab_cross_entropy(x, target, 0, 6, weight=weight[:3])),
        (TypeError, "logits", lambda: vocab_cross_entropy(3, target, 0, 6)),
    ):
        with pytest.raises(error, match=message):
            call()


def test_ranks_with_other_rows():
    x, target, _ = samples(4, 6)

    def work(rank):
        first, end = columns(6, 2)[rank]
        with pytest.raises(dist.CommMismatch):
            vocab_cross_entropy(x[rank:, first:end], target[rank:], first, 6)

    run_ranks(2, work)


# ---- embedding


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_embedding_as_one_process(world):
    """The sum of the ranks' summands is the embedding; each rank gets the gradient of its rows."""
    g = pydist.Generator().manual_seed(0)
    table = pydist.randn(11, 3, generator=g, dtype=pydist.float64)
    ids = pydist.randint(0, 11, (4, 5), generator=g)
    by = pydist.randn(4, 5, 3, generator=g, dtype=pydist.float64)

    def work(rank):
        for spans in (columns(11, world), columns(11, world, uneven=True)):
            for padding in (None, 0, 7, -1):
                for index in (ids, ids.int(), ids.T):
                    first, end = spans[rank]
                    w = table.detach().clone().requires_grad_()
                    weights = by.transpose(0, 1) if index.shape[0] == 5 else by
                    wanted = F.embedding(index, w, padding)
                    (wanted * weights).sum().backward()
                    local = table[first:end].detach().clone().requires_grad_()
                    part = vocab_embedding(index, local, first, 11, padding)
                    elsewhere = (index < first) | (index >= end)
                    assert not part.detach()[elsewhere].any()
                    (part * weights).sum().backward()
                    total = part.detach().clone()
                    dist.all_reduce(total)
                    assert pydist.equal(total, wanted.detach())
                    close(local.grad, w.grad[first:end])

    run_ranks(world, work)


def test_embedding_twice_in_a_model():
    """A weight that is also the head's, and second gradients."""
    table = pydist.arange(12.0, dtype=pydist.float64).reshape(4, 3).requires_grad_()
    ids = pydist.tensor([0, 2, 5, 2])
    whole = pydist.cat([pydist.zeros(2, 3, dtype=pydist.float64), table])

    def loss(part):
        return ((part @ table.T) ** 2).sum()

    (wanted,) = pydist.autograd.grad(loss(F.embedding(ids, whole)), table, create_graph=True)
    (found,) = pydist.autograd.grad(loss(vocab_embedding(ids, table, 2, 6)), table, create_graph=True)
    close(found.detach(), wanted.detach())
    (again,) = pydist.autograd.grad((wanted**2).sum(), table)
    (twice,) = pydist.autograd.grad((found**2).sum(), table)
    close(twice, again)


def test_embedding_wrong_arguments():
    w, ids = pydist.ones(2, 3), pydist.tensor([0])
    for error, message, call in (
        (
            IndexError,
            "embedding: index 5 is out of range \\(expected 0 to 4\\)",
            lambda: vocab_embedding(ids + 5, w, 2, 5),
        ),
        (IndexError, "embedding: index -1 is out of range", lambda: vocab_embedding(ids - 1, w, 2, 5)),
        (IndexError, "index -9223372036854775808 is", lambda: vocab_embedding(pydist.tensor([-(2**63)]), w, 2, 5)),
        (IndexError, "padding_idx is 5", lambda: vocab_embedding(ids, w, 2, 5, 5)),
        (ValueError, "begins at row 4 of 5", lambda: vocab_embedding(ids, w, 4, 5)),
        (ValueError, "begins at row -1 of 5", lambda: vocab_embedding(ids, w, -1, 5)),
        (RuntimeError, "weight has shape \\[3\\]", lambda: vocab_embedding(ids, w[0], 0, 5)),
        (RuntimeError, "indices are float32", lambda: vocab_embedding(w, w, 0, 5)),
    ):
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(IndexError):
        vocab_embedding(pydist.tensor([2, 7]), w, 2, 5, 2)
    assert vocab_embedding(pydist.tensor([[4, 2]]), w[:0], 3, 5).tolist() == [[[0.0] * 3] * 2]
