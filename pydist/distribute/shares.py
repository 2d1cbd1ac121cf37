"""Which rows of a global batch a replica gets."""

from array import array

__all__ = ["Share", "bounds", "counted_share", "rows_of", "share_of"]


def bounds(rows, replicas):
    """[(first, last + 1)] by replica: rows divided evenly, in order. A replica may get none.

    >>> from pydist.distribute.shares import bounds
    >>> bounds(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return [(rows * r // replicas, rows * (r + 1) // replicas) for r in range(replicas)]


def rows_of(rows, strategy):
    """The bounds of this process's replicas."""
    parts = bounds(rows, strategy.num_replicas_in_sync)
    return [parts[replica] for replica in strategy._next[0]]


class Share:
    """Who has which rows of one global batch: `rows` of each replica of this process, `total` of all replicas, `first`, the
    number of the first replica that has any, and `by_rank`, the rows of each rank, or None. `deal`: who has which logical
    shards (strategy._take), or None."""

    __slots__ = ("by_rank", "deal", "first", "replicas", "rows", "total")

    def __init__(self, rows, total, replicas, first, by_rank=None, deal=None):
        self.rows, self.total, self.replicas, self.first, self.by_rank = rows, total, replicas, first, by_rank
        self.deal = deal

    def weight(self, local):
        """How often the mean over local replica `local`'s rows counts in a mean over all replicas."""
        return self.replicas * self.rows[local] / self.total if self.total else 0.0


def share_of(rows, strategy):
    """The Share of a batch that is divided evenly."""
    parts = bounds(rows, strategy.num_replicas_in_sync)
    counts = [last - first for first, last in parts]
    local, first = len(strategy._devices), next((r for r, n in enumerate(counts) if n), 0)
    own = [counts[replica] for replica in strategy._next[0]]
    if strategy._logical is not None:
        return Share(own, rows, len(parts), first, deal=strategy._next)
    return Share(own, rows, len(parts), first, [sum(counts[r : r + local]) for r in range(0, len(counts), local)])


def counted_share(rows, group):
    """The Share of a batch of which each rank knows its own rows only."""
    local, by_rank = len(rows), [sum(rows)]
    if group is not None:
        table = array("q", bytes(8 * group.size))
        group.all_gather(table, array("q", by_rank))
        by_rank = list(table)
    first = next((local * rank for rank, n in enumerate(by_rank) if n), 0)
    return Share(rows, sum(by_rank), local * len(by_rank), first, by_rank)
