/* backward and grad, hooks, nodes, grad mode. */
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/remote.h"
#include "base/mem.h"
#include "py/py.h"

/* ---- closures ---------------------------------------------------------------------------------------------------- */

pd_closure pd_py_closure(PyObject *fn, pd_status (*call)(void *, void *)) {
    return (pd_closure){.call = call, .drop = pd_py_drop, .ctx = Py_NewRef(fn)};
}

pd_status pd_py_call_plain(void *fn, void *unused) {
    PyGILState_STATE gil = PyGILState_Ensure();
    (void)unused;
    PyObject *result = PyObject_CallNoArgs(fn);
    pd_status status = result ? PD_OK : pd_py_caught();
    Py_XDECREF(result);
    PyGILState_Release(gil);
    return status;
}

static pd_status call_grad_hook(void *fn, void *arg) {
    pd_tensor **grad = arg;
    PyGILState_STATE gil = PyGILState_Ensure();
    bool mode = pd_grad_mode;
    pd_tensor *t = NULL;
    if (pd_is_recording()) pd_record_refuse("a hook in Python runs in backward");
    pd_status status = pd_tensor_apart(*grad, mode, &t);
    PyObject *g = status ? NULL : pd_py_wrap(t), *result = g ? PyObject_CallOneArg(fn, g) : NULL;
    pd_tensor_release(t);
    pd_grad_mode = mode;
    if (!status && result && result != Py_None && !pd_py_is_tensor(result)) {
        PyErr_Format(PyExc_TypeError, "a gradient hook returned %.100s (expected Tensor or None)",
                     Py_TYPE(result)->tp_name);
        Py_CLEAR(result);
    }
    if (!status && !result) status = pd_py_caught();
    if (!status && result != Py_None && !(status = pd_tensor_apart(pd_py_tensor(result), mode, &t))) {
        pd_tensor_release(*grad);
        *grad = t;
    }
    Py_XDECREF(g);
    Py_XDECREF(result);
    PyGILState_Release(gil);
    return status;
}

static pd_status call_leaf_hook(void *fn, void *leaf) {
    PyGILState_STATE gil = PyGILState_Ensure();
    if (pd_is_recording()) pd_record_refuse("a hook in Python runs in backward");
    PyObject *t = pd_py_wrap(leaf), *result = t ? PyObject_CallOneArg(fn, t) : NULL;
    pd_status status = result ? PD_OK : pd_py_caught();
    Py_XDECREF(t);
    Py_XDECREF(result);
    PyGILState_Release(gil);
    return status;
}

/* fn(grad_inputs, grad_outputs): a leaf has no inputs. */
static pd_status call_node_hook(void *fn, void *grad) {
    PyGILState_STATE gil = PyGILState_Ensure();
    bool mode = pd_grad_mode;
    pd_tensor *own = NULL;
    if (pd_is_recording()) pd_record_refuse("a hook in Python runs in backward");
    pd_status status = pd_tensor_apart(grad, mode, &own);
    PyObject *g = status ? NULL : pd_py_wrap_new(own), *result = g ? PyObject_CallFunction(fn, "()(O)", g) : NULL;
    pd_grad_mode = mode;
    if (!status && result && result != Py_None && !(PyTuple_Check(result) && !PyTuple_GET_SIZE(result))) {
        PyErr_Format(PyExc_TypeError, "register_hook: a hook of AccumulateGrad returned %.100s (expected None or ())",
                     Py_TYPE(result)->tp_name);
        Py_CLEAR(result);
    }
    if (!status && !result) status = pd_py_caught();
    Py_XDECREF(g);
    Py_XDECREF(result);
    PyGILState_Release(gil);
    return status;
}

typedef struct { PyObject_HEAD PyObject *tensor; pd_node *node; uint64_t id; uint32_t pass; } hook_handle;

