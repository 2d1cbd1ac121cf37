/* autograd.Function: nodes whose gradient is written in Python. Users derive from the class in
   pydist/autograd/function.py.

   The node holds the ctx. The ctx knows the node without holding it, so the two make no cycle. Tensors that were given
   to save_for_backward are in the node's own slots, so a saved output makes no cycle either. The cycle collector sees
   attributes that users set on the ctx (collect.c). */
#include "autograd/autocast.h"
#include "base/mem.h"
#include "py/py.h"

#include <structmember.h>

typedef struct output {
    const pd_device *device; /* NULL: the output is no tensor */
    int8_t dtype, ndim;
    int64_t size[PD_MAX_DIMS];
    pd_spread *spread;       /* [strong] of its gradient; NULL: that is a plain tensor */
} output; /* what is known of an output's gradient */

typedef struct pyctx {
    PyObject_HEAD
    PyObject *dict, *weakrefs;
    PyObject *cls;                      /* the Function */
    PyObject *needs;                    /* needs_input_grad */
    PyObject *to_save, *dirty, *fixed;  /* tuples, or NULL; until forward ends */
    bool materialize, recorded;
    pd_node *node;                      /* [borrowed] NULL: there is none, or it is gone */
    output *outs;
    pd_spread **ins;                    /* [owned], each [strong]: of the inputs' gradients */
    int nout, nin;
} pyctx;

/* ---- the ctx ----------------------------------------------------------------------------------------------------- */

static PyObject *keep_tensors(PyObject **to, PyObject *args, const char *op, bool none) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *o = PyTuple_GET_ITEM(args, i);
        if (!(none && o == Py_None) && !pd_py_expect_tensor(o, op, "an argument")) return NULL;
    }
    Py_XSETREF(*to, Py_NewRef(args));
    Py_RETURN_NONE;
}

/* Without an input that requires a gradient there is no backward, and PyTorch takes anything. */
static PyObject *save_for_backward(PyObject *self, PyObject *args) {
    pyctx *c = (pyctx *)self;
    int any = c->needs ? PySequence_Contains(c->needs, Py_True) : 1;
    if (any < 0) return NULL;
    if (any) return keep_tensors(&c->to_save, args, "save_for_backward", true);
    Py_XSETREF(c->to_save, Py_NewRef(args));
    Py_RETURN_NONE;
}
static PyObject *mark_dirty(PyObject *self, PyObject *args) {
    return keep_tensors(&((pyctx *)self)->dirty, args, "mark_dirty", false);
}
static PyObject *mark_fixed(PyObject *self, PyObject *args) {
    return keep_tensors(&((pyctx *)self)->fixed, args, "mark_non_differentiable", false);
}

static PyObject *set_materialize(PyObject *self, PyObject *on) {
    int want = PyObject_IsTrue(on);
    if (want < 0) return NULL;
    ((pyctx *)self)->materialize = want;
    Py_RETURN_NONE;
}

static PyObject *get_saved(PyObject *self, void *unused) {
    pyctx *c = (pyctx *)self;
    (void)unused;
    if (!c->node) {
        if (c->recorded)
            return PyErr_Format(PyExc_RuntimeError,
                                "saved_tensors: the graph was freed (expected to be read during backward, or after "
                                "backward(retain_graph=True))");
        return c->to_save ? Py_NewRef(c->to_save) : PyTuple_New(0);
    }
    PyObject *tuple = PyTuple_New(c->node->nsaved);
    for (int i = 0; tuple && i < c->node->nsaved; i++) {
        pd_tensor *t;
        pd_status status = pd_node_unpack(c->node, i, &t);
        PyObject *o = status ? pd_py_raise(status) : pd_py_wrap(t);
        if (!status) pd_tensor_release(t);
        if (!o) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, o);
    }
    return tuple;
}

