/* Arguments of collectives besides memory, and the hooks that comm/ calls. */
#include "py/py.h"

#include <strings.h>

#include "py/comm/comm_impl.h"

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static pd_status interrupt(void) {
    PyGILState_STATE gil = PyGILState_Ensure();
    int raised = PyErr_CheckSignals();
    PyGILState_Release(gil);
    return raised ? pd_fail(PD_E_PYTHON, "interrupted") : PD_OK;
}

const pd_hooks pd_py_hooks = {
    .interrupt = interrupt, .site = pd_py_site_text, .place = pd_py_place, .also = pd_py_also,
    .status_request = pd_py_status_request,
};

/* ---- arguments --------------------------------------------------------------------------------------------------- */

bool pd_py_args(const pd_py_signature *s, PyObject *const *args, Py_ssize_t n, PyObject *keywords, PyObject **out) {
    int known = 0;
    if (pd_is_recording()) pd_record_outside("%s is called in it", s->name);
    while (known < PD_PY_ARGS && s->names[known]) out[known++] = NULL;
    if (n > known) {
        PyErr_Format(PyExc_TypeError, "%s: got %zd arguments (expected at most %d)", s->name, n, known);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) out[i] = args[i];
    for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); i++) {
        PyObject *key = PyTuple_GET_ITEM(keywords, i);
        int k = 0;
        while (k < known && PyUnicode_CompareWithASCIIString(key, s->names[k])) k++;
        if (k == known || out[k]) {
            PyErr_Format(
                PyExc_TypeError,
                k == known ? "%s: got an unexpected keyword argument %R" : "%s: got multiple values for argument %R",
                s->name, key);
            return false;
        }
        out[k] = args[n + i];
    }
    for (int k = 0; k < s->required; k++)
        if (!out[k]) {
            PyErr_Format(PyExc_TypeError, "%s: missing argument '%s'", s->name, s->names[k]);
            return false;
        }
    return true;
}

bool pd_py_int_in(PyObject *o, const char *name, const char *arg, long low, long high, int *out) {
    if (!PyIndex_Check(o)) {
        PyErr_Format(PyExc_TypeError, "%s: %s is %s (expected an int)", name, arg, Py_TYPE(o)->tp_name);
        return false;
    }
    long v = PyLong_AsLong(o);
    if (v == -1 && PyErr_Occurred()) return false;
    if (v < low || v > high) {
        PyErr_Format(PyExc_ValueError, "%s: %s is %ld (expected %ld to %ld)", name, arg, v, low, high);
        return false;
    }
    *out = (int)v;
    return true;
}

bool pd_py_seconds(PyObject *o, double none, double *out) {
    *out = none;
    if (!o || o == Py_None) return true;
    bool delta = PyObject_HasAttrString(o, "total_seconds");
    PyObject *number = delta ? PyObject_CallMethod(o, "total_seconds", NULL) : Py_NewRef(o);
    if (!number) return false;
    *out = PyFloat_AsDouble(number);
    Py_DECREF(number);
    return !PyErr_Occurred();
}

bool pd_py_truth(PyObject *o, bool *out) {
    int truth = o ? PyObject_IsTrue(o) : 0;
    *out = truth > 0;
    return truth >= 0;
}

static bool take_op(PyObject *o, const char *name, pd_reduce *out) {
    if (!PyUnicode_Check(o)) {
        int number;
        if (!pd_py_int_in(o, name, "op", 0, PD_REDUCE_COUNT - 1, &number)) return false;
        *out = (pd_reduce)number;
        return true;
    }
    const char *text = PyUnicode_AsUTF8(o);
    if (!text) return false;
    if (!strcasecmp(text, "prod")) text = "product";
    for (int i = 0; i < PD_REDUCE_COUNT; i++)
        if (!strcasecmp(text, pd_reduce_names[i])) {
            *out = (pd_reduce)i;
            return true;
        }
    PyErr_Format(PyExc_ValueError, "%s: op is %R (expected sum, avg, product, min, max, band, bor or bxor)", name, o);
    return false;
}

bool pd_py_reduce(PyObject *o, const char *name, pd_reduce *out, double *factor) {
    *out = PD_REDUCE_SUM;
    *factor = 1;
    if (!o) return true;
    if (!take_op(o, name, out)) return false;
    if (*out != PD_REDUCE_PREMUL_SUM) return true;
    PyObject *number = PyObject_GetAttrString(o, "factor");
    if (!number) {
        PyErr_Format(PyExc_ValueError, "%s: op PREMUL_SUM has no factor (expected _make_nccl_premul_sum(factor))",
                     name);
        return false;
    }
    *factor = PyFloat_AsDouble(number);
    Py_DECREF(number);
    return !PyErr_Occurred();
}
