"""S6: the TensorBoard callback writes with pydist.tensorflow.summary, in the place of TensorFlow's. Rank 0 writes."""

import functools
from types import SimpleNamespace

from pydist.keras._callbacks import writes


def _summary_of(model):
    from pydist.tensorflow import summary  # programs without the callback do not need it

    if writes(model):
        return summary
    return SimpleNamespace(**vars(summary) | {"create_file_writer": lambda folder: summary.create_noop_writer()})


def _describe(summary, text):
    """Writes the configuration of a model, for TensorBoard's conceptual graph."""
    from pydist.tensorflow.compat.v1 import PluginData, SummaryMetadata

    summary.write("keras", text, 0, SummaryMetadata(PluginData("graph_keras_model", b"1")))


def _write_here(module):
    cls = module.TensorBoard

    @property
    def summary(self):
        if self._summary_module is None:
            self._summary_module = _summary_of(self.model)
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
            _describe(self.summary, text)

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
