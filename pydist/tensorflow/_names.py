"""How the modules of the facade find their names, and what they say of those that they lack."""

import importlib
import sys

from pydist.compat import near

# Names of graph mode (TensorFlow 1), which a program uses where it builds a graph first and runs it later.
_GRAPH = """Session InteractiveSession placeholder placeholder_with_default get_variable variable_scope
    get_default_graph reset_default_graph global_variables_initializer local_variables_initializer
    tables_initializer initialize_all_variables global_variables trainable_variables get_collection
    add_to_collection disable_eager_execution disable_v2_behavior disable_resource_variables
    sparse_placeholder get_default_session Graph GraphDef Operation GraphKeys gradients import_graph_def
    AUTO_REUSE assign assign_add assign_sub layers make_template""".split()


def error(module, name, names):
    """The AttributeError for `name`, which `module` ("tensorflow.nn") does not have. `names`: what it has."""
    text = f"pydist has no {module}.{name}"
    if name in _GRAPH and module in ("tensorflow", "tensorflow.compat.v1"):
        text += ": there is no graph mode (expected eager code; tf.function marks a function that is called often)"
    return AttributeError(text + near(name, sorted(names)), name=name, obj=sys.modules.get(module))


def lacking(module):
    """The `__getattr__` of a module of the facade, "pydist.tensorflow.nn"."""

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise error(f"tensorflow{module.removeprefix('pydist.tensorflow')}", name, vars(sys.modules[module]))

    return __getattr__


def lazy(module, homes, parts=""):
    """(`__getattr__`, `__dir__`) of a module whose names stand elsewhere: {"home": "name name=of ..."}. A home is a
    module of the facade, or with a dot at its end one of another package. `parts`: submodules."""
    where = {}
    for home, names in homes.items():
        for entry in names.split():
            name, _, of = entry.partition("=")
            where[name] = (home, of or name)
    parts = parts.split()
    public = f"tensorflow{module.removeprefix('pydist.tensorflow')}"

    def __getattr__(name):
        if name in where:
            home, of = where[name]
            if home.startswith(("keras.", "_over_keras.")):
                importlib.import_module("pydist.keras")  # Keras over pydist, however it is asked for first
            found = importlib.import_module(home[:-1] if home.endswith(".") else f"pydist.tensorflow.{home}")
            found = getattr(found, of) if of != "." else found
        elif name in parts:
            found = importlib.import_module(f"{module}.{name}")
        elif name.startswith("__"):
            raise AttributeError(name)
        else:
            raise error(public, name, [*where, *parts, *vars(sys.modules[module])])
        setattr(sys.modules[module], name, found)
        return found

    def __dir__():
        return sorted({*vars(sys.modules[module]), *where, *parts})

    return __getattr__, __dir__
