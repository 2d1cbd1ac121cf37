"""Shows equal lines of several ranks once, as ``[0-3,5] text``, and keeps their unfinished lines, which are states.

The lines of each rank wait in its lane. If the first lines of all lanes are equal, they go out at once, as one line. A
line that has waited for HOLD seconds goes out together with the lines that are equal to it. So the order within a rank
never changes. A lane with LANE_MAX bytes, a death, a signal or the end of the job lets waiting lines go out. Equal text
is compared by blocks, not line by line, because a launcher moves millions of lines.

A state that has changed is written as a line from time to time. On a terminal it is a row below the lines instead.
"""

from collections import deque
from time import localtime, monotonic, strftime

from pydist._launch.traces import spans

HOLD = 0.15  # s that a line waits for equal ones
SLOT = 0.01  # s: lines that come within it count as simultaneous
LANE_MAX = 1 << 18  # most bytes that wait for equal ones
ALIGN_MAX = 1 << 17  # more waiting bytes than this are not compared line by line
RELAY = 0.1  # s between two states that are sent to the launcher which started this one
DRAW = 0.05  # s between two drawings of the states on a terminal
STATUS_ROWS = 3
PALETTE = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)  # colours of a terminal, by rank
NEVER = float("inf")


class Prefix:
    """`template`: such as '[{rank}] ', with {host} {local_rank} {role} {time}. `places`: (host's name, local rank) by
    rank."""

    def __init__(self, template="[{rank}] ", role="", places=(), colours=False):
        self.template, self.role, self.places, self.colours = template, role, places, colours
        self.timed = "{time" in template
        self.known = {}

    def __call__(self, ranks, is_error):
        """The text before the lines of these ranks (a tuple, ascending)."""
        key = ranks, is_error
        text = self.known.get(key)
        if text is None:
            text = self.make(ranks, is_error)
            if not self.timed and len(self.known) < 10000:
                self.known[key] = text
        return text

    def columns(self, world):
        """Its width for a line that all ranks share."""
        return len(
            self.template.format(rank=spans(range(world)), host="", role=self.role, local_rank="0", time="00:00:00")
        )

    def make(self, ranks, is_error):
        places = [self.places[rank] if rank < len(self.places) else ("", rank) for rank in ranks]
        text = self.template.format(
            rank=spans(ranks), host=",".join(dict.fromkeys(host for host, _ in places)), role=self.role,
            local_rank=spans(sorted({local for _, local in places})), time=strftime("%H:%M:%S", localtime()),
        )  # fmt: skip
        if self.colours:
            text = f"\x1b[{'2;' * is_error}{PALETTE[ranks[0] % len(PALETTE)]}m{text}\x1b[0m"
        return text.encode("utf-8", "surrogateescape")


class Lane:
    """The waiting lines of one rank, and its state."""

    def __init__(self, fold, rank):
        self.fold, self.rank = fold, rank
        self.text = bytearray()  # whole lines
        self.marks = deque()  # [arrival time, number of bytes], in order
        self.is_open = True
        self.is_paused = False
        self.came = 0.0  # when the last lines came
        self.state = self.written = ()  # rows

    def lines(self, data):
        """Adds whole lines."""
        self.fold.push(self, data)

    def show(self, rows):
        rows = tuple(rows)
        if rows != self.state:
            self.state = rows
            self.fold.changed(self)

    def raw(self, data):
        """Passes on bytes that belong to no rank."""
        self.fold.flush()
        self.fold.sink.lines(data)

    def close(self):
        self.is_open = False
        self.show(())
        self.fold.is_new = True

    def head(self):
        return self.text[: self.text.index(b"\n") + 1]

    def stale(self, now):
        """How many bytes go out when some have to. Lines that have waited for HOLD / 2 go, too, so there are fewer such
        moments."""
        return sum(size for when, size in self.marks if when + HOLD / 2 <= now)

    def drop(self, count):
        del self.text[:count]
        self.is_paused = self.is_paused and len(self.text) > LANE_MAX
        while count:
            mark = self.marks[0]
            if mark[1] > count:
                mark[1] -= count
                return
            count -= mark[1]
            self.marks.popleft()


