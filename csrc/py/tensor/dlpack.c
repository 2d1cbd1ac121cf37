/* DLPack, both ways: shares memory with other libraries by capsules (dmlc.github.io/dlpack, versions 0 and 1). */
#include "base/mem.h"
#include "py/py.h"

/* ---- the protocol's own layout ----------------------------------------------------------------------------------- */

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };
enum { DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT = 4, DL_COMPLEX, DL_BOOL };
enum { DL_READ_ONLY = 1, DL_COPIED = 2 };

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* in elements; strides NULL: contiguous */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor t;
    void *ctx;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

typedef struct dl_versioned {
    uint32_t major, minor;
    void *ctx;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    dl_tensor t;
} dl_versioned;

static const struct { uint8_t code, bits;
} types[PD_DTYPE_COUNT] = {
    [PD_BOOL] = {DL_BOOL, 8},  [PD_U8] = {DL_UINT, 8},    [PD_I8] = {DL_INT, 8},     [PD_I16] = {DL_INT, 16},
    [PD_I32] = {DL_INT, 32},   [PD_I64] = {DL_INT, 64},   [PD_F16] = {DL_FLOAT, 16}, [PD_BF16] = {DL_BFLOAT, 16},
    [PD_F32] = {DL_FLOAT, 32}, [PD_F64] = {DL_FLOAT, 64}, [PD_C64] = {DL_COMPLEX, 64}, [PD_C128] = {DL_COMPLEX, 128},
};

/* ---- out --------------------------------------------------------------------------------------------------------- */

typedef struct lent { /* one of the two kinds of heads, and the sizes to which it points */
    dl_managed old;
    dl_versioned new;
    pd_storage *lent;
    bool written;
    int64_t shape[PD_MAX_DIMS], strides[PD_MAX_DIMS];
} lent;

static void give_back(lent *l) {
    pd_storage_give_back(l->lent, PD_LENT_DLPACK, l->written);
    pd_free(l);
}
static void delete_old(dl_managed *m) { give_back(m->ctx); }
static void delete_new(dl_versioned *m) { give_back(m->ctx); }

/* Frees a capsule that nobody has consumed: its name is still the first one. */
static void drop_capsule(PyObject *capsule) {
    dl_managed *old = PyCapsule_IsValid(capsule, "dltensor") ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
    dl_versioned *new =
        PyCapsule_IsValid(capsule, "dltensor_versioned") ? PyCapsule_GetPointer(capsule, "dltensor_versioned") : NULL;
    if (old && old->deleter) old->deleter(old);
    if (new && new->deleter) new->deleter(new);
}

static PyObject *lend(pd_tensor *t, bool versioned, bool copied) {
    if (pd_is_recording()) pd_record_read("DLPack");
    lent *l;
    PD_PY_TRY(pd_malloc(sizeof *l, "__dlpack__", &l));
    memcpy(l->shape, t->size, sizeof *t->size * (size_t)t->ndim);
    memcpy(l->strides, t->stride, sizeof *t->stride * (size_t)t->ndim);
    dl_tensor d = {.data = pd_tensor_data(t),
                   .device_type = DL_CPU,
                   .ndim = t->ndim,
                   .code = types[t->dtype].code,
                   .bits = types[t->dtype].bits,
                   .lanes = 1,
                   .shape = l->shape,
                   .strides = l->strides};
    l->old = (dl_managed){.t = d, .ctx = l, .deleter = delete_old};
    l->new = (dl_versioned){.major = 1, .ctx = l, .deleter = delete_new, .t = d,
                            .flags = (t->storage->read_only ? DL_READ_ONLY : 0) | (copied ? DL_COPIED : 0)};
    l->written = !t->storage->read_only;
    pd_status status = pd_storage_lend("__dlpack__", l->lent = t->storage, PD_LENT_DLPACK, l->written);
    if (status) {
        pd_free(l);
        return pd_py_raise(status);
    }
    PyObject *capsule = versioned ? PyCapsule_New(&l->new, "dltensor_versioned", drop_capsule)
                                  : PyCapsule_New(&l->old, "dltensor", drop_capsule);
    if (!capsule) give_back(l);
    return capsule;
}

