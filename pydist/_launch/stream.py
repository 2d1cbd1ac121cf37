"""What one pipe of one worker says, cut into lines with the rank before them.

``\\n`` ends a line, and so does ``\\r`` (a progress bar). On a terminal the unfinished or ``\\r``-ended text of the
lowest rank that has one is the sink's status line; elsewhere each ``\\r`` piece is written when its end has come. A
line over 1 MiB is cut into several. With one rank the bytes pass through as they are.

Tracebacks: what a worker writes to stderr from "Traceback (most recent call last):" on is held back for half a second.
If the worker goes on, it was no end and is shown; if it ends, the report decides.
"""

import os
from time import monotonic

from pydist._launch.traces import MARK, MARK_SYNTAX

HOLD = 0.5  # s that a traceback is held back
LINE_MAX = 1 << 20  # longer lines are cut
TRACE_MAX = 1 << 18  # longer tracebacks are not held back


class Stream:
    """Reads `fd` and gives lines to `sink`; `catches`: holds tracebacks back; `file`: gets the bytes as they are."""

    def __init__(self, rank, fd, sink, prefix, catches, file=None, whole=None):
        self.whole = bool(prefix) if whole is None else whole  # cut into lines
        self.file = file
        self.rank, self.fd, self.sink, self.prefix = rank, fd, sink, prefix
        self.catches = catches
        self.open = b""  # the text after the last line end
        self.fresh = True  # nothing came yet
        self.held = False  # `trace` waits for the worker's end, or for `due`
        self.trace = b""  # the last text of this stream, from its traceback on
        self.due = 0.0

    def read(self):
        """False at the end or when nothing is there yet; `fd` is None once it ended."""
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
        """What is there now, and no more than a pipe holds: a grandchild may keep writing."""
        for _ in range(16):
            if self.fd is None or not self.read():
                return

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def write(self, data):
        """A full disk ends the file, not the job."""
        try:
            while data:
                data = data[os.write(self.file, data):]
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
            self.trace = b""  # an earlier one was not the end
        self.emit(data)

    def emit(self, data):
        if not self.whole:
            keep = self.catches and data[data.rfind(b"\n") + 1:]
            if keep and MARK.startswith(keep):
                self.open, data = keep, data[:-len(keep)]
            self.sink.put(data)
            return
        cut = data.rfind(b"\n") + 1
        if not self.sink.terminal:  # a final \r may be half of \r\n
            cut = max(cut, data.rfind(b"\r", 0, -1) + 1)
        lines, self.open = data[:cut], data[cut:]
        if len(self.open) > LINE_MAX:
            lines, self.open = lines + self.open + b"\n", b""
        if self.sink.terminal and b"\r" in self.open:
            self.open = self.last_piece(self.open)
        if lines:
            self.sink.lines(self.prefixed(lines))
        if self.sink.terminal:
            self.sink.draw(self, self.prefix + self.open if self.open.strip() else b"")

    @staticmethod
    def last_piece(line):
        return next((piece for piece in reversed(line.split(b"\r")) if piece), b"")  # blanks erase

    def prefixed(self, lines):
        if b"\r" in lines:
            lines = lines.replace(b"\r\n", b"\n")
            if self.sink.terminal:
                lines = b"\n".join(map(self.last_piece, lines[:-1].split(b"\n"))) + b"\n"
            lines = lines[:-1].replace(b"\r", b"\r" + self.prefix) + lines[-1:]
        return self.prefix + lines[:-1].replace(b"\n", b"\n" + self.prefix) + lines[-1:]

    def release(self):
        """Shows the held text; it stays the trace until something follows."""
        if self.held:
            self.held = False
            text, self.open = self.open + self.trace, b""
            self.emit(text)

    def flush(self):
        """The worker has ended: an unfinished line is a line."""
        text, self.open = self.open, b""
        if not self.whole:
            self.sink.put(text)
        elif text.strip():
            self.emit(text + b"\n")
        elif self.sink.terminal:  # an erased bar
            self.sink.draw(self, b"")
