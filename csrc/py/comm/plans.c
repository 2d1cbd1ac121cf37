/* How ops run on parts of spread tensors (parallel/spread.h), for distributed.tensor, which makes the plans. */
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "parallel/spread.h"
#include "py/comm/comm.h"
#include "py/py.h"

static PyObject *planner; /* of Python */
static PyTypeObject *move_type;

/* ---- moves ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD pd_moves *move;
} pymove;

static const char *const kinds[] = {
    [PD_STEP_NARROW] = "narrow",   [PD_STEP_GATHER] = "gather",     [PD_STEP_REDUCE] = "reduce",
    [PD_STEP_SCATTER] = "scatter", [PD_STEP_EXCHANGE] = "exchange", [PD_STEP_FILL] = "fill",
    [PD_STEP_SCALE] = "scale",     [PD_STEP_REFUSE] = "refuse",
};

static bool sizes_of(PyObject *o, pd_group *g, int64_t **out) {
    PyObject *items = pd_py_items(o, "Move", "sizes", "a size for each rank");
    if (!items) return false;
    bool ok = PyTuple_GET_SIZE(items) == pd_group_size(g);
    if (!ok)
        PyErr_Format(PyExc_ValueError, "Move: got %zd sizes (expected %d)", PyTuple_GET_SIZE(items), pd_group_size(g));
    pd_status status = ok ? pd_malloc(sizeof **out * (size_t)PyTuple_GET_SIZE(items), "Move", out) : PD_OK;
    if (status) pd_py_raise(status);
    for (Py_ssize_t i = 0; ok && !status && i < PyTuple_GET_SIZE(items); i++)
        ok = pd_py_int(PyTuple_GET_ITEM(items, i), "Move", "size", &(*out)[i]);
    Py_DECREF(items);
    return ok && !status;
}

/* ("narrow", dim, from, size), ("gather", group, dim, sizes), ("reduce", group, op),
   ("scatter", group, dim, sizes, op), ("exchange", group, dim, sizes, other, sizes), ("fill", value),
   ("scale", value), ("refuse",). */
static bool step_of(PyObject *o, pd_step *s) {
    PyObject *group = NULL, *sizes = NULL, *others = NULL;
    const char *kind;
    long long from = 0, size = 0;
    const char *op = "sum";
    int ok = 0;
    if (!PyTuple_Check(o) || !PyTuple_GET_SIZE(o) || !(kind = PyUnicode_AsUTF8(PyTuple_GET_ITEM(o, 0)))) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "Move: a step is %R (expected a tuple)", o);
        return false;
    }
    size_t k = 0;
    while (k < sizeof kinds / sizeof *kinds && strcmp(kinds[k], kind)) k++;
    s->kind = (pd_step_kind)k;
    switch (k) {
        case PD_STEP_NARROW:
            ok = PyArg_ParseTuple(o, "siLL", &kind, &s->dim, &from, &size);
            break;
        case PD_STEP_GATHER:
            ok = PyArg_ParseTuple(o, "sOiO", &kind, &group, &s->dim, &sizes);
            break;
        case PD_STEP_REDUCE:
            ok = PyArg_ParseTuple(o, "sOs", &kind, &group, &op);
            break;
        case PD_STEP_SCATTER:
            ok = PyArg_ParseTuple(o, "sOiOs", &kind, &group, &s->dim, &sizes, &op);
            break;
        case PD_STEP_EXCHANGE:
            ok = PyArg_ParseTuple(o, "sOiOiO", &kind, &group, &s->dim, &sizes, &s->other, &others);
            break;
        case PD_STEP_REFUSE:
            ok = 1;
            break;
        case PD_STEP_FILL:
        case PD_STEP_SCALE:
            ok = PyArg_ParseTuple(o, "sd", &kind, &s->value);
            break;
        default:
            PyErr_Format(PyExc_ValueError, "Move: a step is %R (expected narrow, gather, ...)", o);
    }
    s->from = from, s->size = size;
    while (ok && s->op < PD_REDUCE_COUNT && strcasecmp(pd_reduce_names[s->op], op)) s->op++;
    if (ok && s->op == PD_REDUCE_COUNT) {
        PyErr_Format(PyExc_ValueError, "Move: reduce op is %s (expected sum, avg, max, min or product)", op);
        return false;
    }
    pd_group *g = ok && group ? pd_py_group(group) : NULL;
    if (!ok || (group && !g)) return false;
    if (g) pd_group_retain(s->group = g);
    return (!sizes || sizes_of(sizes, g, &s->sizes)) && (!others || sizes_of(others, g, &s->other_sizes));
}

