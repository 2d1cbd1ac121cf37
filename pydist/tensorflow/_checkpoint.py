"""tf.train.Checkpoint: the variables of objects, by the names of the attributes that lead to them, in files of pydist's
own.

A checkpoint `ckpt-1` is `ckpt-1.data-00000-of-00001`, a safetensors file, whose metadata have its checksum and what is
no tensor, and `ckpt-1.index`, a JSON that says of which kind it is. Both appear whole or not at all. The file
`checkpoint` names the latest one, as TensorFlow writes it.
"""

import io
import json
import os
import re
import sys
import time
import weakref
import zlib

import pydist
from pydist import _C, safetensors
from pydist._files import replacing
from pydist.data import Iterator
from pydist.tensorflow import errors
from pydist.tensorflow._tensors import NAMES, of_variable
from pydist.tensorflow.random import Generator

_DATA, _INDEX, _VALUE = ".data-00000-of-00001", ".index", "/.ATTRIBUTES/VARIABLE_VALUE"
_FORMAT = "pydist checkpoint"
_pending = weakref.WeakSet()  # the Checkpoints with `_restores`, of which something may be used later


# Files.


def _checksum(tensors, texts):
    """Of names, shapes, dtypes, elements and the texts of metadata."""
    total = zlib.crc32(repr(texts).encode())
    for name, value in sorted(tensors.items()):
        total = zlib.crc32(repr((name, tuple(value.shape), NAMES[value.dtype])).encode(), total)
        total = zlib.crc32(memoryview(_C.storage_bytes(value.contiguous()).numpy()), total)
    return str(total)


def _packed(state):
    file = io.BytesIO()
    pydist.save(state, file)
    return _C.frombuffer(bytearray(file.getvalue()), dtype=_C.uint8)


def write_files(prefix, tensors, states, others):
    """Writes a checkpoint of tensors by name, and of states (as pydist.save takes them). others: more paths of
    things."""
    tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}
    tensors |= {name: _packed(state) for name, state in states.items()}
    texts = json.dumps(list(states)), json.dumps(others)
    metadata = {"format": _FORMAT, "crc32": _checksum(tensors, texts), "states": texts[0], "others": texts[1]}
    folder = os.path.dirname(prefix)
    if folder:
        os.makedirs(folder, exist_ok=True)
    safetensors.save_file(tensors, prefix + _DATA, metadata)
    with replacing(prefix + _INDEX, "w") as file:
        json.dump({"format": _FORMAT, "version": 1, "data": os.path.basename(prefix + _DATA)}, file)


def _check_index(prefix):
    path = prefix + _INDEX
    try:
        with open(path, "rb") as file:
            text = file.read(1 << 16)
    except FileNotFoundError:
        raise errors.NotFoundError(f"checkpoint: no file {path} (expected the prefix of a checkpoint)") from None
    try:
        if json.loads(text)["format"] == _FORMAT:
            return
    except (ValueError, KeyError, TypeError):
        pass
    raise errors.DataLossError(
        f"checkpoint: {path} is TensorFlow's own or damaged (expected one that pydist wrote; Keras' files "
        ".weights.h5 and "
        ".keras can be exchanged with TensorFlow)"
    )


def read_files(prefix):
    """(tensors by name, states, other paths) of a checkpoint. Raises NotFoundError, or DataLossError for a damaged
    one."""
    prefix = os.fspath(prefix)
    _check_index(prefix)
    path = prefix + _DATA
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        tensors = safetensors.load_file(path)
        texts = metadata["states"], metadata["others"]
        if (metadata["format"], metadata["crc32"]) == (_FORMAT, _checksum(tensors, texts)):
            states = {name: tensors.pop(name) for name in json.loads(texts[0])}
            states = {name: pydist.load(io.BytesIO(bytes(memoryview(t.numpy())))) for name, t in states.items()}
            return tensors, states, json.loads(texts[1])
        raise ValueError("the checksum is another one (expected that of its metadata)")
    except FileNotFoundError:
        raise errors.NotFoundError(f"checkpoint: no file {path} (expected it beside {_INDEX})") from None
    except (ValueError, RuntimeError, KeyError) as error:
        raise errors.DataLossError(
            f"checkpoint: {path} is damaged (expected the file that pydist wrote): {error}"
        ) from None


# Objects: what hangs on an attribute.


