/* _C.spawn, _C.guard, _C.session_kill and _C.die_with: base/spawn.h for the launcher and multiprocessing. */
#include "py/py.h"

#include <limits.h>

#include "base/mem.h"
#include "base/spawn.h"

/* *out [new]: the items of `seq`, str or bytes, as C strings with NULL at the end. *keep [new] owns their bytes. */
static bool strings_from(PyObject *seq, const char *what, PyObject **keep, char ***out) {
    PyObject *items = pd_py_items(seq, "spawn", what, "a list of str or bytes");
    if (!items) return false;
    Py_ssize_t n = PyTuple_GET_SIZE(items), i = 0;
    pd_status status = PD_E_PYTHON;
    *keep = PyList_New(n);
    if (*keep) {
        status = pd_calloc(((size_t)n + 1) * sizeof **out, what, out);
        if (status != PD_OK) pd_py_raise(status);
    }
    for (; status == PD_OK && i < n; i++) {
        PyObject *bytes = NULL;
        if (!PyUnicode_FSConverter(PyTuple_GET_ITEM(items, i), &bytes)) break;
        PyList_SET_ITEM(*keep, i, bytes);
        (*out)[i] = PyBytes_AS_STRING(bytes);
    }
    Py_DECREF(items);
    return status == PD_OK && i == n;
}

/* Fills out[0..*count) with the integers of `seq`, at most `max`. Allocates nothing, so that ending a job cannot
   fail. */
static bool ints_from(PyObject *seq, const char *what, int *out, size_t max, size_t *count) {
    PyObject *items = PySequence_Fast(seq, what);
    bool ok = items != NULL;
    size_t n = 0;
    for (; ok && n < (size_t)PySequence_Fast_GET_SIZE(items); n++) {
        if (n == max) {
            PyErr_Format(PyExc_ValueError, "%s: got %zd items (expected at most %zu)", what,
                         PySequence_Fast_GET_SIZE(items), max);
            break;
        }
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(items, n)); /* __index__ may change the list */
        long value = PyLong_AsLong(item);
        Py_DECREF(item);
        if (value < INT_MIN || value > INT_MAX)
            PyErr_Format(PyExc_OverflowError, "%s: got %ld (expected an int of 32 bits)", what, value);
        if (PyErr_Occurred()) break;
        out[n] = (int)value;
    }
    ok = ok && !PyErr_Occurred();
    Py_XDECREF(items);
    *count = n;
    return ok;
}

PyDoc_STRVAR(spawn_doc,
             "spawn(argv, env, stdin, stdout, stderr, keep) -> pid\n\nStarts the program argv[0] (a path) with "
             "environment env ('NAME=value' items) in a session of its own.\nThe program is killed when the calling "
             "thread ends. The three descriptors become 0, 1 and 2; those in\nkeep (above 2) stay open, all others are "
             "closed. Errors: OSError where the program cannot be started.");

static PyObject *launch_spawn(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *argv, *env, *keep, *argv_bytes = NULL, *env_bytes = NULL, *result = NULL;
    char **argv_c = NULL, **env_c = NULL;
    int keep_c[16];
    pd_spawn spawn = {0};
    if (!PyArg_ParseTuple(args, "OOiiiO:spawn", &argv, &env, &spawn.stdio[0], &spawn.stdio[1], &spawn.stdio[2], &keep))
        return NULL;
    if (!strings_from(argv, "argv", &argv_bytes, &argv_c)) goto done;
    if (!strings_from(env, "env", &env_bytes, &env_c)) goto done;
    if (!ints_from(keep, "spawn: keep", keep_c, sizeof keep_c / sizeof *keep_c, &spawn.keeps)) goto done;
    if (!argv_c[0]) {
        PyErr_SetString(PyExc_ValueError, "spawn: argv is empty (expected at least the program's path)");
        goto done;
    }
    spawn.argv = argv_c;
    spawn.envp = env_c;
    spawn.keep = keep_c;
    pid_t pid = 0;
    pd_status status;
    Py_BEGIN_ALLOW_THREADS /* waits for the child's exec */
    status = pd_spawn_run(&spawn, &pid);
    Py_END_ALLOW_THREADS
    result = status == PD_OK ? PyLong_FromLong(pid) : pd_py_raise(status);
done:
    Py_XDECREF(argv_bytes);
    Py_XDECREF(env_bytes);
    pd_free(argv_c);
    pd_free(env_c);
    return result;
}

PyDoc_STRVAR(
    guard_doc,
    "guard() -> (pid, fd)\n\nStarts a process that kills sessions when the last copy of fd is closed. The caller "
    "writes the sessions'\nids (native ints) to fd, and kills the guard first where it ends in an orderly way.");

static PyObject *launch_guard(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    pid_t pid = 0;
    int fd = -1;
    pd_status status = pd_guard_run(&pid, &fd);
    return status == PD_OK ? Py_BuildValue("ii", (int)pid, fd) : pd_py_raise(status);
}

PyDoc_STRVAR(session_kill_doc,
             "session_kill(sessions, sig) -> int\n\nSends sig (0: nothing) to every living process of these sessions; "
             "returns the number of these processes.");

static PyObject *launch_session_kill(PyObject *module, PyObject *args) {
    (void)module;
    _Static_assert(sizeof(pid_t) == sizeof(int), "session ids are read as ints");
    PyObject *sessions;
    int sig, ids[PD_RANKS_MAX];
    size_t n = 0;
    if (!PyArg_ParseTuple(args, "Oi:session_kill", &sessions, &sig)) return NULL;
    if (!ints_from(sessions, "session_kill: sessions", ids, PD_RANKS_MAX, &n)) return NULL;
    return PyLong_FromLong(pd_session_kill(ids, n, sig));
}

PyDoc_STRVAR(die_with_doc,
             "die_with(parent)\n\nThe kernel kills this process when the parent's thread that made it ends; at once if "
             "the parent\nis no longer the process `parent`.");

static PyObject *launch_die_with(PyObject *module, PyObject *parent) {
    (void)module;
    long pid = PyLong_AsLong(parent);
    if (pid == -1 && PyErr_Occurred()) return NULL;
    pd_die_with((pid_t)pid);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"spawn", launch_spawn, METH_VARARGS, spawn_doc},
    {"guard", launch_guard, METH_NOARGS, guard_doc},
    {"session_kill", launch_session_kill, METH_VARARGS, session_kill_doc},
    {"die_with", launch_die_with, METH_O, die_with_doc},
    {NULL, NULL, 0, NULL},
};

int pd_py_add_launch(PyObject *module) {
    int bad = PyModule_AddIntConstant(module, "RANKS_MAX", PD_RANKS_MAX);
    return bad ? bad : PyModule_AddFunctions(module, methods);
}
