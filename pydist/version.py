"""Versions: of pydist, and of what it was built with (None: without)."""

from pydist import __version__

__all__ = ["__version__", "cuda", "debug", "git_version", "hip"]

cuda = hip = git_version = None
debug = False
