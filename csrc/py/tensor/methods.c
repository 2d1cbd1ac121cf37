/* Methods of Tensor that are not ops of the table. */
#include "base/mem.h"
#include "py/py.h"

#define T pd_tensor *t = pd_py_tensor(self)
#define METHOD(name) static PyObject *m_##name(PyObject *self, PyObject *args)

METHOD(size) {
    T;
    int dim;
    if (PyTuple_GET_SIZE(args) == 0) return pd_py_size(t->ndim, t->size);
    int64_t d;
    if (!pd_py_int(PyTuple_GET_ITEM(args, 0), "size", "dim", &d)) return NULL;
    PD_PY_TRY(pd_shape_dim("size", d, t->ndim, &dim));
    if (t->ndim == 0)
        return PyErr_Format(pd_py.E_DIM, "size: got dim %lld of a 0-d tensor (expected at least 1 dimension)",
                            (long long)d);
    return PyLong_FromLongLong(t->size[dim]);
}

METHOD(stride) {
    T;
    int dim;
    if (PyTuple_GET_SIZE(args) == 0) {
        /* The allocation may run the garbage collector, and code that gives the tensor more dimensions. */
        int n = t->ndim;
        PyObject *tuple = PyTuple_New(n);
        for (int i = 0; tuple && i < n; i++) PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(t->stride[i]));
        return tuple;
    }
    int64_t d;
    if (!pd_py_int(PyTuple_GET_ITEM(args, 0), "stride", "dim", &d)) return NULL;
    PD_PY_TRY(pd_shape_dim("stride", d, t->ndim, &dim));
    return PyLong_FromLongLong(t->ndim ? t->stride[dim] : 1);
}

METHOD(dim) { (void)args; T; return PyLong_FromLong(t->ndim); }
METHOD(numel) { (void)args; T; return PyLong_FromLongLong(t->numel); }
METHOD(element_size) { (void)args; T; return PyLong_FromSize_t(pd_dtype_size((pd_dtype)t->dtype)); }
METHOD(storage_offset) { (void)args; T; return PyLong_FromLongLong(t->offset); }
METHOD(data_ptr) {
    (void)args;
    T;
    if (pd_is_recording()) pd_record_read("data_ptr()"); /* an address is no value, but another one in each step */
    pd_device_settle(t->storage->device);
    t->storage->exposed = true;
    return PyLong_FromVoidPtr(t->storage->data ? pd_tensor_data(t) : NULL);
}
static bool read_format(const char *op, PyObject *args, PyObject *kwargs, PyObject **out) {
    static char *names[] = {"memory_format", NULL};
    char spec[48];
    snprintf(spec, sizeof spec, "|O:%s", op);
    *out = pd_py.contiguous_format;
    return PyArg_ParseTupleAndKeywords(args, kwargs, spec, names, out) && pd_py_format(*out, op);
}

static PyObject *m_is_contiguous(PyObject *self, PyObject *args, PyObject *kwargs) {
    T;
    PyObject *f;
    if (!read_format("is_contiguous", args, kwargs, &f)) return NULL;
    int ndim = pd_py_format_ndim(f);
    return PyBool_FromLong(ndim ? t->ndim == ndim && pd_shape_is_channels_last(ndim, t->size, t->stride)
                                : pd_tensor_is_contiguous(t));
}
METHOD(is_complex) { (void)args; T; return PyBool_FromLong(pd_dtype_is_complex((pd_dtype)t->dtype)); }
METHOD(is_signed) { (void)args; T; return PyBool_FromLong(t->dtype != PD_BOOL && t->dtype != PD_U8); }
METHOD(get_device) {
    (void)args;
    T;
    int index = t->storage->device->index;
    return PyLong_FromLong(index < 0 ? -1 : index);
}
METHOD(is_view) { (void)args; T; return PyBool_FromLong(t->base != NULL); }
METHOD(is_same_size) {
    T;
    pd_tensor *other =
        PyTuple_GET_SIZE(args) == 1 ? pd_py_expect_tensor(PyTuple_GET_ITEM(args, 0), "is_same_size", "other") : NULL;
    if (!other)
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "is_same_size: the arguments do not fit (expected one tensor)");
    return PyBool_FromLong(pd_tensor_same_shape(t, other));
}
METHOD(is_nonzero) {
    (void)args;
    int truth = PyObject_IsTrue(self);
    return truth < 0 ? NULL : PyBool_FromLong(truth);
}
METHOD(is_inference) { (void)args; T; return PyBool_FromLong(t->storage->inference); }
METHOD(is_floating_point) { (void)args; T; return PyBool_FromLong(pd_dtype_is_float((pd_dtype)t->dtype)); }

