"""Batch normalisation over the batches of all ranks."""

from pydist import _C
from pydist import distributed as dist
from pydist.autograd import Function
from pydist.autograd.function import once_differentiable
from pydist.nn import functional as F
from pydist.nn.modules.batchnorm import _BatchNorm


def _over(x):
    """The dimensions that statistics are taken over, and the shape of a tensor with one number per channel."""
    return [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)


class _SyncNorm(Function):
    """Two messages in forward (first sums and counts, then squares about the common mean, which avoids cancellation),
    one in backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, group):
        dims, shape = _over(x)
        channels, count = x.shape[1], x.numel() // max(x.shape[1], 1)
        wide = _C.float64 if x.dtype is _C.float64 else _C.float32
        sums = _C.cat([x.to(wide).sum(dims), _C.tensor([float(count)], dtype=wide, device=x.device)])
        dist.all_reduce(sums, group=group)
        total = sums[channels].item()
        mean = sums[:channels] / total
        apart = x.to(wide) - mean.reshape(shape)
        var = (apart * apart).sum(dims)
        dist.all_reduce(var, group=group)
        var /= total
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps, ctx.group, ctx.total = eps, group, total
        ctx.mark_non_differentiable(mean, var)
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var, total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *_):
        x, weight, mean, var = ctx.saved_tensors
        dims, shape = _over(x)
        wide, channels = mean.dtype, x.shape[1]
        apart, g = x.to(wide) - mean.reshape(shape), grad.to(wide)
        scale = (var + ctx.eps) ** -0.5
        own = _C.cat([g.sum(dims), (g * apart).sum(dims)])
        grad_weight = (own[channels:] * scale).to(weight.dtype) if weight is not None else None
        grad_bias = own[:channels].clone().to(x.dtype)  # the all_reduce changes own in place
        dist.all_reduce(own, group=ctx.group)
        own /= ctx.total
        factor = scale if weight is None else scale * weight.to(wide)
        along = (own[channels:] * scale * scale).reshape(shape)
        grad_x = (g - own[:channels].reshape(shape) - apart * along) * factor.reshape(shape)
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation (N, C, or N, C, *) whose training statistics are those of all ranks' batches together. The
    batches may differ in size and may be empty. In eval mode, and in a world of one, it is `BatchNorm`.

    `process_group`: None for the default group. All ranks have to run it in the same order, forward and backward. As in
    PyTorch, the gradients of weight and bias are the rank's own; DistributedDataParallel averages them. Cost: two
    messages in forward, one in backward.

    >>> from pydist import nn
    >>> nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))[1].num_features
    2
    """

    def __init__(
        self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, process_group=None, device=None,
        dtype=None, **made,
    ):  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype, **made)
        self.process_group = process_group

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels (got {input.shape[1]})")

    def forward(self, input):
        use_batch = self.training or self.running_mean is None
        if not use_batch or dist.get_world_size(self.process_group) == 1:
            return super().forward(input)
        self._check_input_dim(input)
        out, mean, var, total = _SyncNorm.apply(input, self.weight, self.bias, self.eps, self.process_group)
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
            for running, new in ((self.running_mean, mean), (self.running_var, var * (total / max(total - 1, 1)))):
                running.mul_(1 - momentum).add_(new.to(running.dtype) * momentum)
        return out

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """`module` with every BatchNorm in it replaced by a SyncBatchNorm with the same parameters and buffers."""
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            new = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
            )
            new.weight, new.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(new, name, getattr(module, name))
            new.training = module.training
            return new
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return module
