"""tf.random: pydist's random numbers under TensorFlow's names. The same seeds give the same numbers in every run, but
not TensorFlow's."""

import math as _math

import pydist as _pydist
from pydist import _C
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow._names import lacking as _lacking

_MASK = (1 << 64) - 1
_state = {"seed": None}
_by_seed = {}  # the stream of numbers of each op-level seed


def _mixed(*numbers):
    """One number of several, by splitmix64."""
    value = 0x9E3779B97F4A7C15
    for n in numbers:
        value = (value ^ int(n) & _MASK) * 0xBF58476D1CE4E5B9 & _MASK
        value = ((value ^ value >> 30) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value >> 1


def _stream(*numbers):
    generator = _pydist.Generator()
    generator.manual_seed(_mixed(*numbers))
    return generator


def set_seed(seed):
    """Sets the seed of all random numbers; streams of op-level seeds begin anew."""
    _pydist.manual_seed(int(seed))
    _state["seed"] = int(seed)
    _by_seed.clear()


def _of_op(seed):
    """The stream of an op-level seed; None: pydist's default one."""
    if seed is None:
        return None
    if seed not in _by_seed:
        _by_seed[seed] = _stream(_state["seed"] or 0, seed)
    return _by_seed[seed]


def _uniform(shape, low, high, dtype, generator):
    dtype = _t.as_dtype(dtype)
    shape = _t.ints(shape)
    if _t.is_integer(dtype):
        if high is None:
            raise ValueError("random.uniform: maxval is missing (expected a number, for integers)")
        return _C.randint(int(low), int(high), shape, dtype=dtype, generator=generator)
    numbers = _C.rand(shape, dtype=dtype, generator=generator)
    high = 1 if high is None else high
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        return numbers if (low, high) == (0, 1) else numbers * (high - low) + low
    low, high = _t.tensor(low, like=dtype).to(dtype), _t.tensor(high, like=dtype).to(dtype)
    return numbers * (high - low) + low


def _normal(shape, mean, stddev, dtype, generator):
    dtype = _t.as_dtype(dtype)
    mean, stddev = (v if isinstance(v, (int, float)) else _t.tensor(v, like=dtype).to(dtype) for v in (mean, stddev))
    return _C.randn(_t.ints(shape), dtype=dtype, generator=generator) * stddev + mean


def _truncated(shape, mean, stddev, dtype, generator):
    """Normal numbers no further than 2 stddev from the mean: the inverse of the distribution, of uniform ones."""
    dtype = _t.as_dtype(dtype)
    edge = _math.erf(2**0.5)
    numbers = _C.rand(_t.ints(shape), dtype=_C.float64, generator=generator) * (2 * edge) - edge
    return (_pydist.erfinv(numbers) * 2**0.5 * stddev + mean).to(dtype)


def _categorical(logits, num_samples, dtype, generator):
    """Classes by their logits: the greatest sum of logit and Gumbel noise."""
    logits = _t.tensor(logits)
    shape = (logits.shape[0], int(num_samples), logits.shape[1])
    noise = -_C.log(-_C.log(_C.rand(shape, dtype=_C.float64, generator=generator)))
    return _C.argmax(logits.to(_C.float64)[:, None, :] + noise, -1).to(_t.as_dtype(dtype))


def _shuffled(value, generator):
    value = _t.tensor(value)
    from pydist.tensorflow._arrays import gather

    return gather(value, _C.argsort(_C.rand(len(value), dtype=_C.float64, generator=generator)))


def _gamma(shape, alpha, beta, dtype, generator):
    """Marsaglia and Tsang's method; below 1 by one more uniform number."""
    dtype = _t.as_dtype(dtype)
    alpha = _t.tensor(alpha, like=dtype).to(_C.float64)
    beta = _t.tensor(1.0 if beta is None else beta, like=dtype).to(_C.float64)
    sizes = (*_t.ints(shape), *_pydist.broadcast_shapes(alpha.shape, beta.shape))
    wide = alpha.expand(sizes)
    small = wide < 1
    d = _C.where(small, wide + 1, wide) - 1 / 3
    result, missing = _C.zeros(sizes, dtype=_C.float64), _pydist.ones(sizes, dtype=_C.bool)
    while missing.any():
        x, u = (make(sizes, dtype=_C.float64, generator=generator) for make in (_C.randn, _C.rand))
        v = (1 + x / _C.sqrt(9 * d)) ** 3
        good = (v > 0) & (_C.log(u) < 0.5 * x * x + d - d * v + d * _C.log(_C.clamp(v, 1e-300)))
        result = _C.where(missing & good, d * v, result)
        missing = missing & ~good
    boost = _C.rand(sizes, dtype=_C.float64, generator=generator) ** (1 / wide)
    return (_C.where(small, result * boost, result) / beta).to(dtype)


def _poisson(shape, lam, dtype, generator):
    dtype = _t.as_dtype(dtype)
    lam = _t.tensor(lam, like=dtype).to(_C.float64)
    rates = lam.expand(*_t.ints(shape), *lam.shape)
    return _pydist.poisson(rates.clone(), generator=generator).to(dtype)


def uniform(shape, minval=0, maxval=None, dtype="float32", seed=None, name=None):
    """Numbers in [minval, maxval), evenly spread; integers need a maxval."""
    return _uniform(shape, minval, maxval, dtype, _of_op(seed))


def normal(shape, mean=0.0, stddev=1.0, dtype="float32", seed=None, name=None):
    """Numbers of the normal distribution."""
    return _normal(shape, mean, stddev, dtype, _of_op(seed))


def truncated_normal(shape, mean=0.0, stddev=1.0, dtype="float32", seed=None, name=None):
    """Numbers of the normal distribution that are no further than 2 stddev from the mean."""
    return _truncated(shape, mean, stddev, dtype, _of_op(seed))


def categorical(logits, num_samples, dtype="int64", seed=None, name=None):
    """num_samples numbers of classes for each row of logits."""
    return _categorical(logits, num_samples, dtype, _of_op(seed))


def shuffle(value, seed=None, name=None):
    """The rows in a random order."""
    return _shuffled(value, _of_op(seed))


def gamma(shape, alpha, beta=None, dtype="float32", seed=None, name=None):
    """Numbers of the gamma distribution: `shape` of them for each alpha and beta."""
    return _gamma(shape, alpha, beta, dtype, _of_op(seed))


def poisson(shape, lam, dtype="float32", seed=None, name=None):
    """Numbers of the Poisson distribution: `shape` of them for each rate."""
    return _poisson(shape, lam, dtype, _of_op(seed))


# A function of the seed alone.


def _of_pair(seed):
    numbers = _t.ints(seed)
    if len(numbers) != 2:
        raise ValueError(f"random: seed is {seed} (expected two numbers)")
    return _stream(*numbers)


def stateless_uniform(shape, seed, minval=0, maxval=None, dtype="float32", name=None, alg="auto_select"):
    """uniform, by a seed of two numbers alone."""
    return _uniform(shape, minval, maxval, dtype, _of_pair(seed))


def stateless_normal(shape, seed, mean=0.0, stddev=1.0, dtype="float32", name=None, alg="auto_select"):
    """normal, by a seed of two numbers alone."""
    return _normal(shape, mean, stddev, dtype, _of_pair(seed))


def stateless_truncated_normal(shape, seed, mean=0.0, stddev=1.0, dtype="float32", name=None, alg="auto_select"):
    """truncated_normal, by a seed of two numbers alone."""
    return _truncated(shape, mean, stddev, dtype, _of_pair(seed))


def stateless_categorical(logits, num_samples, seed, dtype="int64", name=None):
    """categorical, by a seed of two numbers alone."""
    return _categorical(logits, num_samples, dtype, _of_pair(seed))


def stateless_gamma(shape, seed, alpha, beta=None, dtype="float32", name=None):
    """gamma, by a seed of two numbers alone. `shape` is that of the result."""
    alpha = _t.tensor(alpha, like=_t.as_dtype(dtype))
    inner = _pydist.broadcast_shapes(alpha.shape, _t.tensor(1.0 if beta is None else beta).shape)
    outer = _t.ints(shape)
    if inner and tuple(outer[len(outer) - len(inner) :]) != tuple(inner):
        raise ValueError(f"stateless_gamma: shape is {outer} (expected one that ends with {list(inner)})")
    return _gamma(outer[: len(outer) - len(inner)], alpha, beta, dtype, _of_pair(seed))


def stateless_poisson(shape, seed, lam, dtype="int32", name=None):
    """poisson, by a seed of two numbers alone. `shape` is that of the result."""
    lam = _t.tensor(lam, like=_C.float64)
    outer = _t.ints(shape)
    return _poisson(outer[: len(outer) - lam.ndim], lam, dtype, _of_pair(seed))


def split(seed, num=2, alg="auto_select"):
    """`num` new seeds of a seed, as rows."""
    numbers = [[_mixed(*_t.ints(seed), i, part) >> 32 for part in (0, 1)] for i in range(int(num))]
    return _C.tensor(numbers, dtype=_dtype_of_seed(seed))


def fold_in(seed, data, alg="auto_select"):
    """A new seed of a seed and a number."""
    numbers = [_mixed(*_t.ints(seed), *_t.ints(data), part) >> 32 for part in (0, 1)]
    return _C.tensor(numbers, dtype=_dtype_of_seed(seed))


def _dtype_of_seed(seed):
    given = getattr(seed, "dtype", None)
    return _t.as_dtype(given) if given is not None else _C.int32


# Generators.


class Generator:
    """A stream of random numbers of its own."""

    def __init__(self, copy_from=None, state=None, alg=None):
        start = copy_from._numbers if copy_from is not None else tuple(_t.ints(state)) if state is not None else (0,)
        self._begin(start)

    def _begin(self, numbers):
        self._numbers, self._children = tuple(numbers), 0
        self._stream = _stream(*self._numbers)

    @classmethod
    def from_seed(cls, seed, alg=None):
        """A generator whose numbers the seed says."""
        return cls(state=[int(seed)])

    @classmethod
    def from_state(cls, state, alg=None):
        """A generator of a state."""
        return cls(state=state)

    @classmethod
    def from_non_deterministic_state(cls, alg=None):
        """A generator that begins at random."""
        import secrets

        return cls(state=[secrets.randbits(62)])

    def reset_from_seed(self, seed):
        """Begins anew, with this seed."""
        self._begin((int(seed),))

    def state_dict(self):
        """Where the stream is: for tf.train.Checkpoint."""
        return {"numbers": list(self._numbers), "children": self._children, "stream": self._stream.get_state()}

    def load_state_dict(self, state):
        """Goes where another generator was."""
        self._begin(state["numbers"])
        self._children = state["children"]
        self._stream.set_state(state["stream"])

    def uniform(self, shape, minval=0, maxval=None, dtype="float32", name=None):
        """Numbers in [minval, maxval), evenly spread."""
        return _uniform(shape, minval, maxval, dtype, self._stream)

    def normal(self, shape, mean=0.0, stddev=1.0, dtype="float32", name=None):
        """Numbers of the normal distribution."""
        return _normal(shape, mean, stddev, dtype, self._stream)

    def truncated_normal(self, shape, mean=0.0, stddev=1.0, dtype="float32", name=None):
        """Numbers of the normal distribution that are no further than 2 stddev from the mean."""
        return _truncated(shape, mean, stddev, dtype, self._stream)

    def uniform_full_int(self, shape, dtype="int64", name=None):
        """Integers, each value of the dtype as likely as another one."""
        info = _pydist.iinfo(_t.as_dtype(dtype))
        return _C.randint(info.min, info.max, _t.ints(shape), dtype=_t.as_dtype(dtype), generator=self._stream)

    def make_seeds(self, count=1):
        """[2, count] seeds for the stateless functions."""
        return _C.randint(0, (1 << 63) - 1, (2, int(count)), dtype=_C.int64, generator=self._stream)

    def split(self, count=1):
        """So many generators of their own."""
        first = self._children
        self._children += int(count)
        return [type(self)(state=[*self._numbers, 1, first + i]) for i in range(int(count))]


_global = {}


def get_global_generator():
    """The generator of the process."""
    if "generator" not in _global:
        seed = _state["seed"]
        _global["generator"] = Generator.from_non_deterministic_state() if seed is None else Generator.from_seed(seed)
    return _global["generator"]


def set_global_generator(generator):
    """Replaces the generator of the process."""
    _global["generator"] = generator


__getattr__ = _lacking(__name__)
