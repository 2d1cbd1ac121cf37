"""Module: a tree of parameters, buffers and submodules with a forward function."""

import itertools
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from warnings import warn

from pydist import _C, _replicas
from pydist._grad_mode import no_grad
from pydist.nn.modules._backward import BackwardHooks
from pydist.nn.parameter import Buffer, Parameter
from pydist.utils.hooks import RemovableHandle

# Hooks by the moment at which they run.
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_EXTRA_STATE = "_extra_state"
_LISTED = 8  # how many names an error lists


def _listed(names):
    """The first names, and how many more there are."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


class _CallHook(namedtuple("CallHook", ("hook", "with_kwargs", "always"), defaults=(False, False))):
    """A hook of forward calls that was registered with options. Without options its dictionary has the hook itself, as
    programs expect that look for theirs."""

    __slots__ = ()

    @classmethod
    def entry(cls, hook, *options):
        """What the dictionary gets."""
        return cls(hook, *options) if any(options) else hook

    @classmethod
    def of(cls, entry):
        """The hook and its options."""
        return entry if type(entry) is cls else cls(entry)


def _refuse_blank(module, args):
    """Runs before the first forward after to_empty."""
    named = itertools.chain(module.named_parameters(), module.named_buffers())
    blank = [name for name, tensor in named if _C.is_blank(tensor)]
    if blank:
        raise RuntimeError(
            f"{type(module).__name__}: nothing has been written to {_listed(blank)} since to_empty() (expected values before "
            "forward: of init functions, reset_parameters() or load_state_dict())"
        )
    for below in module.modules():
        _drop_check(below)


def _drop_check(module):
    hooks = module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if hook is _refuse_blank]:
        del hooks[key]


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ("missing_keys", "unexpected_keys"))):
    __slots__ = ()

    def __repr__(self):
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()


def _indent(text):
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


class Module:
    """Base class of all layers. It keeps assigned Parameters and Modules, and registered buffers, by name.

    Subclasses call `super().__init__()` first and define `forward`.

    >>> import pydist
    >>> class Scale(pydist.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.by = pydist.nn.Parameter(pydist.full((1,), 3.0))
    ...     def forward(self, x):
    ...         return x * self.by
    >>> scale = Scale()
    >>> [name for name, _ in scale.named_parameters()]
    ['by']
    >>> scale(pydist.ones(2)).tolist()
    [3.0, 3.0]
    """

    _version = 1

    def __init__(self):
        self.__dict__.update(
            training=True,
            _parameters={},
            _buffers={},
            _non_persistent_buffers_set=set(),
            _modules={},
            **{register: OrderedDict() for register in _HOOKS},
        )
        if _replicas.made is not None:
            _replicas.made(self)

    def __getstate__(self):
        """For copies and pickles. What a hook makes before each forward, which is part of a graph, goes without its graph."""
        state = self.__dict__.copy()
        for hook in self.__dict__.get("_forward_pre_hooks", {}).values():
            name = getattr(hook, "makes", None)
            if isinstance(state.get(name), _C.Tensor):
                state[name] = state[name].detach()
        return state

    # Calling.

    def forward(self, *args, **kwargs):
        """Computes the module's output. Subclasses define it; call the module itself instead of this, so that hooks
        run."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args, **kwargs):
        if self._forward_pre_hooks or self._forward_hooks or self._backward_hooks or self._backward_pre_hooks:
            return self._call_with_hooks(args, kwargs)
        return self.forward(*args, **kwargs)

    def _call_with_hooks(self, args, kwargs):
        _C._program_refuse("a module has hooks")  # what they do in Python would be lost in a replay
        pending = list(self._forward_hooks.values())
        result = backward = None
        try:
            args, kwargs = self._run_pre_hooks(args, kwargs)
            if self._backward_hooks or self._backward_pre_hooks:
                hooks = self._backward_hooks.values(), self._backward_pre_hooks.values()
                backward = BackwardHooks(self, *map(list, hooks))
                args = backward.watch_inputs(args)
            result = self.forward(*args, **kwargs)
            while pending:
                result = self._run_forward_hook(pending.pop(0), args, kwargs, result)
            return result if backward is None else backward.watch_outputs(result)
        except Exception:
            for entry in pending:
                if _CallHook.of(entry).always:
                    try:
                        result = self._run_forward_hook(entry, args, kwargs, result)
                    except Exception as error:
                        text = "module forward hook with `always_call=True` raised an exception that was silenced as "
                        warn(f"{text}another error was raised in forward: {error}", stacklevel=3)
            raise

    def _run_pre_hooks(self, args, kwargs):
        for entry in list(self._forward_pre_hooks.values()):
            hook, with_kwargs, _ = _CallHook.of(entry)
            changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if changed is None:
                continue
            if not with_kwargs:
                args = changed if isinstance(changed, tuple) else (changed,)
            elif isinstance(changed, tuple) and len(changed) == 2:
                args, kwargs = changed
            else:
                raise RuntimeError(
                    f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {changed}."
                )
        return args, kwargs

    def _run_forward_hook(self, entry, args, kwargs, result):
        hook, with_kwargs, _ = _CallHook.of(entry)
        changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
        return result if changed is None else changed

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """`hook(module, args)` runs before forward and may return new args. with_kwargs: `hook(module, args, kwargs)`
        may return `(args, kwargs)`. Returns a handle with `remove()`."""
        return RemovableHandle(self._forward_pre_hooks, _CallHook.entry(hook, with_kwargs), prepend=prepend)

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False, always_call=False):
        """`hook(module, args, output)` (with_kwargs: `hook(module, args, kwargs, output)`) runs after forward and may
        return another output. always_call: it also runs, with output None, if forward raises. Returns a handle with
        `remove()`."""
        entry = _CallHook.entry(hook, with_kwargs, always_call)
        return RemovableHandle(self._forward_hooks, entry, prepend=prepend)

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """`hook(module, grad_output)` runs when the gradients of the outputs (a tuple) are there, and may return other
        ones. Returns a handle with `remove()`."""
        return RemovableHandle(self._backward_pre_hooks, hook, prepend=prepend)

    def register_full_backward_hook(self, hook, prepend=False):
        """`hook(module, grad_input, grad_output)` runs when the gradients of the inputs are there, and may return other
        gradients of the inputs. Both are tuples, with None for objects that are not tensors or need no gradient.
        Returns a handle with `remove()`.

        Inputs and outputs pass through a view, so the module may not change them in place.
        """
        return RemovableHandle(self._backward_hooks, hook, prepend=prepend)

    register_backward_hook = register_full_backward_hook

    # Registration.

    def _check_new_name(self, kind, name):
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain "."')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')

    def _check_not_taken(self, name, own):
        if name not in own and hasattr(self, name):
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name, param):
        """Adds a Parameter, or None for a name that may hold one later."""
        self._check_new_name("parameter", name)
        self._check_not_taken(name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' (Parameter or None required)"
            )
        if param is not None and param.grad_fn is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. "
                f"To express '{name}' as a function of another Tensor, compute the value in the forward() method."
            )
        self._parameters[name] = param

    def register_buffer(self, name, tensor, persistent=True):
        """Adds a tensor that is not a parameter, but is moved and saved with the module. persistent=False: it is not
        saved."""
        self._check_new_name("buffer", name)
        self._check_not_taken(name, self._buffers)
        if tensor is not None and not isinstance(tensor, _C.Tensor):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (Tensor or None required)"
            )
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name, module):
        """Adds a submodule, or None."""
        self._check_new_name("module", name)
        self._check_not_taken(name, self._modules)
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._modules[name] = module

    register_module = add_module

    def _forget(self, name, *registers):
        for register in registers:
            register.pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def __setattr__(self, name, value):
        own = self.__dict__
        if isinstance(value, Parameter):
            if "_parameters" not in own:
                raise AttributeError("cannot assign parameters before Module.__init__() call")
            self._forget(name, own, self._buffers, self._modules)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            if "_modules" not in own:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._forget(name, own, self._parameters, self._buffers)
            self.add_module(name, value)
        elif isinstance(value, Buffer):
            if "_buffers" not in own:
                raise AttributeError("cannot assign buffer before Module.__init__() call")
            self._forget(name, own, self._parameters, self._modules)
            self.register_buffer(name, value, value.persistent)
        else:
            for register, kind in (("_parameters", "parameter"), ("_modules", "child module"), ("_buffers", "buffer")):
                if name in own.get(register, ()):
                    return self._replace(own[register], kind, name, value)
            object.__setattr__(self, name, value)

    def _replace(self, register, kind, name, value):
        """Assigns a value that is neither a Parameter nor a Module to a registered name."""
        if value is not None and not (kind == "buffer" and isinstance(value, _C.Tensor)):
            wanted = {"parameter": "Parameter", "child module": "Module", "buffer": "Tensor"}[kind]
            raise TypeError(f"cannot assign '{type(value).__name__}' as {kind} '{name}' ({wanted} or None expected)")
        register[name] = value

    def __getattr__(self, name):
        own = self.__dict__
        if "_parameters" in own:  # otherwise Module.__init__ has not run
            for register in (own["_parameters"], own["_modules"], own["_buffers"]):
                if name in register:
                    return register[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name):
        for register in (self._parameters, self._buffers, self._modules):
            if name in register:
                return self._forget(name, register)
        super().__delattr__(name)

    def __dir__(self):
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[:1].isdigit())

    # The tree.

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """(name, module) of this module and all modules below it, each once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def _named_members(self, register, prefix, recurse, remove_duplicate):
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in module.__dict__[register].items():
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield (f"{path}.{name}" if path else name), value

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """(name, parameter) of this module and all below it; shared ones once."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        """(name, buffer) of this module and all below it; shared ones once."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def named_children(self):
        """(name, module) of the direct submodules, each once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def parameters(self, recurse=True):
        """The parameters of this module and all below it, each once. recurse=False: only its own."""
        return (value for _, value in self.named_parameters(recurse=recurse))

    def buffers(self, recurse=True):
        """The buffers of this module and all below it, each once. recurse=False: only its own."""
        return (value for _, value in self.named_buffers(recurse=recurse))

    def children(self):
        """The direct submodules, each once."""
        return (module for _, module in self.named_children())

    def modules(self, remove_duplicate=True):
        """This module and all modules below it, each once."""
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

    def _get_along(self, path):
        module = self
        for name in path.split(".") if path else ():
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module

    def get_submodule(self, target):
        """The module at a dotted path. Raises AttributeError if there is none."""
        return self._get_along(target)

    def _get_member(self, target, kind, wanted):
        path, _, name = target.rpartition(".")
        value = getattr(self._get_along(path), name)
        if not wanted(value, name):
            raise AttributeError(f"`{name}` is not {kind}")
        return value

    def set_submodule(self, target, module, strict=False):
        """Replaces the module at a dotted path. Raises AttributeError if there is none; the last part of the path may
        be new unless `strict`."""
        if not target:
            raise ValueError("Cannot set the submodule without a target name! (expected a dotted path)")
        if strict:
            self._get_along(target)
        path, _, name = target.rpartition(".")
        setattr(self._get_along(path), name, module)

    def get_parameter(self, target):
        """The parameter at a dotted path. Raises AttributeError if there is none."""
        return self._get_member(target, "an nn.Parameter", lambda value, _: isinstance(value, Parameter))

    def get_buffer(self, target):
        """The buffer at a dotted path. Raises AttributeError if there is none."""
        owner = self._get_along(target.rpartition(".")[0])
        return self._get_member(target, "a buffer", lambda _, name: name in owner._buffers)

    def apply(self, fn):
        """Calls fn(module) on all submodules, children first, then on this one. Returns self."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def share_memory(self):
        """Moves all parameters and buffers to memory that other processes can map (`Tensor.share_memory_`)."""
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.share_memory_()
        return self

    # Modes, dtypes and devices.

    def train(self, mode=True):
        """Sets the training mode of this module and all below it (dropout, batch norm). Returns self."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self):
        """Sets evaluation mode: train(False). Returns self."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """Sets, in place, whether autograd records operations on the parameters. Returns self."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        """Sets the gradients of all parameters to None, or to zeros with set_to_none=False."""
        _C.zero_grads(list(self.parameters()), set_to_none)

    def _apply(self, fn, recurse=True):
        """Replaces the data of every parameter, gradient and buffer by fn(data)."""
        if recurse:
            for module in self.children():
                module._apply(fn)
        with no_grad():
            for param in self._parameters.values():
                if param is not None:
                    grad = param.grad
                    if grad is not None:
                        param.grad = None
                    param.data = fn(param.data)
                    if grad is not None:
                        param.grad = fn(grad)
            for name, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[name] = fn(buffer)
        return self

    def to(self, *args, **kwargs):
        """`to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)` or `to(memory_format=channels_last)`: moves
        parameters and buffers in place. The dtype must be floating and changes only floating tensors; the memory format
        changes tensors of 4 and 5 dimensions. Returns self."""
        device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
        memory_format = kwargs.pop("memory_format", None)
        kwargs.pop("non_blocking", None)
        if kwargs:
            raise TypeError(f"to() got an unexpected keyword argument '{next(iter(kwargs))}'")
        for arg in args:
            if isinstance(arg, _C.Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, _C.dtype):
                dtype = arg
            elif not isinstance(arg, bool):
                device = arg
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={dtype}")

        def convert(tensor):
            if device is not None:
                tensor = tensor.to(device)
            if memory_format is not None and tensor.dim() in (4, 5):
                tensor = tensor.to(memory_format=memory_format)
            return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)

        return self._apply(convert)

    def float(self):
        """Converts floating parameters and buffers to float32. Returns self."""
        return self.to(_C.float32)

    def double(self):
        """Converts floating parameters and buffers to float64. Returns self."""
        return self.to(_C.float64)

    def half(self):
        """Converts floating parameters and buffers to float16. Returns self."""
        return self.to(_C.float16)

    def bfloat16(self):
        """Converts floating parameters and buffers to bfloat16. Returns self."""
        return self.to(_C.bfloat16)

    def type(self, dst_type):
        """Converts all parameters and buffers, also integer ones, to a dtype. Returns self."""
        return self._apply(lambda tensor: tensor.to(dst_type))

    def cpu(self):
        """Moves all parameters and buffers to the CPU. Returns self."""
        return self.to("cpu")

    def cuda(self, device=None):
        """Moves all parameters and buffers to a CUDA device. Returns self. Raises RuntimeError if there is none;
        pretended ones (see `pydist.cuda`) are the CPU."""
        return self._apply(lambda tensor: tensor.cuda(device))

    def compile(self, *args, **kwargs):
        """Does nothing: modules run without compilation. Returns None."""

    def to_empty(self, *, device, recurse=True):
        """Gives all parameters and buffers new memory on a device, without copying. Returns self. Those that several
        modules share stay shared.

        The first forward of the module, or of one below it, raises RuntimeError with the names of what has not been
        written by then: parameters and buffers would hold whatever was in that memory.

        >>> import pydist
        >>> layer = pydist.nn.Linear(2, 3, device="meta")  # shapes without memory
        >>> layer.to_empty(device="cpu").weight.shape
        pydist.Size([3, 2])
        """
        made = {}  # id: a tensor and the new one

        def empty(tensor):
            if id(tensor) not in made:
                made[id(tensor)] = tensor, _C.empty_like(tensor, device=device)
                _C.make_blank(made[id(tensor)][1])
            return made[id(tensor)][1]

        self._apply(empty, recurse)
        for module in self.modules() if recurse else (self,):
            _drop_check(module)
            module.register_forward_pre_hook(_refuse_blank)
        return self

    # State.

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        buffers = {k: v for k, v in self._buffers.items() if k not in self._non_persistent_buffers_set}
        for name, value in {**self._parameters, **buffers}.items():
            if value is not None:
                destination[prefix + name] = value if keep_vars else value.detach()
        if type(self).get_extra_state is not Module.get_extra_state:
            destination[prefix + _EXTRA_STATE] = self.get_extra_state()

    def get_extra_state(self):
        """More state for state_dict(), under the name "_extra_state". Subclasses define this and `set_extra_state`."""
        raise RuntimeError(f"{type(self).__name__} does not define get_extra_state() (expected a subclass that does)")

    def set_extra_state(self, state):
        """Takes the object that `get_extra_state` returned."""
        raise RuntimeError(
            f"{type(self).__name__} does not define set_extra_state(), but the state_dict has extra state "
            "(expected a subclass that does)"
        )

    def state_dict(self, *, destination=None, prefix="", keep_vars=False):
        """An ordered dictionary from names to parameters and persistent buffers. The tensors share the module's
        memory."""
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_dict_hooks.values():
            if hook(self, destination, prefix, metadata) is not None:
                raise RuntimeError("state_dict post-hook must return None")
        return destination

    def register_state_dict_pre_hook(self, hook):
        """`hook(module, prefix, keep_vars)` runs before state_dict() collects tensors. Returns a handle with
        `remove()`."""
        return RemovableHandle(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook):
        """`hook(module, state_dict, prefix, local_metadata)` may change the dictionary in place: the entries of this
        module and of those below it. Returns a handle with `remove()`."""
        return RemovableHandle(self._state_dict_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook):
        """`hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)` runs
        before this module takes its entries. Returns a handle with `remove()`."""
        return RemovableHandle(self._load_state_dict_pre_hooks, hook)

    def register_load_state_dict_post_hook(self, hook):
        """`hook(module, incompatible_keys)` runs after this module and those below it have loaded. It may change the
        lists missing_keys and unexpected_keys in place. Returns a handle with `remove()`."""
        return RemovableHandle(self._load_state_dict_post_hooks, hook)

    def _load_one(self, name, key, old, new, assign, errors):
        if not isinstance(new, _C.Tensor):
            errors.append(
                f'While copying the parameter named "{key}", expected a Tensor from checkpoint but received {type(new)}'
            )
        elif new.shape != old.shape:
            errors.append(
                f"size mismatch for {key}: copying a param with shape {new.shape} from checkpoint, "
                f"the shape in current model is {old.shape}."
            )
        elif not assign:
            if old.is_meta and not new.is_meta:
                warn(
                    f"for {key}: copying from a non-meta parameter in the checkpoint to a meta parameter in the current "
                    "model, which is a no-op. (Did you mean to pass `assign=True` to take the tensors themselves?)",
                    stacklevel=2,
                )
            with no_grad():
                old.copy_(new)
        elif isinstance(old, Parameter):
            setattr(self, name, Parameter(new, requires_grad=old.requires_grad))
        else:
            setattr(self, name, new)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, errors):
        """Takes this module's own entries, not its children's. Layers whose format has changed override it."""
        for hook in self._load_state_dict_pre_hooks.values():
            hook(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, errors)
        buffers = {k: v for k, v in self._buffers.items() if k not in self._non_persistent_buffers_set}
        own = {k: v for k, v in {**self._parameters, **buffers}.items() if v is not None}
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name, old in own.items():
            key = prefix + name
            if key in state_dict:
                self._load_one(name, key, old, state_dict[key], assign, errors)
            elif strict:
                missing_keys.append(key)
        extra = prefix + _EXTRA_STATE
        if type(self).set_extra_state is not Module.set_extra_state:
            if extra in state_dict:
                self.set_extra_state(state_dict[extra])
            elif strict:
                missing_keys.append(extra)
        elif strict and extra in state_dict:
            unexpected_keys.append(extra)
        if strict:
            for key in state_dict:
                if key.startswith(prefix) and key != extra:
                    name, _, rest = key[len(prefix) :].partition(".")
                    if name not in (self._modules if rest else own):
                        unexpected_keys.append(key)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copies the tensors of `state_dict` into the module; with assign it takes the tensors themselves. Returns
        (missing_keys, unexpected_keys).

        Raises RuntimeError with the missing and unexpected keys (strict) and all sizes that differ; the tensors whose
        names and sizes agree have been copied then.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        metadata = getattr(state_dict, "_metadata", None) or {}
        missing, unexpected, errors = [], [], []

        def load(module, state, prefix):
            local = dict(metadata.get(prefix[:-1], ()), assign_to_params_buffers=assign)
            module._load_from_state_dict(state, prefix, local, True, missing, unexpected, errors)
            for name, child in module._modules.items():
                if child is not None:
                    below = f"{prefix}{name}."
                    load(child, {k: v for k, v in state.items() if k.startswith(below)}, below)
            keys = _IncompatibleKeys(missing, unexpected)
            for hook in module._load_state_dict_post_hooks.values():
                if hook(module, keys) is not None:
                    raise AssertionError(
                        "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new "
                        "values, if incompatible_keys need to be modified, it should be done inplace."
                    )

        load(self, OrderedDict(state_dict), "")
        if strict:
            for title, keys in (("Unexpected", unexpected), ("Missing", missing)):
                if keys:
                    listed = ", ".join(f'"{key}"' for key in keys)
                    errors.insert(0, f"{title} key(s) in state_dict: {listed}. ")
        if errors:
            listed = "\n\t".join(errors)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{listed}")
        return _IncompatibleKeys(missing, unexpected)

    # Text.

    def extra_repr(self):
        """The text between the parentheses of repr()."""
        return ""

    def _get_name(self):
        return type(self).__name__

    def __repr__(self):
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {_indent(repr(module))}" for name, module in self._modules.items()]
        name = self._get_name()
        if len(lines) == 1 and not children:
            return f"{name}({lines[0]})"
        if not lines and not children:
            return f"{name}()"
        return f"{name}(\n  " + "\n  ".join(lines + children) + "\n)"
