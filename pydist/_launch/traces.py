"""Tracebacks as text: which exception was raised, and where."""

import os

MARK = b"Traceback (most recent call last):\n"
MARK_SYNTAX = b'  File "'  # the first line for a syntax error in the script itself
OWN = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
)  # frames of the package are not frames of the user's program


def exceptions(text):
    """The "Type: message" lines in a traceback, in order. The last one was raised."""
    found, inside = [], False
    for line in text.split("\n"):
        if line[:4] in ("  | ", "  + "):  # an exception group
            line = line[4:]
        if line.endswith(MARK[:-1].decode()) or line.startswith(MARK_SYNTAX.decode()):
            inside = True
        elif inside and line and not line[0].isspace():
            found.append(line.removeprefix("__main__."))  # Python 3.11 leaves these lines out itself
            inside = False
    return found


def is_peer_failed(text):
    """Whether the traceback ends with PeerFailed."""
    return any(line.partition(":")[0].rpartition(".")[2] == "PeerFailed" for line in exceptions(text))


def place(text):
    """Where a traceback ends, such as "train.py:31 in step": the last line outside pydist if there is one."""
    frames = [line.split('"', 2) for line in text.split("\n") if line.startswith('  File "') and line.count('"') > 1]
    frames = [frame for frame in frames if OWN not in frame[1] or OWN + "examples" in frame[1]] or frames
    if not frames:
        return None
    _, path, rest = frames[-1]
    line, _, function = rest.replace(", line ", "", 1).partition(", in ")
    return f"{os.path.basename(path)}:{line}" + (f" in {function}" if function else "")


def spans(ranks, comma=","):
    """Text for numbers: "0-2,5" for [0, 1, 2, 5]."""
    runs = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return comma.join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def listed(ranks):
    """Text for ranks: "ranks 0-2, 5" for [0, 1, 2, 5]."""
    return ("rank " if len(ranks) == 1 else "ranks ") + spans(ranks, ", ")
