/* What pydist.cuda asks of CUDA's devices: memory, streams, events, graphs, ranges. Streams, events and graphs are
   numbers here; 0 is the default stream, and a number that was not given out is refused. */
#include "device/cuda.h"

#include "base/flags.h"
#include "base/mem.h"
#include "device/nvidia.h"
#include "kernels/kernels.h"
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

F(cuda_pin) {
    PyObject *o;
    pd_tensor *t, *out;
    (void)module;
    if (!PyArg_ParseTuple(args, "O:pin_memory", &o) || !(t = pd_py_expect_tensor(o, "pin_memory", "input")))
        return NULL;
    PD_PY_TRY(pd_pin(t, &out));
    return pd_py_wrap_new(out);
}
F(cuda_is_pinned) {
    PyObject *o;
    pd_tensor *t;
    (void)module;
    if (!PyArg_ParseTuple(args, "O:is_pinned", &o) || !(t = pd_py_expect_tensor(o, "is_pinned", "input"))) return NULL;
    return PyBool_FromLong(pd_is_pinned(t));
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

/* Makes device `index` the runtime's current one, where streams and events are made. */
static const pd_device *at(const char *op, int index) {
    const pd_device *d, *was;
    pd_status status = pd_cuda_device(op, index, &d);
    PD_THEN(pd_device_enter(d, &was));
    if (!status) pd_device_here = was;
    else pd_py_raise(status);
    return status ? NULL : d;
}

/* *out: the stream for a number; 0 is the default one. Returns device `index`, which becomes the runtime's current one;
   NULL with the exception set. `owned`: a stream that was given back is refused. */
static const pd_device *stream_at(const char *op, int index, PyObject *n, bool owned, void **out) {
    int device;
    bool taken;
    const pd_device *d = at(op, index);
    if (!d) return NULL;
    *out = PyLong_CheckExact(n) ? PyLong_AsVoidPtr(n) : NULL;
    PyErr_Clear(); /* a number that is no address is no stream */
    if (!*out && PyLong_CheckExact(n) && !PyObject_IsTrue(n)) return d;
    if (!*out || !pd_cuda_stream_known(*out, &device, &taken))
        PyErr_Format(PyExc_ValueError, "%s: got %R, which is no stream (expected one that was made)", op, n);
    else if (device != d->index)
        PyErr_Format(PyExc_ValueError, "%s: the stream is of cuda:%d (expected one of cuda:%d)", op, device, d->index);
    else if (owned && !taken)
        PyErr_Format(PyExc_ValueError,
                     "%s: the stream was given back when its Stream was deleted (expected a Stream "
                     "that is kept while it is used)",
                     op);
    else
        return d;
    return NULL;
}

/* The same, for calls that ask how far the stream is: a stream that is being captured is refused. */
static const pd_device *asked_at(const char *op, int index, PyObject *n, void **out) {
    bool captures = false;
    const pd_device *d = stream_at(op, index, n, true, out);
    if (!d || !*out || pd_cuda_open()->capturing(*out, &captures) || !captures) return d;
    PyErr_Format(PyExc_RuntimeError,
                 "%s: a CUDA graph is being captured in this stream, which to ask would break "
                 "(expected to wait before or after the capture)",
                 op);
    return NULL;
}

F(cuda_stream_new) {
    int index, priority;
    void *stream = NULL;
    const pd_device *d;
    (void)module;
    if (!PyArg_ParseTuple(args, "ii:Stream", &index, &priority) || !(d = at("Stream", index))) return NULL;
    PD_PY_TRY(pd_cuda_stream_take("Stream", d, priority, &stream));
    return PyLong_FromVoidPtr(stream);
}
F(cuda_stream_free) {
    int index;
    PyObject *n;
    void *stream;
    (void)module;
    if (!PyArg_ParseTuple(args, "iO:Stream", &index, &n)) return NULL;
    if (pd_cuda_forked()) Py_RETURN_NONE;
    if (!stream_at("Stream", index, n, true, &stream)) return NULL;
    pd_cuda_stream_back(stream);
    Py_RETURN_NONE;
}
F(cuda_stream) {
    INDEX("current_stream");
    return PyLong_FromVoidPtr(pd_cuda_stream(d));
}
F(cuda_set_stream) {
    int index;
    PyObject *n;
    void *stream;
    const pd_device *d;
    (void)module;
    if (!PyArg_ParseTuple(args, "iO:set_stream", &index, &n) || !(d = stream_at("set_stream", index, n, true, &stream)))
        return NULL;
    pd_cuda_set_stream(d, stream);
    Py_RETURN_NONE;
}
/* Waits for a stream or an event. */
static PyObject *wait_for(const char *op, int (*wait)(void *), void *of) {
    void *token = pd_host_release();
    int error = wait(of);
    pd_host_acquire(token);
    PD_PY_TRY(pd_cuda_result(op, error));
    Py_RETURN_NONE;
}
/* Whether a stream or an event is done. */
static PyObject *is_done(const char *op, int (*ask)(void *, bool *), void *of) {
    bool done = false;
    PD_PY_TRY(pd_cuda_result(op, ask(of, &done)));
    return PyBool_FromLong(done);
}

F(cuda_stream_wait) {
    int index;
    PyObject *n;
    void *stream;
    (void)module;
    if (!PyArg_ParseTuple(args, "iO:Stream.synchronize", &index, &n) ||
        !asked_at("Stream.synchronize", index, n, &stream))
        return NULL;
    return wait_for("Stream.synchronize", pd_cuda_open()->stream_wait, stream);
}
F(cuda_stream_done) {
    int index;
    PyObject *n;
    void *stream;
    (void)module;
    if (!PyArg_ParseTuple(args, "iO:Stream.query", &index, &n) || !asked_at("Stream.query", index, n, &stream))
        return NULL;
    return is_done("Stream.query", pd_cuda_open()->stream_done, stream);
}

/* The numbers of events and graphs in use. CUDA would take any other number for a pointer. */
typedef enum kind { EVENT, GRAPH, KINDS } kind;
static PyObject *given[KINDS]; /* sets */

static PyObject *number(kind k, void *p) {
    PyObject *n = PyLong_FromVoidPtr(p);
    if (n && PySet_Add(given[k], n)) Py_CLEAR(n);
    return n;
}

/* The pointer for a number; false with the exception set. `back`: the number is no longer in use. */
static bool pointer(const char *op, kind k, PyObject *n, bool back, void **out) {
    static const char *const names[] = {"event", "graph"};
    int known = !PyLong_CheckExact(n) ? 0 : back ? PySet_Discard(given[k], n) : PySet_Contains(given[k], n);
    if (known < 0) return false;
    if (known)
        *out = PyLong_AsVoidPtr(n);
    else
        PyErr_Format(PyExc_ValueError, "%s: got %R, which is not a live %s (expected one that was made and not freed)",
                     op, n, names[k]);
    return known;
}

F(cuda_event_new) {
    int index, timing;
    void *event = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "ip:Event", &index, &timing) || !at("Event", index)) return NULL;
    PD_PY_TRY(pd_cuda_result("Event", pd_cuda_open()->event_new(&event, timing)));
    return number(EVENT, event);
}
F(cuda_event_between) {
    PyObject *n[2];
    void *from, *to;
    float ms;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:elapsed_time", &n[0], &n[1]) ||
        !pointer("Event.elapsed_time", EVENT, n[0], false, &from) ||
        !pointer("Event.elapsed_time", EVENT, n[1], false, &to))
        return NULL;
    PD_PY_TRY(pd_cuda_result("Event.elapsed_time", pd_cuda_open()->event_between(from, to, &ms)));
    return PyFloat_FromDouble(ms);
}
F(cuda_event_wait) {
    PyObject *n;
    void *event;
    (void)module;
    if (!PyArg_ParseTuple(args, "O:Event.synchronize", &n) || !pointer("Event.synchronize", EVENT, n, false, &event))
        return NULL;
    return wait_for("Event.synchronize", pd_cuda_open()->event_wait, event);
}
F(cuda_event_done) {
    PyObject *n;
    void *event;
    (void)module;
    if (!PyArg_ParseTuple(args, "O:Event.query", &n) || !pointer("Event.query", EVENT, n, false, &event)) return NULL;
    return is_done("Event.query", pd_cuda_open()->event_done, event);
}

