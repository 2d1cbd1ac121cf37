/* Groups, their works and segments in Python, and how a process or a thread joins.

   Collectives take whatever as_buffer() understands. Small ones keep the GIL and give it up only when a wait turns to
   sleeping (the hooks); large ones give it up for the whole call. */
#include "py/py.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "comm/control.h"
#include "py/comm_impl.h"

#define GIL_BYTES (128 << 10) /* collectives over this take more than 50 us (design 1.12) */

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static void *block(void) { return PyGILState_Check() ? PyEval_SaveThread() : NULL; }
static void unblock(void *token) {
    if (token) PyEval_RestoreThread(token);
}

static pd_status interrupt(void) {
    PyGILState_STATE gil = PyGILState_Ensure();
    int raised = PyErr_CheckSignals();
    PyGILState_Release(gil);
    return raised ? pd_fail(PD_E_PYTHON, "interrupted") : PD_OK;
}

const pd_hooks pd_py_hooks = {.block = block, .unblock = unblock, .interrupt = interrupt, .site = pd_py_site_text};

/* ---- arguments --------------------------------------------------------------------------------------------------- */

typedef struct signature {
    const char *name;
    int required;
    const char *names[6]; /* NULL at the end */
} signature;

/* Sorts positional and keyword arguments into `out` (borrowed; NULL: not given). */
static bool take_args(const signature *s, PyObject *const *args, Py_ssize_t n, PyObject *keywords, PyObject **out) {
    int known = 0;
    while (known < 6 && s->names[known]) out[known++] = NULL;
    if (n > known) {
        PyErr_Format(PyExc_TypeError, "%s: %zd arguments (expected at most %d)", s->name, n, known);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) out[i] = args[i];
    for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); i++) {
        PyObject *key = PyTuple_GET_ITEM(keywords, i);
        int k = 0;
        while (k < known && PyUnicode_CompareWithASCIIString(key, s->names[k])) k++;
        if (k == known || out[k]) {
            PyErr_Format(PyExc_TypeError, "%s: %s argument %R", s->name, k == known ? "unknown" : "repeated", key);
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

static bool take_int(PyObject *o, long low, long high, const char *what, int *out) {
    long v = PyLong_AsLong(o);
    if (v == -1 && PyErr_Occurred()) return false;
    if (v < low || v > high) {
        PyErr_Format(PyExc_ValueError, "%s: %ld (expected %ld to %ld)", what, v, low, high);
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

static bool take_bool(PyObject *o, bool *out) {
    int truth = o ? PyObject_IsTrue(o) : 0;
    *out = truth > 0;
    return truth >= 0;
}

/* "sum", "SUM", "prod" or "product", ... or the number. */
static bool take_reduce(PyObject *o, pd_reduce *out) {
    *out = PD_REDUCE_SUM;
    if (!o) return true;
    if (!PyUnicode_Check(o)) {
        int number;
        if (!take_int(o, 0, PD_REDUCE_COUNT - 1, "op", &number)) return false;
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
    PyErr_Format(PyExc_ValueError, "op: %R (expected sum, avg, product, min, max, band, bor or bxor)", o);
    return false;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

typedef struct pd_buf {
    void *ptr;
    int64_t count;
    pd_dtype dtype;
    pd_segment *segment; /* borrowed; NULL: ordinary memory */
    Py_buffer view;      /* view.obj keeps the memory */
} pd_buf;

static pd_dtype dtype_of_format(const char *format, Py_ssize_t size) {
    if (!format) return PD_U8;
    if (*format == '@' || *format == '=' || *format == '<') format++;
    switch (format[1] ? 0 : format[0]) {
    case '?': return PD_BOOL;
    case 'B': case 'c': return PD_U8;
    case 'e': return PD_F16;
    case 'f': return PD_F32;
    case 'd': return PD_F64;
    case 'H': return PD_I16; /* only with a dtype given: PyTorch has no uint16 to reduce */
    case 'b': case 'h': case 'i': case 'l': case 'q':
        return size == 1 ? PD_I8 : size == 2 ? PD_I16 : size == 4 ? PD_I32 : size == 8 ? PD_I64 : PD_NO_DTYPE;
    default: return PD_NO_DTYPE;
    }
}

/* dtype="bfloat16" for memory that Python has no format for. */
static bool override_dtype(PyObject *o, pd_buf *b) {
    const char *name = PyUnicode_AsUTF8(o);
    if (!name) return false;
    for (int t = 0; t < PD_DTYPE_COUNT; t++)
        if (!strcmp(name, pd_dtype_name((pd_dtype)t)) && pd_dtype_size((pd_dtype)t) == pd_dtype_size(b->dtype)) {
            b->dtype = (pd_dtype)t;
            return true;
        }
    PyErr_Format(PyExc_ValueError, "dtype: %R for elements of %zu bytes", o, pd_dtype_size(b->dtype));
    return false;
}

/* A tensor's own memory: also what has no buffer format or requires grad, which a collective does not record. */
static int as_tensor(PyObject *o, bool written, pd_buf *b) {
    pd_tensor *t = pd_py_tensor(o);
    if (!pd_tensor_is_contiguous(t) || (written && t->storage->read_only)) {
        PyErr_Format(PyExc_ValueError, "comm: a tensor of shape %s that is %s (expected contiguous memory of its own)", pd_tensor_shape(t),
                     t->storage->read_only ? "read-only" : "not contiguous");
        return -1;
    }
    b->ptr = pd_tensor_data(t);
    b->count = t->numel;
    b->dtype = (pd_dtype)t->dtype;
    b->view.obj = Py_NewRef(o);
    if (written) pd_tensor_bump(t);
    return 0;
}

/* Takes memory for a collective, a tensor's or a buffer's; `dtype` (NULL, None: as the buffer says) reinterprets it. */
static int as_buffer(PyObject *o, PyObject *dtype, bool written, pd_buf *b) {
    *b = (pd_buf){0};
    bool given = dtype && dtype != Py_None;
    if (pd_py_is_tensor(o) && !given) return as_tensor(o, written, b);
    if (PyObject_GetBuffer(o, &b->view, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) return -1;
    b->ptr = b->view.buf;
    b->dtype = dtype_of_format(b->view.format, b->view.itemsize);
    if (b->dtype == PD_NO_DTYPE || (*b->view.format == 'H' && !given)) {
        PyErr_Format(PyExc_TypeError, "comm: a buffer of format '%s' (expected numbers or bool)", b->view.format);
        PyBuffer_Release(&b->view);
        return -1;
    }
    b->count = b->view.len / b->view.itemsize;
    if (!given || override_dtype(dtype, b)) return 0;
    PyBuffer_Release(&b->view);
    return -1;
}

static void drop_buffer(pd_buf *b) { PyBuffer_Release(&b->view); }

/* ---- objects ----------------------------------------------------------------------------------------------------- */

typedef struct { PyObject_HEAD pd_segment *segment; } SegmentObject;
typedef struct { PyObject_HEAD pd_work *work; pd_buf buf, out; bool done; } WorkObject;
typedef struct {
    PyObject_HEAD
    pd_group *group;
    pd_link *link;     /* NULL: a world of one */
    PyObject *pending; /* works under way: their buffers must live until they are done */
} GroupObject;

static PyTypeObject *segment_type, *work_type, *group_type;
static int64_t live[PD_PY_KINDS];
static const char *const live_names[PD_PY_KINDS] = {
    [PD_PY_SERVER] = "control servers", [PD_PY_HUB] = "hubs", [PD_PY_STORE] = "stores", [PD_PY_SEGMENT] = "segments",
    [PD_PY_WORK] = "works",             [PD_PY_GROUP] = "groups",
};

pd_group *pd_py_group(PyObject *o) {
    if (Py_TYPE(o) == group_type) return ((GroupObject *)o)->group;
    PyErr_Format(PyExc_TypeError, "group: %R (expected a Group)", o);
    return NULL;
}

PyObject *pd_py_comm_make(PyTypeObject *type, pd_py_kind kind) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self) live[kind]++;
    return self;
}

void pd_py_comm_end(PyObject *self, pd_py_kind kind) {
    PyTypeObject *type = Py_TYPE(self);
    live[kind]--;
    type->tp_free(self);
    Py_DECREF(type);
}

int pd_py_comm_visit(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}

PyObject *pd_py_none_or(pd_status status) {
    if (status) return pd_py_raise(status);
    Py_RETURN_NONE;
}

/* ---- Segment ----------------------------------------------------------------------------------------------------- */

static void segment_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    pd_segment_release(((SegmentObject *)self)->segment);
    pd_py_comm_end(self, PD_PY_SEGMENT);
}

static int segment_buffer(PyObject *self, Py_buffer *view, int flags) {
    pd_segment *s = ((SegmentObject *)self)->segment;
    return PyBuffer_FillInfo(view, self, pd_segment_ptr(s), (Py_ssize_t)pd_segment_bytes(s), 0, flags);
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static void forget_buffers(WorkObject *self) {
    if (self->done) return;
    self->done = true;
    drop_buffer(&self->buf);
    drop_buffer(&self->out);
}

static void work_dealloc(PyObject *o) {
    WorkObject *self = (WorkObject *)o;
    PyObject_GC_UnTrack(o);
    forget_buffers(self); /* a pending work is kept by its group */
    pd_work_release(self->work);
    pd_py_comm_end(o, PD_PY_WORK);
}

static PyObject *work_wait(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const signature s = {"wait", 0, {"timeout"}};
    WorkObject *self = (WorkObject *)o;
    PyObject *a[1];
    double timeout;
    if (!take_args(&s, args, n, keywords, a) || !pd_py_seconds(a[0], -1, &timeout)) return NULL;
    pd_status status;
    PD_PY_NO_GIL(status = pd_work_wait(self->work, timeout));
    if (status) return pd_py_raise(status);
    forget_buffers(self);
    Py_RETURN_TRUE;
}

static PyObject *work_is_completed(PyObject *o, PyObject *unused) {
    (void)unused;
    WorkObject *self = (WorkObject *)o;
    bool done;
    pd_status status;
    PD_PY_NO_GIL(status = pd_work_test(self->work, &done));
    if (done) forget_buffers(self);
    return PyBool_FromLong(done || status); /* a failure is an end: wait() raises it */
}

static PyMethodDef work_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))work_wait, METH_FASTCALL | METH_KEYWORDS,
     "wait(timeout=None) -> True\n\nReturns when the collective is done; raises its error. timeout: seconds."},
    {"is_completed", work_is_completed, METH_NOARGS,
     "is_completed() -> bool\n\nWhether it has ended; carries it on as far as it goes without waiting."},
    {0},
};

/* ---- Group ------------------------------------------------------------------------------------------------------- */

static int group_traverse(PyObject *o, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(((GroupObject *)o)->pending);
    return 0;
}

static int group_clear(PyObject *o) {
    GroupObject *self = (GroupObject *)o;
    if (self->group) PD_PY_NO_GIL(pd_group_destroy(self->group)); /* before the buffers of its works go */
    Py_CLEAR(self->pending);
    return 0;
}

static void group_dealloc(PyObject *o) {
    GroupObject *self = (GroupObject *)o;
    PyObject_GC_UnTrack(o);
    group_clear(o);
    pd_group_release(self->group);
    if (self->link) PD_PY_NO_GIL(pd_link_release(self->link));
    pd_py_comm_end(o, PD_PY_GROUP);
}

/* [new] the Python side of a group over `link` (retained). */
static PyObject *group_over(pd_link *link, double timeout, const char *algo, int slot) {
    GroupObject *self = (GroupObject *)pd_py_comm_make(group_type, PD_PY_GROUP);
    pd_group_options o = {.timeout = timeout, .algo = algo, .slot = (size_t)slot};
    if (!self) return NULL;
    self->pending = PyList_New(0);
    if (link) {
        pd_link_retain(link);
        self->link = link;
    }
    pd_status status = PD_E_PYTHON;
    if (self->pending) PD_PY_NO_GIL(status = pd_group_new(link, &o, &self->group));
    if (!status) return (PyObject *)self;
    PyObject *raised = self->pending ? pd_py_raise(status) : NULL;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    Py_DECREF(self);
    PyErr_Restore(kind, value, trace);
    return raised;
}

/* Works that have ended no longer need their buffers. */
static void prune(GroupObject *self) {
    for (Py_ssize_t i = PyList_GET_SIZE(self->pending); i-- > 0;) {
        WorkObject *w = (WorkObject *)PyList_GET_ITEM(self->pending, i);
        bool done = w->done;
        if (!done && pd_work_test(w->work, &done)) done = true;
        if (done) PyList_SetSlice(self->pending, i, i + 1, NULL);
    }
}

/* [new] the Work of an asynchronous call, which takes over the buffers; kept by the group until it is done. */
static PyObject *work_from(GroupObject *self, pd_work *work, pd_buf *buf, pd_buf *out) {
    WorkObject *w = (WorkObject *)pd_py_comm_make(work_type, PD_PY_WORK);
    if (!w || PyList_Append(self->pending, (PyObject *)w)) {
        pd_work_wait(work, -1); /* no memory for its Python side: the buffers may go only when it is done */
        pd_work_release(work);
        Py_XDECREF(w);
        if (buf) drop_buffer(buf);
        if (out) drop_buffer(out);
        return NULL;
    }
    w->work = work;
    if (buf) w->buf = *buf;
    if (out) w->out = *out;
    return (PyObject *)w;
}

static PyObject *finish(GroupObject *self, pd_status status, pd_work *work, pd_buf *buf, pd_buf *out) {
    if (!status && work) return work_from(self, work, buf, out);
    PyObject *result = status ? pd_py_raise(status) : Py_NewRef(Py_None);
    if (buf) drop_buffer(buf);
    if (out) drop_buffer(out);
    return result;
}

/* Runs a collective: without the GIL where it moves much. */
#define COLLECTIVE(bytes, call)                                     \
    do {                                                            \
        if (PyList_GET_SIZE(self->pending)) prune(self);            \
        if ((bytes) > GIL_BYTES) PD_PY_NO_GIL(status = (call));           \
        else status = (call);                                       \
    } while (0)

static size_t bytes_of(const pd_buf *b) { return (size_t)b->count * pd_dtype_size(b->dtype); }

static bool take_segment(PyObject *o, pd_buf *b) {
    if (!o || o == Py_None) return true;
    if (Py_TYPE(o) != segment_type) {
        PyErr_Format(PyExc_TypeError, "segment: %R (expected a Segment)", o);
        return false;
    }
    b->segment = ((SegmentObject *)o)->segment;
    return true;
}

static PyObject *group_all_reduce(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const signature s = {"all_reduce", 1, {"tensor", "op", "async_op", "scale", "segment", "dtype"}};
    GroupObject *self = (GroupObject *)o;
    PyObject *a[6];
    pd_buf b;
    pd_reduce op;
    bool async;
    double scale = 1;
    pd_work *work = NULL;
    pd_status status;
    if (!take_args(&s, args, n, keywords, a) || !take_reduce(a[1], &op) || !take_bool(a[2], &async)) return NULL;
    if (a[3] && (scale = PyFloat_AsDouble(a[3])) == -1 && PyErr_Occurred()) return NULL;
    if (as_buffer(a[0], a[5], true, &b)) return NULL;
    if (!take_segment(a[4], &b)) {
        drop_buffer(&b);
        return NULL;
    }
    uint64_t site = pd_py_site();
    COLLECTIVE(bytes_of(&b), pd_group_all_reduce(self->group, b.ptr, b.count, b.dtype, op, scale, site, b.segment,
                                                 async ? &work : NULL));
    return finish(self, status, work, &b, NULL);
}

static PyObject *group_broadcast(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const signature s = {"broadcast", 1, {"tensor", "root", "async_op", "segment"}};
    GroupObject *self = (GroupObject *)o;
    PyObject *a[4];
    pd_buf b;
    bool async;
    int root = 0;
    pd_work *work = NULL;
    pd_status status;
    if (!take_args(&s, args, n, keywords, a) || !take_bool(a[2], &async)) return NULL;
    if (a[1] && !take_int(a[1], INT32_MIN, INT32_MAX, "root", &root)) return NULL;
    if (as_buffer(a[0], NULL, true, &b)) return NULL;
    if (!take_segment(a[3], &b)) {
        drop_buffer(&b);
        return NULL;
    }
    uint64_t site = pd_py_site();
    COLLECTIVE(bytes_of(&b), pd_group_broadcast(self->group, b.ptr, b.count, b.dtype, root, site, b.segment,
                                                async ? &work : NULL));
    return finish(self, status, work, &b, NULL);
}

static PyObject *group_all_gather(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const signature s = {"all_gather", 2, {"output", "input", "async_op"}};
    GroupObject *self = (GroupObject *)o;
    PyObject *a[3];
    pd_buf out, in;
    bool async;
    pd_work *work = NULL;
    pd_status status;
    if (!take_args(&s, args, n, keywords, a) || !take_bool(a[2], &async) || as_buffer(a[0], NULL, true, &out)) return NULL;
    if (as_buffer(a[1], NULL, false, &in)) {
        drop_buffer(&out);
        return NULL;
    }
    if (out.dtype != in.dtype || out.count != in.count * pd_group_size(self->group)) {
        status = pd_fail(PD_E_SHAPE, "all_gather: the output has %lld elements of %s (expected %d times %lld of %s)",
                         (long long)out.count, pd_dtype_name(out.dtype), pd_group_size(self->group),
                         (long long)in.count, pd_dtype_name(in.dtype));
        return finish(self, status, NULL, &out, &in);
    }
    uint64_t site = pd_py_site();
    COLLECTIVE(bytes_of(&out), pd_group_all_gather(self->group, in.ptr, out.ptr, in.count, in.dtype, site,
                                                   async ? &work : NULL));
    return finish(self, status, work, &out, &in);
}

static PyObject *group_barrier(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const signature s = {"barrier", 0, {"async_op"}};
    GroupObject *self = (GroupObject *)o;
    PyObject *a[1];
    bool async;
    pd_work *work = NULL;
    pd_status status;
    if (!take_args(&s, args, n, keywords, a) || !take_bool(a[0], &async)) return NULL;
    uint64_t site = pd_py_site();
    COLLECTIVE(0, pd_group_barrier(self->group, site, async ? &work : NULL));
    return finish(self, status, work, NULL, NULL);
}

static PyObject *group_destroy(PyObject *o, PyObject *unused) {
    (void)unused;
    GroupObject *self = (GroupObject *)o;
    pd_status status;
    PD_PY_NO_GIL(status = pd_group_destroy(self->group));
    if (status) return pd_py_raise(status);
    PyList_SetSlice(self->pending, 0, PyList_GET_SIZE(self->pending), NULL);
    Py_RETURN_NONE;
}

static PyObject *group_segment(PyObject *o, PyObject *arg) {
    GroupObject *self = (GroupObject *)o;
    Py_ssize_t bytes = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    pd_segment *segment;
    pd_status status;
    if (bytes < 0 && PyErr_Occurred()) return NULL;
    if (bytes <= 0) return PyErr_Format(PyExc_ValueError, "segment: %zd bytes", bytes);
    SegmentObject *s = (SegmentObject *)pd_py_comm_make(segment_type, PD_PY_SEGMENT);
    if (!s) return NULL;
    PD_PY_NO_GIL(status = pd_group_segment_new(self->group, (size_t)bytes, &segment));
    if (status) {
        PyObject *raised = pd_py_raise(status);
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        Py_DECREF(s);
        PyErr_Restore(kind, value, trace);
        return raised;
    }
    s->segment = segment;
    return (PyObject *)s;
}

static PyObject *group_progress(PyObject *o, PyObject *unused) {
    (void)unused;
    return pd_py_none_or(pd_group_progress(((GroupObject *)o)->group));
}

static PyObject *group_raised(PyObject *o, PyObject *text) {
    GroupObject *self = (GroupObject *)o;
    const char *traceback = PyUnicode_AsUTF8(text);
    if (!traceback) return NULL;
    if (self->link) pd_link_raised(self->link, traceback);
    Py_RETURN_NONE;
}

static PyObject *group_store(PyObject *o, void *unused) {
    (void)unused;
    GroupObject *self = (GroupObject *)o;
    if (!self->link) return PyErr_Format(PyExc_RuntimeError, "store: a world of one without a launcher has none");
    return pd_py_store(self->link);
}

static PyObject *group_rank(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_group_rank(((GroupObject *)o)->group));
}
static PyObject *group_size(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_group_size(((GroupObject *)o)->group));
}
static PyObject *group_epoch(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(pd_group_epoch(((GroupObject *)o)->group));
}
static PyObject *group_transport(PyObject *o, void *unused) {
    (void)unused;
    return PyUnicode_FromString(pd_group_transport(((GroupObject *)o)->group));
}