static PyObject *handle_remove(PyObject *self, PyObject *unused) {
    hook_handle *h = (hook_handle *)self;
    (void)unused;
    if (h->node) pd_hook_remove(&h->node->hooks, h->id);
    else if (h->tensor && pd_py_tensor(h->tensor)->meta) pd_hook_remove(&pd_py_tensor(h->tensor)->meta->hooks, h->id);
    pd_node_release(h->node);
    h->node = NULL;
    Py_CLEAR(h->tensor);
    Py_RETURN_NONE;
}
static int handle_traverse(PyObject *self, visitproc visit, void *arg) {
    hook_handle *h = (hook_handle *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(h->tensor);
    return pd_py_visit_node(h->node, &h->pass, visit, arg);
}
static int handle_clear(PyObject *self) {
    hook_handle *h = (hook_handle *)self;
    pd_node *n = h->node;
    h->node = NULL;
    pd_node_release(n);
    Py_CLEAR(h->tensor);
    return 0;
}
static void handle_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    handle_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}
static PyMethodDef handle_methods[] = {
    {"remove", handle_remove, METH_NOARGS, "remove()\n\nRemoves the hook: nothing calls it any more."}, {0}};
static PyType_Slot handle_slots[] = {{Py_tp_dealloc, handle_dealloc},
                                     {Py_tp_traverse, handle_traverse},
                                     {Py_tp_clear, handle_clear},
                                     {Py_tp_methods, handle_methods},
                                     {0}};
static PyType_Spec handle_spec = {.name = "pydist._C.HookHandle",
                                  .basicsize = sizeof(hook_handle),
                                  .slots = handle_slots,
                                  .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION};

static PyObject *add_hook(PyObject *self, PyObject *fn, pd_hook_kind kind) {
    pd_tensor *t = pd_py_tensor(self);
    pd_node *node;
    int index;
    pd_meta *m = NULL;
    pd_status status;
    if (pd_is_recording()) pd_record_refuse("register_hook() is called in it");
    if (!PyCallable_Check(fn))
        return PyErr_Format(PyExc_TypeError, "register_hook: hook is %.100s (expected a callable)",
                            Py_TYPE(fn)->tp_name);
    if (!pd_tensor_wants_grad(t))
        return PyErr_Format(PyExc_RuntimeError,
                            "register_hook: cannot register a hook on a tensor that doesn't require gradient (expected "
                            "requires_grad=True)");
    PD_PY_TRY(pd_tensor_history(t, &node, &index));
    PD_PY_TRY(pd_meta_get(t, &m));
    if (kind == PD_HOOK_LEAF && node)
        return PyErr_Format(PyExc_RuntimeError,
                            "register_hook: the tensor of an AccumulateGrad has become a result (expected a leaf)");
    if (kind == PD_HOOK_POST && node)
        return PyErr_Format(PyExc_RuntimeError,
                            "register_post_accumulate_grad_hook: post accumulate grad hooks cannot be registered on "
                            "non-leaf tensors (expected a leaf, or register_hook)");
    hook_handle *h = (hook_handle *)((PyTypeObject *)pd_py.HookHandle)->tp_alloc((PyTypeObject *)pd_py.HookHandle, 0);
    if (!h) return NULL;
    pd_closure c = pd_py_closure(fn, kind == PD_HOOK_GRAD   ? call_grad_hook
                                     : kind == PD_HOOK_POST ? call_leaf_hook
                                                            : call_node_hook);
    h->id = pd_hook_add(node ? &node->hooks : &m->hooks, kind, index, c, &status);
    if (!h->id) {
        pd_closure_drop(&c);
        Py_DECREF(h);
        return pd_py_raise(status);
    }
    if (node) pd_node_retain(h->node = node);
    else h->tensor = Py_NewRef(self);
    return (PyObject *)h;
}

