"""How long a table takes, and who waits, if actions take given times. Whole numbers stay whole."""

from collections import defaultdict
from numbers import Real
from statistics import median

from pydist.distributed.pipelining._actions import BACKWARD, COMPUTE, K
from pydist.distributed.pipelining.tables import check, flat, walk

__all__ = ["Simulation", "simulate"]


class Simulation:
    """What `simulate` has found, or what a run has measured.

    time: from the first action's begin to the last one's end. spans: for each rank [(action, begin, end), ...]. busy, idle:
    for each rank the time in actions, and the rest of `time`. idle_share: idle / time. inner_idle: for each rank what it waits
    between its first and its last action. live, kept: for each stage the most microbatches between F and the backward (B or
    I), whose activations the stage holds, and between I and W, whose inputs of parameters it holds. live_on_rank: the most
    of a rank's stages together; kept_on_rank likewise.
    """

    def __init__(self, spans):
        self.spans = spans
        first = min((row[0][1] for row in spans if row), default=0)
        self.time = max((row[-1][2] for row in spans if row), default=0) - first
        self._first = first
        self.busy = [sum(end - begin for _, begin, end in row) for row in spans]
        self.idle = [self.time - busy for busy in self.busy]
        self.idle_share = [idle / self.time if self.time else 0.0 for idle in self.idle]
        self.inner_idle = [
            row[-1][2] - row[0][1] - busy if row else 0 for row, busy in zip(spans, self.busy, strict=True)
        ]
        self.live, self.live_on_rank = self._most((K.FORWARD,), BACKWARD)
        self.kept, self.kept_on_rank = self._most((K.BACKWARD_INPUT,), (K.BACKWARD_WEIGHT,))

    def _most(self, up, down):
        stages, ranks = defaultdict(int), []
        for row in self.spans:
            now, most = defaultdict(int), 0
            for action, _, _ in row:
                s, kind = action.stage_index, action.computation_type
                now[s] += (kind in up) - (kind in down)
                stages[s] = max(stages[s], now[s])
                most = max(most, sum(now.values()))
            ranks.append(most)
        return dict(sorted(stages.items())), ranks

    def costs(self):
        """What an action of each kind took, the median for each stage: {"F": {stage: time}, "I": ..., "W": ...}, for `simulate`.
        A B that was not split counts half as I and half as W.

        >>> from pydist.distributed.pipelining import simulate, tables
        >>> measured = simulate(tables.one_f_one_b(2, 4), F=[2, 3], I=2, W=2)  # or a schedule's timeline()
        >>> simulate(tables.gpipe(2, 4), **measured.costs()).time
        34.0
        """
        took = {kind: defaultdict(list) for kind in "FIW"}
        for row in self.spans:
            for action, begin, end in row:
                kinds = "IW" if action.computation_type is K.FULL_BACKWARD else action.computation_type.value
                for kind in kinds:
                    took[kind][action.stage_index].append((end - begin) / len(kinds))
        return {kind: {s: median(times) for s, times in sorted(found.items())} for kind, found in took.items()}

    def gantt(self, width=None):
        """A picture in text: a line for each rank, in which an action stands as long as it takes; a dot is idle time.
        width: characters for a unit of time; None: so many that the shortest action's text fits.

        >>> from pydist.distributed.pipelining import simulate, tables
        >>> print(simulate(tables.one_f_one_b(2, 2)).gantt())
        rank 0 |F0 F1 ......B0    ...B1    |
        rank 1 |...F0 B0    F1 B1    ......|
        """
        shown = [[(_label(action, self._looped), begin - self._first, end - self._first) for action, begin, end in row]
                 for row in self.spans]  # fmt: skip
        lengths = [(len(text) + 1) / (end - begin) for row in shown for text, begin, end in row if end > begin]
        scale = width or max(lengths, default=1)
        end = round(self.time * scale)
        return "\n".join(f"rank {rank} |{_line(row, scale, end)}|" for rank, row in enumerate(shown))

    @property
    def _looped(self):
        return len(self.live) > len(self.spans)

    def __repr__(self):
        share = ", ".join(f"{100 * s:.1f} %" for s in self.idle_share)
        return f"Simulation(time={self.time:g}, idle={share})"


def _label(action, looped):
    kind = action.computation_type.value
    return f"{action.stage_index if looped else ''}{kind}{action.microbatch_index}"


def _line(row, scale, end):
    text = ""
    for label, begin, until in row:
        text = text.ljust(round(begin * scale), ".")
        room = round(until * scale) - len(text)
        text += label[:room].ljust(room) if room > 0 else ""
    return text.ljust(end, ".")


def _cost(name, given):
    """A function of the stage."""
    if callable(given):
        return given
    if isinstance(given, dict):
        return given.__getitem__
    if isinstance(given, (list, tuple)):
        return lambda stage: given[stage]
    if isinstance(given, Real) and not isinstance(given, bool) and given >= 0:
        return lambda stage: given
    raise ValueError(f"simulate: {name} is {given!r} (expected a time of 0 or more, or one for each stage)")


def simulate(table, F=1, I=1, W=1, send=0):
    """The times of a table's actions, if each begins when its rank has done the action before and what it needs has come.

    table: {rank: [action, ...]}, a list of lists of actions or their texts, or a schedule. F, I, W: what an action takes, as
    one number or one for each stage (a list, a dictionary or a function); a B takes I + W. send: from the end of an action
    until its result is on another rank; both ranks may compute meanwhile. Returns a `Simulation`. Raises ValueError where
    `tables.check` does.

    >>> from pydist.distributed.pipelining import simulate, tables
    >>> simulate(tables.gpipe(4, 8), F=1, I=1, W=1).time  # (m + p - 1) (F + I + W)
    33
    >>> simulate(tables.one_f_one_b(4, 8)).live
    {0: 4, 1: 3, 2: 2, 3: 1}
    """
    f, i, w = _cost("F", F), _cost("I", I), _cost("W", W)
    takes = {K.FORWARD: f, K.BACKWARD_INPUT: i, K.BACKWARD_WEIGHT: w, K.FULL_BACKWARD: lambda s: i(s) + w(s)}
    _cost("send", send)
    owner = check(table)
    rows = [[cell for cell in row if cell[1].computation_type in COMPUTE] for row in flat(table)]
    spans, over, now = [[] for _ in rows], {}, [0] * len(rows)

    def done(rank, action, key, wanted):
        begin = now[rank]
        for before in wanted:
            begin = max(begin, over[before] + (0 if owner[before[0]] == rank else send))
        over[key] = now[rank] = begin + takes[action.computation_type](action.stage_index)
        spans[rank].append((action, begin, now[rank]))

    walk(rows, owner, max(owner), done)
    return Simulation(spans)
