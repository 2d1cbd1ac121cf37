"""Keras' fit on several replicas. Keras runs in a process of its own: in this one, PyTorch itself may be imported already."""

import subprocess
import sys
from pathlib import Path

import pytest

from lib.package import installed
from lib.processes import environment, launch, within

pytestmark = pytest.mark.skipif(not installed("keras"), reason="no keras (pip install '.[keras]')")


@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_its_own_process(marks):
    file = Path(__file__).with_name("fit_replicas.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within(300))
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


PROGRAM = """
import sys
import numpy as np
from pydist import distribute, keras

x = np.random.default_rng(0).standard_normal((100, 8)).astype("float32")
y = x[:, :3].argmax(1)
with distribute.MirroredStrategy().scope():
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=2, verbose=2, callbacks=[keras.callbacks.EarlyStopping("loss", verbose=1)])
print("losses", history.history["loss"], model.predict(x, verbose=0).sum(), flush=True)
"""


def test_ranks_of_the_launcher(tmp_path):
    """The model is built in fit, nobody has set a seed, and rank 0 alone prints epochs."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    code, out, err, _ = launch("--nproc-per-node", 2, script, timeout=within(120))
    lines = [line.partition("] ")[2] for line in out.splitlines()]  # without the rank
    losses = [line for line in lines if line.startswith("losses")]
    assert code == 0 and len(losses) == 2 and losses[0] == losses[1], out + err
    assert lines.count("Epoch 1/2") == lines.count("Epoch 2/2") == 1 and not err, out + err


def test_a_program_without_a_strategy_hears_of_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("with distribute.MirroredStrategy().scope():", "if True:"))
    code, _, err, _ = launch("--nproc-per-node", 2, script, timeout=within(120), env=environment())
    assert code == 0 and "fit: each of 2 ranks trains a model of its own (expected the model in `with " in err
