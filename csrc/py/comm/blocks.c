/* The table of logical shards (comm/algo/blocks.h) as a Python object. */
#include "base/mem.h"
#include "comm/algo/blocks.h"
#include "py/comm/comm_impl.h"
#include "py/py.h"

typedef struct { PyObject_HEAD pd_blocks *b; } pyblocks;
static PyTypeObject *blocks_type;

bool pd_py_blocks(PyObject *o, const char *op, pd_blocks **out) {
    *out = NULL;
    if (!o || o == Py_None) return true;
    if (!PyObject_TypeCheck(o, blocks_type)) {
        PyErr_Format(PyExc_TypeError, "%s: blocks is %.100s (expected Blocks)", op, Py_TYPE(o)->tp_name);
        return false;
    }
    *out = ((pyblocks *)o)->b;
    return true;
}

/* Reads a sequence of ints into new memory; *n is its length. */
static bool read_ints(PyObject *o, const char *op, const char *arg, int **out, int *n) {
    PyObject *items = pd_py_items(o, op, arg, "a sequence of ints");
    if (!items) return false;
    *n = (int)PyTuple_GET_SIZE(items);
    pd_status status = pd_calloc(sizeof **out * ((size_t)*n + 1), op, out);
    bool good = !status;
    if (status) pd_py_raise(status);
    for (int i = 0; good && i < *n; i++)
        good = pd_py_int_in(PyTuple_GET_ITEM(items, i), op, arg, INT32_MIN, INT32_MAX, *out + i);
    Py_DECREF(items);
    return good;
}

static PyObject *blocks_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"shards", "shares", "hosts", NULL};
    PyObject *given, *where = Py_None;
    int shards, n = 0, m = 0, *shares = NULL, *hosts = NULL;
    pyblocks *self = NULL;
    pd_blocks *b = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|O:Blocks", names, &shards, &given, &where)) return NULL;
    bool good = read_ints(given, "Blocks", "shares", &shares, &n) &&
                (where == Py_None || read_ints(where, "Blocks", "hosts", &hosts, &m));
    if (good && hosts && m != n) {
        PyErr_Format(PyExc_ValueError, "Blocks: hosts has %d numbers (expected %d, one for each rank)", m, n);
        good = false;
    }
    pd_status status = good ? pd_blocks_new(shards, n, shares, hosts, &b) : PD_OK;
    if (status) pd_py_raise(status);
    if (b && (self = (pyblocks *)type->tp_alloc(type, 0))) self->b = b;
    else pd_blocks_release(b);
    pd_free(shares);
    pd_free(hosts);
    return (PyObject *)self;
}

static void blocks_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    pd_blocks_release(((pyblocks *)self)->b);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Appends a tuple made by Py_BuildValue; false if there is no list or no tuple. */
static bool append(PyObject *list, PyObject *row) {
    bool good = list && row && !PyList_Append(list, row);
    Py_XDECREF(row);
    return good;
}

static PyObject *get_table(PyObject *self, void *unused) {
    const pd_blocks *b = ((pyblocks *)self)->b;
    PyObject *list = PyList_New(0);
    (void)unused;
    for (int i = 0; list && i < b->count; i++)
        if (!append(list, Py_BuildValue("iiii", b->of[i].lo, b->of[i].size, b->of[i].rank, b->of[i].part)))
            Py_CLEAR(list);
    return list;
}

static PyObject *get_split(PyObject *self, void *unused) {
    const pd_blocks *b = ((pyblocks *)self)->b;
    PyObject *list = PyList_New(0);
    (void)unused;
    for (int i = 0; list && i < b->count - 1; i++)
        if (!append(list, PyLong_FromLong(b->split[i]))) Py_CLEAR(list);
    return list;
}

static PyObject *get_shards(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(((pyblocks *)self)->b->shards);
}
static PyObject *get_parts(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(((pyblocks *)self)->b->parts);
}
static PyObject *get_hosts(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(((pyblocks *)self)->b->hosts);
}
static PyObject *get_key(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(((pyblocks *)self)->b->hash);
}

