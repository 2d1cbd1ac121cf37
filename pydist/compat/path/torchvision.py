"""Children of `python -m pydist.compat` import this instead of torchvision. It installs pydist."""

import importlib
import sys

from pydist.compat import install

del sys.modules["torchvision"]
install()
sys.modules["torchvision"] = importlib.import_module("torchvision")
