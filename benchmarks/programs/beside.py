"""An mlp step while another Python thread computes: both want the interpreter's lock, which changes hands every 5 ms."""

import sys
import threading
import time
from importlib import import_module

from benchmarks.workloads.training import Training

lib = import_module(sys.argv[1])
training = Training(lib, "mlp", "float32")


def seconds():
    """Of a step, over a second."""
    begin, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < 1:
        training.step()
        steps += 1
    return passed / steps


def compute():
    count = 0
    while not done.is_set():
        count += 1


done = threading.Event()
seconds()
alone = min(seconds() for _ in range(3))
other = threading.Thread(target=compute)
other.start()
beside = min(seconds() for _ in range(3))
done.set()
other.join()
print(f"note: {beside / alone:.2f} times the {alone * 1e6:.0f} us that a step takes alone")
print(beside)
