"""The tuning file that `python -m pydist.tune` writes and every init reads. It says which algorithm serves from how
many bytes on, for a world size, in shared memory or over messages. A group uses the file of its rank 0, so its ranks
always choose alike."""

import os
import struct
import warnings

from pydist import _C

FIELDS = ("mesh", "world", "gather", "direct", "piece", "block", "fast", "fast_from")  # csrc/comm/algo/tuning.h


def path():
    """The path of the tuning file: PYDIST_TUNE, by default in the user's cache folder; None if no file is to be
    used."""
    named = os.environ.get("PYDIST_TUNE", "")
    if named:
        return None if named == "none" else named
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "pydist", "tune.json")


def machine():
    """The machine that measurements are valid for, as "<processor>, <n> cores"."""
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"


def packed(rows):
    """Packs dictionaries with the keys FIELDS as the engine takes them. Raises ValueError, KeyError, TypeError or
    struct.error if they are wrong."""
    data = b"".join(struct.pack("=8i", *(row[field] for field in FIELDS)) for row in rows)
    _C.comm_init(0, 1, None, -1, tuning=data).destroy()  # the engine's own checks
    return data


def read(where):
    """Reads (the machine, the rows) from a file. Raises OSError or ValueError."""
    import json

    with open(where) as file:
        text = file.read()
    try:
        found = json.loads(text)
        rows = [{field: row[field] for field in FIELDS} for row in found["rows"]]
        packed(rows)
        return str(found["machine"]), rows
    except (KeyError, TypeError, struct.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def load(warns=True):
    """The rows for this machine, packed, or None. Warns about a file that is damaged or that another machine has
    written."""
    where = path()
    if where is None or not os.path.exists(where):
        return None
    try:
        measured_on, rows = read(where)
        reason = None if measured_on == machine() else f"it was measured on another machine ({measured_on})"
    except (OSError, ValueError) as error:
        reason = f"it is damaged ({error})"
    if reason is None:
        return packed(rows)
    if warns:
        warnings.warn(
            f"{where}: {reason}; pydist uses its built-in switch points (expected a file that `python -m pydist.tune` wrote here)",
            stacklevel=4,
        )
    return None
