"""One rank of `python -m benchmarks.checkpoint`: `python checkpoint_ranks.py pydist|torch FOLDER ROUNDS MEGABYTES`, under a launcher.

The state is a GPT-2 of 124 million parameters with AdamW's moments (1.49 GB), or its first tensors. Rank 0 prints one line of
JSON: {"bytes", "save": [s, ...], "load": [...], "call": [...], "durable": [...], "extra": bytes}.
"""

import json
import os
import resource
import shutil
import sys
from time import perf_counter

framework, folder, rounds, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) << 20
if framework == "torch":
    import torch as t
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint

    t.set_num_threads(1)
    dist.init_process_group("gloo")
else:
    import pydist as t
    from pydist import distributed as dist
    from pydist.distributed import checkpoint

    dist.init_process_group()


def shapes():
    yield "wte", (50257, 768)
    yield "wpe", (1024, 768)
    for layer in range(12):
        for name, shape in (
            ("ln_1.w", (768,)),
            ("ln_1.b", (768,)),
            ("attn.w", (2304, 768)),
            ("attn.b", (2304,)),
            ("proj.w", (768, 768)),
            ("proj.b", (768,)),
            ("ln_2.w", (768,)),
            ("ln_2.b", (768,)),
            ("fc.w", (3072, 768)),
            ("fc.b", (3072,)),
            ("out.w", (768, 3072)),
            ("out.b", (768,)),
        ):
            yield f"h.{layer}.{name}", shape
    yield "ln_f.w", (768,)
    yield "ln_f.b", (768,)


t.manual_seed(0)
state, nbytes = {}, 0
for name, shape in shapes():
    for kind in ("model", "exp_avg", "exp_avg_sq"):
        if nbytes < most:
            state[f"{kind}.{name}"] = t.randn(*shape)
            nbytes += state[f"{kind}.{name}"].numel() * 4


def timed(call):
    dist.barrier()
    begin = perf_counter()
    result = call()
    seconds = perf_counter() - begin
    dist.barrier()
    return seconds, perf_counter() - begin, result


found = {"bytes": nbytes, "save": [], "load": [], "call": [], "durable": []}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
for number in range(rounds):
    path = os.path.join(folder, f"{framework}-{number}")
    found["save"].append(timed(lambda: checkpoint.save(state, checkpoint_id=path))[1])
    found["load"].append(timed(lambda: checkpoint.load(state, checkpoint_id=path))[1])
    found.setdefault("extra", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before)
    if dist.get_rank() == 0:
        shutil.rmtree(path)
    # PyTorch's thread calls collectives of the group, so a barrier now would cross them and hang
    begin = perf_counter()
    future = checkpoint.async_save(state, checkpoint_id=path)
    found["call"].append(perf_counter() - begin)
    future.result()
    found["durable"].append(perf_counter() - begin)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path)
    dist.barrier()
if dist.get_rank() == 0:
    print(json.dumps(found), flush=True)
dist.destroy_process_group()
