"""PyTorch's name of `pydist.distributed.device_mesh`, as far as DTensors use it."""

from pydist.distributed.device_mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]
