/* The collectives of a group in Python.

   Small collectives keep the GIL, and give it up only when a wait begins to sleep (by the hooks). Large ones give it up
   for the whole call. An argument that is wrong on this rank raises here and leaves the group as it is. */
#include "py/py.h"

#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "comm/algo/reduce.h"
#include "comm/group/mover.h"
#include "py/comm/comm_impl.h"

#define GIL_BYTES (2.6 * PD_RELEASE_NS) /* collectives over this take longer than that: 128 KiB, 50 us */

/* Drops works that have ended, with their buffers. Looking at a work may run Python code, which may change the list. */
static void prune(pd_pygroup *self) {
    for (Py_ssize_t i = PyList_GET_SIZE(self->pending); i-- > 0;) {
        if (i >= PyList_GET_SIZE(self->pending)) continue;
        PyObject *w = Py_NewRef(PyList_GET_ITEM(self->pending, i));
        bool ended = pd_py_work_ended(w);
        if (ended && i < PyList_GET_SIZE(self->pending) && PyList_GET_ITEM(self->pending, i) == w)
            PyList_SetSlice(self->pending, i, i + 1, NULL);
        Py_DECREF(w);
    }
}

/* Reads the root's rank; the group checks whether there is such a rank. */
static bool take_root(PyObject *o, const char *name, int *out) {
    return pd_py_int_in(o, name, "root", INT32_MIN, INT32_MAX, out);
}

/* A call of a collective: take() gets the memory, then it is run, finish() ends it. */
typedef struct call {
    pd_pygroup *self;
    const char *name;
    bool async;
    pd_py_buffer in, out; /* a collective in place uses only out */
    pd_part *parts;       /* addresses and sizes of the tensors of lists; the engine copies them */
    const pd_device *device; /* the memory's device; NULL: no memory yet */
    pd_work *work;
    pd_status status;
    uint64_t site;
} call;

static bool begin(call *c, PyObject *o, const char *name, PyObject *async) {
    *c = (call){.self = (pd_pygroup *)o, .name = name, .site = pd_py_site()};
    if (PyList_GET_SIZE(c->self->pending)) prune(c->self);
    return pd_py_truth(async, &c->async);
}

static bool take(call *c, PyObject *o, PyObject *dtype, const char *arg, int use, pd_py_buffer *b) {
    if ((c->status = pd_py_buffer_take(o, dtype, c->name, arg, use, b))) return false;
    if (c->device && c->device != b->device)
        c->status = pd_fail(PD_E_VALUE, "%s: %s is on %s (expected %s, like the other tensor)", c->name, arg,
                            b->device->name, c->device->name);
    c->device = b->device;
    return !c->status;
}

/* PREMUL_SUM sums copies of the inputs, which each rank has multiplied by its own factor and rounded to their dtype. */
static bool take_scaled(call *c, PyObject *o, PyObject *dtype, const char *arg, int use, pd_reduce op, double factor,
                        pd_py_buffer *b) {
    bool scaled = op == PD_REDUCE_PREMUL_SUM;
    if (!take(c, o, dtype, arg, scaled ? use | PD_PY_COPY : use, b)) return false;
    if (!scaled || (c->status = pd_reduce_check(c->name, b->dtype, op, factor))) return !c->status;
    const char *in = b->ptr;
    if (b->device == &pd_device_cpu) pd_reduce_run(b->dtype, op, 1, &in, 0, b->ptr, b->count, factor);
    else c->status = pd_alone_scale(b->device, c->name, b->dtype, factor, b->ptr, b->count);
    return !c->status;
}

static size_t bytes_of(const pd_py_buffer *b) { return (size_t)b->count * pd_dtype_size(b->dtype); }

