"""Transforms of functions, as in torch.func, on top of autograd: grad, vjp, jvp, Jacobians, functional_call, and vmap as a
loop over the batch.

>>> import pydist
>>> pydist.func.grad(lambda x: (x * x).sum())(pydist.tensor([1.0, 2.0]))
tensor([2., 4.])
"""

from pydist import _C
from pydist._C import Tensor
from pydist._grad_mode import enable_grad
from pydist.utils._pytree import tree_flatten, tree_map

__all__ = "functional_call grad grad_and_value hessian jacfwd jacrev jvp stack_module_state vjp vmap".split()


def _flat(tree):
    """(leaves, a function that puts as many new leaves into the same tree)."""
    leaves, spec = tree_flatten(tree)
    return leaves, spec.unflatten


def _fresh(x):
    """x as a target of gradients, still connected to the tensors that x was made of."""
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
        return x
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def _wanted(name, leaves):
    for x in leaves:
        if not isinstance(x, Tensor) or not x.requires_grad:
            kind = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
            raise RuntimeError(f"{name}: an argument is {kind} (expected floating tensors)")
    return leaves


def _zeros_for_none(found, like):
    return [_C.zeros_like(x) if g is None else g for g, x in zip(found, like)]


def grad_and_value(func, argnums=0, has_aux=False):
    """A function that returns (gradients with respect to the arguments argnums, the value of func). func returns one
    number, or with has_aux (that number, anything else)."""

    def call(*args, **kwargs):
        places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        outer = _C.is_grad_enabled()
        with enable_grad():
            args = list(args)
            for i in places:
                args[i] = tree_map(_fresh, args[i])
            result = func(*args, **kwargs)
            value, *rest = result if has_aux else (result,)
            if not isinstance(value, Tensor) or value.numel() != 1 or value.dim():
                kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise RuntimeError(f"grad: func returned {kind} (expected a tensor with one number and no dimensions)")
            leaves, back = _flat([args[i] for i in places])
            _wanted("grad", leaves)
            found = _C.grad([value], leaves, None, outer, outer, True) if value.requires_grad else [None] * len(leaves)
        found = back(_zeros_for_none(found, [x.detach() for x in leaves]))
        value = value if outer and _history(leaves) else value.detach()
        result = (value, *rest) if has_aux else value
        found = found[0] if isinstance(argnums, int) else tuple(found)
        return (found if outer and _history(leaves) else tree_map(_detached, found)), result

    return call


def _detached(x):
    return x.detach() if isinstance(x, Tensor) else x


def _history(leaves):
    """Whether an outer function needs gradients through these tensors."""
    return any(x.grad_fn is not None for x in leaves)


