/* Pipes in Python: messages of bytes and tensors between the ranks of a link (comm/pipe/pipe.h). */
#include "py/py.h"

#include <string.h>

#include "base/mem.h"
#include "comm/pipe/arena.h"
#include "comm/pipe/pipe.h"
#include "py/comm/comm_impl.h"
#include "py/opcall.h"

typedef struct PipesObject {
    PyObject_HEAD
    pd_pipes *pipes;   /* NULL: closed */
    pd_link *link;
    pd_py_tie *tie;    /* NULL: left */
    int users;         /* threads that are in a function of it */
} PipesObject;

static PyTypeObject *pipes_type;

/* A message's body begins with a table of its tensors. */
typedef struct row {
    uint8_t dtype, ndim;
    uint16_t zero;
    uint32_t parcel;
    int64_t offset, shape[]; /* offset: in elements, in the parcel; shape: the sizes, then the strides */
} row;
static size_t row_bytes(int ndim) { return sizeof(row) + (size_t)ndim * 16; }

/* Elements from the tensor's first to its last. */
static int64_t span_of(int ndim, const int64_t *size, const int64_t *stride) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        if (!size[i]) return 0;
        n += (size[i] - 1) * stride[i];
    }
    return n;
}

#define HEAD 20   /* bytes of an answer's head: all 0 if it has neither gradients nor references */
#define BATCH 32  /* messages that are handed to Python at a time */
enum { ANSWER = 4, OPCALL = 13, OPRESULT = 14 }; /* as in pydist/distributed/rpc/_agent.py */
static bool take_opcall(void *ctx, pd_mail *m);

static pd_pipes *enter(PyObject *self) {
    PipesObject *o = (PipesObject *)self;
    if (!o->pipes) PyErr_SetString(PyExc_RuntimeError, "rpc: the agent has shut down (expected init_rpc first)");
    else o->users++;
    return o->pipes;
}

static void leave(PyObject *self) { ((PipesObject *)self)->users--; }

static PyObject *pipes_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"rank", "world", "address", "secret_fd", "number", "timeout", "arena", NULL};
    int rank, world, secret_fd;
    unsigned number;
    const char *address;
    PyObject *seconds;
    double timeout;
    unsigned long long arena;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iisiIOK:Pipes", names, &rank, &world, &address, &secret_fd,
                                     &number, &seconds, &arena) || !pd_py_seconds(seconds, 0, &timeout))
        return NULL;
    PipesObject *self = (PipesObject *)pd_py_comm_make(type, PD_PY_PIPES);
    if (!self) return NULL;
    pd_status status = pd_py_tie_to(rank, world, address, secret_fd, timeout, &self->tie);
    if (!status) {
        self->link = pd_py_tied(self->tie);
        pd_link_retain(self->link);
    }
    if (!status) PD_PY_NO_GIL(status = pd_pipes_open(self->link, number, timeout, (size_t)arena, &self->pipes));
    if (status) {
        PyObject *none = pd_py_raise(status);
        Py_DECREF(self);
        return none;
    }
    pd_pipes_take(self->pipes, OPCALL, take_opcall, self->pipes);
    return (PyObject *)self;
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

typedef struct parts {
    pd_parcel *parcels;
    pd_storage **held; /* by parcel */
    int nparcels;
    char *body;        /* the table and the data */
    size_t bytes, cap;
} parts;

static void drop_parts(parts *x) {
    for (int i = 0; i < x->nparcels; i++) pd_storage_release(x->held[i]);
    pd_free(x->parcels);
    pd_free(x->held);
    pd_free(x->body);
}

