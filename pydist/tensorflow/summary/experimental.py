"""tf.summary.experimental: the step of summaries that name none."""

import contextlib as _contextlib

from pydist.tensorflow._names import lacking as _lacking
from pydist.tensorflow.summary import _here


def set_step(step):
    """Sets the step of summaries that name none."""
    _here.steps[-1] = step


def get_step():
    """The step of summaries that name none; None: they have to."""
    return _here.steps[-1]


@_contextlib.contextmanager
def summary_scope(name, default_name="summary", values=None):
    """A block for one summary: (its tag, the name of the scope)."""
    tag = name or default_name
    yield tag, f"{tag}/"


__getattr__ = _lacking(__name__)
