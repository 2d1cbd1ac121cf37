/* Groups, their launcher's side and their store in Python.

   Collectives take whatever as_buffer() understands. Small ones keep the GIL and give it up only when a wait turns to
   sleeping (the hooks); large ones give it up for the whole call. The caller's place is (code object, instruction offset),
   interned to 64 bits; the line is looked up only for a message. */
#include "py/py.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "comm/control.h"
#include "comm/hub.h"
#include "py/comm.h"

#define GIL_BYTES (128 << 10) /* collectives over this take more than 50 us (design 1.12) */

/* ---- call sites ---------------------------------------------------------------------------------------------------- */

#define SITES 4096 /* code objects that are remembered, and kept alive; later ones are "unknown" */

static struct {
    PyCodeObject *codes[SITES]; /* by number */
    bool own[SITES];            /* a function of the package itself: the caller's place is further out */
    uint16_t slots[2 * SITES];  /* hash of the pointer -> number + 1 */
    int count;
    PyObject *package;          /* ".../pydist/" */
} sites;

static bool is_own(PyCodeObject *code) {
    if (!sites.package || PyUnicode_Tailmatch(code->co_filename, sites.package, 0, PY_SSIZE_T_MAX, -1) != 1) return false;
    PyObject *examples = PyUnicode_FromFormat("%Uexamples/", sites.package);
    if (!examples) {
        PyErr_Clear();
        return true;
    }
    bool user = PyUnicode_Tailmatch(code->co_filename, examples, 0, PY_SSIZE_T_MAX, -1) == 1;
    Py_DECREF(examples);
    return !user;
}

/* The code object's number, -1 where the table is full. */
static int number_of(PyCodeObject *code) {
    size_t mask = 2 * SITES - 1, at = ((uintptr_t)code >> 4) * 0x9E3779B97F4A7C15u >> 51 & mask;
    for (; sites.slots[at]; at = (at + 1) & mask)
        if (sites.codes[sites.slots[at] - 1] == code) return sites.slots[at] - 1;
    if (sites.count == SITES) return -1;
    int n = sites.count++;
    sites.codes[n] = (PyCodeObject *)Py_NewRef((PyObject *)code);
    sites.own[n] = is_own(code);
    sites.slots[at] = (uint16_t)sites.count;
    return n;
}

static int offset_in(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return frame->f_lasti * 2;
#endif
}

uint64_t pd_py_site(void) {
    PyFrameObject *frame = PyEval_GetFrame();
    uint64_t site = 0;
    Py_XINCREF(frame);
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        int n = number_of(code), offset = offset_in(frame);
        Py_DECREF(code);
        if (n >= 0) site = (uint64_t)(n + 1) << 32 | (uint32_t)offset;
        PyFrameObject *back = n >= 0 && sites.own[n] ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(frame);
        frame = back;
    }
    return site;
}

/* Texts of sites that were taken before are lost: "" or another place. */
static void forget_sites(void) {
    memset(sites.slots, 0, sizeof sites.slots);
    while (sites.count) Py_CLEAR(sites.codes[--sites.count]);
}

/* "train.py:12". Any thread, with or without the GIL. */
static void site_text(uint64_t site, char *text, size_t size) {
    int n = (int)(site >> 32) - 1;
    if (size) *text = 0;
    if (n < 0 || n >= SITES || !size) return;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    const char *path = n < sites.count ? PyUnicode_AsUTF8(sites.codes[n]->co_filename) : NULL;
    if (path) {
        const char *slash = strrchr(path, '/');
        snprintf(text, size, "%s:%d", slash ? slash + 1 : path, PyCode_Addr2Line(sites.codes[n], (int)(uint32_t)site));
    }
    PyErr_Restore(kind, value, trace);
    PyGILState_Release(gil);
}

/* ---- hooks --------------------------------------------------------------------------------------------------------- */

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

static const pd_hooks hooks = {.block = block, .unblock = unblock, .interrupt = interrupt, .site = site_text};

