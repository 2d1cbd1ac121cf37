"""Traces for chrome://tracing, Perfetto and TensorBoard: one process per rank, one line per thread and per group."""

import gzip
import json
import os
import socket
import sys
import time

# Times are microseconds since a multiple of this: the same for all ranks, and small enough for a double.
_WEEK = 7 * 86400 * 10**9
_CATEGORIES = {"user": "user_annotation", "communication": "communication"}
# Spans that take no time of a thread have lines of their own: kind -> (the line of number 0, what the number is). No
# thread has one of these numbers.
_LINES = {
    "communication": (10_000_000, "communication of group"),
    "rpc": (30_000_000, "calls to worker"),
    "async": (40_000_000, "asynchronous, thread"),
}
_GPUS = 20_000_000  # the line of GPU 0


def _rank():
    dist = sys.modules.get("pydist.distributed")
    if dist and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), dist.get_backend()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), None


def _args(e):
    args = {"External id": e.id}
    if e.input_shapes is not None:
        args["Input Dims"] = e.input_shapes
    for name, value in (("bytes", e.bytes), ("flops", e.flops), ("memory", e.cpu_memory_usage)):
        if value:
            args[name] = value
    if e.stack:
        args["Call stack"] = ";".join(reversed(e.stack))
    return args


def _line(e):
    return _LINES.get(e.kind, (0, ""))[0] + e.thread


def _line_name(e):
    return f"{_LINES.get(e.kind, (0, 'thread'))[1]} {e.thread}"


def _open(path, mode):
    return gzip.open(path, mode + "t") if os.fspath(path).endswith(".gz") else open(path, mode)


def write(path, events, start=None, metadata=None, bare=False):
    """Writes the events. `start`: the epoch's ns at their time 0 (default: now); `metadata`: more top-level entries. bare:
    only the list of events, as PyTorch's older profiler. What other workers did for calls stands at their ranks."""
    start = time.time_ns() if start is None else start
    base = start - start % _WEEK
    rank, world, backend = _rank()

    def about(kind, line, process=rank, **args):
        return {"ph": "M", "name": kind, "pid": process, "tid": line, "args": args}

    def process_of(e):
        return e.node_id if e.is_remote else rank

    found = [about("process_name", 0, name=f"rank {rank}"), about("process_labels", 0, labels=f"{socket.gethostname()}:{os.getpid()}"),
             about("process_sort_index", 0, sort_index=rank)]  # fmt: skip
    for process, line, name in dict.fromkeys((process_of(e), _line(e), _line_name(e)) for e in events):
        found.append(about("thread_name", line, process, name=name))
    for other in sorted({process_of(e) for e in events} - {rank}):
        found.append(about("process_name", 0, other, name=f"rank {other}"))
    for device in sorted({e.device_index for e in events if e.device_time_range}):
        found.append(about("thread_name", _GPUS + device, name=f"GPU {device}"))
    for e in events:
        if e.device_time_range:
            found.append({
                "ph": "X", "cat": "kernel", "name": e.name, "pid": rank, "tid": _GPUS + e.device_index,
                "ts": (start - base) / 1e3 + e.device_time_range.start, "dur": e.device_time_range.elapsed_us(),
                "args": {"External id": e.id, "device": e.device_index},
            })  # fmt: skip
        found.append({
            "ph": "X", "cat": _CATEGORIES.get(e.kind, "cpu_op"), "name": e.name, "pid": process_of(e), "tid": _line(e),
            "ts": (start - base) / 1e3 + e.time_range.start, "dur": e.time_range.elapsed_us(), "args": _args(e),
        })  # fmt: skip
    document = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "droppedEvents": events.dropped,
        **(metadata or {}),
        "traceEvents": found,
    }
    with _open(path, "w") as file:
        json.dump(found if bare else document, file)


def merge_chrome_traces(path, *traces):
    """Joins the traces of ranks to one trace, written to `path`. Each rank is a process in it. All have one time line,
    as exact as the hosts' clocks agree. Files that end in .gz are compressed."""
    if not traces:
        raise ValueError("merge_chrome_traces: no traces (expected the files that ranks exported)")
    whole = None
    for trace in traces:
        with _open(trace, "r") as file:
            part = json.load(file)
        if whole is None:
            whole = part
            continue
        shift = (part["baseTimeNanoseconds"] - whole["baseTimeNanoseconds"]) / 1e3
        for event in part["traceEvents"]:
            if "ts" in event:
                event["ts"] += shift
        whole["traceEvents"] += part["traceEvents"]
        whole["droppedEvents"] += part["droppedEvents"]
    with _open(path, "w") as file:
        json.dump(whole, file)


def tensorboard_trace_handler(dir_name, worker_name=None, use_gzip=False, use_python_export=False):
    """A function for profile's on_trace_ready. It writes each trace to dir_name/<worker_name>.<ns>.pt.trace.json[.gz].
    The default of worker_name has the host and the process."""
    os.fspath(dir_name)

    def handle(prof):
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"
        prof.export_chrome_trace(os.path.join(dir_name, name))

    return handle
