"""`python -m pydist.info`: what this build is and what it uses on this machine, for reports of problems."""

import os
import platform

from pydist import _C, __version__
from pydist._onednn import candidates


def lines():
    """The report, line by line."""
    yield f"pydist {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield f"instruction set: {_C.isa()}"
    yield f"threads: {_C.get_num_threads()} of {len(os.sched_getaffinity(0))} cores"
    version = _C.onednn_version()
    yield f"oneDNN: {version or 'not there (portable kernels); looked for ' + ', '.join(candidates())}"
    yield "environment:"
    for name, value, text in _C.flags():
        yield f"  {name}={value}  {text}"


if __name__ == "__main__":
    print("\n".join(lines()))
