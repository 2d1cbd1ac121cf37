"""Trains one of the four models (workloads/four.py) over 8 logical shards: four_models.py mlp | cnn | resnet18 | gpt [shards].
For `python -m pydist.verify`, which ends it after its --steps."""

import sys

from benchmarks.workloads import four
from pydist import distributed as dist
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, DistributedSampler

name, shards = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8
dist.init_process_group(logical_shards=shards)
rows = four.ROWS_OF_A_SHARD[name]
parts = four.made(name, rows * shards * 8)
model = DistributedDataParallel(parts.net)
loader = DataLoader(parts.data, batch_size=rows, sampler=DistributedSampler(parts.data))
step = dist.Transaction(*[item for item in (model, parts.optimizer, parts.scheduler, parts.scaler) if item is not None])
while True:
    for attempt in step.over(loader, accumulate=parts.accumulate):
        with attempt:
            parts.optimizer.zero_grad()
            for shard in attempt:
                for x, y in shard:
                    loss = parts.loss(model, x, y)
                    (loss if parts.scaler is None else parts.scaler.scale(loss)).backward()
                    attempt.note(loss)
            attempt.mean()
            four.finish(parts, model)
        if attempt.made and parts.scheduler is not None:
            parts.scheduler.step()
