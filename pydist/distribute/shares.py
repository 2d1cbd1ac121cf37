"""Which rows of a global batch a replica gets."""

__all__ = ["bounds", "rows_of"]


def bounds(rows, replicas):
    """[(first, last + 1)] by replica: rows divided evenly, in order. A replica may get none.

    >>> from pydist.distribute.shares import bounds
    >>> bounds(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return [(rows * r // replicas, rows * (r + 1) // replicas) for r in range(replicas)]


def rows_of(rows, strategy):
    """The bounds of this process's replicas."""
    first = strategy._first_replica
    return bounds(rows, strategy.num_replicas_in_sync)[first : first + len(strategy._devices)]
