"""Elements of pipelines: nested tuples and dictionaries of tensors, and what is known of them before they are there.

A pipeline carries the leaves of an element in a flat list, and their tree once: None for a leaf, ("tuple", type, trees)
or ("dict", keys, trees).
"""

from collections.abc import Mapping

from pydist import _C
from pydist.data import strings
from pydist.data.strings import StringTensor, string

INFINITE, UNKNOWN, AUTOTUNE = -1, -2, -1
ENDLESS = (1 << 63) - 1


class TensorSpec:
    """The shape (None: any size, or any shape) and dtype of a tensor.

    >>> import pydist
    >>> pydist.data.TensorSpec((None, 28), pydist.uint8)
    TensorSpec(shape=(None, 28), dtype=pydist.uint8)
    """

    __slots__ = ("shape", "dtype", "name")

    def __init__(self, shape, dtype=_C.float32, name=None):
        self.shape = None if shape is None else tuple(shape)
        self.dtype, self.name = dtype, name

    def is_compatible_with(self, value):
        """Whether a tensor, or a tensor of another spec, fits."""
        if value.dtype is not self.dtype:
            return False
        if self.shape is None or value.shape is None:
            return True
        return len(self.shape) == len(value.shape) and all(
            a is None or b is None or a == b for a, b in zip(self.shape, value.shape)
        )

    def __eq__(self, other):
        return isinstance(other, TensorSpec) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self):
        return hash((self.shape, str(self.dtype)))

    def __repr__(self):
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype})"


class DatasetSpec:
    """The elements of a data set that is an element itself."""

    def __init__(self, element_spec):
        self.element_spec = element_spec

    def __eq__(self, other):
        return isinstance(other, DatasetSpec) and self.element_spec == other.element_spec

    __hash__ = None

    def __repr__(self):
        return f"DatasetSpec({self.element_spec})"


def flatten(value, leaves):
    """The tree of a value, whose leaves are added to the list as they are."""
    kind = type(value)
    if kind is _C.Tensor or kind is StringTensor:
        leaves.append(value)
        return None
    if isinstance(value, tuple):
        return ("tuple", kind, tuple([flatten(part, leaves) for part in value]))
    if isinstance(value, Mapping):
        return ("dict", tuple(value), tuple([flatten(part, leaves) for part in value.values()]))
    leaves.append(value)
    return None


def pack(tree, leaves):
    """The value of leaves in a tree."""
    return leaves[0] if tree is None else _pack(tree, iter(leaves))


def _pack(tree, leaves):
    if tree is None:
        return next(leaves)
    kind, what, trees = tree
    if kind == "dict":
        return {key: _pack(part, leaves) for key, part in zip(what, trees)}
    parts = [_pack(part, leaves) for part in trees]
    return tuple(parts) if what is tuple else what(*parts)


def described(tree):
    """A tree for people: (*, {'a': *})."""
    if tree is None:
        return "*"
    kind, what, trees = tree
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {described(part)}" for key, part in zip(what, trees)) + "}"
    return "(" + ", ".join(map(described, trees)) + ("," if len(trees) == 1 else "") + ")"


class Flat(list):
    """Values for the leaves, in their order."""


def along(tree, value, where, name):
    """The parts of a nested value that stand where a tree has leaves."""
    if isinstance(value, Flat):
        return list(value)
    if tree is None:
        return [value]
    kind, what, trees = tree
    if kind == "dict":
        if not isinstance(value, Mapping) or set(value) != set(what):
            raise ValueError(f"{where}: {name} is {value!r} (expected a dictionary of {list(what)}, as elements are)")
        parts = [value[key] for key in what]
    elif isinstance(value, (tuple, list)) and len(value) == len(trees):
        parts = value
    else:
        raise ValueError(f"{where}: {name} is {value!r} (expected {len(trees)} parts, as elements have)")
    return [leaf for part, one in zip(trees, parts) for leaf in along(part, one, where, name)]


def shapes_of(given, count, step, where):
    """A program's padded_shapes for each component: None (the largest of the batch), or sizes, of which some are None."""
    if given is None:
        return [None] * count
    return [_sizes(shape, where) for shape in along(step.tree, given, where, "padded_shapes")]


def _sizes(shape, where):
    if shape is None:
        return None
    shape = shape.tolist() if hasattr(shape, "tolist") else getattr(shape, "dims", shape)
    if not isinstance(shape, (list, tuple)):
        raise TypeError(f"{where}: padded_shapes has {shape!r} (expected sizes)")
    return tuple(None if n is None or n == -1 else count_of(n, where, "a size of padded_shapes", 0) for n in shape)


def values_of(given, count, step, where):
    """A program's padding_values for each component: one for all, or nested."""
    if given is None or not isinstance(given, (tuple, list, Mapping)):
        return [given] * count
    return along(step.tree, given, where, "padding_values")


def signature_of(types, shapes):
    """The specs that from_generator's output_types and output_shapes stand for."""
    leaves = []
    tree = flatten(tuple(types) if isinstance(types, list) else types, leaves)
    sizes = [None] * len(leaves) if shapes is None else along(tree, shapes, "from_generator", "output_shapes")
    sizes = [None if one is None else _sizes(one, "from_generator") for one in sizes]
    return pack(tree, [TensorSpec(shape, dtype) for shape, dtype in zip(sizes, leaves)])


