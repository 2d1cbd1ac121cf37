"""Keras over pydist. Each file runs in a process of its own: in this one, PyTorch itself may be imported already."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib.package import installed
from lib.ranks import LONG

pytestmark = pytest.mark.skipif(not installed("keras"), reason="no keras (pip install '.[keras]')")


@pytest.mark.parametrize(
    "file, marks",
    [("seams.py", ""), ("fit_replays.py", "not slow"), pytest.param("fit_replays.py", "slow", marks=pytest.mark.slow)],
)
def test_in_its_own_process(file, marks):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        marks,
        Path(__file__).with_name(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


def run(code, *launch, **env):
    """A finished Python program: its output, warnings and all."""
    command = [sys.executable, *launch, *([] if launch else ["-c"]), code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **env})


def test_import_keras_under_compat(tmp_path):
    """In a script, in its children, and with a choice of another backend."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "import keras\n"
        "import torch\n"
        "assert torch.Tensor.__module__.startswith('pydist') and isinstance(keras.ops.ones(1), torch.Tensor)\n"
        "assert 'KERAS_BACKEND' not in os.environ and keras.backend.backend() == 'torch'\n"
        "child = 'import keras; print(type(keras.ops.ones(1)).__module__)'\n"
        "env = {**os.environ, 'KERAS_BACKEND': 'jax'}\n"
        "print(subprocess.run([sys.executable, '-c', child], capture_output=True, text=True, env=env))\n"
    )
    done = run(script, "-m", "pydist.compat")
    assert "pydist.keras: KERAS_BACKEND=jax: Keras runs over pydist\\n" in done.stdout, done
    assert "stdout='pydist" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    "code, message",
    [
        ("import os; os.environ['KERAS_BACKEND'] = 'numpy'", "KERAS_BACKEND is numpy (expected it to be unset, "),
        ("import sys, types; sys.modules['torch'] = types.ModuleType('torch')", "torch is already imported (expected"),
        ("import sys, types; sys.modules['tensorflow'] = types.ModuleType('tensorflow')", "tensorflow is already"),
        ("import importlib.metadata as m; m.version = lambda name: '3.99.0'", "got Keras 3.99.0 (expected keras>=3."),
        ("import importlib.metadata as m; m.version = lambda name: '2.15.0'", "got Keras 2.15.0 (expected keras>=3."),
        (
            "import importlib.metadata as m\ndef version(name): raise m.PackageNotFoundError\nm.version = version",
            "Keras is not installed (expected pip install 'pydist[keras]')",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(code, message):
    done = run(f"{code}\nfrom pydist import keras")
    assert f"pydist.keras: {message}" in done.stderr.splitlines()[-1], done.stderr


MEMORY = """
import os
import numpy as np
from pydist import keras

found = []


class Pages(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        found.append(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))


rng = np.random.default_rng(0)
x, y = rng.normal(size=(6400, 64)).astype("float32"), rng.integers(0, 10, 6400)
model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, 64, epochs=int(os.environ["EPOCHS"]), verbose=0, callbacks=[Pages()])
print((found[-1] - found[1]) >> 10, "KiB")
"""


@pytest.mark.parametrize("replay", ["1", "0"])
def test_memory_of_fit_does_not_grow(replay):
    """2 MiB at most, after the first 200 steps: over 10,000 steps, or 1,000 in the short form."""
    done = run(MEMORY, EPOCHS="100" if LONG else "10", PYDIST_REPLAY=replay)
    assert done.returncode == 0 and int(done.stdout.split()[0]) <= 2048, done.stdout + done.stderr
