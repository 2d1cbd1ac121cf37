"""Batch normalisation (Ioffe and Szegedy, 2015)."""

from pydist import _C
from pydist.nn import functional as F
from pydist.nn import init
from pydist.nn.modules.module import Module
from pydist.nn.parameter import Parameter


class _BatchNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias per channel (dim 1) of x.

    In training, mean and (biased) variance are those of the batch, and the running ones are updated by `momentum`
    (None: a cumulative average) with the unbiased variance. In eval mode the running ones are used.
    """

    _version = 2

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        device=None,
        dtype=None,
        *,
        bias=True,
    ):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats

        def make(creator):
            return creator(num_features, device=device, dtype=dtype)

        self.register_parameter("weight", Parameter(make(_C.empty)) if affine else None)
        self.register_parameter("bias", Parameter(make(_C.empty)) if affine and bias else None)
        self.register_buffer("running_mean", make(_C.zeros) if track_running_stats else None)
        self.register_buffer("running_var", make(_C.ones) if track_running_stats else None)
        counter = _C.tensor(0, dtype=_C.int64, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", counter)
        self.reset_parameters()

    def reset_running_stats(self):
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self):
        self.reset_running_stats()
        if self.affine:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        # version 1 had no num_batches_tracked
        old = (local_metadata.get("version") or 1) < 2
        if old and self.track_running_stats and prefix + "num_batches_tracked" not in state_dict:
            state_dict[prefix + "num_batches_tracked"] = _C.tensor(0, dtype=_C.int64, device="cpu")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _check_input_dim(self, input):
        if input.dim() not in self._dims:
            wanted = " or ".join(f"{n}D" for n in self._dims)
            raise ValueError(f"expected {wanted} input (got {input.dim()}D input)")

    def forward(self, input):
        self._check_input_dim(input)
        momentum = self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                count = self.num_batches_tracked
                momentum = 1.0 if count.is_meta else 1.0 / count.item()
        return F.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            0.0 if momentum is None else momentum,
            self.eps,
        )

    def extra_repr(self):
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    __doc__ = f"Over x[N, C] or x[N, C, L]. {_BatchNorm.__doc__}"
    _dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = f"Over x[N, C, H, W]. {_BatchNorm.__doc__}"
    _dims = (4,)


class BatchNorm3d(_BatchNorm):
    __doc__ = f"Over x[N, C, D, H, W]. {_BatchNorm.__doc__}"
    _dims = (5,)
