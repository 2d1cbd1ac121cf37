"""`python -m pydist.tune`: measures on this machine from how many bytes on which algorithm is the fastest, and with
which pieces. It writes the result where init reads it (PYDIST_TUNE, by default a file in the user's cache folder).

Processes of their own measure each world size. They try the candidates in turn, in groups that differ only in one
number; then all_reduce is timed before and after. Under a launcher with several ranks, on one or several hosts, the
job's own world is measured. Rows for other worlds stay in the file. The tuning never changes the bits of a result,
except with order="fast".
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from functools import partial

KIB, MIB = 1 << 10, 1 << 20
NEVER = (1 << 31) - 1
GAIN = 0.95  # a value has to be this much faster than the built-in one, in the mean over the sizes that it changes
TURN_SECONDS = 0.001  # s that one turn of a candidate takes, about


def text(size):
    """A number of bytes as text, such as "256 KiB"."""
    if size in (0, NEVER):
        return "always" if size == 0 else "never"
    return f"{size // MIB} MiB" if size >= MIB and size % MIB == 0 else f"{size // KIB} KiB"


class Bench:
    """Times calls in groups that differ in their switch points."""

    def __init__(self, rounds):
        from pydist import distributed as dist

        dist.init_process_group()
        self.dist, self.world, self.rounds = dist, dist.group.WORLD, rounds
        self.default = self.world.tuning

    def group(self, in_any_order=False, **changes):
        """A group with these switch points."""
        from pydist.distributed._group.tuning import packed

        row = packed([{**self.default, **changes}])
        return self.world.subgroup(range(self.world.size), fast=in_any_order, tuning=row)

    def tensor(self, group, size, shared):
        """A tensor of so many bytes."""
        import pydist
        from pydist.distributed import symmetric_memory

        count = size // 4
        return symmetric_memory.empty(count, group=group) if shared else pydist.zeros(count, device="cpu")

    def seconds(self, groups, size, shared=False, op="all_reduce"):
        """The time of a call on rank 0 in its best turn, by group. Other programs on the machine can only add to it."""
        calls, samples = {}, {name: [] for name in groups}
        for name, group in groups.items():
            x = self.tensor(group, size, shared)
            calls[name] = partial(getattr(group, op), x)
        first = next(iter(calls.values()))
        first()
        begin = time.perf_counter()
        first()
        many = self.agreed(max(1, min(500, round(TURN_SECONDS / max(time.perf_counter() - begin, 1e-7)))))
        for _ in range(self.rounds):
            for name, call in calls.items():
                self.world.barrier()
                begin = time.perf_counter()
                for _ in range(many):
                    call()
                samples[name].append((time.perf_counter() - begin) / many)
        return {name: min(found) for name, found in samples.items()}

    def agreed(self, value):
        """Rank 0's value, on all ranks."""
        box = [value]
        self.dist.broadcast_object_list(box, 0)
        return box[0]


def best_switch(below, above, default):
    """The size up to which to use `below` and above which to use `above`, so that the product of times is the least.
    Both are {size: seconds}."""
    sizes = sorted(below)

    def cost(switch):
        return sum(math.log(below[s] if s <= switch else above[s]) for s in sizes)

    best = min([0, *sizes], key=cost)
    changed = sum((size <= best) != (size <= default) for size in sizes)
    return best if cost(best) < cost(default) + changed * math.log(GAIN) else default


def best_value(times, default):
    """The key of {value: [seconds, ...]} with the least product of times."""
    cost = {value: sum(map(math.log, found)) / len(found) for value, found in times.items()}
    best = min(cost, key=cost.get)
    return best if cost[best] < cost[default] + math.log(GAIN) else default


def switch(bench, field, sizes, **kind):
    """The best switch point for `field`."""
    groups = {"below": bench.group(**{field: NEVER}), "above": bench.group(**{field: 0})}
    found = {size: bench.seconds(groups, size, **kind) for size in sizes}
    parts = ({size: times[name] for size, times in found.items()} for name in ("below", "above"))
    return bench.agreed(best_switch(*parts, bench.default[field]))


def value(bench, field, values, sizes, **kind):
    """The best value for `field`."""
    groups = {v: bench.group(**{field: v}) for v in {*values, bench.default[field]}}
    found = [bench.seconds(groups, size, **kind) for size in sizes]
    return bench.agreed(best_value({v: [times[v] for times in found] for v in groups}, bench.default[field]))


def fast(bench, sizes):
    """(schedule, from how many bytes on) for order="fast"; (0, 0): none is faster than the algorithms with the fixed
    order."""
    groups = {kind: bench.group(in_any_order=True, fast=kind, fast_from=0) for kind in (0, 1, 2)}
    found = {size: bench.seconds(groups, size) for size in sizes}
    best = (0, 0, 0.0)
    for kind in (1, 2):
        for i, size in enumerate(sizes):
            gain = sum(math.log(found[s][kind] / found[s][0]) for s in sizes[i:])
            if gain < min(best[2], (len(sizes) - i) * math.log(GAIN)):
                best = (kind, size, gain)
    return bench.agreed(best[:2])