/* Reads two ints unless o is None; false with the exception set. */
static bool pair(PyObject *o, const char *name, long *a, long *b) {
    if (o == Py_None) return true;
    if (PyTuple_Check(o)) return PyArg_ParseTuple(o, "ll:__dlpack__", a, b);
    PyErr_Format(PyExc_TypeError, "__dlpack__: %s is %.100s (expected a tuple of two ints)", name, Py_TYPE(o)->tp_name);
    return false;
}

PyObject *pd_py_dlpack(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    pd_tensor *t = pd_py_tensor(self), *own = NULL;
    long major = 0, minor = 0, type = DL_CPU, index = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream, &version, &device, &copy))
        return NULL;
    if (!pair(version, "max_version", &major, &minor) || !pair(device, "dl_device", &type, &index)) return NULL;
    if (!pd_py_on_host(t, "__dlpack__")) return NULL;
    int want_copy = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (want_copy < 0) return NULL;
    if (stream != Py_None)
        return PyErr_Format(PyExc_ValueError, "__dlpack__: stream is %R (expected None on the CPU)", stream);
    if (type != DL_CPU || index)
        return PyErr_Format(PyExc_BufferError, "__dlpack__: dl_device is (%ld, %ld) (expected (%d, 0), the CPU)", type,
                            index, DL_CPU);
    if (pd_tensor_wants_grad(t))
        return PyErr_Format(PyExc_BufferError, "__dlpack__: the tensor requires grad (expected detach())");
    if (want_copy) PD_PY_TRY(pd_call1(PD_OP_clone, t, NULL, &own));
    else if (major < 1 && t->storage->read_only)
        return PyErr_Format(PyExc_BufferError,
                            "__dlpack__: the tensor is read-only, which version 0 of the protocol cannot express "
                            "(expected max_version=(1, 0), or a copy)");
    PyObject *capsule = lend(own ? own : t, major >= 1, own);
    pd_tensor_release(own);
    return capsule;
}

