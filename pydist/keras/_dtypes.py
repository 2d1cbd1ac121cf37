"""S2: Keras knows pydist's dtypes. It takes PyTorch's from their text, "torch.float32"."""

import pydist


def _name_dtypes(module):
    ours = {str(value).rpartition(".")[2]: value for value in vars(pydist).values() if isinstance(value, pydist.dtype)}
    module.PYTHON_DTYPES_MAP.update((ours[name], name) for name in module.ALLOWED_DTYPES if name in ours)


SEAMS = {"keras.src.backend.common.dtypes": _name_dtypes}
