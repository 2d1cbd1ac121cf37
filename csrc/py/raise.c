/* The one place that turns error records into Python exceptions. */
#include "py/py.h"

static _Thread_local struct { PyObject *type, *value, *trace; } caught;

pd_status pd_py_caught(void) {
    Py_XDECREF(caught.type);
    Py_XDECREF(caught.value);
    Py_XDECREF(caught.trace);
    PyErr_Fetch(&caught.type, &caught.value, &caught.trace);
    return pd_fail(PD_E_PYTHON, "a Python callback raised");
}

PyObject *pd_py_take_exception(void) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return value;
}

static PyObject *classes(pd_status kind) {
    switch (kind) {
#define PD_STATUS(name, cls) case PD_E_##name: return pd_py.E_##name;
#include "base/status.def"
#undef PD_STATUS
    default: return PyExc_SystemError;
    }
}

PyObject *pd_py_raise(pd_status status) {
    if (pd_is_recording()) pd_record_refuse("an op raised an error in it");
    const pd_error *e = pd_error_get();
    if (status == PD_E_PYTHON && caught.type) {
        PyErr_Restore(caught.type, caught.value, caught.trace);
        caught.type = caught.value = caught.trace = NULL;
        return NULL;
    }
    if (PyErr_Occurred()) return NULL; /* the exception of an interrupt is set already */
    PyObject *cls = classes(status), *text = PyUnicode_DecodeUTF8(e->text, (Py_ssize_t)strlen(e->text), "replace");
    PyObject *error = text && cls ? PyObject_CallOneArg(cls, text) : NULL;
    Py_XDECREF(text);
    if (!error) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        return NULL;
    }
    PyObject *trail = PyUnicode_FromString(e->trail); /* e.trail: where in C, for bug reports */
    if (trail && PyObject_SetAttrString(error, "trail", trail)) PyErr_Clear();
    Py_XDECREF(trail);
    if (status == PD_E_PEER) {
        PyObject *rank = PyLong_FromLong(e->rank);
        if (rank && PyObject_SetAttrString(error, "rank", rank)) PyErr_Clear();
        Py_XDECREF(rank);
    }
    PyErr_SetObject(cls, error);
    Py_DECREF(error);
    return NULL;
}

static PyObject *new_class(PyObject *module, const char *name, PyObject *base, PyObject *base2, const char *doc) {
    char full[64];
    snprintf(full, sizeof full, "pydist.%s", name);
    PyObject *bases = base2 ? PyTuple_Pack(2, base, base2) : PyTuple_Pack(1, base);
    PyObject *cls = bases ? PyErr_NewExceptionWithDoc(full, doc, bases, NULL) : NULL;
    Py_XDECREF(bases);
    if (cls && PyModule_AddObjectRef(module, name, cls)) Py_CLEAR(cls);
    return cls;
}

int pd_py_add_raise(PyObject *module) {
#define KNOWN(kind, cls) pd_py.E_##kind = Py_NewRef(cls)
    KNOWN(TYPE, PyExc_TypeError);
    KNOWN(RUNTIME, PyExc_RuntimeError);
    KNOWN(NOTIMPL, PyExc_NotImplementedError);
    KNOWN(OS, PyExc_OSError);
    KNOWN(BUFFER, PyExc_BufferError);
    KNOWN(INTERRUPT, PyExc_KeyboardInterrupt);
    KNOWN(PYTHON, PyExc_RuntimeError);
    bool ok =
        (pd_py.E_VALUE = new_class(module, "ArgumentError", PyExc_ValueError, PyExc_RuntimeError,
                                   "An argument has a value that is not allowed.")) &&
        (pd_py.E_INDEX =
             new_class(module, "PositionError", PyExc_IndexError, PyExc_RuntimeError, "An index is out of range.")) &&
        (pd_py.E_SHAPE = new_class(module, "ShapeError", PyExc_RuntimeError, PyExc_ValueError,
                                   "The shapes of tensors do not fit each other or the op.")) &&
        (pd_py.E_DTYPE = new_class(module, "DTypeError", PyExc_RuntimeError, PyExc_TypeError,
                                   "The dtypes of tensors do not fit each other or the op.")) &&
        (pd_py.E_DIM =
             new_class(module, "DimError", PyExc_IndexError, PyExc_RuntimeError, "A dimension is out of range.")) &&
        (pd_py.E_MEMORY = new_class(module, "OutOfMemoryError", PyExc_MemoryError, PyExc_RuntimeError,
                                    "There is not enough memory.")) &&
        (pd_py.E_DATA = new_class(module, "DataError", PyExc_RuntimeError, PyExc_ValueError,
                                  "A file or an element of a pipeline is damaged, or is not what was expected.")) &&
        (pd_py.E_DIST =
             new_class(module, "DistError", PyExc_RuntimeError, NULL, "Communication between ranks failed.")) &&
        (pd_py.E_MISMATCH =
             new_class(module, "CommMismatch", pd_py.E_DIST, NULL, "Ranks called different collectives.")) &&
        (pd_py.E_TIMEOUT =
             new_class(module, "CommTimeout", pd_py.E_DIST, PyExc_TimeoutError, "A rank did not arrive in time.")) &&
        (pd_py.E_PEER =
             new_class(module, "PeerFailed", pd_py.E_DIST, NULL, "Another rank died or left; .rank says which."));
    return ok ? 0 : -1;
}
