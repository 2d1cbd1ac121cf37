"""PyTorch's names for the reader and the writer of folders of safetensors files."""

from pydist.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

__all__ = ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"]


class HuggingFaceStorageReader(FileSystemReader):
    """FileSystemReader by another name: it reads folders of safetensors files, with or without an index."""


class HuggingFaceStorageWriter(FileSystemWriter):
    """FileSystemWriter by another name: its files are safetensors. `python -m pydist.checkpoint consolidate` makes of them
    what Hugging Face's loaders read."""

    def __init__(self, path, fqn_to_index_mapping=None, thread_count=2, **options):
        super().__init__(path, thread_count=thread_count, **options)
