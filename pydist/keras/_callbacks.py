"""S6: callbacks on ranks. All ranks run them, with the same logs; rank 0 alone writes files and prints. Files that Keras
writes appear at once, when they are whole.

A batch's numbers are read only where somebody looks at them: a callback of the program, or the progress bar 20 times a
second.
"""

import base64
import functools
import json
import os
import random
import secrets
import time
from contextlib import suppress

import numpy as np

from pydist import _C
from pydist._files import replacing
from pydist.distribute.context import here
from pydist.distribute.survival import event

_REDRAW = 0.05  # s between two drawings of the progress bar
_ENDINGS = (".weights.h5", ".keras", ".h5", ".hdf5")


def group_of(model):
    """The ranks that train a model with this one, or None."""
    return getattr(getattr(model, "_distribute_strategy", None), "_group", None)


def writes(model):
    """Whether this rank writes the model's files."""
    group = group_of(model)
    return group is None or group.rank == 0


# The list of callbacks.

_STOPS = {"train": "stop_training", "test": "stop_evaluating", "predict": "stop_predicting"}


def agree(model, name):
    """Sets model.NAME on all ranks if it is set on one: ranks that stop at different steps would wait for each other."""
    if group_of(model) is None:
        return

    def any_rank():
        flag = _C.tensor([float(bool(getattr(model, name, False)))])
        if group_of(model) is not None:
            group_of(model).all_reduce(flag, "max", False)
        return flag.item()

    if event(model._distribute_strategy, any_rank):
        setattr(model, name, True)


def _order_calls(module):
    lists, is_default = module.CallbackList, module.utils.is_default
    progress, plain_epoch_end = module.ProgbarLogger, lists.on_epoch_end

    def configure(self, callbacks):
        """Keras calls callbacks of batches in a thread, at any time: ranks could not agree."""

    def looking(self, kind):
        """The callbacks that look at batches of this kind, without progress bars."""
        return [c for c in self.callbacks if not isinstance(c, progress) and not (
            is_default(getattr(c, f"on_{kind}_batch_end")) and (kind != "train" or is_default(c.on_batch_end)))]  # fmt: skip

    def batch_end(kind):
        name = f"on_{kind}_batch_end"

        def on_batch_end(self, batch, logs=None):
            callbacks = looking(self, kind)
            bar, now = self._progbar, time.monotonic()
            draws = bar is not None and (batch == 0 or now - getattr(bar, "_drawn", 0.0) >= _REDRAW)
            if not callbacks and not draws:
                if bar is not None:
                    bar.seen = batch + 1
                return
            logs = module.python_utils.pythonify_logs(logs) if callbacks or kind != "predict" else None
            for callback in callbacks:
                getattr(callback, name)(batch, logs=logs)
            if draws:
                bar._drawn = now
                getattr(bar, name)(batch, logs=logs)
            if callbacks:
                agree(self._model, _STOPS[kind])

        return on_batch_end

    @functools.wraps(plain_epoch_end)
    def on_epoch_end(self, epoch, logs=None):
        plain_epoch_end(self, epoch, logs)
        agree(self._model, "stop_training")

    lists._configure_async_dispatch, lists.on_epoch_end = configure, on_epoch_end
    for kind in _STOPS:
        setattr(lists, f"on_{kind}_batch_end", batch_end(kind))


# Files.


def _write_whole(module, name):
    """`name`(model, filepath, ...) so that a crash leaves the old file, and a reader never sees a part of the new one."""
    plain = getattr(module, name)

    @functools.wraps(plain)
    def save(model, filepath, *args, **kwargs):
        text = os.fspath(filepath) if isinstance(filepath, (str, os.PathLike)) else ""
        ending = next((ending for ending in _ENDINGS if text.endswith(ending)), None)
        if not ending or "://" in text or os.path.exists(text) and not os.path.isfile(text):
            return plain(model, filepath, *args, **kwargs)
        folder = os.path.dirname(os.path.realpath(text))
        part = os.path.join(folder, f".pydist-{secrets.token_hex(8)}{ending}")
        try:
            plain(model, part, *args, **kwargs)
            if os.path.isfile(part):  # else a folder, or several files
                with open(part, "rb+") as file:
                    os.fsync(file)
                os.replace(part, os.path.realpath(text))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)

    setattr(module, name, save)


def _save_whole(module):
    for name in ("save_model", "save_weights_only"):
        _write_whole(module, name)


def _save_h5_whole(module):
    _write_whole(module, "save_model_to_hdf5")


def _print_once(module):
    plain = module.print_msg

    @functools.wraps(plain)
    def print_msg(message, line_break=True):
        """In fit, evaluate and predict rank 0 prints."""
        group = here.scopes[-1]._group if here.scopes else None
        if group is None or group.rank == 0:
            plain(message, line_break)

    module.print_msg = print_msg


# Callbacks that write.


def _only_rank_0(cls, *names):
    """These methods of a callback do nothing on other ranks."""
    for name in names:
        plain = getattr(cls, name)

        def method(self, *args, _plain=plain, **kwargs):
            if writes(self.model):
                return _plain(self, *args, **kwargs)

        setattr(cls, name, functools.wraps(plain)(method))


def _checkpoint(module):
    plain = module.ModelCheckpoint._save_model

    @functools.wraps(plain)
    def save_model(self, epoch, batch, logs):
        if writes(self.model):
            plain(self, epoch, batch, logs)
        else:  # remembers the best value, as rank 0
            self._should_save_model(epoch, batch, logs, self._get_file_path(epoch, batch, logs))

    module.ModelCheckpoint._save_model = save_model


