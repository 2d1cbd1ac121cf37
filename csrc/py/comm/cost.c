/* The costs of collectives: `_C.comm_cost`, which needs no group, and what a group has counted. */
#include "comm/algo/algo.h"
#include "base/mem.h"
#include "comm/algo/tuning.h"
#include "comm/group/group.h"
#include "py/comm/comm_impl.h"

#define SLOT_BYTES (256 << 10) /* a group's default */

PyObject *pd_py_cost(const char *algorithm, const pd_cost *c) {
    return Py_BuildValue("{s:z,s:L,s:(LL),s:(LL)}", "algorithm", algorithm, "steps", (long long)c->steps, "memory",
                         (long long)c->wrote[PD_LEVEL_MEMORY], (long long)c->read[PD_LEVEL_MEMORY], "messages",
                         (long long)c->wrote[PD_LEVEL_MESSAGES], (long long)c->read[PD_LEVEL_MESSAGES]);
}

PyObject *pd_py_comm_calls(PyObject *module, PyObject *unused) {
    PyObject *dict = PyDict_New();
    const int64_t *calls = pd_group_calls();
    (void)module;
    (void)unused;
    for (int c = 0; dict && c < PD_COLL_INIT; c++) {
        PyObject *was = PyDict_GetItemString(dict, pd_collective_names[c]); /* the one with parts of one size */
        PyObject *n = PyLong_FromLongLong(calls[c] + (was ? PyLong_AsLongLong(was) : 0));
        if (!n || PyDict_SetItemString(dict, pd_collective_names[c], n)) Py_CLEAR(dict);
        Py_XDECREF(n);
    }
    return dict;
}

/* The collective of this name; `sizes`: the one with parts of different sizes. */
static int collective_of(const char *op, bool sizes) {
    for (int c = 0; c < PD_COLL_INIT; c++) {
        bool parts = c >= PD_COLL_ALL_GATHER_PARTS && c <= PD_COLL_ALL_TO_ALL_PARTS;
        if (parts == sizes && !strcmp(op, pd_collective_names[c])) return c;
    }
    PyErr_Format(PyExc_ValueError, "comm_cost: op is '%s'%s (expected the name of a collective)", op,
                 sizes ? " with sizes" : "");
    return -1;
}

static bool read_list(PyObject *list, int world, pd_part *parts) {
    bool fits;
    if (!pd_py_part_sizes(list, "comm_cost", "sizes", world, parts, &fits)) return false;
    if (!fits)
        PyErr_Format(PyExc_ValueError, "comm_cost: sizes does not fit the world (expected %d numbers, each at least 0)",
                     world);
    return fits;
}

/* Fills the job's tables and finds the largest part of all ranks. sizes: one list, or for all_to_all one for each
   rank. */
static bool read_sizes(PyObject *sizes, int coll, pd_job *j, pd_part *table, int64_t *largest) {
    pd_part *gives = table, *takes = table + j->size, *row = table + 2 * j->size;
    j->gives = gives;
    j->takes = takes;
    *largest = 0;
    if (coll != PD_COLL_ALL_TO_ALL_PARTS) {
        if (!read_list(sizes, j->size, row)) return false;
        *largest = pd_parts_largest(j->size, row);
        for (int r = 0; r < j->size; r++) {
            bool gather = coll == PD_COLL_ALL_GATHER_PARTS;
            gives[r].count = row[gather ? j->rank : r].count;
            takes[r].count = row[gather ? r : j->rank].count;
        }
        return true;
    }
    if (!PyList_Check(sizes) || PyList_GET_SIZE(sizes) != j->size) {
        PyErr_Format(PyExc_ValueError, "comm_cost: sizes does not fit the world (expected a list of %d lists)",
                     j->size);
        return false;
    }
    PyObject *lists = PyList_AsTuple(sizes); /* reading an item may change the list */
    bool good = lists != NULL;
    for (int s = 0; good && s < j->size; s++) {
        if (!(good = read_list(PyTuple_GET_ITEM(lists, s), j->size, row))) break;
        int64_t most = pd_parts_largest(j->size, row);
        *largest = most > *largest ? most : *largest;
        for (int r = 0; s == j->rank && r < j->size; r++) gives[r].count = row[r].count;
        takes[s].count = row[j->rank].count;
    }
    Py_XDECREF(lists);
    return good;
}

