"""Where oneDNN's library may be. Imported with the package, so it only puts names together: the engine looks when it first
needs a matmul or a convolution.

The wheel onednn-cpu-gomp puts the library two folders above its site-packages: into the lib folder of the environment or,
with pip's --user, of the user's base.
"""

import os
import sys

NAME = "libdnnl.so.3"


def candidates():
    """Paths to try in order: ONEDNN_ROOT, beside the installed packages, the environment, the system's loader."""
    root = os.environ.get("ONEDNN_ROOT")
    folders = [f"{root}/lib", f"{root}/lib64"] if root else []
    folders += [os.path.dirname(os.path.dirname(path)) for path in sys.path if path.endswith("-packages")]
    folders.append(f"{sys.prefix}/lib")
    return [*dict.fromkeys(f"{folder}/{NAME}" for folder in folders), NAME]
