/* The attributes of Tensor. */
#include "py/py.h"

#define T pd_tensor *t = pd_py_tensor(self)
#define GETTER(name) static PyObject *get_##name(PyObject *self, void *unused)

GETTER(shape) { (void)unused; T; return pd_py_size(t->ndim, t->size); }
GETTER(dtype) { (void)unused; T; return Py_NewRef(pd_py.dtypes[t->dtype]); }
GETTER(device) { (void)unused; return pd_py_device_of(pd_py_tensor(self)); }
GETTER(is_meta) {
    (void)unused;
    return PyBool_FromLong(pd_py_tensor(self)->storage->device == &pd_device_meta);
}
GETTER(is_cpu) { (void)unused; return PyBool_FromLong(pd_py_tensor(self)->storage->device->kind == PD_DEVICE_CPU); }
GETTER(is_cuda) { (void)unused; return PyBool_FromLong(pd_py_tensor(self)->storage->device->kind == PD_DEVICE_CUDA); }
GETTER(ndim) { (void)unused; T; return PyLong_FromLong(t->ndim); }
GETTER(version) {
    (void)unused;
    T;
    if (t->storage->inference)
        return PyErr_Format(
            PyExc_RuntimeError,
            "_version: Inference tensors do not track version counter (expected a tensor made outside inference mode)");
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

GETTER(grad) {
    T;
    (void)unused;
    pd_tensor *g = t->meta ? pd_meta_grad(t->meta) : NULL;
    if (pd_is_recording()) pd_record_grad(t, g);
    PyObject *o = pd_py_wrap(g);
    pd_tensor_release(g);
    return o;
}

static int set_grad(PyObject *self, PyObject *value, void *unused) {
    T;
    pd_meta *m = NULL;
    pd_tensor *g = NULL;
    (void)unused;
    if (value && value != Py_None) {
        if (!(g = pd_py_expect_tensor(value, "grad", "the gradient"))) return -1;
        if (!pd_tensor_same_shape(g, t) || g->dtype != t->dtype || g->storage->device != t->storage->device || g == t) {
            PyErr_Format(PyExc_RuntimeError,
                         "grad: got %s of shape %s on %s (expected another tensor, %s of shape %s on %s)",
                         pd_dtype_name((pd_dtype)g->dtype), pd_tensor_shape(g), g->storage->device->name,
                         pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name);
            return -1;
        }
        pd_tensor_retain(g);
    }
    if (pd_is_recording()) pd_record_set_grad(t, g);
    if (!g && !t->meta) return 0;
    PD_PY_TRY_INT(pd_meta_get(t, &m));
    pd_meta_set_grad(m, g);
    return 0;
}

int pd_py_set_requires_grad(PyObject *self, PyObject *value) {
    T;
    int want = value ? PyObject_IsTrue(value) : 0;
    if (want < 0) return -1;
    if (t->meta && t->meta->grad_fn && !want) {
        PyErr_SetString(
            PyExc_RuntimeError,
            "requires_grad: you can only change requires_grad flags of leaf variables (expected detach() first)");
        return -1;
    }
    if (want && pd_dtype_category((pd_dtype)t->dtype) < PD_CAT_FLOAT) {
        PyErr_Format(PyExc_RuntimeError,
                     "requires_grad: only Tensors of floating point and complex dtype can require gradients: got %s "
                     "(expected a floating or complex dtype)",
                     pd_dtype_name((pd_dtype)t->dtype));
        return -1;
    }
    if (want && t->storage->inference && !pd_inference_mode) {
        PyErr_SetString(
            PyExc_RuntimeError,
            "requires_grad: an inference tensor cannot require grad outside inference mode (expected clone() first)");
        return -1;
    }
    if (!(t->meta && t->meta->grad_fn)) {
        if (pd_is_recording() && t->requires_grad != want) pd_record_requires_grad(t, want);
        t->requires_grad = want;
    }
    return 0;
}

static int set_requires_grad(PyObject *self, PyObject *value, void *unused) {
    (void)unused;
    return pd_py_set_requires_grad(self, value);
}

GETTER(data) {
    pd_tensor *a;
    T;
    (void)unused;
    PD_PY_TRY(pd_tensor_alias(t, true, &a));
    if (pd_is_recording()) pd_record_alias(t, true, a);
    return pd_py_wrap_new(a);
}

static int set_data(PyObject *self, PyObject *value, void *unused) {
    T;
    (void)unused;
    pd_tensor *from = value ? pd_py_expect_tensor(value, "data", "the value") : NULL;
    if (!from) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "data: the attribute cannot be deleted (expected a tensor)");
        return -1;
    }
    if (!from->spread != !t->spread) {
        PyErr_Format(PyExc_RuntimeError,
                     "data: got mixed torch.Tensor and DTensor: a %s cannot become a %s (expected two of a kind)",
                     t->spread ? "DTensor" : "plain tensor", from->spread ? "DTensor" : "plain tensor");
        return -1;
    }
    if (from->dtype != t->dtype && t->meta && (t->meta->grad || t->meta->destination.view)) {
        PyErr_Format(
            PyExc_RuntimeError,
            "data: the dtype cannot change from %s to %s while the tensor has a gradient (expected grad = None first)",
            pd_dtype_name((pd_dtype)t->dtype), pd_dtype_name((pd_dtype)from->dtype));
        return -1;
    }
    bool made = (t->meta && t->meta->grad_fn) || (t->base && pd_tensor_wants_grad(t));
    if (made && (from->dtype != t->dtype || from->storage->device != t->storage->device ||
                 !pd_tensor_same_shape(from, t))) {
        /* The op that made t expects gradients for what it made, while ops on t give gradients for what t is now. */
        PyErr_Format(PyExc_RuntimeError,
                     "data: a recorded op made this tensor, %s of shape %s on %s, so it cannot become %s of shape %s "
                     "on %s (expected detach() first)",
                     pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name,
                     pd_dtype_name((pd_dtype)from->dtype), pd_tensor_shape(from), from->storage->device->name);
        return -1;
    }
    if (pd_is_recording()) pd_record_refuse("it replaces .data of a tensor");
    pd_tensor *copy; /* gets the geometry and memory of `from`, and keeps its own history */
    PD_PY_TRY_INT(pd_tensor_alias(from, true, &copy));
    copy->version->count = pd_tensor_version(t) + 1; /* a t that was saved is not the present t */
    if (t->meta) t->meta->low.of = NULL; /* other memory may get the same address */
    pd_storage *storage = t->storage;
    pd_version *version = t->version;
    t->storage = copy->storage, copy->storage = storage;
    t->version = copy->version, copy->version = version;
    pd_tensor_set_spread(t, from->spread);
    t->dtype = copy->dtype, t->ndim = copy->ndim, t->offset = copy->offset, t->numel = copy->numel;
    memcpy(t->size, copy->size, sizeof(int64_t) * (size_t)copy->ndim);
    memcpy(t->stride, copy->stride, sizeof(int64_t) * (size_t)copy->ndim);
    pd_tensor_release(copy);
    return 0;
}

