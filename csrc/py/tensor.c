/* The Tensor type: lifetime of the wrapper, attributes, operators. Ops come from the table (ops.c).

   Who owns whom: normally the wrapper holds a reference to its pd_tensor. When the last Python reference goes while C still
   uses the tensor and the wrapper carries something of the user's (attributes, a subclass, weak references), ownership flips:
   the tensor keeps the wrapper until C lets go, so identity and attributes survive. */
#include "py/py.h"

#include <structmember.h>

#include "base/mem.h"

/* ---- wrapper and tensor ---------------------------------------------------------------------------------------------- */

static PyObject *new_wrapper(PyTypeObject *type, pd_tensor *t) {
    pd_pytensor *self = (pd_pytensor *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    pd_tensor_retain(t);
    self->t = t;
    t->wrapper = self;
    return (PyObject *)self;
}

PyObject *pd_py_wrap(pd_tensor *t) {
    if (!t) Py_RETURN_NONE;
    if (!t->wrapper) return new_wrapper((PyTypeObject *)pd_py.Tensor, t);
    PyObject *self = t->wrapper;
    if (!t->wrapper_owned) return Py_NewRef(self);
    pd_tensor_retain(t); /* back to Python: the tensor's reference to the wrapper becomes the caller's */
    t->wrapper_owned = false;
    return self;
}

PyObject *pd_py_wrap_new(pd_tensor *t) {
    PyObject *o = pd_py_wrap(t);
    pd_tensor_release(t);
    return o;
}

static bool worth_keeping(pd_pytensor *self) {
    return self->weakrefs || (self->dict && PyDict_GET_SIZE(self->dict)) || Py_TYPE(self) != (PyTypeObject *)pd_py.Tensor;
}

static bool flip(pd_pytensor *self) {
    pd_tensor *t = self->t;
    if (!t || t->refs < 2 || !worth_keeping(self) || t->wrapper != self) return false;
    Py_SET_REFCNT((PyObject *)self, 1); /* the tensor's */
    t->wrapper_owned = true;
    pd_tensor_release(t);
    return true;
}

/* The tensor goes and takes the wrapper that it kept with it. */
static void drop_wrapper(void *wrapper) {
    ((pd_pytensor *)wrapper)->t = NULL;
    pd_py_drop(wrapper);
}

static void tensor_dealloc(PyObject *o) {
    pd_pytensor *self = (pd_pytensor *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (type->tp_finalize && PyObject_CallFinalizerFromDealloc(o) < 0) return;
    if (flip(self)) return;
    PyObject_GC_UnTrack(o);
    if (self->weakrefs) PyObject_ClearWeakRefs(o);
    Py_CLEAR(self->dict);
    pd_tensor *t = self->t;
    self->t = NULL;
    if (t) {
        if (t->wrapper == self) t->wrapper = NULL;
        pd_tensor_release(t);
    }
    type->tp_free(o);
    Py_DECREF(type);
}

static int tensor_traverse(PyObject *o, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(o));
    return pd_py_visit_wrapper((pd_pytensor *)o, visit, arg);
}

static int tensor_clear(PyObject *o) {
    pd_pytensor *self = (pd_pytensor *)o;
    Py_CLEAR(self->dict);
    if (self->t && !self->t->wrapper_owned && self->t->refs == 1) pd_tensor_forget(self->t);
    return 0;
}

pd_tensor *pd_py_expect_tensor(PyObject *o, const char *op, const char *arg) {
    if (pd_py_is_tensor(o)) return pd_py_tensor(o);
    PyErr_Format(PyExc_TypeError, "%s: %s is %.100s (expected Tensor)", op, arg, Py_TYPE(o)->tp_name);
    return NULL;
}

/* Subclasses get our dealloc too: CPython's own would not let the wrapper flip. */
static int meta_init(PyObject *cls, PyObject *args, PyObject *kwargs) {
    if (PyType_Type.tp_init(cls, args, kwargs)) return -1;
    PyObject *slots = PyObject_GetAttrString(cls, "__slots__");
    PyErr_Clear();
    Py_ssize_t n = slots ? PyObject_Length(slots) : 0;
    Py_XDECREF(slots);
    if (n > 0) {
        PyErr_SetString(PyExc_TypeError, "a subclass of Tensor cannot have __slots__");
        return -1;
    }
    ((PyTypeObject *)cls)->tp_dealloc = tensor_dealloc;
    return 0;
}

/* ---- construction ------------------------------------------------------------------------------------------------------ */

static PyObject *tensor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *data = NULL;
    if (type != (PyTypeObject *)pd_py.Tensor) { /* a subclass makes itself by _make_subclass; its own __init__ sees the arguments */
        pd_tensor *t;
        int64_t zero = 0;
        PD_PY_TRY(pd_tensor_new("Tensor", pd_default_dtype, 1, &zero, &t));
        PyObject *self = new_wrapper(type, t);
        pd_tensor_release(t);
        return self;
    }
    if (kwargs && PyDict_GET_SIZE(kwargs)) return PyErr_Format(PyExc_TypeError, "Tensor() takes no keyword arguments (expected pydist.tensor)");
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    if (n == 1) data = PyTuple_GET_ITEM(args, 0);
    pd_tensor *t;
    if (n != 1 || PyLong_Check(data)) { /* Tensor(2, 3): uninitialised, as in PyTorch */
        pd_ints size;
        if (!pd_py_ints(args, "Tensor", "size", &size)) return NULL;
        if (n == 0) size = (pd_ints){.n = 1};
        PD_PY_TRY(pd_tensor_new("Tensor", pd_default_dtype, (int)size.n, size.v, &t));
    } else if (!(t = pd_py_from_data(data, pd_default_dtype, true))) {
        return NULL;
    }
    return pd_py_wrap_new(t);
}

