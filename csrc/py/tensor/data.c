/* Makes tensors of Python's data: numbers, nested sequences, arrays. */
#include "py/py.h"

/* cast: they will be cast to another dtype */
typedef struct { int ndim; int64_t size[PD_MAX_DIMS]; int dtype; bool cast; } nest;

/* The length of a sequence; LEAF: it is a number, or should be one; -1 with the exception set. */
enum { LEAF = -2 };
static Py_ssize_t length_of(PyObject *o) {
    if (PyList_Check(o) || PyTuple_Check(o)) return PyObject_Size(o);
    if (pd_py_is_tensor(o) ? pd_py_tensor(o)->ndim == 0
                           : !PySequence_Check(o) || PyUnicode_Check(o) || PyBytes_Check(o)) return LEAF;
    Py_ssize_t n = PyObject_Size(o);
    if (n >= 0 || !PyErr_ExceptionMatches(PyExc_TypeError)) return n;
    PyErr_Clear(); /* a 0-d array has none */
    return LEAF;
}

pd_dtype pd_py_number_dtype(const pd_scalar *s) {
    const pd_dtype kinds[] = {[PD_CAT_BOOL] = PD_BOOL, [PD_CAT_INT] = PD_I64, [PD_CAT_FLOAT] = pd_default_dtype,
                              [PD_CAT_COMPLEX] = pd_dtype_with_parts(pd_default_dtype)};
    return kinds[s->cat];
}

/* Reads a number and its dtype; NumPy's scalars have a dtype of their own. */
static bool read_leaf(PyObject *o, pd_scalar *s, bool cast, pd_dtype *dtype) {
    if (pd_py_is_tensor(o)) {
        if (!pd_py_scalar(pd_py_tensor(o), PD_WAIT, s)) return false;
        *dtype = (pd_dtype)pd_py_tensor(o)->dtype;
        return true;
    }
    if (!pd_py_number(o, s)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "tensor: an element is %.100s (expected a number)", Py_TYPE(o)->tp_name);
        return false;
    }
    *dtype = pd_py_number_dtype(s);
    if (PyFloat_CheckExact(o) || PyLong_CheckExact(o) || PyComplex_CheckExact(o) || PyBool_Check(o) ||
        !PyObject_CheckBuffer(o))
        return true;
    if (pd_py_is_array(o)) return pd_py_array_dtype("tensor", o, cast, dtype);
    pd_tensor *t = pd_py_from_buffer(o, false);
    if (t) *dtype = (pd_dtype)t->dtype;
    pd_tensor_release(t);
    return t != NULL;
}

/* Before so many elements are read: whether there is memory for a byte of each. */
static bool has_room(const nest *n) {
    int64_t numel;
    pd_tensor *t = NULL;
    pd_status status = pd_shape_numel("tensor", n->ndim, n->size, &numel);
    if (!status && numel > 1 << 24) status = pd_tensor_new("tensor", PD_U8, n->ndim, n->size, &t);
    pd_tensor_release(t);
    if (status) pd_py_raise(status);
    return !status;
}

/* [new] a tensor or an array among the data, which is read as a whole. NULL: one of 0 dims, which is a number; or one
   on a GPU or without memory to share, which are read as sequences. */
static pd_tensor *part(PyObject *o) {
    if (!pd_py_is_tensor(o)) return pd_py_array_part(o);
    pd_tensor *t = pd_py_tensor(o);
    if (!t->ndim || t->storage->device != &pd_device_cpu) return NULL;
    pd_tensor_retain(t);
    return t;
}

static bool has_shape(const pd_tensor *t, int depth, const nest *n) {
    return pd_shape_equal(t->ndim, t->size, n->ndim - depth, n->size + depth);
}

