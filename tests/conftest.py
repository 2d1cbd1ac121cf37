"""What all tests share: nothing may leak, and where the real data is."""

import gc
import os
import signal
import threading
from pathlib import Path

import pytest

import pydist
from lib.package import COMPARED
from pydist import _C, distributed
from pydist.distributed.tensor import _plan

pytest_plugins = ["lib.rewriting"]

# Programs that tests start import the package that is tested, wherever they run.
_ROOT = Path(pydist.__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))

# Tests look for the lines of each rank by themselves; tests/launch/test_logs.py asks for others.
os.environ["PYDIST_FOLD"] = "off"

# Without it a printed line is one write, which the lines of other processes do not cut.
os.environ.pop("PYTHONUNBUFFERED", None)

# A shell starts what runs in its background with SIGINT ignored, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DATA = Path(os.environ.get("PYDIST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture
def data_folder():
    """A function from a data set's name to its folder; skips where it is missing."""

    def folder(name):
        if not (DATA / name).is_dir():
            pytest.skip(f"no {DATA / name} (PYDIST_DATA)")
        return DATA / name

    return folder


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def registered():
    """What the test registers with register_sharding is there until it ends."""
    before = dict(_plan.custom)
    yield
    _plan.custom.clear()
    _plan.custom.update(before)
    _C.spread_forget()


@pytest.fixture(autouse=True)
def exact_products(request):
    """What tests/gpu compares with the CPU is computed in the dtype that it says."""
    before = _C.gpu_settings()
    if request.path.parent.name == "gpu":
        _C.gpu_settings(False, False, False, False, False)
    yield
    _C.gpu_settings(*before)


def pytest_addoption(parser):
    parser.addoption("--passed", type=Path, help="what an earlier run printed with -rp: what passed is not run again")


def pytest_collection_modifyitems(config, items):
    if path := config.getoption("--passed"):
        lines = path.read_text("utf-8").splitlines()
        passed = {line.removeprefix("PASSED ") for line in lines if line.startswith("PASSED ")}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = [item for item in items if item.nodeid not in passed]


def pytest_terminal_summary(terminalreporter):
    for what, count in COMPARED.items():
        terminalreporter.write_line(f"{what}: {count:,}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.stash.setdefault("reports", {})[report.when] = report
    return report


def _counts():
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("pydist-data-"):  # its pipeline was closed while it computed its last element
            thread.join(60)
    _C.trim()
    return _C.live(), _C.cached()


@pytest.fixture(autouse=True)
def nothing_leaks(request):
    """After each test, and without the group that its collectives made, the engine's counters of living objects are
    what they were before."""
    gc.collect()
    gc.freeze()  # what other libraries made so far: the collection after the test looks at the test's objects only
    before = _counts()
    yield
    if request.node.funcargs:  # pytest would hold the fixtures' values until later; after Ctrl-C it has let go of them
        request.node.funcargs.clear()
    distributed.destroy_process_group()
    report = request.node.stash.get("reports", {}).get("call")  # none where the test, or its setup, was interrupted
    if report and report.passed:  # a failed test's traceback holds its tensors
        after = _counts()
        for _ in range(2):  # a circle that C code held for an object in another circle is found after that one is gone
            if after != before:
                after = _counts()
        changed = [
            f"{name}: {old.get(name, 0)} -> {new.get(name, 0)}"
            for old, new in zip(before, after)
            for name in {**old, **new}
            if old.get(name, 0) != new.get(name, 0)
        ]
        assert not changed, f"leaked: {', '.join(sorted(changed))}"
