"""What an import costs over the bare interpreter."""

import sys
import time
from importlib import import_module

begin = time.perf_counter()
import_module(sys.argv[1])
print(time.perf_counter() - begin)
