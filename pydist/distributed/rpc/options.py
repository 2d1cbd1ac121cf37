"""What an agent is told: time limits, threads, and which devices stand for which."""

import math
from datetime import timedelta

from pydist import _C
from pydist.distributed.rpc.constants import DEFAULT_INIT_METHOD, DEFAULT_NUM_WORKER_THREADS, DEFAULT_RPC_TIMEOUT_SEC

__all__ = ["RpcBackendOptions", "TensorPipeRpcBackendOptions"]


def seconds(value, name, least=0.0):
    """A number of seconds, or the seconds of a timedelta. Raises TypeError or ValueError in the name of `name`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"rpc: {name} is {value!r} (expected a number of seconds)")
    value = float(value)
    if math.isnan(value) or value < least:
        raise ValueError(f"rpc: {name} is {value} (expected at least {least:g} seconds)")
    return value


class RpcBackendOptions:
    """Options of an agent.

    rpc_timeout: seconds that a call may take, unless it says otherwise; 0: any time.
    init_method: where the workers meet, as in `init_process_group`.
    """

    def __init__(self, rpc_timeout=DEFAULT_RPC_TIMEOUT_SEC, init_method=DEFAULT_INIT_METHOD):
        self.rpc_timeout, self.init_method = rpc_timeout, init_method

    @property
    def rpc_timeout(self):
        """Seconds that a call may take; 0: any time."""
        return self._rpc_timeout

    @rpc_timeout.setter
    def rpc_timeout(self, value):
        self._rpc_timeout = seconds(value, "rpc_timeout")


def _device(value):
    device = _C.device(value) if not isinstance(value, int) else _C.device(f"cuda:{value}")
    if device.type != "cuda":
        raise ValueError(
            f"`set_devices` expect a list of CUDA devices, but got device type {device.type} (expected cuda)"
        )
    return device


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """PyTorch's options of its agent, which are pydist's, too.

    num_worker_threads: how many calls of others run at a time. A call that waits for another one does not count, so one
        thread is enough for calls that call back.
    device_maps: {worker: {own GPU: the worker's GPU}}: where tensors on a GPU go. Without a map they are refused.
    devices: GPUs that are used beside those of the maps.

    >>> from pydist.distributed.rpc import TensorPipeRpcBackendOptions
    >>> options = TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=20)
    >>> options.num_worker_threads, options.rpc_timeout, options.init_method
    (4, 20.0, 'env://')
    """

    def __init__(
        self,
        *,
        num_worker_threads=DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout=DEFAULT_RPC_TIMEOUT_SEC,
        init_method=DEFAULT_INIT_METHOD,
        device_maps=None,
        devices=None,
        _transports=None,
        _channels=None,
    ):
        if isinstance(rpc_timeout, timedelta):
            raise TypeError(
                "TensorPipeRpcBackendOptions: incompatible constructor arguments: rpc_timeout is a timedelta (expected a "
                "number of seconds)"
            )
        super().__init__(rpc_timeout, init_method)
        if isinstance(num_worker_threads, bool) or not isinstance(num_worker_threads, int) or num_worker_threads < 1:
            raise ValueError(f"rpc: num_worker_threads is {num_worker_threads!r} (expected at least 1)")
        self.num_worker_threads = num_worker_threads
        self.device_maps, self.devices = {}, []
        for to, device_map in (device_maps or {}).items():
            self.set_device_map(to, device_map)
        self.set_devices(devices or [])

    def set_device_map(self, to, device_map):
        """Adds to the map of GPUs for tensors sent to worker `to`: {own: the worker's}. Raises ValueError if an own GPU
        is mapped to another one already."""
        known = self.device_maps.setdefault(to, {})
        for own, other in device_map.items():
            own, other = _device(own), _device(other)
            if known.get(own, other) != other:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {own} to {other} (expected "
                    f"{known[own]}, as before)"
                )
            known[own] = other

    def set_devices(self, devices):
        """Names GPUs that are used beside those of the maps."""
        self.devices = [_device(device) for device in devices]
