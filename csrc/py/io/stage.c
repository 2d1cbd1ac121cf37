/* Staging: copies that run while Python goes on. */
#include <math.h>

#include "base/os.h"
#include "io/stage.h"
#include "py/io/io.h"

enum { SLICE_NS = 50000000 };

typedef struct staging {
    PyObject_HEAD
    pd_stage *s;
    pd_py_parts parts; /* until the copy has ended and somebody has asked */
    Py_ssize_t exports; /* buffers of the arena */
} staging;

static PyTypeObject *staging_type;

/* Whether the copy has ended; if so, gives the parts back. */
static bool has_ended(staging *self) {
    if (!pd_stage_ended(self->s, 0)) return false;
    pd_py_parts_drop(&self->parts);
    return true;
}

static void dealloc(PyObject *o) {
    staging *self = (staging *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (self->s) {
        Py_BEGIN_ALLOW_THREADS;
        pd_stage_free(self->s);
        Py_END_ALLOW_THREADS;
    }
    pd_py_parts_drop(&self->parts);
    PyObject_Free(o);
    Py_DECREF(type);
}

static bool read_timeout(PyObject *o, int64_t *ns) {
    double seconds;
    *ns = INT64_MAX;
    if (!o || o == Py_None) return true;
    if (!pd_py_double(o, "wait", "timeout", &seconds)) return false;
    if (isnan(seconds)) {
        PyErr_SetString(PyExc_ValueError, "wait: timeout is nan (expected seconds, or None)");
        return false;
    }
    if (seconds < 9e9) *ns = seconds > 0 ? (int64_t)(seconds * 1e9) : 0;
    return true;
}

static PyObject *f_wait(PyObject *o, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"timeout", NULL};
    staging *self = (staging *)o;
    PyObject *timeout = NULL;
    int64_t ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:wait", names, &timeout) || !read_timeout(timeout, &ns))
        return NULL;
    int64_t begin = pd_os_now();
    while (!has_ended(self)) {
        int64_t left = ns == INT64_MAX ? ns : ns - (pd_os_now() - begin);
        if (left <= 0) Py_RETURN_NONE;
        Py_BEGIN_ALLOW_THREADS;
        pd_stage_ended(self->s, left < SLICE_NS ? left : SLICE_NS);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals()) return NULL;
    }
    PD_PY_TRY(pd_stage_result(self->s));
    return pd_py_parts_sums(&self->s->parts);
}

static PyObject *f_cancel(PyObject *o, PyObject *unused) {
    staging *self = (staging *)o;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    pd_stage_cancel(self->s);
    Py_END_ALLOW_THREADS;
    pd_py_parts_drop(&self->parts);
    Py_RETURN_NONE;
}

static int get_buffer(PyObject *o, Py_buffer *view, int flags) {
    staging *self = (staging *)o;
    const pd_stage *s = self->s;
    static char none[1];
    Py_ssize_t bytes = s->arena ? (Py_ssize_t)s->parts.bytes : 0;
    if (PyBuffer_FillInfo(view, o, s->arena ? s->arena : none, bytes, 1, flags)) return -1;
    self->exports++;
    return 0;
}

static void release_buffer(PyObject *o, Py_buffer *view) {
    (void)view;
    ((staging *)o)->exports--;
}

static PyObject *get_arena(PyObject *o, void *unused) {
    (void)unused;
    return PyMemoryView_FromObject(o);
}
static PyObject *get_done(PyObject *o, void *unused) {
    (void)unused;
    return PyBool_FromLong(has_ended((staging *)o));
}
static PyObject *get_nbytes(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(((staging *)o)->s->parts.bytes);
}
static PyObject *get_fd(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(((staging *)o)->s->fd);
}

static PyMethodDef methods[] = {
    {"wait", (PyCFunction)(void (*)(void))f_wait, METH_VARARGS | METH_KEYWORDS,
     "wait(timeout=None): waits for the copy. Returns the CRC-32 of each block of 4 MiB of each part, or None after "
     "`timeout` seconds."},
    {"cancel", f_cancel, METH_NOARGS, "cancel(): stops the copy if it has not ended. Then wait() raises RuntimeError."},
    {0}};
