/* Joins an MPI job: our rank there, and a broadcast of a few bytes by which the ranks find each other. */
#include "py/py.h"

#include <string.h>

#include "base/host.h"
#include "comm/mesh/mpi.h"

#define BYTES 256 /* of a broadcast */

static PyObject *mpi_open(PyObject *module, PyObject *path) {
    int rank, size;
    (void)module;
    const char *name = PyUnicode_AsUTF8(path);
    if (!name) return NULL;
    void *token = pd_host_release();
    pd_status status = pd_mpi_open(name, &rank, &size);
    pd_host_acquire(token);
    return status ? pd_py_raise(status) : Py_BuildValue("iis", rank, size, pd_mpi_name());
}

static PyObject *mpi_broadcast(PyObject *module, PyObject *bytes) {
    char data[BYTES] = {0}, *from;
    Py_ssize_t n;
    (void)module;
    if (PyBytes_AsStringAndSize(bytes, &from, &n)) return NULL;
    if (n >= BYTES)
        return PyErr_Format(PyExc_ValueError, "mpi_broadcast: text has %zd bytes (expected less than %d)", n, BYTES);
    memcpy(data, from, (size_t)n);
    void *token = pd_host_release();
    pd_status status = pd_mpi_broadcast(data, sizeof data);
    pd_host_acquire(token);
    return status ? pd_py_raise(status) : PyBytes_FromString(data);
}

static PyMethodDef functions[] = {{"mpi_open", mpi_open, METH_O,
                                   "mpi_open(path) -> (rank, size, name)\n\nOpens the library at path, which calls an "
                                   "MPI, and joins the job that mpirun started."},
                                  {"mpi_broadcast", mpi_broadcast, METH_O,
                                   "mpi_broadcast(text) -> bytes\n\nThe text of rank 0, up to its first zero byte."},
                                  {0}};

int pd_py_add_mpi(PyObject *module) { return PyModule_AddFunctions(module, functions); }