/* The parcel of a tensor's storage: that part of it which the message's tensors use. */
static int parcel_of(parts *x, pd_tensor *t) {
    char *data = pd_tensor_data(t);
    size_t bytes = (size_t)span_of(t->ndim, t->size, t->stride) * pd_dtype_size((pd_dtype)t->dtype);
    for (int i = 0; i < x->nparcels; i++) {
        pd_parcel *c = &x->parcels[i];
        if (x->held[i] != t->storage) continue;
        char *end = (char *)c->data + c->bytes > data + bytes ? (char *)c->data + c->bytes : data + bytes;
        if (data < (char *)c->data) c->data = data;
        c->bytes = (size_t)(end - (char *)c->data);
        return i;
    }
    pd_storage_retain(t->storage);
    x->held[x->nparcels] = t->storage;
    pd_storage *s = t->storage;
    x->parcels[x->nparcels] = (pd_parcel){.data = data, .bytes = bytes, .drop = s->drop, .ctx = s->ctx};
    return x->nparcels++;
}

/* given: the list holds the only reference to each of its tensors. */
static pd_status collect(PyObject *list, bool given, parts *x) {
    Py_ssize_t n = PyList_GET_SIZE(list);
    uint32_t count = (uint32_t)n;
    PD_TRY(pd_calloc(((size_t)n + 1) * sizeof *x->parcels, "rpc", &x->parcels));
    PD_TRY(pd_calloc(((size_t)n + 1) * sizeof *x->held, "rpc", &x->held));
    PD_TRY(pd_grow(&x->body, &x->cap, 8, 1, "rpc"));
    memcpy(x->body, (uint32_t[]){count, 0}, 8);
    x->bytes = 8;
    int *of = NULL;
    PD_TRY(pd_malloc(((size_t)n + 1) * sizeof *of, "rpc", &of));
    for (Py_ssize_t i = 0; i < n; i++) of[i] = parcel_of(x, pd_py_tensor(PyList_GET_ITEM(list, i)));
    pd_status status = PD_OK;
    for (Py_ssize_t i = 0; i < n && !status; i++) {
        PyObject *o = PyList_GET_ITEM(list, i);
        pd_tensor *t = pd_py_tensor(o);
        pd_parcel *c = &x->parcels[of[i]];
        size_t bytes = row_bytes(t->ndim);
        if ((status = pd_grow(&x->body, &x->cap, x->bytes + bytes, 1, "rpc"))) break;
        row r = {.dtype = (uint8_t)t->dtype, .ndim = (uint8_t)t->ndim, .parcel = (uint32_t)of[i],
                 .offset = ((char *)pd_tensor_data(t) - (char *)c->data) / (int64_t)pd_dtype_size((pd_dtype)t->dtype)};
        memcpy(x->body + x->bytes, &r, sizeof r);
        memcpy(x->body + x->bytes + sizeof r, t->size, (size_t)t->ndim * 8);
        memcpy(x->body + x->bytes + sizeof r + (size_t)t->ndim * 8, t->stride, (size_t)t->ndim * 8);
        x->bytes += bytes;
        bool alone = Py_REFCNT(o) == 1 && t->refs == 1 && t->storage->refs == 2; /* the list's, and ours */
        c->given = given && alone && !pd_storage_is_lent(t->storage);
    }
    pd_free(of);
    return status;
}

#define SMALL 8192 /* bytes that are sent rather than copied */
/* Replaces tensors of the list that cannot be sent as they are: those on a device, and views of which most of the
   memory between the first and the last element is others'. */
static pd_status prepare(PyObject *list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        pd_tensor *t = pd_py_expect_tensor(PyList_GET_ITEM(list, i), "rpc", "tensors");
        if (!t) return pd_py_caught();
        bool far = t->storage->device != &pd_device_cpu;
        int64_t span = span_of(t->ndim, t->size, t->stride);
        if (!far && (span <= 2 * t->numel || span * (int64_t)pd_dtype_size((pd_dtype)t->dtype) <= SMALL)) continue;
        PyObject *o = PyObject_CallMethod(PyList_GET_ITEM(list, i), far ? "cpu" : "contiguous", NULL);
        if (!o) return pd_py_caught();
        PyList_SetItem(list, i, o);
    }
    return PD_OK;
}