/* A function that frees an event or a graph; in a forked process it only forgets the number. */
#define FREE(name, text, kind, call)                                                                  \
    F(name) {                                                                                         \
        PyObject *n;                                                                                  \
        void *a;                                                                                      \
        (void)module;                                                                                 \
        if (!PyArg_ParseTuple(args, "O:" text, &n) || !pointer(text, kind, n, true, &a)) return NULL; \
        if (!pd_cuda_forked()) PD_PY_TRY(pd_cuda_result(text, pd_cuda_open()->call(a)));              \
        Py_RETURN_NONE;                                                                               \
    }
/* A function of (number, index, stream): gives a stream an event or a graph. */
#define IN_STREAM(name, text, kind, call)                                                                 \
    F(name) {                                                                                             \
        int index;                                                                                        \
        PyObject *n, *m;                                                                                  \
        void *a, *stream;                                                                                 \
        (void)module;                                                                                     \
        if (!PyArg_ParseTuple(args, "OiO:" text, &n, &index, &m) || !pointer(text, kind, n, false, &a) || \
            !stream_at(text, index, m, true, &stream))                                                    \
            return NULL;                                                                                  \
        PD_PY_TRY(pd_cuda_result(text, call));                                                            \
        Py_RETURN_NONE;                                                                                   \
    }
