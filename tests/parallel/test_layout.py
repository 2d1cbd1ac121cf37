"""Which elements belong to which rank, against torch's own partitions; and where pieces lie in buckets."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydist
from pydist import _C

F32, F64, BF16 = pydist.float32, pydist.float64, pydist.bfloat16


def of(shapes, edges, dtype=F32):
    return _C.Layout([(f"p{i}", shape, dtype, edges) for i, shape in enumerate(shapes)])


def ranges(layout, piece, world):
    return [layout.range(piece, rank, world) for rank in range(world)]


@pytest.mark.parametrize("shape", [(10, 3), (1,), (7,), (4, 2, 5), (16, 1), (0, 3), (3, 0), (97, 2)])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 16, 100])
def test_rows_are_torch_chunk(torch, shape, world):
    """Each rank's range of the flattened tensor is the chunk of that number; ranks beyond the chunks have nothing."""
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    chunks = [part.flatten().tolist() for part in torch.chunk(whole, world)]
    chunks += [[]] * (world - len(chunks))
    flat = whole.flatten()
    assert [flat[lo:hi].tolist() for lo, hi in ranges(of([shape], "rows"), 0, world)] == chunks


def test_a_piece_of_no_dimensions_is_one_row():
    assert ranges(of([()], "rows"), 0, 3) == [(0, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("numel", [0, 1, 63, 64, 65, 1000, 4096, 4097])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 70])
def test_flat_is_equal_multiples_of_64(torch, numel, world):
    """As torch splits the piece, padded to the smallest multiple of 64 * world, the padding then cut off."""
    padded = torch.nn.functional.pad(torch.arange(numel), (0, -numel % (64 * world)), value=-1)
    wanted = [[x for x in part.tolist() if x >= 0] for part in padded.reshape(world, -1)]
    found = ranges(of([(numel,)], "flat"), 0, world)
    assert [list(range(lo, hi)) for lo, hi in found] == wanted
    assert all(lo % 64 == 0 or lo == hi == numel for lo, hi in found)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 40])
def test_whole_is_the_partition_of_torchs_zero(torch, world):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    sizes = [12, 5, 5, 30, 1, 0, 7, 12, 12, 100, 2, 5]
    params = [torch.zeros(size) for size in sizes]
    parts = []  # of torch's __init__ only what the partition needs: it would want a process group
    of_torch = SimpleNamespace(world_size=world, param_groups=[{"params": params}], _partition_parameters_cache=[])
    of_torch._get_min_index = lambda values: ZeroRedundancyOptimizer._get_min_index(of_torch, values)
    of_torch._partition_param_group = lambda group, by_rank: parts.extend(by_rank)
    ZeroRedundancyOptimizer._partition_parameters(of_torch)
    owners = {id(p): rank for rank, part in enumerate(parts) for p in part}
    layout = of([(size,) for size in sizes], "whole")
    for _ in range(2):  # asked again, and for other worlds in between
        for piece, (size, p) in enumerate(zip(sizes, params)):
            assert ranges(layout, piece, world) == [(0, size if r == owners[id(p)] else 0) for r in range(world)]
            assert layout.range(piece, 0, 1) == (0, size)


def test_only_whole_pieces_are_dealt():
    layout = _C.Layout([("a", (9,), F32, "whole"), ("b", (50,), F32, "all"), ("c", (8,), F32, "whole")])
    assert [ranges(layout, piece, 2) for piece in range(3)] == [[(0, 9), (0, 0)], [(0, 50)] * 2, [(0, 0), (0, 8)]]


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 200), st.sampled_from(["rows", "flat", "whole"]))
def test_ranges_cover_a_piece_once(shape, world, edges):
    numel = pydist.Size(shape).numel()
    found = [r for r in ranges(of([(3,), shape, (4, 4)], edges), 1, world) if r[0] < r[1]]
    ends = [0, *(hi for _, hi in found)]
    assert [lo for lo, _ in found] == ends[:-1] and ends[-1] == numel


