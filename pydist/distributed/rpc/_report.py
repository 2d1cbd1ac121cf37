"""What an agent says about its calls where somebody asks why a job hangs: SIGUSR1, and `python -m pydist.doctor --attach`.

    rpc: learner (rank 1 of 3): 1 call under way, 1 runs, 0 wait for a thread; 4 threads, 3 idle; values owned 2, used 1
    rpc: call 1.17 to actor (rank 2): forward, 3.1 s; waits at train.py:31, in step
    rpc: runs call 0.9 of master (rank 0): step, 3.4 s; at train.py:31, in step; waits for call 1.17

A call's number is its caller's rank and a count, with an r for remote(). The text is made while the program hangs, so nothing here takes a lock.
pydist/_doctor/calls.py reads it.
"""

import sys
import threading
import time
from pathlib import Path

_HOW = (str(Path(__file__).resolve().parents[2]), threading.__file__)  # files that say how a thread waits, not where
_MOST = 40  # lines of each kind


def _place(thread, frames):
    """The innermost line of a thread in the program: "train.py:31, in step"."""
    frame = frames.get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(_HOW):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}, in {frame.f_code.co_name}" if frame else ""


def _shown(number):
    return f"{number >> 48}.{'r' * (number >> 47 & 1)}{number & (1 << 47) - 1}"


def lines(agent):
    """The lines, oldest calls first."""
    now, frames = time.monotonic(), sys._current_frames()
    answers = sorted(agent.answers.values(), key=lambda answer: answer.since)
    runs = sorted(agent.runs.items(), key=lambda item: item[1].since)
    waits = {answer.waiter: answer for answer in answers if answer.waiter is not None}
    counts = agent.references.stats()
    yield (
        f"{agent.me.name} (rank {agent.rank} of {len(agent.workers)}): {len(answers)} call{'s' * (len(answers) != 1)} "
        f"under way, {len(runs)} run{'s' * (len(runs) == 1)}, {len(agent.todo)} wait for a thread; {len(agent.threads)} "
        f"threads, {agent.idle} idle; values owned {counts['owner_rrefs']}, used {counts['user_rrefs']}"
    )
    for answer in answers[:_MOST]:
        to, place = agent.workers[answer.to], _place(answer.waiter, frames)
        waiting = "; waits" * (answer.waiter is not None) + (f" at {place}" if place else "")
        yield f"call {_shown(answer.number)} to {to.name} (rank {to.id}): {answer.what}, {now - answer.since:.1f} s{waiting}"
    for thread, run in runs[:_MOST]:
        sender, place, call = agent.workers[run.sender], _place(thread.ident, frames), waits.get(thread.ident)
        at = f"; at {place}" if place else ""
        waiting = f"; waits for call {_shown(call.number)}" if call else ""
        yield (
            f"runs call {_shown(run.number)} of {sender.name} (rank {sender.id}): {run.what}, {now - run.since:.1f} s{at}"
            f"{waiting}"
        )


def text(agent):
    """The same as one text."""
    return "".join(f"rpc: {line}\n" for line in lines(agent))
