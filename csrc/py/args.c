/* Makes C values of Python arguments. Every error names op and argument. */
#include "base/mem.h"
#include "py/py.h"

/* Reads NumPy's complex64, whose float() would drop the imaginary part. */
static bool complex_scalar(PyObject *o, pd_scalar *out) {
    pd_tensor *t = pd_py_from_buffer(o, false);
    bool found = t && t->numel == 1 && pd_dtype_is_complex((pd_dtype)t->dtype) && pd_py_scalar(t, PD_WAIT, out);
    pd_tensor_release(t);
    PyErr_Clear();
    return found;
}

bool pd_py_number(PyObject *o, pd_scalar *out) {
    if (PyFloat_Check(o)) {
        *out = (pd_scalar){.d = PyFloat_AS_DOUBLE(o), .cat = PD_CAT_FLOAT};
        return true;
    }
    if (PyBool_Check(o)) {
        *out = (pd_scalar){.d = o == Py_True, .i = o == Py_True, .cat = PD_CAT_BOOL};
        return true;
    }
    if (PyLong_Check(o)) {
        int over;
        long long i = PyLong_AsLongLongAndOverflow(o, &over);
        if (over) {
            PyErr_Format(PyExc_OverflowError, "the integer %R is too large for int64 (expected -2^63 to 2^63 - 1)", o);
            return false;
        }
        *out = (pd_scalar){.d = (double)i, .i = i, .cat = PD_CAT_INT};
        return true;
    }
    if (PyComplex_Check(o)) {
        *out = (pd_scalar){.d = PyComplex_RealAsDouble(o), .im = PyComplex_ImagAsDouble(o), .cat = PD_CAT_COMPLEX};
        return true;
    }
    if (pd_py_is_tensor(o)) return false;
    PyNumberMethods *n = Py_TYPE(o)->tp_as_number; /* NumPy's scalars */
    if (PySequence_Check(o) || !n || !(n->nb_index || n->nb_float)) return false;
    if (!n->nb_index && PyObject_CheckBuffer(o) && complex_scalar(o, out)) return true;
    PyObject *plain = n->nb_index ? PyNumber_Index(o) : PyNumber_Float(o);
    if (!plain) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear(); /* for example an array of several numbers */
        return false;
    }
    bool ok = pd_py_number(plain, out);
    Py_DECREF(plain);
    return ok;
}

bool pd_py_value(PyObject *o, pd_scalar *out) {
    if (pd_py_is_tensor(o) && pd_py_tensor(o)->numel == 1) return pd_py_scalar(pd_py_tensor(o), PD_WAIT, out);
    return pd_py_number(o, out);
}

static bool wrong(PyObject *o, const char *op, const char *arg, const char *want) {
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%s: %s is %.100s (expected %s)", op, arg, Py_TYPE(o)->tp_name, want);
    return false;
}

bool pd_py_int(PyObject *o, const char *op, const char *arg, int64_t *out) {
    if (PyLong_CheckExact(o)) {
        int over;
        *out = PyLong_AsLongLongAndOverflow(o, &over);
        if (!over) return true;
        PyErr_Format(PyExc_OverflowError, "%s: %s is %R, which is too large for int64 (expected -2^63 to 2^63 - 1)", op,
                     arg, o);
        return false;
    }
    if (PyFloat_Check(o) || !PyIndex_Check(o)) return wrong(o, op, arg, "int");
    PyObject *i = PyNumber_Index(o);
    bool ok = i && pd_py_int(i, op, arg, out);
    Py_XDECREF(i);
    return ok;
}

bool pd_py_double(PyObject *o, const char *op, const char *arg, double *out) {
    pd_scalar s;
    if (!pd_py_value(o, &s)) return wrong(o, op, arg, "float");
    if (s.cat == PD_CAT_COMPLEX) {
        PyErr_Format(PyExc_TypeError, "%s: %s is complex (expected a real number)", op, arg);
        return false;
    }
    *out = s.cat == PD_CAT_FLOAT ? s.d : (double)s.i;
    return true;
}

bool pd_py_ints(PyObject *o, const char *op, const char *arg, pd_ints *out) {
    if (PyList_Check(o)) {
        PyObject *all = PyList_AsTuple(o);
        bool ok = all && pd_py_ints(all, op, arg, out);
        Py_XDECREF(all);
        return ok;
    }
    if (!PyTuple_Check(o)) {
        if (!PyIndex_Check(o) || pd_py_is_tensor(o)) return wrong(o, op, arg, "int or a tuple of ints");
        out->n = 1;
        return pd_py_int(o, op, arg, &out->v[0]);
    }
    Py_ssize_t n = PyTuple_GET_SIZE(o);
    if (n > PD_MAX_DIMS) {
        PyErr_Format(pd_py.E_SHAPE, "%s: %s has %zd entries (expected at most %d)", op, arg, n, PD_MAX_DIMS);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!pd_py_int(PyTuple_GET_ITEM(o, i), op, arg, &out->v[i])) return false;
    out->n = n;
    return true;
}

PyObject *pd_py_items(PyObject *o, const char *op, const char *arg, const char *want) {
    PyObject *all = PySequence_Tuple(o);
    if (!all && PyErr_ExceptionMatches(PyExc_TypeError) && !Py_TYPE(o)->tp_iter && !PySequence_Check(o)) {
        PyErr_Clear();
        wrong(o, op, arg, want);
    }
    return all;
}