def _kinds():
    """Keras' classes (a variable, what it saves), if Keras is imported; else nothing is one."""
    saveable = sys.modules.get("keras.src.saving.keras_saveable")
    return saveable.KerasSaveable if saveable else ()


def _unique(pairs):
    """Pairs whose equal names get numbers."""
    seen = {}
    for name, value in pairs:
        count = seen[name] = seen.get(name, -1) + 1
        yield (f"{name}_{count}" if count else name), value


def _of_keras(saveable):
    """The variables and parts of a layer, model, optimizer or metric."""
    from keras.src.saving import saving_lib

    kind = saveable._obj_type() if hasattr(saveable, "_obj_type") else ""
    if kind == "Optimizer":
        yield from ((f"variables/{i}", v) for i, v in enumerate(saveable.variables))
    elif kind == "Metric":
        yield from _unique((v.name, v) for v in saveable.variables)
    elif hasattr(saveable, "_trainable_variables"):
        own = [*saveable._trainable_variables, *saveable._non_trainable_variables]
        yield from _unique((v.name.removesuffix(":0"), v) for v in own)
    for name, child in saving_lib._walk_saveable(saveable):
        if not (kind == "Optimizer" and name == "variables"):
            yield name, child


def _children(thing):
    """(name, part) of what may hold variables."""
    from pydist.tensorflow._module import Module

    if isinstance(thing, Checkpoint):
        yield from thing._parts().items()
    elif isinstance(thing, dict):
        yield from ((str(key), value) for key, value in thing.items())
    elif isinstance(thing, (list, tuple)):
        yield from ((str(i), value) for i, value in enumerate(thing))
    elif isinstance(thing, _kinds()):
        yield from _of_keras(thing)
    elif isinstance(thing, Module):
        yield from ((name, value) for name, value in sorted(vars(thing).items()) if not name.startswith("_tf_function"))


def _is_part(thing):
    return isinstance(thing, (Checkpoint, dict, list, tuple)) or _is_node(thing)


def _is_node(thing):
    from pydist.tensorflow._module import Module

    return of_variable(thing) is not None or _has_state(thing) or isinstance(thing, (Module, _kinds()))


def _has_state(thing):
    """Whether it is an iterator of a data set or a generator of random numbers."""
    return isinstance(thing, (Iterator, Generator))


def _leaves(root, others=None):
    """(name, variable or thing with a state) of all that hangs on `root`, each once. `others` gets the other paths that
    lead to a thing, with the first one of each."""
    queue, seen = [("", root)], {}
    for path, thing in queue:
        if id(thing) in seen:
            if others is not None:
                others[path] = seen[id(thing)]
            continue
        seen[id(thing)] = path
        if of_variable(thing) is not None:
            yield path + _VALUE, thing
        elif _has_state(thing):
            yield path, thing
        else:
            here = f"{path}/" if path else ""
            queue += [(here + name, part) for name, part in _children(thing) if _is_part(part)]


# Restoring.