PyObject *pd_py_item(const pd_tensor *t) {
    pd_scalar s;
    if (!pd_py_scalar(t, PD_WAIT_UNLOCKED, &s)) return NULL;
    if (s.cat == PD_CAT_BOOL) return PyBool_FromLong(s.i != 0);
    if (s.cat == PD_CAT_COMPLEX) return PyComplex_FromDoubles(s.d, s.im);
    return s.cat == PD_CAT_INT ? PyLong_FromLongLong(s.i) : PyFloat_FromDouble(s.d);
}

METHOD(item) {
    (void)args;
    T;
    if (t->numel != 1)
        return PyErr_Format(PyExc_RuntimeError, "item: a tensor of shape %s has %lld elements (expected 1)",
                            pd_tensor_shape(t), (long long)t->numel);
    return pd_py_item(t);
}

METHOD(complex) {
    PyObject *item = m_item(self, args), *result = item ? PyObject_CallOneArg((PyObject *)&PyComplex_Type, item) : NULL;
    Py_XDECREF(item);
    return result;
}

static PyObject *to_list(const pd_tensor *t, int dim, int64_t offset) {
    if (dim == t->ndim) {
        pd_tensor one = *t;
        one.offset = offset;
        return pd_py_item(&one);
    }
    PyObject *list = PyList_New((Py_ssize_t)t->size[dim]);
    for (int64_t i = 0; list && i < t->size[dim]; i++) {
        PyObject *o = to_list(t, dim + 1, offset + i * t->stride[dim]);
        if (!o) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)i, o);
    }
    return list;
}

METHOD(tolist) {
    (void)args;
    T;
    pd_tensor *near, *own; /* making lists may run the garbage collector, and code that gives the tensor other memory */
    if (pd_is_recording()) pd_record_read("tolist()");
    PD_PY_TRY(pd_check_data("tolist", t->storage->device));
    PD_PY_TRY(pd_move(t, &pd_device_cpu, PD_WAIT_UNLOCKED, &near));
    pd_status status = pd_tensor_alias(near, false, &own);
    pd_tensor_release(near);
    PD_PY_TRY(status);
    PyObject *list = to_list(own, 0, own->offset);
    pd_tensor_release(own);
    return list;
}

/* [new] self in a memory format; self itself if it is in it. */
static PyObject *in_format(PyObject *self, PyObject *f, const char *op) {
    T;
    pd_tensor *out, *turned;
    if (f == pd_py.preserve_format) return Py_NewRef(self);
    if (f == pd_py.contiguous_format) {
        PD_PY_TRY(pd_contiguous(t, &out));
        return pd_py_wrap_new(out);
    }
    const int ndim = pd_py_format_ndim(f);
    if (t->ndim != ndim)
        return PyErr_Format(pd_py.E_SHAPE, "%s: memory_format is %R, shape %s (expected %d dimensions)", op, f,
                            pd_tensor_shape(t), ndim);
    if (pd_shape_is_channels_last(ndim, t->size, t->stride)) return Py_NewRef(self);
    PD_PY_TRY(
        pd_call1(PD_OP_permute, t, ndim == 4 ? &(pd_ints){4, {0, 2, 3, 1}} : &(pd_ints){5, {0, 2, 3, 4, 1}}, &turned));
    pd_status status = pd_call1(PD_OP_clone, turned, &(int64_t){PD_FORMAT_CONTIGUOUS}, &out);
    pd_tensor_release(turned);
    PD_PY_TRY(status);
    status =
        pd_call1(PD_OP_permute, out, ndim == 4 ? &(pd_ints){4, {0, 3, 1, 2}} : &(pd_ints){5, {0, 4, 1, 2, 3}}, &turned);
    pd_tensor_release(out);
    PD_PY_TRY(status);
    return pd_py_wrap_new(turned);
}

