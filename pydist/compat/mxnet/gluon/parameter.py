"""Parameters: arrays on one or several contexts, with gradients, made when their shapes are known."""

import numpy as np

from pydist.compat.mxnet import autograd, initializer
from pydist.compat.mxnet._base import Context, MXNetError, TO_NUMPY, absent, current_context, dtype_of
from pydist.compat.mxnet.ndarray import ndarray as nd

_STYPES = ("default", "row_sparse", "csr")
_UNKNOWN = (0, -1, None)


class DeferredInitializationError(MXNetError):
    """A parameter has no values yet, because its shape is not known before the first forward."""


def _contexts(ctx):
    return [current_context()] if ctx is None else [ctx] if isinstance(ctx, Context) else list(ctx)


class Parameter:
    """What a Block learns. grad_req: write, add or null. A size of 0 in `shape` is not known yet; with
    allow_deferred_init the first forward finds it."""

    _data = _grad = _ctx_list = _trainer = _req = None
    _deferred_init = ()

    def __init__(self, name="", grad_req="write", shape=None, dtype=np.float32, lr_mult=1.0, wd_mult=1.0, init=None,
                 allow_deferred_init=False, differentiable=True, stype="default", grad_stype="default"):  # fmt: skip
        for kind in (stype, grad_stype):
            assert kind in _STYPES, f"Parameter {name}: stype is {kind!r} (expected one of {', '.join(_STYPES)})"
        self.name, self.lr_mult, self.wd_mult, self.init, self.dtype = name, lr_mult, wd_mult, init, dtype
        self._shape = (shape,) if isinstance(shape, int) else None if shape is None else tuple(shape)
        self._allow_deferred_init, self._differentiable = allow_deferred_init, differentiable
        self._stype, self._grad_stype, self.grad_req = stype, grad_stype, grad_req

    def __repr__(self):
        return f"{type(self).__name__} {self.name} (shape={self.shape}, dtype={np.dtype(self.dtype)})"

    @property
    def grad_req(self):
        """write, add or null."""
        return self._req

    @grad_req.setter
    def grad_req(self, req):
        assert req in ("write", "add", "null"), (
            f"Parameter {self.name}: grad_req is {req!r} (expected write, add or null)"
        )
        before, self._req = self._req, req if self._differentiable else "null"
        if self._req != before and self._data is not None:
            self._attach()

    @property
    def shape(self):
        """The sizes; 0 is not known yet."""
        return self._shape

    @shape.setter
    def shape(self, new):
        self._shape = self._fitting(tuple(new), "shape")

    def _fitting(self, new, op):
        old = self._shape
        fits = old is None or len(old) == len(new) and all(a in _UNKNOWN or a == b for a, b in zip(old, new))
        assert fits, f"{op}: Parameter {self.name}: got {new} (expected a shape that fits {old})"
        return new

    def _known(self):
        return self._shape is not None and not any(n in _UNKNOWN for n in self._shape)

    def var(self):
        """There are no symbols."""
        raise absent("Parameter.var", "data()")

    def _set_trainer(self, trainer):
        if self._stype != "default" and self._trainer and trainer and self._trainer is not trainer:
            raise RuntimeError(
                f"Parameter {self.name}: has a Trainer already (expected one for a {self._stype} parameter)"
            )
        self._trainer = trainer

    # ---- values

    def initialize(self, init=None, ctx=None, default_init="uniform", force_reinit=False):
        """Makes the values on one or several contexts, now or when the shape is known."""
        if self._data is not None and not force_reinit:
            return
        if not self._known() and not self._allow_deferred_init:
            raise ValueError(f"Parameter {self.name}: shape is {self._shape} (expected known sizes)")
        self._data = self._grad = None
        self._deferred_init = (init or self.init or default_init, _contexts(ctx), None)
        if self._known():
            self._finish_deferred_init()

    def _finish_deferred_init(self):
        if not self._deferred_init:
            return
        init, ctx, data = self._deferred_init
        if not self._known():
            raise DeferredInitializationError(f"Parameter {self.name}: shape is {self._shape} (expected known sizes: "
                                              "give in_units, in_channels, or a forward through layers)")  # fmt: skip
        with autograd.pause():
            if data is None:
                data, init = nd.zeros(self._shape, dtype=self.dtype), initializer.create(init)
                fill = init._init_weight if isinstance(init, initializer.Initializer) else init
                fill(initializer.InitDesc(self.name), data)
            self._place(data, ctx)

    def _place(self, data, ctx):
        """Copies on each context, with gradients."""
        self._deferred_init, self._ctx_list = (), list(ctx)
        self._data = [data.detach().copyto(each).tostype(self._stype) for each in ctx]
        self._attach()

    def _attach(self):
        for each in self._data:
            each.attach_grad(self._req, self._grad_stype)
        self._grad = None if self._req == "null" else [each.grad for each in self._data]

    def _load_init(self, data, ctx=None, cast_dtype=False, dtype_source="current"):
        """Values from a file."""
        assert dtype_source in ("current", "saved"), (
            f"load: dtype_source is {dtype_source!r} (expected current or saved)"
        )
        self._shape = self._fitting(data.shape, "load")
        if np.dtype(self.dtype) != data.dtype:
            assert cast_dtype, (f"load: Parameter {self.name} is {np.dtype(data.dtype)} in the file (expected "
                                f"{np.dtype(self.dtype)}, or cast_dtype=True)")  # fmt: skip
            self.dtype = data.dtype if dtype_source == "saved" else self.dtype
            data = data.astype(self.dtype)
        if self._data is None or self._data[0].dtype != data.dtype:
            waiting = self._deferred_init[1] if self._deferred_init else None
            self._place(data, _contexts(ctx or self._ctx_list or waiting))
            return
        fits = ctx is None or set(_contexts(ctx)) == set(self._ctx_list)
        assert fits, f"load: Parameter {self.name} is on {self._ctx_list} (expected {ctx})"
        self.set_data(data)

    def set_data(self, data):
        """New values on all contexts."""
        self.shape = data.shape
        if self._data is None:
            assert self._deferred_init, f"Parameter {self.name}: set_data before initialize() (expected it first)"
            self._deferred_init = (*self._deferred_init[:2], data)
            return
        trainer = self._trainer
        if trainer and trainer._kv_initialized and trainer._update_on_kvstore and self not in trainer._params_to_init:
            trainer._reset_kvstore()
        with autograd.pause():
            for each in self._data:
                each[:] = data

    def _check_and_get(self, arrays, ctx):
        """Those of a context, or the list for ctx=list."""
        if arrays is None and self._deferred_init:
            raise DeferredInitializationError(
                f"Parameter {self.name}: shape {self._shape} is known after the first forward"
            )
        if arrays is None:
            why = "no gradient: grad_req is null" if self._data is not None else "no values: initialize() comes first"
            raise RuntimeError(f"Parameter {self.name} has {why} (expected it before)")
        if ctx is list:
            return arrays
        ctx = self._ctx_list[0] if ctx is None and len(arrays) == 1 else ctx or current_context()
        if ctx not in self._ctx_list:
            raise RuntimeError(f"Parameter {self.name} is on {self._ctx_list} (expected {ctx} among them)")
        return arrays[self._ctx_list.index(ctx)]

    def data(self, ctx=None):
        """The values on a context."""
        if self._stype != "default":
            raise RuntimeError(
                f"Parameter {self.name} is {self._stype} (expected a dense one, or row_sparse_data(row_id))"
            )
        return self._check_and_get(self._data, ctx)

    def list_data(self):
        """The values on all contexts."""
        return self.data(list)

    def _rows(self, row_id, ctx):
        if self._stype != "row_sparse" or self._trainer is None:
            raise RuntimeError(
                f"Parameter {self.name} is {self._stype}, Trainer {self._trainer} (expected row_sparse and one)"
            )
        with autograd.pause():
            self._trainer._row_sparse_pull(self, self._check_and_get(self._data, list), row_id)
        return self._check_and_get(self._data, ctx)

    def row_sparse_data(self, row_id):
        """The values on the context of `row_id`, with these rows from the Trainer's store."""
        return self._rows(row_id, row_id.context)

    def list_row_sparse_data(self, row_id):
        """The same on all contexts."""
        return self._rows(row_id, list)

    def grad(self, ctx=None):
        """The gradient on a context."""
        return self._check_and_get(self._grad, ctx)

    def list_grad(self):
        """The gradients on all contexts."""
        return self.grad(list)

    def list_ctx(self):
        """The contexts."""
        return (
            self._deferred_init[1] if self._deferred_init else self._check_and_get(self._data, list) and self._ctx_list
        )

    def zero_grad(self):
        """Gradients of zeros."""
        for each in self._grad or ():
            each._t.zero_()

    def reset_ctx(self, ctx):
        """Moves the values to other contexts."""
        assert self._data is not None or self._deferred_init, (
            f"Parameter {self.name}: no initialize() (expected it first)"
        )
        if self._data is not None:
            self._place(self._data[0], _contexts(ctx))
        else:
            self._deferred_init = (self._deferred_init[0], _contexts(ctx), self._deferred_init[2])

    def cast(self, dtype):
        """The values in another dtype."""
        self.dtype = TO_NUMPY[dtype_of(dtype)]
        if self._data is not None:
            with autograd.pause():
                self._place(self._data[0].astype(dtype), self._ctx_list)


