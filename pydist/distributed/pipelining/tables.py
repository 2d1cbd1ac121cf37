"""Which rank does what in which order: the tables of the schedules, their check, and their text as CSV.

A table is a dictionary {rank: [action, ...]}. A cell may be None, which pictures idle time and means nothing. Stages lie
on the ranks in turn (rank r has r, r + p, ...), or in V form (rank r has r and 2 p - 1 - r).

All tables do the forwards of a stage in the order of the microbatches, and so the backwards. That is why gradients are
summed in one order whatever the schedule is. PyTorch's tables are the same but for these:

- GPipe, 1F1B: no idle cells, and microbatches that are fewer than stages.
- LoopedBFS: PyTorch's backwards go from the last microbatch to the first.
- Interleaved: PyTorch refuses microbatches that its rounds do not divide; here rounds differ by one.
- DualPipeV: PyTorch refuses fewer microbatches than stages.
"""

import csv
import os
from collections import defaultdict, deque

from pydist.distributed.pipelining._actions import BACKWARD, COMPUTE, K, OF_STAGE, _Action, parts_of

__all__ = [
    "check",
    "dualpipe_v",
    "dump_csv",
    "gpipe",
    "interleaved_1f1b",
    "interleaved_zero_bubble",
    "load_csv",
    "looped_bfs",
    "lower",
    "one_f_one_b",
    "zbv_zero_bubble",
]


# ---- the schedules


class _Row:
    """A rank's actions, numbered as they come."""

    def __init__(self):
        self.cells = []
        self._next = defaultdict(int)  # (stage, whether forward) -> the next microbatch
        self._late = deque()  # W that belong to an I

    def _number(self, stage, forward):
        self._next[stage, forward] += 1
        return self._next[stage, forward] - 1

    def done(self, stage, forward=True):
        """How many forwards, or backwards, of the stage there are."""
        return self._next[stage, forward]

    def f(self, stage):
        self.cells.append(_Action(stage, K.FORWARD, self._number(stage, True)))

    def b(self, stage):
        self.cells.append(_Action(stage, K.FULL_BACKWARD, self._number(stage, False)))

    def i(self, stage):
        self.cells.append(_Action(stage, K.BACKWARD_INPUT, self._number(stage, False)))
        self._late.append(self.cells[-1])

    def f_b(self, forward, backward):
        pair = (
            _Action(forward, K.FORWARD, self._number(forward, True)),
            _Action(backward, K.FULL_BACKWARD, self._number(backward, False)),
        )
        self.cells.append(_Action(-1, K.OVERLAP_F_B, None, pair))

    def w(self, stage=None):
        """The oldest W that is left, of a stage or of all; nothing if none is left."""
        for i in self._late:
            if stage in (None, i.stage_index):
                self._late.remove(i)
                self.cells.append(_Action(i.stage_index, K.BACKWARD_WEIGHT, i.microbatch_index))
                return True
        return False

    def first(self, m):
        """The cells without the microbatches from m on."""
        kept = []
        for cell in self.cells:
            parts = tuple(part for part in parts_of(cell) if part.microbatch_index < m)
            if parts:
                kept.append(cell if len(parts) == len(parts_of(cell)) else parts[0])
        return kept


def _checked_sizes(op, **sizes):
    for name, n in sizes.items():
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"{op}: {name} is {n!r} (expected a number of 1 or more)")


def _table(op, p, m, fill, v=1):
    _checked_sizes(op, ranks=p, stages_per_rank=v, microbatches=m)
    rows = [_Row() for _ in range(p)]
    for rank, row in enumerate(rows):
        fill(rank, row)
    return {rank: row.first(m) for rank, row in enumerate(rows)}


def gpipe(p, m):
    """All forwards, then all backwards, on p ranks with m microbatches.

    >>> from pydist.distributed.pipelining import tables
    >>> tables.gpipe(2, 2)[1]
    [1F0, 1F1, 1B0, 1B1]
    """
    return looped_bfs(p, 1, m)


def one_f_one_b(p, m):
    """Forward and backward in turn, once a rank has p - 1 - rank microbatches under way."""

    def fill(rank, row):
        _alternate(row, [rank] * m, [rank] * m, min(p - 1 - rank, m))

    return _table("one_f_one_b", p, m, fill)


