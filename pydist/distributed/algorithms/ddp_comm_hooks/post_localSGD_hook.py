"""Post-local SGD (Lin et al., 2018): at first gradients are averaged over all ranks, later only over a subgroup. From
then on the models themselves are averaged from time to time (see model_averaging).

>>> from pydist import nn
>>> from pydist.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
>>> model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
>>> model.register_comm_hook(PostLocalSGDState(None, None, start_localSGD_iter=100), post_localSGD_hook)
"""

from pydist.distributed._group.groups import new_group
from pydist.distributed._group.process_group import current
from pydist.distributed._group.rendezvous import this_host
from pydist.distributed._ops.objects import all_gather_object
from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from pydist.futures import Future

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]


class PostLocalSGDState:
    """State of post_localSGD_hook. process_group: the ranks of the first phase (None: the default group). subgroup: the
    ranks whose gradients are averaged from step start_localSGD_iter on; None: the ranks of process_group on this host,
    found when that step comes. With post_local_gradient_allreduce=False the second phase does not average gradients at
    all."""

    def __init__(self, process_group, subgroup, start_localSGD_iter, post_local_gradient_allreduce=True):
        self.process_group, self.subgroup = process_group, subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0

    def maybe_increase_iter(self, bucket):
        """Counts a step when its last bucket comes."""
        if bucket.is_last():
            self.iter += 1


def _ranks_of_this_host(group):
    """A group of the ranks on this host. All ranks of `group` call this."""
    names = [None] * group.size
    all_gather_object(names, this_host(), group)
    ranks = [rank for rank, name in zip(group.ranks, names) if name == names[group.rank]]
    return new_group(ranks, use_local_synchronization=True)


def post_localSGD_hook(state, bucket):
    """The mean over all ranks in the first phase, afterwards over the subgroup or over no other rank."""
    first = state.iter < state.start_localSGD_iter
    state.maybe_increase_iter(bucket)
    if first:
        return allreduce_hook(state.process_group, bucket)
    if state.post_local_gradient_allreduce:
        if state.subgroup is None:
            state.subgroup = _ranks_of_this_host(current(state.process_group))
        return allreduce_hook(state.subgroup, bucket)
    own = Future()
    own.set_result(bucket.buffer())
    return own