static int ctx_traverse(PyObject *self, visitproc visit, void *arg) {
    pyctx *c = (pyctx *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(c->dict);
    Py_VISIT(c->cls);
    Py_VISIT(c->needs);
    Py_VISIT(c->to_save);
    Py_VISIT(c->dirty);
    Py_VISIT(c->fixed);
    return 0;
}

static int ctx_clear(PyObject *self) {
    pyctx *c = (pyctx *)self;
    Py_CLEAR(c->dict);
    Py_CLEAR(c->to_save);
    Py_CLEAR(c->dirty);
    Py_CLEAR(c->fixed);
    return 0;
}

static void ctx_dealloc(PyObject *self) {
    pyctx *c = (pyctx *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (c->weakrefs) PyObject_ClearWeakRefs(self);
    ctx_clear(self);
    Py_CLEAR(c->cls);
    Py_CLEAR(c->needs);
    for (int i = 0; c->outs && i < c->nout; i++) pd_spread_release(c->outs[i].spread);
    for (int i = 0; c->ins && i < c->nin; i++) pd_spread_release(c->ins[i]);
    pd_free(c->outs);
    pd_free(c->ins);
    type->tp_free(self);
    Py_DECREF(type);
}

void pd_py_drop_function(void *ctx) {
    ((pyctx *)ctx)->node = NULL;
    pd_py_drop(ctx);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static PyObject *gradient_of(const pyctx *c, const pd_vjp *v, int i) {
    const output *o = &c->outs[i];
    const pd_device *was;
    pd_tensor *zero;
    if (v->g[i]) {
        PD_PY_TRY(pd_tensor_apart(v->g[i], v->create_graph, &zero));
        if (o->spread) pd_tensor_set_spread(zero, o->spread);
        return pd_py_wrap_new(zero);
    }
    if (!c->materialize || !o->device) Py_RETURN_NONE;
    if (!pd_py_at(o->device, &was)) return NULL;
    pd_status status = pd_tensor_new(pd_node_name(v->node), (pd_dtype)o->dtype, o->ndim, o->size, &zero);
    if (!status) pd_fill(zero, &(pd_scalar){.cat = PD_CAT_INT});
    pd_device_here = was;
    if (!status && o->spread) pd_tensor_set_spread(zero, o->spread);
    return status ? pd_py_raise(status) : pd_py_wrap_new(zero);
}

static bool accept_gradient(pd_vjp *v, Py_ssize_t i, PyObject *g);

/* The same for a part of a spread tensor, which is brought to where the gradient of input i lies. */
static bool accept_part(const pyctx *c, pd_vjp *v, Py_ssize_t i, PyObject *g) {
    pd_spread *to = i < c->nin ? c->ins[i] : NULL;
    if (!to || !pd_py_is_tensor(g) || !pd_py_tensor(g)->spread || pd_py_tensor(g)->spread == to)
        return accept_gradient(v, i, g);
    PyObject *moved = pd_py_respread(g, to);
    bool ok = moved && accept_gradient(v, i, moved);
    Py_XDECREF(moved);
    return ok;
}

/* Gives g to the engine as the gradient of input i; false with the exception set. */
static bool accept_gradient(pd_vjp *v, Py_ssize_t i, PyObject *g) {
    const char *name = pd_node_name(v->node);
    const pd_edge *e = i < v->node->nin ? &v->node->edges[i] : NULL;
    if (g == Py_None) return true;
    if (!e || !e->size) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s: gradient %zd is %.100s, but that argument of forward was not a tensor (expected None)", name,
                     i, Py_TYPE(g)->tp_name);
        return false;
    }
    if (!pd_py_is_tensor(g)) {
        PyErr_Format(PyExc_TypeError, "%s: gradient %zd is %.100s (expected Tensor or None)", name, i,
                     Py_TYPE(g)->tp_name);
        return false;
    }
    pd_tensor *t = pd_py_tensor(g), *own = NULL;
    int64_t size[PD_MAX_DIMS];
    int ndim = e->ndim;
    memcpy(size, e->size, sizeof *size * (size_t)ndim);
    if (pd_dtype_category((pd_dtype)t->dtype) < PD_CAT_FLOAT ||
        pd_shape_broadcast(name, &ndim, size, t->ndim, t->size) || !pd_shape_equal(ndim, size, t->ndim, t->size)) {
        PyErr_Format(pd_py.E_SHAPE,
                     "%s: gradient %zd is %s of shape %s (expected a floating or complex dtype and shape %s, or a "
                     "shape to which that broadcasts)",
                     name, i, pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), pd_shape_text(e->ndim, e->size));
        return false;
    }
    pd_status status = pd_tensor_apart(t, v->create_graph, &own);
    if (status) pd_py_raise(status);
    else pd_vjp_set(v, (int)i, own);
    pd_tensor_release(own);
    return !status;
}

