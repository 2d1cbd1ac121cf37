/* Groups in Python, and their symmetric memory. */
#include "py/py.h"

#include <string.h>

#include "base/mem.h"
#include "comm/algo/tuning.h"
#include "comm/nccl/nccl.h"
#include "py/comm/comm_impl.h"

typedef struct {
    PyObject_HEAD
    pd_segment *segment;
    int rank; /* whose part it shows; -1: this rank's */
} SegmentObject;

static PyTypeObject *segment_type, *group_type;

pd_group *pd_py_group(PyObject *o) {
    if (Py_TYPE(o) == group_type) return ((pd_pygroup *)o)->group;
    PyErr_Format(PyExc_TypeError, "group: got %R (expected a Group)", o);
    return NULL;
}

PyObject *pd_py_raise_without(PyObject *half, pd_status status) {
    pd_py_raise(status);
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    Py_DECREF(half);
    PyErr_Restore(kind, value, trace);
    return NULL;
}

/* ---- Segment ----------------------------------------------------------------------------------------------------- */

static void segment_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    pd_segment_release(((SegmentObject *)self)->segment);
    pd_py_comm_end(self, PD_PY_SEGMENT);
}

static int segment_buffer(PyObject *self, Py_buffer *view, int flags) {
    const SegmentObject *o = (SegmentObject *)self;
    void *data = o->rank < 0 ? pd_segment_ptr(o->segment) : pd_segment_peer(o->segment, o->rank);
    return PyBuffer_FillInfo(view, self, data, (Py_ssize_t)pd_segment_bytes(o->segment), 0, flags);
}

static PyObject *segment_peer(PyObject *self, PyObject *arg) {
    pd_segment *segment = ((SegmentObject *)self)->segment;
    int rank;
    if (!pd_py_int_in(arg, "peer", "rank", 0, pd_segment_size(segment) - 1, &rank)) return NULL;
    if (!pd_segment_peer(segment, rank))
        return PyErr_Format(PyExc_RuntimeError, "peer: the memory of rank %d is on another host (expected one host)",
                            rank);
    SegmentObject *s = (SegmentObject *)pd_py_comm_make(segment_type, PD_PY_SEGMENT);
    if (!s) return NULL;
    pd_segment_retain(segment);
    s->segment = segment;
    s->rank = rank;
    return (PyObject *)s;
}

/* ---- Group: life ------------------------------------------------------------------------------------------------- */

static int group_traverse(PyObject *o, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(((pd_pygroup *)o)->pending);
    return 0;
}

static int group_clear(PyObject *o) {
    pd_pygroup *self = (pd_pygroup *)o;
    if (self->group) PD_PY_NO_GIL(pd_group_destroy(self->group)); /* before the buffers of its works are freed */
    Py_CLEAR(self->pending);
    Py_CLEAR(self->tuning);
    return 0;
}

static void group_dealloc(PyObject *o) {
    pd_pygroup *self = (pd_pygroup *)o;
    PyObject_GC_UnTrack(o);
    group_clear(o);
    pd_group_release(self->group);
    if (self->link) PD_PY_NO_GIL(pd_link_release(self->link));
    Py_CLEAR(self->rank);
    Py_CLEAR(self->size);
    pd_py_comm_end(o, PD_PY_GROUP);
}

/* An int that can be called: programs read group.size, and those of PyTorch call group.size(). */
static PyTypeObject *count_type;

static PyObject *count_call(PyObject *o, PyObject *args, PyObject *names) {
    if (PyTuple_GET_SIZE(args) || (names && PyDict_GET_SIZE(names)))
        return PyErr_Format(PyExc_TypeError, "rank(), size(): got arguments (expected none)");
    return PyNumber_Long(o);
}

static PyObject *count_reduce(PyObject *o, PyObject *unused) {
    (void)unused;
    return Py_BuildValue("O(N)", (PyObject *)&PyLong_Type, PyNumber_Long(o));
}

