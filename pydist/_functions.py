"""Functions of tensors that are made of other ops, and the names under which PyTorch has them: as functions of pydist, as
methods of Tensor, or both. What they are made of gives the gradients."""

import math
from itertools import accumulate as _running

from pydist import _C
from pydist._C import Tensor

__all__ = []


def _function(f):
    __all__.append(f.__name__)
    return f


def _method(f):
    setattr(Tensor, f.__name__, f)
    return f


def _both(f):
    return _method(_function(f))


def _in_place(f):
    """The method f_, which writes f's result into the tensor."""

    def write(self, *args, **kwargs):
        kept = self.clone() if self.requires_grad else self  # what the gradient may read
        return self.copy_(f(kept, *args, **kwargs))

    write.__name__ = write.__qualname__ = f.__name__ + "_"
    write.__doc__ = f"{f.__name__}, in place."
    setattr(Tensor, write.__name__, write)
    return f


def _axis(name, dim, ndim):
    """dim counted from the front."""
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise IndexError(f"{name}: dimension {dim} is out of range (expected {-max(ndim, 1)} to {max(ndim, 1) - 1})")
    return dim % max(ndim, 1)


def _tuple(v):
    return tuple(v) if isinstance(v, (tuple, list)) else (v,)


def _varargs(v):
    return _tuple(v[0]) if len(v) == 1 else tuple(v)


# Pieces.


@_both
def narrow(input, dim, start, length):
    """The view of input's elements start to start + length along dim."""
    size = input.shape[_axis("narrow", dim, input.dim())]
    start = int(start) + (size if start < 0 else 0)
    if length < 0 or start < 0 or start + length > size:
        raise IndexError(f"narrow: start {start} and length {length} go beyond the size {size} of dimension {dim}")
    return _C.slice(input, dim, start, start + length)


@_both
def split(tensor, split_size_or_sections, dim=0):
    """Views of pieces along dim: of one size, the last smaller if need be, or of the sizes given."""
    dim = _axis("split", dim, tensor.dim())
    size, sizes = tensor.shape[dim], split_size_or_sections
    if not isinstance(sizes, (tuple, list)):
        if sizes < 0 or (sizes == 0 and size):
            raise RuntimeError(f"split: split_size is {sizes} (expected above 0)")
        sizes = [min(sizes, size - at) for at in range(0, size, max(sizes, 1))] or [0]
    elif sum(sizes) != size or min(sizes, default=0) < 0:
        raise RuntimeError(f"split: the sizes {list(sizes)} do not add up to {size}, the size of dimension {dim}")
    return tuple(narrow(tensor, dim, end - n, n) for n, end in zip(sizes, _running(sizes)))


