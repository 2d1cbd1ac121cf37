"""all_reduce of n floats on two ranks: all_reduce.py library n calls."""

import sys

import ranks
from timing import best

library, n, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank, all_reduce, end = getattr(ranks, library)(n)
seconds = best(all_reduce, calls)
if rank == 0:
    print(seconds)
end()
