"""Control flow, contexts and calls of Python: tf.cond, tf.while_loop, tf.map_fn, tf.device, tf.print,
tf.py_function."""

import builtins
import contextlib
import re
import sys
import threading
import time

from pydist import _C
from pydist._replay import in_python
from pydist.data.strings import StringTensor
from pydist.tensorflow import nest
from pydist.tensorflow._tensors import Tensor, as_dtype, ints, tensor


def cond(pred, true_fn=None, false_fn=None, name=None):
    """true_fn() if pred is true, else false_fn()."""
    return true_fn() if pred else false_fn()


def case(pred_fn_pairs, default=None, exclusive=False, strict=False, name="case"):
    """The result of the function beside the first true predicate, or of `default`."""
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, dict) else pred_fn_pairs)
    true = [function for pred, function in pairs if pred]
    if exclusive and len(true) > 1:
        raise ValueError(f"case: {len(true)} predicates are true (expected at most one, with exclusive=True)")
    chosen = true[0] if true else default if default is not None else pairs[-1][1]
    return chosen()


def switch_case(branch_index, branch_fns, default=None, name="switch_case"):
    """The result of the function with this number, or of `default`, or of the last one."""
    branches = dict(branch_fns if not callable(branch_fns[0]) else enumerate(branch_fns)) if not isinstance(
        branch_fns, dict
    ) else branch_fns  # fmt: skip
    chosen = branches.get(ints(branch_index)[0], default or branches[max(branches)])
    return chosen()


def while_loop(cond, body, loop_vars, shape_invariants=None, parallel_iterations=10, back_prop=True, swap_memory=False,
               maximum_iterations=None, name=None):  # fmt: skip
    """loop_vars after body(*loop_vars) as long as cond(*loop_vars) is true."""
    loop_vars, count = tuple(loop_vars), 0
    while (maximum_iterations is None or count < ints(maximum_iterations)[0]) and cond(*loop_vars):
        result = body(*loop_vars)
        loop_vars = tuple(result) if isinstance(result, (list, tuple)) else (result,)
        count += 1
    return nest.map_structure(lambda v: tensor(v) if isinstance(v, (int, float)) else v, loop_vars)


def _rows(elems):
    flat = [tensor(v) for v in nest.flatten(elems)]
    sizes = {len(v) for v in flat}
    if len(sizes) != 1:
        raise ValueError(f"map_fn: the tensors have {sorted(sizes)} rows (expected equal numbers)")
    return [nest.pack_sequence_as(elems, row) for row in zip(*flat)]


def _stacked(results):
    from pydist.tensorflow._arrays import stack

    return nest.map_structure(lambda *parts: stack(list(parts)), *results)


def map_fn(fn, elems, dtype=None, parallel_iterations=None, back_prop=True, swap_memory=False, infer_shape=True,
           name=None, fn_output_signature=None):  # fmt: skip
    """fn of each row of the tensors, stacked."""
    rows = _rows(elems)
    if rows:
        return _stacked([fn(row) for row in rows])
    wanted = fn_output_signature if fn_output_signature is not None else dtype
    if wanted is None:
        return elems
    return nest.map_structure(lambda d: _C.empty(0, dtype=as_dtype(getattr(d, "dtype", d))), wanted)


def vectorized_map(fn, elems, fallback_to_while_loop=True, warn=True):
    """fn of each row of the tensors, stacked."""
    return map_fn(fn, elems)


def scan(fn, elems, initializer=None, parallel_iterations=10, back_prop=True, swap_memory=False, infer_shape=True,
         reverse=False, name=None):  # fmt: skip
    """fn(result so far, row) for one row after another: all results, stacked."""
    rows = _rows(elems)
    rows = rows[::-1] if reverse else rows
    state = rows[0] if initializer is None else nest.map_structure(tensor, initializer)
    results = [state] if initializer is None else []
    for row in rows[1:] if initializer is None else rows:
        state = fn(state, row)
        results.append(state)
    return _stacked(results[::-1] if reverse else results)


def foldl(fn, elems, initializer=None, parallel_iterations=10, back_prop=True, swap_memory=False, name=None):
    """fn(result so far, row) for one row after another: the last result."""
    rows = _rows(elems)
    state, rows = (rows[0], rows[1:]) if initializer is None else (nest.map_structure(tensor, initializer), rows)
    for row in rows:
        state = fn(state, row)
    return state


