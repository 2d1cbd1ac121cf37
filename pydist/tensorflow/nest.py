"""tf.nest: structures of lists, tuples, named tuples and dictionaries, taken apart and put together."""

from collections.abc import Mapping as _Mapping

from pydist.tensorflow._names import lacking as _lacking


def is_nested(structure):
    """Whether it is a list, tuple or dictionary."""
    return isinstance(structure, (list, tuple, _Mapping)) and not hasattr(structure, "as_list")


def _keys(structure):
    try:
        return sorted(structure)
    except TypeError:
        raise TypeError(f"nest: the keys {list(structure)} cannot be sorted (expected keys of one type)") from None


def flatten(structure, expand_composites=False):
    """The leaves as a list; those of a dictionary in the order of its sorted keys."""
    found = []
    _flatten(structure, found)
    return found


def _flatten(structure, found):
    if not is_nested(structure):
        found.append(structure)
    elif isinstance(structure, _Mapping):
        for key in _keys(structure):
            _flatten(structure[key], found)
    else:
        for part in structure:
            _flatten(part, found)


def pack_sequence_as(structure, flat_sequence, expand_composites=False):
    """The leaves in a structure like this one."""
    flat = list(flat_sequence)
    count = len(flatten(structure))
    if len(flat) != count:
        raise ValueError(f"nest.pack_sequence_as: got {len(flat)} leaves (expected {count})")
    return _pack(structure, iter(flat))


def _pack(structure, leaves):
    if not is_nested(structure):
        return next(leaves)
    if isinstance(structure, _Mapping):
        found = {key: _pack(structure[key], leaves) for key in _keys(structure)}
        ordered = {key: found[key] for key in structure}
        return ordered if type(structure) is dict else type(structure)(ordered)
    parts = [_pack(part, leaves) for part in structure]
    return type(structure)(*parts) if hasattr(structure, "_fields") else type(structure)(parts)


def assert_same_structure(nest1, nest2, check_types=True, expand_composites=False):
    """Raises ValueError if the structures differ, TypeError if their types do."""
    if is_nested(nest1) != is_nested(nest2):
        raise ValueError(f"nest: {nest1!r} and {nest2!r} do not have the same structure (expected the same)")
    if not is_nested(nest1):
        return
    if check_types and type(nest1) is not type(nest2):
        raise TypeError(f"nest: got {type(nest1).__name__} and {type(nest2).__name__} (expected one type)")
    if len(nest1) != len(nest2) or isinstance(nest1, _Mapping) and set(nest1) != set(nest2):
        raise ValueError(f"nest: {nest1!r} and {nest2!r} do not have the same structure (expected the same)")
    for key in nest1 if isinstance(nest1, _Mapping) else range(len(nest1)):
        assert_same_structure(nest1[key], nest2[key], check_types)


def map_structure(func, *structure, **kwargs):
    """func of the leaves of the structures that are in the same place, in such a structure."""
    unknown = set(kwargs) - {"check_types", "expand_composites"}
    if unknown:
        raise ValueError(f"nest.map_structure: got {sorted(unknown)} (expected check_types or expand_composites)")
    for other in structure[1:]:
        assert_same_structure(structure[0], other, kwargs.get("check_types", True))
    return pack_sequence_as(structure[0], [func(*leaves) for leaves in zip(*map(flatten, structure))])


__getattr__ = _lacking(__name__)
