"""Functions over all gradients and parameters: clipping, and one vector of all parameters."""

from pydist import _C
from pydist._names import also_named
from pydist.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)

also_named(__name__, convert_parameters="")


def parameters_to_vector(parameters):
    """All elements of all parameters as one vector. Autograd records it."""
    return _C.cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec, parameters):
    """Gives each parameter its part of `vec` as its data. Raises TypeError if vec is not a tensor, ValueError if its
    length is not the number of elements."""
    if not isinstance(vec, _C.Tensor):
        raise TypeError(f"expected Tensor, but got: {type(vec).__name__}")
    parameters = list(parameters)
    wanted = sum(p.numel() for p in parameters)
    if vec.numel() != wanted:
        raise ValueError(f"vector_to_parameters: vec has {vec.numel()} elements (expected {wanted})")
    begin = 0
    for p in parameters:
        p.data = vec.detach()[begin : begin + p.numel()].reshape(p.shape)
        begin += p.numel()


_FROM = dict.fromkeys(("weight_norm", "remove_weight_norm", "spectral_norm", "remove_spectral_norm"), "norms")


_FROM |= dict.fromkeys(
    ("fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"), "fusion"
)


def __getattr__(name):
    from importlib import import_module

    if name in ("fusion", "parametrize", "parametrizations", "prune", "rnn"):
        return import_module(f"pydist.nn.utils.{name}")
    if name in _FROM:
        return getattr(import_module(f"pydist.nn.utils.{_FROM[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
