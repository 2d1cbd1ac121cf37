/* Recorded programs (autograd/program.h) of Python functions. */
#include "base/mem.h"
#include "py/autograd/tree.h"
#include "py/py.h"

#include <frameobject.h> /* Python 3.10 declares functions of frames here */
#include <structmember.h>

/* Something that must still be where it was: dict[key] is value, or the cell's content is. */
typedef struct guard { PyObject *holder, *key, *value; } guard;

typedef struct pyprogram {
    PyObject_HEAD
    pd_program *p;
    PyObject *args, *result; /* shapes: of (args, kwargs), and of what the function returned */
    guard *guards;
    Py_ssize_t nguards;
    PyObject *rows; /* what Python keeps here for the guards; NULL: nothing */
    uint32_t pass;  /* collect.c */
} pyprogram;

static PyTypeObject *program_type;

static void free_guards(pyprogram *self) {
    for (Py_ssize_t i = 0; i < self->nguards; i++) {
        Py_DECREF(self->guards[i].holder);
        Py_DECREF(self->guards[i].key);
        Py_DECREF(self->guards[i].value);
    }
    pd_free(self->guards);
    self->guards = NULL;
    self->nguards = 0;
}

typedef struct host_call { PyObject *fn, *args, *result; } host_call; /* [strong]; args, result: shapes */
static const pd_instr_kind host_call_kind;

typedef struct visitor { visitproc visit; void *arg; int result; } visitor;

static int visit_host_call(void *attrs, void *visitor_) {
    const host_call *c = attrs;
    visitor *v = visitor_;
    PyObject *all[] = {c->fn, c->args, c->result};
    for (int k = 0; k < 3 && !v->result; k++)
        if (all[k]) v->result = v->visit(all[k], v->arg);
    return v->result;
}

static pd_tensor *fixed_tensor(void *p, int k) { return pd_program_fixed(p, k, &(int){0}); }

static int program_traverse(PyObject *o, visitproc visit, void *arg) {
    pyprogram *self = (pyprogram *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(self->args);
    Py_VISIT(self->result);
    Py_VISIT(self->rows);
    for (Py_ssize_t i = 0; i < self->nguards; i++) {
        Py_VISIT(self->guards[i].holder);
        Py_VISIT(self->guards[i].key);
        Py_VISIT(self->guards[i].value);
    }
    visitor v = {visit, arg, 0};
    if (!self->p) return 0;
    pd_program_visit(self->p, &host_call_kind, visit_host_call, &v);
    return v.result ? v.result : pd_py_visit_tensors(fixed_tensor, self->p, &self->pass, visit, arg);
}

static int program_clear(PyObject *o) {
    pyprogram *self = (pyprogram *)o;
    free_guards(self);
    Py_CLEAR(self->args);
    Py_CLEAR(self->result);
    Py_CLEAR(self->rows);
    pd_program *p = self->p;
    self->p = NULL;
    pd_program_release(p);
    return 0;
}

static void program_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    program_clear(o);
    type->tp_free(o);
    Py_DECREF(type);
}

/* ---- the record of a call ---------------------------------------------------------------------------------------- */

typedef struct recording {
    PyObject *args, *result; /* [strong] shapes */
    pd_py_leaves in, out;
    pd_rehearsal *rehearsal;
    pd_program *p;
    const char *why; /* it gives no program, or another one than the call before; NULL: all is well */
    char text[PD_ERROR_TEXT];
} recording;

static void free_recording(recording *r) {
    Py_XDECREF(r->args);
    Py_XDECREF(r->result);
    pd_py_leaves_free(&r->in);
    pd_py_leaves_free(&r->out);
    if (r->rehearsal) pd_rehearse_drop(r->rehearsal);
    pd_program_release(r->p);
}

/* The function gets aliases of plain inputs: if it also uses such a tensor as its own, that is another one. */
static bool alias_inputs(pd_py_leaves *in) {
    for (size_t i = 0; i < in->n; i++) {
        pd_tensor *t = in->t[i], *alias;
        PyObject *wrapper = t->wrapper;
        bool plain = wrapper && Py_TYPE(wrapper) == (PyTypeObject *)pd_py.Tensor && !((pd_pytensor *)wrapper)->dict;
        if (t->requires_grad || t->base || t->meta || !plain) continue;
        pd_status status = pd_tensor_alias(t, false, &alias);
        if (status) {
            pd_py_raise(status);
            return false;
        }
        pd_tensor_release(t);
        in->t[i] = alias;
    }
    return true;
}

