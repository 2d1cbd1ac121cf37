"""Going on with the survivors when ranks of a strategy die (`pydist.run --on-failure=keep`).

What the ranks of a training do together is a sequence of events, the same on all of them: a step, a comparison of what
their data sets have, an agreement on whether to stop. A rank can be at most one event ahead of another one, since an event
ends on a rank when all have come to it. After a death a rank that is behind takes the state and the result of one that is
ahead; otherwise all repeat the event without the dead rank.
"""

import os

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distributed import member
from pydist.distributed.recovery.shrink import shrink_group

__all__ = ["Survival", "event", "survives"]


def survives():
    """Whether the launcher lets the survivors of a death go on."""
    return os.environ.get("PYDIST_ON_FAILURE") == "keep"


class Survival:
    """The events of one strategy. A member of its group (distributed.member); `steps` counts them."""

    def __init__(self, strategy):
        self.steps, self._result, self._strategy = 0, None, strategy
        self.has_lost = False  # from then on ranks may have divided a batch differently, and count its rows together
        member.register(self, strategy._group)

    def event(self, act, is_done=None):
        """What act() returns, on all ranks that are left. If act has raised PeerFailed, is_done() says whether this rank
        has come to the end of it nevertheless. act leaves everything as before where it raises."""
        before = self.steps
        while self.steps == before:
            numbers = _C._rng_key()
            try:
                result = act()
            except _C.PeerFailed:
                if is_done is not None and is_done():
                    self.steps, self._result = self.steps + 1, None
                else:
                    _C.set_rng_state(numbers)
                self._recover()
            else:
                self.steps, self._result = self.steps + 1, result
        return self._result

    def _recover(self):
        group = self._strategy._group
        while True:
            try:
                before, group = group, shrink_group()
                member.rejoin(before, group)
            except _C.PeerFailed:  # another rank died meanwhile
                continue
            return

    # A member of its group.

    def settle(self, on):
        """Does nothing: what an event has started has ended when it returns."""

    def rejoin(self, group):
        """Takes the new group, in which all have the newest state. Whatever is not part of an event, such as the metrics
        of a step that only some ranks have ended, is that of the first rank."""
        self.has_lost = True
        self._strategy._join(group)
        self._strategy._synchronize(again=True)

    def state_dict(self):
        """The newest state, for ranks that are behind."""
        values = [
            value if value is None else value.detach().clone() for value in self._strategy._variables_made.state()
        ]
        return {"steps": self.steps, "result": self._result, "values": values, "random": _C._rng_key()[:2]}

    @no_grad()
    def load_state_dict(self, state):
        """Takes the state of a rank that is ahead. This rank keeps its own stream of random numbers."""
        self.steps, self._result = state["steps"], state["result"]
        for value, newest in zip(self._strategy._variables_made.state(), state["values"]):
            if value is not None and newest is not None:
                value.data.copy_(newest)
        _C.set_rng_state((*state["random"], _C._rng_key()[2]))


def event(strategy, act, is_done=None):
    """act(), repeated by the survivors of a death where there may be any."""
    return act() if strategy._survival is None else strategy._survival.event(act, is_done)
