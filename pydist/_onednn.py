"""Where oneDNN's library may be."""

import os
import sys

NAME = "libdnnl.so.3"


def candidates():
    """Paths to try, in order: ONEDNN_ROOT, the environment, two folders above installed packages, every folder that
    modules come from, the user's base, the system's loader. Cheap enough for import: nothing is opened or imported."""
    root, home = os.environ.get("ONEDNN_ROOT"), os.environ.get("HOME")
    folders = [f"{root}/lib", f"{root}/lib64"] if root else []
    folders += [f"{base}/lib" for base in (sys.prefix, *sys.path, home and f"{home}/.local") if base]
    folders += [os.path.dirname(os.path.dirname(path)) for path in sys.path if path.endswith("-packages")]
    return [path for path in (f"{folder}/{NAME}" for folder in dict.fromkeys(folders)) if os.path.exists(path)] + [NAME]
