"""Which calls by rpc wait for which, out of what the ranks say about theirs (distributed/rpc/_report.py)."""

import re
from collections import namedtuple

Call = namedtuple("Call", "caller number to what seconds waits place")
Run = namedtuple("Run", "rank what place on")  # on: the number of the call that it waits for, or ""

_CALL = re.compile(r"rpc: call ([\w.]+) to .* \(rank (\d+)\): (.*), ([\d.]+) s(; waits)?(?: at (.*))?")
_RUN = re.compile(
    r"rpc: runs call ([\w.]+) of .* \(rank \d+\): (.*), [\d.]+ s(?:; at (.*?))?(?:; waits for call ([\w.]+))?"
)


def read(ranks):
    """({number: Call}, {number: Run}) of the ranks' answers."""
    calls, runs = {}, {}
    for rank in ranks:
        for line in rank.record.splitlines():
            if found := _CALL.fullmatch(line):
                number, to, what, seconds, waits, place = found.groups()
                calls[number] = Call(rank.number, number, int(to), what, float(seconds), bool(waits), place or "")
            elif found := _RUN.fullmatch(line):
                number, what, place, on = found.groups()
                runs[number] = Run(rank.number, what, place or "", on or "")
    return calls, runs


def _end(call, runs):
    """Where a call is that waits for no other one."""
    run = runs.get(call.number)
    if run is None:
        return "has not begun there" if call.to in {r.rank for r in runs.values()} else "does not run there"
    return f"runs there at {run.place}" if run.place else "runs there"


def story(ranks):
    """The oldest call for which a thread waits that runs none itself, and what it waits for: a sentence, or ""."""
    calls, runs = read(ranks)
    inner = {run.on for run in runs.values()}
    outer = [call for call in calls.values() if call.waits and call.number not in inner]
    if not outer:
        return ""
    call = max(outer, key=lambda call: call.seconds)
    at = f" at {call.place}" if call.place else ""
    told = f"rank {call.caller} has been waiting {call.seconds:g} s{at} for a call of {call.what} at rank {call.to}"
    while (run := runs.get(call.number)) and run.on in calls:
        call = calls[run.on]
        at = f" at {run.place}" if run.place else ""
        told += f", which waits{at} for a call of {call.what} at rank {call.to}"
    return f"{told}, which {_end(call, runs)}"
