"""Context parallel: ring attention and Ulysses beside attention of the whole sequence in one process, buffers, what is
refused, deaths."""

import functools
import itertools
import os
import signal
import threading
import time

import pytest

import pydist
from lib import ranks as engine
from lib.processes import within
from pydist import _C, _sdpa, nn
from pydist import distributed as dist
from pydist.distributed.fsdp import fully_shard
from pydist.distributed.tensor import DTensor, Replicate, distribute_tensor, init_device_mesh
from pydist.distributed.tensor.experimental import (
    context_parallel,
    context_parallel_unshard,
    ring_attention,
    set_rotate_method,
    ulysses_attention,
)
from pydist.models import LLaMA, LLaMAConfig
from pydist.testing import RankFailed, run_ranks
from pydist.utils.checkpoint import checkpoint

F = nn.functional
METHODS = ["allgather", "alltoall"]


@pytest.fixture(autouse=True)
def as_before():
    yield
    set_rotate_method("allgather")
    assert _sdpa.attend is _C.scaled_dot_product_attention, "a block of context_parallel has not ended"


def rows_of(length, world, rank):
    """The rows that a rank has, by the rule of the guide: chunks r and 2 W - 1 - r, the first chunks longer by one."""
    chunks = [list(part) for part in pydist.arange(length).tensor_split(2 * world)]
    return pydist.tensor([int(i) for chunk in (rank, 2 * world - 1 - rank) for i in chunks[chunk]], dtype=pydist.int64)


def part_of(x, dim, world, rank):
    return x.index_select(dim, rows_of(x.shape[dim], world, rank))


def in_line(x, dim, world, rank):
    return x.tensor_split(world, dim)[rank]


def operands(heads, shared, length, keys=None, dtype=pydist.float64, seed=0):
    """query, key, value and the result's gradient, as a model has them: rows before heads in memory."""
    pydist.manual_seed(seed)
    keys = length if keys is None else keys
    sizes = ((heads, length, 8), (shared, keys, 8), (shared, keys, 6), (heads, length, 6))
    return [pydist.randn(2, n, h, width, dtype=dtype).transpose(1, 2) for h, n, width in sizes]


def gradients(f, *operands):
    """(result, gradients of query, key and value) of f(query, key, value)."""
    *inputs, grad = operands
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = f(*inputs)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in inputs)]


def worst(found, want):
    """The largest difference, in units of the largest number that is wanted."""
    assert [x.shape for x in found] == [x.shape for x in want]
    found, want = [x.double() for x in found], [x.double() for x in want]
    return max(
        ((a - b).abs().max() / (1 + b.abs().max())).item() for a, b in zip(found, want, strict=True) if b.numel()
    )


LENGTHS = (1, 5, 24, 97, 300)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_ring_computes_what_one_process_computes(world, method):
    """Forward and gradients in float64: causal and not, grouped heads, lengths that no number of ranks divides, fewer rows
    than chunks."""
    set_rotate_method(method)
    cases = []
    for length, causal, shared in itertools.product(LENGTHS, (True, False), (4, 2)):
        whole = operands(4, shared, length)
        plain = functools.partial(F.scaled_dot_product_attention, is_causal=causal, enable_gqa=True, scale=0.3)
        cases.append((whole, causal, gradients(plain, *whole)))

    def work(rank):
        for whole, causal, want in cases:
            own = [part_of(x, 2, world, rank) for x in whole]
            ring = functools.partial(ring_attention, is_causal=causal, enable_gqa=True, scale=0.3)
            # The whole of q, k, v has rows before heads; the parts have not.
            found = gradients(ring, *own)
            if own[0].numel():
                assert worst(found, [part_of(x, 2, world, rank) for x in want]) <= 1e-12, (causal, whole[0].shape)
            strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in own]
            strided[1] = strided[1].transpose(2, 3).contiguous().transpose(2, 3)  # rows that are not dense
            for a, b in zip(found, gradients(ring, *strided), strict=True):
                assert pydist.equal(a, b)

    run_ranks(world, work)


