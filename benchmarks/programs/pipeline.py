"""Steps of a GPT in stages, by pydist or PyTorch: `pipeline.py LIBRARY SCHEDULE LAYERS WIDTH ROWS LENGTH MICROBATCHES STEPS`.
Rank 0 prints the seconds of each step as JSON. SCHEDULE none: one process, which accumulates the microbatches in order."""

import importlib
import json
import os
import sys
import time

library, name, *numbers = sys.argv[1:]
layers, width, rows, length, m, steps = map(int, numbers)
torch = importlib.import_module(library)
nn, F = importlib.import_module(f"{library}.nn"), importlib.import_module(f"{library}.nn.functional")
dist = importlib.import_module(f"{library}.distributed")
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
VOCABULARY = 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, n = x.shape
        q, k, v = (part.view(b, t, n // 64, 64).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, n))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Stage(nn.Module):
    def __init__(self, first, last, count):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width) if first else None
        self.blocks = nn.ModuleList([Block() for _ in range(count)])
        self.head = nn.Linear(width, VOCABULARY) if last else None

    def forward(self, x):
        x = self.embed(x) if self.embed is not None else x
        for block in self.blocks:
            x = block(x)
        return self.head(x) if self.head is not None else x


def loss_fn(logits, target):
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), target.reshape(-1))


torch.manual_seed(0)
if name == "none":
    torch.set_num_threads(int(os.environ["THREADS"]))
    model = Stage(True, True, layers)
else:
    torch.set_num_threads(1)
    dist.init_process_group(*(["gloo"] if library == "torch" else []))
    pipelining = importlib.import_module(f"{library}.distributed.pipelining")
    schedules = importlib.import_module(f"{library}.distributed.pipelining.schedules")
    model = Stage(rank == 0, rank == world - 1, layers // world)
    stage = pipelining.PipelineStage(model, rank, world, torch.device("cpu"))
    schedule = schedules.get_schedule_class(name)(stage, m, loss_fn)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = (torch.randint(0, VOCABULARY, (rows, length)) for _ in range(2))


def step():
    optimizer.zero_grad()
    if name == "none":
        for a, b in zip(x.chunk(m), y.chunk(m)):
            (loss_fn(model(a), b) / m).backward()
    elif rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y)
    optimizer.step()


seconds = []
for _ in range(steps + 2):
    if name != "none":
        dist.barrier()
    begin = time.perf_counter()
    step()
    if name != "none":
        dist.barrier()
    seconds.append(time.perf_counter() - begin)
if rank == 0:
    print(json.dumps(seconds[2:]))
if name != "none":
    dist.destroy_process_group()
