"""tf.strings: functions of tensors of strings, which are bytes; texts are UTF-8."""

import re as _re

from pydist import _C
from pydist.data.strings import StringTensor as _StringTensor
from pydist.tensorflow import _ragged as _r
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow._arrays import reshape as _reshape
from pydist.tensorflow._names import lacking as _lacking

_POSIX = {
    "alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "blank": r" \t", "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "word": r"\w", "cntrl": r"\x00-\x1f\x7f",
}  # fmt: skip


def _strings(value, where):
    if isinstance(value, _r.RaggedTensor):
        return value
    value = _t.tensor(value)
    if not isinstance(value, _StringTensor):
        raise TypeError(f"strings.{where}: got a tensor of {value.dtype} (expected strings)")
    return value


def _each(function, value, where):
    """A tensor of function(bytes) of each string."""
    value = _strings(value, where)
    if isinstance(value, _r.RaggedTensor):
        return value.with_values(_each(function, value.values, where))
    items = value._items()
    return _shaped(_StringTensor([function(item) for item in items]), value.shape) if items else value


def _shaped(flat, sizes):
    return _reshape(flat, list(sizes))


def _numbers(function, value, dtype, where):
    """A tensor of numbers function(bytes) of each string."""
    value = _strings(value, where)
    if isinstance(value, _r.RaggedTensor):
        return value.with_values(_numbers(function, value.values, dtype, where))
    return _C.tensor([function(item) for item in value._items()], dtype=dtype).reshape(list(value.shape))


def _by_unit(unit, where):
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"strings.{where}: unit is {unit!r} (expected 'BYTE' or 'UTF8_CHAR')")
    return unit == "UTF8_CHAR"


def lower(input, encoding="", name=None):
    """In lower case: letters of ASCII, or with encoding="utf-8" all."""
    if encoding:
        return _each(lambda s: s.decode("utf-8", "replace").lower().encode(), input, "lower")
    return _each(bytes.lower, input, "lower")


def upper(input, encoding="", name=None):
    """In upper case: letters of ASCII, or with encoding="utf-8" all."""
    if encoding:
        return _each(lambda s: s.decode("utf-8", "replace").upper().encode(), input, "upper")
    return _each(bytes.upper, input, "upper")


def strip(input, name=None):
    """Without white space at both ends."""
    return _each(bytes.strip, input, "strip")


def length(input, unit="BYTE", name=None):
    """The numbers of bytes, or of characters (unit="UTF8_CHAR"), as int32."""
    characters = _by_unit(unit, "length")
    return _numbers(lambda s: len(s.decode("utf-8", "replace")) if characters else len(s), input, _C.int32, "length")


def substr(input, pos, len, unit="BYTE", name=None):
    """`len` bytes (or characters) from `pos` on; a negative pos counts from the end."""
    characters = _by_unit(unit, "substr")
    value = _strings(input, "substr")
    begins, counts = (_t.tensor(v) for v in (pos, len))
    begins, counts = (v.expand(list(value.shape)).reshape(-1).tolist() for v in (begins, counts))

    def part(item, begin, count):
        text = item.decode("utf-8", "replace") if characters else item
        size = text.__len__()
        if not -size <= begin <= size:
            from pydist.tensorflow.errors import InvalidArgumentError

            raise InvalidArgumentError(
                f"strings.substr: pos {begin} is out of range for a string of length {size} (expected -{size} to "
                f"{size})"
            )
        begin = begin if begin >= 0 else size + begin
        found = text[begin : begin + count]
        return found.encode() if characters else found

    return _shaped(_StringTensor([part(*p) for p in zip(value._items(), begins, counts)]), value.shape)


def join(inputs, separator="", name=None):
    """Tensors of strings, joined element by element."""
    parts = [_strings(v, "join") for v in inputs]
    sizes = next((v.shape for v in parts if v.ndim), ())
    between = separator.encode() if isinstance(separator, str) else bytes(separator)
    columns = []
    for v in parts:
        if v.ndim and tuple(v.shape) != tuple(sizes):
            raise _C.ShapeError(
                f"strings.join: got shapes {tuple(sizes)} and {tuple(v.shape)} (expected equal shapes, or scalars)"
            )
        columns.append(v._items() if v.ndim else v._items() * _count(sizes))
    return _shaped(_StringTensor([between.join(row) for row in zip(*columns)]), sizes)


