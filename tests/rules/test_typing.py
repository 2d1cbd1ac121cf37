"""The stub file says what the op table and the engine have, and a type checker finds what is wrong in a script."""

import ast
import re
import subprocess
import sys

import pytest

import stubs
from pydist import _C

SCRIPT = """
import pydist
from pydist import Tensor, nn, optim

model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
optimizer = optim.SGD(model.parameters(), lr=0.1)
x = pydist.tensor([[1.0, 2.0, 3.0, 4.0]])
loss: Tensor = nn.functional.mse_loss(model(x), pydist.zeros(1, 3))
loss.backward()
optimizer.step()
total: Tensor = (x * 2 + 1).sum(dim=(0, 1), keepdim=True).exp() @ x.view(4, 1).T
rows: Tensor = pydist.cat([x, x], dim=0).add(1, alpha=2).reshape((2, -1)).mul_(x[0])
best = rows.topk(2, dim=1)
first: Tensor = best.values
n: int = x.dim() + x.shape[0]
kind: pydist.dtype = x.dtype

pydist.add("a", 1)  # wrong
x.sum(keepdim=3.5, dim="rows")  # wrong
pydist.cat(x, dim=0.5)  # wrong
nn.functional.gelu(x, approximate="exactly")  # wrong
n = x.exp()  # wrong
x.softmax(dim=1, axes=2)  # wrong
best.places  # wrong
"""


def test_the_tables_part_is_as_written_by_the_table():
    text = stubs.FILE.read_text()
    assert stubs.written(text) == text, "run python tools/stubs.py"
    assert text.count("def ") > 400


def test_every_name_of_the_stubs_is_there():
    missing = []
    for node in ast.parse(stubs.FILE.read_text()).body:
        name = getattr(node, "name", None)
        if (
            name in (None, "__getattr__")
            or name.startswith("_")
            and not hasattr(_C, name)
            and name != "_values_indices"
        ):
            continue
        if isinstance(node, ast.ClassDef) and name != "_values_indices":
            owner = getattr(_C, name, None)
            members = [m.name for m in node.body if isinstance(m, ast.FunctionDef) and m.name != "__getattr__"]
            missing += [f"{name}.{m}" for m in members if not hasattr(owner, m)]
        if name != "_values_indices" and not hasattr(_C, name):
            missing.append(name)
    assert missing == []


def test_a_script_is_checked(tmp_path):
    pytest.importorskip("mypy", reason="needs mypy: the stubs are NOT checked by a type checker")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path / 'cache'}",
        "--follow-imports=silent", script,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    found = {int(m[1]): m[2] for m in re.finditer(r"script\.py:(\d+): error: (.*)", done.stdout)}
    wrong = {i for i, line in enumerate(SCRIPT.split("\n"), 1) if line.endswith("# wrong")}
    assert set(found) == wrong and len(wrong) == 7, done.stdout + done.stderr
