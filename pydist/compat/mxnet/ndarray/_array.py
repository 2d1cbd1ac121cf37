"""NDArray: a pydist tensor with MXNet's behaviour, and what turns functions on tensors into functions on NDArrays."""

import functools
import math
import weakref

import numpy as np

import pydist
from pydist.compat.mxnet._base import Context, MXNetError, TO_NUMPY, current_context, dtype_of, shape_of, state


def _collect(ref, leaf):
    """What autograd calls when a marked array's gradient is complete: moves it to the array that the user knows."""
    array, new, leaf.grad = ref(), leaf.grad, None
    if array is None or array._grad is None:
        return
    with pydist.no_grad():
        held = array._grad._t
        held.add_(new) if array._req == "add" else held.copy_(new)
    array._fresh_grad = True


class NDArray:
    """An array on a context. Its operators compute with scalars and with arrays of the same dtype, and give arrays of
    that dtype: comparisons, too. There are no arrays of zero dims: a whole sum has shape (1,)."""

    __slots__ = ("_t", "_ctx", "_grad", "_req", "_fresh_grad", "__weakref__")
    __array_priority__ = 1000.0
    __hash__ = object.__hash__
    stype = "default"

    def __init__(self, tensor, ctx=None):
        self._t, self._ctx, self._grad, self._req, self._fresh_grad = (
            tensor,
            ctx or current_context(),
            None,
            None,
            False,
        )

    # ---- what it is

    shape = property(lambda self: tuple(self._t.shape), doc="The sizes.")
    size = property(lambda self: self._t.numel(), doc="How many elements it has.")
    ndim = property(lambda self: self._t.dim(), doc="How many dims it has.")
    dtype = property(lambda self: TO_NUMPY[self._t.dtype], doc="NumPy's type.")
    context = ctx = property(lambda self: self._ctx, doc="Where it is.")
    grad = property(lambda self: self._grad, doc="The gradient that attach_grad() made room for, or None.")
    T = property(lambda self: self.transpose(), doc="The dims in the opposite order.")

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return f"\n{self.asnumpy()}\n<{type(self).__name__} {'x'.join(map(str, self.shape))} @{self._ctx}>"

    def __bool__(self):
        if self.size > 1:
            raise ValueError(f"bool: got an NDArray of {self.size} elements (expected one; more are ambiguous)")
        return bool(self.size and self._t.item())

    def asnumpy(self):
        """A copy as a NumPy array."""
        return self._t.detach().cpu().numpy().copy()

    def __array__(self, dtype=None, copy=None):
        return self.asnumpy() if dtype is None else self.asnumpy().astype(dtype)

    def asscalar(self):
        """The only element. Raises ValueError if there are more."""
        if self.size != 1:
            raise ValueError(f"asscalar: got an array of shape {self.shape} (expected one element)")
        return self.asnumpy().reshape(-1)[0]

    item = asscalar

    def __float__(self):
        return float(self.asscalar())

    def __int__(self):
        return int(self.asscalar())

    def __index__(self):
        if self._t.dtype.is_floating_point or self.size != 1:
            raise TypeError(f"index: got {self.dtype.__name__} of shape {self.shape} (expected one integer)")
        return int(self)

    def wait_to_read(self):
        """Nothing: results are complete."""

    wait_to_write = wait_to_read

    # ---- copies

    def copy(self):
        """A copy on the same context."""
        return self.copyto(self._ctx)

    def copyto(self, other):
        """Copies into `other`, or makes a copy on the context `other`."""
        if isinstance(other, Context):
            made = run(lambda t: t.to(other.device, copy=True), self).tostype(self.stype)
            made._ctx = other
            return made
        if not isinstance(other, NDArray) or other.shape != self.shape:
            got = other.shape if isinstance(other, NDArray) else type(other).__name__
            raise ValueError(f"copyto: got {got} (expected a Context, or an NDArray of shape {self.shape})")
        fill(other, self)
        return other

    def as_in_context(self, context):
        """This array, if it is on `context`, otherwise a copy there."""
        return self if context == self._ctx else self.copyto(context)

    def astype(self, dtype, copy=True):
        """The values in another dtype."""
        dtype = dtype_of(dtype)
        return self if not copy and dtype is self._t.dtype else run(lambda t: t.to(dtype), self)

    def tostype(self, stype):
        """The array with another storage type: default, row_sparse or csr. The memory of all of them is dense."""
        if stype not in _STYPES or (stype == "csr" and self.ndim != 2):
            raise ValueError(
                f"tostype: got {stype!r} for {self.ndim} dims (expected default, row_sparse, or csr for 2)"
            )
        if stype == self.stype:
            return self
        return _STYPES[stype](self._t if state.recording else self._t.detach().clone(), self._ctx)

    def __deepcopy__(self, memo):
        made = self.copyto(self._ctx)
        if self._grad is not None:
            made._mark(self._grad.copy(), self._req)
        return made

    def __reduce__(self):
        return _unpickle, (self.asnumpy(), self._ctx.device_type, self._ctx.device_id, self.stype)

    # ---- autograd

    def attach_grad(self, grad_req="write", stype=None):
        """Makes room for a gradient, which each backward() writes ("write") or adds to ("add"). "null": no gradient."""
        self._mark(NDArray(pydist.zeros_like(self._t.detach()), self._ctx).tostype(stype or self.stype), grad_req)

    def _mark(self, held, req):
        if req not in ("write", "add", "null"):
            raise ValueError(f"attach_grad: grad_req is {req!r} (expected write, add or null)")
        self._t, self._req, self._fresh_grad = self._t.detach(), req, False
        self._grad = None if req == "null" else held
        if req != "null" and self._t.dtype.is_floating_point:
            self._t.requires_grad_(True)
            self._t.register_post_accumulate_grad_hook(functools.partial(_collect, weakref.ref(self)))

    def detach(self):
        """The same values, which autograd does not follow."""
        return type(self)(self._t.detach(), self._ctx)

    def backward(self, out_grad=None, retain_graph=False, train_mode=True):
        """Writes the gradients of what this array was computed from. out_grad: that of this array; None: ones."""
        backward_of([self], None if out_grad is None else [out_grad], retain_graph)

    # ---- elements

    def __getitem__(self, key):
        key, flat = _key(key, self.shape)
        with pydist.set_grad_enabled(state.recording):
            found = (self._t.reshape(-1) if flat else self._t)[key]
        return NDArray(found.reshape(1) if found.dim() == 0 else found, self._ctx)

    def __setitem__(self, key, value):
        key, flat = _key(key, self.shape)
        target = self._t.view(-1) if flat else self._t
        with pydist.set_grad_enabled(state.recording):
            if isinstance(value, NDArray):
                value = value._t.to(device=target.device, dtype=target.dtype)
            elif not isinstance(value, (int, float)):
                value = pydist.tensor(np.asarray(value), device=target.device).to(target.dtype)
            try:
                room = target[key].dim() if isinstance(value, pydist.Tensor) else 0
                while isinstance(value, pydist.Tensor) and value.dim() > room and value.shape[0] == 1:
                    value = value[0]  # MXNet drops leading dims of 1
                target[key] = value
            except RuntimeError as error:
                raise ValueError(f"NDArray[...] = value: {error} (expected a value that fits)") from error

    def reshape(self, *shape, **kwargs):
        """The same memory with other sizes; see nd.reshape for 0 and negative ones. Raises ValueError if none fit."""
        shape = kwargs.pop("shape", shape)
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        try:
            new = reshaped(self.shape, shape, **kwargs)
        except MXNetError as error:
            raise ValueError(str(error)) from None
        with pydist.set_grad_enabled(state.recording):
            return NDArray(self._t.reshape(new), self._ctx)


