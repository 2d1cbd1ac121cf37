/* Groups and their collectives in Python, and the symmetric memory that they make.

   Small collectives keep the GIL and give it up only when a wait turns to sleeping (the hooks); large ones give it up
   for the whole call. An argument that is wrong on this rank raises here and leaves the group as it is. */
#include "py/py.h"

#include <string.h>

#include "base/mem.h"
#include "comm/tuning.h"
#include "py/comm_impl.h"

#define GIL_BYTES (128 << 10) /* collectives over this take more than 50 us (design 1.12) */

typedef struct { PyObject_HEAD pd_segment *segment; } SegmentObject;
typedef struct {
    PyObject_HEAD
    pd_group *group;
    pd_link *link;     /* NULL: a world of one */
    const struct pd_mesh_kind *kind; /* for its subgroups too */
    PyObject *tuning;                /* likewise: bytes; NULL: defaults */
    PyObject *pending; /* works under way: their buffers must live until they are done */
} GroupObject;

static PyTypeObject *segment_type, *group_type;

pd_group *pd_py_group(PyObject *o) {
    if (Py_TYPE(o) == group_type) return ((GroupObject *)o)->group;
    PyErr_Format(PyExc_TypeError, "group: %R (expected a Group)", o);
    return NULL;
}

/* Raises after making `half` away: its end may run Python. */
static PyObject *raise_without(PyObject *half, pd_status status) {
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
    pd_segment *s = ((SegmentObject *)self)->segment;
    return PyBuffer_FillInfo(view, self, pd_segment_ptr(s), (Py_ssize_t)pd_segment_bytes(s), 0, flags);
}

/* ---- Group: life ------------------------------------------------------------------------------------------------- */

static int group_traverse(PyObject *o, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(((GroupObject *)o)->pending);
    return 0;
}

