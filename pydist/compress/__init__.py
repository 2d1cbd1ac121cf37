"""Smaller models: pruning by a schedule while a model trains.

`nn.utils.prune` prunes once; a Pruner prunes a little more every so many steps, for which the model can make up. Masks do not
make a model smaller or faster by themselves. `PruningCallback` does the same in Keras' fit.
"""

from pydist.compress.pruner import Pruner
from pydist.compress.schedules import ConstantSparsity, PolynomialDecay

__all__ = ["ConstantSparsity", "PolynomialDecay", "Pruner"]


def __getattr__(name):
    if name == "PruningCallback":  # not among the names above, as it imports Keras
        from pydist.compress._over_keras import PruningCallback

        return PruningCallback
    raise AttributeError(f"module 'pydist.compress' has no attribute {name!r}", name=name)
