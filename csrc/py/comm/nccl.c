/* Calls of NCCL's library by pydist itself; collectives reach it through their groups (comm/nccl/nccl.h). */
#include "device/cuda.h"
#include "device/nccl.h"
#include "py/py.h"

static PyObject *nccl_version(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLong(pd_nccl_version());
}
static PyObject *nccl_where(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyUnicode_DecodeFSDefault(pd_nccl_where());
}

static PyObject *nccl_check(PyObject *module, PyObject *op) {
    const pd_nccl_library *lib;
    const char *name = PyUnicode_AsUTF8(op);
    (void)module;
    if (!name) return NULL;
    PD_PY_TRY(pd_nccl_open(name, &lib));
    Py_RETURN_NONE;
}

static PyObject *nccl_unique_id(PyObject *module, PyObject *unused) {
    const pd_nccl_library *lib;
    pd_nccl_id id;
    (void)module, (void)unused;
    PD_PY_TRY(pd_nccl_open("nccl_unique_id", &lib));
    PD_PY_TRY(pd_nccl_result("nccl_unique_id", lib->GetUniqueId(&id), NULL));
    return PyBytes_FromStringAndSize(id.bytes, sizeof id.bytes);
}

static PyObject *nccl_probe(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    void *token = pd_host_release();
    pd_status status = pd_nccl_probe("nccl_probe");
    pd_host_acquire(token);
    PD_PY_TRY(status);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"nccl_version", nccl_version, METH_NOARGS,
     "nccl_version() -> int\n\nThe version of NCCL's library, such as 22809 for 2.28.9; 0: there is none. Opens the "
     "library if necessary."},
    {"nccl_where", nccl_where, METH_NOARGS, "nccl_where() -> str\n\nThe file of NCCL's library, or ''."},
    {"nccl_check", nccl_check, METH_O,
     "nccl_check(op)\n\nRaises RuntimeError in the name of `op` where there is no NCCL; the message lists what was "
     "tried."},
    {"nccl_unique_id", nccl_unique_id, METH_NOARGS,
     "nccl_unique_id() -> bytes\n\nNCCL's unique id, 128 bytes, with which ranks find each other. Needs no device."},
    {"nccl_probe", nccl_probe, METH_NOARGS,
     "nccl_probe()\n\nMakes a communicator of one rank on the current device; an error has NCCL's own message."},
    {0},
};

int pd_py_add_nccl(PyObject *module) { return PyModule_AddFunctions(module, functions); }