static PyObject *m_contiguous(PyObject *self, PyObject *args, PyObject *kwargs) {
    PyObject *f;
    return read_format("contiguous", args, kwargs, &f) ? in_format(self, f, "contiguous") : NULL;
}

METHOD(detach) {
    (void)args;
    T;
    pd_tensor *out;
    PD_PY_TRY(pd_tensor_alias(t, false, &out));
    if (pd_is_recording()) pd_record_alias(t, false, out);
    return pd_py_wrap_new(out);
}

METHOD(detach_) {
    (void)args;
    T;
    if (pd_is_recording()) pd_record_refuse("detach_() changes a tensor's history");
    if (t->base) return PyErr_Format(PyExc_RuntimeError, "detach_: the tensor is a view (expected detach())");
    pd_tensor_detach(t);
    return Py_NewRef(self);
}

static PyObject *m_requires_grad_(PyObject *self, PyObject *args) {
    PyObject *want = Py_True;
    if (!PyArg_ParseTuple(args, "|O:requires_grad_", &want) || pd_py_set_requires_grad(self, want)) return NULL;
    return Py_NewRef(self);
}

static PyObject *cast_to(PyObject *self, pd_dtype dtype, bool copy) {
    T;
    pd_tensor *out;
    pd_cast_attrs a = {dtype};
    if (t->dtype == (int)dtype && !copy) return Py_NewRef(self);
    PD_PY_TRY(t->dtype == (int)dtype ? pd_call1(PD_OP_clone, t, NULL, &out) : pd_call1(PD_OP_cast, t, &a, &out));
    return pd_py_wrap_new(out);
}