class Restore:
    """What a restored checkpoint has, and what of it objects have got: TensorFlow's programs call it the status."""

    def __init__(self, prefix, root):
        self._prefix, self._root = prefix, root
        self._tensors, self._states, self._others = read_files(prefix)
        self._done, self._used = {}, set()  # the things that have their values, by id; the names of what is used
        self._strict = True

    def has(self, name):
        """Whether the checkpoint has a variable of this name."""
        return name + _VALUE in self._tensors

    def apply(self):
        """Gives variables that are there by now their values. Forgets the checkpoint once all of it is used, or
        after an error."""
        done = True
        try:
            self._apply()
            done = self._used >= {*self._tensors, *self._states}
        finally:
            if done and self in self._root._restores:
                self._root._restores.remove(self)
                if not self._root._restores:
                    _pending.discard(self._root)

    def _apply(self):
        for name, thing in _leaves(self._root):
            if id(thing) in self._done:
                continue
            name = self._first(name)
            if name in self._tensors:
                self._assign(name, thing)
            elif name in self._states:
                thing.load_state_dict(self._states[name])
            else:
                continue
            self._done[id(thing)] = thing
            self._used.add(name)

    def _first(self, name):
        """The name under which the thing with this name was saved."""
        parts = name.removesuffix(_VALUE).split("/")
        for n in range(len(parts), 0, -1):
            first = self._others.get("/".join(parts[:n]))
            if first is not None and name not in self._tensors:
                return "/".join([first, *parts[n:]]) + (_VALUE if name.endswith(_VALUE) else "")
        return name

    def _assign(self, name, variable):
        value = self._tensors[name]
        shape = tuple(of_variable(variable).shape)
        if tuple(value.shape) != shape:
            raise ValueError(
                f"checkpoint: {name} has shape {tuple(value.shape)} in {self._prefix} (expected {shape}, as the "
                "variable has)"
            )
        with pydist.no_grad():
            variable.assign(value)

    def _missing(self):
        return [name for name, thing in _leaves(self._root) if id(thing) not in self._done]

    def assert_consumed(self):
        """Raises AssertionError unless all values were used and all variables have got one."""
        self.assert_existing_objects_matched()
        left = sorted({*self._tensors, *self._states} - self._used)
        if left:
            raise AssertionError(
                f"checkpoint: no variable for {left[:5]} of {self._prefix} (expected all values to be used)"
            )
        return self

    def assert_existing_objects_matched(self):
        """Raises AssertionError unless all variables that are there have got a value."""
        self.apply()
        left = self._missing()
        if left:
            raise AssertionError(
                f"checkpoint: {self._prefix} has no value for {left[:5]} (expected one for each variable)"
            )
        return self

    def assert_nontrivial_match(self):
        """Raises AssertionError if no variable has got a value."""
        self.apply()
        if not self._used - {"save_counter" + _VALUE}:
            raise AssertionError(f"checkpoint: nothing of {self._prefix} was used (expected at least one value)")
        return self

    def expect_partial(self):
        """Says that not all is to be restored. Returns the status."""
        return self

    def initialize_or_restore(self, session=None):
        """Nothing: values are restored already."""

    run_restore_ops = initialize_or_restore


class Nothing:
    """The status of restore(None): nothing was restored."""

    def _refuse(self):
        raise AssertionError(
            "checkpoint: restore got None, so nothing was restored (expected the path of a checkpoint)"
        )

    assert_consumed = assert_existing_objects_matched = assert_nontrivial_match = run_restore_ops = _refuse

    def expect_partial(self):
        """Says that not all is to be restored. Returns the status."""
        return self

    def initialize_or_restore(self, session=None):
        """Nothing."""


def apply_pending():
    """Gives what was made since a restore its values (Keras' layers and optimizers make variables late)."""
    for root in list(_pending):
        for restore in list(root._restores):
            restore.apply()


def has_pending():
    """Whether a checkpoint was restored to objects that are still there."""
    return bool(_pending)


class CheckpointOptions:
    """Options of saving, which are accepted."""

    def __init__(self, experimental_io_device=None, experimental_enable_async_checkpoint=False, **others):
        self.experimental_io_device = experimental_io_device


