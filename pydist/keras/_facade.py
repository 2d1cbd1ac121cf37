"""Keras beside `import tensorflow`: gradients are recorded in tapes and in Keras' own training step (_trainer.py)
alone, and a restored checkpoint reaches variables that are made later."""

import functools
import sys

from pydist import compat


def _layers_turn_recording_off(module):
    made = module.Layer.__new__

    def __new__(cls, *args, **kwargs):
        if isinstance(sys.modules.get("tensorflow"), compat._Root):
            from pydist.tensorflow._tape import gradients_off

            gradients_off()
        return made(cls, *args, **kwargs)

    module.Layer.__new__ = __new__


def _checkpoint():
    """The module of checkpoints, if one was restored to objects that make their variables later."""
    module = sys.modules.get("pydist.tensorflow._checkpoint")
    return module if module is not None and module.has_pending() else None


def _restore_built_layers(module):
    plain = module.TorchLayer._post_build

    def _post_build(self):
        plain(self)
        checkpoint = _checkpoint()
        if checkpoint is not None and not module.in_stateless_scope():  # else variables have no values yet
            checkpoint.apply_pending()

    module.TorchLayer._post_build = _post_build


def _restore_built_optimizers(module):
    plain = module.BaseOptimizer.apply

    @functools.wraps(plain)
    def apply(self, grads, trainable_variables=None):
        checkpoint = _checkpoint()
        if checkpoint is not None and not self.built and trainable_variables is not None:
            self.build(list(trainable_variables))
            checkpoint.apply_pending()
        return plain(self, grads, trainable_variables)

    module.BaseOptimizer.apply = apply


def _export_for_the_facade(module):
    """model.export(folder) writes what tf.saved_model.load reads."""

    def export_saved_model(model, filepath, verbose=None, input_signature=None, **kwargs):
        from pydist.tensorflow import saved_model

        saved_model.save(model, filepath)
        if verbose or verbose is None:
            print(f"Saved artifact at '{filepath}'. The following endpoints are available:\n\n* Endpoint 'serve'")

    module.export_saved_model = export_saved_model


SEAMS = {
    "keras.src.export": _export_for_the_facade,
    "keras.src.layers.layer": _layers_turn_recording_off,
    "keras.src.backend.torch.layer": _restore_built_layers,
    "keras.src.optimizers.base_optimizer": _restore_built_optimizers,
}
