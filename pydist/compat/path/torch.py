"""Found before PyTorch's own by the children of `python -m pydist.compat`: hands over to pydist."""

import importlib
import sys

from pydist.compat import install

del sys.modules["torch"]
install()
sys.modules["torch"] = importlib.import_module("torch")
