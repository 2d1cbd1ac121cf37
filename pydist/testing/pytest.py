"""A plugin of pytest: the fixture `ranks`. A suite takes it by one line in the conftest.py of its top folder:

    pytest_plugins = ["pydist.testing.pytest"]

and its tests run distributed code by one more:

    def test_sum(ranks):
        def work(rank):
            x = pydist.full((2,), rank + 1.0)
            pydist.distributed.all_reduce(x)
            return x.tolist()

        assert ranks(2, work) == [[3.0, 3.0]] * 2
"""

import pytest

from pydist.testing._ranks import RankFailed, run_ranks


@pytest.fixture
def ranks():
    """pydist.testing.run_ranks: `ranks(world, fn, *args, processes=False, timeout=60.0)` calls fn(rank, *args) on each
    of `world` ranks and returns what they returned, by rank. A rank that skips its test skips the whole test."""

    def run(world, fn, *args, **options):
        __tracebackhide__ = True
        try:
            return run_ranks(world, fn, *args, **options)
        except RankFailed as error:
            if error.reason.startswith("raised Skipped: "):
                pytest.skip(error.reason.removeprefix("raised Skipped: "))
            raise

    return run