#define FAST(f) (PyCFunction)(void (*)(void))f, METH_FASTCALL | METH_KEYWORDS
static PyMethodDef group_methods[] = {
    {"all_reduce", FAST(group_all_reduce),
     "all_reduce(tensor, op='sum', async_op=False, scale=1.0, segment=None, dtype=None) -> None | Work\n\n"
     "tensor = scale * op over the ranks, in place, with the same bits everywhere. segment: the Segment it lies in."},
    {"broadcast", FAST(group_broadcast),
     "broadcast(tensor, root=0, async_op=False, segment=None) -> None | Work\n\ntensor = the root's, in place."},
    {"all_gather", FAST(group_all_gather),
     "all_gather(output, input, async_op=False) -> None | Work\n\noutput = the ranks' inputs one after the other."},
    {"barrier", FAST(group_barrier),
     "barrier(async_op=False) -> None | Work\n\nReturns when all ranks have called it."},
    {"destroy", group_destroy, METH_NOARGS, "destroy()\n\nLeaves the group. Segments stay valid."},
    {"segment", group_segment, METH_O,
     "segment(bytes) -> Segment\n\nZeroed memory that all ranks can address. Collective."},
    {"progress", group_progress, METH_NOARGS, "progress()\n\nCarries asynchronous collectives on without waiting."},
    {"raised", group_raised, METH_O, "raised(traceback)\n\nTells the other ranks that this one ends by an exception."},
    {0},
};
static PyGetSetDef group_getset[] = {
    {"rank", group_rank, NULL, "This rank's number.", NULL},
    {"size", group_size, NULL, "The number of ranks.", NULL},
    {"epoch", group_epoch, NULL, "How many groups these ranks had before, plus 1.", NULL},
    {"transport", group_transport, NULL, "shm, inproc or none.", NULL},
    {"store", group_store, NULL, "The store that the ranks share.", NULL},
    {0},
};

