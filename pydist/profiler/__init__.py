"""Measures where a program's time goes: `profile`, with the name and signature of PyTorch's profiler, records events of
the engine.

It records ops and their parts, gradients of nodes (`linear.backward`), backward as a whole, fused optimizer steps,
collectives (the call, and on its own line `comm:all_reduce`, from its beginning on this rank to its end), and spans of
`record_function`. While no profiler runs, each of them costs one load.

>>> import pydist
>>> from pydist.profiler import profile, record_function
>>> x = pydist.ones(64, 64, requires_grad=True)
>>> with profile(record_shapes=True) as prof:
...     with record_function("forward"):
...         y = (x @ x).sum()
...     y.backward()
>>> [e.key for e in prof.key_averages() if e.key in ("forward", "bmm", "backward")]
['forward', 'bmm', 'backward']
>>> print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=3))  # doctest: +ELLIPSIS
-...
"""

from pydist.profiler.events import DeviceType, EventList, FunctionEvent, FunctionEventAvg
from pydist.profiler.session import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    supported_activities,
)
from pydist.profiler.trace import merge_chrome_traces, tensorboard_trace_handler

__all__ = [
    "DeviceType",
    "EventList",
    "FunctionEvent",
    "FunctionEventAvg",
    "ProfilerAction",
    "ProfilerActivity",
    "kineto_available",
    "merge_chrome_traces",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


def kineto_available():
    """Whether traces can be exported. True: the engine records them itself."""
    return True
