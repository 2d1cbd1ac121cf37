"""Keras over pydist gives the losses that it gives over PyTorch: parity.py runs over each, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lib.package import COMPARED, installed
from lib.processes import within

pytestmark = [
    pytest.mark.skipif(not installed("keras"), reason="no keras (pip install '.[keras]')"),
    pytest.mark.skipif(not installed("torch"), reason="no torch"),
    pytest.mark.skipif("FULL_LONG" not in os.environ, reason="takes long: .ci/full runs it"),
]


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Over PyTorch, over pydist: {"model optimizer dtype": [loss, ...]}."""
    folder = tmp_path_factory.mktemp("parity")
    for side in ("torch", "pydist"):
        command = [sys.executable, Path(__file__).with_name("parity.py"), side, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=within(2400))
        assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{side}.json").read_text()) for side in ("torch", "pydist")]


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-4), ("float64", 1e-9)])
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "rmsprop"])
@pytest.mark.parametrize("model", ["mlp", "convnet", "resnet20", "lstm", "transformer"])
def test_losses_of_the_first_50_steps(losses, model, optimizer, dtype, rtol):
    theirs, ours = (side[f"{model} {optimizer} {dtype}"] for side in losses)
    assert len(ours) == 50 and np.ptp(theirs) > 0.001
    np.testing.assert_allclose(ours, theirs, rtol=rtol)
    COMPARED["losses of Keras"] += 50