static PyObject *move_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *ways[2];
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!O!:Move", &PyTuple_Type, &ways[0], &PyTuple_Type, &ways[1])) return NULL;
    pymove *self = (pymove *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    pd_status status = pd_moves_new((int)PyTuple_GET_SIZE(ways[0]), (int)PyTuple_GET_SIZE(ways[1]), &self->move);
    bool ok = !status;
    if (status) pd_py_raise(status);
    for (int way = 0; ok && way < 2; way++)
        for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(ways[way]); i++)
            ok = step_of(PyTuple_GET_ITEM(ways[way], i), &self->move->steps[way][i]);
    if (!ok) Py_CLEAR(self);
    return (PyObject *)self;
}

static void move_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    pd_moves_release(((pymove *)self)->move);
    type->tp_free(self);
    Py_DECREF(type);
}

static pd_moves *move_of(PyObject *o, const char *op) {
    if (Py_TYPE(o) == move_type) return ((pymove *)o)->move;
    PyErr_Format(PyExc_TypeError, "%s: got %R (expected a Move)", op, o);
    return NULL;
}

static bool expect_spread(PyObject *o, const char *op) {
    if (PyObject_TypeCheck(o, (PyTypeObject *)pd_py.Spread)) return true;
    PyErr_Format(PyExc_TypeError, "%s: got %R (expected a Spread)", op, o);
    return false;
}

static PyObject *spread_move(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (n != 3 && n != 4) return PyErr_Format(PyExc_TypeError, "spread_move: got %zd arguments (expected 3 or 4)", n);
    pd_tensor *t = pd_py_expect_tensor(args[0], "spread_move", "tensor"), *out = NULL;
    pd_moves *m = t ? move_of(args[1], "spread_move") : NULL;
    if (!m || (args[2] != Py_None && !expect_spread(args[2], "spread_move"))) return NULL;
    /* what is made of a leaf leads back to it: a circle */
    bool once = n == 4 && args[3] == Py_True && pd_grad_mode && pd_tensor_wants_grad(t) && t->meta && t->meta->grad_fn;
    if (once && (out = pd_tensor_derived(t, m, true))) return pd_py_wrap_new(out);
    PD_PY_TRY(pd_moves_run(m, false, t, m->n[0] > 0, m->n[0] ? pd_py_site() : 0, &out));
    pd_spread *s = args[2] == Py_None ? NULL : pd_py_spread(args[2]);
    pd_tensor_set_spread(out, s);
    pd_spread_release(s);
    pd_status status = once && s ? pd_tensor_derive(t, m, out) : PD_OK;
    if (status) pd_tensor_release(out);
    PD_PY_TRY(status);
    return pd_py_wrap_new(out);
}

/* ---- calls in Python --------------------------------------------------------------------------------------------- */