@pytest.mark.parametrize("method", METHODS)
def test_not_causal_any_rank_has_any_rows(method):
    """Other numbers of queries than of keys, and a rank without any."""
    set_rotate_method(method)
    queries, keys = [3, 0, 70, 1], [0, 130, 5, 2]
    whole = operands(2, 2, sum(queries), sum(keys), seed=1)
    want = gradients(F.scaled_dot_product_attention, *whole)

    def work(rank):
        own = [x.split(n, 2)[rank] for x, n in zip(whole, (queries, keys, keys, queries), strict=True)]
        found = gradients(ring_attention, *own)
        pieces = [x.split(n, 2)[rank] for x, n in zip(want, (queries, queries, keys, keys), strict=True)]
        assert worst(found, pieces) <= 1e-12

    run_ranks(4, work)


def test_no_keys_at_all():
    def work(rank):
        q, k, v, grad = operands(2, 2, 3, 0)
        out, gq, gk, gv = gradients(ring_attention, q, k, v, grad)
        assert out.abs().sum() == 0 and gq.abs().sum() == 0 and gk.shape == k.shape and gv.shape == v.shape

    run_ranks(2, work)


@pytest.mark.parametrize("shape", [(40, 8), (3, 40, 8), (2, 2, 3, 40, 8)])
def test_other_numbers_of_dimensions(shape):
    pydist.manual_seed(0)
    whole = [pydist.randn(*shape, dtype=pydist.float64) for _ in range(4)]
    want = gradients(functools.partial(F.scaled_dot_product_attention, is_causal=True), *whole)

    def work(rank):
        own = [part_of(x, x.dim() - 2, 2, rank) for x in whole]
        found = gradients(functools.partial(ring_attention, is_causal=True), *own)
        assert worst(found, [part_of(x, x.dim() - 2, 2, rank) for x in want]) <= 1e-12

    run_ranks(2, work)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype, limit", [(pydist.float32, 2e-6), (pydist.bfloat16, 1e-2), (pydist.float16, 2e-3)])
def test_dtypes(dtype, limit, method):
    set_rotate_method(method)
    whole = operands(4, 2, 290, dtype=dtype)
    plain = functools.partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    want = gradients(plain, *(x.double() for x in whole))

    def work(rank):
        own = [part_of(x, 2, 3, rank) for x in whole]
        found = gradients(functools.partial(ring_attention, is_causal=True, enable_gqa=True), *own)
        assert all(x.dtype is dtype for x in found)
        assert worst(found, [part_of(x, 2, 3, rank) for x in want]) <= limit

    run_ranks(3, work)


def test_large_scores_and_nan():
    """Scores of blocks that differ by more than exp can hold; a NaN reaches the rows that see it."""
    q, k, v, grad = (x.contiguous() for x in operands(1, 1, 64))
    k[:, :, 40] = k[:, :, 40] * 1e4
    want = gradients(functools.partial(F.scaled_dot_product_attention, is_causal=True), q, k, v, grad)
    spoiled = v.clone()
    spoiled[:, :, 50] = float("nan")

    def work(rank):
        own = [part_of(x, 2, 2, rank) for x in (q, k, v, grad)]
        ring = functools.partial(ring_attention, is_causal=True)
        assert worst(gradients(ring, *own), [part_of(x, 2, 2, rank) for x in want]) <= 1e-12
        own[2] = part_of(spoiled, 2, 2, rank)
        assert ring(*own[:3])[0, 0, :, 0].isnan()[rows_of(64, 2, rank) >= 50].all()

    run_ranks(2, work)


