"""The programs in docs/ run and print what stands below them.

A ```python fence is a program of its own; ```python run OPTIONS starts it with the launcher. A ```text fence after it is
what it prints, lines of several ranks in any order."""

import re
import subprocess
import sys

import pytest

from lib.package import installed
from lib.processes import environment, launch, within
from lib.source import TOP

FENCES = re.compile(r"^```python *([^\n]*)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
PAGES = sorted([*TOP.glob("docs/*.md"), *TOP.glob("docs/guide/*.md")])
EXAMPLES = [
    pytest.param(how, program, printed, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (how, program, printed) in enumerate(FENCES.findall(page.read_text()), 1)
    if not program.startswith(">>>")  # a doctest
]


def test_every_guide_has_an_example():
    with_one = {example.id.rpartition("-")[0] for example in EXAMPLES}
    assert {path.stem for path in TOP.glob("docs/guide/*.md")} | {"quickstart", "from-pytorch"} <= with_one


@pytest.mark.parametrize("how, program, printed", EXAMPLES)
def test_example(how, program, printed, tmp_path):
    if ("keras" in program or "tensorflow" in program) and not installed("keras"):
        pytest.skip("no keras (pip install '.[keras]')")
    script = tmp_path / "train.py"
    script.write_text(program)
    if how:
        verb, *options = how.split()
        assert verb == "run"
        code, out, err, _ = launch("--fold", "off", *options, script, timeout=within(60))
    else:
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=within(60), env=environment()
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    lines = sorted(re.sub(r"^\[\d+\] ", "", line) for line in out.splitlines())
    assert code == 0, err
    assert printed and lines == sorted(printed.splitlines())
