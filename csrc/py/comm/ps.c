/* The parameter server in Python, below distributed.ps: keys are numbers here, in the order of add(). */
#include "ps/ps.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "py/comm/comm_impl.h"

typedef struct entry {
    pd_ps_key *key;
    pd_dtype dtype;
    int ndim;
    int64_t n, size[PD_MAX_DIMS];
} entry;

typedef struct {
    PyObject_HEAD
    pd_ps *ps;
    entry *entries;
    size_t n, cap;
} StoreObject;

static PyTypeObject *store_type;

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"group", "mode", "guard", "staleness", "mean", "goes_on", NULL};
    PyObject *group;
    pd_ps_options o = {0};
    int mode, guard, mean, goes_on;
    long long staleness;
    pd_group *g;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OiiLpp:ParameterStore", names, &group, &mode, &guard,
                                     &staleness, &mean, &goes_on) || !(g = pd_py_group(group)))
        return NULL;
    o.mode = (pd_ps_mode)mode, o.guard = (pd_ps_guard)guard, o.staleness = staleness;
    o.mean = mean, o.goes_on = goes_on;
    StoreObject *self = (StoreObject *)pd_py_comm_make(type, PD_PY_PARAMETERS);
    if (!self) return NULL;
    pd_status status = pd_ps_open(g, &o, &self->ps);
    return status ? pd_py_raise_without((PyObject *)self, status) : (PyObject *)self;
}

static void store_dealloc(PyObject *o) {
    StoreObject *self = (StoreObject *)o;
    PyObject_GC_UnTrack(o);
    pd_ps_release(self->ps);
    pd_free(self->entries);
    pd_py_comm_end(o, PD_PY_PARAMETERS);
}

/* [borrowed] the entry of a number; NULL with the exception set. */
static entry *entry_of(StoreObject *self, PyObject *o, const char *op) {
    int i;
    if (!pd_py_int_in(o, op, "key", 0, (long)self->n - 1, &i)) return NULL;
    return &self->entries[i];
}

static bool read_flags(PyObject *tuple, uint32_t *out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        int truth = PyObject_IsTrue(PyTuple_GET_ITEM(tuple, i));
        if (truth < 0) return false;
        *out |= (uint32_t)truth << i;
    }
    return true;
}

bool pd_py_doubles(PyObject *tuple, double *out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        out[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(tuple, i));
        if (out[i] == -1.0 && PyErr_Occurred()) return false;
    }
    return true;
}

/* Reads (rule, numbers, flags, clip, wide, lr). */
static bool read_rule(PyObject *o, pd_ps_rule *r, double *lr) {
    PyObject *numbers, *flags;
    const char *name;
    int wide, want_flags;
    if (!PyTuple_Check(o)) {
        PyErr_Format(PyExc_TypeError, "set_optimizer: the rule is %R (expected a tuple)", o);
        return false;
    }
    if (!PyArg_ParseTuple(o, "sO!O!dpd:set_optimizer", &name, &PyTuple_Type, &numbers, &PyTuple_Type, &flags, &r->clip,
                          &wide, lr))
        return false;
    if ((r->kind = pd_ps_rule_find(name)) < 0) {
        PyErr_Format(PyExc_ValueError, "set_optimizer: the rule is '%s' (expected a name of csrc/ps/rule.c)", name);
        return false;
    }
    const int want = pd_ps_rule_counts(r->kind, &want_flags);
    if (PyTuple_GET_SIZE(numbers) != want || PyTuple_GET_SIZE(flags) != want_flags) {
        PyErr_Format(PyExc_ValueError, "set_optimizer: %s has %zd numbers and %zd flags (expected %d and %d)", name,
                     PyTuple_GET_SIZE(numbers), PyTuple_GET_SIZE(flags), want, want_flags);
        return false;
    }
    r->wide = wide;
    return pd_py_doubles(numbers, r->numbers) && read_flags(flags, &r->flags);
}