#define CAST(name, dt) METHOD(name) { (void)args; return cast_to(self, dt, false); }
CAST(cfloat, PD_C64)
CAST(cdouble, PD_C128)
CAST(float, PD_F32)
CAST(double, PD_F64) CAST(half, PD_F16) CAST(bfloat16, PD_BF16) CAST(short, PD_I16) CAST(char, PD_I8) CAST(byte, PD_U8)
    CAST(long, PD_I64) CAST(int, PD_I32) static PyObject *m_boolean(PyObject *self, PyObject *args) {
    (void)args;
    return cast_to(self, PD_BOOL, false);
}
/* [new] self on device d; self itself if it is there. */
static PyObject *moved(PyObject *self, const pd_device *d, pd_copy_wait wait) {
    T;
    pd_tensor *out;
    if (t->storage->device == d) return Py_NewRef(self);
    PD_PY_TRY(pd_move(t, d, wait, &out));
    return pd_py_wrap_new(out);
}
static PyObject *m_cpu(PyObject *self, PyObject *args, PyObject *kwargs) {
    PyObject *f = pd_py.preserve_format, *near, *result;
    static char *names[] = {"memory_format", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:cpu", names, &f) || !pd_py_format(f, "cpu")) return NULL;
    near = moved(self, &pd_device_cpu, PD_WAIT_UNLOCKED);
    result = near ? in_format(near, f, "cpu") : NULL;
    Py_XDECREF(near);
    return result;
}

static bool truth(PyObject *o, bool *out) {
    int is = PyObject_IsTrue(o);
    *out = is > 0;
    return is >= 0;
}

static PyObject *m_to(PyObject *self, PyObject *args, PyObject *kwargs) {
    T;
    int64_t dtype = t->dtype;
    bool copy = false, wait = true;
    const pd_device *device = t->storage->device;
    PyObject *f = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *o = PyTuple_GET_ITEM(args, i);
        if (pd_py_is_tensor(o)) dtype = pd_py_tensor(o)->dtype, device = pd_py_tensor(o)->storage->device;
        else if (PyUnicode_Check(o) || Py_TYPE(o) == (PyTypeObject *)pd_py.device ||
                 (PyLong_Check(o) && !PyBool_Check(o))) {
            if (!(device = pd_py_device(o, "to"))) return NULL;
        } else if (PyBool_Check(o)) {
            if (i == 3 || (i == 2 && PyTuple_GET_SIZE(args) == 3)) copy = o == Py_True; /* non_blocking, copy */
            else wait = o == Py_False;
        } else if (o != Py_None && !pd_py_dtype(o, "to", "dtype", &dtype))
            return NULL;
    }
    PyObject *key, *value;
    for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &key, &value);) {
        if (!PyUnicode_CompareWithASCIIString(key, "dtype")) {
            if (value != Py_None && !pd_py_dtype(value, "to", "dtype", &dtype)) return NULL;
        } else if (!PyUnicode_CompareWithASCIIString(key, "device")) {
            if (value != Py_None && !(device = pd_py_device(value, "to"))) return NULL;
        } else if (!PyUnicode_CompareWithASCIIString(key, "copy")) {
            if (!truth(value, &copy)) return NULL;
        } else if (!PyUnicode_CompareWithASCIIString(key, "memory_format")) {
            if (!pd_py_format(f = value, "to")) return NULL;
        } else if (!PyUnicode_CompareWithASCIIString(key, "other")) {
            pd_tensor *other = pd_py_expect_tensor(value, "to", "other");
            if (!other) return NULL;
            dtype = other->dtype;
            device = other->storage->device;
        } else if (!PyUnicode_CompareWithASCIIString(key, "non_blocking")) {
            if (!truth(value, &wait)) return NULL;
            wait = !wait;
        } else
            return PyErr_Format(PyExc_TypeError, "to: got an unexpected keyword argument %R", key);
    }
    bool away = device != t->storage->device;
    PyObject *there = moved(self, device, wait ? PD_WAIT_UNLOCKED : PD_NO_WAIT);
    PyObject *cast = there ? cast_to(there, (pd_dtype)dtype, copy && !away) : NULL;
    PyObject *result = cast && f ? in_format(cast, f, "to") : cast;
    Py_XDECREF(there);
    if (result != cast) Py_DECREF(cast);
    else if (f) Py_XDECREF(cast); /* in_format has returned the same object */
    return result;
}

METHOD(type_as) {
    pd_tensor *other =
        PyTuple_GET_SIZE(args) == 1 ? pd_py_expect_tensor(PyTuple_GET_ITEM(args, 0), "type_as", "other") : NULL;
    if (!other)
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "type_as: the arguments do not fit (expected one tensor)");
    return cast_to(self, (pd_dtype)other->dtype, false);
}

METHOD(copy_) {
    PyObject *src;
    int non_blocking;
    T;
    if (!PyArg_ParseTuple(args, "O!|p:copy_", pd_py.Tensor, &src, &non_blocking)) return NULL;
    PD_PY_TRY(pd_engine.write(t, pd_py_tensor(src)));
    return Py_NewRef(self);
}

METHOD(zero_) {
    (void)args;
    T;
    pd_scalar zero = {.cat = PD_CAT_INT};
    PD_PY_TRY(pd_apply_into(PD_DEF(fill), &t, 1, &zero, t));
    return Py_NewRef(self);
}

METHOD(t) {
    (void)args;
    T;
    if (t->ndim > 2)
        return PyErr_Format(pd_py.E_SHAPE, "t: the tensor has shape %s (expected at most 2 dimensions)",
                            pd_tensor_shape(t));
    return PyObject_GetAttrString(self, "T");
}

METHOD(expand_as) {
    T;
    bool one = PyTuple_GET_SIZE(args) == 1;
    pd_tensor *other = one ? pd_py_expect_tensor(PyTuple_GET_ITEM(args, 0), "expand_as", "other") : NULL, *out;
    if (!other)
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "expand_as: the arguments do not fit (expected one tensor)");
    pd_ints size = {.n = other->ndim};
    memcpy(size.v, other->size, sizeof(int64_t) * (size_t)other->ndim);
    PD_PY_TRY(pd_call1(PD_OP_expand, t, &size, &out));
    return pd_py_wrap_new(out);
}

