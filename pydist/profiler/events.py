"""Recorded events as a list, and as averages over events with the same name."""

from collections import defaultdict
from enum import Enum

from pydist.profiler import flops as _flops
from pydist.profiler.table import build_table, time_text


class DeviceType(Enum):
    """PyTorch's kinds of devices in events."""

    CPU = 0
    CUDA = 1


class Interval:
    """The time from `start` to `end`, in microseconds since the profiler began."""

    __slots__ = ("start", "end")

    def __init__(self, start, end):
        self.start, self.end = start, end

    def elapsed_us(self):
        """The length in microseconds."""
        return self.end - self.start

    def __repr__(self):
        return f"Interval({self.start:.3f}, {self.end:.3f})"


class _Times:
    """The common part of events and averages: means, texts, and zeros for devices that do not exist."""

    device_type = DeviceType.CPU
    cuda_time_total = property(lambda self: self.device_time_total)
    self_cuda_time_total = property(lambda self: self.self_device_time_total)
    cuda_time = property(lambda self: self.device_time)
    device_memory_usage = self_device_memory_usage = cuda_memory_usage = self_cuda_memory_usage = 0

    @property
    def cpu_time(self):
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self):
        return self.device_time_total / self.count if self.count else 0.0

    @property
    def cpu_time_str(self):
        return time_text(self.cpu_time)

    @property
    def cpu_time_total_str(self):
        return time_text(self.cpu_time_total)

    @property
    def self_cpu_time_total_str(self):
        return time_text(self.self_cpu_time_total)


class FunctionEvent(_Times):
    """One span: `name`, `thread` (the system's number, or the line of a group), `time_range`, `input_shapes`, `stack`
    (innermost line first), `flops`, `bytes` (read and written by its own kernel), memory that tensors gained, parent
    and children. `device_index` and `device_time_range` of the work that it gave a GPU, or None. `node_id`: the worker
    where it was, if it is a call to another worker or `is_remote`, something that the other worker did for the call."""

    __slots__ = ("id", "name", "kind", "thread", "time_range", "input_shapes", "stack", "flops", "bytes", "cpu_memory_usage",
                 "cpu_children", "cpu_parent", "device_index", "device_time_range", "is_remote", "node_id")  # fmt: skip
    count = 1

    def __init__(
        self, id, name, kind, thread, start, end, *, shapes=None, stack=(), flops=0, bytes=0, memory=0, device=None,
        node_id=-1, is_remote=False,
    ):  # fmt: skip
        self.id, self.name, self.kind, self.thread = id, name, kind, thread
        self.node_id, self.is_remote = node_id, is_remote
        self.time_range = Interval(start, end)
        self.input_shapes, self.stack, self.flops, self.bytes = shapes, stack, flops, bytes
        self.cpu_memory_usage = memory
        self.cpu_children, self.cpu_parent = [], None
        self.device_index, self.device_time_range = (
            device and device[0],
            device and Interval(device[1] / 1e3, device[2] / 1e3),
        )

    key = property(lambda self: self.name, doc="The event's name.")
    scope = property(lambda self: self.kind, doc='The kind of event: "user" for record_function.')

    @property
    def is_async(self):
        """Whether this is a collective or a call in progress, which takes no time of a thread."""
        return self.kind in ("communication", "rpc", "async")

    @property
    def is_user_annotation(self):
        """Whether record_function made it."""
        return self.kind == "user"

    @property
    def cpu_time_total(self):
        """Its time in microseconds, children included."""
        return self.time_range.elapsed_us()

    @property
    def self_cpu_time_total(self):
        """Its time in microseconds, without its children."""
        return 0.0 if self.is_async else self.cpu_time_total - sum(e.cpu_time_total for e in self.cpu_children)

    @property
    def device_time_total(self):
        """The GPU's time for its work in microseconds, children included."""
        return self.device_time_range.elapsed_us() if self.device_time_range else 0.0

    @property
    def self_device_time_total(self):
        """The GPU's time for its work in microseconds, without its children."""
        return max(self.device_time_total - sum(e.device_time_total for e in self.cpu_children), 0.0)

    @property
    def self_cpu_memory_usage(self):
        """The bytes that tensors gained in it, without its children."""
        return self.cpu_memory_usage - sum(e.cpu_memory_usage for e in self.cpu_children)

    def __repr__(self):
        return (
            f"<FunctionEvent id={self.id} name={self.name} cpu_time={self.cpu_time_str} thread={self.thread} "
            f"input_shapes={self.input_shapes}>"
        )


