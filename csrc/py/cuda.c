/* What pydist.cuda asks of CUDA's devices: memory, streams and events. Streams and events are numbers here: 0 is the
   default stream. */
#include "device/cuda.h"
#include "py/py.h"

#define F(name) static PyObject *name(PyObject *module, PyObject *args)
#define INDEX(op)                                                       \
    const pd_device *d;                                                 \
    int index = -1;                                                     \
    (void)module;                                                       \
    if (!PyArg_ParseTuple(args, "|i:" op, &index)) return NULL;         \
    PD_PY_TRY(pd_cuda_device(op, index, &d))

F(cuda_count) { (void)module, (void)args; return PyLong_FromLong(pd_cuda_count()); }
F(cuda_why) { (void)module, (void)args; return PyUnicode_FromString(pd_cuda_why()); }
F(cuda_built) { (void)module, (void)args; return PyUnicode_FromString(pd_cuda_built()); }
F(cuda_current) {
    INDEX("current_device");
    return PyLong_FromLong(d->index);
}
F(cuda_set_current) {
    INDEX("set_device");
    PD_PY_TRY(pd_cuda_set_current(d->index));
    Py_RETURN_NONE;
}

F(cuda_properties) {
    INDEX("get_device_properties");
    pd_cuda_properties p;
    PD_PY_TRY(pd_cuda_result("get_device_properties", pd_cuda_open()->properties(d->index, &p)));
    return Py_BuildValue("(siini)", p.name, p.major, p.minor, (Py_ssize_t)p.memory, p.processors);
}

F(cuda_synchronize) {
    INDEX("synchronize");
    void *token = pd_host_release();
    pd_status status = pd_cuda_wait(d, "synchronize");
    pd_host_acquire(token);
    PD_PY_TRY(status);
    Py_RETURN_NONE;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

F(cuda_memory) {
    INDEX("memory_stats");
    pd_cache_stats s = pd_cache_read(pd_cuda_cache(d));
    return Py_BuildValue("{sLsLsLsLsLsLsL}", "allocated", (long long)s.allocated, "most_allocated",
                         (long long)s.most_allocated, "reserved", (long long)s.reserved, "most_reserved",
                         (long long)s.most_reserved, "segments", (long long)s.segments, "retries", (long long)s.retries,
                         "failures", (long long)s.failures);
}
F(cuda_reset_most) {
    INDEX("reset_peak_memory_stats");
    pd_cache_reset_most(pd_cuda_cache(d));
    Py_RETURN_NONE;
}
F(cuda_free_memory) {
    INDEX("mem_get_info");
    const pd_device *was;
    size_t left = 0, total = 0;
    PD_PY_TRY(pd_device_enter(d, &was));
    pd_device_here = was;
    PD_PY_TRY(pd_cuda_result("mem_get_info", pd_cuda_open()->memory(&left, &total)));
    return Py_BuildValue("(nn)", (Py_ssize_t)left, (Py_ssize_t)total);
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

static void *pointer(unsigned long long number) { return (void *)(uintptr_t)number; }
static PyObject *number(const void *p) { return PyLong_FromVoidPtr((void *)(uintptr_t)p); }

/* Device `index`, made the runtime's current one: streams and events are made there. */
static const pd_device *at(const char *op, int index) {
    const pd_device *d, *was;
    pd_status status = pd_cuda_device(op, index, &d);
    if (!status) status = pd_device_enter(d, &was);
    if (!status) pd_device_here = was;
    else pd_py_raise(status);
    return status ? NULL : d;
}

F(cuda_stream_new) {
    int index, priority;
    void *stream = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "ii:Stream", &index, &priority) || !at("Stream", index)) return NULL;
    PD_PY_TRY(pd_cuda_result("Stream", pd_cuda_open()->stream_new(&stream, priority)));
    return number(stream);
}
F(cuda_stream) {
    INDEX("current_stream");
    return number(pd_cuda_stream(d));
}
F(cuda_set_stream) {
    int index;
    unsigned long long stream;
    const pd_device *d;
    (void)module;
    if (!PyArg_ParseTuple(args, "iK:set_stream", &index, &stream) || !(d = at("set_stream", index))) return NULL;
    pd_cuda_set_stream(d, pointer(stream));
    Py_RETURN_NONE;
}
F(cuda_event_new) {
    int index, timing;
    void *event = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "ip:Event", &index, &timing) || !at("Event", index)) return NULL;
    PD_PY_TRY(pd_cuda_result("Event", pd_cuda_open()->event_new(&event, timing)));
    return number(event);
}
F(cuda_event_between) {
    unsigned long long from, to;
    float ms;
    (void)module;
    if (!PyArg_ParseTuple(args, "KK:elapsed_time", &from, &to)) return NULL;
    PD_PY_TRY(pd_cuda_result("Event.elapsed_time", pd_cuda_open()->event_between(pointer(from), pointer(to), &ms)));
    return PyFloat_FromDouble(ms);
}