static PyMethodDef count_methods[] = {{"__reduce__", count_reduce, METH_NOARGS, "Pickled, it is an int."}, {0}};
static PyType_Slot count_slots[] = {
    {Py_tp_call, count_call},
    {Py_tp_methods, count_methods},
    {Py_tp_doc, "An int that can be called, which gives the int: a group's rank and size."},
    {0},
};
static PyType_Spec count_spec = {.name = "pydist._C.Count", .slots = count_slots, .flags = Py_TPFLAGS_DEFAULT};

PyObject *pd_py_group_over(pd_link *link, pd_group_options *o, PyObject *tuning) {
    if (tuning == Py_None) tuning = NULL;
    if (tuning && (!PyBytes_Check(tuning) || PyBytes_GET_SIZE(tuning) % (Py_ssize_t)sizeof *o->tunings))
        return PyErr_Format(PyExc_TypeError, "tuning is %s (expected rows of %zu bytes)", Py_TYPE(tuning)->tp_name,
                            sizeof *o->tunings);
    o->tunings = tuning ? (const pd_tuning *)(void *)PyBytes_AS_STRING(tuning) : NULL;
    o->tuning_count = tuning ? (size_t)PyBytes_GET_SIZE(tuning) / sizeof *o->tunings : 0;
    pd_pygroup *self = (pd_pygroup *)pd_py_comm_make(group_type, PD_PY_GROUP);
    if (!self) return NULL;
    self->kind = o->kind;
    o->mover = &pd_mover_nccl;
    self->tuning = Py_XNewRef(tuning);
    if (!(self->pending = PyList_New(0))) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    if (link) {
        pd_link_retain(link);
        self->link = link;
    }
    pd_status status;
    PD_PY_NO_GIL(status = pd_group_new(link, o, &self->group));
    if (status) return pd_py_raise_without((PyObject *)self, status);
    self->rank = PyObject_CallFunction((PyObject *)count_type, "i", pd_group_rank(self->group));
    self->size = PyObject_CallFunction((PyObject *)count_type, "i", pd_group_size(self->group));
    if (self->rank && self->size) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* ---- Group: the rest --------------------------------------------------------------------------------------------- */

static PyObject *group_destroy(PyObject *o, PyObject *unused) {
    (void)unused;
    pd_pygroup *self = (pd_pygroup *)o;
    pd_status status;
    PD_PY_NO_GIL(status = pd_group_destroy(self->group));
    if (status) return pd_py_raise(status);
    PyList_SetSlice(self->pending, 0, PyList_GET_SIZE(self->pending), NULL);
    Py_RETURN_NONE;
}

static PyObject *group_segment(PyObject *o, PyObject *arg) {
    pd_pygroup *self = (pd_pygroup *)o;
    Py_ssize_t bytes = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    pd_segment *segment;
    pd_status status;
    if (bytes < 0 && PyErr_Occurred()) return NULL;
    if (bytes < 0) return PyErr_Format(PyExc_ValueError, "segment: bytes is %zd (expected at least 0)", bytes);
    SegmentObject *s = (SegmentObject *)pd_py_comm_make(segment_type, PD_PY_SEGMENT);
    if (!s) return NULL;
    PD_PY_NO_GIL(status = pd_group_segment_new(self->group, (size_t)bytes, &segment));
    if (status) return pd_py_raise_without((PyObject *)s, status);
    s->segment = segment;
    s->rank = -1;
    return (PyObject *)s;
}

/* [new] the ranks in `o`, or NULL; *out [new]: the same as numbers */
static PyObject *take_ranks(PyObject *o, int **out) {
    PyObject *list = pd_py_items(o, "subgroup", "ranks", "a sequence of ints");
    if (!list) return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(list);
    bool good = !pd_malloc((size_t)n * sizeof **out + 1, "subgroup", out);
    if (!good) pd_py_raise(PD_E_MEMORY);
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = pd_py_int_in(PyTuple_GET_ITEM(list, i), "subgroup", "rank", 0, PD_RANKS_MAX, &(*out)[i]);
    if (good) return list;
    Py_DECREF(list);
    return NULL;
}

static PyObject *group_subgroup(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"subgroup", 1, {"ranks", "timeout", "epoch", "fast", "tuning", "check"}};
    pd_pygroup *self = (pd_pygroup *)o;
    PyObject *a[6], *list, *made;
    bool check = true;
    pd_group_options options = {.kind = self->kind};
    int epoch = 0, *ranks = NULL;
    if (!pd_py_args(&s, args, n, keywords, a) || !pd_py_seconds(a[1], 0, &options.timeout)) return NULL;
    if (a[2] && !pd_py_int_in(a[2], s.name, "epoch", 0, INT32_MAX - (int)PD_EPOCH_APART, &epoch)) return NULL;
    if (!pd_py_truth(a[3], &options.fast) || (a[5] && !pd_py_truth(a[5], &check))) return NULL;
    options.unchecked = !check;
    if ((list = take_ranks(a[0], &ranks))) {
        options.ranks = ranks;
        options.size = (int)PyTuple_GET_SIZE(list);
        options.epoch = epoch ? PD_EPOCH_APART + (uint32_t)epoch : 0;
    }
    made = list ? pd_py_group_over(self->link, &options, a[4] ? a[4] : self->tuning) : NULL;
    Py_XDECREF(list);
    pd_free(ranks);
    return made;
}

