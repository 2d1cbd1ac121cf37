/* Selective checkpoints: a Python function that hears of the ops of this thread, keeps the results of some, and gives
   them back when the ops are called again (utils/_selective.py). */
#include "autograd/apply.h"
#include "autograd/autocast.h"
#include "py/py.h"

static _Thread_local PyObject *chooser; /* [strong] or NULL */

static void set(PyObject *function); /* owns the reference from now on */

/* [new] a tuple; missing tensors are None. */
static PyObject *tuple_of(pd_tensor *const *t, int n) {
    PyObject *all = PyTuple_New(n);
    for (int i = 0; i < n && all; i++) {
        PyObject *one = pd_py_wrap(t[i]);
        if (one) PyTuple_SET_ITEM(all, i, one);
        else Py_CLEAR(all);
    }
    return all;
}

static bool is_alike(const pd_tensor *a, const pd_tensor *b) {
    if (a->dtype != b->dtype || a->storage->device != pd_device_here || !pd_tensor_same_shape(a, b)) return false;
    for (int d = 0; d < a->ndim && a->numel; d++)
        if (a->size[d] > 1 && a->stride[d] != b->stride[d]) return false;
    return true;
}

/* Makes the results views of what was kept. */
static pd_status take(pd_call *c, PyObject *kept) {
    if (!PyTuple_Check(kept) || PyTuple_GET_SIZE(kept) != c->nout)
        return pd_fail(PD_E_TYPE, "%s: a selective checkpoint has other results (expected a tuple of %d)", c->def->name,
                       c->nout);
    for (int pass = 0; pass < 2; pass++) /* the first pass checks */
        for (int i = 0; i < c->nout; i++) {
            PyObject *o = PyTuple_GET_ITEM(kept, i);
            pd_tensor *to = c->out[i], *from = pd_py_is_tensor(o) ? pd_py_tensor(o) : NULL;
            if (pass) {
                pd_storage_retain(to->storage = from->storage);
                to->offset = from->offset;
            } else if (!from || !is_alike(from, to))
                return pd_fail(PD_E_RUNTIME,
                               "%s: a selective checkpoint kept a result of shape %s, and when the function runs again "
                               "it has shape %s (expected the same ops in the same order)",
                               c->def->name, from ? pd_tensor_shape(from) : "?", pd_tensor_shape(to));
        }
    return PD_OK;
}

static pd_status ask(pd_call *c, bool *have) {
    PyGILState_STATE gil = PyGILState_Ensure();
    const bool mode = pd_grad_mode;
    const pd_autocast_state autocast = pd_autocast;
    const pd_device *was = pd_device_here;
    PyObject *function = Py_NewRef(chooser), *in = tuple_of(c->in, c->nin), *kept = NULL;
    PyObject *out = !in ? NULL : have ? Py_NewRef(Py_None) : tuple_of(c->out, c->nout);
    pd_grad_mode = false;
    pd_device_here = &pd_device_cpu;
    set(NULL); /* nobody hears of what the function itself computes */
    if (out) kept = PyObject_CallFunction(function, "siOO", c->def->name, c->def->op->visible, in, out);
    set(function);
    pd_device_here = was;
    pd_grad_mode = mode;
    pd_autocast = autocast;
    pd_status status = kept ? PD_OK : pd_py_caught();
    if (kept && have && kept != Py_None) {
        status = take(c, kept);
        *have = !status;
    }
    Py_XDECREF(kept);
    Py_XDECREF(out);
    Py_XDECREF(in);
    PyGILState_Release(gil);
    return status;
}

static void set(PyObject *function) {
    if (pd_is_recording()) pd_record_refuse("it has a selective checkpoint");
    Py_XSETREF(chooser, function);
    pd_selecting = function ? ask : NULL;
}

static PyObject *set_chooser(PyObject *module, PyObject *function) {
    (void)module;
    if (function != Py_None && !PyCallable_Check(function))
        return PyErr_Format(PyExc_TypeError, "_set_selecting: got %R (expected a function or None)", function);
    PyObject *was = Py_NewRef(chooser ? chooser : Py_None);
    set(function == Py_None ? NULL : Py_NewRef(function));
    return was;
}

static PyMethodDef functions[] = {
    {"_set_selecting", set_chooser, METH_O,
     "_set_selecting(function): for this thread; returns the function before, or None.\n\n"
     "function(op, visible, inputs, None) is called before an op's kernel runs, and may return the results; "
     "function(op, visible, inputs, results) afterwards. visible: how many results a caller sees (0: all)."},
    {0},
};

int pd_py_add_selected(PyObject *module) { return PyModule_AddFunctions(module, functions); }
