r"""The bottom of a program's output if it moves the cursor: the rows that a terminal would show.

A row holds the text after its last ``\r``: a progress bar is a state, not a line. A row becomes a line when a newline
has ended it and the cursor cannot come back to it. Programs with several bars move up with ``ESC [ A``, so the rows
that they moved up to are kept, at most 8, until the cursor has left them for good. ``ESC [ K`` and ``ESC [ J`` erase,
colours stay in the text, and all other escape sequences are dropped.
"""

import re

from pydist._launch.stream import LINE_MAX

ROWS = 8
TAIL_MAX = 64  # most bytes of an escape sequence that has not ended yet

COLOUR = rb"\x1b\[[0-9;:]*m"
_colours = re.compile(COLOUR)
_needed = re.compile(rb"\r|\x1b(?!\[[0-9;:]*m)")
_tokens = re.compile(
    rb"(?P<text>(?:[^\r\n\x1b]|" + COLOUR + rb")+)|(?P<end>[\r\n])"
    rb"|\x1b\[(?P<arguments>[0-?]*)[ -/]*(?P<move>[@-~])|\x1b[\]PX^_][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-Z\\^-~]?"
)
_unfinished = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\r\n]*\x1b?|[ -/]*)?")


def needed(data):
    """Whether these bytes are more than lines with colours."""
    return _needed.search(data) is not None


def visible(text):
    """The text without colours, and without blanks around it."""
    return _colours.sub(b"", text).strip()


class _Row:
    __slots__ = ("text", "piece", "at_start", "is_bar", "is_erased")

    def __init__(self, text=b""):
        self.text = self.piece = text  # the shown text; the text since the cursor was at the row's start
        self.at_start = self.is_bar = self.is_erased = False

    def write(self, text):
        goes_on = self.text is self.piece and not (self.at_start or self.is_erased)
        self.piece = text if self.at_start else self.piece + text
        self.at_start = False
        if goes_on or not self.text or visible(self.piece):
            self.text, self.is_erased = self.piece, False
        elif self.piece:
            self.is_erased = True  # blanks that overwrite a text

    def erase(self):
        self.text = self.piece = b""
        self.is_erased = True

    @property
    def shown(self):
        return b"" if self.is_erased else self.text


class Screen:
    """`text`: the unfinished line that the program has written so far."""

    def __init__(self, text=b""):
        self.rows, self.cursor = [_Row(text)], 0
        self.height = 1  # rows that the program may come back to
        self.live = False  # the program hides the cursor, so it will come back
        self.went_up = False
        self.tail = b""  # the beginning of an escape sequence
        self.lines = []

    def feed(self, data):
        """The lines that have ended, each with its newline."""
        data, self.tail = self.tail + data, b""
        at = data.rfind(b"\x1b", -TAIL_MAX)
        if at >= 0 and _unfinished.fullmatch(data, at):
            data, self.tail = data[:at], data[at:]
        for token in _tokens.finditer(data.replace(b"\r\n", b"\n")):
            kind = token.lastgroup
            if kind == "text":
                self._leave_above()
                row = self.rows[self.cursor]
                row.write(token[0])
                if len(row.piece) > LINE_MAX:
                    self._newline()
            elif kind == "end":
                if token[0] == b"\n":
                    self._leave_above()
                    self._newline()
                else:
                    self._row(self.cursor).is_bar = True
            elif kind == "move":
                self._move(token["move"], token["arguments"])
        return self._take()

    def settle(self):
        """Called when nothing came for a while after a newline: all rows above the cursor become lines."""
        self._end_rows(self.cursor)
        self.height = 1
        return self._take()

    def end(self):
        """Called at the end: all shown rows become lines."""
        if self.is_resting:
            self._end_rows(self.cursor)
        self.lines += self.state
        return self._take()

    @property
    def state(self):
        """The shown rows."""
        return [row.shown for row in self.rows if visible(row.shown)]

    @property
    def is_resting(self):
        """Whether a newline came last and rows above it are kept."""
        return len(self.rows) > 1 and self.cursor == len(self.rows) - 1 and not self.rows[-1].text

    @property
    def plain(self):
        """The unfinished line if there is nothing more; otherwise None."""
        row = self.rows[0]
        return None if len(self.rows) > 1 or row.is_bar or row.is_erased or self.live or self.tail else row.text

    def _take(self):
        lines, self.lines = self.lines, []
        return b"\n".join(lines) + b"\n" if lines else b""

    def _row(self, number):
        """Moves the cursor to the start of this row."""
        self.cursor = number
        row = self.rows[number]
        row.at_start = True
        return row

    def _newline(self):
        if self.cursor < len(self.rows) - 1:
            self._row(self.cursor + 1)
            return
        if any(row.is_bar for row in self.rows):
            self.height = max(self.height, 2)  # the next row may be a second bar
        elif not self.live:
            self.height = 1
        self.rows.append(_Row())
        self.cursor += 1
        self._end_rows(len(self.rows) - self.height)

    def _end_rows(self, count):
        if count > 0:
            self.lines += [row.shown for row in self.rows[:count]]
            del self.rows[:count]
            self.cursor -= count

    def _leave_above(self):
        """The program's rows begin where the cursor has moved up to."""
        if self.went_up:
            self.went_up = False
            self.height = len(self.rows) - self.cursor
            self._end_rows(self.cursor)

    def _move(self, what, arguments):
        row = self.rows[self.cursor]
        if what in b"AF":
            count = int(arguments) if arguments.isdigit() else 1
            for _ in range(min(count, ROWS)):
                if self.cursor:
                    self.cursor -= 1
                elif len(self.rows) < ROWS:
                    self.rows.insert(0, _Row())
            self._row(self.cursor).is_bar = True
            self.went_up = True
        elif what in b"KJ":
            if arguments in (b"2", b"3") or row.at_start and arguments in (b"", b"0"):
                row.erase()
            if what == b"J":
                for below in self.rows[self.cursor + 1 :]:
                    below.erase()
        elif what == b"l" and arguments == b"?25":
            self.live, self.height = True, ROWS
        elif what == b"h" and arguments == b"?25":
            self.live, self.height = False, 1