/* A tensor that was made in the recording, is not among the results and is alive in Python. The program has kept it,
   and a replay would not put a new one there. NULL: none. */
static PyObject *find_escaped(const recording *r, PyObject *objects) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        PyObject *o = PyList_GET_ITEM(objects, i);
        if (!pd_py_is_tensor(o)) continue;
        pd_tensor *t = pd_py_tensor(o);
        if (t->wrapper != o || t->wrapper_owned || !pd_recorder_slot(t)) continue;
        bool returned = false;
        for (size_t k = 0; k < r->out.n; k++) returned = returned || r->out.t[k] == t;
        if (!returned) return o;
    }
    return NULL;
}

static bool refuse_escaped(const recording *r) {
    PyObject *gc = PyImport_ImportModule("gc"), *helper = PyImport_ImportModule("pydist._replay"), *found = NULL;
    bool ok = gc && helper;
    for (int round = 0; round < 2 && ok; round++) { /* the first time there may be garbage */
        PyObject *objects = PyObject_CallMethod(gc, "get_objects", NULL);
        found = objects ? find_escaped(r, objects) : NULL;
        Py_XINCREF(found);
        ok = objects != NULL;
        Py_XDECREF(objects);
        if (!found) break;
        if (!round) {
            Py_CLEAR(found);
            PyGC_Collect();
        }
    }
    if (found) {
        PyObject *where = PyObject_CallMethod(helper, "_where", "O", found);
        const char *text = where ? PyUnicode_AsUTF8(where) : NULL;
        if (text) pd_record_refuse("a tensor of shape %s is kept %s", pd_tensor_shape(pd_py_tensor(found)), text);
        ok = text;
        Py_XDECREF(where);
        Py_DECREF(found);
    }
    Py_XDECREF(gc);
    Py_XDECREF(helper);
    return ok;
}

/* [new] fn's result; NULL with the exception set. */
static PyObject *call(const recording *r, PyObject *fn) {
    size_t at = 0;
    PyObject *both = pd_py_tree_join(r->args, r->in.t, &at), *result = NULL;
    if (both) result = PyObject_Call(fn, PyTuple_GET_ITEM(both, 0), PyTuple_GET_ITEM(both, 1));
    Py_XDECREF(both);
    return result;
}

static int equal_shapes(PyObject *a, PyObject *b) {
    pd_py_leaves none = {0};
    int same = a && b ? pd_py_tree_match(a, b, &none) : a == b;
    pd_py_leaves_free(&none);
    return same;
}

/* What the call did otherwise than the one before; NULL: nothing. */
static const char *difference(const recording *r, const pyprogram *before) {
    const char *text = pd_program_same(before->p, r->p);
    int same = text ? 1 : equal_shapes(before->result, r->result);
    if (same < 0) PyErr_Clear();
    if (same < 1) return "the step returns another structure, or other constants, in each step";
    return text ? text : pd_rehearsal_covers(r->rehearsal, r->p) ? NULL : "the step writes other memory in each step";
}

/* False: an exception is set. */
static bool end(recording *r, PyObject *result, const pyprogram *before) {
    if (!(r->result = pd_py_tree_split(result, &r->out)) || !refuse_escaped(r)) {
        pd_recorder_abandon();
        return false;
    }
    pd_status status = pd_recorder_end(r->out.t, (int)r->out.n, &r->p, &r->why);
    if (!status && r->p) r->why = before ? difference(r, before) : NULL;
    if (!status && r->p && before && !r->why) {
        status = pd_rehearse_end(r->rehearsal, r->p, r->out.t, &r->why);
        r->rehearsal = NULL;
        if (!status && !r->why) pd_program_settle(before->p, r->p);
        if (!status && !r->why) return true;
        pd_program_release(r->p);
        r->p = NULL;
    }
    if (status) r->why = pd_error_get()->text; /* nothing that the function itself has done */
    return true;
}

static PyObject *new_program(const recording *r) {
    pyprogram *self = (pyprogram *)program_type->tp_alloc(program_type, 0);
    if (!self) return NULL;
    pd_program_retain(self->p = r->p);
    self->args = Py_NewRef(r->args);
    self->result = Py_NewRef(r->result);
    return (PyObject *)self;
}