/* ---- types and functions ----------------------------------------------------------------------------------------- */

static PyType_Slot segment_slots[] = {
    {Py_tp_dealloc, segment_dealloc}, {Py_tp_traverse, pd_py_comm_visit}, {Py_bf_getbuffer, segment_buffer},
    {Py_tp_doc, "Symmetric memory, as a buffer of bytes."}, {0},
};
static PyType_Slot work_slots[] = {
    {Py_tp_dealloc, work_dealloc}, {Py_tp_traverse, pd_py_comm_visit}, {Py_tp_methods, work_methods},
    {Py_tp_doc, "A collective under way."}, {0},
};
static PyType_Slot group_slots[] = {
    {Py_tp_dealloc, group_dealloc}, {Py_tp_traverse, group_traverse}, {Py_tp_clear, group_clear},
    {Py_tp_methods, group_methods}, {Py_tp_getset, group_getset}, {Py_tp_doc, "Ranks that work together."}, {0},
};

#define MADE_HERE Py_TPFLAGS_DISALLOW_INSTANTIATION
static PyType_Spec specs[] = {
    PD_PY_SPEC("Segment", SegmentObject, segment_slots, MADE_HERE),
    PD_PY_SPEC("Work", WorkObject, work_slots, MADE_HERE),
    PD_PY_SPEC("Group", GroupObject, group_slots, MADE_HERE),
};
static PyTypeObject **const types[] = {&segment_type, &work_type, &group_type};

