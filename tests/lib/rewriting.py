"""A plugin of tests/conftest.py: with pytest-xdist each file's asserts are rewritten once, not by every worker.

Rewriting takes most of the time in which pytest finds tests. The process that starts the workers does it before, in as many
processes as there are cores, into a folder that the workers read. It uses names that pytest does not promise; where they are
missing, each worker rewrites by itself, as ever."""

import os
import shutil
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import pytest

FOLDER = "PYDIST_TESTS_REWRITTEN"  # in the environment of the workers


def _rewrite(config, paths):
    from _pytest.assertion import rewrite

    state = config.stash[rewrite.assertstate_key]
    for path in paths:
        stat, code = rewrite._rewrite_test(path, config)
        folder = rewrite.get_cache_dir(path)
        folder.mkdir(parents=True, exist_ok=True)
        rewrite._write_pyc(state, code, stat, folder / (path.stem + rewrite.PYC_TAIL))


def _chosen(config):
    """The files of the tests that were asked for, the largest first."""
    places = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    found = {path for place in places for path in (place.rglob("test_*.py") if place.is_dir() else [place])}
    return sorted(filter(Path.is_file, found), key=lambda path: -path.stat().st_size)


def _rewrite_all(config, folder):
    paths = _chosen(config)
    cores, before = len(os.sched_getaffinity(0)), sys.pycache_prefix
    sys.pycache_prefix = folder
    try:
        parts = [get_context("fork").Process(target=_rewrite, args=(config, paths[i::cores])) for i in range(cores)]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
    finally:
        sys.pycache_prefix = before


def pytest_sessionstart(session):
    config = session.config
    starts_workers = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if not starts_workers or config.getoption("assertmode") != "rewrite":
        return
    folder = tempfile.mkdtemp(prefix="pydist-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    _rewrite_all(config, folder)
    os.environ[FOLDER] = folder


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    before = sys.pycache_prefix
    if hasattr(session.config, "workerinput"):
        sys.pycache_prefix = os.environ.pop(FOLDER, before)
    try:
        return (yield)
    finally:
        sys.pycache_prefix = before
