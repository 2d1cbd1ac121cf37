"""All messages of the project in one list: `python tools/messages.py` prints file:line, function, who reports it and the text.

A message is a string in a call or statement that reports (REPORTS), or any other string of at least three words inside a
function; docstrings are none. Pieces that stand side by side are joined; a value in a Python text is shown as {...}.

    python tools/messages.py [ROOM ...]          messages of these rooms (csrc/comm, pydist/_launch, ...), or of all
    python tools/messages.py --docs [ROOM ...]   strings of C outside of functions instead: the documentation of ops and methods
    python tools/messages.py --count             how many each room has
    python tools/messages.py --against REV       how many of them were changed, added, removed since that revision
    python tools/messages.py --unexpected        those that report a wrong argument and do not say "expected"
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
REPORTS = re.compile(
    r"PyErr_\w+|pd_(log|warn)\w*|\w*_?(fail|failed|refuse|refused|raise|raised|error|wrong|warn|exit)(?<!strerror)(?<!dlerror)(_\w+)?"
)
CODE = re.compile(
    r"_?static_assert|_Static_assert|_Pragma|volatile|target|fopen|open"
)  # take strings that nobody reads
WRONG_ARGUMENT = re.compile(
    r"raise (Value|Type|Index|Shape|DType|Argument)Error"
    r"|PD_E_(VALUE|TYPE|SHAPE|DTYPE|DIM|INDEX)|PyExc_(Value|Type|Index|Overflow)Error"
)
TEXT = re.compile(r"[^\W\d_]{2,}\W+(\w+\W+)*?[^\W\d_]{2,}\W+(\w+\W+)*?[^\W\d_]{2,}")  # three words
C_TOKEN = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\s+|\d[\w.]*|.""", re.DOTALL
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)


class Message(NamedTuple):
    file: str
    line: int
    function: str
    report: str
    text: str
    error: str = ""  # C: PD_E_... or PyExc_..., of the call that reports

    @property
    def is_unexpected(self):
        """Whether it reports a wrong argument and does not say what was expected."""
        error = self.error or self.report
        return bool(is_message(self) and WRONG_ARGUMENT.fullmatch(error)) and "expected" not in self.text.lower()

    @property
    def room(self):
        parts = self.file.split("/")[:-1]
        return "/".join(parts[:2])

    def __str__(self):
        return f"{self.file}:{self.line}: {self.function}: {self.report}: {self.text}"


def c_strings(source, file, first_line=1, macro=""):
    """Messages and documentation of C code; those of a #define under its name."""
    if not macro:
        for directive in DIRECTIVE.finditer(source):
            name = re.match(r"\s*#\s*define\s+(\w+)", directive[0])
            if name:
                line = source.count("\n", 0, directive.start()) + 1
                yield from c_strings(directive[0][name.end() :].replace("\\\n", " \n"), file, line, name[1])
        source = DIRECTIVE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    line, depth, word, calls, function, closed, text, error = first_line, 0, "", [], macro, "", None, ""
    for token in C_TOKEN.findall(source):
        start, line = line, line + token.count("\n")
        if token[0].isspace() or token[:2] in ("/*", "//"):
            continue
        if token[0] == '"':
            text = (start, text[1] if text else "", []) if not text else text
            text[2].append(token[1:-1])
            continue
        if text and re.fullmatch(r"PRI\w+", token):
            text[2].append(f"<{token}>")
            continue
        if text:
            report = next((call for call in reversed(calls) if REPORTS.fullmatch(call)), calls[-1] if calls else "")
            yield Message(
                file,
                text[0],
                function,
                report or "=",
                "".join(text[2]).replace("\\n", "\n").replace('\\"', '"'),
                error if REPORTS.fullmatch(report) else "",
            )
            text, error = None, error if not REPORTS.fullmatch(report) else ""  # later strings are values of the first
        if token == "(":
            calls.append(word)
        elif re.match("PD_E_|PyExc_", token):
            error = token
        elif token == ")" and calls:
            closed = calls.pop()
        elif token == "{":
            if depth == 0 and not macro:
                function = closed if word == ")" else ""
            depth += 1
        elif token == ";":
            error = ""
        elif token == "}":
            depth -= 1
            if depth == 0 and not macro:
                function = ""
        word = token if token[0].isalpha() or token[0] == "_" or token == ")" else ""
    if text:
        yield Message(file, text[0], function, "=", "".join(text[2]))


