/* tf.train.Example to columns, for pydist/data/example.py. */
#include "data/example.h"

#include "base/mem.h"
#include "py/data/data.h"

typedef struct column {
    PyObject *shape;             /* [borrowed] a tuple: of a row's values, without a size that varies */
    pd_tensor *values, *counts;  /* [owned] */
    bool counted;                /* the caller wants to know how many values rows have */
} column;

typedef struct columns {
    const char *op;
    int64_t rows;
    bool single; /* of one message: without a dim of rows */
    Py_ssize_t count;
    pd_feature *features;
    column *column;
} columns;

static void free_columns(columns *c) {
    for (Py_ssize_t i = 0; i < c->count; i++) {
        if (c->column[i].values) pd_tensor_release(c->column[i].values);
        if (c->column[i].counts) pd_tensor_release(c->column[i].counts);
    }
    pd_free(c->features);
    pd_free(c->column);
}

/* The tensor of a feature's values: [rows, shape], [rows, values of the longest row], and 2 for the spans of bytes. */
static bool make_values(columns *c, Py_ssize_t i) {
    pd_feature *f = &c->features[i];
    PyObject *shape = c->column[i].shape;
    int64_t size[PD_MAX_DIMS];
    Py_ssize_t ndim = 0, own = f->varying ? 1 : PyTuple_GET_SIZE(shape);
    if (own + 2 > PD_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s: a feature has %zd dims (expected %d or fewer)", c->op, own,
                     PD_MAX_DIMS - 2);
        return false;
    }
    if (!c->single) size[ndim++] = c->rows;
    if (f->varying) size[ndim++] = f->size;
    for (Py_ssize_t d = 0; !f->varying && d < own; d++)
        if (!pd_py_int(PyTuple_GET_ITEM(shape, d), c->op, "shape", &size[ndim++])) return false;
    if (f->kind == PD_BYTES) size[ndim++] = 2;
    c->column[i].values = pd_py_made(c->op, f->kind == PD_FLOATS ? PD_F32 : PD_I64, (int)ndim, size);
    f->values = c->column[i].values ? pd_tensor_data(c->column[i].values) : NULL;
    return f->values;
}

/* One feature as the caller says it: (key, kind, size, required, counted, shape). size -1: as many values as the
   longest row has. */
static bool make_column(columns *c, Py_ssize_t i, PyObject *said) {
    pd_feature *f = &c->features[i];
    column *k = &c->column[i];
    Py_ssize_t bytes;
    int kind, required, counted;
    long long size;
    if (!PyArg_ParseTuple(said, "y#iLppO!:_data_example", &f->key, &bytes, &kind, &size, &required, &counted,
                          &PyTuple_Type, &k->shape))
        return false;
    *f = (pd_feature){f->key, (size_t)bytes, (pd_feature_kind)kind, size, required, size < 0, NULL, NULL};
    k->counted = counted;
    k->counts = pd_py_made(c->op, PD_I64, 1, &c->rows);
    f->counts = k->counts ? pd_tensor_data(k->counts) : NULL;
    return f->counts && (f->varying || make_values(c, i));
}

static int64_t most(const int64_t *counts, int64_t n) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) found = counts[i] > found ? counts[i] : found;
    return found;
}

/* Reads all rows, twice where lengths vary: the first time for the lengths. False with the exception set. */
static bool read_rows(columns *c, const pd_tensor *data, const int64_t *spans) {
    bool varying = false;
    for (int again = 0; again < 2; again++) {
        pd_status status = pd_example_parse(c->op, pd_tensor_data(data), data->numel, spans, c->rows, c->features,
                                            (int)c->count);
        if (status) return pd_py_raise(status), false;
        for (Py_ssize_t i = 0; !again && i < c->count; i++) {
            pd_feature *f = &c->features[i];
            if (!f->varying) continue;
            varying = true;
            f->size = most(f->counts, c->rows);
            if (!make_values(c, i)) return false;
        }
        if (!varying) break;
    }
    return true;
}

static PyObject *result_of(columns *c) {
    PyObject *list = PyList_New(c->count);
    for (Py_ssize_t i = 0; list && i < c->count; i++) {
        column *k = &c->column[i];
        PyObject *one =
            k->counted ? Py_BuildValue("NN", pd_py_wrap(k->values), pd_py_wrap(k->counts)) : pd_py_wrap(k->values);
        if (!one) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, one);
    }
    return list;
}

static PyObject *example(PyObject *module, PyObject *args) {
    PyObject *data_of, *spans_of, *said, *result = NULL;
    columns c = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "sOOO!:_data_example", &c.op, &data_of, &spans_of, &PyTuple_Type, &said)) return NULL;
    pd_tensor *data = pd_py_plain(data_of, c.op, "data", PD_U8, 1), *spans = NULL;
    if (data) spans = pd_py_plain(spans_of, c.op, "spans", PD_I64, -1);
    if (!spans) return NULL;
    c.single = spans->ndim == 1;
    c.rows = spans->numel / 2;
    if (spans->ndim < 1 || spans->ndim > 2 || spans->size[spans->ndim - 1] != 2)
        return PyErr_Format(PyExc_ValueError, "%s: spans have shape %s (expected [2] or [rows, 2])", c.op,
                            pd_tensor_shape(spans));
    size_t count = (size_t)PyTuple_GET_SIZE(said);
    pd_status status = pd_calloc(count * sizeof *c.features, c.op, &c.features);
    PD_THEN(pd_calloc(count * sizeof *c.column, c.op, &c.column));
    if (!status) c.count = (Py_ssize_t)count;
    bool good = !status || pd_py_raise(status);
    pd_tensor_retain(data); /* while the lock is given up */
    pd_tensor_retain(spans);
    for (Py_ssize_t i = 0; good && i < c.count; i++) good = make_column(&c, i, PyTuple_GET_ITEM(said, i));
    if (good && read_rows(&c, data, pd_tensor_data(spans))) result = result_of(&c);
    pd_tensor_release(data);
    pd_tensor_release(spans);
    free_columns(&c);
    return result;
}

static PyMethodDef functions[] = {
    {"_data_example", example, METH_VARARGS,
     "_data_example(op, data, spans, ((key, kind, size, required, counted, shape), ...)): the values of messages of "
     "tf.train.Example, or pairs (values, counts). kind: 1 bytes, 2 floats, 3 ints; size -1: as many as the longest "
     "row has."},
    {0}};

int pd_py_add_data_example(PyObject *module) { return PyModule_AddFunctions(module, functions); }