static PyObject *make_subclass(PyObject *unused, PyObject *args) {
    PyObject *cls, *data;
    int requires_grad = 0;
    (void)unused;
    if (!PyArg_ParseTuple(args, "O!O!|p:_make_subclass", &PyType_Type, &cls, pd_py.Tensor, &data, &requires_grad)) return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)cls, (PyTypeObject *)pd_py.Tensor))
        return PyErr_Format(PyExc_TypeError, "_make_subclass: %R is not a subclass of Tensor", cls);
    pd_tensor *t;
    if (requires_grad && !pd_dtype_is_float((pd_dtype)pd_py_tensor(data)->dtype))
        return PyErr_Format(PyExc_RuntimeError, "only floating tensors can require gradients, got %s", pd_dtype_name((pd_dtype)pd_py_tensor(data)->dtype));
    PD_PY_TRY(pd_tensor_alias(pd_py_tensor(data), false, &t));
    t->requires_grad = requires_grad;
    PyObject *self = new_wrapper((PyTypeObject *)cls, t);
    pd_tensor_release(t);
    return self;
}

/* ---- attributes ---------------------------------------------------------------------------------------------------------- */

#define T pd_tensor *t = pd_py_tensor(self)
#define GETTER(name) static PyObject *get_##name(PyObject *self, void *unused)

GETTER(shape) { (void)unused; T; return pd_py_size(t->ndim, t->size); }
GETTER(dtype) { (void)unused; T; return Py_NewRef(pd_py.dtypes[t->dtype]); }
GETTER(device) { (void)self, (void)unused; return Py_NewRef(pd_py.cpu); }
GETTER(ndim) { (void)unused; T; return PyLong_FromLong(t->ndim); }
GETTER(version) {
    (void)unused;
    T;
    if (t->storage->inference) return PyErr_Format(PyExc_RuntimeError, "_version: an inference tensor keeps no version");
    return PyLong_FromUnsignedLong(pd_tensor_version(t));
}
GETTER(requires_grad) { (void)unused; T; return PyBool_FromLong(pd_tensor_wants_grad(t)); }
GETTER(base) { (void)unused; T; return pd_py_wrap(t->base); }

GETTER(is_leaf) {
    pd_node *fn;
    int index;
    T;
    (void)unused;
    PD_PY_TRY(pd_tensor_history(t, &fn, &index));
    return PyBool_FromLong(!fn);
}

GETTER(grad_fn) {
    pd_node *fn;
    int index;
    T;
    (void)unused;
    PD_PY_TRY(pd_tensor_history(t, &fn, &index));
    return pd_py_node(fn);
}

GETTER(grad) { (void)unused; T; return pd_py_wrap(t->meta ? t->meta->grad : NULL); }

static int set_grad(PyObject *self, PyObject *value, void *unused) {
    T;
    pd_meta *m = NULL;
    pd_tensor *g = NULL;
    (void)unused;
    if (value && value != Py_None) {
        if (!(g = pd_py_expect_tensor(value, "grad", "the gradient"))) return -1;
        if (!pd_tensor_same_shape(g, t) || g->dtype != t->dtype || g == t) {
            PyErr_Format(PyExc_RuntimeError, "grad: got %s of shape %s (expected another tensor, %s of shape %s)", pd_dtype_name((pd_dtype)g->dtype),
                         pd_tensor_shape(g), pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t));
            return -1;
        }
        pd_tensor_retain(g);
    }
    if (!g && !t->meta) return 0;
    PD_PY_TRY_INT(pd_meta_get(t, &m));
    pd_tensor_release(m->grad);
    m->grad = g;
    return 0;
}

