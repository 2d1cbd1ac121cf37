"""Optimizers and learning-rate schedules with PyTorch's arguments and state dictionaries."""

from pydist.optim import lr_scheduler
from pydist.optim.adam import Adam, AdamW
from pydist.optim.optimizer import Optimizer
from pydist.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]