class Fold:
    """The lanes of all ranks' stdout, or stderr, on their way to `sink`. `every`: s between two lines of a state, 0:
    none. `is_on`: whether lines wait for equal ones. `relays`: the sink is the launcher that started this one. It gets
    states, too, as lines of NUL, the prefix, and the rows with NUL between them."""

    def __init__(self, sink, prefix, is_error=False, is_on=True, every=30.0, relays=False):
        self.sink, self.prefix, self.is_error, self.is_on = sink, prefix, is_error, is_on
        self.every, self.relays = every, relays
        self.lanes = []
        self.is_new = False  # a lane has closed, or has a first line that was not compared yet
        self.due = NEVER  # when the oldest line will have waited long enough
        self.state_due = NEVER  # when states are written as lines
        sink.folds.append(self)

    def lane(self, rank):
        self.lanes.append(Lane(self, rank))
        return self.lanes[-1]

    def push(self, lane, data):
        if not self.is_on:
            self.emit((lane.rank,), data)
            return
        now = lane.came = monotonic()
        if not lane.text:
            self.is_new = True
            self.due = min(self.due, now + HOLD)
        lane.text += data
        if lane.marks and now < lane.marks[-1][0] + SLOT:
            lane.marks[-1][1] += len(data)
        else:
            lane.marks.append([now, len(data)])
        if len(lane.text) > LANE_MAX:
            self.run(now)
            if len(lane.text) > LANE_MAX:
                # other ranks may come to the same line: read no more of this rank until then, or until its time is over
                lane.is_paused = len(lane.text) < 2 * LANE_MAX and any(
                    one.is_open and not one.text and one.came + HOLD > now for one in self.lanes
                )
                if not lane.is_paused:
                    self.flush()

    def changed(self, lane):
        """Called when the state of a lane has changed."""
        if self.relays:
            self.state_due = min(self.state_due, monotonic() + RELAY)
        elif self.sink.terminal:
            self.sink.redraw()
        elif self.every and self.state_due == NEVER and lane.state:
            self.state_due = monotonic() + self.every

    def states(self):
        """(rank, row) for each row of each lane."""
        return [(lane.rank, row) for lane in self.lanes for row in lane.state]

    def next(self):
        """When run() has something to do; NEVER: nothing waits."""
        return 0.0 if self.is_new else min(self.due, self.state_due)

    def run(self, now):
        """Lets lines go out that are equal in all lanes, or that have waited long enough."""
        if now >= self.state_due:
            self.write_states()
        if now >= self.due:
            self.release([lane.stale(now) for lane in self.lanes])
            self.is_new = True
        if self.is_new:
            while self.agree():
                pass
            self.is_new = False
            self.due = min((lane.marks[0][0] + HOLD for lane in self.lanes if lane.text), default=NEVER)

    def agree(self, at_most=None):
        """Lets the common beginning of all lanes go out; with at_most, that of the lanes that have lines."""
        lanes = [lane for lane in self.lanes if lane.text or lane.is_open and at_most is None]
        if not lanes or not all(lane.text for lane in lanes):
            return False
        head = lanes[0].head()
        if not all(lane.text.startswith(head) for lane in lanes):
            return False
        size = common(lanes, at_most)
        self.go(lanes, size)
        return size

    def release(self, sizes):
        """Lets the first `sizes` bytes of the lanes go out. Equal lines go as one if their order in the lanes allows
        it."""
        while any(sizes) and (gone := self.agree(max(sizes))):
            sizes = [max(0, size - gone) for size in sizes]
        if sum(len(lane.text) for lane in self.lanes) <= ALIGN_MAX:
            self.align(sizes)
        else:
            self.release_blocks(sizes)

    def release_blocks(self, sizes):
        """For a flood of lines: compares only the beginnings of lanes, not line by line."""
        heads = {}
        for lane, size in zip(self.lanes, sizes):
            if size:
                heads.setdefault(bytes(lane.head()), []).append((lane, size))
        for group in heads.values():
            same = common([lane for lane, _ in group], max(size for _, size in group))
            self.go([lane for lane, _ in group], same)
            for lane, size in group:
                if size > same:
                    self.go([lane], size - same)

    def align(self, sizes):
        """Writes as few lines as possible. Lines after the first `sizes` bytes of a lane also go, up to a line for
        which another lane waits."""
        parts = [_Part(lane, size) for lane, size in zip(self.lanes, sizes) if lane.text] if any(sizes) else []
        seen, shared = set(), set()  # shared: lines that several parts have
        for part in parts:
            own = set(part.lines)
            shared |= seen & own
            seen |= own
        out = in_step(parts, shared)
        while late := [part for part in parts if part.at < part.must]:
            for part in late:
                if lines := part.until(shared):
                    out.append((part.ranks, lines))
            heads = {}
            for part in parts:
                if part.at < len(part.lines):
                    heads.setdefault(part.lines[part.at], []).append(part)
            waiting = [head for head in heads if any(part.at < part.must for part in heads[head])]
            if not waiting:
                break
            head = next((head for head in waiting if not coming(head, heads[head], parts)), None)
            if head is None:  # some parts go on to this line, unless they wait themselves
                head = max(waiting, key=lambda head: len(heads[head]))
                behind = [part for part in coming(head, heads[head], parts) if part.at >= part.must]
                for part in behind:
                    part.must = part.lines.index(head, part.at) + 1
                if behind:
                    continue
            out.append((ranks_of(part.lane for part in heads[head]), [head]))
            for part in heads[head]:
                part.at += 1
        breaks = {ranks: b"\n" + self.prefix(ranks, self.is_error) for ranks in {ranks for ranks, _ in out}}
        if text := b"".join([breaks[ranks] + breaks[ranks].join(lines) for ranks, lines in out]):
            self.sink.lines(text[1:] + b"\n")
        for part in parts:
            part.lane.drop(sum(map(len, part.lines[: part.at])) + part.at)

    def go(self, lanes, size):
        """Writes the first bytes of these lanes, which are equal, as one."""
        text = bytes(lanes[0].text[:size])
        for lane in lanes:
            lane.drop(size)
        self.emit(ranks_of(lanes), text)

    def emit(self, ranks, text):
        prefix = self.prefix(ranks, self.is_error)
        self.sink.lines(prefix + text[:-1].replace(b"\n", b"\n" + prefix) + b"\n")

    def write_states(self):
        self.state_due = NEVER
        for lane in self.lanes:
            if lane.state == lane.written:
                continue
            if self.relays:
                lane.written = lane.state
                rows = b"\0".join(row.replace(b"\0", b"") for row in lane.state)
                self.sink.lines(b"\0" + self.prefix((lane.rank,), self.is_error) + rows + b"\n")
            elif lane.state:
                lane.written = lane.state
                self.push(lane, b"\n".join(lane.state) + b"\n")

    def flush(self):
        """Lets everything go out that waits."""
        self.release([len(lane.text) for lane in self.lanes])
        self.is_new = True


