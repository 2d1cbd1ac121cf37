"""Children of `python -m pydist.compat` import this instead of PyTorch. It installs pydist."""

import importlib
import sys

from pydist.compat import install

del sys.modules["torch"]
install()
sys.modules["torch"] = importlib.import_module("torch")
