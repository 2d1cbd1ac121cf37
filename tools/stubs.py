"""The part of pydist/_C.pyi that the op table says: `python tools/stubs.py` writes it, test_typing.py compares it.

Two blocks between marks: the table's methods within `class Tensor`, and its functions."""

import re
from pathlib import Path

from pydist import _C

FILE = Path(_C.__file__).with_name("_C.pyi")
FUNC, METHOD, NN, INPLACE = (_C._OP_FLAGS[name] for name in ("FUNC", "METHOD", "NN", "INPLACE"))
TYPES = {
    "Tensor": "Tensor", "Tensor[]": "Sequence[Tensor]", "Tensor?[]": "Sequence[Tensor | None]", "Operand": "Tensor | _Number",
    "Scalar": "Tensor | _Number", "int": "_int", "int[]": "_int | Sequence[_int]", "float": "_float", "bool": "_bool", "dtype": "_dtype",
    "format": "memory_format",
}  # fmt: skip


def parameters(signature):
    """[(type, name, default or None)]"""
    for text in re.findall(r"[^\s,][^,]*", signature[signature.index("(") + 1 : -1]):
        kind, name, *default = re.fullmatch(r"(\S+) (\w+)(?:=(.*))?", text).groups()
        yield kind, name, *default


def annotation(kind, default):
    if kind.startswith("enum("):
        words = ", ".join(f'"{word}"' for word in kind[5:-1].split("|"))
        return f"Literal[{words}]"
    if re.fullmatch(r"int\[\d\]", kind):
        kind = "int[]"
    optional = kind.endswith("?") or default == "None"
    return TYPES[kind.removesuffix("?")] + (" | None" if optional else "")


def argument(kind, name, default):
    quoted = f'"{default}"' if kind.startswith("enum(") else default
    return f"{name}: {annotation(kind, default)}" + ("" if default is None else f" = {quoted}")


def result(names):
    """max and min give one tensor where there is no dim."""
    return f"_{names.replace(' ', '_')}" if names else "Tensor"


def stubs(name, signature, flags, names, method):
    """The lines for one op: plain, with sizes one by one, in place."""
    rest = [p for p in parameters(signature) if p[0] != "rng"]
    rest = rest[1:] if method else rest
    returns = "Any" if name in ("max", "min") else result(names)
    lead = ["self"] if method else []
    out = ["*", "out: Tensor | None = None"] if flags & INPLACE and not method else []
    keyword = [p for p in rest if p[1] in KEYWORDS]  # Python's words cannot be parameters
    words = [argument(*p) for p in rest] if not keyword else ["*args: _float", "**kwargs: Any"]
    if rest and rest[-1][0] == "int[]" and len(rest) <= 2:
        before, last = [argument(*p) for p in rest[:-1]], rest[-1][1]
        yield f"@overload\ndef {name}({', '.join([*lead, *words, *out])}) -> {returns}: ..."
        yield f"@overload\ndef {name}({', '.join([*lead, *before, f'*{last}: _int'])}) -> {returns}: ..."
    elif method and flags & INPLACE and not flags & (FUNC | NN):
        pass  # in place alone
    else:
        yield f"def {name}({', '.join([*lead, *words, *out])}) -> {returns}: ..."
    if flags & INPLACE:
        own = lead or [argument(*rest[0])]
        yield f"def {name}_({', '.join([*own, *(words if method else words[1:])])}) -> Tensor: ..."


KEYWORDS = {"from"}


def block(method):
    wanted = METHOD if method else FUNC | NN
    indent = "    " if method else ""
    for name, signature, _, flags, _, names in sorted(_C.op_table()):
        if flags & wanted and (method or flags & (FUNC | NN)):
            for text in stubs(name, signature, flags, names, method):
                yield from (indent + line for line in text.split("\n"))


def written(text):
    """The stub file's text with both blocks as the table has them."""
    for mark, method in (("methods", True), ("functions", False)):
        lines = "\n".join(block(method))
        pattern = rf"( *# {mark} of the table: tools/stubs.py\n).*?( *# end of the table's {mark}\n)"
        text, n = re.subn(pattern, lambda m, lines=lines: f"{m[1]}{lines}\n{m[2]}", text, flags=re.S)
        assert n == 1, f"{FILE}: no marks around the table's {mark}"
    return text


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
