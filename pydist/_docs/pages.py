"""The pages of docs/ and the notebooks, by nbconvert. Both lie in a checkout alone.

What comes with the extra `docs` is imported in functions, so that this module can be imported without it."""

import os
import posixpath
import re
from html import escape, unescape
from pathlib import Path

import pydist

TOP = Path(pydist.__file__).resolve().parents[1]
STYLE = """
body { max-width: 52rem; margin: 1rem auto; padding: 0 1rem; font: 1rem/1.5 sans-serif; color: #222; }
nav { border-bottom: 1px solid #ccc; margin-bottom: 1rem; padding-bottom: .5rem; }
nav a { margin-right: 1rem; }
pre { background: #f6f6f6; padding: .5rem; overflow-x: auto; font-size: .85rem; line-height: 1.35; }
.jp-OutputArea pre { background: none; border-left: 3px solid #ccc; }
.jp-InputPrompt, .jp-OutputPrompt, .anchor-link { display: none; }
table { border-collapse: collapse; } td, th { border: 1px solid #ccc; padding: .2rem .5rem; vertical-align: top; }
img { max-width: 100%; }
"""


def sources():
    """The files that become pages, by their paths in the checkout; [] where the package is installed without one."""
    if not all((TOP / name).is_file() for name in ("docs/index.md", "notebooks/01_train.ipynb", "setup.py")):
        return []
    found = [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *TOP.glob("benchmarks/*.md"), *TOP.glob("notebooks/*.ipynb")]
    return sorted(path.relative_to(TOP).as_posix() for path in found)


def read(source):
    """A page or notebook as a notebook."""
    import nbformat

    text = (TOP / source).read_text(encoding="utf-8")
    if source.endswith(".ipynb"):
        return nbformat.reads(text, as_version=4)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def title(notebook):
    return re.search(r"^# (.*)", notebook.cells[0].source, re.M)[1].replace("`", "")


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def target(source):
    """Where the page of a source lies in the tree."""
    return re.sub(r"\.(md|ipynb)$", ".html", source)


def build(folder, links):
    """Writes all pages. `links`: [(text, path)] of the line above each. Returns {source: title}."""
    from nbconvert.exporters import HTMLExporter

    exporter, titles = HTMLExporter(template_name="basic"), {}
    everything = sources()
    for source in everything:
        notebook = read(source)
        titles[source] = title(notebook)
        body = exporter.from_notebook_node(notebook)[0]
        write(folder, target(source), titles[source], linked(body, source, everything), links)
    return titles


def linked(body, source, everything):
    """The page with links to pages of the tree; a link to another file of the checkout becomes its text."""

    def heading(match):
        text = unescape(re.sub(r"<a class=\"anchor-link\".*?</a>|<[^>]*>", "", match[3]))
        return f'<h{match[1]} id="{escape(slug(text.strip()))}">{match[3]}</h{match[1]}>'

    def link(match):
        name, _, anchor = unescape(match[1]).partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name)) if name else source
        path = f"{path}/README.md" if f"{path}/README.md" in everything else path
        if "://" in name:
            return match[0]
        if path not in everything:
            return match[2]
        to = posixpath.relpath(target(path), posixpath.dirname(source) or ".") if name else ""
        return f'<a href="{escape(to + (f"#{anchor}" if anchor else ""))}">{match[2]}</a>'

    body = re.sub(r'<a class="anchor-link".*?</a>', "", body, flags=re.S)
    body = re.sub(r"<h(\d) id=\"([^\"]*)\">(.*?)</h\1>", heading, body, flags=re.S)
    return re.sub(r'<a href="([^"]*)">(.*?)</a>', link, body, flags=re.S)


def write(folder, path, name, body, links):
    """A page of the tree."""
    from pygments.formatters import HtmlFormatter

    up = posixpath.relpath(".", posixpath.dirname(path) or ".")
    nav = "".join(f'<a href="{posixpath.join(up, to)}">{escape(text)}</a>' for text, to in links)
    style = STYLE + HtmlFormatter(style="default").get_style_defs(".highlight")
    html = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>'
        f"<style>{style}</style></head>\n<body><nav>{nav}</nav>\n{body}\n</body></html>\n"
    )
    file = Path(folder, path)
    os.makedirs(file.parent, exist_ok=True)
    file.write_text(html, encoding="utf-8")
