"""One training step of a model of workloads/four.py: shard_step.py MODEL HOW V [STEPS]. Prints the median step in seconds.

HOW: shards, V logical shards on these ranks; transaction, the same in attempts; plain, DistributedDataParallel with one
micro-batch on each rank; accumulate, V micro-batches of one rank in no_sync; whole, one pass over the rows of all V. The rows
are those of a data set in memory, and loading them counts."""

import sys
import time
from statistics import median

from benchmarks.workloads import four
from pydist import distributed as dist
from pydist import set_num_threads
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, DistributedSampler

name, how, shards = sys.argv[1], sys.argv[2], int(sys.argv[3])
set_num_threads(1)
sharded = how in ("shards", "transaction")
dist.init_process_group(logical_shards=shards if sharded else None)
rank, world = dist.get_rank(), dist.get_world_size()
rows, steps = four.ROWS_OF_A_SHARD[name], int(sys.argv[4]) if len(sys.argv) > 4 else 24
parts = four.made(name, rows * shards * steps)
model = DistributedDataParallel(parts.net)
size = rows * shards if how == "whole" else rows
loader = DataLoader(parts.data, batch_size=size, sampler=DistributedSampler(parts.data))


def backward(x, y, divisor=1):
    loss = parts.loss(model, x, y)
    loss = loss if divisor == 1 else loss / divisor
    (loss if parts.scaler is None else parts.scaler.scale(loss)).backward()


def over_shards(step):
    parts.optimizer.zero_grad()
    for shard in step:
        for x, y in shard:
            backward(x, y)
    four.finish(parts, model)


def run():
    """Makes steps; each next() is one."""
    if how == "transaction":
        for attempt in dist.Transaction(model, parts.optimizer).over(loader):
            with attempt:
                over_shards(attempt)
            yield
    elif how == "shards":
        for step in dist.shards(loader):
            over_shards(step)
            yield
    elif how == "accumulate":
        batches = iter(loader)
        for _ in range(len(loader) // shards):
            parts.optimizer.zero_grad()
            for at in range(shards):
                x, y = next(batches)
                if at + 1 < shards:
                    with model.no_sync():
                        backward(x, y, shards)
                else:
                    backward(x, y, shards)
            four.finish(parts, model)
            yield
    else:
        for x, y in loader:
            parts.optimizer.zero_grad()
            backward(x, y)
            four.finish(parts, model)
            yield


seconds, begin = [], time.perf_counter()
for _ in run():
    now = time.perf_counter()
    seconds.append(now - begin)
    begin = now
if rank == 0:
    print(median(seconds[4:]), flush=True)
dist.destroy_process_group()
