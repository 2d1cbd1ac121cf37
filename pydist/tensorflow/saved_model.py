"""tf.saved_model: Keras models in a folder, with a serving signature. The folder holds Keras' own file and a JSON;
TensorFlow's SavedModels cannot be read."""

import json as _json
import os as _os

from pydist._files import replacing as _replacing
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow import nest as _nest
from pydist.tensorflow._names import lacking as _lacking

ASSETS_DIRECTORY, VARIABLES_DIRECTORY, SAVED_MODEL_FILENAME_PB = "assets", "variables", "saved_model.pb"
DEFAULT_SERVING_SIGNATURE_DEF_KEY, SERVING, TRAINING = "serving_default", "serve", "train"

_FILE, _MODEL, _FORMAT = "saved_model.json", "model.keras", "pydist saved model"


class SaveOptions:
    """Options of saving, which are accepted."""

    def __init__(self, experimental_io_device=None, **others):
        self.experimental_io_device = experimental_io_device


class LoadOptions:
    """Options of loading, which are accepted."""

    def __init__(self, experimental_io_device=None, **others):
        self.experimental_io_device = experimental_io_device


def save(obj, export_dir, signatures=None, options=None):
    """Saves a Keras model that has been built."""
    import keras

    if not isinstance(obj, keras.Model):
        raise NotImplementedError(
            f"saved_model.save: got {type(obj).__name__} (expected a Keras model; tf.train.Checkpoint saves the "
            "variables of other "
            "objects)"
        )
    if signatures is not None:
        raise NotImplementedError("saved_model.save: signatures (expected None: the model itself is what is served)")
    if not obj.built:
        raise ValueError("saved_model.save: the model has no variables yet (expected it to be built, or called once)")
    folder = _os.fspath(export_dir)
    _os.makedirs(folder, exist_ok=True)
    part = _os.path.join(folder, f".{_os.getpid()}.{_MODEL}")
    try:
        obj.save(part)
        _os.replace(part, _os.path.join(folder, _MODEL))
    finally:
        if _os.path.exists(part):
            _os.unlink(part)
    with _replacing(_os.path.join(folder, _FILE), "w") as file:
        _json.dump({"format": _FORMAT, "version": 1, "model": _MODEL}, file)


def contains_saved_model(export_dir):
    """Whether a folder holds a saved model."""
    return _os.path.exists(_os.path.join(_os.fspath(export_dir), _FILE))


class _Signature:
    """What is served: called with tensors, by position or by name, it gives a dictionary of tensors."""

    def __init__(self, model):
        self._model = model
        own = [t.name for t in _nest.flatten(model.inputs or [])]
        self._names = own or ["inputs"]
        self._also = ["inputs", *(f"inputs_{i}" for i in range(1, len(self._names)))]

    def __call__(self, *args, **kwargs):
        if args and kwargs or len(args) > 1 and len(args) != len(self._names):
            raise TypeError(
                f"serving_default: got {len(args)} tensors and {sorted(kwargs)} (expected {self._names}, by name)"
            )
        values = list(args)
        for name, also in zip(self._names, self._also) if kwargs else ():
            if name not in kwargs and also not in kwargs:
                raise TypeError(f"serving_default: got {sorted(kwargs)} (expected {self._names})")
            values.append(kwargs[name] if name in kwargs else kwargs[also])
        values = [_t.tensor(value) for value in values]
        result = self._model(values[0] if len(values) == 1 else values, training=False)
        if isinstance(result, dict):
            return result
        return {f"output_{i}": value for i, value in enumerate(_nest.flatten(result))}

    @property
    def structured_input_signature(self):
        """((), the specs of the inputs by name)"""
        from pydist.data import TensorSpec

        found = {
            also: TensorSpec(t.shape, _t.as_dtype(t.dtype), also) for also, t in zip(self._also, self._model.inputs)
        }
        return (), found

    @property
    def structured_outputs(self):
        """The specs of the outputs by name."""
        from pydist.data import TensorSpec

        outputs = getattr(self._model, "_outputs_struct", None) or self._model.outputs
        outputs = (
            outputs if isinstance(outputs, dict) else {f"output_{i}": t for i, t in enumerate(_nest.flatten(outputs))}
        )
        return {name: TensorSpec(t.shape, _t.as_dtype(t.dtype), name) for name, t in outputs.items()}


class _Loaded:
    """A loaded model: `signatures["serving_default"]`, `serve`, and its variables."""

    def __init__(self, model):
        self._model = model
        signature = _Signature(model)
        self.signatures = {DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature, SERVING: signature}

    def serve(self, *args):
        """The model's outputs."""
        values = [_t.tensor(value) for value in _nest.flatten(list(args))]
        return self._model(values[0] if len(values) == 1 else values, training=False)

    def __call__(self, *args, training=False):
        values = _nest.map_structure(_t.tensor, args[0] if len(args) == 1 else list(args))
        return self._model(values, training=training)

    @property
    def variables(self):
        """The model's variables."""
        return self._model.variables

    @property
    def trainable_variables(self):
        """Those that are trained."""
        return self._model.trainable_variables

    @property
    def non_trainable_variables(self):
        """The other ones."""
        return self._model.non_trainable_variables


def load(export_dir, tags=None, options=None):
    """The model of a folder that `save` or a Keras model's `export` wrote."""
    folder = _os.fspath(export_dir)
    if not contains_saved_model(folder):
        if _os.path.exists(_os.path.join(folder, SAVED_MODEL_FILENAME_PB)):
            raise NotImplementedError(
                f"saved_model.load: {folder} is TensorFlow's own SavedModel, which holds a graph (expected one that "
                "pydist wrote; "
                "Keras' .keras files can be exchanged)"
            )
        raise OSError(f"SavedModel file does not exist at: {folder} (expected {_FILE} there)")
    import keras

    return _Loaded(keras.models.load_model(_os.path.join(folder, _MODEL), compile=False))


__getattr__ = _lacking(__name__)
