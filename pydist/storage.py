"""What pickles of PyTorch's tensors (by `pickle` itself) name of `torch.storage`."""

import io


def _load_from_bytes(b):
    """The storage in these bytes, a file of its own within the pickle. Nothing in it is run."""
    from pydist.serialization import load

    return load(io.BytesIO(b))
