"""The error of all checkpoints."""

__all__ = ["CheckpointException"]


class CheckpointException(RuntimeError):
    """A checkpoint was not saved or not loaded. `failures`: {rank: the text or the exception of that rank}."""

    def __init__(self, msg, failures=None):
        super().__init__(msg)
        self._failures = dict(failures or {})

    @property
    def failures(self):
        """{rank: the text or the exception of that rank}; empty if no rank is to blame."""
        return self._failures
