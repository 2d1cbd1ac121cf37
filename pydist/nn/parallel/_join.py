"""DistributedDataParallel under Join: active ranks announce what an iteration does, so that ranks without data can
follow.

Before each of its collectives an active rank sends (what, how) to all ranks. A rank without data sends NOTHING, sees
what the others do and does its part. So several forwards before a backward, no_sync and evaluation need no special
rules.
"""

import pydist
from pydist.distributed.algorithms.join import Join, JoinHook

NOTHING, FORWARD, MEAN, BACKWARD = range(4)
_NAMES = ("nothing", "a forward", "global_mean", "a backward")
BUFFERS, REDUCES = 1, 2  # bits of a forward's `how`


def _exchange(group, what, how):
    """(the active ranks, what they do, the `how` of all ranks)."""
    rows = pydist.empty(group.size, 2, dtype=pydist.float64, device="cpu")
    group.all_gather(rows, pydist.tensor([[float(what), float(how)]], dtype=pydist.float64, device="cpu"))
    rows = rows.tolist()
    active = [rank for rank, row in enumerate(rows) if row[0] != NOTHING]
    for rank in active:
        if rows[rank][0] != rows[active[0]][0]:
            does, other = (_NAMES[int(rows[r][0])] for r in (active[0], rank))
            raise RuntimeError(f"join: rank {active[0]} does {does}, rank {rank} does {other} (expected the same)")
    return active, int(rows[active[0]][0]) if active else NOTHING, [row[1] for row in rows]


class Follower(JoinHook):
    """Both sides of the announcements, for one DistributedDataParallel in one Join."""

    def __init__(self, ddp, by_all):
        self.ddp, self.by_all = ddp, by_all
        self.open = False  # inside an iteration whose beginning was announced to Join

    def announce(self, what, how):
        """Announces what an active rank does. Returns (the active ranks, the `how` of all ranks)."""
        if not self.open:
            Join.notify_join_context(self.ddp)
        active, _, hows = _exchange(self.ddp.process_group, what, how)
        self.open = what == MEAN or what == FORWARD and how & REDUCES != 0
        if what == BACKWARD:
            self._divide_by(active)
        return active, hows

    def divisor(self, active):
        """The number by which the gradients of the next backward are divided."""
        return self.ddp.process_group.size if self.by_all else len(active)

    def _divide_by(self, active):
        self.ddp.reducer.set_divisor(self.divisor(active))

    def main_hook(self):
        """Follows one iteration of the active ranks."""
        while True:
            active, what, hows = _exchange(self.ddp.process_group, NOTHING, 0)
            if what == FORWARD:
                if int(hows[active[0]]) & BUFFERS:
                    self.ddp._sync_buffers(active[0])
                if int(hows[active[0]]) & REDUCES:
                    continue
            elif what == BACKWARD:
                self._divide_by(active)
                self.ddp.reducer.shadow()
            elif what == MEAN:
                continue
            return

    def finish(self):
        """Called when this rank leaves: an iteration that it has begun may go on elsewhere."""
        if self.open:
            self.open = False
            self.main_hook()

    def post_hook(self, is_last_joiner):
        """Takes parameters and buffers from the lowest rank among the last ones."""
        ddp = self.ddp
        ddp.reducer.set_divisor(ddp.process_group.size)
        ddp._follower = None
        last, _, _ = _exchange(ddp.process_group, FORWARD if is_last_joiner else NOTHING, 0)
        if len(last) < ddp.process_group.size:
            ddp._take_from(last[0], [p for _, p in ddp._kept(ddp.module.named_parameters())])
            ddp._sync_buffers(last[0])
