"""Calls of every public function, method and module with arguments that do harm while they are read.

A case builds a few valid calls (the recipes of ../lib/fuzz_recipes.py), calls of any function with random arguments, or
modules, and spoils some arguments: objects whose __index__, __float__, __bool__, __len__, __iter__, __getitem__, __eq__
or __del__ raise, lie, or change the lists and tensors of the case; sizes near 2^63; views, subclasses, read-only
memory. In some cases another thread does such changes meanwhile. What comes back is shown, summed and differentiated.
Any exception is right but SystemError, which says that the engine broke CPython's rules.
"""

import contextlib
import gc
import inspect
import operator
import sys
import threading
import warnings
import weakref
from array import array
from pathlib import Path

import numpy as np
import runner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import pydist
from lib import fuzz_calls, fuzz_recipes
from pydist import _C, nn

# What ends or blocks the process, starts others, reads or writes files, or lasts longer than the call.
LEFT_OUT = set(
    "breakpoint compile fork from_file hub init_process_group load manual_seed save seed set_autocast_cache_enabled set_autocast_dtype "
    "set_autocast_enabled set_default_device set_default_dtype set_default_tensor_type set_flush_denormal set_grad_enabled "
    "set_num_interop_threads set_num_threads set_printoptions set_rng_state share_memory_ use_deterministic_algorithms "
    "pretend_cuda set_float32_matmul_precision autocast clear_autocast_cache set_autocast".split()
)
HUGE = (2**47, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, -(2**62), -(2**63), -(2**63) - 1, 2**2000)
SMALL = (0, 1, 2, 3, -1, -2, 5, -7, 17)
WORDS = (
    "", "mean", "sum", "none", "constant", "reflect", "nearest", "bilinear", "cpu", "cuda", "cuda:1", "float32",
    "a\0b", "\udc80", "é" * 600, "%s%n", "ij,jk->ik",
)  # fmt: skip
DTYPES = (*fuzz_calls.DTYPES, "complex64", "complex128")


class Strategies:
    """The words of hypothesis.strategies that the recipes use, drawn by a random.Random."""

    @staticmethod
    def sampled_from(options):
        return lambda r: r.choice(list(options))

    @staticmethod
    def integers(low, high):
        return lambda r: r.randint(low, max(low, high))

    @staticmethod
    def permutations(values):
        return lambda r: r.sample(list(values), len(values))

    @staticmethod
    def lists(each, max_size, unique):
        def draw(r):
            found = [each(r) for _ in range(r.randint(0, max_size))]
            return list(dict.fromkeys(found)) if unique else found

        return draw


fuzz_calls.st = fuzz_recipes.st = Strategies


class Odd(Exception):
    pass


