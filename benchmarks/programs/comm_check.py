"""all_reduce with and without the check of identities, in blocks of 1,000 calls that take turns. Rank 0 prints one JSON
object, {"4096": {"on": seconds, "off": seconds}, ...}, the medians of the blocks."""

import json
import os
import statistics
import time

import pydist
from pydist import distributed as dist

BLOCKS, CALLS = 15, 1000


def measure(world, count):
    groups = {"on": world.subgroup(range(world.size)), "off": world.subgroup(range(world.size), check=False)}
    x, seconds = pydist.zeros(count), {"on": [], "off": []}
    for block in range(BLOCKS):
        for name in ("on", "off") if block % 2 else ("off", "on"):
            call = groups[name].all_reduce
            world.barrier()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call(x)
            seconds[name].append((time.perf_counter() - begin) / CALLS)
    return {name: statistics.median(found) for name, found in seconds.items()}


def main():
    dist.init_process_group()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    found = {size: measure(dist.group.WORLD, size // 4) for size in (4 << 10, 1 << 20)}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


main()
