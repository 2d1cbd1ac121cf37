/* Numbers of elements, their random order, and rows by their numbers, for pydist/data. */
#include "data/order.h"
#include "py/data/data.h"

static bool member(PyObject *range, const char *name, int64_t *out) {
    PyObject *value = PyObject_GetAttrString(range, name);
    bool ok = value && pd_py_int(value, "data", name, out);
    Py_XDECREF(value);
    return ok;
}

bool pd_py_numbers(PyObject *o, const char *op, pd_numbers *out) {
    if (PyRange_Check(o)) {
        Py_ssize_t n = PyObject_Size(o);
        *out = (pd_numbers){.n = n};
        return n >= 0 && member(o, "start", &out->first) && member(o, "step", &out->step);
    }
    pd_tensor *t = pd_py_plain(o, op, "numbers", PD_I64, 1);
    if (!t) return false;
    *out = (pd_numbers){.list = pd_tensor_data(t), .n = t->numel};
    return true;
}

pd_tensor *pd_py_plain(PyObject *o, const char *op, const char *arg, int dtype, int ndim) {
    pd_tensor *t = pd_py_expect_tensor(o, op, arg);
    if (!t || !pd_py_on_host(t, op)) return NULL;
    if ((dtype < 0 || t->dtype == dtype) && (ndim < 0 || t->ndim == ndim) && pd_tensor_is_contiguous(t)) return t;
    PyErr_Format(PyExc_TypeError, "%s: %s is a %s tensor of shape %s (expected a contiguous one of %s with %d dims)",
                 op, arg, pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t),
                 dtype < 0 ? "any dtype" : pd_dtype_name((pd_dtype)dtype), ndim < 0 ? t->ndim : ndim);
    return NULL;
}

pd_tensor *pd_py_made(const char *op, pd_dtype dtype, int ndim, const int64_t *size) {
    const pd_device *was;
    pd_tensor *t = NULL;
    pd_status status = pd_device_enter(&pd_device_cpu, &was);
    PD_THEN(pd_tensor_new(op, dtype, ndim, size, &t));
    pd_device_here = was;
    if (status) pd_py_raise(status);
    return t;
}

static PyObject *order(PyObject *module, PyObject *args) {
    static const char op[] = "shuffle";
    long long n, window;
    unsigned long long seed, epoch;
    PyObject *o;
    pd_numbers places;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLKKO:_data_order", &n, &window, &seed, &epoch, &o)) return NULL;
    if (window < 1) return PyErr_Format(PyExc_ValueError, "shuffle: buffer_size is %lld (expected at least 1)", window);
    if (!pd_py_numbers(o, op, &places)) return NULL;
    PD_PY_TRY(pd_numbers_check(op, &places, n, "elements"));
    pd_tensor *to = pd_py_made(op, PD_I64, 1, &places.n);
    if (to) pd_order(n, window, seed, epoch, &places, pd_tensor_data(to));
    return to ? pd_py_wrap_new(to) : NULL;
}

static PyObject *gather(PyObject *module, PyObject *args) {
    static const char op[] = "from_tensor_slices";
    PyObject *source, *o;
    pd_numbers rows;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:_data_gather", &source, &o)) return NULL;
    pd_tensor *from = pd_py_plain(source, op, "source", -1, -1);
    if (!from || !pd_py_numbers(o, op, &rows)) return NULL;
    if (!from->ndim) return PyErr_Format(PyExc_ValueError, "%s: source has no dims (expected at least one)", op);
    PD_PY_TRY(pd_numbers_check(op, &rows, from->size[0], "rows"));
    int64_t size[PD_MAX_DIMS], each = (int64_t)pd_dtype_size((pd_dtype)from->dtype);
    for (int d = 0; d < from->ndim; d++) size[d] = d ? from->size[d] : rows.n;
    for (int d = 1; d < from->ndim; d++) each *= from->size[d];
    pd_tensor *to = pd_py_made(op, (pd_dtype)from->dtype, from->ndim, size);
    if (!to) return NULL;
    Py_INCREF(o); /* while the lock is given up */
    pd_tensor_retain(from);
    pd_rows_gather(pd_tensor_data(from), (size_t)each, &rows, pd_tensor_data(to));
    pd_tensor_release(from);
    Py_DECREF(o);
    return pd_py_wrap_new(to);
}

static PyObject *interleave(PyObject *module, PyObject *args) {
    static const char op[] = "interleave";
    PyObject *o;
    long long cycle;
    (void)module;
    if (!PyArg_ParseTuple(args, "OL:_data_interleave", &o, &cycle)) return NULL;
    pd_tensor *counts = pd_py_plain(o, op, "counts", PD_I64, 1);
    if (!counts) return NULL;
    if (cycle < 1) return PyErr_Format(PyExc_ValueError, "%s: cycle is %lld (expected 1 or more)", op, cycle);
    const int64_t *each = pd_tensor_data(counts);
    int64_t total = 0;
    for (int64_t i = 0; i < counts->numel; i++)
        if (each[i] < 0 || __builtin_add_overflow(total, each[i], &total))
            return PyErr_Format(PyExc_ValueError, "%s: count %lld (expected 0 or more)", op, (long long)each[i]);
    pd_tensor *to = pd_py_made(op, PD_I64, 1, &total);
    if (!to) return NULL;
    pd_status status = pd_interleave(each, counts->numel, cycle, pd_tensor_data(to));
    if (!status) return pd_py_wrap_new(to);
    pd_tensor_release(to);
    return pd_py_raise(status);
}

static PyObject *strings(PyObject *module, PyObject *args) {
    const char *op;
    PyObject *data_of, *spans_of;
    (void)module;
    if (!PyArg_ParseTuple(args, "sOO:_data_strings", &op, &data_of, &spans_of)) return NULL;
    pd_tensor *data = pd_py_plain(data_of, op, "data", PD_U8, 1), *spans = NULL;
    if (data) spans = pd_py_plain(spans_of, op, "spans", PD_I64, 2);
    if (!spans) return NULL;
    if (spans->size[1] != 2)
        return PyErr_Format(PyExc_ValueError, "%s: spans of %lld (expected 2)", op, spans->size[1]);
    const int64_t *span = pd_tensor_data(spans);
    int64_t size[2] = {spans->size[0], spans->size[0] ? span[1] - span[0] : 0};
    if (size[1] < 0) return PyErr_Format(PyExc_ValueError, "%s: a span ends before it begins (expected none)", op);
    pd_tensor *to = pd_py_made(op, PD_U8, 2, size);
    if (!to) return NULL;
    pd_status status = pd_strings_gather(op, pd_tensor_data(data), data->numel, span, size[0], size[1],
                                         pd_tensor_data(to));
    if (!status) return pd_py_wrap_new(to);
    pd_tensor_release(to);
    return pd_py_raise(status);
}

static PyMethodDef functions[] = {
    {"_data_order", order, METH_VARARGS,
     "_data_order(n, window, seed, epoch, places): the elements at these places of a random order of n numbers."},
    {"_data_interleave", interleave, METH_VARARGS,
     "_data_interleave(counts, cycle): the order of records of files that are read in turn, `cycle` at a time."},
    {"_data_strings", strings, METH_VARARGS,
     "_data_strings(op, data, spans): the bytes of strings of one length, [strings, bytes]."},
    {"_data_gather", gather, METH_VARARGS, "_data_gather(source, numbers): the rows of source with these numbers."},
    {0}};

int pd_py_add_data(PyObject *module) { return PyModule_AddFunctions(module, functions); }
