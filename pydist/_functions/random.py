"""Random numbers: methods that fill a tensor, and draws with parameters from tensors. With `generator` they draw from
its stream."""

from contextlib import contextmanager

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import FILLS, array_of, both, function, method


@contextmanager
def stream(generator):
    """Draws inside this context come from the generator's stream, if there is one."""
    if generator is None:
        yield
        return
    before = _C._rng_key()
    _C.set_rng_state(generator._key())
    try:
        yield
    finally:
        generator.set_state(_C._rng_key())
        _C.set_rng_state(before)


def _with_generator(fill):
    """Tensor's own filling method, with a generator as one more argument."""

    def filled(self, *args, generator=None, **kwargs):
        if generator is None:
            return fill(self, *args, **kwargs)
        with stream(generator):
            return fill(self, *args, **kwargs)

    filled.__name__ = filled.__qualname__ = fill.__name__
    filled.__doc__ = fill.__doc__
    return filled


for _name in ("normal_", "uniform_"):
    setattr(Tensor, _name, _with_generator(FILLS[_name]))


@method
def bernoulli_(self, p=0.5, *, generator=None):
    """Fills the tensor with 1 with probability p (a number, or one per element), otherwise 0."""
    with stream(generator):
        if isinstance(p, Tensor):
            return self.copy_(bernoulli(p.expand(self.shape)))
        return FILLS["bernoulli_"](self, p)


def _uniform(input, generator=None):
    """Uniform numbers in (0, 1] with input's shape; their logarithm is finite."""
    dtype = input.dtype if input.is_floating_point() else _C.float32
    return 1 - _C.rand(tuple(input.shape), dtype=dtype, generator=generator, device=input.device)


@method
def exponential_(self, lambd=1, *, generator=None):
    """Fills the tensor with numbers with the density lambd exp(-lambd x)."""
    if lambd <= 0:
        raise RuntimeError(f"exponential_: lambd is {lambd} (expected more than 0)")
    return self.copy_(_uniform(self, generator).log() / -lambd)


@method
def geometric_(self, p, *, generator=None):
    """Fills the tensor with the numbers of trials with probability p until the first success."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_: p is {p} (expected between 0 and 1)")
    return self.copy_(
        (_uniform(self, generator).log() / _C.log1p(_C.tensor(-float(p), device=self.device))).ceil().clamp(1)
    )


@method
def cauchy_(self, median=0, sigma=1, *, generator=None):
    """Fills the tensor from the Cauchy distribution."""
    return self.copy_(((_uniform(self, generator) - 0.5) * 3.141592653589793).tan() * sigma + median)


@method
def log_normal_(self, mean=1, std=2, *, generator=None):
    """Fills the tensor with exp of normally distributed numbers."""
    return self.copy_((_C.randn(tuple(self.shape), generator=generator, device=self.device) * std + mean).exp())


@both
def bernoulli(input, p=None, *, generator=None):
    """1 with the probabilities input (or p, for all), otherwise 0."""
    if p is not None:
        return _C.empty_like(input).bernoulli_(p, generator=generator)
    known = input.numel() and not input.is_meta
    if not input.is_floating_point() or known and not (input.amin().item() >= 0 and input.amax().item() <= 1):
        raise RuntimeError("bernoulli: input must hold floating numbers from 0 to 1")
    return (
        _C.rand(tuple(input.shape), dtype=_C.float32, generator=generator, device=input.device) < input.detach()
    ).to(input.dtype)


@function
def normal(
    mean=0.0,
    std=1.0,
    size=None,
    *,
    generator=None,
    dtype=None,
    out=None,
    layout=None,
    device=None,
    pin_memory=False,
    requires_grad=False,
):
    """Normally distributed numbers. mean and std are tensors with a common shape, or numbers together with a `size`."""
    if size is None:
        like = [t for t in (mean, std) if isinstance(t, Tensor)]
        if not like:
            raise TypeError("normal: mean and std are numbers (expected a size)")
        size, dtype = (like[0] + like[-1]).shape, like[0].dtype
        device = like[0].device if device is None else device
    drawn = _C.randn(tuple(size), dtype=dtype, generator=generator, device=device, layout=layout) * std + mean
    if out is not None:
        return out.copy_(drawn)
    drawn = drawn.detach()
    return (drawn.pin_memory() if pin_memory else drawn).requires_grad_(requires_grad)


def host_generator(generator=None):
    """NumPy's generator, seeded by a draw from our stream."""
    import numpy as np

    return np.random.default_rng(_C.randint(0, 2**62, (2,), dtype=_C.int64, generator=generator, device="cpu").tolist())


@function
def poisson(input, generator=None):
    """Numbers from the Poisson distribution with the rates input."""
    if input.is_meta:
        return _C.empty_like(input)
    drawn = host_generator(generator).poisson(array_of(input.double()))
    return _C.tensor(drawn, device=input.device).to(input.dtype)