def test_bits_do_not_depend_on_the_transport():
    """Threads that share memory, the same over messages, and processes; both ways of rotation have the same results and
    gradients of the queries."""
    whole = operands(4, 2, 193, dtype=pydist.float32)

    def of(group, rotated):
        own = [part_of(x, 2, 3, group.rank) for x in whole]
        out, lse, keys = _C.ring_attention(group, own[:3], 0.3, True, rotated)
        grads = _C.ring_attention_grad(group, (*own[:3], out, lse, own[3]), 0.3, True, rotated, keys)
        return [x.contiguous().view(-1).tolist() for x in (out, lse, *grads)]

    found = [engine.good(engine.run(3, lambda g, r=r: of(g, r), _C.Hub(3, hosts))) for r in (False, True) for hosts in (1, 3, 3)]  # fmt: skip
    assert found[0] == found[1] == found[2] and found[3] == found[4] == found[5]
    for gathered, rotated in zip(found[0], found[3], strict=True):
        assert gathered[:3] == rotated[:3]
    assert run_ranks(3, lambda rank: of(dist.group.WORLD, True), processes=True) == found[3]


# ---- context_parallel ----


def small_llama(length, seed=0):
    pydist.manual_seed(seed)
    config = LLaMAConfig(vocab_size=17, max_seq_len=length, n_layers=2, n_heads=4, n_kv_heads=2, dim=16)
    return LLaMA(config).double()


def text(length, rows=2):
    pydist.manual_seed(1)
    tokens = pydist.randint(0, 17, (rows, length + 1))
    return tokens[:, :-1], tokens[:, 1:]  # views of one memory


def summed(model, ids, labels):
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world, length", [(2, 32), (3, 29), (4, 40)])
def test_a_model_trains_as_in_one_process(world, length, method):
    """A LLaMA, whose tables of positions are longer than the text: logits and all gradients, also with activations that
    backward computes again."""
    set_rotate_method(method)
    model = small_llama(length + 3)
    ids, labels = text(length)
    want = model(ids).detach()
    summed(model, ids, labels).backward()

    def work(rank):
        own, mesh = small_llama(length + 3), init_device_mesh("cpu", (world,))
        for again in (False, True):
            x, y = text(length)
            own.zero_grad()
            with context_parallel(mesh, buffers=[x, y, own.cos, own.sin], buffer_seq_dims=[1, -1, 0, 0]):
                assert x.shape == (2, len(rows_of(length, world, rank))) == y.shape
                assert own.cos.shape[0] == x.shape[1]
                logits = checkpoint(own, x, use_reentrant=False) if again else own(x)
                F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").backward()
            (whole,) = context_parallel_unshard(mesh, [logits], [1])
            assert worst([whole], [want]) <= 1e-12 and not whole.requires_grad
            for p in own.parameters():
                dist.all_reduce(p.grad)
            assert worst([p.grad for p in own.parameters()], [p.grad for p in model.parameters()]) <= 1e-12
            assert pydist.equal(x, ids) and pydist.equal(y, labels) and own.cos.shape[0] == length + 3

    run_ranks(world, work)


def test_fully_shard_over_data_and_context():
    """Four ranks, two texts by two parts: the gradients are those of the mean over all tokens, and so are three steps."""
    length = 24
    model = small_llama(length)
    optimizer = pydist.optim.AdamW(model.parameters(), lr=1e-2)
    ids, labels = text(length)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
        both = mesh["dp", "cp"]._flatten("dp_cp")
        own = small_llama(length)
        for block in own.model["layers"]:
            fully_shard(block, mesh=both)
        fully_shard(own, mesh=both)
        optimizer = pydist.optim.AdamW(own.parameters(), lr=1e-2)
        row = mesh["dp"].get_local_rank()
        for want in losses:
            x, y = (t[row : row + 1].clone() for t in text(length))
            optimizer.zero_grad()
            with context_parallel(mesh["cp"], buffers=[x, y, own.cos, own.sin], buffer_seq_dims=[1, 1, 0, 0]):
                loss = F.cross_entropy(own(x).flatten(0, 1), y.flatten())
                loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, "avg")
            assert abs(mean.item() - want) <= 1e-12
        for p, want in zip(own.parameters(), model.parameters(), strict=True):
            whole = p.full_tensor() if isinstance(p, DTensor) else p
            assert worst([whole.detach()], [want.detach()]) <= 1e-9  # Adam divides by roots of small numbers

    run_ranks(4, work)