static int group_clear(PyObject *o) {
    GroupObject *self = (GroupObject *)o;
    if (self->group) PD_PY_NO_GIL(pd_group_destroy(self->group)); /* before the buffers of its works go */
    Py_CLEAR(self->pending);
    Py_CLEAR(self->tuning);
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

PyObject *pd_py_group_over(pd_link *link, pd_group_options *o, PyObject *tuning) {
    if (tuning == Py_None) tuning = NULL;
    if (tuning && (!PyBytes_Check(tuning) || PyBytes_GET_SIZE(tuning) % (Py_ssize_t)sizeof *o->tunings))
        return PyErr_Format(PyExc_TypeError, "tuning is %s (expected rows of %zu bytes)", Py_TYPE(tuning)->tp_name,
                            sizeof *o->tunings);
    o->tunings = tuning ? (const pd_tuning *)(void *)PyBytes_AS_STRING(tuning) : NULL;
    o->tuning_count = tuning ? (size_t)PyBytes_GET_SIZE(tuning) / sizeof *o->tunings : 0;
    GroupObject *self = (GroupObject *)pd_py_comm_make(group_type, PD_PY_GROUP);
    if (!self) return NULL;
    self->kind = o->kind;
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
    return status ? raise_without((PyObject *)self, status) : (PyObject *)self;
}

/* Works that have ended no longer need their buffers. Looking at one may run Python, which may change the list. */
static void prune(GroupObject *self) {
    for (Py_ssize_t i = PyList_GET_SIZE(self->pending); i-- > 0;) {
        if (i >= PyList_GET_SIZE(self->pending)) continue;
        PyObject *w = Py_NewRef(PyList_GET_ITEM(self->pending, i));
        bool ended = pd_py_work_ended(w);
        if (ended && i < PyList_GET_SIZE(self->pending) && PyList_GET_ITEM(self->pending, i) == w)
            PyList_SetSlice(self->pending, i, i + 1, NULL);
        Py_DECREF(w);
    }
}

/* ---- Group: collectives ------------------------------------------------------------------------------------------ */

/* Which ranks there are, the group says. */
static bool take_root(PyObject *o, const char *name, int *out) {
    return pd_py_int_in(o, name, "root", INT32_MIN, INT32_MAX, out);
}

/* A collective from its arguments to its end: take() the memory, run it, finish(). */
typedef struct call {
    GroupObject *self;
    const char *name;
    bool async;
    pd_py_buffer in, out; /* of one in place: out */
    pd_work *work;
    pd_status status;
    uint64_t site;
} call;

static bool begin(call *c, PyObject *o, const char *name, PyObject *async) {
    *c = (call){.self = (GroupObject *)o, .name = name, .site = pd_py_site()};
    if (PyList_GET_SIZE(c->self->pending)) prune(c->self);
    return pd_py_truth(async, &c->async);
}

static bool take(call *c, PyObject *o, PyObject *dtype, const char *arg, int use, pd_py_buffer *b) {
    return !(c->status = pd_py_buffer_take(o, dtype, c->name, arg, use, b));
}

/* PREMUL_SUM sums copies of the inputs, which each rank has multiplied by its own factor and rounded to their dtype. */
static bool take_scaled(call *c, PyObject *o, PyObject *dtype, const char *arg, int use, pd_reduce op, double factor,
                        pd_py_buffer *b) {
    bool scaled = op == PD_REDUCE_PREMUL_SUM;
    if (!take(c, o, dtype, arg, scaled ? use | PD_PY_COPY : use, b)) return false;
    if (!scaled || (c->status = pd_reduce_check(c->name, b->dtype, op, factor))) return !c->status;
    const char *in = b->ptr;
    pd_reduce_run(b->dtype, op, 1, &in, 0, b->ptr, b->count, factor);
    return true;
}

static size_t bytes_of(const pd_py_buffer *b) { return (size_t)b->count * pd_dtype_size(b->dtype); }

#define RUN(c, call_)                                                                               \
    do {                                                                                            \
        if (bytes_of(&(c)->out) + bytes_of(&(c)->in) > GIL_BYTES) PD_PY_NO_GIL((c)->status = (call_)); \
        else (c)->status = (call_);                                                                 \
    } while (0)
#define WORK(c) ((c)->async ? &(c)->work : NULL)

/* An argument's error names the rank, because those of the others may be right; a closed group's names the call. */
static pd_status place_error(const call *c, pd_status status) {
    bool argument = status == PD_E_VALUE || status == PD_E_TYPE || status == PD_E_SHAPE || status == PD_E_DTYPE;
    int size = pd_group_size(c->self->group);
    pd_error e;
    pd_error_save(&e);
    if (status == PD_E_DIST && !strncmp(e.text, "comm: ", 6)) return pd_fail(status, "%s: %s", c->name, e.text + 6);
    if (!argument || size == 1) return status;
    return pd_fail(status, "%s, on rank %d of %d", e.text, pd_group_rank(c->self->group), size);
}

static void drop(call *c) {
    pd_py_buffer_drop(&c->in);
    pd_py_buffer_drop(&c->out);
}

/* The Work of an asynchronous call, which takes over the buffers; kept by the group until it is done. */
static PyObject *keep_work(call *c) {
    PyObject *w = pd_py_work_new(c->self->pending, c->work, &c->in, &c->out);
    if (w) return w;
    PD_PY_NO_GIL(pd_work_wait(c->work, -1)); /* no memory for its Python side: the buffers may go once it is done */
    pd_work_release(c->work);
    drop(c);
    return NULL;
}

static PyObject *finish(call *c) {
    if (!c->status && c->work) return keep_work(c);
    if (!c->status) c->status = pd_py_buffer_done(&c->out);
    PyObject *result = c->status ? pd_py_raise(place_error(c, c->status)) : Py_NewRef(Py_None);
    drop(c);
    return result;
}

static PyObject *group_all_reduce(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"all_reduce", 1, {"tensor", "op", "async_op", "scale", "dtype"}};
    PyObject *a[5];
    pd_reduce op;
    double scale = 1, factor;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !pd_py_reduce(a[1], s.name, &op, &factor)) return NULL;
    if (!begin(&c, o, s.name, a[2])) return NULL;
    if (a[3] && (scale = PyFloat_AsDouble(a[3])) == -1 && PyErr_Occurred()) return NULL;
    if (take_scaled(&c, a[0], a[4], "tensor", PD_PY_IN | PD_PY_OUT, op, factor, &c.out))
        RUN(&c, pd_group_all_reduce(c.self->group, c.out.ptr, c.out.count, c.out.dtype, op, scale, c.site,
                                    WORK(&c)));
    return finish(&c);
}

