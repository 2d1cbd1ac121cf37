"""parallelize_module: a plan of styles for the modules of a model."""

import warnings
from fnmatch import fnmatchcase

from pydist import _C
from pydist.distributed.tensor._spec import checked_mesh
from pydist.nn.parallel.tensor.style import ParallelStyle

__all__ = ["parallelize_module"]

_OP = "parallelize_module"


def _matches(module, path):
    """The modules that a path leads to; each part of it may be a glob."""
    found = [module]
    for part in path.split(".") if path else ():
        found = [child for one in found for name, child in one.named_children() if fnmatchcase(name, part)]
    return found


def parallelize_module(module, device_mesh=None, parallelize_plan=None, *, src_data_rank=0):
    """Makes a module tensor parallel over the ranks of a mesh, and returns it. All ranks call it.

    `parallelize_plan`: a ParallelStyle for the module itself, or a dictionary with a style for each path of a module below
    it. A part of a path may be a glob ("layers.*.mlp.up"); "" is the module itself. `device_mesh`: of one dimension;
    default: that of the innermost `with mesh:`. `src_data_rank`: the rank of the mesh whose values of the parameters all
    take; None: each rank takes its part of its own values, and nothing is sent. From now on dropout of plain tensors has the
    same masks on all ranks of the mesh, which have the same activations, if they have drawn equally often.

    Raises ValueError for a mesh of several dimensions and for a plan with paths that lead to no module; it names all of
    these, and no module has changed then. (PyTorch warns, and skips them.) Raises TypeError for a plan that is something
    else. Styles raise NotImplementedError for modules that they do not know.

    >>> import pydist
    >>> from pydist.distributed.tensor import init_device_mesh
    >>> from pydist.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    >>> model = parallelize_module(pydist.nn.Linear(4, 8), init_device_mesh("cpu", (1,)), ColwiseParallel())
    >>> type(model.weight).__name__
    'DTensorParameter'
    """
    mesh = checked_mesh(device_mesh, _OP)
    if mesh.ndim != 1:
        raise ValueError(
            f"{_OP}: {mesh!r} has {mesh.ndim} dimensions (expected 1: take a part of it, such as mesh['tp'])"
        )
    if parallelize_plan is None:
        warnings.warn(f"{_OP}: got no parallelize_plan, so nothing changes (expected a style or a plan)", stacklevel=2)
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan = {"": parallelize_plan}
    if not isinstance(parallelize_plan, dict):
        raise TypeError(
            f"{_OP}: parallelize_plan is {type(parallelize_plan).__name__} (expected a ParallelStyle, or a dictionary of them)"
        )
    found = []
    for path, style in parallelize_plan.items():
        if not isinstance(path, str) or not isinstance(style, ParallelStyle):
            raise TypeError(f"{_OP}: the plan has {path!r}: {type(style).__name__} (expected a str: a ParallelStyle)")
        found.append((path, style, _matches(module, path)))
    missing = [path for path, _, modules in found if not modules]
    if missing:
        raise ValueError(
            f"{_OP}: no module of {type(module).__name__} is called {', '.join(map(repr, missing))} (expected paths of "
            "modules below it, such as those of named_modules())"
        )
    if mesh.get_coordinate() is not None:
        _C._rng_shard(mesh._first_rank)
    for _, style, modules in found:
        style.src_data_rank = src_data_rank
        for one in modules:
            made = style._apply(one, mesh)
            if one is module:
                module = made
    return module
