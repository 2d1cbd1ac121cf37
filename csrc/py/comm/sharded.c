/* Units of sharded parameters and sharded models in Python, below nn.parallel.fsdp. */
#include "parallel/sharded.h"

#include "base/mem.h"
#include "py/comm/comm_impl.h"
#include "py/py.h"

#include <structmember.h>

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* A place of a module that shows the shard, and inside of forward the whole. */
typedef struct place {
    PyObject *parameters, *name; /* [strong] the module's dictionary, and the key */
    PyObject *shard, *whole;     /* [strong] */
    int param;
} place;

typedef struct {
    PyObject_HEAD
    pd_unit *u;
    place *places;
    size_t count, room;
    int inside;  /* enters that no leave has followed */
    bool shown;  /* the places show the wholes */
    char stays;  /* also when a backward has ended */
} pyunit;

static pd_unit *unit_of(PyObject *o) { return ((pyunit *)o)->u; }

/* *out: [new] n C strings, borrowed from the tuple *keep, [new]. */
static bool read_names(PyObject *o, Py_ssize_t n, PyObject **keep, const char ***out) {
    *out = NULL;
    if (!(*keep = pd_py_items(o, "ShardUnit", "names", "a list of str"))) return false;
    if (PyTuple_GET_SIZE(*keep) != n) {
        PyErr_Format(PyExc_ValueError, "ShardUnit: got %zd names for %zd parameters (expected one each)",
                     PyTuple_GET_SIZE(*keep), n);
        return false;
    }
    pd_status status = pd_malloc(sizeof **out * (size_t)(n + 1), "ShardUnit", out);
    if (status) pd_py_raise(status);
    for (Py_ssize_t i = 0; i < n && !status; i++)
        if (!((*out)[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(*keep, i)))) return false;
    return !status;
}

static bool read_dims(PyObject *o, Py_ssize_t n, int **out) {
    PyObject *dims = pd_py_items(o, "ShardUnit", "dims", "a list of int");
    bool ok = dims && PyTuple_GET_SIZE(dims) == n;
    *out = NULL;
    if (dims && !ok) PyErr_SetString(PyExc_ValueError, "ShardUnit: dims do not fit (expected one for each parameter)");
    pd_status status = ok ? pd_malloc(sizeof **out * (size_t)(n + 1), "ShardUnit", out) : PD_OK;
    if (status) pd_py_raise(status);
    for (Py_ssize_t i = 0; ok && !status && i < n; i++)
        ok = pd_py_int_in(PyTuple_GET_ITEM(dims, i), "ShardUnit", "dims", 0, PD_MAX_DIMS - 1, &(*out)[i]);
    Py_XDECREF(dims);
    return ok && !status;
}

static PyObject *unit_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"group", "params", "names", "dims", "low", "gathered", NULL};
    PyObject *group, *params, *names, *dims, *low = Py_None, *seq = NULL, *keep = NULL;
    int gathered = 0, *cut = NULL;
    pd_unit_options o = {0};
    pd_tensor **list = NULL;
    const char **texts = NULL;
    Py_ssize_t n;
    int64_t dtype;
    pyunit *self = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO|Op:ShardUnit", keywords, &group, &params, &names, &dims, &low,
                                     &gathered) ||
        !pd_py_dtype(low, "ShardUnit", "low", &dtype))
        return NULL;
    pd_group *g = pd_py_group(group);
    if (!g || !pd_py_tensors(params, "ShardUnit", "params", &seq, &list, &n)) return NULL;
    o = (pd_unit_options){.low = (pd_dtype)dtype, .gathered = gathered};
    if (read_names(names, n, &keep, &texts) && read_dims(dims, n, &cut) &&
        (self = (pyunit *)type->tp_alloc(type, 0))) {
        pd_status status = pd_unit_new(g, list, texts, cut, (int)n, o, &self->u);
        if (status) {
            Py_CLEAR(self);
            pd_py_raise(status);
        }
    }
    pd_free((void *)(uintptr_t)texts);
    pd_free(cut);
    pd_free(list);
    Py_XDECREF(seq);
    Py_XDECREF(keep);
    return (PyObject *)self;
}

