"""Optimizers and learning-rate schedules with PyTorch's arguments and state dictionaries."""

from pydist._names import also_named
from pydist.optim import lr_scheduler
from pydist.optim.adadelta import Adadelta
from pydist.optim.adafactor import Adafactor
from pydist.optim.adagrad import Adagrad
from pydist.optim.adam import Adam, AdamW
from pydist.optim.asgd import ASGD
from pydist.optim.large_batch import LAMB, Lion
from pydist.optim.lbfgs import LBFGS
from pydist.optim.moments import Adamax, NAdam, RAdam
from pydist.optim.muon import Muon
from pydist.optim.optimizer import Optimizer
from pydist.optim.rmsprop import RMSprop
from pydist.optim.rprop import Rprop
from pydist.optim.sgd import SGD
from pydist.optim.sparse_adam import SparseAdam

also_named(__name__, adamw="adam", adamax="moments", nadam="moments", radam="moments")

__all__ = [
    "ASGD",
    "LAMB",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SparseAdam",
    "lr_scheduler",
]


def __getattr__(name):
    if name != "swa_utils":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib import import_module

    return import_module(f"{__name__}.swa_utils")
