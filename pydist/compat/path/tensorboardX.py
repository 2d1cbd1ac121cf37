"""Children of `python -m pydist.compat` import this first. It returns the installed package, or pydist's writer."""

import importlib
import sys

from pydist.compat import install

del sys.modules["tensorboardX"]
install()
sys.modules["tensorboardX"] = importlib.import_module("tensorboardX")
