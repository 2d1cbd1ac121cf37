"""Files of comma-separated values: their rows are read by number, a batch of them in one call of Python's csv."""

import csv
import glob

from pydist import _C
from pydist.data import spec, streams
from pydist.data.dataset import Dataset
from pydist.data.files import CSV, LINES, paths_of
from pydist.data.records import of_files
from pydist.data.spec import TensorSpec
from pydist.data.step import Step, apart
from pydist.data.strings import StringTensor, string

_INT32 = 1 << 31


class Columns:
    """How fields become tensors: for each column that is wanted its place, its dtype and its default (None: a field without a
    value is an error)."""

    def __init__(self, where, defaults, delimiter, quotes, missing, select=None):
        self.where, self.missing = where, missing
        if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\n\r"':
            raise ValueError(f"{where}: field_delim is {delimiter!r} (expected one character)")
        self.options = {
            "delimiter": delimiter,
            "quoting": csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
            "strict": True,
        }
        self.places = list(range(len(defaults))) if select is None else list(select)
        if len(self.places) != len(defaults) or not defaults:
            raise ValueError(
                f"{where}: record_defaults has {len(defaults)} columns (expected {len(self.places) or '1 or more'})"
            )
        self.all = select is None
        self.dtypes, self.defaults = zip(*(_default_of(given, where, place) for place, given in enumerate(defaults)))

    def parsed(self, records):
        """The columns of a list of records (bytes)."""
        texts = [record.decode("utf-8", "surrogateescape") for record in records]
        try:
            rows = [row or [""] for row in csv.reader(texts, **self.options)]
        except csv.Error:
            rows = ()
        if len(rows) != len(texts):  # a quote that does not end, or one within a field
            rows = [self._row(text, number) for number, text in enumerate(texts)]
        for number, row in enumerate(rows):
            if len(row) != len(self.places) if self.all else len(row) <= max(self.places):
                self._wrong(number, f"has {len(row)} fields", len(self.places) if self.all else max(self.places) + 1)
        return [self._column([row[place] for row in rows], which) for which, place in enumerate(self.places)]

    def _row(self, text, number):
        try:
            (row,) = csv.reader([text], **self.options) if text else [[""]]
        except csv.Error as error:
            raise _C.DataError(f"{self.where}: record {number} is no record of CSV: {error}: {text[:200]!r}") from None
        return row

    def _wrong(self, number, got, expected):
        raise _C.DataError(f"{self.where}: record {number} {got} (expected {expected})")

    def _column(self, fields, which):
        dtype, default = self.dtypes[which], self.defaults[which]
        convert = _surrogates if dtype is string else float if dtype.is_floating_point else int
        values = []
        for number, field in enumerate(fields):
            if field == "" or field == self.missing:
                if default is None:
                    self._wrong(number, f"has no value in field {self.places[which]}", "one, or a default")
                values.append(default)
                continue
            try:
                values.append(convert(field))
            except ValueError:
                self._wrong(number, f"has {field!r} in field {self.places[which]}", f"a number of {dtype}")
        if dtype is string:
            return StringTensor(values)
        column = _C.tensor(values, dtype=_C.float64 if dtype.is_floating_point else _C.int64, device="cpu")
        if dtype is _C.int32 and len(values) and not -_INT32 <= min(values) <= max(values) < _INT32:
            number = next(i for i, value in enumerate(values) if not -_INT32 <= value < _INT32)
            self._wrong(number, f"has {values[number]} in field {self.places[which]}", "an int32")
        return column.to(dtype)

    def detail(self):
        """What the fingerprint of a plan holds of this."""
        return (self.places, list(map(str, self.dtypes)), self.defaults, self.missing, sorted(self.options.items()))


def _surrogates(field):
    return field.encode("utf-8", "surrogateescape")


_KNOWN = (_C.float32, _C.float64, _C.int32, _C.int64, string)


