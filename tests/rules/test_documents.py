"""The documents say what the code says: what they quote stands in it, what they name exists, and what it cites of them, too."""

import re
from functools import cache

import pytest

from lib.source import TEXT, TOP, files

INTERNALS = TOP / "docs/internals"


@cache
def headings(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return set(re.findall(r"^#+ (.*?)\s*$", text, re.M))


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


PAGES = files("docs/internals/*.md", "docs/internals/decisions/*.md")


def prose(page):
    return re.sub(r"^```.*?^```", "", (TOP / page).read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_exists(page):
    """Files and folders by their paths, and pages that it links to."""
    text = prose(page)
    named = re.findall(r"`((?:csrc|docs|tests|tools|benchmarks|pydist|examples)/[\w./-]*)`", text)
    linked = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    built = re.compile(r"pydist/_\w+\.so")
    assert not [name for name in named if not (TOP / name).exists() and not built.fullmatch(name)]
    assert not [target for target in linked if target and not (TOP / page.parent / target).exists()]


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