static int set_requires_grad(PyObject *self, PyObject *value, void *unused) {
    T;
    int want = value ? PyObject_IsTrue(value) : 0;
    (void)unused;
    if (want < 0) return -1;
    if (t->meta && t->meta->grad_fn && !want) {
        PyErr_SetString(PyExc_RuntimeError, "requires_grad can be changed on leaf tensors only (expected detach())");
        return -1;
    }
    if (want && !pd_dtype_is_float((pd_dtype)t->dtype)) {
        PyErr_Format(PyExc_RuntimeError, "only floating tensors can require gradients, got %s", pd_dtype_name((pd_dtype)t->dtype));
        return -1;
    }
    if (want && t->storage->inference && !pd_inference_mode) {
        PyErr_SetString(PyExc_RuntimeError, "requires_grad: an inference tensor cannot require grad outside inference mode (expected clone() first)");
        return -1;
    }
    if (!(t->meta && t->meta->grad_fn)) t->requires_grad = want;
    return 0;
}

GETTER(data) {
    pd_tensor *a;
    T;
    (void)unused;
    PD_PY_TRY(pd_tensor_alias(t, true, &a));
    return pd_py_wrap_new(a);
}

static int set_data(PyObject *self, PyObject *value, void *unused) {
    T;
    (void)unused;
    pd_tensor *from = value ? pd_py_expect_tensor(value, "data", "the value") : NULL;
    if (!from) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_AttributeError, "data cannot be deleted");
        return -1;
    }
    if (from->dtype != t->dtype && t->meta && (t->meta->grad || t->meta->home)) {
        PyErr_Format(PyExc_RuntimeError, "data: %s cannot become %s while there is a gradient", pd_dtype_name((pd_dtype)t->dtype), pd_dtype_name((pd_dtype)from->dtype));
        return -1;
    }
    pd_tensor *copy; /* takes the geometry and memory of `from`; keeps its own history */
    PD_PY_TRY_INT(pd_tensor_alias(from, true, &copy));
    pd_storage *storage = t->storage;
    pd_version *version = t->version;
    t->storage = copy->storage, copy->storage = storage;
    t->version = copy->version, copy->version = version;
    t->dtype = copy->dtype, t->ndim = copy->ndim, t->offset = copy->offset, t->numel = copy->numel;
    memcpy(t->size, copy->size, sizeof(int64_t) * (size_t)copy->ndim);
    memcpy(t->stride, copy->stride, sizeof(int64_t) * (size_t)copy->ndim);
    pd_tensor_release(copy);
    return 0;
}

GETTER(T) {
    T;
    pd_tensor *out;
    pd_ints dims = {.n = t->ndim};
    (void)unused;
    for (int d = 0; d < t->ndim; d++) dims.v[d] = t->ndim - 1 - d;
    PD_PY_TRY(pd_call1(PD_OP_permute, t, &dims, &out));
    return pd_py_wrap_new(out);
}