static bool run_backward(pyctx *c, pd_vjp *v) {
    PyObject *args = PyTuple_New(c->nout + 1), *fn = args ? PyObject_GetAttrString(c->cls, "backward") : NULL,
             *result = NULL;
    bool ok = fn;
    if (args) PyTuple_SET_ITEM(args, 0, Py_NewRef(c));
    for (int i = 0; ok && i < c->nout; i++) {
        PyObject *g = gradient_of(c, v, i);
        if (!(ok = g)) break;
        PyTuple_SET_ITEM(args, i + 1, g);
    }
    if (ok) ok = (result = PyObject_CallObject(fn, args));
    Py_XDECREF(fn);
    Py_XDECREF(args);
    if (!ok) return false;
    if (PyList_Check(result)) Py_SETREF(result, PyList_AsTuple(result));
    else if (!PyTuple_Check(result)) {
        PyObject *one = PyTuple_Pack(1, result);
        Py_SETREF(result, one);
    }
    Py_ssize_t n = result ? PyTuple_GET_SIZE(result) : 0;
    ok = result;
    if (ok && n < v->node->nin) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s: backward returned %zd gradients (expected %d: one for each argument of forward)",
                     pd_node_name(v->node), n, v->node->nin);
        ok = false;
    }
    for (Py_ssize_t i = 0; ok && i < n; i++) ok = accept_part(c, v, i, PyTuple_GET_ITEM(result, i));
    Py_XDECREF(result);
    return ok;
}

