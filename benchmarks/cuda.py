"""Training steps on a GPU, pydist's next to torch's, eager and compiled: `python -m benchmarks --device cuda [case ...]`.

Each library has a process of its own, one after the other (they share the GPU): `python -m benchmarks.cuda FRAMEWORK CASE`
prints the best of some steps as a line of JSON. bfloat16 by autocast. FLOPs of a token are 6 N + 6 L C T, the causal half of the
scores, as llm.c counts them.
"""

import json
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec

from benchmarks.workloads import ON_CUDA

FRAMEWORKS = {"pydist": "pydist", "torch": "torch", "torch.compile": "torch"}  # what each imports
PEAK = {"H100": 989e12, "H200": 989e12, "GH200": 989e12, "A100": 312e12, "B200": 2250e12}  # dense bfloat16
WARM, STEPS, SECONDS = 3, 20, 30


def work(module, model, sizes, batch):
    """(items of a step, what they are, FLOPs of an item)"""
    if not hasattr(module, "SIZES"):
        return batch[0].shape[0], "images", module.FLOPS
    layers, _, width, tokens, *_ = module.SIZES[sizes["size"]]
    parameters = sum(p.numel() for p in model.parameters())
    return batch[0].numel(), "tokens", 6 * parameters + 6 * layers * width * tokens


def training(framework, case):
    """(a step, which returns the loss; items of a step, what they are, FLOPs of an item) of the case on the GPU."""
    lib = import_module(FRAMEWORKS[framework])
    file, sizes = ON_CUDA[case]
    module = import_module(f"benchmarks.workloads.{file}")
    lib.manual_seed(0)
    lib.backends.cudnn.benchmark = True
    model, batch, optimizer_of = module.make(lib, module.BEST.get(lib.__name__, {}), **sizes)
    model = model.cuda()
    batch, optimizer = tuple(t.cuda() for t in batch), optimizer_of(model.parameters())
    forward = lib.compile(model) if framework == "torch.compile" else model

    def step():
        with lib.autocast("cuda", dtype=lib.bfloat16):
            loss = forward(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, *work(module, model, sizes, batch)


def measure(framework, case):
    """{"ms", "rate", "unit", "utilisation", "loss", "memory"} of the case here."""
    lib = import_module(FRAMEWORKS[framework])
    step, items, unit, flops = training(framework, case)
    for _ in range(WARM):
        loss = step()
    lib.cuda.synchronize()
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < STEPS and time.perf_counter() < end:
        begin = time.perf_counter()
        loss = step()
        lib.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    best = min(times)
    name = lib.cuda.get_device_name()
    peak = next((p for gpu, p in PEAK.items() if gpu in name), None)
    return {"device": name, "ms": best * 1e3, "rate": items / best, "unit": unit, "loss": loss.item(),
            "utilisation": peak and items * flops / best / peak, "memory": lib.cuda.max_memory_allocated() / 2**30}  # fmt: skip


def run(cases, frameworks):
    """Prints a line for each case and library; whether all could be measured."""
    good = True
    for case in [c for c in ON_CUDA if not cases or any(c.startswith(beginning) for beginning in cases)]:
        ours = None
        for framework in [f for f in FRAMEWORKS if f in frameworks and find_spec(FRAMEWORKS[f])]:
            command = [sys.executable, "-m", "benchmarks.cuda", framework, case]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                good = good and framework != "pydist"
                print(f"{case} {framework}: failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}", flush=True)
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            ours = ours or found
            share = f"{found['utilisation']:.1%} of the peak" if found["utilisation"] else "unknown peak"
            print(f"{case} {framework:14} {found['ms']:8.1f} ms  {found['rate']:12.0f} {found['unit']}/s  {share}  "
                  f"{ours['rate'] / found['rate']:.2f}x  {found['memory']:.1f} GiB  loss {found['loss']:.3f}", flush=True)  # fmt: skip
    return good


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:3])))
