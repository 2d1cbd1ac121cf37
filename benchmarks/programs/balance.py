"""Steps of 16 logical shards on two ranks, of which rank 1 sleeps twice a shard's time after each: balance.py SHARE [MODEL].

SHARE: how many shards rank 0 runs, or "balance", where shares follow the speeds; with "even" no rank sleeps. Prints the sha
of the parameters after 40 steps as a note, and the median step in seconds of the last 16."""

import hashlib
import sys
import time
from statistics import median

from benchmarks.workloads import four
from pydist import distributed as dist
from pydist import set_num_threads
from pydist.distributed._group.logical import current
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, DistributedSampler

SHARDS, STEPS = 16, 40
share, name = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cnn"
set_num_threads(1)
dist.init_process_group(logical_shards=SHARDS)
if share.isdigit():
    current().shares = (int(share), SHARDS - int(share))
sleeps = dist.get_rank() == 1 and share != "even"
rows = four.ROWS_OF_A_SHARD[name]
parts = four.made(name, rows * SHARDS * STEPS)
model = DistributedDataParallel(parts.net)
loader = DataLoader(parts.data, batch_size=rows, sampler=DistributedSampler(parts.data))
objects = [item for item in (model, parts.optimizer, parts.scaler) if item is not None]
step = dist.Transaction(*objects, balance=share == "balance")

seconds, begin = [], time.perf_counter()
for attempt in step.over(loader):
    with attempt:
        parts.optimizer.zero_grad()
        for shard in attempt:
            for x, y in shard:
                started = time.perf_counter()
                loss = parts.loss(model, x, y)
                (loss if parts.scaler is None else parts.scaler.scale(loss)).backward()
                if sleeps:
                    time.sleep(2 * (time.perf_counter() - started))
        four.finish(parts, model)
    now = time.perf_counter()
    seconds.append(now - begin)
    begin = now
if dist.get_rank() == 0:
    sha = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"note: {sha[:16]}, {dist.work_shares()[0]} of {SHARDS} shards on rank 0")
    print(median(seconds[-16:]))
