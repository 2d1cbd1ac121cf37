"""The base classes of readers and writers, where PyTorch has them."""

from pydist.distributed.checkpoint.filesystem import StorageReader, StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
