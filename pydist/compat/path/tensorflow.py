"""Children of `python -m pydist.compat` import this instead of TensorFlow. It installs pydist."""

import importlib
import sys

from pydist.compat import install

del sys.modules["tensorflow"]
install()
sys.modules["tensorflow"] = importlib.import_module("tensorflow")
