"""The base of modules that stand around another one and leave no trace in the names of its entries."""

from pydist.nn.modules.module import Module


def _leave_out(wrapper, state_dict, prefix, local_metadata):
    """After state_dict(): the wrapped module's entries get the names that they have without a wrapper."""
    inside = f"{prefix}{wrapper._inside}."
    for key in [key for key in state_dict if key.startswith(inside)]:
        state_dict[prefix + key[len(inside) :]] = state_dict.pop(key)
    metadata = getattr(state_dict, "_metadata", {})
    for key in [key for key in metadata if f"{key}.".startswith(inside)]:
        metadata[(prefix + f"{key}."[len(inside) :])[:-1]] = metadata.pop(key)


def _leave_out_of_lists(wrapper, incompatible_keys):
    for keys in incompatible_keys:
        keys[:] = [wrapper._outside(key) for key in keys]


class Transparent(Module):
    """A module in the place of `module`, whose attributes, items and names of entries it has. Subclasses say in `_inside`
    under which name they have it, and define forward()."""

    _inside = None

    def __init__(self, module):
        super().__init__()
        setattr(self, self._inside, module)
        self.register_state_dict_post_hook(_leave_out)
        self.register_load_state_dict_post_hook(_leave_out_of_lists)

    def _outside(self, name):
        return name.replace(f"{self._inside}.", "")

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            inside = type(self)._inside
            if name == inside or inside not in self.__dict__.get("_modules", ()):
                raise
            return getattr(self._modules[inside], name)

    def __getitem__(self, index):
        return self._modules[self._inside][index]

    def named_parameters(self, *args, **kwargs):
        """(name, parameter) of the wrapped module, under the names that they have without the wrapper."""
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield self._outside(name), parameter

    def named_buffers(self, *args, **kwargs):
        """(name, buffer), in the same way."""
        for name, buffer in super().named_buffers(*args, **kwargs):
            yield self._outside(name), buffer

    def _load_from_state_dict(self, state_dict, prefix, *args):
        inside = f"{prefix}{self._inside}."
        for key in [key for key in state_dict if key.startswith(prefix) and not key.startswith(inside)]:
            state_dict[inside + key[len(prefix) :]] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)