def test_buffers_are_restored():
    """At the end, after an exception, and not those in no_restore_buffers; views of their memory never change."""

    def work(rank):
        mesh, memory = init_device_mesh("cpu", (2,)), pydist.arange(24.0)
        a, b, c = memory[:12].view(6, 2), memory[12:18], pydist.arange(6)
        pointers = [x.data_ptr() for x in (a, b)]
        rows = rows_of(6, 2, rank)
        for error in (None, ZeroDivisionError, KeyboardInterrupt):
            c.data = pydist.arange(6)
            try:
                with context_parallel(mesh, buffers=[a, b, c], buffer_seq_dims=[0, 0, -1], no_restore_buffers={c}):
                    assert (
                        a.tolist() == memory[:12].view(6, 2)[rows].tolist()
                        and b.tolist() == memory[12:18][rows].tolist()
                    )
                    a.zero_()
                    if error:
                        raise error("as asked")
            except BaseException as raised:
                assert type(raised) is error
            assert [x.data_ptr() for x in (a, b)] == pointers and c.tolist() == rows.tolist()
            assert memory.tolist() == list(range(24)) and a.shape == (6, 2)

    run_ranks(2, work)


def test_only_the_thread_inside_the_block_attends_over_the_ranks():
    x = pydist.ones(1, 1, 4, 2)
    plain = F.scaled_dot_product_attention(x, x, x)

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        with context_parallel(mesh):
            seen = []
            other = threading.Thread(
                target=lambda: seen.append(F.scaled_dot_product_attention(x, x, x, x[0, 0, :, :1]))
            )
            other.start()
            other.join()
            assert pydist.equal(seen[0], plain)
            with context_parallel(mesh):
                with pytest.raises(ValueError, match="attn_mask"):
                    F.scaled_dot_product_attention(x, x, x, x[0, 0, :, :1])
            with pytest.raises(ValueError, match="attn_mask"):
                F.scaled_dot_product_attention(x, x, x, x[0, 0, :, :1])
        assert pydist.equal(F.scaled_dot_product_attention(x, x, x, x[0, 0, :, :1]), plain)

    run_ranks(2, work)


def test_unshard_of_uneven_parts():
    def work(rank):
        mesh = init_device_mesh("cpu", (3,))
        wholes = [pydist.arange(11), pydist.arange(26.0).view(2, 13), pydist.arange(2).view(2, 1), pydist.zeros(0, 3)]
        dims = [0, 1, -1, 0]
        parts = [part_of(x, dim % x.dim(), 3, rank) for x, dim in zip(wholes, dims, strict=True)]
        for found, want in zip(context_parallel_unshard(mesh, parts, dims), wholes, strict=True):
            assert pydist.equal(found, want) and found.dtype is want.dtype
        assert context_parallel_unshard(mesh, [], []) == []

    run_ranks(3, work)


def test_autocast():
    def work(rank):
        x = pydist.randn(1, 2, 8, 4, requires_grad=True)
        with pydist.autocast("cpu", dtype=pydist.bfloat16), context_parallel(init_device_mesh("cpu", (2,))):
            y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
            assert y.dtype is pydist.bfloat16
            assert ulysses_attention(x, x, x).dtype is pydist.bfloat16
        y.float().sum().backward()
        assert x.grad.dtype is pydist.float32

    run_ranks(2, work)


