"""S6: the TensorBoard callback writes with pydist.utils.tensorboard, in the place of TensorFlow's summaries. Rank 0 writes."""

import functools
from contextlib import contextmanager

from pydist.keras._callbacks import writes
from pydist.utils.tensorboard import SummaryWriter, records


class _Writer:
    """One folder's file, which is made when something is written."""

    def __init__(self, summary, folder):
        self._summary, self._folder, self._file = summary, folder, None

    def file(self):
        self._file = self._file or SummaryWriter(self._folder)
        return self._file

    @contextmanager
    def as_default(self, step=None):
        """In this block summaries go into this file."""
        self._summary.writers.append((self, step))
        try:
            yield
        finally:
            self._summary.writers.pop()

    def flush(self):
        if self._file:
            self._file.flush()

    def close(self):
        if self._file:
            self._file.close()


class _Summary:
    """What the callback uses of the module tensorflow.summary. on=False: nothing is written."""

    def __init__(self, on):
        self._on, self.writers, self._conditions = on, [], []

    def create_file_writer(self, folder):
        return _Writer(self, folder)

    @contextmanager
    def record_if(self, condition):
        self._conditions.append(condition)
        try:
            yield
        finally:
            self._conditions.pop()

    def _write(self, write, step):
        if self._on and self.writers and all(condition() for condition in self._conditions):
            writer, default = self.writers[-1]
            write(writer.file(), int(default if step is None else step))

    def scalar(self, name, data, step=None):
        self._write(lambda file, step: file.add_scalar(name, data, step), step)

    def histogram(self, name, data, step=None):
        self._write(lambda file, step: file.add_histogram(name, data, step), step)

    def image(self, name, data, step=None):
        self._write(lambda file, step: file.add_images(name, data, step, dataformats="NHWC"), step)

    def model(self, name, text, step):
        """The configuration of a model, for TensorBoard's conceptual graph."""
        value = records.value(name, records.plugin("graph_keras_model", "1"), records.string(text))
        self._write(lambda file, step: file.file_writer.add_summary(value, step), step)


def _write_here(module):
    cls = module.TensorBoard

    @property
    def summary(self):
        if self._summary_module is None:
            self._summary_module = _Summary(writes(self.model))
        return self._summary_module

    def write_model(self):
        if type(self.model).__name__ not in ("Functional", "Sequential"):
            return
        try:
            text = self.model.to_json()
        except Exception as error:  # a layer without a configuration does not end the training
            module.warnings.warn(f"TensorBoard: the model cannot be described as JSON: {error}", stacklevel=2)
            return
        with self._train_writer.as_default():
            self.summary.model("keras", text, 0)

    def only_rank_0(plain):
        @functools.wraps(plain)
        def method(self, *args):
            if writes(self.model):
                plain(self, *args)

        return method

    cls.summary, cls._write_keras_model_summary = summary, write_model
    for name in ("_configure_embeddings", "_log_embeddings"):
        setattr(cls, name, only_rank_0(getattr(cls, name)))


SEAMS = {"keras.src.callbacks.tensorboard": _write_here}
