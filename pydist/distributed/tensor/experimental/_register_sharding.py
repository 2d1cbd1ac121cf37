"""register_sharding: placements of an op that a program gives."""

import inspect
import re
from dataclasses import replace

from pydist import _C
from pydist.distributed.tensor import _plan
from pydist.distributed.tensor._rule import Rule, each
from pydist.distributed.tensor._rules import RULES
from pydist.distributed.tensor._spec import TensorMeta, contiguous
from pydist.distributed.tensor.placement_types import Placement

_OP = "register_sharding"
_OURS = {  # PyTorch's names of ops that have another one here
    "_softmax": "softmax", "_log_softmax": "log_softmax", "mm": "matmul", "native_layer_norm": "layer_norm",
    "native_batch_norm": "batch_norm", "native_group_norm": "group_norm", "native_dropout": "dropout",
    "convolution": "conv2d", "_to_copy": "cast", "cross_entropy_loss": "cross_entropy", "nll_loss_forward": "nll_loss",
}  # fmt: skip


class Operand:
    """What a function of register_sharding gets in the place of a tensor: its sizes, strides and dtype, and how it lies."""

    def __init__(self, spec, shape, dtype):
        self.shape, self.dtype, self.ndim = _C.Size(shape), dtype, len(shape)
        self.mesh, self.placements = spec.mesh, spec.placements
        self.tensor_meta = TensorMeta(self.shape, contiguous(shape), dtype)

    def size(self, dim=None):
        """The sizes of the whole tensor, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self):
        """The number of dimensions."""
        return self.ndim


def _name_of(op):
    """The engine's name of an op that is given by a handle of pydist.ops, a name or a function."""
    known = {row[0] for row in _C.op_table()}
    handle = getattr(op, "default", op)  # of a packet
    name = op if isinstance(op, str) else getattr(handle, "_name", None) or getattr(op, "__name__", None)
    name = name.removeprefix("aten::").removeprefix("aten.").partition(".")[0] if isinstance(name, str) else name
    name = _OURS.get(name, name)
    if name not in known:
        raise ValueError(
            f"{_OP}: op is {op!r} (expected an op of pydist.ops.aten, its name, or a function such as pydist.softmax)"
        )
    return name


def _parameters(name):
    """[(type, name)] of an op."""
    text = next(row[1] for row in _C.op_table() if row[0] == name)
    inside = text[text.index("(") + 1 : text.rindex(")")]
    parts = re.findall(r"(\S+) (\w+)(?:=(?:\([^)]*\)|[^,])*)?(?:, |$)", inside.replace("*, ", ""))
    return [part for part in parts if part[0] != "rng"]


def _is_tensor(kind):
    return kind.startswith(("Tensor", "Operand"))


def _arguments(call):
    """The arguments of a call, in the order of the op's parameters."""
    given = [shape if shape is None else Operand(spec, shape, dtype)
             for spec, shape, dtype in zip(call.specs, call.shapes, call.dtypes, strict=True)]  # fmt: skip
    parameters, args, at = _parameters(call.name), [], 0
    singles = sum(_is_tensor(kind) and "[]" not in kind for kind, _ in parameters)
    for kind, name in parameters:
        if not _is_tensor(kind):
            args.append(call.attrs.get(name))
        elif "[]" in kind:
            n = len(given) - singles
            args.append(tuple(given[at : at + n]))
            at += n
        else:
            args.append(call.attrs.get(name) if given[at] is None else given[at])
            at += 1
    return args


def _as_function_takes(function, args):
    """As many arguments as the function has parameters: PyTorch's ops have some that there are none of here."""
    taken = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in taken):
        return args
    places = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    more = [p for p in places[len(args) :] if p.default is p.empty]
    return [*args[: len(places)], *[None] * len(more)]


def _checked(call, side, placements, ndims):
    """One placement for each tensor; what is None is no tensor."""
    placements = [p for p in placements if p is not None]
    if len(placements) != len(ndims) or not all(isinstance(p, Placement) for p in placements):
        raise ValueError(f"{_OP}: of {call.name}: {side} have placements {placements} (expected {len(ndims)})")
    for p, n in zip(placements, ndims, strict=True):
        if p.is_shard() and not 0 <= p.dim < n:
            raise ValueError(f"{_OP}: of {call.name}: {side} have {p} (expected dimensions from 0 to {n - 1})")
    return placements


def _offers(call, function):
    there = [i for i, shape in enumerate(call.shapes) if shape is not None]
    offers = []
    for outs, ins in function(*_as_function_takes(function, _arguments(call))):
        outs = _checked(call, "results", outs, [t.dim() for t in call.outs])
        given = dict(zip(there, _checked(call, "inputs", ins, [len(call.shapes[i]) for i in there]), strict=True))
        offers.append(([given.get(i) for i in range(len(call.shapes))], outs, None))
    if not offers:
        raise ValueError(f"{_OP}: the function of {call.name} returned no placements (expected at least one pair)")
    return offers


def register_sharding(op):
    """A decorator: the function below says how an op may run on parts of DTensors. `op` is one of `pydist.ops.aten`, a name,
    a function such as `pydist.softmax`, or a list of these.

    The function gets the op's arguments; tensors are objects with shape, ndim, dtype, mesh and placements. It returns pairs
    (placements of the results, placements of the arguments): one placement for each tensor, None for what is no tensor.
    Each pair is for one dimension of a mesh. The pair that moves the fewest bytes is taken, the first one of equals. Its
    values are not checked: a rank computes the op on its parts, and what it gets is taken as its part of the result. The
    pairs replace the rule that the op had. Raises ValueError for an op that there is not, and, when the op is called, for
    placements that do not fit.

    >>> import pydist
    >>> from pydist.distributed.tensor import Replicate, Shard
    >>> from pydist.distributed.tensor.experimental import register_sharding
    >>> @register_sharding(pydist.ops.aten.flip.default)
    ... def of_flip(x, dims):
    ...     whole = [([Replicate()], [Replicate(), None])]
    ...     return whole + [([Shard(d)], [Shard(d), None]) for d in range(x.ndim) if d not in dims]
    """
    names = [_name_of(one) for one in (op if isinstance(op, (list, tuple)) else [op])]

    def register(function):
        def rule(call):
            base = RULES.get(call.name, each)(call) if call.name in RULES or not _parameters(call.name)[1:] else None
            base = base or Rule((None,) * len(call.shapes), (None,) * len(call.outs))
            return replace(base, offers=_offers(call, function))

        for name in names:
            _plan.custom[name] = rule
        _C.spread_forget()
        return function

    return register
