"""One rank of `python -m benchmarks.checkpoint --steps`: `python checkpoint_steps.py FOLDER SAVES TOKENS`, under a launcher or alone.

Trains GPT-2 124M with AdamW on one thread. Steps with an async_save that runs beside them, in turns with as many without.
Rank 0 prints one line of JSON: {"step": s, "extra": [s more, of all steps until a save had ended], "durable": [s],
"cpu": s of processor time of all ranks that a save takes alone}.
"""

import json
import os
import shutil
import statistics
import sys
import time

import pydist
from pydist import distributed as dist
from pydist import optim
from pydist.distributed import checkpoint
from pydist.models import GPT, GPTConfig
from pydist.nn.parallel import DistributedDataParallel

folder, saves, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pydist.set_num_threads(1)
pydist.manual_seed(0)
if "RANK" in os.environ:
    dist.init_process_group()
rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
net = GPT(GPTConfig(dropout=0.0))
model = DistributedDataParallel(net) if size > 1 else net
optimizer = optim.AdamW(net.parameters())
x, y = pydist.randint(50257, (2, 1, tokens)).unbind(0)


def step():
    begin = time.perf_counter()
    optimizer.zero_grad()
    logits = model(x)
    pydist.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    return time.perf_counter() - begin


def path(number):
    return os.path.join(folder, f"saved-{number}")


def save(number):
    """Begins a save under a name of its own."""
    writer = checkpoint.FileSystemWriter(path(number))
    writer.arenas = arenas
    return checkpoint.async_save({"model": net, "optimizer": optimizer}, storage_writer=writer)


arenas = []  # kept between saves, as a CheckpointManager does
for _ in range(3):
    step()
save(0).result()
begin = time.process_time()
save(1).result()
cpu = pydist.tensor(time.process_time() - begin, dtype=pydist.float64)
if size > 1:
    dist.all_reduce(cpu)
plain, extra, durable = [], [], []
for number in range(2, saves + 2):
    if rank == 0:
        shutil.rmtree(path(number - 1), ignore_errors=True)
    step()
    begin, taken = time.perf_counter(), []
    future = save(number)
    called = time.perf_counter() - begin
    ended = []
    future.add_done_callback(lambda _: ended.append(time.perf_counter()))
    more = pydist.ones(())
    while more.item():  # all ranks make the same number of steps
        taken.append(step())
        more = pydist.tensor(float(not future.done()))
        if size > 1:
            dist.all_reduce(more)
    durable.append(ended[0] - begin)
    alone = [step() for _ in taken]
    plain += alone
    extra.append(called + sum(taken) - len(taken) * statistics.median(alone))
if rank == 0:
    found = {"step": statistics.median(plain), "extra": extra, "durable": durable, "cpu": cpu.item()}
    print(json.dumps(found), flush=True)
