"""The buffers of modules (batch norm's running means, say) while a rank runs the logical shards of a step."""

from pydist.autograd import no_grad

_MIB = 1 << 20


class StepBuffers:
    """Each shard begins with the buffers that the step began with, and the step leaves those of shard 0."""

    def __init__(self):
        self._before = self._after = ()

    def open(self, at, buffers):
        """This rank's shard number `at` begins."""
        if at:
            _put(buffers, self._before)
        else:
            self._before = _copies(buffers)

    def close(self, number, buffers):
        """The shard with this number has ended."""
        if number == 0:
            self._after = _copies(buffers)

    def end(self, is_owner, buffers):
        """The step has ended on this rank. `is_owner`: it ran shard 0."""
        if is_owner:
            _put(buffers, self._after)


def take_from(group, rank, tensors):
    """Takes the values of that rank of the group, in one message for all small tensors of a dtype. It writes to `.data`:
    graphs that have saved a buffer stay valid, because a later forward brings values that are there already."""
    if group.size == 1:
        return
    small = {}
    for tensor in tensors:
        if tensor.numel() * tensor.dtype.itemsize > _MIB:
            group.broadcast(tensor.data, rank)
        else:
            small.setdefault(tensor.dtype, []).append(tensor.data)
    for together in small.values():
        group.broadcast(together, rank)


def _copies(buffers):
    return [buffer.detach().clone() for buffer in buffers]


@no_grad()
def _put(buffers, values):
    for buffer, value in zip(buffers, values, strict=True):
        buffer.data.copy_(value)
