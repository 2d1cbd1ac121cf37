"""RaggedTensor: rows of different lengths, as tf.strings.split and its kin return them. It is no element of a pipeline
and no operand; `to_tensor` fills the rows up."""

from pydist import _C
from pydist.data.strings import StringTensor
from pydist.tensorflow._shapes import TensorShape
from pydist.tensorflow._tensors import Tensor, dtype_or_none, ints, tensor


class RaggedTensor:
    """`values`, and where each row begins and ends in them (`row_splits`). Rows may be ragged, too."""

    def __init__(self, values, row_splits):
        self.values, self.row_splits = values, row_splits
        self._splits = row_splits.tolist()

    @classmethod
    def from_row_splits(cls, values, row_splits, name=None, validate=True):
        """Row i is values[row_splits[i]:row_splits[i + 1]]."""
        values = values if isinstance(values, RaggedTensor) else tensor(values)
        splits = tensor(row_splits).to(_C.int64)
        numbers = splits.tolist()
        if not numbers or numbers[0] != 0 or numbers != sorted(numbers) or numbers[-1] != len(values):
            raise ValueError(
                f"RaggedTensor: row_splits is {numbers} (expected ascending numbers from 0 to {len(values)})"
            )
        return cls(values, splits)

    @classmethod
    def from_row_lengths(cls, values, row_lengths, name=None, validate=True):
        """Rows of these lengths."""
        splits = [0]
        for n in ints(row_lengths):
            splits.append(splits[-1] + n)
        return cls.from_row_splits(values, splits)

    @classmethod
    def from_tensor(cls, tensor_, lengths=None, padding=None, ragged_rank=1, name=None, row_splits_dtype="int64"):
        """The rows of a tensor, shortened to these lengths or without the padding at their ends."""
        x = tensor(tensor_)
        if padding is not None:
            rows = x.tolist()
            lengths = [max((i + 1 for i, v in enumerate(row) if v != padding), default=0) for row in rows]
        sizes = [x.shape[1]] * len(x) if lengths is None else ints(lengths)
        flat = _joined([x[i][:n] for i, n in enumerate(sizes)]) if sizes else x.reshape(-1)
        return cls.from_row_lengths(flat, sizes)

    def with_values(self, values):
        """Other values in the same rows."""
        return RaggedTensor(values, self.row_splits)

    with_flat_values = with_values

    @property
    def flat_values(self):
        """The values of the innermost rows."""
        return self.values.flat_values if isinstance(self.values, RaggedTensor) else self.values

    @property
    def dtype(self):
        """The dtype of the values."""
        return self.values.dtype

    @property
    def ndim(self):
        """How many axes."""
        return 1 + self.values.ndim

    @property
    def ragged_rank(self):
        """How many axes are ragged."""
        return 1 + (self.values.ragged_rank if isinstance(self.values, RaggedTensor) else 0)

    @property
    def shape(self):
        """The sizes; None for those that differ."""
        inner = tuple(self.values.shape)[1:]
        return TensorShape([len(self), None, *inner])

    def nrows(self, out_type=None, name=None):
        """How many rows."""
        return _C.tensor(len(self), dtype=dtype_or_none(out_type) or _C.int64)

    def row_lengths(self, axis=1, name=None):
        """The length of each row."""
        return self.row_splits[1:] - self.row_splits[:-1]

    def bounding_shape(self, axis=None, name=None, out_type=None):
        """The sizes of the least tensor that holds all rows."""
        sizes = [len(self), max(self.row_lengths().tolist(), default=0)]
        inner = (
            self.values.bounding_shape().tolist()[1:]
            if isinstance(self.values, RaggedTensor)
            else list(self.values.shape)[1:]
        )
        sizes += inner
        found = _C.tensor(sizes, dtype=dtype_or_none(out_type) or _C.int64)
        return found if axis is None else found[axis]

    def __len__(self):
        return len(self._splits) - 1

    def __getitem__(self, index):
        if isinstance(index, tuple):
            first, *rest = index
            return self[first][tuple(rest)] if not isinstance(first, slice) else _outer(self, first, rest)
        if isinstance(index, slice):
            rows = range(len(self))[index]
            return from_parts([self[i] for i in rows], self.values)
        at = range(len(self))[int(index)]
        return self.values[self._splits[at] : self._splits[at + 1]]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def to_list(self):
        """The rows as lists."""
        return [row.to_list() if isinstance(row, RaggedTensor) else row.tolist() for row in self]

    def numpy(self):
        """An array of arrays, or a plain one if all rows have one length."""
        import numpy as np

        rows = [row.numpy() for row in self]
        if len({len(row) for row in rows}) <= 1:
            return np.array(rows)
        found = np.empty(len(rows), dtype=object)
        found[:] = rows
        return found

    def to_tensor(self, default_value=None, name=None, shape=None):
        """A tensor in which short rows are filled up with default_value (0, or "")."""
        sizes = self.bounding_shape().tolist()
        wanted = list(TensorShape(shape) if shape is not None else [])
        sizes = [w if w is not None else n for w, n in zip(wanted, sizes)] + sizes[len(wanted) :]
        strings = isinstance(self.flat_values, StringTensor)
        fill = default_value if default_value is not None else b"" if strings else 0
        fill = fill.tolist() if isinstance(fill, (Tensor, StringTensor)) else fill
        rows = _filled(self.to_list(), sizes, fill)
        if strings:
            from pydist.tensorflow._arrays import reshape

            return StringTensor(rows) if 0 not in sizes else reshape(StringTensor([b""])[:0], sizes)
        return _C.tensor(rows, dtype=self.dtype).reshape(sizes)

    def __repr__(self):
        return f"<tf.RaggedTensor {self.to_list()}>"