static pd_status call_function(void *ctx, void *vjp) {
    PyGILState_STATE gil = PyGILState_Ensure();
    bool mode = pd_grad_mode;
    pd_autocast_state autocast =
        pd_autocast; /* autocast is off here; a context that ends inside the function would turn it on again */
    bool ok = run_backward(ctx, vjp);
    pd_grad_mode = mode;
    pd_autocast = autocast;
    pd_status status = ok ? ((pd_vjp *)vjp)->status : pd_py_caught();
    PyGILState_Release(gil);
    return status;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static bool holds(PyObject *tuple, const pd_tensor *t) {
    for (Py_ssize_t i = 0; tuple && i < PyTuple_GET_SIZE(tuple); i++)
        if (pd_py_is_tensor(PyTuple_GET_ITEM(tuple, i)) && pd_py_tensor(PyTuple_GET_ITEM(tuple, i)) == t) return true;
    return false;
}

static int place(PyObject *tuple, const pd_tensor *t) { /* -1: t is not in it */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        if (pd_py_is_tensor(PyTuple_GET_ITEM(tuple, i)) && pd_py_tensor(PyTuple_GET_ITEM(tuple, i)) == t) return (int)i;
    return -1;
}

/* Calls the user's forward without recording. */
static PyObject *run_forward(pyctx *c, PyObject *inputs, bool split) {
    bool mode = pd_grad_mode;
    PyObject *forward = PyObject_GetAttrString(c->cls, "forward"), *args = NULL, *out = NULL, *done = NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(inputs);
    if (forward && split) args = Py_NewRef(inputs);
    else if (forward && (args = PyTuple_New(n + 1))) {
        PyTuple_SET_ITEM(args, 0, Py_NewRef(c));
        for (Py_ssize_t i = 0; i < n; i++) PyTuple_SET_ITEM(args, i + 1, Py_NewRef(PyTuple_GET_ITEM(inputs, i)));
    }
    pd_grad_mode = false;
    if (args) out = PyObject_CallObject(forward, args);
    if (out && split && !(done = PyObject_CallMethod(c->cls, "setup_context", "OOO", c, inputs, out))) Py_CLEAR(out);
    pd_grad_mode = mode;
    Py_XDECREF(done);
    Py_XDECREF(args);
    Py_XDECREF(forward);
    return out;
}

static bool check_dirty(const pyctx *c, PyObject *inputs, PyObject *outputs, const char *name) {
    for (Py_ssize_t i = 0; c->dirty && i < PyTuple_GET_SIZE(c->dirty); i++) {
        pd_tensor *t = pd_py_tensor(PyTuple_GET_ITEM(c->dirty, i));
        const char *what = !holds(inputs, t)    ? "an argument of forward"
                           : !holds(outputs, t) ? "one of the results of forward"
                                                : NULL;
        if (what) {
            PyErr_Format(PyExc_RuntimeError,
                         "%s: mark_dirty: tensor %zd, of shape %s, is not %s (expected an argument that forward writes "
                         "and returns)",
                         name, i, pd_tensor_shape(t), what);
            return false;
        }
        pd_status status = pd_check_writable(name, t);
        if (status) {
            pd_py_raise(status);
            return false;
        }
    }
    return true;
}

/* Makes output i, with its history. n NULL: nothing is recorded. */
static pd_status own_output(const pyctx *c, pd_node *n, PyObject *inputs, int i, pd_tensor *t, PyObject **out) {
    bool is_input = holds(inputs, t), written = holds(c->dirty, t);
    bool wanted = n && !holds(c->fixed, t) && pd_dtype_category((pd_dtype)t->dtype) >= PD_CAT_FLOAT;
    if (wanted && written && is_input) return pd_node_rebase(n, t, place(inputs, t), i);
    if (!wanted && (written || !(is_input || t->requires_grad))) return PD_OK;
    if (wanted && !is_input && !t->base && !t->requires_grad) return pd_node_own(n, i, t);
    /* Other tensors with their own history share this memory. So it is returned as a new tensor that nobody may
       write. */
    pd_tensor *alias;
    pd_meta *m = NULL;
    PD_TRY(pd_tensor_alias(t, false, &alias));
    pd_status status = wanted ? pd_node_own(n, i, alias) : PD_OK;
    if (!status && wanted && !(status = pd_meta_get(alias, &m))) m->sealed = true;
    PyObject *o = status ? NULL : pd_py_wrap(alias);
    if (!status && !o) status = pd_py_caught();
    pd_tensor_release(alias);
    if (o) Py_SETREF(*out, o);
    return status;
}

static pd_status save_all(pyctx *c, pd_node *n, PyObject *inputs, PyObject *raw, PyObject *outputs) {
    for (int i = 0; i < n->nsaved; i++) {
        PyObject *o = PyTuple_GET_ITEM(c->to_save, i);
        if (o != Py_None && !pd_py_is_tensor(o))
            return pd_fail(PD_E_TYPE, "save_for_backward: an argument is %s (expected Tensor)", Py_TYPE(o)->tp_name);
        pd_tensor *t = o == Py_None ? NULL : pd_py_tensor(o);
        int out = t ? place(raw, t) : -1, in = t ? place(inputs, t) : -1;
        const pd_tensor *result = out < 0 ? NULL : pd_py_tensor(PyTuple_GET_ITEM(outputs, out));
        bool is_out = result && result->meta && result->meta->grad_fn == n && (in < 0 || holds(c->dirty, t));
        /* A view that was written has a history behind n, which would be a cycle with hooks */
        pd_tensor *given = t, *alias = NULL;
        if (t && !is_out && in >= 0 && t->base && holds(c->dirty, t)) {
            PD_TRY(pd_tensor_alias(t, false, &alias));
            given = alias;
        }
        pd_status status = pd_node_save(n, i, given, is_out, is_out ? out : in);
        pd_tensor_release(alias);
        if (status) return status;
    }
    return PD_OK;
}

static pd_status record(pyctx *c, const char *name, PyObject *inputs, PyObject *outputs, pd_node **out) {
    Py_ssize_t nin = PyTuple_GET_SIZE(inputs), nout = PyTuple_GET_SIZE(outputs),
               nsaved = c->to_save ? PyTuple_GET_SIZE(c->to_save) : 0;
    pd_tensor **in;
    if (nin > INT16_MAX || nout > INT16_MAX || nsaved > INT16_MAX)
        return pd_fail(PD_E_VALUE, "%s: got too many tensors (expected at most %d)", name, INT16_MAX);
    PD_TRY(pd_calloc(sizeof *c->outs * (size_t)nout, name, &c->outs));
    c->nout = (int)nout;
    for (Py_ssize_t i = 0; i < nout; i++) {
        PyObject *o = PyTuple_GET_ITEM(outputs, i);
        const pd_tensor *t = pd_py_is_tensor(o) ? pd_py_tensor(o) : NULL;
        if (!t) continue;
        c->outs[i] = (output){.device = t->storage->device, .dtype = t->dtype, .ndim = t->ndim};
        memcpy(c->outs[i].size, t->size, sizeof *t->size * (size_t)t->ndim);
        if (t->spread) pd_spread_retain(c->outs[i].spread = pd_spread_of_gradient(t->spread));
    }
    PD_TRY(pd_calloc(sizeof *c->ins * (size_t)(nin + 1), name, &c->ins));
    c->nin = (int)nin;
    PD_TRY(pd_calloc(sizeof *in * (size_t)(nin + 1), name, &in));
    for (Py_ssize_t i = 0; i < nin; i++)
        if (pd_py_is_tensor(PyTuple_GET_ITEM(inputs, i))) {
            in[i] = pd_py_tensor(PyTuple_GET_ITEM(inputs, i));
            if (in[i]->spread) pd_spread_retain(c->ins[i] = pd_spread_of_gradient(in[i]->spread));
        }
    pd_closure closure = {.call = call_function, .drop = pd_py_drop_function, .ctx = Py_NewRef(c)};
    pd_status status = pd_node_custom(name, closure, in, (int)nin, (int)nout, (int)nsaved, out);
    pd_free(in);
    PD_TRY(status);
    c->node = *out;
    c->recorded = true;
    return PD_OK;
}

/* raw: forward's results. outputs: the same on entry, on return what the caller gets. */
static bool finish(pyctx *c, PyObject *inputs, PyObject *raw, PyObject *outputs, bool wanted) {
    PyObject *cls_name = PyObject_GetAttrString(c->cls, "__name__");
    const char *text = cls_name && PyUnicode_Check(cls_name) ? PyUnicode_AsUTF8(cls_name) : NULL;
    char name[64];
    pd_node *n = NULL;
    pd_status status = PD_OK;
    bool ok = text;
    snprintf(name, sizeof name, "%sBackward", text ? text : "");
    Py_XDECREF(cls_name);
    if (ok && wanted) ok = check_dirty(c, inputs, outputs, name);
    if (!ok) return false;
    if (wanted) status = record(c, name, inputs, outputs, &n);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs) && !status; i++) {
        PyObject *o = PyTuple_GET_ITEM(outputs, i);
        if (pd_py_is_tensor(o))
            status = own_output(c, n, inputs, (int)i, pd_py_tensor(o), &PyTuple_GET_ITEM(outputs, i));
    }
    if (!status && n) status = save_all(c, n, inputs, raw, outputs);
    pd_node_release(n);
    if (status) pd_py_raise(status);
    return !status;
}