/* [new] a view of part 0 (real) or 1 (imaginary) of a complex tensor. */
static pd_status part_of(pd_tensor *t, int64_t part, pd_tensor **out) {
    struct { int64_t dim, index; } at = {-1, part};
    pd_tensor *parts;
    PD_TRY(pd_call1(PD_OP_view_as_real, t, NULL, &parts));
    pd_status status = pd_call1(PD_OP_select, parts, &at, out);
    pd_tensor_release(parts);
    return status;
}

static PyObject *get_part(PyObject *self, void *which) {
    T;
    pd_tensor *out;
    bool imaginary = which != NULL;
    if (!pd_dtype_is_complex((pd_dtype)t->dtype))
        return imaginary ? PyErr_Format(PyExc_RuntimeError, "imag: the tensor is %s (expected complex numbers)",
                                        pd_dtype_name((pd_dtype)t->dtype))
                         : Py_NewRef(self);
    PD_PY_TRY(part_of(t, imaginary, &out));
    return pd_py_wrap_new(out);
}

static int set_part(PyObject *self, PyObject *value, void *which) {
    T;
    pd_tensor *part = NULL, *from;
    if (!value) {
        PyErr_SetString(PyExc_AttributeError,
                        "real, imag: the parts of a tensor cannot be deleted (expected a tensor)");
        return -1;
    }
    if (!(from = pd_py_from_data(which ? "imag" : "real", value, PD_NO_DTYPE, PD_PY_COPY_IF_NEEDED))) return -1;
    pd_status status = PD_OK;
    if (pd_dtype_is_complex((pd_dtype)t->dtype)) status = part_of(t, which != NULL, &part);
    else if (which) status = pd_fail(PD_E_RUNTIME, "imag: the tensor is %s (expected complex numbers)",
                                     pd_dtype_name((pd_dtype)t->dtype));
    PD_THEN(pd_engine.write(part ? part : t, from));
    pd_tensor_release(part);
    pd_tensor_release(from);
    if (status) pd_py_raise(status);
    return status ? -1 : 0;
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

GETTER(mT) {
    T;
    pd_tensor *out;
    (void)unused;
    if (t->ndim < 2)
        return PyErr_Format(pd_py.E_SHAPE, "mT: the tensor has shape %s (expected at least 2 dimensions)",
                            pd_tensor_shape(t));
    PD_PY_TRY(pd_call1(PD_OP_transpose, t, &(pd_dims2_attrs){-2, -1}, &out));
    return pd_py_wrap_new(out);
}

GETTER(mH) {
    PyObject *turned = get_mT(self, unused), *out = turned ? pd_py_unary(PD_OP_conj, turned) : NULL;
    Py_XDECREF(turned);
    return out;
}
GETTER(H) {
    T;
    if (t->ndim == 2) return get_mH(self, unused);
    if (t->ndim == 0) return pd_py_unary(PD_OP_conj, self);
    return PyErr_Format(pd_py.E_SHAPE, "H: the tensor has shape %s (expected 2 dimensions)", pd_tensor_shape(t));
}
GETTER(nbytes) { (void)unused; T; return PyLong_FromSize_t(pd_tensor_bytes(t)); }
GETTER(itemsize) { (void)unused; T; return PyLong_FromSize_t(pd_dtype_size((pd_dtype)t->dtype)); }
GETTER(retains_grad) { (void)unused; T; return PyBool_FromLong(t->meta && t->meta->retained); }
GETTER(false) { (void)self, (void)unused; Py_RETURN_FALSE; }

PyGetSetDef pd_py_tensor_getset[] = {
    {"shape", get_shape, NULL, "The sizes, a Size.", NULL},
    {"dtype", get_dtype, NULL, "The element type.", NULL},
    {"device", get_device, NULL, "The device of the tensor's memory.", NULL},
    {"ndim", get_ndim, NULL, "The number of dimensions.", NULL},
    {"_version", get_version, NULL, "The number of in-place writes so far; all views share it.", NULL},
    {"_base", get_base, NULL, "The tensor that this is a view of, or None.", NULL},
    {"requires_grad", get_requires_grad, set_requires_grad,
     "Whether autograd computes a gradient for this tensor; can be set on leaves.", NULL},
    {"is_leaf", get_is_leaf, NULL, "True if no recorded op made this tensor.", NULL},
    {"grad_fn", get_grad_fn, NULL, "The autograd node that made this tensor, or None.", NULL},
    {"grad", get_grad, set_grad, "The gradient that backward accumulated, or None.", NULL},
    {"data", get_data, set_data, "The same memory without history and with its own version counter; can be set.", NULL},
    {"mT", get_mT, NULL, "The last two dimensions swapped.", NULL},
    {"mH", get_mH, NULL, "The conjugate with the last two dimensions swapped.", NULL},
    {"H", get_H, NULL, "The conjugate transpose of a matrix.", NULL},
    {"real", get_part, set_part, "The real parts, as a view; of a real tensor the tensor itself.", NULL},
    {"imag", get_part, set_part, "The imaginary parts of a complex tensor, as a view.", (void *)1},
    {"nbytes", get_nbytes, NULL, "The bytes of all elements together.", NULL},
    {"itemsize", get_itemsize, NULL, "The bytes of one element.", NULL},
    {"retains_grad", get_retains_grad, NULL, "Whether retain_grad() was called on this non-leaf tensor.", NULL},
    {"is_cpu", get_is_cpu, NULL, "Whether the tensor is on the CPU.", NULL},
    {"is_cuda", get_is_cuda, NULL, "Whether the tensor is on a CUDA device.", NULL},
    {"is_xpu", get_false, NULL, "Whether the tensor is on an Intel GPU.", NULL},
    {"is_mps", get_false, NULL, "Whether the tensor is on an Apple GPU.", NULL},
    {"is_sparse", get_false, NULL, "False: all tensors are dense.", NULL},
    {"is_sparse_csr", get_false, NULL, "False: all tensors are dense.", NULL},
    {"is_nested", get_false, NULL, "False: there are no nested tensors.", NULL},
    {"is_mkldnn", get_false, NULL, "False: all tensors have strides.", NULL},
    {"is_quantized", get_false, NULL, "False: there are no quantized dtypes.", NULL},
    {"is_meta", get_is_meta, NULL, "Whether it is on meta: it has a shape, but no memory.", NULL},
    {"T", get_T, NULL, "The dimensions in reverse order.", NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};
