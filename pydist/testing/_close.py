"""assert_close, for tests of code that computes with tensors."""

from pydist import _C

_TOLERANCE = {
    _C.float16: (1e-3, 1e-5),
    _C.bfloat16: (1.6e-2, 1e-5),
    _C.float32: (1.3e-6, 1e-5),
    _C.float64: (1e-7, 1e-7),
}


def _tolerances(a, b, rtol, atol):
    """The given tolerances, or the defaults of the wider dtype; (0, 0) for integers."""
    if (rtol is None) != (atol is None):
        raise ValueError("rtol and atol must both be specified or both be unspecified")
    if rtol is not None:
        return rtol, atol
    pairs = [_TOLERANCE.get(t.dtype, (0.0, 0.0)) for t in (a, b)]
    return max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)


def _tensors(actual, expected, check_dtype, where):
    """Both as tensors; numbers become 0-d ones."""
    both = [value if isinstance(value, _C.Tensor) else _C.as_tensor(value) for value in (actual, expected)]
    a, b = both
    if a.shape != b.shape:
        raise AssertionError(f"The values for attribute 'shape' do not match{where}: {a.shape} != {b.shape}.")
    if a.dtype is not b.dtype and check_dtype and isinstance(actual, _C.Tensor):
        raise AssertionError(f"The values for attribute 'dtype' do not match{where}: {a.dtype} != {b.dtype}.")
    return a.detach(), b.detach()


def assert_close(
    actual, expected, *, rtol=None, atol=None, equal_nan=False, check_device=True, check_dtype=True,
    check_layout=True, check_stride=False, msg=None, allow_subclasses=True, _where="",
):  # fmt: skip
    """Raises AssertionError unless |actual - expected| <= atol + rtol * |expected| for all elements and the shapes and
    (check_dtype) dtypes are equal. Lists, tuples and dictionaries are compared entry by entry. Give both rtol and atol
    or neither; the defaults depend on the dtype: 1.3e-6 and 1e-5 for float32, 1e-7 for float64, 1e-3 and 1e-5 for
    float16, 1.6e-2 and 1e-5 for bfloat16, 0 for the others. `msg`: another text, or a function of the text.

    >>> import pydist
    >>> pydist.testing.assert_close(pydist.tensor([1.0]), pydist.tensor([1.0000001]))
    >>> pydist.testing.assert_close({"a": 1}, {"a": 2})
    Traceback (most recent call last):
    AssertionError: Tensor-likes are not close (item ['a']): 1 of 1 differ, most by 1 (up to 0 allowed)
    """
    options = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan, "check_dtype": check_dtype, "msg": msg}
    if isinstance(expected, dict) and isinstance(actual, dict):
        if actual.keys() != expected.keys():
            raise AssertionError(f"The keys of the mappings do not match{_where}: {list(actual)} != {list(expected)}")
        for key, value in expected.items():
            assert_close(actual[key], value, **options, _where=f"{_where} (item [{key!r}])")
        return
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        if len(actual) != len(expected):
            raise AssertionError(f"The length of the sequences mismatch{_where}: {len(actual)} != {len(expected)}")
        for i, (a, b) in enumerate(zip(actual, expected)):
            assert_close(a, b, **options, _where=f"{_where} (item [{i}])")
        return
    a, b = _tensors(actual, expected, check_dtype, _where)
    rtol, atol = _tolerances(a, b, rtol, atol)
    wide = _C.float64 if a.is_floating_point() or b.is_floating_point() else _C.int64
    a, b = a.to(wide), b.to(wide)
    far = (a - b).abs() > atol + rtol * b.abs()
    strange = ~(a.isfinite() & b.isfinite())
    same = a == b
    if equal_nan:
        same = same | (a.isnan() & b.isnan())
    wrong = (far | strange) & ~same
    if not wrong.any().item():
        return
    most = (a - b).abs()[wrong].max().item()
    text = (
        f"Tensor-likes are not close{_where}: {int(wrong.sum().item())} of {a.numel()} differ, most by {most:g} "
        f"(up to {atol:g}{f' + {rtol:g} of the expected' if rtol else ''} allowed)"
    )
    raise AssertionError(text if msg is None else msg(text) if callable(msg) else msg)