bool pd_py_dtype(PyObject *o, const char *op, const char *arg, int64_t *out) {
    if (o == Py_None) *out = PD_NO_DTYPE;
    else if (o == (PyObject *)&PyFloat_Type) *out = pd_default_dtype;
    else if (o == (PyObject *)&PyLong_Type) *out = PD_I64;
    else if (o == (PyObject *)&PyComplex_Type) *out = pd_dtype_with_parts(pd_default_dtype);
    else if (o == (PyObject *)&PyBool_Type) *out = PD_BOOL;
    else {
        for (int t = 0; t < PD_DTYPE_COUNT; t++)
            if (pd_py.dtypes[t] == o) {
                *out = t;
                return true;
            }
        if (Py_TYPE(o) != (PyTypeObject *)pd_py.dtype) return wrong(o, op, arg, "a dtype such as pydist.float32");
        PyErr_Format(pd_py.E_DTYPE,
                     "%s: %s is %R, in which pydist does not compute (expected a dtype such as pydist.float32)", op,
                     arg, o);
        return false;
    }
    return true;
}

bool pd_py_tensors(PyObject *o, const char *op, const char *arg, PyObject **seq, pd_tensor ***out, Py_ssize_t *n) {
    *out = NULL;
    *seq = pd_py_is_tensor(o) ? PyTuple_Pack(1, o) : pd_py_items(o, op, arg, "a list of tensors");
    if (!*seq) return false;
    *n = PyTuple_GET_SIZE(*seq);
    pd_status status = pd_malloc(sizeof **out * (size_t)(*n + 1), op, out);
    if (status) {
        pd_py_raise(status);
        Py_CLEAR(*seq);
        return false;
    }
    for (Py_ssize_t i = 0; i < *n; i++) {
        PyObject *item = PyTuple_GET_ITEM(*seq, i);
        if (item == Py_None) (*out)[i] = NULL;
        else if (!((*out)[i] = pd_py_expect_tensor(item, op, arg))) {
            pd_free(*out);
            *out = NULL; /* the caller may free what it got */
            Py_CLEAR(*seq);
            return false;
        }
    }
    return true;
}

/* [new] the arguments at their positions. *rest, [new]: the other keywords. */
static PyObject *in_places(PyObject *args, PyObject *kwargs, const char *const *names, PyObject **rest) {
    PyObject *all = PySequence_List(args), *left = PyDict_Copy(kwargs);
    for (Py_ssize_t i = 0; all && left && names[i]; i++) {
        if (i < PyList_GET_SIZE(all)) continue;
        PyObject *value = PyDict_GetItemString(left, names[i]);
        if (!value) break;
        if (PyList_Append(all, value) || PyDict_DelItemString(left, names[i])) Py_CLEAR(all);
    }
    PyObject *tuple = all && left ? PyList_AsTuple(all) : NULL;
    Py_XDECREF(all);
    if (!tuple) Py_CLEAR(left);
    *rest = left;
    return tuple;
}

PyObject *pd_py_with_names(PyCFunctionWithKeywords f, bool bare, const char *op, PyObject *self, PyObject *args,
                           PyObject *kwargs, const char *const *names) {
    if (!kwargs || !PyDict_GET_SIZE(kwargs)) return f(self, args, bare ? NULL : kwargs);
    PyObject *rest, *result = NULL, *all = in_places(args, kwargs, names, &rest), *key, *value;
    Py_ssize_t at = 0;
    if (!all) return NULL;
    if (bare && PyDict_Next(rest, &at, &key, &value))
        PyErr_Format(PyExc_TypeError, "%s: got an unexpected keyword argument %R", op, key);
    else result = f(self, all, rest);
    Py_DECREF(all);
    Py_DECREF(rest);
    return result;
}

bool pd_py_write_out(const char *op, PyObject *out, pd_tensor *result) {
    pd_tensor *into = pd_py_expect_tensor(out, op, "out");
    if (!into) return false;
    if (!pd_tensor_same_shape(into, result) && !into->numel) {
        PyObject *size = pd_py_size(result->ndim, result->size),
                 *done = size ? PyObject_CallMethod(out, "resize_", "(O)", size) : NULL;
        Py_XDECREF(size);
        Py_XDECREF(done);
        if (!done) return false;
    }
    pd_status status = PD_OK;
    if (!pd_tensor_same_shape(into, result))
        status = pd_fail(PD_E_SHAPE, "%s: out has shape %s (expected %s)", op, pd_tensor_shape(into),
                         pd_tensor_shape(result));
    else if (pd_grad_mode && (pd_tensor_wants_grad(result) || pd_tensor_wants_grad(into)))
        status = pd_fail(PD_E_RUNTIME,
                         "%s: out= does not support automatic differentiation, but an argument requires grad (expected "
                         "pydist.no_grad(), or no out=)",
                         op);
    else if (pd_dtype_category((pd_dtype)result->dtype) > pd_dtype_category((pd_dtype)into->dtype))
        status = pd_fail(
            PD_E_DTYPE,
            "%s: out has dtype %s, which cannot hold the result's dtype, %s (expected a dtype at least as general)", op,
            pd_dtype_name((pd_dtype)into->dtype), pd_dtype_name((pd_dtype)result->dtype));
    PD_THEN(pd_engine.write(into, result));
    if (status) pd_py_raise(status);
    return !status;
}
