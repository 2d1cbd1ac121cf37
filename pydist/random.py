"""The default random stream, with PyTorch's names.

>>> import pydist
>>> state = pydist.random.get_rng_state()
>>> a = pydist.rand(3)
>>> pydist.random.set_rng_state(state)
>>> bool((pydist.rand(3) == a).all())
True
"""

import os
from contextlib import contextmanager

from pydist._C import get_rng_state, initial_seed, manual_seed, set_rng_state

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]


def seed():
    """Seeds the default stream with a number from the system, and returns the number."""
    value = int.from_bytes(os.urandom(8), "little")
    manual_seed(value)
    return value


@contextmanager
def fork_rng(devices=None, enabled=True, device_type="cuda"):
    """After the block, the default stream continues as if nothing had been drawn inside."""
    state = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(state)
