"""Batches in microbatches, and their results in one again."""

from pydist import _C
from pydist.utils._pytree import tree_flatten

__all__ = ["TensorChunkSpec", "merge_chunks", "split_args_kwargs_into_chunks", "sum_reducer"]


class TensorChunkSpec:
    """Along which dimension a tensor is split and merged.

    >>> from pydist.distributed.pipelining.microbatch import TensorChunkSpec
    >>> TensorChunkSpec.from_tuple((0, 1))
    (TensorChunkSpec(0), TensorChunkSpec(1))
    """

    def __init__(self, split_dim):
        self.split_dim = split_dim

    def __repr__(self):
        return f"TensorChunkSpec({self.split_dim})"

    @staticmethod
    def from_tuple(chunk_dims):
        """A tuple of specs for these dimensions."""
        return tuple(TensorChunkSpec(dim) for dim in chunk_dims)

    @staticmethod
    def from_dict(chunk_dims):
        """A dictionary of specs for these dimensions."""
        return {name: TensorChunkSpec(dim) for name, dim in chunk_dims.items()}


class _Replicate:
    """Each microbatch gets the whole value."""


class _CustomReducer:
    """Merges the values of microbatches by a function of two of them, from init_value on."""

    def __init__(self, init_value, reduce_fn):
        self.init_value, self.reduce_fn = init_value, reduce_fn


class _LossReducer(_CustomReducer):
    pass


sum_reducer = _LossReducer(0.0, lambda a, b: a + b)


def _is_leaf_spec(spec):
    return spec is None or spec is _Replicate or isinstance(spec, (TensorChunkSpec, _Replicate, _CustomReducer))


def _leaf_specs(op, value, spec):
    """The spec of each leaf of the value. A spec may stand for all leaves below it."""
    if _is_leaf_spec(spec):
        return [spec] * len(tree_flatten(value)[0])
    if isinstance(spec, dict) and isinstance(value, dict):
        unknown = set(spec) - set(value)
        if not unknown:
            return [leaf for key in value for leaf in _leaf_specs(op, value[key], spec.get(key))]
        raise ValueError(
            f"{op}: the spec has {sorted(unknown)}, the value has {sorted(value)} (expected names of the value)"
        )
    if isinstance(spec, (list, tuple)) and isinstance(value, (list, tuple)):
        if len(spec) == len(value):
            return [leaf for v, s in zip(value, spec, strict=True) for leaf in _leaf_specs(op, v, s)]
        raise ValueError(f"{op}: the spec has {len(spec)} entries, the value {len(value)} (expected as many)")
    raise TypeError(
        f"{op}: the spec of a {type(value).__name__} is {spec!r} (expected None, a TensorChunkSpec, or a tree of them)"
    )


def _dim(op, spec, t):
    dim = 0 if spec is None else spec.split_dim
    if isinstance(dim, int) and -t.ndim <= dim < t.ndim:
        return dim
    raise ValueError(
        f"{op}: split_dim is {dim!r}, the tensor has shape {tuple(t.shape)} (expected one of its dimensions)"
    )


def split_tensor(op, t, spec, chunks):
    """The microbatches of a tensor. They differ by at most one row."""
    dim = _dim(op, spec, t)
    if t.shape[dim] < chunks:
        raise ValueError(
            f"{op}: dimension {dim} of a tensor has size {t.shape[dim]}, for {chunks} microbatches (expected at least one "
            "row for each)"
        )
    rows, sizes = t.shape[dim], []
    for n in range(chunks):
        sizes.append(rows // chunks + (n < rows % chunks))
    return list(t.split(sizes, dim))


def _split_tree(op, tree, spec, chunks):
    leaves, structure = tree_flatten(tree)
    specs = _leaf_specs(op, tree, spec)
    columns = []
    for leaf, how in zip(leaves, specs, strict=True):
        whole = not isinstance(leaf, _C.Tensor) or how is _Replicate or isinstance(how, _Replicate)
        whole = whole or (how is None and leaf.ndim == 0)
        columns.append([leaf] * chunks if whole else split_tensor(op, leaf, how, chunks))
    return [structure.unflatten([column[n] for column in columns]) for n in range(chunks)]


def split_args_kwargs_into_chunks(args, kwargs, chunks, args_chunk_spec=None, kwargs_chunk_spec=None):
    """(one tuple of arguments for each microbatch, one dictionary for each). Tensors are split along dimension 0, or as the
    specs say; all else, and tensors without dimensions, go to each microbatch whole.

    Raises ValueError if a tensor has fewer rows than there are microbatches.

    >>> import pydist
    >>> from pydist.distributed.pipelining.microbatch import split_args_kwargs_into_chunks
    >>> args, kwargs = split_args_kwargs_into_chunks((pydist.arange(5),), {"scale": 2}, 2)
    >>> [a[0].tolist() for a in args], kwargs
    ([[0, 1, 2], [3, 4]], [{'scale': 2}, {'scale': 2}])
    """
    op = "split_args_kwargs_into_chunks"
    if not isinstance(chunks, int) or isinstance(chunks, bool) or chunks < 1:
        raise ValueError(f"{op}: chunks is {chunks!r} (expected a number of 1 or more)")
    return (
        _split_tree(op, tuple(args), args_chunk_spec, chunks),
        _split_tree(op, dict(kwargs or {}), kwargs_chunk_spec, chunks),
    )


def _merge(op, values, how):
    first = values[0]
    if isinstance(how, _CustomReducer):
        total = how.init_value
        for value in values:
            total = how.reduce_fn(total, value)
        return total
    if how is _Replicate or isinstance(how, _Replicate) or not isinstance(first, _C.Tensor):
        return first
    if first.ndim == 0 and how is None:
        return _C.stack(list(values))
    return _C.cat(list(values), _dim(op, how, first))


def merge_chunks(chunks, chunk_spec=None):
    """The value of the batch from those of its microbatches: tensors are joined along dimension 0, or as the spec says; of
    other values the first one is taken.

    >>> import pydist
    >>> from pydist.distributed.pipelining.microbatch import merge_chunks
    >>> merge_chunks([(pydist.ones(2), "a"), (pydist.zeros(1), "a")])
    (tensor([1., 1., 0.]), 'a')
    """
    op = "merge_chunks"
    if not chunks:
        raise ValueError(f"{op}: chunks is {chunks!r} (expected at least one)")
    leaves, structure = tree_flatten(chunks[0])
    specs = _leaf_specs(op, chunks[0], chunk_spec)
    rows = [leaves]
    for chunk in chunks[1:]:
        more, other = tree_flatten(chunk)
        if other != structure:
            raise ValueError(
                f"{op}: microbatches have results of different structure: {structure} and {other} (expected one)"
            )
        rows.append(more)
    return structure.unflatten(
        [_merge(op, column, how) for column, how in zip(zip(*rows, strict=True), specs, strict=True)]
    )
