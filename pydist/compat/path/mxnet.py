"""Children of `python -m pydist.compat` import this first. It returns the installed package, or pydist's facade."""

import importlib
import sys

from pydist.compat import install

del sys.modules["mxnet"]
install()
sys.modules["mxnet"] = importlib.import_module("mxnet")
