"""Event files: TFRecords of Event messages (tensorflow's core/util/event.proto and core/framework/summary.proto).

record: length (8 bytes), masked CRC-32C of these, the message, masked CRC-32C of it
"""

import struct


def _table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


_CRC = _table()


def masked_crc(data):
    """CRC-32C (Castagnoli), rotated and shifted as TFRecords need it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(message):
    """A TFRecord with this message."""
    length = struct.pack("<Q", len(message))
    return b"".join((length, struct.pack("<I", masked_crc(length)), message, struct.pack("<I", masked_crc(message))))


# Fields of a protocol buffer: a number with the wire type, then the value.


def _varint(n):
    out = bytearray()
    n &= (1 << 64) - 1
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def integer(number, value):
    """A field with an integer (varint)."""
    return _varint(number << 3) + _varint(int(value))


def double(number, value):
    """A field with a float64."""
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def single(number, value):
    """A field with a float32."""
    return _varint(number << 3 | 5) + struct.pack("<f", value)


def chunk(number, data):
    """A field with bytes, text or a nested message."""
    data = data.encode() if isinstance(data, str) else data
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def doubles(number, values):
    """A field with packed float64 numbers."""
    return chunk(number, struct.pack(f"<{len(values)}d", *values))


def event(when, step, version=None, summary=None):
    """Event: wall_time 1, step 2, file_version 3, summary 5."""
    parts = [double(1, when), integer(2, step)]
    if version is not None:
        parts.append(chunk(3, version))
    if summary is not None:
        parts.append(chunk(5, summary))
    return b"".join(parts)


def value(tag, *fields):
    """A Summary with one Value: tag 1 and its content."""
    return chunk(1, chunk(1, tag) + b"".join(fields))


def scalar(tag, number):
    """The content of a scalar: simple_value 2."""
    return value(tag, single(2, number))


def plugin(name, content=""):
    """The plugin that shows a value: metadata 9, plugin_data 1: plugin_name 1, content 2."""
    return chunk(9, chunk(1, chunk(1, name) + (chunk(2, content) if content else b"")))


def string(*strings, shape=()):
    """Strings as a tensor 8: dtype 1 (DT_STRING 7), shape 2, string_val 8."""
    sizes = chunk(2, b"".join(chunk(2, integer(1, size)) for size in shape))
    return chunk(8, integer(1, 7) + sizes + b"".join(chunk(8, s) for s in strings))


def text(tag, strings):
    """The content of a text."""
    return value(tag, plugin("text"), string(*strings, shape=(len(strings),)))


def histogram(tag, low, high, count, total, squares, limits, counts):
    """The content of a histogram, histo 5: min 1, max 2, num 3, sum 4, sum_squares 5, bucket_limit 6, bucket 7."""
    fields = [double(i, v) for i, v in enumerate((low, high, count, total, squares), 1)]
    return value(tag, chunk(5, b"".join((*fields, doubles(6, limits), doubles(7, counts)))))


def image(tag, height, width, channels, png):
    """The content of an image, image 4: height 1, width 2, colorspace 3, encoded 4."""
    return value(tag, chunk(4, integer(1, height) + integer(2, width) + integer(3, channels) + chunk(4, png)))
