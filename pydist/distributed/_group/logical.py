"""The logical shards of the default group: how many there are, which ranks run them, and the step that is under way."""

from collections import deque
from hashlib import blake2b

from pydist import _C
from pydist.distributed._group import process_group

LARGEST = 1024


class Logical:
    """What a process, or a thread that is a rank, knows of its logical shards."""

    def __init__(self, shards):
        self.shards = shards
        self.step = 0  # how many steps were made: the step under way has this number
        self.shares = None  # by rank; None: even ones
        self.sharded = None  # what runs them for models of fully_shard
        self.open = None  # the number of the shard that this rank runs now
        self.times = deque(maxlen=64)  # ns that this rank has taken for a shard, the last ones
        self._group, self._shares, self._dealt = None, None, None  # the last answer of dealt(), and for what

    def dealt(self):
        """The Blocks of the default group with these shares, and the shards of this rank in the order in which it runs
        them."""
        group = process_group.current()
        if self._group is not group or self._shares is not self.shares:
            shares = self.shares or _C.share_shards(self.shards, group.size)
            local = group.ranks_per_host
            hosts = [rank // local for rank in range(group.size)] if local > 1 else None
            blocks = _C.Blocks(self.shards, shares, hosts)
            self._group, self._shares, self._dealt = group, self.shares, (blocks, blocks.of_rank(group.rank))
        return self._dealt

    def blocks(self):
        return self.dealt()[0]

    def mine(self):
        return self.dealt()[1]


def checked(op, shards, name="logical_shards"):
    """`shards` if it can be a number of logical shards, or None."""
    if shards is None:
        return None
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= LARGEST or shards & (shards - 1):
        raise ValueError(f"{op}: {name} is {shards!r} (expected a power of two, 1 to {LARGEST})")
    return shards


def key_of(*words):
    """A seed of 62 bits from these words."""
    return int.from_bytes(blake2b(repr(words).encode(), digest_size=8).digest(), "little") >> 2


def current():
    """The Logical of this rank, or None."""
    return process_group.logical()


def work_shares():
    """How many logical shards each rank runs, by rank.

    >>> import pydist
    >>> from pydist import distributed as dist
    >>> def work(rank):
    ...     dist.init_process_group(logical_shards=8)
    ...     return dist.work_shares()
    >>> pydist.testing.run_ranks(3, work)[0]
    [3, 3, 2]
    """
    logical = current()
    if logical is None:
        raise RuntimeError("work_shares: there are no logical shards (expected init_process_group(logical_shards=...))")
    return [len(logical.blocks().of_rank(rank)) for rank in range(process_group.current().size)]


def get_logical_shards():
    """The number of logical shards, or None if init_process_group was not told one.

    >>> from pydist import distributed as dist
    >>> dist.get_logical_shards() is None
    True
    """
    logical = current()
    return None if logical is None else logical.shards