/* self.op(*other.shape): view_as, reshape_as */
static PyObject *with_shape_of(PyObject *self, PyObject *args, pd_op_id op, const char *name) {
    bool one = PyTuple_GET_SIZE(args) == 1;
    pd_tensor *other = one ? pd_py_expect_tensor(PyTuple_GET_ITEM(args, 0), name, "other") : NULL, *out;
    if (!other)
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "%s: the arguments do not fit (expected one tensor)", name);
    pd_shape_attrs a = {.shape = {.n = other->ndim}};
    memcpy(a.shape.v, other->size, sizeof(int64_t) * (size_t)other->ndim);
    PD_PY_TRY(pd_call1(op, pd_py_tensor(self), &a, &out));
    return pd_py_wrap_new(out);
}
METHOD(view_as) { return with_shape_of(self, args, PD_OP_view, "view_as"); }
METHOD(reshape_as) { return with_shape_of(self, args, PD_OP_reshape, "reshape_as"); }

#define NEW(name, call)                                                               \
    static PyObject *m_new_##name(PyObject *self, PyObject *args, PyObject *kwargs) { \
        T;                                                                            \
        return call;                                                                  \
    }
NEW(empty, pd_py_filled("new_empty", args, kwargs, t->dtype, t->storage->device, NULL))
NEW(zeros, pd_py_filled("new_zeros", args, kwargs, t->dtype, t->storage->device, &(double){0}))
NEW(ones, pd_py_filled("new_ones", args, kwargs, t->dtype, t->storage->device, &(double){1}))
NEW(full, pd_py_full("new_full", args, kwargs, t->dtype, t->storage->device))
NEW(tensor, pd_py_new_tensor("new_tensor", args, kwargs, t->dtype, t->storage->device))
static PyObject *n_new_full(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"size", "fill_value", NULL};
    return pd_py_with_names(m_new_full, false, "new_full", self, args, kwargs, names);
}
static PyObject *n_new_tensor(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"data", NULL};
    return pd_py_with_names(m_new_tensor, false, "new_tensor", self, args, kwargs, names);
}

static PyObject *m_numpy(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"force", NULL};
    int force = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:numpy", names, &force)) return NULL;
    if (!force) return pd_py_numpy(self);
    PyObject *detached = m_detach(self, NULL),
             *near = detached ? moved(detached, &pd_device_cpu, PD_WAIT_UNLOCKED) : NULL,
             *array = near ? pd_py_numpy(near) : NULL;
    Py_XDECREF(detached);
    Py_XDECREF(near);
    return array;
}

METHOD(index_put_) {
    PyObject *indices, *values, *seq;
    int accumulate = 0;
    T;
    pd_tensor **list;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "OO!|p:index_put_", &indices, pd_py.Tensor, &values, &accumulate)) return NULL;
    if (!pd_py_tensors(indices, "index_put_", "indices", &seq, &list, &n)) return NULL;
    pd_status status = pd_index_put(t, list, (int)n, pd_py_tensor(values), accumulate);
    pd_free(list);
    Py_DECREF(seq);
    return status ? pd_py_raise(status) : Py_NewRef(self);
}

static PyObject *call_helper(const char *name, PyObject *self) { /* for what is written in Python, in pydist._tensor */
    PyObject *module = PyImport_ImportModule("pydist._tensor");
    PyObject *result = module ? PyObject_CallMethod(module, name, "O", self) : NULL;
    Py_XDECREF(module);
    return result;
}

PyObject *pd_py_tensor_repr(PyObject *self) { return call_helper("tensor_repr", self); }
METHOD(reduce_ex) { (void)args; return call_helper("reduce", self); }
METHOD(deepcopy) {
    PyObject *module = PyImport_ImportModule("pydist._tensor"),
             *memo = PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : Py_None;
    PyObject *result = module ? PyObject_CallMethod(module, "deepcopy", "OO", self, memo) : NULL;
    Py_XDECREF(module);
    return result;
}