class RowSparseNDArray(NDArray):
    """An array that remembers that most of its rows are 0. Its memory is dense."""

    __slots__ = ()
    stype = "row_sparse"

    @property
    def indices(self):
        """The numbers of the rows that are not 0."""
        used = (self._t.detach().reshape(len(self), -1) != 0).any(1)
        return NDArray(pydist.nonzero(used).reshape(-1), self._ctx)

    @property
    def data(self):
        """The rows that are not 0."""
        return NDArray(self._t.detach()[self.indices._t], self._ctx)

    def retain(self, indices):
        """Only these rows; the others become 0."""
        made = pydist.zeros_like(self._t.detach())
        rows = indices._t.reshape(-1).long()
        made[rows] = self._t.detach()[rows]
        return RowSparseNDArray(made, self._ctx)


class CSRNDArray(NDArray):
    """A matrix that remembers that most of its elements are 0. Its memory is dense."""

    __slots__ = ()
    stype = "csr"

    @property
    def indices(self):
        """The column of each element that is not 0."""
        return NDArray(pydist.nonzero(self._t.detach())[:, 1].contiguous(), self._ctx)

    @property
    def indptr(self):
        """Where each row begins in `indices`, and the number of all."""
        counts = (self._t.detach() != 0).sum(1)
        return NDArray(pydist.cat([counts.new_zeros(1), counts.cumsum(0)]), self._ctx)

    @property
    def data(self):
        """The elements that are not 0."""
        return NDArray(self._t.detach()[self._t.detach() != 0], self._ctx)


