"""The function that recurrent layers run."""

from pydist import _C

__all__ = ["recurrent"]

recurrent = _C.recurrent