static int unit_traverse(PyObject *o, visitproc visit, void *arg) {
    pyunit *self = (pyunit *)o;
    Py_VISIT(Py_TYPE(o));
    for (size_t i = 0; i < self->count; i++) {
        Py_VISIT(self->places[i].parameters);
        Py_VISIT(self->places[i].shard);
        Py_VISIT(self->places[i].whole);
    }
    return 0;
}

static int unit_clear(PyObject *o) {
    pyunit *self = (pyunit *)o;
    for (size_t i = 0; i < self->count; i++) {
        Py_CLEAR(self->places[i].parameters);
        Py_CLEAR(self->places[i].name);
        Py_CLEAR(self->places[i].shard);
        Py_CLEAR(self->places[i].whole);
    }
    self->count = 0;
    return 0;
}

static void unit_dealloc(PyObject *o) {
    pyunit *self = (pyunit *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    unit_clear(o);
    pd_free(self->places);
    pd_unit_release(self->u);
    type->tp_free(o);
    Py_DECREF(type);
}

static bool number_of(PyObject *self, PyObject *number, const char *op, int *out) {
    return pd_py_int_in(number, op, "param", 0, unit_of(self)->n - 1, out);
}

static PyObject *empty_shard(PyObject *self, PyObject *number) {
    pd_tensor *t;
    int i;
    if (!number_of(self, number, "empty_shard", &i)) return NULL;
    PD_PY_TRY(pd_unit_empty_shard(unit_of(self), i, &t));
    return pd_py_wrap_new(t);
}

static PyObject *set_shard(PyObject *o, PyObject *args) {
    pyunit *self = (pyunit *)o;
    PyObject *number, *shard;
    pd_tensor *t;
    int i;
    if (!PyArg_ParseTuple(args, "OO:set_shard", &number, &shard) || !number_of(o, number, "set_shard", &i) ||
        !(t = pd_py_expect_tensor(shard, "set_shard", "shard")))
        return NULL;
    PD_PY_TRY(pd_unit_set_shard(self->u, i, t));
    for (size_t k = 0; k < self->count; k++)
        if (self->places[k].param == i) Py_SETREF(self->places[k].shard, Py_NewRef(shard));
    Py_RETURN_NONE;
}

static PyObject *give(PyObject *o, PyObject *args) {
    PyObject *number, *grad;
    pd_tensor *g;
    pd_meta *m;
    int i;
    if (!PyArg_ParseTuple(args, "OO:give", &number, &grad) || !number_of(o, number, "give", &i) ||
        !(g = pd_py_expect_tensor(grad, "give", "grad")))
        return NULL;
    const pd_tensor *whole = unit_of(o)->params[i].whole;
    if (g->dtype != whole->dtype || !pd_tensor_same_shape(g, whole))
        return PyErr_Format(PyExc_ValueError, "give: the gradient of parameter %d does not fit (expected its shape and "
                            "dtype)", i);
    PD_PY_TRY(pd_meta_get(unit_of(o)->params[i].whole, &m));
    pd_tensor_retain(g);
    pd_meta_set_grad(m, g);
    Py_RETURN_NONE;
}

static PyObject *add_place(PyObject *o, PyObject *args) {
    pyunit *self = (pyunit *)o;
    PyObject *parameters, *name, *number;
    int i;
    if (!PyArg_ParseTuple(args, "OO!U:add_place", &number, &PyDict_Type, &parameters, &name) ||
        !number_of(o, number, "add_place", &i))
        return NULL;
    if (!self->u->params[i].shard)
        return PyErr_Format(PyExc_RuntimeError, "add_place: parameter %d has no shard (expected set_shard first)", i);
    PD_PY_TRY(pd_grow(&self->places, &self->room, self->count + 1, sizeof *self->places, "ShardUnit"));
    PyObject *shard = pd_py_wrap(self->u->params[i].shard), *whole = pd_py_wrap(self->u->params[i].whole);
    if (!shard || !whole) {
        Py_XDECREF(shard);
        Py_XDECREF(whole);
        return NULL;
    }
    self->places[self->count++] = (place){Py_NewRef(parameters), Py_NewRef(name), shard, whole, i};
    Py_RETURN_NONE;
}

static PyObject *shard_of(PyObject *self, PyObject *number) {
    int i;
    return number_of(self, number, "shard", &i) ? pd_py_wrap(unit_of(self)->params[i].shard) : NULL;
}

static PyObject *whole_of(PyObject *self, PyObject *number) {
    int i;
    return number_of(self, number, "whole", &i) ? pd_py_wrap(unit_of(self)->params[i].whole) : NULL;
}

/* Whether all places show what the unit has put there. */
static bool is_intact(const pyunit *self) {
    for (size_t i = 0; i < self->count; i++) {
        const place *p = &self->places[i];
        PyObject *now = PyDict_GetItemWithError(p->parameters, p->name);
        if (now != p->shard && now != p->whole) return false;
    }
    return pd_unit_is_settled(self->u);
}

static PyObject *intact(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(is_intact((pyunit *)self));
}

static int put(pyunit *self, bool wholes) {
    for (size_t i = 0; i < self->count; i++) {
        place *p = &self->places[i];
        pd_unit_param *param = &self->u->params[p->param];
        if (wholes) param->whole->requires_grad = param->shard->requires_grad;
        if (PyDict_GetItemWithError(p->parameters, p->name) != (wholes ? p->shard : p->whole)) continue;
        if (PyDict_SetItem(p->parameters, p->name, wholes ? p->whole : p->shard)) return -1;
    }
    self->shown = wholes;
    return 0;
}

/* A forward begins: the places show wholes, which are there. keep: they will stay. */
static int enter(pyunit *self, bool keep) {
    pd_status status = pd_unit_gather(self->u, keep ? PD_IN_OWN : PD_IN_RING, pd_py_site());
    if (status) {
        pd_py_raise(status);
        return -1;
    }
    if (!self->shown && put(self, true)) return -1;
    self->inside++;
    return 0;
}

/* It ends: the places show shards, unless keep or an outer forward goes on. */
static int leave(pyunit *self, bool keep) {
    if (--self->inside > 0 || keep) return 0;
    if (put(self, false)) return -1;
    pd_status status = pd_unit_drop(self->u);
    if (status) pd_py_raise(status);
    return status ? -1 : 0;
}

static PyObject *start(PyObject *o, PyObject *ahead) {
    bool only_free;
    if (!pd_py_truth(ahead, &only_free)) return NULL;
    PD_PY_TRY(pd_unit_start(unit_of(o), only_free ? PD_AHEAD : PD_IN_OWN, pd_py_site()));
    Py_RETURN_NONE;
}

static PyObject *unshard(PyObject *o, PyObject *keeps) {
    pyunit *self = (pyunit *)o;
    bool keep;
    if (!pd_py_truth(keeps, &keep)) return NULL;
    PD_PY_TRY(pd_unit_gather(self->u, keep ? PD_IN_OWN : PD_IN_RING, pd_py_site()));
    if (put(self, true)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *reshard(PyObject *o, PyObject *unused) {
    pyunit *self = (pyunit *)o;
    (void)unused;
    if (self->inside > 0) Py_RETURN_NONE;
    if (put(self, false)) return NULL;
    PD_PY_TRY(pd_unit_drop(self->u));
    Py_RETURN_NONE;
}

static PyObject *end_backward(PyObject *o, PyObject *unused) {
    const pyunit *self = (pyunit *)o;
    if (self->shown && !self->stays) return reshard(o, unused);
    Py_RETURN_NONE;
}

static PyObject *settle(PyObject *o, PyObject *first) {
    int begins = PyObject_IsTrue(first);
    if (begins < 0) return NULL;
    PD_PY_TRY(pd_unit_settle(unit_of(o), begins, pd_py_site()));
    Py_RETURN_NONE;
}

static PyObject *get_kind(PyObject *self, void *unused) {
    static const char *const names[] = {"alone", "common", "gathered"};
    (void)unused;
    return PyUnicode_FromString(names[unit_of(self)->kind]);
}
static PyObject *get_number(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(unit_of(self)->number);
}
static PyObject *get_shown(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(((pyunit *)self)->shown);
}
static PyObject *get_bytes(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(unit_of(self)->bytes);
}
static PyObject *get_window(PyObject *self, void *unused) {
    const pd_unit *u = unit_of(self);
    (void)unused;
    return PyUnicode_FromString(!u->window ? "" : u->slot < 0 ? "own" : "ring");
}
static PyObject *get_state(PyObject *self, void *unused) {
    const pd_unit *u = unit_of(self);
    (void)unused;
    return PyUnicode_FromString(u->gathered ? "gathered" : u->under_way ? "under way" : u->valid ? "dropped" : "");
}

static PyMethodDef unit_methods[] = {
    {"empty_shard", empty_shard, METH_O, "empty_shard(param)\n\nA tensor on meta with the sizes of this rank's part."},
    {"set_shard", set_shard, METH_VARARGS,
     "set_shard(param, shard)\n\nThe tensor is the parameter's shard from now on."},
    {"give", give, METH_VARARGS,
     "give(param, grad)\n\nThe gradient of the parameter's whole, whose memory need not be there, becomes this."},
    {"add_place", add_place, METH_VARARGS,
     "add_place(param, parameters, name)\n\nparameters[name] shows the shard, and inside of forward the whole."},
    {"shard", shard_of, METH_O, "shard(param)\n\nThe parameter's shard."},
    {"whole", whole_of, METH_O, "whole(param)\n\nThe parameter's whole."},
    {"intact", intact, METH_NOARGS,
     "intact()\n\nWhether all places show shards or wholes of the unit, and all memory is where it should be."},
    {"start", start, METH_O,
     "start(ahead)\n\nBegins to gather; ahead: if there is a window that nobody uses, else into memory of its own."},
    {"unshard", unshard, METH_O,
     "unshard(keep)\n\nThe places show wholes, which are there. keep: they will stay."},
    {"reshard", reshard, METH_NOARGS, "reshard()\n\nThe places show shards, unless a forward goes on."},
    {"end_backward", end_backward, METH_NOARGS, "end_backward()\n\nreshard(), unless wholes stay."},
    {"settle", settle, METH_O,
     "settle(first)\n\nMoves shards to the unit's memory; first: with the values of the wholes. All ranks call it."},
    {0},
};
static PyGetSetDef unit_getset[] = {
    {"kind", get_kind, NULL,
     "'alone': a world of one; 'common': wholes are in memory of all ranks; 'gathered': each rank gathers them.", NULL},
    {"number", get_number, NULL, "Its number among all units of the group: the order in which they were made.", NULL},
    {"shown", get_shown, NULL, "Whether the places show the wholes.", NULL},
    {"window", get_window, NULL,
     "Where gathered wholes are: 'ring', a window that units take in turn; 'own', memory of their own; '': nowhere.",
     NULL},
    {"state", get_state, NULL,
     "Of wholes that are gathered: 'under way', 'gathered', 'dropped' while the window still has them, or ''.", NULL},
    {"nbytes", get_bytes, NULL, "The bytes of all wholes in common memory; 0: there is none.", NULL},
    {0},
};
static PyMemberDef unit_members[] = {
    {"stays", T_BOOL, offsetof(pyunit, stays), 0, "Whether the places show wholes when a backward has ended."},
    {0},
};
static PyType_Slot unit_slots[] = {
    {Py_tp_new, unit_new}, {Py_tp_dealloc, unit_dealloc}, {Py_tp_traverse, unit_traverse}, {Py_tp_clear, unit_clear},
    {Py_tp_methods, unit_methods}, {Py_tp_getset, unit_getset}, {Py_tp_members, unit_members},
    {Py_tp_doc, "ShardUnit(group, params, names, dims, low=None, gathered=False)\n\nParameters that are sharded "
                "together (csrc/parallel/unit.h). All ranks of the group make it."},
    {0},
};
static PyType_Spec unit_spec = {.name = "pydist._C.ShardUnit", .basicsize = sizeof(pyunit), .slots = unit_slots,
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC};

/* ---- sharded models ---------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    pd_sharded *s;
    int n;
} pysharded;

static pd_sharded *model_of(PyObject *o) { return ((pysharded *)o)->s; }

static PyObject *model_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"units", "last_is_outer", "replicas", NULL};
    PyObject *units, *replicas = Py_None, *seq = NULL;
    pd_unit **list = NULL;
    pd_group *g = NULL;
    int outer;
    pysharded *self = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Op|O:Sharded", keywords, &units, &outer, &replicas) ||
        !(seq = pd_py_items(units, "Sharded", "units", "a list of ShardUnit")))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(seq);
    if (n < 1) PyErr_SetString(PyExc_ValueError, "Sharded: there are no units (expected at least one)");
    if (n < 1 || (replicas != Py_None && !(g = pd_py_group(replicas)))) goto done;
    pd_status status = pd_malloc(sizeof *list * (size_t)n, "Sharded", &list);
    for (Py_ssize_t i = 0; i < n && !status; i++) {
        PyObject *o = PyTuple_GET_ITEM(seq, i);
        if (Py_TYPE(o) != (PyTypeObject *)pd_py.ShardUnit)
            status = pd_fail(PD_E_TYPE, "Sharded: unit %zd is %.100s (expected ShardUnit)", i, Py_TYPE(o)->tp_name);
        else list[i] = unit_of(o);
    }
    if (!status && (self = (pysharded *)type->tp_alloc(type, 0))) {
        self->n = (int)n;
        status = pd_sharded_new(list, (int)n, outer, g, &self->s);
    }
    if (status) {
        Py_CLEAR(self);
        pd_py_raise(status);
    }
done:
    pd_free(list);
    Py_XDECREF(seq);
    return (PyObject *)self;
}

static void model_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    pd_sharded_free(model_of(o));
    type->tp_free(o);
    Py_DECREF(type);
}

/* Of enter(units, keep) and leave(units, keep). */
static bool read_units(PyObject *const *args, Py_ssize_t n, const char *op, PyObject **units, bool *keep) {
    if (n != 2 || !PyTuple_Check(args[0])) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple of ShardUnits and a bool", op);
        return false;
    }
    *units = args[0];
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(*units); i++)
        if (Py_TYPE(PyTuple_GET_ITEM(*units, i)) != (PyTypeObject *)pd_py.ShardUnit) {
            PyErr_Format(PyExc_TypeError, "%s: unit %zd is %.100s (expected ShardUnit)", op, i,
                         Py_TYPE(PyTuple_GET_ITEM(*units, i))->tp_name);
            return false;
        }
    return pd_py_truth(args[1], keep);
}

/* Leaves the first n units, also if one of them fails. */
static int leave_units(PyObject *units, Py_ssize_t n, bool keep) {
    PyObject *type = NULL, *value, *traceback;
    while (n--)
        if (leave((pyunit *)PyTuple_GET_ITEM(units, n), keep)) {
            if (type) PyErr_Clear();
            else PyErr_Fetch(&type, &value, &traceback);
        }
    if (type) PyErr_Restore(type, value, traceback);
    return type ? -1 : 0;
}

static PyObject *model_enter(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    PyObject *units;
    bool keep, outermost;
    if (!read_units(args, n, "enter", &units, &keep)) return NULL;
    if (pd_is_recording()) pd_record_refuse("it runs a sharded module");
    PD_PY_TRY(pd_sharded_enter(model_of(self), pd_py_site(), &outermost));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(units); i++) {
        if (!enter((pyunit *)PyTuple_GET_ITEM(units, i), keep)) continue;
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (leave_units(units, i, false)) PyErr_Clear();
        PyErr_Restore(type, value, traceback);
        pd_sharded_leave(model_of(self));
        return NULL;
    }
    return PyBool_FromLong(outermost);
}

