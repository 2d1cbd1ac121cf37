/* The layout of a model's state (parallel/layout.h) as a Python object. */
#include "parallel/layout.h"

#include "base/mem.h"
#include "py/comm/comm.h"
#include "py/py.h"

typedef struct { PyObject_HEAD pd_layout l; } pylayout;

static bool edges_of(PyObject *o, pd_edges *out) {
    for (int e = 0; PyUnicode_Check(o) && e < PD_EDGES_COUNT; e++)
        if (PyUnicode_CompareWithASCIIString(o, pd_edges_name[e]) == 0) {
            *out = (pd_edges)e;
            return true;
        }
    PyErr_Format(PyExc_ValueError, "Layout: edges is %R (expected 'all', 'rows', 'flat' or 'whole')", o);
    return false;
}

/* Reads (name, shape, dtype, edges); `kept` owns the name. */
static bool piece_of(PyObject *kept, pd_piece *out) {
    PyObject *name, *shape, *dtype, *edges;
    pd_ints size;
    int64_t t;
    if (!PyTuple_Check(kept) || PyTuple_GET_SIZE(kept) != 4) {
        PyErr_Format(PyExc_TypeError, "Layout: a piece is %R (expected a tuple (name, shape, dtype, edges))", kept);
        return false;
    }
    name = PyTuple_GET_ITEM(kept, 0);
    shape = PyTuple_GET_ITEM(kept, 1);
    dtype = PyTuple_GET_ITEM(kept, 2);
    edges = PyTuple_GET_ITEM(kept, 3);
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "Layout: name is %.100s (expected str)", Py_TYPE(name)->tp_name);
        return false;
    }
    if (!(out->name = PyUnicode_AsUTF8(name)) || !pd_py_ints(shape, "Layout", "shape", &size) ||
        !pd_py_dtype(dtype, "Layout", "dtype", &t) || !edges_of(edges, &out->edges))
        return false;
    if (t == PD_NO_DTYPE) {
        PyErr_SetString(PyExc_TypeError, "Layout: dtype is None (expected a dtype such as pydist.float32)");
        return false;
    }
    out->dtype = (pd_dtype)t;
    out->ndim = (int)size.n;
    memcpy(out->size, size.v, sizeof *out->size * (size_t)size.n);
    return true;
}

static PyObject *layout_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"pieces", "bucket_bytes", "first_bucket_bytes", NULL};
    PyObject *given, *items;
    long long cap = 0, first = 0;
    pd_piece *pieces = NULL;
    pylayout *self = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|LL:Layout", keywords, &given, &cap, &first)) return NULL;
    if (cap < 0 || first < 0)
        return PyErr_Format(PyExc_ValueError,
                            "Layout: bucket_bytes is %lld, first_bucket_bytes %lld (expected at least 0)", cap, first);
    if (!(items = pd_py_items(given, "Layout", "pieces", "a list of tuples"))) return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(items);
    pd_status status = pd_calloc(sizeof *pieces * (size_t)n, "layout", &pieces);
    if (status) goto done;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!piece_of(PyTuple_GET_ITEM(items, i), &pieces[i])) goto done;
    if (!(self = (pylayout *)type->tp_alloc(type, 0))) goto done;
    status = pd_layout_init(&self->l, (int)n, pieces);
    if (!status && cap) status = pd_layout_pack(&self->l, (size_t)(first ? first : cap), (size_t)cap);
    if (status) Py_CLEAR(self);
done:
    if (status) pd_py_raise(status);
    pd_free(pieces);
    Py_DECREF(items);
    return (PyObject *)self;
}

static void layout_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    pd_layout_fini(&((pylayout *)self)->l);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t length(PyObject *self) { return ((pylayout *)self)->l.npieces; }

static PyObject *range(PyObject *self, PyObject *args) {
    int piece, rank, world;
    int64_t lo, hi;
    if (!PyArg_ParseTuple(args, "iii:range", &piece, &rank, &world)) return NULL;
    PD_PY_TRY(pd_layout_range(&((pylayout *)self)->l, piece, rank, world, &lo, &hi));
    return Py_BuildValue("LL", (long long)lo, (long long)hi);
}

static PyObject *piece(PyObject *self, PyObject *args) {
    const pd_layout *l = &((pylayout *)self)->l;
    int i;
    if (!PyArg_ParseTuple(args, "i:piece", &i)) return NULL;
    if (i < 0 || i >= l->npieces)
        return PyErr_Format(PyExc_IndexError, "Layout: piece number is %d (expected 0 to %d)", i, l->npieces - 1);
    const pd_piece *p = &l->pieces[i];
    return Py_BuildValue("sNOs", p->name, pd_py_size(p->ndim, p->size), pd_py.dtypes[p->dtype],
                         pd_edges_name[p->edges]);
}

PyObject *pd_py_bucket_rows(const pd_layout *l) {
    PyObject *list = PyList_New(0);
    for (int b = 0; list && b < l->nbuckets; b++) {
        PyObject *bucket = PyList_New(0);
        for (int k = 0; bucket && k < l->buckets[b].count; k++) {
            const pd_piece *p = pd_layout_in_bucket(l, b, k);
            PyObject *row = Py_BuildValue("(iLL)", (int)(p - l->pieces), (long long)p->offset, (long long)p->numel);
            if (!row || PyList_Append(bucket, row)) Py_CLEAR(bucket);
            Py_XDECREF(row);
        }
        if (!bucket || PyList_Append(list, bucket)) Py_CLEAR(list);
        Py_XDECREF(bucket);
    }
    return list;
}

static PyObject *buckets(PyObject *self, PyObject *unused) {
    (void)unused;
    return pd_py_bucket_rows(&((pylayout *)self)->l);
}

static PyMethodDef methods[] = {
    {"range", range, METH_VARARGS,
     "range(piece, rank, world)\n\n(lo, hi): the rank owns elements lo to hi - 1 of the piece, in row-major order."},
    {"piece", piece, METH_VARARGS, "piece(i)\n\n(name, shape, dtype, edges) of piece i."},
    {"buckets", buckets, METH_NOARGS, "buckets()\n\nFor each bucket, a list of (piece, offset, elements)."},
    {0},
};
static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Layout(pieces, bucket_bytes=0, first_bucket_bytes=0)\n\nSays which elements of a model's state belong to which "
     "rank, and where they lie in buckets; the rules are\nin csrc/parallel/layout.h. pieces: tuples (name, shape, "
     "dtype, edges), where edges is 'all', 'rows',\n'flat' or 'whole'. bucket_bytes 0: no buckets. len() is the number "
     "of pieces."},
    {Py_tp_new, layout_new},
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_methods, methods},
    {Py_sq_length, length},
    {0},
};
static PyType_Spec spec = {
    .name = "pydist._C.Layout", .basicsize = sizeof(pylayout), .slots = slots, .flags = Py_TPFLAGS_DEFAULT,
};

int pd_py_add_layout(PyObject *module) {
    PyObject *type;
    bool ok = pd_py_type(module, &spec, NULL, &type);
    Py_XDECREF(type);
    return ok ? 0 : -1;
}
