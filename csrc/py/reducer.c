/* The data-parallel reducer as a Python object, below nn.parallel.DistributedDataParallel. */
#include "parallel/reducer.h"

#include "base/mem.h"
#include "py/comm.h"
#include "py/py.h"

typedef struct { PyObject_HEAD pd_reducer *r; } pyreducer;

static void free_names(const char **names) { pd_free((void *)(uintptr_t)names); }

static PyObject *reducer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"params", "names", "group", "bucket_bytes", "first_bucket_bytes", NULL};
    PyObject *params, *names, *group, *seq = NULL;
    long long cap, first;
    pd_tensor **list = NULL;
    const char **texts = NULL;
    Py_ssize_t n;
    pyreducer *self = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!OLL:Reducer", keywords, &params, &PyList_Type, &names, &group,
                                     &cap, &first))
        return NULL;
    pd_group *g = pd_py_group(group);
    if (!g || !pd_py_tensors(params, "Reducer", "params", &seq, &list, &n)) return NULL;
    if (PyList_GET_SIZE(names) != n || cap < 1 || first < 1) {
        PyErr_SetString(PyExc_ValueError, "Reducer: expected a name for each parameter and buckets of at least 1 byte");
        goto done;
    }
    pd_status status = pd_malloc(sizeof *texts * (size_t)(n + 1), "reducer", &texts);
    for (Py_ssize_t i = 0; i < n && !status; i++) {
        if (!list[i]) status = pd_fail(PD_E_TYPE, "Reducer: parameter %zd is None", i);
        else if (!(texts[i] = PyUnicode_AsUTF8(PyList_GET_ITEM(names, i)))) goto done;
    }
    if (!status && (self = (pyreducer *)type->tp_alloc(type, 0)))
        status = pd_reducer_new(list, texts, (int)n, g, (size_t)first, (size_t)cap, &self->r);
    if (status) {
        Py_CLEAR(self);
        pd_py_raise(status);
    }
done:
    free_names(texts);
    pd_free(list);
    Py_XDECREF(seq);
    return (PyObject *)self;
}

static void reducer_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    pd_reducer_free(((pyreducer *)self)->r);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *prepare(PyObject *self, PyObject *unused) {
    (void)unused;
    PD_PY_TRY(pd_reducer_prepare(((pyreducer *)self)->r, pd_py_site()));
    Py_RETURN_NONE;
}

static PyObject *bucket_layout(PyObject *self, PyObject *unused) {
    const pd_layout *l = pd_reducer_layout(((pyreducer *)self)->r);
    PyObject *list = PyList_New(0);
    (void)unused;
    for (int b = 0; list && b < l->nbuckets; b++) {
        PyObject *bucket = PyList_New(0);
        for (int k = 0; bucket && k < l->buckets[b].count; k++) {
            const pd_piece *p = &l->pieces[l->buckets[b].first + k];
            PyObject *row = Py_BuildValue("(iLL)", p->param, (long long)p->offset, (long long)p->numel);
            if (!row || PyList_Append(bucket, row)) Py_CLEAR(bucket);
            Py_XDECREF(row);
        }
        if (!bucket || PyList_Append(list, bucket)) Py_CLEAR(list);
        Py_XDECREF(bucket);
    }
    return list;
}

static PyObject *get_sync(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(pd_reducer_get_sync(((pyreducer *)self)->r));
}
static int set_sync(PyObject *self, PyObject *value, void *unused) {
    int on = value ? PyObject_IsTrue(value) : -1;
    (void)unused;
    if (on < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_AttributeError, "sync cannot be deleted");
        return -1;
    }
    pd_reducer_set_sync(((pyreducer *)self)->r, on);
    return 0;
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_NOARGS, "prepare()\n\nCalled before a forward whose backward will reduce."},
    {"bucket_layout", bucket_layout, METH_NOARGS,
     "bucket_layout()\n\nPer bucket a list of (parameter, offset, elements)."},
    {0},
};
static PyGetSetDef getset[] = {
    {"sync", get_sync, set_sync, "False: backwards add up on their own rank only.", NULL}, {0},
};
static PyType_Slot slots[] = {
    {Py_tp_new, reducer_new}, {Py_tp_dealloc, reducer_dealloc}, {Py_tp_methods, methods}, {Py_tp_getset, getset}, {0},
};
static PyType_Spec spec = {
    .name = "pydist._C.Reducer", .basicsize = sizeof(pyreducer), .slots = slots, .flags = Py_TPFLAGS_DEFAULT,
};

int pd_py_add_reducer(PyObject *module) { return pd_py_type(module, &spec, NULL, &pd_py.Reducer) ? 0 : -1; }
