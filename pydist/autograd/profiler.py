"""The older names of `pydist.profiler`, as in PyTorch's `torch.autograd.profiler`."""

import warnings

from pydist import cuda
from pydist.profiler.events import EventList, FunctionEvent, FunctionEventAvg
from pydist.profiler.session import Recording, record_function
from pydist.profiler.trace import write

__all__ = [
    "EventList",
    "FunctionEvent",
    "FunctionEventAvg",
    "emit_itt",
    "emit_nvtx",
    "profile",
    "record_function",
]


class profile:
    """Records what runs inside the context. See pydist.profiler.profile, which also has schedules. This one also
    records calls to other workers (pydist.distributed.rpc) and what these do for them: events with `is_remote` and
    `node_id`, named "rpc_sync#aten::add(worker0 -> worker1)" and "<the call>#remote_op: add".

    >>> import pydist
    >>> with pydist.autograd.profiler.profile() as prof:
    ...     y = pydist.ones(3).exp()
    >>> "exp" in [e.key for e in prof.key_averages()]
    True
    """

    def __init__(
        self,
        enabled=True,
        *,
        use_cuda=False,
        use_device=None,
        record_shapes=False,
        with_flops=False,
        profile_memory=False,
        with_stack=False,
        with_modules=False,
        use_kineto=False,
        use_cpu=True,
        experimental_config=None,
        acc_events=False,
        custom_trace_id_callback=None,
        max_events=1_000_000,
    ):
        gpu = bool(use_cuda or use_device not in (None, "cpu"))
        if gpu and not cuda._real():
            warnings.warn("profile: there is no GPU to profile; pydist records only the CPU", stacklevel=2)
        self.enabled = enabled
        self._recording = Recording(record_shapes=record_shapes, profile_memory=profile_memory, with_stack=with_stack,
                                    with_flops=with_flops, max_events=max_events, gpu=gpu and cuda._real(), calls=True)  # fmt: skip

    def __enter__(self):
        if self.enabled:
            self._recording.start()
        return self

    def __exit__(self, *error):
        if self.enabled:
            self._recording.stop()

    @property
    def function_events(self):
        """The recorded events, an EventList."""
        return self._recording.take("function_events") if self.enabled else None

    def key_averages(self, group_by_input_shape=False, group_by_stack_n=0, group_by_overload_name=False):
        """See pydist.profiler.profile.key_averages."""
        return self._recording.take("key_averages").key_averages(group_by_input_shape, group_by_stack_n)

    def table(self, sort_by=None, row_limit=100, **kwargs):
        """See EventList.table."""
        return self._recording.take("table").table(sort_by, row_limit, **kwargs)

    def total_average(self):
        """The sum over all events."""
        return self._recording.take("total_average").total_average()

    @property
    def self_cpu_time_total(self):
        """The time of all threads inside events, in microseconds."""
        return self._recording.take("self_cpu_time_total").self_cpu_time_total

    def export_chrome_trace(self, path):
        """Writes the events for chrome://tracing or Perfetto."""
        write(path, self._recording.take("export_chrome_trace"), self._recording.began)

    def export_stacks(self, path, metric="self_cpu_time_total"):
        """See EventList.export_stacks."""
        self._recording.take("export_stacks").export_stacks(path, metric)

    def __str__(self):
        return "<unfinished pydist.autograd.profiler.profile>" if self._recording.running else str(self.function_events)

    __repr__ = __str__


class emit_nvtx:
    """Ranges for NVIDIA's profilers. This warns and does nothing: pydist.cuda.nvtx has ranges, pydist.profiler.profile
    has events."""

    def __init__(self, enabled=True, record_shapes=False):
        self.enabled, self.record_shapes = enabled, record_shapes

    def __enter__(self):
        if self.enabled:
            warnings.warn(
                f"{type(self).__name__}: pydist emits no ranges here (expected pydist.profiler.profile)", stacklevel=2
            )
        return self

    def __exit__(self, *error):
        return None


class emit_itt(emit_nvtx):
    """The same for Intel's profilers: it warns and does nothing."""