def test_a_rank_keeps_its_rows_for_backward():
    """After a forward the ranks together hold what one process holds, and a log-sum-exp."""
    length, heads, width = 1024, 2, 32

    def kept(f, *inputs):
        before = _C.memory_allocated()
        out = f(*inputs)
        return _C.memory_allocated() - before, out

    whole = [pydist.randn(1, heads, length, width, requires_grad=True) for _ in range(3)]
    plain, _ = kept(functools.partial(F.scaled_dot_product_attention, is_causal=True), *whole)
    begin, end = threading.Barrier(4), threading.Barrier(4)

    def work(rank):
        own = [part_of(x.detach(), 2, 4, rank).requires_grad_() for x in whole]
        begin.wait()
        found, out = kept(functools.partial(ring_attention, is_causal=True), *own)
        end.wait()
        return _C.memory_allocated(), out

    before = _C.memory_allocated()
    after = run_ranks(4, work)[0][0]
    inputs = 3 * length * heads * width * 4
    assert after - before - inputs <= 1.05 * plain


# ---- Ulysses ----


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ulysses_computes_what_one_process_computes(world):
    cases = []
    for length, causal, shared in itertools.product(LENGTHS, (True, False), (8, 4, 2, 1)):
        whole = operands(8, shared, length)
        plain = functools.partial(F.scaled_dot_product_attention, is_causal=causal, enable_gqa=True, scale=0.3)
        cases.append((whole, causal, gradients(plain, *whole)))

    def work(rank):
        for whole, causal, want in cases:
            own = [in_line(x, 2, world, rank) for x in whole]
            found = gradients(functools.partial(ulysses_attention, is_causal=causal, enable_gqa=True, scale=0.3), *own)
            if own[0].numel():
                assert worst(found, [in_line(x, 2, world, rank) for x in want]) <= 1e-12, (causal, whole[1].shape)

    run_ranks(world, work)


def test_ulysses_of_three_ranks():
    whole = operands(3, 3, 50)
    want = gradients(functools.partial(F.scaled_dot_product_attention, is_causal=True), *whole)

    def work(rank):
        own = [in_line(x, 2, 3, rank) for x in whole]
        found = gradients(functools.partial(ulysses_attention, is_causal=True), *own)
        assert worst(found, [in_line(x, 2, 3, rank) for x in want]) <= 1e-12
        with pytest.raises(pydist.ShapeError, match="4 heads.*multiple of 3"):
            ulysses_attention(*(pydist.ones(1, 4, 2, 2),) * 3)
        with pytest.raises(pydist.ShapeError, match="2 queries and 3 keys"):
            ulysses_attention(pydist.ones(1, 3, 2, 2), *(pydist.ones(1, 3, 3, 2),) * 2)

    run_ranks(3, work)


# ---- what is refused ----


def test_what_attention_inside_the_block_refuses():
    def work(rank):
        x, mesh = pydist.ones(1, 2, 4, 4), init_device_mesh("cpu", (2,))
        layer = nn.MultiheadAttention(8, 2, batch_first=True)
        with context_parallel(mesh):
            with pytest.raises(ValueError, match=r"attn_mask has shape \(4, 4\)"):
                F.scaled_dot_product_attention(x, x, x, pydist.ones(4, 4))
            with pytest.raises(ValueError, match="attn_mask"):
                F.scaled_dot_product_attention(x, x, x, pydist.ones(4, 4), is_causal=True)
            with pytest.raises(ValueError, match="dropout_p is 0.1"):
                F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
            with pytest.raises(RuntimeError, match="need_weights is True inside context_parallel"):
                layer(*(pydist.ones(1, 4, 8),) * 3)
            assert layer(*(pydist.ones(1, 4, 8),) * 3, need_weights=False)[0].shape == (1, 4, 8)
        assert layer(*(pydist.ones(1, 4, 8),) * 3)[1].shape == (1, 4, 4)

    run_ranks(2, work)


