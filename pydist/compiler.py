"""PyTorch's compiler functions. They are accepted and change nothing: everything runs without compilation."""


def compile(
    model=None,
    *,
    fullgraph=False,
    dynamic=None,
    backend=None,
    mode=None,
    options=None,
    disable=False,
    name=None,
    **more,
):
    """Returns `model`, or without a model a decorator that returns its function. Nothing is compiled: the engine's ops
    are C already."""
    return _same if model is None else model


def _same(fn):
    """Returns the function itself."""
    return fn


def disable(fn=None, recursive=True, **kwargs):
    """Returns `fn`, or a decorator that returns its function."""
    return _same if fn is None else fn


allow_in_graph = assume_constant_result = _same


def is_compiling():
    """False: pydist never compiles."""
    return False


is_dynamo_compiling = is_compiling


def reset():
    """Does nothing: there are no compiled functions."""


def cudagraph_mark_step_begin():
    """Does nothing: pydist records CUDA graphs only where a program asks for it (`pydist.cuda.graphs`)."""