static PyObject *group_broadcast(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"broadcast", 1, {"tensor", "root", "async_op"}};
    PyObject *a[3];
    int root = 0;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !begin(&c, o, s.name, a[2])) return NULL;
    if (a[1] && !take_root(a[1], s.name, &root)) return NULL;
    if (take(&c, a[0], NULL, "tensor", PD_PY_IN | PD_PY_OUT, &c.out))
        RUN(&c, pd_group_broadcast(c.self->group, c.out.ptr, c.out.count, c.out.dtype, root, c.site, WORK(&c)));
    return finish(&c);
}

/* One of the two has `size` times the elements of the other, and is a list of such tensors if it is a list. Coalesced,
   both are lists: the tensors of rank 0's part, then of rank 1's, ... */
static pd_status check_parts(const call *c, const pd_py_buffer *whole, const char *name, const pd_py_buffer *part,
                             const char *part_name, bool coalesced) {
    int size = pd_group_size(c->self->group);
    if (part->listed != coalesced || (coalesced && !whole->listed))
        return pd_fail(PD_E_TYPE, "%s: %s is %s", c->name, part->listed != coalesced ? part_name : name,
                       coalesced ? "no list (expected one of tensors)" : "a list (expected a tensor)");
    if (whole->dtype != part->dtype)
        return pd_fail(PD_E_DTYPE, "%s: %s is of %s (expected %s, as %s)", c->name, name,
                       pd_dtype_name(whole->dtype), pd_dtype_name(part->dtype), part_name);
    PD_TRY(pd_py_buffer_like(whole, c->name, name, size, part));
    if (whole->count != part->count * size)
        return pd_fail(PD_E_SHAPE, "%s: %s has %lld elements (expected %d times the %lld of %s)", c->name, name,
                       (long long)whole->count, size, (long long)part->count, part_name);
    const char *own = (char *)whole->ptr + bytes_of(part) * (size_t)pd_group_rank(c->self->group), *at = part->ptr;
    bool overlaps = at < (char *)whole->ptr + bytes_of(whole) && at + bytes_of(part) > (char *)whole->ptr;
    if (overlaps && at != own)
        return pd_fail(PD_E_VALUE, "%s: %s and %s overlap (expected separate memory, or this rank's part)", c->name,
                       part_name, name);
    return PD_OK;
}

static PyObject *group_all_gather(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"all_gather", 2, {"output", "input", "async_op", "coalesced"}};
    PyObject *a[4];
    bool coalesced;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !pd_py_truth(a[3], &coalesced)) return NULL;
    if (!begin(&c, o, s.name, a[2])) return NULL;
    if (take(&c, a[1], NULL, "input", PD_PY_IN, &c.in) && take(&c, a[0], NULL, "output", PD_PY_OUT, &c.out) &&
        !(c.status = check_parts(&c, &c.out, "output", &c.in, "input", coalesced)))
        RUN(&c, pd_group_all_gather(c.self->group, c.in.ptr, c.out.ptr, c.in.count, c.in.dtype, c.site, WORK(&c)));
    return finish(&c);
}

static PyObject *group_reduce_scatter(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"reduce_scatter", 2, {"output", "input", "op", "async_op", "scale", "coalesced"}};
    PyObject *a[6];
    bool coalesced;
    pd_reduce op;
    double scale = 1, factor;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !pd_py_reduce(a[2], s.name, &op, &factor)) return NULL;
    if (!pd_py_truth(a[5], &coalesced) || !begin(&c, o, s.name, a[3])) return NULL;
    if (a[4] && (scale = PyFloat_AsDouble(a[4])) == -1 && PyErr_Occurred()) return NULL;
    if (take_scaled(&c, a[1], NULL, "input", PD_PY_IN, op, factor, &c.in) &&
        take(&c, a[0], NULL, "output", PD_PY_OUT, &c.out) &&
        !(c.status = check_parts(&c, &c.in, "input", &c.out, "output", coalesced)))
        RUN(&c, pd_group_reduce_scatter(c.self->group, c.in.ptr, c.out.ptr, c.out.count, c.out.dtype, op, scale,
                                        c.site, WORK(&c)));
    return finish(&c);
}