def _log_csv(module):
    logger = module.CSVLogger
    plain = logger.on_epoch_end

    @functools.wraps(plain)
    def on_epoch_end(self, epoch, logs=None):
        if writes(self.model) and self.csv_file is None:  # the rank that wrote has died
            self.append = True
            self.on_train_begin()
        plain(self, epoch, logs)

    logger.on_epoch_end = on_epoch_end
    _only_rank_0(logger, "on_train_begin", "on_epoch_end", "on_train_end")


def _report(module):
    _only_rank_0(module.RemoteMonitor, "on_epoch_end")


# BackupAndRestore: also what is random, and the place within the epoch.

_STATE = "pydist_state"  # in the file of the weights, so that both are there or neither is


def _backup(module):
    cls = module.BackupAndRestore
    plain_epoch, plain_end = cls.on_epoch_begin, cls.on_train_end

    def on_train_begin(self, logs=None):
        state = None
        if writes(self.model):
            state = self._read_backup()
        group = group_of(self.model)
        if group is not None:
            state = _from_rank_0(state, group)
        if state is not None:
            self.model._initial_epoch = state["epoch"]
            self._current_epoch = state["epoch"]
            _resume(self.model, state)

    def read_backup(self):
        """What rank 0 has read: the weights are in the model then."""
        self.model._initial_epoch = None
        plain_begin(self)
        state = _read_state(self._weights_path)
        if state is None and self.model._initial_epoch is not None:  # Keras' own backup
            state = {"epoch": self.model._initial_epoch, "batch": 0}
        return state

    def on_epoch_begin(self, epoch, logs=None):
        plain_epoch(self, epoch, logs)
        self._begun = _random_state(self.model)

    def save_model(self):
        if not writes(self.model):
            return
        os.makedirs(self.backup_dir, exist_ok=True)
        for path in (self._weights_path, self._training_metadata_path) if self.double_checkpoint else ():
            if os.path.exists(path):
                module.file_utils.copy(path, f"{path}.bkp")
        batch = self._last_batch_seen + 1 if self.save_freq != "epoch" else 0
        state = {"epoch": self._current_epoch, "batch": batch, "now": _random_state(self.model)}
        if batch:
            state |= {"begun": self._begun, "metrics": [_packed(v) for v in self.model.metrics_variables]}
        _write_backup(self.model, self._weights_path, state)
        with replacing(self._training_metadata_path, "w") as file:
            json.dump({"epoch": state["epoch"], "batch": batch}, file)

    plain_begin = cls.on_train_begin
    cls.on_train_begin, cls._read_backup, cls._save_model = on_train_begin, read_backup, save_model
    cls.on_epoch_begin = on_epoch_begin

    @functools.wraps(plain_end)
    def on_train_end(self, logs=None):
        if writes(self.model):
            plain_end(self, logs)

    cls.on_train_end = on_train_end


def _from_rank_0(value, group):
    from pydist.distributed._ops.objects import broadcast_object_list

    box = [value]
    broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def _write_backup(model, path, state):
    import h5py

    part = os.path.join(os.path.dirname(path), f".pydist-{secrets.token_hex(8)}.weights.h5")
    try:
        model.save_weights(part)
        with h5py.File(part, "r+") as file:
            file.create_dataset(_STATE, data=np.frombuffer(json.dumps(state).encode(), np.uint8))
        with open(part, "rb+") as file:
            os.fsync(file)
        os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def _read_state(path):
    import h5py

    if not os.path.exists(path):
        return None
    with h5py.File(path, "r") as file:
        return json.loads(file[_STATE][()].tobytes()) if _STATE in file else None


def _packed(v):
    array = np.asarray(v.numpy())
    return [str(array.dtype), list(array.shape), base64.b64encode(array.tobytes()).decode()]


def _unpacked(packed):
    dtype, shape, text = packed
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def _seeds(model):
    from keras.src.random.seed_generator import global_seed_generator

    found = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
    return [*found, global_seed_generator().state]


def _random_state(model):
    kind, words, place, *gauss = np.random.get_state()
    return {
        "engine": list(_C._rng_key()[:2]),
        "python": random.getstate(),
        "numpy": [kind, words.tolist(), place, *gauss],
        "seeds": [_packed(v) for v in _seeds(model)],
    }


def _set_random_state(model, state):
    _C.set_rng_state((*state["engine"], _C._rng_key()[2]))  # each rank keeps its stream
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(state["numpy"]))
    for v, packed in zip(_seeds(model), state["seeds"]):
        v.assign(_unpacked(packed))


def _resume(model, state):
    """Goes on where the backup was made. Within an epoch, its batches are drawn again and those that were trained pass
    by."""
    if not state.get("batch"):
        if "now" in state:
            _set_random_state(model, state["now"])
        return
    _set_random_state(model, state["begun"])
    train, left = model.train_function, state["batch"]

    def function(batches):
        nonlocal left
        left -= len(batches)
        if left <= 0:
            _set_random_state(model, state["now"])
            for v, packed in zip(model.metrics_variables, state["metrics"]):
                v.assign(_unpacked(packed))
            model.train_function = train
        return {}

    model.train_function = function


SEAMS = {
    "keras.src.callbacks.backup_and_restore": _backup,
    "keras.src.callbacks.callback_list": _order_calls,
    "keras.src.callbacks.csv_logger": _log_csv,
    "keras.src.callbacks.model_checkpoint": _checkpoint,
    "keras.src.callbacks.remote_monitor": _report,
    "keras.src.legacy.saving.legacy_h5_format": _save_h5_whole,
    "keras.src.saving.saving_lib": _save_whole,
    "keras.src.utils.io_utils": _print_once,
}
