"""Checks that all ranks have the same list of lines. If not, all of them raise an error that names the first line that
differs."""

from itertools import zip_longest

from pydist import _C
from pydist.distributed._group.process_group import for_call


def _gathered(data, group):
    """The `data` of all ranks (bytes, of the same length on each), by rank."""
    size, out = len(data), bytearray(len(data) * group.size)
    group.all_gather(out, bytearray(data))
    return [bytes(out[rank * size : (rank + 1) * size]) for rank in range(group.size)]


def check_agreement(what, lines, group):
    """Raises RuntimeError on every rank, with the same text, if the ranks' lists differ. If they agree, it costs one
    all_gather of 8 bytes."""
    if group.size == 1:
        return
    from hashlib import blake2b

    text = "\n".join(lines).encode()
    if len(set(_gathered(blake2b(text, digest_size=8).digest(), group))) == 1:
        return
    longest = max(int.from_bytes(size, "big") for size in _gathered(len(text).to_bytes(8, "big"), group))
    texts = [data.rstrip(b"\0").decode().split("\n") for data in _gathered(text.ljust(longest, b"\0"), group)]
    for position, ranks in enumerate(zip_longest(*texts, fillvalue="nothing")):
        for rank, line in enumerate(ranks):
            if line != ranks[0]:
                raise RuntimeError(
                    f"{what} {position} differs between ranks: rank 0 has {ranks[0]}, rank {rank} has {line}"
                )


def all_ranks_have(flags, group):
    """The flags (0 or 1, one byte each) that are 1 on all ranks; `flags` itself if the ranks have different numbers of
    them."""
    sizes = set(_gathered(len(flags).to_bytes(8, "big"), group))
    if len(sizes) > 1 or not flags:
        return flags
    return bytes(map(min, zip(*_gathered(flags, group))))


def check_replicas(model, group=None):
    """Checks that all parameters and buffers have the same bits on all ranks. If not, raises RuntimeError on every
    rank, which names the first tensor that differs and the first rank that differs from rank 0. Collective.

    model: a Module, or a dict from names to tensors. Some buffers may differ between ranks on purpose (the statistics
    of batch norm): to leave buffers out, give `dict(model.named_parameters())`.

    Cost: a pass over the tensors and a message of 8 bytes.

    >>> import pydist
    >>> pydist.distributed.check_replicas(pydist.nn.Linear(2, 1))
    """
    named = model if isinstance(model, dict) else model.state_dict(keep_vars=True)
    tensors = [t.detach().cpu().contiguous() for t in named.values()]
    lines = [f"{name} with hash {bits:016x}" for name, bits in zip(named, _C.hash_tensors(tensors))]
    check_agreement("check_replicas: tensor", lines, for_call(group))
