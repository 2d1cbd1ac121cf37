"""What a small operation costs."""

import sys
import timeit
from importlib import import_module

lib = import_module(sys.argv[1])
x, y = lib.ones(4), lib.ones(4)
calls = 100_000
print(min(timeit.repeat("x.add(y)", globals={"x": x, "y": y}, number=calls, repeat=10)) / calls)
