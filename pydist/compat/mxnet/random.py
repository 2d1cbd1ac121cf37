"""The seed, and random arrays: `mx.random`."""

import pydist
from pydist.compat.mxnet.ndarray.random import *


def seed(seed_state, ctx="all"):
    """Sets pydist's seed, of all contexts."""
    pydist.manual_seed(int(seed_state))
