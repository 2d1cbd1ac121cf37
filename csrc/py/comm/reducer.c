/* The data-parallel reducer as a Python object, below nn.parallel.DistributedDataParallel. */
#include "parallel/compress.h"
#include "parallel/hash.h"

#include "base/mem.h"
#include "py/comm/comm_impl.h"
#include "py/py.h"

/* hook, begin: [borrowed from r, which nobody else owns] objects that the cycle collector must see */
typedef struct { PyObject_HEAD pd_reducer *r; PyObject *hook, *begin; } pyreducer;

static void free_names(const char **names) { pd_free((void *)(uintptr_t)names); }

static PyObject *reducer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"params", "names", "group", "bucket_bytes", "first_bucket_bytes", "blocks", NULL};
    PyObject *params, *list_of_names, *names = NULL, *group, *dealt = Py_None, *seq = NULL;
    pd_blocks *blocks;
    long long cap, first;
    pd_tensor **list = NULL;
    const char **texts = NULL;
    Py_ssize_t n;
    pyreducer *self = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOLL|O:Reducer", keywords, &params, &list_of_names, &group, &cap,
                                     &first, &dealt) ||
        !pd_py_blocks(dealt, "Reducer", &blocks))
        return NULL;
    pd_group *g = pd_py_group(group);
    if (!g || !pd_py_tensors(params, "Reducer", "params", &seq, &list, &n)) return NULL;
    if (!(names = pd_py_items(list_of_names, "Reducer", "names", "a list of str"))) goto done;
    if (PyTuple_GET_SIZE(names) != n || cap < 1 || first < 1) {
        PyErr_SetString(PyExc_ValueError,
                        "Reducer: names or sizes of buckets do not fit (expected a name for each parameter, and "
                        "buckets of at least 1 byte)");
        goto done;
    }
    pd_status status = pd_malloc(sizeof *texts * (size_t)(n + 1), "reducer", &texts);
    for (Py_ssize_t i = 0; i < n && !status; i++) {
        if (!list[i])
            status = pd_fail(PD_E_TYPE, "Reducer: parameter %zd is None (expected Tensor)", i);
        else if (!(texts[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, i)))) goto done;
    }
    if (!status && (self = (pyreducer *)type->tp_alloc(type, 0)))
        status = pd_reducer_new(list, texts, (int)n, g, (size_t)first, (size_t)cap, blocks, &self->r);
    if (status) {
        Py_CLEAR(self);
        pd_py_raise(status);
    }
done:
    free_names(texts);
    pd_free(list);
    Py_XDECREF(seq);
    Py_XDECREF(names);
    return (PyObject *)self;
}

static int reducer_traverse(PyObject *o, visitproc visit, void *arg) {
    pyreducer *self = (pyreducer *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(self->hook);
    Py_VISIT(self->begin);
    return 0;
}

static int reducer_clear(PyObject *o) {
    pyreducer *self = (pyreducer *)o;
    self->hook = self->begin = NULL;
    if (self->r) pd_reducer_drop_hooks(self->r);
    return 0;
}

static void reducer_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    pd_reducer_free(((pyreducer *)self)->r);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *prepare(PyObject *self, PyObject *unused) {
    (void)unused;
    if (pd_is_recording()) pd_record_outside("Reducer.prepare is called in it");
    PD_PY_TRY(pd_reducer_prepare(((pyreducer *)self)->r, pd_py_site()));
    Py_RETURN_NONE;
}

static pd_reducer *over_shards(PyObject *self, const char *op) {
    pd_reducer *r = ((pyreducer *)self)->r;
    if (pd_reducer_shards(r) >= 0) return r;
    PyErr_Format(PyExc_RuntimeError, "%s: the reducer has no logical shards (expected one that was made with blocks)",
                 op);
    return NULL;
}

static PyObject *open_shard(PyObject *self, PyObject *number) {
    pd_reducer *r = over_shards(self, "open_shard");
    int k;
    if (!r || !pd_py_int_in(number, "open_shard", "k", INT32_MIN, INT32_MAX, &k)) return NULL;
    PD_PY_TRY(pd_reducer_open_shard(r, k, pd_py_site()));
    Py_RETURN_NONE;
}

static PyObject *last_backward(PyObject *self, PyObject *unused) {
    pd_reducer *r = over_shards(self, "last_backward");
    (void)unused;
    if (!r) return NULL;
    PD_PY_TRY(pd_reducer_last_backward(r));
    Py_RETURN_NONE;
}

static PyObject *close_shard(PyObject *self, PyObject *unused) {
    pd_reducer *r = over_shards(self, "close_shard");
    pd_status status;
    (void)unused;
    if (!r) return NULL;
    if (pd_reducer_shards(r) && pd_reducer_is_closed(r)) Py_RETURN_NONE; /* its last backward has */
    uint64_t site = pd_py_site();
    PD_PY_NO_GIL(status = pd_reducer_close_shard(r, site));
    return pd_py_none_or(status);
}

static PyObject *round_shards(PyObject *self, PyObject *dtype) {
    pd_reducer *r = over_shards(self, "round_shards");
    int64_t t;
    if (!r || !pd_py_dtype(dtype, "round_shards", "dtype", &t)) return NULL;
    PD_PY_TRY(pd_reducer_round_shards(r, (pd_dtype)t));
    Py_RETURN_NONE;
}

static PyObject *hash_shards(PyObject *self, PyObject *unused) {
    pd_reducer *r = over_shards(self, "hash_shards");
    (void)unused;
    if (!r) return NULL;
    PD_PY_TRY(pd_reducer_hash_shards(r));
    Py_RETURN_NONE;
}

static PyObject *get_hashes(PyObject *self, void *unused) {
    pd_reducer *r = ((pyreducer *)self)->r;
    const uint64_t *hashes = pd_reducer_hashes(r);
    (void)unused;
    if (!hashes) Py_RETURN_NONE;
    Py_ssize_t n = pd_reducer_layout(r)->npieces;
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        PyObject *hash = PyLong_FromUnsignedLongLong(hashes[i]);
        if (!hash) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, hash);
    }
    return list;
}