/* Sends the message of args; *to: its receiver, *wait: the last argument. held as in pd_pipes_send. */
static pd_status post(PyObject *self, PyObject *args, const char *format, int *to, double *wait, bool *held) {
    int given = 0;
    double limit = 0;
    unsigned kind;
    unsigned long long id;
    Py_buffer data;
    PyObject *list;
    parts x = {0};
    if (!PyArg_ParseTuple(args, format, to, &kind, &id, &data, &PyList_Type, &list, &given, &limit, wait))
        return pd_py_caught();
    pd_link *link = ((PipesObject *)self)->link;
    pd_status status = PD_OK;
    if (*to < 0 || *to >= link->world || *to == link->rank || kind >= PD_PIPE_NEWS)
        status = pd_fail(PD_E_VALUE, "send: rank %d, kind %u (expected another rank, and a kind below %d)", *to, kind,
                         PD_PIPE_NEWS);
    PD_THEN(prepare(list));
    PD_THEN(collect(list, given, &x));
    PD_THEN(pd_grow(&x.body, &x.cap, x.bytes + (size_t)data.len, 1, "rpc"));
    if (!status) memcpy(x.body + x.bytes, data.buf, (size_t)data.len);
    if (!status && held) *held = pd_pipes_hold(((PipesObject *)self)->pipes, *to);
    int64_t until = limit > 0 && limit < 1e9 ? pd_os_now() + (int64_t)(limit * 1e9) : INT64_MAX;
    PD_THEN(pd_pipes_send(((PipesObject *)self)->pipes, *to, kind, id, x.body, x.bytes + (size_t)data.len, x.parcels,
                          x.nparcels, until, held));
    drop_parts(&x);
    PyBuffer_Release(&data);
    return status;
}

static PyObject *pipes_send(PyObject *self, PyObject *args) {
    int to;
    double unused;
    if (!enter(self)) return NULL;
    pd_status status = post(self, args, "iIKy*O!|pdd:send", &to, &unused, NULL);
    leave(self);
    return pd_py_none_or(status);
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

/* Whether the row's elements lie in `n` elements. */
static bool lies_in(const row *r, const int64_t *shape, uint64_t n) {
    uint64_t last = (uint64_t)r->offset, part;
    bool none = false;
    if (r->offset < 0) return false;
    for (int i = 0; i < r->ndim; i++) {
        int64_t size = shape[i], stride = shape[r->ndim + i];
        if (size < 0 || stride < 0) return false;
        none |= size == 0;
        if (size && (__builtin_mul_overflow((uint64_t)(size - 1), (uint64_t)stride, &part) ||
                     __builtin_add_overflow(last, part, &last)))
            return false;
    }
    return none ? (uint64_t)r->offset <= n : last < n;
}

/* [new] the tensor of a row over the storage of its parcel. */
static pd_status make_tensor(const row *r, const int64_t *shape, pd_storage *storage, pd_tensor **out) {
    uint64_t n = 1;
    if (r->dtype >= PD_DTYPE_COUNT) return pd_fail(PD_E_DIST, "rpc: a tensor of no dtype");
    if (!lies_in(r, shape, storage->bytes / pd_dtype_size((pd_dtype)r->dtype)))
        return pd_fail(PD_E_DIST, "rpc: a tensor that is larger than its memory");
    for (int i = 0; i < r->ndim; i++)
        if (__builtin_mul_overflow(n, (uint64_t)shape[i], &n) || n > INT64_MAX)
            return pd_fail(PD_E_DIST, "rpc: a tensor with too many elements");
    PD_TRY(pd_tensor_shell(out));
    pd_tensor *t = *out;
    t->dtype = (int8_t)r->dtype;
    t->ndim = (int8_t)r->ndim;
    t->numel = (int64_t)n;
    t->offset = r->offset;
    memcpy(t->size, shape, (size_t)r->ndim * 8);
    memcpy(t->stride, shape + r->ndim, (size_t)r->ndim * 8);
    pd_storage_retain(storage);
    t->storage = storage;
    return PD_OK;
}

static pd_status make_storages(pd_mail *m, pd_storage **out) {
    for (int i = 0; i < m->nparcels; i++) {
        pd_parcel *c = &m->parcels[i];
        PD_TRY(pd_storage_external(&pd_device_cpu, c->data, c->bytes, c->drop, c->ctx, &out[i]));
        c->drop = NULL; /* the storage drops it */
    }
    return PD_OK;
}

static void let_go(pd_tensor **tensors, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) pd_tensor_release(tensors[i]);
    pd_free(tensors);
}

