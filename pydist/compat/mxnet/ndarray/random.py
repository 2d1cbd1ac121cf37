"""Random arrays. Parameters are numbers, or arrays: then each element has samples of its own, in further dims."""

import math

import pydist
from pydist.compat.mxnet._base import MXNetError, current_context, dtype_of, shape_of
from pydist.compat.mxnet.ndarray._array import NDArray, fill

_rand = pydist.rand_like
_DRAWS = {  # name: (what, default parameters, function of tensors)
    "uniform": ("Uniform", {"low": 0.0, "high": 1.0}, lambda a, b: a + (b - a) * _rand(a)),
    "normal": ("Normal", {"loc": 0.0, "scale": 1.0}, lambda m, s: m + s * pydist.randn_like(m)),
    "gamma": ("Gamma", {"alpha": 1.0, "beta": 1.0}, lambda a, b: b * pydist.distributions.Gamma(a, a * 0 + 1).sample()),
    "exponential": ("Exponential", {"scale": 1.0}, lambda s: -s * pydist.log1p(-_rand(s))),
    "poisson": ("Poisson", {"lam": 1.0}, pydist.poisson),
    "randint": ("Whole", {"low": 0, "high": 1}, lambda a, b: pydist.floor(a + (b - a) * _rand(a))),
}


def _draw(name, what, defaults, fn):
    def draw(*args, shape=None, dtype=None, ctx=None, out=None, **kwargs):
        params = {
            **defaults,
            **dict(zip(defaults, args)),
            **{k: v for k, v in kwargs.items() if k in defaults},
        }.values()
        shape, dtype, ctx, out = (
            *args[len(defaults) :],
            *(shape, dtype, ctx, out)[max(0, len(args) - len(defaults)) :],
        )
        arrays = [p for p in params if isinstance(p, NDArray)]
        ctx = ctx or (arrays[0]._ctx if arrays else out._ctx if out is not None else current_context())
        kind = pydist.int32 if name == "randint" else pydist.float32
        kind = dtype_of(None if dtype == "None" else dtype, kind if out is None else out._t.dtype)
        sizes = () if shape in (None, ()) else shape_of(shape)
        if arrays and (len({a.shape for a in arrays}) > 1 or len(arrays) < len(params)):
            raise MXNetError(f"{name}: got arrays of different shapes, or beside numbers (expected equal shapes)")
        if arrays:
            tensors = [p._t.detach().reshape(p.shape + (1,) * len(sizes)).expand(p.shape + sizes) for p in params]
        else:
            whole = out.shape if out is not None and not sizes else sizes or (1,)
            wide = pydist.float32 if kind is pydist.float32 else pydist.float64
            tensors = [pydist.full(whole, float(p), dtype=wide) for p in params]
        with pydist.no_grad():
            made = NDArray(fn(*tensors).to(device=ctx.device, dtype=kind), ctx)
        if out is None:
            return made
        fill(out, made)
        return out

    draw.__name__ = draw.__qualname__ = name
    draw.__doc__ = f"{what} numbers with {' and '.join(defaults)}, then shape, dtype, ctx and out."
    return draw


for _name, _row in _DRAWS.items():
    globals()[_name] = _draw(_name, *_row)


def randn(*shape, **kwargs):
    """normal() with the sizes one by one."""
    return globals()["normal"](shape=shape or None, **kwargs)


def multinomial(data, shape=None, get_prob=False, out=None, dtype="int32", **kwargs):
    """Samples of each row's probabilities; with get_prob also the logarithms of their probabilities."""
    sizes, rows = () if shape in (None, ()) else shape_of(shape), data._t.reshape(-1, data.shape[-1])
    places = pydist.multinomial(rows.detach(), math.prod(sizes), replacement=True)
    final = (data.shape[:-1] + sizes) or (1,)
    found = NDArray(places.reshape(final).to(dtype_of(dtype)), data._ctx)
    return [found, NDArray(pydist.log(pydist.gather(rows, 1, places)).reshape(final), data._ctx)] if get_prob else found


def shuffle(data, **kwargs):
    """The rows in a random order."""
    return NDArray(data._t.detach()[pydist.randperm(data.shape[0])], data._ctx)