def _default_of(given, where, place):
    """(dtype, default) of what record_defaults has for a column: a dtype, or a tensor or list of no value or of one."""
    if any(given is dtype for dtype in _KNOWN) or given in (str, float, int):
        return {str: string, float: _C.float32, int: _C.int64}.get(given, given), None
    leaf = spec.as_leaf(given, where)
    items = leaf._items() if isinstance(leaf, StringTensor) else leaf.reshape(-1).tolist()
    if len(items) > 1 or leaf.dtype not in _KNOWN:
        raise ValueError(
            f"{where}: record_defaults has {given!r} for column {place} (expected a dtype of float32, float64, int32, int64 or "
            "string, or one value)"
        )
    return leaf.dtype, items[0] if items else None


def decode_csv(
    records, record_defaults, field_delim=",", use_quote_delim=True, name=None, na_value="", select_cols=None
):
    """The columns of records of CSV, a list of tensors in the records' shape.

    `record_defaults`: for each column a dtype, or a list with the value of empty fields; `na_value` counts as empty, too.
    `select_cols`: the places of the columns that are wanted.

    >>> import pydist
    >>> from pydist.data import decode_csv
    >>> [column.tolist() for column in decode_csv(["1,a,2.5", "2,b,"], [pydist.int64, str, [0.0]])]
    [[1, 2], [b'a', b'b'], [2.5, 0.0]]
    """
    records = spec.as_leaf(records, "decode_csv")
    if not isinstance(records, StringTensor):
        raise TypeError(f"decode_csv: records is {type(records).__name__} (expected strings)")
    columns = Columns("decode_csv", list(record_defaults), field_delim, use_quote_delim, na_value, select_cols)
    return [column.reshape(records.shape) for column in columns.parsed(records._items())]


class Rows(Step):
    """The rows of records of CSV. `names`: of the columns, where elements are dictionaries; `label`: the name of the one that
    stands beside the dictionary."""

    def __init__(self, step, columns, names=None, label=None):
        self.inputs, self.columns, self.names, self.label = (step,), columns, names, label

    name = property(lambda self: self.columns.where)

    @property
    def tree(self):
        if self.names is None:
            return ("tuple", tuple, (None,) * len(self.columns.places))
        names = tuple(name for name in self.names if name != self.label)
        features = ("dict", names, (None,) * len(names))
        return features if self.label is None else ("tuple", tuple, (features, None))

    def _ordered(self, leaves):
        if self.label is None:
            return leaves
        place = self.names.index(self.label)
        return [*leaves[:place], *leaves[place + 1 :], leaves[place]]

    def apply(self, leaves, number, run):
        """The columns of one record."""
        return self._ordered([column[0] for column in self.columns.parsed(leaves[0].reshape((1,))._items())])

    def get(self, i, run):
        return self.apply(self.input.get(i, run), i, run)

    def rows(self, numbers, run):
        return self._ordered(self.columns.parsed(self.input.rows(numbers, run)[0]._items()))

    def stream(self, run):
        return streams.MapStream(self, run)

    def elements(self, numbers, run):
        return apart(self.rows(numbers, run), len(numbers))

    def specs(self):
        return self._ordered([TensorSpec((), dtype) for dtype in self.columns.dtypes])

    def detail(self):
        return (self.names, self.label, *self.columns.detail())


class CsvDataset(Dataset):
    """The rows of files of CSV, as tuples of the columns.

    `record_defaults`, `na_value` and `select_cols` as for `decode_csv`; `exclude_cols`: the places of columns that are not
    wanted. Rows are read by number, as TFRecordDataset reads records; a quoted field may have newlines.
    """

    def __init__(self, filenames, record_defaults, compression_type=None, buffer_size=None, header=False, field_delim=",",
                 use_quote_delim=True, na_value="", select_cols=None, exclude_cols=None):  # fmt: skip
        where, defaults = type(self).__name__, list(record_defaults)
        if exclude_cols is not None:
            if select_cols is not None:
                raise ValueError(f"{where}: got select_cols and exclude_cols (expected one of them)")
            most = len(defaults) + len(exclude_cols)
            select_cols = [place for place in range(most) if place not in set(exclude_cols)]
        columns = Columns(where, defaults, field_delim, use_quote_delim, na_value, select_cols)
        records = _records(filenames, where, header, use_quote_delim, compression_type)
        super().__init__(Rows(records, columns))


