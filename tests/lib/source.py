"""The files of the source tree, for tests that read them."""

import fnmatch
import re
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]

TEXT = (
    "*.c", "*.h", "*.def", "*.inc", "*.cu", "*.py", "*.pyi", "*.toml", "*.md", "*.txt", "*.in", "*.cfg", "*.sh",
    "*.yml", "*.yaml", "*.ipynb", "Makefile", "run", "full", ".gitignore",
)  # fmt: skip


def files(*patterns):
    """The source files that match: git's, or all where there is no git."""
    if (TOP / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", TOP, "ls-files", "-z"], capture_output=True, text=True, check=True
        ).stdout
        found = [Path(name) for name in listed.split("\0") if name and (TOP / name).is_file()]
    else:
        ignored = [line.rstrip("/") for line in (TOP / ".gitignore").read_text().split() if line.endswith("/")]
        ignored = re.compile("|".join(map(fnmatch.translate, ignored)))
        found = [p.relative_to(TOP) for p in TOP.rglob("*") if p.is_file()]
        found = [p for p in found if not any(map(ignored.match, p.parts[:-1]))]
    return sorted(p for p in found if any(p.match(pattern) for pattern in patterns))
