"""Names of tf.distribute.experimental."""

from pydist.distribute._near import missing_name
from pydist.distribute.mirrored import CentralStorageStrategy
from pydist.distribute.options import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from pydist.distribute.tpu import TPUStrategy
from pydist.distribute.workers import MultiWorkerMirroredStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "TPUStrategy",
    "ValueContext",
]


def __getattr__(name):
    raise missing_name(__name__, name, __all__)