static PyObject *tensors(pd_tensor *const *t, int n) { /* [new] a tuple */
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple && i < n; i++) {
        PyObject *o = pd_py_wrap(t[i]);
        if (o)
            PyTuple_SET_ITEM(tuple, i, o);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *attributes(const pd_def *def, const void *attrs) { /* [new] a dict */
    PyObject *dict = PyDict_New();
    for (int i = 0; dict && i < def->nparams; i++) {
        const pd_param *p = &def->params[i];
        if (p->attr < 0 || p->type == PD_T_RNG) continue;
        PyObject *o = pd_py_attr(p, attrs);
        if (!o || PyDict_SetItemString(dict, p->name, o)) Py_CLEAR(dict);
        Py_XDECREF(o);
    }
    return dict;
}

/* [new] f(name, inputs, attributes, bytes of the attributes, the tensor that is written or None, wants) */
static PyObject *ask(PyObject *f, const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into,
                     bool wants) {
    PyObject *inputs = tensors(in, nin), *dict = attributes(def, attrs), *written = pd_py_wrap(into), *result = NULL;
    if (inputs && dict && written)
        result = PyObject_CallFunction(f, "sOOy#OO", def->name, inputs, dict, (const char *)attrs,
                                       (Py_ssize_t)def->op->attrs, written, wants ? Py_True : Py_False);
    Py_XDECREF(inputs);
    Py_XDECREF(dict);
    Py_XDECREF(written);
    return result;
}

static const pd_def *find_op(const char *name) {
    for (int i = 0; i < PD_OP_COUNT; i++)
        if (!strcmp(pd_defs[i].name, name)) return &pd_defs[i];
    PyErr_Format(PyExc_ValueError, "plan: no op is called %s (expected a name of op_table())", name);
    return NULL;
}

static void drop_object(void *o) { pd_py_drop(o); }

/* (function, moves, spreads of the results, bytes of attributes or None, name of the op that runs or None, keep) */
static bool read_plan(PyObject *o, const pd_def *def, int nin, pd_plan **out, bool *keep) {
    PyObject *function, *moves, *spreads, *attrs;
    const char *runs;
    pd_plan *p = NULL;
    int lasts;
    if (!PyTuple_Check(o)) {
        PyErr_Format(PyExc_TypeError, "plan: of %s: got %R (expected a tuple)", def->name, o);
        return false;
    }
    if (!PyArg_ParseTuple(o, "OO!O!Ozp:plan", &function, &PyTuple_Type, &moves, &PyTuple_Type, &spreads, &attrs, &runs,
                          &lasts))
        return false;
    pd_status status = pd_plan_new(nin, &p);
    if (status) return pd_py_raise(status);
    bool ok = PyTuple_GET_SIZE(spreads) <= PD_MAX_OUTS && PyTuple_GET_SIZE(moves) <= nin &&
              (attrs == Py_None || (PyBytes_Check(attrs) && PyBytes_GET_SIZE(attrs) == (Py_ssize_t)def->op->attrs));
    if (!ok) PyErr_Format(PyExc_ValueError, "plan: of %s: got %R (expected one that fits the op)", def->name, o);
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(moves); i++) {
        PyObject *m = PyTuple_GET_ITEM(moves, i);
        if (m == Py_None) continue;
        if ((ok = (p->moves[i] = move_of(m, "plan")) != NULL)) pd_moves_retain(p->moves[i]);
    }
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(spreads); i++) {
        PyObject *s = PyTuple_GET_ITEM(spreads, i);
        if (s != Py_None && (ok = expect_spread(s, "plan"))) p->out[i] = pd_py_spread(s);
    }
    if (ok && attrs != Py_None) {
        p->changed = true;
        memcpy(p->attrs, PyBytes_AS_STRING(attrs), def->op->attrs);
    }
    if (ok && runs) ok = (p->runs = find_op(runs)) != NULL;
    if (ok && function != Py_None) p->host = Py_NewRef(function), p->drop = drop_object;
    *keep = lasts;
    if (ok)
        *out = p;
    else
        pd_plan_release(p);
    return ok;
}

static pd_status make_plan(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into,
                           bool wants, pd_plan **out, bool *keep) {
    if (!planner)
        return pd_fail(PD_E_NOTIMPL, "%s: got a DTensor (expected pydist.distributed.tensor to be imported)",
                       def->name);
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *made = ask(planner, def, in, nin, attrs, into, wants);
    bool ok = made && read_plan(made, def, nin, out, keep);
    pd_status status = ok ? PD_OK : pd_py_caught();
    Py_XDECREF(made);
    PyGILState_Release(gil);
    return status;
}

/* Reads a tensor or a tuple of tensors into out. */
static bool read_results(PyObject *made, const pd_def *def, pd_tensor **out, int *nout) {
    PyObject *tuple = PyTuple_Check(made) ? Py_NewRef(made) : PyTuple_Pack(1, made);
    bool ok = tuple && PyTuple_GET_SIZE(tuple) <= PD_MAX_OUTS;
    *nout = 0;
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(tuple); i++) {
        pd_tensor *t = pd_py_expect_tensor(PyTuple_GET_ITEM(tuple, i), def->name, "a result");
        if ((ok = t != NULL)) pd_tensor_retain(out[(*nout)++] = t);
    }
    if (!ok)
        while (*nout) pd_tensor_release(out[--*nout]);
    Py_XDECREF(tuple);
    return ok;
}