def measure(bench):
    """The row for this world."""
    row = dict(bench.default)
    small = [512 << i for i in range(10)]
    row["gather"] = switch(bench, "gather", small)
    row["piece"] = value(bench, "piece", (64 * KIB, 128 * KIB, 256 * KIB), (MIB, 8 * MIB))
    if not row["mesh"]:  # symmetric memory
        row["direct"] = switch(bench, "direct", small, shared=True, op="broadcast")
        row["block"] = value(bench, "block", (16 * KIB, 64 * KIB, 256 * KIB), (MIB, 8 * MIB), shared=True)
    row["fast"], row["fast_from"] = fast(bench, [64 * KIB, MIB, 8 * MIB])
    return row


def show(bench, row):
    """Prints the row, with the built-in values beside it."""
    from pydist.distributed._ops.cost import cost_text

    names = {
        "gather": "everybody sums everything up to",
        "direct": "broadcast reads segments from",
        "piece": "piece",
        "block": "block of symmetric memory",
    }
    print(f"{bench.world.size} ranks over {bench.world.transport}:")
    for field, name in names.items():
        before = f" (built in: {text(bench.default[field])})" if row[field] != bench.default[field] else ""
        print(f"  {name}: {text(row[field])}{before}")
    schedule = ("the same", "ring", "halving")[row["fast"]]
    print(f'  order="fast": {schedule}' + (f" from {text(row['fast_from'])}" if row["fast"] else ""))
    for size in (4 * KIB, 64 * KIB, MIB) if bench.world.size > 1 else ():
        algo = "gather_sum" if size <= row["gather"] else None
        print("  " + cost_text("all_reduce", bench.world.size, size, bench.world.transport, algo=algo))


def compare(bench, row):
    """Prints the times of all_reduce with the built-in row and with this one."""
    rank0 = bench.world.rank == 0
    for shared in (False, True)[: 1 if row["mesh"] else 2]:
        for size in (4 * KIB, 16 * KIB, 64 * KIB, MIB, 8 * MIB):
            found = bench.seconds({"before": bench.group(), "after": bench.group(**row)}, size, shared)
            if rank0:
                before, after = found["before"] * 1e6, found["after"] * 1e6
                kind = "symmetric" if shared else "ordinary"
                print(
                    f"  all_reduce {kind:9} {text(size):>7}: before {before:9.1f} us, after {after:9.1f} us, "
                    f"{before / after:5.2f}x"
                )


def write(where, row):
    """Puts the row into the file and replaces a row for the same world. A file of another machine is started anew."""
    from pydist._files import replacing
    from pydist.distributed._group.tuning import machine, packed, read

    rows = []
    if os.path.exists(where):
        try:
            measured_on, rows = read(where)
            rows = rows if measured_on == machine() else []
        except (OSError, ValueError) as error:
            warnings.warn(f"{where}: the file is damaged ({error}); pydist.tune writes it anew", stacklevel=2)
    rows = [r for r in rows if (r["mesh"], r["world"]) != (row["mesh"], row["world"])] + [row]
    packed(rows)
    os.makedirs(os.path.dirname(os.path.abspath(where)), exist_ok=True)
    with replacing(where, "w") as file:
        json.dump({"machine": machine(), "rows": rows}, file, indent=1)


def as_rank(where, rounds):
    """What each rank runs."""
    os.environ["PYDIST_TUNE"] = "none"  # the measurements start from the built-in values
    bench = Bench(rounds)
    row = measure(bench)
    if bench.world.rank == 0:
        show(bench, row)
    compare(bench, row)
    if bench.world.rank == 0:
        write(where, row)
        print(f"  written to {where}", flush=True)
    bench.dist.destroy_process_group()


def main(argv=None):
    """Runs the command line. Returns the exit code."""
    from pydist.distributed._group.tuning import path

    parser = argparse.ArgumentParser(prog="python -m pydist.tune", description=__doc__.split("\n\n")[0])
    parser.add_argument("--worlds", type=int, nargs="+", default=sorted({2, 4, os.cpu_count()} - {1}), metavar="RANKS")
    parser.add_argument("--output", default=path(), metavar="FILE", help="instead of %(default)s")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each candidate [%(default)s]")
    args = parser.parse_args(argv)
    if args.output is None:
        parser.error("PYDIST_TUNE is none, so there is no file to write to (expected --output FILE)")
    if args.rounds < 1 or min(args.worlds) < 2:
        parser.error("got a world of fewer than 2 ranks, or no round (expected at least 2 ranks and 1 round)")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        as_rank(args.output, args.rounds)
        return 0
    ours = ["-m", "pydist.tune", "--output", os.path.abspath(args.output), "--rounds", str(args.rounds)]
    for world in args.worlds:
        command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(world), *ours]
        code = subprocess.run(command).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
