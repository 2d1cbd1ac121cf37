"""Importing costs little and touches nothing; every documented example is true."""

import doctest
import os
import platform
import re
import subprocess
import sys
import threading

import pytest

import pydist
from lib import package
from pydist import _C


def run(code):
    return run_with(code)


def run_with(code, **environment):
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_takes_under_50_ms():
    code = "import time; t = time.process_time(); import pydist; print(time.process_time() - t)"  # others may have the cores
    assert min(float(run(code)) for _ in range(5)) < 0.050


def test_import_leaves_numpy_threads_and_files_alone():
    code = """
import os, sys, threading
before = sorted(os.listdir("/proc/self/fd"))
import pydist
heavy = {"numpy", "socket", "ssl", "asyncio", "inspect", "multiprocessing", "pydist.nn", "pydist.distributed"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert sorted(os.listdir("/proc/self/fd")) == before
assert len(os.listdir("/proc/self/task")) == 1
x = pydist.tensor([[1.0, 2.0]])
import pydist.nn, pydist.optim, pydist.utils.data, pydist.distributed
assert "numpy" not in sys.modules
x.numpy()
assert "numpy" in sys.modules
"""
    run(code)


def test_submodules_load_on_use():
    run("import pydist; pydist.nn.Linear; pydist.optim.Adam; pydist.utils.data.DataLoader; pydist.distributed.barrier")
    run("from pydist import nn; from pydist.nn import functional as F; import pydist.nn.functional; nn.parallel")
    assert {"nn", "optim", "Tensor", "no_grad"} <= set(dir(pydist))
    with pytest.raises(AttributeError, match="module 'pydist' has no attribute 'nothing'"):
        pydist.nothing


def test_the_index_is_as_its_generator_writes_it():
    """Run `python tools/index.py` where a file of pydist/_functions has new names."""
    tools = os.path.join(os.path.dirname(__file__), "..", "..", "tools")
    run_with("import index; assert index.written() == index.FILE.read_text()", PYTHONPATH=os.pathsep.join(
        [tools, *filter(None, [os.environ.get("PYTHONPATH")])]))  # fmt: skip


def test_all_modules_import():
    assert len(package.modules()) > 100 and len(list(package.doctests())) > 50  # which the last test here runs
    for name in package.modules():
        if name != "pydist.examples.mnist":  # needs the extra
            __import__(name)


def test_info_names_the_build():
    text = run("import runpy; runpy.run_module('pydist.info', run_name='__main__')")
    assert text.startswith(f"pydist {pydist.__version__}, Python {platform.python_version()}")
    for name in ("size", "compiler", "instruction set", "threads", "oneDNN", "CUDA", "products", "convolutions", "MPI"):
        assert re.search(rf"^{name}: \S", text, re.M), name
    cpu, _ = _C.backends()["convolutions"]
    assert cpu[-1] == "portable" and re.search("^convolutions: .*" + ".*".join(cpu), text, re.M)
    assert _C.compiler() in text and f"instruction set: {_C.isa()} " in text
    flags = _C.flags()
    assert flags and all(f"  {name}={value}  {help_}" in text for name, value, help_ in flags)
    assert re.search("PYDIST_LOG=2 ", run_with("import pydist.info as i; print(*i.lines(), sep='\\n')", PYDIST_LOG="2"))


def test_grad_modes():
    assert pydist.is_grad_enabled()
    with pydist.no_grad():
        assert not pydist.is_grad_enabled()
        with pydist.enable_grad():
            assert pydist.is_grad_enabled()
        assert not pydist.is_grad_enabled()

    @pydist.no_grad()
    def plain():
        return pydist.is_grad_enabled()

    @pydist.no_grad
    def generator():
        received = yield pydist.is_grad_enabled()
        try:
            yield received, pydist.is_grad_enabled()
        except KeyError:
            yield "caught", pydist.is_grad_enabled()

    assert plain() is False and plain.__name__ == "plain"
    g = generator()
    assert next(g) is False and pydist.is_grad_enabled()
    assert g.send("x") == ("x", False) and g.throw(KeyError()) == ("caught", False)
    g.close()
    with pytest.raises(ValueError), pydist.no_grad():
        raise ValueError
    assert pydist.is_grad_enabled()
    pydist.set_grad_enabled(False)
    assert not pydist.is_grad_enabled()
    pydist.set_grad_enabled(True)

    @pydist.set_grad_enabled(False)
    def off():
        return pydist.is_grad_enabled()

    assert pydist.is_grad_enabled() and off() is False
    with pydist.inference_mode():
        assert not pydist.is_grad_enabled()
    with pydist.inference_mode(False):
        assert pydist.is_grad_enabled()


def test_grad_mode_is_per_thread():
    seen = []
    with pydist.no_grad():
        thread = threading.Thread(target=lambda: seen.append(pydist.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


@pytest.mark.parametrize("example", list(package.doctests()), ids=lambda example: example.name)
def test_documented_examples(example, registered):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    text = []
    runner.run(example, out=text.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(text)