def in_step(parts, shared):
    """The beginning of parts whose shared lines are in the same order, for as far as they are: [ranks, lines] in order.
    align() would give the same result, but would look at all parts for each line."""
    places = [part.places(shared) for part in parts]
    musts = [sum(i < part.must for i in at) for part, at in zip(parts, places)]
    count = min(max(musts, default=0), min(map(len, places), default=0))
    heads = [[part.lines[i] for i in at[:count]] for part, at in zip(parts, places)]
    if any(head != heads[0] for head in heads[1:]):
        count = next(i for i, lines in enumerate(zip(*heads)) if len(set(lines)) > 1)
    out, together = [], ranks_of(part.lane for part in parts)
    for i in range(count):
        for part, at in zip(parts, places):
            if part.at < at[i]:
                out.append((part.ranks, part.lines[part.at : at[i]]))
            part.at = at[i] + 1
        out.append((together, [heads[0][i]]))
    return out


class _Part:
    """The lines of a lane. The first `must` of them have to go out, and `at` of them have gone."""

    def __init__(self, lane, size):
        self.lane = lane
        self.lines = bytes(lane.text).split(b"\n")[:-1]
        self.at, self.must = 0, lane.text.count(b"\n", 0, size)
        self.ranks = (lane.rank,)
        self.last = None  # the last position of each line

    def places(self, shared):
        """The positions of these lines."""
        return [i for i, line in enumerate(self.lines) if line in shared]

    def until(self, shared):
        """Takes the lines that have to go out, up to one of these lines."""
        end = self.must
        if shared:
            end = next((i for i in range(self.at, end) if self.lines[i] in shared), end)
        lines, self.at = self.lines[self.at : end], end
        return lines

    def comes_to(self, line):
        if self.last is None:
            self.last = {line: number for number, line in enumerate(self.lines)}
        return self.last.get(line, -1) >= self.at


def coming(head, group, parts):
    """The parts in which this line comes later."""
    return [part for part in parts if part not in group and part.comes_to(head)]


def ranks_of(lanes):
    return tuple(sorted(lane.rank for lane in lanes))


def common(lanes, at_most=None):
    """How many bytes at the beginning of these lanes are equal whole lines: at most this many, or one line. The first
    lines are equal."""
    first = lanes[0].text
    size = len(first)
    for lane in lanes[1:]:
        size = min(size, len(lane.text))
        if first[:size] == lane.text[:size]:
            continue
        low, high = 0, size  # the lanes are equal up to low and not up to high
        while high - low > 1:
            middle = (low + high) // 2
            if first[low:middle] == lane.text[low:middle]:
                low = middle
            else:
                high = middle
        size = first.rindex(b"\n", 0, low) + 1
    if at_most is None or size <= at_most:
        return size
    return first.rfind(b"\n", 0, at_most) + 1 or len(lanes[0].head())