static PyGetSetDef getset[] = {
    {"shape", get_shape, NULL, "The sizes, a Size.", NULL},
    {"dtype", get_dtype, NULL, "The element type.", NULL},
    {"device", get_device, NULL, "Where the memory lies.", NULL},
    {"ndim", get_ndim, NULL, "How many dimensions.", NULL},
    {"_version", get_version, NULL, "In-place writes so far, shared by all views.", NULL},
    {"_base", get_base, NULL, "The tensor that this is a view of, or None.", NULL},
    {"requires_grad", get_requires_grad, set_requires_grad, "Whether gradients are wanted; settable on leaves.", NULL},
    {"is_leaf", get_is_leaf, NULL, "True where no recorded op made this tensor.", NULL},
    {"grad_fn", get_grad_fn, NULL, "The node of the tape that made this tensor, or None.", NULL},
    {"grad", get_grad, set_grad, "The gradient that backward accumulated, or None.", NULL},
    {"data", get_data, set_data, "The same memory without history, with a version counter of its own.", NULL},
    {"T", get_T, NULL, "The dimensions in reverse order.", NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};

/* ---- methods ------------------------------------------------------------------------------------------------------------- */

#define METHOD(name) static PyObject *m_##name(PyObject *self, PyObject *args)

METHOD(size) {
    T;
    int dim;
    if (PyTuple_GET_SIZE(args) == 0) return pd_py_size(t->ndim, t->size);
    int64_t d;
    if (!pd_py_int(PyTuple_GET_ITEM(args, 0), "size", "dim", &d)) return NULL;
    PD_PY_TRY(pd_shape_dim("size", d, t->ndim, &dim));
    if (t->ndim == 0) return PyErr_Format(pd_py.E_DIM, "size: a 0-d tensor has no dimension %lld", (long long)d);
    return PyLong_FromLongLong(t->size[dim]);
}

METHOD(stride) {
    T;
    int dim;
    if (PyTuple_GET_SIZE(args) == 0) {
        PyObject *tuple = PyTuple_New(t->ndim);
        for (int i = 0; tuple && i < t->ndim; i++) PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(t->stride[i]));
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
METHOD(data_ptr) { (void)args; T; return PyLong_FromVoidPtr(pd_tensor_data(t)); }
METHOD(is_contiguous) { (void)args; T; return PyBool_FromLong(pd_tensor_is_contiguous(t)); }
METHOD(is_inference) { (void)args; T; return PyBool_FromLong(t->storage->inference); }
METHOD(is_floating_point) { (void)args; T; return PyBool_FromLong(pd_dtype_is_float((pd_dtype)t->dtype)); }

static PyObject *item_of(const pd_tensor *t) {
    pd_scalar s;
    pd_item(t, &s);
    if (s.cat == PD_CAT_BOOL) return PyBool_FromLong(s.i != 0);
    return s.cat == PD_CAT_INT ? PyLong_FromLongLong(s.i) : PyFloat_FromDouble(s.d);
}

METHOD(item) {
    (void)args;
    T;
    if (t->numel != 1) return PyErr_Format(PyExc_RuntimeError, "item: a tensor of shape %s has %lld elements (expected 1)", pd_tensor_shape(t), (long long)t->numel);
    return item_of(t);
}

static PyObject *to_list(const pd_tensor *t, int dim, int64_t offset) {
    if (dim == t->ndim) {
        pd_tensor one = *t;
        one.offset = offset;
        return item_of(&one);
    }
    PyObject *list = PyList_New((Py_ssize_t)t->size[dim]);
    for (int64_t i = 0; list && i < t->size[dim]; i++) {
        PyObject *o = to_list(t, dim + 1, offset + i * t->stride[dim]);
        if (!o) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)i, o);
    }
    return list;
}

METHOD(tolist) { (void)args; T; return to_list(t, 0, t->offset); }

METHOD(contiguous) {
    (void)args;
    T;
    pd_tensor *out;
    PD_PY_TRY(pd_contiguous(t, &out));
    return pd_py_wrap_new(out);
}

METHOD(detach) {
    (void)args;
    T;
    pd_tensor *out;
    PD_PY_TRY(pd_tensor_alias(t, false, &out));
    return pd_py_wrap_new(out);
}

METHOD(detach_) {
    (void)args;
    T;
    if (t->base) return PyErr_Format(PyExc_RuntimeError, "detach_: this is a view (expected detach())");
    if (t->meta) {
        pd_node_release(t->meta->grad_fn);
        t->meta->grad_fn = NULL;
    }
    t->requires_grad = false;
    return Py_NewRef(self);
}

static PyObject *m_requires_grad_(PyObject *self, PyObject *args) {
    PyObject *want = Py_True;
    if (!PyArg_ParseTuple(args, "|O:requires_grad_", &want) || set_requires_grad(self, want, NULL)) return NULL;
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
CAST(float, PD_F32) CAST(double, PD_F64) CAST(half, PD_F16) CAST(bfloat16, PD_BF16) CAST(long, PD_I64) CAST(int, PD_I32)
static PyObject *m_boolean(PyObject *self, PyObject *args) {
    (void)args;
    return cast_to(self, PD_BOOL, false);
}
METHOD(cpu) { (void)args; return Py_NewRef(self); }

static PyObject *m_to(PyObject *self, PyObject *args, PyObject *kwargs) {
    T;
    int64_t dtype = t->dtype;
    bool copy = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *o = PyTuple_GET_ITEM(args, i);
        if (pd_py_is_tensor(o)) dtype = pd_py_tensor(o)->dtype;
        else if (PyUnicode_Check(o) || o == pd_py.cpu) {
            if (!pd_py_device(o, "to")) return NULL;
        } else if (PyBool_Check(o)) {
            if (i == 3 || (i == 2 && PyTuple_GET_SIZE(args) == 3)) copy = o == Py_True; /* non_blocking, copy */
        } else if (o != Py_None && !pd_py_dtype(o, "to", "dtype", &dtype)) return NULL;
    }
    PyObject *key, *value;
    for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &key, &value);) {
        if (!PyUnicode_CompareWithASCIIString(key, "dtype")) {
            if (value != Py_None && !pd_py_dtype(value, "to", "dtype", &dtype)) return NULL;
        } else if (!PyUnicode_CompareWithASCIIString(key, "device")) {
            if (!pd_py_device(value, "to")) return NULL;
        } else if (!PyUnicode_CompareWithASCIIString(key, "copy")) copy = PyObject_IsTrue(value) == 1;
        else if (PyUnicode_CompareWithASCIIString(key, "non_blocking") && PyUnicode_CompareWithASCIIString(key, "other"))
            return PyErr_Format(PyExc_TypeError, "to: unexpected keyword argument %R", key);
    }
    return cast_to(self, (pd_dtype)dtype, copy);
}

