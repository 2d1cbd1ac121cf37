"""Where oneDNN's library may be. Imported when the engine first needs a matmul or a convolution."""

import os
import site
import sys
from importlib import metadata

NAME = "libdnnl.so.3"


def _from_wheel():
    try:
        files = metadata.files("onednn-cpu-gomp") or []
    except metadata.PackageNotFoundError:
        return []
    return [str(f.locate()) for f in files if f.name == NAME]


def candidates():
    """Paths to try in order: ONEDNN_ROOT, the wheel, the environment, the user's base, the system's loader."""
    root = os.environ.get("ONEDNN_ROOT")
    folders = [os.path.join(root, lib) for lib in ("lib", "lib64")] if root else []
    found = [os.path.join(folder, NAME) for folder in folders] + _from_wheel()
    found += [os.path.join(base, "lib", NAME) for base in (sys.prefix, site.USER_BASE) if base]
    existing = [os.path.realpath(path) for path in found if os.path.exists(path)]
    return [*dict.fromkeys(existing), NAME]