def _outer(ragged, first, rest):
    rows = ragged[first]
    if len(rest) == 1 and isinstance(rest[0], slice):
        return from_parts([row[rest[0]] for row in rows], rows.values)
    raise NotImplementedError(f"RaggedTensor: index {(first, *rest)} (expected rows, or [:, a:b])")


def _filled(rows, sizes, fill):
    if not isinstance(rows, list):
        return rows
    inner = [_filled(row, sizes[1:], fill) for row in rows[: sizes[0]]]
    return inner + [_blank(sizes[1:], fill)] * (sizes[0] - len(inner))


def _blank(sizes, fill):
    return [_blank(sizes[1:], fill)] * sizes[0] if sizes else fill


def _joined(parts):
    from pydist.tensorflow._arrays import concat

    return concat(parts, 0)


def from_parts(parts, like):
    """The ragged tensor of these rows; `like`: values of the kind that no rows have."""
    lengths = [len(part) for part in parts]
    if isinstance(like, RaggedTensor):
        inner = [row for part in parts for row in part]
        return RaggedTensor.from_row_lengths(from_parts(inner, like.values), lengths)
    return RaggedTensor.from_row_lengths(_joined(parts) if sum(lengths) else like[:0], lengths)


def from_rows(rows, like, sizes):
    """The ragged tensor of lists of Python's values: as many as `sizes` says, in that shape."""
    flat = [v for row in rows for v in row]
    values = (
        (StringTensor(flat) if isinstance(like, StringTensor) else _C.tensor(flat, dtype=like.dtype)) if flat else like
    )
    found = RaggedTensor.from_row_lengths(values, [len(row) for row in rows])
    for n in reversed(sizes[1:]):
        found = RaggedTensor.from_row_lengths(found, [n] * (len(found) // n if n else 0))
    return found


def constant(pylist, dtype=None, ragged_rank=None, inner_shape=None, name=None, row_splits_dtype="int64"):
    """The ragged tensor of nested lists (tf.ragged.constant)."""
    depth, level = 0, pylist
    while level and all(isinstance(v, (list, tuple)) for v in level):
        depth, level = depth + 1, [v for row in level for v in row]
    if not depth:
        return tensor(pylist, dtype_or_none(dtype))
    levels = [pylist]
    for _ in range(depth - 1):
        levels.append([v for row in levels[-1] for v in row])
    found = tensor([v for row in levels[-1] for v in row], dtype_or_none(dtype))
    for rows in reversed(levels):
        found = RaggedTensor.from_row_lengths(found, [len(row) for row in rows])
    return found


def map_flat_values(op, *args, **kwargs):
    """op, called with the values of ragged tensors; its result in their rows (tf.ragged.map_flat_values)."""
    ragged = next((v for v in (*args, *kwargs.values()) if isinstance(v, RaggedTensor)), None)
    if ragged is None:
        return op(*args, **kwargs)

    def inner(v):
        return v.values if isinstance(v, RaggedTensor) else v

    return ragged.with_values(map_flat_values(op, *map(inner, args), **{k: inner(v) for k, v in kwargs.items()}))
