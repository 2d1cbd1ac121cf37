"""Optimizers and learning-rate schedules with PyTorch's arguments and state dictionaries."""

from pydist.optim import lr_scheduler
from pydist.optim.adadelta import Adadelta
from pydist.optim.adagrad import Adagrad
from pydist.optim.adam import Adam, AdamW
from pydist.optim.optimizer import Optimizer
from pydist.optim.rmsprop import RMSprop
from pydist.optim.sgd import SGD

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "lr_scheduler"]
