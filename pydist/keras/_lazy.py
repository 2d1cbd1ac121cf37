"""S10: pandas, scikit-learn and matplotlib are imported when Keras uses them. Keras imports all three at its own start."""

import importlib
import importlib.util
import sys
import types

# modules of Keras that need scikit-learn: a program's first use of an attribute runs their code
LATER = ("keras.wrappers",)


def later(spec):
    """`spec` with a loader that runs the module's code at the first use."""
    if spec:
        spec.loader = importlib.util.LazyLoader(spec.loader)
    return spec


class _Imported(types.ModuleType):
    """A module that is imported at the first use of an attribute."""

    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)


class _Class(type):
    """The class of stand-ins for pandas' classes: nothing is an instance before the program has imported pandas."""

    def __instancecheck__(cls, instance):
        pandas = sys.modules.get("pandas")
        return pandas is not None and isinstance(instance, getattr(pandas, cls.__name__))


class Hidden:
    """Blocks imports of `names` that did not happen before, so that a module of Keras does without them."""

    def __init__(self, *names):
        self.names = [name for name in names if name not in sys.modules]

    def __enter__(self):
        sys.modules.update(dict.fromkeys(self.names))

    def __exit__(self, *exc):
        for name in self.names:
            del sys.modules[name]


def _know_frames(module):
    if module.pandas is None and importlib.util.find_spec("pandas"):
        classes = {name: _Class(name, (), {}) for name in ("Series", "DataFrame")}
        module.pandas = types.SimpleNamespace(**classes)
        module.ARRAY_TYPES += tuple(classes.values())


def _plot_later(module):
    if importlib.util.find_spec("matplotlib"):
        for attribute, name in (("plt", "matplotlib.pyplot"), ("patches", "matplotlib.patches")):
            if vars(module).get(attribute, module) is None:
                setattr(module, attribute, _Imported(name))


SEAMS = {
    "keras.src.trainers.data_adapters.array_slicing": _know_frames,
    "keras.src.visualization.plot_bounding_box_gallery": _plot_later,
    "keras.src.visualization.plot_image_gallery": _plot_later,
}