static pd_status check_exchange(const call *c) {
    const pd_py_buffer *in = &c->in, *out = &c->out;
    int size = pd_group_size(c->self->group);
    if (in->listed || out->listed) return pd_fail(PD_E_TYPE, "all_to_all: a list (expected tensors)");
    if (in->dtype != out->dtype)
        return pd_fail(PD_E_DTYPE, "all_to_all: output is of %s (expected %s, as input)", pd_dtype_name(out->dtype),
                       pd_dtype_name(in->dtype));
    if (in->count != out->count || in->count % size)
        return pd_fail(PD_E_SHAPE, "all_to_all: input has %lld elements, output %lld (expected the same multiple of %d)",
                       (long long)in->count, (long long)out->count, size);
    const char *from = in->ptr, *to = out->ptr;
    if (from != to && from < to + bytes_of(out) && to < from + bytes_of(in))
        return pd_fail(PD_E_VALUE, "all_to_all: input and output overlap (expected separate or the same memory)");
    return PD_OK;
}

static PyObject *group_all_to_all(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"all_to_all", 2, {"output", "input", "async_op"}};
    PyObject *a[3];
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !begin(&c, o, s.name, a[2])) return NULL;
    if (take(&c, a[1], NULL, "input", PD_PY_IN, &c.in) && take(&c, a[0], NULL, "output", PD_PY_OUT, &c.out) &&
        !(c.status = check_exchange(&c)))
        RUN(&c, pd_group_all_to_all(c.self->group, c.in.ptr, c.out.ptr, c.in.count / pd_group_size(c.self->group),
                                    c.in.dtype, c.site, WORK(&c)));
    return finish(&c);
}

static PyObject *group_reduce(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"reduce", 2, {"tensor", "root", "op", "async_op"}};
    PyObject *a[4];
    pd_reduce op;
    double factor;
    int root;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !take_root(a[1], s.name, &root)) return NULL;
    if (!pd_py_reduce(a[2], s.name, &op, &factor) || !begin(&c, o, s.name, a[3])) return NULL;
    int use = root == pd_group_rank(c.self->group) ? PD_PY_IN | PD_PY_OUT : PD_PY_IN;
    if (take_scaled(&c, a[0], NULL, "tensor", use, op, factor, &c.out))
        RUN(&c, pd_group_reduce(c.self->group, c.out.ptr, c.out.count, c.out.dtype, op, root, c.site, WORK(&c)));
    return finish(&c);
}

/* gather and scatter: the whole is the root's alone, None elsewhere. */
static bool take_whole(call *c, PyObject *o, int root, const char *name, int use, pd_py_buffer *b) {
    bool is_root = root == pd_group_rank(c->self->group), given = o != Py_None;
    if (is_root && given) return take(c, o, NULL, name, use, b);
    if (is_root != given)
        c->status = pd_fail(PD_E_VALUE, "%s: %s is %s (expected %s the root, rank %d)", c->name, name,
                            given ? "given" : "None", given ? "None but on" : "tensors on", root);
    return !c->status;
}

static PyObject *group_gather(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"gather", 3, {"output", "input", "root", "async_op"}};
    PyObject *a[4];
    int root;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !take_root(a[2], s.name, &root)) return NULL;
    if (!begin(&c, o, s.name, a[3])) return NULL;
    if (take(&c, a[1], NULL, "input", PD_PY_IN, &c.in) && take_whole(&c, a[0], root, "output", PD_PY_OUT, &c.out) &&
        !(c.status = c.out.use ? check_parts(&c, &c.out, "output", &c.in, "input", false) : PD_OK))
        RUN(&c, pd_group_gather(c.self->group, c.in.ptr, c.out.ptr, c.in.count, c.in.dtype, root, c.site, WORK(&c)));
    return finish(&c);
}

static PyObject *group_scatter(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"scatter", 3, {"output", "input", "root", "async_op"}};
    PyObject *a[4];
    int root;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !take_root(a[2], s.name, &root)) return NULL;
    if (!begin(&c, o, s.name, a[3])) return NULL;
    if (take_whole(&c, a[1], root, "input", PD_PY_IN, &c.in) && take(&c, a[0], NULL, "output", PD_PY_OUT, &c.out) &&
        !(c.status = c.in.use ? check_parts(&c, &c.in, "input", &c.out, "output", false) : PD_OK))
        RUN(&c, pd_group_scatter(c.self->group, c.in.ptr, c.out.ptr, c.out.count, c.out.dtype, root, c.site, WORK(&c)));
    return finish(&c);
}

/* The rank in the group, as Python has it: -1 for any (receives only), which the group checks. */
static bool take_message(PyObject *const *a, const char *name, int *peer, int *tag) {
    *tag = 0;
    *peer = -1;
    if (a[1] != Py_None && !pd_py_int_in(a[1], name, "rank", 0, INT32_MAX, peer)) return false;
    return !a[2] || pd_py_int_in(a[2], name, "tag", INT32_MIN, INT32_MAX, tag);
}