def name_of(node):
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def text_of(node):
    """The text of a string, an f-string or a template before %; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "{%s}" % ast.unparse(v.value) for v in node.values)
    return None


def python_strings(source, file):
    def walk(node, function, report):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function, report = f"{function}.{node.name}" if function else node.name, ""
        elif isinstance(node, ast.Raise):
            exc = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            report = f"raise {name_of(exc)}" if exc is not None else report
        elif isinstance(node, ast.Call) and not report.startswith("raise"):
            report = name_of(node.func) or report
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        text = text_of(node)
        if text is not None:
            yield Message(file, node.lineno, function, report or "=", text)
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function, report)

    yield from walk(ast.parse(source), "", "")


def is_message(m):
    reports = m.report.startswith("raise ") or REPORTS.fullmatch(m.report)
    inside = m.function or m.file.endswith(".py")
    if not inside or " " not in m.text or CODE.fullmatch(m.report):
        return False
    return bool(re.search(r"[^\W\d_]{2,}\W* ", m.text) if reports else TEXT.search(m.text))


def files_of(revision):
    """(path, source) of all C and Python files, in the working tree or at a revision."""
    pattern = re.compile(r"csrc/.*\.(c|h|cu|cuh|inc|def)|pydist/.*\.py")
    if not revision:
        paths = (str(path.relative_to(ROOT)) for room in ("csrc", "pydist") for path in (ROOT / room).rglob("*.*"))
        for path in filter(pattern.fullmatch, sorted(paths)):
            yield path, (ROOT / path).read_text()
        return
    listed = subprocess.run(["git", "ls-tree", "-r", revision], cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [row.split("\t") for row in listed.stdout.splitlines()]
    rows = [(path, head.split()[2]) for head, path in rows if pattern.fullmatch(path)]
    blobs = subprocess.run(["git", "cat-file", "--batch"], cwd=ROOT, capture_output=True, check=True,
                           input="".join(f"{blob}\n" for _, blob in rows).encode()).stdout  # fmt: skip
    for path, _ in rows:
        head, _, rest = blobs.partition(b"\n")
        size = int(head.split()[2])
        yield path, rest[:size].decode()
        blobs = rest[size + 1 :]


def collect(revision=None):
    for path, source in files_of(revision):
        yield from python_strings(source, path) if path.endswith(".py") else c_strings(source, path)


def counts(revision):
    """room: (messages at the revision, changed, added, removed). Texts are compared function by function."""
    then, now = Counter(), Counter()
    for side, messages in ((then, collect(revision)), (now, collect())):
        for m in filter(is_message, messages):
            side[m.room, m.function, m.text] += 1
    gone, new, rooms = Counter(), Counter(), {}
    for side, texts in ((gone, then - now), (new, now - then)):
        for (room, function, _), n in texts.items():
            side[room, function] += n
    for (room, _, _), n in then.items():
        rooms.setdefault(room, Counter())["then"] += n
    for room, function in gone | new:
        changed = min(gone[room, function], new[room, function])
        rooms.setdefault(room, Counter()).update(
            changed=changed, added=new[room, function] - changed, removed=gone[room, function] - changed
        )
    return rooms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--against", metavar="REV")
    parser.add_argument("--unexpected", action="store_true")
    args = parser.parse_args()
    if args.against:
        rooms = counts(args.against)
        total = sum(rooms.values(), Counter())
        for room, n in [*sorted(rooms.items()), ("all", total)]:
            print(f"{room:32} {n['changed']:5} of {n['then']} changed, {n['added']} added, {n['removed']} removed")
        return
    messages = [m for m in collect() if not args.rooms or m.file.startswith(tuple(f"{r}/" for r in args.rooms))]
    if args.docs:
        messages = [m for m in messages if not m.function and m.file.startswith("csrc/") and TEXT.search(m.text)]
    else:
        messages = [m for m in messages if (m.is_unexpected if args.unexpected else is_message(m))]
    if args.count:
        rooms = Counter(m.room for m in messages)
        for room, n in [*sorted(rooms.items()), ("all", len(messages))]:
            print(f"{room:32} {n:5}")
        return
    for m in messages:
        print(re.sub(r"[\x00-\x1f\x7f]", lambda found: repr(found[0])[1:-1], str(m)))


if __name__ == "__main__":
    sys.exit(main())