def _count(sizes):
    count = 1
    for n in sizes:
        count *= n
    return count


def reduce_join(inputs, axis=None, keepdims=False, separator="", name=None):
    """Strings joined along an axis (all)."""
    value = _strings(inputs, "reduce_join")
    between = separator.encode() if isinstance(separator, str) else bytes(separator)
    which = _t.axes(axis)
    if which is None:
        flat = value._items()
        which = tuple(range(value.ndim))
        return _shaped(_StringTensor([between.join(flat)]), [1] * value.ndim if keepdims else [])
    for one in sorted({i % value.ndim for i in (which if isinstance(which, tuple) else (which,))}, reverse=True):
        value = _joined_along(value, one, between, keepdims)
    return value


def _joined_along(value, axis, between, keepdims):
    import numpy as np

    sizes = list(value.shape)
    rows = np.moveaxis(value.numpy(), axis, -1).reshape(-1, sizes[axis])
    texts = _StringTensor([between.join(row) for row in rows])
    return _shaped(texts, sizes[:axis] + [1] * keepdims + sizes[axis + 1 :])


def as_string(input, precision=-1, scientific=False, shortest=False, width=-1, fill="", name=None):
    """Numbers as texts."""
    x = _t.tensor(input)
    if isinstance(x, _StringTensor):
        return x

    def text(v):
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, float):
            kind = "e" if scientific else "g" if shortest else "f"
            found = f"{v:.{precision if precision >= 0 else 6}{kind}}"
        else:
            found = str(v)
        return found.rjust(width, fill or " ") if width > 0 else found

    return _shaped(_StringTensor([text(v) for v in x.reshape(-1).tolist()]), x.shape)


def to_number(input, out_type="float32", name=None):
    """Texts as numbers. Raises InvalidArgumentError for one that is none."""
    dtype = _t.as_dtype(out_type)
    read = int if _t.is_integer(dtype) else float

    def number(text):
        try:
            return read(text)
        except ValueError:
            from pydist.tensorflow.errors import InvalidArgumentError

            raise InvalidArgumentError(f"strings.to_number: got {text!r} (expected {dtype.name})") from None

    return _numbers(number, input, dtype, "to_number")


def to_hash_bucket_fast(input, num_buckets, name=None):
    """A number below num_buckets for each string, by TensorFlow's hash (Fingerprint64)."""
    from pydist.tensorflow._hashing import fingerprint

    buckets = int(num_buckets)
    return _numbers(lambda s: fingerprint(s) % buckets, input, _C.int64, "to_hash_bucket_fast")


def to_hash_bucket_strong(input, num_buckets, key, name=None):
    """A number below num_buckets for each string, by a hash with a key of two numbers (SipHash)."""
    from pydist.tensorflow._hashing import siphash

    buckets, key = int(num_buckets), _t.ints(key)
    return _numbers(lambda s: siphash(key, s) % buckets, input, _C.int64, "to_hash_bucket_strong")


# Regular expressions.


def _pattern(pattern):
    """Python's form of an RE2 pattern: [[:alpha:]] and \\pL are written out."""
    text = bytes(_t.tensor(pattern)).decode() if not isinstance(pattern, (str, bytes)) else pattern
    text = text.decode() if isinstance(text, bytes) else text
    text = _re.sub(r"\[:(\w+):\]", lambda m: _POSIX.get(m[1], m[0]), text)
    return _re.compile(text.encode())


def regex_replace(input, pattern, rewrite, replace_global=True, name=None):
    r"""Strings in which what matches is replaced; \1 in `rewrite` is the first group."""
    found = _pattern(pattern)
    new = rewrite.encode() if isinstance(rewrite, str) else bytes(_t.tensor(rewrite))
    new = _re.sub(rb"\\0", rb"\\g<0>", new)
    return _each(lambda s: found.sub(new, s, count=0 if replace_global else 1), input, "regex_replace")


def regex_full_match(input, pattern, name=None):
    """Which strings match as a whole."""
    found = _pattern(pattern)
    return _numbers(lambda s: found.fullmatch(s) is not None, input, _C.bool, "regex_full_match")


