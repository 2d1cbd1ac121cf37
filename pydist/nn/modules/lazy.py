"""Modules that take the size of their input from the first input: LazyLinear, LazyConv2d and so on."""

from pydist._grad_mode import no_grad
from pydist.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from pydist.nn.modules.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from pydist.nn.modules.instancenorm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from pydist.nn.modules.linear import Linear
from pydist.nn.parameter import UninitializedParameter, is_lazy


class LazyModuleMixin:
    """The lazy form of the module class cls_to_become, without its first argument. Parameters have no shape until the
    first call or load_state_dict; then the module becomes one of that class. parameters() may be called before, for
    example by an optimizer: the parameters stay the same objects.

    >>> import pydist
    >>> layer = pydist.nn.LazyLinear(3)
    >>> layer.weight
    <UninitializedParameter>
    >>> layer(pydist.ones(2, 4)).shape, layer
    (pydist.Size([2, 3]), Linear(in_features=4, out_features=3, bias=True))
    """

    cls_to_become = None
    _size = None  # the attribute that holds the missing argument

    def __init__(self, *args, **kwargs):
        super().__init__(0, *args, **kwargs)
        self._given = args, kwargs
        for name, p in self._parameters.items():
            if p is not None:
                self._parameters[name] = UninitializedParameter(p.requires_grad, p.device, p.dtype)
        self._first_call = self.register_forward_pre_hook(type(self)._before_first_call)

    def reset_parameters(self):
        """Draws the parameters again, if they have a shape."""
        if getattr(self, self._size):  # 0: the parameters have no shape yet
            super().reset_parameters()

    def has_uninitialized_params(self):
        """Whether a parameter has no shape yet."""
        return any(map(is_lazy, self._parameters.values()))

    def initialize_parameters(self, input):
        """Makes the parameters for such inputs, with the initial values of cls_to_become."""
        self._make(self._size_of_input(input))

    def _make(self, size):
        args, kwargs = self._given
        made = self.cls_to_become(size, *args, **kwargs)
        with no_grad():
            for name, p in made._parameters.items():
                if is_lazy(own := self._parameters[name]):
                    own.materialize(p.shape)
                    own.copy_(p)
        for name, b in made._buffers.items():
            if b is not None:
                self._buffers[name] = b.to(self._buffers[name])
        setattr(self, self._size, size)
        del self._forward_pre_hooks[self._first_call.id]  # of this module, which may be a copy of the hook's
        del self._given, self._first_call
        self.__class__ = self.cls_to_become

    def _before_first_call(self, args):
        self.initialize_parameters(args[0])

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({prefix + name: p for name, p in self._parameters.items() if is_lazy(p)})

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        known = state_dict.get(prefix + "weight", state_dict.get(prefix + "running_mean"))
        if is_lazy(known):
            return
        if known is not None:
            self._make(self._size_of_weight(known))  # and this is not a lazy module any more
            self._load_from_state_dict(state_dict, prefix, *rest)
        else:
            super()._load_from_state_dict(state_dict, prefix, *rest)


class LazyLinear(LazyModuleMixin, Linear):
    """Linear whose in_features is the last size of the first input."""

    cls_to_become, _size = Linear, "in_features"

    def _size_of_input(self, input):
        return input.shape[-1]

    def _size_of_weight(self, weight):
        return weight.shape[1]


class _LazyConv(LazyModuleMixin):
    _size = "in_channels"

    def _size_of_input(self, input):
        n, name, shape = self._dims, type(self).__name__, tuple(input.shape)
        if input.dim() not in (n + 1, n + 2):
            raise RuntimeError(f"{name}: the input has shape {shape} (expected {n + 1} or {n + 2} dimensions)")
        return input.shape[-n - 1]

    def _size_of_weight(self, weight):
        return weight.shape[1] * self.groups


class _LazyConvTranspose(_LazyConv):
    def _size_of_weight(self, weight):
        return weight.shape[0]


class _LazyNorm(LazyModuleMixin):
    _size = "num_features"

    def _size_of_input(self, input):
        self._check_input_dim(input)
        return input.shape[1]

    def _size_of_weight(self, weight):
        return weight.shape[0]


class _LazyInstanceNorm(_LazyNorm):
    def __init__(self, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, *args, **kwargs):  # PyTorch's
        super().__init__(eps, momentum, affine, track_running_stats, *args, **kwargs)

    def _size_of_input(self, input):
        self._check_input_dim(input)
        return input.shape[1 - self._dims[1] + input.dim()]


class LazyConv1d(_LazyConv, Conv1d):
    """Conv1d that takes in_channels from the first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyConv, Conv2d):
    """Conv2d that takes in_channels from the first input."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyConv, Conv3d):
    """Conv3d that takes in_channels from the first input."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """ConvTranspose1d that takes in_channels from the first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """ConvTranspose2d that takes in_channels from the first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """ConvTranspose3d that takes in_channels from the first input."""

    cls_to_become = ConvTranspose3d


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """BatchNorm1d that takes num_features from the first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """BatchNorm2d that takes num_features from the first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """BatchNorm3d that takes num_features from the first input."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyInstanceNorm, InstanceNorm1d):
    """InstanceNorm1d that takes num_features from the first input. affine and track_running_stats are True by
    default."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyInstanceNorm, InstanceNorm2d):
    """InstanceNorm2d that takes num_features from the first input. affine and track_running_stats are True by
    default."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyInstanceNorm, InstanceNorm3d):
    """InstanceNorm3d that takes num_features from the first input. affine and track_running_stats are True by
    default."""

    cls_to_become = InstanceNorm3d