static void words(const pd_tensor *t, char *text, size_t size) {
    snprintf(text, size, "%s of shape %s", pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t));
}

static PyObject *store_add(PyObject *o, PyObject *args) {
    StoreObject *self = (StoreObject *)o;
    const char *name;
    PyObject *value, *rule;
    pd_py_buffer b;
    pd_ps_rule r = {0};
    double lr = 0;
    char is[200];
    if (!PyArg_ParseTuple(args, "sOO:init", &name, &value, &rule)) return NULL;
    if (rule != Py_None && !read_rule(rule, &r, &lr)) return NULL;
    pd_tensor *t = pd_py_expect_tensor(value, "init", "value");
    if (!t) return NULL;
    words(t, is, sizeof is);
    PD_PY_TRY(pd_grow(&self->entries, &self->cap, self->n + 1, sizeof *self->entries, "init"));
    PD_PY_TRY(pd_py_buffer_take(value, NULL, "init", "value", PD_PY_IN | PD_PY_HOST, &b));
    entry e = {.dtype = (pd_dtype)t->dtype, .ndim = t->ndim, .n = t->numel};
    memcpy(e.size, t->size, (size_t)t->ndim * sizeof *e.size);
    pd_status status = pd_ps_add(self->ps, name, is, e.dtype, e.n, b.ptr, rule != Py_None ? &r : NULL, lr, &e.key);
    pd_py_buffer_drop(&b);
    if (status) return pd_py_raise(status);
    self->entries[self->n] = e;
    return PyLong_FromSize_t(self->n++);
}

static void drop_view(void *ps) { pd_ps_release(ps); }

/* [new] a tensor over the store's memory, which it keeps alive */
static PyObject *view(StoreObject *self, const entry *e, pd_dtype dtype, void *data) {
    int64_t stride[PD_MAX_DIMS], next = 1;
    pd_tensor *t;
    for (int d = e->ndim; d-- > 0; next *= e->size[d]) stride[d] = next;
    pd_ps_retain(self->ps);
    pd_status status =
        pd_py_borrow("ParameterStore", data, dtype, e->ndim, e->size, stride, false, drop_view, self->ps, &t);
    if (!status) return pd_py_wrap_new(t);
    pd_ps_release(self->ps);
    return pd_py_raise(status);
}

static PyObject *store_value(PyObject *o, PyObject *key) {
    const entry *e = entry_of((StoreObject *)o, key, "value");
    return e ? view((StoreObject *)o, e, e->dtype, pd_ps_value(e->key)) : NULL;
}

static PyObject *store_slot(PyObject *o, PyObject *key) {
    const entry *e = entry_of((StoreObject *)o, key, "slot");
    if (!e) return NULL;
    void *slot = pd_ps_slot(e->key);
    if (!slot) Py_RETURN_NONE;
    return view((StoreObject *)o, e, e->dtype, slot);
}

