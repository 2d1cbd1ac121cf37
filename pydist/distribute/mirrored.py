"""MirroredStrategy and CentralStorageStrategy: replicas of one machine."""

from pydist import _C
from pydist.distribute.logical import shards_of
from pydist.distribute.reduce import CrossDeviceOps
from pydist.distribute.strategy import Strategy, joined_group, local_resolver

__all__ = ["CentralStorageStrategy", "MirroredStrategy", "set_logical_cpus"]

_logical = {"cpus": 1}


def set_logical_cpus(count):
    """Makes MirroredStrategy() have `count` replicas in this process where there is no GPU and no launcher."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"set_logical_cpus: count is {count!r} (expected at least 1)")
    _logical["cpus"] = count


def local_devices():
    """The devices of this process: its GPUs, else its logical CPUs; under a launcher one."""
    group = joined_group()
    gpus = 0 if _C.pretended_cuda() else _C.cuda_count()
    if group is not None:
        return [f"GPU:{_C.cuda_current()}"] if gpus else ["CPU:0"]
    return [f"GPU:{i}" for i in range(gpus)] or [f"CPU:{i}" for i in range(_logical["cpus"])]


class MirroredStrategy(Strategy):
    """Replicas that train one model. Under a launcher (`python -m pydist.run`, mpirun, srun) each rank is a replica.
    Else they are this process's devices: its GPU, its logical CPUs, or `devices`, such as ["CPU:0", "CPU:1"].

    Replicas of one process are threads that share the parameters and run one at a time.

    shards: a power of two. There are as many replicas, the logical shards, whoever runs them; so a training has the same
    bits on any number of devices and ranks. shares: "measured" gives faster ranks more shards, which changes no bit.
    """

    def __init__(self, devices=None, cross_device_ops=None, *, shards=None, shares="even"):
        name = type(self).__name__
        if cross_device_ops is not None and not isinstance(cross_device_ops, CrossDeviceOps):
            raise TypeError(
                f"{name}: cross_device_ops is {type(cross_device_ops).__name__} (expected a CrossDeviceOps)"
            )
        if devices is not None and (isinstance(devices, str) or not list(devices)):
            raise ValueError(f"{name}: devices is {devices!r} (expected a list of names such as 'CPU:0')")
        group = joined_group()
        devices = local_devices() if devices is None else list(devices)
        super().__init__(devices, group, local_resolver(), shards_of(name, shards, shares))


class CentralStorageStrategy(MirroredStrategy):
    """MirroredStrategy: replicas of one process share the parameters in both."""

    def __init__(self, compute_devices=None, parameter_device=None):
        super().__init__(compute_devices)
