"""What the machine can do at most: seconds for the given work: limit.py bytes N, at the rate of a copy of 1 MiB in the cache on
one thread (read and written bytes count)."""

import sys

from timing import best

kind, amount = sys.argv[1], float(sys.argv[2])
source, target = memoryview(bytes(1 << 20)), memoryview(bytearray(1 << 20))


def copy():
    target[:] = source


print(amount * {"bytes": best(copy, 200) / (2 << 20)}[kind])
