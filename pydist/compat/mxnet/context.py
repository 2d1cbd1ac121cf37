"""Devices."""

import pydist
from pydist.compat.mxnet._base import Context as Context
from pydist.compat.mxnet._base import current_context as current_context


def cpu(device_id=0):
    """The CPU, under a number of its own: two numbers are two contexts on one device."""
    return Context("cpu", device_id)


def cpu_pinned(device_id=0):
    """The same as cpu() here."""
    return Context("cpu_pinned", device_id)


def gpu(device_id=0):
    """A GPU. Whether it exists shows when an array is made there."""
    return Context("gpu", device_id)


def num_gpus():
    """How many GPUs there are."""
    return pydist.cuda.device_count()
