/* Fed runs of backward (autograd/engine.h), and the nodes where a graph leaves the process and comes in again
   (autograd/remote.h): what pydist/distributed/autograd is made of. */
#include "autograd/autocast.h"
#include "autograd/engine.h"
#include "autograd/remote.h"
#include "base/mem.h"
#include "py/py.h"

static const char *const NAME = "pydist._C.run";

typedef struct held {
    pd_run run;
    pd_backward b;
    PyObject *tensors, *grads, *sink; /* [strong] */
    pd_tensor **roots, **root_grads, **inputs, **out; /* out: of a split run, each [strong] */
    size_t shown; /* nodes of the run that run_reached has seen */
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
    for (int i = 0; h->out && i < h->b.ninputs; i++) pd_tensor_release(h->out[i]);
    pd_free(h->out);
    pd_free(h->inputs);
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

static PyObject *split_backward(PyObject *module, PyObject *args) {
    PyObject *tensors, *grads, *inputs, *seq = NULL;
    Py_ssize_t n, ngrads, nin = 0;
    held *h;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:_split_backward", &tensors, &grads, &inputs)) return NULL;
    if (pd_is_recording()) pd_record_refuse("it splits a backward");
    PD_PY_TRY(pd_calloc(sizeof *h, "run", &h));
    if (!pd_py_tensors(tensors, "backward", "tensors", &h->tensors, &h->roots, &n) ||
        !pd_py_tensors(grads, "backward", "grads", &h->grads, &h->root_grads, &ngrads) ||
        !pd_py_tensors(inputs, "backward", "inputs", &h->sink, &h->inputs, &nin)) {
        free_held(h);
        return NULL;
    }
    h->b = (pd_backward){.roots = h->roots, .grads = h->root_grads, .nroots = (int)n, .inputs = h->inputs,
                         .ninputs = (int)nin, .split = true};
    pd_status status = pd_calloc(sizeof *h->out * (size_t)(nin + 1), "run", &h->out);
    h->b.out = h->out;
    if (!status && n != ngrads)
        status =
            pd_fail(PD_E_VALUE, "backward: got %zd tensors and %zd gradients (expected one gradient for each tensor)",
                    n, ngrads);
    PD_THEN(pd_run_open(&h->run, &h->b));
    h->open = !status;
    PD_THEN(pd_run_turn(&h->run));
    PyObject *capsule = status ? pd_py_raise(status) : PyCapsule_New(h, NAME, drop);
    if (!capsule) {
        free_held(h);
        return NULL;
    }
    for (Py_ssize_t i = 0; (seq || (seq = PyTuple_New(nin))) && i < nin; i++) {
        PyTuple_SET_ITEM(seq, i, h->out[i] ? pd_py_wrap(h->out[i]) : Py_NewRef(Py_None));
        pd_tensor_release(h->out[i]);
        h->out[i] = NULL;
    }
    return Py_BuildValue("NN", capsule, seq);
}

static held *open_run(PyObject *capsule) {
    held *h = PyCapsule_GetPointer(capsule, NAME);
    if (!h || h->open) return h;
    PyErr_SetString(PyExc_RuntimeError, "run: the run is closed (expected an open run)");
    return NULL;
}

static PyObject *split_finish(PyObject *module, PyObject *capsule) {
    held *h = open_run(capsule);
    (void)module;
    if (!h) return NULL;
    pd_status status = pd_run_second(&h->run);
    PD_THEN(pd_run_turn(&h->run));
    if ((status = end(h, status))) return pd_py_raise(status);
    Py_RETURN_NONE;
}

/* [borrowed] a send node, of which *index stays as it is, or the node that made a tensor; *index: which output it
   is. */
static pd_node *node_of(PyObject *o, int *index) {
    pd_node *node = pd_py_node_of(o);
    if (node && pd_node_is_send(node)) return node;
    pd_tensor *t = pd_py_expect_tensor(o, "run", "tensor");
    node = NULL;
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

/* A gradient is like the tensor that it belongs to, of which a send node has kept what its edge says. */
static pd_status fits(PyObject *tensor, const pd_node *node, int index, const pd_tensor *g) {
    const pd_tensor *t = tensor ? pd_py_tensor(tensor) : NULL;
    const pd_edge *e = t ? NULL : &node->edges[index];
    int dtype = t ? t->dtype : e->dtype, device = t ? t->storage->device->index : e->device;
    int ndim = t ? t->ndim : e->ndim;
    const int64_t *size = t ? t->size : e->size;
    if (g->dtype == dtype && g->storage->device->index == device && pd_shape_equal(g->ndim, g->size, ndim, size))
        return PD_OK;
    return pd_fail(PD_E_SHAPE,
                   "run: the gradient is %s of shape %s, the tensor %s of shape %s (expected the same shape, dtype and "
                   "device)",
                   pd_dtype_name((pd_dtype)g->dtype), pd_tensor_shape(g), pd_dtype_name((pd_dtype)dtype),
                   pd_shape_text(ndim, size));
}

static PyObject *run_feed(PyObject *module, PyObject *args) {
    PyObject *capsule, *tensor, *grad;
    held *h;
    pd_node *node;
    pd_tensor *g = NULL;
    int index = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO|i:_run_feed", &capsule, &tensor, &grad, &index) || !(h = open_run(capsule)) ||
        !(node = node_of(tensor, &index)) || (grad != Py_None && !(g = pd_py_expect_tensor(grad, "run", "grad"))))
        return NULL;
    PD_PY_TRY(g && index >= 0 && index < node->nout ? fits(pd_py_is_tensor(tensor) ? tensor : NULL, node, index, g)
                                                    : PD_OK);
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

/* ---- the nodes at the border ------------------------------------------------------------------------------------- */

/* A list, or None. */
static PyObject *functions_behind(const pd_node *node) {
    const pd_node *found[64];
    int n = pd_node_leads_to(node, found, 64);
    PyObject *list = n < 0 ? Py_NewRef(Py_None) : PyList_New(n);
    for (int i = 0; list && i < n; i++) PyList_SET_ITEM(list, i, Py_NewRef(pd_node_delivers(found[i])->ctx));
    return list;
}

static PyObject *rpc_send(PyObject *module, PyObject *tensors) {
    PyObject *seq;
    pd_tensor **t;
    Py_ssize_t n;
    pd_node *node;
    (void)module;
    if (!pd_py_tensors(tensors, "send", "tensors", &seq, &t, &n)) return NULL;
    pd_status status = pd_node_send(t, (int)n, &node);
    pd_free(t);
    Py_DECREF(seq);
    if (status) return pd_py_raise(status);
    PyObject *o = pd_py_node(node), *behind = o ? functions_behind(node) : NULL;
    pd_node_release(node);
    if (behind) return Py_BuildValue("NN", o, behind);
    Py_XDECREF(o);
    return NULL;
}

/* Calls the function of a recv node with the gradients that have come. */
static bool deliver_all(PyObject *fn, const pd_vjp *v) {
    int n = v->node->nout;
    PyObject *args = PyTuple_New(n), *result = NULL;
    bool ok = args;
    for (int i = 0; ok && i < n; i++) {
        pd_tensor *own = NULL;
        pd_status status = v->g[i] ? pd_tensor_apart(v->g[i], false, &own) : PD_OK;
        PyObject *g = status ? pd_py_raise(status) : own ? pd_py_wrap_new(own) : Py_NewRef(Py_None);
        if ((ok = g)) PyTuple_SET_ITEM(args, i, g);
    }
    if (ok) ok = (result = PyObject_CallObject(fn, args));
    Py_XDECREF(result);
    Py_XDECREF(args);
    return ok;
}

static pd_status deliver(void *fn, void *vjp) {
    PyGILState_STATE gil = PyGILState_Ensure();
    bool mode = pd_grad_mode;
    pd_autocast_state autocast = pd_autocast;
    pd_status status = deliver_all(fn, vjp) ? PD_OK : pd_py_caught();
    pd_grad_mode = mode;
    pd_autocast = autocast;
    PyGILState_Release(gil);
    return status;
}

static PyObject *rpc_recv(PyObject *module, PyObject *args) {
    PyObject *tensors, *fn, *seq;
    pd_tensor **t;
    Py_ssize_t n;
    pd_node *node;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:_rpc_recv", &tensors, &fn) ||
        !pd_py_tensors(tensors, "recv", "tensors", &seq, &t, &n))
        return NULL;
    pd_status status = pd_node_recv(t, (int)n, pd_py_closure(fn, deliver), &node);
    pd_free(t);
    Py_DECREF(seq);
    if (status) return pd_py_raise(status);
    PyObject *o = pd_py_node(node);
    pd_node_release(node);
    return o;
}

static PyObject *run_reached(PyObject *module, PyObject *capsule) {
    held *h = open_run(capsule);
    PyObject *found = h ? PyList_New(0) : NULL;
    (void)module;
    for (; found && h->shown < h->run.count; h->shown++) {
        pd_tensor *leaf;
        const pd_node *n = pd_run_reached(&h->run, h->shown, &leaf);
        const pd_closure *c = n ? pd_node_delivers(n) : NULL;
        if (c && PyList_Append(found, c->ctx)) Py_CLEAR(found);
    }
    return found;
}

static const char *owner_of(const pd_tensor *t) {
    const pd_grad_owner *owner = t->meta ? t->meta->destination.owner : NULL;
    return owner ? owner->name : NULL;
}

static PyObject *run_owned(PyObject *module, PyObject *capsule) {
    held *h = open_run(capsule);
    PyObject *found = h ? PyList_New(0) : NULL;
    (void)module;
    for (size_t i = 0; found && i < h->run.count; i++) {
        pd_tensor *leaf;
        if (pd_run_reached(&h->run, i, &leaf) || !owner_of(leaf)) continue;
        PyObject *o = pd_py_wrap(leaf);
        if (!o || PyList_Append(found, o)) Py_CLEAR(found);
        Py_XDECREF(o);
    }
    return found;
}

static PyObject *grad_owner(PyObject *module, PyObject *tensor) {
    (void)module;
    if (!pd_py_expect_tensor(tensor, "grad_owner", "tensor")) return NULL;
    const char *name = owner_of(pd_py_tensor(tensor));
    return name ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"_rpc_send", rpc_send, METH_O,
     "_rpc_send(tensors) -> (node, list): the node of tensors that are sent to another process; _run_discover and "
     "_run_feed take it in the place of a tensor. The list: the functions of the recv nodes to which it leads; None if "
     "there are many, or if it would take long to find them."},
    {"_rpc_recv", rpc_recv, METH_VARARGS,
     "_rpc_recv(tensors, function) -> node: gives received tensors, which have no history, this node. Backward calls "
     "function(*gradients), in which None stands for one that did not come."},
    {"_run_reached", run_reached, METH_O,
     "_run_reached(run) -> list: the functions of the recv nodes that the run has reached since the last call."},
    {"_run_owned", run_owned, METH_O,
     "_run_owned(run) -> list: the leaves of the run whose gradients an owner gets in the place of the sink."},
    {"_grad_owner", grad_owner, METH_O,
     "_grad_owner(tensor) -> str or None: who looks after a leaf's .grad, such as DistributedDataParallel."},
    {"_split_backward", split_backward, METH_VARARGS,
     "_split_backward(tensors, grads, inputs) -> (run, gradients): the first half of backward, which makes the "
     "gradients "
     "of inputs (None: not reached) and no others."},
    {"_split_finish", split_finish, METH_O,
     "_split_finish(run): the second half of backward, which accumulates the gradients of all other leaves."},
    {"_run_open", (PyCFunction)(void (*)(void))run_open, METH_VARARGS | METH_KEYWORDS,
     "_run_open(tensors, grads, sink=None, retain_graph=False, fed=True) -> run: starts a backward that goes on in "
     "turns; sink(leaf, grad) is called in the place of adding to .grad."},
    {"_run_discover", run_discover, METH_VARARGS,
     "_run_discover(run, tensor): announces the node that made the tensor; _run_feed will give a gradient for each "
     "output of that node."},
    {"_run_feed", run_feed, METH_VARARGS,
     "_run_feed(run, tensor, grad, index=0): gives the run the tensor's gradient from outside (None: there is none). "
     "index: which tensor of a send node."},
    {"_run_turn", run_turn, METH_O,
     "_run_turn(run) -> bool: runs all nodes that are ready; True when the run is done."},
    {"_run_close", run_close, METH_VARARGS,
     "_run_close(run, early=False): closes the run; raises where it is not done, unless early."},
    {0},
};

int pd_py_add_run(PyObject *module) { return PyModule_AddFunctions(module, functions); }
