"""Where a program's time goes: `profile`, PyTorch's profiler by name and signature, on the engine's own events.

Recorded are ops and their parts, gradients of the tape's nodes (`linear.backward`), backward as a whole, fused optimizer
steps, collectives (the call, and in a lane of its own `comm:all_reduce`, from its begin on this rank to its end), and
`record_function`'s own spans. Without a profiler running all this costs one load for each of them.

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
    """Whether traces can be exported; True, as the engine records them itself."""
    return True