static pd_status call_host(const pd_plan *p, const pd_def *def, pd_tensor *const *in, int nin, const void *attrs,
                           pd_tensor *into, pd_tensor **out, int *nout) {
    PyGILState_STATE gil = PyGILState_Ensure();
    pd_tensor *made[PD_MAX_OUTS];
    int n = 0;
    PyObject *result = ask(p->host, def, in, nin, attrs, into, pd_grad_mode);
    bool ok = result && read_results(result, def, made, &n);
    pd_status status = ok ? PD_OK : pd_py_caught();
    Py_XDECREF(result);
    if (!status && into) {
        if (made[0] != into) status = pd_engine.write(into, made[0]);
        while (n) pd_tensor_release(made[--n]);
    } else if (!status) {
        memcpy(out, made, sizeof *made * (size_t)n);
        *nout = n;
    }
    PyGILState_Release(gil);
    return status;
}

/* ---- for planners ------------------------------------------------------------------------------------------------ */

typedef struct { /* arguments (name, inputs, bytes) */
    const pd_def *def;
    pd_tensor *in[64];
    int nin;
    uint64_t attrs[PD_MAX_ATTRS / 8];
} given;

static bool read_given(PyObject *args, const char *op, given *g) {
    const char *name, *bytes;
    PyObject *inputs;
    Py_ssize_t n;
    *g = (given){0}; /* inputs that the caller leaves out are NULL */
    if (!PyArg_ParseTuple(args, "sO!y#", &name, &PyTuple_Type, &inputs, &bytes, &n)) return false;
    if (!(g->def = find_op(name))) return false;
    g->nin = (int)PyTuple_GET_SIZE(inputs);
    int least = g->def->ninputs - (g->def->list >= 0); /* a list may be empty */
    bool fits = g->def->list < 0 ? g->nin == least : g->nin >= least;
    if (n != (Py_ssize_t)g->def->op->attrs || g->nin > 64 || !fits) {
        PyErr_Format(PyExc_ValueError, "%s: of %s, with %zd bytes, %d inputs (expected an op's)", op, name, n, g->nin);
        return false;
    }
    memcpy(g->attrs, bytes, (size_t)n);
    for (int i = 0; i < g->nin; i++) {
        PyObject *o = PyTuple_GET_ITEM(inputs, i);
        g->in[i] = NULL;
        if (o != Py_None && !(g->in[i] = pd_py_expect_tensor(o, op, "an input"))) return false;
    }
    for (int i = 0; i < g->def->nparams && g->def->list < 0; i++) {
        const pd_param *p = &g->def->params[i];
        if (p->type == PD_T_TENSOR && !g->in[p->input]) {
            PyErr_Format(PyExc_ValueError, "%s: of %s, without %s (expected a Tensor)", op, name, p->name);
            return false;
        }
    }
    return true;
}

static PyObject *op_apply(PyObject *module, PyObject *args) {
    given g;
    pd_tensor *out[PD_MAX_OUTS];
    int n;
    (void)module;
    if (!read_given(args, "op_apply", &g)) return NULL;
    PD_PY_TRY(pd_apply(g.def, g.in, g.nin, g.attrs, out, &n));
    PyObject *made = tensors(out, n);
    for (int i = 0; i < n; i++) pd_tensor_release(out[i]);
    return made;
}

/* Whether each element of the result depends on one place of the inputs only. */
static PyObject *op_is_each(PyObject *module, PyObject *args) {
    given g;
    (void)module;
    if (!read_given(args, "op_is_each", &g)) return NULL;
    pd_call c = {.def = g.def, .attrs = g.attrs, .in = g.in, .nin = g.nin};
    if (!g.def->op->infer) Py_RETURN_FALSE;
    c.nout = g.def->op->nout ? g.def->op->nout : 1;
    pd_status status = PD_OK;
    for (int i = 0; i < c.nout && !status; i++) status = pd_tensor_shell(&c.out[i]);
    PD_THEN(g.def->op->infer(&c));
    for (int i = 0; i < c.nout; i++) pd_tensor_release(c.out[i]);
    PD_PY_TRY(status); /* shapes that do not fit, say: the op's own error, before anything is sent */
    return PyBool_FromLong(c.each);
}

static PyObject *op_linear(PyObject *module, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    const pd_def *def = text ? find_op(text) : NULL;
    (void)module;
    return def ? PyLong_FromLong(def->op->linear) : NULL;
}

