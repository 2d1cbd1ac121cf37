"""The reference: a page for each public module, by pdoc."""

import posixpath
import re
import types
import warnings
from contextlib import suppress

from pydist._docs import names, signatures

FOLDER = "reference"


def build(folder):
    """Writes the pages into folder/reference. Returns the documented modules and what could not be imported."""
    import pdoc.doc  # here: the module can be imported without the extra `docs`
    import pdoc.render

    modules, missing = names.modules()
    offered = {name: names.public(module) for name, module in modules.items()}
    homes = names.homes(offered)
    _move(offered, homes)
    pages = {name: pdoc.doc.Module(_page(name, modules[name].__doc__, offered[name], homes)) for name in modules}
    for name, page in pages.items():
        page.submodules = [pages[inner] for inner in pages if inner.rpartition(".")[0] == name]
    pdoc.render.configure(docformat="markdown", show_source=False, search=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of annotations in strings, which are shown as they are written
        for name, page in pages.items():
            file = folder / FOLDER / f"{name.replace('.', '/')}.html"
            file.parent.mkdir(parents=True, exist_ok=True)
            up = "../" * (name.count(".") + 1)
            html = _without_dead_links(pdoc.render.html_module(page, pages)).replace(
                '<nav class="pdoc">',
                f'<nav class="pdoc"><a class="pdoc-button" href="{up}index.html">Documentation</a>',
            )
            file.write_text(html, encoding="utf-8")
        (folder / FOLDER / "search.js").write_text(pdoc.render.search_index(pages), encoding="utf-8")
    return modules, missing


def _without_dead_links(html):
    """A page whose links to places on itself are there: pdoc links inherited members that it does not show."""
    there = set(re.findall(r'\bid="([^"]+)"', html))
    return re.sub(r'<a href="#([^"]+)">(.*?)</a>', lambda found: found[0 if found[1] in there else 2], html)


def _move(offered, homes):
    """Makes functions and classes say that they come from where they are documented: pdoc's links go there. Classes
    that are documented nowhere get no link."""
    for things in offered.values():
        for thing in things.values():
            for each in thing.__mro__ if isinstance(thing, type) else [thing]:
                if isinstance(each, (type, types.FunctionType)) and each.__module__ in offered:
                    package, _, name = each.__module__.rpartition(".")
                    place = homes.get(id(each), (f"{package}._{name}", ""))
                    with suppress(TypeError):  # a class of C
                        each.__module__ = place[0]


def _page(name, text, things, homes):
    """A module of what its page documents; its text has links to those things that are documented elsewhere."""
    page = types.ModuleType(name, text)
    own, elsewhere = [], []
    for called, thing in sorted(things.items()):
        home = homes[id(thing)] if callable(thing) else (name, called)
        if home[0] == name:
            own.append(called)
            setattr(page, called, signatures.shown(thing, called, name))
        else:
            to = posixpath.relpath(
                f"{home[0].replace('.', '/')}.html", posixpath.dirname(name.replace(".", "/")) or "."
            )
            elsewhere.append(f"- [{called}]({to}#{home[1]}) of {home[0]}")
    page.__all__ = own
    if elsewhere:
        page.__doc__ = "\n".join([text or "", "", "Documented elsewhere:", "", *elsewhere])
    return page