#define RUN(c, call_)                                                                               \
    do {                                                                                            \
        const pd_device *was_;                                                                      \
        (c)->status = pd_device_enter((c)->device ? (c)->device : &pd_device_cpu, &was_);            \
        if ((c)->status) {}                                                                         \
        else if (bytes_of(&(c)->out) + bytes_of(&(c)->in) > GIL_BYTES) PD_PY_NO_GIL((c)->status = (call_)); \
        else (c)->status = (call_);                                                                 \
        pd_device_here = was_;                                                                      \
    } while (0)
#define WORK(c) ((c)->async ? &(c)->work : NULL)

/* Adds to an error: the rank to that of an argument, since it may be right on other ranks; the call to that of a closed
   group. */
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
    pd_free(c->parts);
    pd_py_buffer_drop(&c->in);
    pd_py_buffer_drop(&c->out);
}

/* [new] the Work of an asynchronous call. It owns the buffers, and the group keeps it until it is done. */
static PyObject *keep_work(call *c) {
    PyObject *w = pd_py_work_new(c->self->pending, c->work, &c->in, &c->out);
    if (w) pd_free(c->parts);
    if (w) return w;
    PD_PY_NO_GIL(pd_work_wait(c->work, -1)); /* no memory for the Work: its buffers can be freed once it is done */
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

/* A buffer of a sum over logical shards has a part for each block that a rank may have. */
static pd_status check_blocks(const call *c, const pd_py_buffer *b, const char *name, pd_reduce op,
                              const pd_blocks *blocks) {
    if (op != PD_REDUCE_SUM)
        return pd_fail(PD_E_VALUE, "%s: op is %s beside blocks (expected sum)", c->name, pd_reduce_names[op]);
    if (b->count % blocks->parts)
        return pd_fail(PD_E_SHAPE, "%s: %s has %lld elements (expected a multiple of %d, the parts of blocks)", c->name,
                       name, (long long)b->count, blocks->parts);
    return PD_OK;
}

PD_PY_METHOD(pd_py_group_all_reduce) {
    static const pd_py_signature s = {"all_reduce", 1, {"tensor", "op", "async_op", "scale", "dtype", "blocks"}};
    PyObject *a[6];
    pd_reduce op;
    double scale = 1, factor;
    pd_blocks *b;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !pd_py_reduce(a[1], s.name, &op, &factor)) return NULL;
    if (!pd_py_blocks(a[5], s.name, &b)) return NULL;
    if (!begin(&c, o, s.name, a[2])) return NULL;
    if (a[3] && (scale = PyFloat_AsDouble(a[3])) == -1 && PyErr_Occurred()) return NULL;
    if (!take_scaled(&c, a[0], a[4], "tensor", PD_PY_IN | PD_PY_OUT, op, factor, &c.out)) return finish(&c);
    if (b) {
        int64_t each = c.out.count / b->parts;
        if (!(c.status = check_blocks(&c, &c.out, "tensor", op, b)))
            RUN(&c, pd_group_all_reduce_blocks(c.self->group, c.out.ptr, bytes_of(&c.out) / (size_t)b->parts, each,
                                               c.out.dtype, b, scale, c.site, WORK(&c)));
    } else
        RUN(&c, pd_group_all_reduce(c.self->group, c.out.ptr, c.out.count, c.out.dtype, op, scale, c.site,
                                    WORK(&c)));
    return finish(&c);
}