static PyGetSetDef getset[] = {
    {"arena", get_arena, NULL, "All bytes, the parts one after the other, as a read-only memoryview.", NULL},
    {"done", get_done, NULL, "Whether the copy has ended (done, failed or cancelled).", NULL},
    {"nbytes", get_nbytes, NULL, "How many bytes the parts have.", NULL},
    {"fd", get_fd, NULL, "The descriptor of the arena if it is a memfd, which this object closes; else -1.", NULL},
    {0}};
static PyType_Slot slots[] = {{Py_tp_dealloc, dealloc},         {Py_tp_methods, methods},
                              {Py_tp_getset, getset},           {Py_bf_getbuffer, get_buffer},
                              {Py_bf_releasebuffer, release_buffer},
                              {Py_tp_doc, "Parts of memory that threads copy into an arena (io_stage)."},
                              {0}};
static PyType_Spec spec = {.name = "pydist._C.Staging", .basicsize = sizeof(staging), .slots = slots,
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION};

static PyObject *start(pd_py_parts *given, int threads, PyObject *path, const char *name, int64_t offset,
                       pd_stage *from) {
    pd_parts parts;
    staging *self = PyObject_New(staging, staging_type);
    if (!self) {
        pd_py_parts_drop(given);
        return NULL;
    }
    self->s = NULL;
    self->exports = 0;
    self->parts = *given;
    pd_status status = pd_parts_make("io_stage", given->part, PyTuple_GET_SIZE(given->items), offset, &parts);
    PD_THEN(pd_stage_start("io_stage", &parts, threads, name, offset, from, &self->s));
    if (!status) return (PyObject *)self;
    Py_DECREF(self);
    return pd_py_io_raise(status, path, NULL);
}

static PyObject *f_stage(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"parts", "threads", "path", "offset", "reuse", NULL};
    PyObject *o, *many = NULL, *path = NULL, *at = NULL, *name = NULL, *from = NULL, *result = NULL;
    pd_py_parts given;
    int64_t offset = 0;
    int threads;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOOO:io_stage", names, &o, &many, &path, &at, &from) ||
        !pd_py_io_threads(many, "io_stage", &threads) ||
        (at && !pd_py_io_offset(at, "io_stage", &offset)))
        return NULL;
    if (from == Py_None) from = NULL;
    if (from && !Py_IS_TYPE(from, staging_type))
        return PyErr_Format(PyExc_TypeError, "io_stage: reuse is %.100s (expected a Staging, or None)",
                            Py_TYPE(from)->tp_name);
    if (path == Py_None) path = NULL;
    if (path && !PyUnicode_FSConverter(path, &name)) return NULL;
    if (pd_py_parts_get(o, "io_stage", &given)) { /* which may be the arena itself */
        bool free = from && has_ended((staging *)from) && !((staging *)from)->exports;
        result = start(&given, threads, path, name ? PyBytes_AS_STRING(name) : NULL, offset,
                       free ? ((staging *)from)->s : NULL);
    }
    Py_XDECREF(name);
    return result;
}

static PyMethodDef functions[] = {
    {"io_stage", (PyCFunction)(void (*)(void))f_stage, METH_VARARGS | METH_KEYWORDS,
     "io_stage(parts, threads=2, path=None, offset=0, reuse=None) -> Staging\n\nBegins to copy contiguous tensors and "
     "other buffers into an arena. Optimizers' steps wait until the copy has ended. path: a file to make, which must "
     "not exist; it is the arena, from offset on (a multiple of 4096). reuse: a Staging that has ended, whose arena is "
     "taken if it has the size and nobody reads it."},
    {0}};

int pd_py_add_io_stage(PyObject *module) {
    PyObject *kept = NULL;
    if (!pd_py_type(module, &spec, NULL, &kept)) return -1;
    staging_type = (PyTypeObject *)kept;
    return PyModule_AddFunctions(module, functions);
}