METHOD(type_as) {
    pd_tensor *other = PyTuple_GET_SIZE(args) == 1 ? pd_py_expect_tensor(PyTuple_GET_ITEM(args, 0), "type_as", "other") : NULL;
    if (!other) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "type_as: expected one tensor");
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
    if (t->ndim > 2) return PyErr_Format(pd_py.E_SHAPE, "t: shape %s (expected at most 2 dimensions)", pd_tensor_shape(t));
    return get_T(self, NULL);
}

METHOD(expand_as) {
    T;
    pd_tensor *other = PyTuple_GET_SIZE(args) == 1 ? pd_py_expect_tensor(PyTuple_GET_ITEM(args, 0), "expand_as", "other") : NULL, *out;
    if (!other) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "expand_as: expected one tensor");
    pd_ints size = {.n = other->ndim};
    memcpy(size.v, other->size, sizeof(int64_t) * (size_t)other->ndim);
    PD_PY_TRY(pd_call1(PD_OP_expand, t, &size, &out));
    return pd_py_wrap_new(out);
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

static PyObject *call_helper(const char *name, PyObject *self) { /* pydist._tensor: what reads better in Python */
    PyObject *module = PyImport_ImportModule("pydist._tensor");
    PyObject *result = module ? PyObject_CallMethod(module, name, "O", self) : NULL;
    Py_XDECREF(module);
    return result;
}

static PyObject *tensor_repr(PyObject *self) { return call_helper("tensor_repr", self); }
METHOD(reduce_ex) { (void)args; return call_helper("reduce", self); }
METHOD(deepcopy) {
    PyObject *module = PyImport_ImportModule("pydist._tensor"), *memo = PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : Py_None;
    PyObject *result = module ? PyObject_CallMethod(module, "deepcopy", "OO", self, memo) : NULL;
    Py_XDECREF(module);
    return result;
}

METHOD(register_hook) { return PyTuple_GET_SIZE(args) == 1 ? pd_py_register_hook(self, PyTuple_GET_ITEM(args, 0)) : PyErr_Format(PyExc_TypeError, "register_hook: expected one function"); }
METHOD(register_post) { return PyTuple_GET_SIZE(args) == 1 ? pd_py_register_post_hook(self, PyTuple_GET_ITEM(args, 0)) : PyErr_Format(PyExc_TypeError, "register_post_accumulate_grad_hook: expected one function"); }

METHOD(retain_grad) {
    T;
    (void)args;
    if (!pd_tensor_wants_grad(t)) return PyErr_Format(PyExc_RuntimeError, "retain_grad: the tensor does not require grad");
    PD_PY_TRY(pd_tensor_retain_grad(t));
    Py_RETURN_NONE;
}

METHOD(format) {
    PyObject *spec, *item, *result;
    T;
    if (!PyArg_ParseTuple(args, "U:__format__", &spec)) return NULL;
    if (t->ndim) return PyObject_CallMethod((PyObject *)&PyBaseObject_Type, "__format__", "OO", self, spec);
    item = item_of(t);
    result = item ? PyObject_Format(item, spec) : NULL;
    Py_XDECREF(item);
    return result;
}

METHOD(copy) { (void)args; return call_helper("shallow_copy", self); }

