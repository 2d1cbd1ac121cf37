"""The hashes of tf.strings.to_hash_bucket_fast (FarmHash's Fingerprint64) and to_hash_bucket_strong (SipHash-2-4): the
buckets are TensorFlow's."""

import struct

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def _rotate(value, by):
    """Rotated to the right."""
    value &= _MASK
    return (value >> by | value << 64 - by) & _MASK


def _mix(value):
    return value ^ value >> 47


def _of_two(u, v, mul):
    a = _mix((u ^ v) * mul & _MASK)
    return _mix((v ^ a) * mul & _MASK) * mul & _MASK


def _words(data):
    """A function from a place to the 8 bytes there, as a number."""
    return lambda at: int.from_bytes(data[at : at + 8], "little")


def _short(data, n):
    if n >= 8:
        word, mul = _words(data), _K2 + n * 2
        a, b = word(0) + _K2 & _MASK, word(n - 8)
        c, d = _rotate(b, 37) * mul + a & _MASK, (_rotate(a, 25) + b) * mul & _MASK
        return _of_two(c, d, mul)
    if n >= 4:
        first, last = (int.from_bytes(data[at : at + 4], "little") for at in (0, n - 4))
        return _of_two(n + (first << 3) & _MASK, last, _K2 + n * 2)
    if n:
        y, z = data[0] + (data[n >> 1] << 8), n + (data[n - 1] << 2)
        return _mix(y * _K2 & _MASK ^ z * _K0 & _MASK) * _K2 & _MASK
    return _K2


def _middle(data, n):
    word, mul = _words(data), _K2 + n * 2
    factor = _K1 if n <= 32 else _K2
    a, b, c, d = word(0) * factor & _MASK, word(8), word(n - 8) * mul & _MASK, word(n - 16) * _K2 & _MASK
    y = _rotate(a + b, 43) + _rotate(c, 30) + d & _MASK
    z = a + _rotate(b + _K2, 18) + c & _MASK
    if n <= 32:
        return _of_two(y, z, mul)
    z = _of_two(y, z, mul)
    e, f = word(16) * mul & _MASK, word(24)
    g, h = (y + word(n - 32)) * mul & _MASK, (z + word(n - 24)) * mul & _MASK
    return _of_two(_rotate(e + f, 43) + _rotate(g, 30) + h & _MASK, e + _rotate(f + a, 18) + g & _MASK, mul)


def _weak(word, at, a, b):
    w, x, y, z = (word(at + i) for i in (0, 8, 16, 24))
    a = a + w & _MASK
    b, c = _rotate(b + a + z, 21), a
    a = a + x + y & _MASK
    return a + z & _MASK, b + _rotate(a, 44) + c & _MASK


def _long(data, n):
    word, x = _words(data), 81
    y = x * _K1 + 113 & _MASK
    z = _mix(y * _K2 + 113 & _MASK) * _K2 & _MASK
    v = w = (0, 0)
    x = x * _K2 + word(0) & _MASK
    for at in range(0, (n - 1) // 64 * 64, 64):
        x, y, z, v, w = _round(word, at, x, y, z, v, w, _K1, 1)
    mul, at = _K1 + ((z & 255) << 1), n - 64
    w = (w[0] + (n - 1 & 63) & _MASK, w[1])
    v = (v[0] + w[0] & _MASK, v[1])
    w = (w[0] + v[0] & _MASK, w[1])
    x, y, z, v, w = _round(word, at, x, y, z, v, w, mul, 9)
    first = _of_two(v[0], w[0], mul) + _mix(y) * _K0 + z & _MASK
    return _of_two(first, _of_two(v[1], w[1], mul) + x & _MASK, mul)


def _round(word, at, x, y, z, v, w, mul, factor):
    x = _rotate(x + y + v[0] + word(at + 8), 37) * mul & _MASK
    y = _rotate(y + v[1] + word(at + 48), 42) * mul & _MASK
    x ^= w[1] * factor & _MASK
    y = y + v[0] * factor + word(at + 40) & _MASK
    z = _rotate(z + w[0], 33) * mul & _MASK
    v = _weak(word, at, v[1] * mul & _MASK, x + w[0] & _MASK)
    w = _weak(word, at + 32, z + w[1] & _MASK, y + word(at + 16) & _MASK)
    return z, y, x, v, w


def fingerprint(data):
    """FarmHash's Fingerprint64 of bytes."""
    n = len(data)
    return _short(data, n) if n <= 16 else _middle(data, n) if n <= 64 else _long(data, n)


def _sip_round(v):
    """SipHash's mixing; it rotates to the left."""
    a, b, c, d = v
    a, c = a + b & _MASK, c + d & _MASK
    b, d = _rotate(b, 51) ^ a, _rotate(d, 48) ^ c
    a = _rotate(a, 32)
    a, c = a + d & _MASK, c + b & _MASK
    b, d = _rotate(b, 47) ^ c, _rotate(d, 43) ^ a
    return a, b, _rotate(c, 32), d


def siphash(key, data):
    """SipHash-2-4 of bytes by a key of two numbers."""
    k0, k1 = (k & _MASK for k in key)
    v = (k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573)
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 255])
    for (word,) in struct.iter_unpack("<Q", padded):
        v = (v[0], v[1], v[2], v[3] ^ word)
        v = _sip_round(_sip_round(v))
        v = (v[0] ^ word, v[1], v[2], v[3])
    v = (v[0], v[1], v[2] ^ 255, v[3])
    for _ in range(4):
        v = _sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]