class FunctionEventAvg(_Times):
    """The sums over events of one key: `count`, times in microseconds, memory and bytes, FLOPs."""

    def __init__(self):
        self.key, self.kind, self.count, self.cpu_parent, self.node_id = None, None, 0, None, -1
        self.cpu_time_total = self.self_cpu_time_total = self.device_time_total = self.self_device_time_total = 0.0
        self.cpu_memory_usage = self.self_cpu_memory_usage = self.bytes = self.flops = 0
        self.input_shapes, self.stack, self.is_async = None, (), False

    def add(self, other):
        """Adds an event, or an average with the same key. Returns self."""
        if self.key is None:
            self.key, self.kind, self.is_async, self.node_id = other.key, other.kind, other.is_async, other.node_id
            self.input_shapes, self.stack = other.input_shapes, other.stack
        self.count += other.count
        for name in ("cpu_time_total", "self_cpu_time_total", "device_time_total", "self_device_time_total", "cpu_memory_usage",
                     "self_cpu_memory_usage", "bytes", "flops"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    __iadd__ = add

    def __repr__(self):
        return (
            f"<FunctionEventAvg key={self.key} self_cpu_time={self.self_cpu_time_total_str} cpu_time={self.cpu_time_str} "
            f"count={self.count} input_shapes={self.input_shapes}>"
        )


class EventList(list):
    """Events or averages, with PyTorch's methods. `dropped`: the number of events that did not fit the profiler's
    buffer."""

    def __init__(self, events=(), *, dropped=0, profile_memory=False, with_flops=False):
        super().__init__(events)
        self.dropped, self._options = dropped, {"profile_memory": profile_memory, "with_flops": with_flops}

    @property
    def self_cpu_time_total(self):
        """The time of all threads inside events, in microseconds."""
        return sum(e.self_cpu_time_total for e in self)

    @property
    def self_device_time_total(self):
        """The time that GPUs took for work inside events, in microseconds."""
        return sum(e.self_device_time_total for e in self)

    self_cuda_time_total = self_device_time_total

    def table(
        self,
        sort_by=None,
        row_limit=100,
        max_src_column_width=75,
        max_name_column_width=55,
        max_shapes_column_width=80,
        header=None,
        top_level_events_only=False,
        time_unit=None,
    ):
        """The events as text: the `row_limit` (-1: all) events with the most of `sort_by`. sort_by: count, cpu_time,
        cpu_time_total, self_cpu_time_total, cpu_memory_usage, self_cpu_memory_usage, flops, bytes, or the same names
        with cuda or device."""
        return build_table(
            self,
            sort_by=sort_by,
            row_limit=row_limit,
            widths=(max_name_column_width, max_shapes_column_width, max_src_column_width),
            header=header,
            top_level_events_only=top_level_events_only,
            time_unit=time_unit,
            **self._options,
        )

    def __str__(self):
        return self.table()

    def key_averages(self, group_by_input_shapes=False, group_by_stack_n=0):
        """One FunctionEventAvg for each name; on request also for each list of input shapes or the innermost n
        lines."""
        found = defaultdict(FunctionEventAvg)
        for e in self:
            shapes = str(e.input_shapes) if group_by_input_shapes else ""
            found[e.key, e.kind, e.node_id, shapes, tuple(e.stack[:group_by_stack_n])].add(e)
        for average in found.values():
            average.stack = average.stack[:group_by_stack_n]
            if not group_by_input_shapes:
                average.input_shapes = None
        return EventList(found.values(), dropped=self.dropped, **self._options)

    def total_average(self):
        """The sum of all events, as one FunctionEventAvg with the key "Total"."""
        total = FunctionEventAvg()
        for e in self:
            total.add(e)
        total.key = "Total"
        return total

    def export_chrome_trace(self, path):
        """Writes the events for chrome://tracing or Perfetto."""
        from pydist.profiler.trace import write

        write(path, self)

    def export_stacks(self, path, metric="self_cpu_time_total"):
        """Writes "outer;...;inner microseconds" lines, for flame graphs. Needs with_stack=True."""
        if metric not in ("self_cpu_time_total", "self_cuda_time_total", "self_xpu_time_total"):
            raise ValueError(f"export_stacks: metric is {metric!r} (expected 'self_cpu_time_total')")
        with open(path, "w") as file:
            for e in self:
                amount = getattr(e, metric.replace("xpu", "cuda"))
                if e.stack and int(amount) > 0:
                    file.write(";".join(line.replace(" ", "_") for line in reversed(e.stack)) + f" {int(amount)}\n")


_TITLES = {"in place": "{}_", "backward": "{}.backward", "communication": "comm:{}"}


def _nest(events):
    """Sets parents and children: two spans of a thread are either one inside the other, or apart."""
    lanes = defaultdict(list)
    for e in events:
        if not e.is_async:
            lanes[e.node_id, e.thread].append(e)
    for lane in lanes.values():
        lane.sort(key=lambda e: (e.time_range.start, -e.time_range.end, -e.id))
        open_events = []
        for e in lane:
            while open_events and open_events[-1].time_range.end < e.time_range.end:
                open_events.pop()
            if open_events:
                e.cpu_parent = open_events[-1]
                e.cpu_parent.cpu_children.append(e)
            open_events.append(e)


def _lines(stacks):
    """The lines of each stack, by its number, without those of this package."""
    from pydist.profiler import __file__ as here

    own = here.rpartition("profiler")[0]

    def line(code, offset):
        number = next((n for begin, end, n in code.co_lines() if begin <= offset < end), None)
        return f"{code.co_filename}({number or code.co_firstlineno}): {code.co_name}"

    return {
        number: [line(code, at) for code, at in zip(stack[::2], stack[1::2]) if not code.co_filename.startswith(own)]
        for stack, number in stacks.items()
    }


def _title(name, kind, aten):
    if name.endswith("Backward"):
        return name
    if aten and kind in ("op", "in place"):
        name = f"aten::{name}"
    return _TITLES.get(kind, "{}").format(name)


def from_rows(rows, dropped, stacks, start, options, aten=False):
    """The events of `_C._profile_stop` and of a Listener. `start`: the monotonic ns from which times count. Options:
    record_shapes, profile_memory, with_flops. aten: names of ops are PyTorch's."""
    lines, events = _lines(stacks), []
    for i, (name, kind, lane, begin, end, moved, held, stack, shapes, device, *place) in enumerate(rows):
        count, results = 0, 0
        if shapes is not None:
            results, shapes = shapes
            count = _flops.count(name, kind, shapes[:results], shapes[results:])
        before, node = place or ("", -1)
        events.append(
            FunctionEvent(
                i, before + _title(name, kind, aten), kind, lane, (begin - start) / 1e3, (end - start) / 1e3,
                shapes=shapes[results:] if shapes is not None and options["record_shapes"] else None,
                stack=lines.get(stack, ()), flops=count, bytes=moved, memory=held, device=device,
                node_id=node, is_remote=bool(before),
            )
        )  # fmt: skip
    _nest(events)
    events.sort(key=lambda e: (e.time_range.start, -e.time_range.end, -e.id))
    return EventList(
        events, dropped=dropped, profile_memory=options["profile_memory"], with_flops=options["with_flops"]
    )
