"""The best of several batches of calls, per call."""

import time


def best(function, calls, batches=10):
    for _ in range(max(calls // 4, 3)):
        function()
    seconds = []
    for _ in range(batches):
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / calls