_STYPES = {"default": NDArray, "row_sparse": RowSparseNDArray, "csr": CSRNDArray}


def _unpickle(values, device_type, device_id, stype):
    ctx = Context(device_type, device_id)
    return _STYPES[stype](pydist.tensor(values, device=ctx.device), ctx)


def fill(target, source):
    """Writes an array's values into another one. autograd follows that unless the target is a leaf."""
    leaf = target._t.is_leaf
    if leaf and state.recording and target._t.requires_grad:
        raise MXNetError("out=: got an array with attach_grad() inside record() (expected in-place changes outside)")
    with pydist.set_grad_enabled(state.recording and not leaf):
        target._t.copy_(source._t.detach() if leaf else source._t)


def _key(key, shape):
    """(the key for the tensor, False), or (flat positions, True) where a step is negative."""
    parts = list(key) if isinstance(key, tuple) else [key]
    flat = any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts)
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if used > len(shape):
        raise IndexError(f"NDArray[...]: got {used} indices (expected at most {len(shape)}, for shape {shape})")
    for i, part in enumerate(parts):
        if isinstance(part, NDArray) and not flat:
            parts[i] = part._t.detach() if part._t.dtype is pydist.bool else part._t.detach().long()
        elif isinstance(part, (NDArray, list, np.ndarray, range)):
            found = np.asarray(part)
            found = found if found.dtype == bool else found.astype(np.int64)
            parts[i] = found if flat else pydist.tensor(found)
        elif isinstance(part, np.integer):
            parts[i] = int(part)
    if not flat:
        return tuple(parts), False
    found = np.arange(math.prod(shape)).reshape(shape)[tuple(parts)]
    return pydist.tensor(np.ascontiguousarray(found)), True