/* Begins the recording. *why NULL: another thread records. */
static bool begin(recording *r, const pyprogram *before, const char **why) {
    pd_status status = PD_OK;
    *why = NULL;
    if (pd_recorder_is_busy()) return false;
    if (before) {
        pd_program_look(before->p);
        status = pd_rehearse_begin(before->p, r->in.t, &r->rehearsal);
    }
    PD_THEN(pd_recorder_begin(r->in.t, (int)r->in.n));
    if (status) *why = strcpy(r->text, pd_error_get()->text);
    return !status;
}

/* The call is done, so a lack of memory afterwards is no error of the caller. */
static const char *no_memory(recording *r) {
    pd_program_release(r->p);
    r->p = NULL;
    if (!PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_Clear();
    return "there was no memory for a program";
}

/* [new] (result, program or None, why or None) */
static PyObject *row_of(const recording *r, PyObject *result, PyObject *before) {
    PyObject *program = !r->p ? Py_NewRef(Py_None) : before && !r->why ? Py_NewRef(before) : new_program(r),
             *why = r->why ? PyUnicode_FromString(r->why) : Py_NewRef(Py_None);
    return Py_BuildValue("(ONN)", result, program, why);
}

static PyObject *f_record(PyObject *module, PyObject *args) {
    PyObject *fn, *a, *kw, *before = NULL, *result = NULL, *row = NULL;
    recording r = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!O!|O:_program_record", &fn, &PyTuple_Type, &a, &PyDict_Type, &kw, &before))
        return NULL;
    if (before == Py_None) before = NULL;
    if (before && Py_TYPE(before) != program_type)
        return PyErr_Format(PyExc_TypeError, "_program_record: before is %.100s (expected Program or None)",
                            Py_TYPE(before)->tp_name);
    PyObject *both = PyTuple_Pack(2, a, kw);
    if (both && (r.args = pd_py_tree_split(both, &r.in)) && alias_inputs(&r.in)) {
        bool begun = begin(&r, (pyprogram *)before, &r.why);
        result = call(&r, fn);
        if (!result) pd_recorder_abandon();
        else if (begun && !end(&r, result, (pyprogram *)before)) r.why = no_memory(&r);
        if (result && !PyErr_Occurred()) row = row_of(&r, result, before);
    }
    Py_XDECREF(result);
    Py_XDECREF(both);
    free_recording(&r);
    return row;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static bool holds(const guard *g) {
    if (g->key == Py_Ellipsis) return PyObject_Size(g->holder) == PyLong_AsSsize_t(g->value);
    if (PyCell_Check(g->holder)) return PyCell_GET(g->holder) == g->value;
    if (PyDict_Check(g->holder)) return PyDict_GetItemWithError(g->holder, g->key) == g->value;
    Py_ssize_t i = PyLong_AsSsize_t(g->key);
    return i < PyList_GET_SIZE(g->holder) && PyList_GET_ITEM(g->holder, i) == g->value;
}

/* 1: the program may run on the tensors, which are appended to in. */
static int fits(const pyprogram *self, PyObject *args, PyObject *kwargs, bool whole, pd_py_leaves *in) {
    int same = pd_py_tree_match(PyTuple_GET_ITEM(self->args, 0), args, in);
    if (same > 0) same = pd_py_tree_match(PyTuple_GET_ITEM(self->args, 1), kwargs, in);
    if (same > 0) same = pd_program_fits(self->p, in->t, (int)in->n, whole);
    for (Py_ssize_t i = 0; i < self->nguards && same > 0 && whole; i++) same = holds(&self->guards[i]);
    return PyErr_Occurred() ? -1 : same;
}

static bool read_call(PyObject *const *args, Py_ssize_t n, const char *name) {
    if (n == 2 && PyTuple_Check(args[0]) && PyDict_Check(args[1])) return true;
    PyErr_Format(PyExc_TypeError, "%s: the arguments do not fit (expected a tuple and a dict)", name);
    return false;
}

static PyObject *program_fits(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    pd_py_leaves in = {0};
    if (!read_call(args, n, "fits")) return NULL;
    int same = fits((pyprogram *)self, args[0], args[1], false, &in);
    pd_py_leaves_free(&in);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyObject *run(const pyprogram *self, const pd_py_leaves *in) {
    pd_tensor *few[16], **out = few;
    size_t n = (size_t)pd_program_outputs(self->p), at = 0;
    if (n > 16) PD_PY_TRY(pd_malloc(sizeof *out * n, "replay", &out));
    pd_py_drain();
    pd_status status = pd_program_run(self->p, in->t, out);
    PyObject *result = status ? pd_py_raise(status) : pd_py_tree_join(self->result, out, &at);
    for (size_t k = 0; k < n && !status; k++) pd_tensor_release(out[k]);
    if (out != few) pd_free(out);
    return result;
}

static PyObject *program_run(PyObject *o, PyObject *const *args, Py_ssize_t n) {
    pyprogram *self = (pyprogram *)Py_NewRef(o); /* a host call may drop the caller's reference */
    pd_py_leaves in = {0};
    int same = read_call(args, n, "run") ? fits(self, args[0], args[1], true, &in) : -1;
    PyObject *result = same < 0 ? NULL : same ? run(self, &in) : Py_NewRef(Py_NotImplemented);
    pd_py_leaves_free(&in);
    Py_DECREF(self);
    return result;
}

static PyObject *get_fixed(PyObject *self, void *unused) {
    const pd_program *p = ((pyprogram *)self)->p;
    PyObject *list = PyList_New(0);
    int own;
    (void)unused, pd_program_fixed(p, 0, &own);
    for (int k = 0; k < own && list; k++) {
        PyObject *o = pd_py_wrap(pd_program_fixed(p, k, &own));
        if (!o || PyList_Append(list, o)) Py_CLEAR(list);
        Py_XDECREF(o);
    }
    return list;
}

static bool is_guard(PyObject *row) {
    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 3) return false;
    PyObject *holder = PyTuple_GET_ITEM(row, 0);
    PyObject *key = PyTuple_GET_ITEM(row, 1);
    if (key == Py_Ellipsis) return PyLong_CheckExact(PyTuple_GET_ITEM(row, 2));
    return PyCell_Check(holder) || PyDict_Check(holder) || (PyList_Check(holder) && PyLong_CheckExact(key));
}

static PyObject *program_guard(PyObject *o, PyObject *rows) {
    pyprogram *self = (pyprogram *)o;
    PyObject *all = PySequence_Tuple(rows);
    if (!all) return NULL;
    free_guards(self);
    pd_program_forget_bodies(self->p); /* from now on it runs */
    pd_status status = pd_malloc(sizeof *self->guards * (size_t)(PyTuple_GET_SIZE(all) + 1), "replay", &self->guards);
    if (status) pd_py_raise(status);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all) && !PyErr_Occurred(); i++) {
        PyObject *row = PyTuple_GET_ITEM(all, i);
        if (!is_guard(row)) {
            PyErr_Format(PyExc_TypeError, "guard: entry %zd does not fit (expected (dict, list or cell, key, value))",
                         i);
            break;
        }
        self->guards[self->nguards++] =
            (guard){Py_NewRef(PyTuple_GET_ITEM(row, 0)), Py_NewRef(PyTuple_GET_ITEM(row, 1)),
                    Py_NewRef(PyTuple_GET_ITEM(row, 2))};
    }
    Py_DECREF(all);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *get_size(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_program_size(((pyprogram *)self)->p));
}
static PyObject *get_host(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(pd_program_needs_host(((pyprogram *)self)->p));
}

