"""The norm of all gradients as one vector, and clipping by it."""

import math

from pydist import _C
from pydist._grad_mode import no_grad
from pydist._norms import by_device, over_ranks, parts_of, two_norm
from pydist._replay import in_python

watching = []  # weak methods that get (parameters, max_norm, norm_type) before each clip_grad_norm_ (Join)


def _listed(tensors):
    return [tensors] if isinstance(tensors, _C.Tensor) else list(tensors)


def _grads(parameters):
    return [p.grad for p in _listed(parameters) if p.grad is not None]


def _on_one_gpu(tensors):
    return bool(tensors) and tensors[0].is_cuda and len({t.device for t in tensors}) == 1


def _extreme(tensors, norm_type):
    """The largest or the least of all |elements|, as a float."""
    extreme, none = (_C.max, 0.0) if norm_type > 0 else (_C.min, math.inf)
    each = [extreme(t.abs()).double().to("cpu") for t in tensors]
    return extreme(_C.stack(each)).item() if each else none


def _powers(tensors, norm_type):
    """The sum of all |elements| ^ norm_type, as a float."""
    sums = [t.abs().double().pow(norm_type).sum().to("cpu") for t in tensors]
    return _C.stack(sums).sum().item() if sums else 0.0


def _nonzero(tensors, over):
    """How many tensors are not all 0; those over groups are parts."""
    found = _C.tensor([float((t != 0).any().item()) if t.numel() else 0.0 for t in tensors], device="cpu")
    for one in over:
        over_ranks(one, found, "MAX")
    return float(found.sum().item())


def _norm(tensors, norm_type, group):
    """The norm of tensors that are not empty, as a float."""
    if norm_type == 2.0:
        return two_norm(tensors, group)
    for t in tensors:
        if not (t.is_floating_point() or t.is_complex()):
            raise TypeError(f"get_total_norm: got a tensor of {t.dtype} (expected a complex or floating dtype)")
    plain, spread = parts_of(tensors)
    if norm_type == 0.0:
        return over_ranks(group, _nonzero(plain, ()) + sum(_nonzero(parts, over.groups) for over, parts in spread))
    compute, op = (_extreme, "MAX" if norm_type > 0 else "MIN") if math.isinf(norm_type) else (_powers, "SUM")
    found = [compute(plain, norm_type)]
    for over, parts in spread:
        value = compute([t for t in parts if t.numel()], norm_type)
        for one in over.groups:
            value = over_ranks(one, value, op)
        found.append(value)
    if math.isinf(norm_type):
        return over_ranks(group, max(found) if norm_type > 0 else min(found), op)
    total = over_ranks(group, sum(found))
    return _C.tensor(total, dtype=_C.float64, device="cpu").pow(1.0 / norm_type).item()


def _replicated(total, mesh):
    from pydist.distributed.tensor import DTensor

    return DTensor.from_local(total, mesh)


@no_grad()
def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None, *, group=None):
    """(sum |t_i|^norm_type)^(1 / norm_type) over all elements of all tensors: a 0-d tensor with the dtype of the first
    tensor (if that is complex, the dtype of its parts; float32 if there is no tensor), on its device.

    On a CPU the 2-norm is exact until it is rounded to float64: its bits do not depend on how the elements are cut into
    tensors, threads or ranks. NaN and infinities count whatever else there is. On a GPU squares are added in float64, in
    an order that the shapes fix, and so are the powers of other norms everywhere.

    Parts of DTensors count as one tensor: their elements are added over the ranks that have different parts, so all ranks
    of their mesh call it. The norm is a replicated DTensor then.

    With `group`, a process group, the tensors are this rank's part of one vector, and the norm is that of all ranks'
    parts; elements that several ranks hold count several times. All ranks of the group call it, also those without a
    tensor. Cost: one all_reduce of 1,088 bytes, of 8 bytes for other norms.

    norm_type may be inf (largest |t_i|), -inf (least), 0 (number of tensors that are not all 0, as in PyTorch) or
    another number. `foreach` is accepted and ignored. With error_if_nonfinite, raises RuntimeError for a norm that is
    inf or NaN. Raises TypeError for tensors that are not floating.

    >>> import pydist
    >>> pydist.nn.utils.get_total_norm([pydist.tensor([3.0]), pydist.tensor([0.0, 4.0])]).item()
    5.0
    >>> def part(rank):
    ...     return pydist.nn.utils.get_total_norm(pydist.full((8,), 3.0 + rank), group=pydist.distributed.group.WORLD)
    >>> [norm.item() for norm in pydist.testing.run_ranks(2, part)]  # the root of 8 * 9 + 8 * 16
    [14.142135620117188, 14.142135620117188]
    """
    tensors, norm_type = _listed(tensors), float(norm_type)
    filled = [t for t in tensors if t.numel()]
    if (
        norm_type == 2.0
        and group is None
        and not error_if_nonfinite
        and _on_one_gpu(filled)
        and not parts_of(filled)[1]
    ):
        # the host does not wait for it
        return _C.sums_of_squares(filled).sum().sqrt().to(tensors[0].device, tensors[0].dtype.to_real())
    norm = _norm(filled, norm_type, group)
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    if not tensors:
        return _C.tensor(norm)
    total = _C.tensor(norm, dtype=tensors[0].dtype.to_real(), device=tensors[0].device)
    spec = _C.spread_of(tensors[0])
    return total if spec is None else _replicated(total, spec.mesh)


@no_grad()
def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Multiplies all gradients by min(1, max_norm / (total_norm + 1e-6)), in place. `foreach` is accepted and ignored.

    >>> import pydist
    >>> p = pydist.zeros(2, requires_grad=True)
    >>> p.grad = pydist.tensor([3.0, 4.0])
    >>> pydist.nn.utils.clip_grads_with_norm_([p], 1.0, pydist.tensor(10.0))
    >>> p.grad
    tensor([0.3000, 0.4000])
    """
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
    for some in by_device([g for g in grads if g.is_contiguous()]):
        _C.scale_tensors(some, factor)
    for grad in grads:
        if not grad.is_contiguous():
            grad.mul_(factor)


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None, *, group=None):
    """Scales all gradients, in place, so that their norm as one vector is at most max_norm. Returns the norm before.

    `parameters` is one tensor or an iterable; those without a gradient do not count. The factor is min(1, max_norm /
    (norm + 1e-6)). `group`, norm_type and error_if_nonfinite are those of get_total_norm: with a group the gradients
    are this rank's part of one vector. `foreach` is accepted and ignored.

    >>> import pydist
    >>> p = pydist.zeros(2, requires_grad=True)
    >>> p.grad = pydist.tensor([3.0, 4.0])
    >>> pydist.nn.utils.clip_grad_norm_([p], 1.0).item(), round(p.grad[1].item(), 4)
    (5.0, 0.8)
    """
    return _clip(_listed(parameters), max_norm, norm_type, error_if_nonfinite, group)


@in_python
def _clip(parameters, max_norm, norm_type, error_if_nonfinite, group):
    for ref in list(watching):
        watch = ref()
        if watch is not None:
            watch(parameters, max_norm, norm_type)
    norm = get_total_norm(_grads(parameters), norm_type, error_if_nonfinite, group=group)
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
