"""The rows below the lines on a terminal: the unfinished lines of the ranks, mostly progress bars."""

import re
import unicodedata

from pydist._launch.fold import STATUS_ROWS
from pydist._launch.screen import COLOUR

_count = re.compile(rb"(\d+(?:\.\d+)?[kMGTP]?)/(\d+(?:\.\d+)?[kMGTP]?)")
_percent = re.compile(rb"(\d+(?:\.\d+)?)%")
_pieces = re.compile(COLOUR.decode() + r"|.", re.S)
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def status_rows(folds, columns):
    """At most STATUS_ROWS rows. Bars with the same name and total share a row; if that is too much, bars with the same
    total."""
    bars = [_Bar(rank, row, fold) for fold in folds for rank, row in fold.states()]
    groups = {}
    for key in (lambda bar: bar.key, lambda bar: bar.total):
        groups = {}
        for bar in bars:
            groups.setdefault(key(bar), []).append(bar)
        if len(groups) <= STATUS_ROWS:
            break
    rows = sorted(groups.values(), key=lambda group: min(bar.rank for bar in group))[:STATUS_ROWS]
    return [cut(_row(group), columns - 1) for group in rows]


class _Bar:
    def __init__(self, rank, text, fold):
        self.rank, self.text, self.fold = rank, text, fold
        count, percent = _count.search(text), _percent.search(text)
        self.total, self.key, self.progress, self.done = b"", text, text, None
        if count or percent:
            begin = min(match.start() for match in (count, percent) if match)
            self.total = count[2] if count else b"%"
            self.key = text[:begin].strip(), self.total
            self.progress = (percent or count)[0]
            self.done = float(percent[1]) if percent else 100 * _number(count[1]) / (_number(count[2]) or 1)


def _number(text):
    text = text.decode()
    return float(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else float(text)


def _row(group):
    """The bar of the lowest rank if all agree; otherwise it shows the range of their positions."""
    group = sorted(group, key=lambda bar: bar.rank)
    first = group[0]
    ranks = tuple(sorted({bar.rank for bar in group}))
    text = first.text
    if first.done is not None and any(bar.progress != first.progress for bar in group):
        slowest, fastest = min(group, key=lambda bar: bar.done), max(group, key=lambda bar: bar.done)
        name = first.key[0] + b" " if first.key[0] and all(bar.key == first.key for bar in group) else b""
        text = name + b"%d-%d%%, slowest rank %d" % (slowest.done, fastest.done, slowest.rank)
    return first.fold.prefix(ranks, first.fold.is_error) + text


def cut(row, width):
    """The row without control characters, cut to this width; negative: not cut."""
    shown, at = [], 0
    for piece in _pieces.findall(row.decode("utf-8", "replace")):
        if piece[0] == "\x1b" and len(piece) > 1:
            shown.append(piece)
        elif piece.isprintable():  # not a control character
            at += 0 if unicodedata.combining(piece) else 2 if unicodedata.east_asian_width(piece) in "WF" else 1
            if at > width >= 0:
                break
            shown.append(piece)
    text = "".join(shown)
    return (text + "\x1b[0m" * ("\x1b" in text)).encode()
