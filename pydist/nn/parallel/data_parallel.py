"""PyTorch's data parallelism in one process. With one device it is the module itself."""

from pydist.nn.modules.module import Module


class DataParallel(Module):
    """Calls `module` with its input. There is one device, the CPU, whose threads already share the work of every op, so
    nothing is split. state_dict has PyTorch's prefix `module.`. For several processes use DistributedDataParallel.

    >>> import pydist
    >>> net = pydist.nn.DataParallel(pydist.nn.Linear(2, 1))
    >>> net(pydist.ones(3, 2)).shape, list(net.state_dict())
    (pydist.Size([3, 1]), ['module.weight', 'module.bias'])
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        super().__init__()
        self.module = module
        self.dim = dim
        self.device_ids = list(device_ids or ())
        self.output_device = output_device

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


def data_parallel(module, inputs, device_ids=None, output_device=None, dim=0, module_kwargs=None):
    """DataParallel(module) called with `inputs`, a tensor or a tuple."""
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    return module(*inputs, **(module_kwargs or {}))