static PyObject *store_states(PyObject *o, PyObject *key) {
    const entry *e = entry_of((StoreObject *)o, key, "states");
    PyObject *list = e ? PyList_New(0) : NULL;
    for (int i = 0; list && i < PD_PS_STATES; i++) {
        pd_dtype dtype;
        void *data;
        pd_status status = pd_ps_state(e->key, i, &dtype, &data);
        PyObject *item = status ? pd_py_raise(status)
                         : data ? view((StoreObject *)o, e, dtype, data)
                                : Py_NewRef(Py_None);
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *store_set_rule(PyObject *o, PyObject *args) {
    PyObject *key, *rule;
    pd_ps_rule r = {0};
    double lr;
    if (!PyArg_ParseTuple(args, "OO:set_optimizer", &key, &rule)) return NULL;
    const entry *e = entry_of((StoreObject *)o, key, "set_optimizer");
    if (!e || !read_rule(rule, &r, &lr)) return NULL;
    return pd_py_none_or(pd_ps_set_rule(e->key, &r, lr));
}

static PyObject *store_lr(PyObject *o, PyObject *key) {
    const entry *e = entry_of((StoreObject *)o, key, "lr");
    return e ? PyFloat_FromDouble(pd_ps_lr(e->key)) : NULL;
}

static PyObject *store_set_lr(PyObject *o, PyObject *args) {
    PyObject *key;
    double lr;
    if (!PyArg_ParseTuple(args, "Od:set_learning_rate", &key, &lr)) return NULL;
    const entry *e = entry_of((StoreObject *)o, key, "set_learning_rate");
    if (!e) return NULL;
    pd_ps_set_lr(e->key, lr);
    Py_RETURN_NONE;
}

/* ---- push and pull ----------------------------------------------------------------------------------------------- */

typedef struct lists {
    PyObject *keys, *tensors; /* tuples */
    Py_ssize_t n, taken;
    pd_ps_key **key;
    void **data;
    pd_py_buffer *buffers;
} lists;

static PyObject *drop_lists(lists *l, PyObject *result) {
    for (Py_ssize_t i = 0; i < l->taken; i++) pd_py_buffer_drop(&l->buffers[i]);
    pd_free(l->key), pd_free(l->data), pd_free(l->buffers);
    Py_XDECREF(l->keys);
    Py_XDECREF(l->tensors);
    return result;
}

static bool take_one(StoreObject *self, const char *op, const char *arg, int use, lists *l, Py_ssize_t i) {
    PyObject *o = PyTuple_GET_ITEM(l->tensors, i);
    const entry *e = entry_of(self, PyTuple_GET_ITEM(l->keys, i), op);
    pd_py_buffer *b = &l->buffers[i];
    char is[200];
    if (!e) return false;
    l->key[i] = e->key;
    if (o == Py_None && use == PD_PY_OUT) {
        l->taken++;
        return true;
    }
    pd_tensor *t = pd_py_expect_tensor(o, op, arg);
    if (!t) return false;
    if ((pd_dtype)t->dtype != e->dtype || t->ndim != e->ndim || memcmp(t->size, e->size, (size_t)e->ndim * 8)) {
        words(t, is, sizeof is);
        PyObject *shape = pd_py_size(e->ndim, e->size);
        if (shape)
            PyErr_Format(PyExc_ValueError, "%s: %s %zd is %s (expected %s of shape %S, like the key's value)", op, arg,
                         i, is, pd_dtype_name(e->dtype), shape);
        Py_XDECREF(shape);
        return false;
    }
    pd_status status = pd_py_buffer_take(o, NULL, op, arg, use | PD_PY_HOST, b);
    if (status) return pd_py_raise(status) != NULL;
    l->data[i] = b->ptr;
    l->taken++;
    return true;
}

static bool take_lists(StoreObject *self, const char *op, const char *arg, int use, PyObject *keys, PyObject *tensors,
                       lists *l) {
    *l = (lists){0};
    if (!(l->keys = PySequence_Tuple(keys)) || !(l->tensors = PySequence_Tuple(tensors))) return false;
    l->n = PyTuple_GET_SIZE(l->keys);
    if (l->n != PyTuple_GET_SIZE(l->tensors)) {
        PyErr_Format(PyExc_ValueError, "%s: got %zd keys and %zd tensors (expected one for each key)", op, l->n,
                     PyTuple_GET_SIZE(l->tensors));
        return false;
    }
    const size_t n = (size_t)l->n + 1;
    pd_status status = pd_calloc(n * sizeof *l->key, op, &l->key);
    PD_THEN(pd_calloc(n * sizeof *l->data, op, &l->data));
    PD_THEN(pd_calloc(n * sizeof *l->buffers, op, &l->buffers));
    if (status) return pd_py_raise(status) != NULL;
    for (Py_ssize_t i = 0; i < l->n; i++)
        if (!take_one(self, op, arg, use, l, i)) return false;
    return true;
}

static PyObject *store_push(PyObject *o, PyObject *args) {
    StoreObject *self = (StoreObject *)o;
    PyObject *keys, *tensors;
    double rescale;
    lists l;
    if (!PyArg_ParseTuple(args, "OOd:push", &keys, &tensors, &rescale)) return NULL;
    if (!take_lists(self, "push", "gradient", PD_PY_IN, keys, tensors, &l)) return drop_lists(&l, NULL);
    pd_status status = pd_ps_push(self->ps, (int)l.n, l.key, (const void *const *)l.data, rescale);
    return drop_lists(&l, pd_py_none_or(status));
}

static PyObject *store_pull(PyObject *o, PyObject *args) {
    StoreObject *self = (StoreObject *)o;
    PyObject *keys, *tensors;
    int consistent;
    lists l;
    if (!PyArg_ParseTuple(args, "OOp:pull", &keys, &tensors, &consistent)) return NULL;
    if (!take_lists(self, "pull", "output", PD_PY_OUT, keys, tensors, &l)) return drop_lists(&l, NULL);
    pd_status status = pd_ps_pull(self->ps, (int)l.n, l.key, l.data, consistent);
    for (Py_ssize_t i = 0; i < l.n; i++)
        if (l.data[i]) PD_THEN(pd_py_buffer_done(&l.buffers[i]));
    return drop_lists(&l, pd_py_none_or(status));
}

/* ---- clocks and counts ------------------------------------------------------------------------------------------- */

static PyObject *store_version(PyObject *o, PyObject *key) {
    const entry *e = entry_of((StoreObject *)o, key, "version");
    return e ? PyLong_FromUnsignedLongLong(pd_ps_version(e->key)) : NULL;
}

static PyObject *store_set_version(PyObject *o, PyObject *args) {
    PyObject *key;
    unsigned long long steps;
    if (!PyArg_ParseTuple(args, "OK:set_version", &key, &steps)) return NULL;
    const entry *e = entry_of((StoreObject *)o, key, "set_version");
    if (!e) return NULL;
    pd_ps_set_version(e->key, steps);
    Py_RETURN_NONE;
}

static PyObject *store_clock(PyObject *o, PyObject *arg) {
    int n;
    if (!pd_py_int_in(arg, "clock", "n", 0, INT32_MAX, &n)) return NULL;
    return pd_py_none_or(pd_ps_clock(((StoreObject *)o)->ps, n));
}

static PyObject *store_set_factors(PyObject *o, PyObject *arg) {
    double factors[PD_PS_BINS];
    if (!PyTuple_Check(arg) || PyTuple_GET_SIZE(arg) > PD_PS_BINS)
        return PyErr_Format(PyExc_ValueError, "create: expected a tuple of at most %d factors", PD_PS_BINS);
    if (!pd_py_doubles(arg, factors)) return NULL;
    return pd_py_none_or(pd_ps_set_factors(((StoreObject *)o)->ps, (int)PyTuple_GET_SIZE(arg), factors));
}

static PyObject *counts(const uint64_t *bins) {
    PyObject *list = PyList_New(PD_PS_BINS);
    for (int i = 0; list && i < PD_PS_BINS; i++) PyList_SET_ITEM(list, i, PyLong_FromUnsignedLongLong(bins[i]));
    return list;
}

static PyObject *store_key_lags(PyObject *o, PyObject *key) {
    uint64_t bins[PD_PS_BINS];
    const entry *e = entry_of((StoreObject *)o, key, "staleness");
    if (!e) return NULL;
    pd_ps_key_lags(e->key, bins);
    return counts(bins);
}

/* (clock, refused pushes, gone, histogram of staleness) of a worker */
static PyObject *store_worker(PyObject *o, PyObject *arg) {
    pd_ps *ps = ((StoreObject *)o)->ps;
    uint64_t bins[PD_PS_BINS];
    int w;
    if (!pd_py_int_in(arg, "metrics", "worker", 0, pd_ps_workers(ps) - 1, &w)) return NULL;
    pd_ps_worker_lags(ps, w, bins);
    return Py_BuildValue("KKNN", pd_ps_clock_of(ps, w), pd_ps_refused(ps, w), PyBool_FromLong(pd_ps_is_gone(ps, w)),
                         counts(bins));
}

static PyObject *store_settle(PyObject *o, PyObject *unused) {
    (void)unused;
    return pd_py_none_or(pd_ps_settle(((StoreObject *)o)->ps));
}

static PyObject *store_rank(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_ps_rank(((StoreObject *)o)->ps));
}
static PyObject *store_workers(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_ps_workers(((StoreObject *)o)->ps));
}