FREE(cuda_event_free, "Event", EVENT, event_free)
FREE(cuda_graph_free, "CUDAGraph", GRAPH, graph_free)
IN_STREAM(cuda_event_record, "Event.record", EVENT, pd_cuda_open()->event_record(a, stream))
IN_STREAM(cuda_stream_after, "Stream.wait_event", EVENT, pd_cuda_open()->stream_after(stream, a))
IN_STREAM(cuda_graph_launch, "CUDAGraph.replay", GRAPH, pd_cuda_open()->graph_launch(a, stream))

pd_status pd_py_record_stream(const pd_storage *s, void *stream) {
    if (s->device->kind != PD_DEVICE_CUDA || s->drop || pd_cuda_forked()) return PD_OK;
    return pd_cache_record(pd_cuda_cache(s->device), s->data, stream);
}

F(cuda_record) {
    PyObject *o, *n;
    void *stream = NULL;
    pd_tensor *t;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:record_stream", &o, &n) ||
        !(t = pd_py_expect_tensor(o, "record_stream", "input")) ||
        (t->storage->device->kind == PD_DEVICE_CUDA && !pd_cuda_forked() &&
         !stream_at("record_stream", t->storage->device->index, n, false, &stream)))
        return NULL;
    PD_PY_TRY(pd_py_record_stream(t->storage, stream));
    Py_RETURN_NONE;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

F(cuda_capture_begin) {
    int index;
    long long pool;
    const pd_device *d;
    PyObject *past;
    pd_tensor *p;
    (void)module;
    if (!PyArg_ParseTuple(args, "iLO:CUDAGraph", &index, &pool, &past) || !(d = at("CUDAGraph", index)) ||
        !(p = pd_py_expect_tensor(past, "CUDAGraph", "past")))
        return NULL;
    if (p->dtype != PD_I64 || p->ndim != 1 || p->numel != 2 || p->stride[0] != 1 || p->storage->device != d)
        return PyErr_Format(PyExc_ValueError,
                            "CUDAGraph: past is %s of shape %s (expected two int64 elements on the graph's device)",
                            pd_dtype_name((pd_dtype)p->dtype), pd_tensor_shape(p));
    void *stream = pd_cuda_stream(d);
    if (!stream)
        return PyErr_Format(PyExc_RuntimeError, "CUDAGraph: the current stream is the default one (expected another)");
    int64_t id = pool;
    PD_PY_TRY(pd_cache_pool_begin(pd_cuda_cache(d), &id));
    pd_status status = pd_cuda_result("CUDAGraph", pd_cuda_open()->capture_begin(stream, pd_tensor_data(p)));
    if (status) {
        pd_cache_pool_end(pd_cuda_cache(d));
        return pd_py_raise(status);
    }
    return PyLong_FromLongLong(id);
}
F(cuda_capture_end) {
    int index;
    void *graph = NULL;
    const pd_device *d;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:CUDAGraph", &index) || !(d = at("CUDAGraph", index))) return NULL;
    if (!pd_cache_pool_is_open(pd_cuda_cache(d)))
        return PyErr_Format(PyExc_RuntimeError, "CUDAGraph.capture_end: nothing is being captured");
    int error = pd_cuda_open()->capture_end(pd_cuda_stream(d), &graph);
    pd_status status = pd_cuda_result("CUDAGraph", error);
    pd_status ended = pd_cache_pool_end(pd_cuda_cache(d));
    PD_PY_TRY(status ? status : ended);
    return number(GRAPH, graph);
}
F(cuda_capturing) {
    INDEX("is_current_stream_capturing");
    return PyBool_FromLong(pd_cuda_capturing(d));
}
/* Fills out[] with the streams for a tuple of numbers. */
static bool streams_of(const char *op, int index, PyObject *numbers, void **out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++)
        if (!stream_at(op, index, PyTuple_GET_ITEM(numbers, i), false, &out[i])) return false;
    return true;
}