def foldr(fn, elems, initializer=None, parallel_iterations=10, back_prop=True, swap_memory=False, name=None):
    """foldl, from the last row to the first."""
    return foldl(fn, nest.map_structure(lambda v: _C.flip(tensor(v), [0]), elems), initializer)


def group(*inputs, **kwargs):
    """Nothing: operations are done when they are called."""


def no_op(name=None):
    """Nothing."""


def _by_dtypes(result, Tout):
    if Tout is None:
        return None
    if isinstance(Tout, (list, tuple)):
        return type(Tout)(tensor(v, like=as_dtype(d)) for v, d in zip(result, Tout)) if len(Tout) else []
    return tensor(result, like=as_dtype(Tout))


@in_python
def py_function(func=None, inp=None, Tout=None, name=None):
    """func(*inp), whose arguments are tensors, as tensors of the dtypes Tout."""
    return _by_dtypes(func(*[tensor(v) for v in inp or ()]), Tout)


@in_python
def numpy_function(func=None, inp=None, Tout=None, stateful=True, name=None):
    """func(*inp), whose arguments are NumPy's, as tensors of the dtypes Tout."""
    return _by_dtypes(func(*[tensor(v).numpy() for v in inp or ()]), Tout)


def executing_eagerly():
    """True: operations are done when they are called."""
    return True


def inside_function():
    """False: a tf.function runs as Python."""
    return False


@contextlib.contextmanager
def _block(value=None):
    yield value


class _Scopes(threading.local):
    path = ""


_scopes = _Scopes()


class name_scope:
    """A block whose name stands before the names of the tf.Variables made in it. A name that ends with "/" stands
    alone."""

    def __init__(self, name):
        self.name, self._before = name, []

    def __enter__(self):
        self._before.append(_scopes.path)
        _scopes.path = self.name if self.name.endswith("/") else f"{_scopes.path}{self.name}/" if self.name else ""
        return _scopes.path

    def __exit__(self, *error):
        _scopes.path = self._before.pop()


def scope_path():
    """The names of the open name_scopes: "a/b/"."""
    return _scopes.path


def control_dependencies(control_inputs):
    """A block without effect: operations are done in the order of the program."""
    return _block()


def init_scope():
    """A block without effect: there are no graphs to leave."""
    return _block()


class device:
    """A block whose new tensors are on a device, such as "/GPU:0" or "CPU:0". Raises ValueError for one that is not
    there."""

    def __init__(self, device_name):
        from pydist.distribute.strategy import device_of

        name = re.sub(r"^/?job:\w+(/replica:\d+)?(/task:\d+)?", "", str(device_name or "CPU:0"))
        place = device_of(name or "CPU:0", "tf.device")
        self._place = _C.device("cpu" if place.startswith("cpu") else place)

    def __enter__(self):
        self._place.__enter__()

    def __exit__(self, *error):
        return self._place.__exit__(*error)


@in_python
def print(*inputs, output_stream=None, summarize=3, sep=" ", end="\n", name=None):
    """Prints tensors by their values to sys.stderr, or to sys.stdout, a file ("file://..."). Long axes are shortened to
    `summarize` elements at each end; -1: all."""
    text = sep.join(_text(v, summarize) for v in inputs) + end
    if isinstance(output_stream, str) and output_stream.startswith("file://"):
        with open(output_stream[7:], "a", encoding="utf-8") as file:
            file.write(text)
        return
    stream = output_stream if output_stream is not None else sys.stderr
    stream.write(text)
    stream.flush()


