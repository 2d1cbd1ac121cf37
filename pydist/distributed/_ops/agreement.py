"""All ranks have the same list of lines, or all of them raise naming the first line that differs."""

from itertools import zip_longest

from pydist import _C
from pydist.distributed._group.process_group import current


def _gathered(data, group):
    """All ranks' `data` (bytes, equally many on each), by rank."""
    size, out = len(data), bytearray(len(data) * group.size)
    group.all_gather(out, bytearray(data))
    return [bytes(out[rank * size : (rank + 1) * size]) for rank in range(group.size)]


def check_agreement(what, lines, group):
    """Raises RuntimeError on every rank, with the same text, where the ranks' lists differ. Costs one all_gather of 8
    bytes where they agree."""
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


def check_replicas(model, group=None):
    """RuntimeError on every rank where a parameter or buffer has not the same bits on all of them, naming the first one
    and the first rank that differs from rank 0. Collective; costs a pass over the tensors and a message of 8 bytes.

    model: a Module, or a dict from names to tensors. Buffers that ranks keep for themselves (the statistics of batch
    norm) may differ rightly: then give `dict(model.named_parameters())`.

    >>> import pydist
    >>> pydist.distributed.check_replicas(pydist.nn.Linear(2, 1))
    """
    named = model if isinstance(model, dict) else model.state_dict(keep_vars=True)
    tensors = [t.detach().cpu().contiguous() for t in named.values()]
    lines = [f"{name} with hash {bits:016x}" for name, bits in zip(named, _C.hash_tensors(tensors))]
    check_agreement("check_replicas: tensor", lines, current(group))
