"""The mean of parameters over the ranks."""

import pydist
from pydist.distributed._group.process_group import current

__all__ = ["average_parameters", "average_parameters_or_parameter_groups", "get_params_to_average"]


def get_params_to_average(params):
    """The parameters that have a gradient. `params`: parameters, or an optimizer's param_groups."""
    found = []
    for param in params:
        if isinstance(param, dict):
            found += get_params_to_average(param["params"])
        elif param.grad is not None:
            found.append(param)
    return found


def average_parameters(params, process_group=None):
    """Replaces each parameter by its mean over the ranks of the group. All parameters of one dtype travel in one
    message."""
    group, by_dtype = current(process_group), {}
    for param in params:
        by_dtype.setdefault(param.dtype, []).append(param.data)
    if group.size == 1:
        return
    for together in by_dtype.values():
        flat = pydist.cat([tensor.reshape(-1) for tensor in together])
        group.all_reduce(flat, "avg")
        at = 0
        for tensor in together:
            tensor.copy_(flat[at : at + tensor.numel()].view(*tensor.shape))
            at += tensor.numel()


def average_parameters_or_parameter_groups(params, process_group=None):
    """average_parameters of get_params_to_average(params)."""
    average_parameters(get_params_to_average(params), process_group)