PyObject *pd_py_register_hook(PyObject *self, PyObject *fn) { return add_hook(self, fn, PD_HOOK_GRAD); }
PyObject *pd_py_register_post_hook(PyObject *self, PyObject *fn) { return add_hook(self, fn, PD_HOOK_POST); }

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* A node of the graph, or the end of a way: the AccumulateGrad of a leaf. */
typedef struct {
    PyObject_HEAD
    pd_node *n;         /* [strong] or NULL */
    PyObject *variable; /* [strong] else the leaf */
    uint32_t pass;
} pynode;

static PyObject *make_node(pd_node *n, PyObject *variable) {
    pynode *o = (pynode *)((PyTypeObject *)pd_py.Node)->tp_alloc((PyTypeObject *)pd_py.Node, 0);
    if (!o) return NULL;
    if (n) pd_node_retain(o->n = n);
    o->variable = Py_XNewRef(variable);
    return (PyObject *)o;
}

PyObject *pd_py_node(pd_node *n) {
    if (!n) Py_RETURN_NONE;
    return make_node(n, NULL);
}

pd_node *pd_py_node_of(PyObject *o) { return (PyObject *)Py_TYPE(o) == pd_py.Node ? ((pynode *)o)->n : NULL; }

static PyObject *accumulate_grad(pd_tensor *leaf) {
    PyObject *variable = pd_py_wrap(leaf), *o = variable ? make_node(NULL, variable) : NULL;
    Py_XDECREF(variable);
    return o;
}

static int node_traverse(PyObject *self, visitproc visit, void *arg) {
    pynode *o = (pynode *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(o->variable);
    return o->n ? pd_py_visit_node(o->n, &o->pass, visit, arg) : 0;
}
static int node_clear(PyObject *self) {
    Py_CLEAR(((pynode *)self)->variable);
    return 0;
}
static void node_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    node_clear(self);
    pd_node_release(((pynode *)self)->n);
    type->tp_free(self);
    Py_DECREF(type);
}

