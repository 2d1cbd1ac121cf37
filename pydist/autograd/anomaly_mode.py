"""Shows to which line of forward a failing backward belongs."""

from pydist import _C

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class set_detect_anomaly:
    """Turns anomaly mode on or off in the whole process. As a context manager it also restores the former mode.

    While it is on, every recorded op remembers the Python lines that called it. If its backward fails, a warning shows
    them. With `check_nan` a backward that gives a NaN raises RuntimeError. Only for debugging: recording takes much
    longer.
    """

    def __init__(self, mode, check_nan=True):
        self._before = _C._set_anomaly(mode, check_nan)

    def __enter__(self):
        return None

    def __exit__(self, *error):
        _C._set_anomaly(*self._before)


class detect_anomaly(set_detect_anomaly):
    """A context with set_detect_anomaly(True). Forward has to run inside as well.

    >>> import pydist
    >>> x = pydist.zeros(1, requires_grad=True)
    >>> with pydist.autograd.detect_anomaly():
    ...     y = x.sqrt() * 0  # its gradient is 0 * inf
    ...     try:
    ...         y.backward()
    ...     except RuntimeError as error:
    ...         print(str(error)[:4])
    sqrt
    """

    def __init__(self, check_nan=True):
        self._check_nan = check_nan

    def __enter__(self):
        self._before = _C._set_anomaly(True, self._check_nan)
