"""tf.summary: event files for TensorBoard, written by pydist.utils.tensorboard."""

import contextlib as _contextlib
import logging as _logging
import threading as _threading

from pydist import _replay
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow._names import lazy as _lazy
from pydist.utils.tensorboard import SummaryWriter as _Events
from pydist.utils.tensorboard import records as _records

__getattr__, __dir__ = _lazy(__name__, {}, "experimental")


class _Here(_threading.local):
    def __init__(self):
        self.writers, self.steps, self.conditions = [], [None], []


_here = _Here()
_log = _logging.getLogger("pydist.tensorflow")


class SummaryWriter:
    """Writes event files into a folder. `as_default` makes it the writer of a block."""

    def __init__(self, logdir=None, max_queue=10, flush_millis=120_000, filename_suffix=".v2"):
        self._settings = logdir, "", None, max_queue or 10, (flush_millis or 120_000) / 1000, filename_suffix
        self._events = None

    def _opened(self):
        if self._events is None and self._settings[0] is not None:
            self._events = _Events(*self._settings)
        return self._events

    def init(self):
        """Makes the file. It is made with the first summary otherwise."""
        self._opened()

    @_contextlib.contextmanager
    def as_default(self, step=None):
        """A block whose summaries go here; `step` is that of those that name none."""
        _here.writers.append(self)
        _here.steps.append(_here.steps[-1] if step is None else step)
        try:
            yield self
        finally:
            _here.writers.pop()
            _here.steps.pop()
            self.flush()

    def set_as_default(self, step=None):
        """Summaries go here from now on."""
        _here.writers.append(self)
        if step is not None:
            _here.steps[-1] = step

    def flush(self):
        """Writes all summaries to the disk."""
        if self._events is not None:
            self._events.flush()

    def close(self):
        """Writes all summaries to the disk and closes the file."""
        if self._events is not None:
            self._events.close()
            self._events = None


def create_file_writer(logdir, max_queue=None, flush_millis=None, filename_suffix=None, name=None):
    """A writer of event files in a folder."""
    import os

    return SummaryWriter(os.fspath(logdir), max_queue, flush_millis, filename_suffix or ".v2")


def create_noop_writer():
    """A writer that writes nothing."""
    return SummaryWriter()


def _written(step, write):
    """write(events, step), if a writer is open and wants summaries. Returns whether it was."""
    if not _here.writers or not should_record_summaries():
        return False
    step = _here.steps[-1] if step is None else step
    if step is None:
        raise ValueError("summary: no step (expected step=, as_default(step) or summary.experimental.set_step)")
    events = _here.writers[-1]._opened()
    _replay.refuse("it writes summaries")
    if events is not None:
        write(events, int(step() if callable(step) else step))
    return events is not None


def scalar(name, data, step=None, description=None):
    """Writes a number. Returns whether there was a writer for it."""
    return _written(step, lambda events, at: events.add_scalar(name, float(_t.tensor(data)), at))


def histogram(name, data, step=None, buckets=None, description=None):
    """Writes the distribution of a tensor's elements."""

    def write(events, at):
        events.add_histogram(name, _t.tensor(data), at, bins="tensorflow" if buckets is None else int(buckets))

    return _written(step, write)


def image(name, data, step=None, max_outputs=3, description=None):
    """Writes images [images, height, width, channels] of numbers from 0 to 1 or of bytes; at most max_outputs."""

    def write(events, at):
        pictures = _t.tensor(data)
        if pictures.ndim != 4:
            raise ValueError(
                f"summary.image: data has {pictures.ndim} axes (expected [images, height, width, channels])"
            )
        for number, picture in enumerate(pictures[: int(max_outputs)]):
            events.add_image(f"{name}/{number}" if number else name, picture, at, dataformats="HWC")

    return _written(step, write)


def text(name, data, step=None, description=None):
    """Writes a text in Markdown."""

    def write(events, at):
        value = _t.tensor(data)
        parts = value.tolist() if value.ndim else [value.numpy()]
        events.file_writer.add_summary(_records.text(name, [part.decode() for part in parts]), at)

    return _written(step, write)


def write(tag, tensor, step=None, metadata=None, name=None):
    """Writes a string or tensor for a plugin of TensorBoard, which `metadata` (compat.v1.SummaryMetadata) names."""
    from pydist.tensorflow import io

    def put(events, at):
        plugin = metadata.plugin_data if metadata is not None else None
        field = b""
        if plugin is not None:
            field = _records.chunk(
                9, _records.chunk(1, _records.chunk(1, plugin.plugin_name) + _records.chunk(2, plugin.content))
            )
        content = io.serialize_tensor(tensor() if callable(tensor) else tensor).numpy()
        events.file_writer.add_summary(_records.value(tag, field, _records.chunk(8, content)), at)

    return _written(step, put)


@_contextlib.contextmanager
def record_if(condition):
    """A block whose summaries are written if the condition (a bool, or a function without arguments) is true."""
    _here.conditions.append(condition)
    try:
        yield
    finally:
        _here.conditions.pop()


def should_record_summaries():
    """Whether summaries would be written here."""
    wanted = _here.conditions[-1] if _here.conditions else True
    return bool(_here.writers) and bool(wanted() if callable(wanted) else wanted)


def flush(writer=None, name=None):
    """Writes all summaries of a writer (the one of this block) to the disk."""
    for one in [writer] if writer is not None else _here.writers[-1:]:
        one.flush()


def trace_on(graph=True, profiler=False, profiler_outdir=None):
    """Logs a warning: a tf.function has no graph that could be traced. pydist.profiler measures."""
    _log.warning("summary.trace_on: there are no graphs to trace (expected pydist.profiler, for times)")


def trace_export(name, step=None, profiler_outdir=None):
    """Nothing: trace_on has said so."""


def trace_off():
    """Nothing: trace_on has said so."""
