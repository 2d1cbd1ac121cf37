"""tf.compat: texts and bytes, and what is left of TensorFlow 1."""

from pydist.tensorflow._names import lazy as _lazy

__getattr__, __dir__ = _lazy(__name__, {}, "v1")


def as_bytes(bytes_or_text, encoding="utf-8"):
    """A text as bytes."""
    if isinstance(bytes_or_text, (bytes, bytearray)):
        return bytes(bytes_or_text)
    if isinstance(bytes_or_text, str):
        return bytes_or_text.encode(encoding)
    raise TypeError(f"compat.as_bytes: got {bytes_or_text!r} (expected str or bytes)")


def as_text(bytes_or_text, encoding="utf-8"):
    """Bytes as a text."""
    if isinstance(bytes_or_text, str):
        return bytes_or_text
    if isinstance(bytes_or_text, (bytes, bytearray)):
        return bytes(bytes_or_text).decode(encoding)
    raise TypeError(f"compat.as_text: got {bytes_or_text!r} (expected str or bytes)")


def as_str(bytes_or_text, encoding="utf-8"):
    """Bytes as a text."""
    return as_text(bytes_or_text, encoding)


def as_str_any(value, encoding="utf-8"):
    """The text of any value; that of bytes decoded."""
    return as_text(value, encoding) if isinstance(value, (str, bytes, bytearray)) else str(value)


def path_to_str(path):
    """The text of a path."""
    return as_str_any(path.__fspath__() if hasattr(path, "__fspath__") else path)


def dimension_value(dimension):
    """A size of a shape: it is an int or None already."""
    return dimension