F(cuda_pool_free) {
    int index;
    long long pool;
    PyObject *numbers;
    void **streams;
    const pd_device *d;
    (void)module;
    if (!PyArg_ParseTuple(args, "iLO!:CUDAGraph", &index, &pool, &PyTuple_Type, &numbers)) return NULL;
    if (pd_cuda_forked()) Py_RETURN_NONE;
    if (!(d = at("CUDAGraph", index))) return NULL;
    int n = (int)PyTuple_GET_SIZE(numbers);
    PD_PY_TRY(pd_malloc(sizeof *streams * (size_t)(n + 1), "CUDAGraph", &streams));
    bool known = streams_of("CUDAGraph", index, numbers, streams);
    pd_status status = known ? pd_cache_pool_free(pd_cuda_cache(d), pool, streams, n) : PD_OK;
    pd_free(streams);
    if (!known) return NULL;
    PD_PY_TRY(status);
    Py_RETURN_NONE;
}

/* ---- ranges for profilers; without a library they do nothing ----------------------------------------------------- */

F(cuda_range) { /* a name begins a range, or, with mark, marks a point; None ends the last range */
    const char *name;
    int mark = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "z|p:range", &name, &mark)) return NULL;
    const pd_cuda_library *cuda = pd_cuda_open();
    if (cuda && mark) cuda->mark(name ? name : "");
    else if (cuda && name) cuda->range_push(name);
    else if (cuda) cuda->range_pop();
    Py_RETURN_NONE;
}

/* ---- NVIDIA's libraries ------------------------------------------------------------------------------------------ */

F(nvidia_paths) {
    PyObject *list;
    const char *paths[64];
    int n = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!:nvidia_paths", &PyList_Type, &list)) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list) && n < 64; i++)
        if (!(paths[n++] = PyUnicode_AsUTF8(PyList_GET_ITEM(list, i)))) return NULL;
    pd_nvidia_paths(paths, n);
    Py_RETURN_NONE;
}
static PyObject *version_of(const char *(*ask)(const char **)) {
    const char *why, *version = ask(&why);
    return Py_BuildValue("(zs)", version, version ? "" : why);
}
F(cublaslt_version) { (void)module, (void)args; return version_of(pd_cublaslt_version); }
F(cudnn_version) { (void)module, (void)args; return version_of(pd_cudnn_version); }
F(gpu_settings) {
    int matmul_tf32, conv_tf32, conv_tune, conv_own, matmul_tune;
    (void)module;
    if (PyTuple_GET_SIZE(args)) {
        if (!PyArg_ParseTuple(args, "ppppp:gpu_settings", &matmul_tf32, &conv_tf32, &conv_tune, &conv_own,
                              &matmul_tune))
            return NULL;
        pd_gpu = (pd_gpu_settings){matmul_tf32, conv_tf32, conv_tune, conv_own, matmul_tune};
    }
    return Py_BuildValue("(NNNNN)", PyBool_FromLong(pd_gpu.matmul_tf32), PyBool_FromLong(pd_gpu.conv_tf32),
                         PyBool_FromLong(pd_gpu.conv_tune), PyBool_FromLong(pd_gpu.conv_own),
                         PyBool_FromLong(pd_gpu.matmul_tune));
}

