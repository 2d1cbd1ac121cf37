"""The table of docs/internals/adding-a-rule.md: `python tools/dtensor_ops.py` writes it, tests/rules/test_documents.py
compares. It says how each op runs on DTensors."""

import contextlib
import re
from pathlib import Path

from pydist import _C
from pydist.distributed.tensor._composed import COMPOSED
from pydist.distributed.tensor._dtensor import _DRAWS
from pydist.distributed.tensor._rules import RULES

FILE = Path(__file__).parents[1] / "docs" / "internals" / "adding-a-rule.md"
BEGIN, END = (f"<!-- written by tools/dtensor_ops.py: {word} -->\n" for word in ("begin", "end"))


def is_each(name, signature):
    """Whether the op is elementwise, seen on small tensors. Optional ones are left out, and lists are empty."""
    inputs = [kind for kind in re.findall(r"\b(Tensor\S*|Operand) ", signature) if "[]" not in kind]
    for dtype in (_C.float32, _C.int64):
        metas = [None if kind == "Tensor?" else _C.empty(2, 2, dtype=dtype, device="meta") for kind in inputs]
        with contextlib.suppress(RuntimeError):  # the op takes no such dtype or shapes
            if any(inputs) and _C.op_is_each(name, tuple(metas), _C.op_attrs(name, None, {})):
                return True
    return False


def table():
    """The rows, as text."""
    public = _C._OP_FLAGS["FUNC"] | _C._OP_FLAGS["METHOD"] | _C._OP_FLAGS["NN"]
    kinds = {"elementwise": [], "by a rule": [], "by a rule, or made of other ops": [], "gathered, with a warning": []}
    for name, signature, _, flags, *_ in _C.op_table():
        if not flags & public:
            continue
        if name in COMPOSED or name + "_" in _DRAWS:
            kind = "by a rule, or made of other ops"
        elif getattr(RULES.get(name), "__name__", "") == "each" or (name not in RULES and is_each(name, signature)):
            kind = "elementwise"
        else:
            kind = "by a rule" if name in RULES else "gathered, with a warning"
        kinds[kind].append(name)
    rows = [
        f"| {kind} | {len(names)} | {', '.join(f'`{n}`' for n in sorted(names))} |\n" for kind, names in kinds.items()
    ]
    return "| how | | ops |\n|---|---|---|\n" + "".join(rows)


def page(text):
    """The page with the table in its place."""
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + "\n" + table() + "\n" + text[end:]


if __name__ == "__main__":
    FILE.write_text(page(FILE.read_text()))
