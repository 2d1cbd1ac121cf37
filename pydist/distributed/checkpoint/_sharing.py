"""Tensors that all ranks want as a whole: one rank reads each of them and sends it to the others."""

import zlib

from pydist import _C
from pydist.distributed._group.process_group import current, get_rank, get_world_size
from pydist.distributed._ops.collectives import broadcast
from pydist.distributed._ops.objects import all_gather_object
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.default_planner import DefaultLoadPlanner
from pydist.distributed.checkpoint.layout import SHARED_FROM
from pydist.distributed.checkpoint.planner import LoadPlan


def are_to_share(share, planner, group):
    """Whether this group's ranks share what they read. A planner of the program's may do other things with each tensor, so
    then they don't."""
    if share == "auto":
        share = current(group).transport in ("tcp", "mpi")  # between hosts
    return bool(share) and get_world_size(group) > 1 and type(planner) is DefaultLoadPlanner


class Sharing:
    """One load of a group: `mine`, then reading that, then `finish`."""

    def __init__(self, group):
        self.group, self.rank, self.ranks = group, get_rank(group), get_world_size(group)
        self._tensors, self._rest, self._print = {}, LoadPlan([]), 0

    def mine(self, plan, planner):
        """The part of the plan that this rank reads. Large tensors go to the rank with the fewest bytes of them so far."""
        loads, text = [0] * self.ranks, []
        for name in sorted({item.dest_index.fqn for item in plan.items}):
            value = planner.state_dict[name]
            if isinstance(value, _C.Tensor) and value.is_contiguous():
                nbytes = value.numel() * value.element_size()
                if nbytes >= SHARED_FROM:
                    owner = loads.index(min(loads))
                    loads[owner] += nbytes
                    self._tensors[name] = value.detach(), owner
                    text.append(f"{name} {value.dtype} {tuple(value.shape)} {value.device.type}")
        self._print = zlib.crc32("\n".join(text).encode("utf-8", "surrogatepass"))
        mine, rest = [], []
        for item in plan.items:
            _, owner = self._tensors.get(item.dest_index.fqn, (None, self.rank))
            (mine if owner == self.rank else rest).append(item)
        self._rest = LoadPlan(rest)
        return LoadPlan(mine)

    def finish(self, error, reader, planner):
        """When this rank has read its part, or has failed with `error`: if all ranks have read theirs, all get the
        others', else all raise. Ranks that want different tensors read them themselves."""
        found = [None] * self.ranks
        all_gather_object(found, (self._print, error and str(error)), self.group)
        failures = {rank: text for rank, (_, text) in enumerate(found) if text is not None}
        if failures:
            text = "; ".join(f"rank {rank}: {why}" for rank, why in failures.items())
            raise CheckpointException(f"load: {text}", failures) from error
        if len({number for number, _ in found}) > 1:
            reader.read_data(self._rest, planner)
            return
        for tensor, owner in self._tensors.values():
            broadcast(tensor, group_src=owner, group=self.group)
