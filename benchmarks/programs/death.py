"""From the death of a rank to PeerFailed on the other one, which waits for it in an all_reduce."""

import os
import signal
import time

import pydist
from pydist import distributed as dist

dist.init_process_group()
end = pydist.tensor([time.monotonic() + 0.5], dtype=pydist.float64)  # one clock for all processes of a host
dist.broadcast(end, src=1)
if dist.get_rank() == 1:
    time.sleep(end.item() - time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(end.clone())
except dist.PeerFailed:
    print(time.monotonic() - end.item())
