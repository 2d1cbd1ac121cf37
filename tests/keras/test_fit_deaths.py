"""Ranks die in fit, evaluate and save: nobody hangs, no file is damaged, a restarted job ends as one that nobody disturbed,
and with --on-failure=keep the survivors go on."""

import contextlib
import os
import random
import re
import signal
import time
import zipfile

import pytest

from lib.package import installed
from lib.processes import environment, is_alive, start, within

pytestmark = [
    pytest.mark.skipif(not installed("keras"), reason="no keras (pip install '.[keras]')"),
    pytest.mark.slow,
]
DEATHS = int(os.environ.get("FULL_DEATHS", 0))
SILENT = 3.0  # s without a word after which a stopped rank counts as dead; 20 without this setting

SCRIPT = """
import hashlib, os, sys, time
import numpy as np
import pydist
from pydist import distribute, keras
from pydist.distributed import PeerFailed

folder, epochs = sys.argv[1], int(sys.argv[2])
keras.utils.set_random_seed(1)
numbers = np.random.default_rng(0)
x = numbers.standard_normal((500, 12)).astype("float32")
y = np.argmax(x[:, :4] + 0.3 * numbers.standard_normal((500, 4)), 1)
strategy = distribute.MirroredStrategy()
with strategy.scope():
    layers = [keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])


class Say(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, "pid", os.getpid(), flush=True)


callbacks = [
    keras.callbacks.BackupAndRestore(folder + "/backup", save_freq=7),
    keras.callbacks.ModelCheckpoint(folder + "/best.keras", "val_loss", save_best_only=True),
    keras.callbacks.ModelCheckpoint(folder + "/last.weights.h5", save_weights_only=True),
    keras.callbacks.CSVLogger(folder + "/log.csv", append=True),
    Say(),
]
try:
    history = model.fit(x, y, batch_size=32, epochs=epochs, verbose=0, callbacks=callbacks, validation_data=(x[:100], y[:100]))
except PeerFailed:
    print("failed", time.monotonic(), flush=True)
    raise
weights = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
# the rank: the launcher prints equal lines once
print("rank", os.environ["RANK"], "ended", weights, strategy.num_replicas_in_sync, model.evaluate(x, y, verbose=0), flush=True)
"""


def job(tmp_path, *options, epochs=4, ranks=2, **more):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return start("--nproc-per-node", ranks, *options, script, tmp_path, epochs,
                 env=environment(OMP_NUM_THREADS="1", PYDIST_SILENT=str(SILENT), **more))  # fmt: skip


def pids(process, count):
    """{rank: pid} when all have said where they are."""
    found = {}
    while len(found) < count:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        said = re.match(r"\[(\d+)\] epoch \d+ pid (\d+)", line)
        if said:
            found[int(said[1])] = int(said[2])
    return found


def check_files(folder):
    """Every file with a name that a program has given is whole."""
    h5py = pytest.importorskip("h5py")
    for path in folder.rglob("*"):
        if path.name.startswith(".pydist-"):
            continue
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as file:
                assert file.testzip() is None
        elif path.suffix == ".h5":
            with h5py.File(path, "r") as file:
                file.visititems(lambda name, item: item[()] if hasattr(item, "shape") else None)


@pytest.mark.parametrize("seed", range(2 + DEATHS // 2))
def test_deaths_at_any_moment(tmp_path, seed):
    """Killed: PeerFailed on the others within a second. Stopped: when it has been silent for too long."""
    chance = random.Random(seed)
    ranks, kind = 2 + seed % 2, signal.SIGSTOP if seed % 4 == 1 else signal.SIGKILL
    process = job(tmp_path, epochs=1000, ranks=ranks)
    with process:
        found = pids(process, ranks)
        time.sleep(chance.uniform(0, 1.5))
        victim = chance.randrange(ranks)
        os.kill(found[victim], kind)
        died = time.monotonic()
        try:
            out, err = process.communicate(timeout=within(30 + SILENT))
        finally:
            if is_alive(found[victim]):
                os.kill(found[victim], signal.SIGKILL)
    heard = [float(said) - died for said in re.findall(r"failed (\d+\.\d+)", out)]
    assert len(heard) == ranks - 1, out + err
    assert max(heard) < within(1.0 if kind == signal.SIGKILL else SILENT + 2), heard
    assert process.returncode
    check_files(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The end of a job that nobody disturbs."""
    with job(tmp_path_factory.mktemp("whole")) as process:
        out, err = process.communicate(timeout=within(120))
    ends = re.findall(r"ended (\w+) 2 (.*)", out)
    assert len(ends) == 2 and len(set(ends)) == 1, out + err
    return ends[0]


@pytest.mark.parametrize("seed", range(1 + DEATHS // 4))
def test_a_restarted_job_ends_as_an_undisturbed_one(tmp_path, seed, undisturbed):
    chance = random.Random(seed)
    process = job(tmp_path, "--max-restarts", 3)
    with process:
        for _ in range(1 + seed % 2):
            found = pids(process, 2)
            time.sleep(chance.uniform(0, 0.4))
            with contextlib.suppress(ProcessLookupError):  # it has ended, or is the rank that died with the first one
                os.kill(found[chance.randrange(2)], signal.SIGKILL)
        out, err = process.communicate(timeout=within(120))
    ends = re.findall(r"ended (\w+) 2 (.*)", out)
    # more than two: a rank was killed when its training had ended, and all trained once more
    assert len(ends) >= 2 and set(ends) == {undisturbed}, (ends, undisturbed, err)
    check_files(tmp_path)


@pytest.mark.parametrize("seed", range(2 + DEATHS // 4))
def test_survivors_go_on(tmp_path, seed):
    """They have the same bits, and the model has learned."""
    chance = random.Random(seed)
    ranks = 2 + seed % 2
    process = job(tmp_path, "--on-failure=keep", epochs=25, ranks=ranks)
    with process:
        found = pids(process, ranks)
        time.sleep(chance.uniform(0, 0.7))
        os.kill(found[chance.randrange(ranks)], signal.SIGKILL)
        out, err = process.communicate(timeout=within(120))
    ends = re.findall(r"ended (\w+) (\d) \[([\d.]+), ([\d.]+)\]", out)
    assert len(ends) == ranks - 1 and len(set(ends)) == 1, (ends, out[-3000:], err)
    assert int(ends[0][1]) == ranks - 1 and float(ends[0][3]) > 0.85
    check_files(tmp_path)
