/* Tables of embeddings in Python, below distributed.ps. */
#include "ps/table.h"

#include <string.h>

#include "py/comm/comm_impl.h"

typedef struct {
    PyObject_HEAD
    PyObject *store; /* keeps the table */
    pd_table *table;
    int dim;
} TableObject;

static PyTypeObject *table_type;

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"store", "name",  "rows", "dim",  "rule", "numbers", "lr",
                            "start", "scale", "seed", "most", "path", NULL};
    PyObject *store, *numbers;
    const char *name, *path;
    pd_table_options o = {0};
    double lr;
    pd_ps *ps;
    long long rows, most;
    unsigned long long seed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OsLiiO!didKLz:EmbeddingTable", names, &store, &name,
                                     &rows, &o.dim, &o.rule, &PyTuple_Type, &numbers, &lr, &o.start, &o.scale, &seed,
                                     &most, &path) ||
        !(ps = pd_py_parameter_store(store)) || PyTuple_GET_SIZE(numbers) > 4 || !pd_py_doubles(numbers, o.numbers))
        return NULL;
    o.rows = rows, o.most = most, o.seed = seed;
    if (o.rule < 0 || o.rule >= PD_TABLE_RULES || strlen(name) > 900)
        return PyErr_Format(PyExc_ValueError,
                            "EmbeddingTable: rule %d, a name of %zu bytes (expected a rule of csrc/ps/table.h "
                            "and at most 900 bytes)",
                            o.rule, strlen(name));
    TableObject *self = (TableObject *)pd_py_comm_make(type, PD_PY_PARAMETERS);
    if (!self) return NULL;
    self->store = Py_NewRef(store);
    self->dim = o.dim;
    pd_status status = pd_table_open(ps, name, &o, lr, path, &self->table);
    return status ? pd_py_raise_without((PyObject *)self, status) : (PyObject *)self;
}

static void table_dealloc(PyObject *o) {
    PyObject_GC_UnTrack(o);
    Py_XDECREF(((TableObject *)o)->store);
    pd_py_comm_end(o, PD_PY_PARAMETERS);
}

/* Takes contiguous ids, and rows of that many ids. */
static bool take_rows(TableObject *self, const char *op, PyObject *ids, PyObject *rows, int use, pd_py_buffer *b,
                      pd_py_buffer *c) {
    pd_status status = pd_py_buffer_take(ids, NULL, op, "ids", PD_PY_IN | PD_PY_HOST, b);
    if (status) return pd_py_raise(status) != NULL;
    if (b->dtype != PD_I64) {
        PyErr_Format(PyExc_TypeError, "%s: ids are %s (expected int64)", op, pd_dtype_name(b->dtype));
    } else if (!rows) {
        return true;
    } else if ((status = pd_py_buffer_take(rows, NULL, op, "rows", use | PD_PY_HOST, c))) {
        pd_py_raise(status);
    } else if (c->dtype == PD_F32 && c->count == b->count * self->dim) {
        return true;
    } else {
        PyErr_Format(PyExc_ValueError, "%s: %lld ids and %lld elements of %s (expected float32, %d for each id)", op,
                     (long long)b->count, (long long)c->count, pd_dtype_name(c->dtype), self->dim);
        pd_py_buffer_drop(c);
    }
    pd_py_buffer_drop(b);
    return false;
}

static PyObject *table_lookup(PyObject *o, PyObject *args) {
    TableObject *self = (TableObject *)o;
    PyObject *ids, *out;
    pd_py_buffer b, c;
    if (!PyArg_ParseTuple(args, "OO:lookup", &ids, &out) || !take_rows(self, "lookup", ids, out, PD_PY_OUT, &b, &c))
        return NULL;
    pd_status status = pd_table_lookup(self->table, b.count, b.ptr, c.ptr);
    PD_THEN(pd_py_buffer_done(&c));
    pd_py_buffer_drop(&b);
    pd_py_buffer_drop(&c);
    return pd_py_none_or(status);
}

static PyObject *table_push(PyObject *o, PyObject *args) {
    TableObject *self = (TableObject *)o;
    PyObject *ids, *grads;
    double rescale;
    pd_py_buffer b, c;
    if (!PyArg_ParseTuple(args, "OOd:push", &ids, &grads, &rescale) ||
        !take_rows(self, "push", ids, grads, PD_PY_IN, &b, &c))
        return NULL;
    pd_status status = pd_table_push(self->table, b.count, b.ptr, c.ptr, rescale);
    pd_py_buffer_drop(&b);
    pd_py_buffer_drop(&c);
    return pd_py_none_or(status);
}

