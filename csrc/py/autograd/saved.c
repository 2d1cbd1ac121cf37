/* Saved-tensor hooks: a pair of Python functions for each thread, (pack, unpack). */
#include "autograd/autocast.h"
#include "py/py.h"

static _Thread_local PyObject *hooks; /* [strong] the pair, or NULL */

/* ctx: (unpack, the result of pack) */
static pd_status call_unpack(void *ctx, void *out) {
    PyGILState_STATE gil = PyGILState_Ensure();
    bool mode = pd_grad_mode;
    /* Autocast is off in backward; a context that ends inside the hook would turn it on. */
    pd_autocast_state autocast = pd_autocast;
    const pd_device *was = pd_device_here;
    pd_status status = PD_OK;
    pd_device_here = &pd_device_cpu; /* Python's code begins on the host, wherever the node runs */
    pd_py_drain(); /* drops what earlier nodes held, since a whole backward may run without the GIL */
    PyObject *t = PyObject_CallOneArg(PyTuple_GET_ITEM((PyObject *)ctx, 0), PyTuple_GET_ITEM((PyObject *)ctx, 1));
    pd_device_here = was;
    pd_grad_mode = mode;
    pd_autocast = autocast;
    if (t && !pd_py_is_tensor(t)) {
        PyErr_Format(PyExc_TypeError, "saved_tensors_hooks: the unpack hook returned %.100s (expected Tensor)",
                     Py_TYPE(t)->tp_name);
        Py_CLEAR(t);
    }
    if (t) pd_tensor_retain(*(pd_tensor **)out = pd_py_tensor(t));
    else status = pd_py_caught();
    Py_XDECREF(t);
    PyGILState_Release(gil);
    return status;
}

static void set(PyObject *pair); /* owns the reference from now on */

static pd_status call_pack(pd_tensor *t, pd_closure *out) {
    PyGILState_STATE gil = PyGILState_Ensure();
    bool mode = pd_grad_mode;
    const pd_device *was = pd_device_here;
    PyObject *pair = Py_NewRef(hooks), *given = pd_py_wrap(t), *packed = NULL, *ctx = NULL;
    pd_grad_mode = false; /* what the hook computes is not recorded */
    pd_device_here = &pd_device_cpu;
    set(NULL);
    if (given) packed = PyObject_CallOneArg(PyTuple_GET_ITEM(pair, 0), given);
    set(pair);
    pd_device_here = was;
    pd_grad_mode = mode;
    if (packed) ctx = PyTuple_Pack(2, PyTuple_GET_ITEM(pair, 1), packed);
    if (ctx) *out = (pd_closure){.call = call_unpack, .drop = pd_py_drop, .ctx = ctx};
    pd_status status = ctx ? PD_OK : pd_py_caught();
    Py_XDECREF(packed);
    Py_XDECREF(given);
    PyGILState_Release(gil);
    return status;
}

static void set(PyObject *pair) {
    if (pd_is_recording()) pd_record_refuse("it has hooks for saved tensors");
    Py_XSETREF(hooks, pair);
    if (pair) pd_saved_hooked = true;
    pd_saved_pack = pair ? call_pack : NULL;
}

static PyObject *current(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return Py_NewRef(hooks ? hooks : Py_None);
}

static PyObject *set_hooks(PyObject *module, PyObject *pair) {
    bool none = pair == Py_None;
    if (!none && !(PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 && PyCallable_Check(PyTuple_GET_ITEM(pair, 0)) &&
                   PyCallable_Check(PyTuple_GET_ITEM(pair, 1))))
        return PyErr_Format(PyExc_TypeError, "saved_tensors_hooks: got %R (expected two functions, (pack, unpack))",
                            pair);
    PyObject *was = current(module, NULL);
    set(none ? NULL : Py_NewRef(pair));
    return was;
}

static PyObject *backward_now(PyObject *module, PyObject *unused) {
    bool some;
    (void)module, (void)unused;
    unsigned long long id = pd_engine_current(&some);
    return Py_BuildValue("(KN)", id, PyBool_FromLong(some));
}

static PyMethodDef functions[] = {
    {"_saved_hooks", current, METH_NOARGS,
     "_saved_hooks() -> (pack, unpack) | None, of this thread; see autograd.graph.saved_tensors_hooks."},
    {"_set_saved_hooks", set_hooks, METH_O,
     "_set_saved_hooks(pair): sets (pack, unpack), or None, for this thread; returns the previous pair."},
    {"_backward_now", backward_now, METH_NOARGS,
     "_backward_now() -> (number, some)\n\nThe number of the backward that this thread runs (0: none), and whether it "
     "computes gradients of some inputs only."},
    {0},
};

int pd_py_add_saved(PyObject *module) { return PyModule_AddFunctions(module, functions); }
