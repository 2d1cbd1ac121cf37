"""RemoteModule: a module that lives in another worker of `pydist.distributed.rpc`."""

from pydist import _C
from pydist.distributed import rpc
from pydist.distributed.rpc import _pickling
from pydist.nn.modules.module import Module

__all__ = ["RemoteModule"]

_NOT_THERE = """add_module apply bfloat16 buffers children cpu cuda double extra_repr float half ipu load_state_dict modules
named_buffers named_children named_modules named_parameters register_backward_hook register_buffer register_forward_hook
register_forward_pre_hook register_parameter requires_grad_ share_memory state_dict to type xpu zero_grad""".split()


def _place(text):
    """(worker, device) of "worker1/cuda:0", "worker1", "rank:1/cpu" or "cuda:0"."""
    if isinstance(text, _C.device):
        return rpc.get_worker_info(), text
    if not isinstance(text, str):
        raise TypeError(f"Invalid type for remote_device: {type(text)} (expected a str such as 'worker1/cpu')")
    wrong = ValueError(
        f"Could not parse remote_device: {text}. The valid format is '<workername>/<device>' or 'rank:<rank>/<device>' or "
        "'<device>' (expected one of them)"
    )
    name, _, device = text.partition("/")
    if not name or "/" in device or (text.endswith("/")):
        raise wrong
    if not device:
        try:
            return rpc.get_worker_info(), _C.device(name)
        except (RuntimeError, ValueError):  # it is no device, so it names a worker
            device = "cpu"
    kind, colon, number = name.partition(":")
    if colon and not (kind == "rank" and number.isdigit()):
        raise wrong
    agent = rpc._get_current_rpc_agent()
    return agent.worker(int(number) if colon else name), _C.device(device)


def _moved(value, device):
    """The tensors of lists, tuples and dicts on a device."""
    if isinstance(value, _C.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    return type(value)(_moved(item, device) for item in value) if type(value) in (list, tuple) else value


def _make(module_cls, args, kwargs, device):
    module = module_cls(*args, **kwargs)
    if not isinstance(module, Module):
        raise ValueError(
            f"Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, but it returns an instance of "
            f"{type(module)} (expected a module)"
        )
    return module.to(device)


def _forward(rref, device, back, args, kwargs):
    if device.type != "cpu":
        args, kwargs = _moved(args, device), _moved(kwargs, device)
    result = rref.local_value()(*args, **kwargs)
    return result if device.type == "cpu" or back else _moved(result, "cpu")


def _parameters(rref, recurse):
    return [rpc.RRef(parameter) for parameter in rref.local_value().parameters(recurse)]


def _train(rref, mode):
    rref.local_value().train(mode)


def _rebuild(on, device, rref, training):
    module = RemoteModule.__new__(RemoteModule)
    module._install(on, device, rref)
    module.training = training
    return module


class RemoteModule(Module):
    """A module that another worker makes, keeps and runs; here its forward is called.

    remote_device: "worker1/cuda:0", "rank:1/cpu", or "worker1" for its CPU. module_cls(*args, **kwargs) is called there.
    Inside of `pydist.distributed.autograd.context()` gradients flow to the parameters where they are. It may be sent to
    other workers by calls. Where the worker's device is a GPU, tensors of arguments are moved there, and results come
    back to the host unless this worker's options map that GPU.

    Cost: a forward is one call. Raises ValueError for methods of modules that are not there.

    >>> import pydist
    >>> from pydist.distributed import rpc
    >>> from pydist.distributed.nn.api.remote_module import RemoteModule
    >>> rpc.init_rpc("worker0", rank=0, world_size=1)
    >>> layer = RemoteModule("worker0/cpu", pydist.nn.Linear, args=(20, 30))
    >>> layer(pydist.rand(128, 20)).shape, layer.forward_async(pydist.rand(5, 20)).wait().shape
    (pydist.Size([128, 30]), pydist.Size([5, 30]))
    >>> len(layer.remote_parameters())
    2
    >>> rpc.shutdown()
    """

    is_scriptable = False

    def __init__(self, remote_device, module_cls, args=None, kwargs=None, _module_interface_cls=None):
        if _module_interface_cls is not None:
            raise NotImplementedError("RemoteModule: pydist has no TorchScript interfaces (expected None)")
        if not rpc._is_current_rpc_agent_set():
            raise AssertionError("RemoteModule only works in RPC. (expected init_rpc first)")
        if not callable(module_cls):
            raise TypeError(f"RemoteModule: module_cls is {module_cls!r} (expected a class of modules)")
        on, device = _place(remote_device)
        rref = rpc.remote(on, _make, args=(module_cls, tuple(args or ()), dict(kwargs or {}), device))
        self._install(on, device, rref)

    def _install(self, on, device, rref):
        super().__init__()
        self.on, self.device, self.module_rref = on.name, device, rref
        maps = getattr(rpc._get_current_rpc_agent().options, "device_maps", {})
        self.is_device_map_set = bool(maps.get(on.name))

    @staticmethod
    def init_from_module_rref(remote_device, module_rref, _module_interface_cls=None):
        """The RemoteModule of a module that another worker has already, given by an RRef."""
        on, device = _place(remote_device)
        if module_rref.owner() != on:
            raise ValueError(
                f"RemoteModule: the module is at {module_rref.owner_name()}, not at {on.name} (expected its owner)"
            )
        return _rebuild(on, device, module_rref, True)

    def forward_async(self, *args, **kwargs):
        """The same as a call, but returns a Future at once."""
        arguments = (self.module_rref, self.device, self.is_device_map_set, args, kwargs)
        return rpc.rpc_async(self.module_rref.owner(), _forward, args=arguments)

    def forward(self, *args, **kwargs):
        """Runs the module's forward where it is."""
        arguments = (self.module_rref, self.device, self.is_device_map_set, args, kwargs)
        return rpc.rpc_sync(self.module_rref.owner(), _forward, args=arguments)

    def remote_parameters(self, recurse=True):
        """RRefs to the parameters, for `DistributedOptimizer`."""
        return rpc.rpc_sync(self.module_rref.owner(), _parameters, args=(self.module_rref, recurse))

    def get_module_rref(self):
        """The RRef to the module."""
        return self.module_rref

    def train(self, mode=True):
        """Sets training mode there."""
        self.training = mode
        rpc.rpc_sync(self.module_rref.owner(), _train, args=(self.module_rref, mode))
        return self

    def eval(self):
        """Sets evaluation mode there."""
        return self.train(False)

    def parameters(self, recurse=True):
        """Raises ValueError: they are elsewhere."""
        raise ValueError(
            "Method ``parameters`` not supported for RemoteModule. Please use ``remote_parameters`` instead. (expected that)"
        )

    def __repr__(self):
        return f"RemoteModule({self.on}/{self.device})"

    def __reduce_ex__(self, protocol):
        if not _pickling.is_writing():
            raise RuntimeError(
                "Cannot pickle RemoteModule in python pickler. RemoteModule can only be pickled when using RPC (expected an "
                "argument or a result of a call)"
            )
        return _rebuild, (self.module_rref.owner(), self.device, self.module_rref, self.training)


def _refusal(name):
    def method(self, *args, **kwargs):
        raise ValueError(
            f"Method ``{name}`` not supported for RemoteModule (expected it to be called where the module is)"
        )

    method.__name__ = name
    method.__qualname__ = f"RemoteModule.{name}"
    method.__doc__ = "Raises ValueError: the module is elsewhere."
    return method


for _name in _NOT_THERE:
    setattr(RemoteModule, _name, _refusal(_name))
