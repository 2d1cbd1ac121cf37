"""tf.Module and what variables may be told."""

import enum
import functools
import re
import sys

from pydist.tensorflow._flow import name_scope


class VariableAggregation(enum.Enum):
    """How the values of a variable that replicas have of their own become one."""

    NONE, SUM, MEAN, ONLY_FIRST_REPLICA = "none", "sum", "mean", "only_first_replica"


class VariableSynchronization(enum.Enum):
    """When the values of a variable that replicas have of their own become one."""

    AUTO, NONE, ON_WRITE, ON_READ = "auto", "none", "on_write", "on_read"


def _is_variable(value):
    kinds = sys.modules.get("keras.src.backend")
    return kinds is not None and isinstance(value, kinds.Variable)


def _is_layer(value):
    layers = sys.modules.get("keras.src.layers.layer")
    return layers is not None and isinstance(value, layers.Layer)


class Module:
    """A thing whose attributes (also in lists and dictionaries) may be variables, layers and other modules."""

    _TF_MODULE_IGNORED_PROPERTIES = frozenset()

    def __init__(self, name=None):
        name = name or re.sub(r"(?<!^)(?=[A-Z][a-z])|(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        if not name.isidentifier():
            raise ValueError(f"tf.Module: name is {name!r} (expected a name of letters, digits and underscores)")
        self._name = name

    @property
    def name(self):
        """The name."""
        return self._name

    @property
    def name_scope(self):
        """A block in which variables get the module's name."""
        return name_scope(f"{self._name}/")

    @classmethod
    def with_name_scope(cls, method):
        """A decorator: the method runs in the module's name_scope."""

        @functools.wraps(method)
        def wrapped(self, *args, **kwargs):
            with self.name_scope:
                return method(self, *args, **kwargs)

        return wrapped

    def _walk(self, seen):
        """Variables, layers and modules below this one, each once; those of the module itself before those of
        others."""
        inner = []
        for key in sorted(vars(self), key=str):
            if key not in self._TF_MODULE_IGNORED_PROPERTIES:
                yield from self._leaves(vars(self)[key], seen, inner)
        for module in inner:
            yield from module._walk(seen)

    def _leaves(self, value, seen, inner):
        if isinstance(value, (list, tuple)):
            for part in value:
                yield from self._leaves(part, seen, inner)
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                yield from self._leaves(value[key], seen, inner)
        elif (isinstance(value, Module) or _is_variable(value) or _is_layer(value)) and id(value) not in seen:
            seen.add(id(value))
            yield value
            if isinstance(value, Module):
                inner.append(value)

    @property
    def variables(self):
        """The variables of this module and of those within it."""
        found = []
        for thing in self._walk({id(self)}):
            found += [thing] if _is_variable(thing) else [] if isinstance(thing, Module) else thing.variables
        return tuple(found)

    @property
    def trainable_variables(self):
        """The variables that tapes watch."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def non_trainable_variables(self):
        """The other ones."""
        return tuple(v for v in self.variables if not v.trainable)

    @property
    def submodules(self):
        """The modules and layers within this one."""
        return tuple(thing for thing in self._walk({id(self)}) if not _is_variable(thing))
