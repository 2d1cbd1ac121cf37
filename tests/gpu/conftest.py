"""What is compared with the CPU is computed in the dtype that it says."""

import pytest

from pydist import _C


@pytest.fixture(autouse=True)
def exact_products():
    before = _C.gpu_settings()
    _C.gpu_settings(False, False, False)
    yield
    _C.gpu_settings(*before)