int pd_py_comm_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (!type) return -1;
    Py_XSETREF(*keep, (PyTypeObject *)type);
    return PyModule_AddType(module, *keep);
}

/* The process's own link, made by the first comm_init and kept for later groups. The secret can be read only once, so
   it is kept until a connection has succeeded. */
static struct {
    pd_link *link;
    int secret_fd; /* where `secret` was read from; 0: it was not */
    uint8_t secret[PD_SECRET_BYTES];
    char address[PD_ADDRESS_BYTES];
} process;

static pd_status process_link(int rank, int world, const char *address, int secret_fd, double timeout) {
    if (process.link && pd_forked_since(process.link->forks)) process.link = NULL; /* the parent's */
    bool same = process.link && !strcmp(process.address, address);
    if (process.link && !(same && process.link->rank == rank && process.link->world == world))
        return pd_fail(PD_E_VALUE, "comm_init: this process is rank %d of %d at %s already", process.link->rank,
                       process.link->world, process.address);
    if (process.link) return PD_OK;
    if (!process.secret_fd || process.secret_fd != secret_fd) PD_TRY(pd_control_secret_read(secret_fd, process.secret));
    process.secret_fd = secret_fd;
    PD_TRY(pd_control_connect(address, process.secret, rank, world, timeout, &pd_py_hooks, &process.link));
    explicit_bzero(process.secret, sizeof process.secret);
    process.secret_fd = 0;
    snprintf(process.address, sizeof process.address, "%s", address);
    return PD_OK;
}

