"""The buffers of modules (batch norm's running means, say) while a rank runs the logical shards of a step."""

from pydist.autograd import no_grad


class StepBuffers:
    """Each shard begins with the buffers that the step began with, and the step leaves those of shard 0.

    `now()` gives the buffers as they are; `take(rank)` gives them the values of that rank."""

    def __init__(self, now, take):
        self._now, self._take = now, take
        self._before = self._after = ()

    def open(self, at):
        """This rank's shard number `at` begins."""
        if at:
            self._put(self._before)
        else:
            self._before = self._copies()

    def close(self, number):
        """The shard with this number has ended."""
        if number == 0:
            self._after = self._copies()

    def end(self, owner, rank):
        """The step has ended on this rank. `owner`: the rank that ran shard 0."""
        if rank == owner:
            self._put(self._after)
        self._take(owner)

    def _copies(self):
        return [buffer.detach().clone() for buffer in self._now()]

    @no_grad()
    def _put(self, kept):
        for buffer, value in zip(self._now(), kept, strict=True):
            buffer.data.copy_(value)