/* PyTorch's name for the node of an op: "AddBackward0" for "add". Nodes of Function have such names already. */
static PyObject *node_name(PyObject *self, PyObject *unused) {
    const pd_node *n = ((pynode *)self)->n;
    (void)unused;
    if (!n) return PyUnicode_FromString("torch::autograd::AccumulateGrad");
    const char *name = pd_node_name(n), *end = strlen(name) > 8 ? name + strlen(name) - 8 : name;
    if (pd_node_is_send(n) || pd_node_delivers(n))
        return PyUnicode_FromFormat("torch::distributed::autograd::%s", name);
    if (!strcmp(end, "Backward")) return PyUnicode_FromString(name);
    char text[128];
    size_t at = 0;
    bool upper = true;
    for (; *name && at < sizeof text - 1; name++) {
        if (*name != '_') text[at++] = upper && *name >= 'a' && *name <= 'z' ? (char)(*name - 32) : *name;
        upper = *name == '_';
    }
    text[at] = 0;
    return PyUnicode_FromFormat("%sBackward0", text);
}
static PyObject *node_repr(PyObject *self) {
    PyObject *name = node_name(self, NULL), *text = name ? PyUnicode_FromFormat("<%U>", name) : NULL;
    Py_XDECREF(name);
    return text;
}
static PyObject *node_next(PyObject *self, void *unused) {
    const pd_node *n = ((pynode *)self)->n;
    int nin = n ? n->nin : 0;
    PyObject *tuple = PyTuple_New(nin);
    (void)unused;
    for (int i = 0; tuple && i < nin; i++) {
        const pd_edge *e = &n->edges[i];
        PyObject *pair = Py_BuildValue("(Ni)", e->leaf ? accumulate_grad(e->leaf) : pd_py_node(e->fn), e->index);
        if (!pair) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, pair);
    }
    return tuple;
}
/* [new] the leaf as the user knows it: autograd has the values of a sparse one. */
static PyObject *node_variable(PyObject *self, void *unused) {
    PyObject *variable = ((pynode *)self)->variable, *sparse = PyImport_ImportModule("pydist.sparse");
    (void)unused;
    PyObject *whole = variable && sparse ? PyObject_CallMethod(sparse, "leaf_of", "O", variable) : NULL;
    Py_XDECREF(sparse);
    if (whole != Py_None && (whole || PyErr_Occurred())) return whole;
    Py_XDECREF(whole);
    if (variable) return Py_NewRef(variable);
    PyErr_Format(PyExc_AttributeError, "%R has no variable (expected the AccumulateGrad of a leaf)", self);
    return NULL;
}
static PyObject *node_register_hook(PyObject *self, PyObject *fn) {
    PyObject *variable = ((pynode *)self)->variable;
    if (variable) return add_hook(variable, fn, PD_HOOK_LEAF);
    return PyErr_Format(PyExc_NotImplementedError,
                        "register_hook: got %R (expected the AccumulateGrad of a leaf, or Tensor.register_hook)", self);
}
/* What it stands for: a node, or a leaf. */
static void *node_identity(PyObject *self) {
    pynode *o = (pynode *)self;
    return o->n ? (void *)o->n : (void *)o->variable;
}
static Py_hash_t node_hash(PyObject *self) { return (Py_hash_t)((uintptr_t)node_identity(self) >> 4); }
static PyObject *node_compare(PyObject *a, PyObject *b, int op) {
    if (Py_TYPE(a) != Py_TYPE(b) || (op != Py_EQ && op != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    return PyBool_FromLong((node_identity(a) == node_identity(b)) == (op == Py_EQ));
}
static PyMethodDef node_methods[] = {
    {"name", node_name, METH_NOARGS,
     "name()\n\nPyTorch's name of the node: \"MulBackward0\" for the op mul, \"torch::autograd::AccumulateGrad\" for "
     "a leaf."},
    {"register_hook", node_register_hook, METH_O,
     "register_hook(fn)\n\nOf the AccumulateGrad of a leaf: fn((), (gradient,)) is called when a backward has added "
     "the gradient to the leaf's .grad, or to its distributed context. Returns a handle with remove()."},
    {0}};
static PyGetSetDef node_getset[] = {
    {"next_functions", node_next, NULL,
     "((node, output number), ...): what made each input of the op. A leaf has an AccumulateGrad; an input that needs "
     "no gradient has None.",
     NULL},
    {"variable", node_variable, NULL, "The leaf of an AccumulateGrad.", NULL},
    {0}};
static PyType_Slot node_slots[] = {{Py_tp_dealloc, node_dealloc},     {Py_tp_traverse, node_traverse},
                                   {Py_tp_clear, node_clear},         {Py_tp_methods, node_methods},
                                   {Py_tp_getset, node_getset},       {Py_tp_repr, node_repr},
                                   {Py_tp_hash, node_hash},           {Py_tp_richcompare, node_compare},
                                   {0}};
static PyType_Spec node_spec = {.name = "pydist._C.Node", .basicsize = sizeof(pynode), .slots = node_slots,
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION};

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static bool truth(PyObject *o, bool if_none, bool *out) {
    int v = !o || o == Py_None ? if_none : PyObject_IsTrue(o);
    *out = v > 0;
    return v >= 0;
}

/* Runs backward, all of whose arguments but `inputs` have been read. inputs: None, or the leaves to accumulate into. */
static PyObject *run_backward(pd_backward *b, PyObject *inputs) {
    PyObject *seq = NULL;
    pd_tensor **list = NULL;
    Py_ssize_t n = 0;
    if (inputs && inputs != Py_None) {
        if (!pd_py_tensors(inputs, "backward", "inputs", &seq, &list, &n)) return NULL;
        b->inputs = list;
        b->ninputs = (int)n;
        b->accumulate = true;
        for (Py_ssize_t i = 0; i < n; i++)
            if (!list[i]) n = 0;
    }
    pd_status status = PD_OK;
    if (seq && n == 0)
        PyErr_SetString(PyExc_RuntimeError,
                        "backward: inputs is empty or contains None (expected tensors, or inputs=None for all leaves)");
    else status = pd_engine_run(b);
    pd_free(list);
    Py_XDECREF(seq);
    if (status) return pd_py_raise(status);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *pd_py_tensor_backward(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"gradient", "retain_graph", "create_graph", "inputs", NULL};
    PyObject *gradient = NULL, *retain = NULL, *create = NULL, *inputs = NULL;
    pd_tensor *root = pd_py_tensor(self), *g = NULL;
    pd_backward b = {.roots = &root, .nroots = 1};
    pd_py_drain();
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOO:backward", names, &gradient, &retain, &create, &inputs))
        return NULL;
    if (gradient && gradient != Py_None) {
        if (!(g = pd_py_expect_tensor(gradient, "backward", "gradient"))) return NULL;
        b.grads = &g;
    }
    if (!truth(create, false, &b.create_graph) || !truth(retain, b.create_graph, &b.retain_graph)) return NULL;
    return run_backward(&b, inputs);
}

/* Roots and their gradients: None, or a list of the same length with entries that may be None. */
typedef struct { PyObject *seq, *grad_seq; pd_tensor **roots, **grads; Py_ssize_t n; } roots;

static void free_roots(roots *r) {
    pd_free(r->roots);
    pd_free(r->grads);
    Py_XDECREF(r->seq);
    Py_XDECREF(r->grad_seq);
}

static bool read_roots(const char *op, PyObject *tensors, PyObject *grads, roots *r) {
    Py_ssize_t n;
    *r = (roots){0};
    if (!pd_py_tensors(tensors, op, "tensors", &r->seq, &r->roots, &r->n)) return false;
    for (Py_ssize_t i = 0; i < r->n; i++)
        if (!r->roots[i]) {
            PyErr_Format(PyExc_TypeError, "%s: entry %zd is None (expected Tensor)", op, i);
            free_roots(r);
            return false;
        }
    if (!grads || grads == Py_None) return true;
    if (!pd_py_tensors(grads, op, "grad_tensors", &r->grad_seq, &r->grads, &n) || n != r->n) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_RuntimeError,
                         "%s: got %zd tensors and %zd gradients (expected one gradient for each tensor)", op, r->n, n);
        free_roots(r);
        return false;
    }
    return true;
}

