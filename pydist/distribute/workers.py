"""MultiWorkerMirroredStrategy: replicas on several processes or machines."""

import os
import re

from pydist import _C
from pydist.distribute.cluster_resolver import ClusterResolver, TFConfigClusterResolver, check_host, check_launcher
from pydist.distribute.logical import shards_of
from pydist.distribute.mirrored import local_devices
from pydist.distribute.options import CommunicationOptions
from pydist.distribute.strategy import Strategy, joined_group, local_resolver
from pydist.distributed._group import process_group
from pydist.distributed._group.rendezvous import find_place

__all__ = ["MultiWorkerMirroredStrategy"]

_PATIENCE = 300.0  # s that tasks wait for the others to come
_LEAVE = 0.1  # s for a task that waited in vain to leave


def _names(tasks, cluster, ranks):
    return ", ".join(f"{job} {i} ({cluster.task_address(job, i)})" for job, i in (tasks[rank] for rank in ranks))


def _missing(error, tasks, cluster, own):
    """The text of a rendezvous's error with the tasks' names; `own` is this task's rank."""
    found = re.search(r"(?:for ranks?|found no rank) (\d+(?:, \d+)*)", str(error))
    ranks = [int(n) for n in found[1].split(", ")] if found else []
    names = _names(tasks, cluster, [rank for rank in ranks if rank < len(tasks)])
    return f"{names} has not come: {error}" if names else f"{_names(tasks, cluster, [own])}: {error}"


def join(resolver, patience=None):
    """Makes this process a rank of the resolver's cluster: the chief, then the workers. Returns the process group,
    or None for an evaluator and in a world of one."""
    cluster, job, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
    tasks = cluster.ranks()
    if job == "evaluator":
        return None
    field = "TF_CONFIG: task" if isinstance(resolver, TFConfigClusterResolver) else "cluster_resolver"
    if (job, index) not in tasks:
        raise ValueError(f"{field}: {job} {index} trains nothing (expected the chief or a worker)")
    rank, world = tasks.index((job, index)), len(tasks)
    check_launcher(field, rank, world)
    if world == 1:
        return None
    if process_group.is_initialized() or (process_group._existing() is not None):
        if (process_group.get_rank(), process_group.get_world_size()) != (rank, world):
            raise ValueError(
                f"{field} says rank {rank} of {world}, but the process group has rank {process_group.get_rank()} of "
                f"{process_group.get_world_size()} (expected the same)"
            )
        return process_group.current()
    if "PYDIST_CONTROL" not in os.environ:
        check_host(f"{field}: {job} {index}", cluster.task_address(job, index))
    place = find_place(f"tcp://{cluster.task_address(*tasks[0])}", world, rank)
    try:
        process_group.init_at(place, patience=_PATIENCE if patience is None else patience)
    except (_C.CommTimeout, _C.DistError) as error:
        process_group.leave(_LEAVE)
        raise type(error)(f"MultiWorkerMirroredStrategy: {_missing(error, tasks, cluster, rank)}") from None
    return process_group.current()


class MultiWorkerMirroredStrategy(Strategy):
    """A replica for each worker. The workers are the tasks of TF_CONFIG or of a `cluster_resolver`, else the
    launcher's ranks, else this process alone.

    The first to make a strategy waits for the others, up to communication_options.timeout_seconds (300); then it
    raises CommTimeout, which names the tasks that have not come. communication_options.bytes_per_pack: the most bytes that
    a sum over ranks takes at a time. The chief, or worker 0, listens at its address; on
    several hosts PYDIST_SECRET_FILE names a secret that all of them share. shards, shares: see MirroredStrategy.
    """

    def __init__(self, cluster_resolver=None, communication_options=None, *, shards=None, shares="even"):
        name = type(self).__name__
        if cluster_resolver is not None and not isinstance(cluster_resolver, ClusterResolver):
            raise TypeError(
                f"{name}: cluster_resolver is {type(cluster_resolver).__name__} (expected a ClusterResolver)"
            )
        options = CommunicationOptions() if communication_options is None else communication_options
        resolver = TFConfigClusterResolver() if cluster_resolver is None else cluster_resolver
        if resolver.cluster_spec():
            group = join(resolver, getattr(options, "timeout_seconds", None))
        else:
            group, resolver = joined_group(), local_resolver()
        devices = ["CPU:0"] if group is None and resolver.task_type == "evaluator" else local_devices()
        super().__init__(devices, group, resolver, shards_of(name, shards, shares))
        self._bytes_per_pack = getattr(options, "bytes_per_pack", 0)