def test_wrong_arguments_of_the_block():
    """No buffer has changed after them."""

    def work(rank):
        mesh, x, y = init_device_mesh("cpu", (2,)), pydist.arange(8), pydist.ones(3, 4)
        square = init_device_mesh("cpu", (1, 2))
        for error, words, m, buffers, dims, kept in [
            (TypeError, "mesh is int", 3, [x], [0], None),
            (ValueError, "2 dimensions", square, [x], [0], None),
            (ValueError, "same number of elements", mesh, [x, y], [0], None),
            (TypeError, "buffers is int", mesh, 3, [0], None),
            (TypeError, "buffer_seq_dims is int", mesh, [x], 0, None),
            (TypeError, r"buffer_seq_dims\[0\] is float", mesh, [x], [0.0], None),
            (TypeError, "no_restore_buffers is Tensor", mesh, [x], [0], x),
            (TypeError, "buffer 1 is list", mesh, [x, [1]], [0, 0], None),
            (IndexError, r"buffer_seq_dims\[1\] is 2", mesh, [x, y], [0, 2], None),
            (ValueError, "buffer 1 has 3 rows", mesh, [x, y], [0, 0], None),
            (ValueError, "buffer 1 is there twice", mesh, [x, x], [0, 0], None),
            (ValueError, "buffer 0 requires grad", mesh, [nn.Parameter(y)], [0], None),
            (ValueError, "must be a subset", mesh, [x], [0], {y}),
        ]:  # fmt: skip
            with pytest.raises(error, match=words):
                with context_parallel(m, buffers=buffers, buffer_seq_dims=dims, no_restore_buffers=kept):
                    raise AssertionError("it began")
            assert x.tolist() == list(range(8)) and y.shape == (3, 4)
        for words, bad in [("same number", ([x], [0, 1])), ("seq_dims", ([x], [1]))]:
            with pytest.raises((ValueError, IndexError), match=words):
                context_parallel_unshard(mesh, *bad)
        with pytest.raises(ValueError, match=r"buffer 0 has \[8, 2\] rows"):
            context_parallel_unshard(mesh, [x[: 2 if rank else 8]], [0])
        with pytest.raises(NotImplementedError, match="load_balancer"):
            context_parallel_unshard(mesh, [x], [0], object())
        with pytest.raises(NotImplementedError, match="'ring'"):
            set_rotate_method("ring")

    run_ranks(2, work)


def test_wrong_arguments_of_a_ring():
    """Each rank raises, also where only one is wrong, and the group goes on."""

    def work(rank):
        x = pydist.ones(1, 2, 4, 4)
        for error, words, own in [
            (dist.CommMismatch, "dtype is float64 on rank 1 .expected float32, as on rank 0", (x.double() if rank else x,) * 3),
            (dist.CommMismatch, "E is 3 on rank 1 .expected 4", (x[..., :3] if rank else x,) * 3),
            (dist.CommMismatch, "number of query heads is 1 on rank 1 .expected 2", (x[:, :1] if rank else x,) * 3),
            (pydist.ShapeError, "rank 0 has 4 rows.*expected 3", (x[:, :, 1:] if rank else x,) * 3),
            (pydist.ShapeError, "4 queries and 3 keys", (x, x[:, :, 1:], x[:, :, 1:])),
            (pydist.DTypeError, "query is int64", (x.long(),) * 3),
            (pydist.DTypeError, "key is float64", (x, x.double(), x)),
        ]:  # fmt: skip
            with pytest.raises(error, match=words):
                ring_attention(*own, is_causal=True)
        expected = (
            (pydist.DTypeError, "query is int64") if rank else (dist.CommMismatch, "arguments of rank 1 are wrong")
        )
        with pytest.raises(expected[0], match=expected[1]):
            ring_attention(*(x.long() if rank else x,) * 3)
        with pytest.raises(dist.CommMismatch, match="is_causal is True on rank 1 .expected False"):
            ring_attention(x, x, x, is_causal=bool(rank))
        with pytest.raises(dist.CommMismatch, match="scale is 1 on rank 1 .expected 0"):
            ring_attention(x, x, x, scale=rank)
        for own in ((x, x[:, :1], x[:, :1]), (x, x[0], x), (x, x, x[:, :, 1:]), (x[0, 0, 0],) * 3):
            with pytest.raises(pydist.ShapeError, match="expected"):
                ring_attention(*own)
        with pytest.raises(pydist.ShapeError, match="multiple"):
            ring_attention(pydist.ones(1, 3, 4, 4), x, x, enable_gqa=True)
        spread = distribute_tensor(x, init_device_mesh("cpu", (2,)), [Replicate()])
        with pytest.raises((TypeError, NotImplementedError)):
            ring_attention(spread, spread, spread)
        with pytest.raises(TypeError):
            ring_attention(x, x, [1.0])
        assert ring_attention(x, x, x).shape == x.shape

    run_ranks(2, work)