PD_PY_METHOD(pd_py_group_broadcast) {
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

static pd_status check_dtypes(const call *c, const char *name, pd_dtype have, pd_dtype want, const char *other) {
    if (have == want) return PD_OK;
    return pd_fail(PD_E_DTYPE, "%s: %s has dtype %s (expected %s, like %s)", c->name, name, pd_dtype_name(have),
                   pd_dtype_name(want), other);
}

/* Fails unless `whole` has `size` times the elements of `part`; if it is a list, its tensors must be like `part`. In a
   coalesced call both are lists: `whole` has the tensors of rank 0's part, then of rank 1's, ... */
static pd_status check_parts(const call *c, const pd_py_buffer *whole, const char *name, const pd_py_buffer *part,
                             const char *part_name, bool coalesced) {
    int size = pd_group_size(c->self->group);
    if (part->listed != coalesced || (coalesced && !whole->listed))
        return pd_fail(PD_E_TYPE, "%s: %s is %s", c->name, part->listed != coalesced ? part_name : name,
                       coalesced ? "not a list (expected a list of tensors)" : "a list (expected a tensor)");
    PD_TRY(check_dtypes(c, name, whole->dtype, part->dtype, part_name));
    PD_TRY(pd_py_buffer_like(whole, c->name, name, size, part));
    if (whole->count != part->count * size)
        return pd_fail(PD_E_SHAPE, "%s: %s has %lld elements (expected %d * %lld, as %s has)", c->name, name,
                       (long long)whole->count, size, (long long)part->count, part_name);
    const char *own = (char *)whole->ptr + bytes_of(part) * (size_t)pd_group_rank(c->self->group), *at = part->ptr;
    bool overlaps = at < (char *)whole->ptr + bytes_of(whole) && at + bytes_of(part) > (char *)whole->ptr;
    if (overlaps && at != own)
        return pd_fail(PD_E_VALUE, "%s: %s and %s overlap (expected separate memory, or this rank's part)", c->name,
                       part_name, name);
    return PD_OK;
}

/* ---- parts of different sizes ------------------------------------------------------------------------------------ */

static bool is_given(PyObject *sizes) { return sizes && sizes != Py_None; }

/* Whether o is a list of tensors of different sizes. */
static bool is_uneven(PyObject *o) {
    if (!PyList_Check(o) && !PyTuple_Check(o)) return false;
    int64_t first = -1;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(o, i);
        if (!pd_py_is_tensor(item)) return false; /* an error that is found later */
        if (i && pd_py_tensor(item)->numel != first) return true;
        first = pd_py_tensor(item)->numel;
    }
    return false;
}

static pd_status list_parts(const call *c, const pd_py_buffer *b, const char *name, pd_part *parts) {
    int size = pd_group_size(c->self->group), have = pd_py_buffer_items(b);
    if (have != size)
        return pd_fail(PD_E_VALUE, "%s: %s has %d tensors (expected %d, one for each rank)", c->name, name, have, size);
    pd_py_buffer_parts(b, parts);
    return PD_OK;
}

/* The first dimension of a tensor or of other memory, and the elements of one of its rows. */
static int64_t rows_of(const pd_py_buffer *b, int64_t *row) {
    int64_t rows = b->count;
    if (b->keep) rows = pd_py_tensor(b->keep)->ndim ? pd_py_tensor(b->keep)->size[0] : 0;
    else if (b->view.ndim && b->view.shape) rows = b->view.shape[0];
    *row = rows ? b->count / rows : 0;
    return rows;
}

/* "[1, 2, -3]", as Python shows it. */
static void sizes_text(PyObject *sizes, char *text, size_t size) {
    PyObject *shown = PyObject_Repr(sizes);
    const char *utf8 = shown ? PyUnicode_AsUTF8(shown) : NULL;
    snprintf(text, size, "%.*s%s", (int)size - 4, utf8 ? utf8 : "?", utf8 && strlen(utf8) > size - 4 ? "..." : "");
    PyErr_Clear();
    Py_XDECREF(shown);
}

bool pd_py_part_sizes(PyObject *sizes, const char *op, const char *arg, int n, pd_part *parts, bool *fits) {
    PyObject *items = pd_py_items(sizes, op, arg, "a sequence of ints");
    bool good = items != NULL;
    *fits = good && PyTuple_GET_SIZE(items) == n;
    for (int r = 0; good && *fits && r < n; r++) {
        parts[r].count = PyLong_AsLongLong(PyTuple_GET_ITEM(items, r));
        good = parts[r].count != -1 || !PyErr_Occurred();
        *fits = parts[r].count >= 0;
    }
    Py_XDECREF(items);
    return good;
}

