"""Functions over all gradients and parameters: clipping, and one vector of all parameters."""

import math

from pydist import _C
from pydist._grad_mode import no_grad
from pydist._names import also_named
from pydist._replay import in_python

also_named(__name__, clip_grad="", convert_parameters="")


def _listed(tensors):
    return [tensors] if isinstance(tensors, _C.Tensor) else list(tensors)


def _grads(parameters):
    return [p.grad for p in _listed(parameters) if p.grad is not None]


def _on_one_gpu(tensors):
    return bool(tensors) and tensors[0].is_cuda and len({t.device for t in tensors}) == 1


def _by_device(tensors):
    """The tensors as lists with one device each."""
    parts = {}
    for t in tensors:
        parts.setdefault(t.device, []).append(t)
    return parts.values()


def _norm_on_gpu(tensors):
    """The 2-norm as a tensor on the GPU, without waiting for it."""
    return _C.sums_of_squares([t.contiguous() for t in tensors if t.numel()]).sum().sqrt()


@no_grad()
def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """(sum |t_i|^norm_type)^(1 / norm_type) over all elements of all tensors: a 0-d tensor with the dtype of the first
    tensor (if that is complex, the dtype of its parts).

    norm_type may be inf (largest |t_i|), 0 (number of tensors that are not all 0, as in PyTorch) or negative. Sums are
    computed in float64. With error_if_nonfinite, raises RuntimeError for a norm that is inf or NaN.

    >>> import pydist
    >>> pydist.nn.utils.get_total_norm([pydist.tensor([3.0]), pydist.tensor([0.0, 4.0])]).item()
    5.0
    """
    tensors, norm_type = _listed(tensors), float(norm_type)
    if not tensors:
        return _C.tensor(0.0)
    if norm_type == 2.0 and not error_if_nonfinite and _on_one_gpu([t for t in tensors if t.numel()]):
        return _norm_on_gpu(tensors).to(tensors[0].dtype)
    filled, device = [t.contiguous() for t in tensors if t.numel()], tensors[0].device
    if norm_type == 2.0:
        norm = math.sqrt(sum(_C.sums_of_squares(some).sum().item() for some in _by_device(filled)))
    elif math.isinf(norm_type):
        extreme = _C.max if norm_type > 0 else _C.min
        each = [extreme(t.abs()).double().to(device) for t in filled]
        norm = extreme(_C.stack(each)).item() if each else 0.0
    elif norm_type == 0.0:
        norm = float(sum((t != 0).any().item() for t in filled))
    else:
        sums = [t.abs().double().pow(norm_type).sum().to(device) for t in filled] or [_C.zeros((), device=device)]
        norm = _C.stack(sums).sum().pow(1.0 / norm_type).item()
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return _C.tensor(norm, dtype=tensors[0].dtype.to_real(), device=device)


@no_grad()
def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Multiplies all gradients by min(1, max_norm / (total_norm + 1e-6)), in place."""
    grads = _grads(parameters)
    if isinstance(total_norm, _C.Tensor) and total_norm.is_cuda and _on_one_gpu(grads):
        factor = (float(max_norm) / (total_norm.double() + 1e-6)).clamp(max=1.0)
        # for other dtypes the factor is a float32
        alone = [g for g in grads if not g.is_contiguous() or g.dtype is _C.float64]
        for grad in alone:
            grad.mul_(factor.to(grad.dtype))
        alone = set(map(id, alone))
        _C.unscale(
            [g for g in grads if id(g) not in alone], factor.float().reshape(1), _C.zeros(1, device=factor.device)
        )
        return
    factor = float(max_norm) / (float(total_norm) + 1e-6)
    if factor >= 1.0:  # false for NaN
        return
    for some in _by_device([g for g in grads if g.is_contiguous()]):
        _C.scale_tensors(some, factor)
    for grad in grads:
        if not grad.is_contiguous():
            grad.mul_(factor)


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scales all gradients, in place, so that their norm as one vector is at most max_norm. Returns the norm before.

    `parameters` is one tensor or an iterable; those without a gradient do not count. The factor is min(1, max_norm /
    (norm + 1e-6)). `foreach` is accepted and ignored.

    >>> import pydist
    >>> p = pydist.zeros(2, requires_grad=True)
    >>> p.grad = pydist.tensor([3.0, 4.0])
    >>> pydist.nn.utils.clip_grad_norm_([p], 1.0).item(), round(p.grad[1].item(), 4)
    (5.0, 0.8)
    """
    return _clip(_listed(parameters), max_norm, norm_type, error_if_nonfinite)


@in_python
def _clip(parameters, max_norm, norm_type, error_if_nonfinite):
    norm = get_total_norm(_grads(parameters), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


@no_grad()
def clip_grad_norm(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The deprecated name of clip_grad_norm_."""
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def clip_grad_value_(parameters, clip_value, foreach=None):
    """Limits every element of the gradients to [-clip_value, clip_value], in place."""
    clip_value = float(clip_value)
    for grad in _grads(parameters):
        grad.clamp_(-clip_value, clip_value)


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
