"""All ranks have the same list of lines, or all of them raise naming the first line that differs."""

from pydist import _C
from pydist.distributed.collectives import ReduceOp, all_reduce, broadcast


def _agree_on(number, group):
    """True on every rank where `number` (below 2^62) is equal on all of them."""
    extremes = _C.tensor([number, -number], dtype=_C.int64)
    all_reduce(extremes, ReduceOp.MAX, group)
    largest, smallest = extremes.tolist()
    return largest == -smallest


def _text_of(rank, text, group):
    """Rank `rank`'s text, on every rank."""
    data = text.encode()
    size = _C.tensor([len(data)], dtype=_C.int64)
    broadcast(size, rank, group)
    if group.rank != rank:
        data = bytes(size.item())
    chars = _C.tensor(list(data), dtype=_C.uint8)
    broadcast(chars, rank, group)
    return bytes(chars.tolist()).decode()


def check_agreement(what, lines, group):
    """Raises RuntimeError on every rank, with the same text, where the ranks' lists of lines differ. One all_reduce of 16
    bytes where they agree."""
    from hashlib import blake2b

    text = "\n".join(lines)
    if _agree_on(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 2, group):
        return
    first = _text_of(0, text, group).split("\n")
    longest = max(len(first), len(lines))
    padded = [*lines, *["nothing"] * (longest - len(lines))]
    expected = [*first, *["nothing"] * (longest - len(first))]
    differing = next((i for i in range(longest) if padded[i] != expected[i]), longest)
    # The smallest (position, rank) that differs from rank 0, packed into one number.
    found = _C.tensor([differing * group.size + group.rank if differing < longest else 1 << 62], dtype=_C.int64)
    all_reduce(found, ReduceOp.MIN, group)
    position, rank = divmod(found.item(), group.size)
    theirs = _text_of(rank, padded[position] if position < longest else "", group)
    ours = first[position] if position < len(first) else "nothing"
    raise RuntimeError(f"{what} {position} differs between ranks: rank 0 has {ours}, rank {rank} has {theirs}")