static PyObject *group_skip(PyObject *o, PyObject *unused) {
    (void)unused;
    if (((pd_pygroup *)o)->link) pd_group_skip(((pd_pygroup *)o)->link);
    Py_RETURN_NONE;
}

static PyObject *group_progress(PyObject *o, PyObject *unused) {
    (void)unused;
    return pd_py_none_or(pd_group_progress(((pd_pygroup *)o)->group));
}

static PyObject *group_raised(PyObject *o, PyObject *text) {
    pd_pygroup *self = (pd_pygroup *)o;
    const char *traceback = PyUnicode_AsUTF8(text);
    if (!traceback) return NULL;
    if (self->link) pd_link_raised(self->link, traceback);
    Py_RETURN_NONE;
}

static PyObject *group_task(PyObject *o, PyObject *args) {
    pd_pygroup *self = (pd_pygroup *)o;
    const char *name;
    double seconds;
    if (!PyArg_ParseTuple(args, "sd:task", &name, &seconds)) return NULL;
    if (!(seconds >= 0))
        return PyErr_Format(PyExc_ValueError, "task: seconds is negative or NaN (expected at least 0)");
    if (self->link) PD_PY_NO_GIL(pd_link_task(self->link, name, seconds));
    Py_RETURN_NONE;
}

static PyObject *group_flight(PyObject *o, PyObject *unused) {
    enum { BYTES = 1 << 20 };
    pd_pygroup *self = (pd_pygroup *)o;
    (void)unused;
    if (!self->link) return PyUnicode_FromString("");
    char *text = PyMem_Malloc(BYTES);
    if (!text) return PyErr_NoMemory();
    size_t n = pd_link_flight(self->link, INT32_MAX, text, BYTES);
    PyObject *all = PyUnicode_DecodeUTF8(text, (Py_ssize_t)n, "replace");
    PyMem_Free(text);
    return all;
}

static PyObject *group_store(PyObject *o, void *unused) {
    (void)unused;
    pd_pygroup *self = (pd_pygroup *)o;
    if (!self->link)
        return PyErr_Format(
            PyExc_RuntimeError,
            "store: a world of one without a launcher has no store (expected a launcher, or at least 2 ranks)");
    return pd_py_store(self->link);
}

/* An attribute whose value is an expression of the group `g`. */
#define GET(name, value)                                       \
    static PyObject *group_##name(PyObject *o, void *unused) { \
        const pd_group *g = ((pd_pygroup *)o)->group;          \
        (void)unused;                                          \
        return value;                                          \
    }
GET(epoch, PyLong_FromUnsignedLong(pd_group_epoch(g)))
GET(local, PyLong_FromLong(pd_group_local(g)))
GET(order, PyUnicode_FromString(pd_group_fast(g) ? "fast" : "tree"))
GET(transport, PyUnicode_FromString(pd_group_transport(g)))

