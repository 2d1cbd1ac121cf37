"""Trains one of the four models over logical shards and saves each step: resumed.py MODEL FOLDER STEPS [WORKERS]. WORKERS:
threads of the loader; below 0: processes. It goes on from the newest step in FOLDER. At the end it prints the SHA-256 of
the model and the optimizer. test_resume.py kills it."""

import hashlib
import sys

from benchmarks.workloads import four
from pydist import distributed as dist
from pydist.distributed.checkpoint import CheckpointManager
from pydist.distributed.checkpoint._tree import flatten
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, DistributedSampler

name, folder, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
workers = int(sys.argv[4]) if len(sys.argv) > 4 else 0
dist.init_process_group(logical_shards=8)
rows = four.ROWS_OF_A_SHARD[name]
parts = four.made(name, rows * 8 * 5)  # five steps an epoch
model = DistributedDataParallel(parts.net)
loader = DataLoader(
    parts.data, rows, sampler=DistributedSampler(parts.data), num_workers=abs(workers),
    multiprocessing_context="fork" if workers < 0 else None,
)  # fmt: skip
steps = dist.shards(loader, accumulate=parts.accumulate)
state = {"model": parts.net, "optimizer": parts.optimizer, "steps": steps}
state |= {key: part for key, part in (("scheduler", parts.scheduler), ("scaler", parts.scaler)) if part is not None}
manager = CheckpointManager(folder, keep_last=2)
done = manager.restore(state) or 0
print("from", done, flush=True)
while done < last:
    loader.sampler.set_epoch(done // 5)
    for step in steps:
        parts.optimizer.zero_grad()
        for shard in step:
            for x, y in shard:
                loss = parts.loss(model, x, y)
                (loss if parts.scaler is None else parts.scaler.scale(loss)).backward()
        four.finish(parts, model)
        if parts.scheduler is not None:
            parts.scheduler.step()
        done += 1
        manager.save(done, state)
        print("step", done, flush=True)
        if done == last:
            break
manager.close()
values, _ = flatten({"model": parts.net.state_dict(), "optimizer": parts.optimizer.state_dict()})
sha = hashlib.sha256()
for key, value in values.items():
    sha.update(f"{key} {value if not hasattr(value, 'numpy') else ''}".encode())
    sha.update(memoryview(value.contiguous()) if hasattr(value, "numpy") else b"")
print("sha", sha.hexdigest(), flush=True)
