"""Which line of forward a failing backward belongs to."""

from pydist import _C

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class set_detect_anomaly:
    """Turns anomaly mode on or off, in the whole process; as a context manager also restores what it was.

    While it is on, every recorded op remembers the Python lines that called it: where its backward fails, a warning shows
    them. With `check_nan` a backward that gives a NaN raises RuntimeError. For bug hunting: recording takes much longer.
    """

    def __init__(self, mode, check_nan=True):
        self._before = _C._set_anomaly(mode, check_nan)

    def __enter__(self):
        return None

    def __exit__(self, *error):
        _C._set_anomaly(*self._before)


class detect_anomaly(set_detect_anomaly):
    """set_detect_anomaly(True) from entering to leaving the context; forward has to run inside as well.

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
