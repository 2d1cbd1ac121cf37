/* The bytes below a tensor, for files that keep storages and views apart. */
#include "py/py.h"

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

static PyMethodDef functions[] = {
    {"storage_bytes", storage_bytes, METH_O,
     "storage_bytes(tensor)\n\nThe storage that the tensor is a view of: a 1-d uint8 tensor over the same memory."},
    {0}};

int pd_py_add_storage(PyObject *module) { return PyModule_AddFunctions(module, functions); }
