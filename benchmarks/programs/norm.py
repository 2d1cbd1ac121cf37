"""What the norm of the gradients of GPT-2 124M costs: norm.py pydist, norm.py torch; norm.py reading: what it costs only to
read them (pydist's amax, which does nearly nothing else)."""

import sys
from importlib import import_module

from benchmarks.programs.timing import best

what = sys.argv[1]
lib = import_module("torch" if what == "torch" else "pydist")
grads = [lib.randn(n) for n in (50257 * 768, 1024 * 768, *[7_087_872] * 12, 1536)]


def read():
    return [grad.amax() for grad in grads]


print(best(read if what == "reading" else lambda: lib.nn.utils.get_total_norm(grads), 1))
