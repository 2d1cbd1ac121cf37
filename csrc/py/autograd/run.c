/* Fed runs of backward (autograd/engine.h), for tests; nothing else opens one yet. */
#include "autograd/engine.h"
#include "base/mem.h"
#include "py/py.h"

static const char *const NAME = "pydist._C.run";

typedef struct held {
    pd_run run;
    pd_backward b;
    PyObject *tensors, *grads, *sink; /* [strong] */
    pd_tensor **roots, **root_grads;
    bool open;
} held;

static pd_status call_sink(void *ctx, pd_tensor *leaf, pd_tensor *grad) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *l = pd_py_wrap(leaf), *g = l ? pd_py_wrap(grad) : NULL,
             *result = g ? PyObject_CallFunctionObjArgs(ctx, l, g, NULL) : NULL;
    pd_status status = result ? PD_OK : pd_py_caught();
    Py_XDECREF(l);
    Py_XDECREF(g);
    Py_XDECREF(result);
    PyGILState_Release(gil);
    return status;
}

static pd_status end(held *h, pd_status status) {
    if (h->open) status = pd_run_close(&h->run, status);
    h->open = false;
    return status;
}

static void free_held(held *h) {
    end(h, PD_E_RUNTIME);
    pd_free(h->roots);
    pd_free(h->root_grads);
    Py_XDECREF(h->tensors);
    Py_XDECREF(h->grads);
    Py_XDECREF(h->sink);
    pd_free(h);
}

static void drop(PyObject *capsule) { free_held(PyCapsule_GetPointer(capsule, NAME)); }

static PyObject *run_open(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tensors", "grads", "sink", "retain_graph", "fed", NULL};
    PyObject *tensors, *grads, *sink = Py_None;
    int retain = 0, fed = 1;
    Py_ssize_t n, ngrads;
    held *h;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|Opp:_run_open", names, &tensors, &grads, &sink, &retain, &fed))
        return NULL;
    if (pd_is_recording()) pd_record_refuse("it opens a backward that sleeps");
    PD_PY_TRY(pd_calloc(sizeof *h, "run", &h));
    if (!pd_py_tensors(tensors, "run", "tensors", &h->tensors, &h->roots, &n) ||
        !pd_py_tensors(grads, "run", "grads", &h->grads, &h->root_grads, &ngrads)) {
        free_held(h);
        return NULL;
    }
    h->sink = Py_NewRef(sink);
    h->b = (pd_backward){.roots = h->roots, .grads = h->root_grads, .nroots = (int)n};
    h->b.retain_graph = retain, h->b.fed = fed;
    if (sink != Py_None) h->b.sink = call_sink, h->b.sink_ctx = sink;
    pd_status status =
        n == ngrads
            ? pd_run_open(&h->run, &h->b)
            : pd_fail(PD_E_VALUE, "run: got %zd tensors and %zd gradients (expected one gradient for each tensor)", n,
                      ngrads);
    h->open = !status;
    PyObject *capsule = status ? pd_py_raise(status) : PyCapsule_New(h, NAME, drop);
    if (!capsule) free_held(h);
    return capsule;
}

static held *open_run(PyObject *capsule) {
    held *h = PyCapsule_GetPointer(capsule, NAME);
    if (!h || h->open) return h;
    PyErr_SetString(PyExc_RuntimeError, "run: the run is closed (expected an open run)");
    return NULL;
}

/* [borrowed] the node that made the tensor; *index: which output it is. */
static pd_node *node_of(PyObject *o, int *index) {
    pd_tensor *t = pd_py_expect_tensor(o, "run", "tensor");
    pd_node *node = NULL;
    pd_status status = t ? pd_tensor_history(t, &node, index) : PD_OK;
    if (status) pd_py_raise(status);
    else if (t && !node)
        PyErr_SetString(PyExc_RuntimeError, "run: the tensor is a leaf (expected one that an op made)");
    return status ? NULL : node;
}

static PyObject *run_discover(PyObject *module, PyObject *args) {
    PyObject *capsule, *tensor;
    held *h;
    pd_node *node;
    int index;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:_run_discover", &capsule, &tensor) || !(h = open_run(capsule)) ||
        !(node = node_of(tensor, &index)))
        return NULL;
    PD_PY_TRY(pd_run_discover(&h->run, node));
    Py_RETURN_NONE;
}

static PyObject *run_feed(PyObject *module, PyObject *args) {
    PyObject *capsule, *tensor, *grad;
    held *h;
    pd_node *node;
    pd_tensor *t, *g = NULL;
    int index;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:_run_feed", &capsule, &tensor, &grad) || !(h = open_run(capsule)) ||
        !(node = node_of(tensor, &index)) || (grad != Py_None && !(g = pd_py_expect_tensor(grad, "run", "grad"))))
        return NULL;
    t = pd_py_tensor(tensor);
    if (g && !(g->dtype == t->dtype && g->storage->device == t->storage->device && pd_tensor_same_shape(g, t)))
        return pd_py_raise(pd_fail(
            PD_E_SHAPE, "run: the gradient has shape %s, the tensor %s (expected the same shape, dtype and device)",
            pd_tensor_shape(g), pd_tensor_shape(t)));
    PD_PY_TRY(pd_run_feed(&h->run, node, index, g));
    Py_RETURN_NONE;
}

static PyObject *run_turn(PyObject *module, PyObject *capsule) {
    held *h = open_run(capsule);
    (void)module;
    if (!h) return NULL;
    PyObject *kept = Py_NewRef(capsule); /* hooks may drop the caller's reference */
    pd_status status = pd_run_turn(&h->run);
    bool done = !status && pd_run_is_done(&h->run);
    Py_DECREF(kept);
    return status ? pd_py_raise(status) : PyBool_FromLong(done);
}

static PyObject *run_close(PyObject *module, PyObject *args) {
    PyObject *capsule;
    int early = 0;
    held *h;
    (void)module;
    if (!PyArg_ParseTuple(args, "O|p:_run_close", &capsule, &early) || !(h = open_run(capsule))) return NULL;
    if (h->run.busy)
        return PyErr_Format(PyExc_RuntimeError, "run: a thread is in this run (expected to be closed after its turn)");
    pd_status status = end(h, early ? PD_E_RUNTIME : PD_OK);
    if (status && !early) return pd_py_raise(status);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_run_open", (PyCFunction)(void (*)(void))run_open, METH_VARARGS | METH_KEYWORDS,
     "_run_open(tensors, grads, sink=None, retain_graph=False, fed=True) -> run: starts a backward that goes on in "
     "turns; sink(leaf, grad) is called in the place of adding to .grad."},
    {"_run_discover", run_discover, METH_VARARGS,
     "_run_discover(run, tensor): announces the node that made the tensor; _run_feed will give a gradient for each "
     "output of that node."},
    {"_run_feed", run_feed, METH_VARARGS,
     "_run_feed(run, tensor, grad): gives the run the tensor's gradient from outside (None: there is none)."},
    {"_run_turn", run_turn, METH_O,
     "_run_turn(run) -> bool: runs all nodes that are ready; True when the run is done."},
    {"_run_close", run_close, METH_VARARGS,
     "_run_close(run, early=False): closes the run; raises where it is not done, unless early."},
    {0},
};

int pd_py_add_run(PyObject *module) { return PyModule_AddFunctions(module, functions); }
