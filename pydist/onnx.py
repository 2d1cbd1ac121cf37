"""ONNX export, which pydist does not have: `export` raises NotImplementedError and names what is there instead."""


def export(model, args=(), f=None, *, kwargs=None, **options):
    """Raises NotImplementedError.

    >>> import pydist
    >>> pydist.onnx.export(pydist.nn.Linear(1, 1), (pydist.ones(1),), "model.onnx")
    Traceback (most recent call last):
    NotImplementedError: onnx.export: pydist traces no programs (expected pydist.save of the state_dict: load it where ONNX is made)
    """
    raise NotImplementedError(
        "onnx.export: pydist traces no programs (expected pydist.save of the state_dict: load it where ONNX is made)"
    )


def is_in_onnx_export():
    """False: pydist exports nothing to ONNX."""
    return False


def __getattr__(name):
    raise AttributeError(f"pydist has no onnx.{name}: export to ONNX is not supported", name=name)
