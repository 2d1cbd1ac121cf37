"""tf.compat.v1.logging: the logger "tensorflow"."""

import logging as _logging

from pydist.tensorflow._flow import get_logger as _get_logger
from pydist.tensorflow._names import lacking as _lacking

DEBUG, INFO, WARN, ERROR, FATAL = _logging.DEBUG, _logging.INFO, _logging.WARNING, _logging.ERROR, _logging.CRITICAL


def set_verbosity(v):
    """Messages below this level are left out."""
    _get_logger().setLevel(int(v) if not isinstance(v, str) else v)


def get_verbosity():
    """The level below which messages are left out."""
    return _get_logger().getEffectiveLevel()


def debug(msg, *args, **kwargs):
    """Logs a message."""
    _get_logger().debug(msg, *args, **kwargs)


def info(msg, *args, **kwargs):
    """Logs a message."""
    _get_logger().info(msg, *args, **kwargs)


def warning(msg, *args, **kwargs):
    """Logs a message."""
    _get_logger().warning(msg, *args, **kwargs)


def error(msg, *args, **kwargs):
    """Logs a message."""
    _get_logger().error(msg, *args, **kwargs)


def fatal(msg, *args, **kwargs):
    """Logs a message."""
    _get_logger().fatal(msg, *args, **kwargs)


warn = warning

__getattr__ = _lacking(__name__)