/* Reads the sizes of the parts, in rows; if none are given, all are equal. */
static pd_status read_sizes(const call *c, PyObject *sizes, const char *name, int64_t rows, pd_part *parts) {
    int size = pd_group_size(c->self->group);
    if (!is_given(sizes)) {
        if (rows % size)
            return pd_fail(PD_E_VALUE, "%s: %s has %lld rows (expected a multiple of %d, or sizes)", c->name, name,
                           (long long)rows, size);
        for (int r = 0; r < size; r++) parts[r].count = rows / size;
        return PD_OK;
    }
    int64_t left = rows;
    bool fits;
    if (!pd_py_part_sizes(sizes, c->name, "the sizes of parts", size, parts, &fits)) return pd_py_caught();
    for (int r = 0; fits && r < size; r++) {
        fits = parts[r].count <= left;
        left -= fits ? parts[r].count : 0;
    }
    if (fits && !left) return PD_OK;
    char text[120];
    sizes_text(sizes, text, sizeof text);
    return pd_fail(PD_E_VALUE, "%s: %s of %lld rows is split into %s (expected %d sizes that add up to %lld)", c->name,
                   name, (long long)rows, text, size, (long long)rows);
}

/* The parts of b: the tensors of a list, or parts of the first dimension. */
static pd_status parts_of(const call *c, const pd_py_buffer *b, PyObject *sizes, const char *name, pd_part *parts) {
    int64_t row;
    if (b->listed && is_given(sizes))
        return pd_fail(PD_E_TYPE, "%s: %s is a list, but sizes of parts are given (expected a tensor)", c->name, name);
    if (b->listed) return list_parts(c, b, name, parts);
    PD_TRY(read_sizes(c, sizes, name, rows_of(b, &row), parts));
    char *at = b->ptr;
    for (int r = 0; r < pd_group_size(c->self->group); r++) {
        parts[r] = (pd_part){at, parts[r].count * row};
        at += (size_t)parts[r].count * pd_dtype_size(b->dtype);
    }
    return PD_OK;
}

/* Whether one of the `n` parts overlaps `p`. Part `own` may be p itself (-1: none may). */
static bool overlaps(const pd_part *parts, int n, const pd_part *p, int own, size_t element) {
    const char *end = p->data + (size_t)p->count * element;
    for (int i = 0; i < n; i++) {
        const char *begin = parts[i].data;
        bool same = i == own && begin == p->data;
        if (!same && parts[i].count && p->count && begin < end && p->data < begin + (size_t)parts[i].count * element)
            return true;
    }
    return false;
}

/* The memory from the first byte of n parts to the last. */
static pd_part range_of(const pd_part *parts, int n, size_t element) {
    uintptr_t lo = UINTPTR_MAX, hi = 0;
    for (int i = 0; i < n; i++) {
        uintptr_t at = (uintptr_t)parts[i].data, end = at + (size_t)parts[i].count * element;
        if (parts[i].count && at < lo) lo = at;
        if (parts[i].count && end > hi) hi = end;
    }
    return (pd_part){(char *)lo, hi > lo ? (int64_t)((hi - lo) / element) : 0};
}

static pd_status check_apart(const call *c, const pd_part *in, const pd_part *out, int n) {
    size_t element = pd_dtype_size(c->in.dtype);
    pd_part whole = range_of(in, n, element);
    bool bad = false;
    if (overlaps(out, n, &whole, -1, element))
        for (int r = 0; r < n; r++) bad |= overlaps(out, n, &in[r], -1, element);
    return bad ? pd_fail(PD_E_VALUE, "%s: input and output overlap (expected separate memory)", c->name) : PD_OK;
}

