"""The facade of TensorFlow. It changes tensors for the whole process, so each file runs in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib.package import installed

pytestmark = pytest.mark.skipif(not installed("keras"), reason="no keras (pip install '.[keras]')")
HERE = Path(__file__).parent


def run(*command, cwd=None, **env):
    """A finished program: its output, errors and all."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]), **env}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, env=env, cwd=cwd)


@pytest.mark.parametrize("file", ["facade.py", "saved_files.py", "summaries.py"])
def test_in_its_own_process(file):
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pydist.compat", HERE / file)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr


def test_programs_and_their_children_find_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import subprocess, sys\n"
        "import tensorflow as tf\n"
        "from tensorflow import keras\n"
        "from tensorflow.keras.layers import Dense\n"
        "import tensorflow.compat.v1 as tf1, tensorflow.keras.backend as K, tensorflow.math, tensorflow.data, torch\n"
        "assert keras is tf.keras and Dense is keras.layers.Dense and tf1.reduce_sum is tf.reduce_sum\n"
        "assert isinstance(tf.ones(2), torch.Tensor) and K.floatx() == 'float32' and tf.data.Dataset.range(2)\n"
        "code = 'import tensorflow as tf; print(tf.__version__, tf.constant(1))'\n"
        "print(subprocess.check_output([sys.executable, '-c', code], text=True))\n"
    )
    done = run("-m", "pydist.compat", script)
    assert "2.21.0+pydist tf.Tensor(1, shape=(), dtype=int32)" in done.stdout, done.stderr


def test_missing_names_are_named_where_they_are_used(tmp_path):
    script = tmp_path / "names.py"
    for line, error in {
        "tf.reduce_men([1])": "AttributeError: pydist has no tensorflow.reduce_men, near: reduce_mean, reduce_min, ",
        "tf.nn.sofmax([1.])": "AttributeError: pydist has no tensorflow.nn.sofmax, near: softmax",
        "tf.Session()": "AttributeError: pydist has no tensorflow.Session: there is no graph mode (expected eager "
        "code; ",
        "tf.compat.v1.placeholder(1)": "AttributeError: pydist has no tensorflow.compat.v1.placeholder: there is no gr",
        "import tensorflow.estimator": "ModuleNotFoundError: pydist has no module tensorflow.estimator",
        "from tensorflow.math import ad": "ImportError: cannot import name 'ad' from 'pydist.tensorflow.math'",
    }.items():
        script.write_text(f"import tensorflow as tf\n{line}\n")
        done = run("-m", "pydist.compat", script)
        assert error in done.stderr and f'{script}", line 2' in done.stderr, done.stderr


def test_check_knows_torch_keras_and_tensorflow(tmp_path):
    script = tmp_path / "check.py"
    script.write_text(
        "import keras, torch\n"
        "import tensorflow as tf\n"
        "import tensorflow.compat.v1 as tf1\n"
        "from tensorflow.keras.layers import Dense, Dens\n"
        "from tensorflow import keras as k, nothing\n"
        "tf.add, tf.Variable, tf.data.Dataset.range, tf.distribute.MirroredStrategy, k.Sequential, keras.ops.abs\n"
        "tf.math.reduce_men; k.layers.Densee; keras.ops.abss; torch.nn.Linar; tf1.placeholder; "
        "tf.keras.models.loadmodel\n"
    )
    done = run("-m", "pydist.compat", "--check", script)
    assert done.returncode == 1 and not done.stderr
    assert [line.removeprefix(f"{script}:") for line in done.stdout.splitlines()] == [
        "4: no tensorflow.keras.layers.Dens, near: Dense",
        "5: no tensorflow.nothing",
        "7: no tensorflow.math.reduce_men, near: reduce_mean, reduce_min, reduce_sum",
        "7: no tensorflow.keras.layers.Densee, near: Dense",
        "7: no keras.ops.abss, near: abs, fabs",
        "7: no torch.nn.Linar, near: Linear",
        "7: no tensorflow.compat.v1.placeholder: there is no graph mode (expected eager code; tf.function marks a "
        "function that "
        "is called often)",
        "7: no tensorflow.keras.models.loadmodel, near: load_model, clone_model",
        "1 files, 8 names missing",
    ]  # fmt: skip


def test_tensorflow_itself_must_not_be_there_before():
    code = "import sys, types; sys.modules['tensorflow'] = types.ModuleType('tensorflow')"
    done = run("-c", f"{code}\nimport pydist.compat as c\nc.install()")
    assert "compat: tensorflow is already imported (expected install() before that)" in done.stderr.splitlines()[-1]


WITHOUT_KERAS = """
import importlib.machinery, importlib.metadata
from pydist import compat

def version(name):
    raise importlib.metadata.PackageNotFoundError(name)

def find_spec(cls, name, path=None, target=None, find=importlib.machinery.PathFinder.find_spec):
    return None if name == "keras" else find(name, path, target)

importlib.metadata.version = version
importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
compat.install()
import tensorflow as tf
print(tf.constant(1) + tf.math.square(2))
"""


@pytest.mark.parametrize("line", ["import keras", "tf.keras", "import tensorflow.keras.layers", "tf.Variable(1)"])
def test_without_keras_one_sentence_says_what_to_install(line):
    done = run("-c", WITHOUT_KERAS + line)
    assert done.stdout == "tf.Tensor(5, shape=(), dtype=int32)\n"
    last = "ModuleNotFoundError: pydist.keras: Keras is not installed (expected pip install 'pydist[keras]')"
    assert done.stderr.splitlines()[-1] == last
