"""What the way between NumPy's arrays and tensors costs: from_numpy, numpy or tensor of so many numbers."""

import sys
import timeit
from importlib import import_module

import numpy as np

lib, what, n = import_module(sys.argv[1]), sys.argv[2], int(sys.argv[3])
array = np.ones(n, "float32")
t = lib.from_numpy(array)
call = {"from_numpy": "lib.from_numpy(array)", "numpy": "t.numpy()", "tensor": "lib.tensor(array)"}[what]
calls = 200 if what == "tensor" and n > 1000 else 20_000
print(min(timeit.repeat(call, globals={"lib": lib, "array": array, "t": t}, number=calls, repeat=20)) / calls)
