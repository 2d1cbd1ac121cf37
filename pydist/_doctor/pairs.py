"""Latency and bandwidth between each two ranks, for pydist.doctor."""

import time
from statistics import median

RANKS = 16  # with more ranks than this, one rank of each host
SMALL, LARGE = 1, 1 << 18  # float32 elements: 4 bytes, 1 MiB
SLOW = 4.0  # a slow pair takes so many times the median of its kind


def _best_of(x, other, first, times):
    """Seconds one way: half of the best round trip."""
    from pydist import distributed as dist

    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        if first:
            dist.send(x, other)
            dist.recv(x, other)
        else:
            dist.recv(x, other)
            dist.send(x, other)
        best = min(best, time.perf_counter() - begin)
    return best / 2


def chosen(hosts):
    """The ranks to measure between, given the host of each."""
    ranks = range(len(hosts))
    return list(ranks) if len(hosts) <= RANKS else [rank for rank in ranks if hosts.index(hosts[rank]) == rank]


def measure(rank, ranks):
    """{(this rank, other): (seconds one way, bytes per second)}. All ranks call it, and pairs meet in one order."""
    import pydist

    small, large, found = pydist.zeros(SMALL), pydist.zeros(LARGE), {}
    for low in ranks:
        for high in ranks:
            if low < high and rank in (low, high):
                other, first = (high, True) if rank == low else (low, False)
                seconds = _best_of(small, other, first, 20)
                found[rank, other] = seconds, 4 * LARGE / _best_of(large, other, first, 3)
    return found


def table(ranks, pairs):
    """Lines of text: microseconds one way above the diagonal, GB/s below it."""
    rows = ["us one way above, GB/s below:", "      " + "".join(f"{rank:>9}" for rank in ranks)]
    for row in ranks:
        cells = []
        for column in ranks:
            seconds, rate = pairs.get((row, column), (0, 0))
            cells.append("-" if row == column else f"{seconds * 1e6:.1f}" if row < column else f"{rate / 1e9:.3g}")
        rows.append(f"  {row:>4}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(rows)


def slow_pairs(pairs, hosts):
    """[(rank, rank, times slower, "latency" or "bandwidth")] of the pairs that are far slower than others of their
    kind, the worst first. The kinds are: within a host, between hosts."""
    found = []
    for same in (True, False):
        kind = {pair: value for pair, value in pairs.items()
                if pair[0] < pair[1] and (hosts[pair[0]] == hosts[pair[1]]) == same}  # fmt: skip
        if len(kind) < 3:
            continue
        usual, rate = (median(value[i] for value in kind.values()) for i in (0, 1))
        for (low, high), (seconds, own_rate) in kind.items():
            worse = max((seconds / usual if seconds > 1e-3 else 0, "latency"), (rate / own_rate, "bandwidth"))
            if worse[0] > SLOW:
                found.append((low, high, *worse))
    return sorted(found, key=lambda one: -one[2])