static PyObject *model_leave(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    PyObject *units;
    bool keep;
    if (!read_units(args, n, "leave", &units, &keep)) return NULL;
    int failed = leave_units(units, PyTuple_GET_SIZE(units), keep);
    pd_sharded_leave(model_of(self));
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *model_shadow(PyObject *self, PyObject *unused) {
    (void)unused;
    PD_PY_TRY(pd_sharded_shadow(model_of(self), pd_py_site()));
    Py_RETURN_NONE;
}

static PyObject *set_options(PyObject *o, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"unit", "accumulates", "apart", "keeps", "divisor", "reduced", NULL};
    pysharded *self = (pysharded *)o;
    int unit, accumulates, apart, keeps;
    double divisor;
    PyObject *reduced;
    int64_t dtype;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ipppdO:set_options", keywords, &unit, &accumulates, &apart, &keeps,
                                     &divisor, &reduced) ||
        !pd_py_dtype(reduced, "set_options", "reduced", &dtype))
        return NULL;
    if (unit < 0 || unit >= self->n)
        return PyErr_Format(PyExc_IndexError, "set_options: unit is %d (expected 0 to %d)", unit, self->n - 1);
    *pd_sharded_options_of(self->s, unit) =
        (pd_sharded_options){accumulates, apart, keeps, divisor, (pd_dtype)dtype};
    Py_RETURN_NONE;
}

