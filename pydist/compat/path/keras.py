"""Children of `python -m pydist.compat` import this instead of Keras. It installs pydist."""

import importlib
import sys

from pydist.compat import install

del sys.modules["keras"]
install()
sys.modules["keras"] = importlib.import_module("pydist.keras")
