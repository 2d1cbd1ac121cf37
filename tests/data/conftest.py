"""What the tests of images share: the libraries that are their references."""

import pytest


@pytest.fixture
def tv():
    """torchvision; skips where it is missing or was built for another torch."""
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no torchvision: {error}")
    return torchvision


@pytest.fixture
def pil():
    return pytest.importorskip("PIL.Image")
