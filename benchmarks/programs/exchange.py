"""An uneven all_to_all beside one memcpy of as many bytes, in turns: exchange.py bytes rounds. Each rank gives rank d a share
in proportion to 1 + (rank + d) % world. A round begins and ends with all ranks together. Rank 0 prints one JSON object,
{form: seconds of each round}."""

import json
import sys
import time

import pydist
from pydist import distributed as dist
from pydist.distributed import _functional_collectives as collectives
from pydist.distributed import symmetric_memory

WIDTH = 1024  # floats of a token


def main():
    size, rounds = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    unit = max(1, size // (4 * WIDTH) // (world * (world + 1) // 2))
    give = [unit * (1 + (rank + d) % world) for d in range(world)]
    take = [unit * (1 + (s + rank) % world) for s in range(world)]
    plain, out = pydist.ones(sum(give), WIDTH), pydist.ones(sum(take), WIDTH)
    shared = symmetric_memory.empty(sum(give), WIDTH)
    forms = {
        "memcpy": (plain, lambda: out.copy_(plain)),
        "symmetric": (shared, lambda: dist.all_to_all_single(out, shared, take, give)),
        "other": (plain, lambda: dist.all_to_all_single(out, plain, take, give)),
        "new tensor": (plain, lambda: collectives.all_to_all_single(plain, take, give, None)),
    }
    seconds = {form: [] for form in forms}
    for _ in range(rounds + 2):
        for form, (written, call) in forms.items():
            written.fill_(1.0)  # as by the ops before
            dist.barrier()
            begin = time.perf_counter()
            call()
            dist.barrier()
            seconds[form].append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps({form: each[2:] for form, each in seconds.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