static PyMethodDef store_methods[] = {
    {"add", store_add, METH_VARARGS,
     "add(name, value, rule) -> int\n\nA new key. Rank 0's value and rule count; the rule may be None."},
    {"value", store_value, METH_O, "value(key) -> Tensor\n\nThe value itself, in shared memory."},
    {"slot", store_slot, METH_O,
     "slot(key) -> Tensor or None\n\nWhere this worker's gradient lies until it is applied."},
    {"states", store_states, METH_O,
     "states(key) -> list\n\nThe float32 copy of a 16-bit value and the states m, v, w; None for those that the rule "
     "does not use."},
    {"set_rule", store_set_rule, METH_VARARGS, "set_rule(key, rule)\n\nrule: (name, numbers, flags, clip, wide, lr)."},
    {"lr", store_lr, METH_O, "lr(key) -> float"},
    {"set_lr", store_set_lr, METH_VARARGS, "set_lr(key, lr)"},
    {"push", store_push, METH_VARARGS, "push(keys, gradients, rescale)"},
    {"pull", store_pull, METH_VARARGS, "pull(keys, outputs, consistent)\n\nAn output may be None: then it only waits."},
    {"version", store_version, METH_O, "version(key) -> int\n\nHow many updates are applied."},
    {"set_version", store_set_version, METH_VARARGS, "set_version(key, steps)"},
    {"clock", store_clock, METH_O, "clock(n)"},
    {"set_factors", store_set_factors, METH_O, "set_factors(factors)\n\nOf the learning rate, by staleness."},
    {"key_lags", store_key_lags, METH_O, "key_lags(key) -> list"},
    {"worker", store_worker, METH_O, "worker(rank) -> (clock, refused, gone, lags)"},
    {"settle", store_settle, METH_NOARGS, "settle()\n\nFinishes the pushes of dead workers."},
    {0},
};

static PyGetSetDef store_getset[] = {
    {"rank", store_rank, NULL, "This worker's rank in the store.", NULL},
    {"num_workers", store_workers, NULL, "How many workers the store has.", NULL},
    {0},
};

static PyType_Slot store_slots[] = {
    {Py_tp_new, store_new},
    {Py_tp_dealloc, store_dealloc},
    {Py_tp_traverse, pd_py_comm_visit},
    {Py_tp_methods, store_methods},
    {Py_tp_getset, store_getset},
    {Py_tp_doc, "ParameterStore(group, mode, guard, staleness, mean, goes_on)\n\nValues in the memory that all ranks "
                "of a group share; see distributed.ps."},
    {0},
};
static PyType_Spec store_spec = PD_PY_SPEC("ParameterStore", StoreObject, store_slots, 0);

pd_ps *pd_py_parameter_store(PyObject *o) {
    if (Py_TYPE(o) == store_type) return ((StoreObject *)o)->ps;
    PyErr_Format(PyExc_TypeError, "store: got %R (expected a ParameterStore)", o);
    return NULL;
}

int pd_py_add_ps(PyObject *module) { return pd_py_comm_type(module, &store_spec, &store_type); }