def test_the_largest_sizes():
    n, world = 2**58 + 5, 2**31 - 1
    for edges, unit in (("rows", 1), ("flat", 64)):
        layout = of([(n,)], edges)
        each = -(-n // (unit * world)) * unit
        for rank in (0, 1, world // 2, world - 1):
            assert layout.range(0, rank, world) == (min(n, each * rank), min(n, each * (rank + 1)))
    layout = of([(2**29, 2**29)], "rows")
    assert of([(4,), (2,)], "whole").range(1, 1, world) == (0, 2)
    assert layout.range(0, 2, 3) == (-(-(2**29) // 3) * 2 * 2**29, 2**58)


def test_what_went_in_comes_out():
    pieces = [("layer.weight", pydist.Size((3, 2)), F64, "rows"), ("scale", pydist.Size(()), BF16, "whole")]
    layout = _C.Layout(iter(pieces))
    assert len(layout) == 2 and [layout.piece(i) for i in range(2)] == pieces and layout.buckets() == []
    assert len(_C.Layout([])) == 0 and _C.Layout([], 100).buckets() == []


def places_by_hand(sizes, itemsizes, first, cap):
    """bucket and offset of each piece: in reverse order, each into its dtype's bucket while it fits."""
    buckets, newest = [], {}
    for i in reversed(range(len(sizes))):
        kind = itemsizes[i]
        b = newest.get(kind)
        limit = (first if not buckets or b == 0 else cap) // kind
        if b is None or buckets[b]["end"] + sizes[i] > limit:
            b = newest[kind] = len(buckets)
            buckets.append({"rows": [], "end": 0})
        buckets[b]["rows"].append((i, buckets[b]["end"], sizes[i]))
        buckets[b]["end"] += -(-sizes[i] * kind // 64) * 64 // kind
    return [bucket["rows"] for bucket in buckets]


@given(
    st.lists(st.tuples(st.integers(0, 70), st.sampled_from([F32, F64, BF16])), min_size=1, max_size=12),
    st.integers(1, 600), st.integers(1, 600),
)  # fmt: skip
def test_buckets_are_filled_in_reverse_order(pieces, cap, first):
    layout = _C.Layout([(str(i), (n,), dtype, "all") for i, (n, dtype) in enumerate(pieces)], cap, first)
    sizes, kinds = [n for n, _ in pieces], [dtype.itemsize for _, dtype in pieces]
    assert layout.buckets() == places_by_hand(sizes, kinds, first, cap)


@pytest.mark.parametrize(
    "pieces, error, text",
    [
        ([("a", (2,), F32)], TypeError, r"expected a tuple \(name, shape, dtype, edges\)"),
        ([3], TypeError, "a piece is 3"),
        (3, TypeError, "pieces is int"),
        ([(1, (2,), F32, "rows")], TypeError, "name is int"),
        ([("a", "x", F32, "rows")], TypeError, "shape is str"),
        ([("a", (2,), "f4", "rows")], TypeError, "dtype is str"),
        ([("a", (2,), None, "rows")], TypeError, "dtype is None"),
        ([("a", (2,), F32, "row")], ValueError, "edges is 'row'"),
        ([("a", (2,), F32, 1)], ValueError, "edges is 1"),
        ([("a", (-2,), F32, "rows")], RuntimeError, "piece a: Trying to create tensor with negative dimension"),
        ([("a", (1,) * 17, F32, "rows")], RuntimeError, "17"),
        ([("a", (2**40, 2**40), F32, "rows")], RuntimeError, "piece a: shape .* has too many elements"),
    ],
)
def test_wrong_pieces(pieces, error, text):
    with pytest.raises(error, match=text):
        _C.Layout(pieces)


def test_wrong_questions():
    layout = of([(5,)], "whole")
    for args, error, text in [
        ((1, 0, 1), IndexError, "piece.* is 1 .expected 0 to 0"),
        ((-1, 0, 1), IndexError, "piece.* is -1"),
        ((0, 2, 2), ValueError, "rank is 2 .expected 0 to 1"),
        ((0, -1, 2), ValueError, "rank is -1"),
        ((0, 0, 0), ValueError, "world is 0"),
    ]:
        with pytest.raises(error, match=text):
            layout.range(*args)
    with pytest.raises(IndexError, match="piece number is 1"):
        layout.piece(1)
    with pytest.raises(ValueError, match="-1"):
        _C.Layout([], -1)