def _alternate(row, forward, backward, warmup, late=None):
    """`warmup` forwards, then forward and backward in turn, then the backwards that are left. late: None for whole
    backwards, or how many W a rank puts off."""
    for stage in forward[:warmup]:
        row.f(stage)
    for n, stage in enumerate(backward):
        if warmup + n < len(forward):
            row.f(forward[warmup + n])
        if late is None:
            row.b(stage)
            continue
        row.i(stage)
        if n >= late:
            row.w()
    while row.w():
        pass


def looped_bfs(p, v, m):
    """All microbatches through a rank's first stage, then through its second one; backwards likewise."""

    def fill(rank, row):
        stages = range(rank, p * v, p)
        for stage in stages:
            for _ in range(m):
                row.f(stage)
        for stage in reversed(stages):
            for _ in range(m):
                row.b(stage)

    return _table("looped_bfs", p, m, fill, v)


def _interleaved(op, p, v, m, hop, split):
    """Rounds of some p microbatches go through all stages of a rank in turn. hop: forwards in the warm-up for each rank
    that follows."""
    _checked_sizes(op, ranks=p, stages_per_rank=v, microbatches=m)
    rounds = max(1, m // p)
    sizes = [m // rounds + (n < m % rounds) for n in range(rounds)]
    chunks = [chunk for size in sizes for chunk in range(v) for _ in range(size)]

    def fill(rank, row):
        forward = [chunk * p + rank for chunk in chunks]
        backward = [(v - 1 - chunk) * p + rank for chunk in chunks]
        warmup = min((v - 1) * sizes[0] + hop * (p - 1 - rank), m * v)
        _alternate(row, forward, backward, warmup, rank if split else None)

    return _table(op, p, m, fill, v)


def interleaved_1f1b(p, v, m):
    """1F1B over v stages on each rank, which shortens what ranks wait at both ends by v."""
    return _interleaved("interleaved_1f1b", p, v, m, 2, False)


def interleaved_zero_bubble(p, v, m):
    """Interleaved 1F1B whose backward is split: W fills the time in which a rank would wait (ZB1P)."""
    return _interleaved("interleaved_zero_bubble", p, v, m, 1, True)


def zbv_zero_bubble(p, m):
    """Two stages on each rank in V form. If F, I and W take equally long, no rank waits between its first and last action."""

    def fill(rank, row):
        low, high = rank, 2 * p - 1 - rank
        n = max(2 * p - 1, m)
        for _ in range(2 * (p - rank) - 1):
            row.f(low)
        for _ in range(rank):
            row.f(high), row.f(low)
        for _ in range(p - rank):
            row.f(high), row.i(high), row.w(high)
        while row.done(low) < n or row.done(high) < n:
            if row.done(low) < n:
                row.f(low)
            row.i(low), row.w(low), row.f(high), row.i(high), row.w(high)
        for _ in range(rank):
            row.i(low), row.i(high)
        for _ in range(p - rank):
            row.i(low), row.w(low)
        while row.w(high) or row.w(low):
            pass

    return _table("zbv_zero_bubble", p, m, fill)


def dualpipe_v(p, m):
    """Two stages on each rank in V form; in the middle a forward and a backward stand in one cell."""

    def fill(rank, row):
        low, high, n, rest = rank, 2 * p - 1 - rank, max(2 * p, m), p - 1 - rank
        for _ in range(2 * rest):
            row.f(low)
        for _ in range(rank + 1):
            row.f(low), row.f(high)
        for _ in range(rest):
            row.i(high), row.w(), row.f(high)
        for step in range(n - 2 * p + rank + 1):
            if step or rest:
                row.f_b(low, high)
            else:
                row.f(low), row.b(high)
            row.f_b(high, low)
        for _ in range(rest):
            row.b(high), row.f_b(high, low)
        order = [stage for _ in range(rank + 1) for stage in (high, low)]
        whole = 2 * ((rank + 1) // 2) + (1 - rank % 2)  # so many before backwards are split
        for k, stage in enumerate(order):
            row.b(stage) if k < whole else row.i(stage)
        for _ in range(rest):
            row.w()
            row.i(low)
        while row.w():
            pass

    return _table("dualpipe_v", p, m, fill)


# ---- a table as rows of parts


def flat(table):
    """[[(number of the cell, action), ...] by rank], without idle cells and with pairs taken apart. A table may also be a
    list of lists, of actions or their texts, or a schedule."""
    table = getattr(table, "pipeline_order", table)
    rows = [table[rank] for rank in range(len(table))] if _numbered(table) else list(table)
    return [list(_flat_row(rank, row)) for rank, row in enumerate(rows)]


def _numbered(table):
    if not isinstance(table, dict):
        return False
    missing = set(range(len(table))) - set(table)
    if missing:
        raise ValueError(f"pipelining: the table has rows for {sorted(table)} (expected one for each rank from 0 on)")
    return True


def _flat_row(rank, row):
    for n, cell in enumerate(row):
        try:
            cell = _Action.from_str(cell) if isinstance(cell, str) else cell
            if cell is not None and not isinstance(cell, _Action):
                raise TypeError(f"pipelining: the cell is {type(cell).__name__} (expected an action, its text or None)")
        except (ValueError, TypeError) as error:
            raise type(error)(f"{error}, at rank {rank}, cell {n}") from None
        if cell is not None:
            for part in parts_of(cell):
                yield n, part


def needs(action, owner, last, sends):
    """The keys (stage, kind, microbatch) of what must have been done before the action; I stands for B, too. sends: other
    ranks' work arrives by the table's own messages."""
    s, kind, mb = action[:3]
    if kind is K.FORWARD:
        if s == 0:
            return ()
        far = sends and owner.get(s - 1) != owner.get(s)
        return ((s, K.RECV_F, mb) if far else (s - 1, K.FORWARD, mb),)
    if kind in BACKWARD:
        if s == last:
            return ((s, K.FORWARD, mb),)
        far = sends and owner.get(s + 1) != owner.get(s)
        return ((s, K.FORWARD, mb), (s, K.RECV_B, mb) if far else (s + 1, K.BACKWARD_INPUT, mb))
    step, other = _BEFORE.get(kind, (0, None))
    return ((s + step, other, mb),) if other else ()


_BEFORE = {
    K.BACKWARD_WEIGHT: (0, K.BACKWARD_INPUT),
    K.SEND_F: (0, K.FORWARD),
    K.SEND_B: (0, K.BACKWARD_INPUT),
    K.RECV_F: (-1, K.SEND_F),
    K.RECV_B: (1, K.SEND_B),
}


def has_messages(rows):
    """Whether the table has its messages already."""
    return any(action.computation_type in (K.RECV_F, K.RECV_B) for row in rows for _, action in row)


def walk(rows, owner, last, done):
    """Calls done(rank, action, key, [keys that it needed]) for all actions, each after those that it needs. Returns {rank:
    the place of the first action that never could be done}."""
    sends = has_messages(rows)
    at, over, waiting = [0] * len(rows), set(), {}
    ready = deque(range(len(rows)))
    while ready:
        rank = ready.popleft()
        row = rows[rank]
        while at[rank] < len(row):
            action = row[at[rank]][1]
            wanted = needs(action, owner, last, sends)
            missing = [key for key in wanted if key not in over]
            if missing:
                waiting.setdefault(missing[0], []).append(rank)
                break
            key = action[:3]
            if key[1] is K.FULL_BACKWARD:
                key = key[0], K.BACKWARD_INPUT, key[2]
            done(rank, action, key, wanted)
            at[rank] += 1
            over.add(key)
            if key in waiting:
                ready.extend(waiting.pop(key))
    return {rank: at[rank] for rank, row in enumerate(rows) if at[rank] < len(row)}


# ---- the check


def _where(rank, cell, action):
    return f"rank {rank}, cell {cell} ({action})"


def owners(rows, op="pipelining"):
    """{stage: its rank}"""
    found = {}
    for rank, row in enumerate(rows):
        for cell, action in row:
            first = found.setdefault(action.stage_index, rank)
            if first != rank:
                raise ValueError(
                    f"{op}: {_where(rank, cell, action)}: stage {action.stage_index} is on rank {first}, too (expected "
                    "each stage on one rank)"
                )
    return found


def check(table, num_stages=None, microbatches=None, max_live=None, backward=False):
    """Checks the table. Returns {stage: rank}. num_stages, microbatches: None, or what there must be. max_live: None, or
    how many microbatches a rank may have between F and the backward, over its stages. backward: there must be backwards; a
    table with one must have all anyway.

    Raises ValueError that names the rank, the cell and the action: if an action is there twice, comes before what it
    needs, or is missing; if a receive has no send; if ranks wait for each other in a circle; if stages skip a number.
    """
    op = "pipelining.check"
    rows = flat(table)
    if not any(rows):
        raise ValueError(f"{op}: the table has no actions (expected at least one F)")
    owner = owners(rows, op)
    last = max(owner) if num_stages is None else num_stages - 1
    skipped = [stage for stage in range(last + 1) if stage not in owner]
    if skipped or max(owner) > last:
        raise ValueError(f"{op}: the table has stages {sorted(owner)} (expected 0 to {last})")
    if microbatches is None:
        microbatches = 1 + max((action.microbatch_index or 0) for row in rows for _, action in row)
    seen = _check_rows(op, rows, microbatches, max_live)
    _check_whole(op, seen, owner, last, microbatches, backward)
    stuck = walk(rows, owner, last, lambda *_: None)
    if stuck:
        raise ValueError(_circle(op, rows, owner, last, stuck))
    return owner


def _check_rows(op, rows, microbatches, max_live):
    """{(stage, kind, microbatch): where}"""
    seen = {}
    for rank, row in enumerate(rows):
        live = 0
        for cell, action in row:
            s, kind, mb = action.stage_index, action.computation_type, action.microbatch_index
            where = _where(rank, cell, action)
            if kind not in OF_STAGE and not 0 <= mb < microbatches:
                raise ValueError(f"{op}: {where}: the microbatch is {mb} (expected 0 to {microbatches - 1})")
            if kind not in OF_STAGE and (s, kind, mb) in seen:
                raise ValueError(f"{op}: {where} is also at {seen[s, kind, mb]} (expected once)")
            seen[s, kind, mb] = where
            _check_before(op, where, action, seen)
            live += (kind is K.FORWARD) - (kind in BACKWARD)
            if max_live is not None and live > max_live:
                raise ValueError(
                    f"{op}: {where}: {live} microbatches are live on this rank (expected at most {max_live})"
                )
    return seen


def _check_before(op, where, action, seen):
    s, kind, mb = action.stage_index, action.computation_type, action.microbatch_index
    if kind in BACKWARD:
        before = K.FORWARD
        twice = [k for k in BACKWARD if k is not kind and (s, k, mb) in seen]
        if twice:
            raise ValueError(f"{op}: {where}: there is also {seen[s, twice[0], mb]} (expected B, or I and W)")
    elif kind is K.BACKWARD_WEIGHT:
        before = K.BACKWARD_INPUT
    else:
        return
    if (s, before, mb) not in seen:
        raise ValueError(f"{op}: {where} comes before {_Action(s, before, mb)} (expected after it)")


_OTHER_END = {K.RECV_F: (-1, K.SEND_F), K.SEND_F: (1, K.RECV_F), K.RECV_B: (1, K.SEND_B), K.SEND_B: (-1, K.RECV_B)}


def _check_whole(op, seen, owner, last, microbatches, backward):
    """Whether each stage does everything for each microbatch, and each message has two ends."""
    backward = backward or any(kind in BACKWARD for _, kind, _ in seen)
    messages = any(kind in _OTHER_END for _, kind, _ in seen)
    for s in range(last + 1):
        for mb in range(microbatches):
            if (s, K.FORWARD, mb) not in seen:
                raise ValueError(f"{op}: rank {owner[s]} has no {_Action(s, K.FORWARD, mb)} (expected one)")
            if backward and not any((s, kind, mb) in seen for kind in BACKWARD):
                raise ValueError(
                    f"{op}: rank {owner[s]} has no backward of stage {s}, microbatch {mb} (expected {s}B{mb})"
                )
            if (s, K.BACKWARD_INPUT, mb) in seen and (s, K.BACKWARD_WEIGHT, mb) not in seen:
                raise ValueError(
                    f"{op}: {seen[s, K.BACKWARD_INPUT, mb]} has no {s}W{mb} (expected one on the same rank)"
                )
            far = messages and s < last and owner[s] != owner[s + 1]
            wanted = [_Action(s + 1, K.RECV_F, mb)] * far + [_Action(s, K.RECV_B, mb)] * (far and backward)
            for action in wanted:
                if (action.stage_index, action.computation_type, mb) not in seen:
                    raise ValueError(f"{op}: rank {owner[action.stage_index]} has no {action} (expected one)")
    for (s, kind, mb), where in seen.items():
        if kind in _OTHER_END:
            step, other = _OTHER_END[kind]
            if (s + step, other, mb) not in seen:
                raise ValueError(f"{op}: {where} has no {_Action(s + step, other, mb)} (expected one on another rank)")


def _circle(op, rows, owner, last, stuck):
    """Says for what each rank waits for ever."""
    done = set()
    walk(rows, owner, last, lambda rank, action, key, wanted: done.add(key))
    said = []
    for rank, at in stuck.items():
        cell, action = rows[rank][at]
        missing = [_Action(*key) for key in needs(action, owner, last, has_messages(rows)) if key not in done]
        said.append(f"{_where(rank, cell, action)} waits for {' and '.join(map(str, missing))}")
    return f"{op}: ranks wait for each other: {'; '.join(said)} (expected an order without a circle)"


# ---- lowering


def lower(table):
    """The table with its messages: each receive right before the action that needs it, each send right after the one that
    makes it, and REDUCE_GRAD after the last backward of a stage. The runtime posts receives ahead of where they stand.

    >>> from pydist.distributed.pipelining import tables
    >>> tables.lower(tables.gpipe(2, 1))[1]
    [1RECV_F0, 1F0, 1B0, 1SEND_B0, 1REDUCE_GRAD]
    """
    rows = flat(table)
    owner = owners(rows)
    last = max(owner)
    for rank, row in enumerate(rows):
        for cell, action in row:
            if action.computation_type not in COMPUTE:
                raise ValueError(
                    f"pipelining.lower: {_where(rank, cell, action)} is no F, B, I or W (expected only these)"
                )
    return {rank: _lower_row([action for _, action in row], owner, last) for rank, row in enumerate(rows)}


def _lower_row(row, owner, last):
    ends = {a.stage_index: n for n, a in enumerate(row) if a.computation_type in (K.FULL_BACKWARD, K.BACKWARD_WEIGHT)}
    lowered = []
    for n, action in enumerate(row):
        s, kind, mb = action.stage_index, action.computation_type, action.microbatch_index
        receive, send, step = (K.RECV_F, K.SEND_F, 1) if kind is K.FORWARD else (K.RECV_B, K.SEND_B, -1)
        crosses = kind is not K.BACKWARD_WEIGHT
        if crosses and 0 <= s - step <= last and owner[s - step] != owner[s]:
            lowered.append(_Action(s, receive, mb))
        lowered.append(action)
        if crosses and 0 <= s + step <= last and owner[s + step] != owner[s]:
            lowered.append(_Action(s, send, mb))
        if ends.get(s) == n:
            lowered.append(_Action(s, K.REDUCE_GRAD))
    return lowered


# ---- CSV


def load_csv(filename):
    """The table in a file with a line for each rank, as PyTorch writes it. An empty cell is idle."""
    table = {}
    with open(filename, newline="") as file:
        for rank, row in enumerate(csv.reader(file)):
            table[rank] = []
            for column, text in enumerate(row):
                try:
                    table[rank].append(_Action.from_str(text))
                except ValueError as error:
                    error.args = (f"{error}, at {os.fspath(filename)}, line {rank + 1}, column {column + 1}",)
                    raise
    if not table:
        raise ValueError(f"load_csv: {os.fspath(filename)} is empty (expected a line for each rank)")
    return table


def dump_csv(table, filename):
    """Writes the table as load_csv and PyTorch read it."""
    with open(filename, "w", newline="") as file:
        writer = csv.writer(file)
        for rank in range(len(table)):
            writer.writerow("" if cell is None else str(cell) for cell in table[rank])