static PyObject *of_rank(PyObject *self, PyObject *rank) {
    const pd_blocks *b = ((pyblocks *)self)->b;
    PyObject *list = PyList_New(0);
    int r;
    if (!pd_py_int_in(rank, "of_rank", "rank", 0, b->ranks - 1, &r)) Py_CLEAR(list);
    for (int part = 0; list && part < pd_blocks_of(b, r); part++) {
        const pd_shard_block *own = pd_blocks_at(b, r, part);
        for (int v = own->lo; list && v < own->lo + own->size; v++)
            if (!append(list, PyLong_FromLong(v))) Py_CLEAR(list);
    }
    return list;
}

static PyObject *owner(PyObject *self, PyObject *shard) {
    const pd_blocks *b = ((pyblocks *)self)->b;
    int v;
    if (!pd_py_int_in(shard, "owner", "shard", 0, b->shards - 1, &v)) return NULL;
    return PyLong_FromLong(pd_blocks_owner(b, v));
}

static PyMethodDef methods[] = {
    {"of_rank", of_rank, METH_O, "of_rank(rank)\n\nThe rank's shards, in the order in which it runs them."},
    {"owner", owner, METH_O, "owner(shard)\n\nThe rank that runs this shard."},
    {0},
};
static PyGetSetDef getset[] = {
    {"table", get_table, NULL, "For each block (first shard, shards, rank, 0 or 1: which of the rank's blocks).", NULL},
    {"split", get_split, NULL, "The order in which blocks are added (csrc/comm/algo/reduce.h).", NULL},
    {"shards", get_shards, NULL, "How many logical shards there are.", NULL},
    {"parts", get_parts, NULL, "The most blocks that a rank has, 1 or 2.", NULL},
    {"hosts", get_hosts, NULL, "How many hosts have one subtree each, all of one size; 0: it is not so.", NULL},
    {"key", get_key, NULL, "A hash of the table, which the ranks compare.", NULL},
    {0},
};
static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Blocks(shards, shares, hosts=None)\n\nHow logical shards are dealt out to ranks (csrc/comm/algo/blocks.h). "
     "shares: how many shards each rank has.\nhosts: the number of each rank's host. len() is the number of ranks."},
    {Py_tp_new, blocks_new},
    {Py_tp_dealloc, blocks_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0},
};
static PyType_Spec spec = {
    .name = "pydist._C.Blocks", .basicsize = sizeof(pyblocks), .slots = slots, .flags = Py_TPFLAGS_DEFAULT,
};

PyObject *pd_py_share_shards(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"shards", "ranks", "times", NULL};
    PyObject *given = Py_None, *list = NULL;
    int shards, ranks, n = 0, *times = NULL, *shares = NULL;
    uint16_t *small = NULL;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ii|O:share_shards", names, &shards, &ranks, &given)) return NULL;
    if (given != Py_None && !read_ints(given, "share_shards", "times", &times, &n)) goto done;
    if (ranks < 1 || ranks > PD_RANKS_MAX || (times && n != ranks)) {
        PyErr_Format(PyExc_ValueError, "share_shards: got %d ranks and %d times (expected 1 to %d ranks and as many "
                     "times)", ranks, n, PD_RANKS_MAX);
        goto done;
    }
    pd_status status = pd_calloc(sizeof *shares * (size_t)ranks, "share_shards", &shares);
    PD_THEN(pd_calloc(sizeof *small * (size_t)ranks, "share_shards", &small));
    for (int r = 0; times && !status && r < ranks; r++)
        small[r] = (uint16_t)(times[r] < 0 || times[r] > PD_SHARE_TIME_MAX ? 0 : times[r]);
    PD_THEN(pd_blocks_share(shards, ranks, times ? small : NULL, shares));
    if (status) pd_py_raise(status);
    else list = PyList_New(0);
    for (int r = 0; list && r < ranks; r++)
        if (!append(list, PyLong_FromLong(shares[r]))) Py_CLEAR(list);
done:
    pd_free(times);
    pd_free(shares);
    pd_free(small);
    return list;
}

int pd_py_add_blocks(PyObject *module) {
    PyObject *type;
    bool ok = pd_py_type(module, &spec, NULL, &type);
    blocks_type = (PyTypeObject *)type;
    return ok ? 0 : -1;
}