static PyMethodDef methods[] = {
    {"_make_subclass", make_subclass, METH_VARARGS | METH_STATIC, "_make_subclass(cls, data, requires_grad=False): data's memory as an instance of cls."},
    {"size", m_size, METH_VARARGS, "size(dim=None)\n\nThe sizes, or one of them."},
    {"stride", m_stride, METH_VARARGS, "stride(dim=None)\n\nThe strides in elements, or one of them."},
    {"dim", m_dim, METH_NOARGS, "dim()\n\nHow many dimensions."},
    {"numel", m_numel, METH_NOARGS, "numel()\n\nHow many elements."},
    {"nelement", m_numel, METH_NOARGS, "nelement()\n\nHow many elements."},
    {"element_size", m_element_size, METH_NOARGS, "element_size()\n\nBytes of one element."},
    {"storage_offset", m_storage_offset, METH_NOARGS, "storage_offset()\n\nElements before this view's first one."},
    {"share_memory_", pd_py_share_memory, METH_NOARGS,
     "share_memory_()\n\nMoves the tensor, and all that are views of the same memory, to where other processes can map it. Arrays made\n"
     "from them before keep the old memory, as it was."},
    {"is_shared", pd_py_is_shared, METH_NOARGS, "is_shared()\n\nWhether other processes can map the tensor's memory."},
    {"data_ptr", m_data_ptr, METH_NOARGS, "data_ptr()\n\nAddress of the first element."},
    {"is_contiguous", m_is_contiguous, METH_NOARGS, "is_contiguous()\n\nTrue where the elements lie in C order without gaps."},
    {"is_floating_point", m_is_floating_point, METH_NOARGS, "is_floating_point()\n\nTrue for floating dtypes."},
    {"is_inference", m_is_inference, METH_NOARGS, "is_inference()\n\nWhether the memory was made in inference mode."},
    {"item", m_item, METH_NOARGS, "item()\n\nThe one element as a Python number."},
    {"tolist", m_tolist, METH_NOARGS, "tolist()\n\nNested lists of Python numbers."},
    {"contiguous", m_contiguous, METH_NOARGS, "contiguous()\n\nThis tensor, or a contiguous copy."},
    {"detach", m_detach, METH_NOARGS, "detach()\n\nThe same memory without history."},
    {"detach_", m_detach_, METH_NOARGS, "detach_()\n\nForgets the history of this tensor."},
    {"requires_grad_", m_requires_grad_, METH_VARARGS, "requires_grad_(requires_grad=True)\n\nAsks for gradients."},
    {"float", m_float, METH_NOARGS, "float()\n\nAs float32."},
    {"double", m_double, METH_NOARGS, "double()\n\nAs float64."},
    {"half", m_half, METH_NOARGS, "half()\n\nAs float16."},
    {"bfloat16", m_bfloat16, METH_NOARGS, "bfloat16()\n\nAs bfloat16."},
    {"long", m_long, METH_NOARGS, "long()\n\nAs int64."},
    {"int", m_int, METH_NOARGS, "int()\n\nAs int32."},
    {"bool", m_boolean, METH_NOARGS, "bool()\n\nAs bool: nonzero is True."},
    {"cpu", m_cpu, METH_NOARGS, "cpu()\n\nOn the CPU."},
    {"to", (PyCFunction)(void (*)(void))m_to, METH_VARARGS | METH_KEYWORDS, "to(dtype | device | other, ...)\n\nIn another dtype or on another device."},
    {"type_as", m_type_as, METH_VARARGS, "type_as(other)\n\nIn other's dtype."},
    {"copy_", m_copy_, METH_VARARGS, "copy_(src, non_blocking=False)\n\nWrites src, broadcast and converted, into this tensor."},
    {"zero_", m_zero_, METH_NOARGS, "zero_()\n\nWrites zeros."},
    {"t", m_t, METH_NOARGS, "t()\n\nThe transpose of a matrix."},
    {"expand_as", m_expand_as, METH_VARARGS, "expand_as(other)\n\nBroadcast to other's shape."},
    {"index_put_", m_index_put_, METH_VARARGS, "index_put_(indices, values, accumulate=False)\n\nself[indices] = values (+=), in place."},
    {"numpy", pd_py_numpy, METH_VARARGS, "numpy()\n\nA NumPy array over the same memory."},
    {"backward", (PyCFunction)(void (*)(void))pd_py_tensor_backward, METH_VARARGS | METH_KEYWORDS,
     "backward(gradient=None, retain_graph=None, create_graph=False, inputs=None)\n\nAdds the gradients of this tensor to the .grad of the leaves."},
    {"register_hook", m_register_hook, METH_VARARGS, "register_hook(hook)\n\nhook(grad) -> Tensor or None, called when this tensor's gradient is known."},
    {"register_post_accumulate_grad_hook", m_register_post, METH_VARARGS, "register_post_accumulate_grad_hook(hook)\n\nhook(leaf), called after .grad is written."},
    {"retain_grad", m_retain_grad, METH_NOARGS, "retain_grad()\n\nKeeps .grad of a tensor that is not a leaf."},
    {"__dlpack__", (PyCFunction)(void (*)(void))pd_py_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)\n\nA DLPack capsule over the memory; versioned where max_version is at least (1, 0)."},
    {"__dlpack_device__", pd_py_dlpack_device, METH_NOARGS, "__dlpack_device__()\n\n(1, 0): the CPU."},
    {"__reduce_ex__", m_reduce_ex, METH_VARARGS, NULL},
    {"__deepcopy__", m_deepcopy, METH_VARARGS, NULL},
    {"__copy__", m_copy, METH_NOARGS, NULL},
    {"__format__", m_format, METH_VARARGS, NULL},
    {0},
};

