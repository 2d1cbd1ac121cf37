"""Folds a batch norm, for evaluation, into the layer before it."""

import copy

from pydist import _C
from pydist.nn.parameter import Parameter


def _scale(bn_rv, bn_eps, bn_w):
    scale = _C.rsqrt(bn_rv + bn_eps)
    return scale if bn_w is None else bn_w * scale


def _fused_bias(bias, bn_rm, scale, bn_b):
    shift = -bn_rm * scale if bias is None else (bias - bn_rm) * scale
    return shift if bn_b is None else shift + bn_b


def fuse_conv_bn_weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, transpose=False):
    """(weight, bias) of one convolution that replaces two layers: a convolution with conv_w [O, I, ...] (transposed:
    [I, O, ...]) and conv_b, and a batch norm with mean bn_rm and variance bn_rv. w' = w s and b' = (b - mean) s + bn_b
    with s = bn_w / sqrt(var + eps). conv_b, bn_w and bn_b may be None."""
    scale = _scale(bn_rv, bn_eps, bn_w)
    shape = [1] * conv_w.dim()
    shape[1 if transpose else 0] = -1
    weight = (conv_w * scale.reshape(shape)).to(conv_w.dtype)
    bias = _fused_bias(conv_b, bn_rm, scale, bn_b).to(conv_w.dtype)
    return Parameter(weight, conv_w.requires_grad), Parameter(bias, conv_w.requires_grad)


def fuse_linear_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b):
    """The same for a linear layer's weight [O, I] and bias."""
    scale = _scale(bn_rv, bn_eps, bn_w)
    weight = (linear_w * scale.unsqueeze(-1)).to(linear_w.dtype)
    bias = _fused_bias(linear_b, bn_rm, scale, bn_b).to(linear_w.dtype)
    return Parameter(weight, linear_w.requires_grad), Parameter(bias, linear_w.requires_grad)


def _checked(what, layer, bn):
    if layer.training or bn.training:
        raise AssertionError(f"{what}: fusion only for eval! (expected both modules in eval mode)")
    if bn.running_mean is None or bn.running_var is None:
        raise ValueError(f"{what}: the batch norm has no running statistics (expected track_running_stats=True)")


def fuse_conv_bn_eval(conv, bn, transpose=False):
    """A convolution that replaces `conv` followed by `bn`, both in eval mode. The two stay as they are.

    >>> import pydist
    >>> conv, bn = pydist.nn.Conv2d(2, 3, 1).eval(), pydist.nn.BatchNorm2d(3).eval()
    >>> x = pydist.ones(1, 2, 4, 4)
    >>> pydist.allclose(pydist.nn.utils.fuse_conv_bn_eval(conv, bn)(x), bn(conv(x)), atol=1e-6)
    True
    """
    _checked("fuse_conv_bn_eval", conv, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_linear_bn_eval(linear, bn):
    """A linear layer that replaces `linear` followed by `bn` (with as many features, or one), both in eval mode."""
    _checked("fuse_linear_bn_eval", linear, bn)
    if bn.num_features not in (linear.out_features, 1):
        raise AssertionError("To fuse, linear.out_features == bn.num_features or bn.num_features == 1")
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(
        linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return fused