static PyObject *group_rank(PyObject *o, void *unused) {
    (void)unused;
    return Py_NewRef(((pd_pygroup *)o)->rank);
}

static PyObject *group_size(PyObject *o, void *unused) {
    (void)unused;
    return Py_NewRef(((pd_pygroup *)o)->size);
}

static PyObject *group_ranks(PyObject *o, void *unused) {
    (void)unused;
    pd_group *g = ((pd_pygroup *)o)->group;
    int n = pd_group_size(g);
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *rank = PyLong_FromLong(pd_group_link_rank(g, i));
        if (!rank) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, rank);
    }
    return list;
}

/* PyTorch's: a text that no other group of this rank has. */
static PyObject *group_name(PyObject *o, void *unused) {
    PyObject *ranks = group_ranks(o, unused), *name = NULL;
    if (ranks) name = PyUnicode_FromFormat("%R.%u", ranks, (unsigned)pd_group_epoch(((pd_pygroup *)o)->group));
    Py_XDECREF(ranks);
    return name;
}

static PyObject *group_desc(PyObject *o, void *unused) {
    (void)o, (void)unused;
    return PyUnicode_FromString("undefined");
}

static PyObject *group_backend(PyObject *o, PyObject *unused) {
    (void)o, (void)unused;
    return PyUnicode_FromString("pydist");
}

static PyObject *group_gone(PyObject *o, void *unused) {
    const pd_pygroup *self = (pd_pygroup *)o;
    PyObject *gone = PyDict_New();
    (void)unused;
    for (int i = 0; gone && self->link && i < pd_group_size(self->group); i++) {
        int rank = pd_group_link_rank(self->group, i);
        pd_weight weight = pd_link_left(self->link, rank);
        PyObject *key = weight ? PyLong_FromLong(rank) : NULL;
        if (weight && (!key || PyDict_SetItem(gone, key, weight == PD_WEIGHT_LEFT ? Py_True : Py_False)))
            Py_CLEAR(gone);
        Py_XDECREF(key);
    }
    return gone;
}
static PyObject *group_tuning(PyObject *o, void *unused) {
    (void)unused;
    const pd_tuning *t = pd_group_tuning(((pd_pygroup *)o)->group);
    return Py_BuildValue("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "mesh", t->mesh, "world", t->world, "gather", t->gather,
                         "direct", t->direct, "piece", t->piece, "block", t->block, "fast", t->fast, "fast_from",
                         t->fast_from);
}
static PyObject *group_counted(PyObject *o, void *unused) {
    (void)unused;
    pd_cost c = pd_group_counted(((pd_pygroup *)o)->group);
    return pd_py_cost(NULL, &c);
}

static PyObject *group_way(PyObject *o, void *unused) {
    (void)unused;
    const pd_link *link = ((pd_pygroup *)o)->link;
    return PyUnicode_FromString(link ? link->way : "");
}

