/* pydist._C: the extension module. Import makes types and functions, and touches nothing else. */
#include "autograd/nan.h"
#include "py/py.h"

pd_py_state pd_py;

static void *release_gil(void) { return PyGILState_Check() ? PyEval_SaveThread() : NULL; }
static void acquire_gil(void *token) {
    if (token) PyEval_RestoreThread(token);
}

/* Public parts, whose names pydist re-exports, and parts that only the package calls, as _C.name. */
static int (*const public_parts[])(PyObject *) = {
    pd_py_add_raise, pd_py_add_types,    pd_py_add_tensor, pd_py_add_ops,    pd_py_add_create,
    pd_py_add_rng,   pd_py_add_autograd, pd_py_add_buffer, pd_py_add_numpy,  pd_py_add_dlpack, pd_py_add_resources,
};
static int (*const inner_parts[])(PyObject *) = {
    pd_py_add_function, pd_py_add_collect, pd_py_add_optim,  pd_py_add_storage, pd_py_add_spread, pd_py_add_info,
    pd_py_add_cuda,     pd_py_add_profile, pd_py_add_saved,  pd_py_add_selected, pd_py_add_launch, pd_py_add_comm,
    pd_py_add_layout,   pd_py_add_reducer, pd_py_add_sharded, pd_py_add_mpi,    pd_py_add_nccl,    pd_py_add_unpickle,
    pd_py_add_run,      pd_py_add_program,  pd_py_add_data,   pd_py_add_data_files, pd_py_add_data_example,
    pd_py_add_io,       pd_py_add_vocab,    pd_py_add_plans,
};

/* Sets __all__, for `from pydist._C import *`: the names so far that do not begin with an underscore. */
static int add_all(PyObject *module) {
    PyObject *names = PyDict_Keys(PyModule_GetDict(module)), *all = names ? PyList_New(0) : NULL;
    int bad = all ? 0 : -1;
    for (Py_ssize_t i = 0; !bad && i < PyList_GET_SIZE(names); i++) {
        PyObject *name = PyList_GET_ITEM(names, i);
        if (PyUnicode_READ_CHAR(name, 0) != '_') bad = PyList_Append(all, name);
    }
    if (!bad) bad = PyModule_AddObjectRef(module, "__all__", all);
    Py_XDECREF(names);
    Py_XDECREF(all);
    return bad;
}

static int add_parts(PyObject *module, int (*const *parts)(PyObject *), size_t n) {
    for (size_t i = 0; i < n; i++)
        if (parts[i](module)) return -1;
    return 0;
}

static int exec(PyObject *module) {
    static bool done;
    if (done) { /* there is one state in a process (docs/internals/design.md, "Python bindings") */
        PyErr_SetString(PyExc_ImportError,
                        "pydist._C was imported a second time, or in a subinterpreter (expected once per process, in "
                        "the main interpreter)");
        return -1;
    }
    pd_status status = pd_ops_init();
    if (status) {
        PyErr_SetString(PyExc_SystemError, pd_error_get()->text);
        return -1;
    }
    done = true;
    pd_nan_init();
    pd_host_release = release_gil;
    pd_host_acquire = acquire_gil;
    if (add_parts(module, public_parts, sizeof public_parts / sizeof *public_parts) || add_all(module)) return -1;
    return add_parts(module, inner_parts, sizeof inner_parts / sizeof *inner_parts);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec},
#if PY_VERSION_HEX >= 0x030C0000
                                   {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
                                   {0, NULL}};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "pydist._C", .m_doc = "The C engine of pydist.", .m_slots = slots};

PyMODINIT_FUNC PyInit__C(void) { return PyModuleDef_Init(&definition); }