/* ---- arguments ----------------------------------------------------------------------------------------------------- */

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

/* None: the default. A number, or whatever has total_seconds(). */
static bool take_seconds(PyObject *o, double none, double *out) {
    *out = none;
    if (!o || o == Py_None) return true;
    PyObject *number = PyObject_HasAttrString(o, "total_seconds") ? PyObject_CallMethod(o, "total_seconds", NULL) : Py_NewRef(o);
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

/* ---- buffers ------------------------------------------------------------------------------------------------------- */

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

/* Takes memory for a collective; `dtype` (NULL, None: as the buffer says) reinterprets it.
   SEAM: pydist tensors come in here, before the buffer protocol: pointer, count, dtype and segment from the tensor (it
   must be contiguous and on the CPU), view.obj = a new reference that keeps it alive. */
static int as_buffer(PyObject *o, PyObject *dtype, pd_buf *b) {
    *b = (pd_buf){0};
    if (PyObject_GetBuffer(o, &b->view, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) return -1;
    b->ptr = b->view.buf;
    b->dtype = dtype_of_format(b->view.format, b->view.itemsize);
    bool given = dtype && dtype != Py_None;
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

/* ---- objects ------------------------------------------------------------------------------------------------------- */

typedef struct { PyObject_HEAD pd_control_server *server; } ServerObject;
typedef struct { PyObject_HEAD pd_hub *hub; pd_link **links; } HubObject;
typedef struct { PyObject_HEAD pd_link *link; } StoreObject;
typedef struct { PyObject_HEAD pd_segment *segment; } SegmentObject;
typedef struct { PyObject_HEAD pd_work *work; pd_buf buf, out; bool done; } WorkObject;
typedef struct {
    PyObject_HEAD
    pd_group *group;
    pd_link *link;     /* NULL: a world of one */
    PyObject *pending; /* works under way: their buffers must live until they are done */
} GroupObject;

static PyTypeObject *server_type, *hub_type, *store_type, *segment_type, *work_type, *group_type;
static int64_t live[6]; /* servers, hubs, stores, segments, works, groups */
static const char *const live_names[] = {"control servers", "hubs", "stores", "segments", "works", "groups"};

pd_group *pd_py_group(PyObject *o) {
    if (Py_TYPE(o) == group_type) return ((GroupObject *)o)->group;
    PyErr_Format(PyExc_TypeError, "group: %R (expected a Group)", o);
    return NULL;
}

static PyObject *make(PyTypeObject *type, int kind) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self) live[kind]++;
    return self;
}

static void end(PyObject *self, int kind) {
    PyTypeObject *type = Py_TYPE(self);
    live[kind]--;
    type->tp_free(self);
    Py_DECREF(type);
}

static int visit_type(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}

#define NO_GIL(call)                                          \
    do {                                                      \
        PyThreadState *thread_ = PyEval_SaveThread();         \
        call;                                                 \
        PyEval_RestoreThread(thread_);                        \
    } while (0)

/* ---- ControlServer ------------------------------------------------------------------------------------------------- */

static PyObject *server_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"world", NULL};
    int world;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "i:ControlServer", names, &world)) return NULL;
    ServerObject *self = (ServerObject *)make(type, 0);
    if (!self) return NULL;
    pd_status status = pd_control_server_new(world, &self->server);
    if (status) {
        Py_DECREF(self);
        return pd_py_raise(status);
    }
    return (PyObject *)self;
}

static void close_server(ServerObject *self) {
    pd_control_server *s = self->server;
    self->server = NULL;
    if (s) NO_GIL(pd_control_server_free(s));
}

static void server_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    close_server((ServerObject *)self);
    end(self, 0);
}

static pd_control_server *server_of(PyObject *self) {
    pd_control_server *s = ((ServerObject *)self)->server;
    if (!s) PyErr_SetString(PyExc_ValueError, "ControlServer: it is closed");
    return s;
}

