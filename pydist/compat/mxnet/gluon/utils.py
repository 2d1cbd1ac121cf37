"""Data for several contexts, and the norm of gradients."""

import math
import warnings

from pydist.compat.mxnet._base import absent
from pydist.compat.mxnet.ndarray import ndarray as nd


def split_data(data, num_slice, batch_axis=0, even_split=True):
    """Parts of an array along batch_axis. Raises ValueError if even_split and the sizes would differ."""
    size = data.shape[batch_axis]
    step, more = divmod(size, num_slice)
    if not step or (even_split and more):
        raise ValueError(f"split_data: axis {batch_axis} of shape {data.shape} into {num_slice} parts (expected a "
                         "multiple, or even_split=False)")  # fmt: skip
    ends = [step * i + min(i, more) for i in range(num_slice + 1)]
    return [data.slice_axis(batch_axis, begin, end).tostype(data.stype) for begin, end in zip(ends, ends[1:])]


def split_and_load(data, ctx_list, batch_axis=0, even_split=True):
    """Parts of an array, one on each context."""
    data = data if isinstance(data, nd.NDArray) else nd.array(data, ctx=ctx_list[0])
    parts = split_data(data, len(ctx_list), batch_axis, even_split) if len(ctx_list) > 1 else [data]
    return [part.as_in_context(ctx) for part, ctx in zip(parts, ctx_list)]


def clip_global_norm(arrays, max_norm, check_isfinite=True):
    """Scales arrays so that their common 2-norm is at most max_norm. Returns the norm: a float, or an array if
    check_isfinite is False."""
    norm = math.sqrt(sum(float((each._t.detach().double() ** 2).sum()) for each in arrays))
    if check_isfinite and not math.isfinite(norm):
        warnings.warn(
            f"clip_global_norm: the norm is {norm}; the arrays may have no finite values any more", stacklevel=2
        )
    scale = max_norm / (norm + 1e-8)
    for each in arrays if not scale >= 1.0 else ():
        each *= scale
    return norm if check_isfinite else nd.array([norm], ctx=arrays[0].context)


def download(url, path=None, **kwargs):
    """Not here."""
    raise absent("gluon.utils.download", "a file that is there")
