/* The profiler's buffer, for pydist/profiler: start, stop, take, and spans with names from Python. */
#include "base/profile.h"
#include "device/gpu_points.h"
#include "py/py.h"

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h> /* Python 3.10 declares functions of frames here */
#endif

#define FRAMES 64

/* A dict from stacks to numbers, from 1 on. A stack is (code, instruction offset, code, ...), the innermost frame
   first. */
static PyObject *stacks;

static PyObject *frames(void) {
    PyObject *list = PyList_New(0);
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    for (int i = 0; list && frame && i < FRAMES; i++) {
#if PY_VERSION_HEX >= 0x030B0000
        int offset = PyFrame_GetLasti(frame);
#else
        int offset = frame->f_lasti * 2;
#endif
        PyObject *code = (PyObject *)PyFrame_GetCode(frame), *at = PyLong_FromLong(offset);
        if (!at || PyList_Append(list, code) || PyList_Append(list, at)) Py_CLEAR(list);
        Py_DECREF(code);
        Py_XDECREF(at);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static int32_t stack(void) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *type, *value, *trace, *key, *fresh = NULL, *number = NULL;
    PyErr_Fetch(&type, &value, &trace); /* an exception may be set already */
    if (stacks && (key = frames())) {
        if ((fresh = PyLong_FromSsize_t(PyDict_Size(stacks) + 1))) number = PyDict_SetDefault(stacks, key, fresh);
        Py_DECREF(key);
    }
    int32_t result = number ? (int32_t)PyLong_AsLong(number) : 0;
    Py_XDECREF(fresh);
    PyErr_Restore(type, value, trace);
    PyGILState_Release(gil);
    return result;
}

#define RECORDING "pydist.recording"

static void free_recording(PyObject *capsule) { pd_profile_free(PyCapsule_GetPointer(capsule, RECORDING)); }

static PyObject *start(PyObject *module, PyObject *args) {
    Py_ssize_t most;
    int shapes, memory, want_stack, gpu, alone, this_thread;
    pd_recording *r;
    (void)module;
    if (!PyArg_ParseTuple(args, "npppppp:_profile_start", &most, &shapes, &memory, &want_stack, &gpu, &alone,
                          &this_thread))
        return NULL;
    if (most < 1) return PyErr_Format(PyExc_ValueError, "profiler: max_events is %zd (expected at least 1)", most);
    if (!alone && (want_stack || gpu))
        return PyErr_Format(PyExc_ValueError, "profiler: a recording beside others has neither stacks nor GPUs "
                                              "(expected alone=True)");
    const pd_profile how = {.most = (size_t)most, .shapes = shapes, .held = memory ? pd_device_cpu_bytes : NULL,
                            .alone = alone, .this_thread = this_thread,
                            .stack = want_stack ? stack : NULL, .gpu_begin = gpu ? pd_gpu_point : NULL,
                            .gpu_end = gpu ? pd_gpu_point_after : NULL};
    if (gpu && !pd_profile_has_alone()) PD_PY_TRY(pd_gpu_points_start());
    PyObject *fresh = want_stack ? PyDict_New() : NULL;
    if (want_stack && !fresh) return NULL;
    pd_status status = pd_profile_start(&how, &r);
    if (status) Py_XDECREF(fresh);
    else if (alone) Py_XSETREF(stacks, fresh);
    if (status) return pd_py_raise(status);
    PyObject *capsule = PyCapsule_New(r, RECORDING, free_recording);
    if (!capsule) pd_profile_free(r);
    return capsule;
}

/* [new] (results, shapes): how many of the shapes belong to results, and all shapes. */
static PyObject *shapes_of(const pd_recording *r, const pd_event *e) {
    if (!e->dims) Py_RETURN_NONE;
    const int64_t *d = pd_profile_dims(r, e);
    long results = (long)*d++;
    PyObject *list = PyList_New(0);
    while (list && *d != -2) {
        int64_t ndim = *d++;
        PyObject *shape = PyList_New(ndim > 0 ? ndim : 0);
        for (int64_t i = 0; shape && i < ndim; i++) {
            PyObject *n = PyLong_FromLongLong(*d++);
            if (!n) Py_CLEAR(shape);
            else PyList_SET_ITEM(shape, i, n);
        }
        if (!shape || PyList_Append(list, shape)) Py_CLEAR(list);
        Py_XDECREF(shape);
    }
    return list ? Py_BuildValue("(lN)", results, list) : NULL;
}

static PyObject *gpu_of(const pd_event *e) {
    int device;
    int64_t from, to;
    if (!pd_gpu_points_times(e->gpu[0], e->gpu[1], &device, &from, &to)) Py_RETURN_NONE;
    return Py_BuildValue("(iLL)", device, (long long)from, (long long)to);
}

static PyObject *row(const pd_recording *r, const pd_event *e) {
    PyObject *shapes = shapes_of(r, e), *gpu = shapes ? gpu_of(e) : NULL;
    if (shapes && !gpu) Py_DECREF(shapes);
    return !gpu ? NULL
                   : Py_BuildValue("(ssLLLLLiNN)", e->name, pd_timespan_kind_names[e->kind], (long long)e->lane,
                                   (long long)e->begin, (long long)e->end, (long long)e->bytes, (long long)e->held,
                                   (int)e->stack, shapes, gpu);
}

static PyObject *stop(PyObject *module, PyObject *args) {
    PyObject *capsule;
    int with_stacks;
    size_t count;
    uint64_t dropped;
    (void)module;
    if (!PyArg_ParseTuple(args, "Op:_profile_stop", &capsule, &with_stacks)) return NULL;
    pd_recording *r = PyCapsule_GetPointer(capsule, RECORDING);
    if (!r) return NULL;
    pd_profile_stop(r);
    const pd_event *events = pd_profile_events(r, &count, &dropped);
    PD_PY_TRY(pd_gpu_points_wait());
    PyObject *list = PyList_New((Py_ssize_t)count);
    PyObject *known = with_stacks && stacks ? Py_NewRef(stacks) : PyDict_New();
    for (size_t i = 0; list && i < count; i++) {
        PyObject *tuple = row(r, &events[i]);
        if (!tuple) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)i, tuple);
    }
    if (!list || !known) {
        Py_XDECREF(list);
        Py_XDECREF(known);
        return NULL;
    }
    if (with_stacks) Py_CLEAR(stacks);
    return Py_BuildValue("(NKN)", list, (unsigned long long)dropped, known);
}

