"""Checks of gradients against finite differences: `gradcheck` for the first order, `gradgradcheck` for the second."""

import itertools
import warnings

from pydist import _C
from pydist._grad_mode import enable_grad, no_grad

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


class GradcheckError(RuntimeError):
    """The numerical and the analytical Jacobian differ."""


def _as_tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _floats(values):
    return [v for v in values if isinstance(v, _C.Tensor) and v.dtype.is_floating_point]


def _numerical(function, inputs, x, eps):
    """d(outputs)/dx by central differences: one matrix for each output (elements of x, elements of the output)."""
    data, columns = x.data, []  # .data: these writes must not count as in-place changes of x
    with no_grad():
        for place in itertools.product(*map(range, x.shape)):
            value = data[place].item()
            moved = []
            for step in (eps, -eps):
                data[place] = value + step
                moved.append([y.detach().clone().reshape(-1) for y in _floats(_as_tuple(function(*inputs)))])
            data[place] = value
            columns.append([(up - down) / (2 * eps) for up, down in zip(*moved)])
        return [_C.stack(list(rows)) for rows in zip(*columns)]


def _analytical(output, inputs):
    """d(output)/d(inputs) by backward: one matrix for each input (elements of the input, elements of the output)."""
    rows = [[] for _ in inputs]
    for place in itertools.product(*map(range, output.shape)):
        grad = _C.zeros_like(output.detach())
        grad[place] = 1
        if output.requires_grad:
            found = _C.grad([output], inputs, [grad], True, False, True)
        else:
            found = [None] * len(inputs)
        for row, x, g in zip(rows, inputs, found):
            row.append(_C.zeros_like(x.detach()).reshape(-1) if g is None else g.detach().reshape(-1))
    return [_C.stack(row, 1) if row else None for row in rows]


def _far(a, b, atol, rtol):
    """Whether some |a - b| > atol + rtol |b|, or some number is NaN."""
    return a is not None and not bool(((a - b).abs() <= atol + rtol * b.abs()).all())


def _check_inputs(inputs):
    wanted = [x for x in _floats(inputs) if x.requires_grad]
    if not wanted:
        raise ValueError("gradcheck: no input requires grad (expected at least one)")
    for i, x in enumerate(inputs):
        if isinstance(x, _C.Tensor) and x.requires_grad:
            if x.dtype != _C.float64:
                warnings.warn(f"gradcheck: input {i} is {x.dtype}; finite differences need float64", stacklevel=4)
            if any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape)):
                raise RuntimeError(f"gradcheck: elements of input {i} share memory (expected contiguous())")
    return wanted


def _check(function, inputs, eps, atol, rtol, nondet_tol):
    wanted = _check_inputs(inputs)
    outputs = _floats(_as_tuple(function(*inputs)))
    analytical = [_analytical(y, wanted) for y in outputs]
    again = [_analytical(y, wanted) for y in _floats(_as_tuple(function(*inputs)))]
    for j, x in enumerate(wanted):
        if x.numel() == 0:
            continue
        numerical = _numerical(function, inputs, x, eps)
        for i, found in enumerate(numerical):
            a = analytical[i][j]
            position = next(k for k, other in enumerate(inputs) if other is x)
            if _far(a, found, atol, rtol):
                raise GradcheckError(
                    f"Jacobian mismatch for output {i} with respect to input {position},\n"
                    f"numerical:{found}\nanalytical:{a}\n"
                )
            if _far(a, again[i][j], nondet_tol, 0):
                raise GradcheckError(
                    f"Backward is not reentrant: two runs differ for output {i} with respect to input {position} "
                    f"by more than nondet_tol={nondet_tol}:\n{a}\n{again[i][j]}"
                )


