"""S12: Conv2D adds its bias, and applies relu, while the output is made. Keras' own layer goes over the output again for
each of them."""

from pydist.keras._shortcuts import TENSORS
from pydist.nn import functional as F


def _with_bias(module):
    from keras.src import activations
    from keras.src.backend.torch import nn

    cls = module.BaseConv
    their_call, their_op = cls.call, cls.convolution_op
    as_channels_last = getattr(nn, "_maybe_convert_to_channels_last", lambda tensor: tensor)  # before Keras 3.14

    def call(self, inputs):
        simple = self.use_bias and self.rank == 2 and type(self).convolution_op is their_op and type(inputs) in TENSORS
        if not simple:
            return their_call(self, inputs)
        kernel, bias = nn.convert_to_tensor(self.kernel), nn.convert_to_tensor(self.bias)
        if not inputs.dtype is kernel.dtype is bias.dtype:
            return their_call(self, inputs)
        last = self.data_format == "channels_last"
        x, kernel = nn._transpose_spatial_inputs(inputs) if last else inputs, nn._transpose_conv_kernel(kernel)
        if last:
            x, kernel = as_channels_last(x), as_channels_last(kernel)
        padding = 0
        if self.padding == "same":
            x, padding = nn._apply_same_padding(
                x, kernel.shape[2:], self.strides, self.data_format, "conv", self.dilation_rate
            )
        groups = x.shape[1] // kernel.shape[1]
        outputs = F.conv2d(x, kernel, bias, tuple(self.strides), padding, tuple(self.dilation_rate), groups)
        relu = self.activation is activations.relu
        if relu:
            outputs = F.relu(outputs, inplace=True)
        if last:
            outputs = nn._transpose_spatial_outputs(outputs)
        return outputs if relu or self.activation is None else self.activation(outputs)

    cls.call = call


SEAMS = {"keras.src.layers.convolutional.base_conv": _with_bias}