static pd_status read_rows(pd_mail *m, pd_storage **storages, pd_tensor **out, uint32_t n, size_t *at) {
    for (uint32_t i = 0; i < n; i++) {
        row r = {0};
        int64_t shape[2 * PD_MAX_DIMS];
        bool fits = m->bytes - *at >= sizeof r;
        if (fits) memcpy(&r, m->body + *at, sizeof r);
        size_t bytes = row_bytes(r.ndim);
        fits = fits && r.ndim <= PD_MAX_DIMS && m->bytes - *at >= bytes && r.parcel < (uint32_t)m->nparcels;
        if (!fits) return pd_fail(PD_E_DIST, "rpc: a table of tensors that is cut off");
        memcpy(shape, m->body + *at + sizeof r, bytes - sizeof r);
        PD_TRY(make_tensor(&r, shape, storages[r.parcel], &out[i]));
        *at += bytes;
    }
    return PD_OK;
}

/* *out [new]: the message's tensors; *at: where its data begin. */
static pd_status read_tensors(pd_mail *m, pd_tensor ***out, uint32_t *count, size_t *at) {
    uint32_t n = 0;
    pd_storage **storages = NULL;
    *out = NULL;
    *count = 0;
    *at = 8;
    if (m->bytes < 8) return pd_fail(PD_E_DIST, "rpc: a message without a table");
    memcpy(&n, m->body, sizeof n);
    if (n > m->bytes / sizeof(row)) return pd_fail(PD_E_DIST, "rpc: %u tensors in %zu bytes", n, m->bytes);
    PD_TRY(pd_calloc(((size_t)m->nparcels + 1) * sizeof *storages, "rpc", &storages));
    pd_status status = pd_calloc(((size_t)n + 1) * sizeof **out, "rpc", out);
    PD_THEN(make_storages(m, storages));
    PD_THEN(read_rows(m, storages, *out, n, at));
    for (int i = 0; i < m->nparcels; i++)
        if (storages[i]) pd_storage_release(storages[i]);
    pd_free(storages);
    if (!status) *count = n;
    else if (*out) let_go(*out, n);
    return status;
}

/* ---- calls of ops, without Python -------------------------------------------------------------------------------- */


typedef struct made { /* of a call that Python has to answer */
    pd_tensor **tensors;
    uint32_t n;
    size_t at; /* where the message's data begin */
} made;

/* Leaves the call to Python, with its result if there is one: then the answer would have to wait; else something is
   wrong with the call. */
static bool hand_over(pd_mail *m, size_t at, pd_tensor **tensors, uint32_t n, pd_tensor *out) {
    made *x;
    if (pd_malloc(sizeof *x, "rpc", &x)) {
        let_go(tensors, n);
        pd_tensor_release(out);
        pd_mail_lose(m);
        return false;
    }
    if (out) {
        for (uint32_t i = 0; i < n; i++) pd_tensor_release(tensors[i]);
        tensors[0] = out;
        n = 1;
        m->kind = OPRESULT;
    }
    *x = (made){tensors, n, at};
    m->made = x;
    return false;
}

/* Runs the op and sends its result. */
static bool take_opcall(void *ctx, pd_mail *m) {
    pd_tensor **tensors, *out = NULL;
    uint32_t n;
    size_t at;
    bool sent = false;
    pd_status status = read_tensors(m, &tensors, &n, &at);
    if (status) {
        pd_mail_lose(m);
        return false;
    }
    status = pd_opcall_run(m->body + at, m->bytes - at, tensors, (int)n, &out);
    if (!status && pd_tensor_is_contiguous(out)) {
        pd_parcel c = {.data = pd_tensor_data(out), .bytes = pd_tensor_bytes(out)};
        char body[8 + sizeof(row) + 16 * PD_MAX_DIMS + HEAD] = {0};
        row r = {.dtype = (uint8_t)out->dtype, .ndim = (uint8_t)out->ndim};
        size_t sizes = (size_t)out->ndim * 8;
        memcpy(body, (uint32_t[]){1, 0}, 8);
        memcpy(body + 8, &r, sizeof r);
        memcpy(body + 8 + sizeof r, out->size, sizes);
        memcpy(body + 8 + sizeof r + sizes, out->stride, sizes);
        status = pd_pipes_try_send(ctx, m->from, ANSWER, m->id, body, 8 + row_bytes(out->ndim) + HEAD, &c, 1, &sent);
    }
    if (!sent && status != PD_E_PEER) return hand_over(m, at, tensors, n, out);
    pd_tensor_release(out);
    let_go(tensors, n);
    pd_mail_drop(m);
    return true;
}

