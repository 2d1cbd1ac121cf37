"""Keras beside `import tensorflow`: gradients are recorded in tapes and in Keras' own training step (_trainer.py) alone."""

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


SEAMS = {"keras.src.layers.layer": _layers_turn_recording_off}