static PyObject *table_prefetch(PyObject *o, PyObject *ids) {
    pd_py_buffer b;
    if (!take_rows((TableObject *)o, "prefetch", ids, NULL, 0, &b, NULL)) return NULL;
    pd_status status = pd_table_prefetch(((TableObject *)o)->table, b.count, b.ptr);
    pd_py_buffer_drop(&b);
    return pd_py_none_or(status);
}

static PyObject *table_made(PyObject *o, PyObject *unused) {
    (void)unused;
    return PyLong_FromLongLong(pd_table_made(((TableObject *)o)->table));
}

static PyObject *table_version(PyObject *o, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(pd_table_version(((TableObject *)o)->table));
}

static PyObject *table_lr(PyObject *o, PyObject *unused) {
    (void)unused;
    return PyFloat_FromDouble(pd_table_lr(((TableObject *)o)->table));
}

static PyObject *table_set_lr(PyObject *o, PyObject *lr) {
    double value = PyFloat_AsDouble(lr);
    if (value == -1.0 && PyErr_Occurred()) return NULL;
    pd_table_set_lr(((TableObject *)o)->table, value);
    Py_RETURN_NONE;
}

static PyObject *table_per_row(PyObject *o, PyObject *unused) {
    (void)unused;
    return PyLong_FromLong(pd_table_per_row(((TableObject *)o)->table));
}

/* ids, rows and states are written, or read and put into the table. */
static PyObject *copy_rows(TableObject *self, PyObject *args, bool in) {
    PyObject *o[3];
    pd_py_buffer b[3];
    unsigned long long version = 0;
    int taken = 0, use = in ? PD_PY_IN : PD_PY_OUT;
    if (!PyArg_ParseTuple(args, in ? "OOOK:load" : "OOO:save", &o[0], &o[1], &o[2], &version)) return NULL;
    pd_status status = PD_OK;
    while (taken < 3 && !status) {
        status = pd_py_buffer_take(o[taken], NULL, in ? "load" : "save", "rows", use | PD_PY_HOST, &b[taken]);
        taken += !status;
    }
    const int64_t n = taken ? b[0].count : 0;
    if (!status &&
        (b[0].dtype != PD_I64 || b[1].dtype != PD_F32 || b[2].dtype != PD_F32 || b[1].count != n * self->dim ||
         b[2].count != n * pd_table_per_row(self->table) || (!in && n != pd_table_made(self->table))))
        status = pd_fail(PD_E_VALUE,
                         "%s: ids, rows and states do not fit (expected int64 and float32, %d and %d for each id)",
                         in ? "load" : "save", self->dim, pd_table_per_row(self->table));
    if (in) PD_THEN(pd_table_import(self->table, n, b[0].ptr, b[1].ptr, b[2].ptr, version));
    else PD_THEN(pd_table_export(self->table, b[0].ptr, b[1].ptr, b[2].ptr));
    while (taken--) pd_py_buffer_drop(&b[taken]);
    return pd_py_none_or(status);
}

static PyObject *table_save(PyObject *o, PyObject *args) { return copy_rows((TableObject *)o, args, false); }
static PyObject *table_load(PyObject *o, PyObject *args) { return copy_rows((TableObject *)o, args, true); }

static PyMethodDef table_methods[] = {
    {"lookup", table_lookup, METH_VARARGS, "lookup(ids, out)"},
    {"push", table_push, METH_VARARGS, "push(ids, gradients, rescale)"},
    {"prefetch", table_prefetch, METH_O, "prefetch(ids)"},
    {"made", table_made, METH_NOARGS, "made() -> int\n\nHow many rows have been updated."},
    {"version", table_version, METH_NOARGS, "version() -> int"},
    {"lr", table_lr, METH_NOARGS, "lr() -> float"},
    {"set_lr", table_set_lr, METH_O, "set_lr(lr)"},
    {"per_row", table_per_row, METH_NOARGS, "per_row() -> int\n\nHow many numbers of state a row has."},
    {"save", table_save, METH_VARARGS, "save(ids, rows, states)\n\nWrites all made rows there."},
    {"load", table_load, METH_VARARGS, "load(ids, rows, states, version)"},
    {0},
};

static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_traverse, pd_py_comm_visit},
    {Py_tp_methods, table_methods},
    {Py_tp_doc,
     "EmbeddingTable(store, name, rows, dim, rule, numbers, lr, start, scale, seed, most, path)\n\nRows of float32 in "
     "the memory of a ParameterStore, or in a file; see distributed.ps."},
    {0},
};
static PyType_Spec table_spec = PD_PY_SPEC("EmbeddingTable", TableObject, table_slots, 0);

int pd_py_add_ps_table(PyObject *module) { return pd_py_comm_type(module, &table_spec, &table_type); }