static bool check_job(const pd_job *j) {
    bool good = j->size >= 2 && j->size <= PD_RANKS_MAX && j->rank >= 0 && j->rank < j->size && j->root >= -1 &&
                j->root < j->size && j->count >= 0 && j->count < INT64_MAX / 1024 && j->local >= 1 &&
                j->size % j->local == 0 && j->size > j->local;
    if (!good)
        PyErr_Format(PyExc_ValueError,
                     "comm_cost: got rank %d and root %d of %d ranks, %lld elements, %d ranks on a host (expected 1 to "
                     "4096 ranks, rank and root among them, count at least 0, more ranks than one host has and the "
                     "same number on each)",
                     j->rank, j->root, j->size, (long long)j->count, j->local);
    return good;
}

static const pd_algo *choose(int coll, const pd_job *j, const char *algo, bool fast, bool direct) {
    const pd_algo *forced;
    pd_tuning t = pd_tuning_default(j->messages, j->size);
    if (direct && pd_plan_direct((uint8_t)coll)) return pd_plan_direct((uint8_t)coll);
    if (algo && !strcmp(algo, "outside")) return &pd_algo_outside;
    pd_status status = pd_tuning_forced(algo, fast, &forced);
    if (status) return pd_py_raise(status), NULL;
    bool hosts = j->local > 1 && (!j->blocks || j->blocks->hosts == j->size / j->local);
    return pd_plan_pick((uint8_t)coll, &t, forced, fast, hosts, pd_job_bytes(j, j->count));
}

static pd_dtype dtype_of(const char *name) {
    for (int t = 0; t < PD_DTYPE_COUNT; t++)
        if (!strcmp(name, pd_dtype_name((pd_dtype)t))) return (pd_dtype)t;
    PyErr_Format(PyExc_ValueError, "comm_cost: dtype is '%s' (expected the name of a dtype, such as 'float32')", name);
    return PD_NO_DTYPE;
}

PyObject *pd_py_comm_cost(PyObject *module, PyObject *args, PyObject *kw) {
    static char *names[] = {"op",   "world", "count", "dtype",  "rank", "root", "messages", "local",
                            "algo", "fast",  "slot",  "direct", "sizes", "blocks", NULL};
    const char *op, *dtype = "float32", *algo = NULL;
    long long count;
    int messages = 0, fast = 0, direct = 0, slot = SLOT_BYTES;
    PyObject *sizes = Py_None, *blocks = Py_None, *result = NULL;
    pd_blocks *dealt;
    pd_job j = {.root = -1, .local = 1};
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "siL|siipizpipOO:comm_cost", names, &op, &j.size, &count, &dtype,
                                     &j.rank, &j.root, &messages, &j.local, &algo, &fast, &slot, &direct, &sizes,
                                     &blocks) ||
        !pd_py_blocks(blocks, "comm_cost", &dealt))
        return NULL;
    j.blocks = dealt;
    if (dealt && dealt->ranks != j.size)
        return PyErr_Format(PyExc_ValueError, "comm_cost: blocks is for %d ranks (expected %d)", dealt->ranks, j.size);
    int coll = collective_of(op, sizes != Py_None);
    j.dtype = dtype_of(dtype);
    j.count = count;
    j.messages = messages;
    if (coll < 0 || j.dtype == PD_NO_DTYPE || !check_job(&j)) return NULL;
    const pd_algo *a = choose(coll, &j, algo, fast, direct);
    pd_part *table = NULL;
    if (!a) return NULL;
    if (slot < j.size * 64) slot = j.size * 64;
    pd_status status = pd_calloc(3 * (size_t)j.size * sizeof *table, "comm_cost", &table);
    if (status) return pd_py_raise(status);
    int64_t largest = j.count;
    if (sizes == Py_None || read_sizes(sizes, coll, &j, table, &largest)) {
        j.schedule = a->schedule;
        int64_t pieces = pd_plan_pieces(a, &j, (size_t)slot, largest);
        bool reads = direct && sizes != Py_None && coll != PD_COLL_REDUCE_SCATTER_PARTS && pieces > 1;
        pd_cost c = reads ? pd_parts_read_cost(a, &j) : pd_algo_cost(a, &j, a->depth ? pieces : largest > 0);
        result = pd_py_cost(reads ? "read_parts" : a->name, &c);
    }
    pd_free(table);
    return result;
}