static PyObject *get_shards(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_reducer_shards(((pyreducer *)self)->r));
}

static PyObject *get_is_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(pd_reducer_is_closed(((pyreducer *)self)->r));
}

static PyObject *bucket_layout(PyObject *self, PyObject *unused) {
    (void)unused;
    return pd_py_bucket_rows(pd_reducer_layout(((pyreducer *)self)->r));
}

/* ---- hooks ------------------------------------------------------------------------------------------------------ */

static PyObject *bucket_view(pd_reducer *r, int b) {
    pd_reducer_bucket k;
    pd_tensor *t;
    PD_PY_TRY(pd_reducer_bucket_at(r, b, &k));
    PD_PY_TRY(pd_tensor_shell(&t));
    t->dtype = (uint8_t)k.dtype;
    t->ndim = 1;
    t->numel = t->size[0] = k.numel;
    t->stride[0] = 1;
    pd_storage_retain(t->storage = k.storage);
    return pd_py_wrap_new(t);
}

static PyObject *bucket(PyObject *self, PyObject *args) {
    pd_reducer *r = ((pyreducer *)self)->r;
    int b;
    if (!PyArg_ParseTuple(args, "i:bucket", &b)) return NULL;
    PyObject *view = bucket_view(r, b);
    if (!view) return NULL;
    const pd_layout *l = pd_reducer_layout(r);
    PyObject *grads = PyList_New(l->buckets[b].count);
    for (int k = 0; grads && k < l->buckets[b].count; k++) {
        PyObject *g = pd_py_wrap(pd_reducer_view(r, l->by_bucket[l->buckets[b].first + k]));
        if (!g) Py_CLEAR(grads);
        else PyList_SET_ITEM(grads, k, g);
    }
    if (!grads) {
        Py_DECREF(view);
        return NULL;
    }
    return Py_BuildValue("NN", view, grads);
}

static pd_status hook_start(void *hook, int b, void **pending) {
    PyGILState_STATE gil = PyGILState_Ensure();
    *pending = PyObject_CallMethod(hook, "start", "i", b);
    pd_status status = *pending ? PD_OK : pd_py_caught();
    PyGILState_Release(gil);
    return status;
}

static pd_status hook_finish(void *hook, int b, void *pending) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *result = PyObject_CallMethod(hook, "finish", "iO", b, pending);
    pd_status status = result ? PD_OK : pd_py_caught();
    Py_XDECREF(result);
    Py_DECREF((PyObject *)pending);
    PyGILState_Release(gil);
    return status;
}

static PyObject *set_hook(PyObject *self, PyObject *hook) {
    pd_comm_hook h = {.start = hook_start, .finish = hook_finish, .abandon = pd_py_drop, .drop = pd_py_drop,
                      .ctx = hook};
    PD_PY_TRY(pd_reducer_set_hook(((pyreducer *)self)->r, h));
    ((pyreducer *)self)->hook = Py_NewRef(hook); /* the reference that r holds */
    Py_RETURN_NONE;
}