static PyObject *span_begin(PyObject *module, PyObject *unused) {
    pd_timespan span = pd_timespan_begin();
    (void)module, (void)unused;
    if (!span.run) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)&span, sizeof span);
}

static PyObject *span_end(PyObject *module, PyObject *args) {
    const char *bytes, *name;
    Py_ssize_t size;
    pd_timespan span;
    long long thread = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#s|L:_span_end", &bytes, &size, &name, &thread)) return NULL;
    if (size != sizeof span)
        return PyErr_Format(PyExc_ValueError, "_span_end: got %zd bytes (expected the value that _span_begin returned)",
                            size);
    memcpy(&span, bytes, sizeof span);
    if (thread) pd_timespan_end_in(&span, PD_SPAN_ASYNC, name, 0, thread);
    else pd_timespan_end(&span, PD_SPAN_USER, name, 0);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_profile_start", start, METH_VARARGS,
     "_profile_start(max_events, shapes, memory, stack, gpu, alone, this_thread) -> recording\n\nStarts to record the "
     "events of the process, or of this thread. alone: only if no other such recording runs; the others have neither "
     "stacks nor GPUs. See pydist.profiler."},
    {"_profile_stop", stop, METH_VARARGS,
     "_profile_stop(recording, stacks) -> (events, dropped, stacks)\n\nStops a recording and returns its events. Each "
     "is (name, kind, lane, begin, end, bytes, held, stack, None or (results, shapes), None or (GPU, begin, end since "
     "the start)), with times of the monotonic clock in ns. dropped: how many events found no room. stacks: the number "
     "of each stack."},
    {"_span_begin", span_begin, METH_NOARGS,
     "_span_begin() -> bytes | None\n\nBegins a span of the profiler; None while the profiler is off."},
    {"_span_end", span_end, METH_VARARGS,
     "_span_end(span, name, thread=0): ends the span that _span_begin returned. thread: the one that began it, if "
     "another one may end it; the span then need not nest."},
    {0},
};

int pd_py_add_profile(PyObject *module) { return PyModule_AddFunctions(module, functions); }