static PyObject *group_send(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"send", 2, {"tensor", "dst", "tag", "async_op"}};
    PyObject *a[4];
    int peer, tag;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !take_message(a, s.name, &peer, &tag)) return NULL;
    if (!begin(&c, o, s.name, a[3])) return NULL;
    if (take(&c, a[0], NULL, "tensor", PD_PY_IN, &c.in))
        RUN(&c, pd_group_send(c.self->group, c.in.ptr, c.in.count, c.in.dtype, peer, tag, c.site, WORK(&c)));
    return finish(&c);
}

/* Its result is who has sent, so it always makes a work. */
static PyObject *group_recv(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"recv", 2, {"tensor", "src", "tag", "async_op"}};
    PyObject *a[4];
    int peer, tag;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !take_message(a, s.name, &peer, &tag)) return NULL;
    if (!begin(&c, o, s.name, a[3])) return NULL;
    if (!take(&c, a[0], NULL, "tensor", PD_PY_OUT, &c.out)) return finish(&c);
    c.status = pd_group_recv(c.self->group, c.out.ptr, c.out.count, c.out.dtype, peer, tag, c.site, &c.work);
    if (c.status || c.async) return finish(&c);
    RUN(&c, pd_work_wait(c.work, -1));
    int source = c.status ? -1 : pd_work_source(c.work);
    pd_work_release(c.work);
    c.work = NULL;
    PyObject *done = finish(&c);
    if (!done) return NULL;
    Py_DECREF(done);
    return PyLong_FromLong(source);
}

static PyObject *group_barrier(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"barrier", 0, {"async_op"}};
    PyObject *a[1];
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !begin(&c, o, s.name, a[0])) return NULL;
    RUN(&c, pd_group_barrier(c.self->group, c.site, WORK(&c)));
    return finish(&c);
}

/* ---- Group: the rest --------------------------------------------------------------------------------------------- */

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
    if (bytes < 0) return PyErr_Format(PyExc_ValueError, "segment: %zd bytes", bytes);
    SegmentObject *s = (SegmentObject *)pd_py_comm_make(segment_type, PD_PY_SEGMENT);
    if (!s) return NULL;
    PD_PY_NO_GIL(status = pd_group_segment_new(self->group, (size_t)bytes, &segment));
    if (status) return raise_without((PyObject *)s, status);
    s->segment = segment;
    return (PyObject *)s;
}

/* new reference: the ranks in `o`, or NULL; *out, to be freed, has them as numbers */
static PyObject *take_ranks(PyObject *o, int **out) {
    PyObject *list = PySequence_Fast(o, "subgroup: ranks (expected a sequence of ints)");
    if (!list) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    bool good = !pd_malloc((size_t)n * sizeof **out + 1, "subgroup", out);
    if (!good) pd_py_raise(PD_E_MEMORY);
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = pd_py_int_in(PySequence_Fast_GET_ITEM(list, i), "subgroup", "rank", 0, PD_WORLD_MAX, &(*out)[i]);
    if (good) return list;
    Py_DECREF(list);
    return NULL;
}

static PyObject *group_subgroup(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"subgroup", 1, {"ranks", "timeout", "epoch", "fast", "tuning", "check"}};
    GroupObject *self = (GroupObject *)o;
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
        options.size = (int)PySequence_Fast_GET_SIZE(list);
        options.epoch = epoch ? PD_EPOCH_APART + (uint32_t)epoch : 0;
    }
    made = list ? pd_py_group_over(self->link, &options, a[4] ? a[4] : self->tuning) : NULL;
    Py_XDECREF(list);
    pd_free(ranks);
    return made;
}