static PyObject *set_builtin_hook(PyObject *self, PyObject *args) {
    static const char *const names[] = {"fp16", "bf16", "topk", "sign"};
    const char *name;
    double ratio = 1;
    if (!PyArg_ParseTuple(args, "s|d:set_builtin_hook", &name, &ratio)) return NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) {
            PD_PY_TRY(pd_compress_set(((pyreducer *)self)->r, (pd_compress)i, ratio));
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "set_builtin_hook: name is %.100s (expected fp16, bf16, topk or sign)", name);
}

static PyObject *set_begin(PyObject *o, PyObject *fn) {
    pyreducer *self = (pyreducer *)o;
    self->begin = fn == Py_None ? NULL : fn;
    pd_reducer_set_begin(self->r, fn == Py_None ? (pd_closure){0} : pd_py_closure(fn, pd_py_call_plain));
    Py_RETURN_NONE;
}

static PyObject *shadow(PyObject *self, PyObject *unused) {
    (void)unused;
    pd_reducer *r = ((pyreducer *)self)->r;
    uint64_t site = pd_py_site();
    pd_status status;
    if (pd_is_recording()) pd_record_outside("Reducer.shadow is called in it");
    Py_BEGIN_ALLOW_THREADS
    status = pd_reducer_shadow(r, site);
    Py_END_ALLOW_THREADS
    return status ? pd_py_raise(status) : Py_NewRef(Py_None);
}

static PyObject *set_divisor(PyObject *self, PyObject *value) {
    double divisor = PyFloat_AsDouble(value);
    if (divisor == -1 && PyErr_Occurred()) return NULL;
    if (pd_is_recording()) pd_record_outside("Reducer.set_divisor is called in it");
    PD_PY_TRY(pd_reducer_set_divisor(((pyreducer *)self)->r, divisor));
    Py_RETURN_NONE;
}

static PyObject *set_weight(PyObject *self, PyObject *value) {
    double weight = PyFloat_AsDouble(value);
    if (weight == -1 && PyErr_Occurred()) return NULL;
    if (pd_is_recording()) pd_record_outside("Reducer.set_weight is called in it");
    PD_PY_TRY(pd_reducer_set_weight(((pyreducer *)self)->r, weight));
    Py_RETURN_NONE;
}

static PyObject *times(PyObject *self, PyObject *unused) {
    const pd_reducer_times *t = pd_reducer_get_times(((pyreducer *)self)->r);
    (void)unused;
    return Py_BuildValue("{sLsLsLsLsLsLsLsLsLsL}", "steps", (long long)t->steps, "bytes", (long long)t->bytes,
                         "forward", (long long)t->forward, "backward", (long long)t->backward,
                         "inside", (long long)t->inside, "waited", (long long)t->waited,
                         "sum_forward", (long long)t->sum_forward, "sum_backward", (long long)t->sum_backward,
                         "sum_inside", (long long)t->sum_inside, "sum_waited", (long long)t->sum_waited);
}

static PyObject *hash_tensors(PyObject *unused, PyObject *arg) {
    PyObject *seq;
    pd_tensor **list;
    Py_ssize_t n;
    (void)unused;
    if (!pd_py_tensors(arg, "hash_tensors", "tensors", &seq, &list, &n)) return NULL;
    PyObject *out = PyList_New(n);
    for (Py_ssize_t i = 0; out && i < n; i++) {
        if (!list[i] || !pd_tensor_is_contiguous(list[i])) {
            PyErr_Format(PyExc_ValueError, "hash_tensors: tensor %zd is %s (expected a contiguous tensor)", i,
                         list[i] ? "not contiguous" : "None");
            Py_CLEAR(out);
            break;
        }
        if (!pd_py_on_host(list[i], "hash_tensors")) {
            Py_CLEAR(out);
            break;
        }
        uint64_t h = pd_hash64(pd_tensor_data(list[i]), pd_tensor_bytes(list[i]));
        PyObject *number = PyLong_FromUnsignedLongLong(h);
        if (!number) Py_CLEAR(out);
        else PyList_SET_ITEM(out, i, number);
    }
    pd_free(list);
    Py_DECREF(seq);
    return out;
}

