"""PyTorch's names for how async_save copies. pydist's threads copy in C, whichever of these is given."""

__all__ = ["AsyncStager", "BlockingAsyncStager", "DefaultStager"]


class AsyncStager:
    """Base class. async_save takes an object of it and needs nothing of it."""

    def close(self):
        """Does nothing."""


class DefaultStager(AsyncStager):
    """What async_save does in any case: threads copy while the program goes on."""


class BlockingAsyncStager(AsyncStager):
    """async_save returns when all is copied."""
