"""Where pip installs NVIDIA's libraries."""

import os
import sys

NCCL_WHEEL = "nvidia-nccl-cu13"


def folders():
    """The folders `nvidia` that hold the libraries of NVIDIA's wheels, one for each site-packages folder that has
    some."""
    below = (os.path.join(path, "nvidia") for path in dict.fromkeys(sys.path) if path.endswith("-packages"))
    return [folder for folder in below if os.path.isdir(folder)]


def nccl_version_text(version):
    """NCCL's version number as text: "2.28.9" for 22809."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
