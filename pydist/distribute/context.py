"""Which strategy and which replica a thread is in."""

import sys
import threading

__all__ = [
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


class _Here(threading.local):
    """One thread's place: `scopes`, the strategies whose scope it is in, `replica`, the ReplicaContext that it runs in, and
    `closure`, the function of a ClusterCoordinator that it runs."""

    def __init__(self):
        self.scopes, self.replica, self.closure = [], None, None


here = _Here()
_default = {}  # "strategy": the one without a scope, made at first use


def default_strategy():
    """The strategy of one replica that programs without a strategy have."""
    if not _default:
        from pydist.distribute.strategy import _DefaultStrategy

        _default["strategy"] = _DefaultStrategy()
    return _default["strategy"]


def get_strategy():
    """The strategy of this thread: of the replica that it runs, else of the innermost scope, else one of one replica.

    >>> from pydist import distribute
    >>> distribute.get_strategy().num_replicas_in_sync
    1
    """
    if here.replica is not None:
        return here.replica.strategy
    return here.scopes[-1] if here.scopes else default_strategy()


def has_strategy():
    """Whether this thread is in a strategy's scope or in one of its replicas."""
    return here.replica is not None or bool(here.scopes)


def get_replica_context():
    """The ReplicaContext of this thread, or None in a scope outside `run` (the cross-replica context)."""
    if here.replica is not None:
        return here.replica
    return None if here.scopes else default_strategy()._context


def in_cross_replica_context():
    """Whether this thread is in a strategy's scope, outside its replicas."""
    return here.replica is None and bool(here.scopes)


def experimental_set_strategy(strategy):
    """Enters the scope of `strategy` without a `with` block. None leaves it."""
    if here.replica is not None:
        raise RuntimeError("experimental_set_strategy: called in a replica (expected outside strategy.run)")
    if here.scopes and not here.scopes[-1]._is_set:
        raise RuntimeError("experimental_set_strategy: called in a scope (expected outside `with strategy.scope()`)")
    if here.scopes:
        here.scopes.pop()._leave_scope()
    if strategy is not None:
        strategy._is_set = True
        strategy._enter_scope()
        here.scopes.append(strategy)


def caller():
    """ "file:line" of the innermost frame outside pydist."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("pydist.", "keras.")) and name not in (
            "pydist",
            "threading",
            "contextlib",
            "functools",
        ):
            break
        if name.startswith("pydist.examples"):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
