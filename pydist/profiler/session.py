"""One profiling session: when it records, and what happens with the recorded events."""

import json
import threading
import time
import warnings
from enum import Enum
from functools import wraps

from pydist import _C, cuda
from pydist.profiler.calls import Listener
from pydist.profiler.events import EventList, from_rows
from pydist.profiler.trace import write


class ProfilerActivity(Enum):
    """The activities that a profiler may record: CPU, CUDA and XPU."""

    CPU = 0
    CUDA = 1
    XPU = 2


class ProfilerAction(Enum):
    """What a step of the schedule does."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def supported_activities():
    """The activities that can be recorded: CPU, and CUDA if there is a GPU."""
    return {ProfilerActivity.CPU, ProfilerActivity.CUDA} if cuda._real() else {ProfilerActivity.CPU}


def schedule(*, wait, warmup, active, repeat=0, skip_first=0, skip_first_wait=0):
    """A function from a step's number to a ProfilerAction. After `skip_first` steps come cycles of `wait` steps without
    profiling, `warmup` steps, and `active` recorded steps; the last of these calls on_trace_ready. `repeat`: the number
    of cycles; 0: no limit. With skip_first_wait the first cycle has no `wait`. Raises ValueError for a negative number
    or for no active step.

    >>> from pydist.profiler import schedule
    >>> [schedule(wait=1, warmup=1, active=2)(step).name for step in range(5)]
    ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise ValueError(
            f"schedule: wait={wait}, warmup={warmup}, active={active}, repeat={repeat}, skip_first={skip_first} "
            "(expected none below 0, and active at least 1)"
        )
    cycle = wait + warmup + active

    def action(step):
        if step < 0:
            raise ValueError(f"schedule: step is {step} (expected at least 0)")
        if step < skip_first:
            return ProfilerAction.NONE
        step += (wait if skip_first_wait else 0) - skip_first
        at = step % cycle
        if (repeat and step >= repeat * cycle) or at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if at == cycle - 1 else ProfilerAction.RECORD

    return action


class record_function:
    """Your own span, as a context manager or a decorator: `with record_function("forward"): ...`.

    >>> from pydist.profiler import record_function
    >>> @record_function("twice")
    ... def twice(x):
    ...     return 2 * x
    >>> twice(21)
    42
    """

    def __init__(self, name, args=None):
        if not isinstance(name, str):
            raise TypeError(f"record_function: name is {type(name).__name__} (expected str)")
        self.name, self.args, self._spans = name, args, []
        self._ends_later = False

    @property
    def record(self):
        """What `pydist.ops.profiler` takes as the handle of this span."""
        return self

    def __enter__(self):
        self._spans.append(_C._span_begin())
        return self

    def __exit__(self, *error):
        span = self._spans.pop() if self._spans else None
        if span is not None:
            _C._span_end(span, self.name)

    def _call_end_callbacks_on_future(self, future):
        """Ends the span when the future is done, in place of the block's end. Returns a future with the same value,
        which is done after that."""
        if self._ends_later:
            raise RuntimeError(
                f"record_function {self.name!r}: _call_end_callbacks_on_future can only be called once. (expected one future)"
            )
        if not self._spans:
            raise RuntimeError(f"record_function {self.name!r}: it has not begun (expected a call in its block)")
        self._ends_later = True
        span, thread = self._spans.pop(), threading.get_native_id()

        def end(done):
            if span is not None:
                _C._span_end(span, self.name, thread)
            return done.value()

        return future.then(end)

    def __call__(self, function):
        @wraps(function)
        def run(*args, **kwargs):
            with record_function(self.name):
                return function(*args, **kwargs)

        return run