/* One call of the library on one or two of these numbers. */
#define ON1(name, text, call, wait)                                         \
    F(name) {                                                               \
        unsigned long long a;                                               \
        (void)module;                                                       \
        if (!PyArg_ParseTuple(args, "K:" text, &a)) return NULL;            \
        void *token = (wait) ? pd_host_release() : NULL;                    \
        int error = pd_cuda_open()->call(pointer(a));                       \
        pd_host_acquire(token);                                             \
        PD_PY_TRY(pd_cuda_result(text, error));                             \
        Py_RETURN_NONE;                                                     \
    }
#define ON2(name, text, call)                                               \
    F(name) {                                                               \
        unsigned long long a, b;                                            \
        (void)module;                                                       \
        if (!PyArg_ParseTuple(args, "KK:" text, &a, &b)) return NULL;       \
        PD_PY_TRY(pd_cuda_result(text, pd_cuda_open()->call(pointer(a), pointer(b)))); \
        Py_RETURN_NONE;                                                     \
    }
#define DONE(name, text, call)                                              \
    F(name) {                                                               \
        unsigned long long a;                                               \
        bool done = false;                                                  \
        (void)module;                                                       \
        if (!PyArg_ParseTuple(args, "K:" text, &a)) return NULL;            \
        PD_PY_TRY(pd_cuda_result(text, pd_cuda_open()->call(pointer(a), &done))); \
        return PyBool_FromLong(done);                                       \
    }
ON1(cuda_stream_free, "Stream", stream_free, false)
ON1(cuda_stream_wait, "Stream.synchronize", stream_wait, true)
DONE(cuda_stream_done, "Stream.query", stream_done)
ON2(cuda_stream_after, "Stream.wait_event", stream_after)
ON1(cuda_event_free, "Event", event_free, false)
ON2(cuda_event_record, "Event.record", event_record)
ON1(cuda_event_wait, "Event.synchronize", event_wait, true)
DONE(cuda_event_done, "Event.query", event_done)

#define ROW(name, text) {#name, name, METH_VARARGS, text}
static PyMethodDef functions[] = {
    ROW(cuda_count, "cuda_count()\n\nHow many CUDA devices there are."),
    ROW(cuda_why, "cuda_why()\n\nWhy there is none, or ''."),
    ROW(cuda_built, "cuda_built()\n\nWhat the kernels were built by and for, or ''."),
    ROW(cuda_current, "cuda_current()\n\nThis thread's device."),
    ROW(cuda_set_current, "cuda_set_current(index)\n\nMakes it this thread's device."),
    ROW(cuda_properties, "cuda_properties(index=-1)\n\n(name, major, minor, bytes of memory, processors)"),
    ROW(cuda_synchronize, "cuda_synchronize(index=-1)\n\nWaits for all work of a device."),
    ROW(cuda_memory, "cuda_memory(index=-1)\n\nWhat tensors and the cache hold."),
    ROW(cuda_reset_most, "cuda_reset_most(index=-1)\n\nThe largest values begin anew."),
    ROW(cuda_free_memory, "cuda_free_memory(index=-1)\n\n(free, total) bytes of the device."),
    ROW(cuda_stream_new, "cuda_stream_new(index, priority)\n\nA stream."),
    ROW(cuda_stream_free, "cuda_stream_free(stream)\n\nGives it back."),
    ROW(cuda_stream, "cuda_stream(index=-1)\n\nThis thread's current stream of a device."),
    ROW(cuda_set_stream, "cuda_set_stream(index, stream)\n\nMakes it that."),
    ROW(cuda_stream_wait, "cuda_stream_wait(stream)\n\nWaits for its work."),
    ROW(cuda_stream_done, "cuda_stream_done(stream)\n\nWhether its work is done."),
    ROW(cuda_stream_after, "cuda_stream_after(stream, event)\n\nIts later work comes after the event."),
    ROW(cuda_event_new, "cuda_event_new(index, timing)\n\nAn event."),
    ROW(cuda_event_free, "cuda_event_free(event)\n\nGives it back."),
    ROW(cuda_event_record, "cuda_event_record(event, stream)\n\nAfter all of the stream's work so far."),
    ROW(cuda_event_wait, "cuda_event_wait(event)\n\nWaits for it."),
    ROW(cuda_event_done, "cuda_event_done(event)\n\nWhether it has happened."),
    ROW(cuda_event_between, "cuda_event_between(start, end)\n\nMilliseconds."),
    {0}};

int pd_py_add_cuda(PyObject *module) { return PyModule_AddFunctions(module, functions); }