# In parts.


def _parts(input, function, where):
    """A tensor of the parts of one string, or a ragged one of those of several."""
    value = _strings(input, where)
    if isinstance(value, _StringTensor) and not value.ndim:
        return _StringTensor(function(bytes(value))) if function(bytes(value)) else _none()
    if isinstance(value, _r.RaggedTensor):
        return value.with_values(_parts(value.values, function, where))
    return _r.from_rows([function(item) for item in value._items()], _none(), list(value.shape))


def _none():
    return _StringTensor([b""])[:0]


def split(input, sep=None, maxsplit=-1, name=None):
    """The parts between white space, or between `sep`: a tensor for one string, a ragged tensor for several."""
    sep = sep.encode() if isinstance(sep, str) else sep
    return _parts(input, lambda s: s.split(sep or None, maxsplit), "split")


def bytes_split(input, name=None):
    """The bytes of each string."""
    return _parts(input, lambda s: [s[i : i + 1] for i in range(len(s))], "bytes_split")


def unicode_split(input, input_encoding="UTF-8", errors="replace", replacement_char=65533, name=None):
    """The characters of each string."""
    return _parts(input, lambda s: [c.encode() for c in _decoded(s, input_encoding, errors)], "unicode_split")


def _decoded(text, encoding, errors):
    return text.decode(encoding, {"replace": "replace", "ignore": "ignore", "strict": "strict"}[errors])


def unicode_decode(input, input_encoding="UTF-8", errors="replace", replacement_char=65533,
                   replace_control_characters=False, name=None):  # fmt: skip
    """The numbers of the characters of each string, as int32."""
    value = _strings(input, "unicode_decode")
    if not value.ndim:
        return _C.tensor([ord(c) for c in _decoded(bytes(value), input_encoding, errors)], dtype=_C.int32)
    rows = [[ord(c) for c in _decoded(item, input_encoding, errors)] for item in value._items()]
    return _r.from_rows(rows, _C.empty(0, dtype=_C.int32), list(value.shape))


def unicode_encode(input, output_encoding="UTF-8", errors="replace", replacement_char=65533, name=None):
    """Strings of rows of the numbers of characters."""
    rows = input.to_list() if isinstance(input, _r.RaggedTensor) else _t.tensor(input).tolist()
    one = rows and not isinstance(rows[0], list)
    texts = ["".join(map(chr, row)).encode(output_encoding.lower()) for row in ([rows] if one else rows)]
    return _StringTensor(texts[0] if one else texts)


def ngrams(
    data, ngram_width, separator=" ", pad_values=None, padding_width=None, preserve_short_sequences=False, name=None
):
    """Neighbouring strings of each row, joined: as many as ngram_width says, or each number of a list."""
    if pad_values is not None:
        raise NotImplementedError("strings.ngrams: pad_values (expected None)")
    widths = [ngram_width] if isinstance(ngram_width, int) else list(ngram_width)
    between = separator.encode() if isinstance(separator, str) else separator
    rows = data if isinstance(data, _r.RaggedTensor) else _strings(data, "ngrams")
    one = rows.ndim == 1 and isinstance(rows, _StringTensor)
    found = []
    for row in [rows._items()] if one else rows.to_list() if isinstance(rows, _r.RaggedTensor) else rows.tolist():
        grams = [between.join(row[i : i + n]) for n in widths for i in range(len(row) - n + 1)]
        found.append([between.join(row)] if preserve_short_sequences and not grams and row else grams)
    if one:
        return _StringTensor(found[0]) if found[0] else _none()
    return _r.from_rows(found, _none(), [len(found)])


def format(template, inputs, placeholder="{}", summarize=3, name=None):
    """The template with the texts of tensors in the places of {}."""
    from pydist.tensorflow._flow import _text

    values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    parts = template.split(placeholder)
    if len(parts) - 1 != len(values):
        raise ValueError(f"strings.format: {len(parts) - 1} places for {len(values)} tensors (expected equal numbers)")
    text = parts[0]
    for value, part in zip(values, parts[1:]):
        text += _text(value if isinstance(value, (_t.Tensor, _StringTensor)) else _t.tensor(value), summarize) + part
    return _StringTensor(text)


__getattr__ = _lacking(__name__)
