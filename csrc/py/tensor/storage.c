/* Storages: for files that store them apart from views, and for other processes. */
#include "py/py.h"

#include <fcntl.h>
#include <unistd.h>

static PyObject *storage_bytes(PyObject *module, PyObject *object) {
    (void)module;
    pd_tensor *t = pd_py_expect_tensor(object, "storage_bytes", "tensor"), *out;
    if (!t) return NULL;
    if (pd_is_recording()) pd_record_refuse("it reaches for a tensor's storage");
    PD_PY_TRY(pd_tensor_alias(t, false, &out));
    out->dtype = PD_U8;
    out->ndim = 1;
    out->offset = 0;
    out->numel = out->size[0] = (int64_t)t->storage->bytes;
    out->stride[0] = 1;
    return pd_py_wrap_new(out);
}

static PyObject *storage_refs(PyObject *module, PyObject *object) {
    pd_tensor *t = pd_py_expect_tensor(object, "storage_refs", "tensor");
    (void)module;
    return t ? PyLong_FromLongLong(atomic_load_explicit(&t->storage->refs, memory_order_relaxed)) : NULL;
}

/* storage_view(tensor, dtype, size, stride, offset): any view of the tensor's storage, for pickles and deep copies. */
static PyObject *storage_view(PyObject *module, PyObject *args) {
    PyObject *object, *type, *sizes, *strides;
    long long offset;
    pd_ints size, stride;
    int64_t dtype, numel, last, step;
    pd_tensor *t, *out;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOL:storage_view", &object, &type, &sizes, &strides, &offset)) return NULL;
    if (!(t = pd_py_expect_tensor(object, "storage_view", "tensor")) ||
        !pd_py_dtype(type, "storage_view", "dtype", &dtype) || !pd_py_ints(sizes, "storage_view", "size", &size) ||
        !pd_py_ints(strides, "storage_view", "stride", &stride))
        return NULL;
    if (pd_is_recording()) pd_record_refuse("it reaches for a tensor's storage");
    PD_PY_TRY(pd_shape_numel("storage_view", (int)size.n, size.v, &numel));
    bool fits = dtype != PD_NO_DTYPE && size.n == stride.n && offset >= 0;
    int64_t bytes = fits ? (int64_t)pd_dtype_size((pd_dtype)dtype) : 1, count = (int64_t)t->storage->bytes / bytes;
    last = offset;
    for (int d = 0; fits && d < size.n && numel; d++)
        fits = stride.v[d] >= 0 && !__builtin_mul_overflow(size.v[d] - 1, stride.v[d], &step) &&
               !__builtin_add_overflow(last, step, &last);
    if (!fits || (numel && last >= count) || (uintptr_t)t->storage->data % (uintptr_t)bytes)
        return PyErr_Format(PyExc_ValueError,
                            "storage_view: got size %R, stride %R and offset %lld (expected a view within the "
                            "storage's %zu bytes of %R)",
                            sizes, strides, offset, t->storage->bytes, type);
    PD_PY_TRY(pd_tensor_alias(t, false, &out));
    out->dtype = (int8_t)dtype;
    out->ndim = (int8_t)size.n;
    out->offset = offset;
    out->numel = numel;
    memcpy(out->size, size.v, sizeof *size.v * (size_t)size.n);
    memcpy(out->stride, stride.v, sizeof *stride.v * (size_t)size.n);
    return pd_py_wrap_new(out);
}

PyObject *pd_py_share_memory(PyObject *self, PyObject *unused) {
    pd_tensor *t = pd_py_tensor(self);
    (void)unused;
    if (t->storage->read_only) {
        PD_PY_TRY(pd_fail(
            PD_E_VALUE,
            "share_memory_: the tensor is read-only memory of another library (expected writable memory: clone())"));
    }
    if (pd_is_recording()) pd_record_refuse("share_memory_() moves a tensor's memory");
    PD_PY_TRY(pd_storage_share(t->storage));
    return Py_NewRef(self);
}

PyObject *pd_py_is_shared(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(pd_py_tensor(self)->storage->shared >= 0);
}

static PyObject *storage_may_move(PyObject *module, PyObject *args) {
    PyObject *object;
    const char *op;
    pd_tensor *t;
    (void)module;
    if (!PyArg_ParseTuple(args, "Os:storage_may_move", &object, &op)) return NULL;
    if (!(t = pd_py_expect_tensor(object, op, "self"))) return NULL;
    PD_PY_TRY(pd_storage_may_move(op, t->storage));
    Py_RETURN_NONE;
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
        return PyErr_Format(PyExc_ValueError,
                            "shared_open: got %lld bytes and dtype %R (expected at least 0 bytes and a dtype)", bytes,
                            type);
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

static PyObject *make_blank(PyObject *module, PyObject *o) {
    const pd_tensor *t = pd_py_expect_tensor(o, "make_blank", "tensor");
    (void)module;
    if (!t) return NULL;
    t->storage->blank = t->storage->device != &pd_device_meta;
    Py_RETURN_NONE;
}

static PyObject *is_blank(PyObject *module, PyObject *o) {
    const pd_tensor *t = pd_py_expect_tensor(o, "is_blank", "tensor");
    (void)module;
    return t ? PyBool_FromLong(t->numel && pd_storage_is_blank(t->storage)) : NULL;
}

static PyMethodDef functions[] = {
    {"make_blank", make_blank, METH_O,
     "make_blank(tensor)\n\nSays that the elements of a new tensor mean nothing until one is written."},
    {"is_blank", is_blank, METH_O,
     "is_blank(tensor)\n\nWhether the tensor has elements, and nothing was written to its memory since make_blank."},
    {"storage_view", storage_view, METH_VARARGS,
     "storage_view(tensor, dtype, size, stride, offset)\n\nA tensor with this dtype, size, stride and offset (in "
     "elements) over the storage of `tensor`. Errors: ValueError\nwhere the view does not fit into the storage."},
    {"storage_refs", storage_refs, METH_O,
     "storage_refs(tensor)\n\nHow many tensors, this one among them, lie in its storage."},
    {"storage_bytes", storage_bytes, METH_O,
     "storage_bytes(tensor)\n\nThe storage that the tensor is a view of: a 1-d uint8 tensor over the same memory."},
    {"storage_may_move", storage_may_move, METH_VARARGS,
     "storage_may_move(tensor, op)\n\nRaises RuntimeError, in the name of op, while arrays, DLPack capsules or "
     "collectives use the tensor's memory."},
    {"shared_fd", shared_fd, METH_O,
     "shared_fd(tensor)\n\nThe descriptor by which other processes map the tensor's storage; -1 where they cannot. The "
     "storage owns it."},
    {"shared_open", shared_open, METH_VARARGS,
     "shared_open(fd, bytes, dtype)\n\nA 1-d tensor over a storage that another process has shared."},
    {0}};

int pd_py_add_storage(PyObject *module) { return PyModule_AddFunctions(module, functions); }
