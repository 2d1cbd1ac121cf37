"""Where the launcher writes: whole lines, and on a terminal one status line below them. Never blocks."""

import os
import select


class Sink:
    """The launcher's stdout or stderr (one object where both are the same terminal or file)."""

    def __init__(self, fd):
        self.fd = fd
        self.terminal = os.isatty(fd) and os.environ.get("TERM", "dumb") != "dumb"
        self.queue = bytearray()
        self.closed = False
        self.owner = None  # the stream whose status line is drawn
        self.status = b""
        self.ready = select.poll()
        self.ready.register(fd, select.POLLOUT)

    def columns(self):
        return os.get_terminal_size(self.fd).columns if self.terminal else 0

    def put(self, data):
        if not self.closed:
            self.queue += data

    def lines(self, data):
        """Whole lines: above the status line, if there is one."""
        self.put(b"\r\x1b[K" + data + self.status if self.owner else data)

    def draw(self, stream, text):
        """The status line of a stream; empty: none. The first one of the lowest rank stays."""
        if self.owner is not stream and (not text or self.owner and self.owner.rank <= stream.rank):
            return
        width = self.columns()
        if text and width:
            text = text.decode("utf-8", "replace")[:width - 1].encode()
        self.put((b"\r\x1b[K" if self.owner else b"") + text)
        self.owner, self.status = (stream, text) if text else (None, b"")

    def flush(self):
        """Writes what the reader takes without blocking: POLLOUT promises room for PIPE_BUF bytes in a pipe."""
        try:
            while self.queue and self.ready.poll(0):
                del self.queue[:os.write(self.fd, self.queue[:select.PIPE_BUF])]
        except OSError:  # the reader is gone; the workers feel it on their pipes as they would on ours
            self.closed = True
            self.queue.clear()


class Nowhere:
    """What is not shown."""

    terminal = closed = False

    def put(self, data):
        pass

    def lines(self, data):
        pass

    def draw(self, stream, text):
        pass
