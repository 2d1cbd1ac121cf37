"""Keras 3 over pydist: `from pydist import keras` returns Keras itself, whose tensors are pydist's.

Keras runs with its PyTorch backend, and `torch` is pydist (`pydist.compat`). `_seams` lists what this package changes in
Keras. `import keras` does the same under `python -m pydist.compat` and under the launcher's `--compat`.
"""

import sys

from pydist.keras import _seams

sys.modules[__name__] = _seams.load()
