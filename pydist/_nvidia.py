"""Where pip puts NVIDIA's libraries."""

import os
import sys


def folders():
    """The folders `nvidia` below which the wheels' libraries lie, one for each place of packages that has some."""
    below = (os.path.join(path, "nvidia") for path in dict.fromkeys(sys.path) if path.endswith("-packages"))
    return [folder for folder in below if os.path.isdir(folder)]
