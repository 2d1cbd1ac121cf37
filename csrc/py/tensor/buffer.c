/* Shares memory with other objects without a copy, by the buffer protocol, both ways. NumPy's arrays go through
   numpy.c, and through this file only if NumPy's API cannot be opened. */
#include "base/mem.h"
#include "py/py.h"

/* PEP 3118 letters; bfloat16 has none. */
static const char *const formats[PD_DTYPE_COUNT] = {[PD_BOOL] = "?", [PD_U8] = "B",  [PD_I8] = "b",
                                                    [PD_I16] = "h",  [PD_I32] = "i", [PD_I64] = "l",
                                                    [PD_F16] = "e",  [PD_F32] = "f", [PD_F64] = "d",
                                                    [PD_C64] = "Zf", [PD_C128] = "Zd"};

typedef struct { Py_ssize_t shape[PD_MAX_DIMS], strides[PD_MAX_DIMS]; pd_storage *lent; } exported;

static bool has(int flags, int all) { return (flags & all) == all; }

static bool lies_as_asked(const pd_tensor *t, int flags) {
    int64_t first[PD_MAX_DIMS]; /* strides with the first dimension the fastest */
    if (!has(flags, PyBUF_STRIDES) || has(flags, PyBUF_C_CONTIGUOUS)) return pd_tensor_is_contiguous(t);
    if (!has(flags, PyBUF_F_CONTIGUOUS) && !has(flags, PyBUF_ANY_CONTIGUOUS)) return true;
    if (has(flags, PyBUF_ANY_CONTIGUOUS) && pd_tensor_is_contiguous(t)) return true;
    int64_t step = 1;
    for (int d = 0; d < t->ndim; d++) first[d] = step, step *= t->size[d];
    for (int d = 0; d < t->ndim && t->numel; d++)
        if (t->size[d] > 1 && t->stride[d] != first[d]) return false;
    return true;
}

int pd_py_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    if (pd_is_recording()) pd_record_read("the buffer protocol");
    pd_tensor *t = pd_py_tensor(self);
    exported *e;
    if (!pd_py_on_host(t, "numpy")) return -1;
    if (t->spread) {
        PyErr_SetString(PyExc_BufferError, "buffer: got a DTensor (expected to_local() or full_tensor() first, whose "
                                           "memory is in one place)");
        return -1;
    }
    if (!formats[t->dtype]) {
        PyErr_Format(PyExc_BufferError,
                     "buffer: the buffer protocol has no format for %s (expected another dtype: float())",
                     pd_dtype_name((pd_dtype)t->dtype));
        return -1;
    }
    if (pd_tensor_wants_grad(t)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "buffer: the tensor requires grad, so it cannot lend its memory (expected detach())");
        return -1;
    }
    if (!lies_as_asked(t, flags)) {
        PyErr_SetString(
            PyExc_BufferError,
            "buffer: the tensor is not contiguous in the order that the receiver asks for (expected contiguous())");
        return -1;
    }
    if ((flags & PyBUF_WRITABLE) && t->storage->read_only) {
        PyErr_SetString(PyExc_BufferError,
                        "buffer: the tensor is read-only, but the receiver wants to write (expected clone())");
        return -1;
    }
    PD_PY_TRY_INT(pd_malloc(sizeof *e, "buffer", &e));
    Py_ssize_t size = (Py_ssize_t)pd_dtype_size((pd_dtype)t->dtype);
    for (int d = 0; d < t->ndim; d++) {
        e->shape[d] = (Py_ssize_t)t->size[d];
        e->strides[d] = (Py_ssize_t)t->stride[d] * size;
    }
    bool written = !t->storage->read_only; /* also receivers that only read get writable memory */
    pd_status status = pd_storage_lend("numpy", e->lent = t->storage, PD_LENT_ARRAY, written);
    if (status) {
        pd_free(e);
        pd_py_raise(status);
        return -1;
    }
    *view = (Py_buffer){.buf = pd_tensor_data(t),
                        .obj = Py_NewRef(self),
                        .len = (Py_ssize_t)pd_tensor_bytes(t),
                        .itemsize = size,
                        .readonly = !written,
                        .ndim = t->ndim,
                        .internal = e};
    if (flags & PyBUF_FORMAT) view->format = (char *)(uintptr_t)formats[t->dtype];
    if (flags & PyBUF_ND) view->shape = e->shape;
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) view->strides = e->strides;
    return 0;
}

