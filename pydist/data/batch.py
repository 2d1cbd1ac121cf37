"""Steps that make batches and take them apart."""

from math import prod

from pydist import _C
from pydist.data import spec, streams
from pydist.data.spec import INFINITE, TensorSpec, UNKNOWN
from pydist.data.step import Step
from pydist.data.strings import StringTensor, string


class Batch(Step):
    """Batches of `size` elements. `part`: (rank, ranks): of each batch the rows of this rank only; the plan is the same."""

    def __init__(self, step, size, drop, part=None):
        self.inputs, self.size, self.drop, self.part = (step,), size, drop, part

    def count_of(self, n):
        return n if n == INFINITE else n // self.size if self.drop else -(-n // self.size)

    def members(self, i):
        """The numbers of the elements of batch i."""
        n, begin = self.input.count(), i * self.size
        end = begin + self.size if n == INFINITE else min(n, begin + self.size)
        if self.part is None:
            return range(begin, end)
        rank, ranks = self.part
        rows = end - begin
        return range(begin + rows * rank // ranks, begin + rows * (rank + 1) // ranks)

    def get(self, i, run):
        members = self.members(i)
        if members:
            return self.input.rows(members, run)
        begin = i * self.size  # a part without rows has their shapes
        return [leaf[:0] for leaf in self.input.rows(range(begin, begin + 1), run)]

    def stacked(self, rows):
        """The leaves of the batch of these elements."""
        return spec.stack(rows, self.name)

    def stream(self, run):
        return streams.BatchStream(self, run)

    def specs(self):
        size = self.size if self.drop and self.part is None else None
        return batched(self.input.specs(), size)

    def detail(self):
        return (self.size, self.drop)


def batched(specs, size):
    """The specs of batches."""
    return [
        one if not isinstance(one, TensorSpec) or one.shape is None else TensorSpec((size, *one.shape), one.dtype)
        for one in specs
    ]


class PaddedBatch(Batch):
    """Batches of elements that are filled up to equal shapes. `shapes` and `values` are a program's, nested as elements
    are; elements are not looked at before the first batch."""

    name = "padded_batch"

    def __init__(self, step, size, shapes, values, drop):
        super().__init__(step, size, drop)
        self.shapes, self.values, self._each = shapes, values, None

    def each(self, count):
        """(shape, value) of each of the components. Shape None: the largest of the batch; value None: 0 or ""."""
        if self._each is None:
            shapes = spec.shapes_of(self.shapes, count, self.input, self.name)
            self._each = list(zip(shapes, spec.values_of(self.values, count, self.input, self.name)))
        return self._each

    def get(self, i, run):
        return self.stacked([self.input.get(k, run) for k in self.members(i)])

    def stacked(self, rows):
        return [
            _padded(list(parts), shape, value, which)
            for which, (parts, (shape, value)) in enumerate(zip(zip(*rows), self.each(len(rows[0]))))
        ]

    def specs(self):
        size, before = self.size if self.drop else None, self.input.specs()
        return [
            TensorSpec(None if one.shape is None else (size, *(shape or (None,) * len(one.shape))), one.dtype)
            for (shape, _), one in zip(self.each(len(before)), before)
        ]

    def detail(self):
        return (self.size, self.drop, repr(self.shapes), repr(self.values))


def _padded(parts, shape, value, which):
    """A component of elements of shapes that differ, filled up with the value."""
    if not hasattr(parts[0], "shape"):
        raise TypeError(f"padded_batch: component {which} has data sets (expected tensors)")
    ndim = len(parts[0].shape)
    for number, part in enumerate(parts):
        if len(part.shape) != ndim or part.dtype is not parts[0].dtype:
            raise _C.DataError(
                f"padded_batch: element {number} of a batch has {spec.spec_of(part)} in component {which}, but element 0 has "
                f"{spec.spec_of(parts[0])} (expected equal dtypes and numbers of dims)"
            )
    if shape is not None and len(shape) != ndim:
        raise ValueError(
            f"padded_batch: padded_shapes has {shape} for component {which} of {ndim} dims (expected as many sizes)"
        )
    most = tuple(max(part.shape[d] for part in parts) for d in range(ndim))
    full = most if shape is None else tuple(a if b is None else b for a, b in zip(most, shape))
    if any(a > b for a, b in zip(most, full)):
        number = next(n for n, part in enumerate(parts) if any(a > b for a, b in zip(part.shape, full)))
        raise _C.DataError(
            f"padded_batch: element {number} of a batch has shape {tuple(parts[number].shape)} in component {which} (expected "
            f"at most {full})"
        )
    value = filler_of(value, parts[0].dtype, "padded_batch")
    if isinstance(parts[0], StringTensor):
        return _padded_strings(parts, full, value)
    out = _C.full((len(parts), *full), value, dtype=parts[0].dtype, device="cpu")
    for row, part in zip(out, parts):
        row[tuple(slice(0, size) for size in part.shape)] = part
    return out


def _padded_strings(parts, full, value):
    filler = StringTensor(value)
    data, at = [filler._data], filler._data.shape[0]
    spans = filler._spans.expand(len(parts), *full, 2).contiguous() if prod(full) else None
    for row, part in zip(spans if spans is not None else (), parts):
        row[tuple(slice(0, size) for size in part.shape)] = part._spans + at
        data.append(part._data)
        at += part._data.shape[0]
    if spans is None:
        spans = _C.zeros(len(parts), *full, 2, dtype=_C.int64, device="cpu")
    return StringTensor._of(_C.cat(data), spans)


def filler_of(value, dtype, where):
    """A program's padding value for a component of this dtype; None: 0, or the empty string."""
    if dtype is string:
        if value is not None and not isinstance(value, (str, bytes)):
            raise TypeError(f"{where}: padding_values has {value!r} for strings (expected a string)")
        return b"" if value is None else value if isinstance(value, bytes) else value.encode()
    if value is None:
        return 0
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{where}: padding_values has {value!r} for {dtype} (expected a number)")
    return value.item() if hasattr(value, "item") else value


class _OfBatches(Step):
    """A step whose input has batches."""

    indexed = False

    def checked(self, leaves):
        """The leaves of an element, which have to be batches of the same number of rows. Raises DataError if not."""
        sizes = {leaf.shape[0] if getattr(leaf, "shape", None) else None for leaf in leaves if leaf is not None}
        if len(sizes) == 1 and None not in sizes:
            return leaves
        shapes = [tuple(leaf.shape) if hasattr(leaf, "shape") else type(leaf).__name__ for leaf in leaves]
        raise _C.DataError(
            f"{self.name}: an element has components of shape {shapes} (expected batches of equal length)"
        )


class Unbatch(_OfBatches):
    def __init__(self, step):
        self.inputs = (step,)

    def count_of(self, n):
        sizes = {one.shape[0] for one in self.input.specs() if isinstance(one, TensorSpec) and one.shape}
        known = n >= 0 and len(sizes) == 1 and None not in sizes
        return n if n in (0, INFINITE) else n * sizes.pop() if known else UNKNOWN

    def specs(self):
        return [TensorSpec(None if one.shape is None else one.shape[1:], one.dtype) for one in self.input.specs()]

    def stream(self, run):
        return streams.UnbatchStream(self, run)


class Rebatch(_OfBatches):
    """Batches of other sizes, in turn."""

    def __init__(self, step, sizes, drop):
        self.inputs, self.sizes, self.drop = (step,), sizes, drop

    def count_of(self, n):
        return n if n in (0, INFINITE) else UNKNOWN

    def specs(self):
        size = self.sizes[0] if self.drop and len(set(self.sizes)) == 1 else None
        return [
            TensorSpec(None if one.shape is None else (size, *one.shape[1:]), one.dtype) for one in self.input.specs()
        ]

    def stream(self, run):
        return streams.RebatchStream(self, run)

    def detail(self):
        return (self.sizes, self.drop)