static PyObject *server_close(PyObject *self, PyObject *unused) {
    (void)unused;
    close_server((ServerObject *)self);
    Py_RETURN_NONE;
}

static PyObject *server_dead(PyObject *self, PyObject *args) {
    int rank;
    const char *text;
    pd_control_server *s = server_of(self);
    if (!s || !PyArg_ParseTuple(args, "is:dead", &rank, &text)) return NULL;
    NO_GIL(pd_control_dead(s, rank, text));
    Py_RETURN_NONE;
}

static PyObject *server_first_raised(PyObject *self, PyObject *unused) {
    (void)unused;
    int rank;
    char *text;
    pd_control_server *s = server_of(self);
    if (!s) return NULL;
    pd_status status = pd_control_first_raised(s, &rank, &text);
    if (status) return pd_py_raise(status);
    if (rank < 0) Py_RETURN_NONE;
    PyObject *decoded = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    pd_free(text);
    return decoded ? Py_BuildValue("iN", rank, decoded) : NULL;
}

static PyObject *server_address(PyObject *self, void *unused) {
    (void)unused;
    pd_control_server *s = server_of(self);
    return s ? PyUnicode_FromString(pd_control_address(s)) : NULL;
}

static PyObject *server_secret_fd(PyObject *self, void *unused) {
    (void)unused;
    pd_control_server *s = server_of(self);
    return s ? PyLong_FromLong(pd_control_secret_fd(s)) : NULL;
}

static PyMethodDef server_methods[] = {
    {"close", server_close, METH_NOARGS, "close()\n\nEnds the server; ranks that still live lose their groups."},
    {"dead", server_dead, METH_VARARGS, "dead(rank, text)\n\nThe launcher's wait says how this rank's process ended."},
    {"first_raised", server_first_raised, METH_NOARGS,
     "first_raised() -> (rank, traceback) | None\n\nThe first rank that reported an exception."},
    {0},
};
static PyGetSetDef server_getset[] = {
    {"address", server_address, NULL, "What PYDIST_CONTROL says to the workers.", NULL},
    {"secret_fd", server_secret_fd, NULL, "The descriptor with the secret, for workers to inherit (PYDIST_SECRET_FD).", NULL},
    {0},
};

/* ---- Hub ----------------------------------------------------------------------------------------------------------- */

static PyObject *hub_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"world", NULL};
    int world;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "i:Hub", names, &world)) return NULL;
    HubObject *self = (HubObject *)make(type, 1);
    if (!self) return NULL;
    pd_status status = pd_hub_new(world, &self->hub);
    if (!status) status = pd_calloc((size_t)world * sizeof *self->links, "hub", &self->links);
    if (status) {
        Py_DECREF(self);
        return pd_py_raise(status);
    }
    return (PyObject *)self;
}

static void hub_dealloc(PyObject *o) {
    HubObject *self = (HubObject *)o;
    PyObject_GC_UnTrack(o);
    for (int r = 0; self->links && r < pd_hub_world(self->hub); r++) pd_link_release(self->links[r]);
    pd_free(self->links);
    pd_hub_release(self->hub);
    end(o, 1);
}

static PyObject *hub_world(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_hub_world(((HubObject *)self)->hub));
}

static PyGetSetDef hub_getset[] = {{"world", hub_world, NULL, "The number of ranks.", NULL}, {0}};

/* ---- Store --------------------------------------------------------------------------------------------------------- */

static void store_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    pd_link_release(((StoreObject *)self)->link);
    end(self, 2);
}

static pd_link *link_of(PyObject *self) { return ((StoreObject *)self)->link; }

static PyObject *none_or(pd_status status) {
    if (status) return pd_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *store_set(PyObject *self, PyObject *args) {
    const char *key, *data;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "ss#:set", &key, &data, &n)) return NULL; /* str or bytes */
    return none_or(pd_store_set(link_of(self), key, data, (size_t)n));
}