#define ROW(name, text) {#name, name, METH_VARARGS, text}
static PyMethodDef functions[] = {
    ROW(cuda_count, "cuda_count()\n\nHow many CUDA devices there are."),
    ROW(cuda_why, "cuda_why()\n\nWhy there is no CUDA device, or ''."),
    ROW(cuda_built, "cuda_built()\n\nThe compiler and the architectures of the CUDA kernels, or ''."),
    ROW(cuda_current, "cuda_current()\n\nThe index of this thread's current device."),
    ROW(cuda_set_current, "cuda_set_current(index)\n\nMakes a device this thread's current one."),
    ROW(cuda_properties, "cuda_properties(index=-1)\n\n(name, major, minor, bytes of memory, processors)"),
    ROW(cuda_synchronize, "cuda_synchronize(index=-1)\n\nWaits for all work of a device."),
    ROW(cuda_memory, "cuda_memory(index=-1)\n\nThe memory of the device that tensors and the cache hold."),
    ROW(cuda_reset_most, "cuda_reset_most(index=-1)\n\nResets the peak values of cuda_memory."),
    ROW(cuda_free_memory, "cuda_free_memory(index=-1)\n\n(free, total) bytes of the device."),
    ROW(cuda_stream_new, "cuda_stream_new(index, priority)\n\nA stream that nobody else has."),
    ROW(cuda_stream_free, "cuda_stream_free(index, stream)\n\nGives the stream back to the next one who needs one."),
    ROW(cuda_stream, "cuda_stream(index=-1)\n\nThis thread's current stream of a device."),
    ROW(cuda_set_stream, "cuda_set_stream(index, stream)\n\nMakes a stream this thread's current one of a device."),
    ROW(cuda_stream_wait, "cuda_stream_wait(index, stream)\n\nWaits until the stream has done all its work."),
    ROW(cuda_stream_done, "cuda_stream_done(index, stream)\n\nWhether the stream has done all its work."),
    ROW(cuda_stream_after, "cuda_stream_after(event, index, stream)\n\nThe stream's later work waits for the event."),
    ROW(cuda_event_new, "cuda_event_new(index, timing)\n\nA new event."),
    ROW(cuda_event_free, "cuda_event_free(event)\n\nFrees the event."),
    ROW(cuda_event_record,
        "cuda_event_record(event, index, stream)\n\nRecords the event in the stream, after all of the stream's work so "
        "far."),
    ROW(cuda_event_wait, "cuda_event_wait(event)\n\nWaits until the event has happened."),
    ROW(cuda_event_done, "cuda_event_done(event)\n\nWhether the event has happened."),
    ROW(cuda_event_between, "cuda_event_between(start, end)\n\nThe time between two events in milliseconds."),
    ROW(cuda_pin, "cuda_pin(input)\n\nA copy in pinned memory of the host, which GPUs read without the CPU."),
    ROW(cuda_is_pinned, "cuda_is_pinned(input)\n\nWhether the tensor is in pinned memory."),
    ROW(cuda_record,
        "cuda_record(input, stream)\n\nKeeps the tensor's memory from being reused before the stream has done its work "
        "so far."),
    ROW(cuda_capture_begin,
        "cuda_capture_begin(index, pool, past)\n\nBegins to capture the current stream's work; returns the pool's "
        "number. past: what replays add to the seed and call of random keys."),
    ROW(cuda_capture_end, "cuda_capture_end(index)\n\nEnds the capture; returns the graph."),
    ROW(cuda_capturing, "cuda_capturing(index=-1)\n\nWhether the current stream is being captured."),
    ROW(cuda_pool_free,
        "cuda_pool_free(index, pool, streams)\n\nFrees the pool's memory, which no graph needs any more, after the "
        "work of "
        "the streams in which its graphs were replayed."),
    ROW(cuda_graph_launch, "cuda_graph_launch(graph, index, stream)\n\nReplays the captured work in the stream."),
    ROW(cuda_graph_free, "cuda_graph_free(graph)\n\nFrees the graph."),
    ROW(cuda_range,
        "cuda_range(name, mark=False)\n\nBegins an NVTX range; None: ends the last one. mark: a single point in the "
        "place of a range."),
    ROW(nvidia_paths, "nvidia_paths(folders)\n\nSets the folders in which pip has put NVIDIA's libraries."),
    ROW(cublaslt_version, "cublaslt_version()\n\n(version or None, why there is none)"),
    ROW(cudnn_version, "cudnn_version()\n\n(version or None, why there is none)"),
    ROW(gpu_settings,
        "gpu_settings([matmul_tf32, conv_tf32, conv_tune, conv_own, matmul_tune])\n\nSets these settings if they are "
        "given, and returns them."),
    {0}};

int pd_py_add_cuda(PyObject *module) {
    pd_gpu.matmul_tune = pd_flags_get()->CUDA_TUNE;
    for (int k = 0; k < KINDS; k++)
        if (!(given[k] = PySet_New(NULL))) return -1;
    return PyModule_AddFunctions(module, functions);
}