/* function_apply(cls, split, inputs): calls forward and records a node. */
static PyObject *function_apply(PyObject *module, PyObject *args) {
    PyObject *cls, *inputs;
    int split;
    (void)module;
    pd_py_drain();
    if (!PyArg_ParseTuple(args, "OpO!:function_apply", &cls, &split, &PyTuple_Type, &inputs)) return NULL;
    if (pd_is_recording()) pd_record_refuse("it calls an autograd Function of Python");
    Py_ssize_t n = PyTuple_GET_SIZE(inputs);
    bool wanted = false;
    pyctx *c = (pyctx *)((PyTypeObject *)pd_py.FunctionCtx)->tp_alloc((PyTypeObject *)pd_py.FunctionCtx, 0);
    if (!c) return NULL;
    c->cls = Py_NewRef(cls);
    c->materialize = true;
    c->needs = PyTuple_New(n);
    for (Py_ssize_t i = 0; c->needs && i < n; i++) {
        PyObject *o = PyTuple_GET_ITEM(inputs, i);
        bool needs = pd_py_is_tensor(o) && pd_tensor_wants_grad(pd_py_tensor(o));
        wanted |= needs;
        PyTuple_SET_ITEM(c->needs, i, PyBool_FromLong(needs));
    }
    PyObject *out = c->needs ? run_forward(c, inputs, split) : NULL, *raw = NULL, *outputs = NULL;
    bool single = out && !PyTuple_Check(out);
    if (out) raw = single ? PyTuple_Pack(1, out) : Py_NewRef(out);
    if (raw) outputs = PyTuple_New(PyTuple_GET_SIZE(raw));
    for (Py_ssize_t i = 0; outputs && i < PyTuple_GET_SIZE(raw); i++)
        PyTuple_SET_ITEM(outputs, i, Py_NewRef(PyTuple_GET_ITEM(raw, i)));
    if (outputs && !finish(c, inputs, raw, outputs, wanted && pd_grad_mode)) Py_CLEAR(outputs);
    Py_XDECREF(out);
    Py_XDECREF(raw);
    Py_CLEAR(c->to_save);
    Py_CLEAR(c->dirty);
    Py_CLEAR(c->fixed);
    Py_DECREF(c);
    if (!outputs || !single) return outputs;
    PyObject *one = Py_NewRef(PyTuple_GET_ITEM(outputs, 0));
    Py_DECREF(outputs);
    return one;
}