METHOD(register_hook) {
    return PyTuple_GET_SIZE(args) == 1
               ? pd_py_register_hook(self, PyTuple_GET_ITEM(args, 0))
               : PyErr_Format(PyExc_TypeError, "register_hook: the arguments do not fit (expected one function)");
}
METHOD(register_post) {
    return PyTuple_GET_SIZE(args) == 1
               ? pd_py_register_post_hook(self, PyTuple_GET_ITEM(args, 0))
               : PyErr_Format(PyExc_TypeError,
                              "register_post_accumulate_grad_hook: the arguments do not fit (expected one function)");
}

METHOD(retain_grad) {
    T;
    if (pd_is_recording()) pd_record_refuse("retain_grad() is called in it");
    (void)args;
    if (!pd_tensor_wants_grad(t))
        return PyErr_Format(
            PyExc_RuntimeError,
            "retain_grad: can't retain_grad on Tensor that has requires_grad=False (expected requires_grad=True)");
    PD_PY_TRY(pd_tensor_retain_grad(t));
    Py_RETURN_NONE;
}

METHOD(format) {
    PyObject *spec, *item, *result;
    T;
    if (!PyArg_ParseTuple(args, "U:__format__", &spec)) return NULL;
    if (t->ndim) return PyObject_CallMethod((PyObject *)&PyBaseObject_Type, "__format__", "OO", self, spec);
    item = pd_py_item(t);
    result = item ? PyObject_Format(item, spec) : NULL;
    Py_XDECREF(item);
    return result;
}

METHOD(copy) { (void)args; return call_helper("shallow_copy", self); }

/* Methods that take positional arguments only, with names for them. */
#define NAMED(name, ...)                                                                                          \
    static PyObject *n_##name(PyObject *self, PyObject *args, PyObject *kwargs) {                                 \
        static const char *const names[] = {__VA_ARGS__, NULL};                                                   \
        return pd_py_with_names((PyCFunctionWithKeywords)(void (*)(void))m_##name, true, #name, self, args, kwargs, \
                                names);                                                                           \
    }
NAMED(size, "dim")
NAMED(stride, "dim")
NAMED(view_as, "other")
NAMED(reshape_as, "other")
NAMED(expand_as, "other")
NAMED(type_as, "other")
NAMED(requires_grad_, "requires_grad")
NAMED(copy_, "other", "non_blocking")
NAMED(index_put_, "indices", "values", "accumulate")
NAMED(register_hook, "hook")
#define KWN(name) (PyCFunction)(void (*)(void))n_##name, METH_VARARGS | METH_KEYWORDS