static PyObject *store_get(PyObject *self, PyObject *args) {
    const char *key;
    PyObject *seconds = NULL;
    double timeout;
    void *data;
    size_t n;
    if (!PyArg_ParseTuple(args, "s|O:get", &key, &seconds) || !take_seconds(seconds, 300, &timeout)) return NULL;
    pd_status status = pd_store_get(link_of(self), key, timeout, &data, &n);
    if (status) return pd_py_raise(status);
    PyObject *bytes = PyBytes_FromStringAndSize(data, (Py_ssize_t)n);
    pd_free(data);
    return bytes;
}

static PyObject *store_wait(PyObject *self, PyObject *args) {
    PyObject *keys, *seconds = NULL, *items;
    double timeout;
    if (!PyArg_ParseTuple(args, "O|O:wait", &keys, &seconds) || !take_seconds(seconds, 300, &timeout)) return NULL;
    items = PyUnicode_Check(keys) ? PyTuple_Pack(1, keys) : PySequence_Tuple(keys);
    pd_status status = PD_OK;
    int64_t deadline = pd_hooks_now(&hooks) + (int64_t)(timeout * 1e9);
    for (Py_ssize_t i = 0; items && !status && i < PyTuple_GET_SIZE(items); i++) {
        const char *key = PyUnicode_AsUTF8(PyTuple_GET_ITEM(items, i));
        if (!key) Py_CLEAR(items);
        else status = pd_store_wait(link_of(self), key, (double)(deadline - pd_hooks_now(&hooks)) * 1e-9);
    }
    if (!items) return NULL;
    Py_DECREF(items);
    return none_or(status);
}

static PyObject *store_add(PyObject *self, PyObject *args) {
    const char *key;
    long long amount = 1;
    int64_t sum;
    if (!PyArg_ParseTuple(args, "s|L:add", &key, &amount)) return NULL;
    pd_status status = pd_store_add(link_of(self), key, amount, &sum);
    return status ? pd_py_raise(status) : PyLong_FromLongLong(sum);
}

static PyObject *store_check(PyObject *self, PyObject *args) {
    const char *key;
    bool there;
    if (!PyArg_ParseTuple(args, "s:check", &key)) return NULL;
    pd_status status = pd_store_check(link_of(self), key, &there);
    return status ? pd_py_raise(status) : PyBool_FromLong(there);
}

static PyObject *store_delete(PyObject *self, PyObject *args) {
    const char *key;
    bool there;
    if (!PyArg_ParseTuple(args, "s:delete", &key)) return NULL;
    pd_status status = pd_store_delete(link_of(self), key, &there);
    return status ? pd_py_raise(status) : PyBool_FromLong(there);
}

static PyMethodDef store_methods[] = {
    {"set", store_set, METH_VARARGS, "set(key, value)\n\nvalue: bytes or str."},
    {"get", store_get, METH_VARARGS, "get(key, timeout=300) -> bytes\n\nWaits for the key."},
    {"wait", store_wait, METH_VARARGS, "wait(key or keys, timeout=300)\n\nWaits until all of them are there."},
    {"add", store_add, METH_VARARGS, "add(key, amount=1) -> int\n\nThe key's number plus the amount, from 0."},
    {"check", store_check, METH_VARARGS, "check(key) -> bool"},
    {"delete", store_delete, METH_VARARGS, "delete(key) -> bool\n\nWhether it was there."},
    {0},
};

/* ---- Segment ------------------------------------------------------------------------------------------------------- */

static void segment_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    pd_segment_release(((SegmentObject *)self)->segment);
    end(self, 3);
}

static int segment_buffer(PyObject *self, Py_buffer *view, int flags) {
    pd_segment *s = ((SegmentObject *)self)->segment;
    return PyBuffer_FillInfo(view, self, pd_segment_ptr(s), (Py_ssize_t)pd_segment_bytes(s), 0, flags);
}

/* ---- Work ---------------------------------------------------------------------------------------------------------- */

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
    end(o, 4);
}

