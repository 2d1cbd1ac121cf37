"""The documents say what the code says: what they quote stands in it, what they name exists, and what it cites of them, too."""

import importlib
import inspect
import json
import re
from collections import Counter
from functools import cache

import messages
import pytest

from lib import package
from lib.source import TEXT, TOP, files
from pydist._docs.pages import slug
from pydist._launch.options import OPTIONS

INTERNALS = TOP / "docs/internals"


def without_fences(text):
    return re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.M | re.S)


@cache
def headings(page):
    return set(re.findall(r"^#+ (.*?)\s*$", prose(page), re.M))


def citations(text):
    """(file, heading) of each `docs/NAME.md, "Heading"`, also where a comment's line ends within it."""
    text = re.sub(r"\s*\n[ \t/*#]*", " ", text)
    return re.findall(r'\b(docs/[\w/.-]+\.md), \\?"([^"\\]+)\\?"', text)


def broken(text):
    return [
        f"{name}: {heading}"
        for name, heading in citations(text)
        if not (TOP / name).is_file() or heading not in headings(TOP / name)
    ]


def test_a_broken_citation_is_found():
    good, bad = '"Order of reduction"', '"Order of\n   nothing"'
    assert not broken(f"(docs/internals/design.md, {good})") and broken(f"(docs/internals/design.md,\n   {bad})")
    assert broken(f"docs/internals/absent.md, {good}")


def test_citations_are_of_headings():
    found, wrong = 0, []
    for path in files(*TEXT):
        if path.name != "test_documents.py":
            text = (TOP / path).read_text(errors="replace")
            found += len(citations(text))
            wrong += [f"{path}: {what}" for what in broken(text)]
    assert found >= 9 and not wrong


def test_no_number_stands_for_the_design():
    """Numbers of its sections would be right until somebody adds one."""
    wrong = []
    for path in files(*TEXT):
        for found in re.finditer(r"\bdesign(\.md)?('s)? §?\d", (TOP / path).read_text(errors="replace")):
            wrong.append(f"{path}: {found[0]}")
    assert not wrong


@pytest.mark.parametrize("page, steps", [("adding-an-op.md", 6), ("adding-a-collective.md", 9)])
def test_worked_examples_show_the_tree(page, steps):
    """What a step quotes stands in the file of its heading, or in the one that the fence names."""
    text = (INTERNALS / page).read_text()
    edits = re.findall(r"^## \d\. .*?`(\S+)`\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    quoted = [
        (named or path, code)
        for path, part in edits
        for named, code in re.findall(r"^```\w+(?: in (\S+))?\n(.*?)```", part, re.M | re.S)
    ]
    assert len(edits) == steps and len(quoted) >= steps
    assert not [path for path, code in quoted if code.strip("\n") not in (TOP / path).read_text()]


PAGES = files("*.md", "*.ipynb")


def prose(page):
    """The text of a page or of a notebook, without fences."""
    text = (TOP / page).read_text()
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return without_fences(text)


