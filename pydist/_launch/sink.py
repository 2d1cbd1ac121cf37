"""Where the launcher writes: whole lines, and on a terminal some status rows below them. It never blocks."""

import os
import select
from time import monotonic

from pydist._launch.fold import DRAW, NEVER


class Sink:
    """The launcher's stdout or stderr. There is one object for both if they are the same terminal or file."""

    def __init__(self, fd):
        self.fd = fd
        self.terminal = os.isatty(fd) and os.environ.get("TERM", "dumb") != "dumb"
        self.queue = bytearray()
        self.closed = False
        self.folds = []  # the folds whose states are the status rows
        self.rows = []  # the status rows that are drawn
        self.drawn, self.draw_due = 0.0, NEVER  # when they were drawn, and when they will be
        self.ready = select.poll()
        self.ready.register(fd, select.POLLOUT)

    def columns(self):
        return os.get_terminal_size(self.fd).columns if self.terminal else 0

    def put(self, data):
        if not self.closed:
            self.queue += data

    def lines(self, data):
        """Writes whole lines, above the status rows if there are any."""
        self.put(self.erased() + data + b"\n".join(self.rows) if self.rows else data)

    def erased(self):
        """The bytes that erase the status rows."""
        return b"\r\x1b[K" + b"\x1b[A\x1b[K" * (len(self.rows) - 1) if self.rows else b""

    def redraw(self):
        """Called when a state has changed."""
        if self.draw_due == NEVER:
            self.draw_due = max(monotonic(), self.drawn + DRAW)

    def draw(self):
        from pydist._launch.status import status_rows

        self.drawn, self.draw_due = monotonic(), NEVER
        rows = status_rows(self.folds, self.columns())
        if rows != self.rows:
            self.put(self.erased() + b"\n".join(rows))
            self.rows = rows

    def flush(self):
        """Writes as much as the reader takes without blocking: POLLOUT promises room for PIPE_BUF bytes in a pipe."""
        try:
            while self.queue and self.ready.poll(0):
                del self.queue[: os.write(self.fd, self.queue[: select.PIPE_BUF])]
        except OSError:  # the reader is gone; the workers see that on their pipes, as they would on ours
            self.closed = True
            self.queue.clear()


class Nowhere:
    """A sink and a lane for output that is not shown."""

    terminal = closed = is_paused = False

    def put(self, data):
        pass

    def lines(self, data):
        pass

    def show(self, rows):
        pass

    def close(self):
        pass