static PyObject *group_skip(PyObject *o, PyObject *unused) {
    (void)unused;
    if (((GroupObject *)o)->link) pd_group_skip(((GroupObject *)o)->link);
    Py_RETURN_NONE;
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

static PyObject *group_task(PyObject *o, PyObject *args) {
    GroupObject *self = (GroupObject *)o;
    const char *name;
    double seconds;
    if (!PyArg_ParseTuple(args, "sd:task", &name, &seconds)) return NULL;
    if (!(seconds >= 0)) return PyErr_Format(PyExc_ValueError, "task: a negative or undefined time (expected seconds)");
    if (self->link) PD_PY_NO_GIL(pd_link_task(self->link, name, seconds));
    Py_RETURN_NONE;
}

static PyObject *group_flight(PyObject *o, PyObject *unused) {
    enum { BYTES = 1 << 20 };
    GroupObject *self = (GroupObject *)o;
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
static PyObject *group_ranks(PyObject *o, void *unused) {
    (void)unused;
    pd_group *g = ((GroupObject *)o)->group;
    int n = pd_group_size(g);
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *rank = PyLong_FromLong(pd_group_link_rank(g, i));
        if (!rank) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, rank);
    }
    return list;
}
static PyObject *group_gone(PyObject *o, void *unused) {
    const GroupObject *self = (GroupObject *)o;
    PyObject *gone = PyDict_New();
    (void)unused;
    for (int i = 0; gone && self->link && i < pd_group_size(self->group); i++) {
        int rank = pd_group_link_rank(self->group, i);
        pd_weight weight = pd_link_left(self->link, rank);
        PyObject *key = weight ? PyLong_FromLong(rank) : NULL;
        if (weight && (!key || PyDict_SetItem(gone, key, weight == PD_WEIGHT_LEFT ? Py_True : Py_False))) Py_CLEAR(gone);
        Py_XDECREF(key);
    }
    return gone;
}
static PyObject *group_epoch(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(pd_group_epoch(((GroupObject *)o)->group));
}
static PyObject *group_local(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_group_local(((GroupObject *)o)->group));
}
static PyObject *group_order(PyObject *o, void *unused) {
    (void)unused;
    return PyUnicode_FromString(pd_group_fast(((GroupObject *)o)->group) ? "fast" : "tree");
}
static PyObject *group_tuning(PyObject *o, void *unused) {
    (void)unused;
    const pd_tuning *t = pd_group_tuning(((GroupObject *)o)->group);
    return Py_BuildValue("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "mesh", t->mesh, "world", t->world, "gather", t->gather,
                         "direct", t->direct, "piece", t->piece, "block", t->block, "fast", t->fast, "fast_from",
                         t->fast_from);
}
static PyObject *group_transport(PyObject *o, void *unused) {
    (void)unused;
    return PyUnicode_FromString(pd_group_transport(((GroupObject *)o)->group));
}

static PyObject *group_way(PyObject *o, void *unused) {
    (void)unused;
    const pd_link *link = ((GroupObject *)o)->link;
    return PyUnicode_FromString(link ? link->way : "");
}

