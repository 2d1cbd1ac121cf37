"""What setup.py asks of compilers, without running them."""

import os
import runpy
from pathlib import Path

import pytest
import setuptools

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup(monkeypatch):
    """setup.py's functions."""
    monkeypatch.chdir(TOP)
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    return runpy.run_path("setup.py")


@pytest.mark.parametrize("strict", [False, True])
def test_warnings_of_nvcc_stop_a_strict_build_only(setup, strict, tmp_path, monkeypatch):
    """Another host compiler may warn of what ours does not: a user's build goes on."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    monkeypatch.setitem(os.environ, "PYDIST_WERROR", "1" if strict else "0")
    commands = [command for command, *_ in setup["cuda_jobs"](str(nvcc), tmp_path)]
    assert commands and all(("-Werror" in command) == strict for command in commands)
