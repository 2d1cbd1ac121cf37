"""Where NCCL's library may be."""

import os
import sys

WHEEL = "nvidia-nccl-cu13"
_NAME = "nvidia/nccl/lib/libnccl.so.2"  # of the wheels nvidia-nccl-cu13 and nvidia-nccl-cu12


def candidates():
    """Files that are there, in the order of sys.path, the user's base last. Cheap: nothing is opened or imported."""
    home = os.environ.get("HOME")
    version = "python{}.{}".format(*sys.version_info[:2])
    folders = [*sys.path, home and f"{home}/.local/lib/{version}/site-packages"]
    return [path for path in dict.fromkeys(f"{folder}/{_NAME}" for folder in folders if folder) if os.path.exists(path)]


def version_text(version):
    """"2.28.9" of NCCL's number 22809."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
