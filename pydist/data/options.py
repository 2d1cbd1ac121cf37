"""What a program may ask of a pipeline beside its steps."""

from enum import IntEnum


class AutoShardPolicy(IntEnum):
    """How the ranks of a job share a data set. AUTO: each rank computes its rows of every batch where the plan allows it,
    else as FILE, else as DATA. FILE: each file belongs to one rank. DATA: each rank runs the pipeline and keeps its rows.
    OFF: every rank sees all. HINT is AUTO."""

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class _Group:
    _names = {}

    def __init__(self):
        for name, value in self._names.items():
            object.__setattr__(self, name, value() if isinstance(value, type) else value)

    def __setattr__(self, name, value):
        if name not in self._names:
            raise AttributeError(
                f"{type(self).__name__} has no option {name!r} (expected one of {', '.join(self._names)})"
            )
        object.__setattr__(self, name, value)

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def merge(self, other):
        """These options, with what the other ones set in their place."""
        made = type(self)()
        for name, default in type(self)().__dict__.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            object.__setattr__(
                made, name, mine.merge(theirs) if isinstance(mine, _Group) else mine if theirs == default else theirs
            )
        return made


class ThreadingOptions(_Group):
    """private_threadpool_size: the most threads that an iterator starts (None: the cores of the process)."""

    _names = {"private_threadpool_size": None, "max_intra_op_parallelism": None}


class DistributeOptions(_Group):
    """auto_shard_policy: see AutoShardPolicy."""

    _names = {"auto_shard_policy": AutoShardPolicy.AUTO, "num_devices": None}


class AutotuneOptions(_Group):
    """Accepted for programs that set it: threads are always tuned where AUTOTUNE asks for them."""

    _names = {"enabled": None, "cpu_budget": None, "ram_budget": None}


class OptimizationOptions(_Group):
    """Accepted for programs that set it: plans are as the program wrote them."""

    _names = dict.fromkeys(
        "apply_default_optimizations filter_fusion filter_parallelization inject_prefetch map_and_batch_fusion "
        "map_and_filter_fusion map_fusion map_parallelization noop_elimination parallel_batch seq_interleave_prefetch "
        "shuffle_and_repeat_fusion".split()
    )


class Options(_Group):
    """Options of a pipeline, for `Dataset.with_options`.

    >>> from pydist.data import Options
    >>> options = Options()
    >>> options.deterministic = False
    >>> options.experimental_distribute.auto_shard_policy
    <AutoShardPolicy.AUTO: 0>
    """

    _names = {
        "deterministic": None,
        "autotune": AutotuneOptions,
        "threading": ThreadingOptions,
        "experimental_distribute": DistributeOptions,
        "experimental_optimization": OptimizationOptions,
        "experimental_slack": None,
        "experimental_warm_start": None,
        "dataset_name": None,
    }
