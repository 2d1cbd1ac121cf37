"""So many steps of a workload, or so many small operations (op_call): what benchmarks.against counts instructions of."""

import sys

import pydist

case, count = sys.argv[1], int(sys.argv[2])
pydist.set_num_threads(1)
if case == "op_call":
    x, y = pydist.ones(4), pydist.ones(4)

    def step():
        x.add(y)
else:
    from benchmarks.workloads.training import Training

    step = Training(pydist, case, "float32").step
for _ in range(count):
    step()
