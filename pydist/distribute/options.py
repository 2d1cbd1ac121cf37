"""Options of strategies and what they tell functions about a replica."""

from collections import namedtuple
from enum import Enum

__all__ = [
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "RunOptions",
    "ValueContext",
]


class CommunicationImplementation(Enum):
    """AUTO, RING or NCCL: accepted. The engine chooses by size, hosts and device."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


CollectiveCommunication = CommunicationImplementation  # the older name


class CommunicationOptions:
    """`bytes_per_pack`: sums over ranks travel in packs of at most so many bytes, but of one tensor at least; 0: Keras' `fit`
    chooses, and other sums are one pack for each dtype. `timeout_seconds`: how long ranks wait for the others to come
    (default: 300 s). `implementation` is accepted. Raises ValueError for a negative number."""

    def __init__(self, bytes_per_pack=0, timeout_seconds=None, implementation=CommunicationImplementation.AUTO):
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise ValueError(f"CommunicationOptions: timeout_seconds is {timeout_seconds!r} (expected more than 0)")
        if not isinstance(bytes_per_pack, int) or bytes_per_pack < 0:
            raise ValueError(f"CommunicationOptions: bytes_per_pack is {bytes_per_pack!r} (expected 0 or more)")
        self.bytes_per_pack, self.timeout_seconds, self.implementation = bytes_per_pack, timeout_seconds, implementation


class CollectiveHints(CommunicationOptions):
    """The older form of CommunicationOptions."""

    def __init__(self, bytes_per_pack=0, timeout_seconds=None):
        super().__init__(bytes_per_pack, timeout_seconds)


class InputReplicationMode(Enum):
    """PER_WORKER: distribute_datasets_from_function calls its function once for each process."""

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


RunOptions = namedtuple(
    "RunOptions",
    "experimental_enable_dynamic_batch_size experimental_bucketizing_dynamic_shape experimental_xla_options",
    defaults=(True, False, None),
)
RunOptions.__doc__ = "Accepted by `run`; there is nothing to choose."
InputOptions = namedtuple(
    "InputOptions",
    (
        "experimental_fetch_to_device experimental_replication_mode experimental_place_dataset_on_device "
        "experimental_per_replica_buffer_size"
    ),
    defaults=(None, InputReplicationMode.PER_WORKER, False, 1),
)
InputOptions.__doc__ = "Accepted where datasets are distributed; experimental_replication_mode may only be PER_WORKER."


class InputContext:
    """What a function of distribute_datasets_from_function is told: which of the input pipelines it makes."""

    def __init__(self, num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=1):
        self.num_input_pipelines, self.input_pipeline_id = num_input_pipelines, input_pipeline_id
        self.num_replicas_in_sync = num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size):
        """global_batch_size / num_replicas_in_sync. Raises ValueError unless it is a whole number.

        >>> from pydist.distribute import InputContext
        >>> InputContext(num_replicas_in_sync=2).get_per_replica_batch_size(64)
        32
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise ValueError(
                f"get_per_replica_batch_size: {global_batch_size} rows on {self.num_replicas_in_sync} replicas "
                "(expected a "
                "multiple)"
            )
        return global_batch_size // self.num_replicas_in_sync

    def __repr__(self):
        return f"InputContext(input pipeline {self.input_pipeline_id} of {self.num_input_pipelines})"


ValueContext = namedtuple("ValueContext", "replica_id_in_sync_group num_replicas_in_sync", defaults=(0, 1))
ValueContext.__doc__ = "What a function of experimental_distribute_values_from_function is told."