static PyObject *set_end(PyObject *self, PyObject *fn) {
    pd_sharded_set_end(model_of(self), pd_py_closure(fn, pd_py_call_plain));
    Py_RETURN_NONE;
}

static PyMethodDef model_methods[] = {
    {"enter", (PyCFunction)(void (*)(void))model_enter, METH_FASTCALL,
     "enter(units, keep)\n\nA forward begins, which shows the wholes of these units in their places; calls nest. keep: "
     "they will stay. Returns whether it is the outermost one."},
    {"leave", (PyCFunction)(void (*)(void))model_leave, METH_FASTCALL,
     "leave(units, keep)\n\nIt ends: the places show shards, unless keep or an outer forward goes on."},
    {"shadow", model_shadow, METH_NOARGS,
     "shadow()\n\nTakes part in the backward that the other ranks run; this rank's gradients are zeros."},
    {"set_options", (PyCFunction)(void (*)(void))set_options, METH_VARARGS | METH_KEYWORDS,
     "set_options(unit, accumulates, apart, keeps, divisor, reduced)\n\nHow backward reduces a unit "
     "(csrc/parallel/sharded.h)."},
    {"set_end", set_end, METH_O, "set_end(fn)\n\nfn() is called when a backward has ended."},
    {0},
};
static PyType_Slot model_slots[] = {
    {Py_tp_new, model_new}, {Py_tp_dealloc, model_dealloc}, {Py_tp_methods, model_methods},
    {Py_tp_doc, "Sharded(units, last_is_outer, replicas=None)\n\nThe units of a sharded model, in the order in which "
                "backward has their gradients (csrc/parallel/sharded.h)."},
    {0},
};
static PyType_Spec model_spec = {.name = "pydist._C.Sharded", .basicsize = sizeof(pysharded), .slots = model_slots,
                                 .flags = Py_TPFLAGS_DEFAULT};

static PyObject *end_writes(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    pd_readers_written_here();
    Py_RETURN_NONE;
}

static PyObject *await_writes(PyObject *module, PyObject *group) {
    pd_group *g = pd_py_group(group);
    pd_readers *r = NULL;
    (void)module;
    if (!g) return NULL;
    PD_PY_TRY(pd_group_readers(g, &r));
    PD_PY_TRY(pd_readers_begin(r, pd_py_site()));
    pd_readers_end(r);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"end_writes", end_writes, METH_NOARGS,
     "end_writes()\n\nThis thread has finished writing its shards of sharded models; other ranks may read them."},
    {"await_writes", await_writes, METH_O,
     "await_writes(group)\n\nWaits until all ranks of the group have finished writing their shards."},
    {0},
};

int pd_py_add_sharded(PyObject *module) {
    if (!pd_py_type(module, &unit_spec, NULL, &pd_py.ShardUnit)) return -1;
    if (!pd_py_type(module, &model_spec, NULL, &pd_py.Sharded)) return -1;
    return PyModule_AddFunctions(module, functions);
}