static PyObject *comm_init(PyObject *module, PyObject *args, PyObject *keywords) {
    (void)module;
    static char *names[] = {"rank", "world", "address", "secret_fd", "timeout", "algo", "slot", NULL};
    int rank, world, secret_fd, slot = 0;
    const char *address, *algo = NULL;
    PyObject *seconds = NULL;
    double timeout;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iizi|Ozi:comm_init", names, &rank, &world, &address, &secret_fd,
                                     &seconds, &algo, &slot) || !pd_py_seconds(seconds, 0, &timeout))
        return NULL;
    if (!address && world == 1) return group_over(NULL, timeout, algo, slot);
    if (!address) return PyErr_Format(PyExc_ValueError, "comm_init: %d ranks need the address of a launcher", world);
    pd_status status = process_link(rank, world, address, secret_fd, timeout > 0 ? timeout : 60);
    return status ? pd_py_raise(status) : group_over(process.link, timeout, algo, slot);
}

static PyObject *comm_init_hub(PyObject *module, PyObject *args, PyObject *keywords) {
    (void)module;
    static char *names[] = {"hub", "rank", "timeout", "algo", "slot", NULL};
    pd_pyhub *hub;
    int rank, slot = 0;
    const char *algo = NULL;
    PyObject *seconds = NULL;
    double timeout;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!i|Ozi:comm_init_hub", names, pd_py_hub_type, &hub, &rank,
                                     &seconds, &algo, &slot) || !pd_py_seconds(seconds, 0, &timeout))
        return NULL;
    bool known = rank >= 0 && rank < pd_hub_world(hub->hub);
    if (!known || !hub->links[rank]) {
        pd_link *link;
        pd_status status = pd_hub_join(hub->hub, rank, &pd_py_hooks, &link);
        if (status) return pd_py_raise(status);
        hub->links[rank] = link;
    }
    return group_over(hub->links[rank], timeout, algo, slot);
}

