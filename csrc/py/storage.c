/* The bytes below a tensor: for files that keep storages and views apart, and for other processes. */
#include "py/py.h"

#include <fcntl.h>
#include <unistd.h>

static PyObject *storage_bytes(PyObject *module, PyObject *object) {
    (void)module;
    pd_tensor *t = pd_py_expect_tensor(object, "storage_bytes", "tensor"), *out;
    if (!t) return NULL;
    PD_PY_TRY(pd_tensor_alias(t, false, &out));
    out->dtype = PD_U8;
    out->ndim = 1;
    out->offset = 0;
    out->numel = out->size[0] = (int64_t)t->storage->bytes;
    out->stride[0] = 1;
    return pd_py_wrap_new(out);
}

PyObject *pd_py_share_memory(PyObject *self, PyObject *unused) {
    pd_tensor *t = pd_py_tensor(self);
    (void)unused;
    if (t->storage->read_only) {
        PD_PY_TRY(pd_fail(PD_E_VALUE, "share_memory_: memory lent for reading (expected one that can be written)"));
    }
    PD_PY_TRY(pd_storage_share(t->storage));
    return Py_NewRef(self);
}

PyObject *pd_py_is_shared(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(pd_py_tensor(self)->storage->shared >= 0);
}

static PyObject *shared_fd(PyObject *module, PyObject *object) {
    (void)module;
    pd_tensor *t = pd_py_expect_tensor(object, "shared_fd", "tensor");
    return t ? PyLong_FromLong(t->storage->shared) : NULL;
}

static PyObject *shared_open(PyObject *module, PyObject *args) {
    int fd;
    long long bytes;
    int64_t dtype;
    PyObject *type;
    pd_tensor *t;
    (void)module;
    if (!PyArg_ParseTuple(args, "iLO:shared_open", &fd, &bytes, &type)) return NULL;
    if (!pd_py_dtype(type, "shared_open", "dtype", &dtype)) return NULL;
    if (bytes < 0 || dtype == PD_NO_DTYPE)
        return PyErr_Format(PyExc_ValueError, "shared_open: %lld bytes of %R", bytes, type);
    if ((fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    pd_status status = pd_tensor_shell(&t);
    if (status) close(fd);
    else if ((status = pd_storage_open(fd, (size_t)bytes, &t->storage))) pd_tensor_release(t);
    PD_PY_TRY(status);
    t->dtype = (int8_t)dtype;
    t->ndim = 1;
    t->numel = t->size[0] = bytes / (int64_t)pd_dtype_size((pd_dtype)dtype);
    t->stride[0] = 1;
    return pd_py_wrap_new(t);
}

static PyMethodDef functions[] = {
    {"storage_bytes", storage_bytes, METH_O,
     "storage_bytes(tensor)\n\nThe storage that the tensor is a view of: a 1-d uint8 tensor over the same memory."},
    {"shared_fd", shared_fd, METH_O,
     "shared_fd(tensor)\n\nThe descriptor, the storage's, by which other processes map it; -1 where they cannot."},
    {"shared_open", shared_open, METH_VARARGS,
     "shared_open(fd, bytes, dtype)\n\nA 1-d tensor over the storage that another process has shared."},
    {0}};

int pd_py_add_storage(PyObject *module) { return PyModule_AddFunctions(module, functions); }
