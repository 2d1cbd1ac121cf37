"""tf.version: which version of TensorFlow's names this is."""

from pydist.tensorflow import __version__ as VERSION
from pydist.tensorflow._names import lacking as _lacking

__all__ = ["COMPILER_VERSION", "GIT_VERSION", "GRAPH_DEF_VERSION", "VERSION"]

GIT_VERSION, COMPILER_VERSION, GRAPH_DEF_VERSION = "pydist", "gcc", 0

__getattr__ = _lacking(__name__)
