"""pydist/_index.py, which says where what is imported at first use stands: `python tools/index.py` writes it, test_import.py
compares it.

The files of pydist/_functions say by their decorators what is a function and what a method; of LISTED every public
function and class counts."""

import sys
from importlib import import_module
from inspect import getmodule, isclass, isfunction
from pathlib import Path
from textwrap import fill

from pydist import _functions
from pydist._C import Tensor

FILE = Path(_functions.__file__).parents[1] / "_index.py"
LISTED = ("_dtypes", "_make", "_settings")
HEAD = '''"""Where what is imported at first use stands. Written by tools/index.py."""
'''


def later():
    """(file, names of functions, names of methods) of each file of pydist/_functions that is not imported at once."""
    files = sorted(path.stem for path in Path(_functions.__file__).parent.glob("[a-z]*.py"))
    found = {
        f"pydist._functions.{file}": (set(), set()) for file in files if f"pydist._functions.{file}" not in sys.modules
    }
    for file in found:
        functions, methods = dict(_functions.NAMES), dict(vars(Tensor))
        import_module(file)  # may import others
        for n, (before, now) in enumerate(((functions, _functions.NAMES), (methods, vars(Tensor)))):
            for name, f in now.items():
                if before.get(name) is not f:
                    home = getattr(f, "__module__", file)
                    found[home if home in found else file][n].add(name)
    return [(file.rpartition(".")[2], *map(sorted, names)) for file, names in found.items()]


def listed():
    """(file, names)"""
    for file in LISTED:
        module = import_module(f"pydist.{file}")
        yield file, [n for n, f in vars(module).items()
                     if (isfunction(f) or isclass(f)) and getmodule(f) is module and not n.startswith("_")]  # fmt: skip


def text_of(names, indent, key=""):
    """As the formatter writes it: in one line of 120 columns if it fits, behind the key."""
    text = " ".join(names)
    if indent + len(f'{key}"{text}",') <= 120:
        return f'{key}"{text}"'
    lines = fill(text, 112 - indent, break_on_hyphens=False, break_long_words=False).split("\n")
    inner = "".join(f'\n{" " * (indent + 4)}"{line}{" " * (line is not lines[-1])}"' for line in lines)
    return f"{key}({inner}\n{' ' * indent})"


def written():
    lines = [HEAD, "LATER = {  # file of pydist/_functions: functions, methods"]
    for file, functions, methods in later():
        lines += [f'    "{file}": (', f"        {text_of(functions, 8)},", f"        {text_of(methods, 8)},", "    ),"]
    lines += ["}", "FROM = {  # file of pydist: functions and classes"]
    lines += ["    " + text_of(sorted(names), 4, f'"{file}": ') + "," for file, names in listed()]
    return "\n".join([*lines, "}"]) + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