static PyObject *get_sync(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(pd_reducer_get_sync(((pyreducer *)self)->r));
}
static PyObject *get_waits(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(pd_reducer_get_waits(((pyreducer *)self)->r));
}
static int set_truth(PyObject *self, PyObject *value, void (*set)(pd_reducer *, bool)) {
    int on = value ? PyObject_IsTrue(value) : -1;
    if (on < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "Reducer: sync and waits cannot be deleted (expected True or False)");
        return -1;
    }
    if (pd_is_recording()) pd_record_outside("no_sync() is called in it");
    set(((pyreducer *)self)->r, on);
    return 0;
}
static int set_sync(PyObject *self, PyObject *value, void *unused) {
    (void)unused;
    return set_truth(self, value, pd_reducer_set_sync);
}
static int set_waits(PyObject *self, PyObject *value, void *unused) {
    (void)unused;
    return set_truth(self, value, pd_reducer_set_waits);
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_NOARGS,
     "prepare()\n\nMust be called before a forward whose backward will reduce gradients."},
    {"bucket_layout", bucket_layout, METH_NOARGS,
     "bucket_layout()\n\nFor each bucket, a list of (parameter, offset, elements)."},
    {"bucket", bucket, METH_VARARGS,
     "bucket(b)\n\nThe memory of bucket b as a flat tensor, and the list of its gradients."},
    {"set_hook", set_hook, METH_O,
     "set_hook(hook)\n\nThe reducer calls hook.start(b) when bucket b is full, and hook.finish(b, what start returned) "
     "at the end."},
    {"set_builtin_hook", set_builtin_hook, METH_VARARGS,
     "set_builtin_hook(name, ratio=1.0)\n\nCompresses gradients by fp16, bf16, topk or sign "
     "(csrc/parallel/compress.h). All ranks must call this."},
    {"set_begin", set_begin, METH_O,
     "set_begin(fn)\n\nThe reducer calls fn before the first bucket of every reduced backward; None: it calls "
     "nothing."},
    {"set_divisor", set_divisor, METH_O, "set_divisor(n)\n\nThe reducer divides sums of gradients by n."},
    {"set_weight", set_weight, METH_O,
     "set_weight(w)\n\nThis rank's gradients count w times in sums: W * its rows / all rows."},
    {"shadow", shadow, METH_NOARGS,
     "shadow()\n\nTakes part in the backward that the other ranks run; this rank's gradients are zeros."},
    {"open_shard", open_shard, METH_O,
     "open_shard(k)\n\nThis rank begins its logical shard k: 0, 1, ... in each step. .grad becomes None."},
    {"last_backward", last_backward, METH_NOARGS,
     "last_backward()\n\nThe next backward is the last one of the open shard: its gradients are final."},
    {"close_shard", close_shard, METH_NOARGS,
     "close_shard()\n\nEnds the open shard, unless its last backward has done so. After the rank's last shard .grad is "
     "the mean over all shards of all ranks. A rank without shards calls only this."},
    {"round_shards", round_shards, METH_O,
     "round_shards(dtype)\n\nFrom now on gradients of shards, and their mean, are rounded to float16 or bfloat16."},
    {"hash_shards", hash_shards, METH_NOARGS, "hash_shards()\n\nFrom now on each shard's gradients are hashed."},
    {"times", times, METH_NOARGS,
     "times()\n\nThe time that the last reduced backward took, and the sum over all, in nanoseconds."},
    {0},
};
static PyGetSetDef getset[] = {
    {"shards", get_shards, NULL, "How many logical shards this rank has; -1: it was made without blocks.", NULL},
    {"hashes", get_hashes, NULL,
     "A 64-bit hash of each parameter's gradient in the shard that was closed last, 0: there was none; None: they are "
     "not hashed.", NULL},
    {"is_closed", get_is_closed, NULL, "Whether no logical shard of this rank is open.", NULL},
    {"sync", get_sync, set_sync,
     "Whether backwards reduce gradients over the ranks; False: they accumulate on this rank only, as in no_sync().",
     NULL},
    {"waits", get_waits, set_waits,
     "Whether the end of backward waits for a GPU's gradients, so that their errors are raised before the step.", NULL},
    {0},
};
static PyType_Slot slots[] = {
    {Py_tp_new, reducer_new}, {Py_tp_dealloc, reducer_dealloc}, {Py_tp_traverse, reducer_traverse},
    {Py_tp_clear, reducer_clear}, {Py_tp_methods, methods}, {Py_tp_getset, getset}, {0},
};
static PyType_Spec spec = {
    .name = "pydist._C.Reducer", .basicsize = sizeof(pyreducer), .slots = slots,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
};
static PyMethodDef functions[] = {
    {"hash_tensors", hash_tensors, METH_O,
     "hash_tensors(tensors)\n\nA 64-bit hash of each tensor's bytes. Errors: ValueError for a tensor that is not "
     "contiguous."},
    {0},
};

int pd_py_add_reducer(PyObject *module) {
    if (!pd_py_type(module, &spec, NULL, &pd_py.Reducer)) return -1;
    return PyModule_AddFunctions(module, functions);
}