class Constant(Parameter):
    """A parameter that does not learn."""

    def __init__(self, name, value):
        self.value = value if isinstance(value, nd.NDArray) else nd.array(value)
        super().__init__(name, "null", self.value.shape, self.value.dtype, init=initializer.Constant(self.value))


class Pending:
    """Stands for a parameter whose shape is not known, as an argument of an operation that tells it."""

    def __init__(self, param, ctx):
        self.param, self.ctx = param, ctx

    def finish(self, shape):
        """The values of that shape."""
        self.param.shape = shape
        self.param._finish_deferred_init()
        return self.param.data(self.ctx)._t

    def __getattr__(self, name):
        raise DeferredInitializationError(f"Parameter {self.param.name}: shape is {self.param.shape} (expected known "
                                          "sizes; only layers' operations find them)")  # fmt: skip


class ParameterDict(dict):
    """Parameters by name. Names begin with `prefix`; `shared` is asked first."""

    def __init__(self, prefix="", shared=None):
        super().__init__()
        self.prefix = self._prefix = prefix
        self._shared = shared

    def __repr__(self):
        return f"{self._prefix} (\n".lstrip() + "".join(f"  {each}\n" for each in self.values()) + ")"

    def _found(self, name):
        shared = self._shared._found(name) if name not in self and self._shared is not None else None
        return self.setdefault(name, shared) if shared is not None else super().get(name)

    def get(self, name, **kwargs):
        """The parameter prefix + name: a new one, or the old one, if it fits the arguments."""
        name = self._prefix + name
        param = self._found(name)
        if param is None:
            self[name] = param = Parameter(name, **kwargs)
            return param
        shape, dtype = kwargs.get("shape"), kwargs.get("dtype", param.dtype)
        if shape is not None:
            shape = (shape,) if isinstance(shape, int) else shape
            param.shape = tuple(b if a in _UNKNOWN else a for a, b in zip(shape, param.shape or shape))
        fits = np.dtype(dtype) == np.dtype(param.dtype)
        assert fits, f"Parameter {name}: got dtype {dtype} (expected {param.dtype}, which it has)"
        return param

    def get_constant(self, name, value=None):
        """The constant prefix + name: a new one, or the old one, if it has that value."""
        name = self._prefix + name
        param = self._found(name)
        if param is None and value is None:
            raise KeyError(f"get_constant: no constant {name!r} (expected a value)")
        if param is None:
            self[name] = param = Constant(name, value)
        same = isinstance(param, Constant) and (value is None or np.array_equal(param.value, np.asarray(value)))
        assert same, f"get_constant: {name!r} is a parameter or another constant (expected the same constant)"
        return param

    def update(self, other):
        """Takes the parameters of another dict."""
        for name, param in other.items():
            assert self.setdefault(name, param) is param, (
                f"update: {name!r} is another parameter (expected the same one)"
            )

    def initialize(self, init="uniform", ctx=None, verbose=False, force_reinit=False):
        """Initializes all: those without an initializer of their own by `init`."""
        for param in self.values():
            param.initialize(None, ctx, init, force_reinit)

    def zero_grad(self):
        """Gradients of zeros."""
        for param in self.values():
            param.zero_grad()

    def reset_ctx(self, ctx):
        """Moves all to other contexts."""
        for param in self.values():
            param.reset_ctx(ctx)

    def list_ctx(self):
        """All contexts."""
        return list({ctx for param in self.values() for ctx in param.list_ctx()})

    def setattr(self, name, value):
        """Sets an attribute of all: `setattr("grad_req", "null")`."""
        for param in self.values():
            setattr(param, name, value)

    def save(self, filename, strip_prefix=""):
        """Writes the values; see nd.save."""
        if not all(name.startswith(strip_prefix) for name in self):
            raise ValueError(
                f"save: strip_prefix is {strip_prefix!r} (expected what all names of {list(self)} begin with)"
            )
        nd.save(filename, {name[len(strip_prefix) :]: whole(param) for name, param in self.items()})

    def load(self, filename, ctx=None, allow_missing=False, ignore_extra=False, restore_prefix="", **dtypes):
        """Reads values that save() wrote. dtypes: cast_dtype, dtype_source."""
        found = {restore_prefix + name: value for name, value in nd.load(filename).items()}
        fill(self, found, filename, ctx, allow_missing, ignore_extra, **dtypes)


def whole(param):
    """All values of a parameter."""
    if param._stype == "row_sparse" and param._trainer:
        return param.row_sparse_data(nd.arange(param.shape[0], ctx=param.list_ctx()[0])).detach()
    return param._check_and_get(param._data, list)[0].detach()


def fill(params, found, filename, ctx, allow_missing, ignore_extra, **dtypes):
    """Gives the parameters of a dict the arrays of another one. Raises AssertionError for missing and ValueError for
    extra names, unless allowed."""
    missing = [name for name in params if name not in found and not isinstance(params[name], Constant)]
    assert allow_missing or not missing, f"load: {filename} has no {missing[0]!r} (expected it, or allow_missing=True)"
    extra = [name for name in found if name not in params]
    if extra and not ignore_extra:
        raise ValueError(f"load: {filename} has {extra[0]!r} (expected only names of the model, or ignore_extra=True)")
    for name in found.keys() - set(extra):
        params[name]._load_init(found[name], ctx, **dtypes)