static PyObject *comm_raised(PyObject *module, PyObject *text) {
    (void)module;
    const char *traceback = PyUnicode_AsUTF8(text);
    if (!traceback) return NULL;
    if (process.link) pd_link_raised(process.link, traceback);
    Py_RETURN_NONE;
}

static PyObject *comm_leave(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    pd_link *link = process.link;
    process.link = NULL;
    if (link) {
        PD_PY_NO_GIL(pd_link_close(link)); /* groups that still hold it fail from here on */
        pd_link_release(link);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"comm_init", (PyCFunction)(void (*)(void))comm_init, METH_VARARGS | METH_KEYWORDS,
     "comm_init(rank, world, address, secret_fd, timeout=None, algo=None, slot=0) -> Group\n\nJoins the ranks of a "
     "launcher; address None: a world of one. Later groups of the process use the same connection."},
    {"comm_init_hub", (PyCFunction)(void (*)(void))comm_init_hub, METH_VARARGS | METH_KEYWORDS,
     "comm_init_hub(hub, rank, timeout=None, algo=None, slot=0) -> Group\n\nJoins the ranks of a hub, a thread each."},
    {"comm_raised", comm_raised, METH_O,
     "comm_raised(traceback)\n\nTells launcher and ranks that this one ends by an exception."},
    {"comm_leave", comm_leave, METH_NOARGS, "comm_leave()\n\nSays goodbye to launcher and ranks."},
    {0},
};

void pd_py_comm_trim(void) { pd_py_sites_trim(); }

int pd_py_comm_counts(PyObject *held, PyObject *cached) {
    for (size_t i = 0; i < sizeof live / sizeof *live; i++) {
        PyObject *n = PyLong_FromLongLong(live[i]);
        if (!n || PyDict_SetItemString(held, live_names[i], n)) {
            Py_XDECREF(n);
            return -1;
        }
        Py_DECREF(n);
    }
    PyObject *n = PyLong_FromLongLong(pd_py_sites_count());
    int rc = n ? PyDict_SetItemString(cached, "call sites", n) : -1;
    Py_XDECREF(n);
    return rc;
}

int pd_py_add_comm(PyObject *module) {
    pd_py_sites_package(module);
    if (pd_py_add_control(module)) return -1;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        if (pd_py_comm_type(module, &specs[i], types[i])) return -1;
    return PyModule_AddFunctions(module, functions);
}