#define FAST(f) (PyCFunction)(void (*)(void))f, METH_FASTCALL | METH_KEYWORDS
static PyMethodDef group_methods[] = {
    {"all_reduce", FAST(group_all_reduce),
     "all_reduce(tensor, op='sum', async_op=False, scale=1.0, dtype=None) -> None | Work\n\n"
     "tensor = scale * op over the ranks, in place, with the same bits everywhere."},
    {"broadcast", FAST(group_broadcast),
     "broadcast(tensor, root=0, async_op=False) -> None | Work\n\ntensor, or each of a list of tensors "
     "of one dtype, = the root's, in place."},
    {"all_gather", FAST(group_all_gather),
     "all_gather(output, input, async_op=False, coalesced=False) -> None | Work\n\noutput = the ranks' inputs one after "
     "the other: a tensor, or a list of a tensor for each rank. Coalesced: input is a list, output as many for each rank."},
    {"reduce_scatter", FAST(group_reduce_scatter),
     "reduce_scatter(output, input, op='sum', async_op=False, scale=1.0, coalesced=False) -> None | Work\n\noutput = "
     "this rank's part of scale * op over the ranks' inputs; input: a tensor, or a list of a tensor for each rank. "
     "Coalesced: output is a list, input as many for each rank."},
    {"all_to_all", FAST(group_all_to_all),
     "all_to_all(output, input, async_op=False) -> None | Work\n\nPart r of the output = this rank's part of rank r's "
     "input; parts are equal."},
    {"reduce", FAST(group_reduce),
     "reduce(tensor, root, op='sum', async_op=False) -> None | Work\n\nThe root's tensor = op over the ranks."},
    {"gather", FAST(group_gather),
     "gather(output, input, root, async_op=False) -> None | Work\n\nall_gather on the root alone; elsewhere output is "
     "None."},
    {"scatter", FAST(group_scatter),
     "scatter(output, input, root, async_op=False) -> None | Work\n\noutput = this rank's part of the root's input; "
     "elsewhere input is None."},
    {"send", FAST(group_send),
     "send(tensor, dst, tag=0, async_op=False) -> None | Work\n\nA message to a rank of the group, for its recv of the same "
     "tag, dtype and number of elements."},
    {"recv", FAST(group_recv),
     "recv(tensor, src, tag=0, async_op=False) -> int | Work\n\ntensor = the oldest message from src (None: any rank) with "
     "this tag. The rank in the group that sent it."},
    {"barrier", FAST(group_barrier),
     "barrier(async_op=False) -> None | Work\n\nReturns when all ranks have called it."},
    {"destroy", group_destroy, METH_NOARGS, "destroy()\n\nLeaves the group. Segments stay valid."},
    {"segment", group_segment, METH_O,
     "segment(bytes) -> Segment\n\nZeroed memory that all ranks can address: collectives on it copy nothing. Collective."},
    {"subgroup", FAST(group_subgroup),
     "subgroup(ranks, timeout=None, epoch=0, fast=False, tuning=None, check=True) -> Group\n\nA group of these ranks of the job, this one among them, in this "
     "order. The job's other ranks call skip(), or the members agree on an epoch over 0."},
    {"skip", group_skip, METH_NOARGS, "skip()\n\nOther ranks of the job make a subgroup without this one."},
    {"progress", group_progress, METH_NOARGS, "progress()\n\nCarries asynchronous collectives on without waiting."},
    {"task", group_task, METH_VARARGS,
     "task(name, seconds)\n\nTells the other ranks that this one does something long: for that time they do not give up "
     "waiting for it. 0 seconds: it is done."},
    {"flight", group_flight, METH_NOARGS,
     "flight() -> str\n\nThe last PYDIST_FLIGHT collectives of this rank's groups, a line each."},
    {"raised", group_raised, METH_O, "raised(traceback)\n\nTells the other ranks that this one ends by an exception."},
    {0},
};
static PyGetSetDef group_getset[] = {
    {"rank", group_rank, NULL, "This rank's number.", NULL},
    {"size", group_size, NULL, "The number of ranks.", NULL},
    {"ranks", group_ranks, NULL, "Its ranks' numbers in the job, in order.", NULL},
    {"gone", group_gone, NULL,
     "Its ranks that are known to be gone, by their numbers in the job: True for one that left of its own accord.", NULL},
    {"epoch", group_epoch, NULL, "How many groups these ranks had before, plus 1.", NULL},
    {"order", group_order, NULL, "tree: sums have design 1.4's order; fast: any, the same on all ranks.", NULL},
    {"tuning", group_tuning, NULL, "Its switch points in bytes, which are rank 0's; see pydist.tune.", NULL},
    {"ranks_per_host", group_local, NULL, "Over 1: all_reduce is hierarchical, with so many ranks on each host.", NULL},
    {"transport", group_transport, NULL, "shm, inproc or none.", NULL},
    {"way", group_way, NULL, "How this rank reaches a control server on another host, and why so; else ''.", NULL},
    {"store", group_store, NULL, "The store that the ranks share.", NULL},
    {0},
};

/* ---- types ------------------------------------------------------------------------------------------------------- */

static PyType_Slot segment_slots[] = {
    {Py_tp_dealloc, segment_dealloc}, {Py_tp_traverse, pd_py_comm_visit}, {Py_bf_getbuffer, segment_buffer},
    {Py_tp_doc, "Symmetric memory, as a buffer of bytes."}, {0},
};
static PyType_Slot group_slots[] = {
    {Py_tp_dealloc, group_dealloc}, {Py_tp_traverse, group_traverse}, {Py_tp_clear, group_clear},
    {Py_tp_methods, group_methods}, {Py_tp_getset, group_getset}, {Py_tp_doc, "Ranks that work together."}, {0},
};
static PyType_Spec segment_spec =
    PD_PY_SPEC("Segment", SegmentObject, segment_slots, Py_TPFLAGS_DISALLOW_INSTANTIATION);
static PyType_Spec group_spec = PD_PY_SPEC("Group", GroupObject, group_slots, Py_TPFLAGS_DISALLOW_INSTANTIATION);

int pd_py_add_group(PyObject *module) {
    if (pd_py_comm_type(module, &segment_spec, &segment_type)) return -1;
    return pd_py_comm_type(module, &group_spec, &group_type);
}