def dead_links(page):
    """The relative links of a page to files that do not exist, or to headings that their page does not have."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(`+)(?!`).*?\1", "", prose(page))):
        name, _, heading = target.partition("#")
        path = TOP / page.parent / name if name else TOP / page
        if "://" not in target and (
            not path.exists() or heading and path.suffix == ".md" and heading not in map(slug, headings(path))
        ):
            yield f"{page}: {target}"


def test_a_dead_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One, two\n[a](#one-two) [b](page.md#one-two) [c](http://x.y/z) `[d](no)`\n```\n[e](no)\n```\n")
    assert not list(dead_links(page))
    page.write_text("# One\n[a](#two) [b](page.md#two) [c](other.md)\n")
    assert len(list(dead_links(page))) == 3


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_what_a_page_names_exists(page):
    """Files and folders by their paths, and pages and headings that it links to."""
    named = re.findall(r"`((?:csrc|docs|tests|tools|benchmarks|pydist|examples)/[\w./-]*)`", prose(page))
    built = re.compile(r"pydist/_\w+\.so")
    assert not [name for name in named if not (TOP / name).exists() and not built.fullmatch(name)]
    assert not list(dead_links(page))


def too_long_for_a_readme(text):
    """Over 120 lines, and lines over 200 characters where they are prose: addresses of links do not count."""
    long = [line for line in without_fences(text).splitlines() if len(re.sub(r"\]\([^)]*\)", "]", line)) > 200]
    return long + text.splitlines()[120:]


def test_readme_is_short():
    assert too_long_for_a_readme("x\n" * 121) and too_long_for_a_readme("x" * 201)
    assert not too_long_for_a_readme("```\n" + "x" * 201 + f"\n```\n[x]({'y' * 201})")
    assert not too_long_for_a_readme((TOP / "README.md").read_text())


def test_figures_of_the_readme_stand_beside_their_command(monkeypatch):
    """Each reason to use pydist has a number and the benchmark that prints it."""
    text = (TOP / "README.md").read_text()
    reasons = re.findall(r"^- (.*?)(?=^- |^$)", text[text.index("## Why") : text.index("## Two commands")], re.M | re.S)
    monkeypatch.syspath_prepend(TOP)
    from benchmarks.programs import CASES
    from benchmarks.workloads import WORKLOADS

    cases = {case.name.partition(":")[0] for case in CASES} | set(WORKLOADS)
    assert len(reasons) == 4
    for reason in reasons:
        said, command = re.search(r"^(.*)`python -m benchmarks ([^`]*)`", reason, re.S).groups()
        assert re.search(r"\d", said)
        assert set(re.sub(r"--\w+ \S+", "", command).split()) <= cases


def test_every_page_is_reached_from_the_index():
    reached, new = set(), [TOP / "docs/index.md"]
    while new:
        page = new.pop()
        reached.add(page)
        targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
        found = {
            (page.parent / target).resolve() for target in targets if target.endswith(".md") and "://" not in target
        }
        new += found - reached - set(new)
    assert {TOP / page for page in files("*.md") if page.parts[0] == "docs"} <= reached


def test_the_top_folder_holds_what_it_should():
    """A newcomer sees these first: what else there is goes into a folder."""
    expected = (
        ".ci .clang-format .gitignore CHANGELOG.md LICENSE MANIFEST.in README.md benchmarks csrc docs notebooks pydist"
    )
    assert {path.parts[0] for path in files("*")} == {*expected.split(), "pyproject.toml", "setup.py", "tests", "tools"}


def test_the_licence_is_named():
    text = (TOP / "LICENSE").read_text()
    assert "Apache License\n" in text and "Copyright 2026 the pydist authors" in text and "END OF TERMS" in text
    project = (TOP / "pyproject.toml").read_text()
    assert re.search('^license = "Apache-2.0"$', project, re.M)
    assert "LICENSE" in (TOP / "MANIFEST.in").read_text()


def test_the_guide_names_the_options_of_the_launcher():
    text = (TOP / "docs/guide/launcher.md").read_text()
    said = set(re.findall(r"--([a-z][a-z-]+)", text)) - {"attach"}  # pydist.doctor's
    options = {name for name, _, _, meaning in OPTIONS if meaning and name != "by-ssh"}  # the launcher's own
    assert options - {"help"} <= said <= options


def test_extras_are_in_install():
    project = (TOP / "pyproject.toml").read_text()
    extras = re.findall(
        r"^(\w+) = \[", project[project.index("[project.optional-dependencies]") :].split("\n\n")[0], re.M
    )
    assert len(extras) > 4
    assert re.findall(r"^\| `(\w+)` \|", (TOP / "docs/install.md").read_text(), re.M) == extras


# How many messages of a folder report a wrong argument without "expected": `python tools/messages.py --unexpected` lists
# them. These numbers only get smaller.
UNEXPECTED = {
    "csrc/autograd": 1,
    "csrc/comm": 1,
    "csrc/device": 1,
    "csrc/ops": 1,
    "csrc/py": 8,
    "pydist": 12,
    "pydist/amp": 2,
    "pydist/autograd": 1,
    "pydist/distributed": 6,
    "pydist/distributions": 9,
    "pydist/nn": 53,
    "pydist/optim": 25,
    "pydist/testing": 2,
    "pydist/utils": 23,
    "pydist/vision": 103,
}


def test_messages_of_wrong_arguments_say_what_was_expected():
    found = Counter(m.room for m in messages.collect() if m.is_unexpected)
    assert found == UNEXPECTED, 'say "(expected ...)", or lower the number: tools/messages.py --unexpected lists them'


def test_messages_without_expected_are_found():
    python = 'def f():\n    raise ValueError("f: x is 3")\n    raise ValueError("f: x is 3 (expected 4)")\n'
    c = 'int f(void) { return pd_fail(PD_E_VALUE, "f: x is 3"); }\nint g(void) { return pd_fail(PD_E_OS, "g: x is 3"); }\n'
    found = [*messages.python_strings(python, "a.py"), *messages.c_strings(c, "a.c")]
    assert [m.function for m in found if m.is_unexpected] == ["f", "f"] and len(found) == 4


def public():
    """name: function or class, of all modules without an underscore."""
    for name in ["pydist", *package.modules()]:
        if "._" not in name and not name.startswith(("pydist.compat.path", "pydist.examples")):
            for key, value in vars(importlib.import_module(name)).items():
                if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == name:
                    yield f"{name}.{key}", value


def test_public_names_have_docstrings():
    found = dict(public())
    assert len(found) > 1000
    assert not [name for name, value in found.items() if not (inspect.getdoc(value) or "").strip()]


def test_decisions_have_one_form_and_stand_in_the_index():
    folder = INTERNALS / "decisions"
    index = (folder / "README.md").read_text()
    found = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert len(found) > 50
    for number, path in enumerate(found, 1):
        text = path.read_text()
        assert path.name.startswith(f"{number:03}-")
        assert re.findall(r"^## (.*)", text, re.M) == ["Context", "Decision", "Price", "When to revisit"], path.name
        assert f"- [{number:03} {text[2 : text.index(chr(10))]}]({path.name})" in index


def test_the_tour_shows_the_tree():
    """Each excerpt's lines stand in its header in the same order, `...` left out; each function of the drawing in its file."""
    text = (INTERNALS / "tour.md").read_text()
    excerpts = re.findall(r"^From `(\S+)`:\n\n```c\n(.*?)\n```", text, re.M | re.S)
    assert [path.rsplit("/")[-1] for path, _ in excerpts] == [
        "tensor.h",
        "op.h",
        "tape.h",
        "group_impl.h",
        "group_impl.h",
    ]
    for path, excerpt in excerpts:
        source, at = (TOP / path).read_text(), 0
        for part in re.split(r"^ *\.\.\.\n", excerpt, flags=re.M):
            at = source.find(part.rstrip("\n"), at)
            assert at >= 0, f"{path} has no\n{part}"
            at += len(part)
    drawing = re.findall(r"^ +(\w+) +((?:csrc|pydist)/\S+)", text[text.index("## One training step") :], re.M)
    assert len(drawing) > 25
    for name, path in drawing:
        assert re.search(rf"\b{name}\(|\({name}\)", (TOP / path).read_text()), f"{path} has no {name}"


def test_words_of_the_glossary_are_in_their_files():
    rows = re.findall(r"^\| ([a-z][\w, ]*) \| .*? \| `(\S+)` \|$", (INTERNALS / "glossary.md").read_text(), re.M)
    assert len(rows) > 40 and len({word for word, _ in rows}) == len(rows)
    for words, path in rows:
        text = (TOP / path).read_text().lower()
        assert all(re.search(rf"(\b|_){word}", text) for word in words.split(", ")), f"{path} does not say {words}"