def _text(value, summarize):
    """TensorFlow's text of a value: [1 2 ... 9 10]."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(k, summarize)}: {_text(v, summarize)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)) and builtins.any(hasattr(v, "shape") for v in value):
        inner = ", ".join(_text(v, summarize) for v in value)
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, StringTensor) and not value.ndim:
        return f'"{_array_text(value.numpy(), summarize)}"'
    value = value.numpy() if hasattr(value, "numpy") else value
    return _array_text(value, summarize) if hasattr(value, "ndim") else str(value)


def _quoted(key, summarize):
    return f"'{key}'" if isinstance(key, str) else _text(key, summarize)


def _number_text(item, size):
    """The shortest of 6 and 9 digits (15 and 17 of float64) that is read as the same number."""
    import numpy as np

    few, many = (15, 17) if size == 8 else (6, 9)
    kind = np.float64 if size == 8 else np.float32
    short = f"{item:.{few}g}"
    return short if kind(short) == kind(item) or item != item else f"{item:.{many}g}"


def _array_text(array, summarize):
    if not getattr(array, "ndim", 0):
        item = array.item() if hasattr(array, "item") else array
        if isinstance(item, builtins.bool):
            return "1" if item else "0"
        if isinstance(item, float):
            return _number_text(item, array.dtype.itemsize)
        return item.decode(errors="replace") if isinstance(item, bytes) else str(item)
    count = len(array)
    cut = 0 <= summarize < count / 2
    parts = [_array_text(v, summarize) for v in ((*array[:summarize], *array[count - summarize :]) if cut else array)]
    if array.ndim == 1 and array.dtype == object:
        parts = [f'"{p}"' for p in parts]
    if cut:
        parts.insert(summarize, "...")
    between = " " if array.ndim == 1 else "\n" * (array.ndim - 1) + " "
    return "[" + between.join(parts) + "]"


def timestamp(name=None):
    """Seconds since 1970, as float64."""
    return _C.tensor(time.time(), dtype=_C.float64)


def Assert(condition, data, summarize=3, name=None):
    """Raises InvalidArgumentError, with the data, if the condition is false."""
    if not (condition.all() if isinstance(condition, Tensor) else condition):
        from pydist.tensorflow.errors import InvalidArgumentError

        raise InvalidArgumentError(f"assertion failed: {' '.join(_text(v, summarize) for v in data)}")


class TensorArray:
    """A list of tensors that `write` fills by number. Each method returns the array, as TensorFlow's programs
    expect."""

    def __init__(self, dtype, size=None, dynamic_size=False, clear_after_read=True, tensor_array_name=None, handle=None,
                 flow=None, infer_shape=True, element_shape=None, colocate_with_first_write_call=True,
                 name=None):  # fmt: skip
        self.dtype, self.dynamic_size = as_dtype(dtype), dynamic_size
        self._parts = [None] * (0 if size is None else ints(size)[0])

    def write(self, index, value, name=None):
        """Puts a tensor at a number."""
        index = ints(index)[0]
        if not 0 <= index < len(self._parts):
            if not self.dynamic_size or index < 0:
                raise IndexError(
                    f"TensorArray: index {index} of {len(self._parts)} (expected dynamic_size=True, or a lesser index)"
                )
            self._parts += [None] * (index + 1 - len(self._parts))
        self._parts[index] = tensor(value, like=self.dtype)
        return self

    def read(self, index, name=None):
        """The tensor with a number."""
        part = self._parts[ints(index)[0]]
        if part is None:
            raise ValueError(f"TensorArray: element {ints(index)[0]} was not written (expected write() before)")
        return part

    def _whole(self):
        there = next((p for p in self._parts if p is not None), None)
        if there is None:
            return []
        return [_C.zeros_like(there) if p is None else p for p in self._parts]

    def stack(self, name=None):
        """The tensors along a new first axis."""
        parts = self._whole()
        return _C.stack(parts) if parts else _C.empty(0, dtype=self.dtype)

    def concat(self, name=None):
        """The tensors one behind the other."""
        return _C.cat(self._whole(), 0)

    def gather(self, indices, name=None):
        """The tensors with these numbers, stacked."""
        return _C.stack([self.read(i) for i in ints(indices)])

    def unstack(self, value, name=None):
        """Fills the array with the parts of a tensor."""
        self._parts = list(tensor(value))
        return self

    def scatter(self, indices, value, name=None):
        """Puts the parts of a tensor at these numbers."""
        for index, part in zip(ints(indices), tensor(value)):
            self.write(index, part)
        return self

    def size(self, name=None):
        """How many elements."""
        return _C.tensor(len(self._parts), dtype=_C.int32)

    def __len__(self):
        return len(self._parts)


def get_logger():
    """The logger "tensorflow"."""
    import logging

    return logging.getLogger("tensorflow")
