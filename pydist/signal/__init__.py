"""Signals: `signal.windows`, with PyTorch's names."""

from pydist.signal import windows

__all__ = ["windows"]
