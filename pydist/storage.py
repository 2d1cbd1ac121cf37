"""The names of `torch.storage` that pickles of PyTorch's tensors (by `pickle` itself) use."""

import io


def _load_from_bytes(b):
    """The storage in these bytes, which are a file of their own inside the pickle. No code in it is run."""
    from pydist.serialization import load

    return load(io.BytesIO(b))