static pd_status exchange_parts(call *c, PyObject *out_sizes, PyObject *in_sizes) {
    int size = pd_group_size(c->self->group);
    if (c->in.listed != c->out.listed)
        return pd_fail(PD_E_TYPE, "%s: got a list and a tensor (expected two lists or two tensors)", c->name);
    PD_TRY(check_dtypes(c, "output", c->out.dtype, c->in.dtype, "input"));
    PD_TRY(pd_malloc(2 * (size_t)size * sizeof *c->parts, c->name, &c->parts));
    pd_part *in = c->parts, *out = in + size;
    PD_TRY(parts_of(c, &c->in, in_sizes, "input", in));
    PD_TRY(parts_of(c, &c->out, out_sizes, "output", out));
    PD_TRY(check_apart(c, in, out, size));
    RUN(c, pd_group_all_to_all_parts(c->self->group, in, out, c->in.dtype, 0, c->site, WORK(c)));
    return c->status;
}

/* For all_gather's output and reduce_scatter's input, which are lists: the tensor at this rank must have the shape of
   `part`. */
static pd_status check_own(call *c, const pd_py_buffer *list, const char *name, const pd_py_buffer *part,
                           const char *part_name) {
    int size = pd_group_size(c->self->group), rank = pd_group_rank(c->self->group);
    pd_part own = {part->ptr, part->count};
    if (part->listed) return pd_fail(PD_E_TYPE, "%s: %s is a list (expected a tensor)", c->name, part_name);
    PD_TRY(check_dtypes(c, name, list->dtype, part->dtype, part_name));
    PD_TRY(pd_malloc((size_t)size * sizeof *c->parts, c->name, &c->parts));
    PD_TRY(list_parts(c, list, name, c->parts));
    pd_tensor *want = pd_py_tensor(PyTuple_GET_ITEM(list->keep, rank));
    pd_tensor *have = part->keep ? pd_py_tensor(part->keep) : NULL;
    if (have ? !pd_tensor_same_shape(have, want) : part->count != want->numel) {
        char shape[128];
        snprintf(shape, sizeof shape, "%s", pd_tensor_shape(want));
        return pd_fail(PD_E_SHAPE, "%s: %s has shape %s (expected %s, like %s %d)", c->name, part_name,
                       have ? pd_tensor_shape(have) : "of other memory", shape, name, rank);
    }
    if (!overlaps(c->parts, size, &own, rank, pd_dtype_size(part->dtype))) return PD_OK;
    return pd_fail(PD_E_VALUE, "%s: %s and %s overlap (expected separate memory, or this rank's part)", c->name,
                   part_name, name);
}

PD_PY_METHOD(pd_py_group_all_gather) {
    static const pd_py_signature s = {"all_gather", 2, {"output", "input", "async_op", "coalesced", "apart"}};
    PyObject *a[5];
    bool coalesced, apart;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !pd_py_truth(a[3], &coalesced) || !pd_py_truth(a[4], &apart))
        return NULL;
    if (!begin(&c, o, s.name, a[2])) return NULL;
    bool parts = !coalesced && (apart || is_uneven(a[0]));
    int use = parts ? PD_PY_OUT | PD_PY_APART : PD_PY_OUT;
    if (!take(&c, a[1], NULL, "input", PD_PY_IN, &c.in) || !take(&c, a[0], NULL, "output", use, &c.out))
        return finish(&c);
    if (parts && !(c.status = check_own(&c, &c.out, "output", &c.in, "input")))
        RUN(&c, pd_group_all_gather_parts(c.self->group, c.in.ptr, c.parts, c.in.dtype, 0, c.site, WORK(&c)));
    if (!parts && !(c.status = check_parts(&c, &c.out, "output", &c.in, "input", coalesced)))
        RUN(&c, pd_group_all_gather(c.self->group, c.in.ptr, c.out.ptr, c.in.count, c.in.dtype, c.site, WORK(&c)));
    return finish(&c);
}