def _records(filenames, where, header, quotes, compression_type, num_parallel_reads=None):
    framing = CSV if quotes else LINES
    return of_files(filenames, where, framing, compression_type, num_parallel_reads, skip=int(bool(header)))


def make_csv_dataset(file_pattern, batch_size, column_names=None, column_defaults=None, label_name=None, select_columns=None,
                     field_delim=",", use_quote_delim=True, na_value="", header=True, num_epochs=None, shuffle=True,
                     shuffle_buffer_size=10000, shuffle_seed=None, prefetch_buffer_size=None, num_parallel_reads=None,
                     sloppy=False, num_rows_for_inference=100, compression_type=None, ignore_errors=False,
                     encoding="utf-8"):  # fmt: skip
    """Batches of the rows of files that match a pattern: dictionaries of the columns by name, with `label_name` pairs of such
    a dictionary and the label. Without `num_epochs` the passes do not end.

    Names come from the first line, or `column_names`. Dtypes come from `column_defaults`, or from the first rows: int32,
    int64, float32 or strings.
    """
    where = "make_csv_dataset"
    paths = sorted({path for pattern in paths_of(file_pattern, where) for path in glob.glob(pattern)})
    if not paths:
        raise FileNotFoundError(f"{where}: no file matches {file_pattern!r} (expected one or more)")

    def records(header, paths=paths, reads=None):
        return _records(paths, where, header, use_quote_delim, compression_type, reads)

    def cells(lines):
        options = {"delimiter": field_delim, "quoting": csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE}
        return list(csv.reader([line.decode("utf-8", "surrogateescape") for line in lines], **options))

    def first(step, count):
        return [line.numpy() for line in Dataset(step).take(count)]

    names = list(column_names) if column_names is not None else None
    if names is None:
        if not header:
            raise ValueError(f"{where}: got header=False and no column_names (expected names, or a header)")
        heads = [cells(first(records(False, [path]), 1)) for path in paths]
        names = heads[0][0] if heads[0] else []
        for path, head in zip(paths, heads):
            if head != [names]:
                raise ValueError(f"{where}: {path} has columns {head and head[0]} (expected {names}, as {paths[0]})")
    if len(set(names)) != len(names):
        raise ValueError(f"{where}: the names of columns are {names} (expected names that differ)")
    wanted = list(range(len(names)))
    if select_columns is not None:
        wanted = sorted(_place(one, names, where) for one in select_columns)
    if label_name is not None and label_name not in [names[place] for place in wanted]:
        raise ValueError(
            f"{where}: label_name is {label_name!r} (expected one of {[names[place] for place in wanted]})"
        )
    if column_defaults is None:
        sample = cells(first(records(header), num_rows_for_inference))
        column_defaults = [_inferred([row[place] for row in sample if place < len(row)], na_value) for place in wanted]
    elif len(column_defaults) == len(names) != len(wanted):
        column_defaults = [column_defaults[place] for place in wanted]
    select = None if len(wanted) == len(names) else wanted
    columns = Columns(where, column_defaults, field_delim, use_quote_delim, na_value, select)
    chosen = [names[place] for place in wanted]
    dataset = Dataset(Rows(records(header, reads=num_parallel_reads), columns, chosen, label_name))
    if ignore_errors:
        dataset = dataset.ignore_errors()
    if shuffle:
        dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed)
    dataset = dataset.repeat(num_epochs).batch(batch_size, drop_remainder=num_epochs is None)
    return dataset.prefetch(prefetch_buffer_size)


def _place(one, names, where):
    if isinstance(one, int) and 0 <= one < len(names):
        return one
    if one not in names:
        raise ValueError(f"{where}: select_columns has {one!r} (expected one of {names})")
    return names.index(one)


def _inferred(fields, missing):
    """The default of a column of these fields: an empty value of the first dtype that fits all."""
    given = [field for field in fields if field != "" and field != missing]
    for dtype, convert in ((_C.int64, int), (_C.float32, float)):
        try:
            numbers = [convert(field) for field in given]
        except ValueError:
            continue
        if dtype is _C.int64 and all(-_INT32 <= n < _INT32 for n in numbers):
            dtype = _C.int32
        return _C.tensor([0], dtype=dtype, device="cpu")
    return [""]
