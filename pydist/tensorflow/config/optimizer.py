"""tf.config.optimizer: settings of TensorFlow's compilers. There is none here: they are kept and change nothing."""

from pydist.tensorflow._names import lacking as _lacking
from pydist.tensorflow.config import _state


def set_jit(enabled):
    """Accepted: there is no XLA."""
    _state["flags"]["jit"] = enabled


def get_jit():
    """What set_jit was called with, or ""."""
    return "autoclustering" if _state["flags"].get("jit") in (True, "autoclustering") else ""


def set_experimental_options(options):
    """Accepted: there are no graphs to rewrite."""
    _state["flags"].setdefault("options", {}).update(options)


def get_experimental_options():
    """What set_experimental_options was called with."""
    return dict(_state["flags"].get("options", {}))


__getattr__ = _lacking(__name__)