class World:
    """The lists and tensors of a case, and what hostile arguments do to them."""

    def __init__(self, random):
        self.disturbed = False  # by another thread
        self.random, self.tensors, self.lists, self.weak, self.kept, self.deep = random, [], [], [], [], 0
        self.acts = (
            [self.change_list] * 4
            + [self.change_tensor] * 4
            + [self.revive, self.collect, self.fail, self.call, lambda: None]
        )

    def act(self):
        r = self.random
        if self.deep > 2:
            return
        self.deep += 1
        try:
            for _ in range(r.choice((1, 1, 2))):
                r.choice(self.acts)()
        finally:
            self.deep -= 1

    def fail(self):
        if self.random.random() < 0.3:
            raise self.random.choice(
                (Odd, ValueError, TypeError, IndexError, StopIteration, RecursionError, MemoryError)
            )("hostile")

    def collect(self):
        if self.random.random() < 0.05:
            gc.collect(self.random.randrange(3))
        self.kept.clear()

    def revive(self):
        """Wrappers that maybe C alone keeps."""
        if self.random.random() < 0.05:
            found = [o for o in gc.get_objects() if isinstance(o, pydist.Tensor)][:3]
        else:
            found = [t for t in (w() for w in self.weak) if t is not None]
        self.kept += found
        for t in found:
            t.shape, t.detach()

    def change_list(self):
        r = self.random
        if not self.lists:
            return
        chosen = r.choice(self.lists)
        kind = r.randrange(4)
        if kind == 0:
            chosen.clear()
            self.kept.append(pydist.ones(r.choice((1, 4, 64))))
        elif kind == 1:
            del chosen[r.randrange(len(chosen) + 1) :]
        elif kind == 2:
            chosen.extend([r.choice([*SMALL, 1.5, *self.tensors])] * r.choice((1, 3, 1000)))
        elif chosen:
            chosen[r.randrange(len(chosen))] = r.choice([None, 1, *self.tensors])

    def change_tensor(self):
        r = self.random
        if not self.tensors:
            return
        t, other = r.choice(self.tensors), r.choice([*self.tensors, pydist.ones(r.choice((0, 1, 7, 100)))])
        with contextlib.suppress(RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            kind = r.randrange(10)
            if kind < 2:
                t.resize_(*[r.choice((0, 1, 2, 50)) for _ in range(r.randrange(4))])
            elif kind < 4:
                t.data = other if r.random() < 0.5 else other.detach().to(getattr(pydist, r.choice(DTYPES)))
            elif kind == 4:
                t.grad = r.choice((None, other, t.detach().clone()))
            elif kind == 5:
                t.detach_()
            elif kind == 6:
                t.requires_grad_(r.random() < 0.5)
            elif kind == 7:
                t.add_(1) if r.random() < 0.5 else t.transpose_(0, -1)
            elif kind == 8:
                self.tensors.pop(r.randrange(len(self.tensors)))
            else:
                t.sum().backward()

    def call(self):
        """Something else with the same tensors."""
        if self.tensors:
            run(self, *any_call(self))


# Hostile values.


def number(world, value=None):
    """Something like a number that acts when it is read: of this value, or of one that changes."""
    r = world.random
    fixed, value = value is not None, r.choice(SMALL) if value is None else value
    act = world.act if r.random() < 0.8 else lambda: None

    def read():
        act()
        return value if fixed or r.random() < 0.8 else r.choice((*HUGE, *SMALL, "no number"))

    class Thing:
        def __bool__(self):
            act()
            return bool(value) if fixed else r.choice((True, False, 7))

        def __eq__(self, other):
            act()
            return r.random() < 0.5

        def __hash__(self):
            return r.choice((0, 1, -1))

        def __del__(self):
            with contextlib.suppress(Exception):
                act()

    class Whole(Thing):
        def __index__(self):
            return read()

    class Real(Thing):
        def __float__(self):
            return float(read())

    class Sized(Whole):
        def __len__(self):
            act()
            return r.choice((0, 1, 3, 3, 2**62))

        def __getitem__(self, i):
            if i == 5:
                raise IndexError
            return read()

        def __iter__(self):
            return (read() for _ in range(r.randrange(4)))

    return (Real if isinstance(value, float) else Whole if fixed else r.choice((Whole, Real, Sized)))()


class Sub(pydist.Tensor):
    """A subclass that lies about itself where it is asked through Python."""

    world = None

    def __len__(self):
        return 2

    def size(self, *args):
        if self.world:
            self.world.act()
        return super().size(*args)

    def __del__(self):
        if self.world:
            with contextlib.suppress(Exception):
                self.world.change_tensor()
                self.world.kept.append(self)


def tensor(world):
    r = world.random
    shape = [r.choice((1, 2, 3, 4, 0)) for _ in range(r.choice((0, 1, 2, 2, 3, 4, 5)))]
    a = fuzz_calls.Array(
        tuple(shape),
        r.choice((*fuzz_calls.FLOATS * 2, *DTYPES)),
        r.choice("CCTSE"),
        r.randrange(99),
        r.choice(("any", "special", "positive")),
    )
    t = a.build(pydist, r.random() < 0.5)
    return spoiled_tensor(world, t) if r.random() < 0.3 else kept(world, t)


def kept(world, t):
    """The world has it in its reach, maybe only as long as others keep it."""
    if world.random.random() < 0.5:
        world.tensors.append(t)
    elif world.random.random() < 0.5:
        world.weak.append(weakref.ref(t))
    return t


def spoiled_tensor(world, t):
    r = world.random
    kind = r.randrange(9)
    with contextlib.suppress(RuntimeError, TypeError, ValueError):
        if kind == 0:
            t = pydist.Tensor._make_subclass(Sub, t.detach(), t.requires_grad)
            t.world = world
        elif kind == 1:
            t = t.expand(2, *t.shape)
        elif kind == 2:
            a = t.detach().numpy().copy()
            a.flags.writeable = False
            t = pydist.from_numpy(a)
        elif kind == 3:
            t = t * 1
            with contextlib.suppress(RuntimeError):
                t.retain_grad()
            t.register_hook(lambda g: world.act())
        elif kind == 4:
            t = t.reshape(-1)[:: r.choice((1, 2))]
        elif kind == 5:
            t = pydist.nn.Parameter(t.detach())
        elif kind == 6:
            t.me = t  # a cycle
        elif kind == 7:
            with pydist.inference_mode():
                t = t.clone()
        else:
            t = t.to(getattr(pydist, r.choice(DTYPES))).detach()
    return kept(world, t)


def sequence(world, items):
    """Items in something that may change, lie or end early."""
    r = world.random
    items = list(items)
    for i in range(len(items)):
        if r.random() < 0.4:
            items[i] = hostile(world, items[i])
    kind = r.randrange(9)
    if kind < 6:
        world.lists.append(items)
        return items
    if kind == 6:
        return tuple(items)
    if kind == 7:

        class Liar(list):
            def __len__(self):
                world.act()
                return r.choice((len(items), len(items) + 3, 0))

            def __iter__(self):
                world.act()
                return super().__iter__()

        return Liar(items)
    return (world.act() or item for item in items)


def anything(world, depth=0):
    r = world.random
    kind = r.randrange(14)
    if kind < 4:
        return tensor(world)
    if kind == 4:
        return r.choice(SMALL)
    if kind == 5:
        return r.choice((*HUGE, 0.5, 1.0, float("nan"), float("inf"), 1e308, 1j))
    if kind < 8:
        return number(world)
    if kind == 8 and depth < 3:
        return sequence(world, [anything(world, depth + 1) for _ in range(r.randrange(4))])
    if kind == 9:
        return r.choice(
            (None, True, False, ..., slice(None), slice(number(world), None, number(world)), range(3), range(2**62))
        )
    if kind == 10:
        return r.choice(WORDS)
    if kind == 11:
        return r.choice(
            (getattr(pydist, r.choice(DTYPES)), pydist.device("cpu"), pydist.channels_last, pydist.Tensor, len, int)
        )
    if kind == 12:
        return r.choice((np.arange(3.0), np.float32(2), np.int64(1), np.zeros((2, 0)), np.array("x"), np.arange(4)[::-1], memoryview(b"abcd"),
            bytearray(5), array("d", [1.0, 2.0]), np.array([None, 1]), np.array(1.5), np.datetime64(5, "s"), {}, {"a": 1}, b"ab"))  # fmt: skip
    return lambda *args: world.act()


def hostile(world, value):
    """Something in value's place."""
    r = world.random
    if isinstance(value, pydist.Tensor) and r.random() < 0.8:
        return spoiled_tensor(world, value)
    if isinstance(value, (list, tuple)) and r.random() < 0.8:
        return sequence(world, value)
    if isinstance(value, (int, float)) and r.random() < 0.9:
        kinds = (
            number(world), r.choice(HUGE), r.choice(SMALL), pydist.tensor(value), float("nan"),
            np.int64(value) if isinstance(value, int) else value,
        )  # fmt: skip
        return number(world, value) if r.random() < 0.7 else r.choice(kinds)
    return anything(world)


# Calls: (function, args, kwargs).

RECIPES = list(fuzz_recipes.recipes())
BRACKETS = {"getitem": operator.getitem, "setitem": operator.setitem}


def valid_call(world):
    r = world.random
    call = fuzz_recipes.one_call(lambda strategy: strategy(r), RECIPES)

    def built(a):
        if isinstance(a, fuzz_calls.Array):
            return kept(world, a.build(pydist, call.grad))
        if isinstance(a, fuzz_calls.Name):
            return getattr(pydist, a)
        return type(a)(map(built, a)) if isinstance(a, (list, tuple)) else a

    args, kwargs = [built(a) for a in call.args], {name: built(a) for name, a in call.kwargs.items()}
    for part, names in ((args, range(len(args))), (kwargs, kwargs)):
        for name in names:
            if r.random() < (0.7 if isinstance(part[name], (tuple, list)) else 0.35):
                part[name] = hostile(world, part[name])
    if r.random() < 0.05:
        kwargs["out"] = anything(world)
    if call.name in BRACKETS:
        return BRACKETS[call.name], args, kwargs
    home, _, name = call.name.rpartition(".")
    home = nn.functional if home else pydist
    found = getattr(home, name, None) or getattr(pydist.Tensor, name)
    return getattr(pydist.Tensor, name + "_", found) if call.in_place else found, args, kwargs


def public(module):
    """The functions of a module, or methods of a class."""
    for name in dir(module):
        if (not name.startswith("_") or module is pydist.Tensor) and name not in LEFT_OUT:
            f = getattr(module, name)
            if (
                callable(f)
                and not inspect.isclass(f)
                and not inspect.ismodule(f)
                and name not in ("__class__", "__subclasshook__", "__init_subclass__")
            ):
                yield f


def attribute(name):
    def get_or_set(t, value=None, *rest):
        if value is None:
            return getattr(t, name)
        setattr(t, name, value)

    return get_or_set


HOMES = (pydist, pydist.Tensor, nn.functional, pydist.linalg, pydist.fft, pydist.special)
FUNCTIONS = [f for home in HOMES for f in public(home)]
FUNCTIONS += [
    attribute(name)
    for name in dir(pydist.Tensor)
    if inspect.isgetsetdescriptor(getattr(pydist.Tensor, name)) or isinstance(getattr(pydist.Tensor, name), property)
]
FUNCTIONS += [
    getattr(_C, name)
    for name in dir(_C)
    if name.startswith(
        ("cuda_stream", "cuda_event", "storage_", "hash_tensors", "zero_grads", "scale_tensors", "unscale")
    )
    or name.endswith("_step")
]


def any_call(world):
    r = world.random
    args = [
        tensor(world) if r.random() < (0.9 if not i else 0.4) else anything(world)
        for i in range(r.choice((0, 1, 1, 2, 2, 3, 3, 4, 6)))
    ]
    f, kwargs = r.choice(FUNCTIONS), {}
    if r.random() < 0.3:
        with contextlib.suppress(TypeError, ValueError):
            names = [
                p
                for p in inspect.signature(f).parameters.values()
                if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
            kwargs = {
                p.name: anything(world)
                for p in r.sample(names[len(args) :], min(len(names[len(args) :]), r.randrange(3)))
            }
    return f, args, kwargs


def nested(world, depth=0):
    r = world.random
    if depth == 3 or r.random() < 0.15:
        value = r.choice((1, 2.5, True, 3, 0.5, 1j))
        return hostile(world, value) if r.random() < 0.3 else value
    items, n = [], r.choice((1, 2, 2, 3, 0))
    items += (
        [nested(world, depth + 1) for _ in range(n)]
        if r.random() < 0.3
        else [nested(world, 3) for _ in range(n)]
        if depth
        else [nested(world, 2) for _ in range(n)]
    )
    world.lists.append(items)
    return sequence(world, items) if r.random() < 0.2 else items


def data_call(world):
    """Tensors of numbers and lists."""
    r, data = world.random, nested(world)
    t = tensor(world)
    f = r.choice((pydist.tensor, pydist.tensor, pydist.as_tensor, pydist.asarray, pydist.Tensor, pydist.zeros, pydist.full, pydist.cat, pydist.stack, t.new_tensor,
        lambda d: t[d], lambda d: t.__setitem__(d, 1), lambda d: t.__setitem__(0, d), lambda d: t.__setitem__(..., d), t.view, t.reshape, pydist.block_diag,
        pydist.autograd.backward, lambda d: pydist.autograd.grad(d, [t]), lambda d: t.backward(inputs=d), t.index_put_, nn.utils.clip_grad_norm_, nn.utils.parameters_to_vector))  # fmt: skip
    if r.random() < 0.4:  # of tensors
        if world.disturbed and r.random() < 0.3:  # work that gives up the GIL
            f, t = pydist.cat, pydist.ones(1 << 18)
        items = [
            pydist.ones(1 << 18) if f is pydist.cat and world.disturbed else tensor(world)
            for _ in range(r.randrange(6))
        ]
        world.lists.append(items)
        return f, [items], {}
    return f, [data, *([hostile(world, 1)] if f is pydist.full else [])], {}


class SubArray(np.ndarray):
    """A subclass of NumPy's that acts where NumPy, or Python, asks it."""

    world, __array_priority__ = None, 1e9

    def __array_finalize__(self, other):
        if self.world:
            self.world.act()

    def __array__(self, *args, **kwargs):
        self.world.act()
        return self

    def __del__(self):
        if self.world:
            with contextlib.suppress(Exception):
                self.world.act()


ARRAY_DTYPES = "? u1 i1 i2 i4 i8 f2 f4 f8 F D u2 u4 u8 g G O U2 S2 M8[s] m8[ns] V3 >i4 >f8 >F i4,f8".split()
try:
    import ml_dtypes

    ARRAY_DTYPES += [getattr(ml_dtypes, name) for name in ("bfloat16", "bfloat16", "float8_e5m2", "int4")]
except ImportError:
    pass


def numpy_array(world):
    """Any dtype in any layout, of a subclass maybe."""
    r = world.random
    shape = [r.choice((1, 2, 3, 4, 0)) for _ in range(r.choice((0, 1, 2, 3, 4)))]
    dtype = np.dtype(r.choice(ARRAY_DTYPES))
    a = np.zeros(shape, dtype)
    if r.random() < 0.1 and not dtype.hasobject:  # unaligned
        a = np.zeros(a.nbytes + 1, "u1")[1:].view(dtype).reshape(shape)
    if r.random() < 0.1 and not dtype.hasobject:  # the field of a record
        a = np.zeros(shape, [("a", "u1"), ("b", dtype)])["b"]
    if a.ndim:
        a = r.choice(
            (
                a,
                a,
                a.T,
                a[::-1],
                a[..., ::2],
                a[:0],
                np.broadcast_to(a, (2, *a.shape)),
                np.broadcast_arrays(a, a[None])[0],
            )
        )
    if r.random() < 0.1:
        a.flags.writeable = False
    if r.random() < 0.1 and a.ndim < 3:
        a = r.choice((np.matrix, np.ma.array))(a)
    if r.random() < 0.2:
        with contextlib.suppress(TypeError, ValueError):
            a = a.view(SubArray)
            a.world = world
    if r.random() < 0.1 and a.size:
        a = a.reshape(-1)[0]
    return a


def change_array(r, a):
    """In place, while tensors look at it; not resize(refcheck=False) nor __setstate__, which free memory in use."""
    with contextlib.suppress(ValueError, TypeError, AttributeError, RuntimeError, NotImplementedError):
        kind = r.randrange(5)
        if kind == 0:
            a.shape = (-1,)
        elif kind == 1:
            a.dtype = r.choice(("i4", "u1", "f8"))
        elif kind == 2:
            a.flags.writeable = r.random() < 0.5
        elif kind == 3:
            a.resize(r.choice(SMALL))
        else:
            a[...] = 1


def array_call(world):
    """From NumPy to tensors and back."""
    r, a = world.random, numpy_array(world)
    t, other = tensor(world), getattr(pydist, r.choice(DTYPES))
    arrays = world.kept

    def over(f):
        def call(*args):
            made = f(*args)
            arrays.append(made)
            world.act()
            if isinstance(made, np.ndarray) and r.random() < 0.5:
                change_array(r, made)
            return pydist.from_numpy(made) if r.random() < 0.5 else repr(made)

        return call

    def share(make):
        def call(a, *args):
            made = make(a, *args)
            if isinstance(a, np.ndarray):
                change_array(r, a)
            world.act()
            return made

        return call

    if r.random() < 0.4:
        dtype = r.choice((*ARRAY_DTYPES, None, "no dtype", hostile(world, 1)))
        return r.choice((
            (over(t.numpy), [], {}), (over(np.asarray), [t], {}), (over(np.array), [t], {}), (over(t.__array__), [dtype], {}),
            (over(t.__array__), [dtype, r.choice((None, True, False, hostile(world, 1)))], {}), (np.add, [t, a], {}),
            (over(lambda t: t.detach().numpy()), [t], {}), (over(lambda t: t.numpy(force=True)[..., ::2]), [t], {}), (np.sum, [t], {}),
        ))  # fmt: skip
    return r.choice((
        (share(pydist.from_numpy), [a], {}), (share(pydist.tensor), [a], {}), (share(pydist.as_tensor), [a], {}),
        (pydist.tensor, [a], {"dtype": other}), (share(lambda a: pydist.as_tensor(a, dtype=other)), [a], {}), (pydist.Tensor, [a], {}),
        (lambda a: pydist.asarray(a, copy=hostile(world, 1), dtype=r.choice((None, other))), [a], {}), (share(lambda a: pydist.asarray(a, copy=False)), [a], {}),
        (t.new_tensor, [a], {}), (lambda a: t[a], [a], {}), (lambda a: t.__setitem__(..., a), [a], {}), (lambda a: t + a, [a], {}),
        (lambda a: setattr(t, "data", pydist.from_numpy(a)), [a], {}), (pydist.tensor, [[a, a]], {}),
    ))  # fmt: skip


MODULES = [m for m in vars(nn).values() if inspect.isclass(m) and issubclass(m, nn.Module) and m is not nn.Module]
MODULES = [m for m in MODULES if not hasattr(m, "join")]  # DistributedDataParallel


def module_call(world):
    r = world.random
    kind = r.choice(MODULES)
    for sizes in r.sample(((), (2,), (3, 2), (2, 3, 2), (4, 2, 2, 2), (2, 2, 2, 2, 2)), 6):
        # none is huge: as many layers would be made, in PyTorch too
        sizes = [
            r.choice((0, -1, 2.5, None, "2", True, np.int64(2), pydist.tensor(2))) if r.random() < 0.05 else s
            for s in sizes
        ]
        with contextlib.suppress(Exception):
            module = kind(*sizes)
            break
    else:
        return repr, [kind], {}
    for p in module.parameters():
        if r.random() < 0.3:
            kept(world, p)
    if r.random() < 0.2:
        module.register_forward_pre_hook(lambda *args: world.act())
    shapes = ((2, 3), (2, 2), (3,), (2, 3, 4), (2, 2, 3), (2, 2, 4, 4), (1, 2, 4, 4, 4), (3, 2, 2))
    shape = r.choice(shapes)
    wanted = [
        p
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
    ]
    args = []
    for _ in range(len(wanted) if wanted and r.random() < 0.9 else r.choice((1, 2, 3))):
        a = fuzz_calls.Array(
            shape if r.random() < 0.7 else r.choice(shapes),
            r.choice(("float32", "float32", "int64", "float64")),
            "C",
            r.randrange(99),
            r.choice(("any", "plain", (0, 2))),
        )
        args.append(kept(world, a.build(pydist, r.random() < 0.5)))
        if r.random() < 0.15:
            args[-1] = hostile(world, args[-1])
    return module, args, {}


def use(world, result, depth=0):
    r = world.random
    if isinstance(result, (list, tuple)) and depth < 3:
        for part in result[:5]:
            use(world, part, depth + 1)
    if not isinstance(result, pydist.Tensor) or result.numel() > 1 << 16:
        return
    for f in r.sample(
        (
            repr, pydist.Tensor.tolist, pydist.sum, lambda t: t.clone(), lambda t: t.sum().backward(),
            lambda t: t.add_(1),
        ),
        2,
    ):  # fmt: skip
        with forgiving():
            f(result)


@contextlib.contextmanager
def forgiving():
    """Any exception but SystemError, its causes among them."""
    try:
        yield
    except Exception as error:
        while error:
            if isinstance(error, SystemError):
                raise
            error = error.__cause__ or error.__context__


def run(world, f, args, kwargs):
    with forgiving():
        use(world, f(*args, **kwargs))


def disturb(world, stop):
    while not stop.wait(0.001):
        with forgiving():
            world.random.choice((world.change_tensor, world.change_list))()


def case(random):
    world = World(random)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stop, thread = threading.Event(), None
        if random.random() < 0.1:
            sys.setswitchinterval(1e-5)
            world.disturbed = True
            world.tensors += [pydist.ones(1 << 20) for _ in range(2)]
            thread = threading.Thread(target=disturb, args=(world, stop))
            thread.start()
        try:
            for _ in range(8):
                world.lists = []
                with forgiving():
                    run(
                        world,
                        *random.choice(
                            (valid_call, valid_call, any_call, data_call, data_call, module_call, array_call)
                        )(world),
                    )
        finally:
            stop.set()
            if thread:
                thread.join()
    world.kept.clear()


def unraisable(found):
    """What __del__ raises is no matter, SystemError excepted."""
    if isinstance(found.exc_value, SystemError):
        sys.__unraisablehook__(found)
        raise SystemExit(1)


sys.unraisablehook = unraisable
runner.main(case)
