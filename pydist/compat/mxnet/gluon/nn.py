"""Layers. Sizes that are not given are found in the first forward."""

import warnings

import numpy as np

from pydist.compat.mxnet import ndarray as _nd
from pydist.compat.mxnet.gluon.block import Block, HybridBlock
from pydist.compat.mxnet.gluon.block import SymbolBlock as SymbolBlock


class _Stack:
    """What Sequential and HybridSequential share."""

    def add(self, *blocks):
        """Adds blocks at the end."""
        for block in blocks:
            self.register_child(block)

    def forward(self, x, *args):
        for block in self._children.values():
            x = block(x, *args)
            x, args = (x[0], x[1:]) if isinstance(x, (list, tuple)) else (x, ())
        return (x, *args) if args else x

    def __len__(self):
        return len(self._children)

    def __iter__(self):
        return iter(self._children.values())

    def __getitem__(self, key):
        found = list(self._children.values())[key]
        if not isinstance(found, list):
            return found
        net = type(self)(prefix=self._prefix)
        net.add(*found)
        return net


class Sequential(_Stack, Block):
    """Blocks one after the other."""

    def hybridize(self, active=True, **kwargs):
        """Accepted: pydist always runs eagerly."""
        if self._children and all(isinstance(block, HybridBlock) for block in self._children.values()):
            warnings.warn(f"{self.name}: all children are HybridBlocks (expected a HybridSequential)", stacklevel=2)
        super().hybridize(active, **kwargs)


class HybridSequential(_Stack, HybridBlock):
    """HybridBlocks one after the other."""


def _parameters(block, activation, **rows):
    """Gives a block parameters {name: (shape, initializer, more)}, and its activation as a child."""
    with block.name_scope():
        for name, (shape, init, more) in rows.items():
            setattr(block, name, block.params.get(name, shape=shape, init=init, allow_deferred_init=True, **more))
        block.act = Activation(activation, prefix=f"{activation}_") if activation else None


class Dense(HybridBlock):
    """x @ weight.T + bias, then an activation. flatten: of the whole rest of the shape after the batch."""

    bias = None

    def __init__(self, units, activation=None, use_bias=True, flatten=True, dtype="float32", weight_initializer=None,
                 bias_initializer="zeros", in_units=0, **kwargs):  # fmt: skip
        super().__init__(**kwargs)
        self._units, self._flatten = units, flatten
        bias = {"bias": ((units,), bias_initializer, {"dtype": dtype})} if use_bias else {}
        _parameters(self, activation, weight=((units, in_units), weight_initializer, {"dtype": dtype}), **bias)

    def hybrid_forward(self, F, x, weight, bias=None):
        x = F.FullyConnected(x, weight, bias, num_hidden=self._units, no_bias=bias is None, flatten=self._flatten)
        return self.act(x) if self.act else x

    def __repr__(self):
        shape = self.weight.shape
        return f"Dense({shape[1] or None} -> {shape[0]}, {self.act._act_type if self.act else 'linear'})"


class _Simple(HybridBlock):
    """A layer without parameters: `layer(F, self, x)`. `args`: its arguments with their defaults."""

    args, layer = {}, None

    def __init__(self, *args, prefix=None, params=None, **kwargs):
        self._args = {**self.args, **dict(zip(self.args, args)), **kwargs}
        lacking = [name for name, value in self._args.items() if value is Ellipsis] + sorted(
            kwargs.keys() - self.args.keys()
        )
        if lacking:
            raise TypeError(
                f"{type(self).__name__}: {lacking[0]!r} is missing, or is not known (expected {list(self.args)})"
            )
        vars(self).update({f"_{name}": value for name, value in self._args.items()})
        super().__init__(prefix=prefix, params=params)

    def hybrid_forward(self, F, x, *args):
        return type(self).layer(F, self, x, *args)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(map(str, self._args.values()))})"


class Dropout(_Simple):
    """Zeros with the probability `rate`, in training; `axes` share one draw."""

    args, layer = {"rate": ..., "axes": ()}, lambda F, self, x: F.Dropout(x, p=self._rate, axes=self._axes)


class Flatten(_Simple):
    """One dim after the batch."""

    layer = lambda F, self, x: F.Flatten(x)


class LeakyReLU(_Simple):
    """max(x, alpha * x)."""

    args, layer = {"alpha": ...}, lambda F, self, x: F.LeakyReLU(x, slope=self._alpha)


class HybridLambda(_Simple):
    """A function of mx.nd by name, or function(F, x, ...)."""

    args = {"function": ...}

    def layer(F, self, *args):
        return getattr(F, self._function)(*args) if isinstance(self._function, str) else self._function(F, *args)


class Activation(_Simple):
    """relu, sigmoid, tanh, softrelu or softsign."""

    args, layer = {"act_type": ...}, lambda F, self, x: F.Activation(x, act_type=self._act_type)

    def __init__(self, activation, **kwargs):
        super().__init__(activation, **kwargs)

    def _alias(self):
        return self._act_type


class Lambda(Block):
    """A function of mx.nd by name, or function(x, ...)."""

    def __init__(self, function, prefix=None):
        super().__init__(prefix=prefix)
        self._function = getattr(_nd, function) if isinstance(function, str) else function

    def forward(self, *args):
        return self._function(*args)


class Embedding(HybridBlock):
    """Rows of a table of input_dim x output_dim. sparse_grad: the gradient is a row_sparse array."""

    def __init__(self, input_dim, output_dim, dtype="float32", weight_initializer=None, sparse_grad=False, **kwargs):
        super().__init__(**kwargs)
        more = {"dtype": dtype, "grad_stype": "row_sparse" if sparse_grad else "default"}
        _parameters(self, None, weight=((input_dim, output_dim), weight_initializer, more))

    def hybrid_forward(self, F, x, weight):
        return F.Embedding(x, weight)


