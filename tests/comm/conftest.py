"""What the tests of communication share."""

import pytest

from lib import ranks


@pytest.fixture
def apart(request, monkeypatch):
    """Every rank pretends to be on a host of its own, so that all goes over tcp."""
    monkeypatch.setattr(ranks, "APART", getattr(request, "param", True))
