"""A nested state as flat names and back, and the values that are no tensors as JSON."""

import base64
import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping

from pydist import _C
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.layout import TensorPart

_NAMED = {str(dtype).removeprefix("pydist."): dtype for dtype in vars(_C).values() if isinstance(dtype, _C.dtype)}


class Position(int):
    """A number on the way to a value that is a position in a list, not a key of a dict."""


def _goes_on(value):
    """Whether names lead into this list or tuple: it has tensors or dicts."""
    return any(
        isinstance(item, (_C.Tensor, TensorPart, Mapping)) or (isinstance(item, (list, tuple)) and _goes_on(item))
        for item in value
    )


def flatten(state):
    """({name: value}, {name: path}). Names are PyTorch's: the keys and positions on the way to a value, with dots between
    them. Lists without tensors and dicts are values. Raises ValueError if two values have one name."""
    flat, paths = {}, {}

    def walk(value, path):
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                walk(item, (*path, key))
        elif isinstance(value, (list, tuple)) and _goes_on(value):
            for i, item in enumerate(value):
                walk(item, (*path, Position(i)))
        else:
            name = ".".join(map(str, path))
            if name in flat:
                raise ValueError(
                    f"checkpoint: two values of the state have the name {name!r} (expected names of their own)"
                )
            flat[name], paths[name] = value, path

    for key, value in state.items():
        walk(value, (key,))
    return flat, paths


def put(state, path, value):
    """Replaces the value at this path of a nested state. Tuples on the way are made anew."""
    *way, last = path
    for depth, key in enumerate(way):
        if isinstance(state[key], tuple):
            parent = list(state[key])
            put(parent, path[depth + 1 :], value)
            state[key] = type(state[key])(parent) if type(state[key]) is tuple else type(state[key])(*parent)
            return
        state = state[key]
    state[last] = value


def nest(flat, paths):
    """The nested state of these values, of dicts and lists."""
    state, inner = {}, {}  # inner: {id of each dict that is made here: the dict}
    for name, value in flat.items():
        at, path = state, paths.get(name, (name,))
        for key in path[:-1]:
            if key not in at:
                at[key] = {}
                inner[id(at[key])] = at[key]
            at = at[key]
            if id(at) not in inner:
                raise CheckpointException(f"load: {name!r} lies within another value of the checkpoint")
        if path[-1] in at:
            raise CheckpointException(f"load: {name!r} lies where another value of the checkpoint does")
        at[path[-1]] = value

    def lists(value):
        if id(value) not in inner:
            return value
        if all(type(key) is Position for key in value):
            return [lists(value[key]) for key in sorted(value)]
        return {key: lists(item) for key, item in value.items()}

    try:
        return {key: lists(item) for key, item in state.items()}
    except RecursionError:
        raise CheckpointException("load: the state is nested too deeply") from None


def path_to_json(path):
    """A path whose keys are text, numbers or positions, as JSON; None for other keys, whose names stay flat."""
    if not all(type(key) in (str, int, Position) for key in path):
        return None
    return [[key] if type(key) is Position else key for key in path]


def path_from_json(path):
    """path_to_json's inverse. Raises ValueError."""
    if not isinstance(path, list) or not path:
        raise ValueError(f"the path {str(path)[:50]} (expected a list of names, numbers and [number])")
    keys = [Position(key[0]) if isinstance(key, list) and len(key) == 1 else key for key in path]
    if not all(type(key) in (str, int, Position) for key in keys):
        raise ValueError(f"the path {str(path)[:50]} (expected a list of names, numbers and [number])")
    return tuple(keys)


def encode(name, value, allow_pickle=False):
    """The bytes of a value that is no tensor: JSON. Raises CheckpointException for other objects, or pickles them."""

    def pack(value):
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is list:
            return [pack(item) for item in value]
        if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: pack(item) for key, item in value.items()}
        if type(value) in (dict, OrderedDict):
            return {
                "$dict" if type(value) is dict else "$ordered": [[pack(key), pack(item)] for key, item in value.items()]
            }
        if type(value) is tuple:
            return {"$tuple": [pack(item) for item in value]}
        if isinstance(value, _C.Size):
            return {"$size": list(value)}
        if type(value) is set:
            return {"$set": [pack(item) for item in value]}
        if type(value) is complex:
            return {"$complex": [value.real, value.imag]}
        if type(value) in (bytes, bytearray):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, _C.dtype):
            return {"$dtype": str(value).removeprefix("pydist.")}
        if isinstance(value, _C.device):
            return {"$device": str(value)}
        if hasattr(value, "item") and type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
            return pack(value.item())
        if allow_pickle:
            return {"$pickle": base64.b64encode(pickle.dumps(value)).decode()}
        raise CheckpointException(
            f"save: {name!r} is or has a {type(value).__module__}.{type(value).__qualname__} (expected tensors, numbers, text, "
            "bytes and containers of these, or DefaultSavePlanner(allow_pickle=True))"
        )

    try:
        return json.dumps(pack(value), separators=(",", ":")).encode()
    except RecursionError:
        raise CheckpointException(f"save: {name!r} is nested too deeply, or has itself") from None


def decode(name, data, allow_pickle=False):
    """The value of these bytes. Raises CheckpointException if they are not encode's."""

    def unpack(value):
        if isinstance(value, list):
            return [unpack(item) for item in value]
        if not isinstance(value, dict):
            return value
        if not any(key.startswith("$") for key in value):
            return {key: unpack(item) for key, item in value.items()}
        ((tag, inner),) = value.items()
        if tag in ("$dict", "$ordered"):
            return (dict if tag == "$dict" else OrderedDict)((unpack(key), unpack(item)) for key, item in inner)
        if tag == "$tuple":
            return tuple(unpack(item) for item in inner)
        if tag == "$size":
            if not all(type(size) is int for size in inner):
                raise ValueError(f"the size {str(inner)[:50]} (expected numbers)")
            return _C.Size(inner)
        if tag == "$set":
            return {unpack(item) for item in inner}
        if tag == "$complex":
            return complex(*inner)
        if tag == "$bytes":
            return base64.b64decode(inner, validate=True)
        if tag == "$dtype":
            return _NAMED[inner]
        if tag == "$device":
            return _C.device(inner)
        if tag == "$pickle" and allow_pickle:
            return pickle.loads(base64.b64decode(inner, validate=True))
        if tag == "$pickle":
            raise CheckpointException(
                f"load: {name!r} is a pickle, which can run any code (expected DefaultLoadPlanner(allow_pickle=True) for files "
                "that you trust)"
            )
        raise ValueError(f"the tag {tag!r} (expected one that save writes)")

    try:
        return unpack(json.loads(data))
    except CheckpointException:
        raise
    except Exception as error:  # whatever hostile text makes these constructors raise
        raise CheckpointException(f"load: the value {name!r} is damaged: {error}") from None