/* [new] a list of the message's tensors; *at: where its data begin. */
static PyObject *wrap_tensors(pd_mail *m, size_t *at) {
    pd_tensor **tensors;
    uint32_t n;
    made *x = m->made;
    if (x) {
        tensors = x->tensors;
        n = x->n;
        *at = x->at;
        pd_free(x);
    } else {
        pd_status status = read_tensors(m, &tensors, &n, at);
        if (status) return pd_py_raise(status);
    }
    PyObject *list = PyList_New(n);
    for (uint32_t i = 0; i < n; i++) {
        PyObject *o = list ? pd_py_wrap_new(tensors[i]) : NULL;
        if (!list) pd_tensor_release(tensors[i]);
        else if (!o) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, o);
    }
    pd_free(tensors);
    return list;
}

/* An answer of one tensor, without gradients and references: nothing of it depends on the order of messages. It is what
   the agent takes for one, since that does not end the sender's turn. */
static bool is_plain(const pd_mail *m) {
    static const char zeros[HEAD];
    size_t n = m->bytes;
    return m->kind == ANSWER && n > 8 + HEAD && !memcmp(m->body + n - HEAD, zeros, HEAD) &&
           !memcmp(m->body, (uint32_t[]){1}, 4) && n == 8 + row_bytes(((const row *)(m->body + 8))->ndim) + HEAD;
}

/* [new] (from, kind, id, data, tensors); the data are an exception if the message could not be taken, or makes no
   sense. */
static PyObject *unpack(pd_pipes *p, pd_mail *m) {
    size_t at = 0;
    bool news = m->kind >= PD_PIPE_NEWS;
    PyObject *tensors = NULL, *data = NULL;
    if (m->lost)
        pd_py_raise(pd_fail(PD_E_MEMORY, "rpc: a message of rank %d could not be taken (expected memory and file "
                            "descriptors to be left)", m->from));
    else tensors = news ? PyList_New(0) : wrap_tensors(m, &at);
    if (tensors) data = PyBytes_FromStringAndSize(m->body + at, (Py_ssize_t)(m->bytes - at));
    if (!data) {
        Py_XDECREF(tensors);
        data = pd_py_take_exception();
        tensors = PyList_New(0);
    }
    PyObject *all = tensors ? Py_BuildValue("iIKOO", m->from, (unsigned)m->kind, (unsigned long long)m->id, data,
                                            tensors) : NULL;
    if ((!all || m->kind >= OPCALL) && !news && !m->resumed) pd_pipes_resume(p, m->from);
    Py_XDECREF(data);
    Py_XDECREF(tensors);
    pd_mail_drop(m);
    return all;
}

/* [new] a list of the message, and of what follows plain answers and is here already: getting the interpreter for each
   of them would take longer than what is done with it. None: there is no message. */
static PyObject *unpack_all(pd_pipes *p, pd_mail *m) {
    if (m->from < 0) Py_RETURN_NONE;
    PyObject *list = PyList_New(0);
    bool plain = true;
    for (int n = 1; m->from >= 0 && plain; n++) {
        int from = m->from;
        plain = is_plain(m);
        PyObject *o = unpack(p, m);
        plain = plain && o && PyBytes_Check(PyTuple_GET_ITEM(o, 3));
        bool added = list && o && !PyList_Append(list, o);
        Py_XDECREF(o);
        if (!added) {
            if (o) pd_pipes_resume(p, from);
            if (n > 1) PyErr_WriteUnraisable(list); /* those before it are delivered */
            else Py_CLEAR(list);
            return list;
        }
        m->from = -1;
        if (plain && n == BATCH) pd_pipes_resume(p, from);
        else if (plain) pd_pipes_await(p, from, -1, m);
    }
    return list;
}