static PyObject *f_backward(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tensors", "grad_tensors", "retain_graph", "create_graph", "inputs", NULL};
    PyObject *tensors, *grads = NULL, *retain = NULL, *create = NULL, *inputs = NULL;
    roots r;
    pd_backward b = {0};
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOOO:backward", names, &tensors, &grads, &retain, &create,
                                     &inputs))
        return NULL;
    if (!truth(create, false, &b.create_graph) || !truth(retain, b.create_graph, &b.retain_graph) ||
        !read_roots("backward", tensors, grads, &r))
        return NULL;
    b.roots = r.roots, b.grads = r.grads, b.nroots = (int)r.n;
    PyObject *result = run_backward(&b, inputs);
    free_roots(&r);
    return result;
}

static PyObject *f_grad(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "allow_unused", NULL};
    PyObject *outputs, *inputs, *grads = NULL, *retain = NULL, *create = NULL, *unused = NULL, *seq, *result = NULL;
    pd_tensor **list, **out = NULL;
    Py_ssize_t n;
    roots r;
    bool allow;
    pd_backward b = {0};
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OOOO:grad", names, &outputs, &inputs, &grads, &retain, &create,
                                     &unused))
        return NULL;
    if (!truth(create, false, &b.create_graph) || !truth(retain, b.create_graph, &b.retain_graph) ||
        !truth(unused, false, &allow))
        return NULL;
    if (!read_roots("grad", outputs, grads, &r)) return NULL;
    if (!pd_py_tensors(inputs, "grad", "inputs", &seq, &list, &n)) {
        free_roots(&r);
        return NULL;
    }
    b.roots = r.roots, b.grads = r.grads, b.nroots = (int)r.n, b.inputs = list, b.ninputs = (int)n;
    pd_status status = pd_calloc(sizeof *out * (size_t)(n + 1), "grad", &out);
    b.out = out;
    for (Py_ssize_t i = 0; i < n && !status; i++)
        if (!list[i]) status = pd_fail(PD_E_TYPE, "grad: input %zd is None (expected Tensor)", i);
    PD_THEN(pd_engine_run(&b));
    for (Py_ssize_t i = 0; i < n && !status && !allow; i++)
        if (!out[i])
            status = pd_fail(PD_E_RUNTIME,
                             "grad: input %zd, of shape %s, appears to not have been used in the graph of the outputs "
                             "(expected an input that they depend on, or allow_unused=True)",
                             i, pd_tensor_shape(list[i]));
    if (status) pd_py_raise(status);
    else result = PyTuple_New(n);
    for (Py_ssize_t i = 0; i < n && out; i++) {
        if (result) PyTuple_SET_ITEM(result, i, pd_py_wrap(out[i]));
        pd_tensor_release(out[i]);
    }
    pd_free(out);
    pd_free(list);
    Py_DECREF(seq);
    free_roots(&r);
    return result;
}