/* ---- where Python keeps tensors ---------------------------------------------------------------------------------- */

/* A walk over all objects that some objects refer to, directly or not. The collector's lists would not do, since
   gc.freeze() takes objects out of them. */
typedef struct walk {
    PyObject **todo; /* [borrowed]: nothing runs meanwhile that could free them */
    size_t n, cap;
    PyObject **seen; /* open addressing */
    size_t nseen, nslots;
    PyObject *ids;   /* of the wanted tensors */
    int found;       /* whether the object that is looked at refers to one; -1: with the exception set */
} walk;

static PyObject **slot_of(const walk *w, const PyObject *o) {
    size_t i = (size_t)(((uintptr_t)o >> 4) * 0x9E3779B97F4A7C15u >> 20);
    while (w->seen[i & (w->nslots - 1)] && w->seen[i & (w->nslots - 1)] != o) i++;
    return &w->seen[i & (w->nslots - 1)];
}

static pd_status enlarge(walk *w) {
    walk bigger = *w;
    bigger.nslots = w->nslots ? 2 * w->nslots : 1 << 16;
    PD_TRY(pd_calloc(sizeof *bigger.seen * bigger.nslots, "replay", &bigger.seen));
    for (size_t i = 0; i < w->nslots; i++)
        if (w->seen[i]) *slot_of(&bigger, w->seen[i]) = w->seen[i];
    pd_free(w->seen);
    *w = bigger;
    return PD_OK;
}