static bool measure_part(const pd_tensor *t, int depth, nest *n, bool first) {
    if (first && depth + t->ndim <= PD_MAX_DIMS) {
        n->ndim = depth + t->ndim;
        memcpy(n->size + depth, t->size, sizeof *t->size * (size_t)t->ndim);
        if (!has_room(n)) return false;
    }
    if (depth + t->ndim > PD_MAX_DIMS || !has_shape(t, depth, n)) {
        PyErr_Format(PyExc_ValueError,
                     "tensor: got a tensor or array of shape %s at depth %d (expected the same shape as its "
                     "neighbours, and at most %d dimensions in all)",
                     pd_tensor_shape(t), depth, PD_MAX_DIMS);
        return false;
    }
    if (!t->numel) return true;
    n->dtype = n->dtype == PD_NO_DTYPE ? t->dtype : (int)pd_dtype_promote((pd_dtype)n->dtype, (pd_dtype)t->dtype);
    return true;
}

/* Finds the shape and the dtype. All branches must have the same shape. */
static bool measure(PyObject *o, int depth, nest *n, bool first) {
    pd_tensor *whole = part(o);
    if (whole) {
        bool ok = measure_part(whole, depth, n, first);
        pd_tensor_release(whole);
        return ok;
    }
    Py_ssize_t len = length_of(o);
    if (len == -1) return false;
    if (len == LEAF) {
        pd_scalar s;
        pd_dtype dtype;
        if (!read_leaf(o, &s, n->cast, &dtype)) return false;
        if (first) n->ndim = depth;
        if (first && !has_room(n)) return false;
        if (depth != n->ndim) {
            PyErr_Format(PyExc_ValueError, "tensor: the nesting differs: got a number at depth %d (expected depth %d)",
                         depth, n->ndim);
            return false;
        }
        n->dtype = n->dtype == PD_NO_DTYPE ? (int)dtype : (int)pd_dtype_promote((pd_dtype)n->dtype, dtype);
        return true;
    }
    if (depth >= PD_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "tensor: the sequences are nested too deeply (expected at most %d dimensions)",
                     PD_MAX_DIMS);
        return false;
    }
    if (first) n->size[depth] = len;
    if (first && depth + 1 > n->ndim) n->ndim = depth + 1;
    if (depth >= n->ndim || n->size[depth] != len) {
        PyErr_Format(PyExc_ValueError, "tensor: sequences at depth %d have lengths %lld and %zd (expected equal)",
                     depth, depth < n->ndim ? (long long)n->size[depth] : 0LL, len);
        return false;
    }
    for (Py_ssize_t i = 0; i < len; i++) {
        PyObject *item = PySequence_GetItem(o, i);
        bool ok = item && measure(item, depth + 1, n, first && i == 0);
        Py_XDECREF(item);
        if (!ok) return false;
    }
    return true;
}

static bool changed(void) {
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError,
                        "tensor: the data changed while they were read (expected that no other thread writes them)");
    return false;
}

static bool fill_part(pd_tensor *t, int depth, const nest *n, pd_dtype dtype, char **to) {
    pd_tensor *cast = NULL, *plain = NULL;
    bool mode = pd_grad_mode;
    if (!has_shape(t, depth, n)) return changed();
    if (!t->numel) return true;
    pd_grad_mode = false;
    pd_status status = pd_engine.cast(t, dtype, &cast);
    PD_THEN(pd_call1(PD_OP_clone, cast, &(int64_t){PD_FORMAT_CONTIGUOUS}, &plain));
    pd_grad_mode = mode;
    if (pd_is_recording()) pd_record_read("tensor() of a sequence");
    bool same = !status && has_shape(plain, depth, n);
    if (status) pd_py_raise(status);
    else if (!same) changed();
    else memcpy(*to, pd_tensor_data(plain), (size_t)plain->numel * pd_dtype_size(dtype));
    if (same) *to += (size_t)plain->numel * pd_dtype_size(dtype);
    pd_tensor_release(plain);
    pd_tensor_release(cast);
    return same;
}

/* Writes the data below this depth. It must still have the measured shape, since reading may run code and other
   threads. */