/* ---- operators ---------------------------------------------------------------------------------------------------------- */

#define BINARY(name) static PyObject *nb_##name(PyObject *a, PyObject *b) { return pd_py_binary(PD_OP_##name, a, b); } \
                     static PyObject *nb_i##name(PyObject *a, PyObject *b) { return pd_py_inplace(PD_OP_##name, a, b); }
BINARY(add) BINARY(sub) BINARY(mul) BINARY(div)
static PyObject *nb_pow(PyObject *a, PyObject *b, PyObject *mod) {
    if (mod != Py_None) return PyErr_Format(PyExc_TypeError, "pow: a modulus is not supported");
    return pd_py_binary(PD_OP_pow, a, b);
}
static PyObject *nb_and(PyObject *a, PyObject *b) { return pd_py_binary(PD_OP_logical_and, a, b); }
static PyObject *nb_or(PyObject *a, PyObject *b) { return pd_py_binary(PD_OP_logical_or, a, b); }
static PyObject *nb_neg(PyObject *a) { return pd_py_unary(PD_OP_neg, a); }
static PyObject *nb_abs(PyObject *a) { return pd_py_unary(PD_OP_abs, a); }
static PyObject *nb_pos(PyObject *a) { return Py_NewRef(a); }
static PyObject *nb_invert(PyObject *a) {
    if (pd_py_tensor(a)->dtype != PD_BOOL) return PyErr_Format(pd_py.E_DTYPE, "~: %s (expected bool)", pd_dtype_name((pd_dtype)pd_py_tensor(a)->dtype));
    PyObject *f = Py_False;
    return pd_py_binary(PD_OP_eq, a, f);
}

static PyObject *nb_matmul(PyObject *a, PyObject *b) {
    pd_tensor *out;
    if (!pd_py_is_tensor(a) || !pd_py_is_tensor(b)) Py_RETURN_NOTIMPLEMENTED;
    PD_PY_TRY(pd_call2(PD_OP_matmul, pd_py_tensor(a), pd_py_tensor(b), NULL, &out));
    return pd_py_wrap_new(out);
}

static int nb_bool(PyObject *self) {
    T;
    pd_scalar s;
    if (t->numel != 1) {
        PyErr_Format(PyExc_RuntimeError, "the truth of a tensor of shape %s is ambiguous (expected one element, or any(), all())", pd_tensor_shape(t));
        return -1;
    }
    pd_item(t, &s);
    return s.cat == PD_CAT_FLOAT ? s.d != 0 : s.i != 0;
}

static PyObject *nb_int(PyObject *self) {
    PyObject *item = m_item(self, NULL), *result = item ? PyNumber_Long(item) : NULL;
    Py_XDECREF(item);
    return result;
}
static PyObject *nb_float(PyObject *self) {
    PyObject *item = m_item(self, NULL), *result = item ? PyNumber_Float(item) : NULL;
    Py_XDECREF(item);
    return result;
}
static PyObject *nb_index(PyObject *self) {
    T;
    if (pd_dtype_category((pd_dtype)t->dtype) > PD_CAT_INT || t->numel != 1)
        return PyErr_Format(PyExc_TypeError, "only integer tensors of one element can be an index, got %s of shape %s", pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t));
    return m_item(self, NULL);
}

static PyObject *richcompare(PyObject *a, PyObject *b, int op) {
    static const pd_op_id ops[] = {[Py_LT] = PD_OP_lt, [Py_LE] = PD_OP_le, [Py_EQ] = PD_OP_eq, [Py_NE] = PD_OP_ne, [Py_GT] = PD_OP_gt, [Py_GE] = PD_OP_ge};
    return pd_py_binary(ops[op], a, b);
}

static Py_hash_t hash(PyObject *self) { return (Py_hash_t)((uintptr_t)self >> 4); } /* identity: == is elementwise */

static Py_ssize_t length(PyObject *self) {
    T;
    if (t->ndim) return (Py_ssize_t)t->size[0];
    PyErr_SetString(PyExc_TypeError, "len() of a 0-d tensor");
    return -1;
}

