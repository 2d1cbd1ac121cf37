r"""One pipe of one worker: its lines go to the rank's lane, its unfinished text is its state.

``\n`` ends a line. A Screen says what is shown if a worker moves the cursor. A line over 1 MiB is cut into several.
With one rank the bytes pass through unchanged.

Tracebacks: text on stderr from "Traceback (most recent call last):" on is held back for half a second. If the worker
goes on, it was not its end and is shown; if the worker ends, the report decides.
"""

import os
from time import monotonic

from pydist._launch.traces import MARK, MARK_SYNTAX

HOLD = 0.5  # s that a traceback is held back
LINE_MAX = 1 << 20  # longer lines are cut
REST = 0.15  # s after a newline after which rows become lines, even if a worker could come back to them
TRACE_MAX = 1 << 18  # longer tracebacks are not held back


def visible(text):
    """The text without colours, and without blanks around it."""
    if b"\x1b" not in text:
        return text.strip()
    from pydist._launch.screen import visible

    return visible(text)


class Stream:
    """Reads `fd` and gives lines to `lane`; without a lane, all bytes to `sink`. `catches`: holds tracebacks back.
    `file`: gets the bytes unchanged."""

    def __init__(self, rank, fd, sink, lane, catches, file=None):
        self.rank, self.fd, self.sink, self.lane = rank, fd, sink, lane
        self.catches, self.file = catches, file
        self.open = b""  # the beginning of text that may become a traceback
        self.line = b""  # the text after the last newline
        self.screen = None  # the shown rows, if they are more than a line
        self.rest_due = None  # when rows above the cursor become lines
        self.fresh = True  # nothing has come yet
        self.held = False  # `trace` waits for the worker's end, or for `due`
        self.trace = b""  # the last text of this stream, from its traceback on
        self.due = 0.0

    @property
    def is_paused(self):
        return self.lane is not None and self.lane.is_paused

    def read(self):
        """Returns False at the end, or if nothing is there yet. `fd` is None after the end."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data or self.sink.closed:
            self.close()
            return False
        if self.file is not None:
            self.write(data)
        self.feed(data)
        return True

    def drain(self):
        """Reads what is there now, but no more than a pipe holds: a grandchild may keep writing."""
        for _ in range(16):
            if self.fd is None or not self.read():
                return

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
            if self.lane is not None:
                self.lane.close()
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def write(self, data):
        """Writes to the file. A full disk ends the file, not the job."""
        try:
            while data:
                data = data[os.write(self.file, data) :]
        except OSError as error:
            self.sink.lines(b"pydist.run: a log file of rank %d ends: %s\n" % (self.rank, str(error).encode()))
            os.close(self.file)
            self.file = None

    def feed(self, data):
        if self.held:
            self.trace += data
            if len(self.trace) > TRACE_MAX:
                self.release()
            return
        data, self.open = self.open + data, b""
        if self.catches:
            at = 0 if self.fresh and data.startswith(MARK_SYNTAX) else data.find(MARK)
            self.fresh = False
            if at >= 0:
                self.emit(data[:at])
                self.held, self.trace, self.due = True, data[at:], monotonic() + HOLD
                return
            self.trace = b""  # an earlier traceback was not the end
        self.emit(data)

    def emit(self, data):
        keep = self.catches and data[data.rfind(b"\n") + 1 :]
        if keep and MARK.startswith(keep):
            self.open, data = keep, data[: -len(keep)]
        if self.lane is None:
            self.sink.put(data)
            return
        if self.screen is None and (b"\r" in data or b"\x1b" in data):
            from pydist._launch import screen  # with `re`: jobs without bars and colours need neither

            if screen.needed(data):
                self.screen, self.line = screen.Screen(self.line), b""
        lines, rows = self.plain(data) if self.screen is None else self.pictured(data)
        if lines:
            self.lane.lines(lines)
        self.lane.show(rows)

    def plain(self, data):
        """(lines, rows of the state)."""
        data = self.line + data
        cut = data.rfind(b"\n") + 1
        lines, self.line = data[:cut], data[cut:]
        if len(self.line) > LINE_MAX:
            lines, self.line = lines + self.line + b"\n", b""
        return lines, (self.line,) if visible(self.line) else ()

    def pictured(self, data):
        lines, rows = self.screen.feed(data), self.screen.state
        self.rest_due = monotonic() + REST if self.screen.is_resting else None
        self.leave_screen()
        return lines, rows

    def leave_screen(self):
        if (line := self.screen.plain) is not None:
            self.line, self.screen = line, None

    def settle(self):
        """Called when nothing came for a while after the newline."""
        self.rest_due = None
        if lines := self.screen.settle():
            self.lane.lines(lines)
        self.lane.show(self.screen.state)
        self.leave_screen()

    def release(self):
        """Shows the held text. It stays the trace until something follows."""
        if self.held:
            self.held = False
            text, self.open = self.open + self.trace, b""
            self.emit(text)

    def flush(self):
        """Called when the worker has ended: its unfinished text becomes lines."""
        text, self.open = self.open, b""
        if self.lane is None:
            self.sink.put(text)
            return
        lines, _ = self.plain(text) if self.screen is None else self.pictured(text)
        if self.screen is not None:
            lines += self.screen.end()
        elif visible(self.line):
            lines += self.line + b"\n"
        self.line, self.screen, self.rest_due = b"", None, None
        if lines:
            self.lane.lines(lines)
        self.lane.close()