/* ---- grad mode --------------------------------------------------------------------------------------------------- */

static PyObject *f_is_grad_enabled(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(pd_grad_mode);
}
static PyObject *f_set_grad_enabled(PyObject *module, PyObject *on) {
    int want = PyObject_IsTrue(on);
    bool was = pd_grad_mode;
    (void)module;
    if (want < 0) return NULL;
    pd_grad_mode = want && !pd_inference_mode;
    return PyBool_FromLong(was);
}
/* None, or (dtype, whether CUDA's list of ops holds). */
static PyObject *f_autocast(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    if (pd_autocast.dtype == PD_NO_DTYPE) Py_RETURN_NONE;
    return Py_BuildValue("OO", pd_py.dtypes[pd_autocast.dtype], pd_autocast.cuda ? Py_True : Py_False);
}
static PyObject *f_set_autocast(PyObject *module, PyObject *args) {
    PyObject *dtype;
    int cuda, keep = 1;
    int64_t t;
    (void)module;
    if (!PyArg_ParseTuple(args, "Op|p:set_autocast", &dtype, &cuda, &keep) ||
        !pd_py_dtype(dtype, "set_autocast", "dtype", &t))
        return NULL;
    if (t != PD_NO_DTYPE && t != PD_BF16 && t != PD_F16)
        return PyErr_Format(PyExc_RuntimeError, "set_autocast: dtype is %R (expected bfloat16, float16 or None)",
                            dtype);
    int kind = pd_py_pretended_cuda() ? -1 : cuda ? PD_DEVICE_CUDA : PD_DEVICE_CPU;
    pd_autocast = (pd_autocast_state){(pd_dtype)t, cuda, keep, kind};
    Py_RETURN_NONE;
}
static PyObject *f_clear_autocast_cache(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    pd_autocast_clear();
    if (pd_is_recording()) pd_record_autocast_clear();
    Py_RETURN_NONE;
}
static PyObject *f_is_inference(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(pd_inference_mode);
}
static PyObject *f_set_inference(PyObject *module, PyObject *on) {
    int want = PyObject_IsTrue(on);
    bool was = pd_inference_mode;
    (void)module;
    if (want < 0) return NULL;
    pd_inference_mode = want;
    return PyBool_FromLong(was);
}

/* ---- anomaly mode ------------------------------------------------------------------------------------------------ */

/* The Python stack as text: ctx is the str. */
static pd_status say_trace(void *text, void *name) {
    PyGILState_STATE gil = PyGILState_Ensure();
    int bad = PyErr_WarnFormat(PyExc_UserWarning, 1,
                               "Error detected in the gradient of %s. Traceback of forward call that caused the error "
                               "(most recent call last):\n%U",
                               (const char *)name, (PyObject *)text);
    if (bad) PyErr_Clear(); /* if warnings are errors, backward's own error comes first */
    PyGILState_Release(gil);
    return PD_OK;
}