class _Scaled(HybridBlock):
    """What norms share: gamma and beta, which learn or not."""

    def __init__(self, in_channels, scale, center, gamma_initializer, beta_initializer, **kwargs):
        super().__init__(**kwargs)
        learns = lambda yes: {"grad_req": "write" if yes else "null", "differentiable": yes}
        _parameters(self, None, gamma=((in_channels,), gamma_initializer, learns(scale)),
                    beta=((in_channels,), beta_initializer, learns(center)))  # fmt: skip

    def __repr__(self):
        return f"{type(self).__name__}(in_channels={self.gamma.shape[0] or None})"


class BatchNorm(_Scaled):
    """Normalizes over all axes but `axis`, by the batch in training and by running means in prediction."""

    def __init__(self, axis=1, momentum=0.9, epsilon=1e-5, center=True, scale=True, use_global_stats=False,
                 beta_initializer="zeros", gamma_initializer="ones", running_mean_initializer="zeros",
                 running_variance_initializer="ones", in_channels=0, **kwargs):  # fmt: skip
        super().__init__(in_channels, scale, center, gamma_initializer, beta_initializer, **kwargs)
        self._kwargs = {"axis": axis, "eps": epsilon, "momentum": momentum, "fix_gamma": not scale,
                        "use_global_stats": use_global_stats}  # fmt: skip
        still = {"grad_req": "null", "differentiable": False}
        _parameters(self, None, running_mean=((in_channels,), running_mean_initializer, still),
                    running_var=((in_channels,), running_variance_initializer, still))  # fmt: skip

    def cast(self, dtype):
        """float16 leaves its parameters float32."""
        super().cast("float32" if np.dtype(dtype) == np.float16 else dtype)

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        return F.BatchNorm(x, gamma, beta, running_mean, running_var, **self._kwargs)


class LayerNorm(_Scaled):
    """Normalizes along one axis."""

    def __init__(self, axis=-1, epsilon=1e-5, center=True, scale=True, beta_initializer="zeros",
                 gamma_initializer="ones", in_channels=0, **kwargs):  # fmt: skip
        super().__init__(in_channels, scale, center, gamma_initializer, beta_initializer, **kwargs)
        self._axis, self._epsilon = axis, epsilon

    def hybrid_forward(self, F, x, gamma, beta):
        return F.LayerNorm(x, gamma, beta, axis=self._axis, eps=self._epsilon)


def _tuple(value, dims):
    return (value,) * dims if isinstance(value, int) else tuple(value)


class _Conv(HybridBlock):
    bias = None

    def __init__(self, channels, kernel_size, strides=1, padding=0, dilation=1, groups=1, layout=None, activation=None,
                 use_bias=True, weight_initializer=None, bias_initializer="zeros", in_channels=0,
                 **kwargs):  # fmt: skip
        super().__init__(**kwargs)
        layout = layout or self.layout
        dims = len(layout) - 2
        kernel, inner = _tuple(kernel_size, dims), in_channels // groups
        self._kwargs = {"kernel": kernel, "stride": _tuple(strides, dims), "dilate": _tuple(dilation, dims),
                        "pad": _tuple(padding, dims), "num_filter": channels, "num_group": groups,
                        "layout": layout}  # fmt: skip
        shape = (channels, inner, *kernel) if layout[1] == "C" else (channels, *kernel, inner)
        bias = {"bias": ((channels,), bias_initializer, {})} if use_bias else {}
        _parameters(self, activation, weight=(shape, weight_initializer, {}), **bias)

    def _alias(self):
        return "conv"

    def hybrid_forward(self, F, x, weight, bias=None):
        x = F.Convolution(x, weight, bias, no_bias=bias is None, **self._kwargs)
        return self.act(x) if self.act else x

    def __repr__(self):
        return f"{type(self).__name__}({self._kwargs['num_filter']}, kernel_size={self._kwargs['kernel']})"


class Conv1D(_Conv):
    """A convolution over one dim."""

    layout = "NCW"


class Conv2D(_Conv):
    """A convolution over two dims."""

    layout = "NCHW"


class _Pool(HybridBlock):
    def __init__(
        self, pool_size=2, strides=None, padding=0, layout=None, ceil_mode=False, count_include_pad=True, **kwargs
    ):
        super().__init__(**kwargs)
        dims = len(layout or self.layout) - 2
        size = _tuple(pool_size, dims)
        self._kwargs = {"kernel": size, "stride": _tuple(size if strides is None else strides, dims),
                        "pad": _tuple(padding, dims), "pool_type": self.kind, "layout": layout or self.layout,
                        "global_pool": type(self).__name__.startswith("Global"), "count_include_pad": count_include_pad,
                        "pooling_convention": "full" if ceil_mode else "valid"}  # fmt: skip

    def _alias(self):
        return "pool"

    def hybrid_forward(self, F, x):
        return F.Pooling(x, **self._kwargs)

    def __repr__(self):
        return f"{type(self).__name__}(size={self._kwargs['kernel']}, stride={self._kwargs['stride']})"


for _kind, _word in (("max", "largest element"), ("avg", "mean")):
    for _dims, _layout in (("1D", "NCW"), ("2D", "NCHW")):
        for _start, _of in (("", "each window"), ("Global", "each channel")):
            _name = f"{_start}{_kind.title()}Pool{_dims}"
            _own = {"kind": _kind, "layout": _layout, "__doc__": f"The {_word} of {_of}.", "__module__": __name__}
            globals()[_name] = type(_name, (_Pool,), _own)
