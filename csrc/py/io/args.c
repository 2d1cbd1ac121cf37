#include <errno.h>

#include "base/mem.h"
#include "io/crew.h"
#include "io/file.h"
#include "py/io/io.h"

bool pd_py_io_int(PyObject *o, const char *op, const char *arg, int64_t lo, int64_t hi, int64_t *out) {
    if (PyBool_Check(o) || PyFloat_Check(o) || !PyIndex_Check(o) || pd_py_is_tensor(o)) {
        PyErr_Format(PyExc_TypeError, "%s: %s is %.100s (expected int)", op, arg, Py_TYPE(o)->tp_name);
        return false;
    }
    int over;
    PyObject *i = PyNumber_Index(o);
    if (!i) return false;
    *out = PyLong_AsLongLongAndOverflow(i, &over);
    bool fits = !over && *out >= lo && *out <= hi;
    if (!fits)
        PyErr_Format(PyExc_ValueError, "%s: %s is %R (expected %lld to %lld)", op, arg, i, (long long)lo,
                     (long long)hi);
    Py_DECREF(i);
    return fits;
}

bool pd_py_io_offset(PyObject *o, const char *op, int64_t *out) {
    if (!pd_py_io_int(o, op, "offset", 0, INT64_MAX, out)) return false;
    if (*out % PD_DIRECT_ALIGN)
        PyErr_Format(PyExc_ValueError, "%s: offset is %lld (expected a multiple of %d)", op, (long long)*out,
                     PD_DIRECT_ALIGN);
    return *out % PD_DIRECT_ALIGN == 0;
}

bool pd_py_io_threads(PyObject *o, const char *op, int *out) {
    int64_t n = 2;
    if (o && !pd_py_io_int(o, op, "threads", 1, PD_CREW_MOST, &n)) return false;
    *out = (int)n;
    return true;
}

PyObject *pd_py_io_raise(pd_status status, PyObject *a, PyObject *b) {
    int number = pd_error_get()->number;
    if (status != PD_E_OS || !number) return pd_py_raise(status);
    errno = number;
    return PyErr_SetFromErrnoWithFilenameObjects(PyExc_OSError, a, b);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static bool lend_tensor(PyObject *o, const char *op, pd_part *part, pd_storage **lent) {
    pd_tensor *t = pd_py_tensor(o);
    if (!pd_py_on_host(t, op)) return false;
    if (!pd_tensor_is_contiguous(t)) {
        PyErr_Format(PyExc_ValueError, "%s: a part is a tensor that is not contiguous (expected contiguous())", op);
        return false;
    }
    if (pd_is_recording()) pd_record_read(op);
    pd_status status = pd_storage_lend(op, t->storage, PD_LENT_ARRAY, false);
    if (status) {
        pd_py_raise(status);
        return false;
    }
    *lent = t->storage;
    *part = (pd_part){pd_tensor_data(t), (int64_t)pd_tensor_bytes(t), &t->storage->writes, 0};
    return true;
}

static bool lend_item(PyObject *o, const char *op, pd_part *part, pd_storage **lent, Py_buffer *view) {
    if (pd_py_is_tensor(o)) return lend_tensor(o, op, part, lent);
    if (!PyObject_CheckBuffer(o)) {
        PyErr_Format(PyExc_TypeError, "%s: got %.100s (expected a tensor, bytes or another buffer)", op,
                     Py_TYPE(o)->tp_name);
        return false;
    }
    if (PyObject_GetBuffer(o, view, PyBUF_SIMPLE)) {
        view->obj = NULL;
        return false;
    }
    *part = (pd_part){view->buf, (int64_t)view->len, NULL, 0};
    return true;
}

/* Takes the reference of `items`. */
static bool lend_all(PyObject *items, const char *op, pd_py_parts *out) {
    size_t n = (size_t)PyTuple_GET_SIZE(items);
    *out = (pd_py_parts){.items = items};
    pd_status status = pd_calloc(n * sizeof *out->part, op, &out->part);
    PD_THEN(pd_calloc(n * sizeof *out->lent, op, &out->lent));
    PD_THEN(pd_calloc(n * sizeof *out->view, op, &out->view));
    bool ok = !status;
    if (status) pd_py_raise(status);
    for (size_t i = 0; ok && i < n; i++)
        ok = lend_item(PyTuple_GET_ITEM(items, (Py_ssize_t)i), op, &out->part[i], &out->lent[i], &out->view[i]);
    if (!ok) pd_py_parts_drop(out);
    return ok;
}

bool pd_py_parts_get(PyObject *o, const char *op, pd_py_parts *out) {
    *out = (pd_py_parts){0};
    if (pd_py_is_tensor(o) || PyUnicode_Check(o) || PyBytes_Check(o)) {
        PyErr_Format(PyExc_TypeError, "%s: parts is %.100s (expected a list of tensors or buffers)", op,
                     Py_TYPE(o)->tp_name);
        return false;
    }
    PyObject *items = pd_py_items(o, op, "parts", "a list of tensors or buffers");
    return items && lend_all(items, op, out);
}

bool pd_py_parts_one(PyObject *o, const char *op, pd_py_parts *out) {
    PyObject *items = PyTuple_Pack(1, o);
    *out = (pd_py_parts){0};
    return items && lend_all(items, op, out);
}

void pd_py_parts_drop(pd_py_parts *p) {
    pd_py_parts old = *p; /* what is dropped may run code that comes here again */
    *p = (pd_py_parts){0};
    for (Py_ssize_t i = 0; old.items && old.view && i < PyTuple_GET_SIZE(old.items); i++) {
        if (old.lent[i]) pd_storage_give_back(old.lent[i], PD_LENT_ARRAY, false);
        if (old.view[i].obj) PyBuffer_Release(&old.view[i]);
    }
    pd_free(old.part);
    pd_free(old.lent);
    pd_free(old.view);
    Py_XDECREF(old.items);
}

static PyObject *sums_of(const pd_parts *parts, int64_t i) {
    int64_t first = parts->block[i], n = parts->block[i + 1] - first;
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (int64_t k = 0; list && k < n; k++) {
        PyObject *sum = PyLong_FromUnsignedLong(parts->crc[first + k]);
        if (!sum) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)k, sum);
    }
    return list;
}

PyObject *pd_py_parts_sums(const pd_parts *parts) {
    PyObject *all = PyList_New((Py_ssize_t)parts->count);
    for (int64_t i = 0; all && i < parts->count; i++) {
        PyObject *one = sums_of(parts, i);
        if (!one) Py_CLEAR(all);
        else PyList_SET_ITEM(all, (Py_ssize_t)i, one);
    }
    return all;
}
