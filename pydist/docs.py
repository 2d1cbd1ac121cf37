"""`python -m pydist.docs OUT`: the documentation as HTML in a new folder OUT; open OUT/index.html.

The reference has every public name of the package, from the documentation of its functions and classes and, for those of
C, the types of _C.pyi. In a checkout the pages of docs/ and the tutorials of notebooks/ are there, too; an installed
package does not have them. Nothing is fetched: the build and the pages need no network. Needs `pip install
'pydist[docs]'`.

OUT must not exist, or be an empty folder. It is filled when all is written.
"""

import argparse
import os
import shutil
import sys
import tempfile
from html import escape
from pathlib import Path

EXTRA = "pip install 'pydist[docs]'"
LINKS = [("pydist", "index.html"), ("Reference", "reference/pydist.html")]


def build(out):
    """Writes the documentation into the empty folder `out`. Returns {what is left out: why}."""
    from pydist import __version__
    from pydist._docs import pages, reference

    titles = pages.build(out, LINKS)
    modules, missing = reference.build(out)

    def section(name, items):
        rows = "".join(f'<li><a href="{to}">{escape(text)}</a>{escape(more)}</li>' for text, to, more in items)
        return f"<h2>{name}</h2><ul>{rows}</ul>" if rows else ""

    def first_line(module):
        return ": " + (module.__doc__ or "").strip().partition("\n")[0].replace("`", "") if module.__doc__ else ""

    body = f"<h1>pydist {__version__}</h1>"
    for name, start in (("Tutorials", "notebooks/"), ("Pages", "docs/"), ("Project", "")):
        own = [source for source in titles if source.startswith(start) and (start or "/" not in source)]
        own = [source for source in own if "/decisions/" not in source or source.endswith("README.md")]
        body += section(name, [(titles[source], pages.target(source), "") for source in own])
    named = [(name, f"reference/{name.replace('.', '/')}.html", first_line(module)) for name, module in modules.items()]
    pages.write(out, "index.html", f"pydist {__version__}", body + section("Reference", named), LINKS)
    return missing if titles else {**missing, "pages and tutorials": "they are not installed (expected a checkout)"}


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m pydist.docs", description=__doc__.split("\n\n")[0])
    parser.add_argument("out", metavar="OUT", help="a folder that does not exist yet, or is empty")
    out = Path(parser.parse_args().out).resolve()
    try:
        import nbconvert  # noqa: F401
        import pdoc  # noqa: F401
    except ImportError as error:
        sys.exit(f"docs: {error} (expected the extra: {EXTRA})")
    there = os.path.lexists(out)
    if there and (not out.is_dir() or os.listdir(out)):
        sys.exit(f"docs: {out} is there already (expected a folder that does not exist, or is empty)")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".pydist-docs-", dir=out if there else out.parent))
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        sys.exit(f"docs: {out} cannot be written: {why} (expected a path below folders that you may write)")
    try:
        left_out = build(work)
        if there:
            for path in work.iterdir():
                path.rename(out / path.name)
        else:
            work.chmod(0o777 & ~_umask())
            work.rename(out)
    except OSError as error:
        sys.exit(f"docs: {out} cannot be written: {error} (expected room for some 25 MB)")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for name, why in left_out.items():
        print(f"docs: left out: {name}: {why}", file=sys.stderr)
    print(f"docs: {out / 'index.html'}")


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


if __name__ == "__main__":
    main()
