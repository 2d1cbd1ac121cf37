"""Helpers for tests of code that computes with tensors, on one rank or on several.

`assert_close` compares. `run_ranks` calls a function on several ranks and returns their results. In a pytest suite, one
line in conftest.py makes it a fixture, `ranks` (pydist.testing.pytest):

    pytest_plugins = ["pydist.testing.pytest"]
"""

from pydist.testing._close import assert_close
from pydist.testing._ranks import RankFailed, RankTimeout, run_ranks

__all__ = ["RankFailed", "RankTimeout", "assert_close", "run_ranks"]
