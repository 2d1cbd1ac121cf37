"""What the machine can do at most: seconds for the given work, at the best rate that torch or pydist reaches.

    limit.py flops N   a float32 product of 1024 x 1024 matrices on two threads sets the rate
    limit.py bytes N   a copy of 1 MiB in the cache, on one thread (read and written bytes count)
"""

import sys
from importlib import import_module
from importlib.util import find_spec

from timing import best

kind, amount = sys.argv[1], float(sys.argv[2])


def seconds_per_flop():
    found = []
    for name in ("pydist", "torch"):
        if find_spec(name):
            lib = import_module(name)
            lib.set_num_threads(2)
            a, b = lib.randn(1024, 1024), lib.randn(1024, 1024)
            found.append(best(lambda: lib.matmul(a, b), 5) / (2 * 1024**3))  # noqa: B023
    return min(found)


def seconds_per_byte():
    source, target = memoryview(bytes(1 << 20)), memoryview(bytearray(1 << 20))

    def copy():
        target[:] = source

    return best(copy, 200) / (2 << 20)


print(amount * {"flops": seconds_per_flop, "bytes": seconds_per_byte}[kind]())