static int visit(PyObject *o, void *walk_) {
    walk *w = walk_;
    if (!o || w->found < 0) return 0;
    if (pd_py_is_tensor(o)) {
        PyObject *id = PyLong_FromVoidPtr(o);
        int wanted = id ? PySet_Contains(w->ids, id) : -1;
        if (wanted) w->found = wanted;
        Py_XDECREF(id);
        return 0;
    }
    if (!PyObject_IS_GC(o) || !PyObject_GC_IsTracked(o) || PyFrame_Check(o)) return 0;
    pd_status status = 2 * w->nseen >= w->nslots ? enlarge(w) : PD_OK;
    PyObject **place = status ? NULL : slot_of(w, o);
    if (place && *place) return 0;
    PD_THEN(pd_grow(&w->todo, &w->cap, w->n + 1, sizeof *w->todo, "replay"));
    if (status) {
        pd_py_raise(status);
        w->found = -1;
        return 0;
    }
    *place = w->todo[w->n++] = o;
    w->nseen++;
    return 0;
}

/* _holders(ids, roots): objects, but no tuples, that the roots lead to and that refer to one of these tensors. */
static PyObject *f_holders(PyObject *module, PyObject *args) {
    PyObject *ids, *roots;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:_holders", &ids, &roots)) return NULL;
    walk w = {.ids = PySet_New(ids)};
    PyObject *found = w.ids ? PyList_New(0) : NULL;
    int was_on = PyGC_Disable(); /* else a collection could free what waits to be walked */
    if (found) visit(roots, &w);
    while (found && w.n && w.found >= 0) {
        PyObject *o = w.todo[--w.n];
        w.found = 0;
        Py_TYPE(o)->tp_traverse(o, visit, &w);
        if (w.found > 0 && !PyTuple_Check(o) && PyList_Append(found, o)) w.found = -1;
    }
    if (was_on) PyGC_Enable();
    if (w.found < 0) Py_CLEAR(found);
    pd_free(w.todo);
    pd_free(w.seen);
    Py_XDECREF(w.ids);
    return found;
}

/* ---- calls of Python inside a step ------------------------------------------------------------------------------- */

static void drop_host_call(void *attrs) {
    host_call *c = attrs;
    pd_py_drop(c->fn);
    pd_py_drop(c->args);
    if (c->result) pd_py_drop(c->result);
}

/* fn's tensors on these arguments. */
static bool call_again(const host_call *c, pd_tensor *const *in, pd_py_leaves *out) {
    size_t at = 0;
    PyObject *both = pd_py_tree_join(c->args, in, &at),
             *result = both ? PyObject_Call(c->fn, PyTuple_GET_ITEM(both, 0), PyTuple_GET_ITEM(both, 1)) : NULL;
    int same = result ? pd_py_tree_match(c->result, result, out) : -1;
    Py_XDECREF(both);
    Py_XDECREF(result);
    if (!same)
        PyErr_Format(PyExc_RuntimeError,
                     "each_time: %R returned another kind of result than when it was recorded (expected the same "
                     "structure, numbers and number of tensors)",
                     c->fn);
    return same > 0;
}

static pd_status run_host_call(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    pd_py_leaves made = {0};
    PyGILState_STATE gil = PyGILState_Ensure();
    bool ok = call_again(attrs, in, &made);
    pd_status status = ok ? PD_OK : pd_py_caught();
    (void)nin;
    for (int k = 0; k < nout && ok; k++) pd_tensor_retain(out[k] = made.t[k]);
    pd_py_leaves_free(&made);
    PyGILState_Release(gil);
    return status;
}

static bool same_host_call(const void *x, const void *y) {
    const host_call *a = x, *b = y;
    int same = PyObject_RichCompareBool(a->fn, b->fn, Py_EQ);
    if (same > 0) same = equal_shapes(a->args, b->args);
    if (same > 0) same = equal_shapes(a->result, b->result);
    if (same < 0) PyErr_Clear();
    return same > 0;
}

static const pd_instr_kind host_call_kind = {
    .name = "each_time", .run = run_host_call, .same = same_host_call, .drop = drop_host_call, .host = true};