#define KW(name) (PyCFunction)(void (*)(void))m_##name, METH_VARARGS | METH_KEYWORDS
PyMethodDef pd_py_tensor_methods[] = {
    {"_make_subclass", pd_py_make_subclass, METH_VARARGS | METH_STATIC,
     "_make_subclass(cls, data, requires_grad=False): an instance of cls over the memory of data."},
    {"size", KWN(size), "size(dim=None)\n\nThe sizes, or one of them."},
    {"stride", KWN(stride), "stride(dim=None)\n\nThe strides in elements, or one of them."},
    {"dim", m_dim, METH_NOARGS, "dim()\n\nThe number of dimensions."},
    {"numel", m_numel, METH_NOARGS, "numel()\n\nThe number of elements."},
    {"nelement", m_numel, METH_NOARGS, "nelement()\n\nThe number of elements."},
    {"element_size", m_element_size, METH_NOARGS, "element_size()\n\nThe bytes of one element."},
    {"storage_offset", m_storage_offset, METH_NOARGS,
     "storage_offset()\n\nThe number of elements in the storage before the first one of this view."},
    {"share_memory_", pd_py_share_memory, METH_NOARGS,
     "share_memory_()\n\nMoves the tensor, and all views of the same memory, to shared memory, which other processes "
     "can map. Errors:\nRuntimeError while an array, a DLPack capsule or a collective uses the memory; ValueError for "
     "read-only memory."},
    {"is_shared", pd_py_is_shared, METH_NOARGS, "is_shared()\n\nWhether other processes can map the tensor's memory."},
    {"data_ptr", m_data_ptr, METH_NOARGS, "data_ptr()\n\nAddress of the first element."},
    {"is_contiguous", KW(is_contiguous),
     "is_contiguous(memory_format=pydist.contiguous_format)\n\nWhether the elements lie in C order (or in "
     "channels_last order) without gaps."},
    {"is_complex", m_is_complex, METH_NOARGS, "is_complex()\n\nTrue for complex dtypes."},
    {"is_signed", m_is_signed, METH_NOARGS, "is_signed()\n\nWhether the dtype has negative numbers."},
    {"get_device", m_get_device, METH_NOARGS,
     "get_device()\n\nThe index of the tensor's CUDA device; -1: the CPU or meta."},
    {"_is_view", m_is_view, METH_NOARGS, "_is_view()\n\nWhether this is a view of another tensor, _base."},
    {"is_same_size", m_is_same_size, METH_VARARGS, "is_same_size(other)\n\nWhether the shapes are equal."},
    {"is_nonzero", m_is_nonzero, METH_NOARGS, "is_nonzero()\n\nWhether the one element is not zero."},
    {"ndimension", m_dim, METH_NOARGS, "ndimension()\n\nThe number of dimensions."},
    {"view_as", KWN(view_as), "view_as(other)\n\nA view of this tensor with the shape of other."},
    {"reshape_as", KWN(reshape_as), "reshape_as(other)\n\nThis tensor reshaped to the shape of other."},
    {"new_empty", KW(new_empty),
     "new_empty(*sizes, size=None, dtype=None, device=None, requires_grad=False, "
     "layout=None, pin_memory=False)\n\nUninitialised, of this tensor's dtype and device."},
    {"new_zeros", KW(new_zeros),
     "new_zeros(*sizes, size=None, dtype=None, device=None, requires_grad=False, "
     "layout=None, pin_memory=False)\n\nZeros of this tensor's dtype and device."},
    {"new_ones", KW(new_ones),
     "new_ones(*sizes, size=None, dtype=None, device=None, requires_grad=False, "
     "layout=None, pin_memory=False)\n\nOnes of this tensor's dtype and device."},
    {"new_full", KWN(new_full),
     "new_full(size, fill_value, *, dtype=None, device=None, requires_grad=False, layout=None, "
     "pin_memory=False)\n\nFilled with a number, of this tensor's dtype and device."},
    {"new_tensor", KWN(new_tensor),
     "new_tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False)\n\nA copy of data, of this "
     "tensor's dtype and device."},
    {"short", m_short, METH_NOARGS, "short()\n\nAs int16."},
    {"char", m_char, METH_NOARGS, "char()\n\nAs int8."},
    {"byte", m_byte, METH_NOARGS, "byte()\n\nAs uint8."},
    {"__array__", (PyCFunction)(void (*)(void))pd_py_array, METH_VARARGS | METH_KEYWORDS, NULL},
    {"is_floating_point", m_is_floating_point, METH_NOARGS, "is_floating_point()\n\nTrue for floating dtypes."},
    {"is_inference", m_is_inference, METH_NOARGS, "is_inference()\n\nWhether the tensor was made in inference mode."},
    {"item", m_item, METH_NOARGS, "item()\n\nThe one element as a Python number."},
    {"tolist", m_tolist, METH_NOARGS, "tolist()\n\nNested lists of Python numbers."},
    {"contiguous", KW(contiguous),
     "contiguous(memory_format=pydist.contiguous_format)\n\nThis tensor, or a contiguous (or channels_last) copy."},
    {"detach", m_detach, METH_NOARGS, "detach()\n\nThe same memory without history."},
    {"detach_", m_detach_, METH_NOARGS, "detach_()\n\nDetaches this tensor from its history, in place."},
    {"requires_grad_", KWN(requires_grad_),
     "requires_grad_(requires_grad=True)\n\nSets requires_grad; returns this tensor."},
    {"float", m_float, METH_NOARGS, "float()\n\nAs float32."},
    {"double", m_double, METH_NOARGS, "double()\n\nAs float64."},
    {"half", m_half, METH_NOARGS, "half()\n\nAs float16."},
    {"bfloat16", m_bfloat16, METH_NOARGS, "bfloat16()\n\nAs bfloat16."},
    {"long", m_long, METH_NOARGS, "long()\n\nAs int64."},
    {"int", m_int, METH_NOARGS, "int()\n\nAs int32."},
    {"bool", m_boolean, METH_NOARGS, "bool()\n\nAs bool: nonzero is True."},
    {"cfloat", m_cfloat, METH_NOARGS, "cfloat()\n\nAs complex64."},
    {"cdouble", m_cdouble, METH_NOARGS, "cdouble()\n\nAs complex128."},
    {"cpu", KW(cpu), "cpu(memory_format=pydist.preserve_format)\n\nOn the CPU."},
    {"to", (PyCFunction)(void (*)(void))m_to, METH_VARARGS | METH_KEYWORDS,
     "to(*args, dtype=None, device=None, other=None, non_blocking=False, copy=False, memory_format=None)\n\nThis "
     "tensor in another dtype or on another device. args: a dtype, a device, both, or a tensor that has them."},
    {"type_as", KWN(type_as), "type_as(other)\n\nThis tensor in the dtype of other."},
    {"copy_", KWN(copy_),
     "copy_(other, non_blocking=False)\n\nCopies other into this tensor; other is broadcast and converted."},
    {"zero_", m_zero_, METH_NOARGS, "zero_()\n\nWrites zeros."},
    {"t", m_t, METH_NOARGS, "t()\n\nThe transpose of a matrix."},
    {"expand_as", KWN(expand_as), "expand_as(other)\n\nThis tensor broadcast to the shape of other."},
    {"index_put_", KWN(index_put_),
     "index_put_(indices, values, accumulate=False)\n\nself[indices] = values (+=), in place."},
    {"numpy", KW(numpy),
     "numpy(*, force=False)\n\nA NumPy array over the same memory. While the array lives, the tensor's memory does not "
     "move (resize_ raises).\nforce: accepts a tensor that requires grad or is on a GPU too, and copies where that is "
     "necessary. bfloat16\nbecomes ml_dtypes.bfloat16. Errors: TypeError for bfloat16 where the package ml_dtypes is "
     "missing, RuntimeError\nfor a tensor that requires grad."},
    {"backward", (PyCFunction)(void (*)(void))pd_py_tensor_backward, METH_VARARGS | METH_KEYWORDS,
     "backward(gradient=None, retain_graph=None, create_graph=False, inputs=None)\n\nAdds the gradients of this tensor "
     "to the .grad of the leaves."},
    {"register_hook", KWN(register_hook),
     "register_hook(hook)\n\nCalls hook(grad) when this tensor's gradient is known. A tensor that the hook returns "
     "replaces the gradient."},
    {"register_post_accumulate_grad_hook", m_register_post, METH_VARARGS,
     "register_post_accumulate_grad_hook(hook)\n\nCalls hook(leaf) after backward has accumulated into .grad of this "
     "leaf."},
    {"retain_grad", m_retain_grad, METH_NOARGS, "retain_grad()\n\nMakes backward keep .grad of this non-leaf tensor."},
    {"__dlpack__", (PyCFunction)(void (*)(void))pd_py_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)\n\nA DLPack capsule over the memory; "
     "versioned where max_version is at least (1, 0)."},
    {"__dlpack_device__", pd_py_dlpack_device, METH_NOARGS, "__dlpack_device__()\n\n(1, 0): the CPU."},
    {"__reduce_ex__", m_reduce_ex, METH_VARARGS, NULL},
    {"__deepcopy__", m_deepcopy, METH_VARARGS, NULL},
    {"__copy__", m_copy, METH_NOARGS, NULL},
    {"__format__", m_format, METH_VARARGS, NULL},
    {"__complex__", m_complex, METH_NOARGS, NULL},
    {0},
};