PyObject *pd_py_dlpack_device(PyObject *self, PyObject *unused) {
    (void)unused;
    const pd_device *d = pd_py_tensor(self)->storage->device;
    PD_PY_TRY(pd_check_data("__dlpack_device__", d));
    return d->kind == PD_DEVICE_CPU ? Py_BuildValue("(ii)", DL_CPU, 0) : Py_BuildValue("(ii)", DL_CUDA, d->index);
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

static void return_old(void *ctx) {
    dl_managed *m = ctx;
    if (m->deleter) m->deleter(m);
}
static void return_new(void *ctx) {
    dl_versioned *m = ctx;
    if (m->deleter) m->deleter(m);
}

static int dtype_of(const dl_tensor *d) {
    for (int t = 0; t < PD_DTYPE_COUNT; t++)
        if (types[t].bits && d->lanes == 1 && types[t].code == d->code && types[t].bits == d->bits) return t;
    return PD_NO_DTYPE;
}

static pd_status borrow(const dl_tensor *d, bool read_only, void (*drop)(void *), void *ctx, pd_tensor **out) {
    int dtype = dtype_of(d);
    int64_t stride[PD_MAX_DIMS];
    if (d->device_type != DL_CPU && d->device_type != DL_CUDA_HOST)
        return pd_fail(PD_E_BUFFER, "from_dlpack: the memory has device type %d (expected %d, the CPU)", d->device_type,
                       DL_CPU);
    if (dtype == PD_NO_DTYPE)
        return pd_fail(PD_E_DTYPE,
                       "from_dlpack: got element type code %d of %d bits and %d lanes (expected the type of a dtype)",
                       d->code, d->bits, d->lanes);
    if (d->ndim < 0 || d->ndim > PD_MAX_DIMS)
        return pd_fail(PD_E_SHAPE, "from_dlpack: the capsule has %d dimensions (expected at most %d)", d->ndim,
                       PD_MAX_DIMS);
    if (!d->strides) pd_shape_contiguous(d->ndim, d->shape, stride);
    return pd_py_borrow("from_dlpack", (char *)d->data + d->byte_offset, (pd_dtype)dtype, d->ndim, d->shape,
                        d->strides ? d->strides : stride, read_only, drop, ctx, out);
}

/* [new] a tensor over the capsule's memory, which consumes the capsule; NULL with the exception set. */
static pd_tensor *take(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    pd_tensor *t = NULL;
    pd_status status;
    if (name && !strcmp(name, "dltensor_versioned")) {
        dl_versioned *m = PyCapsule_GetPointer(capsule, name);
        if (m->major != 1)
            status = pd_fail(PD_E_BUFFER, "from_dlpack: the capsule has version %u.%u of the protocol (expected 1)",
                             m->major, m->minor);
        else status = borrow(&m->t, m->flags & DL_READ_ONLY, return_new, m, &t);
        if (!status) PyCapsule_SetName(capsule, "used_dltensor_versioned");
    } else if (name && !strcmp(name, "dltensor")) {
        dl_managed *m = PyCapsule_GetPointer(capsule, name);
        status = borrow(&m->t, false, return_old, m, &t);
        if (!status) PyCapsule_SetName(capsule, "used_dltensor");
    } else {
        PyErr_Format(PyExc_ValueError,
                     "from_dlpack: the capsule's name is '%s' (expected 'dltensor' or 'dltensor_versioned'; a capsule "
                     "can be used only once)",
                     name ? name : "");
        return NULL;
    }
    if (status) pd_py_raise(status);
    return t;
}

/* Calls source.__dlpack__(max_version=(1, 0)), or without arguments if it takes none. */
static PyObject *ask(PyObject *source) {
    PyObject *method = PyObject_GetAttrString(source, "__dlpack__"), *none = method ? PyTuple_New(0) : NULL;
    PyObject *kwargs = none ? Py_BuildValue("{s(ii)}", "max_version", 1, 0) : NULL;
    PyObject *capsule = kwargs ? PyObject_Call(method, none, kwargs) : NULL;
    if (!capsule && kwargs && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        capsule = PyObject_Call(method, none, NULL);
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(none);
    Py_XDECREF(method);
    if (capsule && !PyCapsule_CheckExact(capsule)) {
        PyErr_Format(PyExc_TypeError, "from_dlpack: __dlpack__ returned %.100s (expected a capsule)",
                     Py_TYPE(capsule)->tp_name);
        Py_CLEAR(capsule);
    }
    return capsule;
}

static PyObject *from_dlpack(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"ext_tensor", "device", "copy", NULL};
    PyObject *source, *device = NULL, *copy = Py_None;
    (void)module;
    pd_py_drain();
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OO:from_dlpack", names, &source, &device, &copy) ||
        !pd_py_device(device, "from_dlpack"))
        return NULL;
    int want_copy = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (want_copy < 0) return NULL;
    if (!PyCapsule_CheckExact(source) && !PyObject_HasAttrString(source, "__dlpack__"))
        return PyErr_Format(PyExc_TypeError,
                            "from_dlpack: got %.100s (expected a capsule or an object with __dlpack__)",
                            Py_TYPE(source)->tp_name);
    PyObject *capsule = PyCapsule_CheckExact(source) ? Py_NewRef(source) : ask(source);
    pd_tensor *t = capsule ? take(capsule) : NULL, *own = t;
    Py_XDECREF(capsule);
    if (!t) return NULL;
    if (want_copy) {
        pd_status status = pd_call1(PD_OP_clone, t, NULL, &own);
        pd_tensor_release(t);
        PD_PY_TRY(status);
    }
    return pd_py_wrap_new(own);
}

static PyObject *to_dlpack(PyObject *module, PyObject *tensor) {
    (void)module;
    PyObject *none = pd_py_expect_tensor(tensor, "to_dlpack", "the argument") ? PyTuple_New(0) : NULL;
    PyObject *capsule = none ? pd_py_dlpack(tensor, none, NULL) : NULL;
    Py_XDECREF(none);
    return capsule;
}

static PyMethodDef functions[] = {
    {"from_dlpack", (PyCFunction)(void (*)(void))from_dlpack, METH_VARARGS | METH_KEYWORDS,
     "from_dlpack(ext_tensor, *, device=None, copy=None)\n\nA tensor over the memory of a DLPack capsule, or of an "
     "object with __dlpack__ (NumPy's arrays, other libraries'\ntensors); with copy=True, over its own memory. "
     "In-place ops refuse tensors over read-only memory. Errors:\nBufferError for other devices, DTypeError for other "
     "element types, ValueError for negative strides and for a\ncapsule that was used before."},
    {"to_dlpack", to_dlpack, METH_O,
     "to_dlpack(tensor)\n\nA DLPack capsule (version 0) over the tensor's memory; it can be used once."},
    {0},
};

int pd_py_add_dlpack(PyObject *module) { return PyModule_AddFunctions(module, functions); }