static PyObject *work_wait(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const signature s = {"wait", 0, {"timeout"}};
    WorkObject *self = (WorkObject *)o;
    PyObject *a[1];
    double timeout;
    if (!take_args(&s, args, n, keywords, a) || !take_seconds(a[0], -1, &timeout)) return NULL;
    pd_status status;
    NO_GIL(status = pd_work_wait(self->work, timeout));
    if (status) return pd_py_raise(status);
    forget_buffers(self);
    Py_RETURN_TRUE;
}

static PyObject *work_is_completed(PyObject *o, PyObject *unused) {
    (void)unused;
    WorkObject *self = (WorkObject *)o;
    bool done;
    pd_status status;
    NO_GIL(status = pd_work_test(self->work, &done));
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

/* ---- Group --------------------------------------------------------------------------------------------------------- */

static int group_traverse(PyObject *o, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(((GroupObject *)o)->pending);
    return 0;
}

static int group_clear(PyObject *o) {
    GroupObject *self = (GroupObject *)o;
    if (self->group) NO_GIL(pd_group_destroy(self->group)); /* before the buffers of its works go */
    Py_CLEAR(self->pending);
    return 0;
}

static void group_dealloc(PyObject *o) {
    GroupObject *self = (GroupObject *)o;
    PyObject_GC_UnTrack(o);
    group_clear(o);
    pd_group_release(self->group);
    if (self->link) NO_GIL(pd_link_release(self->link));
    end(o, 5);
}

/* [new] the Python side of a group over `link` (retained). */
static PyObject *group_over(pd_link *link, double timeout, const char *algo, int slot) {
    GroupObject *self = (GroupObject *)make(group_type, 5);
    pd_group_options o = {.timeout = timeout, .algo = algo, .slot = (size_t)slot};
    if (!self) return NULL;
    self->pending = PyList_New(0);
    if (link) {
        pd_link_retain(link);
        self->link = link;
    }
    pd_status status = PD_E_PYTHON;
    if (self->pending) NO_GIL(status = pd_group_new(link, &o, &self->group));
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
    WorkObject *w = (WorkObject *)make(work_type, 4);
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
        if ((bytes) > GIL_BYTES) NO_GIL(status = (call));           \
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
    if (as_buffer(a[0], a[5], &b)) return NULL;
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
    if (as_buffer(a[0], NULL, &b)) return NULL;
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
    if (!take_args(&s, args, n, keywords, a) || !take_bool(a[2], &async) || as_buffer(a[0], NULL, &out)) return NULL;
    if (as_buffer(a[1], NULL, &in)) {
        drop_buffer(&out);
        return NULL;
    }
    if (out.dtype != in.dtype || out.count != in.count * pd_group_size(self->group)) {
        status = pd_fail(PD_E_SHAPE, "all_gather: the output has %lld elements of %s (expected %d times %lld of %s)",
                         (long long)out.count, pd_dtype_name(out.dtype), pd_group_size(self->group), (long long)in.count,
                         pd_dtype_name(in.dtype));
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
    NO_GIL(status = pd_group_destroy(self->group));
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
    SegmentObject *s = (SegmentObject *)make(segment_type, 3);
    if (!s) return NULL;
    NO_GIL(status = pd_group_segment_new(self->group, (size_t)bytes, &segment));
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
    return none_or(pd_group_progress(((GroupObject *)o)->group));
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
    StoreObject *s = (StoreObject *)make(store_type, 2);
    if (!s) return NULL;
    pd_link_retain(self->link);
    s->link = self->link;
    return (PyObject *)s;
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
     "tensor = scale * op over the ranks, in place, with the same bits everywhere. segment: the Segment that holds it."},
    {"broadcast", FAST(group_broadcast),
     "broadcast(tensor, root=0, async_op=False, segment=None) -> None | Work\n\ntensor = the root's, in place."},
    {"all_gather", FAST(group_all_gather),
     "all_gather(output, input, async_op=False) -> None | Work\n\noutput = the ranks' inputs one after the other."},
    {"barrier", FAST(group_barrier), "barrier(async_op=False) -> None | Work\n\nReturns when all ranks have called it."},
    {"destroy", group_destroy, METH_NOARGS, "destroy()\n\nLeaves the group. Segments stay valid."},
    {"segment", group_segment, METH_O, "segment(bytes) -> Segment\n\nZeroed memory that all ranks can address. Collective."},
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

/* ---- types and functions ------------------------------------------------------------------------------------------- */

static PyType_Slot server_slots[] = {
    {Py_tp_new, server_new}, {Py_tp_dealloc, server_dealloc}, {Py_tp_traverse, visit_type}, {Py_tp_methods, server_methods},
    {Py_tp_getset, server_getset}, {Py_tp_doc, "ControlServer(world)\n\nThe launcher's side of the control plane."}, {0},
};
static PyType_Slot hub_slots[] = {
    {Py_tp_new, hub_new}, {Py_tp_dealloc, hub_dealloc}, {Py_tp_traverse, visit_type}, {Py_tp_getset, hub_getset},
    {Py_tp_doc, "Hub(world)\n\nWhere ranks that are threads of one process meet."}, {0},
};
static PyType_Slot store_slots[] = {
    {Py_tp_dealloc, store_dealloc}, {Py_tp_traverse, visit_type}, {Py_tp_methods, store_methods},
    {Py_tp_doc, "Bytes under names, shared by all ranks."}, {0},
};
static PyType_Slot segment_slots[] = {
    {Py_tp_dealloc, segment_dealloc}, {Py_tp_traverse, visit_type}, {Py_bf_getbuffer, segment_buffer},
    {Py_tp_doc, "Symmetric memory, as a buffer of bytes."}, {0},
};
static PyType_Slot work_slots[] = {
    {Py_tp_dealloc, work_dealloc}, {Py_tp_traverse, visit_type}, {Py_tp_methods, work_methods},
    {Py_tp_doc, "A collective under way."}, {0},
};
static PyType_Slot group_slots[] = {
    {Py_tp_dealloc, group_dealloc}, {Py_tp_traverse, group_traverse}, {Py_tp_clear, group_clear},
    {Py_tp_methods, group_methods}, {Py_tp_getset, group_getset}, {Py_tp_doc, "Ranks that work together."}, {0},
};

#define SPEC(n, T, slots_, more) {.name = "pydist._C." n, .basicsize = sizeof(T), .slots = slots_, \
                                  .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | (more)}
#define MADE_HERE Py_TPFLAGS_DISALLOW_INSTANTIATION
static PyType_Spec specs[] = {
    SPEC("ControlServer", ServerObject, server_slots, 0), SPEC("Hub", HubObject, hub_slots, 0),
    SPEC("Store", StoreObject, store_slots, MADE_HERE),   SPEC("Segment", SegmentObject, segment_slots, MADE_HERE),
    SPEC("Work", WorkObject, work_slots, MADE_HERE),      SPEC("Group", GroupObject, group_slots, MADE_HERE),
};
static PyTypeObject **const types[] = {&server_type, &hub_type, &store_type, &segment_type, &work_type, &group_type};

/* The process's own link, made by the first comm_init and kept for later groups. The secret can be read only once, so it is
   kept until a connection has succeeded. */
static struct {
    pd_link *link;
    int secret_fd; /* where `secret` was read from; 0: it was not */
    uint8_t secret[PD_SECRET_BYTES];
    char address[PD_ADDRESS_BYTES];
} process;

static pd_status process_link(int rank, int world, const char *address, int secret_fd, double timeout) {
    if (process.link && pd_forked_since(process.link->forks)) process.link = NULL; /* the parent's */
    if (process.link && (strcmp(process.address, address) || process.link->rank != rank || process.link->world != world))
        return pd_fail(PD_E_VALUE, "comm_init: this process is rank %d of %d at %s already", process.link->rank,
                       process.link->world, process.address);
    if (process.link) return PD_OK;
    if (!process.secret_fd || process.secret_fd != secret_fd) PD_TRY(pd_control_secret_read(secret_fd, process.secret));
    process.secret_fd = secret_fd;
    PD_TRY(pd_control_connect(address, process.secret, rank, world, timeout, &hooks, &process.link));
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
                                     &seconds, &algo, &slot) || !take_seconds(seconds, 0, &timeout))
        return NULL;
    if (!address && world == 1) return group_over(NULL, timeout, algo, slot);
    if (!address) return PyErr_Format(PyExc_ValueError, "comm_init: %d ranks need the address of a launcher", world);
    pd_status status = process_link(rank, world, address, secret_fd, timeout > 0 ? timeout : 60);
    return status ? pd_py_raise(status) : group_over(process.link, timeout, algo, slot);
}