def reshaped(old, new, reverse=False):
    """The sizes that MXNet's codes mean: 0 copies a size, -1 is what remains, -2 copies all further ones, -3 joins two,
    -4 splits one into the two that follow. reverse: from the right."""
    old, new, made, at = list(old), list(shape_of(new)), [], 0
    if reverse:
        return tuple(reversed(reshaped(old[::-1], new[::-1])))
    codes = iter(new)
    try:
        for code in codes:
            if code > 0 or code == -1:
                made.append(code)
            elif code == 0:
                made.append(old[at])
            elif code == -2:
                made += old[at:]
            elif code == -3:
                made.append(old[at] * old[at + 1])
            else:
                a, b = next(codes), next(codes)
                made += [old[at] // b if a == -1 else a, old[at] // a if b == -1 else b]
            at += {-2: len(old), -3: 2}.get(code, 1)
    except (IndexError, StopIteration, TypeError):
        raise MXNetError(f"reshape: got {tuple(new)} for shape {tuple(old)} (expected codes for its sizes)") from None
    size, given = math.prod(old), math.prod(n for n in made if n != -1)
    if made.count(-1) == 1 and given:
        made[made.index(-1)] = size // given
    if math.prod(made) != size or -1 in made:
        raise MXNetError(f"reshape: got {tuple(new)} for shape {tuple(old)} (expected {size} elements)")
    return tuple(made)


def backward_of(heads, head_grads=None, retain_graph=False):
    """pydist's backward from several heads."""
    chosen = [(h._t, g) for h, g in zip(heads, head_grads or [None] * len(heads)) if h._t.requires_grad]
    if not chosen:
        raise MXNetError(
            "backward: no head was computed inside record() from an array with attach_grad() (expected one)"
        )
    seeds = [pydist.ones_like(t) if g is None else g._t.to(t.dtype).reshape(t.shape) for t, g in chosen]
    try:
        pydist.autograd.backward([t for t, _ in chosen], seeds, retain_graph=retain_graph)
    except RuntimeError as error:
        raise MXNetError(f"backward: {error}") from error
    for head in heads if not retain_graph else ():
        if not head._t.is_leaf:
            head._t = head._t.detach()  # the graph is gone: a second backward() says so


def _unwrap(value, arrays):
    """An argument with tensors in the place of NDArrays; the list `arrays` gets them."""
    if isinstance(value, NDArray):
        arrays.append(value)
        return value._t
    if isinstance(value, (list, tuple)) and any(isinstance(each, NDArray) for each in value):
        return [_unwrap(each, arrays) for each in value]
    return value


def _wrap(found, inputs, ctx):
    """NDArrays for a result. Outside of record() no result shares memory with an input, as in MXNet."""
    if isinstance(found, (list, tuple)):
        return [_wrap(each, inputs, ctx) for each in found]
    found = found.reshape(1) if found.dim() == 0 else found
    if not state.recording and found.numel() and any(_shared(found, each._t) for each in inputs):
        found = found.clone()
    return NDArray(found.contiguous(), ctx)


def _shared(a, b):
    first = b.data_ptr()
    return a is b or (a.device == b.device and first <= a.data_ptr() < first + b.numel() * b.element_size())


def run(fn, *args, **kwargs):
    """fn(tensors) as a function on NDArrays: autograd records it inside record() only; the result is on the first
    array's context. Raises MXNetError for what pydist refuses."""
    inputs = []
    args = [_unwrap(each, inputs) for each in args]
    kwargs = {name: _unwrap(each, inputs) for name, each in kwargs.items()}
    try:
        with pydist.set_grad_enabled(state.recording):
            return _wrap(fn(*args, **kwargs), inputs, inputs[0]._ctx if inputs else current_context())
    except (RuntimeError, ValueError) as error:
        if isinstance(error, (MXNetError, NotImplementedError)):
            raise
        raise MXNetError(f"{getattr(fn, '__name__', 'NDArray')}: {error}") from error


def op(fn):
    """A decorator: a function on tensors becomes one on NDArrays with `out=`, where a result may go, and `name=`."""

    @functools.wraps(fn)
    def call(*args, out=None, name=None, **kwargs):
        found = run(fn, *args, **kwargs)
        if out is None:
            return found
        for target, source in zip([out], [found]) if isinstance(out, NDArray) else zip(out, found):
            if target.shape != source.shape:
                raise MXNetError(f"{fn.__name__}: out has shape {target.shape} (expected {source.shape})")
            fill(target, source)
        return out

    return call
