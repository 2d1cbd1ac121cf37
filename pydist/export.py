"""PyTorch's export of traced programs, which pydist does not have: every call raises NotImplementedError and names what is
there instead.

>>> import pydist
>>> pydist.export.export(pydist.nn.Linear(1, 1), (pydist.ones(1),))
Traceback (most recent call last):
NotImplementedError: export.export: pydist traces no programs (expected pydist.save of the state_dict, or safetensors)
"""

__all__ = [
    "Dim",
    "ExportedProgram",
    "ExportGraphSignature",
    "draft_export",
    "export",
    "load",
    "register_dataclass",
    "save",
]


def _none(name, instead="pydist.save of the state_dict, or safetensors"):
    raise NotImplementedError(f"export.{name}: pydist traces no programs (expected {instead})")


def export(mod, args, kwargs=None, *, dynamic_shapes=None, strict=False, preserve_module_call_signature=(), **options):
    """Raises NotImplementedError: pydist traces no programs."""
    _none("export")


def draft_export(mod, args, kwargs=None, *, dynamic_shapes=None, strict=False, **options):
    """Raises NotImplementedError: pydist traces no programs."""
    _none("draft_export")


def save(ep, f, *, extra_files=None, **options):
    """Raises NotImplementedError: there are no exported programs."""
    _none("save")


def load(f, *, extra_files=None, **options):
    """Raises NotImplementedError: there are no exported programs."""
    _none("load", "pydist.load, and a model made in Python")


def register_dataclass(cls, **options):
    """Does nothing: nothing is traced through data classes."""


class ExportedProgram:
    """A traced program. pydist never makes one."""

    def __init__(self, *args, **kwargs):
        _none("ExportedProgram")


class ExportGraphSignature(ExportedProgram):
    """The signature of a traced program. pydist never makes one."""


class Dim:
    """A size that an exported program leaves open: its name and limits. `Dim.AUTO`, `Dim.DYNAMIC` and `Dim.STATIC` are
    hints of PyTorch's."""

    AUTO, DYNAMIC, STATIC = "AUTO", "DYNAMIC", "STATIC"

    def __init__(self, name, *, min=None, max=None):
        self.__name__, self.min, self.max = name, min, max