static PyObject *sequence_item(PyObject *self, Py_ssize_t i) {
    T;
    pd_tensor *out;
    if (t->ndim && i >= t->size[0]) return PyErr_Format(PyExc_IndexError, "index %zd is out of range", i); /* ends iteration */
    struct { int64_t dim, index; } attrs = {0, i};
    PD_PY_TRY(pd_call1(PD_OP_select, t, &attrs, &out));
    return pd_py_wrap_new(out);
}

static int contains(PyObject *self, PyObject *value) { /* value == self, anywhere */
    PyObject *equal = pd_py_binary(PD_OP_eq, self, value);
    pd_reduce_attrs all = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
    pd_tensor *any;
    pd_scalar found;
    if (!equal || equal == Py_NotImplemented) {
        if (equal) PyErr_Format(PyExc_TypeError, "in: %.100s is no tensor or number", Py_TYPE(value)->tp_name);
        Py_XDECREF(equal);
        return -1;
    }
    pd_status status = pd_call1(PD_OP_any, pd_py_tensor(equal), &all, &any);
    Py_DECREF(equal);
    if (status) {
        pd_py_raise(status);
        return -1;
    }
    pd_item(any, &found);
    pd_tensor_release(any);
    return found.i != 0;
}

static PyObject *iter(PyObject *self) {
    T;
    if (t->ndim == 0) return PyErr_Format(PyExc_TypeError, "iteration over a 0-d tensor");
    return PySeqIter_New(self);
}

static PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(pd_pytensor, weakrefs), READONLY, NULL},
                                {"__dictoffset__", T_PYSSIZET, offsetof(pd_pytensor, dict), READONLY, NULL}, {0}};
static PyType_Slot slots[] = {
    {Py_tp_new, tensor_new}, {Py_tp_dealloc, tensor_dealloc}, {Py_tp_traverse, tensor_traverse}, {Py_tp_clear, tensor_clear},
    {Py_tp_getset, getset}, {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_repr, tensor_repr},
    {Py_tp_richcompare, richcompare}, {Py_tp_hash, hash}, {Py_tp_iter, iter},
    {Py_nb_add, nb_add}, {Py_nb_subtract, nb_sub}, {Py_nb_multiply, nb_mul}, {Py_nb_true_divide, nb_div}, {Py_nb_power, nb_pow},
    {Py_nb_matrix_multiply, nb_matmul}, {Py_nb_negative, nb_neg}, {Py_nb_positive, nb_pos}, {Py_nb_absolute, nb_abs}, {Py_nb_invert, nb_invert},
    {Py_nb_and, nb_and}, {Py_nb_or, nb_or}, {Py_nb_inplace_add, nb_iadd}, {Py_nb_inplace_subtract, nb_isub}, {Py_nb_inplace_multiply, nb_imul},
    {Py_nb_inplace_true_divide, nb_idiv}, {Py_nb_bool, nb_bool}, {Py_nb_int, nb_int}, {Py_nb_float, nb_float}, {Py_nb_index, nb_index},
    {Py_mp_length, length}, {Py_mp_subscript, pd_py_getitem}, {Py_mp_ass_subscript, pd_py_setitem}, {Py_sq_item, sequence_item}, {Py_sq_length, length}, {Py_sq_contains, contains},
    {Py_bf_getbuffer, pd_py_getbuffer}, {Py_bf_releasebuffer, pd_py_releasebuffer},
    {Py_tp_doc, "A dense array with a dtype, strides and, where requires_grad is set, a history for backward()."}, {0},
};
static PyType_Spec spec = {.name = "pydist.Tensor", .basicsize = sizeof(pd_pytensor), .slots = slots,
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC};

static PyType_Slot meta_slots[] = {{Py_tp_init, meta_init}, {0}};
static PyType_Spec meta_spec = {.name = "pydist._C.TensorMeta", .slots = meta_slots, .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE};

int pd_py_add_tensor(PyObject *module) {
    PyObject *bases = PyTuple_Pack(1, &PyType_Type);
    bool ok = bases && pd_py_type(module, &meta_spec, bases, &pd_py.TensorMeta) && pd_py_type(module, &spec, NULL, &pd_py.Tensor);
    Py_XDECREF(bases);
    if (!ok) return -1;
    /* PyType_FromMetaclass is 3.12's; a heap type may change its class to one of the same layout. */
    Py_SET_TYPE(pd_py.Tensor, (PyTypeObject *)Py_NewRef(pd_py.TensorMeta));
    pd_tensor_drop_wrapper = drop_wrapper;
    return 0;
}
