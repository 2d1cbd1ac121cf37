"""Smaller models: pruning by a schedule while a model trains, and channels that are removed for good.

`nn.utils.prune` prunes once; a Pruner prunes a little more every so many steps, for which the model can make up.
`PruningCallback` does the same in Keras' fit. Masks do not make a model smaller or faster by themselves; `shrink` does.
"""

from pydist.compress.pruner import Pruner
from pydist.compress.schedules import ConstantSparsity, PolynomialDecay
from pydist.compress.shrinking import Plan, load_plan, shrink

__all__ = ["ConstantSparsity", "Plan", "PolynomialDecay", "Pruner", "load_plan", "shrink"]


def __getattr__(name):
    if name == "PruningCallback":  # not among the names above, as it imports Keras
        from pydist.compress._over_keras import PruningCallback

        return PruningCallback
    raise AttributeError(f"module 'pydist.compress' has no attribute {name!r}", name=name)