static pd_status take_trace(pd_closure *out) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *module = PyImport_ImportModule("traceback"),
             *list = module ? PyObject_CallMethod(module, "format_stack", NULL) : NULL;
    PyObject *empty = list ? PyUnicode_FromString("") : NULL, *text = empty ? PyUnicode_Join(empty, list) : NULL;
    pd_status status = text ? PD_OK : pd_py_caught();
    if (text) *out = (pd_closure){.call = say_trace, .drop = pd_py_drop, .ctx = text};
    Py_XDECREF(empty);
    Py_XDECREF(list);
    Py_XDECREF(module);
    PyGILState_Release(gil);
    return status;
}

static PyObject *f_set_anomaly(PyObject *module, PyObject *args) {
    int on, check_nan;
    (void)module;
    if (!PyArg_ParseTuple(args, "pp:_set_anomaly", &on, &check_nan)) return NULL;
    if (pd_is_recording()) pd_record_refuse("it changes anomaly mode");
    PyObject *was = Py_BuildValue("(NN)", PyBool_FromLong(pd_anomaly.on), PyBool_FromLong(pd_anomaly.check_nan));
    pd_anomaly = (pd_anomaly_mode){.on = on, .check_nan = on && check_nan, .trace = take_trace};
    return was;
}
static PyObject *f_is_anomaly(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(pd_anomaly.on);
}

#define KW(name, doc) {#name, (PyCFunction)(void (*)(void))f_##name, METH_VARARGS | METH_KEYWORDS, doc}
static PyMethodDef functions[] = {
    KW(backward,
       "backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, inputs=None)\n\nAdds the gradients "
       "of the tensors to the .grad of the leaves."),
    KW(grad,
       "grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, allow_unused=False)\n\nThe "
       "gradients of the outputs with respect to the inputs, as a tuple."),
    {"_set_anomaly", f_set_anomaly, METH_VARARGS,
     "_set_anomaly(on, check_nan): sets both and returns their previous values; see autograd.detect_anomaly."},
    {"is_anomaly_enabled", f_is_anomaly, METH_NOARGS,
     "is_anomaly_enabled()\n\nWhether nodes remember where they were made; see autograd.detect_anomaly."},
    {"is_grad_enabled", f_is_grad_enabled, METH_NOARGS,
     "is_grad_enabled()\n\nWhether ops are recorded in this thread."},
    {"is_inference_mode_enabled", f_is_inference, METH_NOARGS,
     "is_inference_mode_enabled()\n\nWhether tensors made now in this thread are inference tensors."},
    {"_set_inference_mode", f_set_inference, METH_O,
     "_set_inference_mode(mode): sets the mode and returns the previous one; see inference_mode."},
    {"autocast_state", f_autocast, METH_NOARGS,
     "autocast_state()\n\nThis thread's autocast as (dtype, whether it follows CUDA's list of ops), or None where it "
     "is off."},
    {"set_autocast", f_set_autocast, METH_VARARGS,
     "set_autocast(dtype, cuda, keep=True)\n\nTurns autocast on in this thread; dtype None turns it off. cuda: follow "
     "CUDA's list of ops. keep: cache the casts of parameters."},
    {"clear_autocast_cache", f_clear_autocast_cache, METH_NOARGS,
     "clear_autocast_cache()\n\nEmpties the cache of casts of this thread's autocast."},
    {"set_grad_enabled", f_set_grad_enabled, METH_O,
     "set_grad_enabled(mode)\n\nTurns the recording of ops on or off in this thread; returns the previous mode."},
    {0},
};

int pd_py_add_autograd(PyObject *module) {
    bool ok =
        pd_py_type(NULL, &handle_spec, NULL, &pd_py.HookHandle) && pd_py_type(module, &node_spec, NULL, &pd_py.Node);
    return ok ? PyModule_AddFunctions(module, functions) : -1;
}