def grad(func, argnums=0, has_aux=False):
    """A function that returns the gradients of func with respect to the arguments argnums. func returns one number;
    with has_aux it returns (that number, anything else), and the result is (gradients, anything else)."""

    def call(*args, **kwargs):
        found, value = grad_and_value(func, argnums, has_aux)(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return call


def vjp(func, *primals, has_aux=False):
    """(func(*primals), a function that takes tensors with the outputs' shapes and returns their products with the
    Jacobian).

    >>> import pydist
    >>> value, back = pydist.func.vjp(lambda x: x * x, pydist.tensor([1.0, 3.0]))
    >>> back(pydist.ones(2))
    (tensor([2., 6.]),)
    """
    with enable_grad():
        inputs = [tree_map(_fresh, p) for p in primals]
        result = func(*inputs)
    value, *aux = result if has_aux else (result,)
    leaves, back = _flat(inputs)
    _wanted("vjp", leaves)
    outputs, _ = _flat(value)

    def products(cotangents, retain_graph=True, create_graph=None):
        pairs = [(y, g) for y, g in zip(outputs, _flat(cotangents)[0]) if y.requires_grad]
        create = _C.is_grad_enabled() and _history(leaves) if create_graph is None else create_graph
        found = [None] * len(leaves)
        if pairs:
            ys, gs = zip(*pairs)
            found = _C.grad(list(ys), leaves, list(gs), retain_graph, create, True)
        return tuple(back(_zeros_for_none(found, [x.detach() for x in leaves])))

    shown = value if _history(leaves) else tree_map(_detached, value)
    return (shown, products, *aux)


def jvp(func, primals, tangents, *, strict=False, has_aux=False):
    """(func(*primals), the product of its Jacobian with tangents), by two backward passes."""
    from pydist.autograd import functional

    rest = []

    def plain(*args):
        result = func(*args)
        if has_aux:
            rest[:] = [result[1]]
            result = result[0]
        return result

    value, product = functional.jvp(plain, tuple(primals), tuple(tangents))
    return (value, product, *rest)


def jacrev(func, argnums=0, *, has_aux=False, chunk_size=None):
    """A function that returns the Jacobian [*output, *input] with respect to the argument argnums (a tuple of Jacobians
    for several). Cost: one backward pass for each element of the output."""

    def call(*args, **kwargs):
        places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        rest = []

        def of(*chosen):
            filled = list(args)
            for i, x in zip(places, chosen):
                filled[i] = x
            result = func(*filled, **kwargs)
            if has_aux:
                rest[:] = [result[1]]
                result = result[0]
            return result

        value, back, *_ = vjp(of, *(args[i] for i in places))
        if not isinstance(value, Tensor):
            raise RuntimeError(f"jacrev: func returned {type(value).__name__} (expected one tensor)")
        rows = []
        for k in range(value.numel()):
            seed = _C.zeros(value.numel(), dtype=value.dtype, device=value.device)
            seed[k] = 1
            rows.append(back(seed.reshape(value.shape)))
        shapes = [tuple(args[i].shape) for i in places]
        found = tuple(
            _C.stack([row[j] for row in rows]).reshape(*value.shape, *shape)
            if rows
            else _C.zeros(*value.shape, *shape, device=value.device)
            for j, shape in enumerate(shapes)
        )
        found = found[0] if isinstance(argnums, int) else found
        return (found, *rest) if has_aux else found

    return call


def jacfwd(func, argnums=0, has_aux=False, *, randomness="error"):
    """The same as jacrev: pydist has no forward mode."""
    return jacrev(func, argnums, has_aux=has_aux)


def hessian(func, argnums=0):
    """A function that returns the second derivatives [*output, *input, *input] of func."""
    return jacrev(jacrev(func, argnums), argnums)


def functional_call(module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """Calls module(*args, **kwargs) with these tensors, by name, instead of its own parameters and buffers, which do
    not change.

    >>> import pydist
    >>> layer = pydist.nn.Linear(1, 1, bias=False)
    >>> pydist.func.functional_call(layer, {"weight": pydist.tensor([[3.0]])}, (pydist.ones(1),))
    tensor([3.])
    """
    dicts = parameter_and_buffer_dicts
    given = {}
    for d in dicts if isinstance(dicts, (list, tuple)) else [dicts]:
        if given.keys() & d.keys():
            raise ValueError(
                f"functional_call: {sorted(given.keys() & d.keys())} are given twice (expected each name once)"
            )
        given.update(d)
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    own = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    if given.keys() - own.keys() or strict and own.keys() - given.keys():
        wrong = sorted(given.keys() ^ own.keys() if strict else given.keys() - own.keys())
        raise RuntimeError(f"functional_call: {wrong} (expected the names of the module's parameters and buffers)")
    if tie_weights:  # a tensor that has several names
        same = {id(own[name]): value for name, value in given.items()}
        given = {name: same[id(t)] for name, t in own.items() if id(t) in same}
    places = [(module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], t) for name, t in given.items()]
    kept = []
    try:
        for owner, name, value in places:
            home = owner._parameters if name in owner._parameters else owner._buffers
            kept.append((home, name, home[name]))
            home[name] = value
        return module(*args, **(kwargs or {}))
    finally:
        for home, name, value in reversed(kept):
            home[name] = value


def stack_module_state(models):
    """(parameters, buffers) by name: those of all models, stacked along a new first dimension."""
    if not models:
        raise RuntimeError("stack_module_state: models is empty (expected at least one)")

    def stacked(kind):
        all_of = [dict(getattr(m, kind)()) for m in models]
        return {name: _C.stack([each[name].detach() for each in all_of]) for name in all_of[0]}

    return {name: p.requires_grad_() for name, p in stacked("named_parameters").items()}, stacked("named_buffers")


def vmap(func, in_dims=0, out_dims=0, randomness="error", *, chunk_size=None):
    """A function of batches: it calls func for each element along in_dims (None: the same argument for all) and stacks
    the results along out_dims. It is a loop, and no faster than one."""

    def call(*args, **kwargs):
        dims = in_dims if isinstance(in_dims, (list, tuple)) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(f"vmap: in_dims has {len(dims)} entries (expected {len(args)}, one per argument)")
        spread = [_flat(a) for a in args]
        sizes = {
            x.shape[d] for (leaves, _), d in zip(spread, dims) if d is not None for x in leaves if isinstance(x, Tensor)
        }
        if len(sizes) != 1:
            raise ValueError(f"vmap: the arguments have sizes {sorted(sizes)} along in_dims (expected one size)")
        results = []
        for k in range(sizes.pop()):
            each = [
                back([x.select(d, k) if d is not None and isinstance(x, Tensor) else x for x in leaves])
                for (leaves, back), d in zip(spread, dims)
            ]
            results.append(_flat(func(*each, **kwargs)))
        if not results:
            raise ValueError("vmap: the batch has size 0 (expected at least 1)")
        joined = [_C.stack(list(column), out_dims) for column in zip(*(leaves for leaves, _ in results))]
        return results[0][1](joined)

    return call
