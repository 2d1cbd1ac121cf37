"""all_reduce over sizes and dtypes on every rank: comm_sizes.py library bytes,bytes,... [rewritten]. all_to_all instead of
rewritten: all_to_all of parts of different sizes; of each rank's bytes rank d gets a share in proportion to
1 + (rank + d) % world. Rank 0 prints one JSON object, {"float32 4096": seconds, ...}, medians of batches of calls, each batch begun together. rewritten: each rank
writes its tensor before each call, as a backward pass does, and the time that the writing takes alone is subtracted.
Without that, what a rank reads in a call may be what it wrote itself in the one before, and still lie in its cache."""

import json
import os
import statistics
import sys
import time

BATCHES = 7
BATCH_BYTES = 128 << 20  # in one batch, but 2 to 1000 calls


def pin(rank):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def shares(count, rank, world):
    """What this rank gives to each, and takes from each."""
    whole = world * (world + 1) // 2
    give = [count * (1 + (rank + d) % world) // whole for d in range(world)]
    return give, [count * (1 + (s + rank) % world) // whole for s in range(world)]


def pydist(symmetric=False, exchange=False):
    import pydist
    from pydist import distributed as dist

    dist.init_process_group()
    if symmetric:
        from pydist.distributed import symmetric_memory

    def case(dtype, count):
        dtype = getattr(pydist, dtype)
        if exchange:
            give, take = shares(count, dist.get_rank(), dist.get_world_size())
            x, y = pydist.ones(sum(give), dtype=dtype), pydist.zeros(sum(take), dtype=dtype)
            return lambda: dist.all_to_all_single(y, x, take, give), x.zero_
        x = symmetric_memory.empty(count, dtype=dtype) if symmetric else pydist.empty(count, dtype=dtype)
        x.fill_(1)  # its pages exist
        x.zero_()  # sums stay finite
        return lambda: dist.all_reduce(x), x.zero_

    return dist.get_rank(), case, dist.barrier, ("float32", "bfloat16"), dist.destroy_process_group


def torch():
    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")

    def case(dtype, count):
        x = torch.ones(count, dtype=getattr(torch, dtype)).zero_()
        return lambda: dist.all_reduce(x), x.zero_

    return dist.get_rank(), case, dist.barrier, ("float32", "bfloat16"), dist.destroy_process_group


def mpi4py(exchange=False):
    import numpy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def case(dtype, count):
        if exchange:
            give, take = shares(count, comm.rank, comm.size)
            sent, taken = [numpy.ones(sum(give), dtype), give], [numpy.zeros(sum(take), dtype), take]
            return lambda: comm.Alltoallv(sent, taken), lambda: sent[0].fill(0)
        x = numpy.ones(count, dtype)
        x[:] = 0
        return lambda: comm.Allreduce(MPI.IN_PLACE, x), lambda: x.fill(0)

    return comm.rank, case, comm.Barrier, ("float32",), lambda: None  # MPI has no bfloat16


def measure(call, barrier, size):
    calls = min(max(BATCH_BYTES // size, 2), 1000)
    for _ in range(min(calls, 10)):
        call()
    seconds = []
    for _ in range(BATCHES):
        barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        seconds.append((time.perf_counter() - begin) / calls)
    return statistics.median(seconds)


def measure_rewritten(call, write, barrier, size):
    def both():
        write()
        call()

    return measure(both, barrier, size) - measure(write, barrier, size)


def main():
    library, sizes = sys.argv[1], [int(size) for size in sys.argv[2].split(",")]
    rewritten, exchange = sys.argv[3:] == ["rewritten"], sys.argv[3:] == ["all_to_all"]
    start = {
        "pydist": lambda: pydist(exchange=exchange),
        "symmetric": lambda: pydist(symmetric=True),
        "torch": torch,
        "mpi4py": lambda: mpi4py(exchange),
    }
    rank, case, barrier, dtypes, end = start[library]()
    pin(rank)
    found = {}
    for dtype in dtypes:
        for size in sizes:
            call, write = case(dtype, size // (4 if dtype == "float32" else 2))
            key = f"{dtype} {size}"
            found[key] = measure_rewritten(call, write, barrier, size) if rewritten else measure(call, barrier, size)
    if rank == 0:
        print(json.dumps(found))
    end()


main()
