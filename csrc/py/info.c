/* What the engine knows of itself: counts for the leak tests, flags, instruction set, threads, oneDNN. */
#include "base/cpu.h"
#include "base/flags.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/threads.h"
#include "device/cuda.h"
#include "kernels/kernels.h"
#include "py/comm/comm.h"
#include "py/py.h"

/* Counts of the engine and of the bindings, in one dict. */
static PyObject *counts(bool want_cached) {
    pd_py_drain();
    PyObject *held = Py_BuildValue("{sLsLsL}", "tensors", (long long)pd_tensor_live(), "storages",
                                   (long long)pd_storage_live(), "nodes", (long long)pd_node_live());
    PyObject *cached =
        Py_BuildValue("{sLsL}", "onednn", (long long)pd_onednn_cached(), "memory", (long long)pd_device_cpu_cached());
    bool ok = held && cached && !pd_py_comm_counts(held, cached);
    PyObject *result = !ok ? NULL : Py_NewRef(want_cached ? cached : held);
    Py_XDECREF(held);
    Py_XDECREF(cached);
    return result;
}

static PyObject *live(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return counts(false);
}

static PyObject *cached(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return counts(true);
}

static PyObject *trim(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    pd_py_drain(); /* may free tensors */
    pd_onednn_trim();
    pd_device_cpu_trim();
    pd_cuda_trim();
    pd_py_comm_trim();
    pd_mem_trim(0);
    Py_RETURN_NONE;
}

static PyObject *fault_malloc(PyObject *module, PyObject *n) {
    (void)module;
    long long at = PyLong_AsLongLong(n);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(pd_fault_set(PD_FAULT_MALLOC, at));
}

static PyObject *fault(PyObject *module, PyObject *args) {
    (void)module;
    const char *kind;
    long long at;
    if (!PyArg_ParseTuple(args, "sL:fault", &kind, &at)) return NULL;
    for (int k = 0; k < PD_FAULTS; k++)
        if (!strcmp(kind, pd_fault_names[k])) return PyLong_FromLongLong(pd_fault_set((pd_fault)k, at));
    return PyErr_Format(
        PyExc_ValueError,
        "fault: kind is '%s' (expected malloc, send, recv, write, nospace, fsync, rename, kill or stripe)", kind);
}