static PyMethodDef group_methods[] = {
    {"all_reduce", PD_PY_FAST(pd_py_group_all_reduce),
     "all_reduce(tensor, op='sum', async_op=False, scale=1.0, dtype=None, blocks=None) -> None | Work\n\ntensor = "
     "scale * op over the ranks, in place, with the same bits on all ranks. blocks: a sum over logical shards, dealt "
     "out to the ranks by this Blocks. tensor then has blocks.parts equal parts, the sums of this rank's blocks, and "
     "the first part gets the result."},
    {"broadcast", PD_PY_FAST(pd_py_group_broadcast),
     "broadcast(tensor, root=0, async_op=False) -> None | Work\n\ntensor = the root's tensor, in place. tensor may be "
     "a list of tensors of one dtype."},
    {"all_gather", PD_PY_FAST(pd_py_group_all_gather),
     "all_gather(output, input, async_op=False, coalesced=False, apart=False) -> None | Work\n\noutput = the ranks' "
     "inputs, one after the other. output: a tensor, or a list with a tensor for each rank; these may differ in size. "
     "coalesced: input is a list of tensors, and output has that many tensors for each rank. apart: tensors of a list "
     "are used where they lie, as they are if they differ in size; all ranks give it alike."},
    {"reduce_scatter", PD_PY_FAST(pd_py_group_reduce_scatter),
     "reduce_scatter(output, input, op='sum', async_op=False, scale=1.0, coalesced=False, blocks=None) -> None | "
     "Work\n\noutput = this rank's part of scale * op over the ranks' inputs. input: a tensor, or a list with a "
     "tensor for each rank; these may differ in size. coalesced: output is a list of tensors, and input has that many "
     "tensors for each rank. blocks: as in all_reduce; input has blocks.parts inputs, one after the other."},
    {"all_to_all", PD_PY_FAST(pd_py_group_all_to_all),
     "all_to_all(output, input, async_op=False, output_sizes=None, input_sizes=None) -> None | Work\n\nPart r of "
     "output = this rank's part of rank r's input. The parts are equal, or have these numbers of rows, or are the "
     "tensors of two lists."},
    {"reduce", PD_PY_FAST(pd_py_group_reduce),
     "reduce(tensor, root, op='sum', async_op=False) -> None | Work\n\nThe root's tensor = op over the ranks' "
     "tensors."},
    {"gather", PD_PY_FAST(pd_py_group_gather),
     "gather(output, input, root, async_op=False) -> None | Work\n\noutput of the root = the ranks' inputs, one after "
     "the other; on other ranks output is None."},
    {"scatter", PD_PY_FAST(pd_py_group_scatter),
     "scatter(output, input, root, async_op=False) -> None | Work\n\noutput = this rank's part of the root's input; on "
     "other ranks input is None."},
    {"send", PD_PY_FAST(pd_py_group_send),
     "send(tensor, dst, tag=0, async_op=False) -> None | Work\n\nSends tensor to rank dst of the group, whose recv "
     "must have the same tag, dtype and number of elements."},
    {"recv", PD_PY_FAST(pd_py_group_recv),
     "recv(tensor, src, tag=0, async_op=False) -> int | Work\n\ntensor = the oldest message from rank src (None: any "
     "rank) with this tag. Returns the rank in the group that has sent it."},
    {"messages", PD_PY_FAST(pd_py_group_messages),
     "messages(messages) -> list[Work]\n\nStarts a batch of messages between GPUs. Each is a tuple (whether it sends, "
     "tensor, rank in the group, tag)."},
    {"barrier", PD_PY_FAST(pd_py_group_barrier),
     "barrier(async_op=False) -> None | Work\n\nReturns when all ranks have called it."},
    {"destroy", group_destroy, METH_NOARGS, "destroy()\n\nLeaves the group. Segments stay valid."},
    {"segment", group_segment, METH_O,
     "segment(bytes) -> Segment\n\nZeroed memory that all ranks can address; collectives on it copy nothing. All ranks "
     "must call this."},
    {"subgroup", PD_PY_FAST(group_subgroup),
     "subgroup(ranks, timeout=None, epoch=0, fast=False, tuning=None, check=True) -> Group\n\nA group of these ranks "
     "of the job, in this order; this rank must be one of them. The job's other ranks call skip(), unless the members "
     "agree on an epoch above 0."},
    {"name", group_backend, METH_NOARGS, "name() -> \"pydist\""},
    {"skip", group_skip, METH_NOARGS,
     "skip()\n\nThis rank calls it when other ranks of the job make a subgroup without it."},
    {"progress", group_progress, METH_NOARGS,
     "progress()\n\nAdvances asynchronous collectives as far as they go without waiting."},
    {"task", group_task, METH_VARARGS,
     "task(name, seconds)\n\nTells the other ranks that this rank is busy with something long; they do not give up "
     "waiting for it during that time. 0 seconds: the task is done."},
    {"flight", group_flight, METH_NOARGS,
     "flight() -> str\n\nThe flight record: the last PYDIST_FLIGHT collectives of this rank's groups, one per line."},
    {"raised", group_raised, METH_O, "raised(traceback)\n\nTells the other ranks that an exception ends this rank."},
    {0},
};
static PyGetSetDef group_getset[] = {
    {"rank", group_rank, NULL, "This rank's number in the group; as in PyTorch, rank() gives it, too.", NULL},
    {"size", group_size, NULL, "The number of ranks in the group; as in PyTorch, size() gives it, too.", NULL},
    {"group_name", group_name, NULL, "A text that no other group of this rank has.", NULL},
    {"group_desc", group_desc, NULL, "\"undefined\": groups have no descriptions.", NULL},
    {"ranks", group_ranks, NULL, "The numbers in the job of the group's ranks, in order.", NULL},
    {"gone", group_gone, NULL,
     "The group's ranks that are known to be gone, by their numbers in the job: True for a rank that left in an "
     "orderly way, False for one that died.",
     NULL},
    {"epoch", group_epoch, NULL, "The number of this group among those of the same ranks, from 1.", NULL},
    {"order", group_order, NULL,
     "The order in which sums over ranks are added. tree: by a fixed tree over the ranks, ((0 + 1) + (2 + 3)) + ..., "
     "so a sum has the same bits in every run, with every algorithm and transport. fast: in any order that is the same "
     "on all ranks.",
     NULL},
    {"counted", group_counted, NULL,
     "What the group's collectives on CPUs have cost this rank so far: the steps, and the bytes that it wrote for "
     "others and read from them, in shared memory and in messages; see _C.comm_cost.",
     NULL},
    {"tuning", group_tuning, NULL,
     "The sizes in bytes at which the group switches between algorithms, as rank 0 has them; see pydist.tune.", NULL},
    {"ranks_per_host", group_local, NULL,
     "Above 1: all_reduce is hierarchical, with this number of ranks on each host.", NULL},
    {"transport", group_transport, NULL, "How ranks of this host share memory: shm, inproc or none.", NULL},
    {"way", group_way, NULL,
     "The network path by which this rank reaches a control server on another host, and why it was chosen; otherwise "
     "''.",
     NULL},
    {"store", group_store, NULL, "The store that the ranks share.", NULL},
    {0},
};

