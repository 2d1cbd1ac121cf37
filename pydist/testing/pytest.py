"""A pytest plugin with the fixture `ranks`. A suite adds it by one line in the conftest.py of its top folder:

    pytest_plugins = ["pydist.testing.pytest"]

and its tests run distributed code like this:

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
    """pydist.testing.run_ranks as a fixture: `ranks(world, fn, *args, processes=False, timeout=60.0)` calls fn(rank,
    *args) on each of `world` ranks and returns the results by rank. If a rank skips its test, the whole test is
    skipped."""

    def run(world, fn, *args, **options):
        __tracebackhide__ = True
        try:
            return run_ranks(world, fn, *args, **options)
        except RankFailed as error:
            if error.reason.startswith("raised Skipped: "):
                pytest.skip(error.reason.removeprefix("raised Skipped: "))
            raise

    return run