static PyObject *flags(PyObject *module, PyObject *unused) {
    const char *name, *help;
    char value[512];
    PyObject *list = PyList_New(0);
    (void)module, (void)unused;
    for (size_t i = 0; list && pd_flags_describe(i, &name, &help, value, sizeof value); i++) {
        PyObject *row = Py_BuildValue("(sss)", name, value, help);
        if (!row || PyList_Append(list, row)) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *log_line(PyObject *module, PyObject *args) {
    int level;
    const char *text;
    (void)module;
    if (!PyArg_ParseTuple(args, "is:_log", &level, &text)) return NULL;
    pd_log((pd_level)level, "%s", text);
    Py_RETURN_NONE;
}

/* [new] A list of the names that a function gives. */
static PyObject *names(const char *(*name)(bool gpu, int i), bool gpu) {
    PyObject *list = PyList_New(0);
    const char *text;
    for (int i = 0; list && (text = name(gpu, i)); i++) {
        PyObject *one = PyUnicode_FromString(text);
        if (!one || PyList_Append(list, one) < 0) Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}
static PyObject *backends(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return Py_BuildValue("{s(NN)s(NN)}", "products", names(pd_gemm_backend_name, false),
                         names(pd_gemm_backend_name, true), "convolutions", names(pd_conv_backend_name, false),
                         names(pd_conv_backend_name, true));
}

static PyObject *isa(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyUnicode_FromString(pd_isa_name(pd_cpu_isa()));
}

static PyObject *compiler(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
#ifdef __clang__
    return PyUnicode_FromString(__VERSION__); /* starts with the compiler's name */
#else
    return PyUnicode_FromString("gcc " __VERSION__);
#endif
}

static PyObject *get_num_threads(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLong(pd_threads_get());
}

static PyObject *set_num_threads(PyObject *module, PyObject *n) {
    (void)module;
    long count = PyLong_AsLong(n);
    if (PyErr_Occurred()) return NULL;
    if (count < 1 || count > 4096)
        return PyErr_Format(PyExc_ValueError, "set_num_threads: n is %ld (expected 1 to 4096)", count);
    pd_threads_set_default((int)count);
    pd_threads_set(0);
    Py_RETURN_NONE;
}

static PyObject *thread_num_threads(PyObject *module, PyObject *n) {
    (void)module;
    long count = PyLong_AsLong(n);
    if (PyErr_Occurred()) return NULL;
    pd_threads_set((int)count);
    Py_RETURN_NONE;
}

static PyObject *memory_allocated(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLongLong(pd_device_cpu_bytes());
}

static PyObject *memory_asked(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLongLong(pd_mem_asked());
}

static PyObject *memory_kept(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(PD_KEEPS_FREED);
}

static PyObject *onednn_paths(PyObject *module, PyObject *list) {
    PyObject *seq = PySequence_Fast(list, "onednn_paths: expected a list of paths");
    const char *paths[64];
    int n = 0;
    (void)module;
    for (Py_ssize_t i = 0; seq && i < PySequence_Fast_GET_SIZE(seq) && n < 64; i++)
        if (!(paths[n++] = PyUnicode_AsUTF8(PySequence_Fast_ITEMS(seq)[i]))) Py_CLEAR(seq);
    if (!seq) return NULL;
    pd_onednn_paths(paths, n);
    Py_DECREF(seq);
    Py_RETURN_NONE;
}

static PyObject *onednn_version(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    const char *v = pd_onednn_version();
    return v ? PyUnicode_FromString(v) : Py_NewRef(Py_None);
}

static PyObject *limits(PyObject *module, PyObject *args) {
    const char *root = "";
    (void)module;
    if (!PyArg_ParseTuple(args, "|s:_limits", &root)) return NULL;
    return Py_BuildValue("(Kd)", (unsigned long long)pd_limit_memory(root), pd_limit_cores(root));
}

static PyMethodDef functions[] = {
    {"live", live, METH_NOARGS, "live()\n\nHow many tensors, storages and nodes exist."},
    {"cached", cached, METH_NOARGS,
     "cached()\n\nWhat the caches hold: the number of oneDNN plans, and the bytes of memory of freed tensors."},
    {"trim", trim, METH_NOARGS, "trim()\n\nEmpties the caches."},
    {"fault", fault, METH_VARARGS,
     "fault(kind, n) -> int\n\nMakes the n-th 'malloc', 'send', 'recv', or of files 'write', 'nospace', 'fsync' or "
     "'rename' from now fail (0: none); 'kill' ends the process. Returns how many there were since the last call."},
    {"fault_malloc", fault_malloc, METH_O,
     "fault_malloc(n)\n\nMakes the n-th allocation from now fail (0: none). Returns how many there were since the last "
     "call."},
    {"_log", log_line, METH_VARARGS,
     "_log(level, text): writes a line to the log; level 1 is a warning, 2 information (see PYDIST_LOG)."},
    {"flags", flags, METH_NOARGS, "flags()\n\n[(name, value, help)] of every environment variable."},
    {"backends", backends, METH_NOARGS,
     "backends()\n\n{'products': (on CPUs, on GPUs), 'convolutions': (on CPUs, on GPUs)}: lists of names. The first "
     "backend that is there and takes a call computes it."},
    {"isa", isa, METH_NOARGS, "isa()\n\nThe instruction set in use: portable, avx2 or avx512."},
    {"compiler", compiler, METH_NOARGS, "compiler()\n\nThe compiler that built the extension."},
    {"_thread_num_threads", thread_num_threads, METH_O,
     "_thread_num_threads(n): sets the number of threads for the calling thread only; 0 returns to the default."},
    {"_memory_asked", memory_asked, METH_NOARGS,
     "_memory_asked() -> int\n\nHow often the engine has asked the system for memory; a training step in its steady "
     "state does not ask."},
    {"_limits", limits, METH_VARARGS,
     "_limits(root='') -> (int, float)\n\nThe bytes of memory and the cores (0: no limit) that the machine and its "
     "control groups leave to this process, read from the files below root."},
    {"_memory_kept", memory_kept, METH_NOARGS,
     "_memory_kept() -> bool\n\nWhether the engine keeps freed memory for later use; a build with a sanitizer does "
     "not."},
    {"onednn_paths", onednn_paths, METH_O,
     "onednn_paths(paths)\n\nSets the files that may be oneDNN's library; the engine tries them in order when it first "
     "needs oneDNN."},
    {"onednn_version", onednn_version, METH_NOARGS,
     "onednn_version()\n\nThe version of oneDNN, or None where the portable kernels are used in its place. Opens the "
     "library if necessary."},
    {0},
};

static PyMethodDef resources[] = {
    {"get_num_threads", get_num_threads, METH_NOARGS,
     "get_num_threads()\n\nThe number of threads that a kernel may use."},
    {"set_num_threads", set_num_threads, METH_O,
     "set_num_threads(n)\n\nSets the number of threads that a kernel may use, for all threads that did not set their "
     "own."},
    {"memory_allocated", memory_allocated, METH_NOARGS, "memory_allocated()\n\nThe bytes of memory that tensors hold."},
    {0},
};

int pd_py_add_resources(PyObject *module) { return PyModule_AddFunctions(module, resources); }
int pd_py_add_info(PyObject *module) { return PyModule_AddFunctions(module, functions); }