static pd_status check_scattered(const call *c, pd_reduce op, const pd_blocks *b) {
    int64_t want = c->out.count * pd_group_size(c->self->group) * b->parts;
    PD_TRY(check_blocks(c, &c->in, "input", op, b));
    PD_TRY(check_dtypes(c, "input", c->in.dtype, c->out.dtype, "output"));
    if (c->in.count == want) return PD_OK;
    return pd_fail(PD_E_SHAPE, "%s: input has %lld elements (expected %lld: output's, for each rank and part)", c->name,
                   (long long)c->in.count, (long long)want);
}

PD_PY_METHOD(pd_py_group_reduce_scatter) {
    static const pd_py_signature s = {
        "reduce_scatter", 2, {"output", "input", "op", "async_op", "scale", "coalesced", "blocks"}};
    PyObject *a[7];
    bool coalesced;
    pd_blocks *b;
    pd_reduce op;
    double scale = 1, factor;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !pd_py_reduce(a[2], s.name, &op, &factor)) return NULL;
    if (!pd_py_truth(a[5], &coalesced) || !pd_py_blocks(a[6], s.name, &b) || !begin(&c, o, s.name, a[3])) return NULL;
    if (a[4] && (scale = PyFloat_AsDouble(a[4])) == -1 && PyErr_Occurred()) return NULL;
    bool parts = !coalesced && !b && is_uneven(a[1]);
    int use = parts ? PD_PY_IN | PD_PY_APART : PD_PY_IN;
    if (!take_scaled(&c, a[1], NULL, "input", use, op, factor, &c.in) ||
        !take(&c, a[0], NULL, "output", PD_PY_OUT, &c.out))
        return finish(&c);
    if (b) {
        if (!(c.status = check_scattered(&c, op, b)))
            RUN(&c, pd_group_reduce_scatter_blocks(c.self->group, c.in.ptr, bytes_of(&c.in) / (size_t)b->parts,
                                                   c.out.ptr, c.out.count, c.out.dtype, b, scale, c.site, WORK(&c)));
        return finish(&c);
    }
    if (parts && !(c.status = check_own(&c, &c.in, "input", &c.out, "output")))
        RUN(&c, pd_group_reduce_scatter_parts(c.self->group, c.parts, c.out.ptr, c.out.dtype, op, scale, 0, c.site,
                                              WORK(&c)));
    if (!parts && !(c.status = check_parts(&c, &c.in, "input", &c.out, "output", coalesced)))
        RUN(&c, pd_group_reduce_scatter(c.self->group, c.in.ptr, c.out.ptr, c.out.count, c.out.dtype, op, scale,
                                        c.site, WORK(&c)));
    return finish(&c);
}

static pd_status check_exchange(const call *c) {
    const pd_py_buffer *in = &c->in, *out = &c->out;
    int size = pd_group_size(c->self->group);
    PD_TRY(check_dtypes(c, "output", out->dtype, in->dtype, "input"));
    if (in->count != out->count || in->count % size)
        return pd_fail(PD_E_SHAPE,
                       "all_to_all: input has %lld elements, output %lld (expected the same number, a multiple of %d)",
                       (long long)in->count, (long long)out->count, size);
    const char *from = in->ptr, *to = out->ptr;
    if (from != to && from < to + bytes_of(out) && to < from + bytes_of(in))
        return pd_fail(PD_E_VALUE,
                       "all_to_all: input and output overlap partly (expected separate memory, or exactly the same)");
    return PD_OK;
}