def _refuse(op, options):
    """Accepts PyTorch's options that ask for less than is done here, and raises for those that ask for more."""
    known = {"check_sparse_nnz": False, "check_undefined_grad": None, "check_grad_dtypes": False, "fast_mode": None}
    known |= {"check_batched_grad": False, "check_batched_forward_grad": False, "check_forward_ad": False}
    known |= {"check_backward_ad": True, "check_fwd_over_rev": False, "check_rev_over_rev": True, "masked": None}
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"{op}: unexpected keyword argument {name!r}")
        if known[name] is not None and value not in (known[name], None):
            raise NotImplementedError(f"{op}: {name}={value} (expected {known[name]})")


def _in_parts(func, inputs):
    """(func, inputs) with complex tensors replaced by their real and imaginary parts."""
    if not any(isinstance(x, _C.Tensor) and x.is_complex() for x in inputs):
        return func, inputs
    paired = [isinstance(x, _C.Tensor) and x.is_complex() for x in inputs]

    def over_parts(*args):
        results = func(*(_C.view_as_complex(x) if pair else x for x, pair in zip(args, paired)))
        return tuple(_C.view_as_real(y) if y.is_complex() else y for y in _as_tuple(results))

    parts = [
        _C.view_as_real(x.detach()).clone().requires_grad_(x.requires_grad) if pair else x
        for x, pair in zip(inputs, paired)
    ]
    return over_parts, tuple(parts)


def gradcheck(func, inputs, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True, nondet_tol=0.0, **options):
    """Compares the gradients of func(*inputs) by backward with central differences (f(x + eps) - f(x - eps)) / (2 eps).

    `inputs`: a Tensor or a tuple. Inputs that require grad should be float64, or complex128 (both parts are checked).
    Every floating output is checked with respect to every input: |analytical - numerical| <= atol + rtol |numerical|.
    Two runs of backward may differ by at most nondet_tol. Returns True. If the Jacobians differ, raises GradcheckError
    (a RuntimeError), which shows both (rows are inputs, columns are outputs), or returns False (raise_exception=False).
    Raises ValueError if no input requires grad.

    >>> import pydist
    >>> x = pydist.tensor([0.5, 1.5], dtype=pydist.float64, requires_grad=True)
    >>> pydist.autograd.gradcheck(pydist.exp, x)
    True
    """
    _refuse("gradcheck", options)
    try:
        _check(*_in_parts(func, _as_tuple(inputs)), eps, atol, rtol, nondet_tol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func,
    inputs,
    grad_outputs=None,
    *,
    eps=1e-6,
    atol=1e-5,
    rtol=1e-3,
    gen_non_contig_grad_outputs=False,
    raise_exception=True,
    nondet_tol=0.0,
    **options,
):
    """gradcheck of the gradients of func, which are differentiated with respect to inputs and grad_outputs.

    `grad_outputs` (default: random numbers) are the gradients of the outputs. Errors and result are those of gradcheck.

    >>> import pydist
    >>> x = pydist.tensor([0.5, 1.5], dtype=pydist.float64, requires_grad=True)
    >>> pydist.autograd.gradgradcheck(pydist.exp, x)
    True
    """
    _refuse("gradgradcheck", options)
    func, inputs = _in_parts(func, _as_tuple(inputs))
    if grad_outputs is None:
        outputs = [y for y in _floats(_as_tuple(func(*inputs))) if y.requires_grad]
        grads = tuple(_C.randn(y.shape, dtype=y.dtype, device=y.device) for y in outputs)
        if gen_non_contig_grad_outputs:
            grads = tuple(_C.stack([g, g], -1).select(-1, 0) for g in grads)
        grads = tuple(g.detach().requires_grad_() for g in grads)
    else:
        grads = _as_tuple(grad_outputs)

    def gradients(*arguments):
        args, given = arguments[: len(inputs)], arguments[len(inputs) :]
        outputs = [y for y in _floats(_as_tuple(func(*args))) if y.requires_grad]
        wanted = [x for x in _floats(args) if x.requires_grad]
        found = _C.grad(outputs, wanted, list(given), True, True, True)
        return tuple(g for g in found if g is not None)

    return gradcheck(
        enable_grad()(gradients), (*inputs, *grads), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
        nondet_tol=nondet_tol,
    )  # fmt: skip