static PyObject *comm_init_hub(PyObject *module, PyObject *args, PyObject *keywords) {
    (void)module;
    static char *names[] = {"hub", "rank", "timeout", "algo", "slot", NULL};
    HubObject *hub;
    int rank, slot = 0;
    const char *algo = NULL;
    PyObject *seconds = NULL;
    double timeout;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!i|Ozi:comm_init_hub", names, hub_type, &hub, &rank, &seconds, &algo,
                                     &slot) || !take_seconds(seconds, 0, &timeout))
        return NULL;
    bool known = rank >= 0 && rank < pd_hub_world(hub->hub);
    if (!known || !hub->links[rank]) {
        pd_link *link;
        pd_status status = pd_hub_join(hub->hub, rank, &hooks, &link);
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
        NO_GIL(pd_link_close(link)); /* groups that still hold it fail from here on */
        pd_link_release(link);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"comm_init", (PyCFunction)(void (*)(void))comm_init, METH_VARARGS | METH_KEYWORDS,
     "comm_init(rank, world, address, secret_fd, timeout=None, algo=None, slot=0) -> Group\n\nJoins the ranks of a launcher; "
     "address None: a world of one. Later groups of the process use the same connection."},
    {"comm_init_hub", (PyCFunction)(void (*)(void))comm_init_hub, METH_VARARGS | METH_KEYWORDS,
     "comm_init_hub(hub, rank, timeout=None, algo=None, slot=0) -> Group\n\nJoins the ranks of a hub; one thread per rank."},
    {"comm_raised", comm_raised, METH_O,
     "comm_raised(traceback)\n\nTells launcher and ranks that this one ends by an exception."},
    {"comm_leave", comm_leave, METH_NOARGS, "comm_leave()\n\nSays goodbye to launcher and ranks."},
    {0},
};

