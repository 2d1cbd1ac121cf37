"""Shortcuts through functions of Keras that run hundreds of times in each step: the most common case first, with what Keras'
own code gives for it, and that code for all others."""

import numpy as np

import pydist
from pydist.nn.parameter import Parameter

_PLAIN = {bool, int, float, str, type(None)}
TENSORS = {pydist.Tensor, Parameter}


def _standardize_dtype(module):
    """Dtypes have names once and for all."""
    theirs, known = module.standardize_dtype, {}

    def standardize_dtype(dtype):
        try:
            return known[dtype]
        except (KeyError, TypeError):
            name = theirs(dtype)
            if isinstance(dtype, (str, type, pydist.dtype, np.dtype)):
                known[dtype] = name
            return name

    module.standardize_dtype = standardize_dtype


def _convert(module):
    """Tensors on the default device, and variables outside of scopes."""
    from keras.src.backend.common import global_state

    here, default, Variable = global_state.GLOBAL_STATE_TRACKER, module.DEFAULT_DEVICE, module.Variable
    their_convert, their_value, to_dtype = module.convert_to_tensor, Variable.value.fget, module.to_torch_dtype

    def get_device():
        return getattr(here, "torch_device", None) or default

    def convert_to_tensor(x, dtype=None, sparse=None, ragged=None):
        if type(x) is Variable:
            x = x.value
        if type(x) not in TENSORS or sparse or ragged or getattr(here, "torch_device", None) or not x.is_cpu:
            return their_convert(x, dtype, sparse, ragged)
        return x if dtype is None else x.to(to_dtype(dtype))

    def value(self):
        scopes = vars(here)
        for name in ("stateless_scope", "autocast_scope", "torch_device"):
            if scopes.get(name) is not None:
                return their_value(self)
        return their_value(self) if self._value is None else self._value

    module.get_device = get_device
    if default == "cpu":
        module.convert_to_tensor = convert_to_tensor
    Variable.value = property(value)


def _set_plain(module):
    """Numbers, flags and words that replace others."""
    theirs = module.Layer.__setattr__

    def __setattr__(self, name, value):
        own = self.__dict__
        if type(value) in _PLAIN and type(own.get(name, self)) in _PLAIN:
            own[name] = value
        else:
            theirs(self, name, value)

    module.Layer.__setattr__ = __setattr__


SEAMS = {
    "keras.src.backend.common.variables": _standardize_dtype,
    "keras.src.backend.torch.core": _convert,
    "keras.src.layers.layer": _set_plain,
}