static PyObject *f_each_time(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    if (PyTuple_GET_SIZE(args) < 1)
        return PyErr_Format(PyExc_TypeError, "each_time: argument 'fn' is missing (expected a function)");
    PyObject *fn = PyTuple_GET_ITEM(args, 0), *rest = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)),
             *named = kwargs ? Py_NewRef(kwargs) : PyDict_New(),
             *both = rest && named ? PyTuple_Pack(2, rest, named) : NULL, *result = NULL;
    pd_py_leaves in = {0}, out = {0};
    host_call c = {.fn = fn};
    if (both && !pd_is_recording()) {
        result = PyObject_Call(fn, rest, named);
    } else if (both && (c.args = pd_py_tree_split(both, &in))) {
        pd_record_host_begin(in.t, (int)in.n);
        result = PyObject_Call(fn, rest, named);
        if (result) c.result = pd_py_tree_split(result, &out);
        if (!c.result) {
            Py_CLEAR(result);
            pd_record_refuse("each_time() raised an exception");
        }
        Py_INCREF(fn);
        pd_record_host_end(&host_call_kind, &c, sizeof c, out.t, (int)out.n);
    }
    pd_py_leaves_free(&in);
    pd_py_leaves_free(&out);
    Py_XDECREF(both);
    Py_XDECREF(rest);
    Py_XDECREF(named);
    return result;
}

static PyObject *f_refuse(PyObject *module, PyObject *why) {
    const char *text = PyUnicode_AsUTF8(why);
    (void)module;
    if (!text) return NULL;
    pd_record_refuse("%s", text);
    Py_RETURN_NONE;
}

static PyObject *f_recording(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(pd_is_recording());
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static PyMethodDef program_methods[] = {
    {"fits", (PyCFunction)(void (*)(void))program_fits, METH_FASTCALL,
     "fits(args, kwargs) -> bool: whether the program was recorded for arguments like these, in the present modes."},
    {"run", (PyCFunction)(void (*)(void))program_run, METH_FASTCALL,
     "run(args, kwargs): the program's result; NotImplemented if it may not run on these arguments now."},
    {"guard", program_guard, METH_O,
     "guard(rows): makes the program ready. Its run() asks whether the value of each row (dict, list or cell; key; "
     "value) is there."},
    {0}};
static PyGetSetDef program_getset[] = {
    {"size", get_size, NULL, "The number of instructions.", NULL},
    {"needs_host", get_host, NULL, "Whether a run calls Python.", NULL},
    {"fixed", get_fixed, NULL, "The tensors that the program uses besides arguments.", NULL},
    {0}};
static PyMemberDef program_members[] = {{"guards", T_OBJECT, offsetof(pyprogram, rows), 0,
                                         "What Python keeps here until the guards are set; None at first."},
                                        {0}};
static PyType_Slot program_slots[] = {{Py_tp_dealloc, program_dealloc}, {Py_tp_traverse, program_traverse},
                                      {Py_tp_clear, program_clear},     {Py_tp_methods, program_methods},
                                      {Py_tp_getset, program_getset},   {Py_tp_members, program_members},
                                      {0}};
static PyType_Spec program_spec = {
    .name = "pydist._C.Program", .basicsize = sizeof(pyprogram), .slots = program_slots,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION};

static PyMethodDef functions[] = {
    {"_program_record", f_record, METH_VARARGS,
     "_program_record(fn, args, kwargs, before=None): calls fn and records it. Returns (result, program, why). Without "
     "a why, the program is new or, with `before`, that one: this call did the same, and a rehearsal gave the same "
     "bits. Else why says what differs, and the program is new; or what cannot be recorded, and the program is None. "
     "Both None: another thread records."},
    {"_each_time", (PyCFunction)(void (*)(void))f_each_time, METH_VARARGS | METH_KEYWORDS,
     "_each_time(fn, *args, **kwargs): calls fn; replays of the step that is recorded call it again."},
    {"_holders", f_holders, METH_VARARGS,
     "_holders(ids, roots): the objects, except tuples, that the roots lead to and that refer to a tensor with one of "
     "these ids."},
    {"_program_refuse", f_refuse, METH_O, "_program_refuse(why): this thread's recording will give no program."},
    {"_program_recording", f_recording, METH_NOARGS, "_program_recording() -> bool: whether this thread records."},
    {0}};

int pd_py_add_program(PyObject *module) {
    PyObject *kept = NULL;
    if (pd_py_add_tree() || !pd_py_type(module, &program_spec, NULL, &kept)) return -1;
    program_type = (PyTypeObject *)kept;
    return PyModule_AddFunctions(module, functions);
}
