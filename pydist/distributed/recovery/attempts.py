"""Steps of logical shards that happen on all live ranks or on none (Transaction.over).

Before an optimizer changes a parameter, each rank waits at a gate until all ranks have the step's gradient. If a rank
dies, the survivors decide by csrc/comm/algo/commit.h whether the step happens. Either way nobody needs another one's
state, and the shards of the dead rank belong to the survivors from the next attempt on.
"""

import statistics

import pydist
from pydist import _C
from pydist._notes import note
from pydist.distributed import member
from pydist.distributed._group import process_group
from pydist.distributed._group.logical import current
from pydist.distributed.recovery.shrink import shrink_group
from pydist.distributed.steps import Shards, Step

EVERY = 16  # steps between two looks at the ranks' speeds
WORTH = 0.95  # new shares are taken if the slowest rank then needs less than this part of its time


class _Again(Exception):
    """The step under way did not happen: its attempt ends here, and another one follows."""


class Attempt(Step):
    """One try of a step: `with attempt:` around its work. `made`: whether the step has happened, known after it."""

    transaction = None
    made = False
    _at_gate = False  # this rank has all of the step that depends on others
    _through = False  # this rank has passed the gate

    def __enter__(self):
        if self.transaction._running is not None:
            raise RuntimeError("Transaction: an attempt inside another attempt (expected one at a time)")
        self._entered = True
        self.transaction._begin_attempt(self)
        return self

    def __exit__(self, kind, error, trace):
        if error is not None and self._shard is not None:
            note(error, f"in logical shard {self._shard} of step {self.number}")
        try:
            if kind is None:
                self.pass_gate()
        except _Again:
            kind = _Again
        finally:
            self.transaction._end_attempt()
        if kind is None:
            self._has_happened()
            return False
        if issubclass(kind, _Again):
            return True
        if not issubclass(kind, _C.PeerFailed):
            return False
        if self._through:  # a collective behind the step: the others make it, too
            self._has_happened()
        recover(self.transaction, self)
        return True

    def _has_happened(self):
        if not self.made:
            self.made = True
            self.transaction.steps += 1

    def pass_gate(self):
        """Waits until all ranks have the gradient of this step. Raises _Again if the step does not happen."""
        if self._through:
            return
        if not self.has_gradient:
            raise RuntimeError(
                f"Transaction: step {self.number} changes parameters before all its shards were run (expected `for shard in "
                "attempt:` to its end before optimizer.step())"
            )
        self._at_gate = True
        try:
            if process_group.current().size > 1:
                process_group.current().barrier()
        except _C.PeerFailed:
            if not recover(self.transaction, self):
                raise _Again from None
        self._through = True


def recover(transaction, attempt=None):
    """Goes on with the survivors. Returns whether the step of the attempt happens. If not, the attempt is undone. Without
    an attempt this rank is between two steps."""
    decided = attempt is None or attempt.made
    group = process_group.current()
    while True:
        try:
            before, group = group, shrink_group()
            at_gate = attempt is not None and attempt._at_gate and not attempt.made
            rows = pydist.zeros(group.size, 2, dtype=pydist.int64, device="cpu")
            mine = pydist.tensor([transaction.steps, int(at_gate)], dtype=pydist.int64, device="cpu")
            group.all_gather(rows, mine)
            made, have = zip(*rows.tolist(), strict=True)
            if not decided:
                decided = True
                if _C.commit_decide(list(made), [bool(h) for h in have], group.rank):
                    attempt._has_happened()
                else:
                    attempt._at_gate = False
                    transaction._undo()
            current().shares = None
            member.rejoin(before, group)
            return attempt is not None and attempt.made
        except _C.PeerFailed:  # another rank died meanwhile
            continue


def _shares(shards, ranks, times, least):
    """Shares by the times for a shard, of at least `least` (0 or 1) shards."""
    while min(shares := _C.share_shards(shards, ranks, times)) < least:
        times = [t if q else max(1, t // 2) for q, t in zip(shares, times)]
    return shares


def deal_by_speed(logical, models=(), least=0):
    """Gives the ranks shares by the times that they have taken for a shard. Every rank calls it. Returns whether the shares
    have changed."""
    group = process_group.current()
    mine = int(statistics.median(logical.times)) if logical.times else 0
    times = pydist.zeros(group.size, dtype=pydist.int64, device="cpu")
    group.all_gather(times, pydist.tensor([mine], dtype=pydist.int64, device="cpu"))
    times = times.tolist()
    known = [t for t in times if t]
    if not known:
        return False
    times = [t or max(known) for t in times]  # a rank without shards shows no speed: let it try
    scaled = [max(1, min(1023, round(t * 100 / min(times)))) for t in times]
    shares = _shares(logical.shards, group.size, scaled, least)
    before = [len(logical.blocks().of_rank(rank)) for rank in range(group.size)]
    if max(q * t for q, t in zip(shares, scaled)) >= WORTH * max(q * t for q, t in zip(before, scaled)):
        return False
    logical.shares = tuple(shares)
    logical.times.clear()
    for model in models:
        model.rejoin(group)
    return True


def attempts(transaction, loader, accumulate, count, overlap, balance):
    """The attempts of one epoch, in order. A step that has not happened is tried again."""
    loop, logical = Shards(loader, accumulate, count, overlap), current()
    transaction._loop = loop
    loop._begin()
    try:
        loop._agree()
    except _C.PeerFailed:  # ranks that have passed it do not come again
        recover(transaction)
    while True:
        try:
            attempt = loop._next(Attempt)
        except _C.PeerFailed:
            recover(transaction)
            continue
        if attempt is None:
            return
        attempt.transaction, attempt._entered = transaction, False
        yield attempt
        if not attempt._entered:
            raise RuntimeError(
                "Transaction: an attempt without `with attempt:` (expected `with attempt:` around the loop's body)"
            )
        if not attempt.made:
            continue
        loop._made()
        if balance and logical.step % EVERY == 0:
            try:
                deal_by_speed(logical, attempt._models)
            except _C.PeerFailed:
                recover(transaction)