PD_PY_METHOD(pd_py_group_all_to_all) {
    static const pd_py_signature s = {"all_to_all", 2, {"output", "input", "async_op", "output_sizes", "input_sizes"}};
    PyObject *a[5];
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !begin(&c, o, s.name, a[2])) return NULL;
    if (!take(&c, a[1], NULL, "input", PD_PY_IN | PD_PY_APART, &c.in) ||
        !take(&c, a[0], NULL, "output", PD_PY_OUT | PD_PY_APART, &c.out))
        return finish(&c);
    if (c.in.listed || c.out.listed || is_given(a[3]) || is_given(a[4])) c.status = exchange_parts(&c, a[3], a[4]);
    else if (!(c.status = check_exchange(&c)))
        RUN(&c, pd_group_all_to_all(c.self->group, c.in.ptr, c.out.ptr, c.in.count / pd_group_size(c.self->group),
                                    c.in.dtype, c.site, WORK(&c)));
    return finish(&c);
}

PD_PY_METHOD(pd_py_group_reduce) {
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

/* For gather and scatter: the root gives the whole, other ranks None. */
static bool take_whole(call *c, PyObject *o, int root, const char *name, int use, pd_py_buffer *b) {
    bool is_root = root == pd_group_rank(c->self->group), given = o != Py_None;
    if (is_root && given) return take(c, o, NULL, name, use, b);
    if (is_root != given)
        c->status = pd_fail(PD_E_VALUE, "%s: %s is %s (expected %s the root, rank %d)", c->name, name,
                            given ? "given" : "None", given ? "None except on" : "tensors on", root);
    return !c->status;
}

PD_PY_METHOD(pd_py_group_gather) {
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

PD_PY_METHOD(pd_py_group_scatter) {
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

/* Reads a peer's rank in the group and a tag. -1 means any rank, for receives only; the group checks that. */
static bool take_message(PyObject *const *a, const char *name, int *peer, int *tag) {
    *tag = 0;
    *peer = -1;
    if (a[1] != Py_None && !pd_py_int_in(a[1], name, "rank", 0, INT32_MAX, peer)) return false;
    return !a[2] || pd_py_int_in(a[2], name, "tag", INT32_MIN, INT32_MAX, tag);
}

PD_PY_METHOD(pd_py_group_send) {
    static const pd_py_signature s = {"send", 2, {"tensor", "dst", "tag", "async_op"}};
    PyObject *a[4];
    int peer, tag;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !take_message(a, s.name, &peer, &tag)) return NULL;
    if (!begin(&c, o, s.name, a[3])) return NULL;
    if (take(&c, a[0], NULL, "tensor", PD_PY_IN | PD_PY_HOST, &c.in))
        RUN(&c, pd_group_send(c.self->group, c.in.ptr, c.in.count, c.in.dtype, peer, tag, c.site, WORK(&c)));
    return finish(&c);
}

/* Its result is the sender's rank, so it always makes a work. */
PD_PY_METHOD(pd_py_group_recv) {
    static const pd_py_signature s = {"recv", 2, {"tensor", "src", "tag", "async_op"}};
    PyObject *a[4];
    int peer, tag;
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !take_message(a, s.name, &peer, &tag)) return NULL;
    if (!begin(&c, o, s.name, a[3])) return NULL;
    if (!take(&c, a[0], NULL, "tensor", PD_PY_OUT | PD_PY_HOST, &c.out)) return finish(&c);
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

/* A batch of messages between GPUs, each given as (whether it sends, tensor, rank in the group, tag). */
typedef struct batch {
    int n, taken; /* buffers */
    pd_py_buffer *buffers;
    pd_message *messages;
    pd_work **works;
} batch;

static pd_status take_batch(PyObject *seq, batch *b) {
    for (int i = 0; i < b->n; i++) {
        pd_message *m = &b->messages[i];
        PyObject *item = PyTuple_GET_ITEM(seq, i), *tensor;
        int sends;
        if (!PyTuple_Check(item))
            return pd_fail(PD_E_TYPE,
                           "batch_isend_irecv: message %d has type %s (expected a tuple (sends, tensor, rank, tag))", i,
                           Py_TYPE(item)->tp_name);
        if (!PyArg_ParseTuple(item, "pOii:batch_isend_irecv", &sends, &tensor, &m->peer,
                              &m->tag))
            return pd_py_caught();
        pd_py_buffer *buffer = &b->buffers[i];
        PD_TRY(pd_py_buffer_take(tensor, NULL, "batch_isend_irecv", "tensor", sends ? PD_PY_IN : PD_PY_OUT, buffer));
        b->taken++;
        m->sends = sends;
        m->data = buffer->ptr;
        m->count = buffer->count;
        m->dtype = buffer->dtype;
        if (buffer->device->kind == PD_DEVICE_CPU || buffer->device != b->buffers[0].device)
            return pd_fail(PD_E_VALUE, "batch_isend_irecv: tensor %d is on %s (expected all tensors on one GPU)", i,
                           buffer->device->name);
    }
    return PD_OK;
}

static pd_status run_batch(pd_pygroup *self, batch *b) {
    const pd_device *was;
    uint64_t site = pd_py_site();
    pd_status status = pd_device_enter(b->buffers[0].device, &was);
    if (!status) PD_PY_NO_GIL(status = pd_group_messages(self->group, b->messages, b->n, site, b->works));
    pd_device_here = was;
    return status;
}

/* [new] a list with a Work for each message, which owns the message's buffer. */
static PyObject *works_of(pd_pygroup *self, batch *b) {
    static const pd_py_buffer none = {0};
    PyObject *list = PyList_New(b->n);
    for (int i = 0; i < b->n; i++) {
        bool sends = b->messages[i].sends;
        const pd_py_buffer *own = &b->buffers[i], *in = sends ? own : &none, *out = sends ? &none : own;
        PyObject *w = list ? pd_py_work_new(self->pending, b->works[i], in, out) : NULL;
        if (w) {
            PyList_SET_ITEM(list, i, w);
            continue;
        }
        Py_CLEAR(list); /* no memory for the Work: waits for it here */
        PD_PY_NO_GIL(pd_work_wait(b->works[i], 1e10));
        pd_work_release(b->works[i]);
        pd_py_buffer_drop(&b->buffers[i]);
    }
    return list;
}

PD_PY_METHOD(pd_py_group_messages) {
    static const pd_py_signature s = {"batch_isend_irecv", 1, {"messages"}};
    pd_pygroup *self = (pd_pygroup *)o;
    PyObject *a[1], *seq = NULL, *list = NULL;
    if (!pd_py_args(&s, args, n, keywords, a) || !(seq = pd_py_items(a[0], s.name, "messages", "a list")))
        return NULL;
    if (PyList_GET_SIZE(self->pending)) prune(self);
    batch b = {.n = (int)PyTuple_GET_SIZE(seq)};
    size_t each = sizeof *b.buffers + sizeof *b.messages + sizeof *b.works;
    pd_status status =
        b.n ? pd_calloc((size_t)b.n * each, "batch", &b.buffers)
            : pd_fail(PD_E_VALUE, "batch_isend_irecv: the list of messages is empty (expected at least one)");
    if (!status) {
        b.messages = (pd_message *)(b.buffers + b.n);
        b.works = (pd_work **)(b.messages + b.n);
        status = take_batch(seq, &b);
        PD_THEN(run_batch(self, &b));
        if (!status) list = works_of(self, &b);
        for (int i = 0; status && i < b.taken; i++) pd_py_buffer_drop(&b.buffers[i]);
    }
    if (status) pd_py_raise(status);
    pd_free(b.buffers);
    Py_DECREF(seq);
    return list;
}

PD_PY_METHOD(pd_py_group_barrier) {
    static const pd_py_signature s = {"barrier", 0, {"async_op"}};
    PyObject *a[1];
    call c;
    if (!pd_py_args(&s, args, n, keywords, a) || !begin(&c, o, s.name, a[0])) return NULL;
    RUN(&c, pd_group_barrier(c.self->group, c.site, WORK(&c)));
    return finish(&c);
}