/* What a worker that calls itself gets: the tensors as they would arrive elsewhere. */
static PyObject *pipes_copy(PyObject *self, PyObject *list) {
    parts x = {0};
    pd_mail m = {.from = 0};
    size_t at;
    (void)self;
    if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "copy: expected a list of tensors");
    pd_status status = prepare(list);
    PD_THEN(collect(list, false, &x));
    PD_THEN(pd_calloc(((size_t)x.nparcels + 1) * sizeof *m.parcels, "rpc", &m.parcels));
    for (int i = 0; i < x.nparcels && !status; i++) {
        pd_parcel *c = &m.parcels[i];
        status = pd_malloc_aligned(x.parcels[i].bytes, "rpc", &c->data);
        if (status) break;
        memcpy(c->data, x.parcels[i].data, x.parcels[i].bytes);
        c->bytes = x.parcels[i].bytes;
        c->drop = pd_free_aligned;
        c->ctx = c->data;
        m.nparcels = i + 1;
    }
    m.body = x.body;
    m.bytes = x.bytes;
    PyObject *copies = status ? pd_py_raise(status) : wrap_tensors(&m, &at);
    m.body = NULL;
    pd_mail_drop(&m);
    drop_parts(&x);
    return copies;
}

static PyObject *pipes_receive(PyObject *self, PyObject *args) {
    double timeout;
    pd_mail m;
    if (!PyArg_ParseTuple(args, "d:receive", &timeout)) return NULL;
    pd_pipes *p = enter(self);
    if (!p) return NULL;
    pd_status status = pd_pipes_receive(p, (int64_t)(timeout * 1e9), &m);
    PyObject *result = status ? pd_py_raise(status) : unpack_all(p, &m);
    leave(self);
    return result;
}

static PyObject *await(pd_pipes *p, int from, double timeout) {
    pd_mail m;
    pd_status status = pd_pipes_await(p, from, (int64_t)(timeout * 1e9), &m);
    return status ? pd_py_raise(status) : unpack_all(p, &m);
}

static PyObject *pipes_receive_from(PyObject *self, PyObject *args) {
    int from;
    double timeout;
    if (!PyArg_ParseTuple(args, "id:receive_from", &from, &timeout)) return NULL;
    pd_pipes *p = enter(self);
    if (!p) return NULL;
    pd_link *link = ((PipesObject *)self)->link;
    PyObject *result = NULL;
    if (from < 0 || from >= link->world)
        PyErr_Format(PyExc_ValueError, "receive_from: rank %d (expected 0 to %d)", from, link->world - 1);
    else if (pd_pipes_hold(p, from)) result = await(p, from, timeout);
    else result = Py_NewRef(Py_False);
    leave(self);
    return result;
}

static PyObject *pipes_exchange(PyObject *self, PyObject *args) {
    int to;
    double timeout = 0;
    bool held = false;
    pd_pipes *p = enter(self);
    if (!p) return NULL;
    pd_status status = post(self, args, "iIKy*O!pdd:exchange", &to, &timeout, &held);
    PyObject *result = NULL;
    if (!status) result = held ? await(p, to, timeout) : Py_NewRef(Py_False);
    else if (held) pd_pipes_resume(p, to);
    leave(self);
    return status ? pd_py_raise(status) : result;
}

static PyObject *pipes_resume(PyObject *self, PyObject *rank) {
    long r = PyLong_AsLong(rank);
    if (r == -1 && PyErr_Occurred()) return NULL;
    pd_pipes *p = enter(self);
    if (!p) return NULL;
    if (r >= 0 && r < ((PipesObject *)self)->link->world) pd_pipes_resume(p, (int)r);
    leave(self);
    Py_RETURN_NONE;
}