static bool fill_nested(PyObject *o, int depth, const nest *n, pd_dtype t, char **to) {
    pd_tensor *whole = part(o);
    if (whole) {
        bool ok = fill_part(whole, depth, n, t, to);
        pd_tensor_release(whole);
        return ok;
    }
    if (depth == n->ndim) {
        pd_scalar s;
        if (length_of(o) != LEAF) return changed();
        if (pd_py_is_tensor(o)) {
            if (!pd_py_scalar(pd_py_tensor(o), PD_WAIT, &s)) return false;
        } else if (!pd_py_number(o, &s)) return changed();
        pd_status status = pd_scalar_fits("tensor", &s, t);
        if (status) {
            pd_py_raise(status);
            return false;
        }
        pd_scalar_store(&s, t, *to);
        *to += pd_dtype_size(t);
        return true;
    }
    if (length_of(o) != n->size[depth]) return changed();
    for (Py_ssize_t i = 0; i < n->size[depth]; i++) {
        PyObject *item = PySequence_GetItem(o, i);
        bool ok = item && fill_nested(item, depth + 1, n, t, to);
        Py_XDECREF(item);
        if (!ok) return false;
    }
    return true;
}

static pd_tensor *from_nested(PyObject *data, int64_t dtype) {
    nest n = {.dtype = PD_NO_DTYPE, .cast = dtype != PD_NO_DTYPE};
    pd_tensor *t;
    if (!measure(data, 0, &n, true)) return NULL;
    if (dtype == PD_NO_DTYPE) dtype = n.dtype == PD_NO_DTYPE ? (int64_t)pd_default_dtype : n.dtype;
    pd_status status = pd_tensor_new("tensor", (pd_dtype)dtype, n.ndim, n.size, &t);
    if (status) {
        pd_py_raise(status);
        return NULL;
    }
    char *to = pd_tensor_data(t);
    if (!fill_nested(data, 0, &n, (pd_dtype)dtype, &to)) {
        pd_tensor_release(t);
        return NULL;
    }
    if (pd_is_recording()) pd_record_constant(t, true);
    return t;
}

static pd_tensor *as_it_is(const char *op, PyObject *data, int64_t dtype, bool may_copy) {
    pd_tensor *t = NULL;
    if (pd_py_is_tensor(data)) {
        pd_status status = pd_tensor_alias(pd_py_tensor(data), false, &t);
        if (status) pd_py_raise(status);
        else if (pd_is_recording()) pd_record_alias(pd_py_tensor(data), false, t);
        return t;
    }
    if (pd_py_is_array(data)) t = pd_py_from_array(op, data, dtype, may_copy);
    else t = pd_py_from_buffer(data, false); /* also NumPy's scalars, which so keep their dtype */
    if (t && pd_is_recording()) pd_record_constant(t, true);
    return t;
}

pd_tensor *pd_py_from_data(const char *op, PyObject *data, int64_t dtype, pd_py_copying copying) {
    pd_tensor *t = NULL, *out = NULL;
    bool memory = pd_py_is_tensor(data) ||
                  (PyObject_CheckBuffer(data) && !PyBytes_Check(data) && !PyByteArray_Check(data)),
         never = copying == PD_PY_COPY_NEVER;
    if (memory) t = as_it_is(op, data, dtype, !never);
    else if (!never) return from_nested(data, dtype);
    if (memory && !t) return NULL;
    bool cast = t && dtype != PD_NO_DTYPE && t->dtype != dtype;
    if (never && (!t || cast)) {
        pd_tensor_release(t);
        PyErr_Format(PyExc_ValueError, "%s: %.100s needs a copy%s, but copy is False (expected copy=None)", op,
                     Py_TYPE(data)->tp_name, cast ? " to another dtype" : "");
        return NULL;
    }
    bool mode = pd_grad_mode;
    pd_grad_mode = false;
    pd_status status = PD_OK;
    if (cast) status = pd_engine.cast(t, (pd_dtype)dtype, &out);
    else if (copying == PD_PY_COPY_ALWAYS)
        status = pd_call1(PD_OP_clone, t, &(int64_t){PD_FORMAT_CONTIGUOUS}, &out);
    else pd_tensor_retain(out = t);
    pd_grad_mode = mode;
    pd_tensor_release(t);
    if (status) pd_py_raise(status);
    return status ? NULL : out;
}
