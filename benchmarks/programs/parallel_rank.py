"""A rank of a peer of benchmarks/parallel.py: parallel_rank.py pydist DESCRIPTOR, a connection to the harness. It does what
the harness orders, (method, *arguments), and answers ("done", value) or ("failed", text)."""

import gc
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection

import pydist
from benchmarks.programs.sharded_rank import Sampler
from pydist import _C, distributed, nn, profiler
from pydist.distributed.tensor import init_device_mesh
from pydist.distributed.tensor.experimental import context_parallel, set_rotate_method

F = nn.functional


class Block(nn.Module):
    """Attention and a feed-forward block, each with a norm before it; no positions."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.attn(self.ln1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Rank:
    def init(self, rank, world, port, threads=1):
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(world),
        )  # fmt: skip
        pydist.set_num_threads(threads)
        distributed.init_process_group()
        self.mesh = init_device_mesh("cpu", (world,))

    def attention(self, heads, width, length, method, steps):
        """For each step (seconds, seconds in the kernels), forward and backward of causal attention."""
        set_rotate_method(method)
        pydist.manual_seed(0)
        whole = [pydist.randn(1, length, heads, width).transpose(1, 2) for _ in range(4)]
        found = []
        with context_parallel(self.mesh, buffers=whole, buffer_seq_dims=[2] * 4):
            *inputs, grad = whole
            for x in inputs:
                x.requires_grad_()
            for _ in range(steps):
                distributed.barrier()
                with profiler.profile() as seen:
                    begin = time.perf_counter()
                    F.scaled_dot_product_attention(*inputs, is_causal=True).backward(grad)
                    distributed.barrier()
                    seconds = time.perf_counter() - begin
                busy = sum(
                    e.time_range.elapsed_us() for e in seen.events() if e.name.startswith("ring_attention block")
                )
                found.append((seconds, busy / 1e6))
            for x in inputs:
                x.requires_grad_(False)
        return found

    def activations(self, layers, heads, width, length, method):
        """(bytes that forward keeps, the highest bytes during forward and backward), beside parameters, their gradients
        and the input."""
        set_rotate_method(method)
        pydist.manual_seed(0)
        model = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        x = pydist.randn(1, length, width)
        with context_parallel(self.mesh, buffers=[x], buffer_seq_dims=[1]):
            for _ in range(2):  # the first one makes the gradients
                gc.collect()
                distributed.barrier()
                before = _C.memory_allocated()
                with Sampler(_C.memory_allocated) as seen:
                    y = model(x)
                    kept = _C.memory_allocated() - before
                    y.sum().backward()
                    del y
        return kept, seen.highest - before


def main():
    connection, rank = Connection(int(sys.argv[2])), Rank()
    while True:
        try:
            method, *args = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("done", getattr(rank, method)(*args)))
        except BaseException:
            connection.send(("failed", traceback.format_exc()))


if __name__ == "__main__":
    main()
