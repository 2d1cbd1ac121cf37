"""Found first by the children of `python -m pydist.compat`: gives the installed package, or pydist's writer."""

import importlib
import sys

from pydist.compat import install

del sys.modules["tensorboardX"]
install()
sys.modules["tensorboardX"] = importlib.import_module("tensorboardX")
