"""Recurrent layers and packed sequences next to torch's, in float64, values and gradients."""

from contextlib import nullcontext

import pytest

import pydist
from pydist import nn
from pydist.nn.utils import rnn as R

torch = pytest.importorskip("torch")
F64 = pydist.float64


def pair(kind, *args, **kwargs):
    """Our layer and torch's with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(*args, **kwargs).double()
    ours = getattr(nn, kind)(*args, **kwargs).double()
    ours.load_state_dict({name: pydist.from_numpy(value.numpy().copy()) for name, value in theirs.state_dict().items()})
    assert repr(ours) == repr(theirs) and list(dict(ours.named_parameters())) == list(dict(theirs.named_parameters()))
    return ours, theirs


def flat(value):
    if isinstance(value, (tuple, list)):
        return [x for part in value if part is not None for x in flat(part)]
    return [value]


def compare(ours, theirs, mine, other):
    """Results, and the gradients of a sum of squares, agree."""
    mine, other = [x for x in flat(mine) if x.dtype is F64], [x for x in flat(other) if x.dtype is torch.float64]
    assert len(mine) == len(other)
    for a, b in zip(mine, other):
        assert tuple(a.shape) == tuple(b.shape)
        assert (a.detach() - pydist.from_numpy(b.detach().numpy())).abs().max().item() < 1e-12
    sum((x * x * (k + 1)).sum() for k, x in enumerate(mine)).backward()
    sum((x * x * (k + 1)).sum() for k, x in enumerate(other)).backward()
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters()):
        assert (a.grad - pydist.from_numpy(b.grad.numpy())).abs().max().item() < 1e-11, name


def both(*shape):
    x = torch.randn(*shape, dtype=torch.float64)
    return pydist.from_numpy(x.numpy().copy()), x


VARIANTS = [
    {},
    {"num_layers": 2, "bias": False},
    {"bidirectional": True, "num_layers": 2},
    {"batch_first": True, "num_layers": 3, "bidirectional": True},
]


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("start", [False, True])
def test_layers(kind, options, start):
    ours, theirs = pair(kind, 4, 5, **options)
    x, y = both(3, 6, 4)
    batch = 3 if options.get("batch_first") else 6
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    states = [both(count, batch, 5) for _ in range(2 if kind == "LSTM" else 1)] if start else []
    mine = [s[0] for s in states]
    other = [s[1] for s in states]
    if kind == "LSTM" and start:
        mine, other = [tuple(mine)], [tuple(other)]
    compare(ours, theirs, ours(x, *mine), theirs(y, *other))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("rows, width", [(1, 20), (5, 40), (30, 60), (27, 300)])
def test_weights_that_are_packed_once(kind, rows, width):
    """All steps use the weight that the first one has packed, on one thread and on several."""
    threads, found = pydist.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            pydist.set_num_threads(n)
            ours, theirs = pair(kind, 3, width)
            x, y = both(4, rows, 3)
            compare(ours, theirs, ours(x), theirs(y))
            found.append([p.grad for p in ours.parameters()])
    finally:
        pydist.set_num_threads(threads)
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other))


@pytest.mark.parametrize(
    "kind, options",
    [("RNN", {"nonlinearity": "relu"}), ("LSTM", {"proj_size": 3, "bidirectional": True, "num_layers": 2})],
)
def test_variants(kind, options):
    ours, theirs = pair(kind, 4, 5, **options)
    x, y = both(7, 2, 4)
    compare(ours, theirs, ours(x), theirs(y))
    ours, theirs = pair(kind, 4, 5, **options)
    x, y = both(7, 4)  # without a batch
    compare(ours, theirs, ours(x), theirs(y))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("enforce", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences(kind, enforce, bidirectional):
    ours, theirs = pair(kind, 4, 5, num_layers=2, bidirectional=bidirectional)
    x, y = both(6, 4, 4)
    lengths = [6, 4, 4, 1] if enforce else [2, 6, 1, 4]
    packed = R.pack_padded_sequence(x, lengths, enforce_sorted=enforce)
    other = torch.nn.utils.rnn.pack_padded_sequence(y, lengths, enforce_sorted=enforce)
    assert packed.batch_sizes.tolist() == other.batch_sizes.tolist()
    out, last = ours(packed)
    want, end = theirs(other)
    mine, n = R.pad_packed_sequence(out, total_length=8, padding_value=0.5)
    whole, m = torch.nn.utils.rnn.pad_packed_sequence(want, total_length=8, padding_value=0.5)
    assert n.tolist() == m.tolist() == lengths
    compare(ours, theirs, [mine, last], [whole, end])


@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind, bias):
    ours, theirs = pair(kind, 4, 5, bias=bias)
    x, y = both(3, 4)
    mine, other = ours(x), theirs(y)
    compare(ours, theirs, ours(x, mine), theirs(y, other))
    x, y = both(4)
    ours.zero_grad(), theirs.zero_grad()
    compare(ours, theirs, ours(x), theirs(y))


def test_sequences_there_and_back():
    ours = [pydist.arange(n * 2).reshape(n, 2).to(F64) for n in (2, 4, 1)]
    theirs = [torch.arange(n * 2).reshape(n, 2).double() for n in (2, 4, 1)]
    for side in ("left", "right"):
        for first in (True, False):
            mine = R.pad_sequence(ours, first, -1.0, side)
            assert mine.tolist() == torch.nn.utils.rnn.pad_sequence(theirs, first, -1.0, side).tolist()
    back = R.unpack_sequence(R.pack_sequence(ours, enforce_sorted=False))
    assert [t.tolist() for t in back] == [t.tolist() for t in ours]
    padded = R.pad_sequence(ours, True)
    assert [t.tolist() for t in R.unpad_sequence(padded, [2, 4, 1], True)] == [t.tolist() for t in ours]


def test_training_and_dropout():
    pydist.manual_seed(0)
    net, head = nn.LSTM(1, 16, num_layers=2, dropout=0.1), nn.Linear(16, 1)
    optimizer = pydist.optim.Adam([*net.parameters(), *head.parameters()], lr=0.02)
    t = pydist.arange(60).float().reshape(60, 1, 1) * 0.3
    for step in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(head(net(t.sin()[:-1])[0]), t.sin()[1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    x = pydist.ones(5, 2, 1)
    assert net(x)[0].tolist() != net(x)[0].tolist()
    net.eval()
    assert net(x)[0].tolist() == net(x)[0].tolist()


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_sixteen_bits_run_in_the_kernel(kind):
    """Under autocast and with 16-bit parameters: near float32, gradients too, in one op for each layer."""
    pydist.manual_seed(0)
    layer, x = getattr(nn, kind)(6, 5, num_layers=2), pydist.randn(7, 3, 6)
    results = []
    for context, cast in ((nullcontext(), False), (pydist.autocast("cpu"), False), (nullcontext(), True)):
        layer.zero_grad()
        given = layer.bfloat16() if cast else layer
        with context:
            y, _ = given(x.bfloat16() if cast else x)
        names, nodes = set(), [y.grad_fn]
        while nodes:
            node = nodes.pop()
            names.add(node.name())
            nodes += [n for n, _ in node.next_functions if n is not None]
        assert "RecurrentBackward0" in names and "TanhBackward0" not in names
        y.float().sum().backward()
        results.append([y.detach().float(), *(p.grad.float() for p in layer.parameters())])
    for other in results[1:]:
        for want, got in zip(results[0], other):
            assert (want - got).abs().max().item() < 0.03 * max(want.abs().max().item(), 1)


def test_wrong_arguments():
    net, one, other = nn.LSTM(4, 5), pydist.ones(1, 2, 5), pydist.ones(1, 3, 5)
    for call, kind, text in [
        (lambda: net(pydist.ones(3, 2, 3)), RuntimeError, "Expected 4, got 3"),
        (lambda: net(pydist.ones(3)), ValueError, "2D or 3D"),
        (lambda: net(pydist.ones(0, 2, 4)), RuntimeError, "larger than 0"),
        (lambda: net(pydist.ones(3, 2, 4), (one, other)), RuntimeError, r"Expected hidden\[1\]"),
        (lambda: net(pydist.ones(3, 2, 4), (one,)), RuntimeError, "1 hidden states"),
        (lambda: nn.GRU(4, 5, proj_size=2), ValueError, "only supported for LSTM"),
        (lambda: nn.RNN(4, 5, nonlinearity="sin"), ValueError, "Unknown nonlinearity"),
        (lambda: nn.LSTM(4, 0), ValueError, "hidden_size 0"),
        (lambda: nn.LSTMCell(4, 5)(pydist.ones(2, 3)), RuntimeError, "size 3"),
        (lambda: R.pack_padded_sequence(pydist.ones(3, 2, 4), [1, 2]), RuntimeError, "are not sorted"),
        (lambda: R.pack_padded_sequence(pydist.ones(3, 2, 4), [4, 2]), RuntimeError, "expected 1 to 3"),
        (lambda: R.pack_padded_sequence(pydist.ones(3, 2, 4), [3]), RuntimeError, "got 1 lengths .expected 2"),
        (lambda: R.pad_sequence([]), RuntimeError, "is empty"),
    ]:
        with pytest.raises(kind, match=text):
            call()


@pytest.mark.parametrize("kind, name", [("LSTM", "lstm"), ("GRU", "gru"), ("RNN", "rnn_tanh")])
@pytest.mark.parametrize("options", VARIANTS[1:], ids=str)
def test_functions_of_weights(kind, name, options):
    """_VF's functions take the weights, as PyTorch's do."""
    ours, theirs = pair(kind, 3, 5, **options)
    count = options["num_layers"] * (2 if options.get("bidirectional") else 1)
    for shape in ((4, 2, 3), (4, 3)):
        (x, x_), (h, h_), (c, c_) = both(*shape), *[both(count, *both_in(shape, options), 5) for _ in range(2)]
        rest = options.get("bias", True), options["num_layers"], 0.0, False, options.get("bidirectional", False)
        first, first_ = ((h, c), (h_, c_)) if kind == "LSTM" else (h, h_)
        batch_first = options.get("batch_first", False)
        got = getattr(pydist._VF, name)(x, first, list(ours.parameters()), *rest, batch_first)
        same = flat(ours(x, first))
        want = flat(theirs(x_, first_))
        assert len(got) == len(want)
        for a, b, d in zip(got, want, same):
            assert a.equal(d) and (a.detach() - pydist.from_numpy(b.detach().numpy())).abs().max() < 1e-11
    with pytest.raises(RuntimeError, match=f"{name}: got 1 weights"):
        getattr(pydist._VF, name)(x, first, list(ours.parameters())[:1], *rest, False)
    with pytest.raises(TypeError, match=name):
        getattr(pydist._VF, name)(x, first)


def both_in(shape, options):
    """The batch's size among the shape of an input, as a tuple; () without a batch."""
    return () if len(shape) == 2 else (shape[0 if options.get("batch_first") else 1],)


def test_functions_of_packed_sequences():
    ours, theirs = pair("LSTM", 3, 5)
    (x, x_), (h, h_), (c, c_) = both(4, 3, 3), both(1, 3, 5), both(1, 3, 5)
    packed, packed_ = R.pack_padded_sequence(x, [4, 2, 1]), torch.nn.utils.rnn.pack_padded_sequence(x_, [4, 2, 1])
    got = pydist._VF.lstm(packed.data, packed.batch_sizes, (h, c), list(ours.parameters()), True, 1, 0.0, False, False)
    want = torch._VF.lstm(
        packed_.data, packed_.batch_sizes, (h_, c_), list(theirs.parameters()), True, 1, 0.0, False, False
    )
    for a, b in zip(got, want):
        assert (a.detach() - pydist.from_numpy(b.detach().numpy())).abs().max() < 1e-11
