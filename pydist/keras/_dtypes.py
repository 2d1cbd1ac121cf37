"""S2: Keras knows pydist's dtypes. It takes PyTorch's from their text, "torch.float32". Over PyTorch it computes results of
float64 in float32; here set_floatx("float64") means float64."""

import pydist


def _name_dtypes(module):
    ours = {repr(value).rpartition(".")[2]: value for value in vars(pydist).values() if isinstance(value, pydist.dtype)}
    module.PYTHON_DTYPES_MAP.update((ours[name], name) for name in module.ALLOWED_DTYPES if name in ours)


class _Narrowed(dict):
    """Keras' dtypes of results in the place of those of 64 bits: float32 for float64, but not in a program that has asked
    for float64 by set_floatx."""

    def __init__(self, module):
        super().__init__(module.BIT64_TO_BIT32_DTYPE)
        self._floatx = module.config.floatx

    def get(self, name, default=None):
        return name if name == "float64" == self._floatx() else super().get(name, default)


def _keep_float64(module):
    module.BIT64_TO_BIT32_DTYPE = _Narrowed(module)


def _change(module):
    _name_dtypes(module)
    _keep_float64(module)


SEAMS = {"keras.src.backend.common.dtypes": _change}