void pd_py_comm_trim(void) { forget_sites(); }

int pd_py_comm_counts(PyObject *held, PyObject *cached) {
    for (size_t i = 0; i < sizeof live / sizeof *live; i++) {
        PyObject *n = PyLong_FromLongLong(live[i]);
        if (!n || PyDict_SetItemString(held, live_names[i], n)) {
            Py_XDECREF(n);
            return -1;
        }
        Py_DECREF(n);
    }
    PyObject *n = PyLong_FromLong(sites.count);
    int rc = n ? PyDict_SetItemString(cached, "call sites", n) : -1;
    Py_XDECREF(n);
    return rc;
}

int pd_py_add_comm(PyObject *module) {
    PyObject *file = PyModule_GetFilenameObject(module);
    if (file) {
        Py_ssize_t slash = PyUnicode_FindChar(file, '/', 0, PyUnicode_GET_LENGTH(file), -1);
        Py_XSETREF(sites.package, slash >= 0 ? PyUnicode_Substring(file, 0, slash + 1) : NULL);
        Py_DECREF(file);
    } else {
        PyErr_Clear();
    }
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, &specs[i], NULL);
        if (!type) return -1;
        Py_XSETREF(*types[i], (PyTypeObject *)type);
        if (PyModule_AddType(module, *types[i])) return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