class Checkpoint:
    """Saves and restores the variables of the objects that it is given: models, optimizers, variables, modules, lists
    and dictionaries of them, iterators of `tf.data`. Values are found by the names of attributes. Objects that make
    their variables later get their values then."""

    def __init__(self, root=None, **kwargs):
        vars(self).update(_root=root, _restores=[])
        self._refuse_others({"root": root, **kwargs} if root is not None else kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def _refuse_others(self, given):
        for name, value in given.items():
            if not _is_part(value):
                raise ValueError(
                    f"Checkpoint: {name} is {value!r} (expected a trackable object: a variable, model, optimizer, "
                    "module, iterator, or "
                    "a list or dictionary of them)"
                )

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        apply_pending()

    def _parts(self):
        parts = {name: value for name, value in vars(self).items() if name not in ("_root", "_restores", "_counter")}
        if self._root is not None:
            parts = {**dict(_children(self._root)), **parts}
        if "_counter" in vars(self):
            parts["save_counter"] = self._counter
        return parts

    @property
    def save_counter(self):
        """How often `save` was called, as a variable."""
        if "_counter" not in vars(self):
            from pydist.tensorflow import Variable

            vars(self)["_counter"] = Variable(0, dtype="int64", trainable=False, name="save_counter")
        return self._counter

    def write(self, file_prefix, options=None):
        """Writes a checkpoint with this path and no number. Returns the path."""
        prefix, tensors, states, others = os.fspath(file_prefix), {}, {}, {}
        for name, thing in _leaves(self, others):
            held = of_variable(thing)
            if held is not None:
                tensors[name] = held
            else:
                states[name] = thing.state_dict()
        write_files(prefix, tensors, states, others)
        return prefix

    def save(self, file_prefix, options=None):
        """Writes a checkpoint with this path and the next number, and makes it the latest one. Returns the path."""
        self.save_counter.assign_add(1)
        prefix = self.write(f"{os.fspath(file_prefix)}-{int(self.save_counter)}")
        update_state(os.path.dirname(prefix), prefix, [prefix])
        return prefix

    def read(self, save_path, options=None):
        """Restores what `write` wrote. Returns the status."""
        restore = Restore(os.fspath(save_path), self)
        if restore.has("save_counter"):
            self.save_counter  # noqa: B018 - made, to be restored
        self._restores.append(restore)
        _pending.add(self)
        restore.apply()
        return restore

    def restore(self, save_path, options=None):
        """Restores a checkpoint; None: nothing. Returns the status, whose assert_consumed() says whether all was
        used."""
        return Nothing() if save_path is None else self.read(save_path)


# Which checkpoints there are.


def update_state(folder, latest, all_paths, times=()):
    """Writes the file `checkpoint`, which names the latest checkpoint and the kept ones."""

    def shown(path):
        return os.path.relpath(path, folder) if not os.path.isabs(path) else path

    lines = [f'model_checkpoint_path: "{shown(latest)}"']
    lines += [f'all_model_checkpoint_paths: "{shown(path)}"' for path in all_paths]
    lines += [f"all_model_checkpoint_timestamps: {t}" for t in times]
    with replacing(os.path.join(folder, "checkpoint"), "w") as file:
        file.write("\n".join(lines) + "\n")


class CheckpointState:
    """What the file `checkpoint` says."""

    def __init__(self, model_checkpoint_path, all_model_checkpoint_paths):
        self.model_checkpoint_path = model_checkpoint_path
        self.all_model_checkpoint_paths = all_model_checkpoint_paths


def get_checkpoint_state(checkpoint_dir, latest_filename=None):
    """The state of a folder of checkpoints; None if there is none."""
    folder = os.fspath(checkpoint_dir)
    try:
        with open(os.path.join(folder, latest_filename or "checkpoint"), encoding="utf-8") as file:
            found = re.findall(r'^(\w+): "(.*)"$', file.read(), re.M)
    except (FileNotFoundError, NotADirectoryError):
        return None
    paths = [(key, path if os.path.isabs(path) else os.path.join(folder, path)) for key, path in found]
    latest = [path for key, path in paths if key == "model_checkpoint_path"]
    return (
        CheckpointState(latest[0], [p for key, p in paths if key == "all_model_checkpoint_paths"]) if latest else None
    )


def latest_checkpoint(checkpoint_dir, latest_filename=None):
    """The path of the latest checkpoint of a folder; None if there is none."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    return state.model_checkpoint_path if state and os.path.exists(state.model_checkpoint_path + _INDEX) else None


class CheckpointManager:
    """Keeps the last max_to_keep checkpoints of a folder."""

    def __init__(self, checkpoint, directory, max_to_keep, keep_checkpoint_every_n_hours=None, checkpoint_name="ckpt",
                 step_counter=None, checkpoint_interval=None, init_fn=None, last_checkpoint_step=None):  # fmt: skip
        if max_to_keep is not None and max_to_keep <= 0:
            raise ValueError(f"CheckpointManager: max_to_keep is {max_to_keep} (expected 1 or more, or None: all)")
        if checkpoint_interval is not None and step_counter is None:
            raise ValueError("CheckpointManager: checkpoint_interval without step_counter (expected both)")
        self._checkpoint, self._directory, self._name = checkpoint, os.fspath(directory), checkpoint_name
        self._keep, self._hours = max_to_keep, keep_checkpoint_every_n_hours
        self._counter, self._interval, self._init = step_counter, checkpoint_interval, init_fn
        self._last_step, self._last_kept = last_checkpoint_step, time.time()
        state = get_checkpoint_state(self._directory)
        there = state.all_model_checkpoint_paths if state else []
        self._paths = {path: time.time() for path in there if os.path.exists(path + _INDEX)}

    @property
    def directory(self):
        """The folder."""
        return self._directory

    @property
    def checkpoint(self):
        """The Checkpoint that it saves."""
        return self._checkpoint

    @property
    def checkpoint_interval(self):
        """The least number of steps between two checkpoints; None: any."""
        return self._interval

    @property
    def checkpoints(self):
        """The paths of the checkpoints that are kept, the oldest first."""
        return list(self._paths)

    @property
    def latest_checkpoint(self):
        """The path of the latest checkpoint; None if there is none."""
        return self.checkpoints[-1] if self._paths else None

    def save(self, checkpoint_number=None, check_interval=True, options=None):
        """Writes a checkpoint and removes the oldest ones. Returns its path; None if the interval is not over."""
        if self._interval is not None and check_interval:
            step = int(self._counter)
            if self._last_step is not None and step < self._last_step + self._interval:
                return None
            self._last_step = step
        counter = self._checkpoint.save_counter
        if checkpoint_number is None:
            counter.assign_add(1)
            number = int(counter)
        else:
            number = int(checkpoint_number)
        prefix = os.path.join(self._directory, f"{self._name}-{number}")
        self._checkpoint.write(prefix)
        self._paths.pop(prefix, None)
        self._paths[prefix] = time.time()
        self._sweep()
        update_state(self._directory, prefix, self.checkpoints, self._paths.values())
        return prefix

    def _sweep(self):
        while self._keep is not None and len(self._paths) > self._keep:
            path, made = next(iter(self._paths.items()))
            del self._paths[path]
            if self._hours is not None and made - self._last_kept >= 3600 * self._hours:
                self._last_kept = made
                continue
            for end in (_INDEX, _DATA):
                try:
                    os.unlink(path + end)
                except FileNotFoundError:  # another rank was first
                    pass

    def restore_or_initialize(self):
        """Restores the latest checkpoint and returns its path; without one, calls init_fn and returns None."""
        if self.latest_checkpoint is not None:
            self._checkpoint.restore(self.latest_checkpoint)
            if self._interval is not None:
                self._last_step = int(self._counter)
            return self.latest_checkpoint
        if self._init is not None:
            self._init()
        return None


class CheckpointReader:
    """The tensors of a checkpoint, by name."""

    def __init__(self, prefix):
        self._tensors, *_ = read_files(prefix)

    def get_variable_to_shape_map(self):
        """{name: sizes}"""
        return {name: list(value.shape) for name, value in self._tensors.items()}

    def get_variable_to_dtype_map(self):
        """{name: dtype}"""
        return {name: value.dtype for name, value in self._tensors.items()}

    def has_tensor(self, tensor_str):
        """Whether there is one of this name."""
        return tensor_str in self._tensors

    def get_tensor(self, tensor_str):
        """The tensor of a name, as an array."""
        if tensor_str not in self._tensors:
            raise errors.NotFoundError(
                f"checkpoint: no tensor {tensor_str!r} (expected one of {sorted(self._tensors)[:5]})"
            )
        return self._tensors[tensor_str].numpy()

    def debug_string(self):
        """A line for each tensor."""
        return "".join(f"{n} ({NAMES[t.dtype]}) {list(t.shape)}\n" for n, t in sorted(self._tensors.items())).encode()


def _prefix_of(folder_or_prefix):
    path = os.fspath(folder_or_prefix)
    if os.path.isdir(path):
        latest = latest_checkpoint(path)
        if latest is None:
            raise ValueError(f"checkpoint: no checkpoint in the folder {path} (expected a folder that `save` wrote to)")
        return latest
    return path


def load_checkpoint(ckpt_dir_or_file):
    """The CheckpointReader of a checkpoint, or of the latest one of a folder."""
    return CheckpointReader(_prefix_of(ckpt_dir_or_file))


def load_variable(ckpt_dir_or_file, name):
    """The value of one variable of a checkpoint, as an array."""
    reader = load_checkpoint(ckpt_dir_or_file)
    return reader.get_tensor(name.removesuffix(":0"))


def list_variables(ckpt_dir_or_file):
    """[(name, sizes)] of a checkpoint."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def checkpoints_iterator(checkpoint_dir, min_interval_secs=0, timeout=None, timeout_fn=None):
    """The paths of checkpoints as they come. Ends when none came for `timeout` seconds, if timeout_fn() is true or
    absent."""
    last = None
    while True:
        deadline = None if timeout is None else time.time() + timeout
        while (found := latest_checkpoint(checkpoint_dir)) in (None, last):
            if deadline is not None and time.time() >= deadline:
                if timeout_fn is None or timeout_fn():
                    return
                deadline = time.time() + timeout
            time.sleep(0.05)
        last, begin = found, time.time()
        yield found
        time.sleep(max(min_interval_secs - (time.time() - begin), 0))