@_both
def chunk(input, chunks, dim=0):
    """At most `chunks` views of equal size along dim, the last smaller if need be."""
    if chunks < 1:
        raise RuntimeError(f"chunk: chunks is {chunks} (expected above 0)")
    size = input.shape[_axis("chunk", dim, input.dim())]
    return split(input, -(-size // chunks), dim) if size else (input,) * chunks


@_both
def tensor_split(input, indices_or_sections, dim=0):
    """Views along dim: as many as given, differing by at most one in size, or cut before each index."""
    size = input.shape[_axis("tensor_split", dim, input.dim())]
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1:
            raise RuntimeError(f"tensor_split: sections is {indices_or_sections} (expected above 0)")
        small, more = divmod(size, indices_or_sections)
        return split(input, [small + (i < more) for i in range(indices_or_sections)], dim)
    cuts = [min(max(i + size if i < 0 else i, 0), size) for i in indices_or_sections]
    return tuple(narrow(input, dim, a, max(b - a, 0)) for a, b in zip([0, *cuts], [*cuts, size]))


@_both
def unbind(input, dim=0):
    """Views at every index of dim, which goes away."""
    if input.dim() == 0:
        raise RuntimeError("unbind: a 0-d tensor has no dimension")
    return tuple(input.select(dim, i) for i in range(input.shape[_axis("unbind", dim, input.dim())]))


@_function
def hstack(tensors):
    """The tensors joined along dimension 1 (of vectors: 0)."""
    tensors = [t.reshape(1) if t.dim() == 0 else t for t in tensors]
    return _C.cat(tensors, 0 if tensors and tensors[0].dim() == 1 else 1)


@_function
def vstack(tensors):
    """The tensors, vectors being rows, joined along dimension 0."""
    return _C.cat([t.reshape(1, -1) if t.dim() < 2 else t for t in tensors], 0)


@_function
def concat(tensors, dim=0):
    """cat."""
    return _C.cat(tensors, dim)


@_function
def concatenate(tensors, dim=0):
    """cat."""
    return _C.cat(tensors, dim)


# Shapes.


@_both
def movedim(input, source, destination):
    """input with the dimensions `source` at the places `destination`, the others in their order."""
    n = input.dim()
    source = [_axis("movedim", d, n) for d in _tuple(source)]
    target = [_axis("movedim", d, n) for d in _tuple(destination)]
    if len(source) != len(target) or len({*source}) < len(source) or len({*target}) < len(target):
        raise RuntimeError(f"movedim: source {source} and destination {target} (expected as many, each once)")
    rest, order = iter([d for d in range(n) if d not in source]), dict(zip(target, source))
    return input.permute([order[d] if d in order else next(rest) for d in range(n)])


@_both
def moveaxis(input, source, destination):
    """movedim."""
    return movedim(input, source, destination)


@_both
def swapaxes(input, axis0, axis1):
    """transpose."""
    return input.transpose(axis0, axis1)


@_both
def swapdims(input, dim0, dim1):
    """transpose."""
    return input.transpose(dim0, dim1)


@_both
def unflatten(input, dim, sizes):
    """Dimension dim split into `sizes`, one of which may be -1."""
    dim = _axis("unflatten", dim, input.dim())
    sizes = list(sizes)
    if -1 in sizes:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = input.shape[dim] // known if known else -1
    if math.prod(sizes) != input.shape[dim]:
        want = input.shape[dim]
        raise RuntimeError(f"unflatten: sizes {sizes} do not multiply to {want}, the size of dimension {dim}")
    return input.reshape(*input.shape[:dim], *sizes, *input.shape[dim + 1 :])


@_method
def repeat(self, *sizes):
    """The tensor repeated sizes[d] times along each dimension; more sizes than dimensions add some in front."""
    sizes = _varargs(sizes)
    lead = len(sizes) - self.dim()
    if lead < 0 or min(sizes, default=0) < 0:
        shape = tuple(self.shape)
        raise RuntimeError(f"repeat: sizes {sizes} for shape {shape} (expected at least as many, none negative)")
    shape = (1,) * lead + tuple(self.shape)
    pairs = self.reshape([n for s in shape for n in (1, s)]) if shape else self
    wide = pairs.expand([n for r, s in zip(sizes, shape) for n in (r, s)]) if shape else pairs
    return wide.reshape([r * s for r, s in zip(sizes, shape)]).clone()


@_both
def tile(input, *dims):
    """repeat, with ones in front of fewer sizes than dimensions."""
    dims = _varargs(dims)
    return repeat(input, *(1,) * (input.dim() - len(dims)), *dims)


@_both
def repeat_interleave(input, repeats, dim=None, *, output_size=None):
    """Every element repeated `repeats` times (a number, or one per element of dim) beside itself; without dim, of the
    flattened tensor."""
    if dim is None:
        input, dim = input.reshape(-1), 0
    n = input.shape[_axis("repeat_interleave", dim, input.dim())]
    counts = repeats.tolist() if isinstance(repeats, Tensor) else repeats
    counts = [counts] * n if isinstance(counts, int) else counts * n if len(counts) == 1 else counts
    if len(counts) != n or min(counts, default=0) < 0:
        got = f"{len(counts)} repeats for {n} elements"
        raise RuntimeError(f"repeat_interleave: {got} (expected one each, none negative)")
    return index_select(input, dim, _C.tensor([i for i, k in enumerate(counts) for _ in range(k)], dtype=_C.int64))


@_both
def roll(input, shifts, dims=None):
    """The elements moved on by shifts along dims, those that leave coming back in front; without dims, of the flattened
    tensor."""
    if dims is None:
        return roll(input.reshape(-1), shifts, 0).reshape(input.shape)
    shifts, dims = _tuple(shifts), _tuple(dims)
    if len(shifts) != len(dims):
        raise RuntimeError(f"roll: {len(shifts)} shifts for {len(dims)} dims")
    for shift, dim in zip(shifts, dims):
        n = input.shape[_axis("roll", dim, input.dim())]
        if n and shift % n:
            input = _C.cat([narrow(input, dim, n - shift % n, shift % n), narrow(input, dim, 0, n - shift % n)], dim)
    return input.clone()


@_both
def fliplr(input):
    """flip along dimension 1."""
    return input.flip((1,))


@_both
def flipud(input):
    """flip along dimension 0."""
    return input.flip((0,))


@_both
def ravel(input):
    """The elements as one row."""
    return input.reshape(-1)


@_both
def broadcast_to(input, size):
    """expand."""
    return input.expand(size)


def _broadcast_shape(name, shapes):
    """What shapes broadcast to."""
    n = max(map(len, shapes), default=0)
    out = [1] * n
    for shape in shapes:
        for d, size in enumerate(shape, n - len(shape)):
            if size != 1 and out[d] not in (1, size):
                raise RuntimeError(f"{name}: the shapes {[tuple(s) for s in shapes]} do not broadcast")
            out[d] = size if out[d] == 1 else out[d]
    return out


@_function
def broadcast_tensors(*tensors):
    """The tensors expanded to their common shape."""
    tensors = _varargs(tensors)
    shape = _broadcast_shape("broadcast_tensors", [t.shape for t in tensors])
    return tuple(t.expand(shape) for t in tensors)


@_function
def meshgrid(*tensors, indexing="ij"):
    """For vectors x, y, ...: X[i, j, ...] = x[i], Y[i, j, ...] = y[j], and so on ("xy": i and j swapped)."""
    tensors = _varargs(tensors)
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f"meshgrid: indexing is {indexing!r} (expected 'ij' or 'xy')")
    n = len(tensors)
    swap = indexing == "xy" and n > 1
    places = [1, 0, *range(2, n)] if swap else range(n)
    shape = [t.numel() for t in (tensors[p] for p in places)]
    return tuple(t.reshape([-1 if d == p else 1 for d in range(n)]).expand(shape) for t, p in zip(tensors, places))


@_both
def diagonal(input, offset=0, dim1=0, dim2=1):
    """The view of the diagonal of dimensions dim1 and dim2, `offset` above the main one, as the last dimension."""
    n = input.dim()
    a, b = _axis("diagonal", dim1, n), _axis("diagonal", dim2, n)
    if a == b or n < 2:
        raise RuntimeError(f"diagonal: dimensions {dim1} and {dim2} of shape {tuple(input.shape)} (expected two)")
    rows, cols = input.shape[a], input.shape[b]
    length = max(min(rows + min(offset, 0), cols - max(offset, 0)), 0)
    rest = [d for d in range(n) if d not in (a, b)]
    skipped = input.stride(b) * offset if offset > 0 else -input.stride(a) * offset
    start = input.storage_offset() + (skipped if length else 0)
    sizes, strides = [input.shape[d] for d in rest], [input.stride(d) for d in rest]
    return input.as_strided([*sizes, length], [*strides, input.stride(a) + input.stride(b)], start)


@_both
def diag(input, diagonal=0):
    """A matrix's diagonal, or the matrix with the vector input on its diagonal."""
    if input.dim() == 2:
        return Tensor.diagonal(input, diagonal).clone()
    if input.dim() != 1:
        raise RuntimeError(f"diag: input has shape {tuple(input.shape)} (expected 1 or 2 dimensions)")
    n, k = input.numel(), abs(diagonal)
    at = _C.arange(n)
    zeros = _C.zeros(n + k, n + k, dtype=input.dtype)
    return _C.index_put(zeros, [at + max(-diagonal, 0), at + max(diagonal, 0)], input)


@_both
def trace(input):
    """The sum of a matrix's diagonal."""
    if input.dim() != 2:
        raise RuntimeError(f"trace: input has shape {tuple(input.shape)} (expected a matrix)")
    return diagonal(input).sum()


def _triangle(input, k, upper):
    if input.dim() < 2:
        name, shape = "triu" if upper else "tril", tuple(input.shape)
        raise RuntimeError(f"{name}: input has shape {shape} (expected at least 2 dimensions)")
    above = _C.arange(input.shape[-1]) - _C.arange(input.shape[-2]).unsqueeze(1)
    keep = above >= k if upper else above <= k
    return _C.where(keep, input, False) if input.dtype is _C.bool else _C.where(keep, input, 0)


@_in_place
@_both
def tril(input, diagonal=0):
    """The matrices input with zeros above the diagonal that lies `diagonal` above the main one."""
    return _triangle(input, diagonal, False)


@_in_place
@_both
def triu(input, diagonal=0):
    """The matrices input with zeros below the diagonal that lies `diagonal` above the main one."""
    return _triangle(input, diagonal, True)

# By index.


def _grid(index, dim):
    """The tensors that address, in a tensor of index's dims, the elements that index chooses along dim."""
    n = index.dim()
    where = [_C.arange(s).reshape([-1 if k == d else 1 for k in range(n)]) for d, s in enumerate(index.shape)]
    if n:
        where[dim] = index
    return where


def _along(name, input, dim, index):
    dim = _axis(name, dim, input.dim())
    if index.dtype not in (_C.int64, _C.int32):
        raise TypeError(f"{name}: index is {index.dtype} (expected int64)")
    if index.dim() != 1 and index.dim() != 0:
        raise IndexError(f"{name}: index has shape {tuple(index.shape)} (expected 1 dimension)")
    if index.numel() and not (0 <= index.min().item() and index.max().item() < input.shape[dim]):
        raise IndexError(f"{name}: an index is out of range for dimension {dim} of size {input.shape[dim]}")
    return dim, index.reshape(-1)


@_both
def index_select(input, dim, index):
    """input's slices at index (int64, one dimension) along dim."""
    if input.dim() == 0:
        return input.reshape(1)[index].reshape(())
    dim, index = _along("index_select", input, dim, index)
    return input[(slice(None),) * dim + (index,)]


@_both
def take_along_dim(input, indices, dim=None):
    """gather; without dim, of the flattened tensors."""
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    others = [[*t.shape[:dim], 1, *t.shape[dim:][1:]] for t in (input, indices)]
    shape = _broadcast_shape("take_along_dim", others)
    both = [[*shape[:dim], t.shape[dim], *shape[dim:][1:]] for t in (input, indices)]
    return input.expand(both[0]).gather(dim, indices.expand(both[1]))


def _source(name, input, index, value):
    """value in input's dtype, as far as index reaches."""
    if not isinstance(value, Tensor):
        return _C.tensor(value, dtype=input.dtype)
    if value.dtype is not input.dtype:
        raise RuntimeError(f"{name}: src is {value.dtype}, input {input.dtype} (expected the same)")
    return value[tuple(slice(0, n) for n in index.shape)] if value.dim() else value


def _check_scatter(name, input, dim, index, src):
    dim = _axis(name, dim, input.dim())
    if index.dtype is not _C.int64:
        raise RuntimeError(f"{name}: index is {index.dtype} (expected int64)")
    if index.numel() == 0:
        return dim
    pairs = enumerate(zip(index.shape, input.shape))
    fits = index.dim() == input.dim() and all(d == dim or n <= m for d, (n, m) in pairs)
    if isinstance(src, Tensor) and src.dim():
        fits = fits and src.dim() == index.dim() and all(n <= m for n, m in zip(index.shape, src.shape))
    if not fits:
        other = f", src {tuple(src.shape)}" if isinstance(src, Tensor) else ""
        shapes = f"input has shape {tuple(input.shape)}, index {tuple(index.shape)}{other}"
        raise RuntimeError(f"{name}: {shapes} (expected index to fit into both)")
    if index.min().item() < 0 or index.max().item() >= (input.shape[dim] if input.dim() else 1):
        raise RuntimeError(f"{name}: an index is out of range for dimension {dim} of shape {tuple(input.shape)}")
    return dim


def _scatter(name, self, dim, index, value, accumulate):
    dim = _check_scatter(name, self, dim, index, value)
    if index.numel() == 0:
        return self
    target = self.view(1) if self.dim() == 0 else self
    if self.dim() == 0:
        index = index.reshape(1)
    target.index_put_(_grid(index, dim), _source(name, self, index, value), accumulate)
    return self


@_method
def scatter_(self, dim, index, src=None, *, value=None, reduce=None):
    """self[index[i][j]][j] = src[i][j] for dim 0, and so on; src may be a number. reduce "add": +=."""
    if reduce not in (None, "add"):
        raise NotImplementedError(f"scatter_: reduce={reduce!r} is not supported")
    return _scatter("scatter", self, dim, index, value if src is None else src, reduce == "add")


@_both
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    """scatter_ on a copy: out[index[i][j]][j] = src[i][j] for dim 0, and so on; src may be a number. reduce "add": +=."""
    return scatter_(input.clone(), dim, index, src, value=value, reduce=reduce)


@_method
def scatter_add_(self, dim, index, src):
    """self[index[i][j]][j] += src[i][j] for dim 0, and so on."""
    return _scatter("scatter_add", self, dim, index, src, True)


@_both
def scatter_add(input, dim, index, src):
    """A copy of input with out[index[i][j]][j] += src[i][j] for dim 0, and so on."""
    return scatter_add_(input.clone(), dim, index, src)


@_method
def index_add_(self, dim, index, source, *, alpha=1):
    """self's slice index[i] along dim += alpha * source's slice i."""
    dim, index = _along("index_add", self, dim, index)
    self.index_put_([None] * dim + [index], source if alpha == 1 else source * alpha, True)
    return self


@_both
def index_add(input, dim, index, source, *, alpha=1):
    """index_add_ on a copy."""
    return index_add_(input.clone(), dim, index, source, alpha=alpha)


@_method
def index_copy_(self, dim, index, source):
    """self's slice index[i] along dim = source's slice i."""
    dim, index = _along("index_copy", self, dim, index)
    self.index_put_([None] * dim + [index], source)
    return self


@_both
def index_copy(input, dim, index, source):
    """index_copy_ on a copy."""
    return index_copy_(input.clone(), dim, index, source)


@_method
def index_fill_(self, dim, index, value):
    """self's slices at index along dim = value."""
    dim, index = _along("index_fill", self, dim, index)
    self.index_put_([None] * dim + [index], _source("index_fill", self, index, value))
    return self


@_both
def index_fill(input, dim, index, value):
    """index_fill_ on a copy."""
    return index_fill_(input.clone(), dim, index, value)


@_in_place
@_both
def masked_fill(input, mask, value):
    """value (a number or 0-d tensor) where mask (bool) is True, else input."""
    if mask.dtype is not _C.bool:
        raise RuntimeError(f"masked_fill: mask is {mask.dtype} (expected bool)")
    if isinstance(value, Tensor) and value.dim():
        raise RuntimeError(f"masked_fill: value has shape {tuple(value.shape)} (expected a number)")
    value = value.to(input.dtype) if isinstance(value, Tensor) else _C.tensor(value, dtype=input.dtype)
    return _C.where(mask, value, input)


@_both
def masked_select(input, mask):
    """The elements where mask (bool, broadcast) is True, as one row."""
    input, mask = broadcast_tensors(input, mask)
    return input.reshape(-1)[mask.reshape(-1)]


@_both
def nonzero(input, *, as_tuple=False):
    """The positions of nonzero elements [how many, dims] (int64), in order; as_tuple: a row per dimension."""
    flat = _C.arange(input.numel())[(input != 0).reshape(-1)]
    places, step = [], input.numel()
    for size in input.shape:
        step = step // size if size else 1
        places.append(_C.remainder(_C.floor_divide(flat, max(step, 1)), max(size, 1)))
    if as_tuple:
        return tuple(places) or (flat,)
    return _C.stack(places, 1) if places else _C.zeros(flat.numel(), 0, dtype=_C.int64)


@_both
def count_nonzero(input, dim=None):
    """How many elements are not 0, over dim or all."""
    return (input != 0).sum(dim)


@_both
def bincount(input, weights=None, minlength=0):
    """How often (or with what total weight) each number 0, 1, ... stands in the vector input."""
    if input.dim() != 1 or input.is_floating_point() or (input.numel() and input.min().item() < 0):
        raise RuntimeError("bincount: input must be a vector of integers, none negative")
    size = max(minlength, input.max().item() + 1 if input.numel() else 0)
    if weights is None:
        weights = _C.ones(input.numel(), dtype=_C.int64)
    elif weights.dtype not in (_C.float32, _C.float64):
        weights = weights.double()
    return _C.zeros(size, dtype=weights.dtype).index_put_([input.long()], weights, True)


@_both
def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """The different elements in ascending order; where asked for, which of them each element is, and how often each
    stands."""
    if dim is not None:
        raise NotImplementedError("unique: dim is not supported")
    values, order = input.reshape(-1).sort(stable=True)
    first = _C.ones(values.numel(), dtype=_C.bool)
    if values.numel() > 1:
        first = _C.cat([first[:1], values[1:] != values[:-1]])
    result = [values[first]]
    if return_inverse:
        inverse = _C.index_put(_C.zeros(order.numel(), dtype=_C.int64), [order], first.cumsum(0) - 1)
        result.append(inverse.reshape(input.shape))
    if return_counts:
        starts = _C.cat([_C.arange(values.numel())[first], _C.tensor([values.numel()], dtype=_C.int64)])
        result.append(starts[1:] - starts[:-1])
    return result[0] if len(result) == 1 else tuple(result)


@_both
def median(input, dim=None, keepdim=False):
    """The element in the middle (of an even number, the lower one); along dim: (values, indices)."""
    if dim is None:
        flat = input.reshape(-1)
        if not flat.numel():
            return _C.full((), math.nan, dtype=input.dtype)
        nans = (flat != flat).any().item()
        return flat.sort().values.select(0, flat.numel() - 1 if nans else (flat.numel() - 1) // 2)
    values, order = input.sort(dim)
    if input.dim():
        middle = _C.tensor([(input.shape[dim] - 1) // 2], dtype=_C.int64)
        values, order = values.index_select(dim, middle), order.index_select(dim, middle)
        if not keepdim:
            values, order = values.squeeze(dim), order.squeeze(dim)
    return values, order


@_both
def multinomial(input, num_samples, replacement=False, *, generator=None):
    """num_samples indices (int64) per row of weights input[n] or [rows, n], drawn in proportion to them."""
    rows = input.reshape(-1, input.shape[-1]) if input.dim() in (1, 2) and input.is_floating_point() else None
    if rows is None or num_samples < 1 or (not replacement and num_samples > input.shape[-1]):
        got = f"{num_samples} samples of {input.dtype} of shape {tuple(input.shape)}"
        raise RuntimeError(f"multinomial: {got} (expected floating weights [n] or [rows, n], no more samples than n)")
    if not ((rows >= 0) & (rows < math.inf)).all().item() or (rows.sum(-1) <= 0).any().item():
        raise RuntimeError("multinomial: weights must be finite, none negative, their sum above 0")
    if not replacement:
        waits = -_C.empty(*rows.shape, dtype=rows.dtype).uniform_().clamp(1e-30).log().clamp(max=-1e-30)
        drawn = (rows / waits).topk(num_samples).indices  # exponential clocks: the fastest first
    else:
        edges = rows.double().cumsum(-1)
        at = _C.empty(rows.shape[0], num_samples, dtype=_C.float64).uniform_() * edges[:, -1:]
        drawn = (edges.unsqueeze(1) <= at.unsqueeze(-1)).sum(-1).clamp(max=input.shape[-1] - 1)
    return drawn.reshape(num_samples) if input.dim() == 1 else drawn


# Elementwise.


@_in_place
@_both
def clip(input, min=None, max=None):
    """clamp."""
    return _C.clamp(input, min, max)


@_in_place
@_both
def clamp_min(input, min):
    """input, at least min."""
    return _C.clamp(input, min)


@_in_place
@_both
def clamp_max(input, max):
    """input, at most max."""
    return _C.clamp(input, None, max)


@_both
def isnan(input):
    """True where input is not a number."""
    return input != input


@_both
def isinf(input):
    """True where input is infinite."""
    return input.abs() == math.inf if input.is_floating_point() else _C.zeros(*input.shape, dtype=_C.bool)


@_both
def isfinite(input):
    """True where input is neither infinite nor NaN."""
    return input.abs() < math.inf if input.is_floating_point() else _C.ones(*input.shape, dtype=_C.bool)


@_both
def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """True where |input - other| <= atol + rtol * |other|."""
    near = (input == other) | (((input - other).abs() <= atol + rtol * other.abs()) & isfinite(other))
    return near | (isnan(input) & isnan(other)) if equal_nan else near


@_both
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether isclose holds everywhere (a Python bool)."""
    return isclose(input, other, rtol, atol, equal_nan).all().item()


@_both
def equal(input, other):
    """Whether both have the same shape and elements (a Python bool)."""
    return tuple(input.shape) == tuple(other.shape) and (input == other).all().item()


@_both
def nan_to_num(input, nan=0.0, posinf=None, neginf=None):
    """input with numbers for NaN and the infinities (the largest finite ones)."""
    if not input.is_floating_point():
        return input.clone()
    largest = {_C.float64: 1.7976931348623157e308, _C.float32: 3.4028234663852886e38, _C.float16: 65504.0}
    most = largest.get(input.dtype, 3.3895313892515355e38)
    input = masked_fill(input, isnan(input), nan)
    input = masked_fill(input, input == math.inf, most if posinf is None else posinf)
    return masked_fill(input, input == -math.inf, -most if neginf is None else neginf)


@_both
def frac(input):
    """input without its whole part."""
    return input - input.trunc()


@_both
def rsub(input, other, alpha=1):
    """other - alpha * input."""
    return other - alpha * input


@_both
def exp2(input):
    """2 ** input."""
    return 2.0**input


def _alias(name, of):
    f = getattr(_C, of)
    globals()[name] = f
    __all__.append(name)
    setattr(Tensor, name, f)
    if hasattr(Tensor, of + "_"):
        setattr(Tensor, name + "_", getattr(Tensor, of + "_"))


for _pair in (
    "multiply=mul divide=div subtract=sub true_divide=div absolute=abs negative=neg greater=gt less=lt greater_equal=ge "
    "less_equal=le not_equal=ne fix=trunc"
).split():
    _alias(*_pair.split("="))


# Reductions.


def _count(input, dim):
    if dim is None or dim == ():
        return input.numel()
    return math.prod(input.shape[_axis("var", d, input.dim())] if input.dim() else 1 for d in _tuple(dim))


def _correction(dim, unbiased, correction):
    """var(x, unbiased) has the flag in dim's place."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return dim, (0 if unbiased is False else 1) if correction is None else correction


@_both
def var(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """The mean square distance from the mean over dim (all without dim), n - correction (1; unbiased=False: 0) standing
    for n."""
    dim, correction = _correction(dim, unbiased, correction)
    away = input - input.mean(dim, keepdim=True)
    n = _count(input, dim) - correction
    return (away * away).sum(dim, keepdim=keepdim) / (n if n > 0 else math.nan)


def _root(square):
    """The square root, whose gradient at 0 is 0."""
    zero = square == 0
    return masked_fill(masked_fill(square, zero, 1.0).sqrt(), zero, 0.0)


@_both
def std(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """The square root of var."""
    return var(input, dim, unbiased, keepdim, correction=correction).sqrt()


@_both
def var_mean(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """(var, mean)."""
    over = None if isinstance(dim, bool) else dim
    return var(input, dim, unbiased, keepdim, correction=correction), input.mean(over, keepdim=keepdim)


@_both
def std_mean(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """(std, mean)."""
    over = None if isinstance(dim, bool) else dim
    return std(input, dim, unbiased, keepdim, correction=correction), input.mean(over, keepdim=keepdim)


@_both
def norm(input, p="fro", dim=None, keepdim=False, dtype=None):
    """sum(|x| ** p) ** (1 / p) over dim (all without dim); p "fro" is 2; infinite: the largest |x|, 0: how many are not
    0."""
    if p in (None, "fro"):
        p = 2
    if not isinstance(p, (int, float)):
        raise RuntimeError(f"norm: p is {p!r} (expected a number or 'fro')")
    input = input if dtype is None else input.to(dtype)
    if not input.is_floating_point():
        raise RuntimeError(f"norm: input is {input.dtype} (expected a floating dtype)")
    if p == 2:
        return _root((input * input).sum(dim, keepdim=keepdim))
    size = input.abs()
    if p == 1:
        return size.sum(dim, keepdim=keepdim)
    if math.isinf(p):
        return size.amax(dim, keepdim=keepdim) if p > 0 else size.amin(dim, keepdim=keepdim)
    if p == 0:
        return (input != 0).to(input.dtype).sum(dim, keepdim=keepdim)
    return (size**p).sum(dim, keepdim=keepdim) ** (1.0 / p)


@_both
def logsumexp(input, dim, keepdim=False):
    """log(sum(exp(input))) over dim, without overflow."""
    top = input.detach().amax(dim, keepdim=True) if input.numel() else input.detach().sum(dim, keepdim=True)
    top = masked_fill(top, isinf(top), 0.0)
    total = (input - top).exp().sum(dim, keepdim=keepdim).log()
    return total + (top if keepdim else top.reshape(total.shape))


@_both
def aminmax(input, *, dim=None, keepdim=False):
    """(amin, amax)."""
    return input.amin(dim, keepdim=keepdim), input.amax(dim, keepdim=keepdim)


# Products.


def _want(name, tensor, ndim):
    if tensor.dim() != ndim:
        raise RuntimeError(f"{name}: got shape {tuple(tensor.shape)} (expected {ndim} dimensions)")


@_both
def mm(input, mat2):
    """The product of two matrices."""
    _want("mm", input, 2), _want("mm", mat2, 2)
    return _C.matmul(input, mat2)


@_both
def mv(input, vec):
    """The product of a matrix and a vector."""
    _want("mv", input, 2), _want("mv", vec, 1)
    return _C.matmul(input, vec)


@_both
def dot(input, tensor):
    """The sum of products of two vectors."""
    _want("dot", input, 1), _want("dot", tensor, 1)
    return _C.matmul(input, tensor) if input.is_floating_point() else (input * tensor).sum()


@_both
def outer(input, vec2):
    """out[i, j] = input[i] * vec2[j]."""
    _want("outer", input, 1), _want("outer", vec2, 1)
    return input.unsqueeze(1) * vec2


@_both
def ger(input, vec2):
    """outer."""
    return outer(input, vec2)


def _scaled(input, product, beta, alpha):
    product = product if alpha == 1 else product * alpha
    return product.clone() if beta == 0 else (input if beta == 1 else input * beta) + product


@_in_place
@_both
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """beta * input + alpha * mat1 @ mat2."""
    return _scaled(input, mm(mat1, mat2), beta, alpha)


@_in_place
@_both
def addmv(input, mat, vec, *, beta=1, alpha=1):
    """beta * input + alpha * mat @ vec."""
    return _scaled(input, mv(mat, vec), beta, alpha)


@_in_place
@_both
def addr(input, vec1, vec2, *, beta=1, alpha=1):
    """beta * input + alpha * outer(vec1, vec2)."""
    return _scaled(input, outer(vec1, vec2), beta, alpha)


@_in_place
@_both
def baddbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """beta * input + alpha * bmm(batch1, batch2)."""
    return _scaled(input, _C.bmm(batch1, batch2), beta, alpha)


@_both
def inner(input, other):
    """The sums of products over the last dimensions."""
    return input * other if 0 in (input.dim(), other.dim()) else tensordot(input, other, ([-1], [-1]))


@_function
def tensordot(a, b, dims=2):
    """The sums of products over a's last and b's first `dims` dimensions, or over the two lists of dimensions given."""
    if isinstance(dims, int):
        dims = (range(a.dim() - dims, a.dim()), range(dims))
    dims = [list(ds) if isinstance(ds, range) else _tuple(ds) for ds in dims]
    da, db = ([_axis("tensordot", d, t.dim()) for d in ds] for ds, t in zip(dims, (a, b)))
    if len(da) != len(db) or any(a.shape[i] != b.shape[j] for i, j in zip(da, db)):
        got = f"dims {da} of {tuple(a.shape)} and {db} of {tuple(b.shape)}"
        raise RuntimeError(f"tensordot: {got} (expected equal sizes)")
    fa, fb = [d for d in range(a.dim()) if d not in da], [d for d in range(b.dim()) if d not in db]
    k, shape = math.prod(a.shape[d] for d in da), [a.shape[d] for d in fa] + [b.shape[d] for d in fb]
    left = a.permute(fa + da).reshape(math.prod(shape[: len(fa)]), k)
    return (left @ b.permute(db + fb).reshape(k, math.prod(shape[len(fa) :]))).reshape(shape)


def _subscripts(equation, operands):
    """A string per operand and one for the result, one character per dimension; "..." becomes characters of its own."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise RuntimeError(f"einsum: {equation!r} has {len(parts)} operands, got {len(operands)}")
    letters = "".join(parts).replace("...", "") + right.replace("...", "")
    if not (letters.isascii() and letters.isalpha() or not letters):
        raise RuntimeError(f"einsum: {equation!r} (expected letters, commas, '...' and '->')")
    widest = max((t.dim() - len(p.replace("...", "")) for p, t in zip(parts, operands) if "..." in p), default=0)
    dots = "".join(chr(0x100 + i) for i in range(max(widest, 0)))
    full = []
    for p, t in zip(parts, operands):
        extra = t.dim() - len(p.replace("...", ""))
        if extra < 0 or (extra and "..." not in p):
            raise RuntimeError(f"einsum: {p!r} for shape {tuple(t.shape)}")
        full.append(p.replace("...", dots[len(dots) - extra :] if extra else ""))
    if not arrow:
        letters = "".join(full)
        right = dots + "".join(sorted(c for c in {*letters} if letters.count(c) == 1 and c not in dots))
    return full, right.replace("...", dots)


def _contract(a, la, b, lb, keep):
    """The product of two operands, summed over what is not in keep; and its subscripts."""
    size = {c: max(t.shape[i] for t, l in ((a, la), (b, lb)) for i, x in enumerate(l) if x == c) for c in {*la, *lb}}
    for t, letters in ((a, la), (b, lb)):
        for i, c in enumerate(letters):
            if t.shape[i] not in (1, size[c]) or (0 in (t.shape[i],) and size[c] != 0):
                raise RuntimeError(f"einsum: dimension {c!r} has sizes {t.shape[i]} and {size[c]}")
    a, b = (t.expand([size[c] for c in letters]) for t, letters in ((a, la), (b, lb)))
    alone = [i for i, c in enumerate(la) if c not in lb and c not in keep]
    if alone:
        a, la = a.sum(alone), "".join(c for c in la if c in lb or c in keep)
    alone = [i for i, c in enumerate(lb) if c not in la and c not in keep]
    if alone:
        b, lb = b.sum(alone), "".join(c for c in lb if c in la or c in keep)
    batch, inside = [c for c in la if c in lb and c in keep], [c for c in la if c in lb and c not in keep]
    left, right = [c for c in la if c not in lb], [c for c in lb if c not in la]
    count = [math.prod(size[c] for c in group) for group in (batch, left, inside, right)]
    a = a.permute([la.index(c) for c in batch + left + inside]).reshape(count[0], count[1], count[2])
    b = b.permute([lb.index(c) for c in batch + inside + right]).reshape(count[0], count[2], count[3])
    letters = "".join(batch + left + right)
    product = _C.bmm(a, b) if a.is_floating_point() else (a.unsqueeze(3) * b.unsqueeze(1)).sum(2)
    return product.reshape([size[c] for c in letters]), letters


@_function
def einsum(equation, *operands):
    """Sums of products by Einstein's convention: "ij,jk->ik" is the product of matrices, "..." any dimensions.

    >>> import pydist
    >>> pydist.einsum("ij,j->i", pydist.tensor([[1.0, 2.0], [3.0, 4.0]]), pydist.tensor([1.0, 1.0])).tolist()
    [3.0, 7.0]
    """
    operands = list(_varargs(operands))
    parts, out = _subscripts(equation, operands)
    if len({*out}) < len(out) or not {*out} <= {*"".join(parts)}:
        raise RuntimeError(f"einsum: the result {out!r} of {equation!r} (expected the operands' subscripts, each once)")
    for k, letters in enumerate(parts):
        while len({*letters}) < len(letters):  # a repeated subscript is a diagonal
            c = next(c for c in letters if letters.count(c) > 1)
            i, j = letters.index(c), letters.rindex(c)
            operands[k] = diagonal(operands[k], 0, i, j)
            letters = "".join(x for n, x in enumerate(letters) if n not in (i, j)) + c
        parts[k] = letters
    result, letters = operands[0], parts[0]
    for k in range(1, len(operands)):
        result, letters = _contract(result, letters, operands[k], parts[k], {*out, *"".join(parts[k + 1 :])})
    rest = [i for i, c in enumerate(letters) if c not in out]
    if rest:
        result, letters = result.sum(rest), "".join(c for c in letters if c in out)
    return result.permute([letters.index(c) for c in out])
