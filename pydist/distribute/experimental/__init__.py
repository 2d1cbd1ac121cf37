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
from pydist.distribute.server import ParameterServerStrategy
from pydist.distribute.tpu import TPUStrategy
from pydist.distribute.workers import MultiWorkerMirroredStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
    "ValueContext",
]


_SUBMODULES = {
    "coordinator": "pydist.distribute.coordinator",
    "partitioners": "pydist.distribute.experimental.partitioners",
}


def __getattr__(name):
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(_SUBMODULES[name])
    raise missing_name(__name__, name, [*__all__, *_SUBMODULES])