/* [new] the bytes with other values of some attributes; None: those of the defaults */
static PyObject *op_attrs(PyObject *module, PyObject *args) {
    PyObject *bytes, *changed;
    const char *name;
    uint64_t attrs[PD_MAX_ATTRS / 8];
    (void)module;
    if (!PyArg_ParseTuple(args, "sOO!:op_attrs", &name, &bytes, &PyDict_Type, &changed)) return NULL;
    const pd_def *def = find_op(name);
    if (!def) return NULL;
    memcpy(attrs, def->defaults, def->op->attrs);
    if (bytes != Py_None) {
        if (!PyBytes_Check(bytes) || PyBytes_GET_SIZE(bytes) != (Py_ssize_t)def->op->attrs)
            return PyErr_Format(PyExc_ValueError, "op_attrs: of %s: got %R (expected %zu bytes)", name, bytes,
                                def->op->attrs);
        memcpy(attrs, PyBytes_AS_STRING(bytes), def->op->attrs);
    }
    for (int i = 0; i < def->nparams; i++) {
        const pd_param *p = &def->params[i];
        PyObject *o = PyDict_GetItemString(changed, p->name);
        if (o && !pd_py_set_attr(def, p, o, attrs)) return NULL;
    }
    return PyBytes_FromStringAndSize((const char *)attrs, (Py_ssize_t)def->op->attrs);
}

static PyObject *set_planner(PyObject *module, PyObject *function) {
    (void)module;
    Py_XSETREF(planner, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyObject *forget(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    pd_spread_forget();
    Py_RETURN_NONE;
}

static PyObject *count(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLong(pd_spread_plans());
}

static PyMethodDef functions[] = {
    {"spread_move", (PyCFunction)(void (*)(void))spread_move, METH_FASTCALL,
     "spread_move(tensor, move, spread, once=False)\n\nWhat the Move makes of this rank's part: a part of what "
     "`spread` describes, or a plain tensor for None. Gradients flow back. All ranks of the move's groups call it. "
     "once: what the move, which `spread` keeps, made of this tensor last time, if neither was written since."},
    {"set_spread_planner", set_planner, METH_O,
     "set_spread_planner(function)\n\nfunction(op, inputs, attributes, bytes, written tensor or None, whether "
     "gradients "
     "flow) says how an op runs on parts: (function or None, moves of the inputs, spreads of the results, bytes of "
     "other "
     "attributes or None, the op that runs instead or None, whether the same holds for each such call)."},
    {"spread_plans", count, METH_NOARGS, "spread_plans()\n\nHow many plans of ops on parts are kept: at most 4096."},
    {"spread_forget", forget, METH_NOARGS, "spread_forget()\n\nDrops all kept plans of ops on parts."},
    {"op_apply", op_apply, METH_VARARGS, "op_apply(name, inputs, bytes)\n\nThe results of an op, a tuple."},
    {"op_is_each", op_is_each, METH_VARARGS,
     "op_is_each(name, inputs, bytes)\n\nWhether the op is elementwise for such inputs."},
    {"op_linear", op_linear, METH_O,
     "op_linear(name)\n\nWhether the sum of results is the result of sums: 0 no, 1 it copies, 2 of all inputs, 3 of "
     "one "
     "input, 4 of the first."},
    {"op_attrs", op_attrs, METH_VARARGS,
     "op_attrs(name, bytes, changed)\n\nThe bytes of changed attributes; bytes None: of the defaults."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, move_new},
    {Py_tp_dealloc, move_dealloc},
    {Py_tp_doc, "Move(there, back)\n\nThe steps from one spread to another, and those of the gradient's way back."},
    {0},
};
static PyType_Spec spec = {
    .name = "pydist._C.Move", .basicsize = sizeof(pymove), .slots = slots, .flags = Py_TPFLAGS_DEFAULT};

int pd_py_add_plans(PyObject *module) {
    PyObject *made = PyType_FromSpec(&spec);
    if (!made || PyModule_AddObjectRef(module, "Move", made)) return -1;
    move_type = (PyTypeObject *)made;
    pd_spread_hosted = (pd_spread_host){.plan = make_plan, .call = call_host, .site = pd_py_site};
    pd_spread_init();
    return PyModule_AddFunctions(module, functions);
}
