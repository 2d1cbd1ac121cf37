"""Every function and method that takes tensors, on DTensors: the whole's values, or an error. None may compute on a rank's
part in silence."""

import warnings

import pytest

import pydist
from pydist import nn
from pydist.distributed.tensor import DTensor, Partial, Shard, distribute_tensor, init_device_mesh
from pydist.testing import run_ranks

# What draws, changes settings, reads files, makes tensors that are not initialised, or is about one rank's memory.
OTHERS = tuple(
    """save load seed manual_ set_ use_ get_ is_ from_ init rand empty normal bernoulli multinomial poisson dropout alpha_
    feature_ gumbel rrelu random_ uniform_ exponential_ cauchy_ geometric_ log_normal_ register_ retain_ share_ storage
    untyped cpu cuda pin_ record_ backward device type new_empty new compile sparse_coo H T""".split()
)
PLACES = Shard(0), Shard(1), Partial()
ARGUMENTS = [("matrix",), ("vector",), ("whole",), ("mask",), ("matrix", "matrix"), ("matrix", 0), ("matrix", 1, 1),
             ("vector", "vector"), ("matrix", "matrix", "matrix"), ("matrix", 0, "index"), ("matrix", "index")]  # fmt: skip


def functions(room):
    """{name: function} of a namespace."""
    if room is pydist.Tensor:
        names = [name for name in dir(room) if not name.startswith("__")]
        return {
            name: lambda x, *args, name=name: called(getattr(x, name), args)
            for name in names
            if not name.startswith(OTHERS)
        }
    found = {name: getattr(room, name) for name in dir(room) if not name.startswith(("_", *OTHERS))}
    return {name: f for name, f in found.items() if callable(f) and not isinstance(f, type)}


def called(value, args):
    return value(*args) if callable(value) else value


def values():
    pydist.manual_seed(0)
    return {"matrix": pydist.rand(4, 4) + 0.1, "vector": pydist.rand(6), "whole": pydist.arange(12).view(4, 3),
            "mask": pydist.rand(4, 4) > 0.5, "index": pydist.tensor([[0, 1, 3, 2]] * 4)}  # fmt: skip


def spread(t, mesh, place):
    if place.is_partial():
        place = place if t.is_floating_point() else Shard(0)
    if place.is_partial():
        return DTensor.from_local(t / 2, mesh, [place])
    return distribute_tensor(t, mesh, [place if place.dim < t.dim() else Shard(0)])


def leaves(result):
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in leaves(item)]
    return [result] if isinstance(result, (pydist.Tensor, int, float, complex)) else []


def same(a, b):
    if isinstance(a, DTensor):
        a = a.full_tensor()
    if not isinstance(b, pydist.Tensor):
        return type(a) is type(b) and (a == b or a != a)
    if not isinstance(a, pydist.Tensor) or a.shape != b.shape or a.is_sparse != b.is_sparse or a.is_sparse:
        return False
    if pydist._C.spread_of(a) is not None:
        return False
    wide = pydist.complex128
    return bool(pydist.allclose(a.to(wide), b.to(wide), rtol=1e-4, atol=1e-5, equal_nan=True))


def tried(name, function, names, mesh, place):
    """None where the call has no meaning or raises for DTensors, else whether the values are the whole's."""
    made = values()
    try:
        want = leaves(function(*(made[n].clone() if isinstance(n, str) else n for n in names)))
    except Exception:
        return None
    try:
        got = leaves(function(*(spread(made[n], mesh, place) if isinstance(n, str) else n for n in names)))
    except Exception as error:
        assert isinstance(error, (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)), (name, error)
        return None
    return len(got) == len(want) and all(map(same, got, want))


@pytest.mark.parametrize(
    "room, least",
    [
        pytest.param(pydist, 340, marks=pytest.mark.slow),
        (pydist.linalg, 2),
        (pydist.special, 20),
        (nn.functional, 70),
        pytest.param(pydist.Tensor, 300, marks=pytest.mark.slow),
    ],
    ids=["pydist", "linalg", "special", "functional", "Tensor"],
)
def test_no_function_computes_on_a_part(room, least):
    def work(rank):
        mesh, wrong, right = init_device_mesh("cpu", (2,)), [], set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, function in functions(room).items():
                for names in ARGUMENTS:
                    for place in PLACES:
                        good = tried(name, function, names, mesh, place)
                        if good:
                            right.add(name)
                        elif good is False:
                            wrong.append((name, names, str(place)))
        return wrong, len(right)

    for wrong, right in run_ranks(2, work, timeout=120):
        assert not wrong and right >= least, (wrong, right)