/* ---- types ------------------------------------------------------------------------------------------------------- */

static PyMethodDef segment_methods[] = {
    {"peer", segment_peer, METH_O,
     "peer(rank) -> Segment\n\nAnother rank's part, which keeps the memory. RuntimeError if it is on another host."},
    {0}};
static PyType_Slot segment_slots[] = {
    {Py_tp_dealloc, segment_dealloc}, {Py_tp_traverse, pd_py_comm_visit}, {Py_bf_getbuffer, segment_buffer},
    {Py_tp_methods, segment_methods}, {Py_tp_doc, "Symmetric memory, as a buffer of bytes."}, {0},
};
static PyType_Slot group_slots[] = {
    {Py_tp_dealloc, group_dealloc},
    {Py_tp_traverse, group_traverse},
    {Py_tp_clear, group_clear},
    {Py_tp_methods, group_methods},
    {Py_tp_getset, group_getset},
    {Py_tp_doc, "A group: ranks that call collectives together."},
    {0},
};
static PyType_Spec segment_spec =
    PD_PY_SPEC("Segment", SegmentObject, segment_slots, Py_TPFLAGS_DISALLOW_INSTANTIATION);
static PyType_Spec group_spec = PD_PY_SPEC("Group", pd_pygroup, group_slots, Py_TPFLAGS_DISALLOW_INSTANTIATION);

int pd_py_add_group(PyObject *module) {
    count_type = (PyTypeObject *)PyType_FromSpecWithBases(&count_spec, (PyObject *)&PyLong_Type);
    if (!count_type || PyModule_AddObjectRef(module, "Count", (PyObject *)count_type)) return -1;
    if (pd_py_comm_type(module, &segment_spec, &segment_type)) return -1;
    return pd_py_comm_type(module, &group_spec, &group_type);
}
