"""What a rule of an op says: which dimensions of its inputs and results belong together.

A rule gives each dimension a label. Dimensions of the same label may be cut in the same way, and each rank computes its
part; a dimension labelled None has to be whole. A label that only inputs have is reduced: the ranks' results are
summands (or what else `reduces` says). Whatever the placements of inputs are, a plan is then a choice of one label, or of
none, for each dimension of the mesh (_plan.py)."""

from dataclasses import dataclass, field

from pydist import _C


@dataclass
class Call:
    """A call of an op on DTensors. `inputs`: DTensors, plain tensors without dimensions, and None for what is missing;
    `shapes`, `dtypes` are the wholes'. `outs`: tensors on meta, like the whole results."""

    name: str
    inputs: tuple
    attrs: dict
    raw: bytes
    into: object
    wants: bool
    specs: tuple = ()
    shapes: tuple = ()
    dtypes: tuple = ()
    outs: tuple = ()

    def dim(self, name="dim", of=0):
        """The attribute as a dimension that counts from 0."""
        return self.attrs[name] % max(len(self.shapes[of]), 1)

    def dims(self, name="dim", of=0):
        """The attribute as a set of dimensions; all of them for None and ()."""
        n = len(self.shapes[of])
        return {d % max(n, 1) for d in self.attrs[name]} if self.attrs[name] else set(range(n))


@dataclass
class Rule:
    """`ins`, `outs`: a label for each dimension of each tensor; None in the place of a tensor that is missing. `reduces`:
    label -> how results are reduced; `linear`: as _C.op_linear; `added`: inputs that are added to a reduced result, so
    that only one rank may have them. `units`: (input or "out", dimension) -> how many indices of the label one index of
    that dimension stands for. `filled`: labels of which each rank needs at least one index. `local(shapes of results)`:
    attributes that depend on the sizes of parts. `runs`: the op that runs instead. `offers`: (placements of inputs, of
    results, None) that the labels do not say, each for one dimension of a mesh; None: the labels say them."""

    ins: tuple
    outs: tuple
    reduces: dict = field(default_factory=dict)
    linear: int = 0
    added: tuple = ()
    units: dict = field(default_factory=dict)
    filled: tuple = ()
    local: object = None
    runs: str = None
    offers: list = None


def aligned(shape, out):
    """The labels of an operand that is broadcast to `out`, whose labels are 0, 1, ..."""
    first = len(out) - len(shape)
    return tuple(first + d if n == out[first + d] else None for d, n in enumerate(shape))


def each(call):
    """Elementwise, with broadcasting."""
    out = tuple(call.outs[0].shape)
    ins = tuple(None if shape is None else aligned(shape, out) for shape in call.shapes)
    labels = tuple(range(len(out)))
    widest = max(_rank_of(dtype) for dtype in call.dtypes if dtype is not None)
    linear = _C.op_linear(call.name) if widest <= _rank_of(call.outs[0].dtype) else 0
    return Rule(ins, (labels,) * len(call.outs), linear=linear)


def _rank_of(dtype):
    return 2 if dtype.is_complex else 1 if dtype.is_floating_point else 0


def along(*names, linear=0):
    """An op that works along the dimensions that these attributes name, and on each place of the others by itself; the
    results have the input's dimensions, or those without the ones along which it works."""

    def rule(call):
        n = len(call.shapes[0])
        gone = set()
        for name in names or ("dim",):
            value = call.attrs[name]
            gone |= (
                set(range(n)) if value is None else {value % max(n, 1)} if isinstance(value, int) else call.dims(name)
            )
        labels = tuple(None if d in gone else d for d in range(n))
        short = tuple(d for d in range(n) if d not in gone)
        outs = tuple(labels if out.dim() == n else short for out in call.outs)
        ins = tuple(
            None if shape is None else labels if len(shape) == n else (None,) * len(shape) for shape in call.shapes
        )
        return Rule(ins, outs, linear=linear)

    return rule


def reduced(kind, exact=True, linear=0):
    """A reduction along `dim`, or of all. Not exact: its results have no gradient by parts."""

    def rule(call):
        n = len(call.shapes[0])
        dims = call.dims() if "dim" in call.attrs and not isinstance(call.attrs["dim"], int) else (
            set(range(n)) if call.attrs["dim"] is None else {call.dim()})  # fmt: skip
        labels = tuple(range(n))
        out = tuple(None if d in dims else d for d in labels) if call.attrs.get("keepdim") else tuple(
            d for d in labels if d not in dims)  # fmt: skip
        reduces = dict.fromkeys(dims, kind) if exact or not call.wants else {}
        if call.outs[0].dim() not in (len(out),):
            return None
        return Rule((labels,), (out,), reduces, linear=linear)

    return rule