def distribution(given, where, name):
    """A program's probabilities of classes."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(values, (list, tuple)) and values and all(isinstance(n, (int, float)) and n >= 0 for n in values):
        if abs(sum(values) - 1) < 1e-3:
            return tuple(float(n) for n in values)
    raise ValueError(f"{where}: {name} is {given!r} (expected probabilities of classes, whose sum is 1)")


def _has_strings(value):
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (str, bytes, bytearray, StringTensor))


def of_python(value):
    """Numbers and lists of them as a tensor. `import tensorflow` puts TensorFlow's rules here: integers are int32."""
    return _C.tensor(value, device="cpu")


def as_leaf(value, where):
    """A tensor, tensor of strings or data set of what a program gave."""
    if isinstance(value, (_C.Tensor, StringTensor)) or value is None:
        return value
    kind = type(value)
    if kind.__module__ == "numpy":
        if getattr(value, "dtype", None) is not None and value.dtype.kind in "OSU":
            return StringTensor(value.tolist())
        return _C.from_numpy(value) if kind.__name__ == "ndarray" and value.ndim else _C.tensor(value, device="cpu")
    if hasattr(value, "_node") and hasattr(value, "element_spec"):
        return value
    if _has_strings(value):
        return StringTensor(value)
    for other in ("RaggedTensor", "SparseTensor"):
        if kind.__name__ == other:
            raise TypeError(
                f"{where}: got a {other} (expected a tensor: padded_batch makes batches of rows that differ)"
            )
    try:
        if isinstance(value, list) and any(isinstance(part, _C.Tensor) for part in value):
            return _C.stack([as_leaf(part, where) for part in value])
        return of_python(value)
    except TypeError as error:
        raise TypeError(
            f"{where}: got {kind.__name__} (expected tensors, arrays, numbers or strings): {error}"
        ) from None


def leaves_of(value, where):
    """(tree, leaves as tensors) of a value."""
    leaves = []
    tree = flatten(value, leaves)
    return tree, [as_leaf(leaf, where) for leaf in leaves]


def spec_of(leaf):
    """What a leaf is."""
    if leaf is None:
        return None
    if hasattr(leaf, "_node"):
        return DatasetSpec(leaf.element_spec)
    return TensorSpec(leaf.shape, leaf.dtype)


def common(a, b):
    """The spec that both fit."""
    if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec) or a == b:
        return a
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorSpec(None, a.dtype)
    return TensorSpec([x if x == y else None for x, y in zip(a.shape, b.shape)], a.dtype)


def bytes_of(leaves):
    """About how many bytes of memory leaves take."""
    size = 0
    for leaf in leaves if isinstance(leaves, list) else ():
        if isinstance(leaf, StringTensor):
            size += leaf._spans.numel() * 8
        elif isinstance(leaf, _C.Tensor):
            size += leaf.numel() * leaf.dtype.itemsize
    return size


def take_rows(leaf, numbers):
    """The rows of a leaf with these numbers, in memory of their own."""
    if isinstance(leaf, StringTensor):
        return StringTensor._of(leaf._data, _C._data_gather(leaf._spans, numbers))
    return _C._data_gather(leaf, numbers)


def _unequal(parts, which, where):
    first = spec_of(parts[0])
    for number, part in enumerate(parts):
        if spec_of(part) != first:
            return _C.DataError(
                f"{where}: element {number} of a batch has {spec_of(part)} in component {which}, but element 0 has {first} "
                "(expected equal shapes and dtypes; padded_batch makes batches of rows that differ)"
            )
    return None


def stack(rows, where="batch"):
    """Leaves along a new first dim, of a list of elements' leaves."""
    return [stack_leaf(list(parts), which, where) for which, parts in enumerate(zip(*rows))]


def stack_leaf(parts, which=0, where="batch"):
    """One component of several elements along a new first dim."""
    first = parts[0]
    if first is None:
        return None
    if hasattr(first, "_node"):
        raise TypeError(f"{where}: the elements are data sets (expected tensors: flat_map or batch them first)")
    try:
        if isinstance(first, StringTensor):
            return strings.stacked(parts)
        dtype = first.dtype
        if all(part.dtype is dtype for part in parts):
            return _C.stack(parts)
    except (RuntimeError, AttributeError, ValueError):
        pass
    error = _unequal(parts, which, where)
    if error is None:
        return _C.stack(parts)
    raise error


def merge(groups, count):
    """The leaves of `count` rows of several groups: (places of its rows among them, their leaves)."""
    if len(groups) == 1:
        return groups[0][1]
    back = [0] * count
    for at, place in enumerate(place for places, _ in groups for place in places):
        back[place] = at
    numbers = _C.tensor(back, dtype=_C.int64, device="cpu")
    return [take_rows(join(list(parts)), numbers) for parts in zip(*(leaves for _, leaves in groups))]


def join(parts):
    """Leaves along their first dim."""
    return strings.joined(parts) if isinstance(parts[0], StringTensor) else _C.cat(parts)


def count_of(value, where, name, least=None):
    """An int that a program gave, also as a tensor or array of one number."""
    if isinstance(value, bool) or not (hasattr(value, "__index__") or hasattr(value, "item")):
        raise TypeError(f"{where}: {name} is {value!r} (expected int)")
    value = value.__index__() if hasattr(value, "__index__") else value.item()
    if not isinstance(value, int):
        raise TypeError(f"{where}: {name} is {value!r} (expected int)")
    if not -ENDLESS - 1 <= value <= ENDLESS or least is not None and value < least:
        raise ValueError(f"{where}: {name} is {value} (expected {'an int64' if least is None else f'{least} or more'})")
    return value


__all__ = ["AUTOTUNE", "DatasetSpec", "INFINITE", "TensorSpec", "UNKNOWN", "string"]