def epoch():
    """The epoch's ns at time.monotonic_ns() 0, from the closest of some pairs of readings: another process may run
    between two."""
    looks = ((time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(8))
    before, now, after = min(looks, key=lambda look: look[2] - look[0])
    return now - (before + after) // 2


class Recording:
    """Starts and stops the engine's recording, and keeps the last result: `events`, and `began`, ns of the epoch.

    calls: also record calls to other workers, and what these do for them. alone: start only if no other such recording
    runs. this_thread: only what the thread does that starts it. aten: names of ops are PyTorch's."""

    def __init__(self, *, record_shapes=False, profile_memory=False, with_stack=False, with_flops=False,
                 max_events=1_000_000, gpu=False, calls=False, alone=True, this_thread=False, aten=False):  # fmt: skip
        self._options = {"record_shapes": record_shapes, "profile_memory": profile_memory, "with_flops": with_flops}
        shapes = bool(record_shapes or with_flops)
        self._start = max_events, shapes, bool(profile_memory), bool(with_stack), gpu, alone, this_thread
        self._listens = (shapes, bool(profile_memory), this_thread) if calls else None
        self._calls = None  # the Listener of the recording under way
        self._aten = aten
        self._recording = self.events = self._raw = None

    def __getstate__(self):
        """A copy in another process has the events, and does not record."""
        return {**self.__dict__, "_recording": None, "_calls": None}

    @property
    def running(self):
        """Whether it records now."""
        return self._recording is not None

    def start(self):
        """Starts to record."""
        self._recording, self.events = _C._profile_start(*self._start), None
        if self._listens:
            self._calls = Listener(*self._listens)
            self._calls.start()
        self.monotonic = time.monotonic_ns()
        self.began = epoch() + self.monotonic

    def stop(self):
        """Stops to record, and takes the rows."""
        recording, self._recording = self._recording, None
        rows, dropped, stacks = _C._profile_stop(recording, self._start[3])
        if self._calls:
            self._calls.stop()
            rows, dropped = rows + self._calls.rows, dropped + self._calls.dropped
            self._calls = None
        self._raw = rows, dropped, stacks

    def take(self, op):
        """The events, made from the rows when they are first needed."""
        if self.running:
            raise RuntimeError(f"{op}: the profiler is running (expected stop(), or the end of its context, first)")
        if self._raw is not None:
            self.events, self._raw = from_rows(*self._raw, self.monotonic, self._options, self._aten), None
        if self.events is None:
            raise RuntimeError(
                f"{op}: nothing was recorded yet (expected start(), or steps up to the schedule's active ones)"
            )
        return self.events


class profile:
    """Records what runs between start() and stop(), or inside the context.

    `schedule` says for each step() whether to record. At the end of each recorded cycle on_trace_ready(self) is called.
    `record_shapes` keeps the shapes of inputs, `profile_memory` how much memory tensors gained, `with_stack` the Python
    lines (slow), `with_flops` FLOPs of products and the bytes that kernels moved. At most `max_events` spans are kept
    (72 bytes each, plus their shapes); the table says how many were dropped. Raises RuntimeError if another profiler is
    running.

    With a GPU, ProfilerActivity.CUDA (on by default) records when the GPU did the work of each span, by events in the
    stream that the thread uses: columns of the table, `device_time_total` of events, and a line of the trace. Work that
    the span's thread gives to other streams or devices is not recorded. Without a GPU the activity is ignored with a
    warning.

    >>> import pydist
    >>> with pydist.profiler.profile(with_flops=True) as prof:
    ...     y = pydist.ones(8, 16) @ pydist.ones(16, 4)
    >>> sum(e.flops for e in prof.events())
    1024
    """

    def __init__(
        self,
        *,
        activities=None,
        schedule=None,
        on_trace_ready=None,
        record_shapes=False,
        profile_memory=False,
        with_stack=False,
        with_flops=False,
        with_modules=False,
        experimental_config=None,
        execution_trace_observer=None,
        acc_events=False,
        use_cuda=None,
        custom_trace_id_callback=None,
        max_events=1_000_000,
    ):
        self.activities = set(supported_activities() if activities is None else activities)
        for activity in self.activities:
            if not isinstance(activity, ProfilerActivity):
                raise TypeError(f"profile: activities has {activity!r} (expected ProfilerActivity.CPU)")
        if use_cuda or self.activities - supported_activities():
            if not cuda._real():
                warnings.warn(
                    "profile: there is no GPU to profile; pydist records only ProfilerActivity.CPU", stacklevel=2
                )
        if schedule is not None and not callable(schedule):
            raise TypeError(
                f"profile: schedule is {type(schedule).__name__} (expected a function, such as schedule() returns)"
            )
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self.record_shapes, self.profile_memory, self.with_stack, self.with_flops = (
            record_shapes,
            profile_memory,
            with_stack,
            with_flops,
        )
        self._recording = Recording(record_shapes=record_shapes, profile_memory=profile_memory, with_stack=with_stack,
                                    with_flops=with_flops, max_events=max_events,
                                    gpu=cuda._real() and bool(use_cuda or ProfilerActivity.CUDA in self.activities))  # fmt: skip
        self.step_num = 0
        self.current_action = self._action()
        self._span = None
        self._metadata = {}

    def _action(self):
        return self.schedule(self.step_num) if self.schedule else ProfilerAction.RECORD

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.stop()

    def start(self):
        """Starts to record, or starts the schedule."""
        self._turn(ProfilerAction.NONE, self.current_action)
        self._begin_step()

    def stop(self):
        """Stops to record, and calls on_trace_ready if the cycle was recorded."""
        self._end_step()
        self._turn(
            ProfilerAction.RECORD_AND_SAVE if self._recording.running else ProfilerAction.NONE, ProfilerAction.NONE
        )

    def step(self):
        """Begins the next step of the schedule."""
        self._end_step()
        before, self.step_num = self.current_action, self.step_num + 1
        self.current_action = self._action()
        self._turn(before, self.current_action)
        self._begin_step()

    def _turn(self, before, now):
        running = self._recording.running
        if running and (before == ProfilerAction.RECORD_AND_SAVE or now not in _RECORDING):
            if before == ProfilerAction.RECORD:
                warnings.warn("profile: the schedule stops recording without RECORD_AND_SAVE", stacklevel=3)
            self._recording.stop()
            if before == ProfilerAction.RECORD_AND_SAVE and self.on_trace_ready:
                self.on_trace_ready(self)
        if now in _RECORDING and not self._recording.running:
            self._recording.start()

    def _begin_step(self):
        if self.schedule:
            self._span = record_function(f"ProfilerStep#{self.step_num}").__enter__()

    def _end_step(self):
        if self._span:
            self._span.__exit__()
            self._span = None

    def events(self):
        """All events of the last recorded cycle, an EventList."""
        return self._recording.take("events")

    def key_averages(self, group_by_input_shape=False, group_by_stack_n=0, group_by_overload_name=False):
        """Sums over the events with the same name (and the same input shapes, or innermost lines): an EventList."""
        return self._recording.take("key_averages").key_averages(group_by_input_shape, group_by_stack_n)

    def export_chrome_trace(self, path, use_python_export=False):
        """Writes the last recorded cycle for chrome://tracing or Perfetto, compressed if `path` ends in .gz. The rank
        is shown as the process; `merge_chrome_traces` joins the files of all ranks."""
        write(path, self._recording.take("export_chrome_trace"), self._recording.began, self._metadata)

    def export_stacks(self, path, metric="self_cpu_time_total"):
        """See EventList.export_stacks."""
        if not self.with_stack:
            raise RuntimeError("export_stacks: no stacks were recorded (expected with_stack=True)")
        self._recording.take("export_stacks").export_stacks(path, metric)

    def add_metadata(self, key, value):
        """Adds a text to the trace."""
        self._metadata[key] = str(value)

    def add_metadata_json(self, key, value):
        """Adds a value, given as JSON, to the trace."""
        self._metadata[key] = json.loads(value)

    preset_metadata_json = add_metadata_json

    def toggle_collection_dynamic(self, enable, activities):
        """Raises NotImplementedError: use a schedule, or stop() and start()."""
        raise NotImplementedError(
            "toggle_collection_dynamic is not supported (expected a schedule, or stop() and start())"
        )


__all__ = [
    "EventList", "ProfilerAction", "ProfilerActivity", "Recording", "profile", "record_function", "schedule",
    "supported_activities",
]  # fmt: skip