static PyObject *tell(PyObject *self, void (*what)(pd_pipes *p)) {
    pd_pipes *p = enter(self);
    if (!p) return NULL;
    what(p);
    leave(self);
    Py_RETURN_NONE;
}

static PyObject *pipes_nudge(PyObject *self, PyObject *unused) {
    (void)unused;
    return tell(self, pd_pipes_nudge);
}

static PyObject *pipes_wake(PyObject *self, PyObject *unused) {
    (void)unused;
    return tell(self, pd_pipes_wake);
}

static PyObject *pipes_stop(PyObject *self, PyObject *unused) {
    (void)unused;
    return tell(self, pd_pipes_stop);
}

static PyObject *pipes_check(PyObject *self, PyObject *rank) {
    long r = PyLong_AsLong(rank);
    if (r == -1 && PyErr_Occurred()) return NULL;
    pd_pipes *p = enter(self);
    if (!p) return NULL;
    bool known = r >= 0 && r < ((PipesObject *)self)->link->world;
    pd_status status = known ? pd_pipes_check(p, (int)r) : pd_fail(PD_E_VALUE, "check: rank %ld (expected a rank)", r);
    leave(self);
    return pd_py_none_or(status);
}

static PyObject *pipes_meet(PyObject *self, PyObject *rank) {
    long r = PyLong_AsLong(rank);
    pd_status status = PD_OK;
    pd_pipes *p;
    if ((r == -1 && PyErr_Occurred()) || !(p = enter(self))) return NULL;
    int world = ((PipesObject *)self)->link->world;
    if (r < 0 || r >= world) PyErr_Format(PyExc_ValueError, "meet: rank %ld (expected 0 to %d)", r, world - 1);
    else PD_PY_NO_GIL(status = pd_pipes_meet(p, (int)r));
    leave(self);
    return PyErr_Occurred() ? NULL : pd_py_none_or(status);
}

static PyObject *pipes_store(PyObject *self, PyObject *unused) {
    (void)unused;
    return enter(self) ? (leave(self), pd_py_store(((PipesObject *)self)->link)) : NULL;
}

static PyObject *pipes_stats(PyObject *self, PyObject *unused) {
    (void)unused;
    pd_pipes_counts c;
    pd_pipes *p = enter(self);
    if (!p) return NULL;
    pd_pipes_count(p, &c);
    leave(self);
    return Py_BuildValue("{sK sK sK sK sK sK sK sK}", "messages_sent", c.sent, "messages_received", c.received,
                         "bytes_sent", c.bytes_sent, "bytes_received", c.bytes_received, "arena_bytes", c.arena,
                         "arena_lent", c.lent, "bytes_copied", c.copied, "bytes_moved", c.moved);
}

static PyObject *pipes_close(PyObject *self, PyObject *args) {
    PipesObject *o = (PipesObject *)self;
    PyObject *seconds = NULL;
    double timeout;
    if (!PyArg_ParseTuple(args, "|O:close", &seconds) || !pd_py_seconds(seconds, 0, &timeout)) return NULL;
    if (o->users)
        return PyErr_Format(PyExc_RuntimeError, "close: %d threads use the pipes (expected all of them to have ended)",
                            o->users);
    pd_pipes *p = o->pipes;
    o->pipes = NULL;
    if (p) PD_PY_NO_GIL(pd_pipes_close(p));
    pd_py_tie *tie = o->tie;
    o->tie = NULL;
    bool here = tie && !pd_forked_since(o->link->forks);
    return pd_py_none_or(here ? pd_py_untie(tie, timeout) : PD_OK);
}

static void pipes_dealloc(PyObject *self) {
    PipesObject *o = (PipesObject *)self;
    PyObject_GC_UnTrack(self);
    if (o->pipes) PD_PY_NO_GIL(pd_pipes_close(o->pipes));
    if (o->tie && !pd_forked_since(o->link->forks)) pd_py_untie(o->tie, 0);
    pd_link_release(o->link);
    pd_py_comm_end(self, PD_PY_PIPES);
}

