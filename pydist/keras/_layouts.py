"""Images stay in Keras' layout, channels last, from layer to layer: pooling works on their own memory, as convolutions do. Over
PyTorch Keras copies them to channels first. Where "same" pads the sides of an image unequally, the padding still copies them."""

import pydist


def _keep_layout(module):
    theirs = module._transpose_spatial_inputs

    def _transpose_spatial_inputs(inputs):
        return pydist.permute(inputs, (0, 3, 1, 2)) if inputs.ndim == 4 else theirs(inputs)

    module._transpose_spatial_inputs = _transpose_spatial_inputs


SEAMS = {"keras.src.backend.torch.nn": _keep_layout}
