"""`import mxnet as mx` under `python -m pydist.compat`, in processes of their own."""

import subprocess
import sys

from pydist import compat

TRAIN = """
import logging
import numpy as np
import mxnet as mx
from mxnet import autograd, gluon, init, nd
from mxnet.base import MXNetError
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
from mxnet.ndarray import NDArray
import mxnet.ndarray as F
from mxnet.test_utils import assert_almost_equal, default_context
import pydist, torch

assert isinstance(nd.ones(1), NDArray) and F is nd is mx.nd and mx.__version__.startswith("1.9.1")
mx.random.seed(1)
np.random.seed(1)
x = np.random.standard_normal((256, 8)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.float32)
loader = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), batch_size=32, shuffle=True)
net = nn.Sequential()
with net.name_scope():
    net.add(nn.Dense(32, activation="relu"), nn.Dense(2))
ctx = [mx.cpu(0), mx.cpu(1)]
net.initialize(init.Xavier(magnitude=2.24), ctx=ctx)
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
loss, metric = gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
for epoch in range(12):
    metric.reset()
    for data, label in loader:
        data, label = (gluon.utils.split_and_load(each, ctx) for each in (data, label))
        with autograd.record():
            outs = [net(d) for d in data]
            losses = [loss(o, l) for o, l in zip(outs, label)]
        for each in losses:
            each.backward()
        trainer.step(32)
        metric.update(label, outs)
print(metric.get()[0], metric.get()[1] > 0.9)
"""

LACKS = """
import mxnet as mx
for line in "mx.sym|mx.nd.nothing|from mxnet import np|import mxnet.symbol|import mxnet.nothing|mx.nothing".split("|"):
    try:
        exec(line)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


def run(*command, cwd=None):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, cwd=cwd)


def test_a_training(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    done = run("-m", "pydist.compat", script)
    assert done.stdout == "accuracy True\n", done.stdout + done.stderr


def test_what_lacks_says_so(tmp_path):
    script = tmp_path / "lacks.py"
    script.write_text(LACKS)
    lines = run("-m", "pydist.compat", script).stdout.splitlines()
    assert lines == [
        "NotImplementedError: mx.sym is not part of pydist (expected gluon)",
        "AttributeError: pydist has no mxnet.nd.nothing",
        "NotImplementedError: mx.np is not part of pydist (expected mx.nd)",
        "NotImplementedError: mx.symbol is not part of pydist (expected gluon)",
        "ModuleNotFoundError: pydist has no module mxnet.nothing",
        "AttributeError: pydist has no mxnet.nothing",
    ]


def test_check_knows_mxnet(tmp_path):
    script = tmp_path / "check.py"
    script.write_text("import mxnet as mx\nmx.nd.ones, mx.gluon.Trainer\nmx.sym.Variable\nmx.nd.onnes\n")
    done = run("-m", "pydist.compat", "--check", script)
    lines = [line.removeprefix(f"{script}:") for line in done.stdout.splitlines()]
    assert lines[0].startswith("3: no mxnet.sym: mx.sym is not part of pydist") and lines[1].startswith("4: ")
    assert lines[-1] == "1 files, 2 names missing"


def test_an_installed_mxnet_comes_first(tmp_path):
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("real = True\n")
    (tmp_path / "mxnet" / "gluon.py").write_text("real = True\n")
    (tmp_path / "use.py").write_text(
        "import mxnet, mxnet.gluon, torch\nprint(mxnet.real, mxnet.gluon.real, torch.__version__)"
    )
    done = run("-m", "pydist.compat", tmp_path / "use.py")
    assert done.stdout.startswith("True True 2.13.0+pydist"), done.stderr
    assert "mxnet" in compat._IF_MISSING