static PyMethodDef ctx_methods[] = {
    {"save_for_backward", save_for_backward, METH_VARARGS,
     "save_for_backward(*tensors)\n\nKeeps tensors (or None) for backward, which finds them in saved_tensors. "
     "saved_tensors raises where an in-place op has written one of them meanwhile."},
    {"mark_dirty", mark_dirty, METH_VARARGS,
     "mark_dirty(*tensors)\n\nNames the arguments that forward writes in place; forward must also return each of "
     "them."},
    {"mark_non_differentiable", mark_fixed, METH_VARARGS,
     "mark_non_differentiable(*tensors)\n\nNames the results of forward that have no gradient."},
    {"set_materialize_grads", set_materialize, METH_O,
     "set_materialize_grads(value)\n\nWhat backward gets for a result that has no gradient: zeros (True, the default) "
     "or None."},
    {0}};
static PyGetSetDef ctx_getset[] = {
    {"saved_tensors", get_saved, NULL, "The tensors that save_for_backward was given, with their history.", NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0}};
static PyMemberDef ctx_members[] = {{"needs_input_grad", T_OBJECT_EX, offsetof(pyctx, needs), READONLY,
                                     "A tuple of bools: which arguments of forward need a gradient."},
                                    {"__weaklistoffset__", T_PYSSIZET, offsetof(pyctx, weakrefs), READONLY, NULL},
                                    {"__dictoffset__", T_PYSSIZET, offsetof(pyctx, dict), READONLY, NULL},
                                    {0}};
static PyType_Slot ctx_slots[] = {{Py_tp_dealloc, ctx_dealloc},
                                  {Py_tp_traverse, ctx_traverse},
                                  {Py_tp_clear, ctx_clear},
                                  {Py_tp_methods, ctx_methods},
                                  {Py_tp_getset, ctx_getset},
                                  {Py_tp_members, ctx_members},
                                  {Py_tp_doc, "The context of a Function: what its forward hands to its backward."},
                                  {0}};
static PyType_Spec ctx_spec = {.name = "pydist._C.FunctionCtx", .basicsize = sizeof(pyctx), .slots = ctx_slots,
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION};

static PyMethodDef functions[] = {
    {"_function_apply", function_apply, METH_VARARGS,
     "_function_apply(cls, split, inputs): calls the Function cls on inputs; split: cls has setup_context."},
    {0}};

int pd_py_add_function(PyObject *module) {
    return pd_py_type(module, &ctx_spec, NULL, &pd_py.FunctionCtx) ? PyModule_AddFunctions(module, functions) : -1;
}