def test_wrong_arguments_of_the_binding():
    group, x = dist.distributed_c10d._get_default_group(), pydist.ones(1, 1, 4, 2)
    out, lse, keys = _C.ring_attention(group, (x, x, x), 1.0, True, False)
    good = (x, x, x, out, lse, x)
    assert keys == (4,) and len(_C.ring_attention_grad(group, good, 1.0, True, False, keys)) == 3
    for tensors, keys in [
        (good[:5], (4,)), (good, ()), (good, (-1,)), (good, (5,)), (good, (1 << 62,)), (good, "a"), (good, None), (None, (4,)),
        *(((*good[:i], good[i][..., :1], *good[i + 1 :]), (4,)) for i in range(6)),
        *(((*good[:i], good[i].double(), *good[i + 1 :]), (4,)) for i in range(6)),
        *(((*good[:i], good[i][0], *good[i + 1 :]), (4,)) for i in range(6)),
        *(((*good[:i], None, *good[i + 1 :]), (4,)) for i in range(6)),
    ]:  # fmt: skip
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            _C.ring_attention_grad(group, tensors, 1.0, True, False, keys)
    huge = pydist.ones(1, 1, 1, 1).expand(1, 1 << 28, 1 << 28, 1)
    with pytest.raises((RuntimeError, MemoryError, ValueError)):
        _C.ring_attention(group, (huge, huge, huge), 1.0, False, False)
    for wrong in ((None, (x, x, x)), (group, (x, x)), (group, x), (group, (x, x, 3))):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            _C.ring_attention(*wrong, 1.0, True, False)


def test_it_has_no_second_gradient():
    x = pydist.ones(1, 1, 4, 2, requires_grad=True)
    (grad,) = pydist.autograd.grad(ring_attention(x, x, x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()


@pytest.mark.parametrize("method", METHODS)
def test_every_allocation_may_fail(method):
    """Of two ranks that are threads: MemoryError where it failed, PeerFailed on the other one, and nothing stays behind."""
    set_rotate_method(method)

    def prepare(rank):
        x = pydist.ones(1, 2, 9, 4, dtype=pydist.bfloat16, requires_grad=True)
        return lambda: ring_attention(x, x, x).float().sum().backward()

    engine.every_allocation_fails(prepare, 19)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_death(method, when):
    def work(rank):
        set_rotate_method(method)
        x = pydist.ones(1, 2, 64, 8, requires_grad=True)
        ring_attention(x, x, x).sum().backward()
        dist.barrier()
        if rank == 1 and when == "forward":
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            y = ring_attention(x, x, x)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            y.sum().backward()
        except dist.PeerFailed as error:
            assert "rank 1" in str(error)
            return time.monotonic() - begin
        raise AssertionError("nothing was raised")

    a, dead, b = run_ranks(3, work, processes=True, return_exceptions=True)
    assert isinstance(dead, RankFailed) and max(a, b) < within(2), (a, dead, b)
