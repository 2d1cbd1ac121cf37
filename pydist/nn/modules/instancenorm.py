"""Instance normalisation (Ulyanov et al., 2016)."""

from pydist.nn import functional as F
from pydist.nn.modules.batchnorm import _BatchNorm


class _InstanceNorm(_BatchNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, with mean and (biased) variance of each channel of each sample.

    By default there are no weight and bias, and no running statistics. With running statistics, eval mode uses them.
    """

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=False,
        track_running_stats=False,
        device=None,
        dtype=None,
        *,
        bias=True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input):
        self._check_input_dim(input)
        single = input.dim() == self._dims[0]
        x = input.unsqueeze(0) if single else input
        if x.shape[1] != self.num_features and self.affine:
            raise ValueError(
                f"expected input's size at dim=1 to match num_features ({self.num_features}), but got: {x.shape[1]}."
            )
        y = F.instance_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return y.squeeze(0) if single else y


class InstanceNorm1d(_InstanceNorm):
    __doc__ = f"Over x[N, C, L] or x[C, L]. {_InstanceNorm.__doc__}"
    _dims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    __doc__ = f"Over x[N, C, H, W] or x[C, H, W]. {_InstanceNorm.__doc__}"
    _dims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    __doc__ = f"Over x[N, C, D, H, W] or x[C, D, H, W]. {_InstanceNorm.__doc__}"
    _dims = (4, 5)
