"""Links in a tree of HTML files."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote


class Page(HTMLParser):
    """`links`: what it refers to; `named`: the words of its links; `anchors`: what can be referred to in it; `text`: what
    it says."""

    def __init__(self, path):
        super().__init__()
        self.path, self.links, self.anchors, self._said = path, [], {""}, []
        self.named, self._inside = set(), False
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(self._said)

    def handle_starttag(self, tag, attributes):
        self._inside = tag == "a"
        for name, value in attributes:
            if name in ("href", "src") and value is not None:
                self.links.append((tag, value))
            elif name in ("id", "name") and value:
                self.anchors.add(value)

    def handle_data(self, data):
        self._said.append(data)
        if self._inside:
            self.named.add(data)


def pages(folder):
    """{path: Page} of a folder and those below."""
    return {path.resolve(): Page(path) for path in sorted(Path(folder).rglob("*.html"))}


def dead_links(found):
    """ "page: link" of each link to a file or anchor that is not there, and of what would be loaded from elsewhere."""
    for path, page in found.items():
        for tag, link in page.links:
            if link.startswith("data:"):
                continue
            if "://" in link:
                if tag != "a":  # a reader may go there, the page itself needs nothing
                    yield f"{path}: {link}"
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.is_file() or anchor and target in found and anchor not in found[target].anchors:
                yield f"{path}: {link}"