void pd_py_releasebuffer(PyObject *self, Py_buffer *view) {
    exported *e = view->internal;
    (void)self;
    pd_storage_give_back(e->lent, PD_LENT_ARRAY, !view->readonly);
    pd_free(e);
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

static void give_back(void *ctx) {
    Py_buffer *view = ctx;
    if (PyGILState_Check()) {
        PyBuffer_Release(view);
        pd_free(view);
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    PyBuffer_Release(view);
    pd_free(view);
    PyGILState_Release(gil);
}

static int dtype_of(const Py_buffer *view) {
    const char *f = view->format ? view->format : "B";
    if (strchr("@=<|", *f) && *f) f++;
    if (*f == 'Z') return !strcmp(f, "Zf") ? PD_C64 : !strcmp(f, "Zd") ? PD_C128 : PD_NO_DTYPE;
    if (*f && f[1]) return PD_NO_DTYPE;
    switch (*f) {
    case '?': return PD_BOOL;
    case 'e': return PD_F16;
    case 'f': return PD_F32;
    case 'd': return PD_F64;
    case 'b': case 'h': case 'i': case 'l': case 'q':
        return view->itemsize == 1 ? PD_I8 : view->itemsize == 2 ? PD_I16 : view->itemsize == 4 ? PD_I32 : PD_I64;
    case 'B': return PD_U8;
    default: return PD_NO_DTYPE;
    }
}

pd_status pd_py_borrow(const char *op, void *data, pd_dtype dtype, int ndim, const int64_t *size, const int64_t *stride,
                       bool read_only, void (*drop)(void *), void *ctx, pd_tensor **out) {
    int64_t bytes = (int64_t)pd_dtype_size(dtype), numel, reach = 1;
    PD_TRY(pd_shape_numel(op, ndim, size, &numel));
    pd_tensor *t;
    PD_TRY(pd_tensor_shell(&t));
    pd_status status = PD_OK;
    t->dtype = (int8_t)dtype;
    t->ndim = (int8_t)ndim;
    t->numel = numel;
    for (int d = 0; d < ndim && !status; d++) {
        int64_t last;
        t->size[d] = size[d];
        t->stride[d] = size[d] > 1 ? stride[d] : 1;
        if (t->stride[d] < 0)
            status = pd_fail(PD_E_VALUE, "%s: stride %lld of dimension %d is negative (expected a copy)", op,
                             (long long)stride[d], d);
        else if (numel && (__builtin_mul_overflow(size[d] - 1, t->stride[d], &last) ||
                           __builtin_add_overflow(reach, last, &reach)))
            status =
                pd_fail(PD_E_VALUE, "%s: strides reach over too much memory (expected less than 2^63 elements)", op);
    }
    int64_t aligned = (int64_t)pd_dtype_size(pd_dtype_part(dtype));
    if (!status && numel && (!data || (uintptr_t)data % (uintptr_t)aligned))
        status = pd_fail(PD_E_VALUE,
                         "%s: the memory is not aligned (expected an address that is a multiple of %lld, or a copy)",
                         op, (long long)aligned);
    size_t size_of_all = numel ? (size_t)reach * (size_t)bytes : 0;
    PD_THEN(pd_storage_external(&pd_device_cpu, data, size_of_all, drop, ctx, &t->storage));
    if (status) {
        pd_tensor_release(t);
        return status;
    }
    t->storage->read_only = read_only;
    *out = t;
    return PD_OK;
}

static pd_status from_view(Py_buffer *view, pd_tensor **out) {
    int dtype = dtype_of(view);
    int64_t size[PD_MAX_DIMS], stride[PD_MAX_DIMS];
    Py_ssize_t each = view->itemsize, next = each; /* next: the stride of contiguous rows */
    if (dtype == PD_NO_DTYPE || each != (Py_ssize_t)pd_dtype_size((pd_dtype)dtype))
        return pd_fail(PD_E_DTYPE,
                       "from_numpy: the buffer's element type is '%s', for which there is no dtype (expected a native "
                       "bool, int, uint8, float or complex)",
                       view->format);
    if (view->ndim > PD_MAX_DIMS)
        return pd_fail(PD_E_SHAPE, "from_numpy: the buffer has %d dimensions (expected at most %d)", view->ndim,
                       PD_MAX_DIMS);
    if (view->ndim > 1 && !view->shape)
        return pd_fail(PD_E_SHAPE, "from_numpy: the buffer has %d dimensions but no shape (expected a shape)",
                       view->ndim);
    for (int d = view->ndim - 1; d >= 0; d--) { /* NumPy's datetime64 gives no strides although they are requested */
        Py_ssize_t step = view->strides ? view->strides[d] : next;
        size[d] = view->shape ? view->shape[d] : view->len / each;
        stride[d] = step / each;
        if (size[d] > 1 && step % each)
            return pd_fail(
                PD_E_VALUE,
                "from_numpy: got stride %zd in bytes of dimension %d (expected a multiple of %zd; use copy())", step, d,
                each);
        if (!view->strides && __builtin_mul_overflow(next, (Py_ssize_t)size[d], &next))
            return pd_fail(PD_E_SHAPE, "from_numpy: the buffer is too large (expected less than 2^63 bytes)");
    }
    return pd_py_borrow("from_numpy", view->buf, (pd_dtype)dtype, view->ndim, size, stride, view->readonly, give_back,
                        view, out);
}

pd_tensor *pd_py_from_buffer(PyObject *o, bool writable_only) {
    Py_buffer *view;
    pd_tensor *t = NULL;
    pd_status status = pd_malloc(sizeof *view, "from_numpy", &view);
    if (status) {
        pd_py_raise(status);
        return NULL;
    }
    if (PyObject_GetBuffer(o, view, writable_only ? PyBUF_RECORDS : PyBUF_RECORDS_RO)) {
        pd_free(view);
        return NULL;
    }
    if ((status = from_view(view, &t))) {
        PyBuffer_Release(view);
        pd_free(view);
        pd_py_raise(status);
        return NULL;
    }
    return t;
}

static PyObject *frombuffer(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", "dtype", "count", "offset", NULL};
    PyObject *buffer, *type = Py_None;
    long long count = -1, offset = 0;
    int64_t dtype;
    Py_buffer *view;
    pd_tensor *t = NULL;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OLL:frombuffer", names, &buffer, &type, &count, &offset) ||
        !pd_py_dtype(type, "frombuffer", "dtype", &dtype))
        return NULL;
    if (dtype == PD_NO_DTYPE)
        return PyErr_Format(PyExc_TypeError, "frombuffer: dtype is missing (expected a dtype such as pydist.float32)");
    PD_PY_TRY(pd_malloc(sizeof *view, "frombuffer", &view));
    if (PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)) {
        pd_free(view);
        return NULL;
    }
    bool within = offset >= 0 && offset <= view->len;
    int64_t size = (int64_t)pd_dtype_size((pd_dtype)dtype), left = within ? (view->len - offset) / size : 0;
    pd_status status = PD_OK;
    if (count < 0) count = left;
    if (!within || count > left || (count == left && (view->len - offset) % size))
        status = pd_fail(PD_E_VALUE,
                         "frombuffer: got a buffer of %zd bytes, offset %lld, count %lld, dtype %s (expected whole "
                         "elements within the buffer)",
                         view->len, offset, count, pd_dtype_name((pd_dtype)dtype));
    int64_t length = count, one = 1;
    PD_THEN(pd_py_borrow("frombuffer", (char *)view->buf + offset, (pd_dtype)dtype, 1, &length, &one,
                         view->readonly, give_back, view, &t));
    if (status) {
        PyBuffer_Release(view);
        pd_free(view);
        return pd_py_raise(status);
    }
    return pd_py_wrap_new(t);
}

static PyMethodDef functions[] = {
    {"frombuffer", (PyCFunction)(void (*)(void))frombuffer, METH_VARARGS | METH_KEYWORDS,
     "frombuffer(buffer, *, dtype, count=-1, offset=0)\n\nA 1-d tensor over the memory of an object with the buffer "
     "protocol: count elements from byte offset on\n(-1: all that follow). Errors: ValueError where the bytes are not "
     "whole, aligned elements."},
    {0}};

int pd_py_add_buffer(PyObject *module) { return PyModule_AddFunctions(module, functions); }
