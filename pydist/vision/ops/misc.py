"""Blocks of models: frozen batch normalisation, and blocks that pydist.vision.models uses."""

from pydist import _C, nn
from pydist.vision.models._blocks import Conv2dNormActivation, SqueezeExcitation

__all__ = ["Conv2dNormActivation", "FrozenBatchNorm2d", "MLP", "Permute", "SqueezeExcitation"]


class FrozenBatchNorm2d(nn.Module):
    """BatchNorm2d whose statistics and affine parameters are buffers that training does not change."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, _C.full((num_features,), value))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict.pop(f"{prefix}num_batches_tracked", None)  # a key that a BatchNorm2d has
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)

    def extra_repr(self):
        return f"{self.weight.shape[0]}, eps={self.eps}"


class Permute(nn.Module):
    """x.permute(dims)."""

    def __init__(self, dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.permute(self.dims)


class MLP(nn.Sequential):
    """Linear layers with the sizes `hidden_channels`. All except the last are followed by norm, activation and dropout,
    the last only by dropout."""

    def __init__(
        self,
        in_channels,
        hidden_channels,
        norm_layer=None,
        activation_layer=nn.ReLU,
        inplace=None,
        bias=True,
        dropout=0.0,
    ):
        options = {} if inplace is None else {"inplace": inplace}
        layers, size = [], in_channels
        for i, channels in enumerate(hidden_channels):
            layers.append(nn.Linear(size, channels, bias=bias))
            if i + 1 < len(hidden_channels):
                layers += [norm_layer(channels)] if norm_layer is not None else []
                layers.append(activation_layer(**options))
            layers.append(nn.Dropout(dropout, **options))
            size = channels
        super().__init__(*layers)