/* A call of an op in Python's hands: the same as without it. */
static PyObject *op_run(PyObject *module, PyObject *args) {
    Py_buffer data;
    PyObject *list, *seq;
    pd_tensor **tensors, *out;
    Py_ssize_t n;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*O:_op_run", &data, &list)) return NULL;
    pd_status status = PD_E_PYTHON;
    if (pd_py_tensors(list, "rpc", "tensors", &seq, &tensors, &n)) {
        status = pd_opcall_run(data.buf, (size_t)data.len, tensors, (int)n, &out);
        pd_free(tensors);
        Py_XDECREF(seq);
    }
    PyBuffer_Release(&data);
    if (PyErr_Occurred()) return NULL;
    return status ? pd_py_raise(status) : pd_py_wrap_new(out);
}

static PyMethodDef functions[] = {
    {"_op_run", op_run, METH_VARARGS, "_op_run(bytes, tensors) -> Tensor: runs a call that _op_pack has packed."},
    {0}};

static PyMethodDef methods[] = {
    {"send", pipes_send, METH_VARARGS,
     "send(to, kind, id, data, tensors, given=False, limit=0)\n\nSends a message. given: the list holds the only "
     "references to its tensors, so memory of the receiver's goes back to it without a copy. limit: seconds in which "
     "the receiver has to take it (CommTimeout); 0: any time."},
    {"receive", pipes_receive, METH_VARARGS,
     "receive(timeout) -> list of (from, kind, id, data, tensors), or None\n\nThe next message of any rank; after a "
     "plain answer also the rank's next ones, if they are here. After the last one the rank's next message comes only "
     "after resume(from), except after plain answers, calls of ops and news (kind >= 13). data: bytes, or an "
     "exception in the place of a message that could not be taken."},
    {"receive_from", pipes_receive_from, METH_VARARGS,
     "receive_from(rank, timeout) -> the same; None: nothing has come; False: another thread reads from that rank."},
    {"exchange", pipes_exchange, METH_VARARGS,
     "exchange(to, kind, id, data, tensors, given, limit, timeout)\n\nsend() and receive_from(); no other thread takes "
     "the answer meanwhile."},
    {"resume", pipes_resume, METH_O, "resume(rank): its next message may be taken, by who comes to receive."},
    {"nudge", pipes_nudge, METH_NOARGS,
     "nudge(): who has received and does not come back at once lets others receive."},
    {"copy", pipes_copy, METH_O, "copy(tensors) -> list: as they would arrive in another process."},
    {"wake", pipes_wake, METH_NOARGS, "wake(): one receive() returns None."},
    {"stop", pipes_stop, METH_NOARGS, "stop(): who waits to send gives up, before close()."},
    {"check", pipes_check, METH_O, "check(rank): raises PeerFailed if the rank is gone."},
    {"meet", pipes_meet, METH_O,
     "meet(rank)\n\nIn an open job, which waits for nobody: must come before the first message to a rank that is "
     "there."},
    {"store", pipes_store, METH_NOARGS, "store() -> Store: of the job's ranks."},
    {"stats", pipes_stats, METH_NOARGS, "stats() -> dict of counters"},
    {"close", pipes_close, METH_VARARGS,
     "close(timeout=0)\n\nEnds all connections and leaves the job. Where rank 0 hosts the control server, it waits for "
     "the others so long (CommTimeout)."},
    {0}};

static PyType_Slot slots[] = {
    {Py_tp_new, pipes_new}, {Py_tp_dealloc, pipes_dealloc}, {Py_tp_traverse, pd_py_comm_visit},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Pipes(rank, world, address, secret_fd, number, timeout, arena)\n\nMessages of bytes and tensors "
                "between the ranks of a job. All ranks make one with the same number."},
    {0}};
static PyType_Spec spec = PD_PY_SPEC("Pipes", PipesObject, slots, 0);

int pd_py_add_pipes(PyObject *module) {
    return pd_py_comm_type(module, &spec, &pipes_type) ? -1 : PyModule_AddFunctions(module, functions);
}
